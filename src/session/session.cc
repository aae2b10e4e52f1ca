#include "session/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "text/stop_matcher.h"

namespace sluice::session {
namespace {

using Clock = std::chrono::steady_clock;

// Tokens of a prompt read at once: long enough to keep a CPU's multipliers busy, short enough that
// a cancelled prompt stops soon.
constexpr size_t kPromptBlock = 128;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

std::string_view FinishName(Finish finish) {
  switch (finish) {
    case Finish::kEnd:
      return "end";
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kContext:
      return "context";
    case Finish::kCancelled:
      return "cancelled";
  }
  return "?";
}

base::Result<Answer> Session::Generate(std::span<const int32_t> prompt,
                                       const GenerateOptions& options) {
  if (prompt.empty()) return base::Fail("prompt", "no tokens", "at least one");
  if (prompt.size() >= executor_.context()) {
    return base::Fail("prompt", fmt::format("{} tokens", prompt.size()),
                      fmt::format("fewer than the context's {}", executor_.context()));
  }
  SLUICE_TRY(auto sampler, text::Sampler::Create(options.sampler));
  SLUICE_TRY(auto stops, text::StopMatcher::Create(options.stops));
  for (const int32_t token : prompt) sampler.Accept(token);

  // At least the last token must be run again, for its candidates.
  size_t known = static_cast<size_t>(std::ranges::mismatch(cached_, prompt).in1 - cached_.begin());
  known = std::min(known, prompt.size() - 1);
  cached_.resize(known);

  const auto cancelled = [&] { return options.cancel && options.cancel->load(); };
  Answer answer;
  answer.prompt_tokens = prompt.size() - known;
  const auto start = Clock::now();
  std::vector<exec::Candidates> candidates;
  const size_t block_size = std::min<size_t>(executor_.max_block(), kPromptBlock);
  while (cached_.size() < prompt.size()) {
    if (cancelled()) {
      answer.finish = Finish::kCancelled;
      return answer;
    }
    const auto block =
        prompt.subspan(cached_.size(), std::min(block_size, prompt.size() - cached_.size()));
    const bool last = cached_.size() + block.size() == prompt.size();
    SLUICE_TRY(candidates, executor_.Run({.tokens = block,
                                          .position = filled(),
                                          .want = last ? exec::Want::kLast : exec::Want::kNone}));
    cached_.insert(cached_.end(), block.begin(), block.end());
    if (options.on_prompt) options.on_prompt(cached_.size() - known, prompt.size() - known);
  }
  const auto prompt_done = Clock::now();
  answer.prompt_seconds = Seconds(start, prompt_done);

  text::StreamDecoder decoder(tokenizer_);
  const auto emit = [&](std::string_view text) {
    if (text.empty()) return;
    answer.text += text;
    if (options.on_text) options.on_text(text);
  };
  while (true) {
    const int32_t token = sampler.Sample(candidates.front());
    if (tokenizer_.IsEnd(token)) {
      answer.finish = Finish::kEnd;
      break;
    }
    sampler.Accept(token);
    answer.tokens.push_back(token);
    const auto out = stops.Push(decoder.Push(token));
    emit(out.emit);
    if (out.stopped) {
      answer.finish = Finish::kStop;
      break;
    }
    if (options.max_tokens != 0 && answer.tokens.size() >= options.max_tokens) {
      answer.finish = Finish::kLength;
      break;
    }
    if (filled() == executor_.context()) {
      answer.finish = Finish::kContext;
      break;
    }
    if (cancelled()) {
      answer.finish = Finish::kCancelled;
      break;
    }
    SLUICE_TRY(candidates, executor_.Run({.tokens = std::span(&token, 1), .position = filled()}));
    cached_.push_back(token);
  }
  if (!stops.stopped()) {
    emit(stops.Push(decoder.Finish()).emit);
    if (!stops.stopped()) emit(stops.Finish());
  }
  answer.decode_seconds = Seconds(prompt_done, Clock::now());
  return answer;
}

}  // namespace sluice::session
