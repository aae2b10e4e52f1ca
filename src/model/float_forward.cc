#include "model/float_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "model/gemm.h"

namespace sluice::model {
namespace {

constexpr size_t kReadRows = 128;   // rows dequantised by one work item
constexpr size_t kQueryRows = 64;   // queries that share one product with the keys
constexpr size_t kTokenRows = 512;  // tokens whose gate and up values are held at once
// Logits held at once, in floats: 128 MB.
constexpr size_t kLogitFloats = size_t{1} << 25;
constexpr size_t kHeadRows = 8192;  // rows of the head in float at once

void ReadParallel(const FloatTensor& tensor, uint64_t first, uint64_t count, float* out,
                  base::ThreadPool& pool) {
  const uint64_t cols = tensor.cols();
  pool.ParallelFor((count + kReadRows - 1) / kReadRows, [&](size_t block) {
    const uint64_t row = block * kReadRows;
    const uint64_t rows = std::min<uint64_t>(kReadRows, count - row);
    tensor.ReadRows(first + row, rows, {out + row * cols, rows * cols});
  });
}

void RmsNorm(const float* x, const std::vector<float>& gain, float eps, float* out) {
  double sum = 0;
  for (size_t i = 0; i < gain.size(); ++i) sum += double{x[i]} * double{x[i]};
  const auto scale =
      static_cast<float>(1 / std::sqrt(sum / static_cast<double>(gain.size()) + double{eps}));
  for (size_t i = 0; i < gain.size(); ++i) out[i] = x[i] * scale * gain[i];
}

// y (tokens, out) = x (tokens, in) w^T, w (out, in).
void Multiply(base::ThreadPool& pool, const float* x, size_t tokens, size_t in,
              const std::vector<float>& w, float* y, bool accumulate = false) {
  const size_t out = w.size() / in;
  Gemm(&pool, tokens, out, in, {x, in, 1}, {w.data(), 1, in}, y, out, {.accumulate = accumulate});
}

float Silu(float x) { return x / (1 + std::exp(-x)); }

}  // namespace

std::vector<float>& LayerWeights::Of(Role role) {
  switch (role) {
    case Role::kAttnNorm:
      return attn_norm;
    case Role::kQ:
      return q;
    case Role::kK:
      return k;
    case Role::kV:
      return v;
    case Role::kQBias:
      return q_bias;
    case Role::kKBias:
      return k_bias;
    case Role::kVBias:
      return v_bias;
    case Role::kQNorm:
      return q_norm;
    case Role::kKNorm:
      return k_norm;
    case Role::kO:
      return o;
    case Role::kFfnNorm:
      return ffn_norm;
    case Role::kGate:
      return gate;
    case Role::kUp:
      return up;
    case Role::kDown:
      return down;
    default:
      SLUICE_CHECK(false);  // a role of a layer
      return down;
  }
}

const std::vector<float>& LayerWeights::Of(Role role) const {
  return const_cast<LayerWeights*>(this)->Of(role);
}

LayerWeights ReadLayer(const Model& model, uint32_t layer, base::ThreadPool& pool) {
  LayerWeights weights;
  for (const Role role : LayerRoles()) {
    const FloatTensor* tensor = model.Find(role, layer);
    if (tensor == nullptr) continue;
    std::vector<float>& values = weights.Of(role);
    values.resize(tensor->rows() * tensor->cols());
    ReadParallel(*tensor, 0, tensor->rows(), values.data(), pool);
  }
  return weights;
}

FloatStream::FloatStream(const Model& model, base::ThreadPool& pool)
    : model_(&model), pool_(&pool) {}

base::Result<FloatStream> FloatStream::Create(const Model& model,
                                              std::span<const std::vector<int32_t>> windows,
                                              base::ThreadPool& pool,
                                              const FloatTensor* embedding) {
  const Hyper& hyper = model.hyper;
  FloatStream stream(model, pool);
  size_t longest = 0;
  stream.starts_.push_back(0);
  for (const auto& window : windows) {
    if (window.empty()) return base::Fail(model.name, "a window of 0 tokens", "at least 1");
    for (const int32_t token : window) {
      if (token < 0 || static_cast<uint32_t>(token) >= hyper.vocab) {
        return base::Fail(model.name, fmt::format("token {}", token),
                          fmt::format("0 to {}", hyper.vocab - 1));
      }
    }
    longest = std::max(longest, window.size());
    stream.starts_.push_back(stream.starts_.back() + window.size());
  }
  stream.tokens_ = stream.starts_.back();

  stream.residual_.resize(stream.tokens_ * hyper.hidden);
  const FloatTensor& table = embedding ? *embedding : model.Get(Role::kEmbedding);
  pool.ParallelFor(windows.size(), [&](size_t w) {
    for (size_t i = 0; i < windows[w].size(); ++i) {
      table.ReadRows(
          static_cast<uint64_t>(windows[w][i]), 1,
          {stream.residual_.data() + (stream.starts_[w] + i) * hyper.hidden, hyper.hidden});
    }
  });

  const size_t half = hyper.head_dim / 2;
  stream.cosines_.resize(longest * half);
  stream.sines_.resize(longest * half);
  for (size_t i = 0; i < half; ++i) {
    double frequency =
        std::pow(double{hyper.rope_base}, -2.0 * static_cast<double>(i) / double(hyper.head_dim));
    if (!hyper.rope_factors.empty()) frequency /= double{hyper.rope_factors[i]};
    for (size_t position = 0; position < longest; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      stream.cosines_[position * half + i] = static_cast<float>(std::cos(angle));
      stream.sines_[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return stream;
}

Rows FloatStream::AttentionInput(const LayerWeights& w) {
  const size_t hidden = model_->hyper.hidden;
  normed_.resize(tokens_ * hidden);
  pool_->ParallelFor(windows(), [&](size_t window) {
    for (size_t t = starts_[window]; t < starts_[window + 1]; ++t) {
      RmsNorm(&residual_[t * hidden], w.attn_norm, model_->hyper.rms_eps, &normed_[t * hidden]);
    }
  });
  return {normed_.data(), tokens_, hidden};
}

Rows FloatStream::Attention(const LayerWeights& w) {
  const Hyper& hyper = model_->hyper;
  const size_t dim = hyper.head_dim;
  const size_t half = dim / 2;
  const size_t q_cols = hyper.n_heads * dim;
  const size_t kv_cols = hyper.n_kv_heads * dim;
  const auto project = [&](const std::vector<float>& matrix, size_t cols, std::vector<float>& out) {
    out.resize(tokens_ * cols);
    Multiply(*pool_, normed_.data(), tokens_, hyper.hidden, matrix, out.data());
  };
  project(w.q, q_cols, q_);
  project(w.k, kv_cols, k_);
  project(w.v, kv_cols, v_);

  const auto add_bias = [](float* x, const std::vector<float>& bias) {
    for (size_t i = 0; i < bias.size(); ++i) x[i] += bias[i];
  };
  const auto prepare = [&](float* x, size_t heads, const std::vector<float>& norm,
                           size_t position) {
    const float* cosine = &cosines_[position * half];
    const float* sine = &sines_[position * half];
    for (size_t h = 0; h < heads; ++h) {
      float* head = x + h * dim;
      if (!norm.empty()) RmsNorm(head, norm, hyper.rms_eps, head);
      for (size_t i = 0; i < half; ++i) {
        const float first = head[i];
        const float second = head[i + half];
        head[i] = first * cosine[i] - second * sine[i];
        head[i + half] = second * cosine[i] + first * sine[i];
      }
    }
  };
  pool_->ParallelFor(windows(), [&](size_t window) {
    for (size_t t = starts_[window]; t < starts_[window + 1]; ++t) {
      const size_t position = t - starts_[window];
      add_bias(&q_[t * q_cols], w.q_bias);
      add_bias(&k_[t * kv_cols], w.k_bias);
      add_bias(&v_[t * kv_cols], w.v_bias);
      prepare(&q_[t * q_cols], hyper.n_heads, w.q_norm, position);
      prepare(&k_[t * kv_cols], hyper.n_kv_heads, w.k_norm, position);
    }
  });

  mixed_.resize(tokens_ * q_cols);
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  pool_->ParallelFor(windows() * hyper.n_heads, [&](size_t item) {
    const size_t window = item / hyper.n_heads;
    const size_t head = item % hyper.n_heads;
    const size_t kv_head = head / (hyper.n_heads / hyper.n_kv_heads);
    const size_t start = starts_[window];
    const size_t length = starts_[window + 1] - start;
    const float* keys = &k_[start * kv_cols + kv_head * dim];
    const float* values = &v_[start * kv_cols + kv_head * dim];
    thread_local std::vector<float> scores;
    scores.resize(kQueryRows * length);
    for (size_t first = 0; first < length; first += kQueryRows) {
      const size_t rows = std::min(kQueryRows, length - first);
      const size_t seen = first + rows;  // keys that the block's last query sees
      const size_t at = (start + first) * q_cols + head * dim;
      Gemm(nullptr, rows, seen, dim, {&q_[at], q_cols, 1}, {keys, 1, kv_cols}, scores.data(), seen);
      for (size_t r = 0; r < rows; ++r) {
        float* row = &scores[r * seen];
        const size_t count = first + r + 1;
        const float peak = *std::max_element(row, row + count);
        double sum = 0;
        for (size_t i = 0; i < count; ++i) {
          row[i] = std::exp((row[i] - peak) * scale);
          sum += double{row[i]};
        }
        const auto share = static_cast<float>(1 / sum);
        for (size_t i = 0; i < count; ++i) row[i] *= share;
        std::fill(row + count, row + seen, 0.0f);
      }
      Gemm(nullptr, rows, dim, seen, {scores.data(), seen, 1}, {values, kv_cols, 1}, &mixed_[at],
           q_cols);
    }
  });
  return {mixed_.data(), tokens_, q_cols};
}

void FloatStream::AddAttention(const LayerWeights& w) {
  const Hyper& hyper = model_->hyper;
  Multiply(*pool_, mixed_.data(), tokens_, size_t{hyper.n_heads} * hyper.head_dim, w.o,
           residual_.data(), true);
}

Rows FloatStream::FfnInput(const LayerWeights& w) {
  const size_t hidden = model_->hyper.hidden;
  pool_->ParallelFor(windows(), [&](size_t window) {
    for (size_t t = starts_[window]; t < starts_[window + 1]; ++t) {
      RmsNorm(&residual_[t * hidden], w.ffn_norm, model_->hyper.rms_eps, &normed_[t * hidden]);
    }
  });
  return {normed_.data(), tokens_, hidden};
}

Rows FloatStream::Gate(const LayerWeights& w) {
  const size_t hidden = model_->hyper.hidden;
  const size_t ffn = model_->hyper.ffn;
  mixed_.resize(tokens_ * ffn);
  wide_.resize(std::min(tokens_, kTokenRows) * ffn);
  for (size_t first = 0; first < tokens_; first += kTokenRows) {
    const size_t rows = std::min(kTokenRows, tokens_ - first);
    float* gate = &mixed_[first * ffn];
    Multiply(*pool_, &normed_[first * hidden], rows, hidden, w.gate, gate);
    Multiply(*pool_, &normed_[first * hidden], rows, hidden, w.up, wide_.data());
    pool_->ParallelFor(rows, [&](size_t row) {
      for (size_t i = row * ffn; i < (row + 1) * ffn; ++i) gate[i] = Silu(gate[i]) * wide_[i];
    });
  }
  return {mixed_.data(), tokens_, ffn};
}

void FloatStream::AddFfn(const LayerWeights& w) {
  Multiply(*pool_, mixed_.data(), tokens_, model_->hyper.ffn, w.down, residual_.data(), true);
}

Rows FloatStream::Final() {
  const size_t hidden = model_->hyper.hidden;
  const std::vector<float> gain = model_->ReadAll(Role::kOutputNorm);
  normed_.resize(tokens_ * hidden);
  pool_->ParallelFor(windows(), [&](size_t window) {
    for (size_t t = starts_[window]; t < starts_[window + 1]; ++t) {
      RmsNorm(&residual_[t * hidden], gain, model_->hyper.rms_eps, &normed_[t * hidden]);
    }
  });
  return {normed_.data(), tokens_, hidden};
}

Rows FloatStream::Queries() const {
  return {q_.data(), tokens_, size_t{model_->hyper.n_heads} * model_->hyper.head_dim};
}
Rows FloatStream::Keys() const {
  return {k_.data(), tokens_, size_t{model_->hyper.n_kv_heads} * model_->hyper.head_dim};
}
Rows FloatStream::Values() const {
  return {v_.data(), tokens_, size_t{model_->hyper.n_kv_heads} * model_->hyper.head_dim};
}
Rows FloatStream::Residual() const { return {residual_.data(), tokens_, model_->hyper.hidden}; }

base::Status FloatStream::Logits(const UseLogits& use, const FloatTensor* head) {
  const FloatTensor& table = head ? *head : model_->Head();
  const size_t hidden = model_->hyper.hidden;
  const size_t vocab = table.rows();
  const size_t chunk = std::clamp<size_t>(kLogitFloats / vocab, 1, kTokenRows);
  std::vector<float> logits(std::min(chunk, tokens_) * vocab);
  std::vector<float> part(std::min(kHeadRows, vocab) * hidden);
  // Chunks do not respect the borders of windows; a chunk is handed on in pieces that do.
  size_t window = 0;
  for (size_t first = 0; first < tokens_; first += chunk) {
    const size_t rows = std::min(chunk, tokens_ - first);
    for (size_t row = 0; row < vocab; row += kHeadRows) {
      const size_t count = std::min(kHeadRows, vocab - row);
      ReadParallel(table, row, count, part.data(), *pool_);
      Gemm(pool_, rows, count, hidden, {&normed_[first * hidden], hidden, 1},
           {part.data(), 1, hidden}, &logits[row], vocab);
    }
    for (size_t at = first; at < first + rows;) {
      while (starts_[window + 1] <= at) ++window;
      const size_t end = std::min(starts_[window + 1], first + rows);
      SLUICE_TRY_VOID(
          use(window, at - starts_[window], Rows{&logits[(at - first) * vocab], end - at, vocab}));
      at = end;
    }
  }
  return {};
}

base::Status FloatForward(const Model& model, std::span<const std::vector<int32_t>> windows,
                          base::ThreadPool& pool, const FloatStream::UseLogits& use,
                          const std::function<void(uint32_t layer, LayerWeights&)>& replace,
                          const base::Progress& progress) {
  SLUICE_TRY(FloatStream stream, FloatStream::Create(model, windows, pool));
  for (uint32_t layer = 0; layer < model.hyper.n_layers; ++layer) {
    if (progress) progress("layers", layer, model.hyper.n_layers);
    LayerWeights weights = ReadLayer(model, layer, pool);
    if (replace) replace(layer, weights);
    stream.AttentionInput(weights);
    stream.Attention(weights);
    stream.AddAttention(weights);
    stream.FfnInput(weights);
    stream.Gate(weights);
    stream.AddFfn(weights);
  }
  if (progress) progress("layers", model.hyper.n_layers, model.hyper.n_layers);
  stream.Final();
  return stream.Logits(use);
}

}  // namespace sluice::model
