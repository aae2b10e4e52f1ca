#include "base/error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace sluice::base {
namespace {

TEST(Error, ReadsAsOneSentence) {
  EXPECT_EQ(Error({"file", "3 dimensions"}).ToString(), "file: 3 dimensions");
  EXPECT_EQ(Error({"file", "3 dimensions", "2"}).ToString(), "file: 3 dimensions, expected 2");
  EXPECT_EQ(Error({"file", "3 dimensions", "2", 17}).ToString(),
            "file: 3 dimensions, expected 2 (at byte 17)");
  EXPECT_EQ(Error({"", "no token"}).ToString(), "no token");
  EXPECT_EQ(Error({"tensor x", "missing"}).In("file").ToString(), "file: tensor x: missing");
  EXPECT_EQ(Error({"", "missing"}).In("file").ToString(), "file: missing");
  EXPECT_EQ(FailErrno("file", "cannot open", ENOENT).error().ToString(),
            "file: cannot open: No such file or directory");
}

TEST(Error, PrintableHidesWhatATerminalWouldObey) {
  EXPECT_EQ(Printable("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
  EXPECT_EQ(Printable("a\x1b[31m\n\x7f\xc3"), "a?[31m???");
  EXPECT_EQ(Printable("abcdef", 3), "abc...");
  EXPECT_EQ(Printable("abc", 3), "abc");
}

TEST(Error, TryReturnsTheFirstError) {
  const auto half = [](int x) -> Result<int> {
    if (x % 2 != 0) return Fail("x", "odd");
    return x / 2;
  };
  const auto eighth = [&](int x) -> Result<int> {
    SLUICE_TRY(const int a, half(x));
    SLUICE_TRY(const int b, half(a));
    SLUICE_TRY_VOID(half(b));
    return b / 2;
  };
  EXPECT_EQ(eighth(16).value(), 2);
  EXPECT_EQ(eighth(4).error().got, "odd");
}

}  // namespace
}  // namespace sluice::base
