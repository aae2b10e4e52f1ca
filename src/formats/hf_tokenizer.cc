#include "formats/hf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>
#include <utility>

#include "model/token_type.h"

namespace sluice::formats {
namespace {

using base::Fail;
using base::Printable;
using base::Result;

using enum model::TokenType;

// U+2581, which SentencePiece writes for a space.
constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

struct WordPattern {
  std::string_view regex;
  std::string_view name;
};
// As they stand in the tokenizer.json of Qwen2 and of Llama 3.
constexpr std::array kWordPatterns = {
    WordPattern{R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                "qwen2"},
    WordPattern{R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                "llama-bpe"},
};

// The steps of a component that is null, one step, or a "Sequence" of steps.
Result<std::vector<JsonObject>> Steps(const Json* component, std::string_view list,
                                      const std::string& object) {
  std::vector<JsonObject> steps;
  if (component == nullptr || component->is_null()) return steps;
  SLUICE_TRY(const JsonObject outer, JsonObject::Of(*component, object));
  SLUICE_TRY(const std::string* type, outer.String("type"));
  if (type == nullptr || *type != "Sequence") {
    steps.push_back(outer);
    return steps;
  }
  SLUICE_TRY(const Json* array, outer.Array(list));
  if (array == nullptr) return outer.Wrong(list, "missing", "an array");
  for (const Json& element : *array) {
    SLUICE_TRY(JsonObject step, JsonObject::Of(element, object));
    steps.push_back(std::move(step));
  }
  return steps;
}

Result<std::string> TypeOf(const JsonObject& step) {
  SLUICE_TRY(const std::string* type, step.String("type"));
  if (type == nullptr) return step.Wrong("type", "missing", "a string");
  return *type;
}

Result<bool> Flag(const JsonObject& object, std::string_view key, bool fallback) {
  SLUICE_TRY(const auto value, object.Bool(key));
  return value.value_or(fallback);
}

// The id of a special token that is a number; checked against the vocabulary.
Result<uint32_t> CheckId(const JsonObject& object, std::string_view key, const Json& value,
                         uint32_t rows) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= rows) {
    return object.Wrong(key, DescribeJson(value), fmt::format("a token id below {}", rows));
  }
  return static_cast<uint32_t>(value.get<uint64_t>());
}

// Ids under a key that holds one id, a list of ids, or nothing.
Result<std::vector<uint32_t>> Ids(const JsonObject& object, std::string_view key, uint32_t rows) {
  std::vector<uint32_t> ids;
  const Json* value = object.Find(key);
  if (value == nullptr) return ids;
  if (!value->is_array()) {
    SLUICE_TRY(const uint32_t id, CheckId(object, key, *value, rows));
    ids.push_back(id);
    return ids;
  }
  for (const Json& element : *value) {
    SLUICE_TRY(const uint32_t id, CheckId(object, key, element, rows));
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;  // kUnused where no token stands
  // Added tokens that are no control tokens and are looked for after normalising.
  std::vector<int32_t> normalized;
};

// A byte token of SentencePiece: "<0x00>" to "<0xFF>".
bool IsByteToken(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

Result<Vocabulary> ReadVocabulary(const JsonObject& tokenizer, const JsonObject& model,
                                  bool sentencepiece, uint32_t rows) {
  Vocabulary v;
  v.tokens.resize(rows);
  v.types.assign(rows, kUnused);
  SLUICE_TRY(const auto vocab, model.Object("vocab"));
  if (!vocab) return model.Wrong("vocab", "missing", "an object");
  for (const auto& [token, value] : vocab->json().items()) {
    SLUICE_TRY(const uint32_t id, CheckId(*vocab, Printable(token), value, rows));
    if (v.types[id] != kUnused) {
      return vocab->Wrong(Printable(token), fmt::format("id {} again", id), "each id once");
    }
    v.tokens[id] = token;
    v.types[id] = sentencepiece && IsByteToken(token) ? kByte : kNormal;
  }
  SLUICE_TRY(const std::string* unknown, model.String("unk_token"));
  if (sentencepiece && unknown != nullptr) {
    const Json* id = vocab->Find(*unknown);
    if (id != nullptr) v.types[id->get<uint64_t>()] = kUnknown;
  }
  SLUICE_TRY(const Json* added, tokenizer.Array("added_tokens"));
  if (added == nullptr) return v;
  for (const Json& element : *added) {
    SLUICE_TRY(const JsonObject token,
               JsonObject::Of(element, tokenizer.name() + ": added_tokens"));
    SLUICE_TRY(const std::string* content, token.String("content"));
    if (content == nullptr) return token.Wrong("content", "missing", "a string");
    const Json* number = token.Find("id");
    if (number == nullptr) return token.Wrong("id", "missing", "a token id");
    SLUICE_TRY(const uint32_t id, CheckId(token, "id", *number, rows));
    if (v.types[id] != kUnused && v.tokens[id] != *content) {
      return token.Wrong("id",
                         fmt::format("{} for {}, which is {} too", id, Printable(*content),
                                     Printable(v.tokens[id])),
                         "one token for each id");
    }
    SLUICE_TRY(const bool special, Flag(token, "special", false));
    SLUICE_TRY(const bool normalized, Flag(token, "normalized", !special));
    if (normalized && !special) v.normalized.push_back(static_cast<int32_t>(id));
    v.tokens[id] = *content;
    if (v.types[id] != kUnknown) v.types[id] = special ? kControl : kUserDefined;
  }
  return v;
}

// A row without a token gets the name that GGUF converters give it.
void NameUnusedRows(Vocabulary& v) {
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    if (v.types[id] == kUnused) v.tokens[id] = fmt::format("[PAD{}]", id);
  }
}

// "left right", from either of the two forms in use.
Result<std::string> ReadMerge(const JsonObject& model, const Json& merge) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ', 1);
    if (space == std::string::npos || space + 1 == text.size()) {
      return model.Wrong("merges", DescribeJson(merge), "two parts with a space between");
    }
    return text;
  }
  if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) {
    return model.Wrong("merges", DescribeJson(merge), "pairs of strings");
  }
  const auto& left = merge[0].get_ref<const std::string&>();
  const auto& right = merge[1].get_ref<const std::string&>();
  for (const std::string& part : {left, right}) {
    if (part.empty() || part.find(' ') != std::string::npos) {
      return model.Wrong("merges", "a part \"" + Printable(part) + "\"",
                         "parts that are not empty and have no space");
    }
  }
  return left + " " + right;
}

Result<std::vector<std::string>> ReadMerges(const JsonObject& model) {
  SLUICE_TRY(const Json* array, model.Array("merges"));
  if (array == nullptr) return model.Wrong("merges", "missing", "an array");
  std::vector<std::string> merges;
  merges.reserve(array->size());
  for (const Json& element : *array) {
    SLUICE_TRY(std::string merge, ReadMerge(model, element));
    merges.push_back(std::move(merge));
  }
  return merges;
}

// SentencePiece joins the pair whose token has the best score; here the best rank.
std::vector<float> ScoresOfMerges(const Vocabulary& v, std::span<const std::string> merges) {
  std::vector<float> scores(v.tokens.size(), 0.0f);
  std::unordered_map<std::string_view, size_t> ids;
  ids.reserve(v.tokens.size());
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    if (v.types[id] == kNormal) ids.emplace(v.tokens[id], id);
  }
  std::vector<bool> done(v.tokens.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    std::string token = merges[rank];
    token.erase(token.find(' ', 1), 1);
    const auto it = ids.find(token);
    if (it == ids.end() || done[it->second]) continue;
    done[it->second] = true;
    scores[it->second] = -static_cast<float>(rank);
  }
  return scores;
}

// Whether SentencePiece text gets a space in front; refuses what is not SentencePiece's handling
// of spaces. Two forms: a normalizer that prepends and replaces, or a Metaspace pre-tokenizer.
Result<bool> ReadSpaceHandling(const JsonObject& tokenizer) {
  bool marks_spaces = false;
  bool prefix = false;
  SLUICE_TRY(const auto normalizer,
             Steps(tokenizer.Find("normalizer"), "normalizers", tokenizer.name() + ": normalizer"));
  for (const JsonObject& step : normalizer) {
    SLUICE_TRY(const std::string type, TypeOf(step));
    if (type == "Prepend") {
      SLUICE_TRY(const std::string* text, step.String("prepend"));
      if (text == nullptr || *text != kSpaceMark) {
        return step.Wrong("prepend", "another text", "U+2581");
      }
      prefix = true;
    } else if (type == "Replace") {
      SLUICE_TRY(const auto pattern, step.Object("pattern"));
      SLUICE_TRY(const std::string* content, step.String("content"));
      if (!pattern) return step.Wrong("pattern", "missing", "an object");
      SLUICE_TRY(const std::string* from, pattern->String("String"));
      if (from == nullptr || *from != " " || content == nullptr || *content != kSpaceMark) {
        return step.Wrong("pattern", "another replacement", "U+2581 for a space");
      }
      marks_spaces = true;
    } else {
      return step.Wrong("type", Quoted(type), "Prepend or Replace");
    }
  }
  SLUICE_TRY(const auto pre, Steps(tokenizer.Find("pre_tokenizer"), "pretokenizers",
                                   tokenizer.name() + ": pre_tokenizer"));
  for (const JsonObject& step : pre) {
    SLUICE_TRY(const std::string type, TypeOf(step));
    SLUICE_TRY(const bool split, Flag(step, "split", false));
    SLUICE_TRY(const bool old_prefix, Flag(step, "add_prefix_space", true));
    SLUICE_TRY(const std::string* replacement, step.String("replacement"));
    SLUICE_TRY(const std::string* scheme, step.String("prepend_scheme"));
    if (type != "Metaspace" || split || replacement == nullptr || *replacement != kSpaceMark) {
      return step.Wrong("type", Quoted(type) + (split ? " that splits" : ""),
                        "a Metaspace of U+2581 that does not split");
    }
    marks_spaces = true;
    prefix = scheme != nullptr ? *scheme != "never" : old_prefix;
  }
  if (!marks_spaces) {
    return Fail(tokenizer.name(), "neither a normalizer nor a pre_tokenizer that marks spaces",
                "U+2581 for each space");
  }
  return prefix;
}

struct Surround {
  bool bos = false;
  bool eos = false;
};

// Which special tokens the post-processor puts around a text; nullopt without a template.
Result<std::optional<Surround>> ReadTemplate(const JsonObject& tokenizer) {
  SLUICE_TRY(const auto steps, Steps(tokenizer.Find("post_processor"), "processors",
                                     tokenizer.name() + ": post_processor"));
  std::optional<Surround> around;
  for (const JsonObject& step : steps) {
    SLUICE_TRY(const std::string type, TypeOf(step));
    if (type != "TemplateProcessing") continue;
    SLUICE_TRY(const Json* single, step.Array("single"));
    if (single == nullptr) return step.Wrong("single", "missing", "an array");
    const auto special = [](const Json& part) {
      return part.is_object() && part.contains("SpecialToken");
    };
    around = Surround{!single->empty() && special(single->front()),
                      !single->empty() && special(single->back())};
  }
  return around;
}

// Finds ids by the text of a token, as tokenizer_config.json names special tokens.
class SpecialTokens {
 public:
  SpecialTokens(const TokenizerFiles& files, const Vocabulary& v) : files_(files), v_(v) {}

  // tokenizer_config.json's text, else config.json's id.
  Result<std::optional<uint32_t>> Find(const std::string& name) const {
    const JsonObject& texts = files_.tokenizer_config;
    const std::string key = name + "_token";
    const Json* value = texts.Find(key);
    if (value != nullptr && value->is_object()) {
      const auto content = value->find("content");
      value = content == value->end() ? nullptr : &*content;
    }
    if (value != nullptr) {
      if (!value->is_string()) return texts.Wrong(key, DescribeJson(*value), "a token's text");
      const auto it = std::ranges::find(v_.tokens, value->get_ref<const std::string&>());
      if (it != v_.tokens.end()) return static_cast<uint32_t>(it - v_.tokens.begin());
      return texts.Wrong(key, DescribeJson(*value), "a token of the vocabulary");
    }
    SLUICE_TRY(const auto ids,
               Ids(files_.config, key + "_id", static_cast<uint32_t>(v_.tokens.size())));
    return ids.empty() ? std::nullopt : std::optional(ids.front());
  }

 private:
  const TokenizerFiles& files_;
  const Vocabulary& v_;
};

base::Status ReadSpecialTokens(const TokenizerFiles& files, const Vocabulary& v,
                               model::Metadata& metadata) {
  const SpecialTokens special(files, v);
  SLUICE_TRY(const auto bos, special.Find("bos"));
  SLUICE_TRY(auto eos, special.Find("eos"));
  SLUICE_TRY(const auto unknown, special.Find("unk"));
  SLUICE_TRY(const auto padding, special.Find("pad"));
  const auto rows = static_cast<uint32_t>(v.tokens.size());
  SLUICE_TRY(auto ends, Ids(files.generation_config, "eos_token_id", rows));
  if (ends.empty()) {
    SLUICE_TRY(ends, Ids(files.config, "eos_token_id", rows));
  }
  if (!eos && !ends.empty()) eos = ends.front();
  if (bos) metadata.Set("tokenizer.ggml.bos_token_id", *bos);
  if (eos) metadata.Set("tokenizer.ggml.eos_token_id", *eos);
  if (unknown) metadata.Set("tokenizer.ggml.unknown_token_id", *unknown);
  if (padding) metadata.Set("tokenizer.ggml.padding_token_id", *padding);
  if (eos && std::ranges::find(ends, *eos) == ends.end()) ends.insert(ends.begin(), *eos);
  if (ends.size() > 1) {
    metadata.Set("sluice.eos_token_ids", std::vector<int32_t>(ends.begin(), ends.end()));
  }
  return {};
}

// chat_template is a text, or a list of named ones of which "default" counts.
base::Status ReadChatTemplate(const TokenizerFiles& files, model::Metadata& metadata) {
  if (files.chat_template) {
    metadata.Set("tokenizer.chat_template", *files.chat_template);
    return {};
  }
  const JsonObject& config = files.tokenizer_config;
  const Json* found = config.Find("chat_template");
  if (found == nullptr) return {};
  if (found->is_string()) {
    metadata.Set("tokenizer.chat_template", found->get<std::string>());
    return {};
  }
  if (!found->is_array()) {
    return config.Wrong("chat_template", DescribeJson(*found), "a string or a list");
  }
  for (const Json& element : *found) {
    SLUICE_TRY(const JsonObject named, JsonObject::Of(element, config.name() + ": chat_template"));
    SLUICE_TRY(const std::string* name, named.String("name"));
    SLUICE_TRY(const std::string* text, named.String("template"));
    if (name == nullptr || text == nullptr) {
      return config.Wrong("chat_template", "an entry without name or template", "both");
    }
    metadata.Set(
        *name == "default" ? "tokenizer.chat_template" : "tokenizer.chat_template." + *name, *text);
    if (metadata.entries().size() > 256) {
      return config.Wrong("chat_template", "hundreds of templates", "a few");
    }
  }
  return {};
}

}  // namespace

Result<std::string> RecognisePreTokenizer(const Json& pre_tokenizer, const std::string& object) {
  SLUICE_TRY(const auto steps, Steps(&pre_tokenizer, "pretokenizers", object));
  const std::string expected = "the word patterns of gpt-2, smollm, qwen2 or llama-bpe";
  std::vector<std::string> types;
  for (const JsonObject& step : steps) {
    SLUICE_TRY(std::string type, TypeOf(step));
    types.push_back(std::move(type));
  }
  if (types.empty() || types.size() > 2 || types.back() != "ByteLevel") {
    std::string list;
    for (const std::string& type : types) list += (list.empty() ? "" : ", ") + Printable(type, 40);
    return Fail(object, list.empty() ? "no steps" : "the steps " + Printable(list, 200), expected);
  }
  SLUICE_TRY(const bool gpt2_regex, Flag(steps.back(), "use_regex", true));
  SLUICE_TRY(const bool prefix, Flag(steps.back(), "add_prefix_space", true));
  if (prefix) return steps.back().Wrong("add_prefix_space", "true", "false");
  if (types.size() == 1) {
    if (gpt2_regex) return std::string("gpt-2");
    return Fail(object, "a ByteLevel step without its pattern", expected);
  }
  const JsonObject& first = steps.front();
  if (types[0] == "Digits" && gpt2_regex) {
    SLUICE_TRY(const bool individual, Flag(first, "individual_digits", false));
    if (individual) return std::string("smollm");
    return Fail(object, "Digits that keep numbers together", expected);
  }
  if (types[0] == "Split" && !gpt2_regex) {
    SLUICE_TRY(const auto pattern, first.Object("pattern"));
    SLUICE_TRY(const std::string* behavior, first.String("behavior"));
    SLUICE_TRY(const bool invert, Flag(first, "invert", false));
    if (!pattern) return first.Wrong("pattern", "missing", "an object");
    SLUICE_TRY(const std::string* regex, pattern->String("Regex"));
    if (regex == nullptr) return first.Wrong("pattern", "no Regex", "a Regex");
    // The patterns match every character, so keeping the matches, or all but what is between
    // them, comes to the same.
    const bool isolated = behavior != nullptr && *behavior == "Isolated" && !invert;
    const bool removed = behavior != nullptr && *behavior == "Removed" && invert;
    const auto it = std::ranges::find(kWordPatterns, *regex, &WordPattern::regex);
    if ((isolated || removed) && it != kWordPatterns.end()) return std::string(it->name);
    return Fail(object, "the pattern " + Printable(*regex, 200), expected);
  }
  return Fail(object, "the steps " + Printable(types[0], 40) + ", ByteLevel", expected);
}

base::Status ReadHfTokenizer(const TokenizerFiles& files, uint32_t rows,
                             model::Metadata& metadata) {
  const JsonObject& tokenizer = files.tokenizer;
  SLUICE_TRY(const auto model, tokenizer.Object("model"));
  if (!model) return tokenizer.Wrong("model", "missing", "an object");
  SLUICE_TRY(const std::string* type, model->String("type"));
  // Files of the first years do not name the type of a BPE model.
  if (type != nullptr && *type != "BPE") return model->Wrong("type", Quoted(*type), "BPE");
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    SLUICE_TRY(const std::string* text, model->String(key));
    if (text != nullptr && !text->empty()) return model->Wrong(key, Quoted(*text), "none");
  }
  SLUICE_TRY(const bool sentencepiece, Flag(*model, "byte_fallback", false));
  SLUICE_TRY(const bool whole_words_first, Flag(*model, "ignore_merges", false));

  std::string pre = "default";
  bool space_prefix = false;
  bool nfc = false;
  if (sentencepiece) {
    SLUICE_TRY(space_prefix, ReadSpaceHandling(tokenizer));
  } else {
    const Json* words = tokenizer.Find("pre_tokenizer");
    if (words == nullptr) return tokenizer.Wrong("pre_tokenizer", "missing", "a ByteLevel step");
    SLUICE_TRY(pre, RecognisePreTokenizer(*words, tokenizer.name() + ": pre_tokenizer"));
    SLUICE_TRY(const auto normalizer, Steps(tokenizer.Find("normalizer"), "normalizers",
                                            tokenizer.name() + ": normalizer"));
    for (const JsonObject& step : normalizer) {
      SLUICE_TRY(const std::string step_type, TypeOf(step));
      if (step_type != "NFC") return step.Wrong("type", Quoted(step_type), "NFC or none");
      nfc = true;
    }
  }
  if (whole_words_first && pre != "llama-bpe") {
    return model->Wrong("ignore_merges", "true", "false with the word pattern " + pre);
  }

  SLUICE_TRY(Vocabulary v, ReadVocabulary(tokenizer, *model, sentencepiece, rows));
  SLUICE_TRY(auto merges, ReadMerges(*model));
  SLUICE_TRY(const auto around, ReadTemplate(tokenizer));
  SLUICE_TRY(const auto add_bos, files.tokenizer_config.Bool("add_bos_token"));
  SLUICE_TRY(const auto add_eos, files.tokenizer_config.Bool("add_eos_token"));
  const Surround surround = around.value_or(Surround{.bos = sentencepiece, .eos = false});

  metadata.Set("tokenizer.ggml.model", std::string(sentencepiece ? "llama" : "gpt2"));
  metadata.Set("tokenizer.ggml.pre", pre);
  metadata.Set("tokenizer.ggml.add_space_prefix", space_prefix);
  SLUICE_TRY_VOID(ReadSpecialTokens(files, v, metadata));
  metadata.Set("tokenizer.ggml.add_bos_token", add_bos.value_or(surround.bos));
  metadata.Set("tokenizer.ggml.add_eos_token", add_eos.value_or(surround.eos));
  SLUICE_TRY_VOID(ReadChatTemplate(files, metadata));
  NameUnusedRows(v);
  if (sentencepiece) {
    metadata.Set("tokenizer.ggml.scores", ScoresOfMerges(v, merges));
  } else {
    metadata.Set("tokenizer.ggml.merges", std::move(merges));
    metadata.Set("sluice.nfc", nfc);
    if (nfc && !v.normalized.empty()) {
      metadata.Set("sluice.normalized_tokens", std::move(v.normalized));
    }
  }
  metadata.Set("tokenizer.ggml.tokens", std::move(v.tokens));
  metadata.Set("tokenizer.ggml.token_type", std::move(v.types));
  return {};
}

}  // namespace sluice::formats
