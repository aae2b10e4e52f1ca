#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "session/verify.h"

namespace sluice::cli {
namespace {

struct Flags {
  EngineFlags engine;
  std::string against = "ref";
  std::string prompt = "The river carries everything that it can, and what it cannot it leaves.";
  uint32_t tokens = 24;
  uint32_t block = 8;
  bool json = false;
};

base::Status RunVerify(const Flags& flags, ExitCode& exit) {
  ProgressBar bar;
  SLUICE_TRY(const auto engine, flags.engine.Open());
  if (flags.tokens > engine->executor->context()) {
    return base::Fail("--tokens", fmt::format("{}", flags.tokens),
                      fmt::format("at most the context's {}", engine->executor->context()));
  }
  SLUICE_TRY_VOID(engine->loaded.pack->CheckSums(bar.Callback()));
  session::EngineOptions other = flags.engine.options;
  other.executor = flags.against;
  SLUICE_TRY(const auto second, session::MakeExecutor(engine->loaded, other));
  const auto prompt = engine->tokenizer.Encode(flags.prompt, true);
  if (prompt.empty()) return base::Fail("prompt", "no tokens", "at least one");
  SLUICE_TRY(const auto result, session::Verify(*engine->executor, *second, engine->loaded.program,
                                                prompt, flags.block, flags.tokens, bar.Callback()));
  bar.Finish();
  exit = result.difference ? kExitFailed : kExitGood;
  if (flags.json) {
    nlohmann::json json{{"equal", !result.difference.has_value()},
                        {"tokens", result.tokens},
                        {"results", result.instructions},
                        {"values", result.values}};
    if (const auto& d = result.difference) {
      json["difference"] = {{"position", d->position}, {"instruction", d->instruction},
                            {"what", d->what},         {"element", d->element},
                            {"first", d->first},       {"second", d->second}};
    }
    PrintJson(json);
    return {};
  }
  const std::string_view first = flags.engine.options.executor;
  if (const auto& d = result.difference) {
    fmt::print("{} and {} differ at position {}, instruction {} ({}), element {}: {} and {}\n",
               first, flags.against, d->position, d->instruction, d->what, d->element, d->first,
               d->second);
  } else {
    fmt::print("{} and {} agree: {} tokens, {} results, {} values, every bit\n", first,
               flags.against, result.tokens, result.instructions, result.values);
  }
  return {};
}

}  // namespace

void AddVerify(CLI::App& app, ExitCode& exit) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "verify", "Check a pack's checksums, and two executors against each other bit by bit");
  flags->engine.Add(*command);
  command->add_option("--against", flags->against, "The executor to compare with")
      ->check(CLI::IsMember({"ref", "cpu"}))
      ->capture_default_str();
  command->add_option("-p,--prompt", flags->prompt, "Text to read first");
  command->add_option("--tokens", flags->tokens, "Prompt and generated tokens together")
      ->transform(WholeNumber(1, 65535))
      ->capture_default_str();
  command->add_option("--block", flags->block, "Tokens of the prompt read at once")
      ->transform(WholeNumber(1, 64))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "The result as JSON");
  command->callback([flags, &exit] {
    if (const auto status = RunVerify(*flags, exit); !status) exit = Report(status.error());
  });
}

}  // namespace sluice::cli
