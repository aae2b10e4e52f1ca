#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "cli/common.h"
#include "text/chat_template.h"

namespace sluice::cli {
namespace {

struct Flags {
  EngineFlags engine;
  SamplerFlags sampler;
  std::string prompt;
  std::string file;
  std::string system;
  std::string chat_template;
  bool from_file = false;
  bool raw = false;
  bool quiet = false;
  bool json = false;
};

base::Result<std::string> PromptText(const Flags& flags) {
  if (!flags.from_file) return flags.prompt;
  constexpr uint64_t kMost = uint64_t{1} << 26;
  SLUICE_TRY(std::string text, flags.file == "-" ? base::ReadStandardInput(kMost)
                                                 : base::ReadSmallFile(flags.file, kMost));
  // Editors and echo end the last line too.
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

base::Result<std::vector<int32_t>> PromptTokens(const session::Engine& engine, const Flags& flags) {
  SLUICE_TRY(const std::string prompt, PromptText(flags));
  const text::Tokenizer& tokenizer = engine.tokenizer;
  if (flags.raw) {
    std::vector<int32_t> tokens = tokenizer.Encode(prompt, true);
    if (tokenizer.add_bos()) tokens.insert(tokens.begin(), tokenizer.bos());
    return tokens;
  }
  auto chat = text::ChatTemplate::FromMetadata(engine.loaded.pack->metadata(), flags.chat_template);
  if (!chat) return std::unexpected(chat.error().In(engine.loaded.pack->name()));
  std::vector<text::Message> messages;
  if (!flags.system.empty()) messages.push_back({"system", flags.system});
  messages.push_back({"user", prompt});
  SLUICE_TRY(const auto segments, chat->Render(messages, true));
  return text::EncodeChat(tokenizer, segments);
}

base::Status Run(const Flags& flags, ExitCode& exit) {
  SLUICE_TRY(const auto engine, flags.engine.Open());
  SLUICE_TRY(const auto prompt, PromptTokens(*engine, flags));
  session::Session session(*engine->executor, engine->tokenizer);
  ListenForInterrupt(true);
  session::GenerateOptions options{.sampler = flags.sampler.options,
                                   .max_tokens = flags.sampler.max_tokens,
                                   .stops = flags.sampler.stops,
                                   .on_text = {},
                                   .on_prompt = {},
                                   .cancel = &Interrupted()};
  if (!flags.json) {
    options.on_text = [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      if (std::fflush(stdout) != 0) Interrupted() = true;  // nobody reads on
    };
  }
  SLUICE_TRY(const auto answer, session.Generate(prompt, options));
  if (answer.finish == session::Finish::kCancelled) exit = kExitInterrupted;
  if (flags.json) {
    const auto rate = [](double tokens, double seconds) {
      return seconds > 0 ? tokens / seconds : 0;
    };
    PrintJson(
        nlohmann::json{{"text", answer.text},
                       {"tokens", answer.tokens},
                       {"finish", session::FinishName(answer.finish)},
                       {"prompt_tokens", answer.prompt_tokens},
                       {"prompt_tokens_per_second",
                        rate(static_cast<double>(answer.prompt_tokens), answer.prompt_seconds)},
                       {"decode_tokens_per_second",
                        rate(static_cast<double>(answer.tokens.size()) - 1, answer.decode_seconds)},
                       {"peak_memory_bytes", PeakMemory()}});
    return {};
  }
  if (answer.text.empty() || answer.text.back() != '\n') fmt::print("\n");
  std::fflush(stdout);  // before the remark on standard error
  if (!flags.quiet) {
    fmt::print(stderr, "[{}; memory {}]\n", SpeedLine(answer), Megabytes(PeakMemory()));
    if (const auto simulated = engine->executor->simulated()) {
      const auto tokens = static_cast<double>(answer.prompt_tokens + answer.tokens.size() - 1);
      fmt::print(
          stderr,
          "[simulated: {:.0f} clocks a token, prompt included: {:.2f} tok/s at {:.1f} MHz]\n",
          static_cast<double>(simulated->clocks) / tokens,
          simulated->clock_hz * tokens / static_cast<double>(simulated->clocks),
          simulated->clock_hz / 1e6);
    }
  }
  return {};
}

}  // namespace

void AddRun(CLI::App& app, ExitCode& exit) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("run", "Answer one prompt, for scripts");
  flags->engine.Add(*command);
  flags->engine.AddLock(*command);
  flags->sampler.Add(*command);
  auto* prompt = command->add_option("-p,--prompt", flags->prompt, "The prompt");
  auto* file = command->add_option("-f,--file", flags->file,
                                   "Read the prompt from a file; -: standard input");
  prompt->excludes(file);
  auto* system = command->add_option("--system", flags->system, "System message");
  auto* chat_template =
      command->add_option("--chat-template", flags->chat_template, "Template family by name")
          ->check(CLI::IsMember(text::ChatTemplateNames()));
  command->add_flag("--raw", flags->raw, "Continue the prompt as it is, without a chat template")
      ->excludes(system)
      ->excludes(chat_template);
  command->add_flag("-q,--quiet", flags->quiet, "Nothing but the answer");
  command->add_flag("--json", flags->json, "Answer, tokens and speed as JSON");
  command->callback([flags, prompt, file, &exit] {
    if (prompt->count() + file->count() == 0) throw CLI::RequiredError("-p or -f");
    flags->from_file = file->count() > 0;
    if (const auto status = Run(*flags, exit); !status) exit = Report(status.error());
  });
}

}  // namespace sluice::cli
