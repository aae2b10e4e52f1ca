#include "quant/channel_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/thread_pool.h"
#include "model/float_forward.h"

namespace sluice::quant {
namespace {

// Adds log2 of each column's root mean square.
void AddMagnitudes(model::Rows x, std::vector<double>& sums) {
  std::vector<double> squares(x.cols);
  for (size_t row = 0; row < x.rows; ++row) {
    for (size_t c = 0; c < x.cols; ++c) {
      const double value = static_cast<double>(x.data[row * x.cols + c]);
      squares[c] += value * value;
    }
  }
  // A channel that is silent here counts as very small, not as minus infinity.
  for (size_t c = 0; c < x.cols; ++c) {
    sums[c] += 0.5 * std::log2(squares[c] / static_cast<double>(x.rows) + 1e-30);
  }
}

// Indices by falling magnitude; equals stay in order.
std::vector<uint32_t> ByMagnitude(const std::vector<double>& magnitudes) {
  std::vector<uint32_t> order(magnitudes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](uint32_t i) { return magnitudes[i]; });
  return order;
}

}  // namespace

base::Result<model::ChannelOrder> OrderChannels(const model::Model& model,
                                                std::vector<std::vector<int32_t>> windows,
                                                uint64_t max_tokens, unsigned threads,
                                                const base::Progress& progress) {
  uint64_t tokens = 0;
  std::erase_if(windows, [&](const std::vector<int32_t>& window) {
    const bool enough = tokens >= max_tokens;
    tokens += window.size();
    return enough;
  });
  base::ThreadPool pool(threads);
  SLUICE_TRY(auto stream, model::FloatStream::Create(model, windows, pool));
  model::ChannelOrder order;
  std::vector<double> hidden(model.hyper.hidden);
  for (uint32_t layer = 0; layer < model.hyper.n_layers; ++layer) {
    if (progress) progress("ordering channels", layer, model.hyper.n_layers);
    const model::LayerWeights w = model::ReadLayer(model, layer, pool);
    AddMagnitudes(stream.AttentionInput(w), hidden);
    stream.Attention(w);
    stream.AddAttention(w);
    AddMagnitudes(stream.FfnInput(w), hidden);
    std::vector<double> ffn(model.hyper.ffn);
    AddMagnitudes(stream.Gate(w), ffn);
    order.ffn.push_back(ByMagnitude(ffn));
    stream.AddFfn(w);
  }
  AddMagnitudes(stream.Final(), hidden);
  order.hidden = ByMagnitude(hidden);
  return order;
}

}  // namespace sluice::quant
