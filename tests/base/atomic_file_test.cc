#include "base/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/mapped_file.h"
#include "support/file_size_limit.h"
#include "support/temp_dir.h"

namespace sluice::base {
namespace {

using testing::FileSizeLimit;
using testing::TempDir;
using testing::WriteFile;

std::set<std::string> FilesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename());
  }
  return names;
}

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TEST(AtomicFile, AppearsWholeAtCommit) {
  const TempDir dir;
  auto file = AtomicFile::Create(dir / "out");
  ASSERT_TRUE(file.has_value());
  ASSERT_TRUE(file->Write("0123456789").has_value());
  ASSERT_TRUE(file->PadTo(16).has_value());
  EXPECT_EQ(file->offset(), 16u);
  ASSERT_TRUE(file->PadTo(16).has_value());
  EXPECT_EQ(file->offset(), 16u) << "padding of what is aligned already";
  const std::vector<uint8_t> two{'A', 'B'};
  ASSERT_TRUE(file->WriteAt(3, two).has_value());
  EXPECT_EQ(file->offset(), 16u) << "WriteAt does not move the end";
  ASSERT_TRUE(file->Write("end").has_value());
  EXPECT_FALSE(FilesIn(dir.path()).contains("out")) << "before Commit";
  ASSERT_TRUE(file->Commit().has_value());
  EXPECT_EQ(FilesIn(dir.path()), std::set<std::string>{"out"});
  EXPECT_EQ(Read(dir / "out"), std::string("012AB56789\0\0\0\0\0\0end", 19));
}

TEST(AtomicFile, LeavesNothingBehindWithoutCommit) {
  const TempDir dir;
  {
    auto file = AtomicFile::Create(dir / "out");
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(file->Write("half").has_value());
    const AtomicFile moved = std::move(*file);
    EXPECT_EQ(FilesIn(dir.path()).size(), 1u);
  }
  EXPECT_TRUE(FilesIn(dir.path()).empty());
}

TEST(AtomicFile, LeavesAnOldTargetAloneWithoutCommit) {
  const TempDir dir;
  WriteFile(dir / "out", "old");
  {
    auto file = AtomicFile::Create(dir / "out");
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(file->Write("new").has_value());
    EXPECT_EQ(Read(dir / "out"), "old");
  }
  EXPECT_EQ(FilesIn(dir.path()), std::set<std::string>{"out"});
  EXPECT_EQ(Read(dir / "out"), "old");
}

TEST(AtomicFile, NamesTheFileThatCannotBeCreated) {
  const TempDir dir;
  WriteFile(dir / "file", "not a folder");
  for (const char* path : {"missing/out", "file/out"}) {
    const auto file = AtomicFile::Create(dir / path);
    ASSERT_FALSE(file.has_value()) << path;
    EXPECT_EQ(file.error().object, dir / path);
    EXPECT_NE(file.error().got.find("cannot create: "), std::string::npos);
  }
  EXPECT_EQ(FilesIn(dir.path()), std::set<std::string>{"file"});
}

TEST(AtomicFile, FailsToCommitOverAFolder) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "out");
  {
    auto file = AtomicFile::Create(dir / "out");
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(file->Write("text").has_value());
    const Status committed = file->Commit();
    ASSERT_FALSE(committed.has_value());
    EXPECT_EQ(committed.error().object, dir / "out");
  }
  EXPECT_EQ(FilesIn(dir.path()), std::set<std::string>{"out"});
  EXPECT_TRUE(std::filesystem::is_directory(dir / "out"));
}

TEST(AtomicFile, AFullDiskIsOneErrorAndLeavesTheOldTarget) {
  const TempDir dir;
  WriteFile(dir / "out", "old");
  {
    const FileSizeLimit limit(10000);
    auto file = AtomicFile::Create(dir / "out");
    ASSERT_TRUE(file.has_value());
    const std::vector<uint8_t> bytes(4096, 7);
    ASSERT_TRUE(file->Write(bytes).has_value());
    ASSERT_TRUE(file->Write(bytes).has_value());
    const Status full = file->Write(bytes);  // the first part of it fits
    ASSERT_FALSE(full.has_value());
    EXPECT_EQ(full.error().object, dir / "out");
    EXPECT_NE(full.error().got.find("cannot write: "), std::string::npos) << full.error().got;
  }
  EXPECT_EQ(FilesIn(dir.path()), std::set<std::string>{"out"});
  EXPECT_EQ(Read(dir / "out"), "old");
}

TEST(AtomicFile, RemovePartialFilesRemovesAllThatAreOpen) {
  const TempDir dir;
  auto a = AtomicFile::Create(dir / "a");
  auto b = AtomicFile::Create(dir / "b");
  ASSERT_TRUE(a.has_value() && b.has_value());
  auto done = AtomicFile::Create(dir / "done");
  ASSERT_TRUE(done.has_value());
  ASSERT_TRUE(done->Write("done").has_value());
  ASSERT_TRUE(done->Commit().has_value());
  EXPECT_EQ(FilesIn(dir.path()).size(), 3u);
  RemovePartialFiles();
  EXPECT_EQ(FilesIn(dir.path()), std::set<std::string>{"done"});
}

TEST(AtomicFile, MoreFilesThanTheSignalTableAreRemovedAllTheSame) {
  const TempDir dir;
  {
    std::vector<AtomicFile> files;
    for (int i = 0; i < 40; ++i) {
      auto file = AtomicFile::Create(dir / std::to_string(i));
      ASSERT_TRUE(file.has_value());
      files.push_back(std::move(*file));
    }
    EXPECT_EQ(FilesIn(dir.path()).size(), 40u);
  }
  EXPECT_TRUE(FilesIn(dir.path()).empty());
  // The table is free again.
  auto file = AtomicFile::Create(dir / "again");
  ASSERT_TRUE(file.has_value());
  RemovePartialFiles();
  EXPECT_TRUE(FilesIn(dir.path()).empty());
}

// Runs `child` in a process of its own, which must not return.
template <typename Child>
pid_t Fork(Child child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    child();
    ::_exit(99);
  }
  return pid;
}

TEST(AtomicFile, ASignalHandlerCanRemoveThePartialFile) {
  const TempDir dir;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = Fork([&] {
    std::signal(SIGTERM, [](int) {
      RemovePartialFiles();
      ::_exit(7);
    });
    auto file = AtomicFile::Create(dir / "out");
    if (!file || !file->Write("half")) ::_exit(98);
    if (::write(ready[1], "x", 1) != 1) ::_exit(97);
    while (true) ::pause();
  });
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(FilesIn(dir.path()).size(), 1u);
  ::kill(pid, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  EXPECT_TRUE(FilesIn(dir.path()).empty());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(AtomicFile, KilledHalfWayThereIsNeverAHalfTarget) {
  constexpr size_t kChunk = 4096, kChunks = 256;
  std::mt19937 random(1);
  int partial_seen = 0;
  for (int round = 0; round < 20; ++round) {
    const TempDir dir;
    const pid_t pid = Fork([&] {
      for (int version = 0;; ++version) {
        auto file = AtomicFile::Create(dir / "out");
        if (!file) ::_exit(98);
        const std::vector<uint8_t> chunk(kChunk, static_cast<uint8_t>(version));
        for (size_t i = 0; i < kChunks; ++i) {
          if (!file->Write(chunk)) ::_exit(98);
        }
        if (!file->Commit()) ::_exit(98);
      }
    });
    ::usleep(std::uniform_int_distribution<useconds_t>(0, 20000)(random));
    ::kill(pid, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    for (const std::string& name : FilesIn(dir.path())) {
      if (name != "out") {
        EXPECT_TRUE(name.starts_with("out.partial-")) << name;
        ++partial_seen;
        continue;
      }
      const std::string text = Read(dir / "out");
      EXPECT_EQ(text.size(), kChunk * kChunks) << "round " << round;
      EXPECT_EQ(text.find_first_not_of(text.substr(0, 1)), std::string::npos) << "round " << round;
    }
    // What the killed process left goes with the next writer of the same target.
    { ASSERT_TRUE(AtomicFile::Create(dir / "out")); }
    for (const std::string& name : FilesIn(dir.path())) EXPECT_EQ(name, "out");
  }
  EXPECT_GT(partial_seen, 0) << "no round killed the writer half-way: the test tested nothing";
}

TEST(AtomicFile, AReaderSeesTheOldFileOrTheNewOne) {
  const TempDir dir;
  WriteFile(dir / "out", std::string(50000, 'a'));
  std::atomic<bool> stop = false;
  std::atomic<int> reads = 0, torn = 0;
  std::thread reader([&] {
    while (!stop) {
      const auto text = ReadSmallFile(dir / "out", 1 << 20);
      if (!text || text->size() != 50000 ||
          text->find_first_not_of((*text)[0]) != std::string::npos) {
        ++torn;
      }
      ++reads;
    }
  });
  for (int version = 0; version < 50 || reads < 50; ++version) {
    auto file = AtomicFile::Create(dir / "out");
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(file->Write(std::string(50000, static_cast<char>('a' + version % 26))));
    ASSERT_TRUE(file->Commit().has_value());
  }
  stop = true;
  reader.join();
  EXPECT_EQ(torn, 0);
}

}  // namespace
}  // namespace sluice::base
