// The activations of a block of tokens, as the kernels want them: panels of tokens side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/cpu/kernels.h"

namespace sluice::exec::cpu {

// Of one buffer's contents; the instruction that reads or writes it says it.
struct ActivationShape {
  uint32_t cols = 0;
  uint32_t group = 0;
  uint32_t tokens = 0;
  uint32_t panel_tokens = kPanelTokens;  // of all panels but the last

  uint32_t groups() const { return cols / group; }
  uint32_t panels() const { return (tokens + panel_tokens - 1) / panel_tokens; }
  uint32_t width(uint32_t panel) const {
    return std::min(panel_tokens, tokens - panel * panel_tokens);
  }
};

class Activations {
 public:
  // Room for `tokens` of at most `widest` columns. Throws std::bad_alloc.
  void Reserve(uint32_t tokens, uint32_t widest);

  // One token: q [cols], exponent [groups]. Different tokens may be stored at once.
  void Store(const ActivationShape& shape, uint32_t token, const int8_t* q,
             const int32_t* exponent);
  // The reverse.
  void Load(const ActivationShape& shape, uint32_t token, int8_t* q, int32_t* exponent) const;

  Panel panel(const ActivationShape& shape, uint32_t index) const;
  // The token's largest exponent.
  int largest(uint32_t token) const { return largest_[token]; }

 private:
  std::vector<int8_t> x_;
  std::vector<int32_t> sums_;
  std::vector<int32_t> shifts_;
  std::vector<int32_t> largest_;
};

}  // namespace sluice::exec::cpu
