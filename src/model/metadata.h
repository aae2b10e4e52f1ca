// Key/value metadata in GGUF's type system: the one form in which the rest of the project sees a
// model's hyperparameters, tokenizer and chat template, wherever they were read from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace sluice::model {

// One value. Arrays are flat (GGUF's arrays of arrays occur in no model and are refused). The
// alternatives stand for GGUF's types of the same width; strings are bytes, not checked as UTF-8.
using Value = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool,
                           std::string, uint64_t, int64_t, double, std::vector<uint8_t>,
                           std::vector<int8_t>, std::vector<uint16_t>, std::vector<int16_t>,
                           std::vector<uint32_t>, std::vector<int32_t>, std::vector<float>,
                           std::vector<bool>, std::vector<std::string>, std::vector<uint64_t>,
                           std::vector<int64_t>, std::vector<double>>;

// Keys in the file's order, each once.
class Metadata {
 public:
  const Value* Find(std::string_view key) const;
  // Replaces the value of a key that exists, appends otherwise.
  void Set(std::string key, Value value);
  const std::vector<std::pair<std::string, Value>>& entries() const { return entries_; }

  // Typed look-ups. An absent key gives nullopt (or nullptr); a key of another type is an error
  // that names the key. GetUint accepts any integer type with a value >= 0.
  base::Result<std::optional<uint64_t>> GetUint(std::string_view key) const;
  base::Result<std::optional<double>> GetFloat(std::string_view key) const;
  base::Result<std::optional<bool>> GetBool(std::string_view key) const;
  base::Result<const std::string*> GetString(std::string_view key) const;
  base::Result<const std::vector<std::string>*> GetStrings(std::string_view key) const;
  // Any integer array with values in int32.
  base::Result<std::optional<std::vector<int32_t>>> GetInts(std::string_view key) const;
  base::Result<std::optional<std::vector<float>>> GetFloats(std::string_view key) const;

 private:
  std::vector<std::pair<std::string, Value>> entries_;
};

}  // namespace sluice::model
