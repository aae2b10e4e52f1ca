// JSON from files that nobody vouches for: bounded in depth and memory, never throwing.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace sluice::formats {

using Json = nlohmann::json;

constexpr int kMaxJsonDepth = 64;
// What a document may take in memory beyond its own length. A tokenizer.json of 280000 merges, as
// pairs of strings, takes about 50 MB.
constexpr uint64_t kMaxJsonExtraBytes = 48 << 20;

// The document in `text`; `object` names it in errors: a syntax error, a key twice in one object,
// nesting deeper than kMaxJsonDepth, or more memory than text.size() + kMaxJsonExtraBytes.
base::Result<Json> ParseJson(std::string_view text, const std::string& object);

// Typed members of one JSON object. A member that is absent or null gives nullopt (nullptr);
// one of another type is an error that names it.
class JsonObject {
 public:
  // `value` must outlive this. Error unless it is an object.
  static base::Result<JsonObject> Of(const Json& value, std::string name);

  const std::string& name() const { return name_; }
  const Json& json() const { return *value_; }
  const Json* Find(std::string_view key) const;
  base::Result<std::optional<uint64_t>> Uint(std::string_view key) const;
  // Any number.
  base::Result<std::optional<double>> Float(std::string_view key) const;
  base::Result<std::optional<bool>> Bool(std::string_view key) const;
  base::Result<const std::string*> String(std::string_view key) const;
  base::Result<const Json*> Array(std::string_view key) const;
  base::Result<std::optional<JsonObject>> Object(std::string_view key) const;
  // A member that must be there, with a value of 32 bits.
  base::Result<uint32_t> RequiredUint32(std::string_view key) const;

  std::unexpected<base::Error> Wrong(std::string_view key, std::string got,
                                     std::string expected) const;

 private:
  JsonObject(const Json& value, std::string name) : value_(&value), name_(std::move(name)) {}
  const Json* value_;
  std::string name_;
};

// "an array", "the string \"x\"" ..., for messages.
std::string DescribeJson(const Json& value);
// A text as it stands in JSON, in quotation marks, fit for a message.
std::string Quoted(std::string_view text);

}  // namespace sluice::formats
