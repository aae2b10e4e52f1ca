#include "text/dialogues.h"

#include <gtest/gtest.h>

namespace sluice::text {
namespace {

TEST(Dialogues, AreTurnsOfAUserWithTheirAnswers) {
  const auto dialogues = ParseDialogues(
      "A preface.\n\nUser: One?\nStill one: User: no\n\nAssistant: Yes.\n\nIn two parts.\n\n"
      "User: Two?\n\nAssistant: No.\n\nUser: Unanswered\n");
  ASSERT_EQ(dialogues.size(), 3u);
  ASSERT_EQ(dialogues[0].size(), 2u);
  EXPECT_EQ(dialogues[0][0].role, "user");
  EXPECT_EQ(dialogues[0][0].content, "One?\nStill one: User: no");
  EXPECT_EQ(dialogues[0][1].role, "assistant");
  EXPECT_EQ(dialogues[0][1].content, "Yes.\n\nIn two parts.");
  EXPECT_EQ(dialogues[1][1].content, "No.");
  ASSERT_EQ(dialogues[2].size(), 1u);
  EXPECT_EQ(dialogues[2][0].content, "Unanswered");
}

TEST(Dialogues, AreNoneInOtherText) {
  EXPECT_TRUE(ParseDialogues("").empty());
  EXPECT_TRUE(ParseDialogues("The User: field is empty.\nUser: not a paragraph").empty());
}

}  // namespace
}  // namespace sluice::text
