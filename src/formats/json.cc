#include "formats/json.h"

#include <fmt/format.h>

#include <bit>
#include <limits>
#include <vector>

namespace sluice::formats {
namespace {

using base::Fail;
using base::Printable;
using base::Result;

// A pass over the document that builds nothing, only reckons what building it would take.
class Surveyor : public nlohmann::json_sax<Json> {
 public:
  explicit Surveyor(uint64_t budget) : budget_(budget) {}

  bool null() override { return Value(0); }
  bool boolean(bool) override { return Value(0); }
  bool number_integer(number_integer_t) override { return Value(0); }
  bool number_unsigned(number_unsigned_t) override { return Value(0); }
  bool number_float(number_float_t, const string_t&) override { return Value(0); }
  bool binary(binary_t&) override { return false; }
  bool string(string_t& text) override { return Value(StringBytes(text)); }
  bool key(string_t& text) override {
    ++keys_;
    return Spend(kTreeNode + StringBytes(text));
  }
  bool start_object(std::size_t) override { return Open(false); }
  bool start_array(std::size_t) override { return Open(true); }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    const uint64_t elements = open_.back().elements;
    open_.pop_back();
    return Spend(elements == 0 ? 0 : std::bit_ceil(elements) * sizeof(Json));
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    error_position_ = position;
    error_text_ = error.what();
    return false;
  }

  bool over_budget() const { return spent_ > budget_; }
  bool too_deep() const { return too_deep_; }
  uint64_t keys() const { return keys_; }
  uint64_t error_position() const { return error_position_; }
  const std::string& error_text() const { return error_text_; }

 private:
  // libstdc++ on 64 bits: a node of std::map<string, Json>; the object that a Json points to.
  static constexpr uint64_t kTreeNode = 32 + sizeof(std::string) + sizeof(Json);
  static constexpr uint64_t kContainer = 48;

  struct Container {
    bool is_array;
    uint64_t elements;
  };

  static uint64_t StringBytes(const string_t& text) {
    return sizeof(std::string) + (text.size() > 15 ? text.size() + 1 : 0);
  }
  bool Spend(uint64_t bytes) {
    spent_ += bytes;
    return !over_budget();
  }
  bool Value(uint64_t bytes) {
    if (!open_.empty() && open_.back().is_array) {
      // Arrays grow as they are read; what they hold by now counts at once.
      const uint64_t n = ++open_.back().elements;
      if (n * sizeof(Json) > budget_) spent_ = budget_ + 1;
    }
    return Spend(bytes);
  }
  bool Open(bool is_array) {
    if (open_.size() >= kMaxJsonDepth) {
      too_deep_ = true;
      return false;
    }
    if (!Value(kContainer)) return false;
    open_.push_back({is_array, 0});
    return true;
  }

  uint64_t budget_;
  uint64_t spent_ = 0;
  uint64_t keys_ = 0;
  std::vector<Container> open_;
  bool too_deep_ = false;
  uint64_t error_position_ = 0;
  std::string error_text_;
};

// Bounded by kMaxJsonDepth.
uint64_t CountKeys(const Json& value) {
  if (!value.is_structured()) return 0;
  uint64_t keys = value.is_object() ? value.size() : 0;
  for (const Json& child : value) keys += CountKeys(child);
  return keys;
}

}  // namespace

Result<Json> ParseJson(std::string_view text, const std::string& object) {
  Surveyor survey(text.size() + kMaxJsonExtraBytes);
  if (!Json::sax_parse(text, &survey)) {
    if (survey.too_deep()) {
      return Fail(object, fmt::format("nested deeper than {} levels", kMaxJsonDepth),
                  "flatter JSON");
    }
    if (survey.over_budget()) {
      return Fail(object, fmt::format("{} bytes of JSON that take over {} bytes of memory",
                                      text.size(), text.size() + kMaxJsonExtraBytes));
    }
    return Fail(object, "not JSON: " + Printable(survey.error_text(), 200), {},
                survey.error_position());
  }
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) return Fail(object, "not JSON");
  // An object keeps the last of several equal keys.
  if (CountKeys(value) != survey.keys()) {
    return Fail(object, "a key that occurs twice in one object", "each key once");
  }
  return value;
}

std::string Quoted(std::string_view text) { return fmt::format("\"{}\"", Printable(text)); }

std::string DescribeJson(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "the string " + Quoted(value.get_ref<const std::string&>());
    case Json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case Json::value_t::number_integer:
      return fmt::format("{}", value.get<int64_t>());
    case Json::value_t::number_unsigned:
      return fmt::format("{}", value.get<uint64_t>());
    case Json::value_t::number_float:
      return fmt::format("{}", value.get<double>());
    default:
      return "another value";
  }
}

Result<JsonObject> JsonObject::Of(const Json& value, std::string name) {
  if (!value.is_object()) return Fail(std::move(name), DescribeJson(value), "an object");
  return JsonObject(value, std::move(name));
}

const Json* JsonObject::Find(std::string_view key) const {
  const auto it = value_->find(key);
  return it == value_->end() || it->is_null() ? nullptr : &*it;
}

std::unexpected<base::Error> JsonObject::Wrong(std::string_view key, std::string got,
                                               std::string expected) const {
  return Fail(fmt::format("{}: {}", name_, key), std::move(got), std::move(expected));
}

Result<std::optional<uint64_t>> JsonObject::Uint(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_unsigned()) {
    return Wrong(key, DescribeJson(*value), "an integer that is not negative");
  }
  return value->get<uint64_t>();
}

Result<std::optional<double>> JsonObject::Float(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return Wrong(key, DescribeJson(*value), "a number");
  return value->get<double>();
}

Result<std::optional<bool>> JsonObject::Bool(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return Wrong(key, DescribeJson(*value), "true or false");
  return value->get<bool>();
}

Result<const std::string*> JsonObject::String(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_string()) return Wrong(key, DescribeJson(*value), "a string");
  return value->get_ptr<const std::string*>();
}

Result<const Json*> JsonObject::Array(std::string_view key) const {
  const Json* value = Find(key);
  if (value != nullptr && !value->is_array()) return Wrong(key, DescribeJson(*value), "an array");
  return value;
}

Result<std::optional<JsonObject>> JsonObject::Object(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  SLUICE_TRY(JsonObject object, Of(*value, fmt::format("{}: {}", name_, key)));
  return object;
}

Result<uint32_t> JsonObject::RequiredUint32(std::string_view key) const {
  SLUICE_TRY(const auto value, Uint(key));
  if (!value) return Wrong(key, "missing", "an integer");
  if (*value > std::numeric_limits<uint32_t>::max()) {
    return Wrong(key, fmt::format("{}", *value), "a number of 32 bits");
  }
  return static_cast<uint32_t>(*value);
}

}  // namespace sluice::formats
