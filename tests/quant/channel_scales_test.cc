#include "quant/channel_scales.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/tiny_model.h"

namespace sluice::quant {
namespace {

// Rows of +-magnitude.
std::vector<float> Alternating(const std::vector<float>& magnitudes, size_t rows) {
  std::vector<float> x;
  for (size_t r = 0; r < rows; ++r) {
    for (const float m : magnitudes) x.push_back(r % 2 == 0 ? m : -m);
  }
  return x;
}

ChannelScales Scales(const std::vector<float>& magnitudes) {
  base::ThreadPool pool(2);
  const std::vector<float> x = Alternating(magnitudes, 6);
  return MakeChannelScales({x.data(), 6, magnitudes.size()}, pool);
}

TEST(ChannelScales, GrowWithTheFourthRootOfTheMagnitude) {
  const ChannelScales scales = Scales({1, 16, 0.0625f, 1, 1});
  ASSERT_EQ(scales.size(), 5u);
  const float expected[] = {1, 2, 0.5f, 1, 1};
  for (size_t i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(scales[i], expected[i]) << i;
}

TEST(ChannelScales, AChannelFarFromTheOthersOrDeadIsHeldWithinReach) {
  const ChannelScales scales = Scales({2, 2, 2, 1e6f, 0});
  EXPECT_FLOAT_EQ(scales[3], 2);
  EXPECT_FLOAT_EQ(scales[4], 0.5f);
}

TEST(ChannelScales, AreNoneWhereNothingCanBeSaid) {
  EXPECT_TRUE(Scales({0, 0, 0}).empty());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(Scales({1, kNan, 2}).empty());
}

TEST(ChannelScales, QueryHeadsOfOneKvHeadShareThem) {
  model::Hyper hyper = testing::TinyHyper("llama");
  hyper.n_heads = 4;
  hyper.n_kv_heads = 2;
  hyper.head_dim = 2;
  // Per query head, two channels; the geometric mean of heads 0 and 1 is (4, 1), of 2 and 3 (1, 1).
  const std::vector<float> x = Alternating({2, 1, 8, 1, 0.5f, 1, 2, 1}, 4);
  base::ThreadPool pool(1);
  const ChannelScales values = MakeValueScales({x.data(), 4, 8}, hyper, pool);
  ASSERT_EQ(values.size(), 4u);
  EXPECT_FLOAT_EQ(values[0], std::sqrt(2.0f));
  for (size_t i = 1; i < 4; ++i) EXPECT_FLOAT_EQ(values[i], 1);
  const ChannelScales columns = PerQueryHead(values, hyper);
  ASSERT_EQ(columns.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(columns[i], values[i / 4 * 2 + i % 2]) << i;
}

}  // namespace
}  // namespace sluice::quant
