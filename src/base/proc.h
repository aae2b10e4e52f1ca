// Fields of the kernel's own text files: /proc/meminfo, /proc/cpuinfo, /proc/self/status.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::base {

// What the first line "key: value" of the file gives, without the white space around it. Nothing if
// there is no such file or line.
std::optional<std::string> ProcField(const std::string& path, std::string_view key);

// The same for "key: 123 kB", in bytes; 0 if there is none.
uint64_t ProcBytes(const std::string& path, std::string_view key);

// The processor's name as /proc/cpuinfo gives it, or "unknown".
std::string CpuModel();

}  // namespace sluice::base
