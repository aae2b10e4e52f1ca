// Runs of executors recorded whole, and compared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "exec/executor.h"
#include "exec/ref/ref_executor.h"
#include "program/loaded_pack.h"

namespace sluice::exec {

struct Event {
  uint32_t instruction;
  uint32_t position;
  std::vector<int32_t> values;
  bool operator==(const Event&) const = default;
};

// All that can be seen of a run, ordered by position, so that runs in different blocks compare.
struct Seen {
  std::vector<Event> events;
  std::vector<Candidates> candidates;
};

struct Run {
  std::vector<int32_t> tokens;
  uint32_t position = 0;
  Want want = Want::kAll;
};

inline void RunBlock(Executor& executor, const Run& run, Seen& seen) {
  executor.SetTrace([&](const TraceEvent& e) {
    seen.events.push_back(
        {e.instruction, run.position + e.token, {e.values.begin(), e.values.end()}});
  });
  auto result = executor.Run({run.tokens, run.position, run.want, {}});
  ASSERT_TRUE(result) << result.error().ToString();
  seen.candidates.insert(seen.candidates.end(), result->begin(), result->end());
}

inline Seen RunBlocks(Executor& executor, const std::vector<Run>& runs) {
  Seen seen;
  for (const Run& run : runs) RunBlock(executor, run, seen);
  return seen;
}

// Cuts `tokens` into consecutive blocks of these lengths, the last repeated.
inline std::vector<Run> Cut(const std::vector<int32_t>& tokens, std::vector<uint32_t> lengths) {
  std::vector<Run> runs;
  for (uint32_t at = 0, k = 0; at < tokens.size(); ++k) {
    const uint32_t length = std::min<uint32_t>(lengths[std::min<size_t>(k, lengths.size() - 1)],
                                               static_cast<uint32_t>(tokens.size()) - at);
    runs.push_back({{tokens.begin() + at, tokens.begin() + at + length}, at, Want::kAll});
    at += length;
  }
  return runs;
}

inline std::vector<int32_t> RandomTokens(uint64_t seed, size_t count, uint32_t vocab) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % vocab));
  return tokens;
}

inline std::unique_ptr<Executor> MakeRef(const program::LoadedPack& pack) {
  auto made = MakeRefExecutor(pack.pack->bytes(), pack.program, 0);
  EXPECT_TRUE(made);
  return *std::move(made);
}

inline void ExpectSame(Seen found, Seen expected) {
  const auto by_position = [](const Event& a, const Event& b) {
    return std::pair(a.position, a.instruction) < std::pair(b.position, b.instruction);
  };
  std::ranges::stable_sort(found.events, by_position);
  std::ranges::stable_sort(expected.events, by_position);
  ASSERT_EQ(found.events.size(), expected.events.size());
  for (size_t k = 0; k < found.events.size(); ++k) {
    const Event& f = found.events[k];
    const Event& e = expected.events[k];
    ASSERT_EQ(f.instruction, e.instruction);
    ASSERT_EQ(f.position, e.position);
    if (f.values != e.values) {
      const auto at = std::ranges::mismatch(f.values, e.values).in1 - f.values.begin();
      FAIL() << "instruction " << f.instruction << " position " << f.position << " value " << at
             << " of " << e.values.size() << ": " << f.values[at] << ", expected " << e.values[at];
    }
  }
  ASSERT_EQ(found.candidates, expected.candidates);
}

}  // namespace sluice::exec
