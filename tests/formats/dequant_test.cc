#include "formats/dequant.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "support/python.h"
#include "support/temp_dir.h"

namespace sluice::formats {
namespace {

using testing::TempDir;

std::vector<uint8_t> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Where the halves (2 bytes each) of a block stand that must not be NaN or infinite.
std::vector<size_t> HalvesOf(TensorType type) {
  switch (type) {
    case TensorType::kQ4_1:
    case TensorType::kQ5_1:
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      return {0, 2};
    case TensorType::kQ2_K:
      return {80, 82};
    case TensorType::kQ3_K:
      return {108};
    case TensorType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

// Random blocks with every bit pattern, but finite.
std::vector<uint8_t> RandomBlocks(const TypeTraits& traits, size_t blocks,
                                  std::mt19937_64& random) {
  std::vector<uint8_t> bytes(blocks * traits.block_bytes);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (size_t block = 0; block < blocks; ++block) {
    uint8_t* begin = bytes.data() + block * traits.block_bytes;
    if (traits.type == TensorType::kF32 || traits.type == TensorType::kBF16) {
      begin[traits.block_bytes - 1] &= 0xbf;  // exponent below 128
      continue;
    }
    for (const size_t half : HalvesOf(traits.type)) begin[half + 1] &= 0xbf;
  }
  return bytes;
}

TEST(Dequant, AgreesBitForBitWithTheGgufPackage) {
  SLUICE_NEEDS_PYTHON("gguf, numpy");
  constexpr uint64_t kSeed = 20240611;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  TempDir dir;
  std::vector<std::pair<const TypeTraits*, std::vector<uint8_t>>> cases;
  for (const TypeTraits& traits : TensorTypes()) {
    if (!traits.dequantizes) continue;
    cases.emplace_back(&traits, RandomBlocks(traits, 4096, random));
    testing::WriteFile(dir / fmt::format("{}.bin", traits.name), cases.back().second);
  }
  ASSERT_EQ(cases.size(), 14u);
  ASSERT_EQ(testing::RunPython(
                fmt::format("'{}/tests/formats/dequantize.py' {}", SLUICE_SOURCE_DIR, dir.path())),
            0);
  for (const auto& [traits, bytes] : cases) {
    const auto raw = ReadFile(dir / fmt::format("{}.f32", traits->name));
    std::vector<float> values(4096 * traits->block_values);
    ASSERT_EQ(raw.size(), values.size() * sizeof(float)) << traits->name;
    DequantizeRow(traits->type, bytes, values);
    size_t different = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      uint32_t expected;
      std::memcpy(&expected, raw.data() + 4 * i, 4);
      different += std::bit_cast<uint32_t>(values[i]) != expected;
    }
    EXPECT_EQ(different, 0u) << traits->name;
  }
}

TEST(Dequant, WorksOutBlocksByHand) {
  // d = 0.5, low nibbles 15, high nibbles 0.
  std::vector<uint8_t> q4_0(18, 0x0f);
  q4_0[0] = 0x00;
  q4_0[1] = 0x38;
  std::vector<float> out(32);
  DequantizeRow(TensorType::kQ4_0, q4_0, out);
  EXPECT_EQ(out[0], 3.5f);
  EXPECT_EQ(out[16], -4.0f);

  std::vector<uint8_t> q8_0(34, 0x80);
  q8_0[0] = 0x00;
  q8_0[1] = 0x38;
  DequantizeRow(TensorType::kQ8_0, q8_0, out);
  EXPECT_EQ(out[31], -64.0f);
}

TEST(Dequant, ConvertsEveryHalf) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    const uint32_t exponent = bits >> 10 & 31;
    const float mantissa = static_cast<float>(bits & 0x3ff);
    const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      EXPECT_EQ(std::isinf(value), mantissa == 0);
    } else {
      const float magnitude = exponent == 0
                                  ? std::ldexp(mantissa, -24)
                                  : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
      ASSERT_EQ(value, sign * magnitude) << bits;
    }
    ASSERT_EQ(std::signbit(value), sign < 0) << bits;
  }
}

TEST(Dequant, CountsTheBytesOfATensor) {
  const std::vector<uint64_t> good{256, 3};
  EXPECT_EQ(TensorBytes(TensorType::kQ4_K, good), 3 * 144u);
  const std::vector<std::vector<uint64_t>> bad = {
      {}, {0}, {255}, {256, 0}, {1ull << 40, 1ull << 40}, {1ull << 62, 2}, {256, 1ull << 55}};
  for (const auto& dims : bad) EXPECT_FALSE(TensorBytes(TensorType::kQ4_K, dims));
}

}  // namespace
}  // namespace sluice::formats
