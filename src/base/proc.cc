#include "base/proc.h"

#include <charconv>
#include <fstream>

namespace sluice::base {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace

std::optional<std::string> ProcField(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    if (Trim(std::string_view(line).substr(0, colon)) != key) continue;
    return std::string(Trim(std::string_view(line).substr(colon + 1)));
  }
  return std::nullopt;
}

uint64_t ProcBytes(const std::string& path, std::string_view key) {
  const auto field = ProcField(path, key);
  uint64_t kilobytes = 0;
  if (field) std::from_chars(field->data(), field->data() + field->size(), kilobytes);
  return kilobytes * 1024;
}

std::string CpuModel() {
  for (const char* key : {"model name", "Model"}) {
    if (const auto name = ProcField("/proc/cpuinfo", key)) return *name;
  }
  return "unknown";
}

}  // namespace sluice::base
