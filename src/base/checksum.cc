#include "base/checksum.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "base/check.h"

namespace sluice::base {
namespace {

constexpr std::array<uint32_t, 256> MakeCrc32cTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t Crc32cHardware(std::span<const uint8_t> bytes,
                                                          uint32_t crc) {
  size_t i = 0;
  uint64_t wide = crc;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    __builtin_memcpy(&word, bytes.data() + i, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; i < bytes.size(); ++i) crc = __builtin_ia32_crc32qi(crc, bytes[i]);
  return crc;
}
#endif

}  // namespace

uint32_t Crc32c(std::span<const uint8_t> bytes, uint32_t previous) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~Crc32cHardware(bytes, ~previous);
#endif
  return Crc32cPortable(bytes, previous);
}

uint32_t Crc32cPortable(std::span<const uint8_t> bytes, uint32_t previous) {
  uint32_t crc = ~previous;
  static constexpr auto kTable = MakeCrc32cTable();
  for (const uint8_t byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ byte) & 0xff];
  return ~crc;
}

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  SLUICE_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(std::span<const uint8_t> bytes) {
  SLUICE_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Finish() {
  std::array<unsigned char, 32> digest;
  unsigned length = 0;
  SLUICE_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &length) == 1 && length == 32);
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace sluice::base
