// Kernels for ARM: AArch64 with and without the dot-product extension, and ARMv7 with NEON. One
// unit of a tile is four vectors of four rows, four columns each. NEON's rounding and saturating
// shifts are the rounding rule of the integer contract as they stand: vrshl by -s is rs(x, s), and
// vqrshl by -s saturates what a negative s shifts out.
#include "exec/cpu/kernels.h"

#if defined(__aarch64__) || (defined(__arm__) && defined(__ARM_FP))

#include <arm_neon.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "exec/cpu/loops.h"
#include "pack/layout.h"

#if defined(__aarch64__)
#define SLUICE_NEON
#define SLUICE_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#else
#define SLUICE_NEON __attribute__((target("fpu=neon")))
#endif

namespace sluice::exec::cpu {
namespace {

// --- What AArch64 and ARMv7 spell differently ---

// Vectors of sums, and of four rows among them, that leave registers enough for what is summed.
#if defined(__aarch64__)
constexpr int kMostSums = 16, kMostRows = 4;
#else
constexpr int kMostSums = 8, kMostRows = 2;
#endif

// The same four bytes in all lanes.
SLUICE_NEON SLUICE_INLINE int8x16_t BroadcastWord(const void* from) {
#if defined(__aarch64__)
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return vreinterpretq_s8_s32(vdupq_n_s32(word));
#else
  // Through memory: the way from a core register to a NEON one is long.
  return vreinterpretq_s8_s32(vld1q_dup_s32(static_cast<const int32_t*>(from)));
#endif
}

SLUICE_NEON SLUICE_INLINE int8x16_t LookUp(int8x16_t table, uint8x16_t index) {
#if defined(__aarch64__)
  return vqtbl1q_s8(table, index);
#else
  const int8x8x2_t halves = {{vget_low_s8(table), vget_high_s8(table)}};
  const int8x16_t i = vreinterpretq_s8_u8(index);
  return vcombine_s8(vtbl2_s8(halves, vget_low_s8(i)), vtbl2_s8(halves, vget_high_s8(i)));
#endif
}

SLUICE_NEON SLUICE_INLINE int16x8_t MultiplyHigh(int8x16_t a, int8x16_t b) {
#if defined(__aarch64__)
  return vmull_high_s8(a, b);
#else
  return vmull_s8(vget_high_s8(a), vget_high_s8(b));
#endif
}

SLUICE_NEON SLUICE_INLINE int16x8_t MultiplyAddHigh(int16x8_t sum, int8x16_t a, int8x16_t b) {
#if defined(__aarch64__)
  return vmlal_high_s8(sum, a, b);
#else
  return vmlal_s8(sum, vget_high_s8(a), vget_high_s8(b));
#endif
}

// The sums of neighbouring lanes, of `a` and then of `b`.
SLUICE_NEON SLUICE_INLINE int32x4_t AddPairs(int32x4_t a, int32x4_t b) {
#if defined(__aarch64__)
  return vpaddq_s32(a, b);
#else
  return vcombine_s32(vpadd_s32(vget_low_s32(a), vget_high_s32(a)),
                      vpadd_s32(vget_low_s32(b), vget_high_s32(b)));
#endif
}

// --- Matrices ---

SLUICE_NEON SLUICE_INLINE int32x4_t LoadFourBytes(const int8_t* from) {
  return vmovl_s16(vget_low_s16(vmovl_s8(vget_low_s8(BroadcastWord(from)))));
}

// Four rows of a unit: columns 0..3 and 4..7.
struct FourRows {
  int8x16_t first, second;
};

// Levels of a codebook as they are; the others too large by kOffset, so that any fits 8 bits.
template <MatrixKind kind>
constexpr int32_t kOffset = kind == MatrixKind::kCodebook ? 0 : 8;

// quant::Codebook::kSluice16.
constexpr int8_t kLevels[16] = {-15, -11, -8, -6, -4, -2, -1, 0, 1, 2, 3, 5, 7, 9, 12, 15};

template <MatrixKind kind>
SLUICE_NEON SLUICE_INLINE FourRows Unpack(const uint8_t* high, const uint8_t* low, int at) {
  const uint8x16_t h = vld1q_u8(high + at);
  if constexpr (kind == MatrixKind::kTwoPlanes) {
    // 16 * high + low is 136 too large; without its top bit's sign, 8.
    const uint8x16_t l = vld1q_u8(low + at);
    const uint8x16_t sign = vdupq_n_u8(0x80);
    return {vreinterpretq_s8_u8(veorq_u8(vsliq_n_u8(l, h, 4), sign)),
            vreinterpretq_s8_u8(veorq_u8(vsriq_n_u8(h, l, 4), sign))};
  }
  const uint8x16_t first = vandq_u8(h, vdupq_n_u8(0x0f));
  const uint8x16_t second = vshrq_n_u8(h, 4);
  if constexpr (kind == MatrixKind::kCodebook) {
    const int8x16_t levels = vld1q_s8(kLevels);
    return {LookUp(levels, first), LookUp(levels, second)};
  }
  return {vreinterpretq_s8_u8(first), vreinterpretq_s8_u8(second)};
}

// Adds what a group of four rows gives for one token, dot of the weights that Unpack gave, to acc.
template <MatrixKind kind>
SLUICE_NEON SLUICE_INLINE void AddGroup(int32x4_t dot, int32x4_t scale, int32_t sum, int32_t shift,
                                        int32_t* acc) {
  dot = vsubq_s32(dot, vdupq_n_s32(kOffset<kind> * sum));
  if constexpr (kind == MatrixKind::kHighPlane) dot = vshlq_n_s32(dot, 4);
  const int32x4_t term =
      vshlq_s32(vmulq_s32(dot, scale), vdupq_n_s32(-loops::Min<int32_t>(shift, 31)));
  // Unsigned, as compilers take vaddq_s32 for an addition that does not wrap.
  const uint32x4_t sum_of_groups = vreinterpretq_u32_s32(vld1q_s32(acc));
  vst1q_s32(acc, vreinterpretq_s32_u32(vaddq_u32(sum_of_groups, vreinterpretq_u32_s32(term))));
}

// Dot products of four rows, each spread over neighbouring lanes: `low` has the first two rows.
// In 16 bits, which hold a group of 64 of one plane: |sum| <= 16 * 15 * 127 = 30480.
struct NarrowSums {
  int16x8_t low, high;

  SLUICE_NEON SLUICE_INLINE void Add(const FourRows& w, int8x16_t x_first, int8x16_t x_second) {
    low = vmlal_s8(low, vget_low_s8(w.first), vget_low_s8(x_first));
    high = MultiplyAddHigh(high, w.first, x_first);
    low = vmlal_s8(low, vget_low_s8(w.second), vget_low_s8(x_second));
    high = MultiplyAddHigh(high, w.second, x_second);
  }
  SLUICE_NEON SLUICE_INLINE int32x4_t Total() const {
    return AddPairs(vpaddlq_s16(low), vpaddlq_s16(high));
  }
};

// In 32 bits, widened after every two products of two planes: |sum| <= 2 * 128 * 127 = 32512.
struct WideSums {
  int32x4_t low, high;

  SLUICE_NEON SLUICE_INLINE void Add(const FourRows& w, int8x16_t x_first, int8x16_t x_second) {
    const int16x8_t l = vmlal_s8(vmull_s8(vget_low_s8(w.first), vget_low_s8(x_first)),
                                 vget_low_s8(w.second), vget_low_s8(x_second));
    const int16x8_t h = MultiplyAddHigh(MultiplyHigh(w.first, x_first), w.second, x_second);
    low = vpadalq_s16(low, l);
    high = vpadalq_s16(high, h);
  }
  SLUICE_NEON SLUICE_INLINE int32x4_t Total() const { return AddPairs(low, high); }
};

// Tokens [first, first + T) of the panel, rows [row, row + 4 * R) of the tile.
template <MatrixKind kind, int T, int R>
SLUICE_NEON void DotPart(const Tile& tile, const Panel& panel, uint32_t first, uint32_t row,
                         int32_t* acc) {
  using Sums = std::conditional_t<kind == MatrixKind::kTwoPlanes, WideSums, NarrowSums>;
  const uint32_t stride = panel.width * 4;
  const uint8_t* high = tile.high + 4 * row;
  const uint8_t* low = tile.low + (kind == MatrixKind::kTwoPlanes ? 4 * row : 0);
  const int8_t* x = panel.x + 4 * first;
  acc += first * pack::kTileRows + row;
  for (uint32_t g = 0; g < tile.groups; ++g) {
    Sums sums[T][R] = {};
    for (uint32_t c = 0; c < tile.group; c += pack::kUnitColumns) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const FourRows w = Unpack<kind>(high, low, 16 * r);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          sums[t][r].Add(w, BroadcastWord(x + 4 * t), BroadcastWord(x + stride + 4 * t));
        }
      }
      high += pack::kUnitBytes;
      if constexpr (kind == MatrixKind::kTwoPlanes) low += pack::kUnitBytes;
      x += 2 * stride;
    }
#pragma GCC unroll 4  // so that the sums need not be in memory
    for (int r = 0; r < R; ++r) {
      const int32x4_t scale = LoadFourBytes(tile.sub_scales + g * pack::kTileRows + row + 4 * r);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const uint32_t at = g * panel.width + first + static_cast<uint32_t>(t);
        AddGroup<kind>(sums[t][r].Total(), scale, panel.sums[at], panel.shifts[at],
                       acc + t * static_cast<int>(pack::kTileRows) + 4 * r);
      }
    }
  }
}

template <MatrixKind kind, int T>
void DotTokens(const Tile& tile, const Panel& panel, uint32_t first, int32_t* acc) {
  constexpr int R = std::min(kMostSums / 2 / T, kMostRows);
  for (uint32_t row = 0; row < pack::kTileRows; row += 4 * R) {
    DotPart<kind, T, R>(tile, panel, first, row, acc);
  }
}

template <MatrixKind kind>
void Dot(const Tile& tile, const Panel& panel, int32_t* acc) {
  std::fill_n(acc, panel.width * pack::kTileRows, 0);
  uint32_t t = 0;
  for (; t + 4 <= panel.width; t += 4) DotTokens<kind, 4>(tile, panel, t, acc);
  if (t + 2 <= panel.width) {
    DotTokens<kind, 2>(tile, panel, t, acc);
    t += 2;
  }
  if (t < panel.width) DotTokens<kind, 1>(tile, panel, t, acc);
}

#if defined(__aarch64__)

// Four columns of T tokens, a token to a lane.
template <int T>
SLUICE_INLINE int8x16_t LoadTokens(const int8_t* x) {
  if constexpr (T == 4) return vld1q_s8(x);
  if constexpr (T == 2) return vcombine_s8(vld1_s8(x), vdup_n_s8(0));
  return BroadcastWord(x);
}

template <int T>
SLUICE_DOTPROD SLUICE_INLINE void AddColumns(int32x4_t* dot, int8x16_t w, int8x16_t x) {
  dot[0] = vdotq_laneq_s32(dot[0], w, x, 0);
  if constexpr (T > 1) dot[1] = vdotq_laneq_s32(dot[1], w, x, 1);
  if constexpr (T > 2) {
    dot[2] = vdotq_laneq_s32(dot[2], w, x, 2);
    dot[3] = vdotq_laneq_s32(dot[3], w, x, 3);
  }
}

// Tokens [first, first + T) of the panel with all rows.
template <MatrixKind kind, int T>
SLUICE_DOTPROD void SdotTokens(const Tile& tile, const Panel& panel, uint32_t first, int32_t* acc) {
  const uint32_t stride = panel.width * 4;
  const uint8_t* high = tile.high;
  const uint8_t* low = tile.low;
  const int8_t* x = panel.x + 4 * first;
  acc += first * pack::kTileRows;
  for (uint32_t g = 0; g < tile.groups; ++g) {
    int32x4_t dot[4][T];
    for (auto& rows : dot) {
      for (int t = 0; t < T; ++t) rows[t] = vdupq_n_s32(0);
    }
    for (uint32_t c = 0; c < tile.group; c += pack::kUnitColumns) {
      const int8x16_t x_first = LoadTokens<T>(x);
      const int8x16_t x_second = LoadTokens<T>(x + stride);
      for (int r = 0; r < 4; ++r) {
        const FourRows w = Unpack<kind>(high, low, 16 * r);
        AddColumns<T>(dot[r], w.first, x_first);
        AddColumns<T>(dot[r], w.second, x_second);
      }
      high += pack::kUnitBytes;
      if constexpr (kind == MatrixKind::kTwoPlanes) low += pack::kUnitBytes;
      x += 2 * stride;
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const int32x4_t scale = LoadFourBytes(tile.sub_scales + g * pack::kTileRows + 4 * r);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const uint32_t at = g * panel.width + first + static_cast<uint32_t>(t);
        AddGroup<kind>(dot[r][t], scale, panel.sums[at], panel.shifts[at],
                       acc + t * static_cast<int>(pack::kTileRows) + 4 * r);
      }
    }
  }
}

template <MatrixKind kind>
void Sdot(const Tile& tile, const Panel& panel, int32_t* acc) {
  std::fill_n(acc, panel.width * pack::kTileRows, 0);
  uint32_t t = 0;
  for (; t + 4 <= panel.width; t += 4) SdotTokens<kind, 4>(tile, panel, t, acc);
  if (t + 2 <= panel.width) {
    SdotTokens<kind, 2>(tile, panel, t, acc);
    t += 2;
  }
  if (t < panel.width) SdotTokens<kind, 1>(tile, panel, t, acc);
}

#endif

// --- Epilogues ---

// Shift counts are signed bytes to the instructions. Beyond 64 nothing changes any more.
SLUICE_NEON SLUICE_INLINE int32x4_t ShiftCount(int32x4_t count) {
  return vmaxq_s32(vminq_s32(count, vdupq_n_s32(64)), vdupq_n_s32(-64));
}

// sat32(rs(x, -count)).
SLUICE_NEON SLUICE_INLINE int32x2_t RoundShiftSat(int64x2_t x, int32x2_t count) {
  return vqmovn_s64(vqrshlq_s64(x, vmovl_s32(count)));
}

SLUICE_NEON void ScaleRows(const int32_t* acc, uint32_t width, const uint8_t* row_table,
                           const int32_t* subtract, int32_t* y) {
  for (uint32_t r = 0; r < pack::kTileRows; r += 4) {
    const int32x4_t rows = vreinterpretq_s32_u8(vld1q_u8(row_table + 4 * r));
    const int32x4_t mantissa = vshrq_n_s32(vshlq_n_s32(rows, 16), 16);
    const int32x4_t exponent = vshrq_n_s32(vshlq_n_s32(rows, 8), 24);
    for (uint32_t t = 0; t < width; ++t) {
      const int32x4_t a = vld1q_s32(acc + 16 * t + r);
      const int32x4_t count = ShiftCount(vsubq_s32(vdupq_n_s32(subtract[t]), exponent));
      const int32x2_t low =
          RoundShiftSat(vmull_s32(vget_low_s32(a), vget_low_s32(mantissa)), vget_low_s32(count));
      const int32x2_t high =
          RoundShiftSat(vmull_s32(vget_high_s32(a), vget_high_s32(mantissa)), vget_high_s32(count));
      vst1q_s32(y + 16 * t + r, vcombine_s32(low, high));
    }
  }
}

SLUICE_NEON void AddRows(const int32_t* y, int32_t* x) {
  for (uint32_t r = 0; r < pack::kTileRows; r += 4) {
    vst1q_s32(x + r, vqaddq_s32(vld1q_s32(x + r), vld1q_s32(y + r)));
  }
}

SLUICE_NEON void SiluGate(const int32_t* y, const Tables& tables, int32_t* h) {
  for (uint32_t j = 0; j < 8; j += 2) {
    const int32x2x2_t pairs = vld2_s32(y + 2 * j);
    const int32x2_t gate = pairs.val[0];
    const int32x2_t up = pairs.val[1];
    // fixed::Sigmoid: 256 segments of 2^12. The least int32 saturates: its segment is the last.
    const uint32x2_t a =
        vreinterpret_u32_s32(vmin_s32(vqabs_s32(gate), vdup_n_s32((256 << 12) - 1)));
    const uint32x2_t i = vshr_n_u32(a, 12);
    const uint64x2_t entries = vcombine_u64(vld1_u64(&tables.sigmoid[vget_lane_u32(i, 0)]),
                                            vld1_u64(&tables.sigmoid[vget_lane_u32(i, 1)]));
    const uint32x2_t rise =
        vmul_u32(vshrn_n_u64(entries, 32), vand_u32(a, vdup_n_u32((1 << 12) - 1)));
    const int32x2_t positive =
        vreinterpret_s32_u32(vadd_u32(vmovn_u64(entries), vrshr_n_u32(rise, 12)));
    const int32x2_t sigmoid =
        vbsl_s32(vclt_s32(gate, vdup_n_s32(0)), vsub_s32(vdup_n_s32(65536), positive), positive);
    const int32x2_t s = vrshrn_n_s64(vmull_s32(gate, sigmoid), 16);
    vst1_s32(h + j, vqrshrn_n_s64(vmull_s32(s, up), 16));
  }
}

// --- Attention ---

// Dot products of 8 positions of a block, from `k` on, with N queries.
template <int N>
SLUICE_NEON SLUICE_INLINE void DotKeys(const int8_t* k, const ScoreJob& job, int32x4_t (*dot)[2]) {
  for (int i = 0; i < N; ++i) dot[i][0] = dot[i][1] = vdupq_n_s32(0);
  for (uint32_t c = 0; c < job.head_dim; c += 2) {
    const int8x8x2_t dimensions = vld2_s8(k + uint64_t{c} * kKeyBlock);
    const int16x8_t a = vmovl_s8(dimensions.val[0]);
    const int16x8_t b = vmovl_s8(dimensions.val[1]);
    for (int i = 0; i < N; ++i) {
      const int16x4_t q = vreinterpret_s16_s8(vget_low_s8(BroadcastWord(job.q[i] + c)));
      dot[i][0] = vmlal_lane_s16(dot[i][0], vget_low_s16(a), q, 0);
      dot[i][1] = vmlal_lane_s16(dot[i][1], vget_high_s16(a), q, 0);
      dot[i][0] = vmlal_lane_s16(dot[i][0], vget_low_s16(b), q, 1);
      dot[i][1] = vmlal_lane_s16(dot[i][1], vget_high_s16(b), q, 1);
    }
  }
}

// 256 * high + low by 2^count, rounded and saturated.
SLUICE_NEON SLUICE_INLINE int32x2_t WideScore(int32x2_t high, int32x2_t low, int32x2_t count) {
  return RoundShiftSat(vaddw_s32(vshll_n_s32(high, 8), low), count);
}

template <int N>
SLUICE_NEON void ScoresOf(const ScoreJob& job) {
  const int16x4_t limit = vdup_n_s16(-32767);
  for (uint32_t b = 0; b < job.blocks; ++b) {
    for (uint32_t position = 0; position < kKeyBlock; position += 8) {
      const uint64_t at = uint64_t{b} * kKeyBlock * job.head_dim + 2 * position;
      int32x4_t dot[N][2], low[N][2];
      DotKeys<N>(job.k + at, job, dot);
      if (job.k_low != nullptr) DotKeys<N>(job.k_low + at, job, low);
      for (uint32_t part = 0; part < 2; ++part) {
        const uint32_t first = b * kKeyBlock + position + 4 * part;
        const int32x4_t exponent = LoadFourBytes(job.exponent + first);
        for (int i = 0; i < N; ++i) {
          const int32x4_t count =
              ShiftCount(vaddq_s32(exponent, vdupq_n_s32(job.q_exponent[i] + job.fraction)));
          int32x4_t score;
          if (job.k_low == nullptr) {
            score = vqrshlq_s32(dot[i][part], count);
          } else {
            const int32x4_t h = dot[i][part];
            const int32x4_t l = low[i][part];
            score =
                vcombine_s32(WideScore(vget_low_s32(h), vget_low_s32(l), vget_low_s32(count)),
                             WideScore(vget_high_s32(h), vget_high_s32(l), vget_high_s32(count)));
          }
          vst1_s16(job.scores + static_cast<uint32_t>(i) * uint64_t{job.stride} + first,
                   vmax_s16(vqmovn_s32(score), limit));
        }
      }
    }
  }
}

void Scores(const ScoreJob& job) {
  using Function = void (*)(const ScoreJob&);
  static constexpr Function kByCount[] = {ScoresOf<1>, ScoresOf<2>, ScoresOf<3>, ScoresOf<4>};
  kByCount[job.n - 1](job);
}

// rs(x, s) of 0 <= x < 2^15, s >= 0.
SLUICE_NEON SLUICE_INLINE int32x4_t RoundRight(int32x4_t x, int32x4_t s) {
  return vrshlq_s32(x, vnegq_s32(vminq_s32(s, vdupq_n_s32(31))));
}

// loops::Weights, four positions at a time, which the look-up keeps compilers from.
class Softmax {
 public:
  SLUICE_NEON SLUICE_INLINE Softmax(const Tables& tables, int fraction, int best, int largest)
      : exp2_(tables.exp2.data()),
        best_(vdupq_n_s32(best)),
        largest_(vdupq_n_s32(largest)),
        mask_(vdupq_n_s32((1 << fraction) - 1)),
        to_table_(vdupq_n_s32(fixed::kMaxScoreFraction - fraction)),
        to_whole_(vdupq_n_s32(-fraction)) {}

  // Writes the weights of four positions and returns their p.
  SLUICE_NEON SLUICE_INLINE int32x4_t Four(const int16_t* scores, const int8_t* v_exponent,
                                           int16_t* weights) const {
    const int32x4_t d = vsubq_s32(best_, vmovl_s16(vld1_s16(scores)));
    int32_t index[4];
    vst1q_s32(index, vshlq_s32(vandq_s32(d, mask_), to_table_));
    int32x4_t e = vld1q_dup_s32(exp2_ + index[0]);
    e = vld1q_lane_s32(exp2_ + index[1], e, 1);
    e = vld1q_lane_s32(exp2_ + index[2], e, 2);
    e = vld1q_lane_s32(exp2_ + index[3], e, 3);
    const int32x4_t p = RoundRight(e, vshlq_s32(d, to_whole_));
    const int32x4_t weight = RoundRight(p, vsubq_s32(largest_, LoadFourBytes(v_exponent)));
    vst1_s16(weights, vmovn_s32(weight));
    return p;
  }

 private:
  const int32_t* exp2_;
  int32x4_t best_, largest_, mask_, to_table_, to_whole_;
};

SLUICE_NEON WeightSum Weights(const WeightJob& job, const Tables& tables) {
  int16_t best = -32767;
  int8_t largest = -128;
  for (uint32_t t = 0; t < job.length; ++t) best = loops::Max(best, job.scores[t]);
  for (uint32_t t = 0; t < job.length; ++t) largest = loops::Max(largest, job.v_exponent[t]);
  const Softmax softmax(tables, job.fraction, best, largest);
  int32x4_t sums = vdupq_n_s32(0);
  uint32_t t = 0;
  for (; t + 4 <= job.length; t += 4) {
    sums = vaddq_s32(sums, softmax.Four(job.scores + t, job.v_exponent + t, job.weights + t));
  }
  uint32_t sum = 0;  // < 2^16 positions of < 2^15
  int32_t lanes[4];
  vst1q_s32(lanes, sums);
  for (const int32_t lane : lanes) sum += static_cast<uint32_t>(lane);
  if (const uint32_t rest = job.length - t; rest != 0) {
    int16_t scores[4] = {best, best, best, best};
    int8_t v_exponent[4] = {};
    std::copy_n(job.scores + t, rest, scores);
    std::copy_n(job.v_exponent + t, rest, v_exponent);
    vst1q_s32(lanes, softmax.Four(scores, v_exponent, scores));
    for (uint32_t i = 0; i < rest; ++i) sum += static_cast<uint32_t>(lanes[i]);
    std::copy_n(scores, rest, job.weights + t);
  }
  return {sum, largest};
}

// Adds 16 values of one position.
template <int lane>
SLUICE_NEON SLUICE_INLINE void AddWeighted(int8x16_t v, int16x4_t weights, int32x4_t* sum) {
  const int16x8_t low = vmovl_s8(vget_low_s8(v));
  const int16x8_t high = vmovl_s8(vget_high_s8(v));
  sum[0] = vmlal_lane_s16(sum[0], vget_low_s16(low), weights, lane);
  sum[1] = vmlal_lane_s16(sum[1], vget_high_s16(low), weights, lane);
  sum[2] = vmlal_lane_s16(sum[2], vget_low_s16(high), weights, lane);
  sum[3] = vmlal_lane_s16(sum[3], vget_high_s16(high), weights, lane);
}

// Dimensions [begin, begin + 16) of the queries [query, query + N).
template <uint32_t N>
SLUICE_NEON void MixPart(const MixJob& job, uint32_t query, uint32_t begin) {
  // |weight * v| <= 32767 * 127, of which 512 fit 31 bits.
  constexpr uint32_t kPairs = 256;
  const int16_t* weights = job.weights + query * uint64_t{job.stride};
  for (uint32_t first = 0; first < job.pairs; first += kPairs) {
    const uint32_t end = loops::Min(job.pairs, first + kPairs);
    int32x4_t sum[N][4];
    for (auto& query_sum : sum) {
      for (auto& s : query_sum) s = vdupq_n_s32(0);
    }
    for (uint32_t pair = first; pair < end; ++pair) {
      const int8x16x2_t v = vld2q_s8(job.v + (uint64_t{pair} * job.head_dim + begin) * 2);
      for (uint32_t i = 0; i < N; ++i) {
        const int16x4_t weight = vreinterpret_s16_s8(
            vget_low_s8(BroadcastWord(weights + i * uint64_t{job.stride} + 2 * pair)));
        AddWeighted<0>(v.val[0], weight, sum[i]);
        AddWeighted<1>(v.val[1], weight, sum[i]);
      }
    }
    for (uint32_t i = 0; i < N; ++i) {
      int64_t* mixed = job.mixed + (query + i) * job.head_dim + begin;
      for (int j = 0; j < 4; ++j, mixed += 4) {
        vst1q_s64(mixed, vaddw_s32(vld1q_s64(mixed), vget_low_s32(sum[i][j])));
        vst1q_s64(mixed + 2, vaddw_s32(vld1q_s64(mixed + 2), vget_high_s32(sum[i][j])));
      }
    }
  }
}

void Mix(const MixJob& job) {
  for (uint32_t begin = 0; begin < job.head_dim; begin += 16) {
    uint32_t i = 0;
    for (; i + 2 <= job.n; i += 2) MixPart<2>(job, i, begin);
    if (i < job.n) MixPart<1>(job, i, begin);
  }
}

// --- What compilers vectorise well ---

SLUICE_NEON void Norm(const NormJob& job) { loops::Norm(job); }
SLUICE_NEON int Quantize8(const int32_t* v, uint32_t n, int8_t* q) {
  return loops::Quantize8(v, n, q);
}
SLUICE_NEON int Quantize16(const int32_t* v, uint32_t n, int16_t* q) {
  return loops::Quantize16(v, n, q);
}

using Dots = std::array<Kernels::Dot, kMatrixKinds>;

constexpr Kernels MakeKernels(std::string_view name, const Dots& dot) {
  return {
      .name = name,
      .queries = 4,
      .dot = dot,
      .scale_rows = ScaleRows,
      .add_rows = AddRows,
      .silu_gate = SiluGate,
      .quantize8 = Quantize8,
      .quantize16 = Quantize16,
      .norm = Norm,
      .scores = Scores,
      .weights = Weights,
      .mix = Mix,
  };
}

constexpr Kernels kNeonKernels =
    MakeKernels("neon", {Dot<MatrixKind::kCodebook>, Dot<MatrixKind::kLinear>,
                         Dot<MatrixKind::kTwoPlanes>, Dot<MatrixKind::kHighPlane>});
#if defined(__aarch64__)
constexpr Kernels kNeonDotprodKernels =
    MakeKernels("neon-dotprod", {Sdot<MatrixKind::kCodebook>, Sdot<MatrixKind::kLinear>,
                                 Sdot<MatrixKind::kTwoPlanes>, Sdot<MatrixKind::kHighPlane>});
#endif

}  // namespace

#if defined(__aarch64__)
const Kernels* NeonKernels() { return &kNeonKernels; }  // AArch64 without NEON runs no Linux
const Kernels* NeonDotprodKernels() {
  return (::getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 ? &kNeonDotprodKernels : nullptr;
}
#else
const Kernels* NeonKernels() {
  return (::getauxval(AT_HWCAP) & HWCAP_ARM_NEON) != 0 ? &kNeonKernels : nullptr;
}
const Kernels* NeonDotprodKernels() { return nullptr; }
#endif

}  // namespace sluice::exec::cpu

#else

namespace sluice::exec::cpu {
const Kernels* NeonKernels() { return nullptr; }
const Kernels* NeonDotprodKernels() { return nullptr; }
}  // namespace sluice::exec::cpu

#endif
