#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

namespace sluice::base {
namespace {

TEST(ThreadPool, RunsEachIndexExactlyOnce) {
  for (unsigned threads = 1; threads <= 8; ++threads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const size_t count : {0u, 1u, 2u, 7u, 8u, 9u, 1000u}) {
      std::vector<std::atomic<int>> calls(count);
      pool.ParallelFor(count, [&](size_t i) { ++calls.at(i); });
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(calls[i], 1) << threads << " threads, " << i;
    }
  }
}

TEST(ThreadPool, RunsTheBodyOnceOnEachThread) {
  for (unsigned threads = 1; threads <= 8; ++threads) {
    ThreadPool pool(threads);
    const auto caller = std::this_thread::get_id();
    for (int round = 0; round < 20; ++round) {
      std::vector<std::thread::id> ids(threads);
      std::vector<std::atomic<int>> calls(threads);
      pool.OnEachThread([&](unsigned thread) {
        ++calls.at(thread);
        ids[thread] = std::this_thread::get_id();
      });
      EXPECT_EQ(ids[0], caller);
      for (unsigned i = 0; i < threads; ++i) {
        ASSERT_EQ(calls[i], 1);
        for (unsigned j = 0; j < i; ++j) ASSERT_NE(ids[i], ids[j]);
      }
    }
  }
}

// Plain memory: what the threads write must be there when the call returns, and what was written
// before the call must be there for them.
TEST(ThreadPool, ThousandsOfShortJobsSeeEachOthersResults) {
  ThreadPool pool(3);
  std::vector<uint32_t> values(5, 0);
  for (uint32_t job = 0; job < 2000; ++job) {
    pool.ParallelFor(values.size(), [&](size_t i) { values[i] += static_cast<uint32_t>(i) + job; });
  }
  for (uint32_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], 2000 * i + 2000u * 1999 / 2);
  }
}

TEST(ThreadPool, WakesThreadsThatFellAsleep) {
  ThreadPool pool(4);
  std::atomic<int> calls = 0;
  for (int job = 0; job < 10; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.OnEachThread([&](unsigned) { ++calls; });
  }
  EXPECT_EQ(calls, 40);
}

TEST(ThreadPool, WorksWithMoreThreadsThanCores) {
  ThreadPool pool(AvailableCores() + 20);
  std::atomic<uint64_t> sum = 0;
  for (int job = 0; job < 10; ++job) pool.ParallelFor(500, [&](size_t i) { sum += i; });
  EXPECT_EQ(sum, 10u * 500 * 499 / 2);
}

TEST(ThreadPool, EndsAtOnceWithoutAnyJob) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

// It ended the program: threads that had been started were not joined.
TEST(ThreadPool, ThrowsWhenOneOfManyThreadsCannotBeStarted) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer takes more addresses than the limit";
#endif
  const auto start = [] {
    const rlimit limit{1u << 30, 1u << 30};  // each thread takes the addresses of its stack
    ::setrlimit(RLIMIT_AS, &limit);
    try {
      const ThreadPool pool(5000);
      std::_Exit(1);
    } catch (const std::system_error&) {
      std::_Exit(0);
    }
  };
  EXPECT_EXIT(start(), ::testing::ExitedWithCode(0), "");
}

TEST(ThreadPool, TakesOneThreadPerAvailableCore) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(ThreadPool(0).size(), AvailableCores());
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(AvailableCores(), 1u);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace sluice::base
