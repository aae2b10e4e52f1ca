#include "program/build_pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "program/loaded_pack.h"
#include "support/file_size_limit.h"
#include "support/scaled_model.h"
#include "support/temp_dir.h"

namespace sluice::program {
namespace {

using model::Role;
using testing::ScaledHyper;
using testing::ScaledModel;
using testing::ScaledShape;
using testing::TempDir;
using testing::UniformRecipe;

BuildOptions Options(const quant::Recipe& recipe, unsigned threads = 1,
                     std::vector<std::vector<int32_t>> calibration = {}) {
  return {.quantize = {.recipe = recipe,
                       .calibration = std::move(calibration),
                       .threads = threads,
                       .progress = {}}};
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// An error that leaves nothing behind.
std::string BuildError(const model::Model& model, const BuildOptions& options) {
  const TempDir dir;
  const auto summary = BuildPack(model, options, dir / "pack");
  if (summary) return "no error";
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  return summary.error().ToString();
}

// A quick model for what is refused before or while it is packed.
ScaledShape Small(std::string_view family = "llama") {
  return {.family = family, .hidden = 32, .ffn = 32, .n_heads = 2, .n_kv_heads = 1, .vocab = 270};
}

void Set(model::Model& model, Role role, uint32_t layer, size_t index, float value) {
  std::vector<float> values = model.ReadAll(role, layer);
  values.at(index) = value;
  const auto& old = model.Get(role, layer);
  model.Add(role, layer,
            std::make_shared<model::MemoryTensor>(old.rows(), old.cols(), std::move(values)));
}

TEST(BuildPack, GivesTheSameBytesOnAnyNumberOfThreads) {
  for (const std::string_view family : {"llama", "qwen2", "qwen3"}) {
    const model::Model model = ScaledModel(
        ScaledHyper({.family = family, .hidden = 72, .ffn = 100, .tied = family != "qwen2"}), 31);
    quant::Recipe recipe = UniformRecipe(4, 64);
    recipe.roles[Role::kK] = recipe.roles[Role::kHead] = {8, 64, quant::Codebook::kLinear};
    for (const bool calibrated : {false, true}) {
      std::vector<std::vector<int32_t>> text;
      if (calibrated) text = testing::RandomWindows(model.hyper.vocab, 3, 30, 4);
      const TempDir dir;
      std::string first;
      for (const unsigned threads : {1u, 1u, 2u, 3u}) {
        const auto summary = BuildPack(model, Options(recipe, threads, text), dir / "pack");
        ASSERT_TRUE(summary.has_value()) << summary.error().ToString();
        const std::string bytes = ReadFile(dir / "pack");
        EXPECT_EQ(bytes.size(), summary->bytes);
        if (first.empty()) first = bytes;
        EXPECT_TRUE(bytes == first) << family << ", " << threads << " threads";
      }
    }
  }
}

TEST(BuildPack, KeepsTheSourcesMetadataAndReportsItsOwn) {
  const model::Model model = ScaledModel(ScaledHyper({.tied = false}), 1);
  const TempDir dir;
  const auto text = testing::RandomWindows(model.hyper.vocab, 2, 20, 4);
  ASSERT_TRUE(BuildPack(model, Options(UniformRecipe(4, 32), 1, text), dir / "pack").has_value());
  const auto pack = pack::Pack::Open(dir / "pack");
  ASSERT_TRUE(pack.has_value()) << pack.error().ToString();
  EXPECT_TRUE((*pack)->CheckSums({}).has_value());
  const model::Metadata& found = (*pack)->metadata();
  for (const auto& [key, value] : model.metadata.entries()) {
    const model::Value* kept = found.Find(key);
    ASSERT_NE(kept, nullptr) << key;
    EXPECT_EQ(*kept, value) << key;
  }
  EXPECT_EQ(*found.GetString("sluice.recipe").value(), "uniform");
  EXPECT_EQ(found.GetUint("sluice.group").value(), 32u);
  EXPECT_EQ(found.GetUint("sluice.calibration_tokens").value(), 40u);
  const auto* names = found.GetStrings("sluice.report.matrix").value();
  ASSERT_NE(names, nullptr);
  ASSERT_EQ(names->size(), 2u + 2 * 7);
  EXPECT_EQ(names->front(), "embedding");
  EXPECT_EQ(names->back(), "1.down");
  for (const char* key : {"sluice.report.output_error", "sluice.report.weight_error"}) {
    const auto errors = found.GetFloats(key).value().value();
    ASSERT_EQ(errors.size(), names->size()) << key;
    for (size_t i = 2; i < errors.size(); ++i) {
      EXPECT_GT(errors[i], 0) << key << " of " << (*names)[i];
      EXPECT_LT(errors[i], 0.1) << key << " of " << (*names)[i];
    }
  }
  EXPECT_EQ(found.GetInts("sluice.report.bits").value().value(), std::vector<int32_t>(16, 4));
}

// Without its offsets, which depend on the length of the header.
std::vector<std::string> Listing(const Program& program) {
  static const std::regex offset(" @0x[0-9a-f]+");
  std::vector<std::string> lines;
  for (const Instruction& i : program.instructions()) {
    lines.push_back(std::regex_replace(Disassemble(i), offset, ""));
  }
  return lines;
}

LoadedPack Build(const model::Model& model, const BuildOptions& options) {
  const TempDir dir;
  const auto summary = BuildPack(model, options, dir / "pack");
  EXPECT_TRUE(summary.has_value()) << summary.error().ToString();
  auto loaded = LoadPack(dir / "pack");
  EXPECT_TRUE(loaded.has_value()) << loaded.error().ToString();
  return std::move(*loaded);
}

TEST(Program, IsNineInstructionsALayerAndThreeMore) {
  for (const std::string_view family : {"llama", "qwen2", "qwen3"}) {
    for (const bool tied : {false, true}) {
      model::Hyper hyper = ScaledHyper(Small(family));
      hyper.tied = tied;
      hyper.n_layers = 3;
      const LoadedPack loaded = Build(ScaledModel(hyper, 2), Options(UniformRecipe(4, 32)));
      EXPECT_EQ(loaded.program.instructions().size(), 3 * 9 + 3u);
      EXPECT_EQ(loaded.program.head().epilogue, Epilogue::kCandidates);
    }
  }
}

TEST(Program, ListsAsWritten) {
  model::Hyper hyper = ScaledHyper({.family = "qwen2", .hidden = 72, .ffn = 100, .tied = false});
  hyper.n_layers = 1;
  quant::Recipe recipe = UniformRecipe(4, 64);
  recipe.roles[Role::kDown] = {4, 64, quant::Codebook::kLinear};
  recipe.roles[Role::kV] = recipe.roles[Role::kHead] = {8, 64, quant::Codebook::kLinear};
  recipe.screen_head = true;
  const LoadedPack loaded = Build(ScaledModel(hyper, 2), Options(recipe));
  const std::vector<std::string> expected = {
      "embed   residual <- 288x128 4-bit g64",
      "norm    A <- residual, 128 columns, gains 2^-11, eps 193274",
      "matvec  q.0 <- 64x128 4-bit g64 * A, 2^-16 +bias",
      "matvec  K.0 <- 32x128 4-bit g64 * A, 2^-16 +bias",
      "matvec  V.0 <- 32x128 8-bit g64 * A, 2^-16 +bias",
      "attend  B <- q over KV.0, scores 2^-6",
      "matvec  residual += 80x64 4-bit g64 * B, 2^-14",
      "norm    A <- residual, 128 columns, gains 2^-11, eps 193274",
      "matvec  B <- silu gate 208x128 4-bit g64 * A, 2^-16",
      "matvec  residual += 80x128 4-bit linear g64 * B, 2^-14",
      "norm    A <- residual, 128 columns, gains 2^-11, eps 193274",
      "matvec  best 128 <- 288x128 8-bit g64 * A, 2^-16 screened"};
  EXPECT_EQ(Listing(loaded.program), expected);

  const Sizes& sizes = loaded.program.sizes();
  EXPECT_EQ(sizes.hidden, 128u);
  EXPECT_EQ(sizes.widest, 128u);
  EXPECT_EQ(sizes.vocab, 288u);
  EXPECT_EQ(sizes.n_layers, 1u);
  EXPECT_EQ(sizes.n_heads, 4u);
  EXPECT_EQ(sizes.n_kv_heads, 2u);
  EXPECT_EQ(sizes.head_dim, 16u);
  EXPECT_EQ(sizes.context, 64u);
  EXPECT_EQ(sizes.candidates, 128u);
  // Per KV head: two vectors of bytes and their exponents.
  EXPECT_EQ(loaded.program.KvBytesPerPosition(), 2u * (2 * 16 + 2));
}

TEST(BuildPack, TakesTheContextItIsAskedFor) {
  const model::Model model = ScaledModel(ScaledHyper(Small()), 2);
  for (const auto& [asked, got] : {std::pair{0u, 64u}, {5u, 5u}, {100u, 100u}}) {
    BuildOptions options = Options(UniformRecipe(4, 32));
    options.context = asked;
    EXPECT_EQ(Build(model, options).program.sizes().context, got);
  }
}

// Tensors lie in the order in which a token reads them.
TEST(BuildPack, LaysTensorsOutAsTheProgramReadsThem) {
  for (const std::string_view family : {"llama", "qwen2", "qwen3"}) {
    for (const bool tied : {false, true}) {
      model::Hyper hyper = ScaledHyper(Small(family));
      hyper.tied = tied;
      const LoadedPack loaded = Build(ScaledModel(hyper, 2), Options(UniformRecipe(4, 32)));
      uint32_t last = 0;
      for (const Instruction& i : loaded.program.instructions()) {
        if (i.op == Op::kAttend || (i.op == Op::kEmbed && tied)) continue;
        const uint32_t line = i.op == Op::kNorm ? i.auxiliary : i.weights;
        EXPECT_GT(line, last) << Disassemble(i);
        last = line;
      }
    }
  }
}

TEST(BuildPack, RefusesWhatTheExecutorsCannotRun) {
  model::Hyper odd = ScaledHyper(Small());
  odd.head_dim = 24;
  EXPECT_EQ(BuildError(ScaledModel(odd, 1), Options(UniformRecipe(4, 32))),
            "scaled: heads of 24, expected a multiple of 16");

  model::Hyper many = ScaledHyper(Small());
  many.n_heads = many.n_kv_heads = 65;
  EXPECT_EQ(BuildError(ScaledModel(many, 1), Options(UniformRecipe(4, 32))),
            "scaled: 65 KV heads, expected at most 64");

  const model::Model model = ScaledModel(ScaledHyper(Small()), 1);
  quant::Recipe recipe = UniformRecipe(4, 32);
  recipe.layers[{Role::kUp, 1}] = {8, 32, quant::Codebook::kLinear};
  EXPECT_EQ(BuildError(model, Options(recipe)),
            "recipe uniform: layer 1: gate and up of different formats, expected one, as they "
            "share tiles");
  recipe.layers[{Role::kGate, 1}] = {8, 32, quant::Codebook::kLinear};
  EXPECT_EQ(BuildError(model, Options(recipe)), "no error");
  recipe.layers[{Role::kDown, 2}] = {8, 32, quant::Codebook::kLinear};
  EXPECT_NE(BuildError(model, Options(recipe)).find("down of layer 2"), std::string::npos);

  // The head norm's epsilon has 32 bits in an instruction.
  model::Hyper large = ScaledHyper(Small("qwen3"));
  large.rms_eps = 0.07f;
  EXPECT_NE(BuildError(ScaledModel(large, 1), Options(UniformRecipe(4, 32))).find("epsilon"),
            std::string::npos);
}

TEST(BuildPack, NamesTheTensorWhoseValuesAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Role role : {Role::kEmbedding, Role::kAttnNorm, Role::kQ, Role::kQBias, Role::kVBias,
                          Role::kDown, Role::kOutputNorm}) {
    for (const float bad : {nan, infinity, -infinity}) {
      const bool global = role == Role::kEmbedding || role == Role::kOutputNorm;
      model::Model model = ScaledModel(ScaledHyper(Small("qwen2")), 1);
      Set(model, role, global ? 0 : 1, 3, bad);
      const std::string error = BuildError(model, Options(UniformRecipe(4, 32)));
      EXPECT_NE(error.find(fmt::format("tensor {}", model::RoleName(role))), std::string::npos)
          << error;
      EXPECT_NE(error.find(global ? "" : "of layer 1"), std::string::npos) << error;
    }
  }
  model::Model model = ScaledModel(ScaledHyper(Small("qwen3")), 1);
  Set(model, Role::kKNorm, 1, 3, nan);
  EXPECT_NE(BuildError(model, Options(UniformRecipe(4, 32))).find("k_norm of layer 1"),
            std::string::npos);
}

TEST(BuildPack, RefusesACalibrationTokenOutsideTheVocabulary) {
  const model::Model model = ScaledModel(ScaledHyper(Small()), 1);
  EXPECT_NE(BuildError(model, Options(UniformRecipe(4, 32), 1, {{1, 2, 270}})).find("270"),
            std::string::npos);
}

TEST(BuildPack, NamesAPathThatCannotBeWritten) {
  const model::Model model = ScaledModel(ScaledHyper(Small()), 1);
  const TempDir dir;
  const auto missing = BuildPack(model, Options(UniformRecipe(4, 32)), dir / "none/pack");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().ToString(),
            (dir / "none/pack") + ": cannot create: No such file or directory");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(BuildPack, LeavesAnOldPackAloneWhenTheDiskIsFull) {
  const model::Model model = ScaledModel(ScaledHyper(Small()), 1);
  const TempDir dir;
  const auto summary = BuildPack(model, Options(UniformRecipe(4, 32)), dir / "pack");
  ASSERT_TRUE(summary.has_value());
  const std::string old = ReadFile(dir / "pack");
  for (const double share : {0.1, 0.5, 0.9}) {
    {
      const testing::FileSizeLimit limit(
          static_cast<rlim_t>(share * static_cast<double>(summary->bytes)));
      const auto full = BuildPack(model, Options(UniformRecipe(8, 32)), dir / "pack");
      ASSERT_FALSE(full.has_value());
      EXPECT_EQ(full.error().object, dir / "pack");
      EXPECT_NE(full.error().got.find("cannot write: "), std::string::npos);
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
    EXPECT_TRUE(ReadFile(dir / "pack") == old);
  }
}

// Values at the edges of float and of the integer formats: a pack or one error, never a crash.
TEST(BuildPack, SurvivesExtremeValues) {
  for (const float scale : {0.0f, 1e-38f, 1e-20f, 1e15f}) {
    for (const std::string_view family : {"qwen2", "qwen3"}) {
      const model::Hyper hyper = ScaledHyper(Small(family));
      for (const Role role : {Role::kEmbedding, Role::kAttnNorm, Role::kQ, Role::kQBias,
                              Role::kQNorm, Role::kO, Role::kDown, Role::kOutputNorm}) {
        model::Model model = ScaledModel(hyper, 3);
        if (model.Find(role, 0) == nullptr) continue;
        std::vector<float> values = model.ReadAll(role, 0);
        for (float& v : values) v = std::clamp(v * scale, -3e38f, 3e38f);
        const auto& old = model.Get(role, 0);
        model.Add(role, 0,
                  std::make_shared<model::MemoryTensor>(old.rows(), old.cols(), std::move(values)));
        const TempDir dir;
        const auto summary = BuildPack(model, Options(UniformRecipe(4, 32)), dir / "pack");
        if (!summary) continue;
        const auto loaded = LoadPack(dir / "pack");
        EXPECT_TRUE(loaded.has_value()) << loaded.error().ToString();
      }
    }
  }
}

}  // namespace
}  // namespace sluice::program
