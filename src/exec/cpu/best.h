// Selection of the best rows of a vocabulary while its logits pass by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "fixed/candidate.h"

namespace sluice::exec::cpu {

class Best {
 public:
  // Starts over, to keep the best `count`. Throws std::bad_alloc; Add does not.
  void Reset(uint32_t count) {
    count_ = count;
    found_.clear();
    found_.reserve(2 * size_t{count} + kMostRows);
    full_ = false;
  }

  // Rows first, first + 1 ... in ascending calls; at most kMostRows logits.
  void Add(uint32_t first, std::span<const int32_t> logits) {
    if (full_ && *std::max_element(logits.begin(), logits.end()) <= threshold_) return;
    for (size_t i = 0; i < logits.size(); ++i) {
      // An equal logit further on has the larger id, so it is not among the best.
      if (full_ && logits[i] <= threshold_) continue;
      found_.push_back({static_cast<int32_t>(first + i), logits[i]});
    }
    if (found_.size() >= 2 * size_t{count_}) Shrink();
  }

  // The best `count`, in any order.
  std::span<const fixed::Candidate> Take() {
    if (found_.size() > count_) Shrink();
    return found_;
  }

  static constexpr size_t kMostRows = 16;

 private:
  void Shrink() {
    const auto last = found_.begin() + (count_ - 1);
    std::nth_element(found_.begin(), last, found_.end(), fixed::Better);
    found_.resize(count_);
    threshold_ = found_.back().logit;
    full_ = true;
  }

  uint32_t count_ = 0;
  std::vector<fixed::Candidate> found_;
  bool full_ = false;      // threshold_ holds
  int32_t threshold_ = 0;  // the worst logit that was kept
};

}  // namespace sluice::exec::cpu
