// Fetching pages and large files over HTTP, with libcurl.
//
// Redirects are followed here and not by libcurl, so that it stands in one place what another host
// may see: no bearer token, no credentials of the URL; and https is never left for http. Proxies
// come from http_proxy, https_proxy and no_proxy; certificates from CURL_CA_BUNDLE or SSL_CERT_FILE
// (the first that is set) and SSL_CERT_DIR, else the system's.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/progress.h"

namespace sluice::formats {

struct HttpRequest {
  std::string url;                // http or https; may hold user:password@
  std::string accept = {};        // Accept header; empty: anything
  std::string bearer_token = {};  // sent only to the scheme, host and port of `url`
  std::string ca_file = {};       // instead of the certificates of the environment
  std::string proxy = {};         // instead of the proxy of the environment
  // What an error says was expected after HTTP 401 or 403, and after 404.
  std::string denied_hint = {};
  std::string missing_hint = {};
};

// Connections that are cut, time out or end in HTTP 408, 429 or 5xx are tried again.
struct HttpPolicy {
  unsigned attempts = 5;                 // in a row without 1 MiB of progress
  std::chrono::milliseconds pause{500};  // before the second attempt; doubled each time
  std::chrono::seconds stall{60};        // without data counts as cut
  std::chrono::seconds connect{30};
};

struct HttpPage {
  std::string body;
  std::string content_type;  // lower case, without parameters: "text/html"
  std::string url;           // after redirects
};

// A small resource, whole. Errors: network, HTTP status, longer than `max_bytes`.
base::Result<HttpPage> HttpGet(const HttpRequest& request, uint64_t max_bytes,
                               const HttpPolicy& policy = {});

struct Download {
  HttpRequest request;
  std::string target;                      // path of the finished file; its folder must exist
  std::optional<uint64_t> size = {};       // bytes
  std::string sha256 = {};                 // 64 lower-case hexadecimal digits; empty: not known
  uint64_t max_bytes = uint64_t{1} << 40;  // where `size` is not known
};

// Downloads to "TARGET.part", checks size and SHA-256, syncs, and renames it to the target.
// After a cut the rest is asked for by Range. The .part file stays for the next call after a cut
// or on a full disk if the SHA-256 is known (only that can tell that both halves belong together);
// in all other cases nothing is left behind. Two calls for one target at once must be kept apart by
// the caller.
base::Status DownloadFile(const Download& download, const HttpPolicy& policy = {},
                          const base::Progress& progress = {});

}  // namespace sluice::formats
