// Cuts text into the words that byte-level BPE merges within.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"

namespace sluice::text {

// One of the published word patterns, named as GGUF's tokenizer.ggml.pre names them. Immutable and
// thread-safe; copies are cheap.
class Pretokenizer {
 public:
  // Error for a name that is not in PretokenizerNames().
  static base::Result<Pretokenizer> Create(std::string_view name);

  // A word that the vocabulary holds as a whole is that token, whatever the merges would give
  // (`ignore_merges` in Llama 3's tokenizer.json).
  bool whole_words_first() const { return whole_words_first_; }
  // The published tokenizer brings text to NFC first ("normalizer" in Qwen's tokenizer.json; those
  // of GPT-2, SmolLM2 and Llama 3 have none).
  bool nfc() const { return nfc_; }

  // Calls word(part) for the words of `text`, in order; together they are `text`. `text` must be
  // valid UTF-8. Time is linear in the length, runs of one character included.
  void Split(std::string_view text, const std::function<void(std::string_view)>& word) const;

 private:
  struct Pattern;
  std::shared_ptr<const Pattern> pattern_;
  bool whole_words_first_ = false;
  bool nfc_ = false;
};

std::span<const std::string_view> PretokenizerNames();

}  // namespace sluice::text
