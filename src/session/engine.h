// A pack made ready to talk: its tokenizer, its chat template and an executor over it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "exec/executor.h"
#include "program/loaded_pack.h"
#include "text/tokenizer.h"

namespace sluice::session {

struct EngineOptions {
  std::string executor = "cpu";             // "cpu", "ref" or "rtl"
  std::string configuration = "z2_decode";  // of "rtl"
  unsigned threads = 0;                     // 0: one per core
  uint32_t context = 0;                     // positions of KV cache; 0: all the pack has
};

struct Engine {
  program::LoadedPack loaded;
  text::Tokenizer tokenizer;
  std::unique_ptr<exec::Executor> executor;
};

// Errors: the pack's, the tokenizer's (also one whose tokens outnumber the model's rows), an
// unknown executor, or one that this build does not have.
base::Result<std::unique_ptr<Engine>> OpenEngine(const std::string& pack_path,
                                                 const EngineOptions& options);

base::Result<std::unique_ptr<exec::Executor>> MakeExecutor(const program::LoadedPack& loaded,
                                                           const EngineOptions& options);

}  // namespace sluice::session
