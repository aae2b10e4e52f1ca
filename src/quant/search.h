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

// The second moment of a matrix's input on the calibration text, factored for GPTQ: with the
// columns in `order`, H + damping = R D R^T, R unit upper triangular, D diagonal. Rounding column j
// last to first in that factorisation makes the output error of a row exactly
//   sum over j of D[j] * (w'[j] - value[j])^2,
//   w'[j] = w[j] + sum over i < j of R[i][j] * (w[i] - value[i]),
// which is GPTQ (Frantar et al. 2022, arXiv 2210.17323) in the form of LDLQ (Chee et al. 2023,
// arXiv 2307.13304, theorem 6).
struct Factor {
  uint32_t cols = 0;
  std::vector<uint32_t> order;    // [cols]; the columns of a group stay together
  std::vector<float> r;           // [cols][cols], in that order; below the diagonal undefined
  std::vector<float> d;           // [cols], in that order
  std::vector<float> importance;  // [cols], diagonal of H in the matrix's order
};

// `hessian` is [cols][cols], of which the lower triangle (and diagonal) is read; it is used up.
// `group` is the group size of all matrices that will be quantised with the factor.
Factor FactorHessian(std::vector<float> hessian, uint32_t cols, uint32_t group,
                     base::ThreadPool& pool);

// The weights that give, on the inputs of the layers quantised so far, the outputs that `w` gives
// on the float model's own inputs: w + strength * w cross (H + damping)^-1, in the least-squares
// sense.
//   cross: [cols][cols] in the matrix's order, sum over tokens of (own input - input) input^T
std::vector<float> CorrectForInputs(std::span<const float> w, uint32_t rows,
                                    std::span<const float> cross, float strength,
                                    const Factor& factor, base::ThreadPool& pool);

// GPTQ: minimises the error of the outputs on the calibration text.
QuantizedMatrix GptqMatrix(std::span<const float> w, uint32_t rows, MatrixFormat format,
                           const Factor& factor, base::ThreadPool& pool);

}  // namespace sluice::quant
