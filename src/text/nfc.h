// Unicode Normalization Form C (Unicode Standard Annex 15).
#pragma once

#include <string>
#include <string_view>

namespace sluice::text {

// `text` in NFC. `text` must be valid UTF-8; it becomes at most three times as long. Characters are
// those of the installed utf8proc (2.8: Unicode 15); others stay as they are. Time O(n log n)
// whatever the text, also for long runs of combining marks; text of the characters that most text
// is made of is only looked through and copied.
std::string ToNfc(std::string_view text);

}  // namespace sluice::text
