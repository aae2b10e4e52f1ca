#include "formats/hf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numbers>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "formats/file_matrix.h"
#include "formats/hf_tokenizer.h"
#include "formats/safetensors.h"

namespace sluice::formats {
namespace {

using base::Fail;
using base::Printable;
using base::Result;
using model::Hyper;
using model::Role;

constexpr uint64_t kMaxChatTemplateBytes = 1 << 20;
// Bounds what is allocated before Model::Validate judges the sizes.
constexpr uint32_t kMaxHeadDim = 1024;
constexpr uint32_t kMaxVocab = 1 << 20;

struct TensorName {
  std::string_view name;
  Role role;
};
constexpr std::array kGlobalNames = {
    TensorName{"model.embed_tokens.weight", Role::kEmbedding},
    TensorName{"model.norm.weight", Role::kOutputNorm},
    TensorName{"lm_head.weight", Role::kHead},
};
// After "model.layers.N.".
constexpr std::array kLayerNames = {
    TensorName{"input_layernorm.weight", Role::kAttnNorm},
    TensorName{"self_attn.q_proj.weight", Role::kQ},
    TensorName{"self_attn.k_proj.weight", Role::kK},
    TensorName{"self_attn.v_proj.weight", Role::kV},
    TensorName{"self_attn.q_proj.bias", Role::kQBias},
    TensorName{"self_attn.k_proj.bias", Role::kKBias},
    TensorName{"self_attn.v_proj.bias", Role::kVBias},
    TensorName{"self_attn.q_norm.weight", Role::kQNorm},
    TensorName{"self_attn.k_norm.weight", Role::kKNorm},
    TensorName{"self_attn.o_proj.weight", Role::kO},
    TensorName{"post_attention_layernorm.weight", Role::kFfnNorm},
    TensorName{"mlp.gate_proj.weight", Role::kGate},
    TensorName{"mlp.up_proj.weight", Role::kUp},
    TensorName{"mlp.down_proj.weight", Role::kDown},
};
// Old checkpoints keep the rotation's inverse frequencies, which follow from rope_theta.
constexpr std::string_view kIgnoredLayerName = "self_attn.rotary_emb.inv_freq";

struct JsonFile {
  std::string path;
  Json json;
  Result<JsonObject> Object() const { return JsonObject::Of(json, path); }
};

// `optional`: a file that is not there reads as an empty object.
Result<JsonFile> ReadJsonFile(const std::string& folder, std::string_view name, bool optional) {
  JsonFile file{fmt::format("{}/{}", folder, name), Json::object()};
  std::error_code ignored;
  if (optional && !std::filesystem::exists(file.path, ignored)) return file;
  SLUICE_TRY(const auto mapped, base::MappedFile::Open(file.path));
  const std::string_view text(reinterpret_cast<const char*>(mapped->bytes().data()),
                              mapped->bytes().size());
  SLUICE_TRY(file.json, ParseJson(text, file.path));
  return file;
}

Result<const model::Family*> ReadFamily(const JsonObject& config) {
  SLUICE_TRY(const std::string* type, config.String("model_type"));
  if (type == nullptr) return config.Wrong("model_type", "missing", "a string");
  if (*type == "mistral") {
    const Json* window = config.Find("sliding_window");
    if (window != nullptr) {
      return config.Wrong("sliding_window", DescribeJson(*window), "null: windows not supported");
    }
    return model::FindFamily("llama");
  }
  const model::Family* family = model::FindFamily(*type);
  if (family != nullptr) return family;
  std::string list;
  for (const auto& known : model::Families()) list += std::string(known.name) + ", ";
  return config.Wrong("model_type", Quoted(*type), "one of " + list + "mistral");
}

// What the families' code could do but this project does not.
base::Status RefuseVariants(const JsonObject& config, const model::Family& family) {
  for (const std::string_view key :
       {"num_experts", "num_local_experts", "n_routed_experts", "quantization_config"}) {
    const Json* value = config.Find(key);
    if (value != nullptr && *value != 0) {
      return config.Wrong(key, DescribeJson(*value), "none: such models are not supported");
    }
  }
  struct Switch {
    std::string_view key;
    bool fallback;
    bool expected;
  };
  const std::array switches = {
      Switch{"use_sliding_window", false, false},
      Switch{"mlp_bias", false, false},
      Switch{"attention_bias", family.qkv_bias, family.qkv_bias},
  };
  for (const Switch& s : switches) {
    SLUICE_TRY(const auto value, config.Bool(s.key));
    if (value.value_or(s.fallback) != s.expected) {
      return config.Wrong(s.key, *value ? "true" : "false",
                          fmt::format("{} in the {} family", s.expected, family.name));
    }
  }
  SLUICE_TRY(const std::string* activation, config.String("hidden_act"));
  if (activation != nullptr && *activation != "silu") {
    return config.Wrong("hidden_act", Quoted(*activation), "silu");
  }
  SLUICE_TRY(const auto rotated, config.Float("partial_rotary_factor"));
  if (rotated.value_or(1) != 1) {
    return config.Wrong("partial_rotary_factor", fmt::format("{}", *rotated), "1");
  }
  SLUICE_TRY(const Json* layers, config.Array("layer_types"));
  if (layers != nullptr) {
    for (const Json& layer : *layers) {
      if (layer != "full_attention") {
        return config.Wrong("layer_types", DescribeJson(layer), "full_attention");
      }
    }
  }
  return {};
}

// Frequency divisors of Llama 3's context extension: wavelengths shorter than a fraction of the
// original context stay, long ones are stretched by `factor`, those between are interpolated.
// Source: the rope_type "llama3" of Llama 3.1's reference code; 64-bit as GGUF converters do it.
Result<std::vector<float>> Llama3Factors(const JsonObject& scaling, const Hyper& h) {
  SLUICE_TRY(const auto factor, scaling.Float("factor"));
  SLUICE_TRY(const auto low, scaling.Float("low_freq_factor"));
  SLUICE_TRY(const auto high, scaling.Float("high_freq_factor"));
  SLUICE_TRY(const auto context, scaling.Float("original_max_position_embeddings"));
  const double stretch = factor.value_or(8);
  const double low_factor = low.value_or(1);
  const double high_factor = high.value_or(4);
  const double original = context.value_or(8192);
  if (!(stretch >= 1 && low_factor > 0 && high_factor > low_factor && original > 0)) {
    return Fail(scaling.name(),
                fmt::format("factor {}, low_freq_factor {}, high_freq_factor {}, "
                            "original_max_position_embeddings {}",
                            stretch, low_factor, high_factor, original),
                "factor >= 1, 0 < low_freq_factor < high_freq_factor, a context above 0");
  }
  std::vector<float> factors;
  for (uint32_t i = 0; i < h.head_dim / 2; ++i) {
    const double frequency = 1 / std::pow(double{h.rope_base}, 2.0 * i / h.head_dim);
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < original / high_factor) {
      factors.push_back(1);
    } else if (wavelength > original / low_factor) {
      factors.push_back(static_cast<float>(stretch));
    } else {
      const double smooth = (original / wavelength - low_factor) / (high_factor - low_factor);
      factors.push_back(static_cast<float>(1 / ((1 - smooth) / stretch + smooth)));
    }
  }
  return factors;
}

struct RopeScaling {
  std::string type;  // "none", "linear" or "llama3"
  double factor = 1;
};

// rope_scaling of the older configurations, rope_parameters of the newer.
Result<std::optional<JsonObject>> FindScaling(const JsonObject& config) {
  SLUICE_TRY(auto scaling, config.Object("rope_scaling"));
  if (scaling) return scaling;
  return config.Object("rope_parameters");
}

Result<RopeScaling> ReadScaling(const std::optional<JsonObject>& scaling) {
  if (!scaling) return RopeScaling{"none"};
  SLUICE_TRY(const std::string* type, scaling->String("rope_type"));
  if (type == nullptr) {
    SLUICE_TRY(type, scaling->String("type"));
  }
  if (type == nullptr || *type == "default") return RopeScaling{"none"};
  if (*type != "linear" && *type != "llama3") {
    return scaling->Wrong("rope_type", Quoted(*type), "default, linear or llama3");
  }
  SLUICE_TRY(const auto factor, scaling->Float("factor"));
  if (!factor) return scaling->Wrong("factor", "missing", "a number");
  return RopeScaling{*type, *factor};
}

struct Place {
  Role role;
  uint32_t layer;
  bool ignored = false;
};

// What a tensor's name stands for; nullopt for a name that no family has.
std::optional<Place> FindPlace(std::string_view name) {
  const auto find = [](std::span<const TensorName> names, std::string_view wanted, uint32_t layer) {
    const auto it = std::ranges::find(names, wanted, &TensorName::name);
    return it == names.end() ? std::nullopt : std::optional(Place{it->role, layer});
  };
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return find(kGlobalNames, name, 0);
  const char* end = name.data() + name.size();
  uint32_t layer = 0;
  const auto [dot, error] = std::from_chars(name.data() + kPrefix.size(), end, layer);
  if (error != std::errc() || dot == end || *dot != '.') return std::nullopt;
  const auto rest = name.substr(static_cast<size_t>(dot + 1 - name.data()));
  if (rest == kIgnoredLayerName) return Place{Role::kQ, layer, true};
  return find(kLayerNames, rest, layer);
}

base::Status AddTensors(const std::string& folder, model::Model& model) {
  const Hyper& h = model.hyper;
  SLUICE_TRY(const auto files, OpenSafetensors(folder));
  for (const auto& file : files) {
    for (const SafeTensor& tensor : file->tensors()) {
      const std::string object = fmt::format("{}: tensor {}", file->name(), Printable(tensor.name));
      const auto place = FindPlace(tensor.name);
      if (!place) {
        return Fail(object, "unknown", fmt::format("the tensors of the {} family", h.family->name));
      }
      if (place->layer >= h.n_layers) {
        return Fail(object, fmt::format("layer {}", place->layer),
                    fmt::format("less than num_hidden_layers = {}", h.n_layers));
      }
      // Some checkpoints of tied models hold the embedding once more under the head's name.
      if (place->ignored || (h.tied && place->role == Role::kHead)) continue;
      if (model::ExpectedShape(h, place->role).first == 0) {
        return Fail(object, "present", fmt::format("none in the {} family", h.family->name));
      }
      model.Add(place->role, place->layer,
                std::make_shared<FileMatrix>(file, file->file(), file->Data(tensor), tensor.type,
                                             tensor.rows(), tensor.cols()));
    }
  }
  return {};
}

// The folder's own name.
std::string BaseName(const std::string& folder) {
  std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

void SetHyperKeys(const Hyper& h, const RopeScaling& scaling, bool explicit_head_dim,
                  const std::string& name, model::Metadata& metadata) {
  const std::string prefix = std::string(h.family->name) + ".";
  const auto set = [&](std::string_view key, model::Value value) {
    metadata.Set(prefix + std::string(key), std::move(value));
  };
  metadata.Set("general.architecture", std::string(h.family->name));
  metadata.Set("general.type", std::string("model"));
  metadata.Set("general.name", name);
  set("block_count", h.n_layers);
  set("context_length", h.context);
  set("embedding_length", h.hidden);
  set("feed_forward_length", h.ffn);
  set("attention.head_count", h.n_heads);
  set("attention.head_count_kv", h.n_kv_heads);
  set("rope.freq_base", h.rope_base);
  set("attention.layer_norm_rms_epsilon", h.rms_eps);
  if (explicit_head_dim) {
    set("attention.key_length", h.head_dim);
    set("attention.value_length", h.head_dim);
  }
  set("vocab_size", h.vocab);
  set("rope.dimension_count", h.head_dim);
  if (scaling.type == "linear") {
    set("rope.scaling.type", std::string("linear"));
    set("rope.scaling.factor", static_cast<float>(scaling.factor));
  }
}

// A number of things, of which there must be some.
Result<uint32_t> RequiredCount(const JsonObject& config, std::string_view key) {
  SLUICE_TRY(const uint32_t count, config.RequiredUint32(key));
  if (count == 0) return config.Wrong(key, "0", "a positive integer");
  return count;
}

}  // namespace

Result<Hyper> ReadHfHyper(const JsonObject& config) {
  Hyper h;
  SLUICE_TRY(h.family, ReadFamily(config));
  SLUICE_TRY_VOID(RefuseVariants(config, *h.family));
  SLUICE_TRY(h.n_layers, RequiredCount(config, "num_hidden_layers"));
  SLUICE_TRY(h.hidden, RequiredCount(config, "hidden_size"));
  SLUICE_TRY(h.ffn, RequiredCount(config, "intermediate_size"));
  SLUICE_TRY(h.n_heads, RequiredCount(config, "num_attention_heads"));
  SLUICE_TRY(h.vocab, RequiredCount(config, "vocab_size"));
  SLUICE_TRY(h.context, RequiredCount(config, "max_position_embeddings"));
  h.n_kv_heads = h.n_heads;
  if (config.Find("num_key_value_heads") != nullptr) {
    SLUICE_TRY(h.n_kv_heads, RequiredCount(config, "num_key_value_heads"));
  }
  if (config.Find("head_dim") != nullptr) {
    SLUICE_TRY(h.head_dim, RequiredCount(config, "head_dim"));
  } else if (h.hidden % h.n_heads != 0) {
    return config.Wrong("num_attention_heads", fmt::format("{}", h.n_heads),
                        fmt::format("a divisor of hidden_size = {}", h.hidden));
  } else {
    h.head_dim = h.hidden / h.n_heads;
  }
  if (h.head_dim > kMaxHeadDim) {
    return config.Wrong("head_dim", fmt::format("{}", h.head_dim),
                        fmt::format("at most {}", kMaxHeadDim));
  }
  if (h.vocab > kMaxVocab) {
    return config.Wrong("vocab_size", fmt::format("{}", h.vocab),
                        fmt::format("at most {}", kMaxVocab));
  }
  SLUICE_TRY(const auto eps, config.Float("rms_norm_eps"));
  h.rms_eps = static_cast<float>(eps.value_or(1e-6));
  SLUICE_TRY(const auto scaling_object, FindScaling(config));
  SLUICE_TRY(auto base, config.Float("rope_theta"));
  if (!base && scaling_object) {
    SLUICE_TRY(base, scaling_object->Float("rope_theta"));
  }
  h.rope_base = static_cast<float>(base.value_or(10000));
  SLUICE_TRY(const RopeScaling scaling, ReadScaling(scaling_object));
  if (scaling.type == "linear" && scaling.factor != 1) {
    h.rope_factors.assign(h.head_dim / 2, static_cast<float>(scaling.factor));
  }
  if (scaling.type == "llama3") {
    SLUICE_TRY(h.rope_factors, Llama3Factors(*scaling_object, h));
  }
  SLUICE_TRY(const auto tied, config.Bool("tie_word_embeddings"));
  h.tied = tied.value_or(false);
  return h;
}

Result<model::Model> ReadHfModel(const std::string& folder) {
  SLUICE_TRY(const JsonFile config_file, ReadJsonFile(folder, "config.json", false));
  SLUICE_TRY(const JsonObject config, config_file.Object());
  model::Model model;
  model.name = folder;
  SLUICE_TRY(model.hyper, ReadHfHyper(config));
  SLUICE_TRY_VOID(AddTensors(folder, model));
  SLUICE_TRY_VOID(model.Validate());

  SLUICE_TRY(const auto scaling_object, FindScaling(config));
  SLUICE_TRY(const RopeScaling scaling, ReadScaling(scaling_object));
  SetHyperKeys(model.hyper, scaling, config.Find("head_dim") != nullptr, BaseName(folder),
               model.metadata);

  SLUICE_TRY(const JsonFile tokenizer, ReadJsonFile(folder, "tokenizer.json", false));
  SLUICE_TRY(const JsonFile tokenizer_config, ReadJsonFile(folder, "tokenizer_config.json", true));
  SLUICE_TRY(const JsonFile generation, ReadJsonFile(folder, "generation_config.json", true));
  SLUICE_TRY(const JsonObject tokenizer_object, tokenizer.Object());
  SLUICE_TRY(const JsonObject tokenizer_config_object, tokenizer_config.Object());
  SLUICE_TRY(const JsonObject generation_object, generation.Object());
  std::optional<std::string> chat_template;
  const std::string jinja = folder + "/chat_template.jinja";
  std::error_code ignored;
  if (std::filesystem::exists(jinja, ignored)) {
    SLUICE_TRY(chat_template, base::ReadSmallFile(jinja, kMaxChatTemplateBytes));
  }
  SLUICE_TRY_VOID(ReadHfTokenizer({tokenizer_object, tokenizer_config_object, config,
                                   generation_object, std::move(chat_template)},
                                  model.hyper.vocab, model.metadata));
  return model;
}

}  // namespace sluice::formats
