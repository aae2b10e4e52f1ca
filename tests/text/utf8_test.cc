#include "text/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace sluice::text {
namespace {

std::string Encode(char32_t c) {
  const auto last = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  if (c < 0x800) return std::string{static_cast<char>(0xC0 | c >> 6), last(0)};
  if (c < 0x10000) return std::string{static_cast<char>(0xE0 | c >> 12), last(6), last(0)};
  return std::string{static_cast<char>(0xF0 | c >> 18), last(12), last(6), last(0)};
}

TEST(Utf8, ReplacesEachMaximalPartOfACharacter) {
  // Expected values: Python's bytes.decode(errors="replace").
  EXPECT_EQ(ReplaceInvalidUtf8("a\x80z"), "a\uFFFDz");
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x82"), "\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x82z"), "\uFFFDz");
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x98\xF0\x9F\x98\x80"), "\uFFFD😀");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE0\x9F\xBF"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xFF"), "\uFFFD");
}

TEST(Utf8, LeavesEveryCharacterAlone) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string text = Encode(c);
    const Utf8Step step = ReadUtf8(text);
    ASSERT_EQ(step.kind, Utf8Step::kCharacter) << static_cast<uint32_t>(c);
    ASSERT_EQ(step.code, c);
    ASSERT_EQ(step.length, text.size());
  }
}

TEST(Utf8, GivesTheSameInPartsAsInOne) {
  std::mt19937 random(11);
  const std::string alphabet = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF\xED\xA0\xC0";
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t n = random() % 10; n > 0; --n) text += alphabet[random() % alphabet.size()];
    Utf8Stream stream;
    std::string joined;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 4;
      joined += stream.Push(text.substr(at, length));
      EXPECT_TRUE(IsValidUtf8(joined));
      at += length;
    }
    EXPECT_EQ(joined + stream.Finish(), ReplaceInvalidUtf8(text));
    EXPECT_EQ(IsValidUtf8(text), ReplaceInvalidUtf8(text) == text);
  }
}

TEST(Utf8, TrimsWhatPythonTrims) {
  EXPECT_EQ(Trim(" \t\n\v\f\r\x1C\x1F\u0085\u00A0\u1680\u2003\u2028\u202F\u205F\u3000"), "");
  EXPECT_EQ(Trim("\u3000 a b\u00A0\n"), "a b");
  EXPECT_EQ(TrimLeft(" a "), "a ");
  EXPECT_EQ(TrimRight(" a "), " a");
  EXPECT_EQ(Trim("\u200B\u180E\uFEFF"), "\u200B\u180E\uFEFF");
  EXPECT_EQ(Trim(" \xFF "), "\xFF");
  EXPECT_EQ(Trim(""), "");
}

}  // namespace
}  // namespace sluice::text
