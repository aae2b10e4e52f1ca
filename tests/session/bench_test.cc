#include "session/bench.h"

#include <gtest/gtest.h>

#include <string>

#include "session/fake_executor.h"

namespace sluice::session {
namespace {

using Kind = BenchTest::Kind;
using Runs = std::vector<std::pair<uint32_t, size_t>>;

FakeExecutor Fake(uint32_t context) {
  return FakeExecutor(100, context, [](auto) { return 1; });
}

TEST(Bench, ReadsPromptsInBlocksAndDecodesOneByOneAtItsDepth) {
  FakeExecutor executor = Fake(64);
  const auto result =
      Bench(executor,
            {.tests = {{Kind::kPrefill, 12, 0}, {Kind::kDecode, 3, 14}}, .repetitions = 2}, {}, {});
  ASSERT_TRUE(result) << result.error().ToString();
  const Runs expected = {
      {0, 8},  {0, 1},                            // warm-up
      {0, 8},  {8, 4},                            // prefill
      {12, 2}, {14, 1}, {15, 1}, {16, 1},         // filled up to 14, decode
      {14, 1}, {15, 1}, {16, 1}, {0, 8},  {8, 4}  // backwards, nothing to fill
  };
  EXPECT_EQ(executor.runs, expected);
  ASSERT_EQ(result->seconds.size(), 2);
  for (const auto& seconds : result->seconds) {
    ASSERT_EQ(seconds.size(), 2);
    for (const double s : seconds) EXPECT_GT(s, 0);
  }
  EXPECT_TRUE(result->bandwidth.empty());
}

TEST(Bench, APositionHoldsTheSameTokenInEveryTest) {
  const auto tokens = [](std::vector<BenchTest> tests, uint64_t seed) {
    FakeExecutor executor = Fake(64);
    EXPECT_TRUE(
        Bench(executor, {.tests = std::move(tests), .repetitions = 1, .seed = seed}, {}, {}));
    return executor.tokens;
  };
  const auto prefill = tokens({{Kind::kPrefill, 20, 0}}, 7);
  EXPECT_EQ(prefill.size(), 20);
  EXPECT_EQ(tokens({{Kind::kDecode, 4, 16}}, 7), prefill);
  EXPECT_EQ(tokens({{Kind::kPrefill, 5, 0}, {Kind::kDecode, 20, 0}}, 7), prefill);
  EXPECT_NE(tokens({{Kind::kPrefill, 20, 0}}, 8), prefill);
}

TEST(Bench, MeasuresBandwidthBeforeEachTestAndTellsHowFarItIs) {
  FakeExecutor executor = Fake(64);
  double next = 0;
  std::vector<std::string> lines;
  const auto result = Bench(
      executor, {.tests = {{Kind::kPrefill, 4, 0}, {Kind::kDecode, 2, 5}}, .repetitions = 2},
      [&] { return ++next; },
      [&](std::string_view what, uint64_t done, uint64_t total) {
        EXPECT_EQ(total, 4);
        lines.push_back(std::to_string(done) + " " + std::string(what));
      });
  ASSERT_TRUE(result);
  EXPECT_EQ(result->bandwidth, (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(lines, (std::vector<std::string>{"0 warming up", "0 pp4, 1 of 2", "1 tg2 @ d5, 1 of 2",
                                             "2 tg2 @ d5, 2 of 2", "3 pp4, 2 of 2"}));
}

TEST(Bench, ATestThatTheContextHasNoRoomForRunsNothing) {
  FakeExecutor executor = Fake(64);
  EXPECT_TRUE(Bench(executor, {.tests = {{Kind::kDecode, 4, 60}}, .repetitions = 1}, {}, {}));
  executor.runs.clear();
  const auto result =
      Bench(executor, {.tests = {{Kind::kPrefill, 4, 0}, {Kind::kDecode, 4, 61}}}, {}, {});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().ToString(),
            "tg4 @ d61: 65 positions, expected at most the context's 64");
  EXPECT_TRUE(executor.runs.empty());
}

TEST(Bench, TheExecutorsErrorEndsIt) {
  FakeExecutor executor = Fake(64);
  executor.fail_after = 4;
  const auto result = Bench(executor, {.tests = {{Kind::kDecode, 4, 0}}}, {}, {});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().got, "broken");
}

TEST(Bench, SpreadIsOfTheMiddleAndTheEnds) {
  EXPECT_EQ(SpreadOf({3, 1, 10}).median, 3);
  EXPECT_EQ(SpreadOf({4, 1, 10, 2}).median, 3);
  const Spread spread = SpreadOf({5, 1, 10});
  EXPECT_EQ(spread.min, 1);
  EXPECT_EQ(spread.max, 10);
}

}  // namespace
}  // namespace sluice::session
