// Opening a model of any supported format.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "model/model.h"

namespace sluice::formats {

// `path` is a GGUF file, or a folder as Hugging Face publishes it (config.json, tokenizer.json,
// safetensors). The model is complete and validated; its weights are read when they are asked for,
// and are not yet checked to be finite.
base::Result<model::Model> OpenModel(const std::string& path);

// Reads the whole tensor, a few rows at a time, and refuses NaN and infinities with their place.
// `name` stands for the tensor in the message.
base::Status CheckFinite(const model::FloatTensor& tensor, std::string_view name);

}  // namespace sluice::formats
