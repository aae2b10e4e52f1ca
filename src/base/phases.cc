#include "base/phases.h"

namespace sluice::base {
namespace {

// Some tens of microseconds: longer than a chunk, shorter than a time slice.
constexpr int kSpins = 1000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Phases::Reset(size_t count) {
  if (phases_.size() < count) phases_ = std::vector<Phase>(count);
  for (Phase& phase : phases_) {
    phase.next.store(0, std::memory_order_relaxed);
    phase.done.store(0, std::memory_order_relaxed);
  }
}

void Phases::Finish(Phase& phase, uint32_t items, uint32_t count) {
  if (phase.done.fetch_add(items, std::memory_order_acq_rel) + items == count) {
    phase.done.notify_all();
  }
}

void Phases::Wait(const Phase& phase, uint32_t count) {
  for (int i = 0; i < kSpins; ++i) {
    if (phase.done.load(std::memory_order_acquire) == count) return;
    Pause();
  }
  while (true) {
    const uint32_t done = phase.done.load(std::memory_order_acquire);
    if (done == count) return;
    phase.done.wait(done, std::memory_order_acquire);
  }
}

}  // namespace sluice::base
