#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/common.h"
#include "formats/model_reader.h"
#include "pack/pack.h"
#include "quant/calibration.h"
#include "session/evaluate.h"

namespace sluice::cli {
namespace {

struct Flags {
  EngineFlags engine;
  std::vector<std::string> files;
  std::string against;
  std::string source;
  uint32_t window = 512;
  uint64_t tokens = 0;
  bool parse_special = false;
  bool json = false;
};

base::Status Ppl(const Flags& flags) {
  SLUICE_TRY(const auto engine, flags.engine.Open());
  SLUICE_TRY(auto sequences, TokenizeFiles(engine->tokenizer, flags.files, flags.parse_special));
  const uint32_t window = std::min(flags.window, engine->executor->context());
  const auto windows =
      quant::CutWindows(sequences, window, flags.tokens == 0 ? UINT64_MAX : flags.tokens,
                        engine->tokenizer.add_bos() ? engine->tokenizer.bos() : -1);
  std::optional<model::Model> model;
  if (!flags.against.empty()) {
    SLUICE_TRY(const std::string path,
               FindSource(flags.source.empty() ? flags.engine.pack : flags.source, false));
    auto opened = formats::OpenModel(path);
    if (!opened && flags.source.empty() && pack::Pack::Open(path)) {
      return base::Fail(flags.engine.pack, "is a pack, without its float weights",
                        "--source MODEL: what it was packed from");
    }
    if (!opened) return std::unexpected(opened.error());
    model = std::move(*opened);
  }
  ProgressBar bar;
  SLUICE_TRY(const auto q, session::Evaluate(*engine->executor, windows, model ? &*model : nullptr,
                                             flags.engine.options.threads, bar.Callback()));
  bar.Finish();
  if (flags.json) {
    nlohmann::json json{{"predictions", q.predictions},
                        {"window", window},
                        {"perplexity", q.perplexity},
                        {"perplexity_error", q.perplexity_error}};
    if (model) {
      json["float_perplexity"] = q.float_perplexity;
      json["mean_kl"] = q.mean_kl;
      json["max_kl"] = q.max_kl;
      json["same_top"] = q.same_top;
    }
    PrintJson(json);
    return {};
  }
  fmt::print("perplexity {:.4f} +- {:.4f} ({} predictions, windows of {})\n", q.perplexity,
             q.perplexity_error, q.predictions, window);
  if (model) {
    fmt::print("float      {:.4f}\nmean KL    {:.5f} nats (largest {:.3f})\nsame top   {:.2f} %\n",
               q.float_perplexity, q.mean_kl, q.max_kl, 100 * q.same_top);
  }
  return {};
}

}  // namespace

void AddPpl(CLI::App& app, ExitCode& exit) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("ppl", "Perplexity of a pack on text files");
  flags->engine.Add(*command);
  command->add_option("files", flags->files, "Text files")->required();
  auto* against = command
                      ->add_option("--against", flags->against,
                                   "float: also the distance from the unquantised model")
                      ->check(CLI::IsMember({"float"}));
  command
      ->add_option("--source", flags->source,
                   "The unquantised model; default: what the pack's name was pulled as")
      ->needs(against);
  command
      ->add_option("--window", flags->window,
                   "Tokens per window, each read on its own; at most the pack's context")
      ->transform(WholeNumber(2, 65535))
      ->capture_default_str();
  command->add_option("--tokens", flags->tokens, "At most so many tokens; 0: all")
      ->transform(WholeNumber(0, UINT64_MAX));
  command->add_flag("--parse-special", flags->parse_special,
                    "Spellings of control tokens in the files mean those tokens");
  command->add_flag("--json", flags->json, "The result as JSON");
  command->callback([flags, &exit] {
    if (const auto status = Ppl(*flags); !status) exit = Report(status.error());
  });
}

}  // namespace sluice::cli
