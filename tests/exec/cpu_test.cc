// The CPU executor gives the bits of the reference, whatever the instructions, threads and blocks.
#include "exec/cpu/cpu_executor.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <random>

#include "exec/cpu/kernels.h"
#include "program/build_pack.h"
#include "support/random_pack.h"
#include "support/recorded_runs.h"
#include "support/scaled_model.h"
#include "support/temp_dir.h"

namespace sluice::exec {
namespace {

using testing::Fill;
using testing::RandomPackOptions;

// Forces the instructions of the executors made in its scope.
class ForcedIsa {
 public:
  explicit ForcedIsa(const std::string& isa) { ::setenv("SLUICE_ISA", isa.c_str(), 1); }
  ~ForcedIsa() { ::unsetenv("SLUICE_ISA"); }
};

std::vector<std::string> SupportedIsas() {
  std::vector<std::string> isas;
  for (const cpu::Kernels* kernels : cpu::SupportedKernels()) isas.emplace_back(kernels->name);
  return isas;
}

std::unique_ptr<Executor> MakeCpu(const program::LoadedPack& pack, const std::string& isa,
                                  unsigned threads, CpuOptions options = {}) {
  const ForcedIsa forced(isa);
  options.threads = threads;
  auto made = MakeCpuExecutor(pack.pack->bytes(), pack.program, options);
  EXPECT_TRUE(made) << made.error().ToString();
  return *std::move(made);
}

// The same pack and tokens on the reference and on every instruction set, with 1 to 3 threads and
// the blocks cut differently each time.
void ExpectEqualToRef(const program::LoadedPack& pack, uint64_t seed, uint32_t count) {
  const auto tokens = RandomTokens(seed, count, pack.program.sizes().vocab);
  const Seen expected = RunBlocks(*MakeRef(pack), Cut(tokens, {count}));
  const std::vector<std::vector<uint32_t>> cuts = {{count}, {5, 1, 1, 9}, {1}, {8, 3}};
  size_t k = seed;
  for (const std::string& isa : SupportedIsas()) {
    for (const unsigned threads : {1u, 2u, 3u}) {
      const auto& cut = cuts[k++ % cuts.size()];
      SCOPED_TRACE(fmt::format("{} threads {} blocks {}", isa, threads, fmt::join(cut, " ")));
      ExpectSame(RunBlocks(*MakeCpu(pack, isa, threads), Cut(tokens, cut)), expected);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

void ExpectEqualToRef(const RandomPackOptions& options, uint64_t seed, uint32_t count) {
  SCOPED_TRACE(fmt::format("seed {}: {}", seed, testing::Describe(options)));
  ExpectEqualToRef(testing::MakeRandomPack(seed, options), seed, count);
}

class CpuRandom : public ::testing::TestWithParam<uint64_t> {};

TEST_P(CpuRandom, GivesTheBitsOfTheReference) {
  ExpectEqualToRef(testing::DrawOptions(GetParam()), GetParam(), 40);
}

TEST_P(CpuRandom, GivesTheBitsOfTheReferenceOnADamagedPack) {
  RandomPackOptions options = testing::DrawOptions(GetParam() + 1000);
  options.fill = Fill::kNoise;
  ExpectEqualToRef(options, GetParam(), 20);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CpuRandom, ::testing::Range<uint64_t>(0, 24));

TEST(CpuExecutor, GivesTheBitsOfTheReferenceOnExtremes) {
  for (const Fill fill : {Fill::kLowest, Fill::kHighest, Fill::kOutlier}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      RandomPackOptions options = testing::DrawOptions(seed + 2000);
      options.fill = fill;
      ExpectEqualToRef(options, seed, 20);
    }
  }
}

// What the quantiser and the compiler make, rather than random integers.
TEST(CpuExecutor, GivesTheBitsOfTheReferenceOnPackedModels) {
  for (const std::string_view family : {"llama", "qwen2", "qwen3"}) {
    for (const uint8_t group : {uint8_t{32}, uint8_t{64}}) {
      SCOPED_TRACE(fmt::format("{} in groups of {}", family, group));
      const testing::ScaledShape shape = {.family = family,
                                          .hidden = 72,
                                          .ffn = 100,
                                          .n_heads = 6,
                                          .n_kv_heads = 2,
                                          .head_dim = 16,
                                          .vocab = 290,
                                          .tied = family != "qwen3"};
      program::BuildOptions options;
      options.quantize.recipe = testing::UniformRecipe(4, group);
      options.quantize.recipe.roles[model::Role::kHead] = {8, group, quant::Codebook::kLinear};
      options.quantize.recipe.screen_head = true;
      options.quantize.threads = 1;
      const testing::TempDir dir;
      const auto built = program::BuildPack(
          testing::ScaledModel(testing::ScaledHyper(shape), group), options, dir / "pack");
      ASSERT_TRUE(built) << built.error().ToString();
      const auto pack = program::LoadPack(dir / "pack");
      ASSERT_TRUE(pack) << pack.error().ToString();
      ExpectEqualToRef(*pack, group, 30);
    }
  }
}

// Sums over V move from 32 to 64 bits every 512 positions, and the KV cache has grown often.
TEST(CpuExecutor, GivesTheBitsOfTheReferenceFarIntoTheContext) {
  RandomPackOptions options;
  options.n_layers = 1;
  options.hidden = 64;
  options.ffn = 32;
  options.context = 1200;
  options.wide = 2;
  const program::LoadedPack pack = testing::MakeRandomPack(7, options);
  const auto tokens = RandomTokens(7, 1200, options.vocab);
  const auto cut = Cut(tokens, {64});
  const auto ref = MakeRef(pack);
  const Seen expected = RunBlocks(*ref, cut);
  for (const std::string& isa : SupportedIsas()) {
    SCOPED_TRACE(isa);
    ExpectSame(RunBlocks(*MakeCpu(pack, isa, 2), cut), expected);
  }
}

class CpuExecutorTest : public ::testing::Test {
 protected:
  RandomPackOptions options_ = [] {
    RandomPackOptions o;
    o.wide = 1;
    o.bias = true;
    return o;
  }();
  program::LoadedPack pack_ = testing::MakeRandomPack(1, options_);
  std::vector<int32_t> tokens_ = RandomTokens(1, 90, options_.vocab);
};

TEST_F(CpuExecutorTest, GivesOnlyTheWantedTokens) {
  const auto all = MakeCpu(pack_, "", 2);
  const auto executor = MakeCpu(pack_, "", 2);
  const std::span<const int32_t> tokens = std::span(tokens_).first(11);
  const auto every = all->Run({tokens, 0, Want::kAll, {}});
  ASSERT_TRUE(every);
  ASSERT_EQ(every->size(), 11u);
  const auto none = executor->Run({tokens, 0, Want::kNone, {}});
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->empty());
  const auto last = executor->Run({tokens, 0, Want::kLast, {}});
  ASSERT_TRUE(last);
  EXPECT_THAT(*last, ::testing::ElementsAre(every->back()));
}

TEST_F(CpuExecutorTest, GivesTheLogitsOfTheReference) {
  using Logits = std::vector<std::pair<uint32_t, std::vector<int32_t>>>;
  const auto logits_of = [&](Executor& executor, Want want) {
    Logits logits;
    const auto result = executor.Run(
        {std::span(tokens_).first(19), 0, want, [&](uint32_t token, std::span<const int32_t> l) {
           logits.emplace_back(token, std::vector<int32_t>(l.begin(), l.end()));
         }});
    EXPECT_TRUE(result && result->empty());
    return logits;
  };
  const auto ref = MakeRef(pack_);
  for (const std::string& isa : SupportedIsas()) {
    SCOPED_TRACE(isa);
    const auto executor = MakeCpu(pack_, isa, 2);
    for (const Want want : {Want::kAll, Want::kLast, Want::kNone}) {
      EXPECT_EQ(logits_of(*executor, want), logits_of(*ref, want));
    }
  }
}

TEST_F(CpuExecutorTest, TakesTokensBack) {
  const auto fresh = MakeCpu(pack_, "", 2);
  const auto rewound = MakeCpu(pack_, "", 2);
  ASSERT_TRUE(rewound->Run({std::span(tokens_).first(40), 0, Want::kLast, {}}));
  const std::vector<int32_t> other = RandomTokens(2, 12, options_.vocab);
  ASSERT_TRUE(fresh->Run({std::span(tokens_).first(17), 0, Want::kLast, {}}));
  Seen expected, found;
  RunBlock(*fresh, {other, 17}, expected);
  RunBlock(*rewound, {other, 17}, found);
  ExpectSame(found, expected);
  // What was taken back is no longer there.
  EXPECT_FALSE(rewound->Run({std::span(tokens_).first(1), 30, Want::kLast, {}}));
}

TEST_F(CpuExecutorTest, RefusesBlocksThatDoNotFit) {
  const auto executor = MakeCpu(pack_, "", 2, {.context = 20, .max_block = 16});
  EXPECT_EQ(executor->context(), 20u);
  EXPECT_EQ(executor->max_block(), 16u);
  const auto run = [&](size_t count, uint32_t position) {
    return executor->Run({std::span(tokens_).first(count), position, Want::kLast, {}});
  };
  EXPECT_FALSE(run(0, 0));
  EXPECT_FALSE(run(17, 0));
  EXPECT_FALSE(run(1, 1)) << "a gap";
  ASSERT_TRUE(run(16, 0));
  const auto full = run(5, 16);
  ASSERT_FALSE(full);
  EXPECT_THAT(full.error().ToString(), ::testing::HasSubstr("context is full"));
  EXPECT_TRUE(run(4, 16)) << "the error left the cache as it was";
  const std::vector<int32_t> unknown = {static_cast<int32_t>(options_.vocab)};
  EXPECT_FALSE(executor->Run({unknown, 0, Want::kLast, {}}));
}

TEST_F(CpuExecutorTest, TakesAtMostTheContextOfTheProgram) {
  EXPECT_EQ(MakeCpu(pack_, "", 1)->context(), options_.context);
  EXPECT_EQ(MakeCpu(pack_, "", 1, {.context = 100000})->context(), options_.context);
}

TEST_F(CpuExecutorTest, RefusesUnknownInstructionSets) {
  const ForcedIsa forced("mmx");
  const auto made = MakeCpuExecutor(pack_.pack->bytes(), pack_.program, {});
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().ToString(), ::testing::HasSubstr("SLUICE_ISA"));
}

}  // namespace
}  // namespace sluice::exec
