#include "formats/catalogue.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <span>

#include "base/embedded.h"
#include "formats/json.h"

namespace sluice::embedded {
std::span<const base::EmbeddedFile> Models();
}

namespace sluice::formats {
namespace {

using base::Fail;
using base::Result;
using base::Status;

bool IsWord(std::string_view text) {
  constexpr std::string_view kPunctuation = "._-";
  if (text.empty() || text.front() == '.') return false;
  return std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kPunctuation.find(c) != std::string_view::npos;
  });
}

// One JSON object and its place, for errors: "models/x.json: sources[0]".
struct Node {
  const Json& json;
  std::string place;

  Status HasOnly(std::initializer_list<std::string_view> keys) const {
    if (!json.is_object()) return Fail(place, json.type_name(), "an object");
    for (const auto& item : json.items()) {
      if (std::ranges::find(keys, item.key()) == keys.end()) {
        return Fail(place, "key \"" + item.key() + "\"",
                    fmt::format("only {}", fmt::join(keys, ", ")));
      }
    }
    return {};
  }

  Result<std::string> Text(const char* key) const {
    const auto found = json.find(key);
    if (found == json.end()) return Fail(place, fmt::format("no \"{}\"", key), "a string");
    if (!found->is_string() || found->get_ref<const std::string&>().empty()) {
      return Fail(fmt::format("{}: {}", place, key), found->dump(), "a string");
    }
    return found->get<std::string>();
  }

  Result<uint64_t> Size(const char* key) const {
    const auto found = json.find(key);
    if (found == json.end()) return Fail(place, fmt::format("no \"{}\"", key), "bytes");
    if (!found->is_number_unsigned() || found->get<uint64_t>() == 0) {
      return Fail(fmt::format("{}: {}", place, key), found->dump(), "bytes, a positive integer");
    }
    return found->get<uint64_t>();
  }

  Result<std::string> Sha256(const char* key) const {
    SLUICE_TRY(std::string text, Text(key));
    const bool is_hex = std::ranges::all_of(
        text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
    if (text.size() != 64 || !is_hex) {
      return Fail(fmt::format("{}: {}", place, key), "\"" + text + "\"",
                  "64 lower-case hexadecimal digits");
    }
    return text;
  }
};

Result<ModelSource> ParsePypiSource(const Node& node) {
  SLUICE_TRY_VOID(node.HasOnly({"kind", "package", "version", "file", "size", "sha256", "member"}));
  PypiSource source;
  SLUICE_TRY(source.package, node.Text("package"));
  SLUICE_TRY(source.version, node.Text("version"));
  SLUICE_TRY(source.file, node.Text("file"));
  SLUICE_TRY(source.size, node.Size("size"));
  SLUICE_TRY(source.sha256, node.Sha256("sha256"));
  if (!IsWord(source.package)) {
    return Fail(node.place + ": package", source.package, "the name of a package");
  }
  if (!IsSafePath(source.file) || source.file.find('/') != std::string::npos) {
    return Fail(node.place + ": file", source.file, "the name of a file");
  }
  if (!node.json.contains("member")) return Fail(node.place, "no \"member\"", "an object");
  const Node member{node.json["member"], node.place + ": member"};
  SLUICE_TRY_VOID(member.HasOnly({"path", "size", "sha256"}));
  SLUICE_TRY(source.member.path, member.Text("path"));
  SLUICE_TRY(source.member.size, member.Size("size"));
  SLUICE_TRY(source.member.sha256, member.Sha256("sha256"));
  if (!IsSafePath(source.member.path)) {
    return Fail(member.place + ": path", source.member.path, "a path inside the wheel");
  }
  return source;
}

Result<ModelSource> ParseHubSource(const Node& node) {
  SLUICE_TRY_VOID(node.HasOnly({"kind", "repo", "revision", "file"}));
  SLUICE_TRY(const std::string repo, node.Text("repo"));
  const auto parsed = ParseHubName(repo);
  if (!parsed || parsed->repo != repo) return Fail(node.place + ": repo", repo, "owner/name");
  HubSource source = *parsed;
  if (node.json.contains("revision")) {
    SLUICE_TRY(source.revision, node.Text("revision"));
    if (!IsSafePath(source.revision)) {
      return Fail(node.place + ": revision", source.revision, "a branch, tag or commit");
    }
  }
  if (node.json.contains("file")) {
    SLUICE_TRY(source.file, node.Text("file"));
    if (!IsSafePath(*source.file)) return Fail(node.place + ": file", *source.file, "a path");
  }
  return source;
}

Result<ModelSource> ParseSource(const Node& node) {
  if (!node.json.is_object()) return Fail(node.place, node.json.type_name(), "an object");
  SLUICE_TRY(const std::string kind, node.Text("kind"));
  if (kind == "pypi") return ParsePypiSource(node);
  if (kind == "hf") return ParseHubSource(node);
  return Fail(node.place + ": kind", "\"" + kind + "\"", "pypi or hf");
}

}  // namespace

bool IsSafePath(std::string_view path) {
  size_t begin = 0;
  while (true) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    if (std::ranges::any_of(part, [](char c) { return c == '\\' || (c >= 0 && c < 32); })) {
      return false;
    }
    if (end == path.size()) return true;
    begin = end + 1;
  }
}

Result<HubSource> ParseHubName(std::string_view name) {
  const auto fail = [&] {
    return Fail(std::string(name), "not the name of a model",
                "owner/name, owner/name@revision or owner/name:file.gguf");
  };
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return fail();
  const std::string_view rest = name.substr(slash + 1);
  const size_t end = std::min(rest.find_first_of("/:@"), rest.size());
  if (!IsWord(name.substr(0, slash)) || !IsWord(rest.substr(0, end))) return fail();
  HubSource source;
  source.repo = name.substr(0, slash + 1 + end);
  std::string_view tail = rest.substr(end);
  if (tail.starts_with('@')) {
    const size_t colon = std::min(tail.find(':'), tail.size());
    source.revision = tail.substr(1, colon - 1);
    if (!IsSafePath(source.revision)) return fail();
    tail = tail.substr(colon);
  }
  if (!tail.empty()) {
    source.file = tail.substr(1);
    if (!IsSafePath(*source.file)) return fail();
  }
  return source;
}

Result<CatalogueEntry> ParseCatalogueEntry(std::string_view text, std::string_view object) {
  SLUICE_TRY(const Json json, ParseJson(text, std::string(object)));
  const Node node{json, std::string(object)};
  SLUICE_TRY_VOID(node.HasOnly({"name", "family", "licence", "description", "sources"}));
  CatalogueEntry entry;
  SLUICE_TRY(entry.name, node.Text("name"));
  SLUICE_TRY(entry.family, node.Text("family"));
  SLUICE_TRY(entry.licence, node.Text("licence"));
  SLUICE_TRY(entry.description, node.Text("description"));
  if (!IsWord(entry.name)) {
    return Fail(node.place + ": name", "\"" + entry.name + "\"", "letters, digits, '.', '-', '_'");
  }
  const auto sources = json.find("sources");
  if (sources == json.end() || !sources->is_array() || sources->empty()) {
    return Fail(node.place + ": sources", sources == json.end() ? "absent" : sources->dump(),
                "an array of at least one source");
  }
  for (size_t i = 0; i < sources->size(); ++i) {
    SLUICE_TRY(ModelSource source,
               ParseSource({(*sources)[i], fmt::format("{}: sources[{}]", object, i)}));
    entry.sources.push_back(std::move(source));
  }
  return entry;
}

Result<Catalogue> BuiltInCatalogue() {
  Catalogue catalogue;
  for (const base::EmbeddedFile& file : embedded::Models()) {
    SLUICE_TRY(CatalogueEntry entry,
               ParseCatalogueEntry(file.text, "models/" + std::string(file.name)));
    catalogue.push_back(std::move(entry));
  }
  std::ranges::sort(catalogue, {}, &CatalogueEntry::name);
  const auto twice = std::ranges::adjacent_find(catalogue, {}, &CatalogueEntry::name);
  if (twice != catalogue.end()) return Fail("models", "two entries \"" + twice->name + "\"");
  return catalogue;
}

bool IsCatalogueName(std::string_view name) {
  const auto catalogue = BuiltInCatalogue();
  return catalogue &&
         std::ranges::find(*catalogue, name, &CatalogueEntry::name) != catalogue->end();
}

std::string NamesOf(const Catalogue& catalogue) {
  std::string names;
  for (const CatalogueEntry& entry : catalogue) names += (names.empty() ? "" : ", ") + entry.name;
  return names;
}

}  // namespace sluice::formats
