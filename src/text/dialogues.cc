#include "text/dialogues.h"

#include <string>

namespace sluice::text {
namespace {

constexpr std::string_view kUser = "User: ";
constexpr std::string_view kAssistant = "Assistant: ";

std::string Trimmed(std::string_view text) {
  const size_t end = text.find_last_not_of(" \n");
  return std::string(text.substr(0, end == std::string_view::npos ? 0 : end + 1));
}

// Where a paragraph begins with `opening`, at or after `from`; the text's size if none does.
size_t FindParagraph(std::string_view text, std::string_view opening, size_t from) {
  for (size_t at = text.find(opening, from); at != std::string_view::npos;
       at = text.find(opening, at + 1)) {
    if (at == 0 || (at >= 2 && text.substr(at - 2, 2) == "\n\n")) return at;
  }
  return text.size();
}

}  // namespace

std::vector<std::vector<Message>> ParseDialogues(std::string_view text) {
  std::vector<std::vector<Message>> dialogues;
  size_t begin = FindParagraph(text, kUser, 0);
  while (begin < text.size()) {
    const size_t end = FindParagraph(text, kUser, begin + kUser.size());
    const std::string_view turn = text.substr(begin + kUser.size(), end - begin - kUser.size());
    const size_t answer = FindParagraph(turn, kAssistant, 0);
    dialogues.push_back({{.role = "user", .content = Trimmed(turn.substr(0, answer))}});
    if (answer < turn.size()) {
      dialogues.back().push_back(
          {.role = "assistant", .content = Trimmed(turn.substr(answer + kAssistant.size()))});
    }
    begin = end;
  }
  return dialogues;
}

}  // namespace sluice::text
