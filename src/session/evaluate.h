// How good an executor's predictions are: perplexity, and the distance from the float model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "exec/executor.h"
#include "model/model.h"

namespace sluice::session {

struct Quality {
  uint64_t predictions = 0;     // positions that were judged by the token that follows
  double perplexity = 0;        // exp of the mean negative log-likelihood
  double perplexity_error = 0;  // its standard error over the predictions
  // Against the float model, 0 without one; over the same positions.
  double float_perplexity = 0;
  double mean_kl = 0;  // KL(float || executor) of the next-token distributions, nats
  double max_kl = 0;
  double same_top = 0;  // share of positions with the same most likely token
};

// Every window is a sequence of its own; all its positions but the last are judged. `model`, if
// given, is the float model that the executor's pack was made from; `threads` (0: all) are for it.
// Errors: no predictions, a token outside the vocabulary, a float model of another vocabulary or
// (with one) an empty window, the executor's.
base::Result<Quality> Evaluate(exec::Executor& executor,
                               std::span<const std::vector<int32_t>> windows,
                               const model::Model* model, unsigned threads,
                               const base::Progress& progress);

}  // namespace sluice::session
