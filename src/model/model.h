// What a model is: a family (data), hyperparameters, float tensors by role, and metadata.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/metadata.h"

namespace sluice::model {

// What a tensor is for. Shapes are (rows, cols), row-major, y = W x with W (out, in).
//   H hidden, F ffn, V vocab, D head_dim, Q n_heads * D, KV n_kv_heads * D
enum class Role : uint8_t {
  kEmbedding,   // (V, H)
  kAttnNorm,    // (1, H)
  kQ,           // (Q, H)   rows of a head in Hugging Face order: RoPE pairs (i, i + D/2)
  kK,           // (KV, H)  the same
  kV,           // (KV, H)
  kQBias,       // (1, Q)
  kKBias,       // (1, KV)
  kVBias,       // (1, KV)
  kQNorm,       // (1, D)   per-head RMSNorm of q before RoPE (qwen3)
  kKNorm,       // (1, D)
  kO,           // (H, Q)
  kFfnNorm,     // (1, H)
  kGate,        // (F, H)
  kUp,          // (F, H)
  kDown,        // (H, F)
  kOutputNorm,  // (1, H)
  kHead,        // (V, H)   absent when tied: the embedding serves
};
std::string_view RoleName(Role role);  // "q", "down", "attn_norm" ... as recipes name them

// How a family differs from the plain RMSNorm + GQA + RoPE + gated-SiLU transformer.
struct Family {
  std::string_view name;  // GGUF's general.architecture and the prefix of its keys
  bool qkv_bias;          // q, k, v have biases
  bool qk_norm;           // per-head RMSNorm on q and k
  bool gguf_permutes_qk;  // GGUF stores q and k rows with RoPE pairs adjacent (2i, 2i + 1)
};
std::span<const Family> Families();
const Family* FindFamily(std::string_view name);

struct Hyper {
  const Family* family = nullptr;
  uint32_t n_layers = 0;
  uint32_t hidden = 0;
  uint32_t ffn = 0;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;  // divides n_heads
  uint32_t head_dim = 0;    // even
  uint32_t vocab = 0;
  uint32_t context = 0;  // the context the model was trained for
  float rms_eps = 0;
  float rope_base = 0;
  // Per-pair divisors of the rotation frequency (head_dim / 2 values), empty for none: Llama-3's
  // rope_freqs, or linear scaling.
  std::vector<float> rope_factors;
  bool tied = false;  // no separate head

  bool operator==(const Hyper&) const = default;
};

// A float matrix that is read (dequantised) on demand, so that no one holds a whole model.
class FloatTensor {
 public:
  virtual ~FloatTensor() = default;
  uint64_t rows() const { return rows_; }
  uint64_t cols() const { return cols_; }
  // Rows [first, first + count) into out[count * cols]. Thread-safe. Non-finite values are the
  // caller's to refuse.
  virtual void ReadRows(uint64_t first, uint64_t count, std::span<float> out) const = 0;
  // "Q4_1", "BF16": how the values are stored in the source.
  virtual std::string_view type_name() const = 0;

 protected:
  FloatTensor(uint64_t rows, uint64_t cols) : rows_(rows), cols_(cols) {}

 private:
  uint64_t rows_;
  uint64_t cols_;
};

// Values held in memory; for tests and for synthetic models.
class MemoryTensor : public FloatTensor {
 public:
  MemoryTensor(uint64_t rows, uint64_t cols, std::vector<float> values);
  void ReadRows(uint64_t first, uint64_t count, std::span<float> out) const override;
  std::string_view type_name() const override { return "F32"; }

 private:
  std::vector<float> values_;
};

class Model {
 public:
  Hyper hyper;
  Metadata metadata;  // hyperparameters and tokenizer under GGUF's keys
  std::string name;   // for messages: the path it came from

  // `layer` is 0 for tensors that belong to no layer.
  void Add(Role role, uint32_t layer, std::shared_ptr<const FloatTensor> tensor);
  const FloatTensor* Find(Role role, uint32_t layer = 0) const;  // nullptr if absent
  const FloatTensor& Get(Role role, uint32_t layer = 0) const;   // aborts if absent
  const FloatTensor& Head() const;  // the head, or the embedding where they are tied

  // The whole of a vector tensor, or of a matrix.
  std::vector<float> ReadAll(Role role, uint32_t layer = 0) const;

  // Checks that hyperparameters are sane (dimensions within limits, heads divide, ...), that every
  // tensor of the family is there with its shape, and none besides. Formats call it once.
  base::Status Validate() const;

 private:
  std::map<std::pair<Role, uint32_t>, std::shared_ptr<const FloatTensor>> tensors_;
};

// Shape that the role must have under these hyperparameters; rows == 0 where the family has no
// such tensor.
std::pair<uint64_t, uint64_t> ExpectedShape(const Hyper& hyper, Role role);
std::span<const Role> LayerRoles();   // roles that occur once per layer
std::span<const Role> GlobalRoles();  // roles that occur once

}  // namespace sluice::model
