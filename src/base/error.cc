#include "base/error.h"

#include <fmt/format.h>

#include <cstring>

namespace sluice::base {

std::string Error::ToString() const {
  std::string text = object;
  if (!got.empty()) text += (text.empty() ? "" : ": ") + got;
  if (!expected.empty()) text += ", expected " + expected;
  if (offset) text += fmt::format(" (at byte {})", *offset);
  return text;
}

Error Error::In(std::string outer) const {
  Error error = *this;
  error.object = error.object.empty() ? std::move(outer) : outer + ": " + error.object;
  return error;
}

std::string Printable(std::string_view name, size_t max_length) {
  std::string text(name.substr(0, max_length));
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  if (name.size() > max_length) text += "...";
  return text;
}

std::unexpected<Error> FailErrno(std::string object, std::string what, int error_number) {
  return Fail(std::move(object), std::move(what) + ": " + std::strerror(error_number));
}

}  // namespace sluice::base
