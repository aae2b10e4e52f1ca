#include "text/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"

namespace sluice::text {
namespace {

constexpr int kWeightBits = 40;
constexpr uint32_t kMaxWindow = 1u << 20;
constexpr size_t kMaxCandidates = 65536;
constexpr double kLogitUnit = 1.0 / (1 << fixed::kLogitFraction);
constexpr double kLog2E = 1.4426950408889634;  // 1 / ln 2
constexpr double kLn2 = 0.69314718055994530942;

struct Weighted {
  int32_t id;
  double logit;     // after the penalty
  uint64_t weight;  // unit 2^-kWeightBits of the best candidate's
};

std::unexpected<base::Error> OutOfRange(const char* option, double value, const char* expected) {
  return base::Fail(option, std::to_string(value), expected);
}

}  // namespace

base::Status SamplerOptions::Validate() const {
  // Written so that NaN fails every test.
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    return OutOfRange("temperature", temperature, "a finite number >= 0");
  }
  if (!(top_p > 0 && top_p <= 1)) return OutOfRange("top_p", top_p, "more than 0, at most 1");
  if (!(min_p >= 0 && min_p <= 1)) return OutOfRange("min_p", min_p, "0 to 1");
  if (!(repetition_penalty >= 0.01 && repetition_penalty <= 100)) {
    return OutOfRange("repetition_penalty", repetition_penalty, "0.01 to 100");
  }
  if (repetition_window > kMaxWindow) {
    return OutOfRange("repetition_window", repetition_window, "at most 1048576");
  }
  return {};
}

base::Result<Sampler> Sampler::Create(const SamplerOptions& options) {
  SLUICE_TRY_VOID(options.Validate());
  return Sampler(options);
}

void Sampler::Accept(int32_t id) {
  if (options_.repetition_window == 0) return;
  if (window_.size() == options_.repetition_window) window_.pop_front();
  window_.push_back(id);
}

bool Sampler::InWindow(int32_t id) const { return std::ranges::find(window_, id) != window_.end(); }

// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
uint64_t Sampler::NextRandom() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

int32_t Sampler::Sample(std::span<const fixed::Candidate> candidates) {
  SLUICE_CHECK(!candidates.empty() && candidates.size() <= kMaxCandidates);
  std::vector<Weighted> list;
  list.reserve(candidates.size());
  for (const fixed::Candidate& candidate : candidates) {
    double logit = candidate.logit * kLogitUnit;
    if (options_.repetition_penalty != 1 && InWindow(candidate.id)) {
      logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    }
    list.push_back({candidate.id, logit, 0});
  }
  // The order of fixed::Better, which the penalty may have changed.
  std::ranges::sort(list, [](const Weighted& a, const Weighted& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  });
  if (options_.temperature == 0) return list[0].id;

  if (options_.top_k > 0 && options_.top_k < list.size()) list.resize(options_.top_k);
  uint64_t total = 0;
  for (Weighted& w : list) {
    const double distance = w.logit - list[0].logit;
    w.weight = distance == 0 ? Exp2Units(0) : Exp2Units(distance / options_.temperature * kLog2E);
    total += w.weight;
  }
  const double enough = static_cast<double>(total) * options_.top_p;
  const double least = static_cast<double>(list[0].weight) * options_.min_p;
  uint64_t kept = 0;
  size_t count = 0;
  while (count < list.size() && static_cast<double>(list[count].weight) >= least) {
    kept += list[count++].weight;
    if (static_cast<double>(kept) >= enough) break;
  }
  // 53 random bits as a fraction of `kept`, which is below 2^56 and mostly below 2^46.
  const double fraction = static_cast<double>(NextRandom() >> 11) * 0x1p-53;
  uint64_t left = static_cast<uint64_t>(fraction * static_cast<double>(kept));
  for (size_t i = 0; i + 1 < count; ++i) {
    if (left < list[i].weight) return list[i].id;
    left -= list[i].weight;
  }
  return list[count - 1].id;
}

uint64_t Exp2Units(double x) {
  SLUICE_CHECK(x <= 0);
  if (x < -kWeightBits) return 0;
  // 2^x = 2^-shift * e^y with y in [0, ln 2); the series' first term left out is y^19 / 19! <
  // 1e-20.
  const double whole = std::floor(x);
  const double y = (x - whole) * kLn2;
  constexpr int kTerms = 18;
  double sum = 1;
  for (int n = kTerms; n >= 1; --n) sum = 1 + sum * y / n;
  const auto mantissa = static_cast<uint64_t>(sum * 0x1p52);  // [2^52, 2^53]
  return mantissa >> (52 - kWeightBits - static_cast<int>(whole));
}

}  // namespace sluice::text
