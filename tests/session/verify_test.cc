#include "session/verify.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/ref/ref_executor.h"
#include "program/build_pack.h"
#include "session/engine.h"
#include "support/scaled_model.h"
#include "support/temp_dir.h"

namespace sluice::session {
namespace {

// The reference with its trace, or what it returns, tampered with.
class Tampered : public exec::Executor {
 public:
  explicit Tampered(std::unique_ptr<exec::Executor> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return "tampered"; }
  const program::Sizes& sizes() const override { return inner_->sizes(); }
  uint32_t max_block() const override { return inner_->max_block(); }
  uint32_t context() const override { return inner_->context(); }
  base::Result<std::vector<exec::Candidates>> Run(const exec::Block& block) override {
    position_ = block.position;
    auto result = inner_->Run(block);
    if (result && on_result) on_result(*result);
    return result;
  }
  void SetTrace(exec::Trace trace) override {
    if (!trace) return inner_->SetTrace({});
    inner_->SetTrace([this, trace](const exec::TraceEvent& event) {
      std::vector<int32_t> values(event.values.begin(), event.values.end());
      if (on_event && !on_event(position_ + event.token, event.instruction, values)) return;
      trace({event.instruction, event.token, values});
    });
  }

  // May change the values; false drops the event.
  std::function<bool(uint32_t position, uint32_t instruction, std::vector<int32_t>&)> on_event;
  std::function<void(std::vector<exec::Candidates>&)> on_result;

 private:
  std::unique_ptr<exec::Executor> inner_;
  uint32_t position_ = 0;
};

class VerifyTest : public ::testing::Test {
 protected:
  VerifyTest() {
    const testing::TempDir dir;
    quant::Recipe recipe = testing::UniformRecipe(4, 32);
    recipe.roles[model::Role::kHead] = {8, 32, quant::Codebook::kLinear};
    recipe.screen_head = true;
    const auto summary = program::BuildPack(
        testing::ScaledModel(testing::ScaledHyper({.family = "qwen3"}), 8),
        {.quantize = {.recipe = recipe, .calibration = {}, .threads = 1, .progress = {}}},
        dir / "pack");
    EXPECT_TRUE(summary.has_value()) << summary.error().ToString();
    loaded_ = program::LoadPack(dir / "pack").value();
  }
  std::unique_ptr<exec::Executor> Ref() const {
    return exec::MakeRefExecutor(loaded_.pack->bytes(), loaded_.program, 0).value();
  }
  Verified Run(exec::Executor& first, exec::Executor& second, uint32_t block = 4) {
    auto verified = Verify(first, second, loaded_.program, prompt_, block, 16, {});
    EXPECT_TRUE(verified.has_value()) << verified.error().ToString();
    return *verified;
  }

  program::LoadedPack loaded_;
  const std::vector<int32_t> prompt_{5, 90, 17, 3, 200, 41, 7, 77, 140, 9};
};

TEST_F(VerifyTest, EqualExecutorsAgree) {
  for (const uint32_t block : {1u, 4u, 64u}) {
    const auto a = Ref(), b = Ref();
    const Verified verified = Run(*a, *b, block);
    EXPECT_FALSE(verified.difference.has_value());
    EXPECT_EQ(verified.tokens, 16u);
    // Each instruction for each token; the head only for the last of a block.
    const uint64_t instructions = loaded_.program.instructions().size();
    const uint64_t blocks = (prompt_.size() + block - 1) / block + 6;
    EXPECT_EQ(verified.instructions, 16 * (instructions - 1) + blocks);
    EXPECT_GT(verified.values, 16u * 64);
  }
}

TEST_F(VerifyTest, TheProcessorsExecutorAgreesWithTheReference) {
  const auto ref = Ref();
  const auto cpu = MakeExecutor(loaded_, {.executor = "cpu", .threads = 2});
  ASSERT_TRUE(cpu.has_value()) << cpu.error().ToString();
  const Verified verified = Run(*ref, **cpu);
  EXPECT_FALSE(verified.difference.has_value())
      << verified.difference->what << " element " << verified.difference->element;
  EXPECT_EQ(verified.tokens, 16u);
}

TEST_F(VerifyTest, OneBitIsFoundAndNamed) {
  const auto count = static_cast<uint32_t>(loaded_.program.instructions().size());
  for (uint32_t instruction = 0; instruction < count; ++instruction) {
    for (const uint32_t position : {0u, 6u, 9u, 15u}) {
      // The head shows something for the last token of a block only.
      const bool shown = instruction + 1 < count || position == 9 || position == 15;
      const auto a = Ref();
      Tampered b(Ref());
      int32_t right = 0;
      size_t element = 0;
      b.on_event = [&](uint32_t p, uint32_t i, std::vector<int32_t>& values) {
        if (p == position && i == instruction) {
          element = values.size() - 1 - (instruction + position) % values.size();
          right = values[element];
          values[element] ^= 1;
        }
        return true;
      };
      const Verified verified = Run(*a, b);
      ASSERT_EQ(verified.difference.has_value(), shown) << instruction << " at " << position;
      if (!shown) continue;
      EXPECT_EQ(verified.difference->position, position);
      EXPECT_EQ(verified.difference->instruction, instruction);
      EXPECT_EQ(verified.difference->what,
                program::Disassemble(loaded_.program.instructions()[instruction]));
      EXPECT_EQ(verified.difference->element, element);
      EXPECT_EQ(verified.difference->first, right);
      EXPECT_EQ(verified.difference->second, right ^ 1);
    }
  }
}

TEST_F(VerifyTest, AMissingResultIsFoundOnEitherSide) {
  for (const bool swapped : {false, true}) {
    const auto whole = Ref();
    Tampered lacking(Ref());
    lacking.on_event = [&](uint32_t p, uint32_t i, std::vector<int32_t>&) {
      return p != 2 || i != 5;
    };
    const Verified verified = swapped ? Run(lacking, *whole) : Run(*whole, lacking);
    ASSERT_TRUE(verified.difference.has_value());
    EXPECT_EQ(verified.difference->position, 2u);
    EXPECT_EQ(verified.difference->instruction, 5u);
    EXPECT_EQ(verified.difference->element, 0u);
  }
  const auto whole = Ref();
  Tampered shorter(Ref());
  shorter.on_event = [&](uint32_t p, uint32_t i, std::vector<int32_t>& values) {
    if (p == 3 && i == 1) values.pop_back();
    return true;
  };
  const Verified verified = Run(*whole, shorter);
  ASSERT_TRUE(verified.difference.has_value());
  EXPECT_EQ(verified.difference->position, 3u);
  EXPECT_EQ(verified.difference->instruction, 1u);
}

TEST_F(VerifyTest, TheCandidatesReturnedAreComparedToo) {
  const auto whole = Ref();
  Tampered other(Ref());
  int32_t right = 0;
  other.on_result = [&](std::vector<exec::Candidates>& results) {
    right = results.back()[3].logit;
    results.back()[3].logit += 1;
  };
  const Verified verified = Run(*whole, other);
  ASSERT_TRUE(verified.difference.has_value());
  EXPECT_EQ(verified.difference->position, 3u) << "the last token of the first block";
  EXPECT_EQ(verified.difference->instruction, loaded_.program.instructions().size());
  EXPECT_EQ(verified.difference->what, "candidates returned");
  EXPECT_EQ(verified.difference->element, 7u);
  EXPECT_EQ(verified.difference->first, right);
  EXPECT_EQ(verified.difference->second, right + 1);
}

TEST_F(VerifyTest, AnExecutorsErrorIsReturned) {
  const auto a = Ref(), b = Ref();
  const std::vector<int32_t> bad{1, 288};
  const auto verified = Verify(*a, *b, loaded_.program, bad, 4, 16, {});
  ASSERT_FALSE(verified.has_value());
  EXPECT_NE(verified.error().ToString().find("token 288"), std::string::npos);
}

}  // namespace
}  // namespace sluice::session
