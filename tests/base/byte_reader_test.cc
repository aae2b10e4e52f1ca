#include "base/byte_reader.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace sluice::base {
namespace {

TEST(ByteReader, ReadsLittleEndianValuesInOrder) {
  const std::vector<uint8_t> bytes{0x01, 0x34, 0x12, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x80, 0x3f, 9};
  ByteReader reader(bytes, "file");
  EXPECT_EQ(reader.Read<uint8_t>("a").value(), 1);
  EXPECT_EQ(reader.Read<uint16_t>("b").value(), 0x1234);
  EXPECT_EQ(reader.Read<int32_t>("c").value(), -1);
  EXPECT_EQ(reader.Read<float>("d").value(), 1.0f);
  EXPECT_EQ(reader.offset(), 11u);
  EXPECT_EQ(reader.remaining(), 1u);
  EXPECT_EQ(reader.ReadBytes(1, "e").value()[0], 9);
  EXPECT_EQ(reader.ReadBytes(0, "f").value().size(), 0u);
}

TEST(ByteReader, NamesWhatTheFileEndsInside) {
  const std::vector<uint8_t> bytes(10);
  ByteReader reader(bytes, "file");
  ASSERT_TRUE(reader.Read<uint64_t>("a").has_value());
  const auto late = reader.Read<uint32_t>("the count");
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().ToString(),
            "file: ends inside the count: 2 bytes left, expected 4 (at byte 8)");
  EXPECT_EQ(reader.offset(), 8u) << "a read that fails takes nothing";
  EXPECT_TRUE(reader.Read<uint16_t>("b").has_value());
  EXPECT_FALSE(reader.Read<uint8_t>("c").has_value());
}

TEST(ByteReader, ACountNearTwoToTheSixtyFourthDoesNotWrap) {
  const std::vector<uint8_t> bytes(10);
  ByteReader reader(bytes, "file");
  ASSERT_TRUE(reader.Read<uint8_t>("a").has_value());
  EXPECT_FALSE(reader.ReadBytes(std::numeric_limits<uint64_t>::max(), "b").has_value());
  EXPECT_FALSE(reader.ReadBytes(10, "b").has_value());
  EXPECT_TRUE(reader.ReadBytes(9, "b").has_value());
}

}  // namespace
}  // namespace sluice::base
