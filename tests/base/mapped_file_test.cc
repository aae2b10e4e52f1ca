#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "support/temp_dir.h"

namespace sluice::base {
namespace {

using testing::TempDir;
using testing::WriteFile;

TEST(MappedFile, ShowsTheBytesForAsLongAsItIsHeld) {
  const TempDir dir;
  WriteFile(dir / "file", "sluice");
  auto file = MappedFile::Open(dir / "file");
  ASSERT_TRUE(file.has_value());
  std::filesystem::remove(dir / "file");
  const auto bytes = (*file)->bytes();
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "sluice");
  (*file)->DropFromMemory(bytes);
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "sluice");
}

// What Open and ReadSmallFile have to say about a path; must be the same.
std::string Errors(const std::string& path) {
  const auto mapped = MappedFile::Open(path);
  const auto read = ReadSmallFile(path, 100);
  if (mapped || read) return "no error";
  EXPECT_EQ(mapped.error().object, path);
  EXPECT_EQ(mapped.error().ToString(), read.error().ToString());
  return mapped.error().ToString();
}

TEST(MappedFile, NamesWhatIsNoFile) {
  const TempDir dir;
  EXPECT_EQ(Errors(dir / "none"), (dir / "none") + ": cannot open: No such file or directory");
  EXPECT_EQ(Errors(dir.path()), dir.path() + ": a directory, expected a file");
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(Errors(dir / "fifo"), (dir / "fifo") + ": not a regular file, expected a file");
  EXPECT_EQ(Errors("/dev/null"), "/dev/null: not a regular file, expected a file");
}

TEST(MappedFile, RefusesAnEmptyFile) {
  const TempDir dir;
  WriteFile(dir / "empty", "");
  const auto mapped = MappedFile::Open(dir / "empty");
  ASSERT_FALSE(mapped.has_value());
  EXPECT_EQ(mapped.error().ToString(), (dir / "empty") + ": an empty file");
  EXPECT_EQ(ReadSmallFile(dir / "empty", 0).value(), "");
}

TEST(LockInMemory, KeepsALittleAndNamesTheLimitThatForbidsMore) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer makes mlock do nothing";
#endif
  const TempDir dir;
  WriteFile(dir / "file", std::string(1 << 20, 'x'));
  const auto file = MappedFile::Open(dir / "file").value();
  // In a process of its own: the limit does not hold for root, which is given up here.
  const auto lock = [&] {
    const rlimit limit{1 << 16, 1 << 16};
    const bool limited =
        ::setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && (::geteuid() != 0 || ::setuid(65534) == 0);
    const bool little = LockInMemory(file->bytes().first(4096), "file").has_value();
    const auto much = LockInMemory(file->bytes(), "file");
    if (!much) std::fprintf(stderr, "%s\n", much.error().ToString().c_str());
    ::_exit(limited && little && !much ? 0 : 1);
  };
  EXPECT_EXIT(lock(), ::testing::ExitedWithCode(0),
              "file: cannot lock 1048576 bytes in memory: .*, expected RLIMIT_MEMLOCK .* 65536 "
              "bytes");
}

TEST(ReadSmallFile, ReadsUpToItsLimit) {
  const TempDir dir;
  const std::string text("a\0b", 3);
  WriteFile(dir / "file", text);
  EXPECT_EQ(ReadSmallFile(dir / "file", 3).value(), text);
  const auto longer = ReadSmallFile(dir / "file", 2);
  ASSERT_FALSE(longer.has_value());
  EXPECT_EQ(longer.error().ToString(), (dir / "file") + ": 3 bytes, expected at most 2");
}

}  // namespace
}  // namespace sluice::base
