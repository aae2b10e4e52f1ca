#include "machine/hp_port.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

namespace sluice::machine {
namespace {

// A tag is the port, the burst's place in its ring, its first beat and its number of beats.
constexpr uint32_t MakeTag(uint32_t port, uint32_t slot, uint32_t first, uint32_t beats) {
  return port | slot << 2 | first << 10 | beats << 14;
}
constexpr uint32_t SlotOf(uint32_t tag) { return tag >> 2 & 0xff; }
constexpr uint32_t FirstOf(uint32_t tag) { return tag >> 10 & 0xf; }
constexpr uint32_t BeatsOf(uint32_t tag) { return tag >> 14; }

// Of the beats from `address` on, how many lie in its aligned block.
uint32_t BeatsInBlock(uint64_t address, uint32_t block, uint32_t beats) {
  const auto room = static_cast<uint32_t>(block - (address & (block - 1))) / kBeatBytes;
  return std::min(room, beats);
}

uint32_t RingMask(uint32_t size) { return std::bit_ceil(size) - 1; }

}  // namespace

HpPort::HpPort(PortSettings settings)
    : settings_(std::move(settings)),
      read_mask_(RingMask(settings_.outstanding_reads)),
      write_mask_(RingMask(settings_.outstanding_writes)),
      beat_mask_(RingMask(settings_.write_fifo_beats)),
      reads_(read_mask_ + 1),
      writes_(write_mask_ + 1),
      beats_(beat_mask_ + 1),
      // Any odd multiplier keeps different ports and seeds apart; xorshift must not start at 0.
      random_((settings_.seed * kHpPorts + settings_.index) * 0x9e3779b97f4a7c15u | 1) {}

uint64_t HpPort::Withheld() {
  if (settings_.stall_per_4096 == 0) return 0;
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  // Five fields of 12 bits, one for each channel.
  uint64_t mask = 0;
  for (uint32_t channel = 0; channel < 5; ++channel) {
    if ((random_ >> (12 * channel + 4) & 0xfff) < settings_.stall_per_4096) mask |= 1u << channel;
  }
  return mask;
}

void HpPort::Edge(HpSignals& signals, uint64_t now) {
  const HpMaster& master = signals;
  CheckStable(master);
  const uint64_t withheld = Withheld();
  EdgeRead(master, now, withheld);
  EdgeWrite(master, now, withheld);
  static_cast<HpSlave&>(signals) = out_;
}

void HpPort::EdgeRead(const HpMaster& master, uint64_t now, uint64_t withheld) {
  if (out_.rvalid) {
    if (master.rready) {
      ++statistics_.read_beats;
      --read_reserved_;
      out_.rvalid = false;
      if (out_.rlast) ++read_head_;
    } else {
      ++statistics_.read_data_stalls;
    }
  } else if (read_head_ != read_tail_) {
    ++statistics_.read_data_waits;
  }
  if (master.arvalid) {
    if (out_.arready) {
      AddRead(master, now);
    } else {
      ++statistics_.read_address_stalls;
    }
  }
  if (!out_.rvalid && read_head_ != read_tail_ && (withheld & 1) == 0) {
    ReadBurst& burst = reads_[read_head_ & read_mask_];
    const uint32_t beat = burst.delivered;
    if (burst.ready[beat] <= now) {
      ++burst.delivered;
      out_.rvalid = true;
      out_.rdata = burst.data[beat];
      out_.rresp = burst.response;
      out_.rid = burst.id;
      out_.rlast = burst.delivered == burst.beats;
    }
  }
  out_.arready = read_tail_ - read_head_ < settings_.outstanding_reads && (withheld & 2) == 0;
}

void HpPort::EdgeWrite(const HpMaster& master, uint64_t now, uint64_t withheld) {
  if (out_.bvalid && master.bready) {
    out_.bvalid = false;
    ++write_head_;
  }
  if (master.awvalid) {
    if (out_.awready) {
      AddWrite(master);
    } else {
      ++statistics_.write_address_stalls;
    }
  }
  if (master.wvalid) {
    if (out_.wready) {
      ++statistics_.write_beats;
      beats_[beat_tail_++ & beat_mask_] = {master.wdata, master.wstrb, master.wlast};
    } else {
      ++statistics_.write_data_stalls;
    }
  }
  if (write_fill_ != write_tail_) ClaimWriteData(now);
  if (!out_.bvalid && write_head_ != write_issue_ && (withheld & 4) == 0) {
    const WriteBurst& burst = writes_[write_head_ & write_mask_];
    if (burst.answered <= now) {
      out_.bvalid = true;
      out_.bresp = burst.response;
      out_.bid = burst.id;
    }
  }
  out_.awready = write_tail_ - write_head_ < settings_.outstanding_writes && (withheld & 8) == 0;
  out_.wready = beat_tail_ - beat_head_ < settings_.write_fifo_beats && (withheld & 16) == 0;
}

void HpPort::AddRead(const HpMaster& master, uint64_t now) {
  CheckBurst("read", master.araddr, master.arlen);
  ReadBurst& burst = reads_[read_tail_++ & read_mask_];
  burst.address = master.araddr & ~(kBeatBytes - 1);
  burst.beats = (master.arlen & (kMaxBurstBeats - 1)) + 1;
  burst.source = Find(burst.address, burst.beats, false);
  burst.response = ResponseTo(false, reads_taken_, burst.source != nullptr);
  burst.arrives = now + settings_.request_latency;
  burst.issued = 0;
  burst.delivered = 0;
  burst.id = master.arid;
  burst.ready.fill(kNever);
  ++reads_taken_;
  ++statistics_.read_bursts;
}

void HpPort::AddWrite(const HpMaster& master) {
  CheckBurst("write", master.awaddr, master.awlen);
  WriteBurst& burst = writes_[write_tail_++ & write_mask_];
  burst.address = master.awaddr & ~(kBeatBytes - 1);
  burst.beats = (master.awlen & (kMaxBurstBeats - 1)) + 1;
  burst.target = Find(burst.address, burst.beats, true);
  burst.response = ResponseTo(true, writes_taken_, burst.target != nullptr);
  burst.arrives = kNever;
  burst.answered = kNever;
  burst.issued = 0;
  burst.id = master.awid;
  ++writes_taken_;
  ++statistics_.write_bursts;
}

void HpPort::ClaimWriteData(uint64_t now) {
  while (write_fill_ != write_tail_) {
    WriteBurst& burst = writes_[write_fill_ & write_mask_];
    if (beat_tail_ - beat_fill_ < burst.beats) return;
    for (uint32_t i = 1; i <= burst.beats; ++i) {
      if (beats_[beat_fill_++ & beat_mask_].last != (i == burst.beats)) {
        Violate("write data", fmt::format("WLAST wrong at beat {}", i),
                fmt::format("WLAST at beat {} alone", burst.beats));
      }
    }
    burst.arrives = now + settings_.request_latency;
    ++write_fill_;
  }
}

// The first byte of a burst that lies in one window, or null.
uint8_t* HpPort::Find(uint64_t address, uint32_t beats, bool to_write) const {
  const uint64_t bytes = uint64_t{beats} * kBeatBytes;
  for (const MemoryWindow& window : settings_.windows) {
    if (address >= window.base && address - window.base < window.bytes.size() &&
        window.bytes.size() - (address - window.base) >= bytes) {
      if (to_write && !window.writable) return nullptr;
      return window.bytes.data() + (address - window.base);
    }
  }
  return nullptr;
}

uint8_t HpPort::ResponseTo(bool write, uint64_t burst, bool found) const {
  if (!found) return kDecodeError;
  for (const InjectedError& error : settings_.errors) {
    if (error.write == write && error.burst == burst) return kSlaveError;
  }
  return kOkay;
}

bool HpPort::ReadWaiting(uint64_t by) {
  while (read_issue_ != read_tail_) {
    ReadBurst& burst = reads_[read_issue_ & read_mask_];
    if (burst.issued != 0) return true;
    if (burst.arrives >= by || read_reserved_ + burst.beats > settings_.read_fifo_beats) {
      return false;
    }
    if (burst.response == kOkay) return true;
    // The memory never sees it.
    burst.data.fill(0);
    burst.ready.fill(burst.arrives + settings_.return_latency);
    read_reserved_ += burst.beats;
    ++read_issue_;
  }
  return false;
}

PortAccess HpPort::NextRead(uint32_t block) const {
  const uint32_t slot = read_issue_ & read_mask_;
  const ReadBurst& burst = reads_[slot];
  const uint64_t address = burst.address + burst.issued * kBeatBytes;
  return {address, MakeTag(settings_.index, slot, burst.issued,
                           BeatsInBlock(address, block, burst.beats - burst.issued))};
}

bool HpPort::TakeRead(const PortAccess& access) {
  ReadBurst& burst = reads_[SlotOf(access.tag)];
  const uint32_t beats = BeatsOf(access.tag);
  if (burst.issued == 0) read_reserved_ += burst.beats;
  std::memcpy(&burst.data[burst.issued], burst.source + burst.issued * kBeatBytes,
              beats * kBeatBytes);
  burst.issued += beats;
  if (burst.issued != burst.beats) return false;
  ++read_issue_;
  return true;
}

void HpPort::ReadReturns(uint32_t tag, uint64_t at) {
  const auto first = reads_[SlotOf(tag)].ready.begin() + FirstOf(tag);
  std::fill(first, first + BeatsOf(tag), at + settings_.return_latency);
}

bool HpPort::WriteWaiting(uint64_t by, uint64_t now) {
  while (write_issue_ != write_fill_) {
    WriteBurst& burst = writes_[write_issue_ & write_mask_];
    if (burst.issued != 0) return true;
    if (burst.arrives >= by) return false;
    if (burst.response == kOkay) return true;
    beat_head_ += burst.beats;
    burst.answered = now + settings_.return_latency;
    ++write_issue_;
  }
  return false;
}

PortAccess HpPort::NextWrite(uint32_t block) const {
  const uint32_t slot = write_issue_ & write_mask_;
  const WriteBurst& burst = writes_[slot];
  const uint64_t address = burst.address + burst.issued * kBeatBytes;
  return {address, MakeTag(settings_.index, slot, burst.issued,
                           BeatsInBlock(address, block, burst.beats - burst.issued))};
}

bool HpPort::TakeWrite(const PortAccess& access, uint64_t now) {
  WriteBurst& burst = writes_[SlotOf(access.tag)];
  for (uint32_t i = 0; i < BeatsOf(access.tag); ++i) {
    const WriteBeat& beat = beats_[beat_head_++ & beat_mask_];
    uint8_t* target = burst.target + burst.issued++ * kBeatBytes;
    if (beat.strobe == 0xff) {
      std::memcpy(target, &beat.data, kBeatBytes);
    } else {
      for (uint32_t lane = 0; lane < kBeatBytes; ++lane) {
        if (beat.strobe >> lane & 1) target[lane] = static_cast<uint8_t>(beat.data >> 8 * lane);
      }
    }
  }
  if (burst.issued != burst.beats) return false;
  burst.answered = now + settings_.return_latency;
  ++write_issue_;
  return true;
}

void HpPort::CheckStable(const HpMaster& m) {
  const HpMaster& p = previous_;
  if (waiting_[0] &&
      !(m.arvalid && m.araddr == p.araddr && m.arlen == p.arlen && m.arid == p.arid)) {
    Violate("read address", "changed before ARREADY", "ARVALID and the address held");
  }
  if (waiting_[1] &&
      !(m.awvalid && m.awaddr == p.awaddr && m.awlen == p.awlen && m.awid == p.awid)) {
    Violate("write address", "changed before AWREADY", "AWVALID and the address held");
  }
  if (waiting_[2] &&
      !(m.wvalid && m.wdata == p.wdata && m.wstrb == p.wstrb && m.wlast == p.wlast)) {
    Violate("write data", "changed before WREADY", "WVALID and the data held");
  }
  waiting_[0] = m.arvalid && !out_.arready;
  waiting_[1] = m.awvalid && !out_.awready;
  waiting_[2] = m.wvalid && !out_.wready;
  previous_ = m;
}

void HpPort::CheckBurst(const char* channel, uint32_t address, uint32_t length) {
  if (length >= kMaxBurstBeats) {
    Violate(channel, fmt::format("a burst of {} beats", length + 1),
            fmt::format("at most {}", kMaxBurstBeats));
  } else if ((address & 0xff8) + (length + 1) * kBeatBytes > 0x1000) {
    Violate(channel, fmt::format("a burst of {} beats at 0x{:x}", length + 1, address),
            "no burst across 4 KB");
  }
}

void HpPort::Violate(const char* channel, std::string got, std::string expected) {
  if (violation_) return;
  violation_ = base::Error{fmt::format("HP{} {}", settings_.index, channel), std::move(got),
                           std::move(expected)};
}

}  // namespace sluice::machine
