#include "exec/cpu/activations.h"

#include <cstring>

namespace sluice::exec::cpu {
namespace {

constexpr uint32_t kSmallestGroup = 32;

// Where a token's first word and first group value stand, and the distance to the next.
struct Place {
  uint64_t x;
  uint64_t group;
  uint32_t width;
};
Place PlaceOf(const ActivationShape& shape, uint32_t token) {
  const uint32_t panel = token / shape.panel_tokens;
  const uint64_t first = uint64_t{panel} * shape.panel_tokens;
  const uint64_t lane = token % shape.panel_tokens;
  return {first * shape.cols + 4 * lane, first * shape.groups() + lane, shape.width(panel)};
}

}  // namespace

void Activations::Reserve(uint32_t tokens, uint32_t widest) {
  const uint64_t values = uint64_t{tokens} * widest;
  if (x_.size() < values) x_.resize(values);
  if (sums_.size() < values / kSmallestGroup) {
    sums_.resize(values / kSmallestGroup);
    shifts_.resize(values / kSmallestGroup);
  }
  if (largest_.size() < tokens) largest_.resize(tokens);
}

void Activations::Store(const ActivationShape& shape, uint32_t token, const int8_t* q,
                        const int32_t* exponent) {
  const Place place = PlaceOf(shape, token);
  int8_t* x = x_.data() + place.x;
  if (place.width == 1) {
    std::memcpy(x, q, shape.cols);
  } else {
    for (uint32_t c = 0; c < shape.cols; c += 4) {
      std::memcpy(x + uint64_t{c} * place.width, q + c, 4);
    }
  }
  const int32_t largest = *std::max_element(exponent, exponent + shape.groups());
  for (uint32_t g = 0; g < shape.groups(); ++g) {
    int32_t sum = 0;
    for (uint32_t c = g * shape.group; c < (g + 1) * shape.group; ++c) sum += q[c];
    const uint64_t at = place.group + uint64_t{g} * place.width;
    sums_[at] = sum;
    shifts_[at] = largest - exponent[g];
  }
  largest_[token] = largest;
}

void Activations::Load(const ActivationShape& shape, uint32_t token, int8_t* q,
                       int32_t* exponent) const {
  const Place place = PlaceOf(shape, token);
  for (uint32_t c = 0; c < shape.cols; c += 4) {
    std::memcpy(q + c, x_.data() + place.x + uint64_t{c} * place.width, 4);
  }
  for (uint32_t g = 0; g < shape.groups(); ++g) {
    exponent[g] = largest_[token] - shifts_[place.group + uint64_t{g} * place.width];
  }
}

Panel Activations::panel(const ActivationShape& shape, uint32_t index) const {
  const uint64_t first = uint64_t{index} * shape.panel_tokens;
  return {x_.data() + first * shape.cols, sums_.data() + first * shape.groups(),
          shifts_.data() + first * shape.groups(), shape.width(index)};
}

}  // namespace sluice::exec::cpu
