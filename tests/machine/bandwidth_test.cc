// What the model must show of a Zynq's memory: the manual's efficiencies, and what follows from
// them.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "machine/board.h"
#include "machine/memory_system.h"
#include "machine/traffic.h"

namespace sluice::machine {
namespace {

MemorySpec Spec(double fabric_mhz = 142.857143) {
  MemorySpec spec = LoadBoard("pynq-z2").value().memory;
  spec.ports.clock_mhz = fabric_mhz;
  return spec;
}

constexpr uint32_t kRegion = 4 << 20;

struct Measured {
  DdrAccount ddr;
  std::array<PortStatistics, kHpPorts> ports;
  double seconds = 0;

  double ReadMBps(uint32_t port) const {
    return double(ports[port].read_beats) * kBeatBytes / seconds / 1e6;
  }
};

// Steady state: statistics start after 20,000 clocks.
Measured Measure(const MemorySpec& spec, const std::array<Traffic, kHpPorts>& traffic,
                 uint32_t clocks = 200000) {
  static std::vector<uint8_t> bytes(kHpPorts * kRegion);
  MemorySystem memory = MemorySystem::Create(spec, {{0, bytes}}).value();
  std::array<HpSignals, kHpPorts> hp = {};
  std::array<StreamMaster, kHpPorts> masters;
  for (uint32_t port = 0; port < kHpPorts; ++port) masters[port] = StreamMaster(traffic[port]);
  const auto run = [&](uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
      for (uint32_t port = 0; port < kHpPorts; ++port) masters[port].Drive(hp[port]);
      memory.Tick(hp);
    }
  };
  run(20000);
  memory.ResetStatistics();
  run(clocks);
  EXPECT_FALSE(memory.Violation().has_value());
  Measured result;
  result.ddr = memory.ddr();
  for (uint32_t port = 0; port < kHpPorts; ++port) result.ports[port] = memory.port(port);
  result.seconds = clocks / (spec.ports.clock_mhz * 1e6);
  return result;
}

// Four masters, each in its own region, its writes apart from its reads. The sequential ones start
// anywhere in the first 32 KB, that is, in any bank.
std::array<Traffic, kHpPorts> Four(bool reads, bool writes, bool random, uint64_t seed = 1) {
  std::mt19937_64 numbers(seed);
  const auto start = [&numbers] { return static_cast<uint32_t>(numbers() % 256) * 128; };
  std::array<Traffic, kHpPorts> traffic;
  for (uint32_t port = 0; port < kHpPorts; ++port) {
    traffic[port] = {.reads = reads,
                     .writes = writes,
                     .random = random,
                     .base = port * kRegion,
                     .bytes = kRegion,
                     .first_read = start(),
                     .first_write = kRegion / 2 + start(),
                     .seed = port + seed * kHpPorts};
  }
  return traffic;
}

std::array<Traffic, kHpPorts> Readers(std::vector<uint32_t> ports, uint32_t outstanding = 16) {
  std::array<Traffic, kHpPorts> traffic = Four(true, false, false);
  for (Traffic& each : traffic) each.reads = false;
  for (const uint32_t port : ports) {
    traffic[port].reads = true;
    traffic[port].outstanding = outstanding;
  }
  return traffic;
}

std::string Percent(const DdrAccount& account) {
  const auto part = [&](uint64_t clocks) {
    return std::to_string(100 * double(clocks) / double(account.Clocks())) + " % ";
  };
  return "read " + part(account.read_data) + "write " + part(account.write_data) + "turnaround " +
         part(account.turnaround) + "row " + part(account.row) + "refresh " +
         part(account.refresh) + "idle " + part(account.idle);
}

// UG585, "DDR Efficiency", system 1: four HP masters, bursts of 16, fabric at 150 MHz, DDR3 at
// 1,050 Mb/s. The manual does not say how wide the DDR was, nor where the sequential masters start:
// both widths must agree, and the mean over starting points counts.
TEST(Bandwidth, EfficienciesOfTheManualAreReachedWithinThreePoints) {
  struct Row {
    const char* name;
    bool reads, writes, random;
    double percent;
  };
  for (const Row& row : {Row{"reads, sequential", true, false, false, 97},
                         Row{"reads, random", true, false, true, 92},
                         Row{"writes, sequential", false, true, false, 90},
                         Row{"writes, random", false, true, true, 87},
                         Row{"both, sequential", true, true, false, 87},
                         Row{"both, random", true, true, true, 79}}) {
    for (const uint32_t bus_bits : {16u, 32u}) {
      MemorySpec spec = Spec(150);
      spec.ddr.bus_bits = bus_bits;
      const uint64_t seeds = row.random ? 2 : 12;
      double percent = 0;
      for (uint64_t seed = 1; seed <= seeds; ++seed) {
        const Measured run = Measure(spec, Four(row.reads, row.writes, row.random, seed), 40000);
        percent += 100 * run.ddr.Efficiency() / double(seeds);
      }
      EXPECT_NEAR(percent, row.percent, 3) << row.name << ", " << bus_bits << " bits";
    }
  }
}

TEST(Bandwidth, RefreshAloneLimitsSequentialReads) {
  const Measured run = Measure(Spec(), Readers({0, 1, 2, 3}));
  EXPECT_GT(run.ddr.Efficiency(), 0.96) << Percent(run.ddr);
  EXPECT_LT(run.ddr.Efficiency(), 0.97) << Percent(run.ddr);
  EXPECT_LT(double(run.ddr.row), 0.005 * double(run.ddr.Clocks())) << Percent(run.ddr);
}

TEST(Bandwidth, TwoPortsSaturateTheDdrFrom132MegahertzOnAndThreeAt100) {
  const double ceiling = Measure(Spec(), Readers({0, 1, 2, 3})).ddr.Efficiency();
  for (const double mhz : {133.0, 142.857143}) {
    const Measured two = Measure(Spec(mhz), Readers({0, 2}));
    EXPECT_GT(two.ddr.Efficiency(), ceiling - 0.01) << mhz << " MHz: " << Percent(two.ddr);
  }
  const Measured three = Measure(Spec(100), Readers({0, 1, 2}));
  EXPECT_GT(three.ddr.Efficiency(), ceiling - 0.01) << Percent(three.ddr);
  // Two at 100 MHz carry what two ports can, 1,600 MB/s of 2,100.
  const Measured slow = Measure(Spec(100), Readers({0, 2}));
  EXPECT_NEAR(slow.ddr.Efficiency(), 1600.0 / 2100, 0.005) << Percent(slow.ddr);
  // One at 142.857 MHz, 1,143.
  const Measured one = Measure(Spec(), Readers({0}));
  EXPECT_NEAR(one.ReadMBps(0), 1143, 6);
}

TEST(Bandwidth, APortCarriesItsOutstandingBytesPerLatencyUntilItIsFull) {
  // Of one burst alone: request to the last beat, and the clock in which the next address goes out.
  const double one = Measure(Spec(), Readers({0}, 1)).ReadMBps(0);
  const double latency_ns = 128 / one * 1000;
  EXPECT_NEAR(latency_ns, 350 + 16 * 7, 25);
  for (const uint32_t outstanding : {2u, 3u}) {
    const double carried = Measure(Spec(), Readers({0}, outstanding)).ReadMBps(0);
    EXPECT_NEAR(carried, outstanding * one, 0.05 * outstanding * one) << outstanding;
  }
  // 5 * 128 B / 462 ns is more than the port's 1,143 MB/s.
  EXPECT_GT(Measure(Spec(), Readers({0}, 8)).ReadMBps(0), 1130);
}

TEST(Bandwidth, TheLinkOfAPairLimitsAWideDdr) {
  MemorySpec spec = Spec(250);
  spec.ddr.bus_bits = 32;
  spec.ports.pair_mbps = 1500;
  const Measured run = Measure(spec, Readers({0, 1}));
  EXPECT_NEAR(run.ReadMBps(0) + run.ReadMBps(1), 1500, 20);
  // The two share it alike.
  EXPECT_NEAR(run.ReadMBps(0), run.ReadMBps(1), 20);

  std::array<Traffic, kHpPorts> writers = Four(false, true, false);
  writers[2].writes = writers[3].writes = false;
  const Measured written = Measure(spec, writers);
  const double beats = double(written.ports[0].write_beats + written.ports[1].write_beats);
  EXPECT_NEAR(beats * kBeatBytes / written.seconds / 1e6, 1500, 20);
  EXPECT_NEAR(double(written.ports[0].write_beats), beats / 2, 0.01 * beats);
}

TEST(Bandwidth, PortsOfAPairAndPairsShareABusyDdrAlike) {
  for (const std::vector<uint32_t>& ports : {std::vector<uint32_t>{0, 1}, {2, 1}, {0, 1, 2, 3}}) {
    const Measured run = Measure(Spec(250), Readers(ports));
    double sum = 0;
    for (const uint32_t port : ports) sum += run.ReadMBps(port);
    EXPECT_GT(sum, 1990);
    const double share = sum / double(ports.size());
    for (const uint32_t port : ports) EXPECT_NEAR(run.ReadMBps(port), share, 0.02 * share);
  }
}

TEST(Bandwidth, ALoneWriteBurstInAReadStreamCostsBothTurnArounds) {
  // HP1 writes one burst at a time, far apart, while two ports saturate the DDR with reads.
  std::array<Traffic, kHpPorts> traffic = Readers({0, 2});
  traffic[1].writes = true;
  traffic[1].outstanding = 1;
  const Measured run = Measure(Spec(), traffic);
  ASSERT_GT(run.ports[1].write_bursts, 1000u);
  const double each = double(run.ddr.turnaround) / double(run.ports[1].write_bursts);
  EXPECT_GE(each, 13.5) << Percent(run.ddr);
  EXPECT_LE(each, 15.5) << Percent(run.ddr);
}

TEST(Bandwidth, TheAccountClosesOverAllClocksAndAllBytes) {
  const uint32_t clocks = 100000;
  for (const bool random : {false, true}) {
    const Measured run = Measure(Spec(), Four(true, true, random), clocks);
    EXPECT_NEAR(double(run.ddr.Clocks()), clocks * 525 / 142.857143, 1.0);
    // Data clocks are four per access, up to one access at either end.
    EXPECT_NEAR(double(run.ddr.read_data), 4.0 * double(run.ddr.reads), 4);
    EXPECT_NEAR(double(run.ddr.write_data), 4.0 * double(run.ddr.writes), 4);
    uint64_t read_beats = 0;
    uint64_t write_beats = 0;
    for (const PortStatistics& port : run.ports) {
      read_beats += port.read_beats;
      write_beats += port.write_beats;
    }
    // What lies in queues and FIFOs at either end: at most 2 KB a port.
    const double slack = 4 * 256;
    EXPECT_NEAR(double(read_beats), 2.0 * double(run.ddr.reads), slack);
    EXPECT_NEAR(double(write_beats), 2.0 * double(run.ddr.writes + run.ddr.combined_writes), slack);
  }
}

}  // namespace
}  // namespace sluice::machine
