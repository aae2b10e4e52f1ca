#include "cli/common.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/mapped_file.h"
#include "base/proc.h"
#include "formats/catalogue.h"
#include "formats/hub.h"

namespace sluice::cli {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::atomic<bool> interrupted{false};
std::atomic<bool> listening{false};

void OnSignal(int signal) {
  if (signal == SIGINT && listening) {
    interrupted = true;
    return;
  }
  base::RemovePartialFiles();
  ::_exit(128 + signal);
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  // Also a link that leads nowhere: opening it says so.
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

// What looks like a path is none of the hub's names; a slip of the finger stays off the network.
bool LooksLikePath(const std::string& name) {
  const bool gguf = name.ends_with(".gguf");
  const bool hub_file = gguf && name.find(':') != std::string::npos;
  return name.front() == '/' || name.front() == '.' || name.back() == '/' ||
         ((gguf || std::ranges::count(name, '/') > 1) && !hub_file);
}

// A name of the catalogue that is a file or folder here as well might have been meant as that.
void SayWhichIsMeant(const std::string& name_or_path) {
  static bool said = false;
  if (said || !Exists(name_or_path) || !formats::IsCatalogueName(name_or_path)) return;
  said = true;
  fmt::print(stderr,
             "sluice: {0} is the catalogue's model; ./{0} would be the one in this folder\n",
             name_or_path);
}

// Takes what the option's own range in SamplerOptions allows.
template <typename T>
CLI::Validator SamplerNumber(T text::SamplerOptions::*option) {
  const auto check = [option](std::string& text) -> std::string {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      return fmt::format("{}, expected a number", text);
    }
    text::SamplerOptions options;
    options.*option = value;
    const auto status = options.Validate();
    return status ? "" : fmt::format("{}, expected {}", text, status.error().expected);
  };
  return CLI::Validator(check, "");
}

std::string FormatTime(double seconds) {
  const auto s = static_cast<uint64_t>(seconds + 0.5);
  return s < 60 ? fmt::format("{} s", s) : fmt::format("{}:{:02} min", s / 60, s % 60);
}

}  // namespace

base::Status FlushOutput() {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return {};
  return base::Fail("standard output", "cannot write");
}

void PrintJson(const nlohmann::json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string OneLine(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return line;
}

std::string ErrorLine(std::string_view message) {
  return fmt::format("sluice: error: {}\n", OneLine(message));
}

ExitCode Report(const base::Error& error) {
  fmt::print(stderr, "{}", ErrorLine(error.ToString()));
  return kExitFailed;
}

base::Progress ProgressBar::Callback() {
  return [this](std::string_view what, uint64_t done, uint64_t total) { Draw(what, done, total); };
}

void ProgressBar::Draw(std::string_view what, uint64_t done, uint64_t total) {
  constexpr double kTerminalInterval = 0.1;
  constexpr double kLogInterval = 5;
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const double now = Now();
  const bool begins = total != total_ || done < done_;
  if (begins) {
    Finish();
    started_ = now;
  }
  total_ = total;
  done_ = done;
  const bool complete = total > 0 && done >= total;
  const double interval = terminal ? kTerminalInterval : kLogInterval;
  if (!begins && now - drawn_ < interval && !(terminal && complete)) return;
  drawn_ = now;
  std::string line(what);
  if (total == 0) {
    if (done > 0) line += fmt::format(" {}", done);
  } else {
    const double share = static_cast<double>(done) / static_cast<double>(total);
    if (terminal) {
      constexpr int kWidth = 30;
      const std::string bar(static_cast<size_t>(share * kWidth), '#');
      line = fmt::format("[{:<{}}] {:3.0f} % {}", bar, kWidth, share * 100, what);
    } else {
      line += fmt::format(" {:.0f} %", share * 100);
    }
    if (done > 0 && !complete && now - started_ > 1) {
      line += ", " + FormatTime((now - started_) * (1 - share) / share) + " left";
    }
  }
  if (terminal) {
    fmt::print(stderr, "\r\033[K{}", line);
    open_ = true;
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

void ProgressBar::Finish() {
  if (open_) fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  open_ = false;
  total_ = UINT64_MAX;
}

std::atomic<bool>& Interrupted() { return interrupted; }

void InstallSignalHandlers() {
  struct sigaction action {};
  action.sa_handler = OnSignal;  // no SA_RESTART: a read at the prompt must return
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGHUP, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  // A file size limit must come back as an error of write().
  ::signal(SIGXFSZ, SIG_IGN);
}

void ListenForInterrupt(bool listen) { listening = listen; }

bool IsPath(const std::string& name_or_path) {
  return Exists(name_or_path) && !formats::IsCatalogueName(name_or_path);
}

CLI::Validator WholeNumber(uint64_t least, uint64_t most) {
  const auto check = [least, most](std::string& text) -> std::string {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
      return most == UINT64_MAX
                 ? fmt::format("{}, expected a whole number, {} or more", text, least)
                 : fmt::format("{}, expected a whole number, {} to {}", text, least, most);
    }
    text = fmt::format("{}", value);
    return {};
  };
  return CLI::Validator(check, "");
}

std::string DefaultPackPath(const std::string& name_or_path, const std::string& recipe) {
  namespace fs = std::filesystem;
  const std::string recipe_name = fs::path(recipe).stem().string();
  if (IsPath(name_or_path)) {
    fs::path source(name_or_path);
    if (source.filename().empty()) source = source.parent_path();  // "folder/"
    std::error_code ignored;
    const std::string stem = fs::is_directory(source, ignored)
                                 ? fs::weakly_canonical(source, ignored).filename().string()
                                 : source.stem().string();
    return fmt::format("{}-{}.sluice.gguf", stem, recipe_name);
  }
  std::string name = name_or_path;
  for (char& c : name) {
    if (c == '/' || c == ':') c = '-';
  }
  return (fs::path(formats::DefaultCacheDir()) / "packs" /
          fmt::format("{}-{}.sluice.gguf", name, recipe_name))
      .string();
}

base::Result<std::string> FindSource(const std::string& name_or_path, bool may_pull) {
  if (name_or_path.empty()) return base::Fail("model", "an empty name", "a path or a name");
  SayWhichIsMeant(name_or_path);
  if (IsPath(name_or_path)) return name_or_path;
  if (LooksLikePath(name_or_path)) return base::Fail(name_or_path, "no such file");
  if (!formats::IsCatalogueName(name_or_path) && !formats::ParseHubName(name_or_path)) {
    SLUICE_TRY(const auto catalogue, formats::BuiltInCatalogue());
    return base::Fail(
        name_or_path, "no such file, and no model of that name",
        fmt::format("a path, {}, or the owner/name of a model on the Hugging Face hub",
                    formats::NamesOf(catalogue)));
  }
  if (const auto found = formats::FindPulled(name_or_path)) return *found;
  if (!may_pull) {
    return base::Fail(name_or_path, "no such file, and no model of that name was pulled",
                      fmt::format("a path, or `sluice pull {}` first", name_or_path));
  }
  ProgressBar bar;
  return formats::Pull(name_or_path, {.progress = bar.Callback()});
}

base::Result<std::string> FindPack(const std::string& name_or_path, const std::string& recipe) {
  if (name_or_path.empty()) return base::Fail("pack", "an empty name", "a path or a name");
  SayWhichIsMeant(name_or_path);
  std::error_code ignored;
  if (IsPath(name_or_path) && std::filesystem::is_directory(name_or_path, ignored)) {
    return base::Fail(name_or_path, "a folder",
                      fmt::format("a pack; `sluice pack {}` makes one of a model", name_or_path));
  }
  if (IsPath(name_or_path)) return name_or_path;
  if (LooksLikePath(name_or_path)) return base::Fail(name_or_path, "no such file");
  if (formats::DefaultCacheDir().empty()) {
    return base::Fail("model cache", "no folder for it", "SLUICE_CACHE or HOME to be set");
  }
  const std::string pack = DefaultPackPath(name_or_path, recipe);
  if (IsPath(pack)) return pack;
  return base::Fail(name_or_path, "no such file, and no pack of that name",
                    fmt::format("a path, or `sluice pack {}{}` first", name_or_path,
                                recipe == kDefaultRecipe ? "" : " --recipe " + recipe));
}

void EngineFlags::Add(CLI::App& command) {
  command.add_option("pack", pack, "Pack: a file, or the name of a model that was packed")
      ->required();
  command.add_option("--recipe", recipe, "Which of a named model's packs")->capture_default_str();
  command.add_option("--on", on, "Machine to run on")
      ->check(CLI::IsMember({"cpu", "pynq-z2"}))
      ->capture_default_str();
  command
      .add_option("--engine", options.executor,
                  "Executor: cpu (fast), ref (the contract) or, for pynq-z2, rtl (the simulated "
                  "accelerator)")
      ->check(CLI::IsMember({"cpu", "ref", "rtl"}))
      ->capture_default_str();
  command.add_option("--configuration", options.configuration, "Of the accelerator")
      ->check(CLI::IsMember({"tiny", "z2_decode", "z2_block"}))
      ->capture_default_str();
  command.add_option("--threads", options.threads, "Threads; 0: one per core")
      ->transform(WholeNumber(0, 1024));
  command.add_option("--context", options.context, "Positions to hold; 0: all the pack has")
      ->transform(WholeNumber(0, 65535));
}

void EngineFlags::AddLock(CLI::App& command) {
  command.add_flag("--lock", lock, "Keep the pack in memory (mlock); a warning if that fails");
}

base::Result<std::unique_ptr<session::Engine>> EngineFlags::Open() const {
  if ((on == "pynq-z2") != (options.executor == "rtl")) {
    return base::Fail("--on " + on, "--engine " + options.executor,
                      on == "cpu" ? "cpu or ref (rtl: --on pynq-z2)" : "rtl");
  }
  SLUICE_TRY(const std::string path, FindPack(pack, recipe));
  SLUICE_TRY(auto engine, session::OpenEngine(path, options));
  const uint32_t most = engine->loaded.program.sizes().context;
  if (options.context > most) {
    return base::Fail("--context", fmt::format("{}", options.context),
                      fmt::format("at most the {} of {}", most, path));
  }
  if (lock) {
    const auto status = base::LockInMemory(engine->loaded.pack->bytes(), path);
    if (!status) {
      fmt::print(stderr, "sluice: warning: {}; going on without\n",
                 OneLine(status.error().ToString()));
    }
  }
  return engine;
}

void SamplerFlags::Add(CLI::App& command) {
  using Options = text::SamplerOptions;
  command.add_option("--temp", options.temperature, "Temperature; 0: always the best token")
      ->transform(SamplerNumber(&Options::temperature))
      ->capture_default_str();
  command.add_option("--top-k", options.top_k, "Keep the best K candidates; 0: all")
      ->transform(WholeNumber(0, UINT32_MAX))
      ->capture_default_str();
  command.add_option("--top-p", options.top_p, "Keep the best that make up this share")
      ->transform(SamplerNumber(&Options::top_p))
      ->capture_default_str();
  command
      .add_option("--min-p", options.min_p, "Drop what is less likely than this share of the best")
      ->transform(SamplerNumber(&Options::min_p))
      ->capture_default_str();
  command
      .add_option("--repeat-penalty", options.repetition_penalty,
                  "Make tokens of the last --repeat-last-n less likely; 1: off")
      ->transform(SamplerNumber(&Options::repetition_penalty))
      ->capture_default_str();
  command.add_option("--repeat-last-n", options.repetition_window, "Tokens that the penalty sees")
      ->transform(SamplerNumber(&Options::repetition_window))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Same seed, same text")
      ->transform(WholeNumber(0, UINT64_MAX))
      ->capture_default_str();
  command.add_option("-n,--max-tokens", max_tokens, "Longest answer; 0: until the context is full")
      ->transform(WholeNumber(0, UINT32_MAX))
      ->capture_default_str();
  command.add_option("--stop", stops, "End the answer before this text (may be repeated)")
      ->check([](const std::string& text) { return text.empty() ? "an empty text" : ""; })
      ->allow_extra_args(false);
}

base::Result<std::vector<std::vector<int32_t>>> TokenizeFiles(const text::Tokenizer& tokenizer,
                                                              const std::vector<std::string>& paths,
                                                              bool parse_special) {
  std::vector<std::vector<int32_t>> sequences;
  for (const std::string& path : paths) {
    SLUICE_TRY(const std::string text, base::ReadSmallFile(path, kLargestText));
    sequences.push_back(tokenizer.Encode(text, parse_special));
  }
  return sequences;
}

std::string Megabytes(uint64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

uint64_t PeakMemory() {
  // Not getrusage: what it gives includes the parent's memory at the time of fork.
  return base::ProcBytes("/proc/self/status", "VmHWM");
}

std::string SpeedLine(const session::Answer& answer) {
  const auto rate = [](uint64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  // The first token of the answer comes out of the prompt's last block.
  const uint64_t decoded = answer.tokens.empty() ? 0 : answer.tokens.size() - 1;
  return fmt::format("prompt {} tokens, {:.1f} tok/s; answer {} tokens, {:.1f} tok/s; {}",
                     answer.prompt_tokens, rate(answer.prompt_tokens, answer.prompt_seconds),
                     answer.tokens.size(), rate(decoded, answer.decode_seconds),
                     session::FinishName(answer.finish));
}

}  // namespace sluice::cli
