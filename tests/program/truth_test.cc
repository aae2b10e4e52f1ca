// The integer path against the float model: what a pack computes on the reference executor must be
// what the model that it was made from computes. Every way in which the compiler could get the
// model wrong is also made on purpose, on the float side, to see that it would be noticed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "exec/ref/ref_executor.h"
#include "fixed/candidate.h"
#include "model/float_forward.h"
#include "program/build_pack.h"
#include "program/loaded_pack.h"
#include "support/scaled_model.h"
#include "support/temp_dir.h"

namespace sluice::program {
namespace {

using model::Model;
using model::Role;
using testing::ScaledHyper;
using testing::ScaledModel;
using testing::UniformRecipe;

using Windows = std::vector<std::vector<int32_t>>;
using Logits = std::vector<std::vector<double>>;  // [position of all windows][vocab]

Logits OfFloat(const Model& model, const Windows& windows) {
  base::ThreadPool pool(1);
  Logits all;
  const auto status = model::FloatForward(model, windows, pool,
                                          [&](size_t, size_t, model::Rows rows) -> base::Status {
                                            for (size_t r = 0; r < rows.rows; ++r) {
                                              all.emplace_back(rows[r].begin(), rows[r].end());
                                            }
                                            return {};
                                          });
  EXPECT_TRUE(status.has_value()) << status.error().ToString();
  return all;
}

Logits OfPack(const LoadedPack& loaded, const Windows& windows) {
  auto executor = exec::MakeRefExecutor(loaded.pack->bytes(), loaded.program, 0);
  EXPECT_TRUE(executor.has_value());
  Logits all;
  for (const auto& window : windows) {
    const auto result =
        (*executor)->Run({.tokens = window,
                          .position = 0,
                          .want = exec::Want::kAll,
                          .use_logits = [&](uint32_t, std::span<const int32_t> logits) {
                            all.emplace_back();
                            for (const int32_t logit : logits) {
                              all.back().push_back(std::ldexp(logit, -fixed::kLogitFraction));
                            }
                          }});
    EXPECT_TRUE(result.has_value()) << result.error().ToString();
  }
  return all;
}

std::vector<double> LogSoftmax(const std::vector<double>& logits) {
  const double best = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - best);
  std::vector<double> result;
  for (const double logit : logits) result.push_back(logit - best - std::log(sum));
  return result;
}

struct Distance {
  double mean_kl = 0;         // KL(float || pack) of the next-token distributions
  double relative_error = 0;  // mean |difference| of logits over their mean absolute value
};

Distance Between(const Logits& truth, const Logits& found) {
  EXPECT_EQ(truth.size(), found.size());
  Distance d;
  double error = 0, spread = 0;
  for (size_t i = 0; i < std::min(truth.size(), found.size()); ++i) {
    EXPECT_EQ(truth[i].size(), found[i].size());
    const auto p = LogSoftmax(truth[i]), q = LogSoftmax(found[i]);
    for (size_t c = 0; c < p.size(); ++c) {
      d.mean_kl += std::exp(p[c]) * (p[c] - q[c]) / static_cast<double>(truth.size());
      error += std::abs(truth[i][c] - found[i][c]);
      spread += std::abs(truth[i][c]);
    }
  }
  d.relative_error = error / spread;
  return d;
}

LoadedPack Pack(const Model& model, const quant::Recipe& recipe, const Windows& calibration = {}) {
  const testing::TempDir dir;
  const BuildOptions options{
      .quantize = {.recipe = recipe, .calibration = calibration, .threads = 1, .progress = {}}};
  const auto summary = BuildPack(model, options, dir / "pack");
  EXPECT_TRUE(summary.has_value()) << summary.error().ToString();
  auto loaded = LoadPack(dir / "pack");  // stays mapped when the folder is gone
  EXPECT_TRUE(loaded.has_value()) << loaded.error().ToString();
  return std::move(*loaded);
}

// The model with its matrices replaced by what the recipe makes of them.
Model Dequantized(const Model& model, const quant::Recipe& recipe) {
  Model result = model;
  const auto sink = [&](Role role, uint32_t layer, quant::QuantizedMatrix matrix,
                        std::span<const float>) -> base::Status {
    std::vector<float> values(size_t{matrix.rows} * matrix.cols);
    for (uint32_t row = 0; row < matrix.rows; ++row) {
      quant::Dequantize(matrix, row,
                        std::span(values).subspan(size_t{row} * matrix.cols, matrix.cols));
    }
    result.Add(role, layer,
               std::make_shared<model::MemoryTensor>(matrix.rows, matrix.cols, std::move(values)));
    return {};
  };
  const quant::QuantizeOptions options{
      .recipe = recipe, .calibration = {}, .threads = 1, .progress = {}};
  EXPECT_TRUE(quant::Quantize(model, options, sink).has_value());
  return result;
}

// Changes the values of one role in every layer.
void Change(Model& model, Role role,
            const std::function<void(std::vector<float>&, uint64_t cols)>& change) {
  for (uint32_t layer = 0; layer < model.hyper.n_layers; ++layer) {
    const auto* tensor = model.Find(role, layer);
    if (tensor == nullptr) continue;
    std::vector<float> values = model.ReadAll(role, layer);
    change(values, tensor->cols());
    model.Add(role, layer,
              std::make_shared<model::MemoryTensor>(tensor->rows(), tensor->cols(), values));
  }
}

void Swap(Model& model, Role a, Role b) {
  for (uint32_t layer = 0; layer < model.hyper.n_layers; ++layer) {
    const auto x = model.ReadAll(a, layer), y = model.ReadAll(b, layer);
    const uint64_t rows = model.Get(a, layer).rows(), cols = model.Get(a, layer).cols();
    model.Add(a, layer, std::make_shared<model::MemoryTensor>(rows, cols, y));
    model.Add(b, layer, std::make_shared<model::MemoryTensor>(rows, cols, x));
  }
}

// Row r of each head is taken from row from(r).
void PermuteHeads(Model& model, Role role, const std::function<uint32_t(uint32_t)>& from) {
  const uint32_t d = model.hyper.head_dim;
  Change(model, role, [&](std::vector<float>& values, uint64_t cols) {
    const std::vector<float> before = values;
    const uint64_t width = cols == d || values.size() == cols ? 1 : cols;
    for (uint64_t row = 0; row < values.size() / width; ++row) {
      const uint64_t source = row / d * d + from(static_cast<uint32_t>(row % d));
      std::copy_n(before.begin() + static_cast<ptrdiff_t>(source * width), width,
                  values.begin() + static_cast<ptrdiff_t>(row * width));
    }
  });
}

void Zero(Model& model, Role role) {
  Change(model, role, [](std::vector<float>& values, uint64_t) { std::ranges::fill(values, 0); });
}

// The mistakes that the family allows for.
std::vector<std::pair<std::string, Model>> Mistakes(const Model& model) {
  std::vector<std::pair<std::string, Model>> result;
  const auto mistake = [&](const char* name, const auto& make) {
    Model wrong = model;
    make(wrong);
    result.emplace_back(name, std::move(wrong));
  };
  const uint32_t d = model.hyper.head_dim;
  mistake("other RoPE pairs", [&](Model& m) {
    for (const Role role :
         {Role::kQ, Role::kK, Role::kQBias, Role::kKBias, Role::kQNorm, Role::kKNorm}) {
      PermuteHeads(m, role, [&](uint32_t r) { return r % 2 * (d / 2) + r / 2; });
    }
  });
  mistake("another RoPE base", [](Model& m) { m.hyper.rope_base *= 3; });
  mistake("gate and up exchanged", [](Model& m) { Swap(m, Role::kGate, Role::kUp); });
  mistake("epsilon ignored", [](Model& m) { m.hyper.rms_eps = 1e-8f; });
  for (const Role norm : {Role::kAttnNorm, Role::kFfnNorm}) {
    mistake("gains of a norm ignored", [&](Model& m) {
      Change(m, norm, [](std::vector<float>& v, uint64_t) { std::ranges::fill(v, 1); });
    });
  }
  if (!model.hyper.rope_factors.empty()) {
    mistake("RoPE factors ignored", [](Model& m) { m.hyper.rope_factors.clear(); });
  }
  if (model.hyper.n_kv_heads > 1) {
    mistake("KV heads in another order", [&](Model& m) {
      for (const Role role : {Role::kK, Role::kKBias, Role::kV, Role::kVBias}) {
        Change(m, role, [&](std::vector<float>& v, uint64_t) {
          const auto head = static_cast<ptrdiff_t>(v.size() / m.hyper.n_kv_heads);
          std::ranges::rotate(v, v.begin() + head);
        });
      }
    });
  }
  if (model.hyper.n_kv_heads > 1 && model.hyper.n_heads > model.hyper.n_kv_heads) {
    mistake("query heads dealt out to the KV heads in turn", [&](Model& m) {
      const uint32_t kv = m.hyper.n_kv_heads, per = m.hyper.n_heads / kv;
      for (const Role role : {Role::kQ, Role::kQBias}) {
        Change(m, role, [&](std::vector<float>& v, uint64_t) {
          const std::vector<float> before = v;
          const size_t head = v.size() / m.hyper.n_heads;
          for (uint32_t h = 0; h < m.hyper.n_heads; ++h) {
            std::copy_n(before.begin() + static_cast<ptrdiff_t>((h % kv * per + h / kv) * head),
                        head, v.begin() + static_cast<ptrdiff_t>(h * head));
          }
        });
      }
    });
  }
  if (model.hyper.family->qkv_bias) {
    mistake("no q bias", [](Model& m) { Zero(m, Role::kQBias); });
    mistake("no k bias", [](Model& m) { Zero(m, Role::kKBias); });
    mistake("no v bias", [](Model& m) { Zero(m, Role::kVBias); });
    mistake("q bias without the factor of q", [](Model& m) {
      Change(m, Role::kQBias, [&](std::vector<float>& v, uint64_t) {
        for (float& x : v) x *= static_cast<float>(std::sqrt(m.hyper.head_dim) / 1.4427);
      });
    });
  }
  if (model.hyper.family->qk_norm) {
    for (const Role role : {Role::kQNorm, Role::kKNorm}) {
      mistake("gains of a head norm in another order", [&](Model& m) {
        PermuteHeads(m, role, [&](uint32_t r) { return (r + d / 2) % d; });
      });
      mistake("gains of a head norm ignored", [&](Model& m) {
        Change(m, role, [](std::vector<float>& v, uint64_t) { std::ranges::fill(v, 1); });
      });
    }
  }
  return result;
}

struct Case {
  std::string name;
  testing::ScaledShape shape;
  uint8_t group = 32;
  bool factors = false;
};

std::string CaseName(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class Truth : public ::testing::TestWithParam<Case> {
 protected:
  Model MakeModel() const {
    model::Hyper h = ScaledHyper(GetParam().shape);
    h.rms_eps = 0.05f;  // large enough to be noticed
    if (GetParam().factors) {
      for (uint32_t i = 0; i < h.head_dim / 2; ++i) {
        h.rope_factors.push_back(1 + 0.5f * static_cast<float>(i % 4));
      }
    }
    Model model = ScaledModel(h, 17);
    EXPECT_TRUE(model.Validate().has_value());
    return model;
  }
  Windows Text() const { return testing::RandomWindows(GetParam().shape.vocab, 2, 40, 5); }
};

// What is left between a pack and the float model of its own weights is the rounding of
// activations: per vector less than 1 %, which attention and two layers multiply.
constexpr double kRounding = 4e-3;  // KL, nats

TEST_P(Truth, APackComputesTheModelAndNoOtherOne) {
  const Model model = MakeModel();
  const Windows text = Text();
  const quant::Recipe recipe = UniformRecipe(8, GetParam().group);
  const Logits found = OfPack(Pack(model, recipe), text);
  const Model own = Dequantized(model, recipe);
  const Distance right = Between(OfFloat(own, text), found);
  EXPECT_LT(right.mean_kl, kRounding);
  EXPECT_LT(right.relative_error, 0.05);
  EXPECT_LT(Between(OfFloat(model, text), found).mean_kl, 3 * kRounding) << "8-bit weights";
  for (const auto& [name, wrong] : Mistakes(own)) {
    EXPECT_GT(Between(OfFloat(wrong, text), found).mean_kl, 20 * right.mean_kl) << name;
  }
}

// Calibration chooses weights, fractions, means and the order of channels; the model stays the
// same.
TEST_P(Truth, ACalibratedPackComputesTheModelToo) {
  const Model model = MakeModel();
  const Windows text = Text();
  const Windows calibration = testing::RandomWindows(model.hyper.vocab, 3, 40, 6);
  const LoadedPack loaded = Pack(model, UniformRecipe(8, GetParam().group), calibration);
  EXPECT_LT(Between(OfFloat(model, text), OfPack(loaded, text)).mean_kl, 3 * kRounding);
}

TEST_P(Truth, AFourBitPackComputesTheModelOfItsOwnWeights) {
  const Model model = MakeModel();
  const Windows text = Text();
  for (const auto codebook : {quant::Codebook::kSluice16, quant::Codebook::kLinear}) {
    quant::Recipe recipe = UniformRecipe(4, GetParam().group, codebook);
    if (codebook == quant::Codebook::kLinear) {  // and a screened head, its planes apart
      recipe.roles[Role::kHead] = {8, GetParam().group, quant::Codebook::kLinear};
      recipe.screen_head = true;
    }
    const Logits found = OfPack(Pack(model, recipe), text);
    const Distance d = Between(OfFloat(Dequantized(model, recipe), text), found);
    EXPECT_LT(d.mean_kl, kRounding);
    EXPECT_GT(Between(OfFloat(model, text), found).mean_kl, 5 * d.mean_kl);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Truth,
    ::testing::Values(Case{"llama", {"llama", 64, 96, 4, 2, 16, 288, false}, 32, false},
                      Case{"llama_tied_padded", {"llama", 80, 72, 3, 1, 32, 277, true}, 64, false},
                      Case{"llama_rope_factors", {"llama", 64, 128, 2, 2, 32, 288, true}, 64, true},
                      Case{"qwen2", {"qwen2", 64, 96, 4, 2, 16, 288, true}, 32, false},
                      Case{"qwen2_padded", {"qwen2", 72, 100, 6, 3, 16, 301, false}, 64, false},
                      Case{"qwen3", {"qwen3", 96, 64, 4, 4, 16, 288, true}, 32, false},
                      Case{"qwen3_padded", {"qwen3", 48, 80, 8, 2, 16, 290, false}, 64, false}),
    CaseName);

// Qwen2's key biases: a hundred times the rest in a few channels, which would take all of the 8
// bits. Calibration subtracts their mean, or keeps 16 bits where RoPE turns them.
TEST(Truth, CalibrationRescuesKeysWithLargeBiases) {
  const testing::ScaledShape shape{.family = "qwen2", .n_kv_heads = 4};
  Model model = ScaledModel(ScaledHyper(shape), 23);
  const uint32_t d = model.hyper.head_dim;
  Change(model, Role::kKBias, [&](std::vector<float>& bias, uint64_t) {
    bias[d / 2 - 1] = 100;  // head 0: the pair that turns slowest
    bias[d + 1] = -150;     // head 1: one that turns fast
  });
  Change(model, Role::kQ, [&](std::vector<float>& v, uint64_t cols) {
    // Queries hardly look at those channels, as in a trained model.
    for (uint64_t row = 0; row < v.size() / cols; ++row) {
      const uint64_t pair = row % (d / 2);
      if (pair != d / 2 - 1 && pair != 1) continue;
      for (uint64_t c = 0; c < cols; ++c) v[row * cols + c] *= 0.02f;
    }
  });
  Change(model, Role::kQBias, [](std::vector<float>& v, uint64_t) { std::ranges::fill(v, 0); });
  const Windows text = testing::RandomWindows(shape.vocab, 2, 40, 5);
  const Windows calibration = testing::RandomWindows(shape.vocab, 4, 60, 6);
  const quant::Recipe recipe = UniformRecipe(8, 32);
  const Logits truth = OfFloat(model, text);
  const double plain = Between(truth, OfPack(Pack(model, recipe), text)).mean_kl;
  const LoadedPack loaded = Pack(model, recipe, calibration);
  const double calibrated = Between(truth, OfPack(loaded, text)).mean_kl;
  EXPECT_LT(calibrated, 3 * kRounding);
  EXPECT_GT(plain, 4 * calibrated);
  uint64_t wide = 0;
  for (const Instruction& i : loaded.program.instructions()) {
    if (i.op == Op::kAttend) wide |= i.imm;
  }
  EXPECT_EQ(wide, 2u) << "head 1 in 16 bits, head 0 after its mean in 8";
}

}  // namespace
}  // namespace sluice::program
