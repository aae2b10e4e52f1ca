// The inner loops of the CPU executor behind one table of functions, so that an instruction set is
// one file that fills the table. All tables compute the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace sluice::exec::cpu {

// How the nibbles of a matrix become weights.
enum class MatrixKind : uint8_t {
  kCodebook,   // one plane, quant::Codebook::kSluice16
  kLinear,     // one plane, nibble - 8
  kTwoPlanes,  // 16 * (high - 8) + (low - 8)
  kHighPlane,  // 16 * (high - 8): the high plane of two, alone
};
constexpr size_t kMatrixKinds = 4;

// 16 rows of a matrix; see pack/layout.h.
struct Tile {
  const int8_t* sub_scales = nullptr;  // [groups][16]
  const uint8_t* high = nullptr;       // [groups][group / 8] units of 64 bytes
  const uint8_t* low = nullptr;        // the same; only with kTwoPlanes
  uint32_t groups = 0;
  uint32_t group = 0;  // 32 or 64
};

// Tokens that a weight is applied to once it is unpacked.
constexpr uint32_t kPanelTokens = 8;

// The activations of `width` tokens, 1 .. kPanelTokens, side by side.
struct Panel {
  const int8_t* x = nullptr;        // [cols / 4][width][4], -127..127
  const int32_t* sums = nullptr;    // [groups][width]: sum of the group's x
  const int32_t* shifts = nullptr;  // [groups][width]: token's largest exponent - the group's, >= 0
  uint32_t width = 0;
};

// fixed/'s tables in forms that vector instructions can gather.
struct Tables {
  std::array<int32_t, 256> exp2;  // fixed::kExp2Table
  // Of fixed::kSigmoidTable: entry i, and the difference to entry i + 1 in the upper 32 bits.
  std::array<uint64_t, 256> sigmoid;
};
Tables MakeTables();

// Attention of a few query heads over the keys of one KV head.
constexpr uint32_t kMaxQueries = 8;
constexpr uint32_t kKeyBlock = 16;  // positions that lie side by side in the K cache

struct ScoreJob {
  const int8_t* k = nullptr;         // [blocks][head_dim / 2][16][2]
  const int8_t* k_low = nullptr;     // the same for 16-bit keys, 256 * k + k_low; else null
  const int8_t* exponent = nullptr;  // [blocks][16]
  uint32_t blocks = 0;
  uint32_t head_dim = 0;
  uint32_t n = 0;                               // queries, 1 .. Kernels::queries
  std::array<const int16_t*, kMaxQueries> q{};  // [head_dim] each
  std::array<int, kMaxQueries> q_exponent{};
  int fraction = 0;           // of the scores
  int16_t* scores = nullptr;  // [n][stride]: blocks * 16 scores each
  uint32_t stride = 0;
};

// Softmax numerators of one query and what they weigh V with.
struct WeightJob {
  const int16_t* scores = nullptr;     // [length]
  const int8_t* v_exponent = nullptr;  // [length]
  uint32_t length = 0;                 // >= 1
  int fraction = 0;
  int16_t* weights = nullptr;  // [length], may be `scores`: rs(p, largest - v_exponent)
};
struct WeightSum {
  uint64_t sum = 0;  // of all p
  int largest = 0;   // V's largest exponent
};

struct MixJob {
  const int8_t* v = nullptr;  // [pairs][head_dim][2]: positions 2 i and 2 i + 1
  uint32_t pairs = 0;
  uint32_t head_dim = 0;
  uint32_t n = 0;                    // queries, 1 .. Kernels::queries
  const int16_t* weights = nullptr;  // [n][stride], 2 * pairs each, 0..32767
  uint32_t stride = 0;
  int64_t* mixed = nullptr;  // [n][head_dim], added to
};

struct NormJob {
  const int32_t* x = nullptr;     // [cols]
  const int16_t* gain = nullptr;  // [cols]
  uint32_t cols = 0;
  uint32_t group = 0;  // divides cols
  uint64_t epsilon = 0;
  int gain_fraction = 0;
  int16_t* scaled = nullptr;    // [cols], scratch
  int8_t* q = nullptr;          // [cols]
  int32_t* exponent = nullptr;  // [cols / group]
};

struct Kernels {
  std::string_view name;
  uint32_t queries = 0;  // that `scores` and `mix` take at once, 1 .. kMaxQueries

  // acc[token][row] of one tile over one panel: the accumulators before the rows' scales,
  // int32 and wrapping.
  using Dot = void (*)(const Tile&, const Panel&, int32_t* acc);
  std::array<Dot, kMatrixKinds> dot;

  // 16 rows of a row table, `width` tokens:
  // y[token][r] = sat32(rs(acc[token][r] * mantissa[r], exponent[r] - subtract[token])).
  void (*scale_rows)(const int32_t* acc, uint32_t width, const uint8_t* row_table,
                     const int32_t* subtract, int32_t* y);
  // x[r] = sat32(x[r] + y[r]) for 16 rows.
  void (*add_rows)(const int32_t* y, int32_t* x);
  // h[j] = fixed::SiluGate(y[2 j], y[2 j + 1]), j = 0..7.
  void (*silu_gate)(const int32_t* y, const Tables& tables, int32_t* h);
  // fixed::QuantizeBlock8 and 16; n a multiple of 16.
  int (*quantize8)(const int32_t* v, uint32_t n, int8_t* q);
  int (*quantize16)(const int32_t* v, uint32_t n, int16_t* q);
  // RMSNorm to block floating point.
  void (*norm)(const NormJob&);

  void (*scores)(const ScoreJob&);
  WeightSum (*weights)(const WeightJob&, const Tables&);
  void (*mix)(const MixJob&);
};

const Kernels& ScalarKernels();
// nullptr where this processor (or this build) does not have the instructions.
const Kernels* Avx2Kernels();
const Kernels* Avx512VnniKernels();
const Kernels* NeonKernels();         // "neon": AArch64, and ARMv7 where the processor has it
const Kernels* NeonDotprodKernels();  // "neon-dotprod": AArch64

// All that this processor has, the fastest first; the last is "scalar".
std::vector<const Kernels*> SupportedKernels();

// The fastest that this processor has, or the one that `forced` names; empty for no preference.
// Error: not one of SupportedKernels().
base::Result<const Kernels*> ChooseKernels(std::string_view forced);
// The same with what the environment's SLUICE_ISA forces.
base::Result<const Kernels*> KernelsOfEnvironment();

}  // namespace sluice::exec::cpu
