// GGML's tensor types as they stand in GGUF files: numbers, names, block sizes, and their values.
// Source of the numbers and of the block layouts: the GGUF specification and ggml's published
// quantisation formats.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace sluice::formats {

enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kBF16 = 30,
};

struct TypeTraits {
  TensorType type;
  std::string_view name;
  uint32_t block_values;  // values in one block, 1 for plain types
  uint32_t block_bytes;
  bool dequantizes;  // DequantizeRow takes it
};

// Every type that a file may hold, in the order of their numbers.
std::span<const TypeTraits> TensorTypes();
// nullptr for a number that is not in the list.
const TypeTraits* FindTensorType(uint32_t number);
const TypeTraits& Traits(TensorType type);
std::string_view TypeName(TensorType type);
// "F32, F16, ...", for messages; with `only_floats`, those that DequantizeRow takes.
std::string ListTensorTypes(bool only_floats);

// Bytes of a tensor of this type and these dimensions, fastest-varying first; nullopt if they do
// not fit 63 bits, a dimension is zero, or dims[0] is no multiple of the block. (For types whose
// block is one value the order does not matter.)
std::optional<uint64_t> TensorBytes(TensorType type, std::span<const uint64_t> dims);

// The float32 values of a run of whole blocks. out.size() is a multiple of the type's block_values,
// bytes.size() == out.size() / block_values * block_bytes, and the type dequantizes; anything else
// aborts. Each product and sum is rounded to float32 (no fused multiply-add), in ggml's order.
void DequantizeRow(TensorType type, std::span<const uint8_t> bytes, std::span<float> out);

// IEEE 754 binary16 to binary32, exact; NaNs keep their payload.
float HalfToFloat(uint16_t half);

}  // namespace sluice::formats
