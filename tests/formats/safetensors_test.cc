#include "formats/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "allocation_meter.h"
#include "support/temp_dir.h"

namespace sluice::formats {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::WriteFile;

std::vector<uint8_t> Bytes(const std::string& header, size_t data, uint64_t length) {
  std::vector<uint8_t> bytes(8 + header.size() + data);
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data; ++i) bytes[8 + header.size() + i] = static_cast<uint8_t>(i);
  return bytes;
}
std::vector<uint8_t> Bytes(const std::string& header, size_t data) {
  return Bytes(header, data, header.size());
}

const std::string kGood = R"({"__metadata__":{"format":"pt"},)"
                          R"("b":{"dtype":"F32","shape":[3],"data_offsets":[8,20]},)"
                          R"("a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}  )";

base::Error Refused(std::span<const uint8_t> bytes) {
  const testing::AllocationMeter meter;
  const auto file = SafetensorsFile::FromBytes(bytes, "bad.safetensors");
  EXPECT_LT(meter.peak(), bytes.size() + (64 << 20));
  EXPECT_FALSE(file.has_value());
  if (file) return {};
  EXPECT_THAT(file.error().object, HasSubstr("bad.safetensors"));
  EXPECT_FALSE(file.error().got.empty());
  return file.error();
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheData) {
  const auto bytes = Bytes(kGood, 20);
  const auto file = SafetensorsFile::FromBytes(bytes, "good");
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  const auto& tensors = (*file)->tensors();
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].type, TensorType::kBF16);
  EXPECT_EQ(tensors[0].rows(), 2u);
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].rows(), 1u);
  EXPECT_EQ(tensors[1].cols(), 3u);
  EXPECT_EQ((*file)->Data(tensors[1]).front(), 8);
}

TEST(Safetensors, RefusesAFileCutAtAnyByte) {
  const auto bytes = Bytes(kGood, 20);
  for (size_t length = 0; length < bytes.size(); ++length) {
    SCOPED_TRACE(::testing::Message() << "cut to " << length);
    Refused(std::span(bytes).first(length));
  }
}

TEST(Safetensors, RefusesEveryBadHeaderLength) {
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{1} << 25, uint64_t{1} << 40,
        uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    SCOPED_TRACE(::testing::Message() << length);
    Refused(Bytes(kGood, 20, length));
  }
}

TEST(Safetensors, RefusesEveryBadHeader) {
  struct Case {
    std::string header;
    std::string message;
  };
  const auto one = [](const std::string& fields) { return R"({"t":{)" + fields + "}}"; };
  const std::string dtype = R"("dtype":"F32",)";
  const std::string shape = R"("shape":[5],)";
  const std::string offsets = R"("data_offsets":[0,20])";
  std::vector<Case> cases = {
      {"", "not JSON"},
      {"[]", "an object"},
      {"null", "an object"},
      {"{", "not JSON"},
      {R"({"t":1})", "an object"},
      {R"({"t":null})", "an object"},
      {one(shape + offsets), "dtype: missing"},
      {one(R"("dtype":5,)" + shape + offsets), "dtype: 5"},
      {one(dtype + offsets), "shape: missing"},
      {one(dtype + R"("shape":5,)" + offsets), "shape: 5"},
      {one(dtype + R"("shape":["5"],)" + offsets), "shape"},
      {one(dtype + R"("shape":[-5],)" + offsets), "shape: -5"},
      {one(dtype + R"("shape":[5.0],)" + offsets), "shape: 5"},
      {one(dtype + R"("shape":[1e300],)" + offsets), "shape"},
      {one(dtype + R"("shape":[18446744073709551616],)" + offsets), "shape"},
      {one(dtype + R"("shape":[],)" + offsets), "0 dimensions"},
      {one(dtype + R"("shape":[5,1,1],)" + offsets), "3 dimensions"},
      {one(dtype + R"("shape":[5,0],)" + offsets), "no zero"},
      {one(dtype + R"("shape":[4294967296,4294967296],)" + offsets), "2^63"},
      {one(dtype + R"("shape":[9223372036854775808],)" + offsets), "2^63"},
      {one(dtype + R"("shape":[6],)" + offsets), "20 bytes, expected 24"},
      {one(dtype + shape + R"("x":0)"), "data_offsets: missing"},
      {one(dtype + shape + R"("data_offsets":20)"), "data_offsets"},
      {one(dtype + shape + R"("data_offsets":[20])"), "data_offsets"},
      {one(dtype + shape + R"("data_offsets":[0,20,40])"), "data_offsets"},
      {one(dtype + shape + R"("data_offsets":[20,0])"), "data_offsets"},
      {one(dtype + shape + R"("data_offsets":[-20,0])"), "data_offsets"},
      {one(dtype + shape + R"("data_offsets":[0,24])"), "24 bytes, expected 20"},
      {one(dtype + shape + R"("data_offsets":[4,24])"), "begins at byte 4"},
      {one(dtype + R"("shape":[4],"data_offsets":[0,16])"), "20 bytes of data"},
      {one(dtype + R"("shape":[6],"data_offsets":[0,24])"), "within the 20 bytes"},
      {one(dtype + R"("shape":[4611686018427387904],"data_offsets":[0,18446744073709551615])"),
       "2^63"},
      {one(dtype + R"("shape":[1],"data_offsets":[18446744073709551611,18446744073709551615])"),
       "begins at"},
      {R"({"t":{"dtype":"F32","shape":[5],"data_offsets":[0,20]},)"
       R"("t":{"dtype":"F32","shape":[5],"data_offsets":[0,20]}})",
       "twice"},
      {R"({"t":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
       R"("u":{"dtype":"F32","shape":[3],"data_offsets":[8,20]}})",
       "begins at byte 8"},
      {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("u":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})",
       "begins at byte 12"},
      {"{\"\xff\":{}}", "not JSON"},
      {"{} x", "not JSON"},
      {std::string(100000, '['), "nested deeper"},
      {R"({"a":)" + std::string(100000, '[') + std::string(100000, ']') + "}", "nested deeper"},
  };
  std::string deep;
  for (int i = 0; i < 70; ++i) deep += R"({"a":)";
  cases.push_back({deep + "1" + std::string(70, '}'), "nested deeper"});
  for (const char* type : {"F64", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U8", "U16",
                           "BOOL", "f32", "", "C64", "F4"}) {
    cases.push_back({one(fmt::format(R"("dtype":"{}",)", type) + shape + offsets),
                     fmt::format("\"{}\", expected F32, F16 or BF16", type)});
  }
  EXPECT_GT(cases.size(), 50u);
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.header.substr(0, 200));
    EXPECT_THAT(Refused(Bytes(bad.header, 20)).ToString(), HasSubstr(bad.message));
  }
}

TEST(Safetensors, RefusesHeadersThatTakeTooMuchMemory) {
  // Two bytes of "0," become 16 in memory; 30 million of them would take a gigabyte.
  std::string header = R"({"t":[)";
  for (int i = 0; i < 15'000'000; ++i) header += "0,";
  header += "0]}";
  EXPECT_THAT(Refused(Bytes(header, 0)).ToString(), HasSubstr("of memory"));
}

TEST(Safetensors, SurvivesRandomDamage) {
  constexpr uint64_t kSeed = 5;
  std::mt19937_64 random(kSeed);
  const auto original = Bytes(kGood, 20);
  for (int round = 0; round < 5000; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " round " << round);
    auto bytes = original;
    const int damages = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < damages; ++i) {
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    }
    const auto file = SafetensorsFile::FromBytes(bytes, "damaged");
    if (!file) {
      ASSERT_FALSE(file.error().object.empty() || file.error().got.empty());
      continue;
    }
    for (const SafeTensor& tensor : (*file)->tensors()) {
      ASSERT_EQ((*file)->Data(tensor).size(), tensor.bytes);
    }
  }
}

std::string OneTensor(const std::string& name) {
  const auto bytes = Bytes(
      fmt::format(R"({{"{}":{{"dtype":"F32","shape":[5],"data_offsets":[0,20]}}}})", name), 20);
  return {bytes.begin(), bytes.end()};
}

TEST(Safetensors, OpensTheShardsOfAnIndex) {
  const TempDir dir;
  WriteFile(dir / "model.safetensors.index.json", R"({"weight_map":{"a":"1.st","b":"2.st"}})");
  WriteFile(dir / "1.st", OneTensor("a"));
  WriteFile(dir / "2.st", OneTensor("b"));
  const auto files = OpenSafetensors(dir.path());
  ASSERT_TRUE(files.has_value()) << files.error().ToString();
  EXPECT_EQ(files->size(), 2u);
}

TEST(Safetensors, RefusesEveryBadIndex) {
  struct Case {
    std::string index;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"", "empty"},
      {"[]", "an object"},
      {"{}", "weight_map: missing"},
      {R"({"weight_map":[]})", "an object"},
      {R"({"weight_map":{}})", "no tensors"},
      {R"({"weight_map":{"a":1}})", "a file name"},
      {R"({"weight_map":{"a":"../1.st"}})", "beside it"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "beside it"},
      {R"({"weight_map":{"a":".."}})", "beside it"},
      {R"({"weight_map":{"a":"."}})", "beside it"},
      {R"({"weight_map":{"a":""}})", "beside it"},
      {R"({"weight_map":{"a":"1.st\u0000"}})", "beside it"},
      {R"({"weight_map":{"a":"missing.st"}})", "missing.st"},
      {R"({"weight_map":{"a":"1.st","c":"1.st"}})", "tensor c: missing"},
      {R"({"weight_map":{"a":"1.st","b":"3.st"}})", "tensor b: missing"},
      {R"({"weight_map":{"a":"1.st","x":"4.st"}})", "also in another shard"},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.index);
    const TempDir dir;
    WriteFile(dir / "model.safetensors.index.json", bad.index);
    WriteFile(dir / "1.st", OneTensor("a"));
    WriteFile(dir / "3.st", OneTensor("y"));
    const std::string both = R"({"a":{"dtype":"F16","shape":[5],"data_offsets":[0,10]},)"
                             R"("x":{"dtype":"F16","shape":[5],"data_offsets":[10,20]}})";
    WriteFile(dir / "4.st", std::span<const uint8_t>(Bytes(both, 20)));
    const auto files = OpenSafetensors(dir.path());
    ASSERT_FALSE(files.has_value());
    EXPECT_THAT(files.error().ToString(), HasSubstr(bad.message));
  }
}

TEST(Safetensors, SaysThatThereAreNone) {
  const TempDir dir;
  const auto files = OpenSafetensors(dir.path());
  ASSERT_FALSE(files.has_value());
  EXPECT_THAT(files.error().ToString(), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace sluice::formats
