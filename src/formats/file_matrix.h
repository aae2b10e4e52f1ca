// A weight matrix that stands in a mapped file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/mapped_file.h"
#include "formats/dequant.h"
#include "model/model.h"

namespace sluice::formats {

class FileMatrix : public model::FloatTensor {
 public:
  // `data` holds rows * (bytes of a row) bytes, in rows of whole blocks, and lives as long as
  // `owner`. `file` is the mapping under it, or null. With head_dim > 0 the file's rows of every
  // head have RoPE pairs adjacent: row (head, half, i) of the matrix is row (head, i, half) of the
  // file; rows is then a multiple of head_dim, and head_dim even.
  FileMatrix(std::shared_ptr<const void> owner, const base::MappedFile* file,
             std::span<const uint8_t> data, TensorType type, uint64_t rows, uint64_t cols,
             uint32_t head_dim = 0);

  void ReadRows(uint64_t first, uint64_t count, std::span<float> out) const override;
  std::string_view type_name() const override { return TypeName(type_); }

 private:
  uint64_t FileRow(uint64_t row) const;

  std::shared_ptr<const void> owner_;
  const base::MappedFile* file_;
  std::span<const uint8_t> data_;
  TensorType type_;
  uint64_t row_bytes_;
  uint32_t head_dim_;
};

}  // namespace sluice::formats
