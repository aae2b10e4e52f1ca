// Chooses the next token from an executor's best candidates, the same on every machine.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/error.h"
#include "fixed/candidate.h"

namespace sluice::text {

struct SamplerOptions {
  double temperature = 0;           // >= 0; 0 is greedy: always the best candidate
  uint32_t top_k = 0;               // candidates kept; 0 keeps all
  double top_p = 1;                 // (0, 1]; see Sampler
  double min_p = 0;                 // [0, 1]; see Sampler
  double repetition_penalty = 1;    // 0.01 .. 100; above 1 makes the window's tokens less likely
  uint32_t repetition_window = 64;  // the last tokens that the penalty looks at; at most 2^20
  uint64_t seed = 0;

  // Error that names the option that is out of its range.
  base::Status Validate() const;
};

// In this order:
//  1. repetition penalty: the logit of a token that is in the window is divided by the penalty
//     where positive and multiplied by it where negative (Keskar et al. 2019, CTRL, section 4.1);
//  2. temperature: weights exp((logit - best) / temperature);
//  3. top_k: the first k;
//  4. top_p: the fewest best candidates whose weights are together at least top_p of all;
//  5. min_p: those whose weight is at least min_p of the best one's;
//  6. a draw in proportion to the weights.
// Probabilities are relative to the candidates given, not to the whole vocabulary: with 64 of them
// what is missing is the tail that top_p would cut off. The best candidate is never removed.
//
// Bit-identical everywhere: IEEE double +, -, *, / in a fixed order, an exponential of our own,
// weights as integers in units of 2^-40 of the best one's (smaller ones are never drawn), and
// SplitMix64.
class Sampler {
 public:
  static base::Result<Sampler> Create(const SamplerOptions& options);

  // A token that is now part of the text, prompt or answer; only the penalty needs it.
  void Accept(int32_t id);

  // Id of the token chosen. `candidates` are in the order of fixed::Better, at least one; at most
  // 65536. A draw advances the random state, a greedy choice does not.
  int32_t Sample(std::span<const fixed::Candidate> candidates);

 private:
  explicit Sampler(const SamplerOptions& options) : options_(options), state_(options.seed) {}
  bool InWindow(int32_t id) const;
  uint64_t NextRandom();

  SamplerOptions options_;
  uint64_t state_;
  std::deque<int32_t> window_;
};

// 2^x for x <= 0, in units of 2^-40, rounded down; 0 for x < -40. Exact powers of two are exact.
// NaN is not allowed.
uint64_t Exp2Units(double x);

}  // namespace sluice::text
