// The unquantised model in float32: the judge of quality and the source of calibration.
//
// Layer-major: all windows go through one layer before the next one's weights are read, so memory
// holds one layer and the hidden states of all windows. Results do not depend on the number of
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "model/model.h"

namespace sluice::model {

// The tensors of one layer, row-major as in Role; those that the family lacks are empty.
struct LayerWeights {
  std::vector<float> attn_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, o;
  std::vector<float> ffn_norm, gate, up, down;

  std::vector<float>& Of(Role role);
  const std::vector<float>& Of(Role role) const;
};
LayerWeights ReadLayer(const Model& model, uint32_t layer, base::ThreadPool& pool);

// Rows of floats that someone else owns: [rows][cols].
struct Rows {
  const float* data = nullptr;
  size_t rows = 0;
  size_t cols = 0;
  std::span<const float> operator[](size_t row) const { return {data + row * cols, cols}; }
};

// The hidden states of all windows on their way through the model, one step at a time, so that a
// caller may look at a matrix's input, and exchange the matrix, before it is multiplied. Tokens of
// all windows stand one after the other. For each layer in turn:
//   Rows x = AttentionInput(w);  // what q, k and v multiply
//   Rows y = Attention(w);       // uses q, k, v; what o multiplies
//   AddAttention(w);             // uses o
//   Rows z = FfnInput(w);        // what gate and up multiply
//   Rows u = Gate(w);            // uses gate, up; what down multiplies
//   AddFfn(w);                   // uses down
// and then Rows f = Final(), Logits(...). The Rows stay valid until the next step.
class FloatStream {
 public:
  // Every window must hold at least one token, and every token must be in [0, vocab).
  // `embedding` stands for the model's own table where given.
  static base::Result<FloatStream> Create(const Model& model,
                                          std::span<const std::vector<int32_t>> windows,
                                          base::ThreadPool& pool,
                                          const FloatTensor* embedding = nullptr);

  Rows AttentionInput(const LayerWeights& w);
  Rows Attention(const LayerWeights& w);
  void AddAttention(const LayerWeights& w);
  Rows FfnInput(const LayerWeights& w);
  Rows Gate(const LayerWeights& w);
  void AddFfn(const LayerWeights& w);
  Rows Final();  // after the output norm: what the head multiplies

  // After Attention: q, k, v of every token, after bias, norm and RoPE (v: after bias).
  Rows Queries() const;  // cols n_heads * head_dim
  Rows Keys() const;     // cols n_kv_heads * head_dim
  Rows Values() const;
  // The residual stream as it stands.
  Rows Residual() const;
  // Window w holds tokens [WindowStart(w), WindowStart(w + 1)).
  size_t windows() const { return starts_.size() - 1; }
  size_t WindowStart(size_t window) const { return starts_[window]; }

  // Logits of tokens in chunks; after Final. `use` gets a window, the position within it of the
  // first of logits.rows tokens, and [rows][vocab] logits; called in order on this thread. `head`
  // stands for the model's own head where given.
  using UseLogits = std::function<base::Status(size_t window, size_t position, Rows logits)>;
  base::Status Logits(const UseLogits& use, const FloatTensor* head = nullptr);

 private:
  FloatStream(const Model& model, base::ThreadPool& pool);

  const Model* model_;
  base::ThreadPool* pool_;
  std::vector<size_t> starts_;  // [windows + 1]
  size_t tokens_ = 0;
  std::vector<float> cosines_, sines_;  // [longest window][head_dim / 2]
  std::vector<float> residual_;         // [tokens][hidden]
  std::vector<float> normed_;           // [tokens][hidden]
  std::vector<float> q_, k_, v_;        // [tokens][heads * head_dim]
  std::vector<float> mixed_;            // [tokens][n_heads * head_dim], or [tokens][ffn]
  std::vector<float> wide_;             // scratch
};

// The whole model over `windows`: every layer, then the logits as FloatStream::Logits gives them.
// `replace`, if given, is called with each layer's weights before they are used.
base::Status FloatForward(const Model& model, std::span<const std::vector<int32_t>> windows,
                          base::ThreadPool& pool, const FloatStream::UseLogits& use,
                          const std::function<void(uint32_t layer, LayerWeights&)>& replace = {},
                          const base::Progress& progress = {});

}  // namespace sluice::model
