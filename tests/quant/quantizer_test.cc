#include "quant/quantizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "support/tiny_model.h"

namespace sluice::quant {
namespace {

using model::Role;
using ::testing::HasSubstr;
using Matrices = std::vector<std::tuple<Role, uint32_t, QuantizedMatrix>>;

QuantizeOptions Options(bool calibrate, const char* recipe = "balanced") {
  QuantizeOptions options;
  options.recipe = *LoadRecipe(recipe);
  options.threads = 2;
  if (calibrate) {
    for (int w = 0; w < 3; ++w) {
      std::vector<int32_t> window;
      for (int i = 0; i < 80 + w; ++i) window.push_back((i * i * 7 + w * 31 + i) % 288);
      options.calibration.push_back(std::move(window));
    }
  }
  return options;
}

Sink Collect(Matrices& matrices) {
  return [&matrices](Role role, uint32_t layer, QuantizedMatrix matrix,
                     std::span<const float>) -> base::Status {
    matrices.emplace_back(role, layer, std::move(matrix));
    return {};
  };
}

TEST(Quantize, HandsOnTheMatricesInStreamOrder) {
  for (const bool tied : {true, false}) {
    for (const bool calibrate : {true, false}) {
      model::Hyper hyper = testing::TinyHyper("qwen2");
      hyper.tied = tied;
      const model::Model model = testing::TinyModel(hyper, 1);
      Matrices matrices;
      uint64_t last = 0, total = 0;
      QuantizeOptions options = Options(calibrate);
      options.progress = [&](std::string_view, uint64_t done, uint64_t all) {
        EXPECT_GE(done, last);
        last = done;
        total = all;
      };
      const auto outcome = Quantize(model, options, Collect(matrices));
      ASSERT_TRUE(outcome.has_value()) << outcome.error().ToString();
      EXPECT_EQ(last, total);
      std::vector<std::pair<Role, uint32_t>> expected = {{Role::kEmbedding, 0}};
      if (!tied) expected.emplace_back(Role::kHead, 0);
      for (uint32_t layer = 0; layer < 2; ++layer) {
        for (const Role role :
             {Role::kQ, Role::kK, Role::kV, Role::kO, Role::kGate, Role::kUp, Role::kDown}) {
          expected.emplace_back(role, layer);
        }
      }
      ASSERT_EQ(matrices.size(), expected.size());
      ASSERT_EQ(outcome->tensors.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto& [role, layer, matrix] = matrices[i];
        EXPECT_EQ(std::pair(role, layer), expected[i]);
        EXPECT_EQ(outcome->tensors[i].role, role);
        EXPECT_EQ(outcome->tensors[i].layer, layer);
        EXPECT_EQ(matrix.format, options.recipe.FormatOf(role, layer, hyper));
        EXPECT_EQ(std::pair(uint64_t{matrix.rows}, uint64_t{matrix.cols}),
                  model::ExpectedShape(hyper, role));
        EXPECT_LT(outcome->tensors[i].weight_error, matrix.format.bits == 8 ? 0.001 : 0.05);
      }
    }
  }
}

TEST(Quantize, CalibrationLowersTheErrorOfTheOutputs) {
  const model::Model model = testing::TinyModel(testing::TinyHyper("llama"), 2);
  Matrices matrices;
  const auto outcome = Quantize(model, Options(true), Collect(matrices));
  ASSERT_TRUE(outcome.has_value());
  for (const TensorReport& report : outcome->tensors) {
    if (report.role == Role::kEmbedding || report.role == Role::kHead) continue;
    EXPECT_GT(report.output_error, 0) << RoleName(report.role);
    EXPECT_LT(report.output_error, 0.02) << RoleName(report.role);
  }
}

TEST(Quantize, ItsBytesDoNotDependOnTheNumberOfThreads) {
  for (const char* recipe : {"balanced", "compact"}) {
    const model::Model model = testing::TinyModel(testing::TinyHyper("qwen3"), 3);
    std::vector<Matrices> results(2);
    std::vector<Calibration> calibrations;
    for (size_t i = 0; i < 2; ++i) {
      QuantizeOptions options = Options(true, recipe);
      options.threads = i == 0 ? 1 : 4;
      auto outcome = Quantize(model, options, Collect(results[i]));
      ASSERT_TRUE(outcome.has_value());
      calibrations.push_back(std::move(outcome->calibration));
    }
    ASSERT_EQ(results[0].size(), results[1].size());
    for (size_t i = 0; i < results[0].size(); ++i) {
      const QuantizedMatrix& a = std::get<2>(results[0][i]);
      const QuantizedMatrix& b = std::get<2>(results[1][i]);
      EXPECT_EQ(a.weights, b.weights);
      EXPECT_EQ(a.sub_scales, b.sub_scales);
      EXPECT_EQ(a.row_mantissa, b.row_mantissa);
      EXPECT_EQ(a.row_exponent, b.row_exponent);
    }
    EXPECT_EQ(calibrations[0].k_mean, calibrations[1].k_mean);
    EXPECT_EQ(calibrations[0].max_score, calibrations[1].max_score);
    EXPECT_EQ(calibrations[0].max_residual, calibrations[1].max_residual);
  }
}

model::Model WithWeight(Role role, uint32_t layer, uint64_t row, uint64_t col, float value) {
  const model::Hyper hyper = testing::TinyHyper("qwen2");
  model::Model model;
  model.hyper = hyper;
  model.name = "tiny";
  for (testing::TinyTensor& t : testing::TinyTensors(hyper, 4)) {
    if (t.role == role && t.layer == layer) t.values[row * t.cols + col] = value;
    model.Add(t.role, t.layer,
              std::make_shared<model::MemoryTensor>(t.rows, t.cols, std::move(t.values)));
  }
  return model;
}

TEST(Quantize, NamesTheWeightThatIsNotFinite) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  struct Case {
    Role role;
    uint32_t layer;
    uint64_t row, col;
    float value;
    const char* message;
  };
  for (const bool calibrate : {true, false}) {
    for (const Case& c :
         {Case{Role::kDown, 1, 31, 63, kNan, "tensor down of layer 1: nan in row 31, column 63"},
          Case{Role::kEmbedding, 0, 260, 2, kInfinity,
               "tensor embedding: inf in row 260, column 2"},
          Case{Role::kHead, 0, 287, 0, kNan, "tensor head: nan in row 287, column 0"},
          Case{Role::kAttnNorm, 0, 0, 9, kNan, "tensor attn_norm of layer 0: nan in row 0"},
          Case{Role::kOutputNorm, 0, 0, 1, kNan, "tensor output_norm: nan in row 0, column 1"},
          Case{Role::kKBias, 1, 0, 3, -kInfinity, "tensor k_bias of layer 1: -inf in row 0"}}) {
      Matrices matrices;
      const auto outcome = Quantize(WithWeight(c.role, c.layer, c.row, c.col, c.value),
                                    Options(calibrate), Collect(matrices));
      ASSERT_FALSE(outcome.has_value()) << c.message;
      EXPECT_THAT(outcome.error().ToString(), HasSubstr(c.message));
    }
  }
}

TEST(Quantize, RefusesTokensOutsideTheVocabulary) {
  const model::Model model = testing::TinyModel(testing::TinyHyper("llama"), 5);
  QuantizeOptions options = Options(false);
  options.calibration = {{1, 288}};
  Matrices matrices;
  const auto outcome = Quantize(model, options, Collect(matrices));
  ASSERT_FALSE(outcome.has_value());
  EXPECT_THAT(outcome.error().ToString(), HasSubstr("token 288, expected 0 to 287"));
}

TEST(Quantize, AnErrorOfTheSinkEndsTheRun) {
  const model::Model model = testing::TinyModel(testing::TinyHyper("llama"), 6);
  int calls = 0;
  const auto outcome =
      Quantize(model, Options(true),
               [&](Role, uint32_t, QuantizedMatrix, std::span<const float>) -> base::Status {
                 if (++calls == 4) return base::Fail("out.sluice", "disk full");
                 return {};
               });
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().ToString(), "out.sluice: disk full");
  EXPECT_EQ(calls, 4);
}

TEST(Quantize, WithoutCalibrationGivesTheDefaults) {
  const model::Model model = testing::TinyModel(testing::TinyHyper("qwen2"), 7);
  Matrices matrices;
  const auto outcome = Quantize(model, Options(false), Collect(matrices));
  ASSERT_TRUE(outcome.has_value());
  const Calibration& c = outcome->calibration;
  EXPECT_FALSE(c.measured);
  EXPECT_EQ(c.k_mean, std::vector<float>(2 * 2 * 8, 0));
  EXPECT_EQ(c.k_wide, std::vector<uint8_t>(4, 0));
  EXPECT_EQ(c.max_score, std::vector<float>(2, 0));
  EXPECT_EQ(c.max_residual, 0);
}

// A bias that dwarfs everything else in one head, as Qwen2.5's k_proj has it: constant after the
// mean is taken away only as far as RoPE lets it be.
TEST(Quantize, FlagsTheHeadWhoseKeysEightBitsCannotHold) {
  model::Hyper hyper = testing::TinyHyper("qwen2");
  hyper.n_layers = 3;
  model::Model model;
  model.hyper = hyper;
  model.name = "tiny";
  for (testing::TinyTensor& t : testing::TinyTensors(hyper, 8)) {
    if (t.role == Role::kQ || t.role == Role::kK) {
      for (float& value : t.values) value *= 0.1f;
    }
    if (t.role == Role::kKBias && t.layer == 1) {
      for (size_t i = 8; i < 16; ++i) t.values[i] = i % 2 ? 300.0f : -250.0f;
    }
    model.Add(t.role, t.layer,
              std::make_shared<model::MemoryTensor>(t.rows, t.cols, std::move(t.values)));
  }
  Matrices matrices;
  const auto outcome = Quantize(model, Options(true), Collect(matrices));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->calibration.measured);
  EXPECT_EQ(outcome->calibration.tokens, 80u + 81 + 82);
  EXPECT_EQ(outcome->calibration.k_wide, (std::vector<uint8_t>{0, 0, 0, 1, 0, 0}));
  // The slowest pair hardly turns within a window: its mean is close to the bias.
  EXPECT_NEAR(outcome->calibration.k_mean[(1 * 2 + 1) * 8 + 3], 300, 30);
}

TEST(CutWindows, TakesTheSequencesInTurn) {
  const std::vector<std::vector<int32_t>> sequences = {{1, 2, 3, 4, 5, 6, 7}, {11, 12, 13}};
  EXPECT_THAT(
      CutWindows(sequences, 4, 100),
      ::testing::ElementsAre(std::vector<int32_t>{1, 2, 3, 4}, std::vector<int32_t>{11, 12, 13},
                             std::vector<int32_t>{5, 6, 7}));
  EXPECT_THAT(CutWindows(sequences, 4, 100, 99),
              ::testing::ElementsAre(
                  std::vector<int32_t>{99, 1, 2, 3}, std::vector<int32_t>{99, 11, 12, 13},
                  std::vector<int32_t>{99, 4, 5, 6}, std::vector<int32_t>{99, 7}));
  EXPECT_EQ(CutWindows(sequences, 4, 4).size(), 1u);
  EXPECT_TRUE(CutWindows({}, 4, 100).empty());
}

TEST(CutWindows, NeverTakesMoreThanItMay) {
  const std::vector<std::vector<int32_t>> sequences(3, std::vector<int32_t>(500, 1));
  for (uint64_t most = 1; most < 1600; most += 7) {
    for (const int32_t bos : {-1, 2}) {
      uint64_t total = 0;
      for (const auto& window : CutWindows(sequences, 64, most, bos)) total += window.size();
      EXPECT_LE(total, most);
      if (most < 1500 && most > 1) {
        EXPECT_GE(total + 8, most);
      }
    }
  }
}

TEST(CutWindows, DropsShortTails) {
  std::vector<int32_t> sequence(67, 5);
  const std::vector<std::vector<int32_t>> sequences = {sequence, {1}};
  const auto windows = CutWindows(sequences, 64, 1000);
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[0].size(), 64u);
  EXPECT_EQ(windows[1].size(), 1u);
}

TEST(CalibrationTexts, MixDomains) {
  std::string all;
  for (const base::EmbeddedFile& file : CalibrationTexts()) all += file.text;
  EXPECT_GT(all.size(), 20000u);
  EXPECT_THAT(all, HasSubstr("import "));
  EXPECT_THAT(all, HasSubstr("。"));
  EXPECT_THAT(all, HasSubstr("ß"));
}

}  // namespace
}  // namespace sluice::quant
