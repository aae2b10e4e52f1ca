// What an executor returns of a vocabulary: its best tokens.
#pragma once

#include <cstdint>

namespace sluice::fixed {

constexpr int kLogitFraction = 16;

struct Candidate {
  int32_t id;
  int32_t logit;  // unit 2^-kLogitFraction
  bool operator==(const Candidate&) const = default;
};

// The order of every candidate list: larger logit first, then smaller id.
constexpr bool Better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

}  // namespace sluice::fixed
