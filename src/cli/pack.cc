#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/mapped_file.h"
#include "cli/common.h"
#include "formats/model_reader.h"
#include "pack/pack.h"
#include "program/build_pack.h"
#include "quant/calibration.h"
#include "quant/recipe.h"
#include "text/chat_template.h"
#include "text/dialogues.h"

namespace sluice::cli {
namespace {

constexpr std::string_view kRequestKey = "sluice.request";

uint32_t Checksum(std::string_view text, uint32_t previous) {
  return base::Crc32c({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, previous);
}

struct Flags {
  std::string model;
  std::string output;
  std::string recipe{kDefaultRecipe};
  std::vector<std::string> calibrate;
  bool parse_special = false;
  bool no_calibration = false;
  uint64_t calibration_tokens = 40960;
  uint32_t window = 512;
  uint32_t context = 0;
  unsigned threads = 0;
  bool force = false;
  bool report = false;
  bool json = false;
};

// Fewer tokens than this say nothing about a model.
constexpr uint64_t kLeastCalibration = 64;

// Names what a pack is made with, apart from the model: a pack of the same name that was made with
// the same need not be made again.
base::Result<std::string> RequestOf(const Flags& flags) {
  uint32_t texts = 0;
  if (flags.calibrate.empty()) {
    for (const auto& file : quant::CalibrationTexts()) texts = Checksum(file.text, texts);
  }
  for (const std::string& path : flags.calibrate) {
    SLUICE_TRY(const std::string text, base::ReadSmallFile(path, kLargestText));
    texts = Checksum(text, texts);
  }
  SLUICE_TRY(const std::string recipe, quant::RecipeText(flags.recipe));
  return fmt::format(
      "recipe {:08x}, context {}, calibration {}", Checksum(recipe, 0), flags.context,
      flags.no_calibration
          ? std::string("none")
          : fmt::format("{:08x} {} {}{}", texts, flags.window, flags.calibration_tokens,
                        flags.parse_special ? " special" : ""));
}

// Whether `output` is a pack made with `request`. An error where it must not be replaced.
base::Result<bool> IsPacked(const std::string& output, const std::string& source,
                            const std::string& request, bool force) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(output, error);
  if (!fs::exists(status)) return false;
  if (!fs::is_regular_file(status)) {
    return base::Fail(output, "not a regular file", "a file to write");
  }
  if (fs::equivalent(output, source, error)) {
    return base::Fail(output, "the model itself", "another file for its pack");
  }
  const auto pack = pack::Pack::Open(output);
  if (!pack) {
    if (force) return false;
    return base::Fail(output, "exists and is no pack", "another name, or --force to replace it");
  }
  const auto made_with = (*pack)->metadata().GetString(kRequestKey);
  return !force && made_with && *made_with != nullptr && **made_with == request;
}

// The built-in calibration texts. Dialogues ("chat_*.txt") are rendered as the model reads them in
// a chat, each a sequence of its own; GPTQ without them is at its worst there.
std::vector<std::vector<int32_t>> TokenizeOwnTexts(const text::Tokenizer& tokenizer,
                                                   const model::Metadata& metadata) {
  std::vector<std::vector<int32_t>> sequences;
  const auto chat = text::ChatTemplate::FromMetadata(metadata);
  for (const auto& file : quant::CalibrationTexts()) {
    if (!chat || !file.name.starts_with("chat_")) {
      sequences.push_back(tokenizer.Encode(file.text, false));
      continue;
    }
    for (const auto& dialogue : text::ParseDialogues(file.text)) {
      const auto segments = chat->Render(dialogue, false);
      if (!segments) continue;
      std::vector<int32_t> tokens = text::EncodeChat(tokenizer, *segments);
      // CutWindows puts it before every window.
      if (tokenizer.add_bos() && tokens.front() == tokenizer.bos()) tokens.erase(tokens.begin());
      sequences.push_back(std::move(tokens));
    }
  }
  return sequences;
}

base::Result<std::vector<std::vector<int32_t>>> CalibrationWindows(const model::Model& model,
                                                                   const Flags& flags) {
  std::vector<std::vector<int32_t>> windows;
  // A pack without a tokenizer would be of no use, calibrated or not.
  auto tokenizer = text::Tokenizer::FromMetadata(model.metadata);
  if (!tokenizer) return std::unexpected(tokenizer.error().In(model.name));
  if (flags.no_calibration) return windows;
  std::vector<std::vector<int32_t>> sequences;
  if (flags.calibrate.empty()) {
    sequences = TokenizeOwnTexts(*tokenizer, model.metadata);
  } else {
    SLUICE_TRY(sequences, TokenizeFiles(*tokenizer, flags.calibrate, flags.parse_special));
  }
  windows = quant::CutWindows(sequences, flags.window, flags.calibration_tokens,
                              tokenizer->add_bos() ? tokenizer->bos() : -1);
  uint64_t tokens = 0;
  for (const auto& window : windows) tokens += window.size();
  if (tokens < kLeastCalibration) {
    return base::Fail("calibration text", fmt::format("{} tokens", tokens),
                      fmt::format("at least {}", kLeastCalibration));
  }
  return windows;
}

void PrintReport(const program::BuildSummary& summary) {
  fmt::print("{:>5}  {:<9}  {:>4}  {:>12}  {:>12}\n", "layer", "matrix", "bits", "weight error",
             "output error");
  for (const auto& t : summary.quantized.tensors) {
    fmt::print("{:>5}  {:<9}  {:>4}  {:>10.3f} %  {:>10.3f} %\n", t.layer, model::RoleName(t.role),
               t.bits, 100 * t.weight_error, 100 * t.output_error);
  }
}

base::Status Pack(const Flags& flags) {
  const std::string output =
      flags.output.empty() ? DefaultPackPath(flags.model, flags.recipe) : flags.output;
  SLUICE_TRY(const std::string request, RequestOf(flags));
  SLUICE_TRY(const std::string source, FindSource(flags.model, true));
  SLUICE_TRY(const bool packed, IsPacked(output, source, request, flags.force));
  if (packed) {
    fmt::print(stderr, "already packed (--force packs again)\n");
    fmt::print("{}\n", output);
    return {};
  }
  if (pack::Pack::Open(source)) return base::Fail(source, "a pack already", "a model to pack");
  SLUICE_TRY(const auto recipe, quant::LoadRecipe(flags.recipe));
  SLUICE_TRY(model::Model model, formats::OpenModel(source));
  model.metadata.Set(std::string(kRequestKey), request);
  SLUICE_TRY(auto windows, CalibrationWindows(model, flags));
  const std::filesystem::path folder = std::filesystem::path(output).parent_path();
  std::error_code failed;
  // Only the cache's own folders are made; in a path that was given, a missing one is a slip.
  if (flags.output.empty() && !folder.empty()) std::filesystem::create_directories(folder, failed);
  if (failed) return base::Fail(folder.string(), "cannot create: " + failed.message());

  ProgressBar bar;
  const program::BuildOptions options{.quantize = {.recipe = recipe,
                                                   .calibration = std::move(windows),
                                                   .threads = flags.threads,
                                                   .progress = bar.Callback()},
                                      .context = flags.context};
  SLUICE_TRY(const auto summary, program::BuildPack(model, options, output));
  bar.Finish();
  if (flags.json) {
    nlohmann::json json{{"path", output},
                        {"bytes", summary.bytes},
                        {"recipe", recipe.name},
                        {"calibration_tokens", summary.quantized.calibration.tokens}};
    for (const auto& t : summary.quantized.tensors) {
      json["matrices"].push_back({{"role", model::RoleName(t.role)},
                                  {"layer", t.layer},
                                  {"bits", t.bits},
                                  {"weight_error", t.weight_error},
                                  {"output_error", t.output_error}});
    }
    PrintJson(json);
    return {};
  }
  if (flags.report) PrintReport(summary);
  const auto& tensors = summary.quantized.tensors;
  const auto worst = std::ranges::max_element(tensors, {}, [](const quant::TensorReport& t) {
    return std::max(t.output_error, t.weight_error);
  });
  fmt::print(stderr,
             "{}, recipe {}, {} calibration tokens; largest error: {} of layer {}, {:.2f} % "
             "(--report lists all)\n",
             Megabytes(summary.bytes), recipe.name, summary.quantized.calibration.tokens,
             model::RoleName(worst->role), worst->layer,
             100 * std::max(worst->output_error, worst->weight_error));
  fmt::print("{}\n", output);
  return {};
}

}  // namespace

void AddPack(CLI::App& app, ExitCode& exit) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("pack", "Quantise a model into a pack; prints the pack's path");
  command
      ->add_option("model", flags->model,
                   "A GGUF file, a Hugging Face folder, or a name that `sluice pull` takes")
      ->required();
  command->add_option("-o,--output", flags->output, "The pack; default: by the model's name")
      ->check([](const std::string& text) { return text.empty() ? "an empty name" : ""; });
  command->add_option("--recipe", flags->recipe, "balanced, fine, compact, or a recipe file")
      ->capture_default_str();
  auto* calibrate =
      command->add_option("--calibrate", flags->calibrate,
                          "Text to calibrate on instead of the built-in one (repeatable)");
  calibrate->allow_extra_args(false);
  command
      ->add_flag("--parse-special", flags->parse_special,
                 "Spellings of control tokens in that text mean those tokens")
      ->needs(calibrate);
  command->add_flag("--no-calibration", flags->no_calibration, "Fast, and less accurate")
      ->excludes(calibrate);
  command->add_option("--calibration-tokens", flags->calibration_tokens, "At most so many")
      ->transform(WholeNumber(64, 1 << 22))
      ->capture_default_str();
  command->add_option("--calibration-window", flags->window, "Tokens per sequence")
      ->transform(WholeNumber(16, 8192))
      ->capture_default_str();
  command
      ->add_option("--context", flags->context,
                   "Longest context; 0: the model's own, at most 32768")
      ->transform(WholeNumber(0, 65535));
  command->add_option("--threads", flags->threads, "Threads; 0: one per core. Same bytes anyway")
      ->transform(WholeNumber(0, 1024));
  command->add_flag("--force", flags->force, "Pack again what is packed already");
  command->add_flag("--report", flags->report, "List every matrix's error");
  command->add_flag("--json", flags->json, "The result as JSON");
  command->callback([flags, &exit] {
    if (const auto status = Pack(*flags); !status) exit = Report(status.error());
  });
}

}  // namespace sluice::cli
