// Token ids equal to those of the `tokenizers` and `sentencepiece` packages.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "reference.h"
#include "text/nfc.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

constexpr const char* kSeed = "20240817";
constexpr const char* kCount = "12000";

void CompareWithReference(const std::string& kind, const std::string& model) {
  std::vector<uint8_t> bytes;
  RunReference("reference_ids.py", {kind, model, kSeed, kCount}, bytes);
  if (bytes.empty()) return;
  ReferenceReader reader(bytes);
  const auto tokenizer = Tokenizer::FromMetadata(reader.ReadMetadata());
  ASSERT_TRUE(tokenizer) << tokenizer.error().ToString();
  std::vector<bool> has_byte(256, kind == "llama");
  for (uint32_t id = 0; id < tokenizer->size(); ++id) {
    const std::string_view token = tokenizer->TokenBytes(static_cast<int32_t>(id));
    if (token.size() == 1) has_byte[static_cast<uint8_t>(token[0])] = true;
  }

  int differ = 0;
  uint32_t round_trips = 0;
  const auto count = reader.Read<uint32_t>();
  ASSERT_GE(count, 10000u);
  for (uint32_t i = 0; i < count; ++i) {
    const std::string text = reader.ReadString();
    const bool parse_special = reader.Read<uint8_t>() != 0;
    const std::vector<int32_t> expected = reader.ReadInts();
    const std::vector<int32_t> got = tokenizer->Encode(text, parse_special);
    if (got != expected && ++differ <= 5) {
      EXPECT_EQ(got, expected) << "string " << i << " \"" << testing::PrintToString(text)
                               << "\", parse_special " << parse_special;
    }
    const bool lossless =
        std::ranges::all_of(text, [&](char c) { return has_byte[static_cast<uint8_t>(c)]; });
    const bool has_meta_space = kind == "llama" && text.find("\u2581") != std::string::npos;
    if (IsValidUtf8(text) && lossless && !has_meta_space) {
      ++round_trips;
      EXPECT_EQ(tokenizer->Decode(got, true), kind == "qwen2" ? ToNfc(text) : text)
          << "string " << i;
    }
  }
  EXPECT_EQ(differ, 0) << "of " << count;
  EXPECT_GT(round_trips, count / 4);
}

class ByteLevelReference : public testing::TestWithParam<const char*> {};

TEST_P(ByteLevelReference, GivesTheIdsOfTheTokenizersPackageOnATrainedVocabulary) {
  CompareWithReference(GetParam(), "");
}

TEST_P(ByteLevelReference, GivesTheIdsOfTheTokenizersPackageOnTheVocabularyOfTheTestModel) {
  const char* model = std::getenv("SLUICE_TEST_MODEL");
  if (model == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
  CompareWithReference(GetParam(), model);
}

INSTANTIATE_TEST_SUITE_P(Patterns, ByteLevelReference,
                         testing::Values("smollm", "qwen2", "llama-bpe", "gpt-2"));

TEST(SentencePieceReference, GivesTheIdsOfTheSentencePiecePackage) {
  CompareWithReference("llama", "");
}

}  // namespace
}  // namespace sluice::text
