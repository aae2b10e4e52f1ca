// Loops that depend on each other, shared among the threads of one ThreadPool::OnEachThread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::base {

// Every thread walks through the same phases, each a loop over [0, count). Its chunks go to
// whoever comes first, and no thread leaves a phase before all of them are done; what was written
// in a phase is seen by all in the next. A thread that the system has put aside holds the others
// up only if it holds a chunk: unlike at a barrier, nobody waits for it to arrive. Made for phases
// of microseconds: waiting polls for a while before it sleeps.
class Phases {
 public:
  explicit Phases(unsigned threads) : threads_(threads) {}

  // Starts over with `count` phases. Only while no thread walks. Throws std::bad_alloc.
  void Reset(size_t count);

  // Calls body(begin, end) for the chunks of phase `index` that this thread gets, in ascending
  // order. All threads must pass the same index and count.
  template <typename Body>
  void Share(size_t index, uint32_t count, const Body& body) {
    Phase& phase = phases_[index];
    uint32_t begin = phase.next.load(std::memory_order_relaxed);
    while (begin < count) {
      // Large chunks first, for their locality, and small ones last, to end together.
      const uint32_t chunk = 1 + (count - begin) * 2 / (3 * threads_);
      if (!phase.next.compare_exchange_weak(begin, begin + chunk, std::memory_order_relaxed)) {
        continue;
      }
      body(begin, begin + chunk);
      Finish(phase, chunk, count);
      begin = phase.next.load(std::memory_order_relaxed);
    }
    Wait(phase, count);
  }

  // A phase that only the thread that passes `mine` works in.
  template <typename Body>
  void Alone(size_t index, bool mine, const Body& body) {
    Phase& phase = phases_[index];
    if (mine) {
      body();
      Finish(phase, 1, 1);
    }
    Wait(phase, 1);
  }

 private:
  struct alignas(64) Phase {
    Phase() = default;
    Phase(const Phase&) : Phase() {}  // for std::vector, which only ever copies fresh ones
    std::atomic<uint32_t> next{0};    // item
    std::atomic<uint32_t> done{0};    // items
  };

  static void Finish(Phase& phase, uint32_t items, uint32_t count);
  static void Wait(const Phase& phase, uint32_t count);

  const unsigned threads_;
  std::vector<Phase> phases_;
};

}  // namespace sluice::base
