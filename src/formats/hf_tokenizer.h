// The tokenizer of a Hugging Face folder, in GGUF's terms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/json.h"
#include "model/metadata.h"

namespace sluice::formats {

// The parsed files of a folder that say how text becomes tokens. Those that a folder lacks are
// empty objects.
struct TokenizerFiles {
  JsonObject tokenizer;                      // tokenizer.json
  JsonObject tokenizer_config;               // tokenizer_config.json
  JsonObject config;                         // config.json
  JsonObject generation_config;              // generation_config.json
  std::optional<std::string> chat_template;  // chat_template.jinja, which goes before the config's
};

// Sets the tokenizer.* keys that a GGUF file of the same model would have, and
// sluice.eos_token_ids (int32 array) where several tokens end a text. For "gpt2" also sluice.nfc
// (bool), whether the normalizer is NFC, alone or in a Sequence; and, if it is and there are any,
// sluice.normalized_tokens (int32 array): the added tokens that are not special and are looked for
// in normalised text. Other normalizers are refused, with "llama" NFC too.
//
// Known tokenizers: byte-level BPE with the word patterns of GPT-2, Qwen2, SmolLM and Llama 3
// (tokenizer.ggml.model "gpt2"), and SentencePiece-like BPE with byte fallback ("llama"); others
// are refused. A merge's rank becomes the score of the token it makes, -rank, in "llama".
// Ids are below `rows`, the rows of the embedding; rows without a token are named "[PADid]",
// type 5.
base::Status ReadHfTokenizer(const TokenizerFiles& files, uint32_t rows, model::Metadata& metadata);

// Word pattern of a "pre_tokenizer" (tokenizer.ggml.pre). `object` names the file in errors.
base::Result<std::string> RecognisePreTokenizer(const Json& pre_tokenizer,
                                                const std::string& object);

}  // namespace sluice::formats
