// Persistent worker threads for data-parallel loops.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice::base {

class ThreadPool {
 public:
  // `threads` counts the calling thread, so 1 starts none; 0 means one per available core.
  // Throws std::system_error, as std::thread does, if the system starts no more threads.
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned size() const { return static_cast<unsigned>(workers_.size()) + 1; }

  // Calls body(i) once for every i in [0, count), in any order, on all threads, and returns when
  // all calls have returned. Items are handed out one at a time, so they may differ in length.
  // Not reentrant: body must not call the pool.
  void ParallelFor(size_t count, const std::function<void(size_t)>& body);

  // Calls body(thread) once on each of size() threads, the caller being thread 0.
  void OnEachThread(const std::function<void(unsigned)>& body);

 private:
  void WorkerLoop(unsigned index);
  void Stop();

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(unsigned)>* job_ = nullptr;
  std::atomic<uint64_t> generation_{0};  // counts jobs; a worker runs each generation once
  std::atomic<unsigned> running_{0};     // workers that have not finished the current job
  std::atomic<unsigned> sleeping_{0};
  std::atomic<bool> stop_{false};
};

// Cores this process may use (its affinity mask), at least 1.
unsigned AvailableCores();

}  // namespace sluice::base
