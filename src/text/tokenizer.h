// Text to token ids and back, from the tokenizer keys of a model's metadata.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/metadata.h"
#include "text/utf8.h"

namespace sluice::text {

// A part of a prompt. In a `special` one the spellings of control tokens ("<|im_end|>") mean those
// tokens; elsewhere they are text like any other, so that what a user types cannot end his turn.
struct Segment {
  std::string text;
  bool special = false;
  bool operator==(const Segment&) const = default;
};

// Byte-level BPE (tokenizer.ggml.model "gpt2", with the pre-tokenizers of PretokenizerNames()) or
// SentencePiece BPE with byte fallback ("llama"). Immutable and thread-safe; copies are cheap.
//
// Ids equal those of the `tokenizers` and `sentencepiece` packages, with these choices:
//  - Invalid UTF-8 is replaced by U+FFFD first (utf8.h).
//  - A byte that a byte-level vocabulary has no token for (SmolLM2 lacks 0x04 among others) is
//    left out.
//  - "llama": a space is put before every run of ordinary text, that is at the beginning and
//    after each control or user-defined token, unless add_space_prefix is false; U+2581 in the
//    text cannot be told from a space.
//  - Text is brought to NFC where the original does so: as sluice.nfc says, else with the
//    pre-tokenizer "qwen2", because the tokenizer.json of every Qwen2, Qwen2.5 and Qwen3 asks for
//    it (GGUF files do not say, and llama.cpp leaves it out). Each run of text between tokens that
//    text spells is brought to NFC by itself, after these were found; those of
//    sluice.normalized_tokens are looked for in the result.
//  - `tokenizers` 0.23 takes combining marks that are younger than Unicode 9 for letters; here they
//    are marks (nfc.h).
//  - Control tokens are always found before NFC (as every Qwen has them: "normalized": false).
class Tokenizer {
 public:
  // Reads tokenizer.ggml.{model, pre, tokens, token_type, merges, scores, bos_token_id,
  // eos_token_id, eot_token_id, unknown_token_id, padding_token_id, add_bos_token,
  // add_space_prefix} and sluice.{eos_token_ids, nfc, normalized_tokens}, the last two only with
  // "gpt2". Errors: a key that is needed is missing or of another type, array lengths differ, an id
  // is no token, a merge names no token, a score is NaN, the model or pre-tokenizer is unknown. Of
  // equal tokens the first is the one that text gives.
  static base::Result<Tokenizer> FromMetadata(const model::Metadata& metadata);

  // Without BOS or EOS. User-defined tokens are always found in the text, control tokens only with
  // parse_special; the longest wins. Time O(n log n). At most 1 GiB.
  std::vector<int32_t> Encode(std::string_view text, bool parse_special) const;
  // The same for a text of segments. They are one text: a word may begin in one and end in the
  // next, and only control tokens part it.
  std::vector<int32_t> Encode(std::span<const Segment> segments) const;

  // The text of a whole sequence, valid UTF-8: Decode(Encode(s)) is s for valid UTF-8 without the
  // losses above, and in NFC where the model asks for it. Control tokens are left out, or spelled
  // if show_special. Ids that are no token are left out.
  std::string Decode(std::span<const int32_t> ids, bool show_special = false) const;

  uint32_t size() const;
  // The token's bytes as they stand in text; empty if there is no such id.
  std::string_view TokenBytes(int32_t id) const;
  // Id of the control token that is spelled so, or -1.
  int32_t FindControl(std::string_view spelling) const;
  bool IsControl(int32_t id) const;

  int32_t bos() const;  // -1 if the model has none
  int32_t eos() const;  // -1 if the model has none
  // Whether a text that stands for itself begins with bos(); then bos() >= 0.
  bool add_bos() const;
  // Whether generation ends with this token: EOS, EOT, any of sluice.eos_token_ids, or a control
  // token with a usual spelling of an end ("<|im_end|>", "<|endoftext|>", "<|eot_id|>",
  // "<|end_of_text|>", "<|eom_id|>", "<end_of_turn>", "</s>", "<eos>").
  bool IsEnd(int32_t id) const;

 private:
  struct Vocabulary;
  explicit Tokenizer(std::shared_ptr<const Vocabulary> vocabulary);
  std::shared_ptr<const Vocabulary> vocabulary_;
};

// Tokens that arrive one by one, as text that can be shown at once. Control tokens give nothing.
// Unlike Decode() it keeps a leading space: what it decodes continues a prompt.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // Whole UTF-8 characters only; at most 3 bytes wait for their continuation.
  std::string Push(int32_t id);
  // U+FFFD if a character stayed unfinished. The decoder can then be used again.
  std::string Finish() { return stream_.Finish(); }

 private:
  Tokenizer tokenizer_;
  Utf8Stream stream_;
};

}  // namespace sluice::text
