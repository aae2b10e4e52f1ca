// Programs and packs with one thing wrong: each is one Error, or it runs without reading or writing
// outside its memory (which the build with AddressSanitizer sees).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "exec/ref/ref_executor.h"
#include "program/build_pack.h"
#include "program/loaded_pack.h"
#include "support/scaled_model.h"
#include "support/temp_dir.h"

namespace sluice::program {
namespace {

using model::Role;

constexpr size_t kSize = sizeof(Instruction);

// A whole pack in memory of its own, so that the sanitizer sees a read behind its end.
struct Bytes {
  std::vector<uint8_t> bytes;
  size_t program = 0;  // offset and size of the program
  size_t program_size = 0;
  std::vector<Instruction> instructions;  // with the first and the last

  std::span<const uint8_t> ProgramBytes() const {
    return std::span(bytes).subspan(program, program_size);
  }
};

Bytes MakeBytes(std::string_view family, uint32_t layers = 2) {
  testing::ScaledShape shape{.family = family,
                             .hidden = 40,
                             .ffn = 40,
                             .n_heads = 4,
                             .n_kv_heads = 2,
                             .vocab = 60,
                             .tied = family == "llama"};
  model::Hyper hyper = testing::ScaledHyper(shape);
  hyper.context = 8;
  hyper.n_layers = layers;
  quant::Recipe recipe = testing::UniformRecipe(4, 32);
  recipe.roles[Role::kK] = recipe.roles[Role::kHead] = {8, 32, quant::Codebook::kLinear};
  recipe.screen_head = family != "qwen2";
  const testing::TempDir dir;
  const BuildOptions options{
      .quantize = {.recipe = recipe, .calibration = {}, .threads = 1, .progress = {}}};
  EXPECT_TRUE(BuildPack(testing::ScaledModel(hyper, 9), options, dir / "pack").has_value());
  std::ostringstream text;
  text << std::ifstream(dir / "pack", std::ios::binary).rdbuf();
  const std::string read = text.str();
  Bytes result{.bytes = {read.begin(), read.end()}, .instructions = {}};
  const auto pack = pack::Pack::FromBytes(result.bytes, "pack");
  EXPECT_TRUE(pack.has_value()) << pack.error().ToString();
  const auto program = (*pack)->Tensor(pack::kProgramTensor);
  EXPECT_TRUE(program.has_value());
  result.program = static_cast<size_t>(program->data() - result.bytes.data());
  result.program_size = program->size();
  // All but the padding behind the end.
  result.instructions.resize(layers * 9 + 5);
  EXPECT_LE(result.instructions.size() * kSize, result.program_size);
  std::memcpy(result.instructions.data(), program->data(), result.instructions.size() * kSize);
  EXPECT_EQ(result.instructions.back(), Instruction{});
  return result;
}

struct Count {
  int refused = 0;
  int ran = 0;
};

// One Error, or a run of two blocks: the same token twice, candidates of both and all logits.
void ParseAndRun(std::span<const uint8_t> program_bytes, std::span<const uint8_t> pack,
                 Count& count) {
  const auto program = Program::Parse(program_bytes, pack, "pack");
  if (!program) {
    ++count.refused;
    EXPECT_TRUE(program.error().object.starts_with("pack")) << program.error().ToString();
    EXPECT_FALSE(program.error().got.empty());
    return;
  }
  ++count.ran;
  for (const Instruction& i : program->instructions()) EXPECT_NE(Disassemble(i), "?");
  EXPECT_GT(program->BytesPerToken(), 0u);
  program->KvBytesPerPosition();
  auto executor = exec::MakeRefExecutor(pack, *program, 4);
  ASSERT_TRUE(executor.has_value());
  size_t shown = 0;
  (*executor)->SetTrace([&](const exec::TraceEvent& e) { shown += e.values.size(); });
  const auto last = static_cast<int32_t>(program->sizes().vocab - 1);
  const std::vector<int32_t> tokens{0, last};
  const size_t fits = std::min<size_t>(2, (*executor)->context());
  const auto result = (*executor)->Run(
      {.tokens = std::span(tokens).first(fits), .position = 0, .want = exec::Want::kAll});
  ASSERT_TRUE(result.has_value()) << result.error().ToString();
  for (const auto& candidates : *result) {
    ASSERT_EQ(candidates.size(), program->sizes().candidates);
  }
  EXPECT_GT(shown, 0u);
}

void ParseAndRun(const Bytes& pack, const std::vector<Instruction>& instructions, Count& count) {
  const std::span raw(reinterpret_cast<const uint8_t*>(instructions.data()),
                      instructions.size() * kSize);
  ParseAndRun(std::vector(raw.begin(), raw.end()), pack.bytes, count);
}

class Mutated : public ::testing::TestWithParam<std::string> {
 protected:
  const Bytes pack_ = MakeBytes(GetParam());
};

TEST_P(Mutated, AnUntouchedProgramRuns) {
  Count count;
  ParseAndRun(pack_.ProgramBytes(), pack_.bytes, count);
  ParseAndRun(pack_, pack_.instructions, count);
  EXPECT_EQ(count.ran, 2);
}

struct Field {
  size_t offset;
  size_t size;
};
const Field kFields[] = {
    {offsetof(Instruction, op), 1},        {offsetof(Instruction, epilogue), 1},
    {offsetof(Instruction, source), 1},    {offsetof(Instruction, target), 1},
    {offsetof(Instruction, group), 1},     {offsetof(Instruction, planes), 1},
    {offsetof(Instruction, codebook), 1},  {offsetof(Instruction, flags), 1},
    {offsetof(Instruction, rows), 4},      {offsetof(Instruction, cols), 4},
    {offsetof(Instruction, weights), 4},   {offsetof(Instruction, tile_stride), 4},
    {offsetof(Instruction, low), 4},       {offsetof(Instruction, low_stride), 4},
    {offsetof(Instruction, row_table), 4}, {offsetof(Instruction, bias), 4},
    {offsetof(Instruction, auxiliary), 4}, {offsetof(Instruction, valid_rows), 4},
    {offsetof(Instruction, layer), 2},     {offsetof(Instruction, heads), 2},
    {offsetof(Instruction, head_dim), 2},  {offsetof(Instruction, fraction), 1},
    {offsetof(Instruction, fraction2), 1}, {offsetof(Instruction, imm), 8}};

TEST_P(Mutated, EveryFieldOfEveryInstructionAtItsExtremes) {
  Count count;
  const Bytes pack = MakeBytes(GetParam(), 1);
  const auto last_line = static_cast<uint64_t>(pack.bytes.size() / 128);
  for (size_t index = 0; index < pack.instructions.size(); ++index) {
    for (const Field& field : kFields) {
      std::vector<Instruction> changed = pack.instructions;
      uint8_t* place = reinterpret_cast<uint8_t*>(&changed[index]) + field.offset;
      uint64_t old = 0;
      std::memcpy(&old, place, field.size);
      std::vector<uint64_t> values{0,        1,        2,        3,       8,           16,
                                   31,       32,       48,       64,      127,         128,
                                   255,      old - 1,  old + 1,  old * 2, old + 16,    old - 16,
                                   old + 32, old - 32, old ^ 64, ~old,    ~uint64_t{0}};
      if (field.size >= 2)
        values.insert(values.end(), {0x7fff, 0x8000, 0xfff0, 0xffff, 1024, 4096});
      if (field.size >= 4) {
        values.insert(values.end(), {0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffc0, 1u << 20,
                                     1u << 24, 1u << 25, last_line, last_line - 1, last_line + 1});
      }
      if (field.size == 8) {
        values.insert(values.end(),
                      {uint64_t{1} << 32, uint64_t{1} << 60, uint64_t{1} << 61, uint64_t{1} << 63,
                       old | uint64_t{3} << 32, (old & 0xffffffff) | uint64_t{64} << 32,
                       old | 0xffff, old & ~uint64_t{0xffffffff}});
      }
      for (const uint64_t value : values) {
        std::memcpy(place, &value, field.size);
        ParseAndRun(pack, changed, count);
        if (HasFatalFailure()) {
          FAIL() << "instruction " << index << ", offset " << field.offset << ", value " << value;
        }
      }
    }
  }
  EXPECT_GT(count.refused, 3000);
  EXPECT_GT(count.ran, 300);  // fields that mean nothing there, exponents, other tables
}

TEST_P(Mutated, InstructionsExchangedDroppedAndRepeated) {
  Count count;
  const size_t n = pack_.instructions.size();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      std::vector<Instruction> changed = pack_.instructions;
      std::swap(changed[i], changed[j]);
      ParseAndRun(pack_, changed, count);
    }
    std::vector<Instruction> fewer = pack_.instructions;
    fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(i));
    ParseAndRun(pack_, fewer, count);
    std::vector<Instruction> more = pack_.instructions;
    more.insert(more.begin() + static_cast<ptrdiff_t>(i), pack_.instructions[i]);
    ParseAndRun(pack_, more, count);
    for (size_t j = 0; j < n; ++j) {
      std::vector<Instruction> twice = pack_.instructions;
      twice[i] = pack_.instructions[j];
      ParseAndRun(pack_, twice, count);
    }
  }
  EXPECT_GT(count.refused, 300);
}

TEST_P(Mutated, ProgramsCutShort) {
  const auto whole = pack_.ProgramBytes();
  const size_t needed = pack_.instructions.size() * kSize;
  for (size_t size = 0; size <= whole.size(); ++size) {
    Count count;
    const std::vector<uint8_t> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    ParseAndRun(cut, pack_.bytes, count);
    ASSERT_EQ(count.ran, size >= needed) << size;
  }
}

TEST_P(Mutated, PacksCutShort) {
  // At every byte of the header, then at every line.
  const uint64_t data = pack_.program;
  for (size_t size = 0; size < pack_.bytes.size(); size += size < data ? 1 : 128) {
    const std::vector<uint8_t> cut(pack_.bytes.begin(),
                                   pack_.bytes.begin() + static_cast<ptrdiff_t>(size));
    const auto pack = pack::Pack::FromBytes(cut, "pack");
    Count count;
    if (pack.has_value()) {
      const auto program = (*pack)->Tensor(pack::kProgramTensor);
      ASSERT_TRUE(program.has_value());
      ParseAndRun(*program, cut, count);
    }
    // The program's own idea of where its tables are, without the file's.
    ParseAndRun(pack_.ProgramBytes(), cut, count);
  }
}

TEST_P(Mutated, RandomBytesInProgramAndTables) {
  std::mt19937_64 random(0x51);
  Count count;
  const auto draw = [&](uint64_t n) { return random() % n; };
  for (int round = 0; round < 2000; ++round) {
    std::vector<Instruction> changed = pack_.instructions;
    for (uint64_t n = 1 + draw(3); n > 0; --n) {
      auto* bytes = reinterpret_cast<uint8_t*>(changed.data());
      bytes[draw(changed.size() * kSize)] = static_cast<uint8_t>(random());
    }
    ParseAndRun(pack_, changed, count);
  }
  EXPECT_GT(count.ran, 100);
  EXPECT_GT(count.refused, 500);
  // What the tables hold is never checked: any bytes must run.
  for (int round = 0; round < 20; ++round) {
    Bytes noise = pack_;
    for (size_t i = noise.program + noise.program_size; i < noise.bytes.size(); ++i) {
      noise.bytes[i] = round == 0 ? 0x80 : round == 1 ? 0x7f : static_cast<uint8_t>(random());
    }
    Count ran;
    ParseAndRun(noise.ProgramBytes(), noise.bytes, ran);
    EXPECT_EQ(ran.ran, 1);
  }
}

TEST_P(Mutated, RandomBytesInTheHeader) {
  std::mt19937_64 random(0x52);
  int accepted = 0;
  for (int round = 0; round < 2000; ++round) {
    Bytes changed = pack_;
    for (uint64_t n = 1 + random() % 3; n > 0; --n) {
      changed.bytes[random() % changed.program] = static_cast<uint8_t>(random());
    }
    const auto pack = pack::Pack::FromBytes(changed.bytes, "pack");
    if (!pack) {
      EXPECT_FALSE(pack.error().ToString().empty());
      continue;
    }
    const auto loaded = LoadPack(*pack);
    accepted += loaded.has_value();
    (void)(*pack)->CheckSums({});
  }
  EXPECT_GT(accepted, 100);
}

INSTANTIATE_TEST_SUITE_P(Families, Mutated, ::testing::Values("llama", "qwen2", "qwen3"),
                         [](const auto& name) { return name.param; });

// Each claim of Program::Parse's description, by the message that it gives.
TEST(Parse, NamesTheInstructionAndWhatIsWrongWithIt) {
  const Bytes pack = MakeBytes("llama");
  const auto error = [&](size_t index, auto change) {
    std::vector<Instruction> changed = pack.instructions;
    change(changed[index]);
    const std::span raw(reinterpret_cast<const uint8_t*>(changed.data()), changed.size() * kSize);
    const auto program = Program::Parse(raw, pack.bytes, "x.pack");
    return program ? "no error" : program.error().ToString();
  };
  // 0 model, 1 embed, 2 norm, 3 q, 4 k, 5 v, 6 attend, 7 o, 8 norm, 9 gate, 10 down
  EXPECT_EQ(error(0, [](Instruction& i) { i.head_dim = 24; }),
            "x.pack: instruction 0: head size 24, expected a multiple of 16");
  EXPECT_EQ(error(0, [](Instruction& i) { i.fraction = -1; }),
            "x.pack: instruction 0: residual fraction is -1, expected 0 to 28");
  EXPECT_EQ(error(2, [](Instruction& i) { i.fraction2 = -65; }),
            "x.pack: instruction 2: gain fraction is -65, expected -64 to 64");
  EXPECT_EQ(error(3, [](Instruction& i) { i.op = static_cast<Op>(9); }),
            "x.pack: instruction 3: opcode 9, expected a known one");
  EXPECT_EQ(error(3, [](Instruction& i) { i.source = Buffer::kB; }),
            "x.pack: instruction 3: a matrix of 64 columns in groups of 32 over 0 in groups of 0, "
            "expected the same");
  EXPECT_EQ(error(4, [](Instruction& i) { i.layer = 1; }),
            "x.pack: instruction 4: layer 1, expected layer 0");
  EXPECT_NE(error(5, [](Instruction& i) { i.row_table = 0xffffffff; })
                .find("instruction 5: the row table at bytes 549755813760 to"),
            std::string::npos);
  EXPECT_NE(error(6, [](Instruction& i) { i.layer = 1; }).find("instruction 6"), std::string::npos);
  EXPECT_NE(error(6, [](Instruction& i) { i.imm = 1; }).find("instruction 6: 16-bit keys"),
            std::string::npos);
  EXPECT_NE(error(4, [](Instruction& i) { i.imm = 4; }).find("instruction 4: 16-bit keys"),
            std::string::npos);
  EXPECT_NE(error(7, [](Instruction& i) { i.flags = kScreened; }).find("instruction 7: flags"),
            std::string::npos);
  EXPECT_NE(error(9, [](Instruction& i) { i.flags = kHeadNorm; }).find("instruction 9: flags"),
            std::string::npos);
  EXPECT_NE(error(9, [](Instruction& i) { i.bias = i.row_table; }).find("instruction 9: a bias"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::program
