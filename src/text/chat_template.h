// Conversations as the text that a model was trained to read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/metadata.h"
#include "text/tokenizer.h"

namespace sluice::text {

struct Message {
  std::string role;  // "system" (only as the first), "user" or "assistant"
  std::string content;
};

// One of the known families of templates, with the details that differ between its models. The
// model's own template (Jinja) is not run: it is recognised, and those details are read from it.
class ChatTemplate {
 public:
  // Recognises tokenizer.chat_template. Without it, or with one that is of no known family, an
  // error that lists ChatTemplateNames(). `forced_name` is one of those names and takes the
  // family's plain form, whatever the model's template says. The spellings of BOS and EOS come
  // from the metadata's tokens.
  static base::Result<ChatTemplate> FromMetadata(const model::Metadata& metadata,
                                                 std::string_view forced_name = "");

  std::string_view name() const { return name_; }
  // What stands before the first message when it is not a system message; may be empty.
  const std::string& default_system() const { return default_system_; }
  // Spellings that end the assistant's turn. Models give them as control tokens
  // (Tokenizer::IsEnd), some small ones also as text.
  const std::vector<std::string>& stop() const { return stop_; }

  // The conversation, and the beginning of the assistant's answer if add_generation_prompt. What
  // the template adds is special, what the messages say is not; neighbours differ in that. Errors:
  // no message, an unknown role, a system message that is not the first, and, where the family
  // needs it (llama-2, mistral, gemma), roles that do not alternate from "user" on.
  //
  // Equal to what Jinja makes of the known models' templates, except that a system message goes
  // before the first user message of families that have no place for it (gemma, early mistral), and
  // that templates that write today's date (Llama 3.2) get the date that they hold as a fallback,
  // so that a conversation means the same tokens every day.
  base::Result<std::vector<Segment>> Render(std::span<const Message> messages,
                                            bool add_generation_prompt) const;

 private:
  enum class Family : uint8_t { kChatMl, kLlama2, kLlama3, kZephyr, kMistral, kGemma };
  class Writer;

  void ReadDetails(std::string_view source);
  void RenderChatMl(std::span<const Message> messages, bool generate, Writer& out) const;
  void RenderLlama2(std::span<const Message> messages, Writer& out) const;
  void RenderLlama3(std::span<const Message> messages, bool generate, Writer& out) const;
  void RenderZephyr(std::span<const Message> messages, bool generate, Writer& out) const;
  void RenderMistral(std::span<const Message> messages, Writer& out) const;
  void RenderGemma(std::span<const Message> messages, bool generate, Writer& out) const;

  Family family_ = Family::kChatMl;
  std::string_view name_;
  std::string bos_;
  std::string eos_;
  std::string default_system_;
  std::vector<std::string> stop_;

  bool writes_bos_ = false;  // chatml: BOS first (InternLM2)
  bool thinking_ = false;    // chatml: reasoning between <think> and </think> (Qwen3)

  bool has_dates_ = false;  // llama-3: a system message always, with dates before it (3.1, 3.2)
  std::string date_;        // llama-3: as in "26 Jul 2024"

  std::string user_open_ = "[INST] ";    // mistral
  std::string user_close_ = " [/INST]";  // mistral
  std::string answer_open_;              // mistral
  std::string answer_close_;             // mistral: after EOS
  bool trim_answers_ = false;            // mistral
  bool system_last_ = false;             // mistral: the system message goes before the last turn
};

std::span<const std::string_view> ChatTemplateNames();

// The text of a conversation.
std::string JoinSegments(std::span<const Segment> segments);

// Token ids of a rendered conversation: control tokens only where the template put them, and BOS
// once if the tokenizer wants it, also where the template writes it itself. For contents without
// the spelling of a control token, equal to encoding the joined text with parse_special.
std::vector<int32_t> EncodeChat(const Tokenizer& tokenizer, std::span<const Segment> segments);

}  // namespace sluice::text
