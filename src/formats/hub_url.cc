#include "formats/hub_url.h"

#include <curl/curl.h>

#include <cctype>
#include <charconv>
#include <cstdint>
#include <memory>

namespace sluice::formats {
namespace {

using base::Fail;

struct Freed {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
  void operator()(char* text) const { curl_free(text); }
};
using Url = std::unique_ptr<CURLU, Freed>;

Url Parse(const std::string& text) {
  Url url(curl_url());
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK) {
    return nullptr;
  }
  return url;
}

// Empty if the part is absent.
std::string Part(const Url& url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url.get(), part, &text, flags) != CURLUE_OK) return {};
  return std::unique_ptr<char, Freed>(text).get();
}

std::string Escape(const std::string& text, bool keep_slashes) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const bool plain = byte < 0x80 && std::isalnum(byte);
    if (plain || c == '-' || c == '.' || c == '_' || c == '~' || (keep_slashes && c == '/')) {
      result += c;
    } else {
      result += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return result;
}

}  // namespace

base::Status CheckUrl(const std::string& text) {
  const Url url = Parse(text);
  if (!url) return Fail(ShownUrl(text), "not a URL", "http://... or https://...");
  const std::string scheme = Part(url, CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https") {
    return Fail(ShownUrl(text), "a URL of scheme " + scheme, "http or https");
  }
  return {};
}

base::Result<std::string> ResolveUrl(const std::string& base, const std::string& reference) {
  const Url url = Parse(base);
  if (!url) return Fail(ShownUrl(base), "not a URL", "http://... or https://...");
  if (curl_url_set(url.get(), CURLUPART_URL, reference.c_str(), CURLU_NON_SUPPORT_SCHEME) !=
      CURLUE_OK) {
    return Fail(ShownUrl(base), "refers to \"" + ShownUrl(reference) + "\"", "a URL");
  }
  std::string resolved = Part(url, CURLUPART_URL);
  SLUICE_TRY_VOID(CheckUrl(resolved));
  return resolved;
}

std::string UrlOrigin(const std::string& text) {
  const Url url = Parse(text);
  if (!url) return {};
  std::string host = Part(url, CURLUPART_HOST);
  for (char& c : host) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return Part(url, CURLUPART_SCHEME) + "://" + host + ":" +
         Part(url, CURLUPART_PORT, CURLU_DEFAULT_PORT);
}

std::string WithCredentialsOf(const std::string& owner, const std::string& text) {
  const Url from = Parse(owner);
  const Url to = Parse(text);
  if (!from || !to || UrlOrigin(owner) != UrlOrigin(text)) return text;
  const std::string user = Part(from, CURLUPART_USER);
  if (user.empty() || !Part(to, CURLUPART_USER).empty()) return text;
  curl_url_set(to.get(), CURLUPART_USER, user.c_str(), 0);
  const std::string password = Part(from, CURLUPART_PASSWORD);
  if (!password.empty()) curl_url_set(to.get(), CURLUPART_PASSWORD, password.c_str(), 0);
  return Part(to, CURLUPART_URL);
}

std::string ShownUrl(const std::string& text) {
  const Url url = Parse(text);
  if (!url) {
    // Not parsed, so nobody knows where a secret in it stands; a relative path can hold none before
    // its query.
    if (text.find('@') != std::string::npos) return "(URL)";
    return text.substr(0, text.find_first_of("?#"));
  }
  for (const CURLUPart part :
       {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY, CURLUPART_FRAGMENT}) {
    curl_url_set(url.get(), part, nullptr, 0);
  }
  return Part(url, CURLUPART_URL);
}

std::string EscapePath(const std::string& path) { return Escape(path, true); }
std::string EscapeSegment(const std::string& segment) { return Escape(segment, false); }

std::string UnescapePercent(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      const char* end = text.data() + i + 3;
      if (std::from_chars(text.data() + i + 1, end, byte, 16).ptr == end) {
        result += static_cast<char>(byte);
        i += 2;
        continue;
      }
    }
    result += text[i];
  }
  return result;
}

}  // namespace sluice::formats
