#include "text/utf8.h"

#include <algorithm>
#include <utility>

namespace sluice::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Appends what is decided of `bytes` and returns the unfinished character at its end.
std::string_view AppendDecided(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const Utf8Step step = ReadUtf8(bytes);
    if (step.kind == Utf8Step::kCut) return bytes;
    out += step.kind == Utf8Step::kCharacter ? bytes.substr(0, step.length) : kReplacement;
    bytes.remove_prefix(step.length);
  }
  return {};
}

// str.isspace() of Python: the white space of Unicode and the separators 1C to 1F.
bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

}  // namespace

Utf8Step ReadUtf8(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8Step::kCharacter, 1, lead};
  // Table 3-7 of The Unicode Standard: only the second byte's range depends on the first.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  uint8_t length;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Step::kInvalid, 1, 0};
  }
  char32_t code = lead & (0x7F >> length);
  for (uint8_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Utf8Step::kCut, i, 0};
    if (byte(i) < low || byte(i) > high) return {Utf8Step::kInvalid, i, 0};
    code = code << 6 | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::kCharacter, length, code};
}

bool IsValidUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = ReadUtf8(bytes);
    if (step.kind != Utf8Step::kCharacter) return false;
    bytes.remove_prefix(step.length);
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  if (!AppendDecided(bytes, out).empty()) out += kReplacement;
  return out;
}

std::string Utf8Stream::Push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  const std::string_view rest = AppendDecided(pending_, out);
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string Utf8Stream::Finish() {
  return std::exchange(pending_, {}).empty() ? std::string() : std::string(kReplacement);
}

std::string_view TrimLeft(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = ReadUtf8(text);
    if (step.kind != Utf8Step::kCharacter || !IsSpace(step.code)) break;
    text.remove_prefix(step.length);
  }
  return text;
}

std::string_view TrimRight(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && text.size() - begin < 4 && (text[begin] & 0xC0) == 0x80) --begin;
    const Utf8Step step = ReadUtf8(text.substr(begin));
    if (step.kind != Utf8Step::kCharacter || begin + step.length != text.size() ||
        !IsSpace(step.code)) {
      break;
    }
    text.remove_suffix(step.length);
  }
  return text;
}

std::string_view Trim(std::string_view text) { return TrimLeft(TrimRight(text)); }

}  // namespace sluice::text
