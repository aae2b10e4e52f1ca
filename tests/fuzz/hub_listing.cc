// The hub's description of a model, and the choice of files from it.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "formats/hub_huggingface.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto listing = formats::ParseHubListing(text, "fuzz");
  if (!listing) {
    SLUICE_CHECK(!listing.error().object.empty() && !listing.error().got.empty());
    return 0;
  }
  for (const bool one_file : {false, true}) {
    formats::HubSource source{.repo = "owner/name"};
    if (one_file) source.file = "model.gguf";
    const auto files = formats::ChooseHubFiles(*listing, source);
    if (!files) continue;
    SLUICE_CHECK(!files->empty());
    SLUICE_CHECK(std::ranges::all_of(*files, formats::IsSafePath, &formats::HubFile::path));
  }
  return 0;
}
