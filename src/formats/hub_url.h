// The few operations on URLs that fetching models needs.
#pragma once

#include <string>

#include "base/error.h"

namespace sluice::formats {

// `reference` (absolute or relative) as seen from the page `base`; RFC 3986, section 5.
// Error if either is no URL, or the result is not http or https.
base::Result<std::string> ResolveUrl(const std::string& base, const std::string& reference);

// Checks that `url` is a complete http or https URL.
base::Status CheckUrl(const std::string& url);

// "https://host:443": what must be equal before one URL's secrets may be sent to another.
// Empty for text that is no URL.
std::string UrlOrigin(const std::string& url);

// `url` with the user name and password of `owner` if it has none and is of the same origin.
std::string WithCredentialsOf(const std::string& owner, const std::string& url);

// For messages: without user name, password, query and fragment, which may be secrets.
std::string ShownUrl(const std::string& url);

// Percent-encodes a path, keeping its slashes; EscapeSegment encodes the slashes too.
std::string EscapePath(const std::string& path);
std::string EscapeSegment(const std::string& segment);
std::string UnescapePercent(const std::string& text);

}  // namespace sluice::formats
