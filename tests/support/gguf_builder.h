// GGUF bytes put together field by field, so that a test can get any of them wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::testing {

// Appends little-endian fields; every field's beginning is remembered.
class GgufBuilder {
 public:
  template <typename T>
  GgufBuilder& Number(T value) {
    fields_.push_back(bytes_.size());
    const size_t end = bytes_.size();
    bytes_.resize(end + sizeof(T));
    std::memcpy(bytes_.data() + end, &value, sizeof(T));
    return *this;
  }
  GgufBuilder& Raw(std::string_view text) {
    fields_.push_back(bytes_.size());
    for (const char c : text) bytes_.push_back(static_cast<uint8_t>(c));
    return *this;
  }
  GgufBuilder& Text(std::string_view text) { return Number(uint64_t{text.size()}).Raw(text); }

  GgufBuilder& Header(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    return Raw("GGUF").Number(version).Number(tensors).Number(keys);
  }
  GgufBuilder& Uint32(std::string_view key, uint32_t value) {
    return Text(key).Number(uint32_t{4}).Number(value);
  }
  GgufBuilder& Float(std::string_view key, float value) {
    return Text(key).Number(uint32_t{6}).Number(value);
  }
  GgufBuilder& String(std::string_view key, std::string_view value) {
    return Text(key).Number(uint32_t{8}).Text(value);
  }
  // The beginning of an array: `count` elements of `type` must follow.
  GgufBuilder& Array(std::string_view key, uint32_t type, uint64_t count) {
    return Text(key).Number(uint32_t{9}).Number(type).Number(count);
  }
  GgufBuilder& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      uint64_t offset) {
    Text(name).Number(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) Number(dim);
    return Number(type).Number(offset);
  }
  GgufBuilder& PadTo(uint64_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  GgufBuilder& Zeros(uint64_t count) {
    bytes_.resize(bytes_.size() + count);
    return *this;
  }

  const std::vector<uint8_t>& bytes() const { return bytes_; }
  const std::vector<size_t>& fields() const { return fields_; }

 private:
  std::vector<uint8_t> bytes_;
  std::vector<size_t> fields_;
};

}  // namespace sluice::testing
