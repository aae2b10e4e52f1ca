// A weight matrix in the integers of a pack (docs/numerics.md), before it is laid out in tiles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::quant {

enum class Codebook : uint8_t {
  kSluice16 = 0,  // -15 -11 -8 -6 -4 -2 -1 0 1 2 3 5 7 9 12 15
  kLinear = 1,    // index - 8
};

// The 16 levels of a codebook, ascending.
std::span<const int8_t, 16> Levels(Codebook codebook);
// Index of the level 0.
int16_t ZeroIndex(Codebook codebook);

struct MatrixFormat {
  uint8_t bits = 4;                         // 4 or 8
  uint8_t group = 64;                       // columns that share a sub-scale: 32 or 64
  Codebook codebook = Codebook::kSluice16;  // 4 bit only; the planes of 8 bit are linear
  bool operator==(const MatrixFormat&) const = default;
};

// An 8-bit weight is 16 * hi + lo with hi and lo in -8..7.
constexpr int kMinWeight8 = -136;
constexpr int kMaxWeight8 = 119;

// value(r, c) = level * sub_scale(r, c / group) * mantissa(r) * 2^-exponent(r), where level is
// Levels(codebook)[weight] at 4 bit and the weight itself at 8 bit.
//
// For every row, group * L * 127 * sum |sub_scale| <= 2^31 - 1, with L the largest |level| (15, 8
// or 136): an int32 accumulator over the whole row cannot overflow.
struct QuantizedMatrix {
  MatrixFormat format;
  uint32_t rows = 0;
  uint32_t cols = 0;                  // as in the model
  std::vector<int16_t> weights;       // [rows][groups * group]; padding has level 0
  std::vector<int8_t> sub_scales;     // [rows][groups], -127..127
  std::vector<int16_t> row_mantissa;  // [rows], 2^14..2^15 - 1, or 0 for a row of zeros
  std::vector<int8_t> row_exponent;   // [rows]

  uint32_t groups() const { return (cols + format.group - 1) / format.group; }
  uint32_t padded_cols() const { return groups() * format.group; }
};

// Room for `rows` rows.
void Reserve(QuantizedMatrix& matrix, uint32_t rows);
// Adds the rows of `more`, which has the same format and columns.
void Append(QuantizedMatrix& matrix, const QuantizedMatrix& more);

// Largest sum over a row of |sub_scale| that the 31-bit guarantee allows.
int32_t MaxSubScaleSum(const MatrixFormat& format);

// The value of level 1 under sub-scale 1: mantissa * 2^-exponent.
double RowUnit(const QuantizedMatrix& matrix, uint32_t row);

// Row `row` as floats into out[cols].
void Dequantize(const QuantizedMatrix& matrix, uint32_t row, std::span<float> out);

// Multiplies every row's scale by `factor` (> 0) in mantissa and exponent; weights and sub-scales
// stay. For factors that are folded into a matrix, such as log2(e) / sqrt(head_dim) into q.
void MultiplyScale(QuantizedMatrix& matrix, double factor);

// `unit` (>= 0) rounded to mantissa * 2^-exponent; what no exponent of int8 reaches becomes 0.
struct RowScale {
  int16_t mantissa = 0;
  int8_t exponent = 0;
};
RowScale EncodeRowScale(double unit);
double DecodeRowScale(RowScale scale);

}  // namespace sluice::quant
