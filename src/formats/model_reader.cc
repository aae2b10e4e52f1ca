#include "formats/model_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "formats/gguf_model.h"

namespace sluice::formats {

base::Result<model::Model> OpenModel(const std::string& path) { return ReadGgufModel(path); }

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
