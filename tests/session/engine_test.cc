#include "session/engine.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "formats/allocation_meter.h"
#include "program/build_pack.h"
#include "session/session.h"
#include "support/scaled_model.h"
#include "support/temp_dir.h"

namespace sluice::session {
namespace {

using testing::TempDir;

void WritePack(const std::string& path, const model::Model& model) {
  const auto summary = program::BuildPack(model,
                                          {.quantize = {.recipe = testing::UniformRecipe(4, 32),
                                                        .calibration = {},
                                                        .threads = 1,
                                                        .progress = {}}},
                                          path);
  ASSERT_TRUE(summary.has_value()) << summary.error().ToString();
}

model::Model SomeModel(uint32_t vocab = 288) {
  return testing::ScaledModel(testing::ScaledHyper({.vocab = vocab}), 8);
}

std::string OpenError(const std::string& path, const EngineOptions& options = {.executor = "ref"}) {
  const auto engine = OpenEngine(path, options);
  return engine ? "no error" : engine.error().ToString();
}

TEST(Engine, AnswersOnEitherExecutor) {
  const TempDir dir;
  ASSERT_NO_FATAL_FAILURE(WritePack(dir / "pack", SomeModel()));
  std::vector<std::vector<int32_t>> answers;
  for (const char* executor : {"ref", "cpu"}) {
    const auto engine =
        OpenEngine(dir / "pack", {.executor = executor, .threads = 2, .context = 40});
    ASSERT_TRUE(engine.has_value()) << engine.error().ToString();
    EXPECT_EQ((*engine)->executor->name(), executor);
    EXPECT_EQ((*engine)->executor->context(), 40u);
    Session session(*(*engine)->executor, (*engine)->tokenizer);
    const auto answer =
        session.Generate((*engine)->tokenizer.Encode("on the other hand", false), {});
    ASSERT_TRUE(answer.has_value()) << answer.error().ToString();
    answers.push_back(answer->tokens);
  }
  EXPECT_FALSE(answers[0].empty());
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(Engine, NamesWhatIsWrongWithAPack) {
  const TempDir dir;
  EXPECT_EQ(OpenError(dir / "none"), (dir / "none") + ": cannot open: No such file or directory");

  ASSERT_NO_FATAL_FAILURE(WritePack(dir / "pack", SomeModel()));
  EXPECT_EQ(OpenError(dir / "pack", {.executor = "gpu"}),
            "executor gpu: unknown, expected cpu, ref or rtl");
  EXPECT_EQ(OpenError(dir / "pack"), "no error");

  model::Model no_tokenizer = SomeModel();
  no_tokenizer.metadata = {};
  ASSERT_NO_FATAL_FAILURE(WritePack(dir / "no_tokenizer", no_tokenizer));
  const std::string error = OpenError(dir / "no_tokenizer");
  EXPECT_TRUE(error.starts_with((dir / "no_tokenizer") + ": ")) << error;
  EXPECT_NE(error.find("tokenizer.ggml.model"), std::string::npos) << error;

  // More tokens than the embedding has rows: ids would be out of range.
  model::Model large = SomeModel(266);
  large.metadata = SomeModel(288).metadata;
  ASSERT_NO_FATAL_FAILURE(WritePack(dir / "large", large));
  EXPECT_EQ(OpenError(dir / "large"),
            (dir / "large") + ": a tokenizer of 288 tokens, expected at most the model's 266");
  // Fewer is usual: rows are padded.
  model::Model small = SomeModel(288);
  small.metadata = SomeModel(266).metadata;
  ASSERT_NO_FATAL_FAILURE(WritePack(dir / "small", small));
  EXPECT_EQ(OpenError(dir / "small"), "no error");

  // A pack without its program.
  const std::vector<uint8_t> bytes(256);
  auto writer = pack::PackWriter::Create(dir / "no_program", SomeModel().metadata, {{"x", 256}});
  ASSERT_TRUE(writer.has_value());
  ASSERT_TRUE(writer->Write("x", bytes).has_value());
  ASSERT_TRUE(writer->Commit().has_value());
  EXPECT_EQ(OpenError(dir / "no_program"),
            (dir / "no_program") + ": tensor sluice.program: missing");
}

// Whatever a damaged file claims, opening it takes no more memory than the file could fill.
TEST(Engine, OpensDamagedPacksInBoundedMemory) {
  const TempDir dir;
  ASSERT_NO_FATAL_FAILURE(WritePack(dir / "pack", SomeModel()));
  std::ostringstream text;
  text << std::ifstream(dir / "pack", std::ios::binary).rdbuf();
  const std::string whole = text.str();
  // Header and program.
  const size_t interesting =
      static_cast<size_t>(pack::Pack::Open(dir / "pack").value()->tensors()[1].offset);
  std::mt19937_64 random(0x99);
  int opened = 0, refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string damaged = whole;
    for (uint64_t n = 1 + random() % 3; n > 0; --n) {
      damaged[random() % interesting] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    }
    if (round % 10 == 0) damaged.resize(random() % damaged.size());
    testing::WriteFile(dir / "damaged", damaged);
    const testing::AllocationMeter meter;
    const auto engine = OpenEngine(dir / "damaged", {.executor = "ref"});
    EXPECT_LT(meter.peak(), whole.size() + (size_t{64} << 20)) << "round " << round;
    ++(engine ? opened : refused);
    EXPECT_TRUE(engine || !engine.error().ToString().empty());
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace sluice::session
