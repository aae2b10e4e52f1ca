#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

// Characters before which normalising can begin anew: of combining class 0, in NFC, and nothing
// that composes with what stands before it. Text of these alone is in NFC. Not all there are: those
// of common scripts. In order.
struct Range {
  char32_t first;
  char32_t last;
};
constexpr std::array<Range, 11> kPlain = {{
    {0x0000, 0x02FF},  // Latin
    {0x0400, 0x0482},  // Cyrillic
    // Hangul jamo "no trailing consonant", which is not one: utf8proc 2.8 would lose it behind a
    // syllable. At the beginning of a run it has nothing before it.
    {0x11A7, 0x11A7},
    {0x1E00, 0x1EFF},    // Latin, Vietnamese among it
    {0x2002, 0x20CF},    // punctuation
    {0x3001, 0x3029},    // CJK punctuation
    {0x3030, 0x3098},    // Hiragana
    {0x309B, 0xA48C},    // Katakana, CJK ideographs, Yi
    {0xAC00, 0xD7A3},    // Hangul syllables
    {0xFF00, 0xFFFD},    // full and half width forms, U+FFFD
    {0x1F300, 0x1F64F},  // pictographs
}};

bool IsPlain(char32_t c) {
  if (c <= kPlain[0].last) return true;
  const auto range = std::ranges::lower_bound(kPlain, c, {}, &Range::last);
  return range != kPlain.end() && c >= range->first;
}

// Where the next character of `text` that is not plain stands, at or after `at`, and the character
// before it (or itself, if it is the first).
struct Place {
  size_t before;
  size_t at;
};
Place FindNotPlain(std::string_view text, size_t at) {
  size_t before = at;
  while (at < text.size()) {
    const Utf8Step step = ReadUtf8(text.substr(at));
    if (!IsPlain(step.code)) break;
    before = at;
    at += step.length;
  }
  return {before, at};
}

size_t FindPlain(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Step step = ReadUtf8(text.substr(at));
    if (IsPlain(step.code)) break;
    at += step.length;
  }
  return at;
}

uint8_t CombiningClass(utf8proc_int32_t c) {
  return static_cast<uint8_t>(utf8proc_get_property(c)->combining_class);
}

void AppendNfc(std::string_view run, std::string& out) {
  std::vector<utf8proc_int32_t> codes;
  // utf8proc_decompose() sorts marks too, but in time that is quadratic in their number.
  size_t marks = 0;  // where the marks at the end of `codes` begin
  const auto sort_marks = [&] {
    std::stable_sort(codes.begin() + static_cast<ptrdiff_t>(marks), codes.end(),
                     [](auto a, auto b) { return CombiningClass(a) < CombiningClass(b); });
  };
  while (!run.empty()) {
    const Utf8Step step = ReadUtf8(run);
    run.remove_prefix(step.length);
    std::array<utf8proc_int32_t, 8> parts;  // canonical decompositions have at most 4
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.code), parts.data(),
                                parts.size(), UTF8PROC_DECOMPOSE, nullptr);
    SLUICE_CHECK(count > 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()));
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      if (CombiningClass(parts[i]) == 0) {
        sort_marks();
        marks = codes.size() + 1;
      }
      codes.push_back(parts[i]);
    }
  }
  sort_marks();
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const utf8proc_ssize_t left =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), options);
  SLUICE_CHECK(left >= 0);
  for (utf8proc_ssize_t i = 0; i < left; ++i) {
    std::array<utf8proc_uint8_t, 4> bytes;
    const utf8proc_ssize_t length = utf8proc_encode_char(codes[i], bytes.data());
    out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(length));
  }
}

}  // namespace

std::string ToNfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Place found = FindNotPlain(text, at);
    if (found.at == text.size()) {
      out += text.substr(at);
      break;
    }
    out += text.substr(at, found.before - at);
    at = FindPlain(text, found.at);
    AppendNfc(text.substr(found.before, at - found.before), out);
  }
  return out;
}

}  // namespace sluice::text
