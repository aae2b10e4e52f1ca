#include "quant/quantized_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace sluice::quant {
namespace {

TEST(Codebooks, AreAscendingAndHoldZero) {
  for (const Codebook codebook : {Codebook::kSluice16, Codebook::kLinear}) {
    const auto levels = Levels(codebook);
    for (size_t i = 1; i < levels.size(); ++i) EXPECT_LT(levels[i - 1], levels[i]);
    EXPECT_EQ(levels[static_cast<size_t>(ZeroIndex(codebook))], 0);
  }
  EXPECT_EQ(Levels(Codebook::kSluice16)[0], -15);
  EXPECT_EQ(Levels(Codebook::kLinear)[15], 7);
}

TEST(RowScale, IsWithinHalfAUnitOfTheMantissa) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> exponent(-100, 100);
  for (int i = 0; i < 1000; ++i) {
    const double unit = std::exp2(exponent(random));
    const RowScale scale = EncodeRowScale(unit);
    ASSERT_GE(scale.mantissa, 1 << 14);
    ASSERT_LE(std::fabs(DecodeRowScale(scale) - unit), unit / (1 << 15));
  }
}

TEST(RowScale, RoundsUpToTheNextPowerOfTwo) {
  const RowScale scale = EncodeRowScale(2 - 1e-9);
  EXPECT_EQ(scale.mantissa, 1 << 14);
  EXPECT_EQ(DecodeRowScale(scale), 2);
}

TEST(RowScale, WhatNoExponentReachesIsZero) {
  EXPECT_EQ(EncodeRowScale(0).mantissa, 0);
  EXPECT_EQ(EncodeRowScale(1e-40).mantissa, 0);
  EXPECT_GT(EncodeRowScale(1e-30).mantissa, 0);
}

TEST(QuantizedMatrix, PadsTheLastGroup) {
  QuantizedMatrix m;
  m.format.group = 64;
  m.cols = 576;
  EXPECT_EQ(m.groups(), 9u);
  m.cols = 577;
  EXPECT_EQ(m.groups(), 10u);
  EXPECT_EQ(m.padded_cols(), 640u);
}

TEST(QuantizedMatrix, DequantisesAsTheHeaderSays) {
  QuantizedMatrix m;
  m.format = {4, 32, Codebook::kSluice16};
  m.rows = 1;
  m.cols = 33;
  m.weights.assign(64, 7);
  m.weights[0] = 15;
  m.weights[32] = 1;
  m.sub_scales = {-3, 2};
  m.row_mantissa = {1 << 14};
  m.row_exponent = {15};
  std::vector<float> values(33);
  Dequantize(m, 0, values);
  EXPECT_EQ(values[0], 15 * -3 * 0.5f);
  EXPECT_EQ(values[1], 0);
  EXPECT_EQ(values[32], -11 * 2 * 0.5f);

  MultiplyScale(m, 3);
  Dequantize(m, 0, values);
  EXPECT_EQ(values[0], 15 * -3 * 1.5f);
}

TEST(QuantizedMatrix, TheSumLimitKeepsAnInt32Accumulator) {
  for (const MatrixFormat format :
       {MatrixFormat{4, 64, Codebook::kSluice16}, MatrixFormat{4, 32, Codebook::kLinear},
        MatrixFormat{8, 64, Codebook::kLinear}, MatrixFormat{8, 32, Codebook::kLinear}}) {
    const int64_t largest = format.bits == 8 ? 136 : format.codebook == Codebook::kLinear ? 8 : 15;
    const int64_t one = format.group * largest * 127;
    EXPECT_LE(one * MaxSubScaleSum(format), std::numeric_limits<int32_t>::max());
    EXPECT_GT(one * (MaxSubScaleSum(format) + 1), std::numeric_limits<int32_t>::max());
  }
}

}  // namespace
}  // namespace sluice::quant
