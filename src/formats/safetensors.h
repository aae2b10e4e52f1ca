// Reading safetensors files: 8 bytes of header length, a JSON header, and the tensors' bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/dequant.h"

namespace sluice::formats {

constexpr uint64_t kSafetensorsMaxHeader = 32 << 20;

struct SafeTensor {
  std::string name;
  TensorType type = TensorType::kF32;  // kF32, kF16 or kBF16
  std::vector<uint64_t> shape;         // 1 or 2 dimensions, slowest-varying first; no zero
  uint64_t offset = 0;                 // absolute, in the file
  uint64_t bytes = 0;

  uint64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
  uint64_t cols() const { return shape.back(); }
};

// A file whose header has been checked: tensors have known types and shapes that agree with their
// bytes, and together cover the data from its first byte to the end of the file, as the format
// demands.
class SafetensorsFile {
 public:
  static base::Result<std::shared_ptr<const SafetensorsFile>> Open(const std::string& path);
  // Over bytes that the caller keeps alive; `name` stands for the path in messages. file() is null.
  static base::Result<std::shared_ptr<const SafetensorsFile>> FromBytes(
      std::span<const uint8_t> bytes, std::string name);

  const std::string& name() const { return name_; }
  const std::vector<SafeTensor>& tensors() const { return tensors_; }  // in the data's order
  std::span<const uint8_t> Data(const SafeTensor& tensor) const {
    return bytes_.subspan(tensor.offset, tensor.bytes);
  }
  const base::MappedFile* file() const { return file_.get(); }

 private:
  SafetensorsFile() = default;
  static base::Result<std::shared_ptr<SafetensorsFile>> Parse(std::span<const uint8_t> bytes,
                                                              std::string name);

  std::string name_;
  std::shared_ptr<const base::MappedFile> file_;
  std::span<const uint8_t> bytes_;
  std::vector<SafeTensor> tensors_;
};

// The files that hold a folder's tensors: those that model.safetensors.index.json names, or
// model.safetensors. No tensor stands in two of them, and the index's tensors are there.
base::Result<std::vector<std::shared_ptr<const SafetensorsFile>>> OpenSafetensors(
    const std::string& folder);

// True if the bytes look like the start of a safetensors file: a plausible length, then '{'.
bool IsSafetensors(std::span<const uint8_t> bytes);

}  // namespace sluice::formats
