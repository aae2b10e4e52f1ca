#include "formats/gguf_writer.h"

#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "formats/gguf.h"

namespace sluice::formats {
namespace {

class Output {
 public:
  template <typename T>
  void Number(T value) {
    Append(&value, sizeof(T));
  }
  void String(std::string_view text) {
    Number(uint64_t{text.size()});
    Append(text.data(), text.size());
  }
  void PadTo(uint64_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
  }
  std::vector<uint8_t> Take() { return std::move(bytes_); }
  uint64_t size() const { return bytes_.size(); }

 private:
  void Append(const void* data, size_t size) {
    const size_t end = bytes_.size();
    bytes_.resize(end + size);
    if (size > 0) std::memcpy(bytes_.data() + end, data, size);
  }

  std::vector<uint8_t> bytes_;
};

template <typename T>
constexpr uint32_t TypeNumber() {
  if constexpr (std::is_same_v<T, uint8_t>) return 0;
  if constexpr (std::is_same_v<T, int8_t>) return 1;
  if constexpr (std::is_same_v<T, uint16_t>) return 2;
  if constexpr (std::is_same_v<T, int16_t>) return 3;
  if constexpr (std::is_same_v<T, uint32_t>) return 4;
  if constexpr (std::is_same_v<T, int32_t>) return 5;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, bool>) return 7;
  if constexpr (std::is_same_v<T, std::string>) return 8;
  if constexpr (std::is_same_v<T, uint64_t>) return 10;
  if constexpr (std::is_same_v<T, int64_t>) return 11;
  if constexpr (std::is_same_v<T, double>) return 12;
}
constexpr uint32_t kArrayType = 9;

template <typename T>
void WriteElement(Output& out, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    out.String(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    out.Number(static_cast<uint8_t>(value ? 1 : 0));
  } else {
    out.Number(value);
  }
}

template <typename T>
void WriteValue(Output& out, const T& value) {
  out.Number(TypeNumber<T>());
  WriteElement(out, value);
}

template <typename T>
void WriteValue(Output& out, const std::vector<T>& values) {
  out.Number(kArrayType);
  out.Number(TypeNumber<T>());
  out.Number(uint64_t{values.size()});
  for (const T& value : values) WriteElement(out, value);
}

}  // namespace

GgufHeader SerializeHeader(const model::Metadata& metadata, std::span<const TensorSpec> tensors) {
  const auto found = metadata.GetUint("general.alignment");
  SLUICE_CHECK(found.has_value());
  const uint64_t alignment = found->value_or(kGgufDefaultAlignment);
  SLUICE_CHECK(std::has_single_bit(alignment));

  Output out;
  out.Number(std::bit_cast<uint32_t>(std::array{'G', 'G', 'U', 'F'}));
  out.Number(uint32_t{3});
  out.Number(uint64_t{tensors.size()});
  out.Number(uint64_t{metadata.entries().size()});
  for (const auto& [key, value] : metadata.entries()) {
    out.String(key);
    std::visit([&](const auto& v) { WriteValue(out, v); }, value);
  }
  GgufHeader header;
  uint64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    out.String(tensor.name);
    out.Number(static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) out.Number(dim);
    out.Number(static_cast<uint32_t>(tensor.type));
    out.Number(offset);
    header.offsets.push_back(offset);
    const auto bytes = TensorBytes(tensor.type, tensor.dims);
    SLUICE_CHECK(bytes.has_value() && !tensor.name.empty());
    offset += (*bytes + alignment - 1) / alignment * alignment;
  }
  out.PadTo(alignment);
  for (uint64_t& tensor_offset : header.offsets) tensor_offset += out.size();
  header.file_bytes = out.size() + offset;
  header.bytes = out.Take();
  return header;
}

}  // namespace sluice::formats
