#include "machine/memory_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace sluice::machine {
namespace {

using base::Fail;
using base::Result;
using base::Status;

constexpr uint32_t kIdealBlock = 4096;  // no burst crosses it, so none is cut
constexpr uint64_t kLinkUnit = 256;     // per DDR clock

Status CheckWindows(const std::vector<MemoryWindow>& windows) {
  for (size_t i = 0; i < windows.size(); ++i) {
    const MemoryWindow& window = windows[i];
    const std::string name = fmt::format("memory window {} at 0x{:x}", i, window.base);
    if (window.base % kBeatBytes != 0) return Fail(name, "not aligned", "a multiple of 8");
    if (window.base > uint64_t{1} << 32 ||
        window.bytes.size() > (uint64_t{1} << 32) - window.base) {
      return Fail(name, fmt::format("{} bytes", window.bytes.size()), "an end below 4 GB");
    }
    for (size_t j = 0; j < i; ++j) {
      const MemoryWindow& other = windows[j];
      if (window.base < other.base + other.bytes.size() &&
          other.base < window.base + window.bytes.size()) {
        return Fail(name, fmt::format("overlaps window {}", j));
      }
    }
  }
  return {};
}

Status CheckOptions(const MemoryOptions& options) {
  const std::string name = "memory options";
  if (!(options.stall_probability >= 0 && options.stall_probability < 1)) {
    return Fail(name + ": stall probability", fmt::format("{}", options.stall_probability),
                "0 or more, less than 1");
  }
  if (options.ideal && options.ideal_latency == 0) {
    return Fail(name + ": ideal latency", "0", "at least 1 clock");
  }
  for (const InjectedError& error : options.errors) {
    if (error.port >= kHpPorts) {
      return Fail(name + ": injected error", fmt::format("port {}", error.port), "0 to 3");
    }
  }
  return {};
}

// The latency outside the DDR controller, in DDR clocks.
uint64_t FixedLatency(const MemorySpec& spec) {
  const DdrTiming& t = spec.ddr;
  const double link = t.AccessBytes() * t.clock_mhz / spec.ports.pair_mbps;
  const double total = spec.ports.idle_read_latency_ns * t.clock_mhz / 1000;
  return static_cast<uint64_t>(std::max(0.0, total - (t.rcd + t.cl + t.BurstClocks()) - link));
}

PortSettings SettingsOf(uint32_t index, const MemorySpec& spec, const MemoryOptions& options,
                        std::span<const MemoryWindow> windows) {
  PortSettings settings;
  settings.index = index;
  settings.outstanding_reads = spec.ports.outstanding_reads;
  settings.outstanding_writes = spec.ports.outstanding_writes;
  settings.read_fifo_beats = spec.ports.read_fifo_bytes / kBeatBytes;
  settings.write_fifo_beats = spec.ports.write_fifo_bytes / kBeatBytes;
  if (options.ideal) {
    settings.return_latency = options.ideal_latency;
  } else {
    settings.request_latency = FixedLatency(spec) / 2;
    settings.return_latency = FixedLatency(spec) - settings.request_latency;
  }
  settings.stall_per_4096 = static_cast<uint32_t>(std::lround(options.stall_probability * 4096));
  settings.seed = options.seed;
  for (const InjectedError& error : options.errors) {
    if (error.port == index) settings.errors.push_back(error);
  }
  settings.windows = windows;
  return settings;
}

}  // namespace

Result<MemorySystem> MemorySystem::Create(const MemorySpec& spec, std::vector<MemoryWindow> windows,
                                          const MemoryOptions& options) {
  SLUICE_TRY_VOID(CheckMemory(spec, "memory"));
  SLUICE_TRY_VOID(CheckWindows(windows));
  SLUICE_TRY_VOID(CheckOptions(options));
  return MemorySystem(spec, std::make_unique<std::vector<MemoryWindow>>(std::move(windows)),
                      options);
}

MemorySystem::MemorySystem(const MemorySpec& spec,
                           std::unique_ptr<std::vector<MemoryWindow>> windows,
                           const MemoryOptions& options)
    : ideal_(options.ideal),
      ddr_hz_(static_cast<uint64_t>(std::llround(spec.ddr.clock_mhz * 1e6))),
      fabric_hz_(static_cast<uint64_t>(std::llround(spec.ports.clock_mhz * 1e6))),
      block_bytes_(spec.ddr.AccessBytes()),
      link_cost_(static_cast<uint64_t>(std::llround(kLinkUnit * spec.ddr.AccessBytes() *
                                                    spec.ddr.clock_mhz / spec.ports.pair_mbps))),
      windows_(std::move(windows)),
      controller_(spec.ddr, spec.scheduler) {
  for (uint32_t i = 0; i < kHpPorts; ++i) {
    ports_.emplace_back(SettingsOf(i, spec, options, *windows_));
  }
}

void MemorySystem::Tick(std::span<HpSignals, kHpPorts> signals) {
  ++ticks_;
  if (ideal_) {
    for (uint32_t i = 0; i < kHpPorts; ++i) {
      ports_[i].Edge(signals[i], ticks_);
      ServeIdeal(ports_[i]);
    }
    return;
  }
  for (uint32_t i = 0; i < kHpPorts; ++i) ports_[i].Edge(signals[i], controller_.now());
  phase_ += ddr_hz_;
  const uint64_t clocks = phase_ / fabric_hz_;
  phase_ -= clocks * fabric_hz_;
  Offer(static_cast<uint32_t>(clocks));
  for (const DdrController::ReadDone& done : controller_.Advance(controller_.now() + clocks)) {
    const uint32_t port = HpPort::PortOfTag(done.tag);
    uint64_t& link = read_link_[port / 2];
    link = std::max(link, done.clock * kLinkUnit) + link_cost_;
    ports_[port].ReadReturns(done.tag, (link + kLinkUnit - 1) / kLinkUnit);
  }
}

// Hands the controller what the ports have for it in the next `clocks` DDR clocks.
void MemorySystem::Offer(uint32_t clocks) {
  const uint64_t until = controller_.now() + clocks;
  uint32_t refused = 0;  // in a row; four are all requesters
  for (uint32_t taken = 0; taken < clocks && refused < 4;) {
    const uint32_t pair = next_requester_ & 1;
    const bool write = (next_requester_ & 2) != 0;
    next_requester_ = (next_requester_ + 1) & 3;
    if (write ? OfferWrite(pair, until) : OfferRead(pair, until)) {
      ++taken;
      refused = 0;
    } else {
      ++refused;
    }
  }
}

bool MemorySystem::OfferRead(uint32_t pair, uint64_t until) {
  if (controller_.Full(Direction::kRead)) return false;
  uint32_t& turn = turn_[pair][0];
  if (!ports_[2 * pair + turn].ReadWaiting(until)) {
    if (!ports_[2 * pair + (turn ^ 1)].ReadWaiting(until)) return false;
    turn ^= 1;
  }
  HpPort& port = ports_[2 * pair + turn];
  const PortAccess access = port.NextRead(block_bytes_);
  if (controller_.Offer(Direction::kRead, access.address, access.tag) !=
      DdrController::Admission::kTaken) {
    return false;
  }
  if (port.TakeRead(access)) turn ^= 1;
  return true;
}

bool MemorySystem::OfferWrite(uint32_t pair, uint64_t until) {
  if (controller_.Full(Direction::kWrite) || write_link_[pair] >= until * kLinkUnit) return false;
  const uint64_t now = controller_.now();
  uint32_t& turn = turn_[pair][1];
  if (!ports_[2 * pair + turn].WriteWaiting(until, now)) {
    if (!ports_[2 * pair + (turn ^ 1)].WriteWaiting(until, now)) return false;
    turn ^= 1;
  }
  HpPort& port = ports_[2 * pair + turn];
  const PortAccess access = port.NextWrite(block_bytes_);
  if (controller_.Offer(Direction::kWrite, access.address, access.tag) !=
      DdrController::Admission::kTaken) {
    return false;
  }
  write_link_[pair] = std::max(write_link_[pair], now * kLinkUnit) + link_cost_;
  if (port.TakeWrite(access, now)) turn ^= 1;
  return true;
}

void MemorySystem::ServeIdeal(HpPort& port) {
  while (port.ReadWaiting(ticks_ + 1)) {
    const PortAccess access = port.NextRead(kIdealBlock);
    port.TakeRead(access);
    port.ReadReturns(access.tag, ticks_);
  }
  while (port.WriteWaiting(ticks_ + 1, ticks_)) {
    port.TakeWrite(port.NextWrite(kIdealBlock), ticks_);
  }
}

void MemorySystem::ResetStatistics() {
  controller_.ResetAccount();
  for (HpPort& port : ports_) port.ResetStatistics();
}

bool MemorySystem::Busy() const {
  return std::any_of(ports_.begin(), ports_.end(), [](const HpPort& port) { return port.Busy(); });
}

std::optional<base::Error> MemorySystem::Violation() const {
  for (const HpPort& port : ports_) {
    if (port.violation()) return port.violation();
  }
  return std::nullopt;
}

}  // namespace sluice::machine
