// A project's page on a package index: JSON if the input begins with a brace, else HTML. Looks for
// the wheel x-1-py3-none-any.whl.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "formats/hub_pypi.h"
#include "formats/hub_url.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  formats::HttpPage page;
  page.url = "https://user:secret@index.invalid/simple/x/";
  page.body.assign(reinterpret_cast<const char*>(data), size);
  page.content_type =
      page.body.starts_with('{') ? "application/vnd.pypi.simple.v1+json" : "text/html";
  const auto link = formats::FindWheel(page, "x-1-py3-none-any.whl");
  if (!link) {
    SLUICE_CHECK(!link.error().object.empty() && !link.error().got.empty());
    SLUICE_CHECK(!link.error().ToString().contains("user:secret@"));
    return 0;
  }
  SLUICE_CHECK(formats::CheckUrl(link->url).has_value());
  return 0;
}
