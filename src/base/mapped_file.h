// A whole file, read-only, in the address space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"

namespace sluice::base {

// Shared ownership: tensors that point into the file keep it mapped.
class MappedFile {
 public:
  // Errors: cannot open, not a regular file, empty, cannot map.
  static Result<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  // Tells the kernel that these bytes will not be needed soon, so that a pass over a large file
  // does not count as the process's memory.
  void DropFromMemory(std::span<const uint8_t> part) const;

 private:
  MappedFile(std::string path, const uint8_t* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}
  std::string path_;
  const uint8_t* data_;
  size_t size_;
};

// Reads the pages that hold these bytes and keeps them in memory until they are unmapped, so that
// a system short of memory cannot put them aside. `object` names them in the error: the system's
// reason, and RLIMIT_MEMLOCK where that may be it.
Status LockInMemory(std::span<const uint8_t> bytes, const std::string& object);

// The whole of a small file. Error if it cannot be read or is longer than `max_bytes`.
Result<std::string> ReadSmallFile(const std::string& path, uint64_t max_bytes);

// All of standard input. Error if it cannot be read or is longer than `max_bytes`.
Result<std::string> ReadStandardInput(uint64_t max_bytes);

}  // namespace sluice::base
