#include "text/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace sluice::text {
namespace {

using fixed::Candidate;
using testing::ElementsAre;
using testing::HasSubstr;

int32_t Logit(double value) {
  return static_cast<int32_t>(std::lround(value * (1 << fixed::kLogitFraction)));
}

// Candidates 0, 1, 2 ... whose probabilities are in these proportions.
std::vector<Candidate> WithWeights(const std::vector<double>& weights) {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < weights.size(); ++i) {
    candidates.push_back({static_cast<int32_t>(i), Logit(std::log(weights[i]))});
  }
  return candidates;
}

Sampler Make(const SamplerOptions& options) { return *Sampler::Create(options); }

std::map<int32_t, int> Draw(const SamplerOptions& options, const std::vector<Candidate>& candidates,
                            int draws) {
  Sampler sampler = Make(options);
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.Sample(candidates)];
  return counts;
}

// Pearson's statistic of the counts against the proportions.
double ChiSquare(const std::map<int32_t, int>& counts, const std::vector<double>& weights,
                 int draws) {
  double total = 0;
  for (const double w : weights) total += w;
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double expected = draws * weights[i] / total;
    const auto found = counts.find(static_cast<int32_t>(i));
    const double difference = (found == counts.end() ? 0 : found->second) - expected;
    sum += difference * difference / expected;
  }
  return sum;
}

TEST(Sampler, IsGreedyAtTemperatureZero) {
  Sampler sampler = Make({});
  EXPECT_EQ(sampler.Sample(std::vector<Candidate>{{7, 100}, {3, 99}, {5, -4}}), 7);
  EXPECT_EQ(sampler.Sample(std::vector<Candidate>{{3, 100}, {7, 100}}), 3);
  EXPECT_EQ(sampler.Sample(std::vector<Candidate>{{9, std::numeric_limits<int32_t>::min()}}), 9);
}

TEST(Sampler, DrawsInProportionToTheProbabilities) {
  const std::vector<double> weights = {40, 25, 15, 10, 6, 4};
  constexpr int kDraws = 100000;
  // 5 degrees of freedom: 20.5 is passed once in a thousand times.
  const auto counts = Draw({.temperature = 1, .seed = 1}, WithWeights(weights), kDraws);
  EXPECT_LT(ChiSquare(counts, weights, kDraws), 20.5);
  // The same bound must find a wrong distribution.
  EXPECT_GT(ChiSquare(counts, {38, 27, 15, 10, 6, 4}, kDraws), 20.5);
}

TEST(Sampler, RaisesProbabilitiesToTheInverseOfTheTemperature) {
  const std::vector<double> weights = {8, 4, 2, 1};
  constexpr int kDraws = 100000;
  // 3 degrees of freedom: 16.3 is passed once in a thousand times.
  EXPECT_LT(ChiSquare(Draw({.temperature = 0.5, .seed = 2}, WithWeights(weights), kDraws),
                      {64, 16, 4, 1}, kDraws),
            16.3);
  EXPECT_LT(ChiSquare(Draw({.temperature = 1e6, .seed = 3}, WithWeights(weights), kDraws),
                      {1, 1, 1, 1}, kDraws),
            16.3);
}

TEST(Sampler, IsGreedyAtTheSmallestTemperature) {
  const std::vector<Candidate> candidates = {{1, 1}, {2, 0}};
  EXPECT_THAT(Draw({.temperature = std::numeric_limits<double>::denorm_min()}, candidates, 100),
              ElementsAre(std::pair(1, 100)));
}

TEST(Sampler, KeepsTheFirstK) {
  const auto counts = Draw({.temperature = 1, .top_k = 2}, WithWeights({3, 2, 2}), 1000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_FALSE(counts.contains(2));
  EXPECT_EQ(Draw({.temperature = 1, .top_k = 9}, WithWeights({3, 2, 2}), 1000).size(), 3u);
}

TEST(Sampler, KeepsTheFewestCandidatesThatReachTopP) {
  // Powers of two, so that the weights are exact: 1/2, 1/4, 1/8, 1/8. Logits of ln 2 are not, so
  // this stays off the borders by a little.
  const auto candidates = WithWeights({4, 2, 1, 1});
  const auto kept = [&](double top_p) {
    return Draw({.temperature = 1, .top_p = top_p, .seed = 4}, candidates, 1000).size();
  };
  EXPECT_EQ(kept(std::numeric_limits<double>::denorm_min()), 1u);
  EXPECT_EQ(kept(0.499), 1u);
  EXPECT_EQ(kept(0.501), 2u);
  EXPECT_EQ(kept(0.749), 2u);
  EXPECT_EQ(kept(0.751), 3u);
  EXPECT_EQ(kept(0.876), 4u);
  EXPECT_EQ(kept(1), 4u);
}

TEST(Sampler, ReachesTopPExactlyOnEqualCandidates) {
  const std::vector<Candidate> candidates = {{0, 5}, {1, 5}, {2, 5}, {3, 5}};
  const auto kept = [&](double top_p) {
    return Draw({.temperature = 1, .top_p = top_p, .seed = 5}, candidates, 1000).size();
  };
  EXPECT_EQ(kept(0.25), 1u);
  EXPECT_EQ(kept(0.5), 2u);
  EXPECT_EQ(kept(std::nextafter(0.5, 1)), 3u);
  EXPECT_EQ(kept(0.75), 3u);
}

TEST(Sampler, DropsWhatIsLessThanMinPOfTheBest) {
  const auto kept = [&](double min_p) {
    return Draw({.temperature = 1, .min_p = min_p, .seed = 6}, WithWeights({8, 4, 2, 1}), 2000)
        .size();
  };
  EXPECT_EQ(kept(0), 4u);
  EXPECT_EQ(kept(0.13), 3u);
  EXPECT_EQ(kept(0.26), 2u);
  EXPECT_EQ(kept(0.6), 1u);
  EXPECT_EQ(kept(1), 1u);
}

TEST(Sampler, MakesTokensOfTheWindowLessLikely) {
  const std::vector<Candidate> candidates = {{1, Logit(4)}, {2, Logit(3)}, {3, Logit(-1)}};
  Sampler sampler = Make({.repetition_penalty = 2, .repetition_window = 2});
  EXPECT_EQ(sampler.Sample(candidates), 1);
  sampler.Accept(1);  // 1: 2, 2: 3, 3: -1
  EXPECT_EQ(sampler.Sample(candidates), 2);
  sampler.Accept(2);  // 1: 2, 2: 1.5, 3: -1
  EXPECT_EQ(sampler.Sample(candidates), 1);
  sampler.Accept(2);  // 1 has left the window
  EXPECT_EQ(sampler.Sample(candidates), 1);
}

TEST(Sampler, LowersNegativeLogitsTooUnderThePenalty) {
  const std::vector<Candidate> candidates = {{1, Logit(-1)}, {2, Logit(-1.5)}};
  Sampler sampler = Make({.repetition_penalty = 2});
  sampler.Accept(1);
  EXPECT_EQ(sampler.Sample(candidates), 2);
  Sampler unpenalised = Make({.repetition_penalty = 2, .repetition_window = 0});
  unpenalised.Accept(1);
  EXPECT_EQ(unpenalised.Sample(candidates), 1);
}

TEST(Sampler, RepeatsItselfFromTheSameSeed) {
  const auto candidates = WithWeights({5, 4, 3, 2, 1});
  const auto sequence = [&](uint64_t seed) {
    Sampler sampler = Make({.temperature = 0.8, .top_p = 0.95, .seed = seed});
    std::vector<int32_t> ids(64);
    for (int32_t& id : ids) id = sampler.Sample(candidates);
    return ids;
  };
  EXPECT_EQ(sequence(42), sequence(42));
  EXPECT_NE(sequence(42), sequence(43));
}

// Computed once by a Python script of the same rules; any machine, compiler or library that gives
// others breaks the promise of sampler.h.
TEST(Sampler, DrawsTheSequenceThatWasWrittenDown) {
  std::vector<Candidate> candidates;
  for (int i = 0; i < 64; ++i) candidates.push_back({1000 + i, 500000 - 7919 * i});
  Sampler sampler = Make({.temperature = 0.9,
                          .top_k = 50,
                          .top_p = 0.97,
                          .min_p = 0.001,
                          .repetition_penalty = 1.1,
                          .repetition_window = 8,
                          .seed = 0x5EED});
  std::vector<int32_t> ids(24);
  for (int32_t& id : ids) {
    id = sampler.Sample(candidates);
    sampler.Accept(id);
  }
  EXPECT_THAT(
      ids, ElementsAre(1000, 1004, 1005, 1006, 1001, 1001, 1003, 1002, 1015, 1001, 1007, 1001, 1000,
                       1005, 1011, 1009, 1021, 1002, 1000, 1012, 1013, 1006, 1017, 1002));
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const auto error = [](const SamplerOptions& options) {
    const auto sampler = Sampler::Create(options);
    return sampler ? "no error" : sampler.error().ToString();
  };
  EXPECT_EQ(error({}), "no error");
  for (const double bad : {-1.0, nan, infinity, -infinity}) {
    EXPECT_THAT(error({.temperature = bad}), HasSubstr("temperature"));
  }
  for (const double bad : {0.0, -0.5, 1.5, nan}) {
    EXPECT_THAT(error({.top_p = bad}), HasSubstr("top_p"));
  }
  for (const double bad : {-0.1, 1.1, nan}) EXPECT_THAT(error({.min_p = bad}), HasSubstr("min_p"));
  for (const double bad : {0.0, -1.0, 1e9, nan, infinity}) {
    EXPECT_THAT(error({.repetition_penalty = bad}), HasSubstr("repetition_penalty"));
  }
  EXPECT_THAT(error({.repetition_window = 1u << 30}), HasSubstr("repetition_window"));
}

TEST(Exp2Units, IsRightToTheLastUnit) {
  EXPECT_EQ(Exp2Units(0), uint64_t{1} << 40);
  for (int i = 0; i <= 40; ++i) EXPECT_EQ(Exp2Units(-i), uint64_t{1} << (40 - i)) << i;
  EXPECT_EQ(Exp2Units(-40.5), 0u);
  EXPECT_EQ(Exp2Units(-std::numeric_limits<double>::infinity()), 0u);
  for (int i = 0; i < 40000; ++i) {
    const double x = -i / 1000.0;
    const double exact = std::exp2(x) * 0x1p40;
    EXPECT_NEAR(static_cast<double>(Exp2Units(x)), exact, 1.0) << x;
  }
}

}  // namespace
}  // namespace sluice::text
