#include "model/metadata.h"

#include <limits>
#include <type_traits>

namespace sluice::model {
namespace {

std::unexpected<base::Error> WrongType(std::string_view key, std::string expected) {
  return base::Fail("metadata key " + std::string(key), "a value of another type",
                    std::move(expected));
}

// A pointer to the key's value as T, nullptr if absent.
template <typename T>
base::Result<const T*> Get(const Metadata& metadata, std::string_view key, const char* expected) {
  const Value* value = metadata.Find(key);
  if (value == nullptr) return nullptr;
  if (const T* typed = std::get_if<T>(value)) return typed;
  return WrongType(key, expected);
}

}  // namespace

const Value* Metadata::Find(std::string_view key) const {
  for (const auto& [name, value] : entries_) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Metadata::Set(std::string key, Value value) {
  for (auto& [name, old] : entries_) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  entries_.emplace_back(std::move(key), std::move(value));
}

base::Result<std::optional<uint64_t>> Metadata::GetUint(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  return std::visit(
      [&](const auto& v) -> base::Result<std::optional<uint64_t>> {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
          if (std::is_signed_v<T> && v < T{0}) {
            return base::Fail("metadata key " + std::string(key), std::to_string(v),
                              "a number that is not negative");
          }
          return static_cast<uint64_t>(v);
        } else {
          return WrongType(key, "an integer");
        }
      },
      *value);
}

base::Result<std::optional<double>> Metadata::GetFloat(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (const float* v = std::get_if<float>(value)) return static_cast<double>(*v);
  if (const double* v = std::get_if<double>(value)) return *v;
  return WrongType(key, "a floating-point number");
}

base::Result<std::optional<bool>> Metadata::GetBool(std::string_view key) const {
  SLUICE_TRY(const bool* value, Get<bool>(*this, key, "a boolean"));
  return value == nullptr ? std::nullopt : std::optional<bool>(*value);
}

base::Result<const std::string*> Metadata::GetString(std::string_view key) const {
  return Get<std::string>(*this, key, "a string");
}

base::Result<const std::vector<std::string>*> Metadata::GetStrings(std::string_view key) const {
  return Get<std::vector<std::string>>(*this, key, "an array of strings");
}

base::Result<std::optional<std::vector<int32_t>>> Metadata::GetInts(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  return std::visit(
      [&](const auto& v) -> base::Result<std::optional<std::vector<int32_t>>> {
        using T = std::decay_t<decltype(v)>;
        if constexpr (requires { typename T::value_type; } && !std::is_same_v<T, std::string> &&
                      !std::is_same_v<T, std::vector<bool>>) {
          if constexpr (std::is_integral_v<typename T::value_type>) {
            std::vector<int32_t> ints;
            ints.reserve(v.size());
            for (const auto x : v) {
              if (!std::in_range<int32_t>(x)) {
                return base::Fail("metadata key " + std::string(key), std::to_string(x),
                                  "values of 32 bits");
              }
              ints.push_back(static_cast<int32_t>(x));
            }
            return ints;
          }
        }
        return WrongType(key, "an array of integers");
      },
      *value);
}

base::Result<std::optional<std::vector<float>>> Metadata::GetFloats(std::string_view key) const {
  SLUICE_TRY(const std::vector<float>* value,
             Get<std::vector<float>>(*this, key, "an array of 32-bit floats"));
  return value == nullptr ? std::nullopt : std::optional<std::vector<float>>(*value);
}

}  // namespace sluice::model
