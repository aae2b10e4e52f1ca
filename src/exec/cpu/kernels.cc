#include "exec/cpu/kernels.h"

#include <cstdlib>

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

std::vector<const Kernels*> SupportedKernels() {
  std::vector<const Kernels*> supported;
  for (const Kernels* kernels :
       {Avx512VnniKernels(), Avx2Kernels(), NeonDotprodKernels(), NeonKernels()}) {
    if (kernels != nullptr) supported.push_back(kernels);
  }
  supported.push_back(&ScalarKernels());
  return supported;
}

base::Result<const Kernels*> ChooseKernels(std::string_view forced) {
  const auto supported = SupportedKernels();
  if (forced.empty()) return supported.front();
  std::string names;
  for (const Kernels* kernels : supported) {
    if (kernels->name == forced) return kernels;
    names += (names.empty() ? "" : ", ") + std::string(kernels->name);
  }
  return base::Fail("SLUICE_ISA", base::Printable(forced), "what this processor has: " + names);
}

base::Result<const Kernels*> KernelsOfEnvironment() {
  const char* forced = std::getenv("SLUICE_ISA");
  return ChooseKernels(forced == nullptr ? "" : forced);
}

}  // namespace sluice::exec::cpu
