// Channel scales: the channels of a matrix's input are divided, and the matrix's columns
// multiplied, by a power of the channel's magnitude on the calibration text, as AWQ does it (Lin et
// al. 2023, arXiv 2306.00978). Strong channels get finer weights, and groups of activations flatter
// values. It costs nothing at run time: the division goes into the gains of the norm before, or
// into the rows of the matrix before (v for o, up for down).
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "model/float_forward.h"

namespace sluice::quant {

// One positive factor per channel; empty: all 1.
using ChannelScales = std::vector<float>;

// Of the columns of `x`.
ChannelScales MakeChannelScales(model::Rows x, base::ThreadPool& pool);

// Of the rows of v, [n_kv_heads * head_dim]: `x` is attention's output, [n_heads * head_dim] wide,
// where the query heads of one KV head share a scale.
ChannelScales MakeValueScales(model::Rows x, const model::Hyper& hyper, base::ThreadPool& pool);
// The scales of v's rows as the columns of o have them.
ChannelScales PerQueryHead(const ChannelScales& values, const model::Hyper& hyper);

}  // namespace sluice::quant
