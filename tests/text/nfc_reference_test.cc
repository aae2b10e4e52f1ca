// NFC and the token ids of text that is not in it, equal to those of the `tokenizers` package.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reference.h"
#include "text/nfc.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

constexpr const char* kSeed = "20240901";
constexpr const char* kCount = "8000";

class NfcReference : public testing::TestWithParam<const char*> {};

TEST_P(NfcReference, GivesTheTextAndTheIdsOfTheTokenizersPackage) {
  std::vector<uint8_t> bytes;
  RunReference("reference_nfc.py", {GetParam(), kSeed, kCount}, bytes);
  if (bytes.empty()) return;
  ReferenceReader reader(bytes);
  const auto tokenizer = Tokenizer::FromMetadata(reader.ReadMetadata());
  ASSERT_TRUE(tokenizer) << tokenizer.error().ToString();

  int differ = 0;
  int changed = 0;
  const auto count = reader.Read<uint32_t>();
  for (uint32_t i = 0; i < count; ++i) {
    const std::string text = reader.ReadString();
    const bool parse_special = reader.Read<uint8_t>() != 0;
    const std::string nfc = reader.ReadString();
    const std::vector<int32_t> expected = reader.ReadInts();
    const std::string valid = ReplaceInvalidUtf8(text);
    const std::string got_nfc = ToNfc(valid);
    const std::vector<int32_t> got = tokenizer->Encode(text, parse_special);
    changed += nfc != valid;
    if ((got_nfc != nfc || got != expected) && ++differ <= 5) {
      EXPECT_EQ(got_nfc, nfc) << "string " << i << " " << testing::PrintToString(text);
      EXPECT_EQ(got, expected) << "string " << i << " " << testing::PrintToString(text)
                               << ", parse_special " << parse_special;
    }
  }
  EXPECT_EQ(differ, 0) << "of " << count;
  EXPECT_GE(changed, 4000) << "strings that are not in NFC";
}

INSTANTIATE_TEST_SUITE_P(Patterns, NfcReference, testing::Values("qwen2", "smollm"));

}  // namespace
}  // namespace sluice::text
