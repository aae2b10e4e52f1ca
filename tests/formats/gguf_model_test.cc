#include "formats/gguf_model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "allocation_meter.h"
#include "formats/model_reader.h"
#include "support/tiny_model.h"

namespace sluice::formats {
namespace {

using model::Role;
using ::testing::HasSubstr;
using testing::TinyTensor;

constexpr uint64_t kSeed = 11;

base::Result<model::Model> Read(const std::vector<uint8_t>& bytes) {
  SLUICE_TRY(auto file, GgufFile::FromBytes(bytes, "tiny.gguf"));
  return ReadGgufModel(std::move(file));
}

class GgufModelOfFamily : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufModelOfFamily, HasTheTensorsThatWereWritten) {
  auto h = testing::TinyHyper(GetParam());
  for (const bool tied : {false, true}) {
    h.tied = tied;
    const auto tensors = testing::TinyTensors(h, kSeed);
    const auto metadata = testing::TinyMetadata(h);
    const auto bytes = testing::TinyGguf(h, tensors, metadata);
    const auto model = Read(bytes);
    ASSERT_TRUE(model.has_value()) << model.error().ToString();
    EXPECT_EQ(model->hyper, h);
    EXPECT_EQ(model->metadata.entries(), metadata.entries());
    for (const TinyTensor& t : tensors) {
      EXPECT_EQ(model->ReadAll(t.role, t.layer), t.values) << model::RoleName(t.role);
    }
  }
}

TEST_P(GgufModelOfFamily, ReadsAnyRangeOfRows) {
  const auto h = testing::TinyHyper(GetParam());
  const auto tensors = testing::TinyTensors(h, kSeed);
  const auto bytes = testing::TinyGguf(h, tensors, testing::TinyMetadata(h));
  const auto model = Read(bytes);
  ASSERT_TRUE(model.has_value());
  for (const TinyTensor& t : tensors) {
    if (t.rows < 8) continue;
    std::vector<float> rows(3 * t.cols);
    model->Get(t.role, t.layer).ReadRows(5, 3, rows);
    const auto begin = t.values.begin() + static_cast<ptrdiff_t>(5 * t.cols);
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), begin)) << model::RoleName(t.role);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GgufModelOfFamily, ::testing::Values("llama", "qwen2", "qwen3"));

// One way to spoil a good model: its metadata or its tensors.
struct Spoiled {
  std::string what;
  std::string family;
  std::function<void(model::Metadata&, std::vector<TinyTensor>&)> spoil;
  std::string message;
};

model::Metadata Without(const model::Metadata& metadata, std::string_view key) {
  model::Metadata rest;
  for (const auto& [name, value] : metadata.entries()) {
    if (name != key) rest.Set(name, value);
  }
  return rest;
}

std::vector<Spoiled> SpoiledModels() {
  std::vector<Spoiled> cases;
  const auto set = [&](std::string key, model::Value value, std::string message,
                       std::string family = "llama") {
    std::string full =
        key.starts_with("general") || key.starts_with("tokenizer") ? key : family + "." + key;
    cases.push_back({fmt::format("{} set, value type {}", full, value.index()), family,
                     [=](model::Metadata& m, auto&) { m.Set(full, value); }, std::move(message)});
  };
  const auto drop = [&](std::string key) {
    cases.push_back(
        {key + " missing", "llama", [=](model::Metadata& m, auto&) { m = Without(m, key); }, key});
  };
  set("general.architecture", std::string("gpt-neox"), "one of llama, qwen2, qwen3");
  set("general.architecture", uint32_t{1}, "general.architecture");
  set("general.architecture", std::string("qwen2"), "qwen2.");
  for (const char* key : {"general.architecture", "llama.block_count", "llama.embedding_length",
                          "llama.feed_forward_length", "llama.attention.head_count",
                          "llama.context_length", "llama.attention.layer_norm_rms_epsilon"}) {
    drop(key);
  }
  for (const char* key : {"block_count", "embedding_length", "feed_forward_length",
                          "attention.head_count", "attention.head_count_kv", "context_length",
                          "attention.key_length", "rope.dimension_count"}) {
    for (const char* family : {"llama", "qwen2", "qwen3"}) {
      set(key, uint32_t{0}, "", family);
      set(key, uint64_t{1} << 32, "", family);
      set(key, uint64_t{1} << 63, "", family);
      set(key, int32_t{-1}, key, family);
      set(key, std::string("32"), key, family);
      set(key, 32.0f, key, family);
      set(key, std::vector<uint32_t>{32, 32}, key, family);
    }
    if (std::string(key) != "context_length") {
      set(key, uint32_t{3}, "");
      set(key, uint32_t{1000}, "");
    }
  }
  for (const float bad : {0.0f, -1.0f, 2.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    set("attention.layer_norm_rms_epsilon", bad, "epsilon");
  }
  for (const float bad : {0.0f, -1.0f, 1.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    set("rope.freq_base", bad, "RoPE base");
  }
  set("rope.freq_base", std::string("10000"), "rope.freq_base");
  for (const char* type : {"yarn", "longrope", "dynamic", ""}) {
    set("rope.scaling.type", std::string(type), "rope.scaling.type");
  }
  set("rope.scale_linear", 0.0f, "RoPE factor");
  set("rope.scale_linear", -2.0f, "RoPE factor");
  set("rope.dimension_count", uint32_t{4}, "the head size, 8");
  set("attention.value_length", uint32_t{4}, "the head size, 8");
  set("expert_count", uint32_t{8}, "expert_count");
  set("attention.sliding_window", uint32_t{4096}, "attention.sliding_window", "qwen2");
  set("tokenizer.ggml.tokens", std::vector<std::string>(289, "x"), "289 tokens");
  set("tokenizer.ggml.tokens", uint32_t{1}, "tokenizer.ggml.tokens");

  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    const size_t count = testing::TinyTensors(testing::TinyHyper(family), kSeed).size();
    for (size_t i = 0; i < count; ++i) {
      const auto name = testing::TinyTensors(testing::TinyHyper(family), kSeed)[i];
      const auto label = testing::GgufTensorName(name.role, name.layer);
      if (name.role != Role::kHead) {
        cases.push_back({label + " missing", family,
                         [=](auto&, auto& t) { t.erase(t.begin() + static_cast<ptrdiff_t>(i)); },
                         "missing"});
      }
      cases.push_back({label + " with a column more", family,
                       [=](auto&, auto& t) {
                         t[i].cols += 1;
                         t[i].values.resize(t[i].rows * t[i].cols);
                       },
                       ""});
      cases.push_back({label + " with a row more", family,
                       [=](auto&, auto& t) {
                         t[i].rows += 1;
                         t[i].values.resize(t[i].rows * t[i].cols);
                       },
                       ""});
    }
  }
  const auto extra = [&](std::string family, Role role, uint32_t layer, std::string message) {
    cases.push_back({fmt::format("{} has {}", family, model::RoleName(role)), family,
                     [=](auto&, auto& t) {
                       t.push_back({role, layer, 1, 32, std::vector<float>(32)});
                     },
                     std::move(message)});
  };
  extra("llama", Role::kQBias, 0, "none in the llama family");
  extra("llama", Role::kVBias, 1, "none in the llama family");
  extra("qwen2", Role::kQNorm, 0, "none in the qwen2 family");
  extra("qwen3", Role::kKBias, 0, "none in the qwen3 family");
  extra("llama", Role::kAttnNorm, 2, "less than block_count");
  return cases;
}

TEST(GgufModel, RefusesEverySpoiledModel) {
  const auto cases = SpoiledModels();
  EXPECT_GT(cases.size(), 200u);
  for (const Spoiled& spoiled : cases) {
    SCOPED_TRACE(spoiled.what);
    const auto h = testing::TinyHyper(spoiled.family);
    auto tensors = testing::TinyTensors(h, kSeed);
    auto metadata = testing::TinyMetadata(h);
    spoiled.spoil(metadata, tensors);
    const auto bytes = testing::TinyGguf(h, tensors, metadata);
    const testing::AllocationMeter meter;
    const auto model = Read(bytes);
    EXPECT_LT(meter.peak(), bytes.size() + (64 << 20));
    EXPECT_FALSE(model.has_value());
    if (model) continue;
    EXPECT_FALSE(model.error().object.empty() || model.error().got.empty());
    EXPECT_THAT(model.error().ToString(), HasSubstr(spoiled.message));
  }
}

// A llama with one tensor more than the family has.
std::vector<uint8_t> WithExtraTensor(const std::string& name, std::vector<uint64_t> dims,
                                     TensorType type, const std::vector<float>& values) {
  const auto h = testing::TinyHyper("llama");
  const auto tensors = testing::TinyTensors(h, kSeed);
  std::vector<TensorSpec> specs;
  for (const TinyTensor& t : tensors) {
    specs.push_back({testing::GgufTensorName(t.role, t.layer), {t.cols, t.rows}, TensorType::kF32});
  }
  specs.push_back({name, std::move(dims), type});
  const auto header = SerializeHeader(testing::TinyMetadata(h), specs);
  auto bytes = header.bytes;
  bytes.resize(header.file_bytes);
  if (!values.empty()) {
    std::memcpy(bytes.data() + header.offsets.back(), values.data(), values.size() * sizeof(float));
  }
  return bytes;
}

TEST(GgufModel, RefusesUnknownTensorsByName) {
  for (const char* name : {"blk.0.ffn_gate_inp.weight", "blk.x.attn_q.weight", "blk.0", "blk.",
                           "blk.0.attn_q.weightx", "output.bias", "rope_factors_long.weight",
                           "blk.99999999999.attn_q.weight", "blk.-1.attn_q.weight"}) {
    const auto model = Read(WithExtraTensor(name, {32}, TensorType::kF32, {}));
    ASSERT_FALSE(model.has_value()) << name;
    EXPECT_THAT(model.error().object, HasSubstr(name));
  }
}

TEST(GgufModel, RefusesTensorsThatAreNotFloats) {
  const auto model = Read(WithExtraTensor("blk.0.attn_norm.bias", {32}, TensorType::kI32, {}));
  ASSERT_FALSE(model.has_value());
  EXPECT_THAT(model.error().ToString(), HasSubstr("type I32, expected one of F32, F16"));
}

TEST(GgufModel, RefusesTensorsOfThreeDimensions) {
  const auto model = Read(WithExtraTensor("blk.0.x", {32, 2, 2}, TensorType::kF32, {}));
  ASSERT_FALSE(model.has_value());
  EXPECT_THAT(model.error().ToString(), HasSubstr("3 dimensions"));
}

TEST(GgufModel, IgnoresStoredRotations) {
  EXPECT_TRUE(
      Read(WithExtraTensor("blk.0.attn_rot_embd.weight", {4}, TensorType::kF32, {})).has_value());
}

TEST(GgufModel, TakesRopeFrequenciesAsFactors) {
  const std::vector<float> factors{1, 1.5f, 4, 8};
  const auto model = Read(WithExtraTensor("rope_freqs.weight", {4}, TensorType::kF32, factors));
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  EXPECT_EQ(model->hyper.rope_factors, factors);
  EXPECT_FALSE(Read(WithExtraTensor("rope_freqs.weight", {5}, TensorType::kF32, {})).has_value());
  EXPECT_FALSE(
      Read(WithExtraTensor("rope_freqs.weight", {4}, TensorType::kF32, {1, 0, 1, 1})).has_value());
}

TEST(GgufModel, TakesLinearScalingAsFactors) {
  const auto h = testing::TinyHyper("qwen2");
  auto metadata = testing::TinyMetadata(h);
  metadata.Set("qwen2.rope.scaling.type", std::string("linear"));
  metadata.Set("qwen2.rope.scaling.factor", 2.5f);
  const auto bytes = testing::TinyGguf(h, testing::TinyTensors(h, kSeed), metadata);
  const auto model = Read(bytes);
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  EXPECT_EQ(model->hyper.rope_factors, std::vector<float>(4, 2.5f));
}

TEST(GgufModel, FindsNonFiniteWeightsWithTheirPlace) {
  std::vector<float> values(40 * 30, 1.0f);
  const model::MemoryTensor good(40, 30, values);
  EXPECT_TRUE(CheckFinite(good, "good").has_value());
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    values[39 * 30 + 7] = bad;
    const auto status = CheckFinite(model::MemoryTensor(40, 30, values), "bad");
    ASSERT_FALSE(status.has_value());
    EXPECT_THAT(status.error().ToString(), HasSubstr("row 39, column 7"));
    EXPECT_THAT(status.error().ToString(), HasSubstr("bad"));
  }
}

TEST(GgufModel, SurvivesRandomDamage) {
  std::mt19937_64 random(kSeed);
  const auto h = testing::TinyHyper("llama");
  const auto original =
      testing::TinyGguf(h, testing::TinyTensors(h, kSeed), testing::TinyMetadata(h));
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " round " << round);
    auto bytes = original;
    for (int i = 0; i < 3; ++i) bytes[random() % 8000] = static_cast<uint8_t>(random());
    const auto model = Read(bytes);
    if (!model) {
      ASSERT_FALSE(model.error().object.empty() || model.error().got.empty());
    } else {
      model->ReadAll(Role::kQ, 1);
    }
  }
}

TEST(GgufModel, OpensTheRealModel) {
  const char* path = std::getenv("SLUICE_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
  const auto model = OpenModel(path);
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  EXPECT_EQ(model->hyper.n_layers, 30u);
  EXPECT_EQ(model->hyper.vocab, 49152u);
  EXPECT_TRUE(CheckFinite(model->Get(Role::kEmbedding), "embedding").has_value());
}

}  // namespace
}  // namespace sluice::formats
