#include "quant/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "model/gemm.h"

// The inner loops run over 16 lanes and are compiled for several instruction sets. Additions are
// never reordered across lanes, so all of them give the same bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define SLUICE_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SLUICE_VECTOR_CLONES
#endif

// The vectors below pass only between functions that are inlined into each other.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace sluice::quant {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kMaxGroup = 64;

// How values become levels.
enum class Grid : uint8_t { kSluice16, kLinear4, kLinear8 };

Grid GridOf(const MatrixFormat& format) {
  if (format.bits == 8) return Grid::kLinear8;
  return format.codebook == Codebook::kSluice16 ? Grid::kSluice16 : Grid::kLinear4;
}

// The largest magnitude of a level, which is negative in the linear grids: scales of both signs are
// tried, so a group's largest weight can take it.
float LargestLevel(Grid grid) {
  return grid == Grid::kSluice16 ? 15 : grid == Grid::kLinear4 ? 8 : -float{kMinWeight8};
}

// The level nearest to x, as a float. For the codebook, a ladder of its midpoints, which compilers
// turn into masked additions.
template <Grid grid, typename T>
[[gnu::always_inline]] inline T Nearest(T x) {
  const T zero{};
  if constexpr (grid == Grid::kSluice16) {
    constexpr struct {
      float middle, step;
    } kLadder[] = {{-13, 4},   {-9.5f, 3}, {-7, 2},   {-5, 2},    {-3, 2},
                   {-1.5f, 1}, {-0.5f, 1}, {0.5f, 1}, {1.5f, 1},  {2.5f, 1},
                   {4, 2},     {6, 2},     {8, 2},    {10.5f, 3}, {13.5f, 3}};
    T level = zero - 15.0f;
#pragma GCC unroll 15
    for (const auto& rung : kLadder) level += x > rung.middle ? zero + rung.step : zero;
    return level;
  } else {
    constexpr float kLow = grid == Grid::kLinear4 ? -8 : kMinWeight8;
    constexpr float kHigh = grid == Grid::kLinear4 ? 7 : kMaxWeight8;
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    constexpr float kRound = 12582912.0f;
    T clipped = x < kLow ? zero + kLow : x;
    clipped = clipped > kHigh ? zero + kHigh : clipped;
    return (clipped + kRound) - kRound;
  }
}

int16_t StoredWeight(Grid grid, float level) {
  const auto value = static_cast<int16_t>(level);
  if (grid == Grid::kLinear8) return value;
  if (grid == Grid::kLinear4) return static_cast<int16_t>(value + 8);
  static const auto kIndex = [] {
    std::array<int16_t, 31> index{};
    const auto levels = Levels(Codebook::kSluice16);
    for (size_t i = 0; i < levels.size(); ++i) {
      index[static_cast<size_t>(levels[i] + 15)] = static_cast<int16_t>(i);
    }
    return index;
  }();
  return kIndex[static_cast<size_t>(value + 15)];
}

// ---------------------------------------------------------------- search by weighted error

// Least-squares sums of one group at inverse scale `inverse`.
struct Fit {
  float cross = 0;   // sum d w level
  float square = 0;  // sum d level^2
};

float SumLanes(const float* lanes) {
  float sum[4];
  for (size_t i = 0; i < 4; ++i)
    sum[i] = (lanes[i] + lanes[i + 4]) + (lanes[i + 8] + lanes[i + 12]);
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

template <Grid grid>
[[gnu::always_inline]] inline Fit FitGroupBody(const float* w, const float* d, size_t size,
                                               float inverse) {
  float cross[kLanes] = {};
  float square[kLanes] = {};
  for (size_t i = 0; i < size; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const float level = Nearest<grid, float>(w[i + j] * inverse);
      const float weighted = d[i + j] * level;
      cross[j] += weighted * w[i + j];
      square[j] += weighted * level;
    }
  }
  return {SumLanes(cross), SumLanes(square)};
}

SLUICE_VECTOR_CLONES Fit FitGroup16(const float* w, const float* d, size_t size, float inverse) {
  return FitGroupBody<Grid::kSluice16>(w, d, size, inverse);
}
SLUICE_VECTOR_CLONES Fit FitGroupLinear4(const float* w, const float* d, size_t n, float inverse) {
  return FitGroupBody<Grid::kLinear4>(w, d, n, inverse);
}
SLUICE_VECTOR_CLONES Fit FitGroupLinear8(const float* w, const float* d, size_t n, float inverse) {
  return FitGroupBody<Grid::kLinear8>(w, d, n, inverse);
}

Fit FitGroup(Grid grid, const float* w, const float* d, size_t size, float inverse) {
  switch (grid) {
    case Grid::kSluice16:
      return FitGroup16(w, d, size, inverse);
    case Grid::kLinear4:
      return FitGroupLinear4(w, d, size, inverse);
    case Grid::kLinear8:
      return FitGroupLinear8(w, d, size, inverse);
  }
  return {};
}

// Candidate scales, as shares of the scale at which the group's largest weight meets the largest
// level. Above 1 pays where the codebook's steps fit the bulk better.
std::span<const float> ScaleShares(Grid grid) {
  static constexpr std::array<float, 16> kFourBit = {0.52f, 0.58f, 0.64f, 0.69f, 0.74f, 0.78f,
                                                     0.82f, 0.86f, 0.90f, 0.93f, 0.96f, 0.99f,
                                                     1.03f, 1.08f, 1.14f, 1.22f};
  // Levels reach from -136 to 119: a group whose largest values of both signs are alike needs
  // 136/119.
  static constexpr std::array<float, 4> kEightBit = {1.0f, 1.04f, 1.09f, 1.145f};
  if (grid == Grid::kLinear8) return kEightBit;
  return kFourBit;
}

// The best real scale of a group; 0 for a group of zeros.
float BestScale(Grid grid, const float* w, const float* d, size_t size) {
  float peak = 0;
  for (size_t i = 0; i < size; ++i) peak = std::max(peak, std::fabs(w[i]));
  if (peak == 0) return 0;
  float best_gain = 0;
  float best = peak / LargestLevel(grid);
  for (const float sign : {1.0f, -1.0f}) {
    for (const float share : ScaleShares(grid)) {
      const float scale = sign * share * peak / LargestLevel(grid);
      const Fit fit = FitGroup(grid, w, d, size, 1 / scale);
      if (!(fit.square > 0)) continue;
      // The error at the best scale for these levels is sum d w^2 - gain.
      const float gain = fit.cross * fit.cross / fit.square;
      if (gain > best_gain) {
        best_gain = gain;
        best = fit.cross / fit.square;
      }
    }
  }
  return best;
}

// The unit of a row whose groups want these scales: as fine as int8 sub-scales and the 31-bit
// guarantee allow. `room` >= 1 leaves sub-scales room to grow.
RowScale ChooseRowScale(std::span<const float> scales, const MatrixFormat& format, double room) {
  double peak = 0;
  double sum = 0;
  for (const float scale : scales) {
    peak = std::max(peak, std::fabs(double{scale}));
    sum += std::fabs(double{scale});
  }
  // Rounding may raise every sub-scale by a half.
  const double limit = MaxSubScaleSum(format) - 0.5 * static_cast<double>(scales.size()) - 1;
  SLUICE_CHECK(limit > 0);
  return EncodeRowScale(room * std::max(peak / 127, sum / limit));
}

}  // namespace

QuantizedMatrix SearchMatrix(std::span<const float> w, uint32_t rows, uint32_t cols,
                             MatrixFormat format, std::span<const float> importance,
                             base::ThreadPool& pool) {
  SLUICE_CHECK(w.size() == size_t{rows} * cols);
  SLUICE_CHECK(importance.empty() || importance.size() == cols);
  QuantizedMatrix result;
  result.format = format;
  result.rows = rows;
  result.cols = cols;
  const size_t groups = result.groups();
  const size_t padded = result.padded_cols();
  const size_t group = format.group;
  result.weights.resize(rows * padded);
  result.sub_scales.resize(rows * groups);
  result.row_mantissa.resize(rows);
  result.row_exponent.resize(rows);
  const Grid grid = GridOf(format);

  // A column whose input was never seen still has a weight: a trace of the mean importance.
  std::vector<float> d(padded, 0);
  double mean = 0;
  for (const float value : importance) mean += double{value} / cols;
  for (size_t c = 0; c < cols; ++c) {
    d[c] = importance.empty() || mean == 0
               ? 1.0f
               : static_cast<float>(double{importance[c]} / mean + 1e-3);
  }

  constexpr size_t kRowsPerItem = 16;
  pool.ParallelFor((rows + kRowsPerItem - 1) / kRowsPerItem, [&](size_t item) {
    std::vector<float> row(padded, 0);
    std::vector<float> scales(groups);
    for (size_t r = item * kRowsPerItem; r < std::min<size_t>(rows, (item + 1) * kRowsPerItem);
         ++r) {
      std::copy_n(w.data() + r * cols, cols, row.data());
      for (size_t g = 0; g < groups; ++g) {
        scales[g] = BestScale(grid, &row[g * group], &d[g * group], group);
      }
      const RowScale row_scale = ChooseRowScale(scales, format, 1);
      result.row_mantissa[r] = row_scale.mantissa;
      result.row_exponent[r] = row_scale.exponent;
      const double unit = DecodeRowScale(row_scale);
      for (size_t g = 0; g < groups; ++g) {
        const float* values = &row[g * group];
        // The integer sub-scales around the wanted one, judged by the error they leave.
        int best = 0;
        if (unit > 0) {
          const int wanted = static_cast<int>(std::lround(double{scales[g]} / unit));
          const int sign = wanted < 0 ? -1 : 1;
          float best_error = 0;  // relative to sub-scale 0, whose error is sum d w^2
          // Larger ones would break the row's sum, smaller ones may fit better.
          const int reach = format.bits == 8 ? 0 : 2;
          for (int step = 0; step <= reach && step < std::abs(wanted); ++step) {
            const int sub = wanted - sign * step;
            const auto scale = static_cast<float>(unit * sub);
            const Fit fit = FitGroup(grid, values, &d[g * group], group, 1 / scale);
            const float error = scale * (scale * fit.square - 2 * fit.cross);
            if (error < best_error) {
              best_error = error;
              best = sub;
            }
          }
        }
        result.sub_scales[r * groups + g] = static_cast<int8_t>(best);
        const float inverse = best == 0 ? 0 : static_cast<float>(1 / (unit * best));
        for (size_t c = 0; c < group; ++c) {
          const float x = values[c] * inverse;
          const float level = grid == Grid::kSluice16  ? Nearest<Grid::kSluice16, float>(x)
                              : grid == Grid::kLinear4 ? Nearest<Grid::kLinear4, float>(x)
                                                       : Nearest<Grid::kLinear8, float>(x);
          result.weights[r * padded + g * group + c] = StoredWeight(grid, level);
        }
      }
    }
  });
  return result;
}

// ---------------------------------------------------------------- GPTQ

namespace {

constexpr size_t kFactorBlock = 96;
// What is added to the diagonal, as shares of the column's own second moment and of the mean. The
// calibration text is far too short to know the correlations of all columns: with 1 % of the mean,
// as is usual, GPTQ halves the output error on the text it was made with and gains almost nothing
// on others. Measured on SmolLM2-135M with 10,000 tokens, error on unseen English prose:
//   damping          down      up        o
//   0.01 mean        0.00670   0.00596   0.00477
//   0.1 mean         0.00635   0.00576   0.00444
//   0.2 diagonal     0.00619   0.00573   0.00435
//   0.5 diagonal     0.00601   0.00563   0.00432
// and 0.00655, 0.00560 and 0.00555 by the weighted search alone (other layers).
constexpr double kDiagonalDamping = 0.3;
constexpr double kMeanDamping = 0.03;

// Cholesky factor of the lower triangle of a[n][n] in place, right-looking by blocks. False if a
// pivot is not positive.
bool Cholesky(std::vector<float>& a, size_t n, base::ThreadPool& pool) {
  std::vector<double> block(kFactorBlock * kFactorBlock);
  std::vector<double> inverse(kFactorBlock * kFactorBlock);
  std::vector<float> inverse_float(kFactorBlock * kFactorBlock);
  std::vector<float> panel;
  for (size_t first = 0; first < n; first += kFactorBlock) {
    const size_t size = std::min(kFactorBlock, n - first);
    const auto at = [&](size_t i, size_t j) -> double& { return block[i * kFactorBlock + j]; };
    const auto inv = [&](size_t i, size_t j) -> double& { return inverse[i * kFactorBlock + j]; };
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        double sum = double{a[(first + i) * n + first + j]};
        for (size_t p = 0; p < j; ++p) sum -= at(i, p) * at(j, p);
        if (i == j) {
          if (!(sum > 0)) return false;
          at(i, i) = std::sqrt(sum);
        } else {
          at(i, j) = sum / at(j, j);
        }
        a[(first + i) * n + first + j] = static_cast<float>(at(i, j));
      }
    }
    const size_t rest = n - first - size;
    if (rest == 0) break;
    // Panel below: A L^-T, with L^-1 made explicit so that it is a product.
    std::fill(inverse.begin(), inverse.end(), 0.0);
    for (size_t j = 0; j < size; ++j) {
      inv(j, j) = 1 / at(j, j);
      for (size_t i = j + 1; i < size; ++i) {
        double sum = 0;
        for (size_t p = j; p < i; ++p) sum -= at(i, p) * inv(p, j);
        inv(i, j) = sum / at(i, i);
      }
    }
    for (size_t i = 0; i < inverse.size(); ++i) inverse_float[i] = static_cast<float>(inverse[i]);
    panel.resize(rest * size);
    model::Gemm(&pool, rest, size, size, {&a[(first + size) * n + first], n, 1},
                {inverse_float.data(), 1, kFactorBlock}, panel.data(), size);
    pool.ParallelFor(rest, [&](size_t i) {
      std::copy_n(&panel[i * size], size, &a[(first + size + i) * n + first]);
    });
    model::Gemm(&pool, rest, rest, size, {panel.data(), size, 1}, {panel.data(), 1, size},
                &a[(first + size) * n + first + size], n,
                {.accumulate = true, .subtract = true, .lower = true});
  }
  return true;
}

}  // namespace

Factor FactorHessian(std::span<const float> hessian, uint32_t cols, base::ThreadPool& pool) {
  const size_t n = cols;
  SLUICE_CHECK(hessian.size() == n * n);
  Factor factor;
  factor.cols = cols;
  factor.importance.resize(n);
  double mean = 0;
  for (size_t i = 0; i < n; ++i) {
    factor.importance[i] = hessian[i * n + i];
    mean += double{hessian[i * n + i]} / static_cast<double>(n);
  }
  if (!(mean > 0)) mean = 1;

  // R R^T with R upper triangular is the Cholesky factorisation with all columns in reverse order.
  // The whole array reversed is H with both indices reversed.
  for (double strength = 1;; strength *= 10) {
    std::vector<float> a(n * n);
    pool.ParallelFor(n, [&](size_t i) {
      for (size_t j = 0; j <= i; ++j) a[i * n + j] = hessian[(n - 1 - j) * n + n - 1 - i];
      const double diagonal = double{a[i * n + i]};
      a[i * n + i] +=
          static_cast<float>(strength * (kDiagonalDamping * diagonal + kMeanDamping * mean));
    });
    if (!Cholesky(a, n, pool)) continue;
    std::reverse(a.begin(), a.end());
    factor.r = std::move(a);
    break;
  }
  factor.d.resize(n);
  for (size_t j = 0; j < n; ++j) factor.d[j] = factor.r[j * n + j] * factor.r[j * n + j];
  std::vector<float> inverse(n);
  for (size_t j = 0; j < n; ++j) inverse[j] = 1 / factor.r[j * n + j];
  pool.ParallelFor(n, [&](size_t i) {
    for (size_t j = i; j < n; ++j) factor.r[i * n + j] *= inverse[j];
  });
  return factor;
}

namespace {

constexpr size_t kSuperBlock = 512;  // columns between two products with all earlier errors

// One float for each of kLanes rows.
using Lanes [[gnu::vector_size(sizeof(float) * kLanes)]] = float;

// Sub-scales that are tried together, so that their chains of additions overlap.
constexpr size_t kTogether = 4;

// One outcome of rounding a group of kLanes rows.
struct Trial {
  Lanes scale;
  Lanes cost;               // what the group adds to the output error
  Lanes levels[kMaxGroup];  // [columns]
  Lanes errors[kMaxGroup];  // weight - value
};

// One group, column by column: each error is fed forward to the columns after it.
//   w: [size] the weights; x: the same with the errors of all earlier groups added
//   r: R at the group's first row and column, rows `stride` apart; d: [size]
//   trials: [kTogether], scale in, the rest out
template <Grid grid>
[[gnu::always_inline]] inline void RunGroupBody(const Lanes* w, const Lanes* x, size_t size,
                                                const float* r, size_t stride, const float* d,
                                                Trial* trials) {
  Lanes inverse[kTogether];
  for (size_t t = 0; t < kTogether; ++t) {
    inverse[t] = trials[t].scale == 0.0f ? Lanes{} : 1.0f / trials[t].scale;
    trials[t].cost = Lanes{};
  }
  for (size_t j = 0; j < size; ++j) {
    Lanes value[kTogether];
    for (size_t t = 0; t < kTogether; ++t) value[t] = x[j];
    for (size_t i = 0; i < j; ++i) {
      const float factor = r[i * stride + j];
      for (size_t t = 0; t < kTogether; ++t) value[t] += factor * trials[t].errors[i];
    }
    for (size_t t = 0; t < kTogether; ++t) {
      const Lanes level = Nearest<grid, Lanes>(value[t] * inverse[t]);
      const Lanes rounded = level * trials[t].scale;
      const Lanes miss = value[t] - rounded;
      trials[t].levels[j] = level;
      trials[t].errors[j] = w[j] - rounded;
      trials[t].cost += d[j] * miss * miss;
    }
  }
}

#define SLUICE_RUN_GROUP(name, grid)                                                          \
  SLUICE_VECTOR_CLONES void name(const Lanes* w, const Lanes* x, size_t size, const float* r, \
                                 size_t stride, const float* d, Trial* trials) {              \
    RunGroupBody<grid>(w, x, size, r, stride, d, trials);                                     \
  }
SLUICE_RUN_GROUP(RunGroup16, Grid::kSluice16)
SLUICE_RUN_GROUP(RunGroupLinear4, Grid::kLinear4)
SLUICE_RUN_GROUP(RunGroupLinear8, Grid::kLinear8)
#undef SLUICE_RUN_GROUP

using RunGroup = void (*)(const Lanes* w, const Lanes* x, size_t size, const float* r,
                          size_t stride, const float* d, Trial* trials);

RunGroup RunGroupOf(Grid grid) {
  return grid == Grid::kSluice16  ? RunGroup16
         : grid == Grid::kLinear4 ? RunGroupLinear4
                                  : RunGroupLinear8;
}

// x[j] += sum over i < count of r[i][j] * errors[i], for j < size.
SLUICE_VECTOR_CLONES void FeedForward(const Lanes* errors, size_t count, const float* r,
                                      size_t stride, size_t size, Lanes* x) {
  constexpr size_t kColumns = 4;  // independent chains
  for (size_t j = 0; j < size; j += kColumns) {
    const size_t columns = std::min(kColumns, size - j);
    Lanes sum[kColumns] = {};
    if (columns == kColumns) {
      for (size_t i = 0; i < count; ++i) {
        for (size_t c = 0; c < kColumns; ++c) sum[c] += r[i * stride + j + c] * errors[i];
      }
    } else {
      for (size_t i = 0; i < count; ++i) {
        for (size_t c = 0; c < columns; ++c) sum[c] += r[i * stride + j + c] * errors[i];
      }
    }
    for (size_t c = 0; c < columns; ++c) x[j + c] += sum[c];
  }
}

}  // namespace

QuantizedMatrix GptqMatrix(std::span<const float> w, uint32_t rows, MatrixFormat format,
                           const Factor& factor, base::ThreadPool& pool) {
  const size_t n = factor.cols;
  SLUICE_CHECK(w.size() == size_t{rows} * n);
  // Row units from the plain search; sub-scales are chosen anew when their group's turn comes.
  QuantizedMatrix result = SearchMatrix(w, rows, factor.cols, format, factor.importance, pool);
  const size_t group = format.group;
  const size_t groups = result.groups();
  const size_t padded = result.padded_cols();
  const Grid grid = GridOf(format);
  const RunGroup run_group = RunGroupOf(grid);
  const std::span<const float> shares = ScaleShares(grid);
  const int32_t sum_limit = MaxSubScaleSum(format);

  std::vector<float> updated(size_t{rows} * n);  // w' so far
  std::vector<float> errors(size_t{rows} * n);   // w - value
  pool.ParallelFor(rows, [&](size_t row) { std::copy_n(&w[row * n], n, &updated[row * n]); });
  std::vector<int32_t> sums(rows, 0);

  for (size_t first = 0; first < n; first += kSuperBlock) {
    const size_t width = std::min(kSuperBlock, n - first);
    model::Gemm(&pool, rows, width, first, {errors.data(), n, 1}, {&factor.r[first], n, 1},
                &updated[first], n, {.accumulate = true});
    pool.ParallelFor((rows + kLanes - 1) / kLanes, [&](size_t item) {
      const size_t row = item * kLanes;
      const size_t lanes = std::min(kLanes, rows - row);
      const auto block_errors = std::make_unique<std::array<Lanes, kSuperBlock>>();
      std::array<Lanes, kMaxGroup> own, x;
      const auto trials = std::make_unique<std::array<Trial, kTogether>>();
      const auto best = std::make_unique<Trial>();
      Lanes unit{};
      for (size_t l = 0; l < lanes; ++l) {
        unit[l] = static_cast<float>(RowUnit(result, static_cast<uint32_t>(row + l)));
      }
      for (size_t start = 0; start < width; start += group) {
        const size_t size = std::min(group, width - start);
        const size_t at = first + start;
        const size_t g = at / group;
        own.fill(Lanes{});
        x.fill(Lanes{});
        for (size_t l = 0; l < lanes; ++l) {
          for (size_t j = 0; j < size; ++j) {
            own[j][l] = w[(row + l) * n + at + j];
            x[j][l] = updated[(row + l) * n + at + j];
          }
        }
        FeedForward(block_errors->data(), start, &factor.r[first * n + at], n, size, x.data());

        Lanes peak{};
        for (size_t j = 0; j < size; ++j) {
          const Lanes magnitude = x[j] < 0.0f ? -x[j] : x[j];
          peak = magnitude > peak ? magnitude : peak;
        }
        // The sub-scales after this group were left their part of the row's sum by the plain
        // search; what this group may take is the rest.
        std::array<int, kLanes> limit{}, best_sub{};
        for (size_t l = 0; l < lanes; ++l) {
          int32_t rest = sum_limit - sums[row + l];
          for (size_t later = g + 1; later < groups; ++later) {
            rest -= std::abs(int{result.sub_scales[(row + l) * groups + later]});
          }
          limit[l] = std::clamp(rest, 0, 127);
        }
        std::array<std::array<int, kLanes>, kTogether> subs{};
        size_t waiting = 0;
        bool any = false;
        const auto run = [&] {
          for (size_t t = 0; t < kTogether; ++t) {
            for (size_t l = 0; l < kLanes; ++l) {
              (*trials)[t].scale[l] = unit[l] * static_cast<float>(subs[t][l]);
            }
          }
          run_group(own.data(), x.data(), size, &factor.r[at * n + at], n, &factor.d[at],
                    trials->data());
          for (size_t t = 0; t < waiting; ++t) {
            const Trial& trial = (*trials)[t];
            const auto better = any ? trial.cost < best->cost : trial.cost == trial.cost;
            any = true;
            for (size_t l = 0; l < lanes; ++l) {
              if (better[l]) best_sub[l] = subs[t][l];
            }
            best->cost = better ? trial.cost : best->cost;
            for (size_t j = 0; j < size; ++j) {
              best->levels[j] = better ? trial.levels[j] : best->levels[j];
              best->errors[j] = better ? trial.errors[j] : best->errors[j];
            }
          }
          waiting = 0;
        };
        const auto attempt = [&](const auto& wanted) {
          for (size_t l = 0; l < lanes; ++l) {
            subs[waiting][l] = std::clamp(wanted(l), -limit[l], limit[l]);
          }
          if (++waiting == kTogether) run();
        };
        for (const float sign : {1.0f, -1.0f}) {
          for (const float share : shares) {
            attempt([&](size_t l) {
              if (unit[l] == 0) return 0;
              return static_cast<int>(
                  std::lround(sign * share * peak[l] / (LargestLevel(grid) * unit[l])));
            });
          }
        }
        run();
        const std::array<int, kLanes> centre = best_sub;
        for (const int step : {-2, -1, 1, 2}) {
          attempt([&](size_t l) { return centre[l] + step; });
        }
        run();
        for (size_t l = 0; l < lanes; ++l) {
          result.sub_scales[(row + l) * groups + g] = static_cast<int8_t>(best_sub[l]);
          sums[row + l] += std::abs(best_sub[l]);
          for (size_t j = 0; j < size; ++j) {
            result.weights[(row + l) * padded + at + j] = StoredWeight(grid, best->levels[j][l]);
            errors[(row + l) * n + at + j] = best->errors[j][l];
          }
        }
        std::copy_n(best->errors, size, &(*block_errors)[start]);
      }
    });
  }
  return result;
}

}  // namespace sluice::quant
