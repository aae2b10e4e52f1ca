// A pack: a GGUF v3 file with the original metadata and tokenizer, sluice.* keys, and tensors of
// opaque bytes (type I8, one dimension) aligned to 4096, in the order in which a token reads them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/progress.h"
#include "formats/gguf.h"
#include "formats/gguf_writer.h"
#include "model/metadata.h"

namespace sluice::pack {

constexpr uint32_t kPackVersion = 1;
constexpr uint64_t kPackAlignment = 4096;

// Keys that every pack has.
inline constexpr std::string_view kVersionKey = "sluice.version";   // uint32
inline constexpr std::string_view kChecksumsKey = "sluice.crc32c";  // uint32 per tensor, in order
inline constexpr std::string_view kRecipeKey = "sluice.recipe";     // string

// Tensors that every pack has, besides the model's own.
inline constexpr std::string_view kProgramTensor = "sluice.program";

class Pack {
 public:
  // Maps the file; nothing is read but the header. Errors: not a GGUF file, a GGUF file that is no
  // pack (says how to make one), another version, tensors that are no opaque bytes.
  static base::Result<std::shared_ptr<const Pack>> Open(const std::string& path);
  // Over bytes that the caller keeps alive; `name` stands for the path in messages.
  static base::Result<std::shared_ptr<const Pack>> FromBytes(std::span<const uint8_t> bytes,
                                                             std::string name);

  const std::string& name() const { return file_->name(); }
  // The whole file.
  std::span<const uint8_t> bytes() const { return file_->bytes(); }
  const model::Metadata& metadata() const { return file_->metadata(); }
  const std::vector<formats::GgufTensor>& tensors() const { return file_->tensors(); }
  base::Result<std::span<const uint8_t>> Tensor(std::string_view name) const;

  // Compares every tensor's CRC-32C with the one written at packing; reads the whole file.
  base::Status CheckSums(const base::Progress& progress) const;

 private:
  explicit Pack(std::shared_ptr<formats::GgufFile> file) : file_(std::move(file)) {}
  static base::Result<std::shared_ptr<const Pack>> Check(std::shared_ptr<formats::GgufFile> file);

  std::shared_ptr<formats::GgufFile> file_;
};

// Writes a pack whose tensors' sizes are known beforehand, in any order.
class PackWriter {
 public:
  struct TensorSize {
    std::string name;
    uint64_t bytes;
  };
  // Adds the keys above to `metadata`, except the recipe. The file appears at Commit.
  static base::Result<PackWriter> Create(const std::string& path, model::Metadata metadata,
                                         std::vector<TensorSize> tensors);

  // Of the tensor's first byte in the file.
  uint64_t OffsetOf(std::string_view tensor) const;
  // The whole of one tensor; each once.
  base::Status Write(std::string_view tensor, std::span<const uint8_t> bytes);
  // Replaces a value by one that takes the same number of bytes.
  void Set(std::string_view key, model::Value value);
  uint64_t file_bytes() const { return file_bytes_; }
  // Every tensor must have been written.
  base::Status Commit();

 private:
  PackWriter(base::AtomicFile file, model::Metadata metadata, std::vector<TensorSize> tensors);
  formats::GgufHeader Header() const;

  base::AtomicFile file_;
  model::Metadata metadata_;
  std::vector<TensorSize> tensors_;
  std::vector<uint64_t> offsets_;
  std::map<std::string, size_t, std::less<>> index_;
  std::vector<uint32_t> checksums_;
  std::vector<bool> written_;
  uint64_t data_offset_ = 0;
  uint64_t file_bytes_ = 0;
};

}  // namespace sluice::pack
