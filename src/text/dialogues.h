// Dialogues in a text file, as calibration reads them.
#pragma once

#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace sluice::text {

// Each dialogue is one turn of a user and what follows it: a paragraph that begins with "User: ",
// the answer from "Assistant: " on (of several paragraphs perhaps), up to the next "User: ". The
// text before the first "User: " is not part of any.
std::vector<std::vector<Message>> ParseDialogues(std::string_view text);

}  // namespace sluice::text
