// Small random models, in memory and as files. Only what writes GGUF needs sluice_formats linked.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf_writer.h"
#include "model/model.h"
#include "support/temp_dir.h"

namespace sluice::testing {

// Two layers, hidden 32, 4 heads of 8, 2 KV heads, feed-forward 64, 288 tokens.
inline model::Hyper TinyHyper(std::string_view family) {
  model::Hyper h;
  h.family = model::FindFamily(family);
  h.n_layers = 2;
  h.hidden = 32;
  h.ffn = 64;
  h.n_heads = 4;
  h.n_kv_heads = 2;
  h.head_dim = 8;
  h.vocab = 288;
  h.context = 128;
  h.rms_eps = 1e-5f;
  h.rope_base = 10000;
  return h;
}

struct TinyTensor {
  model::Role role;
  uint32_t layer;
  uint64_t rows;
  uint64_t cols;
  std::vector<float> values;
};

// Every tensor that the hyperparameters ask for, normally distributed.
inline std::vector<TinyTensor> TinyTensors(const model::Hyper& h, uint64_t seed) {
  std::vector<TinyTensor> tensors;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto add = [&](model::Role role, uint32_t layer) {
    const auto [rows, cols] = model::ExpectedShape(h, role);
    if (rows == 0) return;
    TinyTensor tensor{role, layer, rows, cols, std::vector<float>(rows * cols)};
    for (float& value : tensor.values) value = normal(random);
    tensors.push_back(std::move(tensor));
  };
  for (const auto role : model::GlobalRoles()) add(role, 0);
  for (uint32_t layer = 0; layer < h.n_layers; ++layer) {
    for (const auto role : model::LayerRoles()) add(role, layer);
  }
  return tensors;
}

// The characters that byte-level BPE writes for the 256 bytes: printable Latin-1 stands for itself,
// the others follow from U+0100 on. UTF-8.
inline std::vector<std::string> ByteCharacters() {
  std::vector<std::string> characters;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const uint32_t point = printable ? byte : next++;
    if (point < 0x80) {
      characters.push_back(std::string(1, static_cast<char>(point)));
    } else {
      characters.push_back(
          {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))});
    }
  }
  return characters;
}

// A byte-level BPE tokenizer with SmolLM's word pattern.
struct TinyTokenizer {
  std::vector<std::string> tokens;  // bytes, "<|end|>" (256), the merges' results (from 257)
  std::vector<std::string> merges;
};
inline TinyTokenizer MakeTinyTokenizer() {
  TinyTokenizer t{ByteCharacters(), {"t h", "th e", "i n", "a n", "r e", "e r", "o n", "a t"}};
  t.tokens.push_back("<|end|>");
  for (const std::string& merge : t.merges) {
    std::string token = merge;
    token.erase(token.find(' '), 1);
    t.tokens.push_back(std::move(token));
  }
  return t;
}
constexpr uint32_t kTinyEnd = 256;

// Hyperparameters and tokenizer under GGUF's keys.
inline model::Metadata TinyMetadata(const model::Hyper& h) {
  model::Metadata m;
  const std::string prefix = std::string(h.family->name) + ".";
  m.Set("general.architecture", std::string(h.family->name));
  m.Set("general.name", std::string("tiny"));
  m.Set(prefix + "block_count", h.n_layers);
  m.Set(prefix + "context_length", h.context);
  m.Set(prefix + "embedding_length", h.hidden);
  m.Set(prefix + "feed_forward_length", h.ffn);
  m.Set(prefix + "attention.head_count", h.n_heads);
  m.Set(prefix + "attention.head_count_kv", h.n_kv_heads);
  m.Set(prefix + "attention.key_length", h.head_dim);
  m.Set(prefix + "attention.value_length", h.head_dim);
  m.Set(prefix + "attention.layer_norm_rms_epsilon", h.rms_eps);
  m.Set(prefix + "rope.freq_base", h.rope_base);
  TinyTokenizer t = MakeTinyTokenizer();
  std::vector<int32_t> types(h.vocab, 1);
  types[kTinyEnd] = 3;
  for (size_t id = t.tokens.size(); id < h.vocab; ++id) {
    t.tokens.push_back(fmt::format("[PAD{}]", id));
    types[id] = 5;
  }
  m.Set("tokenizer.ggml.model", std::string("gpt2"));
  m.Set("tokenizer.ggml.pre", std::string("smollm"));
  m.Set("tokenizer.ggml.tokens", std::move(t.tokens));
  m.Set("tokenizer.ggml.token_type", std::move(types));
  m.Set("tokenizer.ggml.merges", std::move(t.merges));
  m.Set("tokenizer.ggml.eos_token_id", kTinyEnd);
  m.Set("tokenizer.ggml.add_bos_token", false);
  return m;
}

inline std::string GgufTensorName(model::Role role, uint32_t layer) {
  using enum model::Role;
  const auto in_layer = [&](std::string_view name) {
    return fmt::format("blk.{}.{}", layer, name);
  };
  switch (role) {
    case kEmbedding:
      return "token_embd.weight";
    case kOutputNorm:
      return "output_norm.weight";
    case kHead:
      return "output.weight";
    case kAttnNorm:
      return in_layer("attn_norm.weight");
    case kQ:
      return in_layer("attn_q.weight");
    case kK:
      return in_layer("attn_k.weight");
    case kV:
      return in_layer("attn_v.weight");
    case kQBias:
      return in_layer("attn_q.bias");
    case kKBias:
      return in_layer("attn_k.bias");
    case kVBias:
      return in_layer("attn_v.bias");
    case kQNorm:
      return in_layer("attn_q_norm.weight");
    case kKNorm:
      return in_layer("attn_k_norm.weight");
    case kO:
      return in_layer("attn_output.weight");
    case kFfnNorm:
      return in_layer("ffn_norm.weight");
    case kGate:
      return in_layer("ffn_gate.weight");
    case kUp:
      return in_layer("ffn_up.weight");
    case kDown:
      return in_layer("ffn_down.weight");
  }
  return {};
}

inline std::string HfTensorName(model::Role role, uint32_t layer) {
  using enum model::Role;
  const auto in_layer = [&](std::string_view name) {
    return fmt::format("model.layers.{}.{}", layer, name);
  };
  switch (role) {
    case kEmbedding:
      return "model.embed_tokens.weight";
    case kOutputNorm:
      return "model.norm.weight";
    case kHead:
      return "lm_head.weight";
    case kAttnNorm:
      return in_layer("input_layernorm.weight");
    case kQ:
      return in_layer("self_attn.q_proj.weight");
    case kK:
      return in_layer("self_attn.k_proj.weight");
    case kV:
      return in_layer("self_attn.v_proj.weight");
    case kQBias:
      return in_layer("self_attn.q_proj.bias");
    case kKBias:
      return in_layer("self_attn.k_proj.bias");
    case kVBias:
      return in_layer("self_attn.v_proj.bias");
    case kQNorm:
      return in_layer("self_attn.q_norm.weight");
    case kKNorm:
      return in_layer("self_attn.k_norm.weight");
    case kO:
      return in_layer("self_attn.o_proj.weight");
    case kFfnNorm:
      return in_layer("post_attention_layernorm.weight");
    case kGate:
      return in_layer("mlp.gate_proj.weight");
    case kUp:
      return in_layer("mlp.up_proj.weight");
    case kDown:
      return in_layer("mlp.down_proj.weight");
  }
  return {};
}

// A GGUF file of F32 tensors, q and k permuted where the family wants it.
inline std::vector<uint8_t> TinyGguf(const model::Hyper& h, const std::vector<TinyTensor>& tensors,
                                     const model::Metadata& metadata) {
  std::vector<formats::TensorSpec> specs;
  for (const TinyTensor& t : tensors) {
    std::vector<uint64_t> dims{t.cols};
    if (t.rows > 1) dims.push_back(t.rows);
    specs.push_back({GgufTensorName(t.role, t.layer), dims, formats::TensorType::kF32});
  }
  const formats::GgufHeader header = formats::SerializeHeader(metadata, specs);
  std::vector<uint8_t> bytes = header.bytes;
  bytes.resize(header.file_bytes);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TinyTensor& t = tensors[i];
    const bool permuted =
        h.family->gguf_permutes_qk && (t.role == model::Role::kQ || t.role == model::Role::kK);
    const uint64_t half = h.head_dim / 2;
    for (uint64_t row = 0; row < t.rows; ++row) {
      const uint64_t in_head = row % h.head_dim;
      const uint64_t place = permuted ? row - in_head + in_head % half * 2 + in_head / half : row;
      std::memcpy(bytes.data() + header.offsets[i] + place * t.cols * sizeof(float),
                  t.values.data() + row * t.cols, t.cols * sizeof(float));
    }
  }
  return bytes;
}

inline nlohmann::json TinyHfConfig(const model::Hyper& h) {
  return {{"model_type", h.family->name},
          {"hidden_size", h.hidden},
          {"intermediate_size", h.ffn},
          {"num_hidden_layers", h.n_layers},
          {"num_attention_heads", h.n_heads},
          {"num_key_value_heads", h.n_kv_heads},
          {"head_dim", h.head_dim},
          {"vocab_size", h.vocab},
          {"max_position_embeddings", h.context},
          {"rms_norm_eps", h.rms_eps},
          {"rope_theta", h.rope_base},
          {"tie_word_embeddings", h.tied},
          {"eos_token_id", kTinyEnd}};
}

inline nlohmann::json TinyHfTokenizer() {
  const TinyTokenizer t = MakeTinyTokenizer();
  nlohmann::json vocab = nlohmann::json::object();
  for (size_t id = 0; id < t.tokens.size(); ++id) {
    if (id != kTinyEnd) vocab[t.tokens[id]] = id;
  }
  nlohmann::json steps = nlohmann::json::array();
  steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}});
  nlohmann::json added = nlohmann::json::array();
  added.push_back({{"id", kTinyEnd}, {"content", "<|end|>"}, {"special", true}});
  return {{"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", t.merges}}}};
}

// The header of a safetensors file whose tensors follow each other.
inline nlohmann::json TinySafetensorsHeader(const std::vector<TinyTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  uint64_t offset = 0;
  for (const TinyTensor& t : tensors) {
    const uint64_t end = offset + t.values.size() * sizeof(float);
    nlohmann::json shape = nlohmann::json::array();
    if (t.rows > 1) shape.push_back(t.rows);
    shape.push_back(t.cols);
    nlohmann::json offsets = nlohmann::json::array({offset, end});
    header[HfTensorName(t.role, t.layer)] = {
        {"dtype", "F32"}, {"shape", shape}, {"data_offsets", offsets}};
    offset = end;
  }
  return header;
}

inline std::vector<uint8_t> TinySafetensors(const std::string& header,
                                            const std::vector<TinyTensor>& tensors) {
  std::vector<uint8_t> bytes(8);
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof(length));
  for (const char c : header) bytes.push_back(static_cast<uint8_t>(c));
  for (const TinyTensor& t : tensors) {
    const size_t end = bytes.size();
    bytes.resize(end + t.values.size() * sizeof(float));
    std::memcpy(bytes.data() + end, t.values.data(), t.values.size() * sizeof(float));
  }
  return bytes;
}

// The same as a Hugging Face folder, which must exist.
inline void WriteTinyHf(const std::string& folder, const model::Hyper& h,
                        const std::vector<TinyTensor>& tensors) {
  WriteFile(folder + "/config.json", TinyHfConfig(h).dump());
  WriteFile(folder + "/tokenizer.json", TinyHfTokenizer().dump());
  WriteFile(folder + "/model.safetensors",
            TinySafetensors(TinySafetensorsHeader(tensors).dump(), tensors));
}

inline model::Model TinyModel(const model::Hyper& h, uint64_t seed) {
  model::Model model;
  model.hyper = h;
  model.name = "tiny";
  for (TinyTensor& tensor : TinyTensors(h, seed)) {
    model.Add(
        tensor.role, tensor.layer,
        std::make_shared<model::MemoryTensor>(tensor.rows, tensor.cols, std::move(tensor.values)));
  }
  return model;
}

}  // namespace sluice::testing
