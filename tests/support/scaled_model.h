// Small random models whose values keep the proportions of real ones: activations stay near 1,
// attention is neither flat nor a single position, and every tensor matters to the logits.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "model/model.h"
#include "quant/recipe.h"
#include "support/tiny_model.h"

namespace sluice::testing {

struct ScaledShape {
  std::string_view family = "llama";
  uint32_t hidden = 64;
  uint32_t ffn = 96;
  uint32_t n_heads = 4;
  uint32_t n_kv_heads = 2;
  uint32_t head_dim = 16;
  uint32_t vocab = 288;
  bool tied = true;
};

inline model::Hyper ScaledHyper(const ScaledShape& shape) {
  model::Hyper h = TinyHyper(shape.family);
  h.hidden = shape.hidden;
  h.ffn = shape.ffn;
  h.n_heads = shape.n_heads;
  h.n_kv_heads = shape.n_kv_heads;
  h.head_dim = shape.head_dim;
  h.vocab = shape.vocab;
  h.tied = shape.tied;
  h.context = 64;
  h.rope_base = 100;  // so that within a few dozen positions every pair turns
  return h;
}

// (mean, standard deviation) of a tensor's values.
inline std::pair<double, double> ScaledMoments(const model::Hyper& h, model::Role role) {
  using enum model::Role;
  const double in = std::sqrt(static_cast<double>(model::ExpectedShape(h, role).second));
  switch (role) {
    case kEmbedding:
    case kHead:
      return {0, 2 / in};  // logits of standard deviation 2
    case kAttnNorm:
    case kFfnNorm:
    case kOutputNorm:
      return {1, 0.25};
    case kQNorm:
    case kKNorm:
      return {1, 0.3};
    case kQBias:
      return {0, 0.7};
    case kKBias:
      return {0.5, 0.7};
    case kVBias:
      return {0, 0.5};
    case kQ:
    case kK:
      return {0, 1 / in};
    default:
      return {0, 1 / in};
  }
}

// With hyperparameters and tokenizer in its metadata (vocab of at least 265).
inline model::Model ScaledModel(const model::Hyper& h, uint64_t seed) {
  model::Model model;
  model.hyper = h;
  model.name = "scaled";
  if (h.vocab >= 265) model.metadata = TinyMetadata(h);
  for (TinyTensor& tensor : TinyTensors(h, seed)) {
    const auto [mean, deviation] = ScaledMoments(h, tensor.role);
    for (float& value : tensor.values) value = static_cast<float>(mean + deviation * value);
    model.Add(
        tensor.role, tensor.layer,
        std::make_shared<model::MemoryTensor>(tensor.rows, tensor.cols, std::move(tensor.values)));
  }
  return model;
}

// All matrices in one format.
inline quant::Recipe UniformRecipe(uint8_t bits, uint8_t group,
                                   quant::Codebook codebook = quant::Codebook::kSluice16) {
  quant::Recipe recipe;
  recipe.name = "uniform";
  recipe.group = group;
  recipe.default_format = {bits, group, bits == 8 ? quant::Codebook::kLinear : codebook};
  return recipe;
}

inline std::vector<std::vector<int32_t>> RandomWindows(uint32_t vocab, size_t windows,
                                                       size_t length, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<int32_t>> result(windows, std::vector<int32_t>(length));
  for (auto& window : result) {
    for (int32_t& token : window) token = static_cast<int32_t>(random() % vocab);
  }
  return result;
}

}  // namespace sluice::testing
