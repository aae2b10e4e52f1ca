// Memory behind the accelerator's masters that answers after a fixed latency, a beat a clock and
// port; on request it withholds its readies and valids at random, which no correct master notices
// except in time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <vector>

#include "exec/rtl/fabric.h"

namespace sluice::exec::rtl {

class IdealMemory {
 public:
  IdealMemory(uint32_t latency, double stall, uint64_t seed);

  // Bytes at an address; writes to a constant window, and anything outside, are answered DECERR.
  void Map(uint32_t base, std::span<const uint8_t> bytes);
  void MapWritable(uint32_t base, std::span<uint8_t> bytes);

  // What the masters see in this clock, then what they did in it.
  const std::array<SlaveSignals, kMasters>& Drive();
  void Take(const std::array<MasterSignals, kMasters>& masters);

 private:
  struct Window {
    uint32_t base = 0;
    uint64_t size = 0;
    const uint8_t* read = nullptr;
    uint8_t* write = nullptr;
  };
  struct Read {
    uint32_t address;
    unsigned beats;
    bool id;
    uint64_t due;
  };
  struct Write {
    uint32_t address;
    bool bad = false;
  };
  struct Port {
    std::deque<Read> reads;
    std::deque<Write> writes;  // addresses whose data have not all come
    std::deque<std::pair<uint64_t, uint8_t>> answers;
    SlaveSignals out;
  };

  bool Stalled() { return stall_ > 0 && chance_(random_) < stall_; }
  const Window* Find(uint32_t address) const;

  uint32_t latency_;
  double stall_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<> chance_{0, 1};
  std::vector<Window> windows_;
  std::array<Port, kMasters> ports_;
  std::array<SlaveSignals, kMasters> out_;
  uint64_t now_ = 0;
};

}  // namespace sluice::exec::rtl
