// Speed of an executor: how fast it reads a prompt, and how fast it makes tokens with a context
// before them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "exec/executor.h"

namespace sluice::session {

struct BenchTest {
  enum class Kind {
    kPrefill,  // `tokens` in the largest blocks that the executor takes, the last one's best wanted
    kDecode    // `tokens` one after the other, the best after each wanted
  };
  Kind kind = Kind::kPrefill;
  uint32_t tokens = 0;  // at least 1
  uint32_t depth = 0;   // positions in the KV cache before the first of them
  // "pp512", "tg64", "tg64 @ d4096".
  std::string Name() const;
};

struct BenchOptions {
  std::vector<BenchTest> tests;
  uint32_t repetitions = 5;
  // Position p always holds the same token, any of the vocabulary, drawn from this. No token is
  // chosen by the model, so that the time of all is the same whatever the weights are.
  uint64_t seed = 1;
};

struct BenchResult {
  std::vector<std::vector<double>> seconds;  // [test][repetition]
  std::vector<double> bandwidth;             // what `bandwidth` gave before each of them
};

// Every repetition runs all tests, so that a disturbance from outside hits them alike; each second
// one backwards, which needs fewer positions to be filled again. Filling is not timed. Before the
// first repetition one block and one token warm up. `bandwidth` (may be empty) is called before
// each test. Errors: the executor's, a test that needs more positions than its context.
base::Result<BenchResult> Bench(exec::Executor& executor, const BenchOptions& options,
                                const std::function<double()>& bandwidth,
                                const base::Progress& progress);

// Of at least one sample; the median of an even number is the mean of the two in the middle.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};
Spread SpreadOf(std::vector<double> samples);

}  // namespace sluice::session
