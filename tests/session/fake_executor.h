// An executor whose answers a test decides.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "exec/executor.h"

namespace sluice::session {

class FakeExecutor : public exec::Executor {
 public:
  // `next` gives the best candidate after a sequence of tokens.
  using Next = std::function<int32_t(std::span<const int32_t>)>;
  FakeExecutor(uint32_t vocab, uint32_t context, Next next)
      : context_(context), next_(std::move(next)) {
    sizes_.vocab = vocab;
  }

  std::string_view name() const override { return "fake"; }
  const program::Sizes& sizes() const override { return sizes_; }
  uint32_t max_block() const override { return 8; }
  uint32_t context() const override { return context_; }
  void SetTrace(exec::Trace) override {}

  base::Result<std::vector<exec::Candidates>> Run(const exec::Block& block) override {
    if (fail_after == 0) return base::Fail("executor fake", "broken");
    if (fail_after > 0) --fail_after;
    const auto filled = static_cast<uint32_t>(tokens.size());
    if (auto status = exec::CheckBlock(*this, block, filled); !status) {
      return std::unexpected(status.error());
    }
    runs.emplace_back(block.position, block.tokens.size());
    tokens.resize(block.position);
    std::vector<exec::Candidates> results;
    for (size_t t = 0; t < block.tokens.size(); ++t) {
      tokens.push_back(block.tokens[t]);
      const bool last = t + 1 == block.tokens.size();
      if (block.want == exec::Want::kNone || (block.want == exec::Want::kLast && !last)) continue;
      if (block.use_logits) {
        block.use_logits(static_cast<uint32_t>(t), logits);
      } else {
        const int32_t best = next_(tokens);
        const int32_t other = best == 0 ? 1 : 0;
        results.push_back({{best, 2 << fixed::kLogitFraction}, {other, 1}});
      }
    }
    return results;
  }

  std::vector<int32_t> tokens;                    // in the cache
  std::vector<std::pair<uint32_t, size_t>> runs;  // position and length of each block
  std::vector<int32_t> logits;                    // of every position
  int fail_after = -1;                            // runs until an error; -1: never

 private:
  program::Sizes sizes_;
  uint32_t context_;
  Next next_;
};

}  // namespace sluice::session
