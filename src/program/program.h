// Reading a Program out of a pack, checking it, and printing it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "program/instruction.h"

namespace sluice::program {

// RoPE table row of one position: head_dim / 2 pairs of int16 (cosine, sine), unit 2^-14.
constexpr int kRopeFraction = 14;

// What the kModel instruction says.
struct Sizes {
  uint32_t hidden = 0;  // padded
  uint32_t widest = 0;  // padded size of the widest activation vector
  uint32_t vocab = 0;
  uint32_t n_layers = 0;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t context = 0;    // positions that the RoPE table covers
  uint32_t rope_line = 0;  // of the RoPE table, in lines of 128 bytes
  int residual_fraction = 0;
  uint32_t candidates = 0;  // how many the head returns
};

class Program {
 public:
  // `bytes` is the program as it lies in the pack, `pack` the whole pack. Checks everything that
  // executors rely on: known opcodes, sizes within limits, tables inside the pack, buffers written
  // before they are read and of the same width, KV written once per layer before it is attended
  // to. What passes cannot make an executor read or write outside its memory, whatever the tables
  // hold.
  static base::Result<Program> Parse(std::span<const uint8_t> bytes, std::span<const uint8_t> pack,
                                     const std::string& object);

  const Sizes& sizes() const { return sizes_; }
  // Without the kModel instruction in front and the kEnd behind.
  std::span<const Instruction> instructions() const {
    return std::span(stored_).subspan(1, stored_.size() - 2);
  }
  // With both: what a machine that fetches the Program itself reads.
  std::span<const Instruction> stored() const { return stored_; }
  // The instruction that ends in candidates, always the last.
  const Instruction& head() const { return instructions().back(); }

  // Bytes of weights, headers and tables that one token reads, without KV.
  uint64_t BytesPerToken() const;
  // Bytes of KV cache that one position takes.
  uint64_t KvBytesPerPosition() const;

 private:
  Sizes sizes_;
  std::vector<Instruction> stored_;
};

// One line per instruction.
std::string Disassemble(const Instruction& instruction);

// Weight bytes that one pass of the instruction streams (the high plane alone where screened).
uint64_t StreamedBytes(const Instruction& instruction);

}  // namespace sluice::program
