#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace sluice::model {
namespace {

constexpr std::array kFamilies = {
    Family{"llama", false, false, true},
    Family{"qwen2", true, false, false},
    Family{"qwen3", false, true, false},
};

constexpr std::array kLayerRoles = {
    Role::kAttnNorm, Role::kQ,     Role::kK,     Role::kV,     Role::kQBias,
    Role::kKBias,    Role::kVBias, Role::kQNorm, Role::kKNorm, Role::kO,
    Role::kFfnNorm,  Role::kGate,  Role::kUp,    Role::kDown,
};
constexpr std::array kGlobalRoles = {Role::kEmbedding, Role::kOutputNorm, Role::kHead};

}  // namespace

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kEmbedding:
      return "embedding";
    case Role::kAttnNorm:
      return "attn_norm";
    case Role::kQ:
      return "q";
    case Role::kK:
      return "k";
    case Role::kV:
      return "v";
    case Role::kQBias:
      return "q_bias";
    case Role::kKBias:
      return "k_bias";
    case Role::kVBias:
      return "v_bias";
    case Role::kQNorm:
      return "q_norm";
    case Role::kKNorm:
      return "k_norm";
    case Role::kO:
      return "o";
    case Role::kFfnNorm:
      return "ffn_norm";
    case Role::kGate:
      return "gate";
    case Role::kUp:
      return "up";
    case Role::kDown:
      return "down";
    case Role::kOutputNorm:
      return "output_norm";
    case Role::kHead:
      return "head";
  }
  return "?";
}

std::span<const Family> Families() { return kFamilies; }
std::span<const Role> LayerRoles() { return kLayerRoles; }
std::span<const Role> GlobalRoles() { return kGlobalRoles; }

const Family* FindFamily(std::string_view name) {
  const auto it = std::ranges::find(kFamilies, name, &Family::name);
  return it == kFamilies.end() ? nullptr : &*it;
}

MemoryTensor::MemoryTensor(uint64_t rows, uint64_t cols, std::vector<float> values)
    : FloatTensor(rows, cols), values_(std::move(values)) {
  SLUICE_CHECK(values_.size() == rows * cols);
}

void MemoryTensor::ReadRows(uint64_t first, uint64_t count, std::span<float> out) const {
  SLUICE_CHECK(first + count <= rows() && out.size() == count * cols());
  std::copy_n(values_.begin() + static_cast<ptrdiff_t>(first * cols()), count * cols(),
              out.begin());
}

void Model::Add(Role role, uint32_t layer, std::shared_ptr<const FloatTensor> tensor) {
  tensors_[{role, layer}] = std::move(tensor);
}

const FloatTensor* Model::Find(Role role, uint32_t layer) const {
  const auto it = tensors_.find({role, layer});
  return it == tensors_.end() ? nullptr : it->second.get();
}

const FloatTensor& Model::Get(Role role, uint32_t layer) const {
  const FloatTensor* tensor = Find(role, layer);
  SLUICE_CHECK(tensor != nullptr);
  return *tensor;
}

const FloatTensor& Model::Head() const { return Get(hyper.tied ? Role::kEmbedding : Role::kHead); }

std::vector<float> Model::ReadAll(Role role, uint32_t layer) const {
  const FloatTensor& tensor = Get(role, layer);
  std::vector<float> values(tensor.rows() * tensor.cols());
  tensor.ReadRows(0, tensor.rows(), values);
  return values;
}

std::pair<uint64_t, uint64_t> ExpectedShape(const Hyper& h, Role role) {
  const uint64_t q = uint64_t{h.n_heads} * h.head_dim;
  const uint64_t kv = uint64_t{h.n_kv_heads} * h.head_dim;
  const bool bias = h.family->qkv_bias;
  const bool norm = h.family->qk_norm;
  const std::pair<uint64_t, uint64_t> none{0, 0};
  switch (role) {
    case Role::kEmbedding:
      return {h.vocab, h.hidden};
    case Role::kAttnNorm:
    case Role::kFfnNorm:
    case Role::kOutputNorm:
      return {1, h.hidden};
    case Role::kQ:
      return {q, h.hidden};
    case Role::kK:
    case Role::kV:
      return {kv, h.hidden};
    case Role::kQBias:
      return bias ? std::pair<uint64_t, uint64_t>{1, q} : none;
    case Role::kKBias:
    case Role::kVBias:
      return bias ? std::pair<uint64_t, uint64_t>{1, kv} : none;
    case Role::kQNorm:
    case Role::kKNorm:
      return norm ? std::pair<uint64_t, uint64_t>{1, h.head_dim} : none;
    case Role::kO:
      return {h.hidden, q};
    case Role::kGate:
    case Role::kUp:
      return {h.ffn, h.hidden};
    case Role::kDown:
      return {h.hidden, h.ffn};
    case Role::kHead:
      return h.tied ? none : std::pair<uint64_t, uint64_t>{h.vocab, h.hidden};
  }
  return none;
}

base::Status Model::Validate() const {
  SLUICE_CHECK(hyper.family != nullptr);
  const auto range = [&](const char* what, uint64_t value, uint64_t low,
                         uint64_t high) -> base::Status {
    if (value >= low && value <= high) return {};
    return base::Fail(name, fmt::format("{} is {}", what, value),
                      fmt::format("{} to {}", low, high));
  };
  // Far above any model of today; they keep every product of two dimensions within 64 bits and a
  // lying header from asking for absurd memory.
  SLUICE_TRY_VOID(range("number of layers", hyper.n_layers, 1, 1024));
  SLUICE_TRY_VOID(range("hidden size", hyper.hidden, 1, 1u << 16));
  SLUICE_TRY_VOID(range("feed-forward size", hyper.ffn, 1, 1u << 18));
  SLUICE_TRY_VOID(range("number of heads", hyper.n_heads, 1, 1024));
  SLUICE_TRY_VOID(range("number of KV heads", hyper.n_kv_heads, 1, hyper.n_heads));
  SLUICE_TRY_VOID(range("head size", hyper.head_dim, 2, 256));
  SLUICE_TRY_VOID(range("vocabulary size", hyper.vocab, 1, 1u << 20));
  SLUICE_TRY_VOID(range("context length", hyper.context, 1, 1u << 24));
  if (hyper.head_dim % 2 != 0) {
    return base::Fail(name, fmt::format("head size is {}", hyper.head_dim), "an even number");
  }
  if (hyper.n_heads % hyper.n_kv_heads != 0) {
    return base::Fail(name,
                      fmt::format("{} heads share {} KV heads", hyper.n_heads, hyper.n_kv_heads),
                      "a whole number of heads for each KV head");
  }
  if (!(hyper.rms_eps > 0 && hyper.rms_eps < 1)) {
    return base::Fail(name, fmt::format("RMSNorm epsilon is {}", hyper.rms_eps),
                      "above 0 and below 1");
  }
  if (!(hyper.rope_base > 1 && std::isfinite(hyper.rope_base))) {
    return base::Fail(name, fmt::format("RoPE base is {}", hyper.rope_base), "above 1");
  }
  if (!hyper.rope_factors.empty() && hyper.rope_factors.size() != hyper.head_dim / 2) {
    return base::Fail(name, fmt::format("{} RoPE factors", hyper.rope_factors.size()),
                      fmt::format("{}", hyper.head_dim / 2));
  }
  for (const float factor : hyper.rope_factors) {
    if (!(factor > 0 && std::isfinite(factor))) {
      return base::Fail(name, fmt::format("a RoPE factor is {}", factor), "above 0");
    }
  }

  const auto check = [&](Role role, uint32_t layer) -> base::Status {
    const auto [rows, cols] = ExpectedShape(hyper, role);
    const FloatTensor* tensor = Find(role, layer);
    const std::string object =
        fmt::format("{}: tensor {} of layer {}", name, RoleName(role), layer);
    if (rows == 0) {
      if (tensor == nullptr) return {};
      return base::Fail(object, "present",
                        fmt::format("none in the {} family", hyper.family->name));
    }
    if (tensor == nullptr) return base::Fail(object, "missing");
    if (tensor->rows() != rows || tensor->cols() != cols) {
      return base::Fail(object, fmt::format("{} x {}", tensor->rows(), tensor->cols()),
                        fmt::format("{} x {}", rows, cols));
    }
    return {};
  };
  for (const Role role : kGlobalRoles) SLUICE_TRY_VOID(check(role, 0));
  for (uint32_t layer = 0; layer < hyper.n_layers; ++layer) {
    for (const Role role : kLayerRoles) SLUICE_TRY_VOID(check(role, layer));
  }
  return {};
}

}  // namespace sluice::model
