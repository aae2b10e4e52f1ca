// Kernels for x86-64 with AVX-512 VNNI. One unit of a tile is one vector: lane r holds the four
// bytes of row r, so that vpdpbusd adds four columns of 16 rows at once.
#include "exec/cpu/kernels.h"

#if defined(__x86_64__)

#if !defined(__clang__)
// GCC's own header passes an undefined vector where the mask lets nothing of it through.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstring>

#include "exec/cpu/loops.h"
#include "pack/layout.h"

#define SLUICE_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

namespace sluice::exec::cpu {
namespace {

SLUICE_AVX512 SLUICE_INLINE __m512i BroadcastWord(const void* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return _mm512_set1_epi32(word);
}

// How far ahead of the units of a single token their bytes are asked for, past the caches' own
// prefetchers. On a Zen 4 this distance and the non-temporal hint help; 512 bytes and more, or
// another hint, do not.
constexpr int kAhead = 256;
SLUICE_AVX512 SLUICE_INLINE void Prefetch(const uint8_t* from) {
  _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead, _MM_HINT_NTA);
}

// vpdpbusd multiplies unsigned by signed bytes, so weights are taken unsigned, that much too
// large; the accumulators start at -kOffset * sum(x).
template <MatrixKind kind>
constexpr int32_t kOffset = kind == MatrixKind::kCodebook    ? 15
                            : kind == MatrixKind::kTwoPlanes ? 136
                                                             : 8;

struct Unit {
  __m512i first;   // columns 0..3
  __m512i second;  // columns 4..7
};

template <MatrixKind kind>
SLUICE_AVX512 SLUICE_INLINE Unit Unpack(const uint8_t* high, const uint8_t* low) {
  const __m512i h = _mm512_loadu_si512(high);
  if constexpr (kind == MatrixKind::kTwoPlanes) {
    // 16 * high + low of one byte pair: bits of the mask from a, the others from b.
    const __m512i mask = _mm512_set1_epi8(static_cast<char>(0xf0));
    const __m512i l = _mm512_loadu_si512(low);
    constexpr int kSelect = 0xca;  // mask ? a : b
    return {_mm512_ternarylogic_epi32(mask, _mm512_slli_epi16(h, 4), l, kSelect),
            _mm512_ternarylogic_epi32(mask, h, _mm512_srli_epi16(l, 4), kSelect)};
  }
  const __m512i mask = _mm512_set1_epi8(0x0f);
  const __m512i first = _mm512_and_si512(h, mask);
  const __m512i second = _mm512_and_si512(_mm512_srli_epi16(h, 4), mask);
  if constexpr (kind != MatrixKind::kCodebook) return {first, second};
  // quant::Codebook::kSluice16, each level + 15.
  const __m512i levels = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 4, 7, 9, 11, 13, 14, 15, 16, 17, 18, 20, 22, 24, 27, 30));
  return {_mm512_shuffle_epi8(levels, first), _mm512_shuffle_epi8(levels, second)};
}

template <MatrixKind kind, int T>
SLUICE_AVX512 void DotPanel(const Tile& tile, const Panel& panel, int32_t* acc) {
  const uint32_t units = tile.group / pack::kUnitColumns;
  const uint8_t* high = tile.high;
  const uint8_t* low = tile.low;
  const int8_t* x = panel.x;
  __m512i sum[T];
  for (int t = 0; t < T; ++t) sum[t] = _mm512_setzero_si512();
  for (uint32_t g = 0; g < tile.groups; ++g) {
    // With few tokens two chains each, so that the latency of vpdpbusd is not the limit.
    constexpr int kChains = T <= 2 ? 2 : 1;
    __m512i dot[kChains][T];
    for (int t = 0; t < T; ++t) {
      dot[0][t] = _mm512_set1_epi32(-kOffset<kind> * panel.sums[g * T + static_cast<uint32_t>(t)]);
      if constexpr (kChains == 2) dot[1][t] = _mm512_setzero_si512();
    }
    for (uint32_t u = 0; u < units; ++u) {
      if constexpr (T == 1) {
        Prefetch(high);
        if constexpr (kind == MatrixKind::kTwoPlanes) Prefetch(low);
      }
      const Unit w = Unpack<kind>(high, low);
      for (int t = 0; t < T; ++t) {
        dot[0][t] = _mm512_dpbusd_epi32(dot[0][t], w.first, BroadcastWord(x + 4 * t));
      }
      for (int t = 0; t < T; ++t) {
        auto& chain = dot[kChains - 1][t];
        chain = _mm512_dpbusd_epi32(chain, w.second, BroadcastWord(x + 4 * (T + t)));
      }
      high += pack::kUnitBytes;
      if constexpr (kind == MatrixKind::kTwoPlanes) low += pack::kUnitBytes;
      x += 8 * T;
    }
    const __m512i scale = _mm512_cvtepi8_epi32(_mm_loadu_si128(
        reinterpret_cast<const __m128i*>(tile.sub_scales + uint64_t{g} * pack::kTileRows)));
    for (int t = 0; t < T; ++t) {
      __m512i d = dot[0][t];
      if constexpr (kChains == 2) d = _mm512_add_epi32(d, dot[1][t]);
      if constexpr (kind == MatrixKind::kHighPlane) d = _mm512_slli_epi32(d, 4);
      // Counts beyond 31 shift the sign in, as the contract wants.
      const __m512i shift = _mm512_set1_epi32(panel.shifts[g * T + static_cast<uint32_t>(t)]);
      sum[t] = _mm512_add_epi32(sum[t], _mm512_srav_epi32(_mm512_mullo_epi32(d, scale), shift));
    }
  }
  for (int t = 0; t < T; ++t) _mm512_storeu_si512(acc + 16 * t, sum[t]);
}

template <MatrixKind kind>
void Dot(const Tile& tile, const Panel& panel, int32_t* acc) {
  using Function = void (*)(const Tile&, const Panel&, int32_t*);
  static constexpr Function kByWidth[kPanelTokens] = {
      DotPanel<kind, 1>, DotPanel<kind, 2>, DotPanel<kind, 3>, DotPanel<kind, 4>,
      DotPanel<kind, 5>, DotPanel<kind, 6>, DotPanel<kind, 7>, DotPanel<kind, 8>};
  kByWidth[panel.width - 1](tile, panel, acc);
}

// sat32(rs(product, s)) in 64-bit lanes, |product| < 2^47.
SLUICE_AVX512 SLUICE_INLINE __m256i RoundShiftSat(__m512i product, __m512i s) {
  const __m512i one = _mm512_set1_epi64(1);
  const __m512i zero = _mm512_setzero_si512();
  // s > 0: ((x >> (s - 1)) + 1) >> 1; counts beyond 63 shift the sign in.
  const __m512i right = _mm512_srai_epi64(
      _mm512_add_epi64(_mm512_srav_epi64(product, _mm512_sub_epi64(s, one)), one), 1);
  // s <= 0: saturated to 32 bits, shifted by at most 31, and saturated again below.
  const __m512i clamped = _mm512_cvtepi32_epi64(_mm512_cvtsepi64_epi32(product));
  const __m512i count = _mm512_min_epi64(_mm512_sub_epi64(zero, s), _mm512_set1_epi64(31));
  const __m512i left = _mm512_sllv_epi64(clamped, count);
  const __mmask8 is_right = _mm512_cmpgt_epi64_mask(s, zero);
  return _mm512_cvtsepi64_epi32(_mm512_mask_blend_epi64(is_right, left, right));
}

// The lower and the upper eight lanes, widened.
SLUICE_AVX512 SLUICE_INLINE __m512i Low(__m512i v) {
  return _mm512_cvtepi32_epi64(_mm512_castsi512_si256(v));
}
SLUICE_AVX512 SLUICE_INLINE __m512i High(__m512i v) {
  return _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(v, 1));
}

SLUICE_AVX512 void ScaleRows(const int32_t* acc, uint32_t width, const uint8_t* row_table,
                             const int32_t* subtract, int32_t* y) {
  const __m512i rows = _mm512_loadu_si512(row_table);
  const __m512i mantissa = _mm512_srai_epi32(_mm512_slli_epi32(rows, 16), 16);
  const __m512i exponent = _mm512_srai_epi32(_mm512_slli_epi32(rows, 8), 24);
  const __m512i mantissas[2] = {Low(mantissa), High(mantissa)};
  const __m512i exponents[2] = {Low(exponent), High(exponent)};
  for (uint32_t t = 0; t < width; ++t) {
    const __m512i a = _mm512_loadu_si512(acc + 16 * t);
    const __m512i less = _mm512_set1_epi64(subtract[t]);
    const __m256i first =
        RoundShiftSat(_mm512_mul_epi32(Low(a), mantissas[0]), _mm512_sub_epi64(exponents[0], less));
    const __m256i second = RoundShiftSat(_mm512_mul_epi32(High(a), mantissas[1]),
                                         _mm512_sub_epi64(exponents[1], less));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + 16 * t), first);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + 16 * t + 8), second);
  }
}

SLUICE_AVX512 void SiluGate(const int32_t* y, const Tables& tables, int32_t* h) {
  // 64-bit lanes: gate below, up above.
  const __m512i pairs = _mm512_loadu_si512(y);
  const __m512i gate = _mm512_srai_epi64(_mm512_slli_epi64(pairs, 32), 32);
  const __m512i up = _mm512_srli_epi64(pairs, 32);
  // fixed::Sigmoid: 256 segments of 2^12.
  const __m512i a = _mm512_min_epi64(_mm512_abs_epi64(gate), _mm512_set1_epi64((256 << 12) - 1));
  const __m512i entry = _mm512_i64gather_epi64(_mm512_srli_epi64(a, 12), tables.sigmoid.data(), 8);
  const __m512i rise = _mm512_mul_epu32(_mm512_srli_epi64(entry, 32),
                                        _mm512_and_si512(a, _mm512_set1_epi64((1 << 12) - 1)));
  const __m512i value = _mm512_and_si512(entry, _mm512_set1_epi64(0xffffffff));
  __m512i sigmoid = _mm512_add_epi64(
      value, _mm512_srli_epi64(_mm512_add_epi64(rise, _mm512_set1_epi64(1 << 11)), 12));
  sigmoid =
      _mm512_mask_sub_epi64(sigmoid, _mm512_movepi64_mask(gate), _mm512_set1_epi64(65536), sigmoid);
  const __m512i half = _mm512_set1_epi64(1 << 15);
  const __m512i s = _mm512_srai_epi64(_mm512_add_epi64(_mm512_mul_epi32(gate, sigmoid), half), 16);
  const __m512i result = _mm512_srai_epi64(_mm512_add_epi64(_mm512_mul_epi32(s, up), half), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(h), _mm512_cvtsepi64_epi32(result));
}

template <int N>
SLUICE_AVX512 SLUICE_INLINE void DotKeys(const int8_t* k, const ScoreJob& job, __m512i* dot) {
  // Few queries in two chains each, so that the latency of vpdpwssd is not the limit.
  constexpr uint32_t kChains = N <= 4 ? 2 : 1;
  __m512i sum[kChains][N];
  for (uint32_t j = 0; j < kChains; ++j) {
    for (int i = 0; i < N; ++i) sum[j][i] = _mm512_setzero_si512();
  }
  for (uint32_t c = 0; c < job.head_dim; c += 2 * kChains) {
    for (uint32_t j = 0; j < kChains; ++j) {
      // Lane t: dimensions at and at + 1 of position t, in 16 bits.
      const uint32_t at = c + 2 * j;
      const __m512i pairs = _mm512_cvtepi8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(k + uint64_t{at} * kKeyBlock)));
      for (int i = 0; i < N; ++i) {
        sum[j][i] = _mm512_dpwssd_epi32(sum[j][i], pairs, BroadcastWord(job.q[i] + at));
      }
    }
  }
  for (int i = 0; i < N; ++i) {
    dot[i] = sum[0][i];
    if constexpr (kChains == 2) dot[i] = _mm512_add_epi32(dot[i], sum[1][i]);
  }
}

template <int N>
SLUICE_AVX512 void ScoresOf(const ScoreJob& job) {
  for (uint32_t b = 0; b < job.blocks; ++b) {
    const uint64_t at = uint64_t{b} * kKeyBlock * job.head_dim;
    const int8_t* exponent = job.exponent + uint64_t{b} * kKeyBlock;
    __m512i dot[N];
    DotKeys<N>(job.k + at, job, dot);
    if (job.k_low != nullptr) {
      __m512i low[N];
      DotKeys<N>(job.k_low + at, job, low);
      for (int i = 0; i < N; ++i) {
        alignas(64) int32_t h[kKeyBlock], l[kKeyBlock];
        _mm512_store_si512(h, dot[i]);
        _mm512_store_si512(l, low[i]);
        loops::FinishWideScores(
            h, l, exponent, -job.q_exponent[i] - job.fraction,
            job.scores + static_cast<uint32_t>(i) * uint64_t{job.stride} + b * kKeyBlock);
      }
      continue;
    }
    const __m512i e =
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(exponent)));
    const __m512i limit = _mm512_set1_epi32(32767);
    const __m512i minus_limit = _mm512_set1_epi32(-32767);
    const __m512i one = _mm512_set1_epi32(1);
    for (int i = 0; i < N; ++i) {
      // loops::FinishScores.
      const __m512i s = _mm512_sub_epi32(_mm512_set1_epi32(-job.q_exponent[i] - job.fraction), e);
      const __m512i right = _mm512_srai_epi32(
          _mm512_add_epi32(_mm512_srav_epi32(dot[i], _mm512_sub_epi32(s, one)), one), 1);
      const __m512i count =
          _mm512_min_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), s), _mm512_set1_epi32(15));
      const __m512i left =
          _mm512_sllv_epi32(_mm512_max_epi32(_mm512_min_epi32(dot[i], limit), minus_limit), count);
      const __m512i score =
          _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(s, _mm512_setzero_si512()), left, right);
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(job.scores + static_cast<uint32_t>(i) * uint64_t{job.stride} +
                                     b * kKeyBlock),
          _mm512_cvtepi32_epi16(_mm512_max_epi32(_mm512_min_epi32(score, limit), minus_limit)));
    }
  }
}

void Scores(const ScoreJob& job) {
  using Function = void (*)(const ScoreJob&);
  static constexpr Function kByCount[] = {ScoresOf<1>, ScoresOf<2>, ScoresOf<3>, ScoresOf<4>,
                                          ScoresOf<5>, ScoresOf<6>, ScoresOf<7>, ScoresOf<8>};
  kByCount[job.n - 1](job);
}

// Dimensions [begin, begin + 16 * V) of N queries.
template <int N, int V>
SLUICE_AVX512 void MixPart(const MixJob& job, uint32_t begin) {
  // |weight * v| <= 32767 * 127, of which 512 fit 31 bits.
  constexpr uint32_t kPairs = 256;
  for (uint32_t first = 0; first < job.pairs; first += kPairs) {
    const uint32_t end = loops::Min(job.pairs, first + kPairs);
    __m512i sum[N][V];
    for (int i = 0; i < N; ++i) {
      for (int j = 0; j < V; ++j) sum[i][j] = _mm512_setzero_si512();
    }
    for (uint32_t pair = first; pair < end; ++pair) {
      const int8_t* v = job.v + (uint64_t{pair} * job.head_dim + begin) * 2;
      __m512i value[V];
      for (int j = 0; j < V; ++j) {
        value[j] =
            _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + 32 * j)));
      }
      for (int i = 0; i < N; ++i) {
        const __m512i weight =
            BroadcastWord(job.weights + static_cast<uint32_t>(i) * uint64_t{job.stride} + 2 * pair);
        for (int j = 0; j < V; ++j) {
          sum[i][j] = _mm512_dpwssd_epi32(sum[i][j], value[j], weight);
        }
      }
    }
    for (int i = 0; i < N; ++i) {
      for (int j = 0; j < V; ++j) {
        int64_t* mixed = job.mixed + static_cast<uint32_t>(i) * job.head_dim + begin +
                         16 * static_cast<uint32_t>(j);
        _mm512_storeu_si512(mixed, _mm512_add_epi64(_mm512_loadu_si512(mixed), Low(sum[i][j])));
        _mm512_storeu_si512(mixed + 8,
                            _mm512_add_epi64(_mm512_loadu_si512(mixed + 8), High(sum[i][j])));
      }
    }
  }
}

template <int N>
void MixOf(const MixJob& job) {
  constexpr int kVectors = N <= 4 ? 4 : 2;  // as many sums as there are registers for
  uint32_t begin = 0;
  for (; begin + 16 * kVectors <= job.head_dim; begin += 16 * kVectors) {
    MixPart<N, kVectors>(job, begin);
  }
  for (; begin < job.head_dim; begin += 16) MixPart<N, 1>(job, begin);
}

void Mix(const MixJob& job) {
  using Function = void (*)(const MixJob&);
  static constexpr Function kByCount[] = {MixOf<1>, MixOf<2>, MixOf<3>, MixOf<4>,
                                          MixOf<5>, MixOf<6>, MixOf<7>, MixOf<8>};
  kByCount[job.n - 1](job);
}

SLUICE_AVX512 void Norm(const NormJob& job) { loops::Norm(job); }
// rs(v, s) of unsigned words, 0 <= v < 2^15, s >= 0: ((2 v >> s) + 1) >> 1.
SLUICE_AVX512 SLUICE_INLINE __m512i RoundShiftWords(__m512i v, __m512i s) {
  const __m512i shifted = _mm512_srlv_epi16(_mm512_add_epi16(v, v), s);
  return _mm512_srli_epi16(_mm512_add_epi16(shifted, _mm512_set1_epi16(1)), 1);
}

// loops::Weights in 16-bit lanes: scores are at most 65,534 apart. The table of exponentials fills
// eight registers, which two-register permutes look up.
SLUICE_AVX512 WeightSum Weights(const WeightJob& job, const Tables& tables) {
  constexpr uint32_t kLanes = 32;
  static_assert(fixed::kMaxScoreFraction == 8);
  const auto mask_at = [&](uint32_t t) {
    return job.length - t >= kLanes ? ~__mmask32{0} : (__mmask32{1} << (job.length - t)) - 1;
  };
  __m512i table[8];
  for (int k = 0; k < 8; ++k) {
    const int32_t* from = tables.exp2.data() + 32 * k;
    table[k] =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_loadu_si512(from))),
                           _mm512_cvtepi32_epi16(_mm512_loadu_si512(from + 16)), 1);
  }
  __m512i most = _mm512_set1_epi16(-32767);
  __m512i exponent = _mm512_set1_epi16(-128);
  for (uint32_t t = 0; t < job.length; t += kLanes) {
    const __mmask32 m = mask_at(t);
    most = _mm512_mask_max_epi16(most, m, most, _mm512_maskz_loadu_epi16(m, job.scores + t));
    exponent =
        _mm512_mask_max_epi16(exponent, m, exponent,
                              _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(m, job.v_exponent + t)));
  }
  alignas(64) int16_t lanes[2][kLanes];
  _mm512_store_si512(lanes[0], most);
  _mm512_store_si512(lanes[1], exponent);
  int16_t best = lanes[0][0], largest = lanes[1][0];
  for (uint32_t k = 1; k < kLanes; ++k) {
    best = loops::Max(best, lanes[0][k]);
    largest = loops::Max(largest, lanes[1][k]);
  }

  const __m512i fraction_mask = _mm512_set1_epi16(static_cast<int16_t>((1 << job.fraction) - 1));
  const __m128i fraction = _mm_cvtsi32_si128(job.fraction);
  const __m128i to_table = _mm_cvtsi32_si128(fixed::kMaxScoreFraction - job.fraction);
  const __m512i ones = _mm512_set1_epi16(1);
  __m512i sum = _mm512_setzero_si512();  // in 32-bit lanes, together < 2^31
  for (uint32_t t = 0; t < job.length; t += kLanes) {
    const __mmask32 m = mask_at(t);
    const __m512i score = _mm512_maskz_loadu_epi16(m, job.scores + t);
    const __m512i d = _mm512_sub_epi16(_mm512_set1_epi16(best), score);
    const __m512i index = _mm512_sll_epi16(_mm512_and_si512(d, fraction_mask), to_table);
    __m512i e[4];
    for (int k = 0; k < 4; ++k) {
      e[k] = _mm512_permutex2var_epi16(table[2 * k], index, table[2 * k + 1]);
    }
    const __mmask32 bit6 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
    const __mmask32 bit7 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
    const __m512i value = _mm512_mask_blend_epi16(bit7, _mm512_mask_blend_epi16(bit6, e[0], e[1]),
                                                  _mm512_mask_blend_epi16(bit6, e[2], e[3]));
    const __m512i p =
        _mm512_maskz_mov_epi16(m, RoundShiftWords(value, _mm512_srl_epi16(d, fraction)));
    sum = _mm512_dpwssd_epi32(sum, p, ones);
    const __m512i less =
        _mm512_sub_epi16(_mm512_set1_epi16(largest),
                         _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(m, job.v_exponent + t)));
    _mm512_mask_storeu_epi16(job.weights + t, m, RoundShiftWords(p, less));
  }
  return {static_cast<uint32_t>(_mm512_reduce_add_epi32(sum)), largest};
}
SLUICE_AVX512 void AddRows(const int32_t* y, int32_t* x) { loops::AddRows(y, x); }
SLUICE_AVX512 int Quantize8(const int32_t* v, uint32_t n, int8_t* q) {
  return loops::Quantize8(v, n, q);
}
SLUICE_AVX512 int Quantize16(const int32_t* v, uint32_t n, int16_t* q) {
  return loops::Quantize16(v, n, q);
}

constexpr Kernels kKernels = {
    .name = "avx512vnni",
    .queries = kMaxQueries,
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

const Kernels* Avx512VnniKernels() {
  const bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                         __builtin_cpu_supports("avx512vnni");
  return supported ? &kKernels : nullptr;
}

}  // namespace sluice::exec::cpu

#else

namespace sluice::exec::cpu {
const Kernels* Avx512VnniKernels() { return nullptr; }
}  // namespace sluice::exec::cpu

#endif
