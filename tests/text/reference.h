// Running the Python references of these tests and reading what they write.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "base/byte_reader.h"
#include "model/metadata.h"

namespace sluice::text {

// Runs tests/text/SCRIPT with `arguments` and returns what it wrote to its last argument, a
// temporary file. Skips (fails under SLUICE_TEST_STRICT=1) where its imports are missing, which
// it reports by exit code 77; `out` is then empty.
inline void RunReference(const std::string& script, const std::vector<std::string>& arguments,
                         std::vector<uint8_t>& out) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() /
      ("sluice_" + script + "_" + std::to_string(::getpid()) + ".bin");
  std::string command = std::string(SLUICE_PYTHON) + " " SLUICE_SOURCE_DIR "/tests/text/" + script;
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  command += " '" + path.string() + "'";
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  const char* strict = std::getenv("SLUICE_TEST_STRICT");
  if (code == 77 && (strict == nullptr || std::string(strict) != "1")) {
    GTEST_SKIP() << "the Python packages of " << script << " are not installed";
  }
  ASSERT_EQ(code, 0) << command;
  std::ifstream file(path, std::ios::binary);
  out.assign(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(path);
}

// What the scripts write (see reference_file.py): little-endian, strings with a uint32 length.
class ReferenceReader {
 public:
  explicit ReferenceReader(std::span<const uint8_t> bytes) : reader_(bytes, "reference") {}

  bool AtEnd() const { return reader_.remaining() == 0; }
  template <typename T>
  T Read() {
    return reader_.Read<T>("a number").value();
  }
  std::string ReadString() {
    const auto bytes = reader_.ReadBytes(Read<uint32_t>(), "a string").value();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  template <typename T, typename ReadOne>
  std::vector<T> ReadList(ReadOne read_one) {
    std::vector<T> list(Read<uint32_t>());
    for (T& value : list) value = read_one();
    return list;
  }
  std::vector<std::string> ReadStrings() {
    return ReadList<std::string>([&] { return ReadString(); });
  }
  std::vector<int32_t> ReadInts() {
    return ReadList<int32_t>([&] { return Read<int32_t>(); });
  }
  model::Metadata ReadMetadata() {
    model::Metadata metadata;
    for (uint32_t left = Read<uint32_t>(); left > 0; --left) {
      std::string key = ReadString();
      switch (Read<uint8_t>()) {
        case 's':
          metadata.Set(key, ReadString());
          break;
        case 'u':
          metadata.Set(key, Read<uint32_t>());
          break;
        case 'b':
          metadata.Set(key, Read<uint8_t>() != 0);
          break;
        case 'S':
          metadata.Set(key, ReadStrings());
          break;
        case 'I':
          metadata.Set(key, ReadInts());
          break;
        case 'F':
          metadata.Set(key, ReadList<float>([&] { return Read<float>(); }));
          break;
        default:
          ADD_FAILURE() << "unknown type of " << key;
      }
    }
    return metadata;
  }

 private:
  base::ByteReader reader_;
};

}  // namespace sluice::text
