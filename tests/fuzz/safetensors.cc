// Safetensors files.
#include "formats/safetensors.h"

#include <cstdint>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  const auto file = formats::SafetensorsFile::FromBytes({data, size}, "fuzz");
  if (!file) {
    SLUICE_CHECK(!file.error().object.empty() && !file.error().got.empty());
    return 0;
  }
  for (const formats::SafeTensor& tensor : (*file)->tensors()) {
    SLUICE_CHECK((*file)->Data(tensor).size() == tensor.bytes);
    SLUICE_CHECK(tensor.rows() * tensor.cols() > 0);
  }
  return 0;
}
