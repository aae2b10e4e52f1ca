// The JSON files of a Hugging Face folder. The input is one JSON document whose members stand for
// the files; the text of a chat template is taken as it is.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "formats/hf_model.h"
#include "formats/hf_tokenizer.h"

namespace {

using namespace sluice;

void Check(const base::Error& error) { SLUICE_CHECK(!error.object.empty() && !error.got.empty()); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json =
      formats::ParseJson(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!json) {
    Check(json.error());
    return 0;
  }
  const auto root = formats::JsonObject::Of(*json, "fuzz");
  if (!root) return 0;
  static const formats::Json kEmpty = formats::Json::object();
  const auto part = [&](const char* name) {
    const formats::Json* found = root->Find(name);
    const bool object = found != nullptr && found->is_object();
    return *formats::JsonObject::Of(object ? *found : kEmpty, name);
  };
  const auto hyper = formats::ReadHfHyper(part("config"));
  if (!hyper) Check(hyper.error());
  model::Metadata metadata;
  const auto status = formats::ReadHfTokenizer(
      {part("tokenizer"), part("tokenizer_config"), part("config"), part("generation_config"), {}},
      hyper ? hyper->vocab % 4096 + 1 : 300, metadata);
  if (!status) Check(status.error());
  return 0;
}
