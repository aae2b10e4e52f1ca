// Packs of random integers, made without any quantiser: what bit-exactness is tested on.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "program/loaded_pack.h"

namespace sluice::testing {

// What the numbers of a pack are.
enum class Fill : uint8_t {
  kSane,     // random, in proportions that keep all values in range, as a real model's
  kLowest,   // all weights the lowest level
  kHighest,  // all weights the highest level
  kOutlier,  // kSane, but one channel of the residual is 1000 times the others
  kNoise,    // every table byte random, as in a damaged pack
};

struct RandomPackOptions {
  uint32_t n_layers = 2;
  uint32_t hidden = 96;
  uint32_t ffn = 160;
  uint32_t n_heads = 4;
  uint32_t n_kv_heads = 2;
  uint32_t head_dim = 32;
  uint32_t vocab = 200;
  uint32_t context = 96;
  uint8_t group = 32;
  bool linear = false;     // 4-bit matrices with the linear codebook
  bool k_and_v8 = true;    // k and v in 8 bits
  bool down8 = false;      // o and down in 8 bits
  bool head8 = true;       // embedding and head in 8 bits
  bool screened = true;    // the head; needs head8
  bool tied = true;        // one table for embedding and head
  bool head_norm = false;  // on q and k
  bool bias = false;       // on q, k and v
  uint16_t candidates = 24;
  // Bit (layer * n_kv_heads + KV head) % 64: 16-bit keys.
  uint64_t wide = 0;
  Fill fill = Fill::kSane;
};

// Options drawn from a seed: sizes that are no multiples of the group, all combinations of formats.
RandomPackOptions DrawOptions(uint64_t seed);
// For SCOPED_TRACE.
std::string Describe(const RandomPackOptions& options);

// Writes the pack to `path`; same seed and options give the same bytes.
base::Status WriteRandomPack(uint64_t seed, const RandomPackOptions& options,
                             const std::string& path);

// The same in a temporary file that is gone when this returns, opened. A fault aborts the test.
program::LoadedPack MakeRandomPack(uint64_t seed, const RandomPackOptions& options);

}  // namespace sluice::testing
