#include "quant/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace sluice::quant {
namespace {

constexpr MatrixFormat kFormats[] = {{4, 64, Codebook::kSluice16},
                                     {4, 32, Codebook::kSluice16},
                                     {4, 64, Codebook::kLinear},
                                     {8, 64, Codebook::kLinear},
                                     {8, 32, Codebook::kLinear}};

std::vector<float> Random(size_t count, uint64_t seed, float deviation = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// The lower triangle of x^T x for correlated inputs: some directions strong, some columns loud.
std::vector<float> RandomHessian(size_t cols, size_t tokens, uint64_t seed) {
  constexpr size_t kDirections = 12;
  const auto directions = Random(kDirections * cols, seed, 2);
  const auto strengths = Random(tokens * kDirections, seed + 1);
  auto x = Random(tokens * cols, seed + 2);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < cols; ++c) {
      for (size_t d = 0; d < kDirections; ++d) {
        x[t * cols + c] += strengths[t * kDirections + d] * directions[d * cols + c];
      }
      if (c % 17 == 0) x[t * cols + c] *= 8;
    }
  }
  std::vector<float> h(cols * cols, 0);
  for (size_t i = 0; i < cols; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (size_t t = 0; t < tokens; ++t) sum += double{x[t * cols + i]} * double{x[t * cols + j]};
      h[i * cols + j] = static_cast<float>(sum);
    }
  }
  return h;
}

std::vector<float> Values(const QuantizedMatrix& m) {
  std::vector<float> values(size_t{m.rows} * m.cols);
  for (uint32_t r = 0; r < m.rows; ++r) {
    Dequantize(m, r, std::span(values).subspan(size_t{r} * m.cols, m.cols));
  }
  return values;
}

// e H e^T over all rows.
double OutputError(std::span<const float> w, const QuantizedMatrix& m, std::span<const float> h) {
  const auto values = Values(m);
  double total = 0;
  for (size_t r = 0; r < m.rows; ++r) {
    for (size_t i = 0; i < m.cols; ++i) {
      const double e = double{values[r * m.cols + i]} - double{w[r * m.cols + i]};
      for (size_t j = 0; j <= i; ++j) {
        const double f = double{values[r * m.cols + j]} - double{w[r * m.cols + j]};
        total += (i == j ? 1 : 2) * e * f * double{h[i * m.cols + j]};
      }
    }
  }
  return total;
}

void ExpectWellFormed(const QuantizedMatrix& m) {
  const int64_t largest = m.format.bits == 8                         ? 136
                          : m.format.codebook == Codebook::kSluice16 ? 15
                                                                     : 8;
  ASSERT_EQ(m.weights.size(), size_t{m.rows} * m.padded_cols());
  for (uint32_t r = 0; r < m.rows; ++r) {
    int64_t sum = 0;
    for (uint32_t g = 0; g < m.groups(); ++g) {
      const int scale = m.sub_scales[size_t{r} * m.groups() + g];
      ASSERT_GE(scale, -127);
      sum += std::abs(scale);
    }
    ASSERT_LE(m.format.group * largest * 127 * sum, INT32_MAX) << "row " << r;
    for (uint32_t c = 0; c < m.padded_cols(); ++c) {
      const int weight = m.weights[size_t{r} * m.padded_cols() + c];
      if (m.format.bits == 8) {
        ASSERT_GE(weight, kMinWeight8);
        ASSERT_LE(weight, kMaxWeight8);
      } else {
        ASSERT_GE(weight, 0);
        ASSERT_LE(weight, 15);
      }
      if (c >= m.cols) {
        ASSERT_EQ(weight, m.format.bits == 8 ? 0 : ZeroIndex(m.format.codebook));
      }
    }
    if (m.row_mantissa[r] != 0) {
      ASSERT_GE(m.row_mantissa[r], 1 << 14);
    }
  }
}

TEST(Search, KeepsNormalWeightsWithinTheErrorOfTheFormat) {
  base::ThreadPool pool(2);
  const auto w = Random(24 * 576, 1, 0.05f);
  for (const MatrixFormat format : kFormats) {
    const QuantizedMatrix m = SearchMatrix(w, 24, 576, format, {}, pool);
    ExpectWellFormed(m);
    const auto values = Values(m);
    double error = 0, square = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      error += std::pow(double{values[i]} - double{w[i]}, 2);
      square += std::pow(double{w[i]}, 2);
    }
    const double bound = format.bits == 8                         ? 0.0002
                         : format.codebook == Codebook::kSluice16 ? 0.0085
                                                                  : 0.0125;
    EXPECT_LT(error / square, bound) << int{format.bits} << " bits, group " << int{format.group};
  }
}

TEST(Search, ReproducesWeightsThatLieOnTheGrid) {
  base::ThreadPool pool(1);
  const auto levels = Levels(Codebook::kSluice16);
  std::vector<float> w(128);
  for (size_t i = 0; i < w.size(); ++i) {
    w[i] = levels[i * 7 % 16] * (i < 64 ? 127.0f : 40.0f) * 0x1p-12f;
  }
  const QuantizedMatrix m = SearchMatrix(w, 1, 128, kFormats[0], {}, pool);
  EXPECT_EQ(Values(m), w);
}

TEST(Search, ZeroRowsStayZero) {
  base::ThreadPool pool(1);
  for (const MatrixFormat format : kFormats) {
    std::vector<float> w(2 * 100, 0);
    w[150] = 1;
    const QuantizedMatrix m = SearchMatrix(w, 2, 100, format, {}, pool);
    ExpectWellFormed(m);
    EXPECT_EQ(m.row_mantissa[0], 0);
    const auto values = Values(m);
    EXPECT_TRUE(std::all_of(values.begin(), values.begin() + 100, [](float v) { return v == 0; }));
    EXPECT_NEAR(values[150], 1, 0.01);
  }
}

TEST(Search, HeedsTheImportanceOfColumns) {
  base::ThreadPool pool(1);
  const auto w = Random(16 * 256, 3);
  std::vector<float> importance(256, 1);
  for (size_t c = 0; c < 256; c += 5) importance[c] = 500;
  const auto error = [&](const QuantizedMatrix& m) {
    const auto values = Values(m);
    double sum = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      sum += double{importance[i % 256]} * std::pow(double{values[i]} - double{w[i]}, 2);
    }
    return sum;
  };
  const double heeded = error(SearchMatrix(w, 16, 256, kFormats[0], importance, pool));
  const double ignored = error(SearchMatrix(w, 16, 256, kFormats[0], {}, pool));
  EXPECT_LT(heeded, 0.9 * ignored);
}

// All groups as loud as each other is the row that sums to the most.
TEST(Search, LowersSubScalesUntilTheAccumulatorFits) {
  base::ThreadPool pool(2);
  const uint32_t cols = 11008;
  std::vector<float> w(3 * cols);
  for (size_t i = 0; i < w.size(); ++i) w[i] = i % 2 ? 1.0f : -1.0f;
  const auto noise = Random(cols, 4);
  std::copy(noise.begin(), noise.end(), w.begin() + 2 * cols);
  const std::vector<float> ones(cols, 1);
  for (const MatrixFormat format : kFormats) {
    const QuantizedMatrix m = SearchMatrix(w, 3, cols, format, {}, pool);
    ExpectWellFormed(m);
    const auto values = Values(m);
    // The lowered sub-scales are coarser, not clipped.
    for (size_t i = 0; i < 2 * cols; ++i) ASSERT_NEAR(values[i], w[i], 0.12);
  }
}

TEST(Gptq, KeepsTheAccumulatorBoundOnAdversarialRows) {
  base::ThreadPool pool(2);
  const uint32_t cols = 1024;
  std::vector<float> w(16 * cols);
  for (size_t i = 0; i < w.size(); ++i) w[i] = i % 3 ? 1.0f : -1.0f;
  const auto hessian = RandomHessian(cols, 64, 5);
  for (const MatrixFormat format : kFormats) {
    const Factor factor = FactorHessian(hessian, cols, pool);
    ExpectWellFormed(GptqMatrix(w, 16, format, factor, pool));
  }
}

TEST(Gptq, BeatsTheWeightedSearchOnTheOutput) {
  base::ThreadPool pool(2);
  for (const uint64_t seed : {10u, 20u, 30u}) {
    const uint32_t cols = 232;  // the last group is not full
    const auto w = Random(40 * cols, seed, 0.1f);
    const auto hessian = RandomHessian(cols, 400, seed);
    for (const MatrixFormat format : kFormats) {
      const Factor factor = FactorHessian(hessian, cols, pool);
      const auto searched = SearchMatrix(w, 40, cols, format, factor.importance, pool);
      const auto gptq = GptqMatrix(w, 40, format, factor, pool);
      ExpectWellFormed(gptq);
      const double before = OutputError(w, searched, hessian);
      const double after = OutputError(w, gptq, hessian);
      EXPECT_LT(after, (format.bits == 8 ? 0.9 : 0.6) * before)
          << int{format.bits} << " bits, group " << int{format.group} << ", seed " << seed;
    }
  }
}

TEST(Gptq, SurvivesInputsThatWereNeverSeen) {
  base::ThreadPool pool(2);
  const uint32_t cols = 96;
  const auto w = Random(20 * cols, 6);
  auto hessian = RandomHessian(cols, 8, 7);  // far fewer tokens than columns
  for (size_t i = 0; i < cols; ++i) {
    for (size_t j = 0; j < cols; ++j) {
      if (i % 3 == 0 || j % 3 == 0) hessian[i * cols + j] = 0;
    }
  }
  for (const auto& h : {hessian, std::vector<float>(cols * cols, 0)}) {
    const auto m = GptqMatrix(w, 20, kFormats[0], FactorHessian(h, cols, pool), pool);
    ExpectWellFormed(m);
    const auto values = Values(m);
    double error = 0;
    for (size_t i = 0; i < w.size(); ++i) error += std::pow(double{values[i]} - double{w[i]}, 2);
    EXPECT_LT(error / static_cast<double>(w.size()), 0.1);
  }
}

TEST(Factor, ReproducesTheHessian) {
  base::ThreadPool pool(2);
  const size_t cols = 230;
  const auto hessian = RandomHessian(cols, 500, 8);
  const Factor factor = FactorHessian(hessian, cols, pool);
  double mean = 0;
  for (size_t i = 0; i < cols; ++i) mean += double{hessian[i * cols + i]} / double(cols);
  for (size_t i = 0; i < cols; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (size_t p = i; p < cols; ++p) {
        sum +=
            double{factor.r[i * cols + p]} * double{factor.d[p]} * double{factor.r[j * cols + p]};
      }
      const double moment = double{hessian[i * cols + j]};
      const double expected = i == j ? 1.3 * moment + 0.03 * mean : moment;
      ASSERT_NEAR(sum, expected, 1e-4 * mean);
    }
  }
}

TEST(Search, ItsBytesDoNotDependOnTheNumberOfThreads) {
  const uint32_t cols = 700;
  const auto w = Random(70 * cols, 9);
  const auto hessian = RandomHessian(cols, 100, 9);
  std::vector<QuantizedMatrix> results;
  for (const unsigned threads : {1u, 2u, 5u}) {
    base::ThreadPool pool(threads);
    const Factor factor = FactorHessian(hessian, cols, pool);
    results.push_back(GptqMatrix(w, 70, kFormats[0], factor, pool));
  }
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(results[i].weights, results[0].weights);
    EXPECT_EQ(results[i].sub_scales, results[0].sub_scales);
    EXPECT_EQ(results[i].row_mantissa, results[0].row_mantissa);
    EXPECT_EQ(results[i].row_exponent, results[0].row_exponent);
  }
}

}  // namespace
}  // namespace sluice::quant
