#include "session/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "exec/ref/ref_executor.h"
#include "fake_executor.h"
#include "program/build_pack.h"
#include "program/loaded_pack.h"
#include "support/scaled_model.h"
#include "support/temp_dir.h"

namespace sluice::session {
namespace {

using Windows = std::vector<std::vector<int32_t>>;

FakeExecutor Fixed(std::vector<double> logits) {
  FakeExecutor executor(static_cast<uint32_t>(logits.size()), 100, {});
  for (const double logit : logits) {
    executor.logits.push_back(
        static_cast<int32_t>(std::lround(std::ldexp(logit, fixed::kLogitFraction))));
  }
  return executor;
}

TEST(Evaluate, AUniformModelsPerplexityIsItsVocabulary) {
  for (const double level : {0.0, 5.0, -300.0, 30000.0}) {
    FakeExecutor executor = Fixed(std::vector<double>(250, level));
    const auto quality = Evaluate(executor, testing::RandomWindows(250, 3, 20, 1), nullptr, 1, {});
    ASSERT_TRUE(quality.has_value()) << quality.error().ToString();
    EXPECT_EQ(quality->predictions, 3u * 19);
    EXPECT_NEAR(quality->perplexity, 250, 1e-9);
    EXPECT_NEAR(quality->perplexity_error, 0, 1e-4);
    EXPECT_EQ(quality->mean_kl, 0);
  }
}

TEST(Evaluate, IsTheExponentialOfTheMeanLoss) {
  // Probabilities 1/2, 1/4, 1/4.
  FakeExecutor executor = Fixed({std::log(2.0), 0, 0});
  const Windows windows{{2, 0, 0, 1}, {1, 2}};
  const auto quality = Evaluate(executor, windows, nullptr, 1, {});
  ASSERT_TRUE(quality.has_value());
  EXPECT_EQ(quality->predictions, 4u);
  EXPECT_NEAR(quality->perplexity, std::exp2((1 + 1 + 2 + 2) / 4.0), 1e-4);
  // Losses 1 1 2 2 bits: standard deviation 1/2 bit, over 2 = sqrt of 4.
  EXPECT_NEAR(quality->perplexity_error, quality->perplexity * std::log(2.0) / 4, 1e-4);
}

TEST(Evaluate, ExtremeLogitsGiveNumbers) {
  FakeExecutor executor = Fixed({32767.9, -32768, 0});
  const auto quality = Evaluate(executor, Windows{{0, 0, 0}}, nullptr, 1, {});
  ASSERT_TRUE(quality.has_value());
  EXPECT_NEAR(quality->perplexity, 1, 1e-9);
  EXPECT_FALSE(std::isnan(quality->perplexity_error));
}

TEST(Evaluate, JudgesEveryPositionButEachWindowsLast) {
  FakeExecutor executor = Fixed(std::vector<double>(50, 0));
  Windows windows = testing::RandomWindows(50, 1, 41, 1);
  windows.push_back({7});
  windows.push_back({});
  windows.push_back({1, 2});
  uint64_t last = 0, last_total = 0;
  const auto quality =
      Evaluate(executor, windows, nullptr, 1, [&](std::string_view, uint64_t done, uint64_t total) {
        EXPECT_GE(done, last);
        last = done;
        last_total = total;
      });
  ASSERT_TRUE(quality.has_value());
  EXPECT_EQ(quality->predictions, 41u);
  EXPECT_EQ(last, 41u);
  EXPECT_EQ(last_total, 41u);
  // Consecutive blocks of each window, from position 0.
  uint32_t position = 0;
  for (const auto& [begin, count] : executor.runs) {
    if (begin == 0) position = 0;
    EXPECT_EQ(begin, position);
    position += static_cast<uint32_t>(count);
  }
}

TEST(Evaluate, RefusesTextThatItCannotJudge) {
  FakeExecutor executor = Fixed(std::vector<double>(50, 0));
  const auto error = [&](const Windows& windows) {
    const auto quality = Evaluate(executor, windows, nullptr, 1, {});
    return quality ? "no error" : quality.error().ToString();
  };
  EXPECT_EQ(error({}), "text: no token to predict, expected at least 2 tokens");
  EXPECT_EQ(error({{}, {3}}), "text: no token to predict, expected at least 2 tokens");
  // The last token is judged, though never run.
  EXPECT_EQ(error({{1, 2, 50}}), "text: token 50, expected 0 to 49");
  EXPECT_EQ(error({{1, 2, -1}}), "text: token -1, expected 0 to 49");
  EXPECT_EQ(error({{1000000, 1}}), "text: token 1000000, expected 0 to 49");
  EXPECT_NE(error({std::vector<int32_t>(102, 1)}).find("context is full"), std::string::npos);
  executor.fail_after = 0;
  EXPECT_EQ(error({{1, 2}}), "executor fake: broken");
}

class AgainstFloat : public ::testing::Test {
 protected:
  program::LoadedPack Pack(const quant::Recipe& recipe) {
    const testing::TempDir dir;
    const auto summary = program::BuildPack(
        model_, {.quantize = {.recipe = recipe, .calibration = {}, .threads = 1, .progress = {}}},
        dir / "pack");
    EXPECT_TRUE(summary.has_value()) << summary.error().ToString();
    return program::LoadPack(dir / "pack").value();
  }
  Quality Judge(const program::LoadedPack& loaded, const Windows& windows) {
    const auto executor = exec::MakeRefExecutor(loaded.pack->bytes(), loaded.program, 0).value();
    const auto quality = Evaluate(*executor, windows, &model_, 1, {});
    EXPECT_TRUE(quality.has_value()) << quality.error().ToString();
    return *quality;
  }
  model::Model model_ = testing::ScaledModel(testing::ScaledHyper({.tied = false}), 3);
};

TEST_F(AgainstFloat, EightBitsAreNearTheModelAndFourFartherAway) {
  const Windows windows = testing::RandomWindows(model_.hyper.vocab, 3, 40, 2);
  const Quality eight = Judge(Pack(testing::UniformRecipe(8, 32)), windows);
  const Quality four = Judge(Pack(testing::UniformRecipe(4, 32)), windows);
  EXPECT_EQ(eight.predictions, 3u * 39);
  EXPECT_GT(eight.mean_kl, 0);
  EXPECT_LT(eight.mean_kl, 0.012);
  EXPECT_GE(eight.max_kl, eight.mean_kl);
  EXPECT_GT(four.mean_kl, 3 * eight.mean_kl);
  EXPECT_NEAR(eight.perplexity / eight.float_perplexity, 1, 0.1);
  EXPECT_EQ(eight.float_perplexity, four.float_perplexity);
  EXPECT_GT(eight.same_top, 0.85);
  EXPECT_LE(eight.same_top, 1);
  // Without the float model the perplexity is the same, and the rest 0.
  const auto loaded = Pack(testing::UniformRecipe(8, 32));
  const auto executor = exec::MakeRefExecutor(loaded.pack->bytes(), loaded.program, 0).value();
  const auto alone = Evaluate(*executor, windows, nullptr, 1, {});
  ASSERT_TRUE(alone.has_value());
  EXPECT_EQ(alone->perplexity, eight.perplexity);
  EXPECT_EQ(alone->float_perplexity, 0);
  EXPECT_EQ(alone->mean_kl, 0);
}

TEST_F(AgainstFloat, AHeadOfZerosIsUniformOnBothSides) {
  const auto& head = model_.Get(model::Role::kHead);
  model_.Add(model::Role::kHead, 0,
             std::make_shared<model::MemoryTensor>(head.rows(), head.cols(),
                                                   std::vector<float>(head.rows() * head.cols())));
  const Quality quality = Judge(Pack(testing::UniformRecipe(8, 32)),
                                testing::RandomWindows(model_.hyper.vocab, 1, 30, 2));
  EXPECT_NEAR(quality.perplexity, model_.hyper.vocab, 1e-9);
  EXPECT_NEAR(quality.float_perplexity, model_.hyper.vocab, 1e-6);
  EXPECT_NEAR(quality.mean_kl, 0, 1e-12);
}

TEST_F(AgainstFloat, RefusesAModelOfAnotherVocabulary) {
  FakeExecutor executor = Fixed(std::vector<double>(50, 0));
  const auto quality = Evaluate(executor, Windows{{1, 2}}, &model_, 1, {});
  ASSERT_FALSE(quality.has_value());
  EXPECT_EQ(quality.error().ToString(), "scaled: a vocabulary of 288, expected the pack's 50");
}

}  // namespace
}  // namespace sluice::session
