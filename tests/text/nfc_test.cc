#include "text/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <string>

#include "text/tokenizer.h"
#include "vocabularies.h"

namespace sluice::text {
namespace {

std::string Utf8(utf8proc_int32_t code) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const auto length = utf8proc_encode_char(code, bytes.data());
  return {reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(length)};
}

std::string Utf8proc(const std::string& text, int form) {
  utf8proc_uint8_t* out = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &out,
                                   static_cast<utf8proc_option_t>(form | UTF8PROC_STABLE));
  EXPECT_GE(length, 0);
  std::string result(reinterpret_cast<const char*>(out), static_cast<size_t>(length));
  std::free(out);
  return result;
}

TEST(Nfc, ComposesReordersAndReplaces) {
  EXPECT_EQ(ToNfc(""), "");
  EXPECT_EQ(ToNfc("e\u0301 abc e\u0301"), "\u00e9 abc \u00e9");
  EXPECT_EQ(ToNfc("a\u0302\u0323"), "\u1ead");
  EXPECT_EQ(ToNfc("\u0301\u0316a"), "\u0316\u0301a");
  EXPECT_EQ(ToNfc("\u2126\u212a\u212b"), "\u03a9K\u00c5");
  EXPECT_EQ(ToNfc("\uf900\u0958\ufb1d"), "\u8c48\u0915\u093c\u05d9\u05b4");
  EXPECT_EQ(ToNfc("\u1112\u1161\u11ab\u1100\u1173\u11af"), "한글");
  EXPECT_EQ(ToNfc("\uac00\u11a8"), "\uac01");
  EXPECT_EQ(ToNfc(std::string("\0e\u0301", 4)), std::string("\0\u00e9", 3));
}

TEST(Nfc, KeepsTheJamoThatLooksLikeATrailingConsonant) {
  EXPECT_EQ(ToNfc("\u1100\u1161\u11a7"), "\uac00\u11a7");
  EXPECT_EQ(ToNfc("\uac00\u11a7\u11a8"), "\uac00\u11a7\u11a8");
}

// So that no character is taken for one before which normalising begins anew and is none, also in
// a later version of Unicode.
TEST(Nfc, IsThatOfUtf8procForEveryCharacterAmongOthers) {
  int differ = 0;
  for (utf8proc_int32_t code = 1; code <= 0x10FFFF; ++code) {
    if ((code >= 0xD800 && code <= 0xDFFF) || code == 0x11A7) continue;
    const std::string c = Utf8(code);
    const std::string apart = Utf8proc(c, UTF8PROC_DECOMPOSE);
    const bool common = apart == c && utf8proc_category(code) == UTF8PROC_CATEGORY_CN;
    for (const std::string& text :
         {apart, "e" + c + "\u0334\u0301", "e\u0345" + c, c + "\u3099", "\uac00" + c}) {
      if (ToNfc(text) != Utf8proc(text, UTF8PROC_COMPOSE) && ++differ <= 5) {
        ADD_FAILURE() << "U+" << std::hex << code << ": " << testing::PrintToString(text);
      }
      if (common) break;  // not assigned: one text will do
    }
  }
  EXPECT_EQ(differ, 0);
}

// A release build takes a tenth of a second; quadratic work would take hours.
TEST(Nfc, TakesLinearTimeForAMegabyteOfOneCharacterOrMark) {
  model::Metadata metadata = ByteLevelMetadata("qwen2", {"\u00cc \u0123"});
  const auto tokenizer = Tokenizer::FromMetadata(metadata);
  ASSERT_TRUE(tokenizer) << tokenizer.error().ToString();
  for (const std::string unit :
       {"a", "é", "中", "\u0301", "\u0316\u0301", "\u0301\u0316", "e\u0301", "\u0344",
        "\u1100\u1161\u11a8", "\u11a8", "\u093c", "\u0e01"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    const std::clock_t begin = std::clock();
    const std::string nfc = ToNfc(text);
    const std::vector<int32_t> ids = tokenizer->Encode(text, true);
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_LT(seconds, 5.0) << testing::PrintToString(unit);
    EXPECT_EQ(tokenizer->Decode(ids), nfc);
  }
}

}  // namespace
}  // namespace sluice::text
