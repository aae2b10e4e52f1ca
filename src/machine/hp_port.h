// One AXI_HP port: its AXI3 slave towards the fabric, its queues and data FIFOs towards the memory.
// The inside of MemorySystem, which is what others use.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "machine/hp_signals.h"

namespace sluice::machine {

// Bytes that the ports can reach, from physical address `base`, a multiple of 8. What lies in no
// window, and a write to one that is not writable, answers DECERR.
struct MemoryWindow {
  uint64_t base;
  std::span<uint8_t> bytes;
  bool writable = true;

  // The cast is sound because nothing writes where `writable` is false.
  static MemoryWindow ReadOnly(uint64_t base, std::span<const uint8_t> bytes) {
    return {base, {const_cast<uint8_t*>(bytes.data()), bytes.size()}, false};
  }
};

// Answers SLVERR to the burst-th burst (from 0) that a port takes in this direction, on every beat;
// nothing is read or written.
struct InjectedError {
  uint32_t port;
  bool write;
  uint64_t burst;
};

// Stalls are clocks of the fabric.
struct PortStatistics {
  uint64_t read_bursts = 0;          // addresses taken
  uint64_t read_beats = 0;           // taken by the fabric
  uint64_t read_address_stalls = 0;  // arvalid without arready
  uint64_t read_data_stalls = 0;     // rvalid without rready: the fabric holds the port up
  uint64_t read_data_waits = 0;      // bursts outstanding but nothing valid: the memory does
  uint64_t write_bursts = 0;
  uint64_t write_beats = 0;
  uint64_t write_address_stalls = 0;
  uint64_t write_data_stalls = 0;
};

struct PortSettings {
  uint32_t index = 0;
  uint32_t outstanding_reads = 0;
  uint32_t outstanding_writes = 0;
  uint32_t read_fifo_beats = 0;   // at least 16
  uint32_t write_fifo_beats = 0;  // at least 16, power of two
  // In the unit of `now` below.
  uint64_t request_latency = 0;
  uint64_t return_latency = 0;
  uint32_t stall_per_4096 = 0;  // probability of withholding each ready and valid
  uint64_t seed = 1;
  std::vector<InjectedError> errors;  // of this port
  std::span<const MemoryWindow> windows;
};

// A part of a burst that one memory access serves.
struct PortAccess {
  uint64_t address;
  uint32_t tag;
};

// The unit of time is the caller's (DDR clocks, or fabric clocks).
class HpPort {
 public:
  explicit HpPort(PortSettings settings);

  // One rising edge of the fabric's clock: takes what was valid and ready before it, and sets the
  // outputs that hold after it.
  void Edge(HpSignals& signals, uint64_t now);

  // Whether a read burst has accesses to hand to the memory before time `by`. A burst begins only
  // when the data FIFO has room for all of it.
  bool ReadWaiting(uint64_t by);
  // The next access of at most `block` bytes that stays in its aligned block (a power of two).
  // Call after ReadWaiting said so.
  PortAccess NextRead(uint32_t block) const;
  // Hands it over: the bytes are read now. Whether it was the last of its burst.
  bool TakeRead(const PortAccess& access);
  // The access's data reaches the port at time `at`.
  void ReadReturns(uint32_t tag, uint64_t at);
  static uint32_t PortOfTag(uint32_t tag) { return tag & 3; }

  // The same for writes; a burst is handed on when all its data is in the FIFO, and is answered
  // return_latency after its last access was taken.
  bool WriteWaiting(uint64_t by, uint64_t now);
  PortAccess NextWrite(uint32_t block) const;
  bool TakeWrite(const PortAccess& access, uint64_t now);

  const PortStatistics& statistics() const { return statistics_; }
  void ResetStatistics() { statistics_ = {}; }
  // Bursts taken and not yet answered in full.
  bool Busy() const { return read_head_ != read_tail_ || write_head_ != write_tail_; }
  // The first thing the fabric did that AXI3 forbids.
  const std::optional<base::Error>& violation() const { return violation_; }

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};

  struct ReadBurst {
    uint64_t address;
    const uint8_t* source;
    uint64_t arrives;  // at the memory
    uint32_t beats;
    uint32_t issued;     // beats handed to the memory
    uint32_t delivered;  // beats put on the bus
    uint8_t response;
    uint8_t id;
    std::array<uint64_t, kMaxBurstBeats> data;
    std::array<uint64_t, kMaxBurstBeats> ready;
  };
  struct WriteBurst {
    uint64_t address;
    uint8_t* target;
    uint64_t arrives;  // kNever until all data is there
    uint64_t answered;
    uint32_t beats;
    uint32_t issued;
    uint8_t response;
    uint8_t id;
  };
  struct WriteBeat {
    uint64_t data;
    uint8_t strobe;
    bool last;
  };

  void EdgeRead(const HpMaster& master, uint64_t now, uint64_t withheld);
  void EdgeWrite(const HpMaster& master, uint64_t now, uint64_t withheld);
  void AddRead(const HpMaster& master, uint64_t now);
  void AddWrite(const HpMaster& master);
  void ClaimWriteData(uint64_t now);
  uint8_t* Find(uint64_t address, uint32_t beats, bool to_write) const;
  uint8_t ResponseTo(bool write, uint64_t burst, bool found) const;
  uint64_t Withheld();
  void CheckStable(const HpMaster& master);
  void CheckBurst(const char* channel, uint32_t address, uint32_t length);
  void Violate(const char* channel, std::string got, std::string expected);

  const PortSettings settings_;
  const uint32_t read_mask_;  // of the rings, whose positions only grow
  const uint32_t write_mask_;
  const uint32_t beat_mask_;
  HpSlave out_;

  std::vector<ReadBurst> reads_;
  uint32_t read_head_ = 0;   // oldest not answered in full
  uint32_t read_issue_ = 0;  // oldest not handed on in full
  uint32_t read_tail_ = 0;
  uint32_t read_reserved_ = 0;  // beats of the FIFO
  uint64_t reads_taken_ = 0;    // since the start, unlike the statistics

  std::vector<WriteBurst> writes_;
  uint32_t write_head_ = 0;
  uint32_t write_issue_ = 0;
  uint32_t write_fill_ = 0;  // oldest whose data is not complete
  uint32_t write_tail_ = 0;
  std::vector<WriteBeat> beats_;
  uint32_t beat_head_ = 0;
  uint32_t beat_fill_ = 0;  // first that belongs to no complete burst
  uint32_t beat_tail_ = 0;
  uint64_t writes_taken_ = 0;

  uint64_t random_;
  HpMaster previous_;     // what the fabric drove at the last edge
  bool waiting_[3] = {};  // AR, AW, W: valid then, but not taken
  PortStatistics statistics_;
  std::optional<base::Error> violation_;
};

}  // namespace sluice::machine
