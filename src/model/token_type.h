#pragma once

#include <cstdint>

namespace sluice::model {

// What a token is, as the GGUF key tokenizer.ggml.token_type counts.
enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

}  // namespace sluice::model
