#include "base/thread_pool.h"

#include <sched.h>

namespace sluice::base {
namespace {

// How long a worker polls for the next job before it sleeps: longer than the gaps between the
// instructions of one token, far shorter than a user's think time. Polling yields to other
// programs, so that with fewer free cores than threads the pool still makes progress.
constexpr int kSpins = 2000;
constexpr int kYields = 50;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

unsigned AvailableCores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count > 0 ? static_cast<unsigned>(count) : 1;
}

ThreadPool::ThreadPool(unsigned threads) {
  if (threads == 0) threads = AvailableCores();
  try {
    for (unsigned i = 1; i < threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
  } catch (...) {
    Stop();  // a thread that was started must be joined before it is destroyed
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::WorkerLoop(unsigned index) {
  uint64_t seen = 0;
  while (true) {
    for (int i = 0; i < kSpins + kYields && generation_ == seen && !stop_; ++i) {
      if (i < kSpins) {
        Pause();
      } else {
        std::this_thread::yield();
      }
    }
    if (generation_ == seen && !stop_) {
      std::unique_lock lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, [&] { return generation_ != seen || stop_; });
      --sleeping_;
    }
    if (stop_) return;
    seen = generation_;
    (*job_)(index);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::OnEachThread(const std::function<void(unsigned)>& body) {
  if (workers_.empty()) {
    body(0);
    return;
  }
  job_ = &body;
  running_ = static_cast<unsigned>(workers_.size());
  {
    std::lock_guard lock(mutex_);
    ++generation_;
  }
  if (sleeping_ > 0) wake_.notify_all();
  body(0);
  for (int i = 0; running_.load(std::memory_order_acquire) > 0; ++i) {
    if (i < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::ParallelFor(size_t count, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  OnEachThread([&](unsigned) {
    for (size_t i = next++; i < count; i = next++) body(i);
  });
}

}  // namespace sluice::base
