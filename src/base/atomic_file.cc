#include "base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <vector>

namespace sluice::base {
namespace {

// Names of open partial files, for RemovePartialFiles(): fixed storage, since a signal handler may
// neither allocate nor lock. A file beyond the table's size is only removed by its destructor.
constexpr size_t kMaxPartialFiles = 16;
std::array<std::atomic<char*>, kMaxPartialFiles> partial_files;

void Register(const std::string& name) {
  char* copy = ::strdup(name.c_str());
  for (auto& slot : partial_files) {
    char* empty = nullptr;
    if (slot.compare_exchange_strong(empty, copy)) return;
  }
  std::free(copy);
}

void Unregister(const std::string& name) {
  for (auto& slot : partial_files) {
    char* current = slot.load();
    if (current != nullptr && name == current && slot.compare_exchange_strong(current, nullptr)) {
      std::free(current);
      return;
    }
  }
}

// Removes partial files of `path` whose process was killed.
void RemoveOrphans(const std::filesystem::path& path) {
  const std::string prefix = path.filename().string() + ".partial-";
  const auto folder = path.parent_path();
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder.empty() ? "." : folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    pid_t pid = 0;
    const char* end = name.data() + name.size();
    const auto [rest, failed] = std::from_chars(name.data() + prefix.size(), end, pid);
    const bool a_pid = failed == std::errc() && rest == end && pid > 0;
    if (a_pid && ::kill(pid, 0) != 0 && errno == ESRCH) {
      std::filesystem::remove(entry.path(), error);
    }
  }
}

}  // namespace

void RemovePartialFiles() {
  for (auto& slot : partial_files) {
    if (const char* name = slot.load()) ::unlink(name);
  }
}

Result<AtomicFile> AtomicFile::Create(const std::string& path) {
  RemoveOrphans(path);
  std::string partial = fmt::format("{}.partial-{}", path, ::getpid());
  const int fd = ::open(partial.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return FailErrno(path, "cannot create", errno);
  return AtomicFile(path, std::move(partial), fd);
}

AtomicFile::AtomicFile(std::string path, std::string partial, int fd)
    : path_(std::move(path)), partial_(std::move(partial)), fd_(fd) {
  Register(partial_);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::move(other.partial_)),
      fd_(std::exchange(other.fd_, -1)),
      offset_(other.offset_) {}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
  Unregister(partial_);
}

Status AtomicFile::Write(std::span<const uint8_t> bytes) {
  SLUICE_TRY_VOID(WriteAt(offset_, bytes));
  offset_ += bytes.size();
  return {};
}

Status AtomicFile::Write(std::string_view text) {
  return Write(std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

Status AtomicFile::PadTo(uint64_t alignment) {
  const std::vector<uint8_t> zeros((alignment - offset_ % alignment) % alignment);
  return Write(zeros);
}

Status AtomicFile::WriteAt(uint64_t offset, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FailErrno(path_, "cannot write", errno);
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status AtomicFile::Commit() {
  if (::fsync(fd_) != 0) return FailErrno(path_, "cannot write to disk", errno);
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    return FailErrno(path_, "cannot rename the finished file", errno);
  }
  ::close(std::exchange(fd_, -1));
  Unregister(partial_);
  // The rename itself must survive a power cut too.
  const auto folder = std::filesystem::path(path_).parent_path();
  const int dir = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir >= 0) {
    ::fsync(dir);
    ::close(dir);
  }
  return {};
}

}  // namespace sluice::base
