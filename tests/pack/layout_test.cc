#include "pack/layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "quant/quantized_matrix.h"

namespace sluice::pack {
namespace {

using quant::Codebook;
using quant::MatrixFormat;
using quant::QuantizedMatrix;

QuantizedMatrix RandomMatrix(uint32_t rows, uint32_t cols, MatrixFormat format,
                             std::mt19937& random) {
  QuantizedMatrix m;
  m.format = format;
  m.rows = rows;
  m.cols = cols;
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (uint32_t i = 0; i < rows * m.padded_cols(); ++i) {
    m.weights.push_back(static_cast<int16_t>(
        format.bits == 8 ? draw(quant::kMinWeight8, quant::kMaxWeight8) : draw(0, 15)));
  }
  for (uint32_t i = 0; i < rows * m.groups(); ++i) {
    m.sub_scales.push_back(static_cast<int8_t>(draw(-127, 127)));
  }
  for (uint32_t i = 0; i < rows; ++i) {
    m.row_mantissa.push_back(static_cast<int16_t>(draw(1 << 14, (1 << 15) - 1)));
    m.row_exponent.push_back(static_cast<int8_t>(draw(-128, 127)));
  }
  return m;
}

// docs/pack-format.md read anew: nothing here comes from layout.h.
struct Reading {
  const std::vector<uint8_t>& bytes;
  uint32_t rows, cols, group, planes;
  bool split;

  uint64_t groups() const { return cols / group; }
  uint64_t header() const { return (groups() * 16 + 127) / 128 * 128; }
  uint64_t plane() const { return groups() * (group / 8) * 64; }
  uint64_t tile_bytes() const { return header() + plane() * (split ? 1 : planes); }
  uint64_t tiles() const { return rows / 16; }
  uint64_t row_table() const { return tiles() * (header() + plane() * planes); }
  uint64_t bias_table() const { return (row_table() + rows * 4 + 127) / 128 * 128; }

  int SubScale(uint32_t row, uint32_t g) const {
    return static_cast<int8_t>(bytes.at(row / 16 * tile_bytes() + 16 * g + row % 16));
  }
  int Nibble(uint64_t plane_at, uint32_t row, uint32_t column) const {
    const uint32_t g = column / group, in_group = column % group;
    const uint64_t unit = plane_at + g * (group / 8) * 64 + in_group / 8 * 64;
    const uint32_t in_unit = in_group % 8;
    const uint8_t byte = bytes.at(unit + 4 * (row % 16) + in_unit % 4);
    return in_unit < 4 ? byte % 16 : byte / 16;
  }
  int High(uint32_t row, uint32_t column) const {
    return Nibble(row / 16 * tile_bytes() + header(), row, column);
  }
  int Low(uint32_t row, uint32_t column) const {
    const uint64_t at = split ? tiles() * tile_bytes() + row / 16 * plane()
                              : row / 16 * tile_bytes() + header() + plane();
    return Nibble(at, row, column);
  }
  template <typename T>
  T At(uint64_t offset) const {
    T value;
    EXPECT_LE(offset + sizeof(T), bytes.size());
    std::memcpy(&value, bytes.data() + offset, sizeof(T));
    return value;
  }
};

void ExpectReadsBack(uint32_t rows, uint32_t cols, MatrixFormat format, bool split, bool has_bias,
                     std::mt19937& random) {
  SCOPED_TRACE(::testing::Message()
               << rows << " x " << cols << ", " << int{format.bits} << " bits, group "
               << int{format.group} << (split ? ", split" : "") << (has_bias ? ", bias" : ""));
  const uint32_t planes = format.bits / 4;
  const QuantizedMatrix m = RandomMatrix(rows, cols, format, random);
  std::vector<int32_t> bias;
  std::vector<RowSource> sources;
  for (uint32_t row = 0; row < rows; ++row) {
    sources.push_back({&m, rows - 1 - row});  // upside down: the sources give the order
    if (has_bias) bias.push_back(static_cast<int32_t>(random()));
  }
  sources[rows / 2].matrix = nullptr;
  const Layout layout = MakeLayout(rows, cols, format.group, planes, split, has_bias);
  const std::vector<uint8_t> bytes = LayOut(layout, sources, bias);
  ASSERT_EQ(bytes.size(), layout.bytes);
  ASSERT_EQ(bytes.size() % 128, 0u);

  const uint32_t padded_rows = (rows + 15) / 16 * 16;
  const Reading read{bytes, padded_rows, m.padded_cols(), format.group, planes, split};
  ASSERT_EQ(layout.rows, padded_rows);
  ASSERT_EQ(layout.cols, m.padded_cols());
  EXPECT_EQ(layout.row_table, read.row_table());
  EXPECT_EQ(layout.bias_table, has_bias ? read.bias_table() : 0);
  EXPECT_EQ(layout.row_table % 128, 0u);
  for (uint32_t row = 0; row < padded_rows; ++row) {
    const bool zero = row >= rows || row == rows / 2;
    const uint32_t source = rows - 1 - row;
    ASSERT_EQ(read.At<int16_t>(read.row_table() + 4 * row), zero ? 0 : m.row_mantissa[source]);
    ASSERT_EQ(read.At<int8_t>(read.row_table() + 4 * row + 2), zero ? 0 : m.row_exponent[source]);
    ASSERT_EQ(read.At<uint8_t>(read.row_table() + 4 * row + 3), 0);
    if (has_bias) {
      ASSERT_EQ(read.At<int32_t>(read.bias_table() + 4 * row), row < rows ? bias[row] : 0);
    }
    for (uint32_t g = 0; g < m.groups(); ++g) {
      ASSERT_EQ(read.SubScale(row, g), zero ? 0 : m.sub_scales[source * m.groups() + g]);
    }
    if (zero) continue;
    for (uint32_t c = 0; c < m.padded_cols(); ++c) {
      const int weight = m.weights[source * m.padded_cols() + c];
      const int found =
          planes == 1 ? read.High(row, c) : 16 * (read.High(row, c) - 8) + read.Low(row, c) - 8;
      ASSERT_EQ(found, weight) << "row " << row << ", column " << c;
    }
  }
}

TEST(Layout, ReadsBackByTheFormatsDescription) {
  std::mt19937 random(3);
  for (const uint8_t group : {uint8_t{32}, uint8_t{64}}) {
    for (const uint32_t rows : {1, 16, 40}) {
      for (const uint32_t cols : {32, 64, 72, 200, 640}) {
        for (const bool bias : {false, true}) {
          ExpectReadsBack(rows, cols, {4, group, Codebook::kSluice16}, false, bias, random);
          ExpectReadsBack(rows, cols, {8, group, Codebook::kLinear}, false, bias, random);
          ExpectReadsBack(rows, cols, {8, group, Codebook::kLinear}, true, bias, random);
        }
      }
    }
  }
}

TEST(Layout, HoldsTheExtremes) {
  const MatrixFormat format{8, 32, Codebook::kLinear};
  QuantizedMatrix m;
  m.format = format;
  m.rows = 1;
  m.cols = 32;
  m.weights.assign(32, 0);
  m.weights[0] = quant::kMinWeight8;
  m.weights[7] = quant::kMaxWeight8;
  m.weights[8] = -1;
  m.sub_scales = {-127};
  m.row_mantissa = {1 << 14};
  m.row_exponent = {-128};
  const std::vector<RowSource> rows{{&m, 0}};
  const Layout layout = MakeLayout(1, 32, 32, 2, false, false);
  const auto bytes = LayOut(layout, rows, {});
  const Reading read{bytes, 16, 32, 32, 2, false};
  EXPECT_EQ(read.High(0, 0), 0);
  EXPECT_EQ(read.Low(0, 0), 0);
  EXPECT_EQ(read.High(0, 7), 15);
  EXPECT_EQ(read.Low(0, 7), 15);
  EXPECT_EQ(16 * (read.High(0, 8) - 8) + read.Low(0, 8) - 8, -1);
  EXPECT_EQ(read.High(0, 1), 8);
  EXPECT_EQ(read.Low(0, 1), 8);
}

// 4.125 bits a weight in groups of 64, 4.25 in groups of 32, twice the nibbles at 8 bits, and
// nothing but the header's padding on top.
TEST(Layout, TakesNoMoreThanTheFormatPromises) {
  for (const uint32_t group : {32u, 64u}) {
    for (const uint32_t planes : {1u, 2u}) {
      for (uint32_t groups = 1; groups <= 40; ++groups) {
        for (const bool split : {false, true}) {
          const Layout layout = MakeLayout(48, groups * group, group, planes, split, true);
          const double weights = 16.0 * groups * group;
          const double tile =
              static_cast<double>(layout.row_table) / 3;  // header, high and low plane
          const double least = weights * (4.0 * planes + 8.0 / group) / 8;
          EXPECT_GE(tile, least);
          EXPECT_LE(tile, least + 112) << groups << " groups of " << group;
          EXPECT_EQ(layout.tile_stride % 64, 0u);
          EXPECT_EQ(layout.low_stride % 64, 0u);
          EXPECT_EQ(layout.bytes % 128, 0u);
          // Row table and biases: 4 bytes a row each, padded.
          EXPECT_EQ(layout.bytes, layout.row_table + 2 * 256);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::pack
