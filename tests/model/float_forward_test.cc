#include "model/float_forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "support/python.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace sluice::model {
namespace {

using testing::TempDir;
using Windows = std::vector<std::vector<int32_t>>;

const Windows kWindows = {{5}, {1, 2, 3, 4, 5, 6, 7, 250, 287}, {9, 9, 9, 0}};

std::vector<testing::TinyTensor> Tensors(const Hyper& hyper) {
  auto tensors = testing::TinyTensors(hyper, 7);
  for (auto& tensor : tensors) {
    for (float& value : tensor.values) value *= 0.4f;
  }
  return tensors;
}

Model MakeModel(const Hyper& hyper) {
  Model model;
  model.hyper = hyper;
  model.name = "tiny";
  for (auto& t : Tensors(hyper)) {
    model.Add(t.role, t.layer, std::make_shared<MemoryTensor>(t.rows, t.cols, std::move(t.values)));
  }
  return model;
}

std::vector<float> AllLogits(const Model& model, const Windows& windows, unsigned threads) {
  base::ThreadPool pool(threads);
  std::vector<float> all;
  size_t expected_window = 0;
  size_t expected_position = 0;
  const auto status = FloatForward(
      model, windows, pool, [&](size_t window, size_t position, Rows logits) -> base::Status {
        if (expected_position == windows[expected_window].size()) {
          ++expected_window;
          expected_position = 0;
        }
        EXPECT_EQ(window, expected_window);
        EXPECT_EQ(position, expected_position);
        expected_position += logits.rows;
        all.insert(all.end(), logits.data, logits.data + logits.rows * logits.cols);
        return {};
      });
  EXPECT_TRUE(status.has_value());
  return all;
}

struct Variant {
  const char* family;
  bool tied;
  bool factors;
};

class AgainstNumpy : public ::testing::TestWithParam<Variant> {};

TEST_P(AgainstNumpy, GivesTheSameLogits) {
  SLUICE_NEEDS_PYTHON("numpy");
  Hyper hyper = testing::TinyHyper(GetParam().family);
  hyper.tied = GetParam().tied;
  if (GetParam().factors) hyper.rope_factors = {1, 1.5f, 4, 8};
  const Model model = MakeModel(hyper);
  ASSERT_TRUE(model.Validate().has_value());

  const TempDir folder;
  nlohmann::json config = {{"n_layers", hyper.n_layers},
                           {"n_heads", hyper.n_heads},
                           {"n_kv_heads", hyper.n_kv_heads},
                           {"head_dim", hyper.head_dim},
                           {"rms_eps", hyper.rms_eps},
                           {"rope_base", hyper.rope_base},
                           {"windows", kWindows},
                           {"rope_factors", hyper.rope_factors}};
  std::ofstream values(folder.path() + "/tensors.bin", std::ios::binary);
  for (const auto& t : Tensors(hyper)) {
    config["tensors"].push_back({fmt::format("{}.{}", RoleName(t.role), t.layer), t.rows, t.cols});
    values.write(reinterpret_cast<const char*>(t.values.data()),
                 static_cast<std::streamsize>(t.values.size() * sizeof(float)));
  }
  values.close();
  testing::WriteFile(folder.path() + "/model.json", config.dump());
  ASSERT_EQ(testing::RunPython(fmt::format("{}/tests/model/float_forward.py {}/model.json "
                                           "{}/tensors.bin {}/logits.bin",
                                           SLUICE_SOURCE_DIR, folder.path(), folder.path(),
                                           folder.path())),
            0);
  std::ifstream file(folder.path() + "/logits.bin", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<float> expected(bytes.size() / sizeof(float));
  std::memcpy(expected.data(), bytes.data(), bytes.size());

  const std::vector<float> got = AllLogits(model, kWindows, 2);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-4f) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Families, AgainstNumpy,
    ::testing::Values(Variant{"llama", true, false}, Variant{"llama", false, true},
                      Variant{"qwen2", true, false}, Variant{"qwen3", false, false}),
    [](const auto& variant) {
      return fmt::format("{}{}{}", variant.param.family, variant.param.tied ? "Tied" : "",
                         variant.param.factors ? "WithRopeFactors" : "");
    });

TEST(FloatForward, DoesNotDependOnTheNumberOfThreads) {
  const Model model = MakeModel(testing::TinyHyper("qwen2"));
  EXPECT_EQ(AllLogits(model, kWindows, 1), AllLogits(model, kWindows, 3));
}

TEST(FloatForward, WindowsDoNotSeeEachOther) {
  const Model model = MakeModel(testing::TinyHyper("llama"));
  std::vector<float> separate;
  for (const auto& window : kWindows) {
    const auto logits = AllLogits(model, {window}, 1);
    separate.insert(separate.end(), logits.begin(), logits.end());
  }
  EXPECT_EQ(AllLogits(model, kWindows, 1), separate);
}

TEST(FloatForward, LaterTokensDoNotChangeEarlierLogits) {
  const Model model = MakeModel(testing::TinyHyper("qwen3"));
  std::vector<int32_t> window(150);
  for (size_t i = 0; i < window.size(); ++i) window[i] = static_cast<int32_t>(i * 31 % 288);
  const auto whole = AllLogits(model, {window}, 2);
  auto changed_window = window;
  changed_window[100] = 7;
  const auto changed = AllLogits(model, {changed_window}, 2);
  const size_t border = 100 * size_t{model.hyper.vocab};
  EXPECT_TRUE(std::equal(whole.begin(), whole.begin() + border, changed.begin()));
  EXPECT_FALSE(std::equal(whole.begin() + border, whole.end(), changed.begin() + border));
}

TEST(FloatForward, ReplacedWeightsAreUsed) {
  const Model model = MakeModel(testing::TinyHyper("llama"));
  base::ThreadPool pool(1);
  std::vector<float> logits;
  const auto status = FloatForward(
      model, kWindows, pool,
      [&](size_t, size_t, Rows rows) -> base::Status {
        logits.insert(logits.end(), rows.data, rows.data + rows.rows * rows.cols);
        return {};
      },
      [](uint32_t layer, LayerWeights& w) {
        if (layer == 1) std::ranges::fill(w.down, 0.0f);
      });
  ASSERT_TRUE(status.has_value());
  EXPECT_NE(logits, AllLogits(model, kWindows, 1));
}

TEST(FloatForward, RefusesTokensOutsideTheVocabulary) {
  const Model model = MakeModel(testing::TinyHyper("llama"));
  base::ThreadPool pool(1);
  for (const int32_t token : {-1, 288}) {
    const Windows windows = {{1, token}};
    const auto stream = FloatStream::Create(model, windows, pool);
    ASSERT_FALSE(stream.has_value());
    EXPECT_THAT(stream.error().ToString(), ::testing::HasSubstr(fmt::format("token {}", token)));
  }
  const Windows empty = {{}};
  EXPECT_FALSE(FloatStream::Create(model, empty, pool).has_value());
}

TEST(FloatForward, AnErrorOfTheUserOfLogitsEndsTheRun) {
  const Model model = MakeModel(testing::TinyHyper("llama"));
  base::ThreadPool pool(1);
  const auto status = FloatForward(model, kWindows, pool, [](size_t, size_t, Rows) -> base::Status {
    return base::Fail("disk", "full");
  });
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().ToString(), "disk: full");
}

}  // namespace
}  // namespace sluice::model
