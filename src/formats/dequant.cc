#include "formats/dequant.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace sluice::formats {
namespace {

constexpr std::array kTypes = {
    TypeTraits{TensorType::kF32, "F32", 1, 4, true},
    TypeTraits{TensorType::kF16, "F16", 1, 2, true},
    TypeTraits{TensorType::kQ4_0, "Q4_0", 32, 18, true},
    TypeTraits{TensorType::kQ4_1, "Q4_1", 32, 20, true},
    TypeTraits{TensorType::kQ5_0, "Q5_0", 32, 22, true},
    TypeTraits{TensorType::kQ5_1, "Q5_1", 32, 24, true},
    TypeTraits{TensorType::kQ8_0, "Q8_0", 32, 34, true},
    TypeTraits{TensorType::kQ2_K, "Q2_K", 256, 84, true},
    TypeTraits{TensorType::kQ3_K, "Q3_K", 256, 110, true},
    TypeTraits{TensorType::kQ4_K, "Q4_K", 256, 144, true},
    TypeTraits{TensorType::kQ5_K, "Q5_K", 256, 176, true},
    TypeTraits{TensorType::kQ6_K, "Q6_K", 256, 210, true},
    TypeTraits{TensorType::kIQ4_NL, "IQ4_NL", 32, 18, true},
    TypeTraits{TensorType::kI8, "I8", 1, 1, false},
    TypeTraits{TensorType::kI16, "I16", 1, 2, false},
    TypeTraits{TensorType::kI32, "I32", 1, 4, false},
    TypeTraits{TensorType::kI64, "I64", 1, 8, false},
    TypeTraits{TensorType::kF64, "F64", 1, 8, false},
    TypeTraits{TensorType::kBF16, "BF16", 1, 2, true},
};

// The non-linear 4-bit code book of IQ4_NL.
constexpr std::array<int8_t, 16> kIq4NlValues = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

float Half(const uint8_t* bytes) { return HalfToFloat(Load<uint16_t>(bytes)); }

// The blocks of 32: byte j holds value j in its low and value j + 16 in its high half.

void Q4_0(const uint8_t* block, float* out) {
  const float d = Half(block);
  const uint8_t* q = block + 2;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((q[j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((q[j] >> 4) - 8);
  }
}

void Q4_1(const uint8_t* block, float* out) {
  const float d = Half(block);
  const float m = Half(block + 2);
  const uint8_t* q = block + 4;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(q[j] & 15) + m;
    out[j + 16] = d * static_cast<float>(q[j] >> 4) + m;
  }
}

// Bit j of `high` is the fifth bit of value j.
int FiveBits(const uint8_t* q, uint32_t high, int j) {
  const int low = j < 16 ? q[j] & 15 : q[j - 16] >> 4;
  return low | static_cast<int>((high >> j & 1) << 4);
}

void Q5_0(const uint8_t* block, float* out) {
  const float d = Half(block);
  const uint32_t high = Load<uint32_t>(block + 2);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(FiveBits(block + 6, high, j) - 16);
}

void Q5_1(const uint8_t* block, float* out) {
  const float d = Half(block);
  const float m = Half(block + 2);
  const uint32_t high = Load<uint32_t>(block + 4);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(FiveBits(block + 8, high, j)) + m;
}

void Q8_0(const uint8_t* block, float* out) {
  const float d = Half(block);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(block[2 + j]));
}

void Iq4Nl(const uint8_t* block, float* out) {
  const float d = Half(block);
  const uint8_t* q = block + 2;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(kIq4NlValues[q[j] & 15]);
    out[j + 16] = d * static_cast<float>(kIq4NlValues[q[j] >> 4]);
  }
}

// The blocks of 256 hold two halves of 128 values (n = 0, 1) or four quarters of 64.

// scales[16] (4 bits scale, 4 bits minimum), q[64] (2 bits), d, dmin.
void Q2K(const uint8_t* block, float* out) {
  const uint8_t* scales = block;
  const uint8_t* q = block + 16;
  const float d = Half(block + 80);
  const float dmin = Half(block + 82);
  for (int i = 0; i < 256; ++i) {
    const int n = i / 128;
    const int plane = i % 128 / 32;
    const uint8_t scale = scales[i / 16];
    const int value = q[32 * n + i % 32] >> (2 * plane) & 3;
    const float dl = d * static_cast<float>(scale & 15);
    const float ml = dmin * static_cast<float>(scale >> 4);
    out[i] = dl * static_cast<float>(value) - ml;
  }
}

// high[32] (1 bit), q[64] (2 bits), scales[12] (16 of 6 bits), d.
void Q3K(const uint8_t* block, float* out) {
  const uint8_t* high = block;
  const uint8_t* q = block + 32;
  const uint8_t* scales = block + 96;
  const float d = Half(block + 108);
  for (int group = 0; group < 16; ++group) {
    const int low4 = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
    const int high2 = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
    const float dl = d * static_cast<float>((low4 | high2 << 4) - 32);
    for (int i = 16 * group; i < 16 * group + 16; ++i) {
      const int low = q[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
      const int bit = high[i % 32] >> (i / 32) & 1;
      out[i] = dl * static_cast<float>(bit != 0 ? low : low - 4);
    }
  }
}

// Scale and minimum j (of 8, 6 bits each) out of the 12 bytes of Q4_K and Q5_K.
struct ScaleMin {
  float scale;
  float min;
};
ScaleMin UnpackScaleMin(const uint8_t* s, int j) {
  if (j < 4) return {static_cast<float>(s[j] & 63), static_cast<float>(s[j + 4] & 63)};
  return {static_cast<float>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4),
          static_cast<float>((s[j + 4] >> 4) | (s[j] >> 6) << 4)};
}

// d, dmin, scales[12], q[128] (4 bits).
void Q4K(const uint8_t* block, float* out) {
  const float d = Half(block);
  const float dmin = Half(block + 2);
  const uint8_t* q = block + 16;
  for (int j = 0; j < 8; ++j) {
    const auto [scale, min] = UnpackScaleMin(block + 4, j);
    const float dl = d * scale;
    const float ml = dmin * min;
    for (int l = 0; l < 32; ++l) {
      const int value = q[32 * (j / 2) + l] >> (4 * (j % 2)) & 15;
      out[32 * j + l] = dl * static_cast<float>(value) - ml;
    }
  }
}

// d, dmin, scales[12], high[32] (1 bit), q[128] (4 bits).
void Q5K(const uint8_t* block, float* out) {
  const float d = Half(block);
  const float dmin = Half(block + 2);
  const uint8_t* high = block + 16;
  const uint8_t* q = block + 48;
  for (int j = 0; j < 8; ++j) {
    const auto [scale, min] = UnpackScaleMin(block + 4, j);
    const float dl = d * scale;
    const float ml = dmin * min;
    for (int l = 0; l < 32; ++l) {
      const int low = q[32 * (j / 2) + l] >> (4 * (j % 2)) & 15;
      const int bit = high[l] >> j & 1;
      out[32 * j + l] = dl * static_cast<float>(low | bit << 4) - ml;
    }
  }
}

// low[128] (4 bits), high[64] (2 bits), scales[16] (int8), d.
void Q6K(const uint8_t* block, float* out) {
  const float d = Half(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int n = i / 128;
    const int r = i % 128;
    const int low = block[64 * n + r % 64] >> (4 * (r / 64)) & 15;
    const int high = block[128 + 32 * n + r % 32] >> (2 * (r / 32)) & 3;
    const float dl = d * static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
    out[i] = dl * static_cast<float>((low | high << 4) - 32);
  }
}

}  // namespace

std::span<const TypeTraits> TensorTypes() { return kTypes; }

const TypeTraits* FindTensorType(uint32_t number) {
  const auto it = std::ranges::find(kTypes, static_cast<TensorType>(number), &TypeTraits::type);
  return it == kTypes.end() ? nullptr : &*it;
}

const TypeTraits& Traits(TensorType type) {
  const TypeTraits* traits = FindTensorType(static_cast<uint32_t>(type));
  SLUICE_CHECK(traits != nullptr);
  return *traits;
}

std::string_view TypeName(TensorType type) { return Traits(type).name; }

std::string ListTensorTypes(bool only_floats) {
  std::string list;
  for (const TypeTraits& traits : kTypes) {
    if (only_floats && !traits.dequantizes) continue;
    if (!list.empty()) list += ", ";
    list += traits.name;
  }
  return list;
}

std::optional<uint64_t> TensorBytes(TensorType type, std::span<const uint64_t> dims) {
  const TypeTraits& traits = Traits(type);
  if (dims.empty() || dims[0] == 0 || dims[0] % traits.block_values != 0) return std::nullopt;
  constexpr uint64_t kLimit = std::numeric_limits<int64_t>::max();
  // The number of values itself stays within 63 bits, so that products of dimensions are safe.
  uint64_t values = 1;
  for (const uint64_t dim : dims) {
    if (dim == 0 || values > kLimit / dim) return std::nullopt;
    values *= dim;
  }
  const uint64_t blocks = values / traits.block_values;
  if (blocks > kLimit / traits.block_bytes) return std::nullopt;
  return blocks * traits.block_bytes;
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 31;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    // Zero or subnormal: mantissa * 2^-24, which float32 holds as a normal number.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

void DequantizeRow(TensorType type, std::span<const uint8_t> bytes, std::span<float> out) {
  const TypeTraits& traits = Traits(type);
  SLUICE_CHECK(traits.dequantizes && out.size() % traits.block_values == 0 &&
               bytes.size() == out.size() / traits.block_values * traits.block_bytes);
  const auto blocks = [&](void (*decode)(const uint8_t*, float*)) {
    const uint8_t* in = bytes.data();
    for (size_t i = 0; i < out.size(); i += traits.block_values, in += traits.block_bytes) {
      decode(in, out.data() + i);
    }
  };
  switch (type) {
    case TensorType::kF32:
      if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
      return;
    case TensorType::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = Half(bytes.data() + 2 * i);
      return;
    case TensorType::kBF16:
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = std::bit_cast<float>(uint32_t{Load<uint16_t>(bytes.data() + 2 * i)} << 16);
      }
      return;
    case TensorType::kQ4_0:
      return blocks(Q4_0);
    case TensorType::kQ4_1:
      return blocks(Q4_1);
    case TensorType::kQ5_0:
      return blocks(Q5_0);
    case TensorType::kQ5_1:
      return blocks(Q5_1);
    case TensorType::kQ8_0:
      return blocks(Q8_0);
    case TensorType::kQ2_K:
      return blocks(Q2K);
    case TensorType::kQ3_K:
      return blocks(Q3K);
    case TensorType::kQ4_K:
      return blocks(Q4K);
    case TensorType::kQ5_K:
      return blocks(Q5K);
    case TensorType::kQ6_K:
      return blocks(Q6K);
    case TensorType::kIQ4_NL:
      return blocks(Iq4Nl);
    case TensorType::kI8:
    case TensorType::kI16:
    case TensorType::kI32:
    case TensorType::kI64:
    case TensorType::kF64:
      break;
  }
}

}  // namespace sluice::formats
