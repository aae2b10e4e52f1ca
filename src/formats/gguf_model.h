// A model out of a GGUF file.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "formats/gguf.h"
#include "model/model.h"

namespace sluice::formats {

// Families: those of model::Families(), by general.architecture. Refused by name: an unknown
// architecture, mixture of experts, sliding windows, RoPE scaling other than none, linear and
// Llama-3's (rope_freqs), partial rotation, and every tensor that the family does not use.
// q and k come in Hugging Face's row order, whatever the file holds.
base::Result<model::Model> ReadGgufModel(const std::string& path);
// Takes the file's metadata.
base::Result<model::Model> ReadGgufModel(std::shared_ptr<GgufFile> file);

}  // namespace sluice::formats
