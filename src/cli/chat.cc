#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/common.h"
#include "text/chat_template.h"

namespace sluice::cli {
namespace {

constexpr std::string_view kHelp =
    "  /help            this list\n"
    "  /clear           forget the conversation\n"
    "  /system TEXT     set the system message and forget the conversation\n"
    "  /retry           answer the last message again, with another seed\n"
    "  /set NAME VALUE  temp, top-k, top-p, min-p, repeat-penalty, repeat-last-n,\n"
    "                   seed, max-tokens\n"
    "  /show            settings, context used\n"
    "  /bye             leave (as does Ctrl-D); Ctrl-C stops an answer\n"
    "  A line that ends in \\ goes on in the next.\n";

constexpr std::array<std::string_view, 8> kSettings = {
    "temp", "top-k", "top-p", "min-p", "repeat-penalty", "repeat-last-n", "seed", "max-tokens"};

class Chat {
 public:
  Chat(session::Engine& engine, text::ChatTemplate chat_template, const SamplerFlags& sampler,
       const std::string& system)
      : engine_(engine),
        template_(std::move(chat_template)),
        session_(*engine.executor, engine.tokenizer),
        sampler_(sampler) {
    SetSystem(system);
  }

  base::Status Loop();

 private:
  enum class After { kContinue, kLeave };

  void SetSystem(const std::string& system) {
    messages_.clear();
    if (!system.empty()) messages_.push_back({"system", system});
  }
  std::optional<std::string> ReadLine();
  base::Result<After> Command(const std::string& line);
  void Set(const std::string& name, const std::string& value);
  void Show() const;
  // Answers the conversation, whose last message is the user's. Takes that message back if there
  // is no answer.
  base::Status Answer();

  session::Engine& engine_;
  text::ChatTemplate template_;
  session::Session session_;
  SamplerFlags sampler_;
  std::vector<text::Message> messages_;
  bool terminal_ = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  uint64_t answered_tokens_ = 0;
  double answer_seconds_ = 0;
};

// A line of input, joined with those that a final backslash asks for. None at the end of input.
std::optional<std::string> Chat::ReadLine() {
  std::string text;
  while (true) {
    Interrupted() = false;
    if (terminal_) {
      fmt::print("{}", text.empty() ? "> " : "... ");
      std::fflush(stdout);
      // A signal just before a blocking read would be overlooked: wait in short pieces instead.
      pollfd input{STDIN_FILENO, POLLIN, 0};
      while (!Interrupted() && ::poll(&input, 1, 100) <= 0) {
      }
    }
    std::string line;
    if (Interrupted() || !std::getline(std::cin, line)) {
      if (!Interrupted()) {
        if (text.find_first_not_of(" \t\r\n") != std::string::npos) return text;
        return std::nullopt;
      }
      std::cin.clear();
      std::clearerr(stdin);
      fmt::print("\n(/bye or Ctrl-D leaves)\n");
      text.clear();
      continue;
    }
    if (!line.empty() && line.back() == '\\') {
      line.back() = '\n';
      text += line;
      continue;
    }
    text += line;
    if (text.find_first_not_of(" \t\r\n") != std::string::npos) return text;
    text.clear();
  }
}

void Chat::Set(const std::string& name, const std::string& value) {
  if (std::ranges::find(kSettings, name) == kSettings.end()) {
    fmt::print("no setting {}; there are {}\n", name, fmt::join(kSettings, ", "));
    return;
  }
  SamplerFlags changed = sampler_;
  CLI::App parser;
  changed.Add(parser);
  try {
    std::vector<std::string> arguments{fmt::format("--{}={}", name, value)};
    parser.parse(arguments);
  } catch (const CLI::ParseError& error) {
    fmt::print("{}\n", error.what());
    return;
  }
  sampler_ = changed;
}

void Chat::Show() const {
  const text::SamplerOptions& o = sampler_.options;
  fmt::print(
      "  temp {}  top-k {}  top-p {}  min-p {}  repeat-penalty {}  seed {}  max-tokens {}\n"
      "  template {}, {} of {} positions used, {} messages\n",
      o.temperature, o.top_k, o.top_p, o.min_p, o.repetition_penalty, o.seed, sampler_.max_tokens,
      template_.name(), session_.filled(), engine_.executor->context(), messages_.size());
}

base::Result<Chat::After> Chat::Command(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  const std::string system =
      !messages_.empty() && messages_[0].role == "system" ? messages_[0].content : "";
  if (name == "/bye" || name == "/exit" || name == "/quit") return After::kLeave;
  if (name == "/clear") {
    SetSystem(system);
  } else if (name == "/system") {
    SetSystem(rest);
  } else if (name == "/set") {
    const size_t gap = rest.find(' ');
    if (gap == std::string::npos) {
      fmt::print("usage: /set NAME VALUE\n");
    } else {
      Set(rest.substr(0, gap), rest.substr(gap + 1));
    }
  } else if (name == "/show") {
    Show();
  } else if (name == "/retry") {
    if (messages_.empty() || messages_.back().role != "assistant") {
      fmt::print("nothing to answer again\n");
    } else {
      messages_.pop_back();
      ++sampler_.options.seed;
      SLUICE_TRY_VOID(Answer());
    }
  } else {
    if (name != "/help" && name != "/?") fmt::print("no such command: {}\n", name);
    fmt::print("{}", kHelp);
  }
  return After::kContinue;
}

base::Status Chat::Answer() {
  SLUICE_TRY(const auto segments, template_.Render(messages_, true));
  const std::vector<int32_t> prompt = text::EncodeChat(engine_.tokenizer, segments);
  const uint32_t context = engine_.executor->context();
  if (prompt.size() >= context) {
    const bool first = messages_.size() == 1 || messages_[messages_.size() - 2].role == "system";
    messages_.pop_back();
    return base::Fail(
        first ? "this message" : "the conversation with this message",
        fmt::format("{} tokens", prompt.size()),
        fmt::format("fewer than the context's {}; the message is not taken ({})", context,
                    first ? "shorten it" : "shorten it, or /clear forgets the conversation"));
  }
  std::vector<std::string> stops = sampler_.stops;
  stops.insert(stops.end(), template_.stop().begin(), template_.stop().end());
  Interrupted() = false;
  const auto answer =
      session_.Generate(prompt, {.sampler = sampler_.options,
                                 .max_tokens = sampler_.max_tokens,
                                 .stops = stops,
                                 .on_text =
                                     [](std::string_view text) {
                                       std::fwrite(text.data(), 1, text.size(), stdout);
                                       if (std::fflush(stdout) != 0) Interrupted() = true;
                                     },
                                 .on_prompt = {},
                                 .cancel = &Interrupted()});
  if (!answer) {
    messages_.pop_back();
    return std::unexpected(answer.error());
  }
  fmt::print("\n");
  if (terminal_) fmt::print("\033[2m[{}]\033[0m\n", SpeedLine(*answer));
  if (answer->finish == session::Finish::kContext) {
    std::fflush(stdout);
    fmt::print(stderr, "[the context's {} tokens are full: /clear forgets the conversation]\n",
               context);
  }
  if (answer->text.empty() && answer->finish == session::Finish::kCancelled) {
    messages_.pop_back();
    return {};
  }
  messages_.push_back({"assistant", answer->text});
  answered_tokens_ += answer->tokens.size();
  answer_seconds_ += answer->decode_seconds;
  return {};
}

base::Status Chat::Loop() {
  ListenForInterrupt(true);
  if (terminal_) fmt::print("{}: /help lists commands\n", engine_.loaded.pack->name());
  while (const auto line = ReadLine()) {
    if (std::ferror(stdout)) break;  // nobody reads the answers
    if (line->front() == '/') {
      const auto after = Command(*line);
      if (!after) {
        fmt::print("error: {}\n", after.error().ToString());
      } else if (*after == After::kLeave) {
        break;
      }
      continue;
    }
    messages_.push_back({"user", *line});
    if (const auto status = Answer(); !status) {
      fmt::print("error: {}\n", status.error().ToString());
    }
  }
  const double rate =
      answer_seconds_ > 0 ? static_cast<double>(answered_tokens_) / answer_seconds_ : 0.0;
  fmt::print(stderr, "[{} tokens answered, {:.1f} tok/s; memory {}]\n", answered_tokens_, rate,
             Megabytes(PeakMemory()));
  return {};
}

struct Flags {
  EngineFlags engine;
  SamplerFlags sampler;
  std::string system;
  std::string chat_template;
};

base::Status RunChat(const Flags& flags) {
  SLUICE_TRY(const auto engine, flags.engine.Open());
  auto chat_template =
      text::ChatTemplate::FromMetadata(engine->loaded.pack->metadata(), flags.chat_template);
  if (!chat_template) {
    return std::unexpected(chat_template.error().In(engine->loaded.pack->name()));
  }
  return Chat(*engine, std::move(*chat_template), flags.sampler, flags.system).Loop();
}

}  // namespace

void AddChat(CLI::App& app, ExitCode& exit) {
  auto flags = std::make_shared<Flags>();
  flags->sampler.options.temperature = 0.7;
  flags->sampler.options.top_p = 0.9;
  CLI::App* command = app.add_subcommand("chat", "Talk to a model in the terminal");
  flags->engine.Add(*command);
  flags->engine.AddLock(*command);
  flags->sampler.Add(*command);
  command->add_option("--system", flags->system, "System message");
  command->add_option("--chat-template", flags->chat_template, "Template family by name")
      ->check(CLI::IsMember(text::ChatTemplateNames()));
  command->callback([flags, &exit] {
    if (const auto status = RunChat(*flags); !status) exit = Report(status.error());
  });
}

}  // namespace sluice::cli
