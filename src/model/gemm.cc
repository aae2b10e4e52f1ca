#include "model/gemm.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sluice::model {
namespace {

// One register tile of C. With 512-bit vectors 12 x 2 accumulators, 2 of B and a broadcast of A
// fill 27 of 32 registers.
constexpr size_t kTileRows = 12;
constexpr size_t kTileCols = 32;
// kDepth x kTileCols of packed B (32 KB) stays in the first-level cache while kBlockRows x kDepth
// of packed A (96 KB) stays in the second.
constexpr size_t kDepth = 256;
constexpr size_t kBlockRows = 96;

// tile[kTileRows][kTileCols] += a[k][kTileRows] b[k][kTileCols].
using Kernel = void (*)(size_t k, const float* a, const float* b, float* tile);

void KernelPlain(size_t k, const float* a, const float* b, float* tile) {
  for (size_t p = 0; p < k; ++p) {
    for (size_t i = 0; i < kTileRows; ++i) {
      const float x = a[p * kTileRows + i];
      float* row = tile + i * kTileCols;
      for (size_t j = 0; j < kTileCols; ++j) {
#if defined(__FP_FAST_FMAF)
        row[j] = std::fma(x, b[p * kTileCols + j], row[j]);
#else
        row[j] += x * b[p * kTileCols + j];
#endif
      }
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void KernelAvx512(size_t k, const float* a, const float* b,
                                                     float* tile) {
  __m512 sum[kTileRows][2];
#pragma GCC unroll 12
  for (size_t i = 0; i < kTileRows; ++i) {
    sum[i][0] = _mm512_loadu_ps(tile + i * kTileCols);
    sum[i][1] = _mm512_loadu_ps(tile + i * kTileCols + 16);
  }
  for (size_t p = 0; p < k; ++p) {
    const __m512 b0 = _mm512_loadu_ps(b + p * kTileCols);
    const __m512 b1 = _mm512_loadu_ps(b + p * kTileCols + 16);
#pragma GCC unroll 12
    for (size_t i = 0; i < kTileRows; ++i) {
      const __m512 x = _mm512_set1_ps(a[p * kTileRows + i]);
      sum[i][0] = _mm512_fmadd_ps(x, b0, sum[i][0]);
      sum[i][1] = _mm512_fmadd_ps(x, b1, sum[i][1]);
    }
  }
#pragma GCC unroll 12
  for (size_t i = 0; i < kTileRows; ++i) {
    _mm512_storeu_ps(tile + i * kTileCols, sum[i][0]);
    _mm512_storeu_ps(tile + i * kTileCols + 16, sum[i][1]);
  }
}

// A 6 x 16 part of the tile: 12 accumulators of 16 registers.
__attribute__((target("avx2,fma"))) void KernelAvx2(size_t k, const float* a, const float* b,
                                                    float* tile) {
  constexpr size_t kPart = 6;
  for (size_t part = 0; part < 4; ++part) {
    const size_t row = part / 2 * kPart;
    const size_t col = part % 2 * 16;
    float* out = tile + row * kTileCols + col;
    __m256 sum[kPart][2];
#pragma GCC unroll 6
    for (size_t i = 0; i < kPart; ++i) {
      sum[i][0] = _mm256_loadu_ps(out + i * kTileCols);
      sum[i][1] = _mm256_loadu_ps(out + i * kTileCols + 8);
    }
    for (size_t p = 0; p < k; ++p) {
      const __m256 b0 = _mm256_loadu_ps(b + p * kTileCols + col);
      const __m256 b1 = _mm256_loadu_ps(b + p * kTileCols + col + 8);
#pragma GCC unroll 6
      for (size_t i = 0; i < kPart; ++i) {
        const __m256 x = _mm256_set1_ps(a[p * kTileRows + row + i]);
        sum[i][0] = _mm256_fmadd_ps(x, b0, sum[i][0]);
        sum[i][1] = _mm256_fmadd_ps(x, b1, sum[i][1]);
      }
    }
#pragma GCC unroll 6
    for (size_t i = 0; i < kPart; ++i) {
      _mm256_storeu_ps(out + i * kTileCols, sum[i][0]);
      _mm256_storeu_ps(out + i * kTileCols + 8, sum[i][1]);
    }
  }
}
#endif

Kernel BestKernel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return KernelAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return KernelAvx2;
#endif
  return KernelPlain;
}

// Packs rows [first, first + width) of `v`, columns [0, k), as [k][width], zeros past `rows`.
void Pack(View v, size_t first, size_t width, size_t rows, size_t k, float sign, float* out) {
  const size_t real = first < rows ? std::min(width, rows - first) : 0;
  const float* base = v.data + first * v.row_stride;
  if (v.row_stride == 1) {
    for (size_t p = 0; p < k; ++p) {
      const float* from = base + p * v.col_stride;
      for (size_t i = 0; i < real; ++i) out[p * width + i] = sign * from[i];
      for (size_t i = real; i < width; ++i) out[p * width + i] = 0;
    }
    return;
  }
  for (size_t i = 0; i < real; ++i) {
    const float* from = base + i * v.row_stride;
    for (size_t p = 0; p < k; ++p) out[p * width + i] = sign * from[p * v.col_stride];
  }
  for (size_t i = real; i < width; ++i) {
    for (size_t p = 0; p < k; ++p) out[p * width + i] = 0;
  }
}

void ForEach(base::ThreadPool* pool, size_t count, const std::function<void(size_t)>& body) {
  if (pool != nullptr && count > 1) {
    pool->ParallelFor(count, body);
  } else {
    for (size_t i = 0; i < count; ++i) body(i);
  }
}

size_t CeilDiv(size_t a, size_t b) { return (a + b - 1) / b; }

}  // namespace

void Gemm(base::ThreadPool* pool, size_t m, size_t n, size_t k, View a, View b, float* c,
          size_t ldc, GemmOptions options) {
  static const Kernel kernel = BestKernel();
  if (m == 0 || n == 0) return;
  const size_t panels = CeilDiv(n, kTileCols);
  const size_t row_blocks = CeilDiv(m, kBlockRows);
  const auto packed_b = std::make_unique_for_overwrite<float[]>(panels * kTileCols * k);
  const View b_rows = b.Transposed();
  ForEach(pool, panels, [&](size_t panel) {
    Pack(b_rows, panel * kTileCols, kTileCols, n, k, 1, packed_b.get() + panel * kTileCols * k);
  });

  // Few row blocks: cut the columns as well, so that all threads have work.
  const size_t col_blocks = row_blocks >= 8 ? 1 : std::min(panels, CeilDiv(8, row_blocks));
  const size_t panels_per_block = CeilDiv(panels, col_blocks);
  ForEach(pool, row_blocks * col_blocks, [&](size_t item) {
    const size_t block = item / col_blocks;
    const size_t first_row = block * kBlockRows;
    const size_t rows = std::min(kBlockRows, m - first_row);
    const size_t tiles = CeilDiv(rows, kTileRows);
    const size_t first_panel = item % col_blocks * panels_per_block;
    const size_t last_panel = std::min(panels, first_panel + panels_per_block);
    thread_local std::vector<float> packed_a;
    packed_a.resize(kBlockRows * kDepth);
    alignas(64) float tile[kTileRows * kTileCols];
    for (size_t depth = 0; depth < std::max<size_t>(k, 1); depth += kDepth) {
      const size_t count = std::min(kDepth, k - depth);
      const View part{a.data + depth * a.col_stride, a.row_stride, a.col_stride};
      for (size_t t = 0; t < tiles; ++t) {
        Pack(part, first_row + t * kTileRows, kTileRows, m, count, options.subtract ? -1.0f : 1.0f,
             packed_a.data() + t * kTileRows * count);
      }
      const bool load = depth > 0 || options.accumulate;
      for (size_t panel = first_panel; panel < last_panel; ++panel) {
        const size_t col = panel * kTileCols;
        if (options.lower && col >= first_row + rows) break;
        const size_t width = std::min(kTileCols, n - col);
        const float* packed = packed_b.get() + panel * kTileCols * k + depth * kTileCols;
        for (size_t t = 0; t < tiles; ++t) {
          const size_t row = first_row + t * kTileRows;
          const size_t height = std::min(kTileRows, m - row);
          std::fill(std::begin(tile), std::end(tile), 0.0f);
          if (load) {
            for (size_t i = 0; i < height; ++i) {
              std::copy_n(c + (row + i) * ldc + col, width, tile + i * kTileCols);
            }
          }
          kernel(count, packed_a.data() + t * kTileRows * count, packed, tile);
          for (size_t i = 0; i < height; ++i) {
            std::copy_n(tile + i * kTileCols, width, c + (row + i) * ldc + col);
          }
        }
      }
    }
  });
}

}  // namespace sluice::model
