// Loops that compilers vectorise well by themselves: written once, inlined into the functions of
// each instruction set, whose target attribute decides on the instructions. They equal the
// functions of fixed/ and of exec/ref but keep to 32 bits wherever a value provably fits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "exec/cpu/kernels.h"
#include "fixed/functions.h"
#include "fixed/rounding.h"

#define SLUICE_INLINE [[gnu::always_inline]] inline

namespace sluice::exec::cpu::loops {

// std::min and std::max are functions of their own that would not take on the caller's target.
template <typename T>
SLUICE_INLINE T Min(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
SLUICE_INLINE T Max(T a, T b) {
  return a > b ? a : b;
}

SLUICE_INLINE int32_t WrapAdd(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

SLUICE_INLINE int BlockShift(const int32_t* v, uint32_t n, int bits) {
  uint32_t magnitudes = 0;
  for (uint32_t i = 0; i < n; ++i) magnitudes |= static_cast<uint32_t>(v[i] ^ (v[i] >> 31));
  return fixed::BlockShift(magnitudes, bits);
}

// sat(rs(v, shift)) with the block's own shift: rs(v, s) = ((v >> (s - 1)) + 1) >> 1 for s > 0,
// which cannot overflow, as v >> (s - 1) has a bit more than the result.
template <typename T, int limit>
SLUICE_INLINE void Quantize(const int32_t* v, uint32_t n, int shift, T* q) {
  if (shift == 0) {
    for (uint32_t i = 0; i < n; ++i) q[i] = static_cast<T>(Max(Min(v[i], limit), -limit));
  } else {
    for (uint32_t i = 0; i < n; ++i) {
      const int32_t rounded = ((v[i] >> (shift - 1)) + 1) >> 1;
      q[i] = static_cast<T>(Max(Min(rounded, limit), -limit));
    }
  }
}

SLUICE_INLINE int Quantize8(const int32_t* v, uint32_t n, int8_t* q) {
  const int shift = BlockShift(v, n, 7);
  Quantize<int8_t, 127>(v, n, shift, q);
  return shift;
}

SLUICE_INLINE int Quantize16(const int32_t* v, uint32_t n, int16_t* q) {
  const int shift = BlockShift(v, n, 15);
  Quantize<int16_t, 32767>(v, n, shift, q);
  return shift;
}

SLUICE_INLINE void Norm(const NormJob& job) {
  const uint32_t groups = job.cols / job.group;
  int largest = 0;
  for (uint32_t g = 0; g < groups; ++g) {
    job.exponent[g] = BlockShift(job.x + uint64_t{g} * job.group, job.group, 15);
    largest = Max(largest, job.exponent[g]);
  }
  uint64_t sum = job.epsilon >> (2 * largest);
  for (uint32_t g = 0; g < groups; ++g) {
    const uint64_t begin = uint64_t{g} * job.group;
    int16_t* scaled = job.scaled + begin;
    Quantize<int16_t, 32767>(job.x + begin, job.group, job.exponent[g], scaled);
    uint64_t squares = 0;
    for (uint32_t c = 0; c < job.group; ++c) {
      squares += static_cast<uint32_t>(int32_t{scaled[c]} * scaled[c]);
    }
    sum += squares >> (2 * (largest - job.exponent[g]));
  }
  const fixed::Scaled root = fixed::ReciprocalRoot(Max<uint64_t>(sum, 1));
  const int32_t mantissa = static_cast<int32_t>(root.mantissa);
  int32_t v[64];
  for (uint32_t g = 0; g < groups; ++g) {
    const uint64_t begin = uint64_t{g} * job.group;
    for (uint32_t c = 0; c < job.group; ++c) {
      // |scaled * mantissa| + 2^15 <= 32767 * 65535 + 32768 < 2^31.
      const int32_t u = (job.scaled[begin + c] * mantissa + (1 << 15)) >> 16;
      v[c] = u * job.gain[begin + c];
    }
    const int shift = Quantize8(v, job.group, job.q + begin);
    job.exponent[g] += shift - largest + root.exponent + 16 - job.gain_fraction;
  }
}

// Scores of 16 positions from their dot products, |dot| < 2^31: to 16 bits of `fraction`.
// base = -q_exponent - fraction.
SLUICE_INLINE void FinishScores(const int32_t* dot, const int8_t* exponent, int base,
                                int16_t* score) {
  for (uint32_t t = 0; t < kKeyBlock; ++t) {
    const int32_t s = base - exponent[t];
    const int32_t right = ((dot[t] >> Min(Max(s - 1, 0), 31)) + 1) >> 1;
    // Saturating before as well as after the shift: what is beyond 16 bits stays there.
    const int32_t left = Max(Min(dot[t], 32767), -32767) << Min(Max(-s, 0), 15);
    score[t] = static_cast<int16_t>(Max(Min(s > 0 ? right : left, 32767), -32767));
  }
}

// The same for 16-bit keys: dot = 256 * high + low.
SLUICE_INLINE void FinishWideScores(const int32_t* high, const int32_t* low, const int8_t* exponent,
                                    int base, int16_t* score) {
  for (uint32_t t = 0; t < kKeyBlock; ++t) {
    const int64_t dot = int64_t{high[t]} * 256 + low[t];
    score[t] = static_cast<int16_t>(
        fixed::SaturateSymmetric<16>(fixed::RoundShiftSat32(dot, base - exponent[t])));
  }
}

SLUICE_INLINE WeightSum Weights(const WeightJob& job, const Tables& tables) {
  int32_t best = -32767;
  int32_t largest = job.v_exponent[0];
  for (uint32_t t = 0; t < job.length; ++t) best = Max<int32_t>(best, job.scores[t]);
  for (uint32_t t = 0; t < job.length; ++t) largest = Max<int32_t>(largest, job.v_exponent[t]);
  const int32_t mask = (1 << job.fraction) - 1;
  const int to_table = fixed::kMaxScoreFraction - job.fraction;
  uint32_t sum = 0;  // < 2^16 positions of < 2^15
  for (uint32_t t = 0; t < job.length; ++t) {
    const int32_t d = best - job.scores[t];
    const int32_t e = tables.exp2[(d & mask) << to_table];
    // rs(e, s) = ((2 e >> s) + 1) >> 1 for s >= 0.
    const int32_t p = ((2 * e >> Min(d >> job.fraction, 31)) + 1) >> 1;
    sum += static_cast<uint32_t>(p);
    const int32_t weight = ((2 * p >> Min(largest - job.v_exponent[t], 31)) + 1) >> 1;
    job.weights[t] = static_cast<int16_t>(weight);
  }
  return {sum, largest};
}

SLUICE_INLINE void AddRows(const int32_t* y, int32_t* x) {
  for (uint32_t r = 0; r < 16; ++r) {
    const int32_t sum = WrapAdd(x[r], y[r]);
    const bool overflow = ((x[r] ^ sum) & (y[r] ^ sum)) < 0;
    x[r] = overflow ? (x[r] >> 31) ^ 0x7fffffff : sum;
  }
}

}  // namespace sluice::exec::cpu::loops
