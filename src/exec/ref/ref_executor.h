// The numeric contract written down: plain scalar code, one value at a time, slow and obviously
// right. docs/numerics.md explains what is computed here; every other executor must give the same
// bits.
#pragma once

#include <memory>

#include "exec/executor.h"

namespace sluice::exec {

// `pack` is the whole pack in memory, `program` was parsed from it; both must outlive the executor.
// context: positions of KV cache, at most the program's; 0 means all of them. Error: no memory.
base::Result<std::unique_ptr<Executor>> MakeRefExecutor(std::span<const uint8_t> pack,
                                                        const program::Program& program,
                                                        uint32_t context);

}  // namespace sluice::exec
