#include "base/phases.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/thread_pool.h"

namespace sluice::base {
namespace {

// Each phase reads what all threads wrote in the one before.
TEST(Phases, EveryItemRunsOnceAndAfterThePhaseBefore) {
  constexpr uint32_t kPhases = 200;
  for (unsigned threads = 1; threads <= 5; ++threads) {
    ThreadPool pool(threads);
    Phases phases(threads);
    for (const uint32_t count : {0u, 1u, 3u, 100u}) {
      std::vector<uint32_t> values(count);
      phases.Reset(kPhases);
      std::atomic<uint32_t> wrong = 0;
      pool.OnEachThread([&](unsigned) {
        for (uint32_t p = 0; p < kPhases; ++p) {
          phases.Share(p, count, [&](uint32_t begin, uint32_t end) {
            for (uint32_t i = begin; i < end; ++i) {
              // Another item's value would be seen half done if phases overlapped.
              if (p % 2 == 0) ++values[i];
              if (p % 2 == 1 && values[count - 1 - i] != p / 2 + 1) ++wrong;
            }
          });
        }
      });
      EXPECT_EQ(wrong, 0u) << threads << " threads, " << count << " items";
      EXPECT_EQ(values, std::vector<uint32_t>(count, kPhases / 2));
    }
  }
}

TEST(Phases, OnlyTheChosenThreadWorksAloneAndTheOthersWait) {
  ThreadPool pool(3);
  Phases phases(3);
  phases.Reset(1);
  std::atomic<int> calls = 0;
  std::atomic<int> early = 0;
  pool.OnEachThread([&](unsigned thread) {
    phases.Alone(0, thread == 1, [&] {
      // Long enough for the others to fall asleep.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++calls;
    });
    if (calls != 1) ++early;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(early, 0);
}

}  // namespace
}  // namespace sluice::base
