// The one rounding rule of the integer contract, and saturation. docs/numerics.md is the reference;
// the RTL computes the same.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace sluice::fixed {

// rs(x, s) for s > 0: x / 2^s rounded half up, (x + 2^(s-1)) >> s. |x| <= 2^62.
// Any s is allowed: from 62 on the result is 0. For s <= 0 see RoundShiftSat32.
constexpr int64_t RoundShift(int64_t x, int s) {
  if (s >= 62) return 0;
  if (s <= 0) return x;
  return (x + (int64_t{1} << (s - 1))) >> s;
}

constexpr int32_t Saturate32(int64_t x) {
  return static_cast<int32_t>(std::clamp<int64_t>(x, std::numeric_limits<int32_t>::min(),
                                                  std::numeric_limits<int32_t>::max()));
}

// Symmetric saturation to `bits` bits: +-(2^(bits-1) - 1).
template <int bits>
constexpr int32_t SaturateSymmetric(int64_t x) {
  constexpr int64_t kLimit = (int64_t{1} << (bits - 1)) - 1;
  return static_cast<int32_t>(std::clamp<int64_t>(x, -kLimit, kLimit));
}

// sat32(rs(x, s)) for any s; s < 0 shifts left. |x| < 2^61.
constexpr int32_t RoundShiftSat32(int64_t x, int s) {
  if (s > 0) return Saturate32(RoundShift(x, s));
  const int left = std::min(-s, 31);  // 31 already saturates every x but 0
  const int64_t high = int64_t{std::numeric_limits<int32_t>::max()} >> left;
  const int64_t low = int64_t{std::numeric_limits<int32_t>::min()} >> left;
  if (x > high) return std::numeric_limits<int32_t>::max();
  if (x < low) return std::numeric_limits<int32_t>::min();
  return static_cast<int32_t>(x * (int64_t{1} << left));
}

// floor(x / 2^s) for s >= 0; from 31 on 0 or -1, as an arithmetic shift of 32 bits gives.
constexpr int32_t FloorShift32(int32_t x, int s) { return x >> std::min(s, 31); }

// One's-complement magnitude: |x| for x >= 0, |x| - 1 below. OR-ing it over a block gives a number
// with the bit length of the largest, without a comparison.
constexpr uint32_t Magnitude(int32_t x) { return static_cast<uint32_t>(x < 0 ? ~x : x); }

// The smallest shift >= 0 that brings the OR of a block's magnitudes below 2^bits.
constexpr int BlockShift(uint32_t magnitudes, int bits) {
  return std::max(0, static_cast<int>(std::bit_width(magnitudes)) - bits);
}

}  // namespace sluice::fixed
