#include "quant/channel_scales.h"

#include <algorithm>
#include <cmath>

namespace sluice::quant {
namespace {

// On SmolLM2-135M 0.25 lowered the mean KL divergence on more texts than 0.5 did.
constexpr float kPower = 0.25f;
// How far a channel may stand from the median, before the power.
constexpr float kMostApart = 16;

// Root mean square of each column.
std::vector<float> Magnitudes(model::Rows x, base::ThreadPool& pool) {
  constexpr size_t kColumns = 64;
  std::vector<float> result(x.cols);
  pool.ParallelFor((x.cols + kColumns - 1) / kColumns, [&](size_t block) {
    const size_t first = block * kColumns;
    const size_t count = std::min(kColumns, x.cols - first);
    double sums[kColumns] = {};
    for (size_t t = 0; t < x.rows; ++t) {
      const float* row = x.data + t * x.cols + first;
      for (size_t c = 0; c < count; ++c) sums[c] += double{row[c]} * double{row[c]};
    }
    for (size_t c = 0; c < count; ++c) {
      result[first + c] = static_cast<float>(std::sqrt(sums[c] / static_cast<double>(x.rows)));
    }
  });
  return result;
}

ChannelScales FromMagnitudes(std::vector<float> magnitudes) {
  // MeasureInput reports what is not finite.
  if (!std::ranges::all_of(magnitudes, [](float m) { return std::isfinite(m); })) return {};
  std::vector<float> sorted = magnitudes;
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  const float median = *middle;
  if (median == 0) return {};
  for (float& m : magnitudes) {
    m = std::pow(std::clamp(m / median, 1 / kMostApart, kMostApart), kPower);
  }
  return magnitudes;
}

}  // namespace

ChannelScales MakeChannelScales(model::Rows x, base::ThreadPool& pool) {
  return FromMagnitudes(Magnitudes(x, pool));
}

ChannelScales MakeValueScales(model::Rows x, const model::Hyper& hyper, base::ThreadPool& pool) {
  const std::vector<float> all = Magnitudes(x, pool);
  const size_t d = hyper.head_dim;
  const size_t per_head = hyper.n_heads / hyper.n_kv_heads;
  std::vector<float> shared(hyper.n_kv_heads * d);
  for (size_t i = 0; i < shared.size(); ++i) {
    double product = 1;
    for (size_t q = 0; q < per_head; ++q)
      product *= double{all[(i / d * per_head + q) * d + i % d]};
    shared[i] = static_cast<float>(std::pow(product, 1.0 / static_cast<double>(per_head)));
  }
  return FromMagnitudes(std::move(shared));
}

ChannelScales PerQueryHead(const ChannelScales& values, const model::Hyper& hyper) {
  if (values.empty()) return {};
  const size_t d = hyper.head_dim;
  const size_t per_head = hyper.n_heads / hyper.n_kv_heads;
  ChannelScales result(hyper.n_heads * d);
  for (size_t i = 0; i < result.size(); ++i) result[i] = values[i / (per_head * d) * d + i % d];
  return result;
}

}  // namespace sluice::quant
