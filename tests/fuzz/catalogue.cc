// Entries of the catalogue (models/*.json), and the names of models that users type.
#include "formats/catalogue.h"

#include <cstdint>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto entry = formats::ParseCatalogueEntry(text, "fuzz");
  if (entry) {
    SLUICE_CHECK(!entry->name.empty() && !entry->sources.empty());
    for (const formats::ModelSource& source : entry->sources) {
      if (const auto* pypi = std::get_if<formats::PypiSource>(&source)) {
        SLUICE_CHECK(formats::IsSafePath(pypi->file) && formats::IsSafePath(pypi->member.path));
      }
    }
  } else {
    SLUICE_CHECK(!entry.error().object.empty() && !entry.error().got.empty());
  }
  if (const auto hub = formats::ParseHubName(text)) {
    SLUICE_CHECK(formats::IsSafePath(hub->repo) && formats::IsSafePath(hub->revision));
    SLUICE_CHECK(!hub->file || formats::IsSafePath(*hub->file));
  }
  return 0;
}
