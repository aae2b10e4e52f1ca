#include "fixed/functions.h"

#include <bit>
#include <cmath>

#include "base/check.h"
#include "fixed/rounding.h"

namespace sluice::fixed {
namespace {

// The tables are rounded from double precision; no entry lies so near a half that a last-bit
// difference between C libraries could change it (tests/fixed checks the distance).
std::array<uint16_t, 256> MakeExp2Table() {
  std::array<uint16_t, 256> table;
  for (size_t i = 0; i < table.size(); ++i) {
    const double value = std::round(std::exp2(15.0 - static_cast<double>(i) / 256.0));
    table[i] = static_cast<uint16_t>(std::min(value, 32767.0));
  }
  return table;
}

std::array<uint32_t, 257> MakeSigmoidTable() {
  std::array<uint32_t, 257> table;
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<uint32_t>(
        std::round(65536.0 / (1.0 + std::exp(-static_cast<double>(i) / 16.0))));
  }
  return table;
}

// OR of the magnitudes of a block.
uint32_t BlockMagnitude(std::span<const int32_t> v) {
  uint32_t magnitudes = 0;
  for (const int32_t x : v) magnitudes |= Magnitude(x);
  return magnitudes;
}

}  // namespace

const std::array<uint16_t, 256> kExp2Table = MakeExp2Table();
const std::array<uint32_t, 257> kSigmoidTable = MakeSigmoidTable();

uint32_t Exp2Negative(uint32_t d, int fraction) {
  const uint32_t whole = d >> fraction;
  if (whole > kProbabilityBits) return 0;
  const uint32_t part = (d & ((1u << fraction) - 1)) << (kMaxScoreFraction - fraction);
  return static_cast<uint32_t>(RoundShift(kExp2Table[part], static_cast<int>(whole)));
}

uint32_t Sigmoid(int32_t x) {
  constexpr int kStepBits = 12;  // a segment is 2^12 units of 2^-16: 1/16
  const uint32_t magnitude = x < 0 ? 0u - static_cast<uint32_t>(x) : static_cast<uint32_t>(x);
  const uint32_t a = std::min(magnitude, (256u << kStepBits) - 1);
  const uint32_t i = a >> kStepBits;
  const uint32_t t = a & ((1u << kStepBits) - 1);
  const uint32_t rise = (kSigmoidTable[i + 1] - kSigmoidTable[i]) * t;
  const uint32_t y = kSigmoidTable[i] + ((rise + (1u << (kStepBits - 1))) >> kStepBits);
  return x < 0 ? 65536 - y : y;
}

int32_t SiluGate(int32_t gate, int32_t up) {
  const int64_t s = RoundShift(int64_t{gate} * Sigmoid(gate), 16);
  return Saturate32(RoundShift(s * up, 16));
}

Scaled Reciprocal(uint64_t x) {
  SLUICE_CHECK(x >= 1 && x < (uint64_t{1} << 47));
  const int shift = static_cast<int>(std::bit_width(x)) + 15;
  const uint64_t mantissa = (uint64_t{1} << shift) / x;
  return {static_cast<uint32_t>(std::min<uint64_t>(mantissa, 65535)), -shift};
}

uint64_t SquareRoot(uint64_t x) {
  uint64_t root = 0;
  for (uint64_t bit = uint64_t{1} << 31; bit != 0; bit >>= 1) {
    const uint64_t next = root | bit;
    if (next * next <= x) root = next;
  }
  return root;
}

Scaled ReciprocalRoot(uint64_t x) {
  SLUICE_CHECK(x >= 1 && x < (uint64_t{1} << 62));
  const int shift = (62 - static_cast<int>(std::bit_width(x))) & ~1;
  const uint64_t root = SquareRoot(x << shift);
  const uint64_t mantissa = (uint64_t{1} << 46) / root;
  return {static_cast<uint32_t>(std::min<uint64_t>(mantissa, 65535)), shift / 2 - 46};
}

int QuantizeBlock8(std::span<const int32_t> v, std::span<int8_t> q) {
  const int shift = BlockShift(BlockMagnitude(v), 7);
  for (size_t i = 0; i < v.size(); ++i) {
    q[i] = static_cast<int8_t>(SaturateSymmetric<8>(RoundShift(v[i], shift)));
  }
  return shift;
}

int QuantizeBlock16(std::span<const int32_t> v, std::span<int16_t> q) {
  const int shift = BlockShift(BlockMagnitude(v), 15);
  for (size_t i = 0; i < v.size(); ++i) {
    q[i] = static_cast<int16_t>(SaturateSymmetric<16>(RoundShift(v[i], shift)));
  }
  return shift;
}

int QuantizeBlockTwoBytes(std::span<const int32_t> v, std::span<int8_t> high,
                          std::span<int8_t> low) {
  constexpr int64_t kLimit = 127 * 256 + 127;
  const int shift = BlockShift(BlockMagnitude(v), 15);
  for (size_t i = 0; i < v.size(); ++i) {
    const int64_t value = std::clamp<int64_t>(RoundShift(v[i], shift), -kLimit, kLimit);
    const int64_t h = RoundShift(value, 8);
    high[i] = static_cast<int8_t>(h);
    low[i] = static_cast<int8_t>(value - 256 * h);
  }
  return shift;
}

}  // namespace sluice::fixed
