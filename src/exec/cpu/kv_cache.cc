#include "exec/cpu/kv_cache.h"

namespace sluice::exec::cpu {

void KvHead::Grow(uint32_t positions) {
  const uint64_t bytes = uint64_t{positions} * head_dim_;
  k_exponent_.resize(positions);
  v_exponent_.resize(positions);
  k_.resize(bytes);
  if (wide_) k_low_.resize(bytes);
  v_.resize(bytes);
  capacity_ = positions;
}

void KvHead::SetKey(uint32_t position, const int8_t* k, const int8_t* k_low, int exponent) {
  for (uint32_t c = 0; c < head_dim_; ++c) k_[KeyAt(position, c)] = k[c];
  if (wide_) {
    for (uint32_t c = 0; c < head_dim_; ++c) k_low_[KeyAt(position, c)] = k_low[c];
  }
  k_exponent_[position] = static_cast<int8_t>(exponent);
}

void KvHead::SetValue(uint32_t position, const int8_t* v, int exponent) {
  for (uint32_t c = 0; c < head_dim_; ++c) v_[ValueAt(position, c)] = v[c];
  v_exponent_[position] = static_cast<int8_t>(exponent);
}

void KvHead::AppendKey(uint32_t position, std::vector<int32_t>& values) const {
  for (uint32_t c = 0; c < head_dim_; ++c) {
    const uint64_t at = KeyAt(position, c);
    values.push_back(wide_ ? 256 * k_[at] + k_low_[at] : k_[at]);
  }
  values.push_back(k_exponent_[position]);
}

void KvHead::AppendValue(uint32_t position, std::vector<int32_t>& values) const {
  for (uint32_t c = 0; c < head_dim_; ++c) values.push_back(v_[ValueAt(position, c)]);
  values.push_back(v_exponent_[position]);
}

}  // namespace sluice::exec::cpu
