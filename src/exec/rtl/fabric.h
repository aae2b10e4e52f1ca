// The simulated accelerator as the executor sees it: one clock at a time, with the signals of its
// four AXI masters. Behind it stands one of the Verilated configurations of rtl/.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "machine/hp_signals.h"

namespace sluice::exec::rtl {

// What a run needs; see rtl/sluice_core.sv.
struct Job {
  uint32_t program_address = 0;
  uint16_t instructions = 0;
  uint32_t pack_base = 0;
  uint32_t kv_base = 0;
  uint32_t kv_low_base = 0;
  uint32_t context = 0;
  uint32_t result_base = 0;
  uint32_t result_stride = 0;
  std::span<const int32_t> tokens;
  uint8_t n_wanted = 0;
  uint32_t position = 0;
};

// Results on their way inside the accelerator, for traces.
struct Probe {
  bool x_write = false, e_write = false;
  bool target_b = false;
  uint32_t x_token = 0, x_word = 0, e_token = 0, e_group = 0;
  uint64_t x_data = 0;
  int32_t e_data = 0;
  bool residual_write = false;
  uint32_t residual_address = 0;  // token * max_hidden + row
  int32_t residual_value = 0;
  bool head_write = false;
  bool head_wide = false, head_last = false;
  uint32_t head = 0, head_token = 0;
  uint64_t head_data = 0, head_low = 0;
  int32_t head_exponent = 0;
  bool retire = false;
};

// Limits of a configuration.
struct FabricLimits {
  uint32_t tokens = 0;
  uint32_t max_hidden = 0;
  uint32_t max_words = 0;   // hidden + widest activation, in words of 8
  uint32_t max_groups = 0;  // the same in groups of 32
  uint32_t max_head_dim = 0;
  uint32_t max_heads = 0;
  uint32_t max_q_words = 0;  // heads * head_dim / 4
  uint32_t max_slots = 0;    // tokens * query heads of a KV head
  uint32_t max_context = 0;
  uint32_t scores = 0;
  uint32_t max_candidates = 0;
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual const FabricLimits& limits() const = 0;
  virtual void Reset() = 0;
  virtual void Start(const Job& job) = 0;
  // Takes the slave fields in, sets the master fields as they stand just before the rising edge,
  // and steps over it.
  virtual void Tick(std::array<machine::HpSignals, machine::kHpPorts>& hp) = 0;
  virtual bool busy() const = 0;
  virtual uint8_t bus_errors() const = 0;  // bit p: port p
  virtual bool too_long() const = 0;
  virtual uint16_t retired() const = 0;
  // Of the last Tick, before its edge.
  virtual const Probe& probe() const = 0;
};

// "tiny", "z2_decode", "z2_block"; nullptr for another name.
std::unique_ptr<Fabric> MakeFabric(std::string_view configuration);

}  // namespace sluice::exec::rtl
