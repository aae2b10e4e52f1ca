#include "pack/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/checksum.h"

namespace sluice::pack {
namespace {

// One per tensor; nullptr if the file has no such list.
const std::vector<uint32_t>* Checksums(const formats::GgufFile& file) {
  const model::Value* value = file.metadata().Find(kChecksumsKey);
  const auto* sums = value ? std::get_if<std::vector<uint32_t>>(value) : nullptr;
  return sums != nullptr && sums->size() == file.tensors().size() ? sums : nullptr;
}

}  // namespace

base::Result<std::shared_ptr<const Pack>> Pack::Open(const std::string& path) {
  SLUICE_TRY(auto file, formats::GgufFile::Open(path));
  return Check(std::move(file));
}

base::Result<std::shared_ptr<const Pack>> Pack::FromBytes(std::span<const uint8_t> bytes,
                                                          std::string name) {
  SLUICE_TRY(auto file, formats::GgufFile::FromBytes(bytes, std::move(name)));
  return Check(std::move(file));
}

base::Result<std::shared_ptr<const Pack>> Pack::Check(std::shared_ptr<formats::GgufFile> file) {
  const std::string& path = file->name();
  const auto version = file->metadata().GetUint(kVersionKey);
  if (!version) return std::unexpected(version.error().In(path));
  if (!*version) {
    return base::Fail(path, "a GGUF file that is not packed",
                      fmt::format("a pack: make one with `sluice pack {}`", path));
  }
  if (**version != kPackVersion) {
    return base::Fail(path, fmt::format("pack version {}", **version),
                      fmt::format("{}: pack the model again", kPackVersion));
  }
  if (Checksums(*file) == nullptr) {
    return base::Fail(path, "no list of checksums",
                      fmt::format("{} in {}", file->tensors().size(), kChecksumsKey));
  }
  for (const auto& tensor : file->tensors()) {
    if (tensor.type != formats::TensorType::kI8 || tensor.dims.size() != 1) {
      return base::Fail(fmt::format("{}: tensor {}", path, base::Printable(tensor.name)),
                        "not a row of opaque bytes (I8)", "what `sluice pack` writes");
    }
  }
  return std::shared_ptr<const Pack>(new Pack(std::move(file)));
}

base::Result<std::span<const uint8_t>> Pack::Tensor(std::string_view name) const {
  const formats::GgufTensor* tensor = file_->Find(name);
  if (tensor == nullptr) {
    return base::Fail(fmt::format("{}: tensor {}", file_->name(), name), "missing");
  }
  return file_->Data(*tensor);
}

base::Status Pack::CheckSums(const base::Progress& progress) const {
  const std::vector<uint32_t>* sums = Checksums(*file_);
  uint64_t done = 0;
  for (size_t i = 0; i < tensors().size(); ++i) {
    const auto& tensor = tensors()[i];
    const uint32_t found = base::Crc32c(file_->Data(tensor));
    if (found != (*sums)[i]) {
      return base::Fail(fmt::format("{}: tensor {}", name(), base::Printable(tensor.name)),
                        fmt::format("checksum {:08x}", found),
                        fmt::format("{:08x}: the file is damaged", (*sums)[i]), tensor.offset);
    }
    done += tensor.bytes;
    if (progress) progress("checking", done, bytes().size());
  }
  return {};
}

base::Result<PackWriter> PackWriter::Create(const std::string& path, model::Metadata metadata,
                                            std::vector<TensorSize> tensors) {
  metadata.Set("general.alignment", static_cast<uint32_t>(kPackAlignment));
  metadata.Set(std::string(kVersionKey), kPackVersion);
  metadata.Set(std::string(kChecksumsKey), std::vector<uint32_t>(tensors.size()));
  SLUICE_TRY(auto file, base::AtomicFile::Create(path));
  return PackWriter(std::move(file), std::move(metadata), std::move(tensors));
}

PackWriter::PackWriter(base::AtomicFile file, model::Metadata metadata,
                       std::vector<TensorSize> tensors)
    : file_(std::move(file)),
      metadata_(std::move(metadata)),
      tensors_(std::move(tensors)),
      checksums_(tensors_.size()),
      written_(tensors_.size()) {
  for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
  const formats::GgufHeader header = Header();
  data_offset_ = header.bytes.size();
  offsets_ = header.offsets;
  file_bytes_ = header.file_bytes;
}

formats::GgufHeader PackWriter::Header() const {
  std::vector<formats::TensorSpec> specs;
  for (const auto& tensor : tensors_) {
    specs.push_back({tensor.name, {tensor.bytes}, formats::TensorType::kI8});
  }
  return formats::SerializeHeader(metadata_, specs);
}

uint64_t PackWriter::OffsetOf(std::string_view tensor) const {
  const auto it = index_.find(tensor);
  SLUICE_CHECK(it != index_.end());
  return offsets_[it->second];
}

base::Status PackWriter::Write(std::string_view tensor, std::span<const uint8_t> bytes) {
  const auto it = index_.find(tensor);
  SLUICE_CHECK(it != index_.end());
  const size_t i = it->second;
  SLUICE_CHECK(!written_[i] && bytes.size() == tensors_[i].bytes);
  written_[i] = true;
  checksums_[i] = base::Crc32c(bytes);
  return file_.WriteAt(offsets_[i], bytes);
}

void PackWriter::Set(std::string_view key, model::Value value) {
  metadata_.Set(std::string(key), std::move(value));
}

base::Status PackWriter::Commit() {
  SLUICE_CHECK(std::ranges::all_of(written_, [](bool w) { return w; }));
  metadata_.Set(std::string(kChecksumsKey), checksums_);
  const formats::GgufHeader header = Header();
  SLUICE_CHECK(header.bytes.size() == data_offset_ && header.offsets == offsets_);
  SLUICE_TRY_VOID(file_.WriteAt(0, header.bytes));
  // The last tensor's padding, so that the file can be mapped and copied in whole pages.
  const std::array<uint8_t, 1> zero{};
  const uint64_t end = offsets_.back() + tensors_.back().bytes;
  if (file_bytes_ > end) SLUICE_TRY_VOID(file_.WriteAt(file_bytes_ - 1, zero));
  return file_.Commit();
}

}  // namespace sluice::pack
