// Float matrix products on all cores, with results that depend neither on the number of threads
// nor on the width of the vectors.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"

namespace sluice::model {

// A matrix somewhere in memory: element (r, c) is data[r * row_stride + c * col_stride].
struct View {
  const float* data = nullptr;
  size_t row_stride = 0;
  size_t col_stride = 1;
  View Transposed() const { return {data, col_stride, row_stride}; }
};

struct GemmOptions {
  bool accumulate = false;  // add to C instead of replacing it
  bool subtract = false;    // use -A
  bool lower = false;       // square C: blocks wholly above the diagonal are left alone
};

// C (m, n) = A (m, k) B (k, n), C row-major with rows `ldc` apart. Every element is one chain of
// fused multiply-adds over k in ascending order, starting from C or 0: the same bits on every
// machine with fused multiply-add. `pool` may be null: then the caller's thread does it all, as is
// needed inside a ParallelFor.
void Gemm(base::ThreadPool* pool, size_t m, size_t n, size_t k, View a, View b, float* c,
          size_t ldc, GemmOptions options = {});

}  // namespace sluice::model
