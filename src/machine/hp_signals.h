// The AXI3 signals of one 64-bit AXI_HP port, as plain fields to copy from and to a Verilated top.
#pragma once

#include <cstdint>

namespace sluice::machine {

constexpr uint32_t kHpPorts = 4;
constexpr uint32_t kBeatBytes = 8;
constexpr uint32_t kMaxBurstBeats = 16;

enum HpResponse : uint8_t { kOkay = 0, kSlaveError = 2, kDecodeError = 3 };

// Driven by the fabric. Bursts are INCR of full 64-bit beats; the low three address bits are
// ignored. The ports take no WID: the data of bursts follows in the order of their addresses.
struct HpMaster {
  bool arvalid = false;
  uint32_t araddr = 0;
  uint8_t arlen = 0;  // beats - 1, 0..15
  uint8_t arid = 0;   // 0..63
  bool rready = false;

  bool awvalid = false;
  uint32_t awaddr = 0;
  uint8_t awlen = 0;
  uint8_t awid = 0;
  bool wvalid = false;
  uint64_t wdata = 0;
  uint8_t wstrb = 0;
  bool wlast = false;
  bool bready = false;

  bool operator==(const HpMaster&) const = default;
};

// Driven by the port, out of registers.
struct HpSlave {
  bool arready = false;
  bool rvalid = false;
  uint64_t rdata = 0;
  uint8_t rresp = kOkay;
  bool rlast = false;
  uint8_t rid = 0;

  bool awready = false;
  bool wready = false;
  bool bvalid = false;
  uint8_t bresp = kOkay;
  uint8_t bid = 0;

  bool operator==(const HpSlave&) const = default;
};

struct HpSignals : HpMaster, HpSlave {};

}  // namespace sluice::machine
