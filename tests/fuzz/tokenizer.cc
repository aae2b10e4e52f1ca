// A tokenizer from arbitrary metadata, or a good one, on arbitrary text: no crash, ids in range,
// valid UTF-8 out, the stream equal to the whole. NFC of the text is valid and stays as it is.

#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/nfc.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"

namespace {

using sluice::model::Metadata;
using sluice::text::Segment;
using sluice::text::Tokenizer;

// Printable bytes, and some tokens that merges can make of them.
std::vector<std::string> GoodTokens() {
  std::vector<std::string> tokens;
  for (int c = 0x21; c < 0x7F; ++c) tokens.emplace_back(1, static_cast<char>(c));
  for (const char* token :
       {"aa", "ab", "aaa", "\u0120", "\u0120a", "\u010a", "\u2581", "\u2581a", "<0x0A>", "<0xFF>",
        "<|im_end|>", "<tool>", "", "<\u00e9>", "e\u0301"}) {
    tokens.emplace_back(token);
  }
  return tokens;
}

Metadata MakeMetadata(FuzzedDataProvider& data) {
  Metadata metadata;
  // One of these, and now and then anything.
  const auto pick = [&](const std::vector<std::string>& from) {
    if (data.ConsumeIntegralInRange<int>(0, 9) == 9) return data.ConsumeRandomLengthString(12);
    return from[data.ConsumeIntegralInRange<size_t>(0, from.size() - 1)];
  };
  std::vector<std::string> pres;
  for (const auto name : sluice::text::PretokenizerNames()) pres.emplace_back(name);
  metadata.Set("tokenizer.ggml.model", pick({"gpt2", "llama"}));
  metadata.Set("tokenizer.ggml.pre", pick(pres));
  std::vector<std::string> tokens;
  if (data.ConsumeBool()) tokens = GoodTokens();
  for (size_t n = data.ConsumeIntegralInRange<size_t>(0, 12); n > 0; --n) {
    tokens.push_back(data.ConsumeRandomLengthString(8));
  }
  std::vector<int32_t> types(tokens.size(), 1);
  std::vector<float> scores(tokens.size(), 0);
  for (size_t n = data.ConsumeIntegralInRange<size_t>(0, 8); n > 0 && !tokens.empty(); --n) {
    const size_t at = data.ConsumeIntegralInRange<size_t>(0, tokens.size() - 1);
    types[at] = data.ConsumeIntegralInRange<int32_t>(1, data.ConsumeBool() ? 6 : 8);
    scores[at] = data.ConsumeFloatingPoint<float>();
  }
  if (data.ConsumeBool()) metadata.Set("tokenizer.ggml.token_type", types);
  metadata.Set("tokenizer.ggml.scores", scores);
  std::vector<std::string> merges;
  for (size_t n = data.ConsumeIntegralInRange<size_t>(0, 4); n > 0; --n) {
    merges.push_back(pick({"a a", "a b", "aa a", "a aa", "\u0120 a"}));
  }
  metadata.Set("tokenizer.ggml.merges", merges);
  for (const char* name : {"bos", "eos", "unknown", "padding", "eot"}) {
    if (!data.ConsumeBool()) continue;
    metadata.Set("tokenizer.ggml." + std::string(name) + "_token_id",
                 data.ConsumeIntegralInRange<uint32_t>(0, 130));
  }
  if (data.ConsumeBool()) metadata.Set("tokenizer.ggml.add_bos_token", data.ConsumeBool());
  if (data.ConsumeBool()) metadata.Set("tokenizer.ggml.add_space_prefix", data.ConsumeBool());
  if (data.ConsumeBool()) {
    metadata.Set("sluice.eos_token_ids",
                 std::vector<int32_t>{data.ConsumeIntegralInRange<int32_t>(-1, 130)});
  }
  if (data.ConsumeBool()) metadata.Set("sluice.nfc", data.ConsumeBool());
  if (data.ConsumeBool()) {
    metadata.Set("sluice.normalized_tokens",
                 std::vector<int32_t>{data.ConsumeIntegralInRange<int32_t>(-1, 130)});
  }
  return metadata;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  const auto tokenizer = Tokenizer::FromMetadata(MakeMetadata(data));
  if (!tokenizer) {
    SLUICE_CHECK(!tokenizer.error().ToString().empty());
    return 0;
  }
  std::vector<Segment> segments;
  for (size_t n = data.ConsumeIntegralInRange<size_t>(1, 3); n > 0; --n) {
    const bool special = data.ConsumeBool();
    segments.push_back({data.ConsumeRandomLengthString(4096), special});
  }
  for (const Segment& segment : segments) {
    const std::string nfc = sluice::text::ToNfc(sluice::text::ReplaceInvalidUtf8(segment.text));
    SLUICE_CHECK(sluice::text::IsValidUtf8(nfc));
    SLUICE_CHECK(sluice::text::ToNfc(nfc) == nfc);
  }
  const std::vector<int32_t> ids = tokenizer->Encode(segments);
  for (const int32_t id : ids) {
    SLUICE_CHECK(id >= 0 && static_cast<uint32_t>(id) < tokenizer->size());
  }
  SLUICE_CHECK(sluice::text::IsValidUtf8(tokenizer->Decode(ids, true)));
  sluice::text::StreamDecoder stream(*tokenizer);
  std::string streamed;
  for (const int32_t id : ids) {
    streamed += stream.Push(id);
    SLUICE_CHECK(sluice::text::IsValidUtf8(streamed));
  }
  streamed += stream.Finish();
  // They differ in leading spaces only, which Decode() takes away.
  SLUICE_CHECK(streamed.size() >= tokenizer->Decode(ids).size());
  return 0;
}
