// UTF-8 with faults: what is not valid becomes U+FFFD, one for each maximal part of a character
// (The Unicode Standard 15.0, section 3.9, "U+FFFD Substitution of Maximal Subparts"), which is
// also what Python's bytes.decode(errors="replace") does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::text {

// The beginning of a byte string.
struct Utf8Step {
  enum Kind : uint8_t {
    kCharacter,  // one valid character of `length` bytes
    kInvalid,    // `length` bytes that no continuation could make valid
    kCut,        // the string ends inside a character that could still become valid
  };
  Kind kind;
  uint8_t length;  // 1 .. 4
  char32_t code;   // of a kCharacter
};
// `bytes` must not be empty.
Utf8Step ReadUtf8(std::string_view bytes);

bool IsValidUtf8(std::string_view bytes);

// `bytes` with every invalid part replaced; unchanged if valid.
std::string ReplaceInvalidUtf8(std::string_view bytes);

// The same over bytes that arrive in parts: Push() returns what is decided so far and keeps at
// most 3 bytes of an unfinished character; Finish() gives up on those.
class Utf8Stream {
 public:
  std::string Push(std::string_view bytes);
  std::string Finish();

 private:
  std::string pending_;
};

// Without the white space at both ends (or at one), as Python's str.strip() sees white space.
// `text` must be valid UTF-8; invalid bytes count as no white space.
std::string_view TrimLeft(std::string_view text);
std::string_view TrimRight(std::string_view text);
std::string_view Trim(std::string_view text);

}  // namespace sluice::text
