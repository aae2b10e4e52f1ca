// Which channels share a group.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "model/permuted.h"

namespace sluice::quant {

// An order in which channels of like magnitude are neighbours: hidden channels by their mean log
// magnitude behind all norms, feed-forward channels of a layer by theirs. A group's activations
// share one power-of-two exponent and its weights one sub-scale, so both lose less when its
// channels are alike. Measured on the first `max_tokens` tokens of the windows.
base::Result<model::ChannelOrder> OrderChannels(const model::Model& model,
                                                std::vector<std::vector<int32_t>> windows,
                                                uint64_t max_tokens, unsigned threads,
                                                const base::Progress& progress);

}  // namespace sluice::quant
