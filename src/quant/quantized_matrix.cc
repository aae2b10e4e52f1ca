#include "quant/quantized_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace sluice::quant {
namespace {

constexpr std::array<int8_t, 16> kSluice16Levels = {-15, -11, -8, -6, -4, -2, -1, 0,
                                                    1,   2,   3,  5,  7,  9,  12, 15};
constexpr std::array<int8_t, 16> kLinearLevels = {-8, -7, -6, -5, -4, -3, -2, -1,
                                                  0,  1,  2,  3,  4,  5,  6,  7};

}  // namespace

std::span<const int8_t, 16> Levels(Codebook codebook) {
  return codebook == Codebook::kSluice16 ? kSluice16Levels : kLinearLevels;
}

int16_t ZeroIndex(Codebook codebook) { return codebook == Codebook::kSluice16 ? 7 : 8; }

void Reserve(QuantizedMatrix& matrix, uint32_t rows) {
  matrix.weights.reserve(size_t{rows} * matrix.padded_cols());
  matrix.sub_scales.reserve(size_t{rows} * matrix.groups());
  matrix.row_mantissa.reserve(rows);
  matrix.row_exponent.reserve(rows);
}

void Append(QuantizedMatrix& matrix, const QuantizedMatrix& more) {
  SLUICE_CHECK(matrix.format == more.format && matrix.cols == more.cols);
  const auto add = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  matrix.rows += more.rows;
  add(matrix.weights, more.weights);
  add(matrix.sub_scales, more.sub_scales);
  add(matrix.row_mantissa, more.row_mantissa);
  add(matrix.row_exponent, more.row_exponent);
}

int32_t MaxSubScaleSum(const MatrixFormat& format) {
  const int largest = format.bits == 8                         ? -kMinWeight8
                      : format.codebook == Codebook::kSluice16 ? 15
                                                               : 8;
  return std::numeric_limits<int32_t>::max() / (format.group * largest * 127);
}

RowScale EncodeRowScale(double unit) {
  SLUICE_CHECK(unit >= 0 && std::isfinite(unit));
  if (unit == 0) return {};
  int power = 0;
  const double fraction = std::frexp(unit, &power);  // unit = fraction * 2^power, in [0.5, 1)
  auto mantissa = static_cast<int32_t>(std::lround(std::ldexp(fraction, 15)));
  int exponent = 15 - power;
  if (mantissa == 1 << 15) {
    mantissa = 1 << 14;
    --exponent;
  }
  if (exponent > std::numeric_limits<int8_t>::max()) return {};
  SLUICE_CHECK(exponent >= std::numeric_limits<int8_t>::min());
  return {static_cast<int16_t>(mantissa), static_cast<int8_t>(exponent)};
}

double DecodeRowScale(RowScale scale) {
  return std::ldexp(static_cast<double>(scale.mantissa), -scale.exponent);
}

double RowUnit(const QuantizedMatrix& matrix, uint32_t row) {
  return DecodeRowScale({matrix.row_mantissa[row], matrix.row_exponent[row]});
}

void Dequantize(const QuantizedMatrix& matrix, uint32_t row, std::span<float> out) {
  SLUICE_CHECK(row < matrix.rows && out.size() == matrix.cols);
  const MatrixFormat& format = matrix.format;
  const auto levels = Levels(format.codebook);
  const double unit = RowUnit(matrix, row);
  const int16_t* weights = &matrix.weights[size_t{row} * matrix.padded_cols()];
  const int8_t* scales = &matrix.sub_scales[size_t{row} * matrix.groups()];
  for (uint32_t c = 0; c < matrix.cols; ++c) {
    const int level = format.bits == 8 ? weights[c] : levels[static_cast<size_t>(weights[c])];
    out[c] = static_cast<float>(unit * scales[c / format.group] * level);
  }
}

void MultiplyScale(QuantizedMatrix& matrix, double factor) {
  SLUICE_CHECK(factor > 0 && std::isfinite(factor));
  for (uint32_t row = 0; row < matrix.rows; ++row) {
    const RowScale scale = EncodeRowScale(RowUnit(matrix, row) * factor);
    matrix.row_mantissa[row] = scale.mantissa;
    matrix.row_exponent[row] = scale.exponent;
  }
}

}  // namespace sluice::quant
