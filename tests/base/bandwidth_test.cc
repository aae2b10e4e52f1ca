#include "base/bandwidth.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/temp_dir.h"

namespace sluice::base {
namespace {

constexpr uint64_t kMega = uint64_t{1} << 20;

// Between what a small board's memory and the caches of a large processor read.
TEST(Bandwidth, IsAPlausibleNumberOnOneAndOnTwoThreads) {
  for (const unsigned threads : {1u, 2u}) {
    auto probe = BandwidthProbe::Create(threads, 64 * kMega);
    ASSERT_TRUE(probe) << probe.error().ToString();
    EXPECT_EQ(probe->threads(), threads);
    EXPECT_EQ(probe->bytes(), 64 * kMega);
    double best = 0;
    for (int i = 0; i < 3; ++i) best = std::max(best, probe->Measure());
    EXPECT_GT(best, 50e6) << threads;
    EXPECT_LT(best, 5e12) << threads;
  }
}

TEST(Bandwidth, ReadsAllOfTheBuffer) {
  auto small = BandwidthProbe::Create(1, 1);
  auto large = BandwidthProbe::Create(1, 256 * kMega);
  ASSERT_TRUE(small && large);
  EXPECT_EQ(small->bytes(), kMega);
  const auto seconds = [](BandwidthProbe& probe) {
    double best = 0;
    for (int i = 0; i < 5; ++i) best = std::max(best, probe.Measure());
    return static_cast<double>(probe.bytes()) / best;
  };
  EXPECT_GT(seconds(*large), 10 * seconds(*small));
}

TEST(Bandwidth, ABufferThatDoesNotFitIsAnError) {
  const auto probe = BandwidthProbe::Create(1, uint64_t{1} << 60);
  ASSERT_FALSE(probe);
  EXPECT_EQ(probe.error().object, "read bandwidth probe");
}

TEST(Bandwidth, TheBufferFollowsTheCacheUnlessMemoryIsShort) {
  EXPECT_EQ(ProbeBytes(0, 0), 512 * kMega);
  EXPECT_EQ(ProbeBytes(32 * kMega, 16'000 * kMega), 512 * kMega);
  EXPECT_EQ(ProbeBytes(256 * kMega, 16'000 * kMega), 1024 * kMega);
  EXPECT_EQ(ProbeBytes(kMega, 400 * kMega), 100 * kMega);
  EXPECT_EQ(ProbeBytes(kMega, 10 * kMega), 16 * kMega);
}

TEST(Bandwidth, CountsEachCacheOfTheLargestLevelOnce) {
  const testing::TempDir folder;
  const auto cache = [&](int cpu, int index, const char* level, const char* type, const char* size,
                         const char* shared) {
    const std::string path =
        folder / ("cpu" + std::to_string(cpu)) + "/cache/index" + std::to_string(index);
    std::filesystem::create_directories(path);
    testing::WriteFile(path + "/level", std::string(level) + "\n");
    testing::WriteFile(path + "/type", std::string(type) + "\n");
    testing::WriteFile(path + "/size", std::string(size) + "\n");
    testing::WriteFile(path + "/shared_cpu_list", std::string(shared) + "\n");
  };
  EXPECT_EQ(LastLevelCacheBytes(folder / "none"), 0);
  for (int cpu = 0; cpu < 4; ++cpu) {
    const std::string own = std::to_string(cpu);
    cache(cpu, 0, "1", "Data", "32K", own.c_str());
    cache(cpu, 1, "1", "Instruction", "64K", own.c_str());
    cache(cpu, 2, "2", "Unified", "512K", own.c_str());
  }
  EXPECT_EQ(LastLevelCacheBytes(folder / ""), 4 * 512 * 1024);
  for (int cpu = 0; cpu < 4; ++cpu) cache(cpu, 3, "3", "Unified", "8M", cpu < 2 ? "0-1" : "2-3");
  EXPECT_EQ(LastLevelCacheBytes(folder / ""), 16 * kMega);
}

}  // namespace
}  // namespace sluice::base
