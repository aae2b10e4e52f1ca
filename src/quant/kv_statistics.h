// The steps by which the quantiser fills a Calibration from the float model's activations.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "model/float_forward.h"
#include "quant/calibration.h"

namespace sluice::quant {

// After each half of a layer.
void MeasureResidual(const model::FloatStream& stream, base::ThreadPool& pool, Calibration& result);
// After FloatStream::Attention of `layer`.
void MeasureAttention(const model::FloatStream& stream, const model::Hyper& hyper, uint32_t layer,
                      base::ThreadPool& pool, Calibration& result);
// After all layers: decides k_wide on k_score_error.
void ChooseWideHeads(Calibration& result);

}  // namespace sluice::quant
