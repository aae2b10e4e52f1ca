// What the tests of downloads share: a scratch folder, an environment that is put back, and random
// content.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "formats/http_download.h"
#include "support/temp_dir.h"

namespace sluice::testing {

inline constexpr formats::HttpPolicy kFast{.attempts = 3,
                                           .pause = std::chrono::milliseconds(1),
                                           .stall = std::chrono::seconds(5),
                                           .connect = std::chrono::seconds(5)};

inline std::string RandomText(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random() & 255);
  return text;
}

inline std::string Sha256Of(std::string_view text) {
  base::Sha256 hash;
  hash.Update(std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  return hash.Finish();
}

class NetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* variable :
         {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "PIP_INDEX_URL",
          "PIP_PROXY", "PIP_CONFIG_FILE", "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_CACHE", "SLUICE_CACHE",
          "XDG_CACHE_HOME"}) {
      SetEnvironment(variable, nullptr);
    }
    SetEnvironment("HF_HOME", Path("hf").c_str());
    SetEnvironment("HOME", Path("home").c_str());
  }

  void TearDown() override {
    for (const auto& [name, value] : environment_) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
  }

  void SetEnvironment(const std::string& name, const char* value) {
    const char* old = std::getenv(name.c_str());
    environment_.try_emplace(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
    if (value == nullptr) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value, 1);
    }
  }

  std::string Path(const std::string& name) const { return folder_ / name; }

  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  void Write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    WriteFile(Path(name), text);
  }

  // Paths of all files below the scratch folder's `name`, sorted.
  std::vector<std::string> Files(const std::string& name = ".") const {
    std::vector<std::string> files;
    const std::filesystem::path root = Path(name);
    if (!std::filesystem::exists(root)) return files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (entry.is_regular_file()) {
        files.push_back(std::filesystem::relative(entry.path(), root).string());
      }
    }
    std::sort(files.begin(), files.end());
    return files;
  }

 private:
  TempDir folder_;
  std::map<std::string, std::optional<std::string>> environment_;
};

}  // namespace sluice::testing
