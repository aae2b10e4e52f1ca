// What the test program has allocated through operator new. Linking allocation_meter.cc replaces
// the global operators.
#pragma once

#include <cstdint>

namespace sluice::testing {

// The most that was alive at once since construction, beyond what was alive then.
class AllocationMeter {
 public:
  AllocationMeter();
  uint64_t peak() const;

 private:
  int64_t start_;
};

}  // namespace sluice::testing
