// GGUF files: the reader, and the model that it becomes.
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "formats/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  auto file = formats::GgufFile::FromBytes({data, size}, "fuzz");
  if (!file) {
    SLUICE_CHECK(!file.error().object.empty() && !file.error().got.empty());
    return 0;
  }
  for (const formats::GgufTensor& tensor : (*file)->tensors()) {
    SLUICE_CHECK((*file)->Data(tensor).size() == tensor.bytes);
    const auto& traits = formats::Traits(tensor.type);
    if (!traits.dequantizes) continue;
    std::vector<float> row(traits.block_values);
    formats::DequantizeRow(tensor.type, (*file)->Data(tensor).first(traits.block_bytes), row);
  }
  const auto model = formats::ReadGgufModel(std::move(*file));
  if (model) {
    model->ReadAll(model::Role::kQ, model->hyper.n_layers - 1);
    model->ReadAll(model::Role::kOutputNorm);
  }
  return 0;
}
