// The memory of a Zynq-7000 board as figures: the DDR3 devices, the scheduler of the DDR
// controller, the AXI_HP ports of the fabric. board.h reads them from a file of boards/, which says
// where each figure comes from.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace sluice::machine {

// Times are in clocks of the DDR bus (half of its transfers per second), each counted between the
// two commands' own clocks.
struct DdrTiming {
  double clock_mhz = 0;
  uint32_t bus_bits = 0;      // 16 or 32
  uint32_t burst_length = 0;  // 8 transfers, 4 clocks
  uint32_t cl = 0;            // read command to its first data
  uint32_t cwl = 0;           // write command to its first data
  uint32_t rcd = 0;           // activate to read or write
  uint32_t rp = 0;            // precharge to activate
  uint32_t ras = 0;           // activate to precharge
  uint32_t rc = 0;            // activate to activate, same bank
  uint32_t faw = 0;           // activate to the fourth activate after it
  uint32_t rrd = 0;           // activate to activate, any bank
  uint32_t read_to_precharge = 0;
  uint32_t write_to_precharge = 0;
  uint32_t read_to_write = 0;
  uint32_t write_to_read = 0;
  uint32_t rfc = 0;          // refresh to activate
  uint32_t refi = 0;         // refresh to refresh
  uint32_t banks = 0;        // power of two, at most 16
  uint32_t row_bits = 0;     // of the address: row, then bank, then column (row-bank-column map)
  uint32_t column_bits = 0;  // a column is bus_bits wide

  uint32_t BurstClocks() const { return burst_length / 2; }
  uint32_t AccessBytes() const { return bus_bits / 8 * burst_length; }  // of one read or write
  uint32_t PageBytes() const { return bus_bits / 8 << column_bits; }    // of one row of one bank
  double PeakMBps() const { return clock_mhz * 2 * bus_bits / 8; }
};

// The scheduler between the controller's ports and the DDR commands (UG585, chapter "DDR Memory
// Controller"); how it works stands in ddr_controller.h.
struct SchedulerSpec {
  uint32_t read_entries = 0;   // queue of reads, 1..64 accesses
  uint32_t write_entries = 0;  // queue of writes
  uint32_t row_lookahead = 0;  // so many accesses of a queue, the oldest, have rows opened for them
  uint32_t starve_clocks = 0;  // a queue not served for so long becomes critical
  uint32_t run_accesses = 0;   // a critical queue is served so many accesses
  uint32_t quiet_clocks = 0;   // and then does not begin to starve for so long
  uint32_t age_clocks = 0;     // after so long no younger access to its bank goes before an access
};

struct PortsSpec {
  double clock_mhz = 0;  // of the fabric
  uint32_t outstanding_reads = 0;
  uint32_t outstanding_writes = 0;
  uint32_t read_fifo_bytes = 0;  // powers of two
  uint32_t write_fifo_bytes = 0;
  double idle_read_latency_ns = 0;  // address taken to first data valid, idle port, closed row
  double pair_mbps = 0;             // HP0 with HP1, and HP2 with HP3, each way
};

struct MemorySpec {
  DdrTiming ddr;
  SchedulerSpec scheduler;
  PortsSpec ports;
};

// Whether the figures are in range and agree with each other. `object` names them in errors.
base::Status CheckMemory(const MemorySpec& memory, const std::string& object);

}  // namespace sluice::machine
