// Two executors side by side, instruction by instruction.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "base/progress.h"
#include "exec/executor.h"

namespace sluice::session {

struct Difference {
  uint32_t position = 0;     // of the token
  uint32_t instruction = 0;  // index in the Program; its size means the final candidates
  std::string what;          // the instruction's disassembly
  size_t element = 0;
  int32_t first = 0;   // what the first executor has there
  int32_t second = 0;  // what the second has
};

struct Verified {
  uint64_t tokens = 0;
  uint64_t instructions = 0;  // results compared, one per instruction and token
  uint64_t values = 0;
  std::optional<Difference> difference;  // the first; nothing after it was compared
};

// Reads `prompt` in blocks of `block` tokens, then generates greedily up to `tokens` tokens in all,
// on both, comparing every instruction's result. Stops at the first difference.
base::Result<Verified> Verify(exec::Executor& first, exec::Executor& second,
                              const program::Program& program, std::span<const int32_t> prompt,
                              uint32_t block, uint32_t tokens, const base::Progress& progress);

}  // namespace sluice::session
