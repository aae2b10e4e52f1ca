#include "session/engine.h"

#include <fmt/format.h>

#include "exec/cpu/cpu_executor.h"
#include "exec/ref/ref_executor.h"
#if defined(SLUICE_HAS_RTL)
#include "exec/rtl/rtl_executor.h"
#endif

namespace sluice::session {

base::Result<std::unique_ptr<exec::Executor>> MakeExecutor(const program::LoadedPack& loaded,
                                                           const EngineOptions& options) {
  if (options.executor == "cpu") {
    return exec::MakeCpuExecutor(loaded.pack->bytes(), loaded.program,
                                 {.threads = options.threads, .context = options.context});
  }
  if (options.executor == "ref") {
    return exec::MakeRefExecutor(loaded.pack->bytes(), loaded.program, options.context);
  }
  if (options.executor == "rtl") {
#if defined(SLUICE_HAS_RTL)
    return exec::MakeRtlExecutor(
        loaded.pack->bytes(), loaded.program,
        {.configuration = options.configuration, .context = options.context});
#else
    return base::Fail("executor rtl", "a build without it", "Verilator installed when building");
#endif
  }
  return base::Fail(fmt::format("executor {}", options.executor), "unknown", "cpu, ref or rtl");
}

base::Result<std::unique_ptr<Engine>> OpenEngine(const std::string& pack_path,
                                                 const EngineOptions& options) {
  SLUICE_TRY(auto loaded, program::LoadPack(pack_path));
  auto tokenizer = text::Tokenizer::FromMetadata(loaded.pack->metadata());
  if (!tokenizer) return std::unexpected(tokenizer.error().In(pack_path));
  if (tokenizer->size() > loaded.program.sizes().vocab) {
    return base::Fail(pack_path, fmt::format("a tokenizer of {} tokens", tokenizer->size()),
                      fmt::format("at most the model's {}", loaded.program.sizes().vocab));
  }
  auto engine = std::make_unique<Engine>(Engine{std::move(loaded), std::move(*tokenizer), nullptr});
  SLUICE_TRY(engine->executor, MakeExecutor(engine->loaded, options));
  return engine;
}

}  // namespace sluice::session
