#include "base/proc.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_dir.h"

namespace sluice::base {
namespace {

TEST(Proc, FindsTheFirstFieldOfThatNameAndNoLongerOne) {
  const testing::TempDir folder;
  const std::string path = folder / "cpuinfo";
  std::ofstream(path) << "MemAvailableToo:   1 kB\nno field\nMemAvailable:  42 kB\n"
                      << "model name\t: A: CPU \nMemAvailable: 7 kB\nempty:\n";
  EXPECT_EQ(ProcField(path, "model name"), "A: CPU");
  EXPECT_EQ(ProcField(path, "empty"), "");
  EXPECT_EQ(ProcField(path, "Mem"), std::nullopt);
  EXPECT_EQ(ProcBytes(path, "MemAvailable"), 42 * 1024);
  EXPECT_EQ(ProcBytes(path, "model name"), 0);
  EXPECT_EQ(ProcField(path + "-none", "empty"), std::nullopt);
}

TEST(Proc, TheKernelTellsThisProcessItsMemory) {
  EXPECT_GT(ProcBytes("/proc/self/status", "VmHWM"), 100'000);
}

}  // namespace
}  // namespace sluice::base
