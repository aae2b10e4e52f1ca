// Text helpers that the hub files share.
#pragma once

#include <cctype>
#include <cstdlib>
#include <string>
#include <string_view>

namespace sluice::formats {

// Empty if the variable is not set.
inline std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

inline std::string LowerCase(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

}  // namespace sluice::formats
