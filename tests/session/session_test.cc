#include "session/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "exec/ref/ref_executor.h"
#include "fake_executor.h"
#include "program/build_pack.h"
#include "program/loaded_pack.h"
#include "support/scaled_model.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace sluice::session {
namespace {

constexpr uint32_t kVocab = 288;
constexpr auto kEnd = static_cast<int32_t>(testing::kTinyEnd);

text::Tokenizer MakeTokenizer() {
  auto tokenizer =
      text::Tokenizer::FromMetadata(testing::TinyMetadata(testing::ScaledHyper({.vocab = kVocab})));
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().ToString();
  return std::move(*tokenizer);
}

// Says `answer`, then the end token, after a prompt of `prompt` tokens.
FakeExecutor::Next Says(std::vector<int32_t> answer, size_t prompt) {
  return [answer = std::move(answer), prompt](std::span<const int32_t> tokens) {
    const size_t said = tokens.size() - prompt;
    return said < answer.size() ? answer[said] : kEnd;
  };
}

class Generate : public ::testing::Test {
 protected:
  std::vector<int32_t> Encode(std::string_view text) const {
    return tokenizer_.Encode(text, false);
  }
  // One answer of an executor that says `text`.
  Answer Say(std::string_view text, const GenerateOptions& options, uint32_t context = 100) {
    executor_ = std::make_unique<FakeExecutor>(kVocab, context, Says(Encode(text), prompt_.size()));
    Session session(*executor_, tokenizer_);
    auto answer = session.Generate(prompt_, options);
    EXPECT_TRUE(answer.has_value()) << answer.error().ToString();
    return *answer;
  }

  const text::Tokenizer tokenizer_ = MakeTokenizer();
  const std::vector<int32_t> prompt_ = Encode("a prompt of some words");
  std::unique_ptr<FakeExecutor> executor_;
};

TEST_F(Generate, GivesTheTextUpToTheEndToken) {
  std::string streamed;
  std::vector<std::pair<uint64_t, uint64_t>> read;
  const Answer answer =
      Say("then on the other hand",
          {.sampler = {},
           .stops = {},
           .on_text = [&](std::string_view piece) { streamed += piece; },
           .on_prompt = [&](uint64_t done, uint64_t total) { read.emplace_back(done, total); }});
  EXPECT_EQ(answer.text, "then on the other hand");
  EXPECT_EQ(streamed, answer.text);
  EXPECT_EQ(answer.tokens, Encode("then on the other hand"));
  EXPECT_EQ(answer.finish, Finish::kEnd);
  EXPECT_EQ(FinishName(answer.finish), "end");
  EXPECT_EQ(answer.prompt_tokens, prompt_.size());
  EXPECT_GE(answer.prompt_seconds, 0);
  // In blocks of at most what the executor takes.
  ASSERT_EQ(read.size(), (prompt_.size() + 7) / 8);
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i],
              std::pair(std::min<uint64_t>(8 * (i + 1), prompt_.size()), uint64_t{prompt_.size()}));
  }
}

TEST_F(Generate, StopsAtAStopStringThatSpansTokens) {
  std::string streamed;
  const auto on_text = [&](std::string_view piece) { streamed += piece; };
  for (const auto& [stops, text] :
       {std::pair<std::vector<std::string>, std::string>{{"other"}, "on the "},
        {{"xyz", "e ot"}, "on th"},
        {{"on"}, ""},
        {{"hand"}, "on the other "}}) {
    streamed.clear();
    const Answer answer = Say("on the other hand",
                              {.sampler = {}, .stops = stops, .on_text = on_text, .on_prompt = {}});
    EXPECT_EQ(answer.finish, Finish::kStop);
    EXPECT_EQ(answer.text, text);
    EXPECT_EQ(streamed, text);
  }
  // One that only begins is text after all.
  streamed.clear();
  const Answer answer =
      Say("on the other hand",
          {.sampler = {}, .stops = {"hands"}, .on_text = on_text, .on_prompt = {}});
  EXPECT_EQ(answer.finish, Finish::kEnd);
  EXPECT_EQ(answer.text, "on the other hand");
  EXPECT_EQ(streamed, answer.text);
}

TEST_F(Generate, StopsAtTheNumberOfTokensAskedFor) {
  const auto all = Encode("on the other hand");
  for (uint32_t n = 1; n <= all.size() + 1; ++n) {
    const Answer answer =
        Say("on the other hand",
            {.sampler = {}, .max_tokens = n, .stops = {}, .on_text = {}, .on_prompt = {}});
    EXPECT_EQ(answer.tokens.size(), std::min<size_t>(n, all.size()));
    EXPECT_EQ(answer.finish, n <= all.size() ? Finish::kLength : Finish::kEnd);
    EXPECT_EQ(answer.text, tokenizer_.Decode(answer.tokens));
  }
}

TEST_F(Generate, StopsWhenTheContextIsFull) {
  const auto context = static_cast<uint32_t>(prompt_.size()) + 3;
  const Answer answer = Say("a long answer that does not fit", {}, context);
  EXPECT_EQ(answer.finish, Finish::kContext);
  // The last one needs no position of its own.
  EXPECT_EQ(answer.tokens.size(), 4u);
  EXPECT_EQ(executor_->tokens.size(), context);
}

TEST_F(Generate, GivesWholeCharactersOnly) {
  std::vector<std::string> pieces;
  const auto on_text = [&](std::string_view piece) { pieces.emplace_back(piece); };
  const std::string text = "a\u00e9\u4e2d\U0001f600b";  // 2, 3 and 4 bytes, a token each
  ASSERT_EQ(Encode(text).size(), text.size());
  Answer answer = Say(text, {.sampler = {}, .stops = {}, .on_text = on_text, .on_prompt = {}});
  EXPECT_EQ(answer.text, text);
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "\u00e9", "\u4e2d", "\U0001f600", "b"}));
  // Cut inside a character.
  answer =
      Say(text, {.sampler = {}, .max_tokens = 5, .stops = {}, .on_text = on_text, .on_prompt = {}});
  EXPECT_EQ(answer.text, "a\u00e9\ufffd");
}

TEST_F(Generate, CanBeCancelledInTheAnswerAndInThePrompt) {
  std::atomic<bool> cancel = false;
  GenerateOptions options;
  options.cancel = &cancel;
  options.on_text = [&](std::string_view piece) {
    if (piece.find(' ') != std::string_view::npos) cancel = true;
  };
  Answer answer = Say("on the other hand", options);
  EXPECT_EQ(answer.finish, Finish::kCancelled);
  EXPECT_EQ(answer.text, "on ");

  cancel = false;
  options.on_text = {};
  options.on_prompt = [&](uint64_t, uint64_t) { cancel = true; };
  answer = Say("on the other hand", options);
  EXPECT_EQ(answer.finish, Finish::kCancelled);
  EXPECT_TRUE(answer.tokens.empty());
  EXPECT_EQ(executor_->tokens.size(), 8u) << "one block was read";
}

TEST_F(Generate, ReadsOnlyWhatTheCacheDoesNotHold) {
  const std::vector<int32_t> first{1, 2, 3, 4, 5};
  FakeExecutor executor(kVocab, 100, Says({7, 8, 9}, first.size()));
  Session session(executor, tokenizer_);
  const auto answer = session.Generate(first, {});
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->tokens, (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ(session.filled(), 8u);

  // The conversation goes on: the answer is in the cache already.
  const std::vector<int32_t> next{1, 2, 3, 4, 5, 7, 8, 9, 20, 21};
  executor.runs.clear();
  const auto more = session.Generate(
      next, {.sampler = {}, .max_tokens = 1, .stops = {}, .on_text = {}, .on_prompt = {}});
  ASSERT_TRUE(more.has_value());
  EXPECT_EQ(more->prompt_tokens, 2u);
  EXPECT_EQ(executor.runs, (std::vector<std::pair<uint32_t, size_t>>{{8, 2}}));

  // Another branch: back to where they part.
  const std::vector<int32_t> other{1, 2, 3, 30, 31};
  executor.runs.clear();
  const auto branch = session.Generate(
      other, {.sampler = {}, .max_tokens = 1, .stops = {}, .on_text = {}, .on_prompt = {}});
  ASSERT_TRUE(branch.has_value());
  EXPECT_EQ(branch->prompt_tokens, 2u);
  EXPECT_EQ(executor.runs, (std::vector<std::pair<uint32_t, size_t>>{{3, 2}}));
  EXPECT_EQ(executor.tokens, other);

  // The same again, or a part of it: the last token must be run for its candidates.
  for (const size_t n : {5u, 2u}) {
    executor.runs.clear();
    const auto again = session.Generate(
        std::span(other).first(n),
        {.sampler = {}, .max_tokens = 1, .stops = {}, .on_text = {}, .on_prompt = {}});
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(again->prompt_tokens, 1u);
    EXPECT_EQ(executor.runs, (std::vector<std::pair<uint32_t, size_t>>{{n - 1, 1}}));
  }
}

TEST_F(Generate, RefusesWhatItCannotAnswer) {
  FakeExecutor executor(kVocab, 10, Says({7}, 3));
  Session session(executor, tokenizer_);
  const auto error = [&](std::vector<int32_t> prompt, const GenerateOptions& options) {
    const auto answer = session.Generate(prompt, options);
    return answer ? "no error" : answer.error().ToString();
  };
  EXPECT_EQ(error({}, {}), "prompt: no tokens, expected at least one");
  EXPECT_EQ(error(std::vector<int32_t>(10, 1), {}),
            "prompt: 10 tokens, expected fewer than the context's 10");
  EXPECT_NE(error({1, 2, 288}, {}).find("token 288"), std::string::npos);
  EXPECT_NE(error({1, 2, -1}, {}).find("token -1"), std::string::npos);
  GenerateOptions options;
  options.sampler.temperature = -1;
  EXPECT_NE(error({1}, options).find("temperature"), std::string::npos);
  options = {};
  options.stops = {"x", ""};
  EXPECT_NE(error({1}, options), "no error");
  EXPECT_TRUE(executor.runs.empty() || executor.tokens.size() < 10);
  EXPECT_EQ(error({1, 2, 3}, {}), "no error");
}

// Whatever the executor fails at, the session knows what is in the cache.
TEST_F(Generate, GoesOnAfterAnError) {
  std::vector<int32_t> prompt(20);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i);
  const std::vector<int32_t> answer{40, 41, 42, 43};
  for (int runs = 0; runs < 8; ++runs) {
    FakeExecutor executor(kVocab, 100, Says(answer, prompt.size()));
    Session session(executor, tokenizer_);
    executor.fail_after = runs;
    const auto failed = session.Generate(prompt, {});
    if (runs < 7) {
      ASSERT_FALSE(failed.has_value()) << runs;
      EXPECT_EQ(failed.error().ToString(), "executor fake: broken");
    }
    EXPECT_EQ(session.filled(), executor.tokens.size());
    executor.fail_after = -1;
    const auto again = session.Generate(prompt, {});
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(again->tokens, answer);
  }
}

TEST_F(Generate, AConversationSaysWhatAFreshSessionWouldSay) {
  const testing::TempDir dir;
  const model::Model model = testing::ScaledModel(testing::ScaledHyper({.vocab = kVocab}), 3);
  ASSERT_TRUE(program::BuildPack(model,
                                 {.quantize = {.recipe = testing::UniformRecipe(4, 32),
                                               .calibration = {},
                                               .threads = 1,
                                               .progress = {}}},
                                 dir / "pack")
                  .has_value());
  const auto loaded = program::LoadPack(dir / "pack");
  ASSERT_TRUE(loaded.has_value()) << loaded.error().ToString();
  const auto executor = [&] {
    return exec::MakeRefExecutor(loaded->pack->bytes(), loaded->program, 0).value();
  };
  for (const double temperature : {0.0, 1.0}) {
    GenerateOptions options;
    options.max_tokens = 8;
    options.sampler.temperature = temperature;
    options.sampler.seed = 5;
    const auto long_lived = executor();
    Session session(*long_lived, tokenizer_);
    std::vector<int32_t> conversation;
    for (const char* turn : {"in the beginning", " was another", " one", " and then"}) {
      const auto part = Encode(turn);
      conversation.insert(conversation.end(), part.begin(), part.end());
      if (std::string(turn) == " one") conversation.resize(10);  // the user takes something back
      const auto answer = session.Generate(conversation, options);
      ASSERT_TRUE(answer.has_value()) << answer.error().ToString();
      const auto new_executor = executor();
      Session fresh(*new_executor, tokenizer_);
      const auto expected = fresh.Generate(conversation, options);
      ASSERT_TRUE(expected.has_value());
      EXPECT_EQ(answer->tokens, expected->tokens);
      EXPECT_EQ(answer->text, expected->text);
      EXPECT_EQ(answer->finish, expected->finish);
      EXPECT_LE(answer->prompt_tokens, expected->prompt_tokens);
      conversation.insert(conversation.end(), answer->tokens.begin(), answer->tokens.end());
    }
  }
}

}  // namespace
}  // namespace sluice::session
