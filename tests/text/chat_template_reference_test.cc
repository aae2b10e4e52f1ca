// Conversations equal to what jinja2 makes of the models' templates.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "reference.h"
#include "text/chat_template.h"

namespace sluice::text {
namespace {

void CompareWithJinja(const std::string& model) {
  std::vector<uint8_t> bytes;
  RunReference("reference_chats.py", {model, "20240818"}, bytes);
  if (bytes.empty()) return;
  ReferenceReader reader(bytes);
  int templates = 0;
  for (; !reader.AtEnd(); ++templates) {
    const model::Metadata metadata = reader.ReadMetadata();
    const auto chat = ChatTemplate::FromMetadata(metadata);
    ASSERT_TRUE(chat) << chat.error().ToString();
    EXPECT_EQ(chat->name(), reader.ReadString()) << "template " << templates;
    int rendered = 0;
    const auto count = reader.Read<uint32_t>();
    for (uint32_t i = 0; i < count; ++i) {
      const std::vector<std::string> flat = reader.ReadStrings();
      std::vector<Message> messages;
      std::string roles;
      for (size_t m = 0; m < flat.size(); m += 2) {
        messages.push_back({flat[m], flat[m + 1]});
        roles += flat[m] + " ";
      }
      const bool generate = reader.Read<uint8_t>() != 0;
      const bool renders = reader.Read<uint8_t>() != 0;
      const std::string expected = reader.ReadString();
      const auto segments = chat->Render(messages, generate);
      ASSERT_EQ(segments.has_value(), renders) << "template " << templates << ": " << roles;
      if (segments) {
        ASSERT_EQ(JoinSegments(*segments), expected) << "template " << templates << ": " << roles;
      }
      rendered += renders;
    }
    EXPECT_GT(rendered, 200) << "template " << templates;
  }
  EXPECT_EQ(templates, model.empty() ? 14 : 15);
}

TEST(ChatTemplateReference, RendersWhatJinjaRenders) { CompareWithJinja(""); }

TEST(ChatTemplateReference, RendersWhatJinjaRendersFromTheTemplateOfTheTestModel) {
  const char* model = std::getenv("SLUICE_TEST_MODEL");
  if (model == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
  CompareWithJinja(model);
}

}  // namespace
}  // namespace sluice::text
