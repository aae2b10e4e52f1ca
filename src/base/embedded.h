// Text files that the build compiles into the program (cmake/sluice.cmake: sluice_embed).
#pragma once

#include <string_view>

namespace sluice::base {
struct EmbeddedFile {
  std::string_view name;  // without folder: "balanced.json"
  std::string_view text;
};
}  // namespace sluice::base
