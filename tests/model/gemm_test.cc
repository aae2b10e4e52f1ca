#include "model/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace sluice::model {
namespace {

std::vector<float> Random(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct Shape {
  size_t m, n, k;
};

class GemmShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(GemmShapes, EqualsTheDefinition) {
  const auto [m, n, k] = GetParam();
  base::ThreadPool pool(2);
  const auto a = Random(m * k, 1);
  const auto b = Random(k * n, 2);
  const auto start = Random(m * n, 3);
  for (const bool transposed : {false, true}) {
    for (const bool subtract : {false, true}) {
      // The same numbers, once as rows and once as columns.
      const View left = transposed ? View{a.data(), 1, m} : View{a.data(), k, 1};
      const View right = transposed ? View{b.data(), 1, k} : View{b.data(), n, 1};
      std::vector<float> c = start;
      Gemm(&pool, m, n, k, left, right, c.data(), n, {.accumulate = true, .subtract = subtract});
      for (size_t i = 0; i < m; ++i) {
        for (size_t j = 0; j < n; ++j) {
          double sum = 0;
          for (size_t p = 0; p < k; ++p) {
            sum += double{left.data[i * left.row_stride + p * left.col_stride]} *
                   double{right.data[p * right.row_stride + j * right.col_stride]};
          }
          const double expected = double{start[i * n + j]} + (subtract ? -sum : sum);
          ASSERT_NEAR(double{c[i * n + j]}, expected, 1e-5 * static_cast<double>(k + 1));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, GemmShapes,
                         ::testing::Values(Shape{1, 1, 1}, Shape{12, 32, 256}, Shape{13, 33, 257},
                                           Shape{97, 31, 5}, Shape{200, 100, 600},
                                           Shape{1, 300, 64}));

TEST(Gemm, DoesNotDependOnTheNumberOfThreads) {
  const size_t m = 150, n = 140, k = 300;
  const auto a = Random(m * k, 4);
  const auto b = Random(k * n, 5);
  base::ThreadPool pool(3);
  std::vector<float> one(m * n), three(m * n);
  Gemm(nullptr, m, n, k, {a.data(), k, 1}, {b.data(), n, 1}, one.data(), n);
  Gemm(&pool, m, n, k, {a.data(), k, 1}, {b.data(), n, 1}, three.data(), n);
  EXPECT_EQ(one, three);
}

TEST(Gemm, LowerComputesTheDiagonalAndBelow) {
  const size_t n = 250, k = 40;
  const auto a = Random(n * k, 6);
  base::ThreadPool pool(2);
  std::vector<float> full(n * n), lower(n * n, 99);
  Gemm(&pool, n, n, k, {a.data(), k, 1}, {a.data(), 1, k}, full.data(), n);
  Gemm(&pool, n, n, k, {a.data(), k, 1}, {a.data(), 1, k}, lower.data(), n, {.lower = true});
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) ASSERT_EQ(lower[i * n + j], full[i * n + j]);
  }
  EXPECT_EQ(lower[n - 1], 99) << "the corner far above the diagonal is left alone";
}

TEST(Gemm, AnEmptyInnerDimensionGivesZerosOrLeavesTheSum) {
  std::vector<float> c = {1, 2, 3, 4};
  Gemm(nullptr, 2, 2, 0, {}, {}, c.data(), 2, {.accumulate = true});
  EXPECT_EQ(c, (std::vector<float>{1, 2, 3, 4}));
  Gemm(nullptr, 2, 2, 0, {}, {}, c.data(), 2);
  EXPECT_EQ(c, (std::vector<float>{0, 0, 0, 0}));
}

}  // namespace
}  // namespace sluice::model
