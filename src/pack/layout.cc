#include "pack/layout.h"

#include <cstring>

#include "base/check.h"

namespace sluice::pack {
namespace {

// Writes one row's nibbles into the tile's plane. nibbles: `cols` values 0..15.
void PackRow(const Layout& layout, uint32_t r, std::span<const uint8_t> nibbles, uint8_t* plane) {
  for (uint32_t unit = 0; unit < layout.cols / kUnitColumns; ++unit) {
    uint8_t* bytes = plane + uint64_t{unit} * kUnitBytes + 4 * r;
    const uint8_t* column = nibbles.data() + uint64_t{unit} * kUnitColumns;
    for (uint32_t c = 0; c < 4; ++c) {
      bytes[c] = static_cast<uint8_t>(column[c] | (column[4 + c] << 4));
    }
  }
}

}  // namespace

Layout MakeLayout(uint64_t rows, uint64_t cols, uint32_t group, uint32_t planes, bool split_planes,
                  bool has_bias) {
  SLUICE_CHECK((group == 32 || group == 64) && (planes == 1 || planes == 2));
  Layout layout{};
  layout.rows = static_cast<uint32_t>(RoundUp(rows, kTileRows));
  layout.cols = static_cast<uint32_t>(RoundUp(cols, group));
  layout.group = group;
  layout.planes = planes;
  const uint32_t header = layout.header_bytes();
  const uint32_t plane = layout.plane_bytes();
  const uint64_t tiles = layout.rows / kTileRows;
  layout.tile_stride = header + plane;
  if (planes == 2) {
    if (split_planes) {
      layout.low_offset = tiles * layout.tile_stride;
      layout.low_stride = plane;
    } else {
      layout.tile_stride += plane;
      layout.low_offset = header + plane;
      layout.low_stride = layout.tile_stride;
    }
  }
  uint64_t end = tiles * (header + uint64_t{planes} * plane);
  const auto table = [&](bool present) -> uint64_t {
    if (!present) return 0;
    const uint64_t begin = end;
    end = RoundUp(end + uint64_t{layout.rows} * 4, kLineBytes);
    return begin;
  };
  layout.row_table = table(true);
  layout.bias_table = table(has_bias);
  layout.bytes = end;
  return layout;
}

std::vector<uint8_t> LayOut(const Layout& layout, std::span<const RowSource> rows,
                            std::span<const int32_t> bias) {
  SLUICE_CHECK(rows.size() <= layout.rows);
  std::vector<uint8_t> bytes(layout.bytes);
  const uint32_t groups = layout.groups();
  std::vector<uint8_t> high(layout.cols), low(layout.cols);
  // A zero row has zero sub-scales and mantissa; its nibbles stay 0, whatever level that is.
  for (uint32_t packed_row = 0; packed_row < rows.size(); ++packed_row) {
    const auto [matrix, row] = rows[packed_row];
    if (matrix == nullptr) continue;
    SLUICE_CHECK(matrix->format.group == layout.group && row < matrix->rows);
    SLUICE_CHECK(matrix->format.bits == (layout.planes == 2 ? 8 : 4));
    SLUICE_CHECK(matrix->weights.size() == uint64_t{matrix->rows} * layout.cols);
    const int16_t* weights = matrix->weights.data() + uint64_t{row} * layout.cols;
    for (uint32_t c = 0; c < layout.cols; ++c) {
      if (layout.planes == 1) {
        high[c] = static_cast<uint8_t>(weights[c]);
      } else {
        const int h = (weights[c] + 8) >> 4;
        high[c] = static_cast<uint8_t>(h + 8);
        low[c] = static_cast<uint8_t>(weights[c] - 16 * h + 8);
      }
    }
    const uint64_t tile = packed_row / kTileRows;
    const uint32_t r = packed_row % kTileRows;
    uint8_t* header = bytes.data() + tile * layout.tile_stride;
    for (uint32_t g = 0; g < groups; ++g) {
      header[g * kTileRows + r] =
          static_cast<uint8_t>(matrix->sub_scales[uint64_t{row} * groups + g]);
    }
    PackRow(layout, r, high, header + layout.header_bytes());
    if (layout.planes == 2) {
      PackRow(layout, r, low, bytes.data() + layout.low_offset + tile * layout.low_stride);
    }
    uint8_t* scale = bytes.data() + layout.row_table + uint64_t{packed_row} * 4;
    std::memcpy(scale, &matrix->row_mantissa[row], 2);
    std::memcpy(scale + 2, &matrix->row_exponent[row], 1);
  }
  SLUICE_CHECK(bias.empty() || (layout.bias_table != 0 && bias.size() <= layout.rows));
  if (!bias.empty()) std::memcpy(bytes.data() + layout.bias_table, bias.data(), bias.size_bytes());
  return bytes;
}

}  // namespace sluice::pack
