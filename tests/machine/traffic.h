// AXI masters for the tests of src/machine.
#pragma once

#include <cstdint>
#include <random>

#include "machine/hp_signals.h"

namespace sluice::machine {

struct Traffic {
  bool reads = false;
  bool writes = false;
  bool random = false;  // bursts anywhere in the region instead of one after the other
  uint32_t base = 0;    // region, in which addresses wrap
  uint32_t bytes = 1 << 24;
  uint32_t first_read = 0;  // where in the region the first bursts lie
  uint32_t first_write = 0;
  uint32_t beats = 16;
  uint32_t outstanding = 16;  // bursts each way
  uint64_t seed = 1;
};

// As many bursts as the port takes, data never held up.
class StreamMaster {
 public:
  StreamMaster() = default;
  explicit StreamMaster(const Traffic& traffic)
      : traffic_(traffic),
        random_(traffic.seed),
        read_address_(First(traffic.first_read)),
        write_address_(First(traffic.first_write)) {}

  // Drives the master fields of one clock; the handshakes of its edge are then settled.
  void Drive(HpSignals& s) {
    s.rready = true;
    s.bready = true;
    if (traffic_.reads) {
      if (s.rvalid && s.rlast) --reading_;
      s.arvalid = reading_ < traffic_.outstanding;
      s.araddr = read_address_;
      s.arlen = static_cast<uint8_t>(traffic_.beats - 1);
      if (s.arvalid && s.arready) {
        ++reading_;
        read_address_ = Next(read_address_);
      }
    }
    if (traffic_.writes) {
      if (s.bvalid) --writing_;
      s.wvalid = beats_due_ != 0;
      s.wdata = beats_sent_;
      s.wstrb = 0xff;
      s.wlast = beats_due_ % traffic_.beats == 1 % traffic_.beats;
      if (s.wvalid && s.wready) {
        --beats_due_;
        ++beats_sent_;
      }
      s.awvalid = writing_ < traffic_.outstanding;
      s.awaddr = write_address_;
      s.awlen = static_cast<uint8_t>(traffic_.beats - 1);
      if (s.awvalid && s.awready) {
        ++writing_;
        beats_due_ += traffic_.beats;
        write_address_ = Next(write_address_);
      }
    }
  }

 private:
  uint32_t First(uint32_t first) { return traffic_.random ? Next(0) : traffic_.base + first; }
  uint32_t Next(uint32_t address) {
    const uint32_t burst = traffic_.beats * kBeatBytes;
    if (traffic_.random) {
      return traffic_.base + static_cast<uint32_t>(random_() % (traffic_.bytes / burst)) * burst;
    }
    return traffic_.base + (address - traffic_.base + burst) % traffic_.bytes;
  }

  Traffic traffic_;
  std::mt19937_64 random_;
  uint32_t read_address_ = 0;
  uint32_t write_address_ = 0;
  uint32_t reading_ = 0;
  uint32_t writing_ = 0;
  uint32_t beats_due_ = 0;
  uint64_t beats_sent_ = 0;
};

}  // namespace sluice::machine
