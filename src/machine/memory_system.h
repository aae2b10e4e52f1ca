// The memory that the fabric of a Zynq-7000 sees: four AXI_HP ports, the DDR controller behind
// them, and the simulated bytes. A Verilated design is the AXI master.
//
//   MemorySystem memory = ...;
//   std::array<HpSignals, kHpPorts> hp;
//   each clock of the fabric:
//     copy hp's slave fields to the top's inputs, evaluate it
//     copy the top's AXI outputs to hp's master fields
//     memory.Tick(hp)                       the rising edge, seen from the memory
//     the top's rising edge, evaluate it    the rising edge, seen from the fabric
//
// How a burst travels. Its address is taken when fewer than outstanding_reads bursts are on their
// way; half of the fixed latency later it competes for the controller's queues, access by access
// (16 bytes on a 16-bit bus): HP0 and HP1 take turns burst by burst on one controller port, HP2 and
// HP3 on another, and the two controller ports' reads and writes take turns access by access, at
// most one a DDR clock. A read begins only when its port's FIFO has room for all of it; data comes
// back through the controller port's link (pair_mbps) and the other half of the fixed latency, in
// the order of the addresses of each port. A write is handed on when all its data is in its port's
// FIFO, and answered when the controller has taken it.
// The fixed latency is idle_read_latency_ns less the access of a closed row.
//
// Bytes are read and written when the controller takes the access, in which order accesses to the
// same bytes also go to the DDR. A burst that does not lie in one window answers DECERR, with
// zeros.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "machine/ddr_controller.h"
#include "machine/hp_port.h"
#include "machine/hp_signals.h"
#include "machine/memory_spec.h"

namespace sluice::machine {

struct MemoryOptions {
  // Instead of the DDR: every burst is served `ideal_latency` clocks (at least 1) after its address
  // was taken (a write: after its last data), one beat per clock, port and direction.
  bool ideal = false;
  uint32_t ideal_latency = 8;
  // Each clock, each ready is withheld, and each valid that is not yet raised, with this
  // probability: 0 up to, not including, 1. One seed gives the same run again.
  double stall_probability = 0;
  uint64_t seed = 1;
  std::vector<InjectedError> errors;
};

class MemorySystem {
 public:
  // The windows' bytes must outlive this. Errors: figures that CheckMemory refuses, options out of
  // range, windows that overlap, do not begin at a multiple of 8 or end above 4 GB.
  static base::Result<MemorySystem> Create(const MemorySpec& spec,
                                           std::vector<MemoryWindow> windows,
                                           const MemoryOptions& options = {});

  // One rising edge of the fabric's clock: reads the master fields as they stand just before it and
  // writes the slave fields that hold after it. Outputs depend on no input of the same clock.
  void Tick(std::span<HpSignals, kHpPorts> signals);

  uint64_t ticks() const { return ticks_; }  // of the fabric
  // All zeros in ideal mode.
  const DdrAccount& ddr() const { return controller_.account(); }
  const PortStatistics& port(uint32_t index) const { return ports_[index].statistics(); }
  // Statistics start from zero; the bursts that error injection counts do not.
  void ResetStatistics();
  // Whether a burst is taken and not yet answered in full.
  bool Busy() const;
  // The first thing that the fabric did on any port and AXI3 forbids: a valid or its payload
  // changed before it was taken, a burst across 4 KB or of more than 16 beats, a misplaced WLAST.
  std::optional<base::Error> Violation() const;

 private:
  MemorySystem(const MemorySpec& spec, std::unique_ptr<std::vector<MemoryWindow>> windows,
               const MemoryOptions& options);
  void Offer(uint32_t clocks);
  bool OfferRead(uint32_t pair, uint64_t until);
  bool OfferWrite(uint32_t pair, uint64_t until);
  void ServeIdeal(HpPort& port);

  const bool ideal_;
  const uint64_t ddr_hz_;
  const uint64_t fabric_hz_;
  const uint32_t block_bytes_;
  const uint64_t link_cost_;  // of an access on a pair's link, in 1/256 DDR clocks
  std::unique_ptr<std::vector<MemoryWindow>> windows_;  // the ports point at it
  std::vector<HpPort> ports_;
  DdrController controller_;

  uint64_t ticks_ = 0;
  uint64_t phase_ = 0;  // of the DDR clock against the fabric's, in units of 1 / fabric_hz
  uint32_t next_requester_ = 0;
  std::array<std::array<uint32_t, 2>, 2> turn_ = {};  // [pair][direction]
  std::array<uint64_t, 2> read_link_ = {};  // each pair's link is free from, 1/256 DDR clocks
  std::array<uint64_t, 2> write_link_ = {};
};

}  // namespace sluice::machine
