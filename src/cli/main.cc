#include <CLI/CLI.hpp>

#include "cli/common.h"

int main(int argc, char** argv) {
  using namespace sluice::cli;
  InstallSignalHandlers();
  CLI::App app{"sluice: language models on machines that look too small for them"};
  app.require_subcommand(1);
  app.set_version_flag("--version", SLUICE_VERSION);
  ExitCode exit = kExitGood;
  AddPull(app, exit);
  AddPack(app, exit);
  AddInspect(app, exit);
  AddChat(app, exit);
  AddRun(app, exit);
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
  } catch (const std::exception&) {
    // A message that could not be printed: there is nowhere left to say so.
    return kExitFailed;
  }
  return exit;
}
