// Choosing scales and levels of one matrix: by weighted error, or against a calibration Hessian.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "quant/quantized_matrix.h"

namespace sluice::quant {

// Minimises sum over columns of importance[c] * (w - value)^2, row by row. `importance` holds
// `cols` values >= 0, or is empty for all alike.
//   w: [rows][cols], finite
QuantizedMatrix SearchMatrix(std::span<const float> w, uint32_t rows, uint32_t cols,
                             MatrixFormat format, std::span<const float> importance,
                             base::ThreadPool& pool);

// The second moment H of a matrix's input on the calibration text, factored for GPTQ:
// H + damping = R D R^T, R unit upper triangular, D diagonal. The output error of a row is then
//   sum over j of D[j] * (w'[j] - value[j])^2,
//   w'[j] = w[j] + sum over i < j of R[i][j] * (w[i] - value[i]),
// so rounding the columns in order, each with the errors before it fed in, is GPTQ (Frantar et al.
// 2022, arXiv 2210.17323) in the form of LDLQ (Chee et al. 2023, arXiv 2307.13304, theorem 6).
struct Factor {
  uint32_t cols = 0;
  std::vector<float> r;           // [cols][cols]; below the diagonal undefined
  std::vector<float> d;           // [cols]
  std::vector<float> importance;  // [cols], diagonal of H
};

// `hessian` is [cols][cols], of which the lower triangle with the diagonal is read.
Factor FactorHessian(std::span<const float> hessian, uint32_t cols, base::ThreadPool& pool);

// GPTQ: minimises the error of the outputs on the calibration text.
QuantizedMatrix GptqMatrix(std::span<const float> w, uint32_t rows, MatrixFormat format,
                           const Factor& factor, base::ThreadPool& pool);

}  // namespace sluice::quant
