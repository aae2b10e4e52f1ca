#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "text/pretokenizer.h"
#include "vocabularies.h"

namespace sluice::text {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Tokenizer Make(const model::Metadata& metadata) {
  auto tokenizer = Tokenizer::FromMetadata(metadata);
  if (!tokenizer) ADD_FAILURE() << tokenizer.error().ToString();
  return *std::move(tokenizer);
}

std::string ErrorOf(const model::Metadata& metadata) {
  const auto tokenizer = Tokenizer::FromMetadata(metadata);
  return tokenizer ? "no error" : tokenizer.error().ToString();
}

std::vector<std::string> Spell(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::vector<std::string> spelled;
  for (const int32_t id : ids) spelled.emplace_back(tokenizer.TokenBytes(id));
  return spelled;
}

TEST(Tokenizer, MergesInTheOrderOfTheRanks) {
  const Tokenizer tokenizer = Make(ByteLevelMetadata("gpt-2", {"a b", "b c", "ab c"}));
  EXPECT_THAT(Spell(tokenizer, tokenizer.Encode("abc", false)), ElementsAre("abc"));
  EXPECT_THAT(Spell(tokenizer, tokenizer.Encode("bc", false)), ElementsAre("bc"));
  EXPECT_THAT(Spell(tokenizer, tokenizer.Encode("ab bc", false)), ElementsAre("ab", " ", "bc"));
}

TEST(Tokenizer, MergesTheLeftmostOfEqualPairsFirst) {
  const Tokenizer tokenizer = Make(ByteLevelMetadata("gpt-2", {"a a"}));
  EXPECT_THAT(Spell(tokenizer, tokenizer.Encode("aaa", false)), ElementsAre("aa", "a"));
}

TEST(Tokenizer, TakesAWholeWordFirstOnlyWithLlamasPattern) {
  // "abc" is a token that no merge makes.
  model::Metadata metadata = ByteLevelMetadata("llama-bpe", {"a b"}, {"abc"});
  EXPECT_EQ(Make(metadata).Encode("abc", false).size(), 1u);
  metadata.Set("tokenizer.ggml.pre", std::string("qwen2"));
  EXPECT_EQ(Make(metadata).Encode("abc", false).size(), 2u);
}

TEST(Tokenizer, FindsControlTokensOnlyWhereTheyAreAskedFor) {
  const Tokenizer tokenizer = Make(ByteLevelMetadata("qwen2", {}));
  const int32_t end = tokenizer.FindControl("<|im_end|>");
  ASSERT_GE(end, 0);
  EXPECT_THAT(tokenizer.Encode("<|im_end|>", true), ElementsAre(end));
  EXPECT_EQ(tokenizer.Encode("<|im_end|>", false).size(), 10u);
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode("<|im_end|>", false)), "<|im_end|>");
  EXPECT_EQ(tokenizer.Decode(std::vector{end}), "");
  EXPECT_EQ(tokenizer.Decode(std::vector{end}, true), "<|im_end|>");
}

TEST(Tokenizer, FindsUserDefinedTokensAlwaysAndTheLongest) {
  model::Metadata metadata = ByteLevelMetadata("qwen2", {});
  const int32_t shorter = AddToken(metadata, "<tool>", 4);
  const int32_t longer = AddToken(metadata, "<tool>>", 4);
  const Tokenizer tokenizer = Make(metadata);
  EXPECT_THAT(tokenizer.Encode("<tool><tool>>", false), ElementsAre(shorter, longer));
  EXPECT_THAT(tokenizer.Encode("<tool>><tool>", true), ElementsAre(longer, shorter));
  EXPECT_EQ(tokenizer.Decode(std::vector{longer}), "<tool>>");
}

TEST(Tokenizer, BringsTextToNfcWhereTheOriginalDoes) {
  for (const auto name : PretokenizerNames()) {
    model::Metadata metadata = ByteLevelMetadata(std::string(name), {});
    const auto decoded = [&] {
      const Tokenizer tokenizer = Make(metadata);
      return tokenizer.Decode(tokenizer.Encode("e\u0301", false));
    };
    EXPECT_EQ(decoded(), name == "qwen2" ? "\u00e9" : "e\u0301") << name;
    metadata.Set("sluice.nfc", true);
    EXPECT_EQ(decoded(), "\u00e9") << name;
    metadata.Set("sluice.nfc", false);
    EXPECT_EQ(decoded(), "e\u0301") << name;
  }
  const Tokenizer sentencepiece = Make(SentencePieceMetadata());
  EXPECT_EQ(sentencepiece.Decode(sentencepiece.Encode("e\u0301", false)), "e\u0301");
}

TEST(Tokenizer, BringsTheTextBetweenTokensToNfcAsOneAcrossSegments) {
  const Tokenizer tokenizer = Make(ByteLevelMetadata("qwen2", {}));
  const std::vector<Segment> segments = {{"e", true}, {"\u0301<|im_end|>", false}};
  EXPECT_EQ(tokenizer.Encode(segments), tokenizer.Encode("\u00e9<|im_end|>", false));
  // U+0338 would make one character of the ">" of a token.
  const int32_t end = tokenizer.FindControl("<|im_end|>");
  EXPECT_THAT(tokenizer.Encode("<|im_end|>\u0338", true), ElementsAre(end, 0xCC, 0xB8));
  // Invalid bytes become U+FFFD, which nothing composes with.
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode("e\xFF\u0301e\u0301\xCC", true)),
            "e\uFFFD\u0301\u00e9\uFFFD");
}

TEST(Tokenizer, FindsUserDefinedTokensBeforeNfcOrAfterAsTheModelSays) {
  model::Metadata metadata = ByteLevelMetadata("qwen2", {});
  const int32_t before = AddToken(metadata, "<\u00e9>", 4);
  const int32_t after = AddToken(metadata, "[e\u0301]", 4);
  const int32_t control = AddToken(metadata, "{\u00e9}", 3);
  metadata.Set("sluice.normalized_tokens", std::vector<int32_t>{after, control});
  const Tokenizer tokenizer = Make(metadata);
  EXPECT_THAT(tokenizer.Encode("<\u00e9>", false), ElementsAre(before));
  EXPECT_EQ(tokenizer.Encode("<e\u0301>", false).size(), 4u);
  EXPECT_THAT(tokenizer.Encode("[e\u0301]", false), ElementsAre(after));
  EXPECT_THAT(tokenizer.Encode("[\u00e9]", true), ElementsAre(after));
  EXPECT_THAT(tokenizer.Encode("{\u00e9}", true), ElementsAre(control));
  EXPECT_EQ(tokenizer.Encode("{e\u0301}", true).size(), 4u);
  // Without NFC there is no before and after.
  metadata.Set("sluice.nfc", false);
  EXPECT_THAT(Make(metadata).Encode("[e\u0301]", false), ElementsAre(after));
  EXPECT_EQ(Make(metadata).Encode("[\u00e9]", false).size(), 4u);
}

TEST(Tokenizer, JoinsSegmentsIntoOneTextBetweenControlTokens) {
  const Tokenizer tokenizer = Make(ByteLevelMetadata("gpt-2", {"a b"}));
  const int32_t end = tokenizer.FindControl("<|im_end|>");
  const std::vector<Segment> segments = {
      {"x a", true}, {"b<|im_end|>", false}, {"<|im_end|>", true}};
  std::vector<int32_t> expected = tokenizer.Encode("x ab<|im_end|>", false);
  expected.push_back(end);
  EXPECT_EQ(tokenizer.Encode(segments), expected);
}

TEST(Tokenizer, DoesNotMakeAControlTokenOfASpellingThatIsCutBetweenSegments) {
  const Tokenizer tokenizer = Make(ByteLevelMetadata("gpt-2", {}));
  const std::vector<Segment> segments = {{"<|im_", true}, {"end|>", false}};
  EXPECT_EQ(tokenizer.Encode(segments), tokenizer.Encode("<|im_end|>", false));
}

TEST(Tokenizer, LeavesBytesOutThatTheVocabularyLacks) {
  model::Metadata metadata = ByteLevelMetadata("gpt-2", {"a b"});
  auto tokens = **metadata.GetStrings("tokenizer.ggml.tokens");
  tokens['~'] = "unrelated";
  metadata.Set("tokenizer.ggml.tokens", tokens);
  const Tokenizer tokenizer = Make(metadata);
  EXPECT_THAT(Spell(tokenizer, tokenizer.Encode("x~y", false)), ElementsAre("x", "y"));
  EXPECT_THAT(tokenizer.Encode("~", false), ElementsAre());
}

TEST(Tokenizer, KnowsEveryUsualEndOfGeneration) {
  model::Metadata metadata = ByteLevelMetadata("qwen2", {});
  const int32_t eot = AddToken(metadata, "<the end>", 3);
  const int32_t listed = AddToken(metadata, "<listed>", 3);
  const int32_t gemma = AddToken(metadata, "<end_of_turn>", 3);
  const int32_t html = AddToken(metadata, "</s>", 1);
  const int32_t other = AddToken(metadata, "<other>", 3);
  metadata.Set("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(eot));
  metadata.Set("sluice.eos_token_ids", std::vector<int32_t>{listed});
  const Tokenizer tokenizer = Make(metadata);
  EXPECT_TRUE(tokenizer.IsEnd(tokenizer.eos()));
  EXPECT_TRUE(tokenizer.IsEnd(tokenizer.FindControl("<|im_end|>")));
  EXPECT_TRUE(tokenizer.IsEnd(eot));
  EXPECT_TRUE(tokenizer.IsEnd(listed));
  EXPECT_TRUE(tokenizer.IsEnd(gemma));
  EXPECT_FALSE(tokenizer.IsEnd(html)) << "a spelling in ordinary text is no end";
  EXPECT_FALSE(tokenizer.IsEnd(other));
  EXPECT_FALSE(tokenizer.IsEnd(tokenizer.FindControl("<|im_start|>")));
  EXPECT_FALSE(tokenizer.IsEnd(-1));
}

TEST(Tokenizer, BeginsWithBosAsTheModelSaysOrAsItsKindDoes) {
  model::Metadata metadata = ByteLevelMetadata("qwen2", {});
  metadata.Set("tokenizer.ggml.bos_token_id", uint32_t{256});
  EXPECT_FALSE(Make(metadata).add_bos());
  metadata.Set("tokenizer.ggml.pre", std::string("llama-bpe"));
  EXPECT_TRUE(Make(metadata).add_bos());
  EXPECT_EQ(Make(metadata).bos(), 256);
  metadata.Set("tokenizer.ggml.add_bos_token", false);
  EXPECT_FALSE(Make(metadata).add_bos());
  EXPECT_TRUE(Make(SentencePieceMetadata()).add_bos());
}

TEST(Tokenizer, TakesIdsWithANameForControlTokensWhereThereAreNoTypes) {
  model::Metadata metadata = ByteLevelMetadata("qwen2", {});
  model::Metadata untyped;
  for (const auto& [key, value] : metadata.entries()) {
    if (key != "tokenizer.ggml.token_type") untyped.Set(key, value);
  }
  const Tokenizer tokenizer = Make(untyped);
  EXPECT_TRUE(tokenizer.IsControl(tokenizer.eos()));
  EXPECT_FALSE(tokenizer.IsControl('a'));
}

TEST(Tokenizer, GivesTheFirstOfEqualTokens) {
  model::Metadata metadata = ByteLevelMetadata("gpt-2", {"a b"});
  AddToken(metadata, "ab", 1);
  const Tokenizer tokenizer = Make(metadata);
  const std::vector<int32_t> ids = tokenizer.Encode("ab", false);
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_LT(ids[0], static_cast<int32_t>(tokenizer.size()) - 1);
}

TEST(Tokenizer, DecodesAnySequenceOfIdsToValidUtf8) {
  const Tokenizer tokenizer = Make(ByteLevelMetadata("gpt-2", {}));
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids(random() % 12);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 300) - 10;
    EXPECT_TRUE(IsValidUtf8(tokenizer.Decode(ids)));
  }
}

TEST(StreamDecoder, GivesWhatDecodeGivesAndNeverHalfACharacter) {
  const Tokenizer tokenizer = Make(ByteLevelMetadata("gpt-2", {}));
  std::mt19937 random(8);
  const std::string alphabet = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF";
  for (int i = 0; i < 5000; ++i) {
    std::vector<int32_t> ids(random() % 12);
    for (int32_t& id : ids) id = static_cast<uint8_t>(alphabet[random() % alphabet.size()]);
    StreamDecoder stream(tokenizer);
    std::string text;
    for (const int32_t id : ids) {
      const std::string part = stream.Push(id);
      EXPECT_TRUE(IsValidUtf8(part));
      text += part;
    }
    EXPECT_EQ(text + stream.Finish(), tokenizer.Decode(ids));
  }
}

TEST(StreamDecoder, ShowsACharacterAsSoonAsItIsWhole) {
  const Tokenizer tokenizer = Make(ByteLevelMetadata("gpt-2", {}));
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.Push(0xF0), "");
  EXPECT_EQ(stream.Push(0x9F), "");
  EXPECT_EQ(stream.Push(0x98), "");
  EXPECT_EQ(stream.Push(0x80), "😀");
  EXPECT_EQ(stream.Push(0xE2), "");
  EXPECT_EQ(stream.Push('a'), "\uFFFDa");
  EXPECT_EQ(stream.Push(0xC3), "");
  EXPECT_EQ(stream.Finish(), "\uFFFD");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(SentencePieceTokenizer, PutsASpaceBeforeEachRunOfTextAndTakesItAwayAgain) {
  const Tokenizer tokenizer = Make(SentencePieceMetadata());
  EXPECT_THAT(Spell(tokenizer, tokenizer.Encode("ab a", false)), ElementsAre(" ab", " a"));
  for (const std::string text :
       {"ab", " ab", "  ab", "", " ", "ab</s>ab", "ab</s> ab", "</s>", "é"}) {
    EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text, true), true), text);
  }
  model::Metadata metadata = SentencePieceMetadata();
  metadata.Set("tokenizer.ggml.add_space_prefix", false);
  EXPECT_THAT(Spell(tokenizer, Make(metadata).Encode("ab ab", false)), ElementsAre("ab", " ab"));
}

TEST(SentencePieceTokenizer, FallsBackToBytesOrElseToTheUnknownToken) {
  model::Metadata metadata = SentencePieceMetadata();
  metadata.Set("tokenizer.ggml.add_space_prefix", false);
  const Tokenizer tokenizer = Make(metadata);
  const auto ids = tokenizer.Encode("aé", false);
  EXPECT_THAT(Spell(tokenizer, ids), ElementsAre("a", "\xC3", "\xA9"));
  auto types = **metadata.GetInts("tokenizer.ggml.token_type");
  types[ids[2]] = 5;
  metadata.Set("tokenizer.ggml.token_type", types);
  EXPECT_EQ(Make(metadata).Encode("é", false), std::vector<int32_t>{0});
}

TEST(SentencePieceTokenizer, MergesByScoreAndNotByOrder) {
  model::Metadata metadata = SentencePieceMetadata();
  metadata.Set("tokenizer.ggml.add_space_prefix", false);
  AddToken(metadata, "bb", 1, 5.0f);
  const Tokenizer tokenizer = Make(metadata);
  EXPECT_THAT(Spell(tokenizer, tokenizer.Encode("abb", false)), ElementsAre("a", "bb"));
}

TEST(TokenizerMetadata, IsRefusedWithAReason) {
  const auto with = [](std::string key, model::Value value) {
    model::Metadata metadata = ByteLevelMetadata("qwen2", {"a b"});
    metadata.Set(std::move(key), std::move(value));
    return ErrorOf(metadata);
  };
  using Strings = std::vector<std::string>;
  EXPECT_THAT(ErrorOf({}), HasSubstr("tokenizer.ggml.model: the key is missing"));
  EXPECT_THAT(with("tokenizer.ggml.model", std::string("bert")),
              AllOf(HasSubstr("bert"), HasSubstr("gpt2 or llama")));
  EXPECT_THAT(with("tokenizer.ggml.model", uint32_t{1}), HasSubstr("another type"));
  EXPECT_THAT(with("tokenizer.ggml.pre", std::string("tekken")),
              AllOf(HasSubstr("\"tekken\""), HasSubstr("llama-bpe"), HasSubstr("smollm")));
  EXPECT_THAT(with("tokenizer.ggml.tokens", Strings{}), HasSubstr("no token"));
  EXPECT_THAT(with("tokenizer.ggml.token_type", std::vector<int32_t>{1}),
              AllOf(HasSubstr("1 values"), HasSubstr("259")));
  EXPECT_THAT(with("tokenizer.ggml.token_type", std::vector<int32_t>(259, 9)),
              HasSubstr("9 for token 0"));
  EXPECT_THAT(with("tokenizer.ggml.tokens", Strings(259, "")), HasSubstr("single byte"));
  EXPECT_THAT(with("tokenizer.ggml.merges", Strings{"a b", "ab"}),
              AllOf(HasSubstr("merges[1]"), HasSubstr("two tokens with a space between")));
  EXPECT_THAT(with("tokenizer.ggml.merges", Strings{" a"}), HasSubstr("merges[0]"));
  EXPECT_THAT(with("tokenizer.ggml.merges", Strings{"a b c"}), HasSubstr("merges[0]"));
  EXPECT_THAT(with("tokenizer.ggml.merges", Strings{"a c"}), HasSubstr("no token \"ac\""));
  EXPECT_THAT(with("tokenizer.ggml.merges", Strings{"ac b"}), HasSubstr("no token \"ac\""));
  EXPECT_THAT(with("tokenizer.ggml.merges", Strings{"a \xFF"}), HasSubstr("no token"));
  EXPECT_THAT(with("tokenizer.ggml.merges", uint32_t{0}), HasSubstr("tokenizer.ggml.merges"));
  EXPECT_THAT(with("tokenizer.ggml.eos_token_id", uint32_t{259}),
              AllOf(HasSubstr("eos_token_id"), HasSubstr("259")));
  EXPECT_THAT(with("tokenizer.ggml.bos_token_id", int32_t{-2}), HasSubstr("bos_token_id"));
  EXPECT_THAT(with("tokenizer.ggml.unknown_token_id", uint32_t{1000}), HasSubstr("unknown_token"));
  EXPECT_THAT(with("tokenizer.ggml.padding_token_id", uint64_t{1} << 40), HasSubstr("padding"));
  EXPECT_THAT(with("sluice.eos_token_ids", std::vector<int32_t>{1, -7}), HasSubstr("-7"));
  EXPECT_THAT(with("sluice.nfc", uint32_t{1}), HasSubstr("sluice.nfc"));
  EXPECT_THAT(with("sluice.normalized_tokens", std::vector<int32_t>{259}),
              AllOf(HasSubstr("normalized_tokens"), HasSubstr("259")));
  EXPECT_THAT(with("tokenizer.ggml.add_bos_token", true), HasSubstr("bos_token_id"));
  EXPECT_THAT(with("tokenizer.ggml.add_bos_token", uint32_t{1}), HasSubstr("add_bos_token"));
}

TEST(TokenizerMetadata, OfSentencePieceIsRefusedWithAReason) {
  const auto with = [](std::string key, model::Value value) {
    model::Metadata metadata = SentencePieceMetadata();
    metadata.Set(std::move(key), std::move(value));
    return ErrorOf(metadata);
  };
  EXPECT_THAT(with("tokenizer.ggml.scores", std::vector<float>{1}), HasSubstr("1 values"));
  std::vector<float> scores = **SentencePieceMetadata().GetFloats("tokenizer.ggml.scores");
  scores[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(with("tokenizer.ggml.scores", scores), HasSubstr("NaN for token 5"));
  auto types = **SentencePieceMetadata().GetInts("tokenizer.ggml.token_type");
  types.back() = 6;
  EXPECT_THAT(with("tokenizer.ggml.token_type", types), HasSubstr("byte token"));
}

// A release build takes a tenth of a second; quadratic work would take hours.
TEST(Tokenizer, TakesLinearTimeForAMegabyteOfOneCharacter) {
  std::vector<std::string> merges;
  for (std::string a = "a"; a.size() < 64; a += a) merges.push_back(a + " " + a);
  for (std::string a = "\u0120"; a.size() < 64; a += a) merges.push_back(a + " " + a);
  std::vector<Tokenizer> tokenizers;
  for (const char* pre : {"gpt-2", "smollm", "qwen2", "llama-bpe"}) {
    tokenizers.push_back(Make(ByteLevelMetadata(pre, merges)));
  }
  tokenizers.push_back(Make(SentencePieceMetadata()));
  for (const std::string unit :
       {"a", " ", "\n", "7", "😀", "\r", "'", "a ", " \n", "<", "é", ".\n"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    for (size_t i = 0; i < tokenizers.size(); ++i) {
      const std::clock_t begin = std::clock();
      const std::vector<int32_t> ids = tokenizers[i].Encode(text + "x", true);
      const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      EXPECT_LT(seconds, 5.0) << testing::PrintToString(unit) << ", tokenizer " << i;
      EXPECT_EQ(tokenizers[i].Decode(ids), text + "x");
    }
  }
}

TEST(Pretokenizer, NamesWhatItOffers) {
  for (const std::string_view name : PretokenizerNames()) EXPECT_TRUE(Pretokenizer::Create(name));
  EXPECT_FALSE(Pretokenizer::Create(""));
}

TEST(Pretokenizer, CutsEveryTextWithoutLossOrEmptyWords) {
  std::mt19937 random(9);
  const std::string alphabet = " \n\r\t'a1sS.\u00A0中\u180E½";
  for (const std::string_view name : PretokenizerNames()) {
    const Pretokenizer pretokenizer = *Pretokenizer::Create(name);
    for (int i = 0; i < 2000; ++i) {
      std::string text;
      for (size_t n = random() % 30; n > 0; --n) text += alphabet[random() % alphabet.size()];
      text = ReplaceInvalidUtf8(text);
      std::string joined;
      pretokenizer.Split(text, [&](std::string_view word) {
        EXPECT_FALSE(word.empty());
        joined += word;
      });
      EXPECT_EQ(joined, text);
    }
  }
}

TEST(Pretokenizer, TakesUnicodesWhiteSpaceAndNotPcresForWhiteSpace) {
  const Pretokenizer pretokenizer = *Pretokenizer::Create("gpt-2");
  std::vector<std::string> words;
  pretokenizer.Split("\u180E\u180E!\u0085\u2003a", [&](auto word) { words.emplace_back(word); });
  EXPECT_THAT(words, ElementsAre("\u180E\u180E!", "\u0085", "\u2003", "a"));
}

}  // namespace
}  // namespace sluice::text
