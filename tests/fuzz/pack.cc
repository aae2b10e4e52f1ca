// Arbitrary bytes as a pack: no crash; what is accepted runs two tokens inside its memory.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "exec/ref/ref_executor.h"
#include "pack/pack.h"
#include "program/loaded_pack.h"

namespace {

using sluice::program::Instruction;
using sluice::program::Op;

// Multiplications of one token: large programs are checked but not run.
uint64_t Work(const sluice::program::Program& program) {
  uint64_t work = 0;
  for (const Instruction& i : program.instructions()) {
    work += i.op == Op::kMatvec ? uint64_t{i.rows} * i.cols : i.cols;
  }
  return work;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto pack = sluice::pack::Pack::FromBytes({data, size}, "fuzz");
  if (!pack) {
    SLUICE_CHECK(!pack.error().ToString().empty());
    return 0;
  }
  (void)(*pack)->CheckSums({});
  const auto loaded = sluice::program::LoadPack(*pack);
  if (!loaded) {
    SLUICE_CHECK(!loaded.error().ToString().empty());
    return 0;
  }
  const sluice::program::Program& program = loaded->program;
  for (const Instruction& i : program.instructions()) {
    SLUICE_CHECK(sluice::program::Disassemble(i) != "?");
  }
  const sluice::program::Sizes& sizes = program.sizes();
  if (Work(program) > 200'000 || sizes.n_layers * sizes.n_kv_heads > 1000) return 0;
  auto executor = sluice::exec::MakeRefExecutor((*pack)->bytes(), program, 8);
  SLUICE_CHECK(executor.has_value());
  const int32_t last = static_cast<int32_t>(sizes.vocab) - 1;
  std::vector<int32_t> tokens{last};
  if ((*executor)->context() > 1) tokens.push_back(0);
  const auto result =
      (*executor)->Run({.tokens = tokens, .position = 0, .want = sluice::exec::Want::kAll});
  SLUICE_CHECK(result.has_value() && result->size() == tokens.size());
  for (const auto& candidates : *result) SLUICE_CHECK(candidates.size() == sizes.candidates);
  return 0;
}
