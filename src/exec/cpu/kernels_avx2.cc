// Kernels for x86-64 with AVX2. One unit of a tile is two vectors of 8 rows; vpmaddubsw adds pairs
// of columns in 16 bits, which hold two units' worth before they must be widened.
#include "exec/cpu/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "exec/cpu/loops.h"
#include "pack/layout.h"

#define SLUICE_AVX2 __attribute__((target("avx2,bmi,bmi2")))

namespace sluice::exec::cpu {
namespace {

SLUICE_AVX2 SLUICE_INLINE __m256i BroadcastWord(const void* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return _mm256_set1_epi32(word);
}

SLUICE_AVX2 SLUICE_INLINE __m256i Load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// What the unsigned weights of vpmaddubsw are too large by.
template <MatrixKind kind>
constexpr int32_t kOffset = kind == MatrixKind::kCodebook    ? 15
                            : kind == MatrixKind::kTwoPlanes ? 136
                            : kind == MatrixKind::kHighPlane ? 128
                                                             : 8;

// 8 rows of two units of one plane: columns 0..3, 4..7, 8..11, 12..15.
struct TwoUnits {
  __m256i w[4];
};

template <MatrixKind kind>
SLUICE_AVX2 SLUICE_INLINE TwoUnits Unpack(const uint8_t* plane) {
  const __m256i mask = _mm256_set1_epi8(0x0f);
  const __m256i a = Load(plane);
  const __m256i b = Load(plane + pack::kUnitBytes);
  TwoUnits units = {{_mm256_and_si256(a, mask), _mm256_and_si256(_mm256_srli_epi16(a, 4), mask),
                     _mm256_and_si256(b, mask), _mm256_and_si256(_mm256_srli_epi16(b, 4), mask)}};
  if constexpr (kind == MatrixKind::kCodebook) {
    // quant::Codebook::kSluice16, each level + 15.
    const __m256i levels = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 7, 9, 11, 13, 14, 15, 16, 17, 18, 20, 22, 24, 27, 30));
    for (auto& w : units.w) w = _mm256_shuffle_epi8(levels, w);
  }
  return units;
}

// Sums of pairs of columns over two units: at most 8 * 30 * 127 = 30480.
SLUICE_AVX2 SLUICE_INLINE __m256i PairSums(const TwoUnits& units, const int8_t* x,
                                           uint32_t stride) {
  const __m256i a = _mm256_maddubs_epi16(units.w[0], BroadcastWord(x));
  const __m256i b = _mm256_maddubs_epi16(units.w[1], BroadcastWord(x + stride));
  const __m256i c = _mm256_maddubs_epi16(units.w[2], BroadcastWord(x + 2 * stride));
  const __m256i d = _mm256_maddubs_epi16(units.w[3], BroadcastWord(x + 3 * stride));
  return _mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_add_epi16(c, d));
}

// Tokens [first, first + T) of the panel, rows [row, row + 8) of the tile.
template <MatrixKind kind, int T>
SLUICE_AVX2 void DotPart(const Tile& tile, const Panel& panel, uint32_t first, uint32_t row,
                         int32_t* acc) {
  const uint32_t stride = panel.width * 4;
  const uint8_t* high = tile.high + 4 * row;
  const uint8_t* low = tile.low + (kind == MatrixKind::kTwoPlanes ? 4 * row : 0);
  const int8_t* x = panel.x + 4 * first;
  constexpr bool kTimes16 = kind == MatrixKind::kTwoPlanes || kind == MatrixKind::kHighPlane;
  const __m256i factor = _mm256_set1_epi16(kTimes16 ? 16 : 1);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum[T];
  for (int t = 0; t < T; ++t) sum[t] = _mm256_setzero_si256();
  for (uint32_t g = 0; g < tile.groups; ++g) {
    const int32_t* sums = panel.sums + g * panel.width + first;
    const int32_t* shifts = panel.shifts + g * panel.width + first;
    __m256i dot[T];
    for (int t = 0; t < T; ++t) dot[t] = _mm256_set1_epi32(-kOffset<kind> * sums[t]);
    for (uint32_t c = 0; c < tile.group; c += 2 * pack::kUnitColumns) {
      const TwoUnits h = Unpack<kind>(high);
      for (int t = 0; t < T; ++t) {
        dot[t] =
            _mm256_add_epi32(dot[t], _mm256_madd_epi16(PairSums(h, x + 4 * t, stride), factor));
      }
      if constexpr (kind == MatrixKind::kTwoPlanes) {
        const TwoUnits l = Unpack<kind>(low);
        for (int t = 0; t < T; ++t) {
          dot[t] =
              _mm256_add_epi32(dot[t], _mm256_madd_epi16(PairSums(l, x + 4 * t, stride), ones));
        }
        low += 2 * pack::kUnitBytes;
      }
      high += 2 * pack::kUnitBytes;
      x += 4 * stride;
    }
    const __m256i scale = _mm256_cvtepi8_epi32(_mm_loadl_epi64(
        reinterpret_cast<const __m128i*>(tile.sub_scales + uint64_t{g} * pack::kTileRows + row)));
    for (int t = 0; t < T; ++t) {
      const __m256i term =
          _mm256_srav_epi32(_mm256_mullo_epi32(dot[t], scale), _mm256_set1_epi32(shifts[t]));
      sum[t] = _mm256_add_epi32(sum[t], term);
    }
  }
  for (int t = 0; t < T; ++t) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(
                            acc + (first + static_cast<uint32_t>(t)) * pack::kTileRows + row),
                        sum[t]);
  }
}

template <MatrixKind kind>
void Dot(const Tile& tile, const Panel& panel, int32_t* acc) {
  for (uint32_t row = 0; row < pack::kTileRows; row += 8) {
    uint32_t t = 0;
    for (; t + 4 <= panel.width; t += 4) DotPart<kind, 4>(tile, panel, t, row, acc);
    if (t + 2 <= panel.width) {
      DotPart<kind, 2>(tile, panel, t, row, acc);
      t += 2;
    }
    if (t < panel.width) DotPart<kind, 1>(tile, panel, t, row, acc);
  }
}

SLUICE_AVX2 SLUICE_INLINE __m256i Saturate(__m256i x) {
  const __m256i high = _mm256_set1_epi64x(INT32_MAX);
  const __m256i low = _mm256_set1_epi64x(INT32_MIN);
  x = _mm256_blendv_epi8(x, high, _mm256_cmpgt_epi64(x, high));
  return _mm256_blendv_epi8(x, low, _mm256_cmpgt_epi64(low, x));
}

// Arithmetic shift of 64-bit lanes: a logical one of the complement where that is negative.
SLUICE_AVX2 SLUICE_INLINE __m256i ShiftRight(__m256i x, __m256i count) {
  const __m256i sign = _mm256_cmpgt_epi64(_mm256_setzero_si256(), x);
  return _mm256_xor_si256(_mm256_srlv_epi64(_mm256_xor_si256(x, sign), count), sign);
}

// sat32(rs(product, s)) in 64-bit lanes, |product| < 2^47.
SLUICE_AVX2 SLUICE_INLINE __m256i RoundShiftSat(__m256i product, __m256i s) {
  const __m256i one = _mm256_set1_epi64x(1);
  const __m256i zero = _mm256_setzero_si256();
  // s > 0: ((x >> (s - 1)) + 1) >> 1.
  const __m256i right =
      ShiftRight(_mm256_add_epi64(ShiftRight(product, _mm256_sub_epi64(s, one)), one), one);
  // s <= 0: saturated, shifted by at most 31, and saturated again.
  __m256i count = _mm256_sub_epi64(zero, s);
  const __m256i most = _mm256_set1_epi64x(31);
  count = _mm256_blendv_epi8(count, most, _mm256_cmpgt_epi64(count, most));
  const __m256i left = _mm256_sllv_epi64(Saturate(product), count);
  return Saturate(_mm256_blendv_epi8(left, right, _mm256_cmpgt_epi64(s, zero)));
}

// The lower halves of four 64-bit lanes.
SLUICE_AVX2 SLUICE_INLINE __m128i LowerWords(__m256i x) {
  const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(x, order));
}

SLUICE_AVX2 void ScaleRows(const int32_t* acc, uint32_t width, const uint8_t* row_table,
                           const int32_t* subtract, int32_t* y) {
  for (uint32_t r = 0; r < pack::kTileRows; r += 4) {
    const __m128i rows = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row_table + 4 * r));
    const __m256i mantissa = _mm256_cvtepi32_epi64(_mm_srai_epi32(_mm_slli_epi32(rows, 16), 16));
    const __m256i exponent = _mm256_cvtepi32_epi64(_mm_srai_epi32(_mm_slli_epi32(rows, 8), 24));
    for (uint32_t t = 0; t < width; ++t) {
      const __m256i a = _mm256_cvtepi32_epi64(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(acc + 16 * t + r)));
      const __m256i s = _mm256_sub_epi64(exponent, _mm256_set1_epi64x(subtract[t]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + 16 * t + r),
                       LowerWords(RoundShiftSat(_mm256_mul_epi32(a, mantissa), s)));
    }
  }
}

SLUICE_AVX2 void SiluGate(const int32_t* y, const Tables& tables, int32_t* h) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i lower = _mm256_set1_epi64x(0xffffffff);
  const __m256i half = _mm256_set1_epi64x(1 << 15);
  const __m256i sixteen = _mm256_set1_epi64x(16);
  for (uint32_t j = 0; j < 8; j += 4) {
    // 64-bit lanes: gate below, up above.
    const __m256i pairs = Load(y + 2 * j);
    const __m256i up = _mm256_srli_epi64(pairs, 32);
    // fixed::Sigmoid: 256 segments of 2^12.
    const __m256i magnitude = _mm256_and_si256(_mm256_abs_epi32(pairs), lower);
    const __m256i last = _mm256_set1_epi64x((256 << 12) - 1);
    const __m256i a = _mm256_blendv_epi8(magnitude, last, _mm256_cmpgt_epi64(magnitude, last));
    const __m256i entry = _mm256_i64gather_epi64(
        reinterpret_cast<const long long*>(tables.sigmoid.data()), _mm256_srli_epi64(a, 12), 8);
    const __m256i rise = _mm256_mul_epu32(_mm256_srli_epi64(entry, 32),
                                          _mm256_and_si256(a, _mm256_set1_epi64x((1 << 12) - 1)));
    const __m256i positive = _mm256_add_epi64(
        _mm256_and_si256(entry, lower),
        _mm256_srli_epi64(_mm256_add_epi64(rise, _mm256_set1_epi64x(1 << 11)), 12));
    const __m256i negative = _mm256_sub_epi64(_mm256_set1_epi64x(65536), positive);
    // The sign of the lower word, in all of the lane.
    const __m256i sign = _mm256_cmpgt_epi64(zero, _mm256_slli_epi64(pairs, 32));
    const __m256i sigmoid = _mm256_blendv_epi8(positive, negative, sign);
    const __m256i s = ShiftRight(_mm256_add_epi64(_mm256_mul_epi32(pairs, sigmoid), half), sixteen);
    const __m256i result = ShiftRight(_mm256_add_epi64(_mm256_mul_epi32(s, up), half), sixteen);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(h + j), LowerWords(Saturate(result)));
  }
}

// Dot products of 8 positions of a block, from `k` on, with N queries.
template <int N>
SLUICE_AVX2 SLUICE_INLINE void DotKeys(const int8_t* k, const ScoreJob& job, int32_t (*dot)[16],
                                       uint32_t position) {
  __m256i sum[N];
  for (int i = 0; i < N; ++i) sum[i] = _mm256_setzero_si256();
  for (uint32_t c = 0; c < job.head_dim; c += 2) {
    const __m256i pairs = _mm256_cvtepi8_epi16(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(k + uint64_t{c} * kKeyBlock)));
    for (int i = 0; i < N; ++i) {
      sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs, BroadcastWord(job.q[i] + c)));
    }
  }
  for (int i = 0; i < N; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dot[i] + position), sum[i]);
  }
}

template <int N>
SLUICE_AVX2 void ScoresOf(const ScoreJob& job) {
  for (uint32_t b = 0; b < job.blocks; ++b) {
    const uint64_t at = uint64_t{b} * kKeyBlock * job.head_dim;
    const int8_t* exponent = job.exponent + uint64_t{b} * kKeyBlock;
    int32_t dot[N][16], low[N][16];
    for (uint32_t position = 0; position < kKeyBlock; position += 8) {
      DotKeys<N>(job.k + at + 2 * position, job, dot, position);
      if (job.k_low != nullptr) DotKeys<N>(job.k_low + at + 2 * position, job, low, position);
    }
    for (int i = 0; i < N; ++i) {
      const int base = -job.q_exponent[i] - job.fraction;
      int16_t* score = job.scores + static_cast<uint32_t>(i) * uint64_t{job.stride} + b * kKeyBlock;
      if (job.k_low == nullptr) {
        loops::FinishScores(dot[i], exponent, base, score);
      } else {
        loops::FinishWideScores(dot[i], low[i], exponent, base, score);
      }
    }
  }
}

void Scores(const ScoreJob& job) {
  using Function = void (*)(const ScoreJob&);
  static constexpr Function kByCount[] = {ScoresOf<1>, ScoresOf<2>, ScoresOf<3>, ScoresOf<4>};
  kByCount[job.n - 1](job);
}

// Dimensions [begin, begin + 8 * V) of one query.
template <int V>
SLUICE_AVX2 void MixPart(const MixJob& job, const int16_t* weights, uint32_t begin,
                         int64_t* mixed) {
  // |weight * v| <= 32767 * 127, of which 512 fit 31 bits.
  constexpr uint32_t kPairs = 256;
  for (uint32_t first = 0; first < job.pairs; first += kPairs) {
    const uint32_t end = loops::Min(job.pairs, first + kPairs);
    __m256i sum[V];
    for (int j = 0; j < V; ++j) sum[j] = _mm256_setzero_si256();
    for (uint32_t pair = first; pair < end; ++pair) {
      const int8_t* v = job.v + (uint64_t{pair} * job.head_dim + begin) * 2;
      const __m256i weight = BroadcastWord(weights + 2 * pair);
      for (int j = 0; j < V; ++j) {
        const __m256i value =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v + 16 * j)));
        sum[j] = _mm256_add_epi32(sum[j], _mm256_madd_epi16(value, weight));
      }
    }
    for (int j = 0; j < V; ++j) {
      alignas(32) int32_t values[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(values), sum[j]);
      for (int l = 0; l < 8; ++l) mixed[begin + static_cast<uint32_t>(8 * j + l)] += values[l];
    }
  }
}

void Mix(const MixJob& job) {
  for (uint32_t i = 0; i < job.n; ++i) {
    const int16_t* weights = job.weights + uint64_t{i} * job.stride;
    int64_t* mixed = job.mixed + uint64_t{i} * job.head_dim;
    uint32_t begin = 0;
    for (; begin + 64 <= job.head_dim; begin += 64) MixPart<8>(job, weights, begin, mixed);
    for (; begin < job.head_dim; begin += 16) MixPart<2>(job, weights, begin, mixed);
  }
}

SLUICE_AVX2 void Norm(const NormJob& job) { loops::Norm(job); }
SLUICE_AVX2 WeightSum Weights(const WeightJob& job, const Tables& tables) {
  return loops::Weights(job, tables);
}
SLUICE_AVX2 void AddRows(const int32_t* y, int32_t* x) { loops::AddRows(y, x); }
SLUICE_AVX2 int Quantize8(const int32_t* v, uint32_t n, int8_t* q) {
  return loops::Quantize8(v, n, q);
}
SLUICE_AVX2 int Quantize16(const int32_t* v, uint32_t n, int16_t* q) {
  return loops::Quantize16(v, n, q);
}

constexpr Kernels kKernels = {
    .name = "avx2",
    .queries = 4,
    .dot = {Dot<MatrixKind::kCodebook>, Dot<MatrixKind::kLinear>, Dot<MatrixKind::kTwoPlanes>,
            Dot<MatrixKind::kHighPlane>},
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

}  // namespace

const Kernels* Avx2Kernels() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") ? &kKernels : nullptr;
}

}  // namespace sluice::exec::cpu

#else

namespace sluice::exec::cpu {
const Kernels* Avx2Kernels() { return nullptr; }
}  // namespace sluice::exec::cpu

#endif
