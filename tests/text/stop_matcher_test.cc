#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace sluice::text {
namespace {

StopMatcher Make(std::vector<std::string> stops) { return *StopMatcher::Create(std::move(stops)); }

TEST(StopMatcher, HoldsBackWhatMayBeginAStopString) {
  StopMatcher matcher = Make({"<end>"});
  EXPECT_EQ(matcher.Push("hello <e").emit, "hello ");
  EXPECT_EQ(matcher.Push("xit>").emit, "<exit>");
  EXPECT_EQ(matcher.Push(" <").emit, " ");
  EXPECT_EQ(matcher.Finish(), "<");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, StopsBeforeTheStopStringAndDropsTheRest) {
  StopMatcher matcher = Make({"\n\n"});
  EXPECT_EQ(matcher.Push("a\n").emit, "a");
  const StopMatcher::Output output = matcher.Push("\nb");
  EXPECT_EQ(output.emit, "");
  EXPECT_TRUE(output.stopped);
  EXPECT_EQ(matcher.Push("c").emit, "");
  EXPECT_EQ(matcher.Finish(), "");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, HoldsBackTheRightPartOfAStringThatRepeatsItself) {
  StopMatcher matcher = Make({"aab"});
  EXPECT_EQ(matcher.Push("aaa").emit, "a");
  const StopMatcher::Output output = matcher.Push("ab");
  EXPECT_EQ(output.emit, "a");
  EXPECT_TRUE(output.stopped);
}

TEST(StopMatcher, RefusesAnEmptyString) {
  EXPECT_FALSE(StopMatcher::Create({"a", ""}));
  EXPECT_TRUE(StopMatcher::Create({}));
}

TEST(StopMatcher, PassesEverythingWhereThereIsNothingToFind) {
  StopMatcher matcher = Make({});
  EXPECT_EQ(matcher.Push("any").emit, "any");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, DoesNotDependOnHowTheTextIsCut) {
  std::mt19937 random(12);
  const auto make_text = [&](size_t longest) {
    std::string text;
    for (size_t n = 1 + random() % longest; n > 0; --n)
      text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) stop = make_text(5);
    const std::string text = make_text(12);
    // The stop string that ends first, and of those that end together the longest.
    std::string expected = text;
    for (size_t end = 1; end <= text.size() && expected == text; ++end) {
      size_t longest = 0;
      for (const std::string& stop : stops) {
        if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
      }
      if (longest > 0) expected = text.substr(0, end - longest);
    }
    StopMatcher matcher = Make(stops);
    std::string got;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 4;
      got += matcher.Push(text.substr(at, length)).emit;
      at += length;
    }
    got += matcher.Finish();
    ASSERT_EQ(got, expected) << text;
    ASSERT_EQ(matcher.stopped(), expected != text) << text;
  }
}

}  // namespace
}  // namespace sluice::text
