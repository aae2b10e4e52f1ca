#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/proc.h"
#include "base/thread_pool.h"
#include "cli/common.h"
#include "exec/cpu/kernels.h"
#include "formats/hub.h"
#include "program/loaded_pack.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

struct Finding {
  enum class Kind { kGood, kWarning, kBad } kind;
  std::string what;
  std::string found;
  std::string advice;  // empty where nothing needs doing
};

constexpr char kMemory[] = "/proc/meminfo";

// The folder, or the nearest one above it that is there.
std::string NearestFolder(const fs::path& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error);
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path.string();
}

void CheckMachine(std::vector<Finding>& findings) {
  using Kind = Finding::Kind;
  utsname system{};
  ::uname(&system);
  findings.push_back(
      {Kind::kGood, "machine",
       fmt::format("{}, {}, Linux {}", base::CpuModel(), system.machine, system.release), ""});
  findings.push_back(
      {Kind::kGood, "cores", fmt::format("{} for this process", base::AvailableCores()), ""});
  const auto kernels = exec::cpu::KernelsOfEnvironment();
  if (!kernels) {
    findings.push_back({Kind::kBad, "kernels", kernels.error().ToString(), "unset SLUICE_ISA"});
  } else {
    const bool slow = (*kernels)->name == "scalar";
    findings.push_back({slow ? Kind::kWarning : Kind::kGood, "kernels",
                        std::string((*kernels)->name),
                        slow ? "no SIMD that sluice knows: expect a tenth of the speed" : ""});
  }
  const uint64_t free = base::ProcBytes(kMemory, "MemAvailable");
  const bool little = free < (uint64_t{512} << 20);
  findings.push_back({little ? Kind::kWarning : Kind::kGood, "memory",
                      fmt::format("{} available of {}", Megabytes(free),
                                  Megabytes(base::ProcBytes(kMemory, "MemTotal"))),
                      little ? "close other programs, or use a short --context" : ""});
}

void CheckCache(std::vector<Finding>& findings) {
  using Kind = Finding::Kind;
  const std::string cache = formats::DefaultCacheDir();
  if (cache.empty()) {
    findings.push_back({Kind::kBad, "cache", "no folder for it", "set HOME or SLUICE_CACHE"});
    return;
  }
  std::error_code error;
  // Only looks: `pull` and `pack` make the folder.
  const std::string folder = NearestFolder(cache);
  if (!fs::is_directory(folder, error) || ::access(folder.c_str(), W_OK | X_OK) != 0) {
    findings.push_back({Kind::kBad, "cache", fmt::format("{} cannot be written", cache),
                        "set SLUICE_CACHE to a folder of yours"});
    return;
  }
  struct statvfs disk {};
  const uint64_t free =
      ::statvfs(folder.c_str(), &disk) == 0 ? uint64_t{disk.f_bavail} * disk.f_frsize : 0;
  const bool little = free < (uint64_t{1} << 30);
  findings.push_back({little ? Kind::kWarning : Kind::kGood, "cache",
                      fmt::format("{}, {} free", cache, Megabytes(free)),
                      little ? "a model and its pack take up to 2 GB" : ""});

  size_t packs = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(cache) / "packs", error)) {
    const std::string path = entry.path().string();
    if (path.find(".partial-") != std::string::npos) {
      findings.push_back({Kind::kWarning, "unfinished pack", path, "delete it"});
      continue;
    }
    ++packs;
    const auto loaded = program::LoadPack(path);
    if (loaded) {
      findings.push_back({Kind::kGood, "pack", path, ""});
    } else {
      findings.push_back(
          {Kind::kBad, "pack", loaded.error().ToString(), "delete it and pack again"});
    }
  }
  if (packs == 0) {
    findings.push_back({Kind::kWarning, "packs", "none yet", "sluice pack smollm2-135m-instruct"});
  }
}

}  // namespace

void AddDoctor(CLI::App& app, ExitCode& exit) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("doctor", "Check this machine and the models on it");
  command->add_flag("--json", *json, "The findings as JSON");
  command->callback([json, &exit] {
    std::vector<Finding> findings;
    CheckMachine(findings);
    CheckCache(findings);
    nlohmann::json list = nlohmann::json::array();
    constexpr std::string_view kMarks[] = {"ok", "warning", "BAD"};
    for (const Finding& f : findings) {
      const std::string_view mark = kMarks[static_cast<size_t>(f.kind)];
      if (f.kind == Finding::Kind::kBad) exit = kExitFailed;
      if (*json) {
        list.push_back(
            {{"state", mark}, {"what", f.what}, {"found", f.found}, {"advice", f.advice}});
      } else {
        fmt::print("{:<8} {:<10} {}{}\n", mark, f.what, f.found,
                   f.advice.empty() ? "" : "\n" + std::string(20, ' ') + "-> " + f.advice);
      }
    }
    if (*json) PrintJson(list);
  });
}

}  // namespace sluice::cli
