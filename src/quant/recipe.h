// Which format each matrix of a model is quantised to.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/embedded.h"
#include "base/error.h"
#include "model/model.h"
#include "quant/quantized_matrix.h"

namespace sluice::quant {

// A recipe file is JSON:
//   {
//     "name": "balanced", "description": "one line",
//     "group": 64,                                   32 or 64, for the whole pack
//     "default": {"bits": 4, "codebook": "sluice16"},
//     "roles": {"k": {"bits": 8}, "head": {"bits": 8}},
//     "layers": [{"role": "down", "layers": [0, -1], "bits": 8}],    -1 is the last layer
//     "tied": {"bits": 8},                           a table that is embedding and head at once
//     "screen_head": true
//   }
// "name", "group" and "default" must be there. Roles are embedding, head, q, k, v, o, gate, up and
// down. "codebook" ("sluice16" or "linear") belongs to 4 bit alone and defaults to sluice16.
// "tied" defaults to the head's format. "screen_head": executors may rank the head's rows by the
// high plane first; only for 8 bit.
struct Recipe {
  std::string name;
  std::string description;
  uint8_t group = 64;
  MatrixFormat default_format;
  std::map<model::Role, MatrixFormat> roles;
  std::map<std::pair<model::Role, int32_t>, MatrixFormat> layers;  // < 0: -1 is the last
  std::optional<MatrixFormat> tied;
  bool screen_head = false;

  // The format of a matrix of a model. Roles that are not
  // matrices have none and abort.
  MatrixFormat FormatOf(model::Role role, uint32_t layer, const model::Hyper& hyper) const;
};

// `object` names the text in errors. Errors: not JSON, unknown or missing keys, wrong types and
// values, layers named twice, a screened head of 4 bits.
base::Result<Recipe> ParseRecipe(std::string_view text, std::string object);

// A built-in recipe by name, or a file by path (anything that holds '/' or ends in ".json").
base::Result<Recipe> LoadRecipe(const std::string& name_or_path);
// Its text, not parsed.
base::Result<std::string> RecipeText(const std::string& name_or_path);

// The built-in recipes, named "balanced.json" and so on.
std::span<const base::EmbeddedFile> RecipeFiles();

// An error if the recipe names a layer that the model does not have.
base::Status CheckRecipe(const Recipe& recipe, const model::Hyper& hyper);

}  // namespace sluice::quant
