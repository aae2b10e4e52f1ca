// The SystemVerilog accelerator, Verilated, behind the interface of all executors: the same bits,
// and true cycles.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "exec/executor.h"
#include "machine/memory_system.h"

namespace sluice::exec {

struct RtlOptions {
  std::string configuration = "z2_decode";  // or "z2_block", "tiny"
  uint32_t context = 0;  // positions of KV cache; 0: what pack and configuration allow
  // Instead of the board's DDR3: an answer after a fixed latency, then a beat a clock and port.
  bool ideal_memory = false;
  uint32_t ideal_latency = 40;
  double stall = 0;   // probability with which the memory withholds each ready and valid
  uint64_t seed = 1;  // of the stalls
  // Positions of zeros that the KV cache begins with: to see the time at that length without the
  // hours that filling it would take.
  uint32_t filled = 0;
  // Clocks without an instruction done after which the accelerator counts as stuck: far more than
  // the longest instruction, a head of 150,000 rows of which each is a new best.
  uint64_t watchdog = 100'000'000;
};

// `pack` is the whole pack, `program` was parsed from it; both must outlive the executor. Errors:
// an unknown configuration, a model beyond its limits, no memory.
base::Result<std::unique_ptr<Executor>> MakeRtlExecutor(std::span<const uint8_t> pack,
                                                        const program::Program& program,
                                                        const RtlOptions& options);

// What the last Run of an executor made here did to the memory.
struct RtlAccount {
  uint64_t clocks = 0;  // of the fabric
  machine::DdrAccount ddr;
  std::array<machine::PortStatistics, machine::kHpPorts> ports;
};
RtlAccount AccountOf(const Executor& executor);

}  // namespace sluice::exec
