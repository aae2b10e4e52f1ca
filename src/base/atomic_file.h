// Files that appear whole or not at all.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace sluice::base {

// Writes to "PATH.partial-PID" beside the target; Commit() syncs and renames it over the target.
// Without Commit() the partial file is removed by the destructor, and by RemovePartialFiles() when
// a signal ends the process. What a killed process left of the same target is removed by the next
// Create().
class AtomicFile {
 public:
  static Result<AtomicFile> Create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;
  ~AtomicFile();

  uint64_t offset() const { return offset_; }
  // Appends. Errors name the target file (full disk, I/O error).
  Status Write(std::span<const uint8_t> bytes);
  Status Write(std::string_view text);
  // Appends zero bytes up to the next multiple of `alignment`.
  Status PadTo(uint64_t alignment);
  // Overwrites bytes that were already written (a header whose values are known last).
  Status WriteAt(uint64_t offset, std::span<const uint8_t> bytes);
  Status Commit();

 private:
  AtomicFile(std::string path, std::string partial, int fd);
  std::string path_;
  std::string partial_;
  int fd_ = -1;
  uint64_t offset_ = 0;
};

// Removes the partial files of all AtomicFiles that are open. Async-signal-safe, for a handler of
// SIGINT or SIGTERM that is about to end the process.
void RemovePartialFiles();

}  // namespace sluice::base
