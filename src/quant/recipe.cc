#include "quant/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/mapped_file.h"
#include "formats/json.h"

namespace sluice::embedded {
std::span<const base::EmbeddedFile> Recipes();
}  // namespace sluice::embedded

namespace sluice::quant {
namespace {

using base::Fail;
using base::Result;
using base::Status;
using Json = nlohmann::json;
using model::Role;

constexpr std::array kMatrixRoles = {Role::kEmbedding, Role::kHead, Role::kQ,  Role::kK,   Role::kV,
                                     Role::kO,         Role::kGate, Role::kUp, Role::kDown};
constexpr uint64_t kMaxRecipeBytes = 1 << 20;

std::string RoleNames() {
  std::string names;
  for (const Role role : kMatrixRoles) {
    names += (names.empty() ? "" : ", ") + std::string(RoleName(role));
  }
  return names;
}

Result<Role> ParseRole(const std::string& object, const std::string& name) {
  for (const Role role : kMatrixRoles) {
    if (RoleName(role) == name) return role;
  }
  return Fail(object, fmt::format("role \"{}\"", name), RoleNames());
}

bool IsLayerRole(Role role) { return role != Role::kEmbedding && role != Role::kHead; }

Status CheckKeys(const std::string& object, const Json& json, std::set<std::string> known) {
  if (!json.is_object()) return Fail(object, json.type_name(), "an object");
  for (const auto& [key, value] : json.items()) {
    if (!known.contains(key)) {
      return Fail(object, fmt::format("key \"{}\"", key),
                  fmt::format("only {}", fmt::join(known, ", ")));
    }
  }
  return {};
}

Result<std::string> GetText(const std::string& object, const Json& json, const char* key) {
  if (!json.contains(key)) return Fail(object, fmt::format("no key \"{}\"", key));
  if (!json[key].is_string()) {
    return Fail(fmt::format("{}: {}", object, key), json[key].type_name(), "a string");
  }
  return json[key].get<std::string>();
}

Result<uint64_t> GetUint(const std::string& object, const Json& json, const char* key) {
  if (!json.contains(key)) return Fail(object, fmt::format("no key \"{}\"", key));
  if (!json[key].is_number_unsigned()) {
    return Fail(fmt::format("{}: {}", object, key),
                fmt::format("{} ({})", json[key].dump(), json[key].type_name()),
                "a whole number, 0 or more");
  }
  return json[key].get<uint64_t>();
}

// The format in `json`, whose other keys are the caller's.
Result<MatrixFormat> ParseFormat(const std::string& object, const Json& json, uint8_t group) {
  SLUICE_TRY(const uint64_t bits, GetUint(object, json, "bits"));
  if (bits != 4 && bits != 8) return Fail(object + ": bits", fmt::format("{}", bits), "4 or 8");
  MatrixFormat format{static_cast<uint8_t>(bits), group,
                      bits == 8 ? Codebook::kLinear : Codebook::kSluice16};
  if (json.contains("codebook")) {
    if (bits == 8) return Fail(object, "a codebook at 8 bits", "none: 8-bit weights are linear");
    SLUICE_TRY(const std::string name, GetText(object, json, "codebook"));
    if (name != "sluice16" && name != "linear") {
      return Fail(object + ": codebook", fmt::format("\"{}\"", name), "sluice16 or linear");
    }
    format.codebook = name == "linear" ? Codebook::kLinear : Codebook::kSluice16;
  }
  return format;
}

Status ParseLayers(const std::string& object, const Json& json, Recipe& recipe) {
  SLUICE_TRY_VOID(CheckKeys(object, json, {"role", "layers", "bits", "codebook"}));
  SLUICE_TRY(const std::string role_name, GetText(object, json, "role"));
  SLUICE_TRY(const Role role, ParseRole(object, role_name));
  if (!IsLayerRole(role)) {
    return Fail(object, fmt::format("role \"{}\"", role_name), "a role of a layer");
  }
  SLUICE_TRY(const MatrixFormat format, ParseFormat(object, json, recipe.group));
  if (!json.contains("layers")) return Fail(object, "no key \"layers\"");
  const Json& layers = json["layers"];
  if (!layers.is_array() || layers.empty()) {
    return Fail(object + ": layers", layers.dump(), "a list of layer numbers");
  }
  for (const Json& layer : layers) {
    const bool known = layer.is_number_unsigned()
                           ? layer.get<uint64_t>() <= 1023
                           : layer.is_number_integer() && layer.get<int64_t>() >= -1024;
    if (!known) {
      return Fail(object + ": layers", layer.dump(),
                  "layer numbers, 0 to 1023, or -1 to -1024 from the last on");
    }
    if (!recipe.layers.emplace(std::pair{role, layer.get<int32_t>()}, format).second) {
      return Fail(object, fmt::format("{} of layer {} named twice", role_name, layer.dump()));
    }
  }
  return {};
}

bool IsRecipePath(const std::string& name_or_path) {
  return name_or_path.contains('/') || name_or_path.ends_with(".json");
}

}  // namespace

MatrixFormat Recipe::FormatOf(Role role, uint32_t layer, const model::Hyper& hyper) const {
  SLUICE_CHECK(std::ranges::find(kMatrixRoles, role) != kMatrixRoles.end());
  if (hyper.tied && !IsLayerRole(role)) {
    if (tied) return *tied;
    role = Role::kHead;
  }
  const auto from_start = static_cast<int32_t>(layer);
  for (const int32_t place : {from_start, from_start - static_cast<int32_t>(hyper.n_layers)}) {
    if (const auto it = layers.find({role, place}); it != layers.end()) return it->second;
  }
  if (const auto it = roles.find(role); it != roles.end()) return it->second;
  return default_format;
}

Result<Recipe> ParseRecipe(std::string_view text, std::string object) {
  SLUICE_TRY(const Json json, formats::ParseJson(text, object));
  SLUICE_TRY_VOID(CheckKeys(
      object, json,
      {"name", "description", "group", "default", "roles", "layers", "tied", "screen_head"}));
  Recipe recipe;
  SLUICE_TRY(recipe.name, GetText(object, json, "name"));
  if (json.contains("description")) {
    SLUICE_TRY(recipe.description, GetText(object, json, "description"));
  }
  SLUICE_TRY(const uint64_t group, GetUint(object, json, "group"));
  if (group != 32 && group != 64) {
    return Fail(object + ": group", fmt::format("{}", group), "32 or 64");
  }
  recipe.group = static_cast<uint8_t>(group);

  const auto format = [&](const std::string& place, const Json& value) -> Result<MatrixFormat> {
    SLUICE_TRY_VOID(CheckKeys(place, value, {"bits", "codebook"}));
    return ParseFormat(place, value, recipe.group);
  };
  if (!json.contains("default")) return Fail(object, "no key \"default\"");
  SLUICE_TRY(recipe.default_format, format(object + ": default", json["default"]));
  if (json.contains("roles")) {
    const std::string place = object + ": roles";
    if (!json["roles"].is_object()) return Fail(place, json["roles"].type_name(), "an object");
    for (const auto& [name, value] : json["roles"].items()) {
      SLUICE_TRY(const Role role, ParseRole(place, name));
      SLUICE_TRY(recipe.roles[role], format(place + ": " + name, value));
    }
  }
  if (json.contains("layers")) {
    if (!json["layers"].is_array()) {
      return Fail(object + ": layers", json["layers"].type_name(), "a list");
    }
    for (size_t i = 0; i < json["layers"].size(); ++i) {
      SLUICE_TRY_VOID(
          ParseLayers(fmt::format("{}: layers[{}]", object, i), json["layers"][i], recipe));
    }
  }
  if (json.contains("tied")) {
    SLUICE_TRY(recipe.tied, format(object + ": tied", json["tied"]));
  }
  if (json.contains("screen_head")) {
    if (!json["screen_head"].is_boolean()) {
      return Fail(object + ": screen_head", json["screen_head"].type_name(), "true or false");
    }
    recipe.screen_head = json["screen_head"].get<bool>();
  }
  if (recipe.screen_head) {
    for (const bool tied : {false, true}) {
      model::Hyper hyper;
      hyper.tied = tied;
      if (recipe.FormatOf(Role::kHead, 0, hyper).bits != 8) {
        return Fail(object + ": screen_head",
                    tied ? "true with a tied table of 4 bits" : "true with a head of 4 bits",
                    "8 bits, whose high plane is the screen");
      }
    }
  }
  return recipe;
}

std::span<const base::EmbeddedFile> RecipeFiles() { return embedded::Recipes(); }

Result<Recipe> LoadRecipe(const std::string& name_or_path) {
  SLUICE_TRY(const std::string text, RecipeText(name_or_path));
  return ParseRecipe(text, IsRecipePath(name_or_path) ? name_or_path : "recipe " + name_or_path);
}

Result<std::string> RecipeText(const std::string& name_or_path) {
  if (IsRecipePath(name_or_path)) return base::ReadSmallFile(name_or_path, kMaxRecipeBytes);
  std::string names;
  for (const base::EmbeddedFile& file : RecipeFiles()) {
    const std::string name(file.name.substr(0, file.name.rfind('.')));
    if (name == name_or_path) return std::string(file.text);
    names += (names.empty() ? "" : ", ") + name;
  }
  return Fail("recipe " + name_or_path, "unknown", names + ", or the path of a .json file");
}

Status CheckRecipe(const Recipe& recipe, const model::Hyper& hyper) {
  const auto n_layers = static_cast<int32_t>(hyper.n_layers);
  for (const auto& [place, format] : recipe.layers) {
    const auto [role, layer] = place;
    if (layer >= n_layers || layer < -n_layers) {
      return Fail("recipe " + recipe.name, fmt::format("{} of layer {}", RoleName(role), layer),
                  fmt::format("layers {} to {}", -n_layers, n_layers - 1));
    }
  }
  return {};
}

}  // namespace sluice::quant
