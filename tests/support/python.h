// Running the Python references that some tests compare with.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace sluice::testing {

// SLUICE_PYTHON is the interpreter that the build found; scripts/test sets the environment variable
// of the same name to that of its virtual environment.
inline std::string Python() {
  const char* python = std::getenv("SLUICE_PYTHON");
  return python != nullptr ? python : SLUICE_PYTHON;
}

// Runs `python ARGUMENTS` and returns its exit code; its output goes where the test's goes.
inline int RunPython(const std::string& arguments) {
  return std::system(fmt::format("'{}' {}", Python(), arguments).c_str());
}

// True if `import MODULES` works ("gguf, numpy").
inline bool PythonHas(const std::string& modules) {
  return RunPython(fmt::format("-c 'import {}' 2>/dev/null", modules)) == 0;
}

}  // namespace sluice::testing

// In a test's body: skips it where the modules are not installed, or fails it if the environment
// has SLUICE_TEST_STRICT=1.
#define SLUICE_NEEDS_PYTHON(modules)                          \
  do {                                                        \
    if (!::sluice::testing::PythonHas(modules)) {             \
      const char* strict = std::getenv("SLUICE_TEST_STRICT"); \
      if (strict != nullptr && std::string(strict) == "1") {  \
        FAIL() << "Python cannot import " << modules;         \
      }                                                       \
      GTEST_SKIP() << "Python cannot import " << modules;     \
    }                                                         \
  } while (false)
