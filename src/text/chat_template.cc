#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "text/utf8.h"

namespace sluice::text {
namespace {

using base::Fail;
using base::Result;

constexpr std::string_view kImStart = "<|im_start|>";
constexpr std::string_view kImEnd = "<|im_end|>";

// In the order of ChatTemplate::Family.
constexpr std::array<std::string_view, 6> kNames = {"chatml", "llama-2", "llama-3",
                                                    "zephyr", "mistral", "gemma"};

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Stands for a quotation mark that delimits nothing in Canonical()'s result.
constexpr char kInnerQuote = '\x01';

// A template's source in one notation, for finding things in it: no comments, no white space in
// code, literals in single quotes and without escapes. Text between the tags stays as it is.
std::string Canonical(std::string_view source) {
  enum { kText, kCode, kLiteral } state = kText;
  char quote = 0;
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    const char c = source[i];
    const std::string_view two = source.substr(i, 2);
    switch (state) {
      case kText:
        if (two == "{#") {
          i = std::min(source.find("#}", i), source.size() - 2) + 1;
          break;
        }
        if (two == "{{" || two == "{%") state = kCode;
        out += c == '\'' ? kInnerQuote : c;
        break;
      case kCode:
        if (two == "}}" || two == "%}") {
          out += two;
          ++i;
          state = kText;
        } else if (c == '\'' || c == '"') {
          out += '\'';
          quote = c;
          state = kLiteral;
        } else if (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
          out += c;
        }
        break;
      case kLiteral:
        if (c == quote) {
          out += '\'';
          state = kCode;
          break;
        }
        char plain = c;
        if (c == '\\' && i + 1 < source.size()) {
          plain = source[++i];
          if (plain == 'n') plain = '\n';
          if (plain == 't') plain = '\t';
          if (plain == 'r') plain = '\r';
        }
        out += plain == '\'' ? kInnerQuote : plain;
        break;
    }
  }
  return out;
}

// What stands between `open` and `close` in canonical text, at the first place where it is all one
// literal or all text.
std::string FindConstant(std::string_view text, std::string_view open, std::string_view close,
                         std::string_view otherwise) {
  for (size_t at = 0; (at = text.find(open, at)) != std::string_view::npos;) {
    at += open.size();
    const size_t end = text.find(close, at);
    if (end == std::string_view::npos) break;
    std::string between(text.substr(at, end - at));
    if (Contains(between, "'") || Contains(between, "{{") || Contains(between, "{%")) continue;
    std::ranges::replace(between, kInnerQuote, '\'');
    return between;
  }
  return std::string(otherwise);
}

std::string Names() {
  std::string names;
  for (const std::string_view name : kNames) {
    if (!names.empty()) names += ", ";
    names += name;
  }
  return names;
}

// The spelling of the token that the key gives, empty if there is none.
Result<std::string> SpellingOf(const model::Metadata& metadata, std::string_view key) {
  SLUICE_TRY(const auto id, metadata.GetUint(key));
  SLUICE_TRY(const std::vector<std::string>* tokens, metadata.GetStrings("tokenizer.ggml.tokens"));
  if (!id || tokens == nullptr) return std::string();
  if (*id >= tokens->size()) {
    return Fail(std::string(key), std::to_string(*id),
                "an id below " + std::to_string(tokens->size()));
  }
  return (*tokens)[*id];
}

// str.strip('\n') of Python, at the left and at the right.
std::string_view WithoutNewlinesLeft(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}
std::string_view WithoutNewlinesRight(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

}  // namespace

// Collects segments and joins neighbours of the same kind.
class ChatTemplate::Writer {
 public:
  Writer& Special(std::string_view text) { return Add(text, true); }
  Writer& Plain(std::string_view text) { return Add(text, false); }
  std::vector<Segment> Take() { return std::move(segments_); }

 private:
  Writer& Add(std::string_view text, bool special) {
    if (text.empty()) return *this;
    if (segments_.empty() || segments_.back().special != special) {
      segments_.push_back({"", special});
    }
    segments_.back().text += text;
    return *this;
  }
  std::vector<Segment> segments_;
};

Result<ChatTemplate> ChatTemplate::FromMetadata(const model::Metadata& metadata,
                                                std::string_view forced_name) {
  ChatTemplate result;
  SLUICE_TRY(result.bos_, SpellingOf(metadata, "tokenizer.ggml.bos_token_id"));
  SLUICE_TRY(result.eos_, SpellingOf(metadata, "tokenizer.ggml.eos_token_id"));

  std::optional<Family> family;
  std::string canonical;
  if (!forced_name.empty()) {
    const auto at = std::ranges::find(kNames, forced_name);
    if (at == kNames.end()) {
      return Fail("chat template", fmt::format("\"{}\"", forced_name), "one of " + Names());
    }
    family = static_cast<Family>(at - kNames.begin());
  } else {
    const std::string key = "tokenizer.chat_template";
    const std::string hint = "one of " + Names() + "; choose with --chat-template NAME";
    SLUICE_TRY(const std::string* source, metadata.GetString(key));
    if (source == nullptr) return Fail(key, "the model has none", hint);
    canonical = Canonical(*source);
    const std::string_view c = canonical;
    // Phi-4 puts <|im_sep|> after the role, Phi-3 and others end turns of <|user|> otherwise.
    if (Contains(c, kImStart) && Contains(c, kImEnd) && !Contains(c, "<|im_sep|>")) {
      family = Family::kChatMl;
    } else if (Contains(c, "<|start_header_id|>") && Contains(c, "<|eot_id|>")) {
      family = Family::kLlama3;
    } else if (Contains(c, "<start_of_turn>") && Contains(c, "<end_of_turn>")) {
      family = Family::kGemma;
    } else if (Contains(c, "<<SYS>>") && Contains(c, "[INST]")) {
      family = Family::kLlama2;
    } else if (Contains(c, "[INST]") && Contains(c, "[/INST]")) {
      family = Family::kMistral;
    } else if (Contains(c, "'<|user|>\n'+message['content']+eos_token") &&
               Contains(c, "'<|assistant|>\n'+message['content']+eos_token")) {
      family = Family::kZephyr;
    } else {
      return Fail(key, "of no known family", hint);
    }
  }
  result.family_ = *family;
  result.name_ = kNames[static_cast<size_t>(*family)];
  result.ReadDetails(canonical);
  return result;
}

// `source` is canonical; empty for the plain form.
void ChatTemplate::ReadDetails(std::string_view source) {
  switch (family_) {
    case Family::kChatMl:
      default_system_ = FindConstant(source, "<|im_start|>system\n", kImEnd, "");
      writes_bos_ = Contains(source, "bos_token");
      thinking_ = Contains(source, "</think>");
      stop_ = {std::string(kImEnd)};
      break;
    case Family::kLlama2:
      stop_ = {eos_};
      break;
    case Family::kLlama3:
      has_dates_ = Contains(source, "Cutting Knowledge Date: December 2023");
      date_ = FindConstant(source, "setdate_string='", "'", "26 Jul 2024");
      stop_ = {"<|eot_id|>"};
      break;
    case Family::kZephyr:
      stop_ = {eos_};
      break;
    case Family::kMistral:
      stop_ = {eos_};
      if (source.empty()) break;
      user_open_ = Contains(source, "' [INST] ") ? " [INST] "
                   : Contains(source, "[INST] ") ? "[INST] "
                                                 : "[INST]";
      user_close_ = Contains(source, "' [/INST]'") ? " [/INST]" : "[/INST]";
      answer_open_ = Contains(source, "' '+message['content']") ? " " : "";
      answer_close_ = Contains(source, "eos_token+' '") ? " " : "";
      trim_answers_ = Contains(source, "message['content']|trim+eos_token");
      system_last_ = Contains(source, "loop.lastandsystem_message");
      break;
    case Family::kGemma:
      stop_ = {"<end_of_turn>"};
      break;
  }
  std::erase(stop_, "");
}

Result<std::vector<Segment>> ChatTemplate::Render(std::span<const Message> messages,
                                                  bool add_generation_prompt) const {
  if (messages.empty()) return Fail("conversation", "no message", "at least one");
  const bool alternate =
      family_ == Family::kLlama2 || family_ == Family::kMistral || family_ == Family::kGemma;
  const size_t first = messages[0].role == "system" ? 1 : 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    const std::string object = "conversation: message " + std::to_string(i + 1);
    if (role != "system" && role != "user" && role != "assistant") {
      return Fail(object, fmt::format("role \"{}\"", ReplaceInvalidUtf8(role)),
                  "system, user or assistant");
    }
    if (role == "system" && i > 0) {
      return Fail(object, "a system message", "system messages only as the first");
    }
    if (alternate && i >= first && (role == "user") != ((i - first) % 2 == 0)) {
      return Fail(object, "role " + role,
                  std::string(role == "user" ? "assistant" : "user") + ": the template " +
                      std::string(name_) + " needs users and assistants to alternate");
    }
  }
  if (alternate && first == messages.size()) {
    return Fail("conversation", "only a system message",
                "a user message, because the template " + std::string(name_) + " needs one");
  }
  Writer out;
  switch (family_) {
    case Family::kChatMl:
      RenderChatMl(messages, add_generation_prompt, out);
      break;
    case Family::kLlama2:
      RenderLlama2(messages, out);
      break;
    case Family::kLlama3:
      RenderLlama3(messages, add_generation_prompt, out);
      break;
    case Family::kZephyr:
      RenderZephyr(messages, add_generation_prompt, out);
      break;
    case Family::kMistral:
      RenderMistral(messages, out);
      break;
    case Family::kGemma:
      RenderGemma(messages, add_generation_prompt, out);
      break;
  }
  return out.Take();
}

void ChatTemplate::RenderChatMl(std::span<const Message> messages, bool generate,
                                Writer& out) const {
  const auto open = [&](std::string_view role) {
    out.Special(kImStart).Special(role).Special("\n");
  };
  const auto close = [&] { out.Special(kImEnd).Special("\n"); };
  if (writes_bos_) out.Special(bos_);
  if (messages[0].role != "system" && !default_system_.empty()) {
    open("system");
    out.Special(default_system_);
    close();
  }
  size_t last_user = messages.size() - 1;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "user") last_user = i;
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    std::string_view content = messages[i].content;
    open(messages[i].role);
    if (thinking_ && messages[i].role == "assistant") {
      // Qwen3 drops the reasoning of earlier answers and writes it out for one that comes last.
      constexpr std::string_view kThink = "<think>";
      constexpr std::string_view kThinkEnd = "</think>";
      std::string_view reasoning;
      if (const size_t end = content.rfind(kThinkEnd); end != std::string_view::npos) {
        reasoning = WithoutNewlinesRight(content.substr(0, content.find(kThinkEnd)));
        if (const size_t begin = reasoning.rfind(kThink); begin != std::string_view::npos) {
          reasoning.remove_prefix(begin + kThink.size());
        }
        reasoning = WithoutNewlinesLeft(reasoning);
        content = WithoutNewlinesLeft(content.substr(end + kThinkEnd.size()));
      }
      if (i > last_user && (i + 1 == messages.size() || !reasoning.empty())) {
        out.Special("<think>\n").Plain(WithoutNewlinesLeft(WithoutNewlinesRight(reasoning)));
        out.Special("\n</think>\n\n");
        content = WithoutNewlinesLeft(content);
      }
    }
    out.Plain(content);
    close();
  }
  if (generate) open("assistant");
}

void ChatTemplate::RenderLlama2(std::span<const Message> messages, Writer& out) const {
  const bool has_system = messages[0].role == "system";
  for (size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (message.role == "user") {
      out.Special(bos_).Special("[INST] ");
      if (has_system && i == 1) {
        // The whole is trimmed, so a blank message takes the blank lines before it along.
        const std::string_view content = TrimRight(message.content);
        out.Special("<<SYS>>\n").Plain(messages[0].content).Special("\n<</SYS>>");
        if (!content.empty()) out.Special("\n\n").Plain(content);
      } else {
        out.Plain(Trim(message.content));
      }
      out.Special(" [/INST]");
    } else {
      out.Special(" ").Plain(Trim(message.content)).Special(" ").Special(eos_);
    }
  }
}

void ChatTemplate::RenderLlama3(std::span<const Message> messages, bool generate,
                                Writer& out) const {
  const auto open = [&](std::string_view role) {
    out.Special("<|start_header_id|>").Special(role).Special("<|end_header_id|>\n\n");
  };
  out.Special(bos_);
  if (has_dates_) {
    open("system");
    out.Special("Cutting Knowledge Date: December 2023\nToday Date: ").Special(date_);
    out.Special("\n\n");
    if (messages[0].role == "system") {
      out.Plain(Trim(messages[0].content));
      messages = messages.subspan(1);
    }
    out.Special("<|eot_id|>");
  }
  for (const Message& message : messages) {
    open(message.role);
    out.Plain(Trim(message.content)).Special("<|eot_id|>");
  }
  if (generate) open("assistant");
}

void ChatTemplate::RenderZephyr(std::span<const Message> messages, bool generate,
                                Writer& out) const {
  for (const Message& message : messages) {
    out.Special("<|").Special(message.role).Special("|>\n");
    out.Plain(message.content).Special(eos_).Special("\n");
  }
  if (generate) out.Special("<|assistant|>\n");
}

void ChatTemplate::RenderMistral(std::span<const Message> messages, Writer& out) const {
  const Message* system = messages[0].role == "system" ? &messages[0] : nullptr;
  if (system != nullptr) messages = messages.subspan(1);
  out.Special(bos_);
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (message.role == "user") {
      out.Special(user_open_);
      const bool here = system_last_ ? i + 1 == messages.size() : i == 0;
      if (system != nullptr && here) out.Plain(system->content).Special("\n\n");
      out.Plain(message.content).Special(user_close_);
    } else {
      out.Special(answer_open_);
      out.Plain(trim_answers_ ? Trim(message.content) : std::string_view(message.content));
      out.Special(eos_).Special(answer_close_);
    }
  }
}

void ChatTemplate::RenderGemma(std::span<const Message> messages, bool generate,
                               Writer& out) const {
  const Message* system = messages[0].role == "system" ? &messages[0] : nullptr;
  if (system != nullptr) messages = messages.subspan(1);
  out.Special(bos_);
  for (const Message& message : messages) {
    out.Special("<start_of_turn>");
    out.Special(message.role == "assistant" ? "model" : "user").Special("\n");
    if (system != nullptr && &message == &messages[0]) {
      out.Plain(system->content).Special("\n\n");
    }
    out.Plain(Trim(message.content)).Special("<end_of_turn>\n");
  }
  if (generate) out.Special("<start_of_turn>model\n");
}

std::span<const std::string_view> ChatTemplateNames() { return kNames; }

std::string JoinSegments(std::span<const Segment> segments) {
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  return text;
}

std::vector<int32_t> EncodeChat(const Tokenizer& tokenizer, std::span<const Segment> segments) {
  std::vector<int32_t> ids = tokenizer.Encode(segments);
  if (tokenizer.add_bos() && (ids.empty() || ids[0] != tokenizer.bos())) {
    ids.insert(ids.begin(), tokenizer.bos());
  }
  return ids;
}

}  // namespace sluice::text
