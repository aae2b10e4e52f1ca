#include "exec/cpu/kernels.h"

#include <algorithm>
#include <string>

#include "fixed/functions.h"

namespace sluice::exec::cpu {

Tables MakeTables() {
  Tables tables;
  std::copy(fixed::kExp2Table.begin(), fixed::kExp2Table.end(), tables.exp2.begin());
  for (size_t i = 0; i < tables.sigmoid.size(); ++i) {
    const uint64_t rise = fixed::kSigmoidTable[i + 1] - fixed::kSigmoidTable[i];
    tables.sigmoid[i] = fixed::kSigmoidTable[i] | rise << 32;
  }
  return tables;
}

base::Result<const Kernels*> ChooseKernels(std::string_view forced) {
  if (forced.empty()) {
    if (const Kernels* kernels = Avx512VnniKernels()) return kernels;
    if (const Kernels* kernels = Avx2Kernels()) return kernels;
    return &ScalarKernels();
  }
  if (forced == "scalar") return &ScalarKernels();
  const Kernels* kernels = nullptr;
  if (forced == "avx2") {
    kernels = Avx2Kernels();
  } else if (forced == "avx512vnni") {
    kernels = Avx512VnniKernels();
  } else {
    return base::Fail("SLUICE_ISA", base::Printable(forced), "scalar, avx2 or avx512vnni");
  }
  if (kernels == nullptr) {
    return base::Fail("SLUICE_ISA",
                      std::string(forced) + ": this processor does not have these instructions");
  }
  return kernels;
}

}  // namespace sluice::exec::cpu
