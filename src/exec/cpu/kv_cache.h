// Keys and values of one (layer, KV head) in the order in which the attention kernels read them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/cpu/kernels.h"

namespace sluice::exec::cpu {

class KvHead {
 public:
  KvHead(uint32_t head_dim, bool wide) : head_dim_(head_dim), wide_(wide) {}

  bool wide() const { return wide_; }
  uint32_t capacity() const { return capacity_; }
  // Room for `positions`, a multiple of kKeyBlock. Throws std::bad_alloc and is unchanged then.
  void Grow(uint32_t positions);

  // One position's key, in 8 bits, or as 256 * high + low with a wide head. Different positions
  // may be set at once.
  void SetKey(uint32_t position, const int8_t* k, const int8_t* k_low, int exponent);
  void SetValue(uint32_t position, const int8_t* v, int exponent);
  // What was set, for showing: head_dim values, then the exponent.
  void AppendKey(uint32_t position, std::vector<int32_t>& values) const;
  void AppendValue(uint32_t position, std::vector<int32_t>& values) const;

  const int8_t* k() const { return k_.data(); }
  const int8_t* k_low() const { return wide_ ? k_low_.data() : nullptr; }
  const int8_t* v() const { return v_.data(); }
  const int8_t* k_exponent() const { return k_exponent_.data(); }
  const int8_t* v_exponent() const { return v_exponent_.data(); }

 private:
  uint64_t KeyAt(uint32_t position, uint32_t c) const {
    return (uint64_t{position / kKeyBlock} * head_dim_ + c / 2 * 2) * kKeyBlock +
           2 * (position % kKeyBlock) + c % 2;
  }
  uint64_t ValueAt(uint32_t position, uint32_t c) const {
    return (uint64_t{position / 2} * head_dim_ + c) * 2 + position % 2;
  }

  uint32_t head_dim_;
  bool wide_;
  uint32_t capacity_ = 0;
  std::vector<int8_t> k_, k_low_;  // see ScoreJob
  std::vector<int8_t> v_;          // see MixJob
  std::vector<int8_t> k_exponent_, v_exponent_;
};

}  // namespace sluice::exec::cpu
