#include "allocation_meter.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> alive{0};
std::atomic<int64_t> peak_alive{0};

void* Allocate(size_t size) {
  void* data = std::malloc(std::max<size_t>(size, 1));
  if (data == nullptr) std::abort();
  const int64_t now = alive += static_cast<int64_t>(malloc_usable_size(data));
  int64_t peak = peak_alive;
  while (now > peak && !peak_alive.compare_exchange_weak(peak, now)) {
  }
  return data;
}

void Release(void* data) {
  if (data == nullptr) return;
  alive -= static_cast<int64_t>(malloc_usable_size(data));
  std::free(data);
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void operator delete(void* data) noexcept { Release(data); }
void operator delete[](void* data) noexcept { Release(data); }
void operator delete(void* data, size_t) noexcept { Release(data); }
void operator delete[](void* data, size_t) noexcept { Release(data); }

namespace sluice::testing {

AllocationMeter::AllocationMeter() : start_(alive) { peak_alive = start_; }
uint64_t AllocationMeter::peak() const {
  return static_cast<uint64_t>(std::max<int64_t>(peak_alive - start_, 0));
}

}  // namespace sluice::testing
