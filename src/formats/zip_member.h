// One file out of a zip archive (a Python wheel is one).
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/progress.h"

namespace sluice::formats {

struct ZipMember {
  std::string path;    // as the archive's directory writes it
  uint64_t size = 0;   // bytes, unpacked
  std::string sha256;  // of the unpacked bytes, 64 lower-case hexadecimal digits
};

// Unpacks `member` of the archive to `target`, which appears whole and checked or not at all.
base::Status ExtractZipMember(const std::string& archive, const ZipMember& member,
                              const std::string& target, const base::Progress& progress = {});

}  // namespace sluice::formats
