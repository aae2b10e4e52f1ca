#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <string>

#include "base/check.h"

namespace sluice::text {
namespace {

struct Kind {
  std::string_view name;
  std::string_view pattern;
  bool whole_words_first;
  bool nfc;
};

// Sources: the "pre_tokenizer" and "normalizer" of the tokenizer.json files of GPT-2, Qwen2.5,
// SmolLM2 and Llama 3. \s occurs only inside brackets, because Create() replaces it: see kSpace.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|[\s]+(?![^\s])|[\s]+)";
// SmolLM cuts every digit off first and then applies GPT-2's pattern to the parts between, which
// end where a digit stands: hence the digit in the look-ahead.
constexpr std::string_view kSmolLm =
    R"(\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|[\s]+(?![^\s\p{N}])|[\s]+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|[\s]*[\r\n]+|[\s]+(?![^\s])|[\s]+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|[\s]*[\r\n]+|[\s]+(?![^\s])|[\s]+)";

constexpr std::array<Kind, 7> kKinds = {{{"gpt-2", kGpt2, false, false},
                                         {"gpt2", kGpt2, false, false},
                                         {"llama-bpe", kLlama3, true, false},
                                         {"llama-v3", kLlama3, true, false},
                                         {"llama3", kLlama3, true, false},
                                         {"qwen2", kQwen2, false, true},
                                         {"smollm", kSmolLm, false, false}}};

// Unicode's White_Space, which is what \s means to the references. PCRE2's own \s differs: it
// takes U+180E for a space.
constexpr std::string_view kSpace =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

}  // namespace

struct Pretokenizer::Pattern {
  pcre2_code* code;
  explicit Pattern(pcre2_code* compiled) : code(compiled) {}
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern() { pcre2_code_free(code); }
};

base::Result<Pretokenizer> Pretokenizer::Create(std::string_view name) {
  const Kind* kind = nullptr;
  std::string names;
  for (const Kind& k : kKinds) {
    if (k.name == name) kind = &k;
    if (!names.empty()) names += ", ";
    names += k.name;
  }
  if (kind == nullptr) {
    return base::Fail("tokenizer.ggml.pre", fmt::format("\"{}\"", name), "one of " + names);
  }
  std::string pattern(kind->pattern);
  for (size_t at = 0; (at = pattern.find("\\s", at)) != std::string::npos; at += kSpace.size()) {
    pattern.replace(at, 2, kSpace);
  }
  int error = 0;
  PCRE2_SIZE error_at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_ANCHORED, &error, &error_at, nullptr);
  SLUICE_CHECK(code != nullptr);
  // Where there is no JIT the interpreter gives the same words.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  Pretokenizer result;
  result.pattern_ = std::make_shared<const Pattern>(code);
  result.whole_words_first_ = kind->whole_words_first;
  result.nfc_ = kind->nfc;
  return result;
}

void Pretokenizer::Split(std::string_view text,
                         const std::function<void(std::string_view)>& word) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  SLUICE_CHECK(match != nullptr && context != nullptr);
  // Giving a run back one character at a time counts against this limit, once per character.
  pcre2_set_match_limit(context.get(), UINT32_MAX);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
  size_t begin = 0;
  while (begin < text.size()) {
    const int found = pcre2_match(pattern_->code, subject, text.size(), begin, PCRE2_NO_UTF_CHECK,
                                  match.get(), context.get());
    // Every pattern matches at least one character wherever it starts.
    SLUICE_CHECK(found > 0 && ends[1] > begin);
    word(text.substr(begin, ends[1] - begin));
    begin = ends[1];
  }
}

std::span<const std::string_view> PretokenizerNames() {
  static constexpr auto kNames = [] {
    std::array<std::string_view, kKinds.size()> names;
    for (size_t i = 0; i < names.size(); ++i) names[i] = kKinds[i].name;
    return names;
  }();
  return kNames;
}

}  // namespace sluice::text
