#include <CLI/CLI.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <new>

#include "cli/common.h"

namespace {

// Wrong usage in one line, like every other error.
std::string UsageLine(const CLI::App* app, const CLI::Error& error) {
  const auto given = app->get_subcommands();
  const std::string command = given.empty() ? "sluice" : "sluice " + given.front()->get_name();
  std::string what = error.what();
  // CLI11 lists these from the back, and misses a command where there is a wrong one.
  std::vector<std::string> extra = app->remaining(true);
  if (given.empty() && !extra.empty()) {
    what = fmt::format("{}: no such {}", extra.front(),
                       extra.front().starts_with('-') ? "option" : "command");
  } else if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    what = fmt::format("not expected: {}", fmt::join(extra, " "));
  }
  return sluice::cli::ErrorLine(fmt::format("{} (see {} --help)", what, command));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace sluice::cli;
  InstallSignalHandlers();
  CLI::App app{"sluice: language models on machines that look too small for them"};
  app.require_subcommand(1);
  app.set_version_flag("--version", SLUICE_VERSION);
  app.failure_message(UsageLine);
  ExitCode exit = kExitGood;
  AddPull(app, exit);
  AddPack(app, exit);
  AddInspect(app, exit);
  AddChat(app, exit);
  AddRun(app, exit);
  AddBench(app, exit);
  AddPpl(app, exit);
  AddVerify(app, exit);
  AddDoctor(app, exit);
  try {
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      exit = app.exit(error) == 0 ? kExitGood : kExitUsage;
    }
    if (const auto status = FlushOutput(); !status) exit = Report(status.error());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "sluice: error: not enough memory\n");
    return kExitFailed;
  } catch (const std::exception& error) {
    // A thread that could not be started, output that could not be written.
    std::fprintf(stderr, "sluice: error: %s\n", error.what());
    return kExitFailed;
  }
  return exit;
}
