// Kernels in plain C++, for any processor.
#include <cstring>

#include "exec/cpu/kernels.h"
#include "exec/cpu/loops.h"
#include "pack/layout.h"
#include "quant/quantized_matrix.h"

namespace sluice::exec::cpu {
namespace {

template <MatrixKind kind>
int Level(std::span<const int8_t, 16> levels, unsigned nibble) {
  if constexpr (kind == MatrixKind::kCodebook) return levels[nibble];
  return static_cast<int>(nibble) - 8;
}

template <MatrixKind kind>
void Dot(const Tile& tile, const Panel& panel, int32_t* acc) {
  constexpr uint32_t kRows = pack::kTileRows;
  const auto levels = quant::Levels(quant::Codebook::kSluice16);
  const uint32_t width = panel.width;
  const uint32_t units = tile.group / pack::kUnitColumns;
  std::fill_n(acc, width * kRows, 0);
  for (uint32_t g = 0; g < tile.groups; ++g) {
    int32_t dot[kPanelTokens][kRows] = {};
    for (uint32_t u = g * units; u < (g + 1) * units; ++u) {
      const uint8_t* high = tile.high + uint64_t{u} * pack::kUnitBytes;
      const uint8_t* low = nullptr;
      if constexpr (kind == MatrixKind::kTwoPlanes) low = tile.low + uint64_t{u} * pack::kUnitBytes;
      for (uint32_t c = 0; c < pack::kUnitColumns; ++c) {
        const int shift = c < 4 ? 0 : 4;
        int weight[kRows];
        for (uint32_t r = 0; r < kRows; ++r) {
          const uint32_t at = 4 * r + c % 4;
          weight[r] = Level<kind>(levels, (high[at] >> shift) & 15u);
          if constexpr (kind == MatrixKind::kTwoPlanes) {
            weight[r] = 16 * weight[r] + Level<kind>(levels, (low[at] >> shift) & 15u);
          } else if constexpr (kind == MatrixKind::kHighPlane) {
            weight[r] *= 16;
          }
        }
        const int8_t* x = panel.x + uint64_t{u * 2 + c / 4} * width * 4 + c % 4;
        for (uint32_t t = 0; t < width; ++t) {
          for (uint32_t r = 0; r < kRows; ++r) dot[t][r] += weight[r] * x[4 * t];
        }
      }
    }
    for (uint32_t t = 0; t < width; ++t) {
      const int shift = loops::Min(panel.shifts[g * width + t], 31);
      for (uint32_t r = 0; r < kRows; ++r) {
        const int32_t term = (dot[t][r] * tile.sub_scales[g * kRows + r]) >> shift;
        acc[t * kRows + r] = loops::WrapAdd(acc[t * kRows + r], term);
      }
    }
  }
}

void ScaleRows(const int32_t* acc, uint32_t width, const uint8_t* row_table,
               const int32_t* subtract, int32_t* y) {
  for (uint32_t r = 0; r < pack::kTileRows; ++r) {
    int16_t mantissa;
    std::memcpy(&mantissa, row_table + 4 * r, 2);
    const int exponent = static_cast<int8_t>(row_table[4 * r + 2]);
    for (uint32_t t = 0; t < width; ++t) {
      y[16 * t + r] =
          fixed::RoundShiftSat32(int64_t{acc[16 * t + r]} * mantissa, exponent - subtract[t]);
    }
  }
}

void SiluGate(const int32_t* y, const Tables&, int32_t* h) {
  for (uint32_t j = 0; j < 8; ++j) h[j] = fixed::SiluGate(y[2 * j], y[2 * j + 1]);
}

void DotKeys(const int8_t* k, const int16_t* q, uint32_t head_dim, int32_t* dot) {
  std::fill_n(dot, kKeyBlock, 0);
  for (uint32_t c = 0; c < head_dim; c += 2) {
    for (uint32_t t = 0; t < kKeyBlock; ++t) {
      dot[t] += q[c] * k[c * kKeyBlock + 2 * t] + q[c + 1] * k[c * kKeyBlock + 2 * t + 1];
    }
  }
}

void Scores(const ScoreJob& job) {
  for (uint32_t i = 0; i < job.n; ++i) {
    const int base = -job.q_exponent[i] - job.fraction;
    for (uint32_t b = 0; b < job.blocks; ++b) {
      const uint64_t at = uint64_t{b} * kKeyBlock * job.head_dim;
      const int8_t* exponent = job.exponent + uint64_t{b} * kKeyBlock;
      int16_t* score = job.scores + uint64_t{i} * job.stride + uint64_t{b} * kKeyBlock;
      int32_t dot[kKeyBlock];
      DotKeys(job.k + at, job.q[i], job.head_dim, dot);
      if (job.k_low == nullptr) {
        loops::FinishScores(dot, exponent, base, score);
      } else {
        int32_t low[kKeyBlock];
        DotKeys(job.k_low + at, job.q[i], job.head_dim, low);
        loops::FinishWideScores(dot, low, exponent, base, score);
      }
    }
  }
}

void Mix(const MixJob& job) {
  for (uint32_t i = 0; i < job.n; ++i) {
    const int16_t* weights = job.weights + uint64_t{i} * job.stride;
    int64_t* mixed = job.mixed + uint64_t{i} * job.head_dim;
    for (uint32_t pair = 0; pair < job.pairs; ++pair) {
      const int8_t* v = job.v + uint64_t{pair} * 2 * job.head_dim;
      for (uint32_t c = 0; c < job.head_dim; ++c) {
        mixed[c] += weights[2 * pair] * v[2 * c] + weights[2 * pair + 1] * v[2 * c + 1];
      }
    }
  }
}

void Norm(const NormJob& job) { loops::Norm(job); }
WeightSum Weights(const WeightJob& job, const Tables& tables) {
  return loops::Weights(job, tables);
}
void AddRows(const int32_t* y, int32_t* x) { loops::AddRows(y, x); }
int Quantize8(const int32_t* v, uint32_t n, int8_t* q) { return loops::Quantize8(v, n, q); }
int Quantize16(const int32_t* v, uint32_t n, int16_t* q) { return loops::Quantize16(v, n, q); }

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kKernels = {
      .name = "scalar",
      .queries = kMaxQueries,
      .dot = {Dot<MatrixKind::kCodebook>, Dot<MatrixKind::kLinear>, Dot<MatrixKind::kTwoPlanes>,
              Dot<MatrixKind::kHighPlane>},
      .scale_rows = ScaleRows,
      .add_rows = AddRows,
      .silu_gate = SiluGate,
      .quantize8 = Quantize8,
      .quantize16 = Quantize16,
      .norm = Norm,
      .scores = Scores,
      .weights = Weights,
      .mix = Mix,
  };
  return kKernels;
}

}  // namespace sluice::exec::cpu
