// The compiler: from a float model and a recipe to a pack with its Program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "model/model.h"
#include "quant/quantizer.h"

namespace sluice::program {

constexpr uint32_t kMaxContext = 65535;
constexpr uint32_t kDefaultMaxContext = 32768;

struct BuildOptions {
  quant::QuantizeOptions quantize;
  // Positions of the RoPE table; 0: what the model was trained for, at most kDefaultMaxContext.
  uint32_t context = 0;
};

struct BuildSummary {
  uint64_t bytes = 0;  // of the file
  quant::QuantizeOutcome quantized;
};

// Writes the pack to `path`; nothing is left there on error. Same model, recipe, calibration and
// context give the same bytes. Errors: those of quant::Quantize; head sizes that are no multiple of
// 16, more than 64 KV heads, gate and up of different formats, a head norm whose epsilon is not
// below 1 / head_dim; the file system's.
base::Result<BuildSummary> BuildPack(const model::Model& model, const BuildOptions& options,
                                     const std::string& path);

}  // namespace sluice::program
