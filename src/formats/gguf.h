// Reading GGUF files (versions 2 and 3, little-endian), as the GGUF specification lays them out:
// magic, version, tensor count, key count, keys and values, tensor descriptions, padding, data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/dequant.h"
#include "model/metadata.h"

namespace sluice::formats {

constexpr uint64_t kGgufMaxKeys = 4096;
constexpr uint64_t kGgufMaxTensors = 1 << 16;
// Strings in all arrays together. A std::string takes 32 bytes where the file may spend 8, so their
// number, and not only the file's size, must bound the memory of a hostile file. The largest
// vocabulary of today (262144 tokens, 514906 merges) is half of it.
constexpr uint64_t kGgufMaxArrayStrings = 3 << 19;
constexpr uint64_t kGgufDefaultAlignment = 32;

struct GgufTensor {
  std::string name;
  std::vector<uint64_t> dims;  // 1 to 4, fastest-varying first: (cols, rows) of a matrix
  TensorType type = TensorType::kF32;
  uint64_t offset = 0;  // absolute, in the file
  uint64_t bytes = 0;

  uint64_t cols() const { return dims[0]; }
  uint64_t rows() const;  // product of the other dimensions
};

// A file whose every description has been checked: keys and tensors are unique, tensors lie aligned
// within the file and do not overlap. Memory: at most the file's size + 64 MB besides the mapping.
class GgufFile {
 public:
  static base::Result<std::shared_ptr<GgufFile>> Open(const std::string& path);
  // Over bytes that the caller keeps alive; `name` stands for the path in messages. file() is null.
  static base::Result<std::shared_ptr<GgufFile>> FromBytes(std::span<const uint8_t> bytes,
                                                           std::string name);

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }
  uint64_t data_offset() const { return data_offset_; }  // of the first tensor
  const model::Metadata& metadata() const { return metadata_; }
  // Moves the metadata out instead of holding a vocabulary twice; metadata() is empty afterwards.
  model::Metadata TakeMetadata() { return std::move(metadata_); }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the file's order
  const GgufTensor* Find(std::string_view tensor) const;               // nullptr if absent
  std::span<const uint8_t> Data(const GgufTensor& tensor) const;
  std::span<const uint8_t> bytes() const { return bytes_; }
  const std::shared_ptr<const base::MappedFile>& file() const { return file_; }

 private:
  GgufFile() = default;
  base::Status Parse();

  std::string name_;
  std::shared_ptr<const base::MappedFile> file_;
  std::span<const uint8_t> bytes_;
  uint32_t version_ = 0;
  uint64_t alignment_ = kGgufDefaultAlignment;
  uint64_t data_offset_ = 0;
  model::Metadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views into tensors_
};

// True if the bytes start with GGUF's magic.
bool IsGguf(std::span<const uint8_t> bytes);

}  // namespace sluice::formats
