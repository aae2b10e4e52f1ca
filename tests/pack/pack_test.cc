#include "pack/pack.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "support/file_size_limit.h"
#include "support/gguf_builder.h"
#include "support/python.h"
#include "support/temp_dir.h"

namespace sluice::pack {
namespace {

using testing::FileSizeLimit;
using testing::TempDir;
using testing::WriteFile;

std::vector<uint8_t> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

std::vector<uint8_t> ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string bytes = text.str();
  return {bytes.begin(), bytes.end()};
}

// Sizes that do and do not fill their 4096 bytes.
const std::vector<PackWriter::TensorSize> kTensors = {
    {"sluice.program", 256}, {"a.weight", 4096}, {"b.weight", 4097}, {"c.weight", 1}};

model::Metadata SomeMetadata() {
  model::Metadata metadata;
  metadata.Set("general.architecture", std::string("llama"));
  metadata.Set("general.alignment", uint32_t{32});  // the source's, which does not bind the pack
  metadata.Set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
  metadata.Set(std::string(kRecipeKey), std::string("test"));
  metadata.Set("sluice.later", uint32_t{0});
  return metadata;
}

// Written in another order than they lie in.
void WritePack(const std::string& path) {
  auto writer = PackWriter::Create(path, SomeMetadata(), kTensors);
  ASSERT_TRUE(writer.has_value());
  for (const uint32_t i : {2u, 0u, 3u, 1u}) {
    ASSERT_TRUE(writer->Write(kTensors[i].name, RandomBytes(kTensors[i].bytes, i)).has_value());
  }
  writer->Set("sluice.later", uint32_t{7});
  ASSERT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(writer->Commit().has_value());
  ASSERT_EQ(std::filesystem::file_size(path), writer->file_bytes());
}

TEST(Pack, ReadsBackWhatTheWriterWrote) {
  const TempDir dir;
  ASSERT_NO_FATAL_FAILURE(WritePack(dir / "pack"));
  const auto pack = Pack::Open(dir / "pack");
  ASSERT_TRUE(pack.has_value()) << pack.error().ToString();
  ASSERT_EQ((*pack)->tensors().size(), kTensors.size());
  for (uint32_t i = 0; i < kTensors.size(); ++i) {
    const auto& tensor = (*pack)->tensors()[i];
    EXPECT_EQ(tensor.name, kTensors[i].name);
    EXPECT_EQ(tensor.offset % kPackAlignment, 0u);
    const auto bytes = (*pack)->Tensor(tensor.name);
    ASSERT_TRUE(bytes.has_value());
    EXPECT_EQ(std::vector(bytes->begin(), bytes->end()), RandomBytes(kTensors[i].bytes, i));
  }
  EXPECT_EQ((*pack)->bytes().size() % kPackAlignment, 0u);
  EXPECT_EQ((*pack)->metadata().GetUint("sluice.later").value(), 7u);
  EXPECT_EQ((*pack)->metadata().GetUint(kVersionKey).value(), kPackVersion);
  EXPECT_EQ((*pack)->metadata().GetStrings("tokenizer.ggml.tokens").value()->size(), 2u);
  uint64_t checked = 0;
  EXPECT_TRUE((*pack)
                  ->CheckSums([&](std::string_view, uint64_t done, uint64_t) { checked = done; })
                  .has_value());
  EXPECT_EQ(checked, 256u + 4096 + 4097 + 1);
  const auto missing = (*pack)->Tensor("none");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().ToString(), (dir / "pack") + ": tensor none: missing");
}

TEST(Pack, FindsAndNamesEveryDamagedByte) {
  const TempDir dir;
  ASSERT_NO_FATAL_FAILURE(WritePack(dir / "pack"));
  std::vector<uint8_t> bytes = ReadFile(dir / "pack");
  const auto whole = Pack::FromBytes(bytes, "pack");
  ASSERT_TRUE(whole.has_value());
  const auto tensors = (*whole)->tensors();
  std::mt19937 random(11);
  for (const auto& tensor : tensors) {
    std::vector<uint64_t> places{0, tensor.bytes - 1};
    for (int i = 0; i < 20; ++i) places.push_back(random() % tensor.bytes);
    for (const uint64_t place : places) {
      bytes[tensor.offset + place] ^= static_cast<uint8_t>(1 << random() % 8);
      const auto damaged = Pack::FromBytes(bytes, "pack");
      ASSERT_TRUE(damaged.has_value());
      const auto status = (*damaged)->CheckSums({});
      ASSERT_FALSE(status.has_value()) << tensor.name << " byte " << place;
      EXPECT_EQ(status.error().object, "pack: tensor " + tensor.name);
      EXPECT_NE(status.error().expected.find("the file is damaged"), std::string::npos);
      EXPECT_EQ(status.error().offset, tensor.offset);
      const auto data = RandomBytes(tensor.bytes, static_cast<uint32_t>(&tensor - tensors.data()));
      bytes[tensor.offset + place] = data[place];
    }
  }
  EXPECT_TRUE((*whole)->CheckSums({}).has_value());
}

TEST(Pack, SendsAPlainModelToThePacker) {
  const TempDir dir;
  testing::GgufBuilder plain;
  plain.Header(1, 1).String("general.architecture", "llama").Tensor("a.weight", {32}, 0, 0);
  plain.PadTo(32).Zeros(128);
  WriteFile(dir / "model.gguf", std::span(plain.bytes()));
  const auto pack = Pack::Open(dir / "model.gguf");
  ASSERT_FALSE(pack.has_value());
  const std::string path = dir / "model.gguf";
  EXPECT_EQ(pack.error().ToString(), path +
                                         ": a GGUF file that is not packed, expected a pack: make "
                                         "one with `sluice pack " +
                                         path + "`");
}

TEST(Pack, RefusesWhatIsNoFileOfItsOwn) {
  struct Case {
    const char* says;
    testing::GgufBuilder file;
  };
  using testing::GgufBuilder;
  const auto with_tensor = [](GgufBuilder b, uint32_t type) {
    b.Tensor("a", {32}, type, 0).PadTo(32).Zeros(128);
    return b;
  };
  constexpr uint32_t kI8 = 24, kF32 = 0, kUint32Type = 4;
  const std::vector<Case> cases = {
      {"pack version 2, expected 1: pack the model again",
       with_tensor(GgufBuilder().Header(1, 1).Uint32("sluice.version", 2), kI8)},
      {"sluice.version",
       with_tensor(GgufBuilder().Header(1, 1).String("sluice.version", "1"), kI8)},
      {"no list of checksums",
       with_tensor(GgufBuilder().Header(1, 1).Uint32("sluice.version", 1), kI8)},
      {"no list of checksums, expected 1 in sluice.crc32c",
       with_tensor(GgufBuilder()
                       .Header(1, 2)
                       .Uint32("sluice.version", 1)
                       .Array("sluice.crc32c", kUint32Type, 0),
                   kI8)},
      {"tensor a: not a row of opaque bytes",
       with_tensor(GgufBuilder()
                       .Header(1, 2)
                       .Uint32("sluice.version", 1)
                       .Array("sluice.crc32c", kUint32Type, 1)
                       .Number(uint32_t{0}),
                   kF32)},
  };
  for (const Case& c : cases) {
    const auto pack = Pack::FromBytes(c.file.bytes(), "x.pack");
    ASSERT_FALSE(pack.has_value()) << c.says;
    EXPECT_TRUE(pack.error().ToString().starts_with("x.pack: ")) << pack.error().ToString();
    EXPECT_NE(pack.error().ToString().find(c.says), std::string::npos) << pack.error().ToString();
  }
}

TEST(Pack, CutAnywhereItIsAnErrorOrWhole) {
  const TempDir dir;
  ASSERT_NO_FATAL_FAILURE(WritePack(dir / "pack"));
  const std::vector<uint8_t> bytes = ReadFile(dir / "pack");
  const uint64_t end = Pack::FromBytes(bytes, "pack").value()->tensors().back().offset + 1;
  for (uint64_t size = 0; size < bytes.size(); size += size < 600 ? 1 : 97) {
    // A copy of its own, so that the sanitizer sees a read behind the end.
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_EQ(Pack::FromBytes(cut, "pack").has_value(), size >= end) << size;
  }
}

TEST(PackWriter, LeavesNothingBehindWhenTheDiskIsFull) {
  const TempDir dir;
  {
    const FileSizeLimit limit(8192);
    auto writer = PackWriter::Create(dir / "pack", SomeMetadata(), kTensors);
    ASSERT_TRUE(writer.has_value());
    const auto status = writer->Write("c.weight", RandomBytes(1, 0));
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().object, dir / "pack");
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

// The gguf package of llama.cpp lists a pack like any other file.
TEST(Pack, IsAFileThatOtherReadersCanList) {
  SLUICE_NEEDS_PYTHON("gguf");
  const TempDir dir;
  ASSERT_NO_FATAL_FAILURE(WritePack(dir / "pack"));
  WriteFile(dir / "list.py", R"(
import sys
import gguf
reader = gguf.GGUFReader(sys.argv[1])
assert reader.alignment == 4096, reader.alignment
names = [t.name for t in reader.tensors]
assert names == ["sluice.program", "a.weight", "b.weight", "c.weight"], names
sizes = [int(t.n_bytes) for t in reader.tensors]
assert sizes == [256, 4096, 4097, 1], sizes
assert all(int(t.data_offset) % 4096 == 0 for t in reader.tensors)
assert all(t.tensor_type == gguf.GGMLQuantizationType.I8 for t in reader.tensors)
assert reader.fields["sluice.version"].contents() == 1
assert reader.fields["sluice.later"].contents() == 7
assert len(reader.fields["sluice.crc32c"].contents()) == 4
assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
)");
  EXPECT_EQ(testing::RunPython(fmt::format("'{}' '{}'", dir / "list.py", dir / "pack")), 0);
}

}  // namespace
}  // namespace sluice::pack
