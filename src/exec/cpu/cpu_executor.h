// The executor for the host's processor: SIMD, threads, any block size. Same bits as exec/ref.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "exec/executor.h"

namespace sluice::exec {

struct CpuOptions {
  unsigned threads = 0;      // 0: one per core that the process may use
  uint32_t context = 0;      // positions of KV cache, at most the program's; 0: all of those
  uint32_t max_block = 512;  // tokens; memory for activations is taken as blocks need it
};

// `pack` is the whole pack in memory, `program` was parsed from it; both must outlive the executor.
// The KV cache grows with the positions in use. The environment's SLUICE_ISA forces the
// instructions: scalar, avx2 or avx512vnni.
// Errors: SLUICE_ISA unknown or not supported here, a pack that is not aligned to 64 bytes, no
// memory.
base::Result<std::unique_ptr<Executor>> MakeCpuExecutor(std::span<const uint8_t> pack,
                                                        const program::Program& program,
                                                        const CpuOptions& options);

}  // namespace sluice::exec
