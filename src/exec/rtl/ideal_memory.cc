#include "exec/rtl/ideal_memory.h"

#include <cstring>

namespace sluice::exec::rtl {
namespace {

constexpr uint8_t kOkay = 0;
constexpr uint8_t kDecodeError = 3;
constexpr size_t kQueue = 8;  // bursts a port accepts ahead

}  // namespace

IdealMemory::IdealMemory(uint32_t latency, double stall, uint64_t seed)
    : latency_(latency), stall_(stall), random_(seed) {}

void IdealMemory::Map(uint32_t base, std::span<const uint8_t> bytes) {
  windows_.push_back({base, bytes.size(), bytes.data(), nullptr});
}

void IdealMemory::MapWritable(uint32_t base, std::span<uint8_t> bytes) {
  windows_.push_back({base, bytes.size(), bytes.data(), bytes.data()});
}

const IdealMemory::Window* IdealMemory::Find(uint32_t address) const {
  for (const Window& w : windows_) {
    if (address >= w.base && address - w.base + 8ull <= w.size) return &w;
  }
  return nullptr;
}

const std::array<SlaveSignals, kMasters>& IdealMemory::Drive() {
  for (size_t p = 0; p < kMasters; ++p) {
    Port& port = ports_[p];
    SlaveSignals& s = out_[p];
    s.arready = port.reads.size() < kQueue && !Stalled();
    s.awready = port.writes.size() < kQueue && !Stalled();
    s.wready = !port.writes.empty() && !Stalled();
    // What was offered and not taken stays.
    if (!s.rvalid && !port.reads.empty() && port.reads.front().due <= now_ && !Stalled()) {
      const Read& read = port.reads.front();
      const Window* window = Find(read.address);
      s.rvalid = true;
      s.rresp = window ? kOkay : kDecodeError;
      s.rdata = 0;
      if (window) std::memcpy(&s.rdata, window->read + (read.address - window->base), 8);
      s.rlast = read.beats == 1;
      s.rid = read.id;
    }
    if (!s.bvalid && !port.answers.empty() && port.answers.front().first <= now_ && !Stalled()) {
      s.bvalid = true;
      s.bresp = port.answers.front().second;
    }
  }
  return out_;
}

void IdealMemory::Take(const std::array<MasterSignals, kMasters>& masters) {
  for (size_t p = 0; p < kMasters; ++p) {
    Port& port = ports_[p];
    SlaveSignals& s = out_[p];
    const MasterSignals& m = masters[p];
    if (s.rvalid && m.rready) {
      s.rvalid = false;
      Read& read = port.reads.front();
      read.address += 8;
      if (--read.beats == 0) port.reads.pop_front();
    }
    if (s.bvalid && m.bready) {
      s.bvalid = false;
      port.answers.pop_front();
    }
    if (m.wvalid && s.wready) {
      Write& write = port.writes.front();
      const Window* window = Find(write.address);
      if (window == nullptr || window->write == nullptr) {
        write.bad = true;
      } else {
        for (unsigned b = 0; b < 8; ++b) {
          if ((m.wstrb >> b) & 1) {
            window->write[write.address - window->base + b] =
                static_cast<uint8_t>(m.wdata >> (8 * b));
          }
        }
      }
      write.address += 8;
      if (m.wlast) {
        port.answers.emplace_back(now_ + latency_, write.bad ? kDecodeError : kOkay);
        port.writes.pop_front();
      }
    }
    if (m.arvalid && s.arready) {
      port.reads.push_back({m.araddr, m.arlen + 1u, m.arid, now_ + latency_});
    }
    if (m.awvalid && s.awready) port.writes.push_back({m.awaddr});
  }
  ++now_;
}

}  // namespace sluice::exec::rtl
