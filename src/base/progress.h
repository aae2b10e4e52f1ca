// How long work tells the outside how far it is. The library never prints; the command line does.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace sluice::base {

// `done` of `total` units of `what`; total 0 means unknown. Called from one thread at a time, at
// most a few times a second by callers that care.
using Progress = std::function<void(std::string_view what, uint64_t done, uint64_t total)>;

}  // namespace sluice::base
