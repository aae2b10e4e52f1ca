#include "exec/executor.h"

#include <fmt/format.h>

namespace sluice::exec {

base::Status CheckBlock(const Executor& executor, const Block& block, uint32_t filled) {
  const std::string object = fmt::format("executor {}", executor.name());
  if (block.tokens.empty() || block.tokens.size() > executor.max_block()) {
    return base::Fail(object, fmt::format("a block of {} tokens", block.tokens.size()),
                      fmt::format("1 to {}", executor.max_block()));
  }
  if (block.position > filled) {
    return base::Fail(
        object, fmt::format("position {} with {} in the cache", block.position, filled), "no gap");
  }
  if (block.position + block.tokens.size() > executor.context()) {
    return base::Fail(object,
                      fmt::format("{} tokens at position {}", block.tokens.size(), block.position),
                      fmt::format("at most {} positions: the context is full", executor.context()));
  }
  for (const int32_t token : block.tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= executor.sizes().vocab) {
      return base::Fail(object, fmt::format("token {}", token),
                        fmt::format("0 to {}", executor.sizes().vocab - 1));
    }
  }
  return {};
}

}  // namespace sluice::exec
