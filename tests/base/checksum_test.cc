#include "base/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::base {
namespace {

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// RFC 3720, appendix B.4, and the check value of the polynomial's catalogue entry.
TEST(Crc32c, GivesThePublishedValues) {
  const std::vector<uint8_t> zeros(32, 0), ones(32, 0xff);
  std::vector<uint8_t> up(32), down(32);
  for (size_t i = 0; i < 32; ++i) {
    up[i] = static_cast<uint8_t>(i);
    down[i] = static_cast<uint8_t>(31 - i);
  }
  for (const auto crc : {Crc32c, Crc32cPortable}) {
    EXPECT_EQ(crc(zeros, 0), 0x8a9136aau);
    EXPECT_EQ(crc(ones, 0), 0x62a8ab43u);
    EXPECT_EQ(crc(up, 0), 0x46dd794eu);
    EXPECT_EQ(crc(down, 0), 0x113fdb5cu);
    EXPECT_EQ(crc(Bytes("123456789"), 0), 0xe3069283u);
    EXPECT_EQ(crc({}, 0), 0u);
  }
}

TEST(Crc32c, TheProcessorsInstructionAndTheTableAgree) {
  std::mt19937 random(7);
  std::vector<uint8_t> bytes(300);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random());
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; begin + size <= bytes.size(); ++size) {
      const auto part = std::span(bytes).subspan(begin, size);
      ASSERT_EQ(Crc32c(part), Crc32cPortable(part)) << begin << " + " << size;
    }
  }
}

TEST(Crc32c, GoesOnFromAnEarlierPart) {
  const auto all = Bytes("all that is gold does not glitter");
  for (size_t cut = 0; cut <= all.size(); ++cut) {
    EXPECT_EQ(Crc32c(all.subspan(cut), Crc32c(all.first(cut))), Crc32c(all));
    EXPECT_EQ(Crc32cPortable(all.subspan(cut), Crc32cPortable(all.first(cut))), Crc32c(all));
  }
}

// FIPS 180-2, appendix B.
TEST(Sha256, GivesThePublishedValues) {
  const auto of = [](std::string_view text) {
    Sha256 sha;
    sha.Update(Bytes(text));
    return sha.Finish();
  };
  EXPECT_EQ(of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  Sha256 million;
  const std::string part(1000, 'a');
  for (int i = 0; i < 1000; ++i) million.Update(Bytes(part));
  Sha256 moved = std::move(million);
  EXPECT_EQ(moved.Finish(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace sluice::base
