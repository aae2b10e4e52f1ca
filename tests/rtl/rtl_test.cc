// The Verilated accelerator gives the bits of the reference, instruction by instruction.
#include "exec/rtl/rtl_executor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/random_pack.h"
#include "support/recorded_runs.h"

namespace sluice::exec {
namespace {

using testing::Fill;
using testing::RandomPackOptions;

std::unique_ptr<Executor> MakeRtl(const program::LoadedPack& pack, const RtlOptions& options) {
  auto made = MakeRtlExecutor(pack.pack->bytes(), pack.program, options);
  EXPECT_TRUE(made) << made.error().ToString();
  return *std::move(made);
}

void ExpectEqualToRef(const RandomPackOptions& options, uint64_t seed, uint32_t count,
                      const RtlOptions& rtl) {
  SCOPED_TRACE(fmt::format("seed {}: {}", seed, testing::Describe(options)));
  const auto pack = testing::MakeRandomPack(seed, options);
  const auto tokens = RandomTokens(seed, count, pack.program.sizes().vocab);
  const Seen expected = RunBlocks(*MakeRef(pack), Cut(tokens, {count}));
  ExpectSame(RunBlocks(*MakeRtl(pack, rtl), Cut(tokens, {count})), expected);
}

constexpr uint64_t kWatchdog = 1'000'000;  // clocks: no instruction of these models takes long

class RtlRandom : public ::testing::TestWithParam<std::tuple<std::string, uint64_t>> {};

TEST_P(RtlRandom, GivesTheBitsOfTheReference) {
  const auto& [configuration, seed] = GetParam();
  ExpectEqualToRef(testing::DrawOptions(seed), seed, 21,
                   {.configuration = configuration, .watchdog = kWatchdog});
}

INSTANTIATE_TEST_SUITE_P(Seeds, RtlRandom,
                         ::testing::Combine(::testing::Values("tiny", "z2_decode", "z2_block"),
                                            ::testing::Range<uint64_t>(0, 50)));

TEST(RtlExecutor, GivesTheBitsOfTheReferenceOnDamagedPacksAndExtremes) {
  for (const Fill fill : {Fill::kNoise, Fill::kLowest, Fill::kHighest, Fill::kOutlier}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      RandomPackOptions options = testing::DrawOptions(seed + 1000);
      options.fill = fill;
      ExpectEqualToRef(options, seed, 12, {.configuration = "tiny", .watchdog = kWatchdog});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(RtlExecutor, GivesTheSameBitsWhateverTheMemoryWithholds) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ExpectEqualToRef(testing::DrawOptions(seed), seed, 6,
                     {.configuration = "tiny",
                      .ideal_memory = seed % 2 == 0,
                      .ideal_latency = static_cast<uint32_t>(1 + seed * 7 % 100),
                      .stall = 0.05 * static_cast<double>(seed % 18),
                      .seed = seed,
                      .watchdog = 10 * kWatchdog});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::exec
