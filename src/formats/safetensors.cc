#include "formats/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "formats/json.h"

namespace sluice::formats {
namespace {

using base::Fail;
using base::Printable;
using base::Result;

constexpr uint64_t kLengthBytes = 8;

uint64_t HeaderLength(std::span<const uint8_t> bytes) {
  uint64_t length;
  std::memcpy(&length, bytes.data(), sizeof(length));
  return length;
}

std::optional<TensorType> FindDtype(std::string_view dtype) {
  if (dtype == "F32") return TensorType::kF32;
  if (dtype == "F16") return TensorType::kF16;
  if (dtype == "BF16") return TensorType::kBF16;
  return std::nullopt;
}

// An array of numbers that are not negative.
Result<std::vector<uint64_t>> ReadNumbers(const JsonObject& object, std::string_view key) {
  SLUICE_TRY(const Json* array, object.Array(key));
  if (array == nullptr) return object.Wrong(key, "missing", "an array of integers");
  std::vector<uint64_t> numbers;
  for (const Json& value : *array) {
    if (!value.is_number_unsigned()) {
      return object.Wrong(key, DescribeJson(value), "integers that are not negative");
    }
    numbers.push_back(value.get<uint64_t>());
  }
  return numbers;
}

// One entry of the header; offsets are still relative to the data.
Result<SafeTensor> ReadTensor(const std::string& file, const std::string& name, const Json& json) {
  SLUICE_TRY(const JsonObject entry,
             JsonObject::Of(json, fmt::format("{}: tensor {}", file, Printable(name))));
  SafeTensor tensor;
  tensor.name = name;
  SLUICE_TRY(const std::string* dtype, entry.String("dtype"));
  if (dtype == nullptr) return entry.Wrong("dtype", "missing", "a string");
  const auto type = FindDtype(*dtype);
  if (!type) return entry.Wrong("dtype", Quoted(*dtype), "F32, F16 or BF16");
  tensor.type = *type;
  SLUICE_TRY(tensor.shape, ReadNumbers(entry, "shape"));
  if (tensor.shape.empty() || tensor.shape.size() > 2) {
    return entry.Wrong("shape", fmt::format("{} dimensions", tensor.shape.size()), "1 or 2");
  }
  const auto bytes = TensorBytes(tensor.type, tensor.shape);
  if (!bytes) {
    return entry.Wrong("shape", fmt::format("{}", fmt::join(tensor.shape, " x ")),
                       "no zero, less than 2^63 bytes");
  }
  SLUICE_TRY(const auto offsets, ReadNumbers(entry, "data_offsets"));
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return entry.Wrong("data_offsets", fmt::format("[{}]", fmt::join(offsets, ", ")),
                       "a beginning and an end");
  }
  if (offsets[1] - offsets[0] != *bytes) {
    return entry.Wrong("data_offsets", fmt::format("{} bytes", offsets[1] - offsets[0]),
                       fmt::format("{}, by its shape", *bytes));
  }
  tensor.offset = offsets[0];
  tensor.bytes = *bytes;
  return tensor;
}

}  // namespace

bool IsSafetensors(std::span<const uint8_t> bytes) {
  return bytes.size() > kLengthBytes && HeaderLength(bytes) <= kSafetensorsMaxHeader &&
         bytes[kLengthBytes] == '{';
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  SLUICE_TRY(auto mapped, base::MappedFile::Open(path));
  SLUICE_TRY(auto file, Parse(mapped->bytes(), path));
  file->file_ = std::move(mapped);
  return file;
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::FromBytes(
    std::span<const uint8_t> bytes, std::string name) {
  return Parse(bytes, std::move(name));
}

Result<std::shared_ptr<SafetensorsFile>> SafetensorsFile::Parse(std::span<const uint8_t> bytes,
                                                                std::string name) {
  if (bytes.size() < kLengthBytes) {
    return Fail(name, fmt::format("{} bytes", bytes.size()), "8 bytes of header length", 0);
  }
  const uint64_t length = HeaderLength(bytes);
  const uint64_t limit = std::min(bytes.size() - kLengthBytes, kSafetensorsMaxHeader);
  if (length > limit) {
    return Fail(name, fmt::format("a header of {} bytes", length), fmt::format("at most {}", limit),
                0);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  SLUICE_TRY(const Json json, ParseJson(text, name + ": header"));
  SLUICE_TRY(const JsonObject header, JsonObject::Of(json, name + ": header"));

  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->name_ = std::move(name);
  file->bytes_ = bytes;
  for (const auto& [key, value] : header.json().items()) {
    if (key == "__metadata__") continue;
    SLUICE_TRY(SafeTensor tensor, ReadTensor(file->name_, key, value));
    file->tensors_.push_back(std::move(tensor));
  }
  std::ranges::sort(file->tensors_, {}, &SafeTensor::offset);
  const uint64_t data = kLengthBytes + length;
  uint64_t end = 0;  // of the tensors so far, within the data
  for (SafeTensor& tensor : file->tensors_) {
    const std::string object = fmt::format("{}: tensor {}", file->name_, Printable(tensor.name));
    if (tensor.offset != end) {
      return Fail(object, fmt::format("begins at byte {} of the data", tensor.offset),
                  fmt::format("{}, where the tensor before it ends", end));
    }
    if (tensor.bytes > bytes.size() - data - end) {
      return Fail(object, fmt::format("{} bytes at byte {} of the data", tensor.bytes, end),
                  fmt::format("an end within the {} bytes of data", bytes.size() - data));
    }
    end += tensor.bytes;
    tensor.offset += data;
  }
  if (end != bytes.size() - data) {
    return Fail(file->name_, fmt::format("{} bytes of data", bytes.size() - data),
                fmt::format("{}, which is what the tensors take", end));
  }
  return file;
}

namespace {

// The shards that the index names, and which tensor it says is where.
using Index = std::map<std::string, std::set<std::string>>;

Result<Index> ReadIndex(const std::string& path) {
  SLUICE_TRY(const auto mapped, base::MappedFile::Open(path));
  const std::string_view text(reinterpret_cast<const char*>(mapped->bytes().data()),
                              mapped->bytes().size());
  SLUICE_TRY(const Json json, ParseJson(text, path));
  SLUICE_TRY(const JsonObject root, JsonObject::Of(json, path));
  SLUICE_TRY(const auto weight_map, root.Object("weight_map"));
  if (!weight_map) return root.Wrong("weight_map", "missing", "an object");
  Index index;
  for (const auto& [tensor, shard] : weight_map->json().items()) {
    if (!shard.is_string()) {
      return weight_map->Wrong(Printable(tensor), DescribeJson(shard), "a file name");
    }
    const auto& name = shard.get_ref<const std::string&>();
    const bool plain = !name.empty() && name != "." && name != ".." &&
                       name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!plain) {
      return weight_map->Wrong(Printable(tensor), Printable(name), "the name of a file beside it");
    }
    index[name].insert(tensor);
  }
  if (index.empty()) return Fail(path, "no tensors", "at least one");
  return index;
}

}  // namespace

Result<std::vector<std::shared_ptr<const SafetensorsFile>>> OpenSafetensors(
    const std::string& folder) {
  const std::string index_path = folder + "/model.safetensors.index.json";
  Index index;
  std::error_code ignored;
  if (std::filesystem::exists(index_path, ignored)) {
    SLUICE_TRY(index, ReadIndex(index_path));
  } else {
    index["model.safetensors"] = {};
  }
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  std::set<std::string_view> seen;
  for (auto& [name, wanted] : index) {
    SLUICE_TRY(auto file, SafetensorsFile::Open(folder + "/" + name));
    for (const SafeTensor& tensor : file->tensors()) {
      wanted.erase(tensor.name);
      if (!seen.insert(tensor.name).second) {
        return Fail(fmt::format("{}: tensor {}", file->name(), Printable(tensor.name)),
                    "also in another shard", "each tensor once");
      }
    }
    if (!wanted.empty()) {
      return Fail(fmt::format("{}: tensor {}", file->name(), Printable(*wanted.begin())), "missing",
                  "the tensors that the index lists for this file");
    }
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace sluice::formats
