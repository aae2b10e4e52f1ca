#include "base/bandwidth.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

namespace sluice::base {
namespace {

constexpr uint64_t kMega = uint64_t{1} << 20;
// Handed out one at a time, so that a thread that is held up leaves the rest to the others.
constexpr uint64_t kChunkWords = kMega / sizeof(uint64_t);

// As many independent sums as keep every load in flight; the compiler makes vectors of them. Even
// with vectors of 16 bytes this is several times faster than one core's memory.
uint64_t Xor(std::span<const uint64_t> words) {
  constexpr size_t kSums = 16;
  std::array<uint64_t, kSums> sums{};
  for (size_t i = 0; i + kSums <= words.size(); i += kSums) {
    for (size_t k = 0; k < kSums; ++k) sums[k] ^= words[i + k];
  }
  uint64_t all = 0;
  for (const uint64_t sum : sums) all ^= sum;
  return all;
}

// First line of a small file of sysfs.
std::string Line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "32768K", "8M", "512"; 0 if it is no number.
uint64_t ParseSize(const std::string& text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const char* unit = std::from_chars(text.data(), end, number).ptr;
  if (unit != end && *unit == 'K') return number << 10;
  if (unit != end && *unit == 'M') return number << 20;
  return number;
}

}  // namespace

uint64_t LastLevelCacheBytes(const std::string& cpus) {
  namespace fs = std::filesystem;
  int largest_level = 0;
  uint64_t bytes = 0;
  std::set<std::string> seen;  // the cores that share one: each shows the same cache
  std::error_code error;
  for (int cpu = 0;; ++cpu) {
    const fs::path core = fs::path(cpus) / fmt::format("cpu{}", cpu);
    if (!fs::is_directory(core, error)) return bytes;
    for (int index = 0;; ++index) {
      const fs::path cache = core / "cache" / fmt::format("index{}", index);
      if (!fs::is_directory(cache, error)) break;  // also a core that is switched off
      const std::string level_text = Line(cache / "level");
      int level = 0;
      std::from_chars(level_text.data(), level_text.data() + level_text.size(), level);
      if (level < largest_level || Line(cache / "type") == "Instruction") continue;
      if (level > largest_level) {
        largest_level = level;
        bytes = 0;
        seen.clear();
      }
      if (seen.insert(Line(cache / "shared_cpu_list")).second) {
        bytes += ParseSize(Line(cache / "size"));
      }
    }
  }
}

uint64_t ProbeBytes(uint64_t cache, uint64_t available) {
  const uint64_t wanted = std::max(512 * kMega, 4 * cache);
  return available == 0 ? wanted : std::clamp(available / 4, 16 * kMega, wanted);
}

void BandwidthProbe::Unmap::operator()(uint64_t* buffer) const { ::munmap(buffer, bytes); }

BandwidthProbe::BandwidthProbe(std::unique_ptr<ThreadPool> pool,
                               std::unique_ptr<uint64_t[], Unmap> memory, uint64_t bytes)
    : pool_(std::move(pool)),
      memory_(std::move(memory)),
      buffer_(memory_.get(), bytes / sizeof(uint64_t)) {}

Result<BandwidthProbe> BandwidthProbe::Create(unsigned threads, uint64_t bytes) {
  const std::string object = "read bandwidth probe";
  bytes = std::max<uint64_t>(1, (bytes + kMega - 1) / kMega) * kMega;
  std::unique_ptr<ThreadPool> pool;
  try {
    pool = std::make_unique<ThreadPool>(threads);
  } catch (const std::system_error& thrown) {
    return Fail(object, fmt::format("cannot start threads: {}", thrown.what()));
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return FailErrno(object, fmt::format("no {} bytes", bytes), errno);
  std::unique_ptr<uint64_t[], Unmap> memory(static_cast<uint64_t*>(data), Unmap{bytes});
  // The best that the machine does: without large pages address translation can be the limit.
  ::madvise(data, bytes, MADV_HUGEPAGE);
  // Written, since untouched pages are all the one page of zeros, and read from the cache.
  pool->ParallelFor(bytes / kMega, [&](size_t chunk) {
    std::memset(memory.get() + chunk * kChunkWords, static_cast<int>(1 + chunk % 255), kMega);
  });
  return BandwidthProbe(std::move(pool), std::move(memory), bytes);
}

double BandwidthProbe::Measure() {
  std::atomic<uint64_t> sum{0};
  const auto start = std::chrono::steady_clock::now();
  pool_->ParallelFor(buffer_.size() / kChunkWords, [&](size_t chunk) {
    sum ^= Xor(buffer_.subspan(chunk * kChunkWords, kChunkWords));
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  [[maybe_unused]] volatile uint64_t used = sum;  // or the compiler may leave the reading out
  return static_cast<double>(bytes()) / std::max(seconds.count(), 1e-9);
}

}  // namespace sluice::base
