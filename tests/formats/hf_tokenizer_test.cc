#include "formats/hf_tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/tiny_model.h"

namespace sluice::formats {
namespace {

constexpr uint32_t kRows = 300;

base::Result<model::Metadata> Read(const nlohmann::json& tokenizer) {
  const nlohmann::json nothing = nlohmann::json::object();
  const auto object = [](const nlohmann::json& json) { return *JsonObject::Of(json, "test"); };
  const TokenizerFiles files = {object(tokenizer), object(nothing), object(nothing),
                                object(nothing), std::nullopt};
  model::Metadata metadata;
  SLUICE_TRY_VOID(ReadHfTokenizer(files, kRows, metadata));
  return metadata;
}

TEST(HfNormalizer, IsNoneOrNfcAloneOrInASequence) {
  nlohmann::json tokenizer = testing::TinyHfTokenizer();
  const std::vector<std::pair<std::string, bool>> cases = {
      {"null", false},
      {R"({"type":"Sequence","normalizers":[]})", false},
      {R"({"type":"NFC"})", true},
      {R"({"type":"Sequence","normalizers":[{"type":"NFC"}]})", true},
      {R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"NFC"}]})", true},
  };
  for (const auto& [text, nfc] : cases) {
    tokenizer["normalizer"] = nlohmann::json::parse(text);
    const auto metadata = Read(tokenizer);
    ASSERT_TRUE(metadata.has_value()) << metadata.error().ToString();
    EXPECT_EQ(metadata->GetBool("sluice.nfc").value(), nfc) << text;
    EXPECT_FALSE(metadata->GetInts("sluice.normalized_tokens").value().has_value());
  }
  for (const char* text :
       {R"({"type":"NFD"})", R"({"type":"NFKC"})",
        R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Strip"}]})"}) {
    tokenizer["normalizer"] = nlohmann::json::parse(text);
    EXPECT_FALSE(Read(tokenizer).has_value()) << text;
  }
}

TEST(HfNormalizer, ComesBeforeTheAddedTokensThatSaySo) {
  nlohmann::json tokenizer = testing::TinyHfTokenizer();
  tokenizer["normalizer"] = {{"type", "NFC"}};
  uint32_t id = 290;
  for (const auto& [special, normalized] :
       {std::pair{false, true}, {false, false}, {true, true}, {true, false}}) {
    tokenizer["added_tokens"].push_back({{"id", id},
                                         {"content", "<" + std::to_string(id) + ">"},
                                         {"special", special},
                                         {"normalized", normalized}});
    ++id;
  }
  const auto metadata = Read(tokenizer);
  ASSERT_TRUE(metadata.has_value()) << metadata.error().ToString();
  EXPECT_EQ(metadata->GetInts("sluice.normalized_tokens").value(), std::vector<int32_t>{290});
  EXPECT_EQ((**metadata->GetInts("tokenizer.ggml.token_type"))[292], 3);

  tokenizer["added_tokens"].back()["normalized"] = "yes";
  EXPECT_FALSE(Read(tokenizer).has_value());
}

}  // namespace
}  // namespace sluice::formats
