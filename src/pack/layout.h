// How a matrix lies in a pack: tiles of 16 rows that the CPU and the fabric both stream.
//
// One tile of a matrix with G groups of 32 or 64 columns:
//   header  G x 16 signed bytes: sub-scale of (group g, row r) at 16 g + r; padded to 128
//   plane   per group its units of 64 bytes; unit u holds columns 8u .. 8u+7 of the group:
//           byte 4r + c has (row r, column 8u + c) in its low nibble and
//           (row r, column 8u + 4 + c) in its high nibble, r = 0..15, c = 0..3
// A 4-bit matrix has one plane, whose nibbles index a codebook. An 8-bit matrix has a high and a
// low plane, w = 16 * high + low, nibble = level + 8. Either the low plane follows the high one
// within the tile, or (split) all low planes follow all tiles, so that a screened head streams the
// high plane alone.
// Behind the tiles, each aligned to 128: the row table (per row an int16 mantissa, an int8 exponent
// and a zero byte), then optionally a bias table (an int32 a row).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quant/quantized_matrix.h"

namespace sluice::pack {

constexpr uint32_t kTileRows = 16;
constexpr uint32_t kLineBytes = 128;  // an AXI burst of the first board; unit of the offsets
constexpr uint32_t kUnitBytes = 64;
constexpr uint32_t kUnitColumns = 8;

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Bytes of a tile's header and of one plane of it.
constexpr uint64_t HeaderBytes(uint64_t cols, uint32_t group) {
  return RoundUp(cols / group * kTileRows, kLineBytes);
}
constexpr uint64_t PlaneBytes(uint64_t cols) { return cols * kTileRows / 2; }

// All offsets in bytes from the matrix's first byte.
struct Layout {
  uint32_t rows;  // multiple of 16
  uint32_t cols;  // multiple of group
  uint32_t group;
  uint32_t planes;  // 1 or 2
  uint32_t tile_stride;
  uint32_t low_stride;  // from one tile's low plane to the next; 0 with one plane
  uint64_t low_offset;  // the first tile's low plane; 0 with one plane
  uint64_t row_table;
  uint64_t bias_table;  // 0: none
  uint64_t bytes;       // of the whole, a multiple of 128

  uint32_t groups() const { return cols / group; }
  uint32_t header_bytes() const { return static_cast<uint32_t>(HeaderBytes(cols, group)); }
  uint32_t plane_bytes() const { return static_cast<uint32_t>(PlaneBytes(cols)); }
};

// Rows and columns as in the model; they are padded here.
Layout MakeLayout(uint64_t rows, uint64_t cols, uint32_t group, uint32_t planes, bool split_planes,
                  bool has_bias);

// The source of one packed row; matrix == nullptr gives a row of zeros.
struct RowSource {
  const quant::QuantizedMatrix* matrix;
  uint32_t row;
};

// The bytes of the whole matrix. rows.size() <= layout.rows (the rest is zero rows); every source
// has the layout's group and bits. bias: up to layout.rows values, none unless the layout has the
// table.
std::vector<uint8_t> LayOut(const Layout& layout, std::span<const RowSource> rows,
                            std::span<const int32_t> bias);

}  // namespace sluice::pack
