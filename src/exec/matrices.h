// A pack's matrices read one value at a time: the reference, and what scores the few rows that a
// screened head ranks again. docs/numerics.md has the formulas.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "fixed/rounding.h"
#include "pack/layout.h"
#include "program/instruction.h"
#include "quant/quantized_matrix.h"

namespace sluice::exec {

// The tables and matrices of a pack, value by value.
class Matrices {
 public:
  explicit Matrices(std::span<const uint8_t> pack) : pack_(pack) {}

  template <typename T>
  T Read(uint32_t line, uint64_t index) const {
    T value;
    std::memcpy(&value, pack_.data() + uint64_t{line} * pack::kLineBytes + index * sizeof(T),
                sizeof(T));
    return value;
  }

  // Level of (row, column) in the high or low plane; see pack/layout.h.
  int Level(const program::Instruction& i, uint32_t row, uint32_t column, bool low) const {
    const uint64_t tile = row / pack::kTileRows;
    const uint32_t r = row % pack::kTileRows;
    const uint64_t header = pack::HeaderBytes(i.cols, i.group);
    const uint64_t plane =
        low ? uint64_t{i.low} * pack::kLineBytes + tile * i.low_stride
            : uint64_t{i.weights} * pack::kLineBytes + tile * i.tile_stride + header;
    const uint32_t in_unit = column % pack::kUnitColumns;
    const uint64_t unit = column / pack::kUnitColumns;
    const uint8_t byte = pack_[plane + unit * pack::kUnitBytes + 4 * r + in_unit % 4];
    const int nibble = in_unit < 4 ? byte & 15 : byte >> 4;
    if (i.planes == 2) return nibble - 8;
    return quant::Levels(static_cast<quant::Codebook>(i.codebook))[static_cast<size_t>(nibble)];
  }

  // The weight in units of its sub-scale; `low` false leaves the low plane out.
  int Weight(const program::Instruction& i, uint32_t row, uint32_t column, bool low) const {
    const int high = Level(i, row, column, false);
    if (i.planes == 1) return high;
    return 16 * high + (low ? Level(i, row, column, true) : 0);
  }

  int SubScale(const program::Instruction& i, uint32_t row, uint32_t group) const {
    const uint64_t at = uint64_t{i.weights} * pack::kLineBytes +
                        uint64_t{row / pack::kTileRows} * i.tile_stride +
                        uint64_t{group} * pack::kTileRows + row % pack::kTileRows;
    return static_cast<int8_t>(pack_[at]);
  }

  int RowMantissa(const program::Instruction& i, uint32_t row) const {
    return Read<int16_t>(i.row_table, uint64_t{row} * 2);
  }
  int RowExponent(const program::Instruction& i, uint32_t row) const {
    return Read<int8_t>(i.row_table, uint64_t{row} * 4 + 2);
  }

  // One row of a matrix times activations, before the row's scale.
  int32_t Accumulate(const program::Instruction& i, uint32_t row, std::span<const int8_t> q,
                     std::span<const int> exponents, int largest, bool low) const {
    int64_t sum = 0;
    for (uint32_t g = 0; g < i.cols / i.group; ++g) {
      int32_t dot = 0;
      for (uint32_t c = g * i.group; c < (g + 1u) * i.group; ++c) {
        dot += Weight(i, row, c, low) * q[c];
      }
      sum += fixed::FloorShift32(SubScale(i, row, g) * dot, largest - exponents[g]);
    }
    // The packer proves that a row's sum fits; a damaged pack wraps, alike everywhere.
    return static_cast<int32_t>(static_cast<uint32_t>(sum));
  }

  // y of one row in units of 2^-fraction.
  int32_t Row(const program::Instruction& i, uint32_t row, std::span<const int8_t> q,
              std::span<const int> exponents, int largest, bool low) const {
    return fixed::RoundShiftSat32(
        int64_t{Accumulate(i, row, q, exponents, largest, low)} * RowMantissa(i, row),
        RowExponent(i, row) - largest - i.fraction);
  }

 private:
  std::span<const uint8_t> pack_;
};

}  // namespace sluice::exec
