#include "formats/model_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "base/mapped_file.h"
#include "formats/gguf_model.h"
#include "formats/hf_model.h"
#include "formats/safetensors.h"

namespace sluice::formats {

base::Result<model::Model> OpenModel(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    if (!std::filesystem::exists(path + "/config.json", ignored)) {
      return base::Fail(
          path, "a folder without config.json",
          "a GGUF file, or a folder with config.json, tokenizer.json and safetensors");
    }
    return ReadHfModel(path);
  }
  SLUICE_TRY(const auto file, base::MappedFile::Open(path));
  if (IsGguf(file->bytes())) return ReadGgufModel(path);
  if (IsSafetensors(file->bytes())) {
    return base::Fail(path, "a safetensors file, which holds the weights only",
                      "the folder with config.json and tokenizer.json beside it");
  }
  return base::Fail(path, "neither a folder nor a GGUF file",
                    "a GGUF file, or a folder with config.json, tokenizer.json and safetensors");
}

base::Status CheckFinite(const model::FloatTensor& tensor, std::string_view name) {
  constexpr uint64_t kValuesAtOnce = 1 << 18;
  const uint64_t cols = tensor.cols();
  const uint64_t step = std::clamp<uint64_t>(kValuesAtOnce / cols, 1, tensor.rows());
  std::vector<float> values(step * cols);
  for (uint64_t first = 0; first < tensor.rows(); first += step) {
    const uint64_t count = std::min(step, tensor.rows() - first);
    const std::span<float> part(values.data(), count * cols);
    tensor.ReadRows(first, count, part);
    const auto bad = std::ranges::find_if(part, [](float v) { return !std::isfinite(v); });
    if (bad == part.end()) continue;
    const uint64_t index = static_cast<uint64_t>(bad - part.begin());
    return base::Fail(
        "tensor " + base::Printable(name),
        fmt::format("{} in row {}, column {}", *bad, first + index / cols, index % cols),
        "finite values");
  }
  return {};
}

}  // namespace sluice::formats
