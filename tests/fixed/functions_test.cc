#include "fixed/functions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "fixed/rounding.h"

namespace sluice::fixed {
namespace {

constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
constexpr int32_t kMax = std::numeric_limits<int32_t>::max();

TEST(RoundShift, RoundsHalfUpOnBothSidesOfZero) {
  EXPECT_EQ(RoundShift(3, 1), 2);
  EXPECT_EQ(RoundShift(-3, 1), -1);
  EXPECT_EQ(RoundShift(-1, 1), 0);
  EXPECT_EQ(RoundShift(5, 2), 1);
  EXPECT_EQ(RoundShift(6, 2), 2);
  EXPECT_EQ(RoundShift(-6, 2), -1);
  EXPECT_EQ(RoundShift(-7, 2), -2);
}

TEST(RoundShift, VanishesForLargeShifts) {
  EXPECT_EQ(RoundShift((int64_t{1} << 60) - 1, 61), 0);
  EXPECT_EQ(RoundShift(-(int64_t{1} << 60), 62), 0);
  EXPECT_EQ(RoundShift(1, 1000), 0);
}

TEST(RoundShift, SaturatesWhenShiftedLeft) {
  EXPECT_EQ(RoundShiftSat32(1, -30), 1 << 30);
  EXPECT_EQ(RoundShiftSat32(1, -31), kMax);
  EXPECT_EQ(RoundShiftSat32(-1, -31), kMin);
  EXPECT_EQ(RoundShiftSat32(-1, -32), kMin);
  EXPECT_EQ(RoundShiftSat32(0, -1000), 0);
  EXPECT_EQ(RoundShiftSat32(int64_t{1} << 50, -1), kMax);
  EXPECT_EQ(RoundShiftSat32(int64_t{1} << 50, 10), kMax);
  EXPECT_EQ(RoundShiftSat32(-(int64_t{1} << 50), 19), kMin);
}

TEST(Exp2, TableIsWithinHalfAUnitAndFarFromTies) {
  for (size_t i = 1; i < kExp2Table.size(); ++i) {
    const double exact = std::exp2(15.0 - static_cast<double>(i) / 256.0);
    EXPECT_NEAR(kExp2Table[i], exact, 0.5);
    const double fraction = exact - std::floor(exact);
    EXPECT_GT(std::abs(fraction - 0.5), 1e-6) << i;
  }
}

TEST(Exp2, FollowsTheTrueFunction) {
  for (int fraction = 0; fraction <= kMaxScoreFraction; ++fraction) {
    for (uint32_t d = 0; d < 65536; d += 7) {
      const double exact = std::exp2(15.0 - std::ldexp(d, -fraction));
      EXPECT_NEAR(Exp2Negative(d, fraction), exact, 1.01);
    }
  }
}

TEST(Sigmoid, FollowsTheTrueFunctionAndItsSymmetry) {
  for (int64_t x = -20 * 65536; x <= 20 * 65536; x += 91) {
    const double exact = 1.0 / (1.0 + std::exp(-std::ldexp(static_cast<double>(x), -16)));
    EXPECT_NEAR(Sigmoid(static_cast<int32_t>(x)) / 65536.0, exact, 6e-5);
    EXPECT_EQ(Sigmoid(static_cast<int32_t>(x)) + Sigmoid(static_cast<int32_t>(-x)), 65536u);
  }
  EXPECT_LE(Sigmoid(kMin), 1u);
  EXPECT_GE(Sigmoid(kMax), 65535u);
}

TEST(SiluGate, SaturatesInsteadOfWrapping) {
  EXPECT_EQ(SiluGate(kMax, kMax), kMax);
  EXPECT_EQ(SiluGate(kMax, kMin), kMin);
  EXPECT_EQ(SiluGate(0, kMax), 0);
}

TEST(Reciprocal, IsTheFloorOfTheTrueQuotient) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t x = (random() >> (17 + random() % 47)) | 1;
    const Scaled r = Reciprocal(x);
    EXPECT_GE(r.mantissa, 32768u);
    EXPECT_LE(r.mantissa, 65535u);
    const double ratio = std::ldexp(r.mantissa, r.exponent) * static_cast<double>(x);
    EXPECT_LE(ratio, 1.0);
    EXPECT_GT(ratio, 1.0 - 1.0 / 32768);
  }
}

TEST(ReciprocalRoot, IsWithinAUnitOfTheMantissa) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t x = (random() >> (2 + random() % 61)) | 1;
    const Scaled r = ReciprocalRoot(x);
    EXPECT_GE(r.mantissa, 32768u);
    EXPECT_LE(r.mantissa, 65535u);
    const double ratio = std::ldexp(r.mantissa, r.exponent) * std::sqrt(static_cast<double>(x));
    EXPECT_LE(ratio, 1.0 + 1e-8);
    EXPECT_GT(ratio, 1.0 - 1.0 / 32768);
  }
}

TEST(SquareRoot, IsTheFloorOnPerfectSquaresAndTheirNeighbours) {
  for (const uint64_t r : {1ull, 2ull, 3ull, 65535ull, 1234567ull, (1ull << 31) - 1}) {
    EXPECT_EQ(SquareRoot(r * r), r);
    EXPECT_EQ(SquareRoot(r * r - 1), r - 1);
    EXPECT_EQ(SquareRoot(r * r + 1), r);
  }
}

TEST(QuantizeBlock, UsesTheSmallestShiftAndNeverReachesMinus128) {
  std::vector<int8_t> q(4);
  EXPECT_EQ(QuantizeBlock8(std::vector<int32_t>{127, -128, 5, 0}, q), 0);
  EXPECT_EQ(q, (std::vector<int8_t>{127, -127, 5, 0}));
  EXPECT_EQ(QuantizeBlock8(std::vector<int32_t>{128, 1, -1, 3}, q), 1);
  EXPECT_EQ(q, (std::vector<int8_t>{64, 1, 0, 2}));
  EXPECT_EQ(QuantizeBlock8(std::vector<int32_t>{255, 0, 0, 0}, q), 1);
  EXPECT_EQ(q[0], 127);
  EXPECT_EQ(QuantizeBlock8(std::vector<int32_t>{kMin, kMax, 0, 0}, q), 24);
  EXPECT_EQ(q, (std::vector<int8_t>{-127, 127, 0, 0}));
}

TEST(QuantizeBlock, TwoBytesHoldTheValue) {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> v(8);
    const int bits = static_cast<int>(random() % 31);
    for (auto& x : v) x = static_cast<int32_t>(random()) >> bits;
    std::vector<int8_t> high(8), low(8);
    std::vector<int16_t> whole(8);
    const int shift = QuantizeBlockTwoBytes(v, high, low);
    EXPECT_EQ(shift, QuantizeBlock16(v, whole));
    for (size_t j = 0; j < v.size(); ++j) {
      EXPECT_NEAR(256 * high[j] + low[j], whole[j], 128);
      if (std::abs(whole[j]) <= 32639) {
        EXPECT_EQ(256 * high[j] + low[j], whole[j]);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::fixed
