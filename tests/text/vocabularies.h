// Small vocabularies as metadata.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/metadata.h"

namespace sluice::text {

// Code points of GPT-2's byte alphabet as UTF-8.
inline std::string ByteLevelSpelling(uint8_t byte) {
  int code = byte;
  if (byte <= 0x20) {
    code = 0x100 + byte;
  } else if (byte >= 0x7F && byte <= 0xA0) {
    code = 0x121 + (byte - 0x7F);
  } else if (byte == 0xAD) {
    code = 0x143;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// Appends a token and returns its id.
inline int32_t AddToken(model::Metadata& metadata, std::string spelling, int32_t type,
                        float score = 0) {
  auto tokens = **metadata.GetStrings("tokenizer.ggml.tokens");
  auto types = **metadata.GetInts("tokenizer.ggml.token_type");
  tokens.push_back(std::move(spelling));
  types.push_back(type);
  const auto id = static_cast<int32_t>(tokens.size()) - 1;
  metadata.Set("tokenizer.ggml.tokens", std::move(tokens));
  metadata.Set("tokenizer.ggml.token_type", std::move(types));
  if (auto scores = *metadata.GetFloats("tokenizer.ggml.scores")) {
    scores->push_back(score);
    metadata.Set("tokenizer.ggml.scores", *std::move(scores));
  }
  return id;
}

// Ids 0 to 255 are the bytes, then "<|im_start|>" and "<|im_end|>" (EOS), then what the merges
// make, then `more`.
inline model::Metadata ByteLevelMetadata(std::string pre, const std::vector<std::string>& merges,
                                         const std::vector<std::string>& more = {}) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(ByteLevelSpelling(static_cast<uint8_t>(byte)));
  }
  tokens.insert(tokens.end(), {"<|im_start|>", "<|im_end|>"});
  for (std::string merge : merges) {
    std::erase(merge, ' ');
    tokens.push_back(std::move(merge));
  }
  tokens.insert(tokens.end(), more.begin(), more.end());
  std::vector<int32_t> types(tokens.size(), 1);
  types[256] = types[257] = 3;
  model::Metadata metadata;
  metadata.Set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.Set("tokenizer.ggml.pre", std::move(pre));
  metadata.Set("tokenizer.ggml.tokens", std::move(tokens));
  metadata.Set("tokenizer.ggml.token_type", std::move(types));
  metadata.Set("tokenizer.ggml.merges", merges);
  metadata.Set("tokenizer.ggml.eos_token_id", uint32_t{257});
  return metadata;
}

// <unk>, <s>, </s>, the bytes, and the pieces "▁", a, b, "▁a", "ab", "▁ab" with falling scores.
inline model::Metadata SentencePieceMetadata() {
  model::Metadata metadata;
  metadata.Set("tokenizer.ggml.model", std::string("llama"));
  metadata.Set("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "</s>"});
  metadata.Set("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 3});
  metadata.Set("tokenizer.ggml.scores", std::vector<float>{0, 0, 0});
  for (int byte = 0; byte < 256; ++byte) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    AddToken(metadata, std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">", 6);
  }
  float score = 0;
  for (const char* piece : {"\u2581a", "ab", "\u2581ab", "\u2581", "a", "b"}) {
    AddToken(metadata, piece, 1, --score);
  }
  metadata.Set("tokenizer.ggml.bos_token_id", uint32_t{1});
  metadata.Set("tokenizer.ggml.eos_token_id", uint32_t{2});
  metadata.Set("tokenizer.ggml.unknown_token_id", uint32_t{0});
  return metadata;
}

}  // namespace sluice::text
