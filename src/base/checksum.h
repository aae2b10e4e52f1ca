#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace sluice::base {

// CRC-32C (Castagnoli, RFC 3720 appendix B.4), as kept per tensor in a pack.
uint32_t Crc32c(std::span<const uint8_t> bytes, uint32_t previous = 0);
// The same without the processor's instruction for it.
uint32_t Crc32cPortable(std::span<const uint8_t> bytes, uint32_t previous = 0);

// SHA-256 of a stream.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void Update(std::span<const uint8_t> bytes);
  // 64 lower-case hexadecimal digits; call once.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::base
