// Writing GGUF version 3 files. The header is made in memory; the caller streams the tensor data
// after it (base::AtomicFile::Write and PadTo).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/dequant.h"
#include "model/metadata.h"

namespace sluice::formats {

struct TensorSpec {
  std::string name;
  std::vector<uint64_t> dims;  // fastest-varying first
  TensorType type = TensorType::kF32;
};

struct GgufHeader {
  std::vector<uint8_t> bytes;     // up to the first tensor: padded to the alignment
  std::vector<uint64_t> offsets;  // of each tensor, absolute; multiples of the alignment
  // After the last tensor and its padding.
  uint64_t file_bytes = 0;
};

// Tensors follow each other in the order given, each padded to general.alignment (32 where the
// metadata has no such key). Keys are written in the metadata's order and types. Tensors that
// TensorBytes refuses and an alignment that is no power of two abort; names are the caller's to
// keep unique.
GgufHeader SerializeHeader(const model::Metadata& metadata, std::span<const TensorSpec> tensors);

}  // namespace sluice::formats
