#include "formats/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/file_matrix.h"

namespace sluice::formats {
namespace {

using base::Fail;
using base::Printable;
using base::Result;
using model::Hyper;
using model::Role;

struct TensorName {
  std::string_view name;
  Role role;
};

constexpr std::array kGlobalNames = {
    TensorName{"token_embd.weight", Role::kEmbedding},
    TensorName{"output_norm.weight", Role::kOutputNorm},
    TensorName{"output.weight", Role::kHead},
};
// After "blk.N.".
constexpr std::array kLayerNames = {
    TensorName{"attn_norm.weight", Role::kAttnNorm}, TensorName{"attn_q.weight", Role::kQ},
    TensorName{"attn_k.weight", Role::kK},           TensorName{"attn_v.weight", Role::kV},
    TensorName{"attn_q.bias", Role::kQBias},         TensorName{"attn_k.bias", Role::kKBias},
    TensorName{"attn_v.bias", Role::kVBias},         TensorName{"attn_q_norm.weight", Role::kQNorm},
    TensorName{"attn_k_norm.weight", Role::kKNorm},  TensorName{"attn_output.weight", Role::kO},
    TensorName{"ffn_norm.weight", Role::kFfnNorm},   TensorName{"ffn_gate.weight", Role::kGate},
    TensorName{"ffn_up.weight", Role::kUp},          TensorName{"ffn_down.weight", Role::kDown},
};
constexpr std::string_view kRopeFreqs = "rope_freqs.weight";
// Old converters stored the rotation's inverse frequencies with every layer; they follow from
// rope.freq_base.
constexpr std::array<std::string_view, 2> kIgnoredLayerNames = {"attn_rot_embd.weight",
                                                                "attn_rot_embd"};

// Looks up a family's keys; errors name the file.
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view family) : file_(file), prefix_(family) {
    prefix_ += '.';
  }

  Result<std::optional<uint64_t>> Uint(std::string_view key) const {
    return Named(file_.metadata().GetUint(prefix_ + std::string(key)));
  }
  Result<std::optional<double>> Float(std::string_view key) const {
    return Named(file_.metadata().GetFloat(prefix_ + std::string(key)));
  }
  Result<const std::string*> String(std::string_view key) const {
    return Named(file_.metadata().GetString(prefix_ + std::string(key)));
  }
  // An integer of 32 bits; `fallback` where the key may be absent.
  Result<uint32_t> Uint32(std::string_view key, std::optional<uint64_t> fallback = {}) const {
    SLUICE_TRY(const auto found, Uint(key));
    const auto value = found ? found : fallback;
    if (!value) return Wrong(key, "missing", "an integer");
    if (*value > std::numeric_limits<uint32_t>::max()) {
      return Wrong(key, fmt::format("{}", *value), "a number of 32 bits");
    }
    return static_cast<uint32_t>(*value);
  }
  std::unexpected<base::Error> Wrong(std::string_view key, std::string got,
                                     std::string expected) const {
    return Fail(fmt::format("{}: metadata key {}{}", file_.name(), prefix_, key), std::move(got),
                std::move(expected));
  }

 private:
  template <typename T>
  Result<T> Named(Result<T> value) const {
    if (!value) return std::unexpected(value.error().In(file_.name()));
    return value;
  }

  const GgufFile& file_;
  std::string prefix_;
};

Result<const model::Family*> ReadFamily(const GgufFile& file) {
  auto architecture = file.metadata().GetString("general.architecture");
  if (!architecture) return std::unexpected(architecture.error().In(file.name()));
  if (*architecture == nullptr) {
    return Fail(file.name() + ": metadata key general.architecture", "missing", "a string");
  }
  const model::Family* family = model::FindFamily(**architecture);
  if (family == nullptr) {
    std::string list;
    for (const auto& known : model::Families()) {
      list += (list.empty() ? "" : ", ") + std::string(known.name);
    }
    return Fail(file.name(), "architecture " + Printable(**architecture), "one of " + list);
  }
  return family;
}

// Factors of linear scaling; empty for none.
Result<std::vector<float>> ReadRopeScaling(const Keys& keys, uint32_t head_dim) {
  SLUICE_TRY(const std::string* type, keys.String("rope.scaling.type"));
  SLUICE_TRY(const auto old_factor, keys.Float("rope.scale_linear"));
  double factor = old_factor.value_or(1);
  if (type != nullptr && *type != "none" && *type != "linear") {
    return keys.Wrong("rope.scaling.type", fmt::format("\"{}\"", Printable(*type)),
                      "none or linear");
  }
  if (type != nullptr && *type == "linear") {
    SLUICE_TRY(const auto found, keys.Float("rope.scaling.factor"));
    factor = found.value_or(factor);
  }
  if (type != nullptr && *type == "none") factor = 1;
  if (factor == 1) return std::vector<float>{};
  return std::vector<float>(head_dim / 2, static_cast<float>(factor));
}

Result<Hyper> ReadHyper(const GgufFile& file) {
  SLUICE_TRY(const model::Family* family, ReadFamily(file));
  const Keys keys(file, family->name);
  Hyper h;
  h.family = family;
  for (const std::string_view key : {"expert_count", "attention.sliding_window"}) {
    SLUICE_TRY(const auto value, keys.Uint(key));
    if (value.value_or(0) > 0) {
      return keys.Wrong(key, fmt::format("{}", *value), "none: such models are not supported");
    }
  }
  SLUICE_TRY(h.n_layers, keys.Uint32("block_count"));
  SLUICE_TRY(h.hidden, keys.Uint32("embedding_length"));
  SLUICE_TRY(h.ffn, keys.Uint32("feed_forward_length"));
  SLUICE_TRY(h.n_heads, keys.Uint32("attention.head_count"));
  SLUICE_TRY(h.n_kv_heads, keys.Uint32("attention.head_count_kv", h.n_heads));
  SLUICE_TRY(h.context, keys.Uint32("context_length"));
  SLUICE_TRY(const auto key_length, keys.Uint("attention.key_length"));
  if (!key_length && (h.n_heads == 0 || h.hidden % h.n_heads != 0)) {
    return keys.Wrong("attention.head_count", fmt::format("{}", h.n_heads),
                      fmt::format("a divisor of embedding_length = {}", h.hidden));
  }
  SLUICE_TRY(h.head_dim,
             keys.Uint32("attention.key_length", h.n_heads == 0 ? 0 : h.hidden / h.n_heads));
  for (const std::string_view key : {"attention.value_length", "rope.dimension_count"}) {
    SLUICE_TRY(const uint32_t value, keys.Uint32(key, h.head_dim));
    if (value != h.head_dim) {
      return keys.Wrong(key, fmt::format("{}", value),
                        fmt::format("the head size, {}", h.head_dim));
    }
  }
  SLUICE_TRY(const auto eps, keys.Float("attention.layer_norm_rms_epsilon"));
  if (!eps) return keys.Wrong("attention.layer_norm_rms_epsilon", "missing", "a number");
  h.rms_eps = static_cast<float>(*eps);
  SLUICE_TRY(const auto base, keys.Float("rope.freq_base"));
  h.rope_base = static_cast<float>(base.value_or(10000));
  // Model::Validate judges the size; until then only what is allocated here must be bounded.
  if (h.head_dim > 1024) {
    return keys.Wrong("attention.key_length", fmt::format("{}", h.head_dim), "at most 1024");
  }
  SLUICE_TRY(h.rope_factors, ReadRopeScaling(keys, h.head_dim));
  h.tied = file.Find("output.weight") == nullptr;
  const GgufTensor* embedding = file.Find("token_embd.weight");
  if (embedding == nullptr) return Fail(file.name() + ": tensor token_embd.weight", "missing");
  if (embedding->rows() > std::numeric_limits<uint32_t>::max()) {
    return Fail(file.name() + ": tensor token_embd.weight",
                fmt::format("{} rows", embedding->rows()), "a vocabulary of less than 2^32");
  }
  h.vocab = static_cast<uint32_t>(embedding->rows());
  return h;
}

struct Place {
  Role role;
  uint32_t layer;
};

// What a tensor's name stands for; nullopt for a name that no family has.
std::optional<Place> FindPlace(std::string_view name) {
  const auto find = [](std::span<const TensorName> names, std::string_view wanted, uint32_t layer) {
    const auto it = std::ranges::find(names, wanted, &TensorName::name);
    return it == names.end() ? std::nullopt : std::optional(Place{it->role, layer});
  };
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return find(kGlobalNames, name, 0);
  const char* end = name.data() + name.size();
  uint32_t layer = 0;
  const auto [dot, error] = std::from_chars(name.data() + kPrefix.size(), end, layer);
  if (error != std::errc() || dot == end || *dot != '.') return std::nullopt;
  return find(kLayerNames, name.substr(static_cast<size_t>(dot + 1 - name.data())), layer);
}

bool IsIgnored(std::string_view name) {
  return name.starts_with("blk.") && std::ranges::any_of(kIgnoredLayerNames, [&](auto suffix) {
           return name.ends_with(suffix);
         });
}

base::Status CheckVocabulary(const GgufFile& file, uint32_t rows) {
  auto tokens = file.metadata().GetStrings("tokenizer.ggml.tokens");
  if (!tokens) return std::unexpected(tokens.error().In(file.name()));
  if (*tokens != nullptr && (*tokens)->size() > rows) {
    return Fail(file.name() + ": tensor token_embd.weight", fmt::format("{} rows", rows),
                fmt::format("at least one for each of the {} tokens", (*tokens)->size()));
  }
  return {};
}

}  // namespace

Result<model::Model> ReadGgufModel(const std::string& path) {
  SLUICE_TRY(auto file, GgufFile::Open(path));
  return ReadGgufModel(std::move(file));
}

Result<model::Model> ReadGgufModel(std::shared_ptr<GgufFile> file) {
  model::Model model;
  model.name = file->name();
  SLUICE_TRY(model.hyper, ReadHyper(*file));
  Hyper& h = model.hyper;
  SLUICE_TRY_VOID(CheckVocabulary(*file, h.vocab));
  for (const GgufTensor& tensor : file->tensors()) {
    if (IsIgnored(tensor.name)) continue;
    const std::string object = fmt::format("{}: tensor {}", file->name(), Printable(tensor.name));
    if (!Traits(tensor.type).dequantizes) {
      return Fail(object, fmt::format("type {}", TypeName(tensor.type)),
                  "one of " + ListTensorTypes(true));
    }
    if (tensor.dims.size() > 2) {
      return Fail(object, fmt::format("{} dimensions", tensor.dims.size()), "at most 2");
    }
    if (tensor.name == kRopeFreqs) {
      if (tensor.rows() != 1 || tensor.cols() != h.head_dim / 2) {
        return Fail(object, fmt::format("{} x {} values", tensor.rows(), tensor.cols()),
                    fmt::format("{}", h.head_dim / 2));
      }
      std::vector<float> factors(tensor.cols());
      DequantizeRow(tensor.type, file->Data(tensor), factors);
      // llama.cpp divides by both; a model that has both does not exist, and its meaning is
      // unclear.
      if (!h.rope_factors.empty()) return Fail(object, "present", "none beside linear scaling");
      h.rope_factors = std::move(factors);
      continue;
    }
    const auto place = FindPlace(tensor.name);
    if (!place) {
      return Fail(object, "unknown", fmt::format("the tensors of the {} family", h.family->name));
    }
    if (place->layer >= h.n_layers) {
      return Fail(object, fmt::format("layer {}", place->layer),
                  fmt::format("less than block_count = {}", h.n_layers));
    }
    if (place->role != Role::kHead && model::ExpectedShape(h, place->role).first == 0) {
      return Fail(object, "present", fmt::format("none in the {} family", h.family->name));
    }
    const bool permuted =
        h.family->gguf_permutes_qk && (place->role == Role::kQ || place->role == Role::kK);
    if (permuted && (h.head_dim < 2 || h.head_dim % 2 != 0 || tensor.rows() % h.head_dim != 0)) {
      return Fail(object, fmt::format("{} rows", tensor.rows()),
                  fmt::format("a multiple of an even head size ({})", h.head_dim));
    }
    model.Add(
        place->role, place->layer,
        std::make_shared<FileMatrix>(file, file->file().get(), file->Data(tensor), tensor.type,
                                     tensor.rows(), tensor.cols(), permuted ? h.head_dim : 0));
  }
  SLUICE_TRY_VOID(model.Validate());
  model.metadata = file->TakeMetadata();
  return model;
}

}  // namespace sluice::formats
