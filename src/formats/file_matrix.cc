#include "formats/file_matrix.h"

#include <utility>

#include "base/check.h"

namespace sluice::formats {
namespace {
// Reads of this size are passes over a large matrix, whose pages need not stay.
constexpr size_t kDropBytes = 1 << 20;
}  // namespace

FileMatrix::FileMatrix(std::shared_ptr<const void> owner, const base::MappedFile* file,
                       std::span<const uint8_t> data, TensorType type, uint64_t rows, uint64_t cols,
                       uint32_t head_dim)
    : FloatTensor(rows, cols),
      owner_(std::move(owner)),
      file_(file),
      data_(data),
      type_(type),
      row_bytes_(data.size() / rows),
      head_dim_(head_dim) {
  const TypeTraits& traits = Traits(type);
  SLUICE_CHECK(cols % traits.block_values == 0 && data.size() % rows == 0 &&
               row_bytes_ == cols / traits.block_values * traits.block_bytes);
  SLUICE_CHECK(head_dim == 0 || (head_dim % 2 == 0 && rows % head_dim == 0));
}

void FileMatrix::ReadRows(uint64_t first, uint64_t count, std::span<float> out) const {
  SLUICE_CHECK(first <= rows() && count <= rows() - first && out.size() == count * cols());
  if (head_dim_ == 0) {
    const auto part = data_.subspan(first * row_bytes_, count * row_bytes_);
    DequantizeRow(type_, part, out);
    if (file_ != nullptr && part.size() >= kDropBytes) file_->DropFromMemory(part);
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    DequantizeRow(type_, data_.subspan(FileRow(first + i) * row_bytes_, row_bytes_),
                  out.subspan(i * cols(), cols()));
  }
}

uint64_t FileMatrix::FileRow(uint64_t row) const {
  const uint64_t in_head = row % head_dim_;
  const uint64_t pairs = head_dim_ / 2;
  return row - in_head + in_head % pairs * 2 + in_head / pairs;
}

}  // namespace sluice::formats
