// Bounds-checked reading of little-endian binary formats.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace sluice::base {

// Reads forward through `bytes`; every read past the end is an Error that names `object` and the
// offset. The bytes must outlive the reader and every string_view it hands out.
class ByteReader {
 public:
  ByteReader(std::span<const uint8_t> bytes, std::string_view object)
      : bytes_(bytes), object_(object) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }

  template <typename T>
  requires std::is_arithmetic_v<T> Result<T> Read(std::string_view what) {
    if (remaining() < sizeof(T)) return Truncated(what, sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return value;
  }

  Result<std::span<const uint8_t>> ReadBytes(uint64_t count, std::string_view what) {
    if (remaining() < count) return Truncated(what, count);
    const auto part = bytes_.subspan(offset_, count);
    offset_ += count;
    return part;
  }

 private:
  std::unexpected<Error> Truncated(std::string_view what, uint64_t wanted) const {
    return Fail(
        std::string(object_),
        "ends inside " + std::string(what) + ": " + std::to_string(remaining()) + " bytes left",
        std::to_string(wanted), offset_);
  }

  std::span<const uint8_t> bytes_;
  std::string_view object_;
  uint64_t offset_ = 0;
};

}  // namespace sluice::base
