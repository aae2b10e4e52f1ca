// Tokens in, tokens out: one conversation on an executor.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "exec/executor.h"
#include "text/sampler.h"
#include "text/tokenizer.h"

namespace sluice::session {

struct GenerateOptions {
  text::SamplerOptions sampler;
  uint32_t max_tokens = 0;         // of the answer; 0: until the context is full
  std::vector<std::string> stops;  // end the answer; not part of it
  // Gets the answer's text as it comes, whole UTF-8 characters.
  std::function<void(std::string_view)> on_text;
  // Gets the number of prompt tokens read, and of all that must be read.
  std::function<void(uint64_t done, uint64_t total)> on_prompt;
  // Ends the answer early when it becomes true; looked at once per token and per prompt block.
  const std::atomic<bool>* cancel = nullptr;
};

enum class Finish : uint8_t { kEnd, kStop, kLength, kContext, kCancelled };
std::string_view FinishName(Finish finish);

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;  // without the one that ended it
  Finish finish = Finish::kEnd;
  uint64_t prompt_tokens = 0;  // that had to be read; the rest was in the cache
  double prompt_seconds = 0;
  double decode_seconds = 0;  // of all tokens but the first, which the prompt gives
};

class Session {
 public:
  // Both must outlive the session.
  Session(exec::Executor& executor, const text::Tokenizer& tokenizer)
      : executor_(executor), tokenizer_(tokenizer) {}

  // Continues `prompt`, which is the whole conversation so far. The part of it that the cache holds
  // already is not read again. Errors: an empty prompt, one that does not leave room for an answer
  // in the context, options out of range, whatever the executor returns.
  base::Result<Answer> Generate(std::span<const int32_t> prompt, const GenerateOptions& options);

  // Positions in the cache.
  uint32_t filled() const { return static_cast<uint32_t>(cached_.size()); }

 private:
  exec::Executor& executor_;
  const text::Tokenizer& tokenizer_;
  std::vector<int32_t> cached_;  // the tokens whose keys and values are in the executor's cache
};

}  // namespace sluice::session
