#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "cli/common.h"
#include "formats/model_reader.h"
#include "program/build_pack.h"
#include "quant/calibration.h"
#include "quant/recipe.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string model;
  std::string output;
  std::string recipe = "balanced";
  std::vector<std::string> calibrate;
  bool no_calibration = false;
  uint64_t calibration_tokens = 24576;
  uint32_t window = 512;
  uint32_t context = 0;
  unsigned threads = 0;
  bool force = false;
  bool report = false;
  bool json = false;
};

base::Result<std::vector<std::vector<int32_t>>> CalibrationWindows(const model::Model& model,
                                                                   const Flags& flags) {
  std::vector<std::vector<int32_t>> windows;
  if (flags.no_calibration) return windows;
  auto tokenizer = text::Tokenizer::FromMetadata(model.metadata);
  if (!tokenizer) return std::unexpected(tokenizer.error().In(model.name));
  std::vector<std::vector<int32_t>> sequences;
  if (flags.calibrate.empty()) {
    for (const auto& file : quant::CalibrationTexts()) {
      sequences.push_back(tokenizer->Encode(file.text, true));
    }
  } else {
    SLUICE_TRY(sequences, TokenizeFiles(*tokenizer, flags.calibrate));
  }
  return quant::CutWindows(sequences, flags.window, flags.calibration_tokens,
                           tokenizer->add_bos() ? tokenizer->bos() : -1);
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
  if (!flags.force && IsPath(output)) {
    fmt::print(stderr, "already packed (--force packs again)\n");
    fmt::print("{}\n", output);
    return {};
  }
  SLUICE_TRY(const std::string source, FindSource(flags.model, true));
  SLUICE_TRY(const auto recipe, quant::LoadRecipe(flags.recipe));
  SLUICE_TRY(const model::Model model, formats::OpenModel(source));
  SLUICE_TRY(auto windows, CalibrationWindows(model, flags));
  const std::filesystem::path folder = std::filesystem::path(output).parent_path();
  std::error_code failed;
  if (!folder.empty()) std::filesystem::create_directories(folder, failed);
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
    fmt::print("{}\n", json.dump(2));
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
  command->add_option("-o,--output", flags->output, "The pack; default: by the model's name");
  command->add_option("--recipe", flags->recipe, "balanced, fine, compact, or a recipe file")
      ->capture_default_str();
  auto* calibrate =
      command->add_option("--calibrate", flags->calibrate,
                          "Text to calibrate on instead of the built-in one (repeatable)");
  calibrate->allow_extra_args(false);
  command->add_flag("--no-calibration", flags->no_calibration, "Fast, and less accurate")
      ->excludes(calibrate);
  command->add_option("--calibration-tokens", flags->calibration_tokens, "At most so many")
      ->check(CLI::Range(64, 1 << 22))
      ->capture_default_str();
  command->add_option("--calibration-window", flags->window, "Tokens per sequence")
      ->check(CLI::Range(16, 8192))
      ->capture_default_str();
  command
      ->add_option("--context", flags->context,
                   "Longest context; 0: the model's own, at most 32768")
      ->check(CLI::Range(0, 65535));
  command->add_option("--threads", flags->threads, "Threads; 0: one per core. Same bytes anyway")
      ->check(CLI::Range(0, 1024));
  command->add_flag("--force", flags->force, "Pack again what is packed already");
  command->add_flag("--report", flags->report, "List every matrix's error");
  command->add_flag("--json", flags->json, "The result as JSON");
  command->callback([flags, &exit] {
    if (const auto status = Pack(*flags); !status) exit = Report(status.error());
  });
}

}  // namespace sluice::cli
