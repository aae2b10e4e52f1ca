// Errors as values. Input, file, device and network faults are returned, never thrown; a broken
// invariant of the program itself aborts (check.h).
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace sluice::base {

// One fault, in the words a user needs: which object, what was found there, what was expected.
struct Error {
  std::string object;                   // "model.gguf: tensor blk.0.attn_q.weight"
  std::string got;                      // "3 dimensions"; may stand alone as the whole sentence
  std::string expected = {};            // "at most 2"; empty if there is no fixed expectation
  std::optional<uint64_t> offset = {};  // byte offset in the object's file, where there is one

  // "model.gguf: tensor x: 3 dimensions, expected at most 2 (at byte 1234)"
  std::string ToString() const;
  // The same error seen from further out: `outer` is put before the object.
  Error In(std::string outer) const;
};

template <typename T>
using Result = std::expected<T, Error>;
using Status = std::expected<void, Error>;

inline std::unexpected<Error> Fail(std::string object, std::string got, std::string expected = {},
                                   std::optional<uint64_t> offset = {}) {
  return std::unexpected(
      Error{std::move(object), std::move(got), std::move(expected), std::move(offset)});
}

// Fail with the text of errno: Fail("out.pack", "cannot write: No space left on device").
std::unexpected<Error> FailErrno(std::string object, std::string what, int error_number);

// A name out of a file, fit for a message: what is not printable ASCII becomes '?', and what is
// longer than `max_length` is cut.
std::string Printable(std::string_view name, size_t max_length = 96);

}  // namespace sluice::base

#define SLUICE_CONCAT_(a, b) a##b
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_(a, b)
// SLUICE_TRY(auto x, F()): x is F()'s value, or the calling function returns F()'s error.
#define SLUICE_TRY(declaration, expression) \
  SLUICE_TRY_(SLUICE_CONCAT(sluice_result_, __LINE__), declaration, expression)
#define SLUICE_TRY_(result, declaration, expression)              \
  auto result = (expression);                                     \
  if (!result) return std::unexpected(std::move(result).error()); \
  declaration = std::move(result).value()
// The same for a Status.
#define SLUICE_TRY_VOID(expression)                             \
  do {                                                          \
    if (auto sluice_status = (expression); !sluice_status)      \
      return std::unexpected(std::move(sluice_status).error()); \
  } while (false)
