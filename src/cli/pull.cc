#include <fmt/format.h>

#include <memory>

#include "cli/common.h"
#include "formats/hub.h"

namespace sluice::cli {

void AddPull(CLI::App& app, ExitCode& exit) {
  struct Flags {
    std::string name = "smollm2-135m-instruct";
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("pull", "Fetch a model into the cache; prints its path");
  command
      ->add_option("name", flags->name,
                   "A name of the catalogue, or owner/name, owner/name@revision or "
                   "owner/name:file.gguf on the Hugging Face hub")
      ->capture_default_str();
  command->callback([flags, &exit] {
    base::Result<std::string> path;
    {
      ProgressBar bar;
      path = formats::Pull(flags->name, {.progress = bar.Callback()});
    }
    if (!path) {
      exit = Report(path.error());
      return;
    }
    fmt::print("{}\n", *path);
  });
}

}  // namespace sluice::cli
