// Invariants of the program itself: a failed check is a bug of ours, so it ends the process.
#pragma once

namespace sluice::base {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace sluice::base

#define SLUICE_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::sluice::base::CheckFailed(__FILE__, __LINE__, #condition))
