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

std::unexpected<Error> FailErrno(std::string object, std::string what, int error_number) {
  return Fail(std::move(object), std::move(what) + ": " + std::strerror(error_number));
}

}  // namespace sluice::base
