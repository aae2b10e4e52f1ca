#include "formats/gguf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/byte_reader.h"
#include "base/check.h"

namespace sluice::formats {
namespace {

using base::Fail;
using base::Printable;
using base::Result;
using model::Value;

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kMaxNameBytes = 65535;  // the specification's limit for keys
constexpr uint64_t kMaxDims = 4;
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1;             // length, type, a value of one byte
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;  // length, dimensions, type, offset

enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// One pass over the bytes before the tensor data.
class HeaderReader {
 public:
  HeaderReader(std::span<const uint8_t> bytes, const std::string& name)
      : reader_(bytes, name), name_(name) {}

  uint64_t offset() const { return reader_.offset(); }

  template <typename T>
  Result<T> Scalar(std::string_view what) {
    return reader_.Read<T>(what);
  }

  // A count of things of at least `min_bytes` each: one that the rest of the file cannot hold is
  // refused before anything is allocated for it.
  Result<uint64_t> Count(std::string_view what, uint64_t min_bytes, uint64_t limit) {
    const uint64_t at = reader_.offset();
    SLUICE_TRY(const uint64_t count, reader_.Read<uint64_t>(what));
    const uint64_t room = reader_.remaining() / min_bytes;
    if (count > room) {
      return Fail(name_, fmt::format("{} is {}", what, count),
                  fmt::format("at most {}, which is what the rest of the file can hold", room), at);
    }
    if (count > limit) {
      return Fail(name_, fmt::format("{} is {}", what, count), fmt::format("at most {}", limit),
                  at);
    }
    return count;
  }

  Result<std::string> String(std::string_view what, uint64_t max_bytes) {
    SLUICE_TRY(const uint64_t length, Count(fmt::format("the length of {}", what), 1, max_bytes));
    SLUICE_TRY(const auto bytes, reader_.ReadBytes(length, what));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  Result<std::string> Name(std::string_view what) {
    const uint64_t at = reader_.offset();
    SLUICE_TRY(std::string name, String(what, kMaxNameBytes));
    if (name.empty()) return Fail(name_, fmt::format("{} is empty", what), "a name", at);
    return name;
  }

  Result<Value> ReadValue(const std::string& key) {
    const std::string what = "the value of " + Printable(key);
    const uint64_t at = reader_.offset();
    SLUICE_TRY(const uint32_t type, reader_.Read<uint32_t>(what));
    if (type == kArray) return ReadArray(what);
    if (type == kString) return Wrap(String(what, std::numeric_limits<uint64_t>::max()));
    if (type == kBool) return Wrap(ReadBool(what));
    return Numeric(
        type, [&]<typename T>() -> Result<Value> { return Wrap(reader_.Read<T>(what)); },
        [&] { return UnknownType(what, type, at); });
  }

 private:
  template <typename T>
  static Result<Value> Wrap(Result<T> value) {
    if (!value) return std::unexpected(std::move(value).error());
    return Value(std::move(*value));
  }

  // Calls read<T>() for the C++ type of a numeric value type.
  template <typename Read, typename Unknown>
  static Result<Value> Numeric(uint32_t type, Read read, Unknown unknown) {
    switch (type) {
      case kUint8:
        return read.template operator()<uint8_t>();
      case kInt8:
        return read.template operator()<int8_t>();
      case kUint16:
        return read.template operator()<uint16_t>();
      case kInt16:
        return read.template operator()<int16_t>();
      case kUint32:
        return read.template operator()<uint32_t>();
      case kInt32:
        return read.template operator()<int32_t>();
      case kFloat32:
        return read.template operator()<float>();
      case kUint64:
        return read.template operator()<uint64_t>();
      case kInt64:
        return read.template operator()<int64_t>();
      case kFloat64:
        return read.template operator()<double>();
      default:
        return unknown();
    }
  }

  std::unexpected<base::Error> UnknownType(std::string_view what, uint32_t type,
                                           uint64_t at) const {
    return Fail(name_, fmt::format("{} has type {}", what, type), "a type of 0 to 12", at);
  }

  Result<bool> ReadBool(std::string_view what) {
    const uint64_t at = reader_.offset();
    SLUICE_TRY(const uint8_t byte, reader_.Read<uint8_t>(what));
    if (byte > 1) return Fail(name_, fmt::format("{} is {}", what, byte), "0 or 1", at);
    return byte == 1;
  }

  Result<Value> ReadArray(const std::string& what) {
    const uint64_t at = reader_.offset();
    SLUICE_TRY(const uint32_t type, reader_.Read<uint32_t>(what));
    const std::string length = "the length of the array in " + what;
    constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
    if (type == kArray) {
      return Fail(name_, what + " is an array of arrays", "a flat array", at);
    }
    if (type == kString) {
      SLUICE_TRY(const uint64_t count, Count(length, 8, kGgufMaxArrayStrings - array_strings_));
      array_strings_ += count;
      std::vector<std::string> strings;
      strings.reserve(count);
      for (uint64_t i = 0; i < count; ++i) {
        SLUICE_TRY(std::string text, String(what, kNoLimit));
        strings.push_back(std::move(text));
      }
      return Value(std::move(strings));
    }
    if (type == kBool) {
      SLUICE_TRY(const uint64_t count, Count(length, 1, kNoLimit));
      std::vector<bool> values;
      values.reserve(count);
      for (uint64_t i = 0; i < count; ++i) {
        SLUICE_TRY(const bool value, ReadBool(what));
        values.push_back(value);
      }
      return Value(std::move(values));
    }
    return Numeric(
        type,
        [&]<typename T>() -> Result<Value> {
          SLUICE_TRY(const uint64_t count, Count(length, sizeof(T), kNoLimit));
          SLUICE_TRY(const auto bytes, reader_.ReadBytes(count * sizeof(T), what));
          std::vector<T> values(count);
          if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
          return Value(std::move(values));
        },
        [&] { return UnknownType("the array in " + what, type, at); });
  }

  base::ByteReader reader_;
  const std::string& name_;
  uint64_t array_strings_ = 0;
};

Result<GgufTensor> ReadTensor(HeaderReader& reader, const std::string& file) {
  GgufTensor tensor;
  SLUICE_TRY(tensor.name, reader.Name("a tensor's name"));
  const std::string object = fmt::format("{}: tensor {}", file, Printable(tensor.name));
  uint64_t at = reader.offset();
  SLUICE_TRY(const uint32_t n_dims, reader.Scalar<uint32_t>("a tensor's number of dimensions"));
  if (n_dims == 0 || n_dims > kMaxDims) {
    return Fail(object, fmt::format("{} dimensions", n_dims), "1 to 4", at);
  }
  at = reader.offset();
  tensor.dims.reserve(n_dims);
  for (uint32_t i = 0; i < n_dims; ++i) {
    SLUICE_TRY(const uint64_t dim, reader.Scalar<uint64_t>("a tensor's dimensions"));
    tensor.dims.push_back(dim);
  }
  const uint64_t type_at = reader.offset();
  SLUICE_TRY(const uint32_t number, reader.Scalar<uint32_t>("a tensor's type"));
  const TypeTraits* traits = FindTensorType(number);
  if (traits == nullptr) {
    return Fail(object, fmt::format("type {}", number), "one of " + ListTensorTypes(false),
                type_at);
  }
  tensor.type = traits->type;
  const auto bytes = TensorBytes(tensor.type, tensor.dims);
  if (!bytes) {
    return Fail(object,
                fmt::format("{} values of type {}", fmt::join(tensor.dims, " x "), traits->name),
                fmt::format("no zero, rows of a multiple of {}, less than 2^63 bytes",
                            traits->block_values),
                at);
  }
  tensor.bytes = *bytes;
  SLUICE_TRY(tensor.offset, reader.Scalar<uint64_t>("a tensor's offset"));
  return tensor;
}

}  // namespace

uint64_t GgufTensor::rows() const {
  uint64_t rows = 1;
  for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
  return rows;
}

bool IsGguf(std::span<const uint8_t> bytes) {
  return bytes.size() >= kMagic.size() && std::equal(kMagic.begin(), kMagic.end(), bytes.begin());
}

Result<std::shared_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  SLUICE_TRY(auto mapped, base::MappedFile::Open(path));
  SLUICE_TRY(auto file, FromBytes(mapped->bytes(), path));
  file->file_ = std::move(mapped);
  return file;
}

Result<std::shared_ptr<GgufFile>> GgufFile::FromBytes(std::span<const uint8_t> bytes,
                                                      std::string name) {
  std::shared_ptr<GgufFile> file(new GgufFile);
  file->name_ = std::move(name);
  file->bytes_ = bytes;
  SLUICE_TRY_VOID(file->Parse());
  return file;
}

base::Status GgufFile::Parse() {
  HeaderReader reader(bytes_, name_);
  if (!IsGguf(bytes_)) return Fail(name_, "not a GGUF file", "the bytes \"GGUF\" at its start");
  SLUICE_TRY_VOID(reader.Scalar<uint32_t>("the magic"));
  SLUICE_TRY(version_, reader.Scalar<uint32_t>("the version"));
  if (version_ == std::byteswap(2u) || version_ == std::byteswap(3u)) {
    return Fail(name_, "a big-endian file", "a little-endian one", 4);
  }
  if (version_ != 2 && version_ != 3) {
    return Fail(name_, fmt::format("GGUF version {}", version_), "2 or 3", 4);
  }
  SLUICE_TRY(const uint64_t n_tensors,
             reader.Count("the number of tensors", kMinTensorBytes, kGgufMaxTensors));
  SLUICE_TRY(const uint64_t n_keys, reader.Count("the number of keys", kMinKeyBytes, kGgufMaxKeys));

  for (uint64_t i = 0; i < n_keys; ++i) {
    const uint64_t at = reader.offset();
    SLUICE_TRY(std::string key, reader.Name("a key"));
    if (metadata_.Find(key) != nullptr) {
      return Fail(name_, fmt::format("key {} occurs twice", Printable(key)), "each key once", at);
    }
    SLUICE_TRY(Value value, reader.ReadValue(key));
    metadata_.Set(std::move(key), std::move(value));
  }
  auto alignment = metadata_.GetUint("general.alignment");
  if (!alignment) return std::unexpected(alignment.error().In(name_));
  alignment_ = alignment->value_or(kGgufDefaultAlignment);
  if (!std::has_single_bit(alignment_) || alignment_ > (1u << 30)) {
    return Fail(name_, fmt::format("general.alignment is {}", alignment_),
                "a power of two up to 2^30");
  }

  tensors_.reserve(n_tensors);
  for (uint64_t i = 0; i < n_tensors; ++i) {
    const uint64_t at = reader.offset();
    SLUICE_TRY(GgufTensor tensor, ReadTensor(reader, name_));
    // The reservation keeps the names where they are.
    tensors_.push_back(std::move(tensor));
    if (!by_name_.emplace(tensors_.back().name, i).second) {
      return Fail(name_, fmt::format("tensor {} occurs twice", Printable(tensors_.back().name)),
                  "each name once", at);
    }
  }
  data_offset_ = (reader.offset() + alignment_ - 1) / alignment_ * alignment_;

  for (GgufTensor& tensor : tensors_) {
    const std::string object = fmt::format("{}: tensor {}", name_, Printable(tensor.name));
    if (tensor.offset % alignment_ != 0) {
      return Fail(object, fmt::format("offset {} in the data", tensor.offset),
                  fmt::format("a multiple of {}", alignment_));
    }
    const uint64_t room = bytes_.size() - std::min<uint64_t>(data_offset_, bytes_.size());
    if (tensor.offset > room || tensor.bytes > room - tensor.offset) {
      return Fail(object,
                  fmt::format("{} bytes at offset {} of the data", tensor.bytes, tensor.offset),
                  fmt::format("an end within the {} bytes of data in the file", room));
    }
    tensor.offset += data_offset_;
  }
  std::vector<const GgufTensor*> in_order;
  in_order.reserve(tensors_.size());
  for (const GgufTensor& tensor : tensors_) in_order.push_back(&tensor);
  std::ranges::sort(in_order, {}, &GgufTensor::offset);
  for (size_t i = 1; i < in_order.size(); ++i) {
    const GgufTensor& before = *in_order[i - 1];
    const GgufTensor& after = *in_order[i];
    if (after.offset < before.offset + before.bytes) {
      return Fail(fmt::format("{}: tensor {}", name_, Printable(after.name)),
                  "overlaps tensor " + Printable(before.name), "tensors apart from each other",
                  after.offset);
    }
  }
  return {};
}

const GgufTensor* GgufFile::Find(std::string_view tensor) const {
  const auto it = by_name_.find(tensor);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

std::span<const uint8_t> GgufFile::Data(const GgufTensor& tensor) const {
  return bytes_.subspan(tensor.offset, tensor.bytes);
}

}  // namespace sluice::formats
