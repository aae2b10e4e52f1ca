#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "model/token_type.h"
#include "text/merge.h"
#include "text/nfc.h"
#include "text/pretokenizer.h"
#include "text/spelling_trie.h"

namespace sluice::text {
namespace {

using base::Fail;
using base::Result;
using base::Status;

using enum model::TokenType;

constexpr std::string_view kMetaSpace = "\xE2\x96\x81";  // U+2581, a space in SentencePiece
constexpr size_t kMaxText = size_t{1} << 30;
constexpr size_t kMaxTokens = size_t{1} << 24;

constexpr std::array<std::string_view, 8> kEndSpellings = {
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>",
    "<|eom_id|>", "<end_of_turn>", "</s>",       "<eos>"};

// GPT-2's byte alphabet: printable bytes stand for themselves as code points, the others follow
// from U+0100 on in byte order. Returns the code point of each byte.
std::array<char32_t, 256> ByteAlphabet() {
  std::array<char32_t, 256> alphabet;
  char32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}

// The bytes that a token of a byte-level vocabulary stands for; nullopt if it is not written in
// the byte alphabet.
std::optional<std::string> FromByteAlphabet(std::string_view token) {
  static const auto kBytes = [] {
    std::unordered_map<char32_t, char> bytes;
    const auto alphabet = ByteAlphabet();
    for (size_t byte = 0; byte < 256; ++byte) bytes[alphabet[byte]] = static_cast<char>(byte);
    return bytes;
  }();
  std::string out;
  while (!token.empty()) {
    const Utf8Step step = ReadUtf8(token);
    if (step.kind != Utf8Step::kCharacter) return std::nullopt;
    const auto byte = kBytes.find(step.code);
    if (byte == kBytes.end()) return std::nullopt;
    out += byte->second;
    token.remove_prefix(step.length);
  }
  return out;
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at; (at = text.find(from)) != std::string_view::npos;) {
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  return out += text;
}

// The value of "<0xAB>", nullopt for another spelling.
std::optional<uint8_t> ByteTokenValue(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : token.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9';
    const bool letter = c >= 'A' && c <= 'F';
    if (!digit && !letter) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(digit ? c - '0' : c - 'A' + 10);
  }
  return static_cast<uint8_t>(value);
}

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 60;
  return fmt::format("\"{}{}\"", ReplaceInvalidUtf8(text.substr(0, kShown)),
                     text.size() > kShown ? "..." : "");
}

}  // namespace

struct Tokenizer::Vocabulary {
  bool sentencepiece = false;
  bool space_prefix = false;
  bool add_bos = false;
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t unknown = -1;
  std::unordered_set<int32_t> ends;

  std::vector<std::string> bytes;  // of each token, as it stands in text
  std::vector<int32_t> types;
  // Brings text to NFC; user-defined tokens of `normalized` are found after that, the others and
  // control tokens before. `normalized` is empty without `nfc`.
  bool nfc = false;
  SpellingTrie normalized;
  SpellingTrie user_defined;
  SpellingTrie user_defined_and_control;
  // Tokens that merging can give, by the bytes merged: `bytes` in byte-level BPE, the piece as it
  // is spelled in SentencePiece. The keys point into `bytes` and `pieces`.
  std::unordered_map<std::string_view, int32_t> words;
  std::array<int32_t, 256> byte_ids;  // the token of a single byte, -1 if there is none

  // Byte-level BPE.
  std::optional<Pretokenizer> pretokenizer;
  std::unordered_map<uint64_t, Join> merges;  // by PairKey

  // SentencePiece BPE.
  std::vector<std::string> pieces;
  std::vector<uint32_t> ranks;  // of each token's score: 0 is the highest
  size_t longest_piece = 0;     // bytes

  Status ReadTokens(const model::Metadata& metadata);
  Status ReadSpellings(const model::Metadata& metadata);
  Status ReadMerges(const model::Metadata& metadata);
  Status ReadScores(const model::Metadata& metadata);
  Status ReadSpecial(const model::Metadata& metadata);

  bool IsToken(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < bytes.size(); }
  bool IsControl(int32_t id) const {
    return IsToken(id) && (types[id] == kControl || types[id] == kUnknown);
  }
  bool IsAdded(int32_t id) const { return IsControl(id) || types[id] == kUserDefined; }

  // Text up to the next of `spellings`, which it calls ordinary(part) and added(id) for, in order.
  template <typename Ordinary, typename Added>
  static void ForEachPart(std::string_view text, const SpellingTrie& spellings, Ordinary ordinary,
                          Added added);
  // Ordinary text in which user-defined tokens count.
  void EncodeOrdinary(std::string_view text, std::vector<int32_t>& ids) const;
  void EncodeBytes(std::string_view text, std::vector<int32_t>& ids) const;
  void EncodePieces(std::string_view text, std::vector<int32_t>& ids) const;
};

Status Tokenizer::Vocabulary::ReadTokens(const model::Metadata& metadata) {
  const std::string key = "tokenizer.ggml.tokens";
  SLUICE_TRY(const std::vector<std::string>* tokens, metadata.GetStrings(key));
  if (tokens == nullptr || tokens->empty()) {
    return Fail(key, tokens == nullptr ? "the key is missing" : "no token", "the vocabulary");
  }
  if (tokens->size() > kMaxTokens) {
    return Fail(key, fmt::format("{} tokens", tokens->size()),
                fmt::format("at most {}", kMaxTokens));
  }
  SLUICE_TRY(const auto stored_types, metadata.GetInts("tokenizer.ggml.token_type"));
  types = stored_types.value_or(std::vector<int32_t>(tokens->size(), kNormal));
  if (types.size() != tokens->size()) {
    return Fail("tokenizer.ggml.token_type", fmt::format("{} values", types.size()),
                fmt::format("{}, one a token", tokens->size()));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] < kNormal || types[i] > kByte) {
      return Fail("tokenizer.ggml.token_type", fmt::format("{} for token {}", types[i], i),
                  "1 to 6");
    }
  }
  if (!stored_types) {
    // Without types only the ids with a name tell which tokens are not text.
    for (const char* name : {"bos", "eos", "eot", "padding"}) {
      SLUICE_TRY(const auto id, metadata.GetUint(fmt::format("tokenizer.ggml.{}_token_id", name)));
      if (id && *id < types.size()) types[*id] = kControl;
    }
  }

  byte_ids.fill(-1);
  bytes.reserve(tokens->size());
  for (size_t i = 0; i < tokens->size(); ++i) {
    const std::string& token = (*tokens)[i];
    const bool text = types[i] == kNormal || types[i] == kByte || types[i] == kUnused;
    if (sentencepiece) {
      const auto byte = types[i] == kByte ? ByteTokenValue(token) : std::nullopt;
      if (types[i] == kByte && !byte) {
        return Fail(key, fmt::format("byte token {} is {}", i, Quoted(token)), "\"<0x00>\"");
      }
      bytes.push_back(byte ? std::string(1, static_cast<char>(*byte)) : token);
      if (byte && byte_ids[*byte] < 0) byte_ids[*byte] = static_cast<int32_t>(i);
      if (!byte && !IsControl(static_cast<int32_t>(i)))
        bytes[i] = ReplaceAll(token, kMetaSpace, " ");
    } else {
      auto unmapped = text ? FromByteAlphabet(token) : std::nullopt;
      bytes.push_back(unmapped ? *std::move(unmapped) : token);
    }
  }
  if (sentencepiece) pieces = *tokens;

  words.reserve(tokens->size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& spelling = sentencepiece ? pieces[i] : bytes[i];
    if (spelling.empty()) continue;
    if (types[i] == kNormal || (types[i] == kByte && !sentencepiece)) {
      words.try_emplace(spelling, id);
      longest_piece = std::max(longest_piece, spelling.size());
      const auto first = static_cast<uint8_t>(spelling[0]);
      if (!sentencepiece && spelling.size() == 1 && byte_ids[first] < 0) byte_ids[first] = id;
    }
  }
  if (std::ranges::all_of(byte_ids, [](int32_t id) { return id < 0; }) && !sentencepiece) {
    return Fail(key, "no token stands for a single byte", "a byte-level vocabulary");
  }
  return {};
}

Status Tokenizer::Vocabulary::ReadSpellings(const model::Metadata& metadata) {
  std::unordered_set<int32_t> after_nfc;
  if (!sentencepiece) {
    const std::string key = "sluice.normalized_tokens";
    SLUICE_TRY(const auto stored_nfc, metadata.GetBool("sluice.nfc"));
    SLUICE_TRY(const auto ids, metadata.GetInts(key));
    nfc = stored_nfc.value_or(pretokenizer->nfc());
    for (const int32_t id : ids.value_or(std::vector<int32_t>())) {
      if (!IsToken(id)) {
        return Fail(key, std::to_string(id), fmt::format("ids below {}", bytes.size()));
      }
      if (nfc) after_nfc.insert(id);
    }
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (bytes[i].empty()) continue;
    if (types[i] == kUserDefined && after_nfc.contains(id)) {
      normalized.Add(ToNfc(ReplaceInvalidUtf8(bytes[i])), id);
      continue;
    }
    if (types[i] == kUserDefined) user_defined.Add(bytes[i], id);
    if (types[i] == kUserDefined || types[i] == kControl) {
      user_defined_and_control.Add(bytes[i], id);
    }
  }
  return {};
}

Status Tokenizer::Vocabulary::ReadMerges(const model::Metadata& metadata) {
  const std::string key = "tokenizer.ggml.merges";
  SLUICE_TRY(const std::vector<std::string>* lines, metadata.GetStrings(key));
  if (lines == nullptr) return Fail(key, "the key is missing", "the merges of byte-level BPE");
  merges.reserve(lines->size());
  for (size_t i = 0; i < lines->size(); ++i) {
    const std::string& line = (*lines)[i];
    const auto object = [&] { return fmt::format("{}[{}]", key, i); };
    const size_t space = line.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string::npos) {
      return Fail(object(), Quoted(line), "two tokens with a space between");
    }
    // The result is longer than its parts, so merges cannot go round in a circle.
    std::array<int32_t, 3> ids;
    const std::string_view left = std::string_view(line).substr(0, space);
    const std::string_view right = std::string_view(line).substr(space + 1);
    const std::array<std::string, 3> spellings = {std::string(left), std::string(right),
                                                  std::string(left) + std::string(right)};
    for (size_t part = 0; part < 3; ++part) {
      const auto spelling = FromByteAlphabet(spellings[part]);
      const auto word = spelling ? words.find(*spelling) : words.end();
      if (word == words.end()) {
        return Fail(object(),
                    fmt::format("{}: there is no token {}", Quoted(line), Quoted(spellings[part])),
                    "tokens of the vocabulary");
      }
      ids[part] = word->second;
    }
    // Of equal merges the last counts, as in the reference.
    merges.insert_or_assign(PairKey(ids[0], ids[1]), Join{static_cast<uint32_t>(i), ids[2]});
  }
  return {};
}

Status Tokenizer::Vocabulary::ReadScores(const model::Metadata& metadata) {
  const std::string key = "tokenizer.ggml.scores";
  SLUICE_TRY(const auto scores, metadata.GetFloats(key));
  if (!scores) return Fail(key, "the key is missing", "a score for each token");
  if (scores->size() != bytes.size()) {
    return Fail(key, fmt::format("{} values", scores->size()),
                fmt::format("{}, one a token", bytes.size()));
  }
  for (size_t i = 0; i < scores->size(); ++i) {
    if (std::isnan((*scores)[i])) return Fail(key, fmt::format("NaN for token {}", i), "a number");
  }
  std::vector<float> sorted = *scores;
  std::ranges::sort(sorted, std::greater<>());
  const auto unique = std::ranges::unique(sorted);
  sorted.erase(unique.begin(), unique.end());
  ranks.reserve(scores->size());
  for (const float score : *scores) {
    const auto at = std::ranges::lower_bound(sorted, score, std::greater<>());
    ranks.push_back(static_cast<uint32_t>(at - sorted.begin()));
  }
  return {};
}

Status Tokenizer::Vocabulary::ReadSpecial(const model::Metadata& metadata) {
  const auto read_id = [&](std::string_view name) -> Result<int32_t> {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    SLUICE_TRY(const auto id, metadata.GetUint(key));
    if (!id) return -1;
    if (*id >= bytes.size()) {
      return Fail(key, std::to_string(*id), fmt::format("an id below {}", bytes.size()));
    }
    return static_cast<int32_t>(*id);
  };
  SLUICE_TRY(bos, read_id("bos"));
  SLUICE_TRY(eos, read_id("eos"));
  SLUICE_TRY(unknown, read_id("unknown"));
  SLUICE_TRY(const int32_t eot, read_id("eot"));
  SLUICE_TRY([[maybe_unused]] const int32_t padding, read_id("padding"));
  for (const int32_t id : {eos, eot}) {
    if (id >= 0) ends.insert(id);
  }
  SLUICE_TRY(const auto more_ends, metadata.GetInts("sluice.eos_token_ids"));
  for (const int32_t id : more_ends.value_or(std::vector<int32_t>())) {
    if (!IsToken(id)) {
      return Fail("sluice.eos_token_ids", std::to_string(id),
                  fmt::format("ids below {}", bytes.size()));
    }
    ends.insert(id);
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (types[i] == kControl && std::ranges::find(kEndSpellings, bytes[i]) != kEndSpellings.end()) {
      ends.insert(static_cast<int32_t>(i));
    }
  }
  // What files without the keys mean: Llama's vocabularies begin with BOS, others do not.
  SLUICE_TRY(const auto stored_add_bos, metadata.GetBool("tokenizer.ggml.add_bos_token"));
  const bool llama = sentencepiece || pretokenizer->whole_words_first();
  add_bos = stored_add_bos.value_or(llama && bos >= 0);
  if (add_bos && bos < 0) {
    return Fail("tokenizer.ggml.bos_token_id", "the key is missing",
                "an id, because tokenizer.ggml.add_bos_token is true");
  }
  SLUICE_TRY(const auto stored_prefix, metadata.GetBool("tokenizer.ggml.add_space_prefix"));
  space_prefix = sentencepiece && stored_prefix.value_or(true);
  return {};
}

template <typename Ordinary, typename Added>
void Tokenizer::Vocabulary::ForEachPart(std::string_view text, const SpellingTrie& spellings,
                                        Ordinary ordinary, Added added) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const SpellingTrie::Match match = spellings.Find(text.substr(at));
    if (match.id < 0) {
      ++at;
      continue;
    }
    if (at > begin) ordinary(text.substr(begin, at - begin));
    added(match.id);
    at += match.length;
    begin = at;
  }
  if (begin < text.size()) ordinary(text.substr(begin));
}

void Tokenizer::Vocabulary::EncodeOrdinary(std::string_view text, std::vector<int32_t>& ids) const {
  ForEachPart(
      text, user_defined,
      [&](std::string_view part) {
        if (sentencepiece) {
          EncodePieces(part, ids);
        } else if (nfc) {
          ForEachPart(
              ToNfc(part), normalized, [&](std::string_view rest) { EncodeBytes(rest, ids); },
              [&](int32_t id) { ids.push_back(id); });
        } else {
          EncodeBytes(part, ids);
        }
      },
      [&](int32_t id) { ids.push_back(id); });
}

void Tokenizer::Vocabulary::EncodeBytes(std::string_view text, std::vector<int32_t>& ids) const {
  MergeScratch scratch;
  const auto find = [&](const Symbol& left, const Symbol& right) -> std::optional<Join> {
    const auto merge = merges.find(PairKey(left.id, right.id));
    if (merge == merges.end()) return std::nullopt;
    return merge->second;
  };
  pretokenizer->Split(text, [&](std::string_view word) {
    if (pretokenizer->whole_words_first()) {
      if (const auto whole = words.find(word); whole != words.end()) {
        ids.push_back(whole->second);
        return;
      }
    }
    scratch.symbols.clear();
    for (size_t i = 0; i < word.size(); ++i) {
      const int32_t id = byte_ids[static_cast<uint8_t>(word[i])];
      if (id < 0) continue;
      const auto index = static_cast<int32_t>(scratch.symbols.size());
      scratch.symbols.push_back({static_cast<uint32_t>(i), 1, id, index + 1, index - 1});
    }
    if (scratch.symbols.empty()) return;
    scratch.symbols.back().next = -1;
    MergeAll(scratch, find);
    for (int32_t i = 0; i >= 0; i = scratch.symbols[i].next) ids.push_back(scratch.symbols[i].id);
  });
}

void Tokenizer::Vocabulary::EncodePieces(std::string_view text, std::vector<int32_t>& ids) const {
  std::string spelled;
  spelled.reserve(text.size() + kMetaSpace.size());
  if (space_prefix) spelled += kMetaSpace;
  for (const char c : text) {
    if (c == ' ') {
      spelled += kMetaSpace;
    } else {
      spelled += c;
    }
  }
  const std::string_view all = spelled;
  MergeScratch scratch;
  for (size_t at = 0; at < all.size();) {
    const size_t length = ReadUtf8(all.substr(at)).length;
    const auto piece = words.find(all.substr(at, length));
    const auto index = static_cast<int32_t>(scratch.symbols.size());
    scratch.symbols.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(length),
                               piece == words.end() ? -1 : piece->second, index + 1, index - 1});
    at += length;
  }
  scratch.symbols.back().next = -1;
  MergeAll(scratch, [&](const Symbol& left, const Symbol& right) -> std::optional<Join> {
    const size_t length = left.length + right.length;
    if (length > longest_piece) return std::nullopt;
    const auto piece = words.find(all.substr(left.begin, length));
    if (piece == words.end()) return std::nullopt;
    return Join{ranks[piece->second], piece->second};
  });
  for (int32_t i = 0; i >= 0; i = scratch.symbols[i].next) {
    const Symbol& symbol = scratch.symbols[i];
    if (symbol.id >= 0) {
      ids.push_back(symbol.id);
      continue;
    }
    const std::string_view character = all.substr(symbol.begin, symbol.length);
    const bool fallback = std::ranges::all_of(
        character, [&](char c) { return byte_ids[static_cast<uint8_t>(c)] >= 0; });
    if (fallback) {
      for (const char c : character) ids.push_back(byte_ids[static_cast<uint8_t>(c)]);
    } else if (unknown >= 0) {
      ids.push_back(unknown);
    }
  }
}

Tokenizer::Tokenizer(std::shared_ptr<const Vocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)) {}

Result<Tokenizer> Tokenizer::FromMetadata(const model::Metadata& metadata) {
  auto vocabulary = std::make_shared<Vocabulary>();
  SLUICE_TRY(const std::string* kind, metadata.GetString("tokenizer.ggml.model"));
  const std::string expected = "gpt2 or llama";
  if (kind == nullptr) return Fail("tokenizer.ggml.model", "the key is missing", expected);
  if (*kind != "gpt2" && *kind != "llama") {
    return Fail("tokenizer.ggml.model", Quoted(*kind), expected);
  }
  vocabulary->sentencepiece = *kind == "llama";
  if (!vocabulary->sentencepiece) {
    SLUICE_TRY(const std::string* pre, metadata.GetString("tokenizer.ggml.pre"));
    SLUICE_TRY(vocabulary->pretokenizer, Pretokenizer::Create(pre == nullptr ? "" : *pre));
  }
  SLUICE_TRY_VOID(vocabulary->ReadTokens(metadata));
  SLUICE_TRY_VOID(vocabulary->ReadSpellings(metadata));
  SLUICE_TRY_VOID(vocabulary->sentencepiece ? vocabulary->ReadScores(metadata)
                                            : vocabulary->ReadMerges(metadata));
  SLUICE_TRY_VOID(vocabulary->ReadSpecial(metadata));
  return Tokenizer(std::move(vocabulary));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool parse_special) const {
  const Segment segment{std::string(text), parse_special};
  return Encode({&segment, 1});
}

std::vector<int32_t> Tokenizer::Encode(std::span<const Segment> segments) const {
  size_t total = 0;
  for (const Segment& segment : segments) total += segment.text.size();
  SLUICE_CHECK(total <= kMaxText);

  std::vector<int32_t> ids;
  std::string ordinary;  // since the last control token
  const auto flush = [&] {
    if (!ordinary.empty()) vocabulary_->EncodeOrdinary(ordinary, ids);
    ordinary.clear();
  };
  for (const Segment& segment : segments) {
    const std::string text = ReplaceInvalidUtf8(segment.text);
    if (!segment.special) {
      ordinary += text;
      continue;
    }
    Vocabulary::ForEachPart(
        text, vocabulary_->user_defined_and_control,
        [&](std::string_view part) { ordinary += part; },
        [&](int32_t id) {
          if (!IsControl(id)) {
            ordinary += vocabulary_->bytes[id];
            return;
          }
          flush();
          ids.push_back(id);
        });
  }
  flush();
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool show_special) const {
  std::string text;
  bool begins = true;  // the next ordinary token begins a run, which Encode() put a space before
  for (const int32_t id : ids) {
    if (!vocabulary_->IsToken(id)) continue;
    if (!IsControl(id) || show_special) {
      std::string_view bytes = vocabulary_->bytes[id];
      const bool prefixed = begins && vocabulary_->space_prefix && !vocabulary_->IsAdded(id);
      if (prefixed && bytes.starts_with(' ')) bytes.remove_prefix(1);
      text += bytes;
    }
    begins = vocabulary_->IsAdded(id);
  }
  return ReplaceInvalidUtf8(text);
}

uint32_t Tokenizer::size() const { return static_cast<uint32_t>(vocabulary_->bytes.size()); }
std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return vocabulary_->IsToken(id) ? std::string_view(vocabulary_->bytes[id]) : std::string_view();
}
int32_t Tokenizer::FindControl(std::string_view spelling) const {
  const auto match = vocabulary_->user_defined_and_control.Find(spelling);
  return match.length == spelling.size() && IsControl(match.id) ? match.id : -1;
}
bool Tokenizer::IsControl(int32_t id) const { return vocabulary_->IsControl(id); }
int32_t Tokenizer::bos() const { return vocabulary_->bos; }
int32_t Tokenizer::eos() const { return vocabulary_->eos; }
bool Tokenizer::add_bos() const { return vocabulary_->add_bos; }
bool Tokenizer::IsEnd(int32_t id) const { return vocabulary_->ends.contains(id); }

std::string StreamDecoder::Push(int32_t id) {
  if (tokenizer_.IsControl(id)) return {};
  return stream_.Push(tokenizer_.TokenBytes(id));
}

}  // namespace sluice::text
