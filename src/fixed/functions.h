// The transcendental functions of the integer contract: exact definitions in integers, so that
// every executor gives the same bits. Tables are data that the RTL is built with too.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace sluice::fixed {

// --- 2^-d for the softmax ---

constexpr int kMaxScoreFraction = 8;
constexpr int kProbabilityBits = 15;
// kExp2Table[i] = min(round(2^15 * 2^(-i/256)), 2^15 - 1).
extern const std::array<uint16_t, 256> kExp2Table;
// round-half-up(kExp2Table[fraction of d] / 2^(integer part of d)): 0..32767.
// d >= 0 in units of 2^-fraction, 0 <= fraction <= kMaxScoreFraction.
uint32_t Exp2Negative(uint32_t d, int fraction);

// --- sigmoid for the SiLU gate ---

constexpr int kSigmoidInputFraction = 16;
// kSigmoidTable[i] = round(2^16 * sigmoid(i / 16)), i = 0..256.
extern const std::array<uint32_t, 257> kSigmoidTable;
// Piecewise linear over 256 segments of |x| in [0, 16), beyond which the last value holds;
// sigmoid(-x) = 1 - sigmoid(x). x in units of 2^-16, result 0..65536 in units of 2^-16.
// Within 6e-5 of the true value.
uint32_t Sigmoid(int32_t x);

// silu(gate) * up, all three in units of 2^-16:
// s = rs(gate * Sigmoid(gate), 16); result sat32(rs(s * up, 16)).
int32_t SiluGate(int32_t gate, int32_t up);

// --- reciprocal and reciprocal root ---

// value = mantissa * 2^exponent.
struct Scaled {
  uint32_t mantissa;  // 2^15 .. 2^16 - 1
  int exponent;
  bool operator==(const Scaled&) const = default;
};

// 1 / x, x >= 1: b = bit length of x; mantissa = min(floor(2^(b+15) / x), 2^16 - 1),
// exponent = -(b + 15). x < 2^47.
Scaled Reciprocal(uint64_t x);

// 1 / sqrt(x), x >= 1: sh = the even number that brings x * 2^sh into [2^60, 2^62);
// s = floor(sqrt(x * 2^sh)); mantissa = min(floor(2^46 / s), 2^16 - 1), exponent = sh/2 - 46.
// x < 2^62.
Scaled ReciprocalRoot(uint64_t x);

// floor(sqrt(x)).
uint64_t SquareRoot(uint64_t x);

// --- block floating point ---

// q[i] = sat(rs(v[i], shift)) in -127..127 with the block's shift (BlockShift of 7 bits), which is
// returned. v and q have equal length.
int QuantizeBlock8(std::span<const int32_t> v, std::span<int8_t> q);

// The same to 16 bits: -32767..32767.
int QuantizeBlock16(std::span<const int32_t> v, std::span<int16_t> q);

// K of a flagged head: 16 bits as two signed bytes, value = 256 * high + low, |value| <= 32639 so
// that both fit; high = rs(value, 8). Returns the shift.
int QuantizeBlockTwoBytes(std::span<const int32_t> v, std::span<int8_t> high,
                          std::span<int8_t> low);

}  // namespace sluice::fixed
