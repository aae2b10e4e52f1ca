// The instruction set: what a model is compiled to and what every executor reads.
//
// A Program is an array of 64-byte instructions in the pack, independent of position and of the
// number of tokens. It works on these values, one set per token of the block:
//   residual   int32[hidden], one fraction for the whole model
//   A, B       activations: int8 in groups with one exponent each (block floating point)
//   q          int16[n_heads][head_dim], one exponent per head
//   KV cache   per layer and KV head, see docs/numerics.md
// The arithmetic of each instruction is defined in docs/numerics.md and written down in exec/ref.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice::program {

enum class Op : uint8_t {
  kEnd = 0,
  kModel = 1,   // first instruction: sizes that buffers and the KV cache need
  kEmbed = 2,   // residual = row of a table
  kNorm = 3,    // activations = RMSNorm(residual)
  kMatvec = 4,  // matrix times activations, then an epilogue
  kAttend = 5,  // activations = attention of q over the KV cache
};

enum class Epilogue : uint8_t {
  kNone = 0,
  kAddResidual = 1,  // residual += y
  kQuery = 2,        // bias or head norm, RoPE, to q
  kKey = 3,          // bias or head norm, RoPE, minus mean, to the K cache
  kValue = 4,        // bias, to the V cache
  kSiluGate = 5,     // rows are gate, up, gate, up ...: activations = silu(gate) * up
  kCandidates = 6,   // the best rows and their values
};

// Which activation buffer an instruction reads (source) or writes (target).
enum class Buffer : uint8_t { kA = 0, kB = 1 };

enum Flags : uint8_t {
  kHeadNorm = 1,  // kQuery, kKey: RMSNorm each head before RoPE; `bias` is the gain table
  kScreened = 2,  // kCandidates: rank by the high plane, then rescore the best at 8 bits
};

// Offsets are in lines of 128 bytes from the start of the pack; 0 means none.
struct Instruction {
  Op op = Op::kEnd;
  Epilogue epilogue = Epilogue::kNone;
  Buffer source = Buffer::kA;
  Buffer target = Buffer::kA;
  uint8_t group = 0;     // columns per group of activations and weights: 32 or 64
  uint8_t planes = 0;    // 4-bit planes of the matrix: 1 or 2
  uint8_t codebook = 0;  // quant::Codebook, of a one-plane matrix
  uint8_t flags = 0;
  // kModel: padded hidden size, padded size of the widest activation.
  // kMatvec, kEmbed: rows (multiple of 16) and columns (multiple of group) of the matrix.
  // kNorm: columns. kAttend: columns = padded n_heads * head_dim.
  uint32_t rows = 0;
  uint32_t cols = 0;
  // The matrix; see pack/layout.h.
  uint32_t weights = 0;
  uint32_t tile_stride = 0;  // bytes
  uint32_t low = 0;
  uint32_t low_stride = 0;  // bytes
  uint32_t row_table = 0;
  uint32_t bias = 0;       // int32 per row, unit 2^-fraction; with kHeadNorm int16[head_dim] gains
  uint32_t auxiliary = 0;  // kModel: RoPE table. kNorm: int16 gains. kKey: int32 means, 2^-fraction
  // kModel, kCandidates, kEmbed: vocabulary size. kHeadNorm: epsilon as imm of kNorm, of 32 bits.
  uint32_t valid_rows = 0;
  uint16_t layer = 0;     // kModel: number of layers
  uint16_t heads = 0;     // kModel, kQuery, kAttend: n_heads. kKey, kValue: n_kv_heads.
                          // kCandidates: how many
  uint16_t head_dim = 0;  // kModel, kQuery, kKey, kValue, kAttend. kCandidates: 0
  int8_t fraction = 0;    // of the result: residual, bias, logit ...; kModel: of the residual
  int8_t fraction2 = 0;   // kNorm, kHeadNorm: of the gains. kAttend: of the scores
  // kModel: largest context | n_kv_heads << 32. kNorm: round(n * eps * 2^(2 * residual fraction)),
  // n the unpadded size. kKey, kAttend: bit h set if KV head h keeps 16-bit keys.
  uint64_t imm = 0;

  bool operator==(const Instruction&) const = default;
};
static_assert(sizeof(Instruction) == 64);

// A short name for listings and messages: "matvec+silu_gate".
std::string_view OpName(Op op);
std::string_view EpilogueName(Epilogue epilogue);

}  // namespace sluice::program
