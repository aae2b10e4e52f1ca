// How fast this machine's cores read memory: the measure that streaming weights is held against.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "base/thread_pool.h"

namespace sluice::base {

// Bytes of the largest level of cache that the machine's cores have, all of them together, as the
// kernel lists them in the folder; 0 if it does not.
uint64_t LastLevelCacheBytes(const std::string& cpus = "/sys/devices/system/cpu");

// A buffer large enough that little of it is in a cache of that size (0: unknown) when it is read
// again: 512 MB or four times the cache, but at most a quarter of the memory that is available
// (0: unknown) and at least 16 MB.
uint64_t ProbeBytes(uint64_t cache, uint64_t available);

// Threads that read one buffer. The buffer is held as long as the probe is.
class BandwidthProbe {
 public:
  // `threads` as for ThreadPool, `bytes` rounded up to whole chunks of 1 MB. Errors: no memory, no
  // more threads.
  static Result<BandwidthProbe> Create(unsigned threads, uint64_t bytes);

  unsigned threads() const { return pool_->size(); }
  uint64_t bytes() const { return buffer_.size_bytes(); }
  // Reads the buffer once, on all threads. Bytes per second.
  double Measure();

 private:
  struct Unmap {
    uint64_t bytes;
    void operator()(uint64_t* buffer) const;
  };

  BandwidthProbe(std::unique_ptr<ThreadPool> pool, std::unique_ptr<uint64_t[], Unmap> memory,
                 uint64_t bytes);

  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<uint64_t[], Unmap> memory_;
  std::span<const uint64_t> buffer_;
};

}  // namespace sluice::base
