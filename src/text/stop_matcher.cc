#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace sluice::text {

base::Result<StopMatcher> StopMatcher::Create(std::vector<std::string> stops) {
  if (std::ranges::find(stops, "") != stops.end()) {
    return base::Fail("stop string", "an empty string", "at least one character");
  }
  // Longest first, so that the first that matches is the one that counts.
  std::ranges::stable_sort(stops, std::ranges::greater(), &std::string::size);
  return StopMatcher(std::move(stops));
}

StopMatcher::Output StopMatcher::Push(std::string_view text) {
  if (stopped_) return {};
  for (const char c : text) {
    held_ += c;
    for (const std::string& stop : stops_) {
      if (!held_.ends_with(stop)) continue;
      held_.resize(held_.size() - stop.size());
      stopped_ = true;
      return {std::exchange(held_, {}), true};
    }
  }
  // Keep the longest end that begins a stop string.
  size_t keep = 0;
  const std::string_view all = held_;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, all.size()); n > keep; --n) {
      if (all.ends_with(std::string_view(stop).substr(0, n))) keep = n;
    }
  }
  Output output{held_.substr(0, held_.size() - keep), false};
  held_.erase(0, held_.size() - keep);
  return output;
}

std::string StopMatcher::Finish() { return std::exchange(held_, {}); }

}  // namespace sluice::text
