// Arbitrary template sources and conversations: no crash; what a template renders holds every
// content outside the special segments.

#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  sluice::model::Metadata metadata;
  metadata.Set("tokenizer.ggml.tokens", std::vector<std::string>{"<s>", "</s>"});
  if (data.ConsumeBool()) metadata.Set("tokenizer.ggml.bos_token_id", uint32_t{0});
  if (data.ConsumeBool()) {
    metadata.Set("tokenizer.ggml.eos_token_id", data.ConsumeIntegralInRange<uint32_t>(0, 2));
  }
  const auto names = sluice::text::ChatTemplateNames();
  const size_t forced = data.ConsumeIntegralInRange<size_t>(0, 2 * names.size());
  std::vector<sluice::text::Message> messages;
  for (size_t n = data.ConsumeIntegralInRange<size_t>(0, 4); n > 0; --n) {
    std::string role = data.PickValueInArray({"system", "user", "assistant", "user", "tool"});
    messages.push_back({std::move(role), data.ConsumeRandomLengthString(64)});
  }
  const bool generate = data.ConsumeBool();
  metadata.Set("tokenizer.chat_template", data.ConsumeRemainingBytesAsString());
  const auto chat = sluice::text::ChatTemplate::FromMetadata(
      metadata, forced < names.size() ? names[forced] : std::string_view());
  if (!chat) {
    SLUICE_CHECK(!chat.error().ToString().empty());
    return 0;
  }
  const auto segments = chat->Render(messages, generate);
  if (!segments) return 0;
  for (size_t i = 0; i < segments->size(); ++i) {
    SLUICE_CHECK(!(*segments)[i].text.empty());
    SLUICE_CHECK(i == 0 || (*segments)[i].special != (*segments)[i - 1].special);
  }
  return 0;
}
