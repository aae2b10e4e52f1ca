#include "formats/zip_member.h"

#include <fmt/format.h>
#include <zip.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/atomic_file.h"
#include "base/checksum.h"

namespace sluice::formats {
namespace {

using base::Fail;

struct Closer {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

}  // namespace

base::Status ExtractZipMember(const std::string& archive_path, const ZipMember& member,
                              const std::string& target, const base::Progress& progress) {
  int code = 0;
  const std::unique_ptr<zip_t, Closer> archive(zip_open(archive_path.c_str(), ZIP_RDONLY, &code));
  if (!archive) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const std::string reason = zip_error_strerror(&error);
    zip_error_fini(&error);
    return Fail(archive_path, "cannot open (" + reason + ")", "a zip archive");
  }

  const std::string object = archive_path + ": " + member.path;
  zip_stat_t info;
  if (zip_stat(archive.get(), member.path.c_str(), 0, &info) != 0) {
    return Fail(object, "not in the archive");
  }
  if ((info.valid & ZIP_STAT_SIZE) == 0 || info.size != member.size) {
    return Fail(object, fmt::format("{} bytes", info.size), fmt::format("{}", member.size));
  }
  const std::unique_ptr<zip_file_t, Closer> file(zip_fopen(archive.get(), member.path.c_str(), 0));
  if (!file) return Fail(object, zip_strerror(archive.get()));

  SLUICE_TRY(auto output, base::AtomicFile::Create(target));
  base::Sha256 hash;
  const std::string shown = "unpacking " + std::filesystem::path(target).filename().string();
  std::vector<uint8_t> buffer(uint64_t{1} << 20);
  auto reported = std::chrono::steady_clock::time_point();
  while (true) {
    const zip_int64_t n = zip_fread(file.get(), buffer.data(), buffer.size());
    if (n < 0) return Fail(object, zip_file_strerror(file.get()), {}, output.offset());
    if (n == 0) break;
    const auto bytes = std::span(buffer).first(static_cast<size_t>(n));
    if (bytes.size() > member.size - output.offset()) {
      return Fail(object, "unpacks to more bytes", fmt::format("{}", member.size));
    }
    hash.Update(bytes);
    SLUICE_TRY_VOID(output.Write(bytes));
    const auto now = std::chrono::steady_clock::now();
    if (progress &&
        (now - reported > std::chrono::milliseconds(200) || output.offset() == member.size)) {
      reported = now;
      progress(shown, output.offset(), member.size);
    }
  }
  if (output.offset() != member.size) {
    return Fail(object, fmt::format("unpacks to {} bytes", output.offset()),
                fmt::format("{}", member.size));
  }
  if (const std::string found = hash.Finish(); found != member.sha256) {
    return Fail(object, "SHA-256 " + found, member.sha256);
  }
  return output.Commit();
}

}  // namespace sluice::formats
