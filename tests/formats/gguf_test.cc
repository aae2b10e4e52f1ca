#include "formats/gguf.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "allocation_meter.h"
#include "formats/gguf_writer.h"
#include "support/gguf_builder.h"
#include "support/temp_dir.h"

namespace sluice::formats {
namespace {

using testing::AllocationMeter;
using testing::GgufBuilder;
using ::testing::HasSubstr;

constexpr uint64_t kHuge = 1ull << 63;
constexpr uint64_t kSlack = 64 << 20;
constexpr uint32_t kF32 = 0;

// A file with one key of each kind and two tensors.
GgufBuilder SmallFile() {
  GgufBuilder b;
  b.Header(2, 7)
      .Uint32("a.uint32", 7)
      .String("a.string", "seven")
      .Float("a.float", 0.5f)
      .Array("an.array", 8, 2)
      .Text("one")
      .Text("two")
      .Array("a.numbers", 5, 3)
      .Number(int32_t{-1})
      .Number(int32_t{0})
      .Number(int32_t{1})
      .Text("a.bool")
      .Number(uint32_t{7})
      .Number(uint8_t{1})
      .Array("bools", 7, 2)
      .Number(uint8_t{1})
      .Number(uint8_t{0})
      .Tensor("first", {4, 2}, kF32, 0)
      .Tensor("second", {32}, 2, 32)
      .PadTo(32)
      .Zeros(32 + 18);
  return b;
}

// An error with an object and a message, within the memory that a file of this size may take.
base::Error Refused(std::span<const uint8_t> bytes) {
  const AllocationMeter meter;
  auto file = GgufFile::FromBytes(bytes, "bad.gguf");
  EXPECT_LT(meter.peak(), bytes.size() + kSlack);
  EXPECT_FALSE(file.has_value());
  if (file) return {};
  EXPECT_THAT(file.error().object, HasSubstr("bad.gguf"));
  EXPECT_FALSE(file.error().got.empty());
  return file.error();
}

TEST(Gguf, ReadsKeysAndTensors) {
  const GgufBuilder b = SmallFile();
  const auto file = GgufFile::FromBytes(b.bytes(), "good.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  const auto& metadata = (*file)->metadata();
  ASSERT_EQ(metadata.entries().size(), 7u);
  EXPECT_EQ(metadata.entries()[0].first, "a.uint32");
  EXPECT_EQ(metadata.GetUint("a.uint32").value(), 7u);
  EXPECT_EQ(*metadata.GetString("a.string").value(), "seven");
  EXPECT_EQ(metadata.GetFloat("a.float").value(), 0.5);
  EXPECT_EQ(metadata.GetStrings("an.array").value()->at(1), "two");
  EXPECT_EQ(metadata.GetInts("a.numbers").value(), (std::vector<int32_t>{-1, 0, 1}));
  EXPECT_EQ(metadata.GetBool("a.bool").value(), true);
  ASSERT_EQ((*file)->tensors().size(), 2u);
  const GgufTensor* second = (*file)->Find("second");
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->type, TensorType::kQ4_0);
  EXPECT_EQ(second->bytes, 18u);
  EXPECT_EQ(second->offset, (*file)->data_offset() + 32);
  EXPECT_EQ((*file)->Data(*second).data(), b.bytes().data() + second->offset);
  EXPECT_EQ((*file)->Find("third"), nullptr);
}

TEST(Gguf, ReadsVersion2) {
  GgufBuilder b;
  b.Header(0, 0, 2);
  EXPECT_TRUE(GgufFile::FromBytes(b.bytes(), "v2").has_value());
}

TEST(Gguf, ReadsEveryNumericType) {
  GgufBuilder b;
  b.Header(0, 10);
  b.Text("u8").Number(uint32_t{0}).Number(uint8_t{255});
  b.Text("i8").Number(uint32_t{1}).Number(int8_t{-1});
  b.Text("u16").Number(uint32_t{2}).Number(uint16_t{65535});
  b.Text("i16").Number(uint32_t{3}).Number(int16_t{-2});
  b.Text("u32").Number(uint32_t{4}).Number(uint32_t{4000000000});
  b.Text("i32").Number(uint32_t{5}).Number(int32_t{-3});
  b.Text("f32").Number(uint32_t{6}).Number(1.5f);
  b.Text("u64").Number(uint32_t{10}).Number(kHuge);
  b.Text("i64").Number(uint32_t{11}).Number(int64_t{-4});
  b.Text("f64").Number(uint32_t{12}).Number(2.5);
  const auto file = GgufFile::FromBytes(b.bytes(), "types");
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  const auto& m = (*file)->metadata();
  EXPECT_EQ(*m.Find("u8"), model::Value(uint8_t{255}));
  EXPECT_EQ(*m.Find("i8"), model::Value(int8_t{-1}));
  EXPECT_EQ(*m.Find("u16"), model::Value(uint16_t{65535}));
  EXPECT_EQ(*m.Find("i16"), model::Value(int16_t{-2}));
  EXPECT_EQ(*m.Find("u32"), model::Value(uint32_t{4000000000}));
  EXPECT_EQ(*m.Find("i32"), model::Value(int32_t{-3}));
  EXPECT_EQ(*m.Find("f32"), model::Value(1.5f));
  EXPECT_EQ(*m.Find("u64"), model::Value(kHuge));
  EXPECT_EQ(*m.Find("i64"), model::Value(int64_t{-4}));
  EXPECT_EQ(*m.Find("f64"), model::Value(2.5));
}

TEST(Gguf, RefusesAFileCutAtAnyByte) {
  const auto bytes = SmallFile().bytes();
  for (size_t length = 0; length < bytes.size(); ++length) {
    SCOPED_TRACE(::testing::Message() << "cut to " << length);
    Refused(std::span(bytes).first(length));
  }
}

TEST(Gguf, TellsWhereAFileEnds) {
  GgufBuilder b;
  b.Header(0, 1).Text("k").Number(uint32_t{4}).Number(uint16_t{7});
  EXPECT_EQ(Refused(b.bytes()).offset, 24u + 8 + 1 + 4);
}

struct BadFile {
  std::string what;
  std::function<void(GgufBuilder&)> build;
  std::string message;  // part of the error's text
};

std::vector<BadFile> BadFiles() {
  const auto tensor = [](std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    return [=](GgufBuilder& b) {
      b.Header(1, 0).Tensor("t", dims, type, offset).PadTo(32).Zeros(4096);
    };
  };
  const auto two = [](uint64_t first, uint64_t second) {
    return [=](GgufBuilder& b) {
      b.Header(2, 0).Tensor("a", {16}, kF32, first).Tensor("b", {16}, kF32, second);
      b.PadTo(32).Zeros(256);
    };
  };
  const auto alignment = [](uint32_t value) {
    return [=](GgufBuilder& b) {
      b.Header(1, 1).Uint32("general.alignment", value).Tensor("t", {1}, kF32, 0).Zeros(4096);
    };
  };
  const auto key = [](uint32_t type) {
    return [=](GgufBuilder& b) { b.Header(0, 1).Text("k").Number(type).Zeros(64); };
  };
  const auto array = [](uint32_t type, uint64_t count) {
    return [=](GgufBuilder& b) { b.Header(0, 1).Array("k", type, count).Zeros(64); };
  };
  std::vector<BadFile> files = {
      {"another magic", [](GgufBuilder& b) { b.Raw("GGML").Number(uint32_t{3}).Zeros(16); },
       "not a GGUF file"},
      {"version 1", [](GgufBuilder& b) { b.Header(0, 0, 1); }, "version 1"},
      {"version 4", [](GgufBuilder& b) { b.Header(0, 0, 4); }, "version 4"},
      {"big-endian", [](GgufBuilder& b) { b.Header(0, 0, 0x03000000); }, "big-endian"},
      {"2^63 tensors", [](GgufBuilder& b) { b.Header(kHuge, 0).Zeros(64); }, "number of tensors"},
      {"2^63 keys", [](GgufBuilder& b) { b.Header(0, kHuge).Zeros(64); }, "number of keys"},
      {"2^64-1 keys", [](GgufBuilder& b) { b.Header(0, ~0ull).Zeros(64); }, "number of keys"},
      {"more keys than the limit", [](GgufBuilder& b) { b.Header(0, 4097).Zeros(1 << 20); },
       "at most 4096"},
      {"more tensors than the limit", [](GgufBuilder& b) { b.Header(65537, 0).Zeros(1 << 22); },
       "at most 65536"},
      {"more keys than there are", [](GgufBuilder& b) { b.Header(0, 2).Uint32("k", 1).Zeros(13); },
       "empty"},
      {"a key of 2^63 bytes", [](GgufBuilder& b) { b.Header(0, 1).Number(kHuge).Zeros(64); },
       "length of a key"},
      {"a key of 70000 bytes",
       [](GgufBuilder& b) { b.Header(0, 1).Text(std::string(70000, 'k')).Zeros(64); },
       "at most 65535"},
      {"an empty key", [](GgufBuilder& b) { b.Header(0, 1).Text("").Zeros(64); }, "a key is empty"},
      {"a string of 2^63 bytes",
       [](GgufBuilder& b) { b.Header(0, 1).Text("k").Number(uint32_t{8}).Number(kHuge).Zeros(64); },
       "value of k"},
      {"a key twice", [](GgufBuilder& b) { b.Header(0, 2).Uint32("k", 1).Uint32("k", 2); },
       "key k occurs twice"},
      {"a bool of 2",
       [](GgufBuilder& b) { b.Header(0, 1).Text("k").Number(uint32_t{7}).Number(uint8_t{2}); },
       "0 or 1"},
      {"a bool of 2 in an array",
       [](GgufBuilder& b) { b.Header(0, 1).Array("k", 7, 2).Number(uint16_t{0x0201}); }, "0 or 1"},
      {"an array of arrays", array(9, 1), "array of arrays"},
      {"strings beyond the limit of all arrays",
       [](GgufBuilder& b) {
         b.Header(0, 1).Array("k", 8, kGgufMaxArrayStrings + 1).Zeros(13 << 20);
       },
       "at most 1572864"},
      {"strings that end in the middle",
       [](GgufBuilder& b) { b.Header(0, 1).Array("k", 8, 2).Text("a").Number(uint64_t{5}); },
       "value of k"},
      {"alignment of another type",
       [](GgufBuilder& b) { b.Header(0, 1).String("general.alignment", "32"); },
       "general.alignment"},
      {"a negative alignment",
       [](GgufBuilder& b) {
         b.Header(0, 1).Text("general.alignment").Number(uint32_t{5}).Number(int32_t{-32});
       },
       "general.alignment"},
      {"a tensor twice",
       [](GgufBuilder& b) {
         b.Header(2, 0).Tensor("t", {1}, kF32, 0).Tensor("t", {1}, kF32, 32).PadTo(32).Zeros(64);
       },
       "tensor t occurs twice"},
      {"a tensor without a name",
       [](GgufBuilder& b) { b.Header(1, 0).Tensor("", {1}, kF32, 0).PadTo(32).Zeros(64); },
       "name is empty"},
      {"no dimension", tensor({}, kF32, 0), "0 dimensions"},
      {"five dimensions", tensor({1, 1, 1, 1, 1}, kF32, 0), "5 dimensions"},
      {"2^31 dimensions",
       [](GgufBuilder& b) { b.Header(1, 0).Text("t").Number(0x80000000u).Zeros(64); },
       "2147483648 dimensions"},
      {"a row of no whole blocks", tensor({31}, 2, 0), "multiple of 32"},
      {"a row of no whole K block", tensor({128, 2}, 12, 0), "multiple of 256"},
      {"a product beyond 64 bits", tensor({1ull << 33, 1ull << 33}, kF32, 0), "2^63"},
      {"a product that wraps to a small one", tensor({1ull << 32, 1ull << 32, 16}, kF32, 0),
       "2^63"},
      {"bytes beyond 63 bits", tensor({1ull << 62}, kF32, 0), "2^63"},
      {"an offset off the alignment", tensor({1}, kF32, 4), "multiple of 32"},
      {"an offset past the file", tensor({1}, kF32, 1 << 20), "within"},
      {"an offset of 2^64 - 32", tensor({1}, kF32, ~0ull - 31), "within"},
      {"an end past the file", tensor({1025}, kF32, 0), "within"},
      {"the same place twice", two(0, 0), "overlaps"},
      {"an overlap", two(32, 64), "overlaps"},
      {"an overlap in reverse order", two(64, 32), "overlaps"},
      {"data that begin past the file",
       [](GgufBuilder& b) {
         b.Header(1, 1).Uint32("general.alignment", 4096).Tensor("t", {1}, kF32, 0).Zeros(8);
       },
       "within the 0 bytes"},
  };
  for (const uint32_t value : {0u, 3u, 33u, 48u, 0x80000000u, 0xffffffffu}) {
    files.push_back({fmt::format("alignment {}", value), alignment(value), "power of two"});
  }
  for (const uint32_t type : {13u, 14u, 99u, 0x80000000u, 0xffffffffu}) {
    files.push_back({fmt::format("a value of type {}", type), key(type), "a type of 0 to 12"});
    files.push_back(
        {fmt::format("an array of type {}", type), array(type, 1), "a type of 0 to 12"});
  }
  for (const uint32_t type : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 10u, 11u, 12u}) {
    for (const uint64_t count :
         {uint64_t{65}, uint64_t{1} << 31, uint64_t{1} << 60, kHuge, ~uint64_t{0}}) {
      files.push_back({fmt::format("{} elements of type {}", count, type), array(type, count),
                       "length of the array"});
    }
  }
  for (const uint32_t type :
       {4u, 5u, 9u, 15u, 16u, 19u, 23u, 29u, 31u, 34u, 39u, 40u, 0xffffffffu}) {
    files.push_back({fmt::format("a tensor of type {}", type), tensor({256}, type, 0),
                     fmt::format("type {}, expected one of F32, F16", type)});
  }
  for (size_t i = 0; i < 4; ++i) {
    std::vector<uint64_t> dims(4, 1);
    dims[i] = 0;
    files.push_back({fmt::format("zero in dimension {}", i), tensor(dims, kF32, 0), "no zero"});
    dims[i] = kHuge;
    files.push_back({fmt::format("2^63 in dimension {}", i), tensor(dims, kF32, 0), "2^63"});
    dims[i] = 1ull << 40;
    files.push_back({fmt::format("2^40 in dimension {}", i), tensor(dims, kF32, 0), "within"});
  }
  return files;
}

TEST(Gguf, RefusesEveryBadFile) {
  const auto files = BadFiles();
  EXPECT_GT(files.size(), 120u);
  for (const BadFile& bad : files) {
    SCOPED_TRACE(bad.what);
    GgufBuilder b;
    bad.build(b);
    EXPECT_THAT(Refused(b.bytes()).ToString(), HasSubstr(bad.message));
  }
}

TEST(Gguf, NamesAreFitForAMessage) {
  GgufBuilder b;
  b.Header(1, 0).Tensor("evil\x1b[2J\xff\n", {0}, kF32, 0).Zeros(64);
  EXPECT_EQ(Refused(b.bytes()).object, "bad.gguf: tensor evil?[2J??");
}

TEST(Gguf, SurvivesRandomDamage) {
  constexpr uint64_t kSeed = 77;
  std::mt19937_64 random(kSeed);
  const auto original = SmallFile().bytes();
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " round " << round);
    auto bytes = original;
    const int damages = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < damages; ++i)
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    const AllocationMeter meter;
    const auto file = GgufFile::FromBytes(bytes, "damaged");
    ASSERT_LT(meter.peak(), bytes.size() + kSlack);
    if (!file) {
      ++refused;
      ASSERT_FALSE(file.error().object.empty() || file.error().got.empty());
      continue;
    }
    for (const GgufTensor& tensor : (*file)->tensors()) {
      ASSERT_EQ((*file)->Data(tensor).size(), tensor.bytes);
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(Gguf, TakesManyTinyStringsWithinItsMemory) {
  // 8 bytes each in the file, 32 in memory.
  GgufBuilder b;
  b.Header(0, 1).Array("k", 8, kGgufMaxArrayStrings).Zeros(8 * kGgufMaxArrayStrings);
  const AllocationMeter meter;
  ASSERT_TRUE(GgufFile::FromBytes(b.bytes(), "strings").has_value());
  EXPECT_LT(meter.peak(), b.bytes().size() + kSlack);
}

TEST(Gguf, OpenNamesTheFile) {
  const testing::TempDir dir;
  const auto missing = GgufFile::Open(dir / "missing.gguf");
  ASSERT_FALSE(missing.has_value());
  EXPECT_THAT(missing.error().ToString(), HasSubstr("missing.gguf"));
  testing::WriteFile(dir / "small.gguf", std::span<const uint8_t>(SmallFile().bytes()));
  const auto file = GgufFile::Open(dir / "small.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  EXPECT_NE((*file)->file(), nullptr);
}

TEST(GgufWriter, WritesWhatTheReaderReads) {
  model::Metadata metadata;
  metadata.Set("general.architecture", std::string("llama"));
  metadata.Set("general.alignment", uint32_t{4096});
  metadata.Set("u8", uint8_t{1});
  metadata.Set("i8", int8_t{-1});
  metadata.Set("u16", uint16_t{2});
  metadata.Set("i16", int16_t{-2});
  metadata.Set("i32", int32_t{-3});
  metadata.Set("f32", 0.25f);
  metadata.Set("bool", true);
  metadata.Set("u64", uint64_t{kHuge});
  metadata.Set("i64", int64_t{-4});
  metadata.Set("f64", 0.125);
  metadata.Set("empty", std::string());
  metadata.Set("u8s", std::vector<uint8_t>{1, 2});
  metadata.Set("i8s", std::vector<int8_t>{-1});
  metadata.Set("u16s", std::vector<uint16_t>{});
  metadata.Set("i16s", std::vector<int16_t>{-5, 5});
  metadata.Set("u32s", std::vector<uint32_t>{1});
  metadata.Set("i32s", std::vector<int32_t>{-1});
  metadata.Set("f32s", std::vector<float>{1.5f, -2.5f});
  metadata.Set("bools", std::vector<bool>{true, false, true});
  metadata.Set("strings", std::vector<std::string>{"a", "", "long enough for the heap ..."});
  metadata.Set("u64s", std::vector<uint64_t>{kHuge});
  metadata.Set("i64s", std::vector<int64_t>{-1});
  metadata.Set("f64s", std::vector<double>{0.1});
  const std::vector<TensorSpec> specs = {{"bytes", {4097}, TensorType::kI8},
                                         {"matrix", {256, 3}, TensorType::kQ6_K}};
  const GgufHeader header = SerializeHeader(metadata, specs);
  ASSERT_EQ(header.offsets, (std::vector<uint64_t>{4096, 12288}));
  EXPECT_EQ(header.bytes.size(), 4096u);
  EXPECT_EQ(header.file_bytes, 16384u);
  auto bytes = header.bytes;
  bytes.resize(header.file_bytes);

  const auto file = GgufFile::FromBytes(bytes, "written");
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  EXPECT_EQ((*file)->metadata().entries(), metadata.entries());
  ASSERT_EQ((*file)->tensors().size(), 2u);
  for (size_t i = 0; i < specs.size(); ++i) {
    const GgufTensor& tensor = (*file)->tensors()[i];
    EXPECT_EQ(tensor.name, specs[i].name);
    EXPECT_EQ(tensor.dims, specs[i].dims);
    EXPECT_EQ(tensor.type, specs[i].type);
    EXPECT_EQ(tensor.offset, header.offsets[i]);
  }
}

}  // namespace
}  // namespace sluice::formats
