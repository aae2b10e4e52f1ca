// From a float model to quantised matrices: walks the model in stream order, chooses scales and
// levels, and hands each matrix on as soon as it is ready.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "model/model.h"
#include "quant/calibration.h"
#include "quant/quantized_matrix.h"
#include "quant/recipe.h"

namespace sluice::quant {

// Receives the matrices in stream order: the embedding (which is the head too where they are
// tied), the head if there is one, then for each layer q, k, v, o, gate, up, down. Called from the
// thread that called Quantize. An error it returns ends the run and is returned.
// `row_scales`: what the rows were divided by before they were quantised, empty for nothing; a bias
// of the matrix must be divided too.
using Sink = std::function<base::Status(model::Role role, uint32_t layer, QuantizedMatrix matrix,
                                        std::span<const float> row_scales)>;

struct QuantizeOptions {
  Recipe recipe;
  // Token windows, each a sequence of its own, every token in [0, vocab). Empty: levels are chosen
  // by their own error alone, and the calibration is DefaultCalibration().
  std::vector<std::vector<int32_t>> calibration;
  unsigned threads = 0;  // 0: one per core. The result does not depend on it.
  base::Progress progress;
};

struct TensorReport {
  model::Role role = model::Role::kEmbedding;
  uint32_t layer = 0;
  uint8_t bits = 0;
  // Squared error over squared value, of the outputs on the calibration text (0 without) and of
  // the weights (with their channel scales).
  double output_error = 0;
  double weight_error = 0;
  double seconds = 0;
};

struct QuantizeOutcome {
  Calibration calibration;
  std::vector<TensorReport> tensors;  // in the sink's order
};

// Memory: the largest layer in float, two (cols x cols) float matrices of its widest input, and the
// hidden states of the calibration tokens.
// Errors: a weight that is not finite (names tensor, row and column), a token outside the
// vocabulary, a recipe that does not fit the model, whatever the sink returns.
base::Result<QuantizeOutcome> Quantize(const model::Model& model, const QuantizeOptions& options,
                                       const Sink& sink);

}  // namespace sluice::quant
