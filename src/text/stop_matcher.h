// Ends a streamed text at the first of some strings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace sluice::text {

// The text given out, in total, is what came in up to the stop string that ends first (of two that
// end together, the longer), however the text was cut into parts.
class StopMatcher {
 public:
  // Error for an empty string. No string at all is allowed: then nothing stops.
  static base::Result<StopMatcher> Create(std::vector<std::string> stops);

  struct Output {
    std::string emit;
    bool stopped = false;
  };
  // Holds back what may be the beginning of a stop string. After a stop, everything is dropped.
  Output Push(std::string_view text);
  // What was held back: no stop string came of it.
  std::string Finish();

  bool stopped() const { return stopped_; }

 private:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace sluice::text
