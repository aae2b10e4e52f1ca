// What runs a Program. All executors that are built from integers give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "fixed/candidate.h"
#include "program/program.h"

namespace sluice::exec {

// For which tokens of a block results are wanted.
enum class Want : uint8_t { kNone, kLast, kAll };

// A run of tokens at consecutive positions.
struct Block {
  std::span<const int32_t> tokens;  // 1 .. max_block(), each in [0, vocab)
  // Of the first token: at most the number of positions already in the KV cache. Entries from
  // there on are overwritten, so a smaller position takes tokens back.
  uint32_t position = 0;
  Want want = Want::kLast;
  // If set, called instead of collecting candidates, for each wanted token in order: all logits,
  // [vocab], unit 2^-fixed::kLogitFraction, screened or not always of the full head.
  std::function<void(uint32_t token, std::span<const int32_t> logits)> use_logits = {};
};

// What one instruction left behind for one token, in the one form in which all executors show it:
//   embed, add_residual  the residual, int32[hidden]
//   norm, attend, gate   int8 activations, then one exponent per group
//   query                int16 q[n_heads][head_dim], then one exponent per head
//   key                  per KV head: int8 k[head_dim] (or 16-bit values), then its exponent
//   value                per KV head: int8 v[head_dim], then its exponent
//   candidates           id, logit, id, logit ... as ranked before any rescoring
struct TraceEvent {
  uint32_t instruction;  // index in Program::instructions()
  uint32_t token;        // index in the block
  std::span<const int32_t> values;
};
using Trace = std::function<void(const TraceEvent&)>;

// Time on a machine that is simulated.
struct Simulated {
  uint64_t clocks = 0;  // of all Runs so far
  double clock_hz = 0;
};

// Candidates of one token, in the order of fixed::Better.
using Candidates = std::vector<fixed::Candidate>;

class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string_view name() const = 0;
  virtual const program::Sizes& sizes() const = 0;
  virtual uint32_t max_block() const = 0;
  // Positions that fit: the smaller of what was asked for and the Program's context.
  virtual uint32_t context() const = 0;

  // Runs the block and returns the candidates of the wanted tokens (none with use_logits).
  // Candidates of a screened head are rescored at 8 bits. Errors: block empty or too long, a token
  // outside the vocabulary, a position that leaves a gap, a full context, no memory.
  virtual base::Result<std::vector<Candidates>> Run(const Block& block) = 0;

  // Nothing for executors that run as fast as they can on this machine.
  virtual std::optional<Simulated> simulated() const { return std::nullopt; }

  // Called after each instruction, for each token, while set. Slow.
  virtual void SetTrace(Trace trace) = 0;
};

// The checks that Run shares: the Errors above except memory. `filled` is the number of positions
// in the KV cache.
base::Status CheckBlock(const Executor& executor, const Block& block, uint32_t filled);

}  // namespace sluice::exec
