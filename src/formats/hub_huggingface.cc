#include "formats/hub_huggingface.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/atomic_file.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "formats/hub_text.h"
#include "formats/hub_url.h"

namespace sluice::formats {
namespace {

namespace fs = std::filesystem;
using base::Fail;
using base::Result;
using base::Status;
using Json = nlohmann::json;

constexpr uint64_t kMaxListingBytes = uint64_t{16} << 20;
constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;
// Written last into a pulled folder: which files make it complete.
constexpr char kManifest[] = ".sluice-pulled.json";
constexpr char kShardIndex[] = "model.safetensors.index.json";

std::string Endpoint() {
  std::string endpoint = Environment("HF_ENDPOINT");
  if (endpoint.empty()) endpoint = "https://huggingface.co";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  return endpoint;
}

// Where Hugging Face's tools keep their things; empty if there is no such place.
std::string HuggingFaceHome() {
  if (const std::string home = Environment("HF_HOME"); !home.empty()) return home;
  if (const std::string cache = Environment("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/huggingface";
  }
  if (const std::string home = Environment("HOME"); !home.empty()) {
    return home + "/.cache/huggingface";
  }
  return {};
}

// $HF_TOKEN, else the token that `hf auth login` has stored.
std::string Token() {
  std::string token = Environment("HF_TOKEN");
  if (token.empty()) {
    token = base::ReadSmallFile(HuggingFaceHome() + "/token", 4096).value_or("");
  }
  token.erase(std::remove_if(token.begin(), token.end(),
                             [](unsigned char c) { return c <= ' ' || c == 127; }),
              token.end());
  return token;
}

bool IsFile(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::optional<Json> ReadJson(const std::string& path, uint64_t max_bytes) {
  const auto text = base::ReadSmallFile(path, max_bytes);
  if (!text) return std::nullopt;
  Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return std::nullopt;
  return json;
}

bool HasAllShards(const std::string& folder) {
  const auto index = ReadJson(folder + "/" + kShardIndex, kMaxIndexBytes);
  if (!index || !index->is_object() || !index->contains("weight_map")) return false;
  const Json& map = (*index)["weight_map"];
  if (!map.is_object() || map.empty()) return false;
  std::set<std::string> shards;
  for (const Json& shard : map) {
    if (!shard.is_string()) return false;
    shards.insert(shard.get<std::string>());
  }
  return std::ranges::all_of(shards, [&](const std::string& shard) {
    return IsSafePath(shard) && IsFile(folder + "/" + shard);
  });
}

// The layout of huggingface_hub's cache: models--OWNER--NAME/{refs/REVISION, snapshots/COMMIT/}.
// It puts a file there only when that file is complete.
std::optional<std::string> FindSnapshot(const HubSource& source) {
  std::string hub = Environment("HF_HUB_CACHE");
  if (hub.empty()) hub = HuggingFaceHome() + "/hub";
  std::string name = "models--" + source.repo;
  name.replace(name.find('/'), 1, "--");
  const std::string repo = hub + "/" + name;
  std::string commit =
      base::ReadSmallFile(repo + "/refs/" + source.revision, 4096).value_or(source.revision);
  while (!commit.empty() && commit.back() <= ' ') commit.pop_back();
  if (!IsSafePath(commit)) return std::nullopt;
  const std::string snapshot = repo + "/snapshots/" + commit;
  if (source.file) {
    std::string path = snapshot + "/" + *source.file;
    return IsFile(path) ? std::optional(path) : std::nullopt;
  }
  if (!IsFile(snapshot + "/config.json") || !IsFile(snapshot + "/tokenizer.json")) {
    return std::nullopt;
  }
  if (IsFile(snapshot + "/" + kShardIndex) ? HasAllShards(snapshot)
                                           : IsFile(snapshot + "/model.safetensors")) {
    return snapshot;
  }
  return std::nullopt;
}

bool IsCompleteFolder(const std::string& folder) {
  const auto manifest = ReadJson(folder + "/" + kManifest, kMaxListingBytes);
  if (!manifest || !manifest->is_object() || !manifest->contains("files")) return false;
  const Json& files = (*manifest)["files"];
  return files.is_object() && !files.empty() && std::ranges::all_of(files.items(), [&](auto item) {
           std::error_code error;
           return IsSafePath(item.key()) && item.value().is_number_unsigned() &&
                  fs::file_size(folder + "/" + item.key(), error) ==
                      item.value().template get<uint64_t>();
         });
}

Status WriteManifest(const std::string& folder, const HubSource& source, const HubListing& listing,
                     const std::vector<HubFile>& files) {
  Json manifest = {
      {"repo", source.repo}, {"revision", source.revision}, {"commit", listing.commit}};
  for (const HubFile& file : files) {
    std::error_code error;
    const std::string path = folder + "/" + file.path;
    const uint64_t size = fs::file_size(path, error);
    if (error) return base::FailErrno(path, "cannot stat", error.value());
    manifest["files"][file.path] = size;
  }
  SLUICE_TRY(auto output, base::AtomicFile::Create(folder + "/" + kManifest));
  SLUICE_TRY_VOID(output.Write(manifest.dump(2) + "\n"));
  return output.Commit();
}

// Whether an interrupted pull has left this file whole.
bool IsThere(const std::string& path, const HubFile& file) {
  if (file.sha256.empty() || !IsFile(path)) return false;
  const auto mapped = base::MappedFile::Open(path);
  if (!mapped || (file.size && (*mapped)->bytes().size() != *file.size)) return false;
  base::Sha256 hash;
  hash.Update((*mapped)->bytes());
  return hash.Finish() == file.sha256;
}

bool IsWanted(std::string_view path) {
  if (path.find('/') != std::string_view::npos || path.starts_with('.')) return false;
  constexpr std::array kSuffixes{std::string_view(".safetensors"), std::string_view(".json"),
                                 std::string_view(".jinja")};
  constexpr std::array kNames{std::string_view("tokenizer.model"), std::string_view("vocab.txt"),
                              std::string_view("merges.txt")};
  return std::ranges::any_of(kSuffixes, [&](auto suffix) { return path.ends_with(suffix); }) ||
         std::ranges::find(kNames, path) != kNames.end();
}

}  // namespace

Result<HubListing> ParseHubListing(std::string_view text, std::string_view object) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("siblings") || !json["siblings"].is_array()) {
    return Fail(std::string(object), "not the description of a model", "JSON with \"siblings\"");
  }
  HubListing listing;
  if (json.contains("sha") && json["sha"].is_string()) listing.commit = json["sha"];
  if (!listing.commit.empty() && !IsSafePath(listing.commit)) {
    return Fail(std::string(object), "commit \"" + listing.commit + "\"", "a commit");
  }
  for (const Json& item : json["siblings"]) {
    if (!item.is_object() || !item.contains("rfilename") || !item["rfilename"].is_string()) {
      return Fail(std::string(object), "a file without a name", "\"rfilename\"");
    }
    HubFile file{item["rfilename"].get<std::string>()};
    if (!IsSafePath(file.path)) {
      return Fail(std::string(object), "file \"" + file.path + "\"", "a path inside the model");
    }
    if (item.contains("size") && item["size"].is_number_unsigned()) file.size = item["size"];
    if (item.contains("lfs") && item["lfs"].is_object()) {
      const Json& lfs = item["lfs"];
      if (lfs.contains("sha256") && lfs["sha256"].is_string()) file.sha256 = lfs["sha256"];
      if (lfs.contains("size") && lfs["size"].is_number_unsigned()) file.size = lfs["size"];
    }
    listing.files.push_back(std::move(file));
  }
  return listing;
}

Result<std::vector<HubFile>> ChooseHubFiles(const HubListing& listing, const HubSource& source) {
  std::string ggufs;
  std::vector<HubFile> wanted;
  for (const HubFile& file : listing.files) {
    if (source.file && file.path == *source.file) return std::vector{file};
    if (file.path.ends_with(".gguf")) {
      ggufs += fmt::format("{}{}:{}", ggufs.empty() ? "" : ", ", source.repo, file.path);
    }
    if (IsWanted(file.path)) wanted.push_back(file);
  }
  if (source.file) {
    return Fail(source.repo, "has no file \"" + *source.file + "\"",
                ggufs.empty() ? "a file of the model" : "one of " + ggufs);
  }

  const auto is_weights = [](const HubFile& file) { return file.path.ends_with(".safetensors"); };
  const auto is_standard = [&](const HubFile& file) {
    return is_weights(file) && file.path.starts_with("model");
  };
  // Some models hold their weights a second time, in their maker's own layout.
  if (std::ranges::any_of(wanted, is_standard)) {
    std::erase_if(wanted,
                  [&](const HubFile& file) { return is_weights(file) && !is_standard(file); });
  }
  if (!std::ranges::any_of(wanted, is_weights)) {
    if (!ggufs.empty()) return Fail(source.repo, "holds GGUF files", "one of them: " + ggufs);
    return Fail(source.repo, "no weights that sluice reads", "safetensors or GGUF files");
  }
  for (const std::string_view name : {"config.json", "tokenizer.json"}) {
    if (std::ranges::find(wanted, name, &HubFile::path) == wanted.end()) {
      return Fail(source.repo, fmt::format("no {}", name), "a model for the transformers library");
    }
  }
  return wanted;
}

std::optional<std::string> FindHubModel(const HubSource& source, const std::string& folder) {
  if (source.file) {
    // A finished download appears under its name and no sooner.
    if (IsFile(folder + "/" + *source.file)) return folder + "/" + *source.file;
  } else if (IsCompleteFolder(folder)) {
    return folder;
  }
  return FindSnapshot(source);
}

Result<std::string> PullHubModel(const HubSource& source, const std::string& folder,
                                 const std::string& missing_hint, const HttpPolicy& policy,
                                 const base::Progress& progress) {
  const std::string endpoint = Endpoint();
  HttpRequest request{
      .url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", endpoint,
                         EscapePath(source.repo), EscapeSegment(source.revision)),
      .bearer_token = Token(),
      .denied_hint = "the name of a public model, or a token in HF_TOKEN that may read it",
      .missing_hint = missing_hint};
  SLUICE_TRY(const HttpPage page, HttpGet(request, kMaxListingBytes, policy));
  SLUICE_TRY(const HubListing listing, ParseHubListing(page.body, ShownUrl(page.url)));
  SLUICE_TRY(const std::vector<HubFile> files, ChooseHubFiles(listing, source));

  // All files of one commit, even if somebody changes the model meanwhile.
  const std::string& revision = listing.commit.empty() ? source.revision : listing.commit;
  request.missing_hint = "a file that the hub itself lists";
  for (const HubFile& file : files) {
    const std::string target = folder + "/" + file.path;
    if (IsThere(target, file)) continue;
    std::error_code error;
    fs::create_directories(fs::path(target).parent_path(), error);
    if (error) return base::FailErrno(target, "cannot create its folder", error.value());
    request.url = fmt::format("{}/{}/resolve/{}/{}", endpoint, EscapePath(source.repo),
                              EscapeSegment(revision), EscapePath(file.path));
    SLUICE_TRY_VOID(DownloadFile(
        {.request = request, .target = target, .size = file.size, .sha256 = file.sha256}, policy,
        progress));
  }
  if (source.file) return folder + "/" + *source.file;
  SLUICE_TRY_VOID(WriteManifest(folder, source, listing, files));
  return folder;
}

}  // namespace sluice::formats
