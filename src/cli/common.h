// What the subcommands share: exit codes, messages, progress, finding models and packs.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "session/engine.h"
#include "session/session.h"
#include "text/tokenizer.h"

namespace sluice::cli {

constexpr int kExitGood = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitInterrupted = 130;  // as shells report SIGINT

// A subcommand registers itself and stores what running it returned.
using ExitCode = int;
void AddPull(CLI::App& app, ExitCode& exit);
void AddPack(CLI::App& app, ExitCode& exit);
void AddInspect(CLI::App& app, ExitCode& exit);
void AddChat(CLI::App& app, ExitCode& exit);
void AddRun(CLI::App& app, ExitCode& exit);
void AddBench(CLI::App& app, ExitCode& exit);
void AddPpl(CLI::App& app, ExitCode& exit);
void AddVerify(CLI::App& app, ExitCode& exit);
void AddDoctor(CLI::App& app, ExitCode& exit);

constexpr std::string_view kDefaultRecipe = "balanced";

// Error if what was printed could not be written.
base::Status FlushOutput();
// On standard output, indented; bytes that are no UTF-8 (file names may hold them) are replaced.
void PrintJson(const nlohmann::json& json);
// Text out of a file or an argument, fit for a line: control characters become '?'.
std::string OneLine(std::string_view text);
// One line "sluice: error: ..." for standard error, whatever the message holds.
std::string ErrorLine(std::string_view message);
// Prints the error's line; returns kExitFailed.
ExitCode Report(const base::Error& error);

// A line that is redrawn on a terminal, with the share done and the time left; on anything else a
// line at the start of each stage and then one every few seconds. Standard error. A stage begins
// where the total changes or the count falls.
class ProgressBar {
 public:
  base::Progress Callback();
  // Ends the line that is being drawn, if any.
  void Finish();
  ~ProgressBar() { Finish(); }

 private:
  void Draw(std::string_view what, uint64_t done, uint64_t total);
  uint64_t total_ = UINT64_MAX;
  uint64_t done_ = 0;
  double started_ = 0;
  double drawn_ = 0;
  bool open_ = false;
};

// Set by SIGINT while someone listens (chat, run); otherwise SIGINT and SIGTERM end the process,
// leaving no partial file.
std::atomic<bool>& Interrupted();
void InstallSignalHandlers();
void ListenForInterrupt(bool listen);

// A model's source: a path, or a name that `sluice pull` knows and has fetched (or fetches now, if
// `may_pull`).
base::Result<std::string> FindSource(const std::string& name_or_path, bool may_pull);
// A pack: a path, or a name that was packed before with the recipe.
base::Result<std::string> FindPack(const std::string& name_or_path, const std::string& recipe);
// Where `sluice pack` puts the pack of a model.
std::string DefaultPackPath(const std::string& name_or_path, const std::string& recipe);
// Whether it names what is there under that path. A name of the catalogue is none, whatever lies in
// the working folder; "./NAME" is.
bool IsPath(const std::string& name_or_path);

// For CLI::Option::transform(). CLI11's own checks let NaN through, wrap negative numbers around
// and take a leading zero for octal.
CLI::Validator WholeNumber(uint64_t least, uint64_t most);

// Options that run a pack.
struct EngineFlags {
  std::string pack;
  std::string recipe{kDefaultRecipe};
  session::EngineOptions options;
  std::string on = "cpu";
  bool lock = false;
  void Add(CLI::App& command);
  void AddLock(CLI::App& command);
  // Also locks the pack in memory if asked to; a warning if that fails.
  base::Result<std::unique_ptr<session::Engine>> Open() const;
};

// Options that choose tokens.
struct SamplerFlags {
  text::SamplerOptions options;
  uint32_t max_tokens = 1024;
  std::vector<std::string> stops;
  void Add(CLI::App& command);
};

constexpr uint64_t kLargestText = uint64_t{1} << 28;  // bytes of a text file

// Tokens of whole text files, without BOS. `parse_special`: the spellings of control tokens mean
// those tokens.
base::Result<std::vector<std::vector<int32_t>>> TokenizeFiles(const text::Tokenizer& tokenizer,
                                                              const std::vector<std::string>& paths,
                                                              bool parse_special);

std::string Megabytes(uint64_t bytes);
// Peak resident memory of this process, bytes.
uint64_t PeakMemory();
// "41 tokens at 152.3 tok/s" and so on, for the end of an answer.
std::string SpeedLine(const session::Answer& answer);

}  // namespace sluice::cli
