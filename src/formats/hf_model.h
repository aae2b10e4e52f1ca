// A model out of a folder as Hugging Face publishes it.
#pragma once

#include <string>

#include "base/error.h"
#include "formats/json.h"
#include "model/model.h"

namespace sluice::formats {

// Reads config.json, tokenizer.json, the safetensors, and where they are there
// generation_config.json, tokenizer_config.json and chat_template.jinja. Families: model_type
// llama, qwen2, qwen3, and mistral without a sliding window, which is a llama. Refused by name:
// other families, mixture of experts, sliding windows, quantised checkpoints, RoPE scaling other
// than linear and Llama 3's, and every tensor that the family does not use.
// The metadata are those that a GGUF file of the same model has (hf_tokenizer.h for the tokenizer).
base::Result<model::Model> ReadHfModel(const std::string& folder);

// The hyperparameters in a config.json.
base::Result<model::Hyper> ReadHfHyper(const JsonObject& config);

}  // namespace sluice::formats
