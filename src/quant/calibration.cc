#include "quant/calibration.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "model/gemm.h"
#include "quant/kv_statistics.h"

namespace sluice::embedded {
std::span<const base::EmbeddedFile> CalibrationTexts();
}  // namespace sluice::embedded

namespace sluice::quant {
namespace {

constexpr size_t kQueryRows = 64;

// A K head is kept in 16 bits if 8 bits would make its attention scores err by more than this
// (root mean square, unit of the exponent base e) ...
constexpr float kWideScoreError = 0.1f;
// ... and by more than this many times the median head.
constexpr float kWideOverMedian = 4;

// Squared error that int8 with a power-of-two exponent leaves in v[n], into error[n].
void RoundToInt8(const float* v, size_t n, float* error) {
  float peak = 0;
  for (size_t i = 0; i < n; ++i) peak = std::max(peak, std::fabs(v[i]));
  if (peak == 0) {
    std::fill_n(error, n, 0.0f);
    return;
  }
  const float step = std::exp2(std::ceil(std::log2(peak / 127)));
  for (size_t i = 0; i < n; ++i) error[i] = std::nearbyint(v[i] / step) * step - v[i];
}

float MaxAbs(model::Rows rows, base::ThreadPool& pool) {
  std::vector<float> peaks(rows.rows, 0);
  pool.ParallelFor(rows.rows, [&](size_t r) {
    for (const float v : rows[r]) peaks[r] = std::max(peaks[r], std::fabs(v));
  });
  return *std::ranges::max_element(peaks);
}

}  // namespace

Calibration DefaultCalibration(const model::Hyper& hyper) {
  Calibration result;
  const size_t heads = size_t{hyper.n_layers} * hyper.n_kv_heads;
  result.k_mean.assign(heads * hyper.head_dim, 0);
  result.k_wide.assign(heads, 0);
  result.k_score_error.assign(heads, 0);
  result.max_score.assign(hyper.n_layers, 0);
  return result;
}

std::span<const base::EmbeddedFile> CalibrationTexts() { return embedded::CalibrationTexts(); }

std::vector<std::vector<int32_t>> CutWindows(std::span<const std::vector<int32_t>> sequences,
                                             uint32_t length, uint64_t max_tokens, int32_t bos) {
  const size_t own = length - (bos >= 0 ? 1 : 0);  // tokens of the sequence in a full window
  SLUICE_CHECK(length >= 2);
  std::vector<size_t> taken(sequences.size(), 0);
  std::vector<std::vector<int32_t>> windows;
  uint64_t total = 0;
  for (bool any = true; any;) {
    any = false;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto& sequence = sequences[s];
      const uint64_t room = max_tokens - total;
      if (room <= length - own) return windows;
      const size_t count =
          std::min<uint64_t>({own, sequence.size() - taken[s], room - (length - own)});
      if (count == 0 || (count < length / 8 && taken[s] > 0)) continue;
      std::vector<int32_t> window;
      if (bos >= 0) window.push_back(bos);
      const auto from = sequence.begin() + static_cast<ptrdiff_t>(taken[s]);
      window.insert(window.end(), from, from + static_cast<ptrdiff_t>(count));
      taken[s] += count;
      total += window.size();
      windows.push_back(std::move(window));
      any = true;
    }
  }
  return windows;
}

void MeasureResidual(const model::FloatStream& stream, base::ThreadPool& pool,
                     Calibration& result) {
  result.max_residual = std::max(result.max_residual, MaxAbs(stream.Residual(), pool));
}

void MeasureAttention(const model::FloatStream& stream, const model::Hyper& hyper, uint32_t layer,
                      base::ThreadPool& pool, Calibration& result) {
  const size_t dim = hyper.head_dim;
  const size_t heads = hyper.n_kv_heads;
  const size_t shared = hyper.n_heads / hyper.n_kv_heads;
  const model::Rows q = stream.Queries();
  const model::Rows k = stream.Keys();
  const size_t tokens = k.rows;

  std::vector<float> centred(tokens * k.cols);  // K - mean
  pool.ParallelFor(heads, [&](size_t head) {
    float* mean = &result.k_mean[(layer * heads + head) * dim];
    std::vector<double> sum(dim, 0);
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t i = 0; i < dim; ++i) sum[i] += double{k.data[t * k.cols + head * dim + i]};
    }
    for (size_t i = 0; i < dim; ++i) {
      mean[i] = static_cast<float>(sum[i] / static_cast<double>(tokens));
    }
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t i = 0; i < dim; ++i) {
        const size_t at = t * k.cols + head * dim + i;
        centred[at] = k.data[at] - mean[i];
      }
    }

    // Mean square of q . error over all queries and keys: the second moments of both suffice.
    std::vector<float> moment(dim * dim, 0);
    for (size_t h = head * shared; h < (head + 1) * shared; ++h) {
      model::Gemm(nullptr, dim, dim, tokens, {q.data + h * dim, 1, q.cols},
                  {q.data + h * dim, q.cols, 1}, moment.data(), dim, {.accumulate = true});
    }
    std::vector<float> error(tokens * dim);
    for (size_t t = 0; t < tokens; ++t) {
      RoundToInt8(&centred[t * k.cols + head * dim], dim, &error[t * dim]);
    }
    std::vector<float> error_moment(dim * dim);
    model::Gemm(nullptr, dim, dim, tokens, {error.data(), 1, dim}, {error.data(), dim, 1},
                error_moment.data(), dim);
    double square = 0;
    for (size_t i = 0; i < dim * dim; ++i) square += double{moment[i]} * double{error_moment[i]};
    const double pairs = static_cast<double>(tokens * shared) * static_cast<double>(tokens);
    result.k_score_error[layer * heads + head] =
        static_cast<float>(std::sqrt(square / pairs / static_cast<double>(dim)));
  });

  std::vector<float> scores_peak(stream.windows() * hyper.n_heads, 0);
  pool.ParallelFor(scores_peak.size(), [&](size_t item) {
    const size_t window = item / hyper.n_heads;
    const size_t head = item % hyper.n_heads;
    const size_t start = stream.WindowStart(window);
    const size_t length = stream.WindowStart(window + 1) - start;
    const float* keys = &centred[start * k.cols + head / shared * dim];
    std::vector<float> scores(kQueryRows * length);
    for (size_t first = 0; first < length; first += kQueryRows) {
      const size_t rows = std::min(kQueryRows, length - first);
      const size_t seen = first + rows;
      model::Gemm(nullptr, rows, seen, dim,
                  {q.data + (start + first) * q.cols + head * dim, q.cols, 1}, {keys, 1, k.cols},
                  scores.data(), seen);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t i = 0; i <= first + r; ++i) {
          scores_peak[item] = std::max(scores_peak[item], std::fabs(scores[r * seen + i]));
        }
      }
    }
  });
  result.max_score[layer] = *std::ranges::max_element(scores_peak) * std::numbers::log2e_v<float> /
                            std::sqrt(static_cast<float>(dim));
}

void ChooseWideHeads(Calibration& result) {
  std::vector<float> sorted = result.k_score_error;
  std::ranges::nth_element(sorted, sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2));
  const float limit = std::max(kWideScoreError, kWideOverMedian * sorted[sorted.size() / 2]);
  for (size_t i = 0; i < result.k_wide.size(); ++i) {
    result.k_wide[i] = result.k_score_error[i] > limit ? 1 : 0;
  }
}

}  // namespace sluice::quant
