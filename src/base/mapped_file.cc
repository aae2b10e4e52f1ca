#include "base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace sluice::base {
namespace {

struct FileDescriptor {
  int fd;
  ~FileDescriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// Opens a regular file for reading and tells its size.
Result<uint64_t> OpenRegular(const std::string& path, FileDescriptor& file) {
  if (path.empty()) return Fail("file", "an empty name", "a path");
  // O_NONBLOCK: a FIFO given by mistake must end in an error, not in waiting for a writer.
  file.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd < 0) return FailErrno(path, "cannot open", errno);
  struct stat info;
  if (::fstat(file.fd, &info) != 0) return FailErrno(path, "cannot stat", errno);
  if (S_ISDIR(info.st_mode)) return Fail(path, "a directory", "a file");
  if (!S_ISREG(info.st_mode)) return Fail(path, "not a regular file", "a file");
  return static_cast<uint64_t>(info.st_size);
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  FileDescriptor file{-1};
  SLUICE_TRY(const uint64_t size, OpenRegular(path, file));
  if (size == 0) return Fail(path, "an empty file");
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return FailErrno(path, "cannot map into memory", errno);
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, static_cast<const uint8_t*>(data), size));
}

MappedFile::~MappedFile() { ::munmap(const_cast<uint8_t*>(data_), size_); }

void MappedFile::DropFromMemory(std::span<const uint8_t> part) const {
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Status LockInMemory(std::span<const uint8_t> bytes, const std::string& object) {
  if (::mlock(bytes.data(), bytes.size()) == 0) return {};
  const int error = errno;
  const std::string what = fmt::format("cannot lock {} bytes in memory", bytes.size());
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  auto failure = FailErrno(object, what, error);
  if (limit.rlim_cur < bytes.size()) {
    failure.error().expected =
        fmt::format("RLIMIT_MEMLOCK (ulimit -l) to allow it, not {} bytes", limit.rlim_cur);
  }
  return failure;
}

Result<std::string> ReadSmallFile(const std::string& path, uint64_t max_bytes) {
  FileDescriptor file{-1};
  SLUICE_TRY(const uint64_t size, OpenRegular(path, file));
  if (size > max_bytes) {
    return Fail(path, fmt::format("{} bytes", size), fmt::format("at most {}", max_bytes));
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(file.fd, text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FailErrno(path, "cannot read", errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

Result<std::string> ReadStandardInput(uint64_t max_bytes) {
  constexpr char kObject[] = "standard input";
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (true) {
    const ssize_t n = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FailErrno(kObject, "cannot read", errno);
    if (n == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(n));
    if (text.size() > max_bytes) {
      return Fail(kObject, "too long", fmt::format("at most {} bytes", max_bytes));
    }
  }
}

}  // namespace sluice::base
