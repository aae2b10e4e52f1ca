#include "machine/ddr_controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "machine/board.h"

namespace sluice::machine {
namespace {

using Admission = DdrController::Admission;

constexpr uint64_t kPage = 2048;
constexpr uint64_t kRow = 8 * kPage;  // the next row of the same bank
constexpr uint64_t kBlock = 16;

MemorySpec Spec() { return LoadBoard("pynq-z2").value().memory; }

// Offers at the controller's present clock, then collects when each read's data is complete.
class Bench {
 public:
  explicit Bench(const MemorySpec& spec = Spec()) : controller_(spec.ddr, spec.scheduler) {}

  DdrController& controller() { return controller_; }
  void Read(uint64_t address, uint32_t tag) {
    EXPECT_EQ(controller_.Offer(Direction::kRead, address, tag), Admission::kTaken);
  }
  void Write(uint64_t address) {
    EXPECT_EQ(controller_.Offer(Direction::kWrite, address, 0), Admission::kTaken);
  }
  void Run(uint64_t until) {
    for (const DdrController::ReadDone& done : controller_.Advance(until)) {
      done_[done.tag] = done.clock;
      order_.push_back(done.tag);
    }
  }
  uint64_t Done(uint32_t tag) const { return done_.contains(tag) ? done_.at(tag) : 0; }
  const std::vector<uint32_t>& order() const { return order_; }

 private:
  DdrController controller_;
  std::map<uint32_t, uint64_t> done_;
  std::vector<uint32_t> order_;
};

TEST(DdrController, AClosedRowTakesActivateAccessAndFourClocksOfData) {
  Bench bench;
  bench.Read(0, 1);
  bench.Run(100);
  EXPECT_EQ(bench.Done(1), 7 + 7 + 4);  // tRCD, CL, data
}

TEST(DdrController, AReadIsIssuedAtTheClockThatRcdAllowsAndNotBefore) {
  Bench bench;
  bench.Read(0, 1);
  bench.Run(7);
  EXPECT_TRUE(bench.order().empty());
  bench.Run(8);
  EXPECT_EQ(bench.order().size(), 1u);
}

TEST(DdrController, ReadsOfAnOpenRowFollowEveryFourClocks) {
  Bench bench;
  for (uint32_t i = 0; i < 8; ++i) bench.Read(i * kBlock, i);
  bench.Run(100);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(bench.Done(i), 18 + 4 * i);
}

TEST(DdrController, AnotherRowOfTheBankWaitsForTheRowCycle) {
  Bench bench;
  bench.Read(0, 1);
  bench.Read(kRow, 2);
  bench.Run(200);
  // Precharge at tRAS 19, activate at 26, read at 33.
  EXPECT_EQ(bench.Done(2), 33 + 7 + 4);
  EXPECT_EQ(bench.controller().account().activates, 2u);
  EXPECT_EQ(bench.controller().account().precharges, 1u);
}

TEST(DdrController, ARowStaysOpenForRas) {
  MemorySpec spec = Spec();
  spec.ddr.ras = 30;
  spec.ddr.rc = 31;
  Bench bench(spec);
  bench.Read(0, 1);
  bench.Read(kRow, 2);
  bench.Run(200);
  EXPECT_EQ(bench.Done(2), 30 + 7 + 7 + 7 + 4);
}

TEST(DdrController, AnotherBankIsActivatedRrdLaterBehindTheFirstRead) {
  Bench bench;
  bench.Read(0, 1);
  bench.Read(kPage, 2);
  bench.Run(100);
  EXPECT_EQ(bench.Done(2), 6 + 7 + 7 + 4);
}

TEST(DdrController, RowsAreOpenedOnlyForTheOldestAccessesOfTheLookAhead) {
  MemorySpec spec = Spec();
  spec.scheduler.row_lookahead = 2;
  Bench bench(spec);
  for (uint32_t i = 0; i < 3; ++i) bench.Read(i * kPage, i);
  bench.Run(100);
  EXPECT_EQ(bench.Done(1), 6 + 18);
  // The third is among the two oldest once the first was issued at clock 7; activates are 6 apart.
  EXPECT_EQ(bench.Done(2), 12 + 18);
  spec.scheduler.row_lookahead = 1;
  Bench narrow(spec);
  for (uint32_t i = 0; i < 3; ++i) narrow.Read(i * kPage, i);
  narrow.Run(100);
  EXPECT_EQ(narrow.Done(1), 8 + 18);
  EXPECT_EQ(narrow.Done(2), 16 + 18);
}

TEST(DdrController, AQueueThatIsNotServedPreparesNoRows) {
  Bench bench;
  for (uint32_t i = 0; i < 8; ++i) bench.Read(i * kBlock, i);
  bench.Write(kPage);
  bench.Run(30);
  EXPECT_EQ(bench.controller().account().activates, 1u);
  bench.Run(100);
  EXPECT_EQ(bench.controller().account().activates, 2u);
}

TEST(DdrController, TheFifthActivateWaitsForFaw) {
  MemorySpec spec = Spec();
  spec.ddr.faw = 40;
  Bench bench(spec);
  for (uint32_t i = 0; i < 5; ++i) bench.Read(i * kPage, i);
  bench.Run(200);
  EXPECT_EQ(bench.Done(3), 18 + 18);
  EXPECT_EQ(bench.Done(4), 40 + 18);
}

TEST(DdrController, AWriteBehindAReadWaitsReadToWrite) {
  Bench bench;
  bench.Read(0, 1);
  bench.Write(kBlock);
  bench.Run(100);
  const DdrAccount& account = bench.controller().account();
  EXPECT_EQ(account.writes, 1u);
  EXPECT_EQ(account.turnaround, 7u - 4);
}

TEST(DdrController, AReadBehindAWriteWaitsWriteToRead) {
  Bench bench;
  bench.Write(0);
  bench.Run(8);  // the write is issued at clock 7
  ASSERT_EQ(bench.controller().account().writes, 1u);
  bench.Read(kBlock, 1);
  bench.Run(100);
  EXPECT_EQ(bench.Done(1), 7 + 15 + 7 + 4);
  EXPECT_EQ(bench.controller().account().turnaround, 15u - 4);
}

TEST(DdrController, AWrittenRowIsPrechargedAfterWriteToPrecharge) {
  Bench bench;
  bench.Write(0);
  bench.Run(8);
  bench.Read(kRow, 1);
  bench.Run(100);
  EXPECT_EQ(bench.Done(1), 7 + 19 + 7 + 7 + 7 + 4);
}

TEST(DdrController, AnOpenRowGoesBeforeAnOlderAccessToAnotherRowOfItsBank) {
  Bench bench;
  bench.Read(0, 1);
  bench.Run(20);
  bench.Read(kRow, 2);
  bench.Read(kBlock, 3);
  bench.Run(100);
  EXPECT_EQ(bench.order(), (std::vector<uint32_t>{1, 3, 2}));
}

TEST(DdrController, AnAgedAccessIsNoLongerOvertakenInItsBank) {
  MemorySpec spec = Spec();
  Bench bench(spec);
  bench.Read(0, 0);
  bench.Run(20);
  bench.Read(kRow, 1);
  // An endless stream of hits on the first row, four clocks apart.
  uint64_t served_at = 0;
  for (uint32_t i = 1; i < 300 && served_at == 0; ++i) {
    bench.Read(kBlock * (i % 128), 1000 + i);
    bench.Run(20 + 4 * i);
    served_at = bench.Done(1);
  }
  ASSERT_NE(served_at, 0u) << "starved";
  EXPECT_GE(served_at, 20u + spec.scheduler.age_clocks);
  EXPECT_LE(served_at, 20u + spec.scheduler.age_clocks + 5 + 7 + 7 + 7 + 4 + 8);
}

TEST(DdrController, SequentialReadsHideTheActivatesOfTheNextPages) {
  Bench bench;
  uint64_t address = 0;
  uint64_t clock = 0;
  while (clock < 4000) {  // before the first refresh
    while (!bench.controller().Full(Direction::kRead)) {
      bench.Read(address, static_cast<uint32_t>(address / kBlock));
      address += kBlock;
    }
    bench.Run(clock += 4);
  }
  const DdrAccount& account = bench.controller().account();
  EXPECT_EQ(account.row, 7u);  // the first activate alone
  EXPECT_GE(account.activates, 7u);
}

TEST(DdrController, WritesWaitWhileReadsAreServedUntilTheyStarve) {
  const MemorySpec spec = Spec();
  for (uint64_t start = 100; start < 400; start += 7) {
    Bench bench(spec);
    uint32_t tag = 0;
    const auto run_to = [&](uint64_t clock) {
      while (!bench.controller().Full(Direction::kRead)) {
        bench.Read(kBlock * (tag % 128), tag);
        ++tag;
      }
      bench.Run(clock);
    };
    while (bench.controller().now() < start) run_to(bench.controller().now() + 1);
    bench.Write(kPage);
    while (bench.controller().account().writes == 0 && bench.controller().now() < start + 500) {
      run_to(bench.controller().now() + 1);
    }
    const uint64_t waited = bench.controller().now() - start;
    EXPECT_GE(waited, spec.scheduler.starve_clocks) << start;
    EXPECT_LE(waited, spec.scheduler.starve_clocks + 12) << start;
  }
}

TEST(DdrController, AStarvedWriteIsServedWhileAReadWaitsForItsRow) {
  MemorySpec spec = Spec();
  spec.scheduler.starve_clocks = 10;
  Bench bench(spec);
  bench.Read(0, 1);
  bench.Read(kRow, 2);  // issued at clock 33
  bench.Write(kPage);   // critical at 10, its row open at 17
  bench.Run(17);
  EXPECT_EQ(bench.controller().account().writes, 0u);
  bench.Run(18);
  EXPECT_EQ(bench.controller().account().writes, 1u);
}

TEST(DdrController, AWriteToAQueuedBlockJoinsIt) {
  Bench bench;
  bench.Write(0);
  bench.Write(8);
  bench.Run(100);
  EXPECT_EQ(bench.controller().account().writes, 1u);
  EXPECT_EQ(bench.controller().account().combined_writes, 1u);
}

TEST(DdrController, AReadOfAQueuedWritesBlockIsRefusedUntilTheWriteIsDone) {
  Bench bench;
  for (uint32_t i = 0; i < 8; ++i) bench.Read(i * kBlock, i);
  bench.Write(kPage);
  EXPECT_EQ(bench.controller().Offer(Direction::kRead, kPage + 8, 9), Admission::kConflict);
  uint64_t clock = 0;
  while (bench.controller().Offer(Direction::kRead, kPage + 8, 9) == Admission::kConflict) {
    ASSERT_LT(clock, 200u);
    bench.Run(clock += 4);
  }
  EXPECT_EQ(bench.controller().account().writes, 1u);
}

TEST(DdrController, AFullQueueRefuses) {
  Bench bench;
  for (uint32_t i = 0; i < 32; ++i) bench.Read(i * kBlock, i);
  EXPECT_TRUE(bench.controller().Full(Direction::kRead));
  EXPECT_FALSE(bench.controller().Full(Direction::kWrite));
  EXPECT_EQ(bench.controller().Offer(Direction::kRead, 0, 0), Admission::kFull);
}

TEST(DdrController, ARefreshComesEveryRefiAndClosesAllRows) {
  const MemorySpec spec = Spec();
  Bench bench(spec);
  bench.Run(10 * uint64_t{spec.ddr.refi} + 1000);
  EXPECT_EQ(bench.controller().account().refreshes, 10u);
  EXPECT_EQ(bench.controller().account().refresh, 10u * spec.ddr.rfc);
  bench.Read(0, 1);
  const uint64_t before = bench.controller().now();
  bench.Run(before + 100);
  EXPECT_EQ(bench.Done(1), before + 18);
}

TEST(DdrController, EveryClockOfRandomTrafficIsAccountedForOnce) {
  const uint64_t seed = 7;
  std::mt19937_64 random(seed);
  Bench bench;
  DdrController& controller = bench.controller();
  for (int i = 0; i < 20000; ++i) {
    const uint64_t address = random() % (1 << 20);
    if (random() % 3 != 0) {
      controller.Offer(random() % 2 != 0 ? Direction::kRead : Direction::kWrite, address, 0);
    }
    controller.Advance(controller.now() + random() % 20);
  }
  controller.Advance(controller.now() + 1000);
  const DdrAccount& account = controller.account();
  EXPECT_EQ(account.Clocks(), controller.now());
  EXPECT_EQ(account.read_data, 4 * account.reads);
  EXPECT_EQ(account.write_data, 4 * account.writes);
  EXPECT_GT(account.turnaround, 0u);
  EXPECT_GT(account.row, 0u);
  EXPECT_GT(account.idle, 0u);
}

// The account does not depend on how the time is cut into calls.
TEST(DdrController, AdvancingInOneStepOrManyIsTheSame) {
  const auto run = [](uint64_t step) {
    std::mt19937_64 random(3);
    Bench bench;
    for (int i = 0; i < 500; ++i) {
      for (int k = 0; k < 8; ++k) {
        const auto direction = random() % 4 == 0 ? Direction::kWrite : Direction::kRead;
        bench.controller().Offer(direction, random() % (1 << 18), static_cast<uint32_t>(i * 8 + k));
      }
      const uint64_t end = bench.controller().now() + 60;
      while (bench.controller().now() < end) {
        bench.Run(std::min(end, bench.controller().now() + step));
      }
    }
    return std::tuple(bench.order(), bench.controller().account().row,
                      bench.controller().account().turnaround);
  };
  EXPECT_EQ(run(1), run(60));
  EXPECT_EQ(run(7), run(60));
}

}  // namespace
}  // namespace sluice::machine
