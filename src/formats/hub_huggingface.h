// Models on the Hugging Face hub, or a server that speaks like it (HF_ENDPOINT).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "formats/catalogue.h"
#include "formats/http_download.h"

namespace sluice::formats {

struct HubFile {
  std::string path;
  std::optional<uint64_t> size = {};
  std::string sha256 = {};  // empty if the hub does not tell (small files)
};

struct HubListing {
  std::string commit;  // empty if the hub does not tell
  std::vector<HubFile> files;
};

// Reads the answer of /api/models/OWNER/NAME/revision/REVISION?blobs=true.
base::Result<HubListing> ParseHubListing(std::string_view json, std::string_view object);

// The files of a repository that sluice reads: the one that the source names, or configuration,
// tokenizer and safetensors. Error if there is nothing that sluice can read.
base::Result<std::vector<HubFile>> ChooseHubFiles(const HubListing& listing,
                                                  const HubSource& source);

// Path of the model in `folder`, or else in the cache of Hugging Face's own tools, if it is
// complete there.
std::optional<std::string> FindHubModel(const HubSource& source, const std::string& folder);

// Downloads the model into `folder`; returns the folder, or the path of the one file that the
// source names.
//   missing_hint: what the error of a 404 says was expected
base::Result<std::string> PullHubModel(const HubSource& source, const std::string& folder,
                                       const std::string& missing_hint, const HttpPolicy& policy,
                                       const base::Progress& progress);

}  // namespace sluice::formats
