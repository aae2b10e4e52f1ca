#include "machine/memory_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "machine/board.h"
#include "machine/traffic.h"

namespace sluice::machine {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBase = 0x10000000;

MemorySpec Spec() { return LoadBoard("pynq-z2").value().memory; }

std::vector<uint8_t> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// A memory of one window and its four ports' signals.
class Bench {
 public:
  explicit Bench(const MemoryOptions& options = {}, size_t bytes = 1 << 20,
                 const MemorySpec& spec = Spec())
      : bytes_(RandomBytes(bytes, 5)),
        memory_(MemorySystem::Create(spec, {{kBase, bytes_}}, options).value()) {
    memory_.Tick(hp_);  // ports are ready from the first edge on
  }

  std::vector<uint8_t>& bytes() { return bytes_; }
  MemorySystem& memory() { return memory_; }
  HpSignals& hp(uint32_t port) { return hp_[port]; }
  void Tick() { memory_.Tick(hp_); }

  struct Beat {
    uint64_t data;
    uint8_t response;
    uint8_t id;
    bool last;
  };
  // One read burst, alone. `latency` is the clocks from the edge that takes the address to the one
  // after which the first beat is valid.
  std::vector<Beat> Read(uint32_t port, uint64_t address, uint32_t beats, uint8_t id = 0,
                         uint32_t* latency = nullptr) {
    HpSignals& s = hp_[port];
    s.arvalid = true;
    s.araddr = static_cast<uint32_t>(address);
    s.arlen = static_cast<uint8_t>(beats - 1);
    s.arid = id;
    while (!s.arready) Tick();
    Tick();
    s.arvalid = false;
    s.rready = true;
    std::vector<Beat> result;
    for (uint32_t clock = 0; clock < 2000; ++clock) {
      if (s.rvalid) {
        if (result.empty() && latency != nullptr) *latency = clock;
        result.push_back({s.rdata, s.rresp, s.rid, s.rlast});
        if (s.rlast) {
          Tick();
          return result;
        }
      }
      Tick();
    }
    ADD_FAILURE() << "no answer";
    return result;
  }
  // One write burst, alone; the response.
  uint8_t Write(uint32_t port, uint64_t address, const std::vector<uint64_t>& data,
                uint8_t strobe = 0xff) {
    HpSignals& s = hp_[port];
    s.awvalid = true;
    s.awaddr = static_cast<uint32_t>(address);
    s.awlen = static_cast<uint8_t>(data.size() - 1);
    s.awid = 9;
    s.bready = true;
    size_t sent = 0;
    for (uint32_t clock = 0; clock < 2000; ++clock) {
      s.wvalid = sent < data.size();
      if (s.wvalid) {
        s.wdata = data[sent];
        s.wstrb = strobe;
        s.wlast = sent + 1 == data.size();
      }
      const bool address_taken = s.awvalid && s.awready;
      const bool data_taken = s.wvalid && s.wready;
      if (s.bvalid) {
        EXPECT_EQ(s.bid, 9);
        const uint8_t response = s.bresp;
        Tick();
        return response;
      }
      Tick();
      if (address_taken) s.awvalid = false;
      if (data_taken) ++sent;
    }
    ADD_FAILURE() << "no answer";
    return 0xff;
  }
  uint64_t Word(uint64_t address) const {
    uint64_t word;
    std::memcpy(&word, &bytes_[address - kBase], sizeof(word));
    return word;
  }

 private:
  std::vector<uint8_t> bytes_;
  MemorySystem memory_;
  std::array<HpSignals, kHpPorts> hp_ = {};
};

TEST(MemorySystem, AnIdlePortAnswersAfterTheBoardsLatency) {
  for (uint32_t port = 0; port < kHpPorts; ++port) {
    Bench bench;
    for (int i = 0; i < 8; ++i) {
      uint32_t latency = 0;
      // Each in another bank, whose row is closed.
      bench.Read(port, kBase + 2048 * static_cast<uint64_t>(i), 16, 0, &latency);
      EXPECT_NEAR(latency, 50, 1);  // 350 ns of 7 ns
    }
  }
}

TEST(MemorySystem, IdealModeAnswersAfterTheGivenClocksOneBeatAClock) {
  for (const uint32_t wanted : {1u, 8u, 30u}) {
    MemoryOptions options;
    options.ideal = true;
    options.ideal_latency = wanted;
    Bench bench(options);
    uint32_t latency = 0;
    const uint64_t before = bench.memory().ticks();
    EXPECT_EQ(bench.Read(2, kBase, 16, 0, &latency).size(), 16u);
    EXPECT_EQ(latency, wanted);
    EXPECT_EQ(bench.memory().ticks() - before, 1 + wanted + 16);
  }
}

TEST(MemorySystem, AReadReturnsTheBytesItsIdAndLast) {
  Bench bench;
  const auto beats = bench.Read(1, kBase + 0x1f8, 5, 0x2a);
  ASSERT_EQ(beats.size(), 5u);
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(beats[i].data, bench.Word(kBase + 0x1f8 + 8 * i));
    EXPECT_EQ(beats[i].response, kOkay);
    EXPECT_EQ(beats[i].id, 0x2a);
    EXPECT_EQ(beats[i].last, i == 4);
  }
}

TEST(MemorySystem, StrobesChooseTheBytesThatAreWritten) {
  Bench bench;
  const uint64_t before = bench.Word(kBase + 8);
  EXPECT_EQ(bench.Write(3, kBase, {0x1111111111111111, 0x2222222222222222}, 0x0f), kOkay);
  EXPECT_EQ(bench.Word(kBase + 8), (before & 0xffffffff00000000) | 0x22222222);
}

TEST(MemorySystem, AnAddressOutsideTheWindowsAnswersDecodeErrorWithZeros) {
  for (const bool ideal : {false, true}) {
    MemoryOptions options;
    options.ideal = ideal;
    Bench bench(options);
    const std::vector<uint8_t> before = bench.bytes();
    const uint64_t end = kBase + bench.bytes().size();
    for (const uint64_t address : {uint64_t{0}, kBase - 8, end, end - 64}) {
      const auto beats = bench.Read(0, address, 16);
      ASSERT_EQ(beats.size(), 16u);
      for (const Bench::Beat& beat : beats) {
        EXPECT_EQ(beat.response, kDecodeError);
        EXPECT_EQ(beat.data, 0u);
      }
      EXPECT_EQ(bench.Write(0, address, std::vector<uint64_t>(16, 1)), kDecodeError);
    }
    EXPECT_EQ(bench.bytes(), before);
    // The port goes on.
    EXPECT_EQ(bench.Read(0, end - 128, 16)[15].data, bench.Word(end - 8));
  }
}

TEST(MemorySystem, AWriteToAReadOnlyWindowAnswersDecodeErrorAndReadsGoOn) {
  std::vector<uint8_t> bytes(4096, 7);
  MemorySystem memory =
      MemorySystem::Create(Spec(), {MemoryWindow::ReadOnly(0x1000, bytes)}).value();
  std::array<HpSignals, kHpPorts> hp = {};
  HpSignals& s = hp[0];
  s.awaddr = s.araddr = 0x1000;
  memory.Tick(hp);
  s.arvalid = s.awvalid = s.wvalid = s.wlast = true;
  s.wstrb = 0xff;
  memory.Tick(hp);
  s.arvalid = s.awvalid = s.wvalid = false;
  for (int i = 0; i < 200; ++i) memory.Tick(hp);
  EXPECT_TRUE(s.bvalid);
  EXPECT_EQ(s.bresp, kDecodeError);
  EXPECT_TRUE(s.rvalid);
  EXPECT_EQ(s.rresp, kOkay);
  EXPECT_EQ(s.rdata, 0x0707070707070707u);
  EXPECT_EQ(bytes, std::vector<uint8_t>(4096, 7));
}

TEST(MemorySystem, InjectedErrorsHitTheirBurstAndNoOther) {
  for (const bool ideal : {false, true}) {
    MemoryOptions options;
    options.ideal = ideal;
    options.errors = {{.port = 1, .write = false, .burst = 2},
                      {.port = 1, .write = true, .burst = 1}};
    Bench bench(options);
    for (uint32_t port = 0; port < kHpPorts; ++port) {
      for (uint64_t burst = 0; burst < 4; ++burst) {
        const bool read_hit = port == 1 && burst == 2;
        for (const Bench::Beat& beat : bench.Read(port, kBase + 128 * burst, 16)) {
          EXPECT_EQ(beat.response, read_hit ? kSlaveError : kOkay);
        }
        const bool write_hit = port == 1 && burst == 1;
        const uint64_t before = bench.Word(kBase);
        EXPECT_EQ(bench.Write(port, kBase, {before + 1}), write_hit ? kSlaveError : kOkay);
        EXPECT_EQ(bench.Word(kBase), write_hit ? before : before + 1);
      }
    }
  }
}

// Random bursts on one port, never two at once on one 4 KB page, checked against a plain copy.
class CheckedMaster {
 public:
  CheckedMaster(std::vector<uint8_t>& copy, uint32_t first_page, uint32_t pages, uint64_t seed)
      : copy_(copy), first_page_(first_page), busy_(pages), random_(seed) {}

  uint64_t checked() const { return checked_; }
  bool Idle() const { return reads_.empty() && writes_.empty() && !read_.valid && !write_.valid; }

  // `more`: whether to begin new bursts.
  void Drive(HpSignals& s, bool more) {
    s.rready = random_() % 4 != 0;
    s.bready = random_() % 4 != 0;
    if (s.rvalid && s.rready) TakeBeat(s);
    if (s.bvalid && s.bready) {
      ASSERT_FALSE(writes_.empty());
      EXPECT_EQ(s.bresp, kOkay);
      EXPECT_EQ(s.bid, writes_.front().id);
      busy_[writes_.front().page] = false;
      writes_.pop_front();
    }
    if (!read_.valid && more) read_ = Begin();
    s.arvalid = read_.valid;
    s.araddr = static_cast<uint32_t>(kBase) + read_.offset;
    s.arlen = static_cast<uint8_t>(read_.beats - 1);
    s.arid = read_.id;
    if (s.arvalid && s.arready) {
      reads_.push_back(read_);
      read_.valid = false;
    }
    if (!write_.valid && more) write_ = Begin();
    s.awvalid = write_.valid;
    s.awaddr = static_cast<uint32_t>(kBase) + write_.offset;
    s.awlen = static_cast<uint8_t>(write_.beats - 1);
    s.awid = write_.id;
    if (s.awvalid && s.awready) {
      writes_.push_back(write_);
      for (uint32_t i = 0; i < write_.beats; ++i)
        AddBeat(write_.offset + 8 * i, i + 1 == write_.beats);
      write_.valid = false;
    }
    // Once valid, data stays valid.
    w_valid_ = !beats_.empty() && (w_valid_ || random_() % 4 != 0);
    s.wvalid = w_valid_;
    if (w_valid_) {
      s.wdata = beats_.front().data;
      s.wstrb = beats_.front().strobe;
      s.wlast = beats_.front().last;
      if (s.wready) {
        beats_.pop_front();
        w_valid_ = false;
      }
    }
  }

 private:
  struct Burst {
    bool valid = false;
    uint32_t offset = 0;
    uint32_t beats = 1;
    uint32_t page = 0;
    uint8_t id = 0;
    uint32_t taken = 0;
  };
  struct Beat {
    uint64_t data;
    uint8_t strobe;
    bool last;
  };

  Burst Begin() {
    Burst burst;
    burst.page = static_cast<uint32_t>(random_() % busy_.size());
    if (busy_[burst.page]) return burst;
    busy_[burst.page] = true;
    burst.valid = true;
    burst.beats = 1 + static_cast<uint32_t>(random_() % 16);
    burst.offset = (first_page_ + burst.page) * 4096 +
                   8 * static_cast<uint32_t>(random_() % (512 - burst.beats + 1));
    burst.id = static_cast<uint8_t>(random_() % 64);
    return burst;
  }
  void AddBeat(uint32_t offset, bool last) {
    const Beat beat{random_(), static_cast<uint8_t>(random_() % 3 == 0 ? random_() : 0xff), last};
    beats_.push_back(beat);
    for (uint32_t lane = 0; lane < 8; ++lane) {
      if (beat.strobe >> lane & 1)
        copy_[offset + lane] = static_cast<uint8_t>(beat.data >> 8 * lane);
    }
  }
  void TakeBeat(const HpSignals& s) {
    ASSERT_FALSE(reads_.empty());
    Burst& burst = reads_.front();
    uint64_t expected;
    std::memcpy(&expected, &copy_[burst.offset + 8 * burst.taken], 8);
    EXPECT_EQ(s.rdata, expected);
    EXPECT_EQ(s.rresp, kOkay);
    EXPECT_EQ(s.rid, burst.id);
    ++checked_;
    EXPECT_EQ(s.rlast, ++burst.taken == burst.beats);
    if (burst.taken == burst.beats) {
      busy_[burst.page] = false;
      reads_.pop_front();
    }
  }

  std::vector<uint8_t>& copy_;
  uint32_t first_page_;
  std::vector<bool> busy_;
  std::mt19937_64 random_;
  Burst read_, write_;
  std::deque<Burst> reads_, writes_;
  std::deque<Beat> beats_;
  bool w_valid_ = false;
  uint64_t checked_ = 0;
};

void RunChecked(const MemoryOptions& options) {
  Bench bench(options);
  std::vector<uint8_t> copy = bench.bytes();
  std::vector<CheckedMaster> masters;
  for (uint32_t port = 0; port < kHpPorts; ++port) {
    masters.emplace_back(copy, 64 * port, 64, options.seed * 4 + port);
  }
  const auto run = [&](int clocks, bool more) {
    for (int i = 0; i < clocks; ++i) {
      for (uint32_t port = 0; port < kHpPorts; ++port) masters[port].Drive(bench.hp(port), more);
      bench.Tick();
    }
  };
  run(20000, true);
  run(5000, false);
  for (const CheckedMaster& master : masters) {
    EXPECT_TRUE(master.Idle());
    EXPECT_GT(master.checked(), 1000u);
  }
  EXPECT_FALSE(bench.memory().Busy());
  EXPECT_EQ(bench.bytes(), copy);
  EXPECT_FALSE(bench.memory().Violation().has_value()) << bench.memory().Violation()->ToString();
}

TEST(MemorySystem, RandomTrafficOnFourPortsAgreesWithAPlainArray) {
  for (const bool ideal : {false, true}) {
    for (const double stall : {0.0, 0.3, 0.9}) {
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        SCOPED_TRACE(::testing::Message() << ideal << " stall " << stall << " seed " << seed);
        MemoryOptions options;
        options.ideal = ideal;
        options.stall_probability = stall;
        options.seed = seed;
        RunChecked(options);
      }
    }
  }
}

// Word after word, read back at once on another port: a read that is taken after a write was
// answered sees it, whether or not the DDR has it yet.
TEST(MemorySystem, AnAnsweredWriteIsSeenByEveryPort) {
  Bench bench;
  for (uint64_t i = 0; i < 200; ++i) {
    const auto port = static_cast<uint32_t>(i % 4);
    const uint64_t address = kBase + 8 * (i * 7 % 64);
    ASSERT_EQ(bench.Write(port, address, {i}), kOkay);
    ASSERT_EQ(bench.Read((port + 1) % 4, address, 1)[0].data, i);
  }
}

TEST(MemorySystem, WriteDataMayComeBeforeItsAddress) {
  Bench bench;
  HpSignals& s = bench.hp(0);
  s.wvalid = s.wlast = true;
  s.wstrb = 0xff;
  s.wdata = 42;
  bench.Tick();
  s.wvalid = false;
  for (int i = 0; i < 100; ++i) bench.Tick();
  s.awvalid = true;
  s.awaddr = kBase + 16;
  bench.Tick();
  s.awvalid = false;
  for (int i = 0; i < 200; ++i) bench.Tick();
  EXPECT_TRUE(s.bvalid);
  EXPECT_EQ(bench.Word(kBase + 16), 42u);
}

TEST(MemorySystem, AReadBeginsOnlyWhenTheFifoHasRoomForAllOfIt) {
  MemorySpec spec = Spec();
  spec.ports.outstanding_reads = 16;
  Bench bench({}, 1 << 20, spec);
  HpSignals& s = bench.hp(0);
  s.arvalid = true;
  s.araddr = kBase;
  s.arlen = 15;
  for (int i = 0; i < 1000; ++i) bench.Tick();
  EXPECT_EQ(bench.memory().port(0).read_bursts, 16u);
  // 1 KB is eight bursts of eight accesses.
  EXPECT_EQ(bench.memory().ddr().reads, 64u);
  s.arvalid = false;
  s.rready = true;
  for (int i = 0; i < 1000; ++i) bench.Tick();
  EXPECT_EQ(bench.memory().ddr().reads, 128u);
  EXPECT_EQ(bench.memory().port(0).read_beats, 256u);
}

TEST(MemorySystem, AWriteGoesToTheDdrOnlyWithAllItsData) {
  Bench bench;
  HpSignals& s = bench.hp(0);
  s.awvalid = s.wvalid = true;
  s.awaddr = kBase;
  s.awlen = 15;
  s.wstrb = 0xff;
  for (int i = 0; i < 15; ++i) {
    bench.Tick();
    s.awvalid = false;
  }
  s.wvalid = false;
  for (int i = 0; i < 500; ++i) bench.Tick();
  EXPECT_EQ(bench.memory().ddr().writes, 0u);
  s.wvalid = s.wlast = true;
  bench.Tick();
  s.wvalid = false;
  for (int i = 0; i < 500; ++i) bench.Tick();
  EXPECT_EQ(bench.memory().ddr().writes, 8u);
  EXPECT_TRUE(s.bvalid);
}

uint64_t HashOfRun(double stall, uint64_t seed) {
  MemoryOptions options;
  options.stall_probability = stall;
  options.seed = seed;
  Bench bench(options);
  std::array<StreamMaster, kHpPorts> masters;
  for (uint32_t port = 0; port < kHpPorts; ++port) {
    masters[port] = StreamMaster({.reads = true,
                                  .writes = port % 2 == 0,
                                  .random = port > 1,
                                  .base = kBase,
                                  .bytes = 1 << 20,
                                  .seed = port});
  }
  uint64_t hash = 0;
  for (int i = 0; i < 5000; ++i) {
    for (uint32_t port = 0; port < kHpPorts; ++port) {
      const HpSignals& s = bench.hp(port);
      for (const uint64_t x : {uint64_t{s.arready}, uint64_t{s.rvalid}, s.rdata,
                               uint64_t{s.awready}, uint64_t{s.wready}, uint64_t{s.bvalid}}) {
        hash = (hash ^ x) * 0x100000001b3;
      }
      masters[port].Drive(bench.hp(port));
    }
    bench.Tick();
  }
  return hash;
}

TEST(MemorySystem, OneSeedGivesTheSameRunAgainAndAnotherAnother) {
  EXPECT_EQ(HashOfRun(0, 1), HashOfRun(0, 1));
  EXPECT_EQ(HashOfRun(0.2, 1), HashOfRun(0.2, 1));
  EXPECT_NE(HashOfRun(0.2, 1), HashOfRun(0.2, 2));
}

TEST(MemorySystem, StatisticsCountBurstsBeatsAndStallsAndReset) {
  Bench bench;
  HpSignals& s = bench.hp(0);
  s.arvalid = true;
  s.araddr = kBase;
  s.arlen = 15;
  for (int i = 0; i < 20; ++i) bench.Tick();  // 8 are taken, then stalls
  s.arvalid = false;
  for (int i = 0; i < 300; ++i) bench.Tick();
  const PortStatistics& statistics = bench.memory().port(0);
  EXPECT_EQ(statistics.read_bursts, 8u);
  EXPECT_EQ(statistics.read_address_stalls, 12u);
  EXPECT_EQ(statistics.read_beats, 0u);
  EXPECT_GT(statistics.read_data_waits, 40u);
  EXPECT_GT(statistics.read_data_stalls, 200u);
  s.rready = true;
  for (int i = 0; i < 200; ++i) bench.Tick();
  EXPECT_EQ(statistics.read_beats, 128u);
  bench.memory().ResetStatistics();
  EXPECT_EQ(statistics.read_beats, 0u);
  EXPECT_EQ(bench.memory().ddr().Clocks(), 0u);
  EXPECT_EQ(bench.memory().port(1).read_bursts, 0u);
}

TEST(MemorySystem, NamesWhatTheFabricDidWrong) {
  const auto violation = [](auto act) {
    Bench bench;
    act(bench);
    return bench.memory().Violation() ? bench.memory().Violation()->ToString() : "none";
  };
  EXPECT_THAT(
      violation([](Bench& b) { b.Read(2, kBase + 4096 - 64, 16); }),
      HasSubstr("HP2 read: a burst of 16 beats at 0x10000fc0, expected no burst across 4 KB"));
  EXPECT_EQ(violation([](Bench& b) { b.Read(2, kBase + 4096 - 128, 16); }), "none");
  EXPECT_THAT(violation([](Bench& b) {
                b.hp(1).arvalid = true;
                b.hp(1).araddr = kBase;
                for (int i = 0; i < 20; ++i) b.Tick();
                b.hp(1).araddr = kBase + 128;
                b.Tick();
              }),
              HasSubstr("HP1 read address: changed before ARREADY"));
  EXPECT_THAT(violation([](Bench& b) {
                b.hp(0).awvalid = b.hp(0).wvalid = b.hp(0).wlast = true;
                b.hp(0).awaddr = kBase;
                b.hp(0).awlen = 1;
                b.Tick();
                b.hp(0).awvalid = false;
                b.Tick();
              }),
              HasSubstr("WLAST wrong at beat 1"));
}

TEST(MemorySystem, RejectsWindowsAndOptionsThatCannotBe) {
  std::vector<uint8_t> bytes(64);
  const auto window = [&](uint64_t base) { return MemoryWindow{base, bytes}; };
  const auto error = [&](std::vector<MemoryWindow> windows, const MemoryOptions& options) {
    const auto result = MemorySystem::Create(Spec(), std::move(windows), options);
    return result ? "none" : result.error().ToString();
  };
  EXPECT_EQ(error({window(0), window(64)}, {}), "none");
  EXPECT_THAT(error({window(0), window(56)}, {}), HasSubstr("overlaps window 0"));
  EXPECT_THAT(error({window(4)}, {}), HasSubstr("a multiple of 8"));
  EXPECT_EQ(error({window(0xffffffc0)}, {}), "none");
  EXPECT_THAT(error({window(0xffffffc8)}, {}), HasSubstr("below 4 GB"));
  MemoryOptions options;
  options.stall_probability = 1;
  EXPECT_THAT(error({}, options), HasSubstr("stall probability"));
  options = {};
  options.errors = {{.port = 4, .write = false, .burst = 0}};
  EXPECT_THAT(error({}, options), HasSubstr("port 4"));
  options = {};
  options.ideal = true;
  options.ideal_latency = 0;
  EXPECT_THAT(error({}, options), HasSubstr("ideal latency"));
}

}  // namespace
}  // namespace sluice::machine
