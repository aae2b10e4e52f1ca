#include "session/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <ranges>

#include "base/check.h"

namespace sluice::session {
namespace {

using Kind = BenchTest::Kind;

// One sequence of tokens and how much of it the executor holds.
class Sequence {
 public:
  Sequence(exec::Executor& executor, uint32_t length, uint64_t seed) : executor_(executor) {
    std::mt19937_64 random(seed);
    for (uint32_t i = 0; i < length; ++i) {
      tokens_.push_back(static_cast<int32_t>(random() % executor.sizes().vocab));
    }
  }

  // Makes the executor hold at least the first `depth` positions.
  base::Status Fill(uint32_t depth) {
    if (depth <= filled_) return {};
    return Run(filled_, depth - filled_, executor_.max_block(), exec::Want::kNone);
  }

  // The tokens at these positions, in blocks; `want` is of the last block.
  base::Status Run(uint32_t position, uint32_t count, uint32_t block_size, exec::Want want) {
    const uint32_t end = position + count;
    while (position < end) {
      const uint32_t size = std::min(block_size, end - position);
      const bool last = position + size == end;
      SLUICE_TRY(const auto candidates,
                 executor_.Run({.tokens = std::span(tokens_).subspan(position, size),
                                .position = position,
                                .want = last ? want : exec::Want::kNone}));
      position += size;
      filled_ = position;
    }
    return {};
  }

  base::Status Run(const BenchTest& test) {
    if (test.kind == Kind::kPrefill) {
      return Run(test.depth, test.tokens, executor_.max_block(), exec::Want::kLast);
    }
    for (uint32_t i = 0; i < test.tokens; ++i) {
      SLUICE_TRY_VOID(Run(test.depth + i, 1, 1, exec::Want::kLast));
    }
    return {};
  }

 private:
  exec::Executor& executor_;
  std::vector<int32_t> tokens_;
  uint32_t filled_ = 0;
};

}  // namespace

std::string BenchTest::Name() const {
  std::string name = fmt::format("{}{}", kind == Kind::kPrefill ? "pp" : "tg", tokens);
  return depth == 0 ? name : name + fmt::format(" @ d{}", depth);
}

base::Result<BenchResult> Bench(exec::Executor& executor, const BenchOptions& options,
                                const std::function<double()>& bandwidth,
                                const base::Progress& progress) {
  uint32_t length = 1;
  uint32_t longest_prompt = 1;
  for (const BenchTest& test : options.tests) {
    const uint64_t positions = uint64_t{test.depth} + test.tokens;
    if (positions > executor.context()) {
      return base::Fail(test.Name(), fmt::format("{} positions", positions),
                        fmt::format("at most the context's {}", executor.context()));
    }
    length = std::max(length, static_cast<uint32_t>(positions));
    if (test.kind == Kind::kPrefill) longest_prompt = std::max(longest_prompt, test.tokens);
  }
  const uint64_t total = uint64_t{options.repetitions} * options.tests.size();
  uint64_t done = 0;
  const auto show = [&](std::string_view what) {
    if (progress) progress(what, done, total);
  };

  show("warming up");
  Sequence sequence(executor, length, options.seed);
  SLUICE_TRY_VOID(sequence.Run({Kind::kPrefill, std::min(longest_prompt, executor.max_block())}));
  SLUICE_TRY_VOID(sequence.Run({Kind::kDecode, 1}));

  BenchResult result;
  result.seconds.resize(options.tests.size());
  for (uint32_t repetition = 0; repetition < options.repetitions; ++repetition) {
    for (size_t i = 0; i < options.tests.size(); ++i) {
      const size_t index = repetition % 2 == 0 ? i : options.tests.size() - 1 - i;
      const BenchTest& test = options.tests[index];
      show(fmt::format("{}, {} of {}", test.Name(), repetition + 1, options.repetitions));
      SLUICE_TRY_VOID(sequence.Fill(test.depth));
      if (bandwidth) result.bandwidth.push_back(bandwidth());
      const auto start = std::chrono::steady_clock::now();
      SLUICE_TRY_VOID(sequence.Run(test));
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      result.seconds[index].push_back(seconds.count());
      ++done;
    }
  }
  return result;
}

Spread SpreadOf(std::vector<double> samples) {
  SLUICE_CHECK(!samples.empty());
  std::ranges::sort(samples);
  const size_t half = samples.size() / 2;
  const double median =
      samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
  return {median, samples.front(), samples.back()};
}

}  // namespace sluice::session
