#include "exec/rtl/rtl_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "exec/matrices.h"
#include "exec/rtl/fabric.h"
#include "machine/board.h"
#include "machine/memory_system.h"
#include "pack/layout.h"

namespace sluice::exec {
namespace {

using program::Epilogue;
using program::Instruction;
using program::Op;
using program::Sizes;
using rtl::Fabric;
using rtl::Probe;

// Where things lie in the simulated memory; a page apart from each other.
constexpr uint32_t kPackBase = 0x0010'0000;
constexpr uint64_t kPage = 4096;
constexpr uint32_t kPositionStep = 64;  // the cache's parts start at whole lines

// What a run leaves of each token, put together from what was seen on its way.
struct Token {
  std::vector<int32_t> residual;
  std::vector<int8_t> x[2];
  std::vector<int32_t> exponents[2];
  std::vector<std::vector<int32_t>> heads;  // of the last q, K or V
  std::vector<int32_t> head_exponents;
};

class RtlExecutor : public Executor {
 public:
  RtlExecutor(std::span<const uint8_t> pack, const program::Program& program,
              std::unique_ptr<Fabric> fabric, uint32_t context, const RtlOptions& options)
      : pack_(pack),
        program_(program),
        fabric_(std::move(fabric)),
        context_(context),
        watchdog_(options.watchdog),
        filled_(options.filled),
        tokens_(fabric_->limits().tokens) {
    const Sizes& s = sizes();
    positions_ = static_cast<uint32_t>(pack::RoundUp(context, uint64_t{kPositionStep}));
    uint64_t wide = 0;
    for (const Instruction& i : program.instructions()) {
      if (i.op != Op::kMatvec || i.epilogue != Epilogue::kKey) continue;
      for (uint32_t h = 0; h < s.n_kv_heads; ++h) wide += (i.imm >> h) & 1;
    }
    const uint64_t plane = uint64_t{positions_} * s.head_dim;
    kv_.resize(uint64_t{s.n_layers} * s.n_kv_heads * 2 * (plane + positions_));
    kv_low_.resize(wide * plane);
    const Instruction& head = program.head();
    const auto behind = [](uint64_t at, uint64_t size) {
      return pack::RoundUp(at + size, pack::kLineBytes);
    };
    activations_at_ = behind(0, uint64_t{head.heads} * 8);
    exponents_at_ = behind(activations_at_, head.cols);
    record_ = behind(exponents_at_, uint64_t{head.cols} / head.group * 2);
    results_.resize(record_ * tokens_);
  }

  // Lays everything out in the simulated memory. Errors: more than 4 GB, the options.
  base::Status Place(const machine::MemorySpec& spec, const machine::MemoryOptions& options) {
    clock_hz_ = spec.ports.clock_mhz * 1e6;
    std::vector<machine::MemoryWindow> windows;
    uint64_t at = kPackBase;
    const auto place = [&](uint64_t size) {
      const uint64_t base = at;
      at = pack::RoundUp(at + size, kPage) + kPage;
      return base;
    };
    const auto read_only = [&](std::span<const uint8_t> bytes) {
      const uint64_t base = place(bytes.size());
      windows.push_back(machine::MemoryWindow::ReadOnly(base, bytes));
      return static_cast<uint32_t>(base);
    };
    const auto writable = [&](std::span<uint8_t> bytes) {
      const uint64_t base = place(bytes.size());
      if (!bytes.empty()) windows.push_back({.base = base, .bytes = bytes, .writable = true});
      return static_cast<uint32_t>(base);
    };
    const auto stored = std::as_bytes(program_.stored());
    read_only(pack_);
    program_address_ = read_only({reinterpret_cast<const uint8_t*>(stored.data()), stored.size()});
    kv_base_ = writable(kv_);
    kv_low_base_ = writable(kv_low_);
    result_base_ = writable(results_);
    if (at > uint64_t{1} << 32) {
      return base::Fail("executor rtl", fmt::format("{} bytes of memory", at), "at most 2^32");
    }
    SLUICE_TRY(auto memory, machine::MemorySystem::Create(spec, std::move(windows), options));
    memory_.emplace(std::move(memory));
    return {};
  }

  std::string_view name() const override { return "rtl"; }
  const Sizes& sizes() const override { return program_.sizes(); }
  uint32_t max_block() const override { return 64; }
  uint32_t context() const override { return context_; }
  void SetTrace(Trace trace) override { trace_ = std::move(trace); }
  std::optional<Simulated> simulated() const override { return Simulated{cycles_, clock_hz_}; }

  base::Result<std::vector<Candidates>> Run(const Block& block) override {
    SLUICE_TRY_VOID(CheckBlock(*this, block, filled_));
    if (block.use_logits) {
      return base::Fail("executor rtl", "all logits wanted", "candidates: logits do not leave it");
    }
    std::vector<Candidates> results;
    memory_->ResetStatistics();
    run_began_ = cycles_;
    const auto size = static_cast<uint32_t>(block.tokens.size());
    for (uint32_t first = 0; first < size; first += tokens_) {
      const uint32_t n = std::min(tokens_, size - first);
      const bool last = first + n == size;
      const uint32_t wanted = block.want == Want::kAll            ? n
                              : block.want == Want::kLast && last ? 1
                                                                  : 0;
      filled_ = block.position + first;
      SLUICE_TRY_VOID(
          RunPart(block.tokens.subspan(first, n), block.position + first, wanted, first, results));
      filled_ = block.position + first + n;
    }
    return results;
  }

  RtlAccount account() const {
    RtlAccount account{.clocks = cycles_ - run_began_, .ddr = memory_->ddr(), .ports = {}};
    for (uint32_t p = 0; p < machine::kHpPorts; ++p) account.ports[p] = memory_->port(p);
    return account;
  }

 private:
  base::Status RunPart(std::span<const int32_t> tokens, uint32_t position, uint32_t wanted,
                       uint32_t first, std::vector<Candidates>& results) {
    n_tokens_ = static_cast<uint32_t>(tokens.size());
    fabric_->Start({.program_address = program_address_,
                    .instructions = static_cast<uint16_t>(program_.stored().size()),
                    .pack_base = kPackBase,
                    .kv_base = kv_base_,
                    .kv_low_base = kv_low_base_,
                    .context = positions_,
                    .result_base = result_base_,
                    .result_stride = static_cast<uint32_t>(record_),
                    .tokens = tokens,
                    .n_wanted = static_cast<uint8_t>(wanted),
                    .position = position});
    state_.assign(n_tokens_, {});
    for (Token& token : state_) token.residual.resize(sizes().hidden);
    uint64_t progress = cycles_;
    while (fabric_->busy()) {
      fabric_->Tick(signals_);
      memory_->Tick(signals_);
      ++cycles_;
      const Probe& probe = fabric_->probe();
      if (trace_) Watch(probe);
      if (probe.retire) {
        progress = cycles_;
        // The model's sizes are no instruction of the Program.
        if (trace_ && fabric_->retired() > 1) Show(fabric_->retired() - 2u, first);
      }
      if (cycles_ - progress > watchdog_) {
        return base::Fail("executor rtl", fmt::format("instruction {} not done after {} clocks",
                                                      fabric_->retired(), cycles_ - progress));
      }
    }
    if (const auto violation = memory_->Violation()) return std::unexpected(*violation);
    if (fabric_->bus_errors() != 0) {
      return base::Fail("executor rtl",
                        fmt::format("bus errors, by port: {:04b}", fabric_->bus_errors()));
    }
    if (fabric_->too_long()) return base::Fail("executor rtl", "the scores do not fit");
    for (uint32_t t = n_tokens_ - wanted; t < n_tokens_; ++t) {
      results.push_back(Result(t - (n_tokens_ - wanted), first + t));
    }
    return {};
  }

  // The record of the w-th wanted token: candidates, ranked, and rescored if screened.
  Candidates Result(uint32_t w, uint32_t token) {
    const Instruction& head = program_.head();
    const uint8_t* record = results_.data() + record_ * w;
    Candidates best(sizes().candidates);
    for (size_t k = 0; k < best.size(); ++k) {
      std::memcpy(&best[k].logit, record + 8 * k, 4);
      std::memcpy(&best[k].id, record + 8 * k + 4, 4);
    }
    std::ranges::sort(best, fixed::Better);
    if (trace_) {
      std::vector<int32_t> shown;
      for (const auto& [id, logit] : best) shown.insert(shown.end(), {id, logit});
      trace_({static_cast<uint32_t>(program_.instructions().size()) - 1, token, shown});
    }
    if (!(head.flags & program::kScreened)) return best;
    const std::span x(reinterpret_cast<const int8_t*>(record + activations_at_), head.cols);
    std::vector<int> exponents;
    for (uint32_t g = 0; g < head.cols / head.group; ++g) {
      int16_t value;
      std::memcpy(&value, record + exponents_at_ + 2 * g, 2);
      exponents.push_back(value);
    }
    const int largest = std::ranges::max(exponents);
    const Matrices matrices(pack_);
    for (auto& [id, logit] : best) {
      logit = matrices.Row(head, static_cast<uint32_t>(id), x, exponents, largest, true);
    }
    std::ranges::sort(best, fixed::Better);
    return best;
  }

  // --- Traces ---

  void Watch(const Probe& p) {
    if (p.residual_write) {
      const uint32_t token = p.residual_address / fabric_->limits().max_hidden;
      const uint32_t row = p.residual_address % fabric_->limits().max_hidden;
      if (token < n_tokens_ && row < sizes().hidden) {
        state_[token].residual[row] = p.residual_value;
      }
    }
    const uint32_t base_words = p.target_b ? sizes().hidden / 8 : 0;
    const uint32_t base_groups = p.target_b ? sizes().hidden / 32 : 0;
    if (p.x_write) {
      auto& x = state_[p.x_token].x[p.target_b];
      const size_t at = size_t{p.x_word - base_words} * 8;
      if (x.size() < at + 8) x.resize(at + 8);
      std::memcpy(x.data() + at, &p.x_data, 8);
    }
    if (p.e_write) {
      auto& e = state_[p.e_token].exponents[p.target_b];
      const size_t at = p.e_group - base_groups;
      if (e.size() <= at) e.resize(at + 1);
      e[at] = p.e_data;
    }
    if (p.head_write) WatchHead(p);
  }

  void WatchHead(const Probe& p) {
    const Instruction& i = program_.instructions()[fabric_->retired() - 1u];
    Token& token = state_[p.head_token];
    if (token.heads.size() <= p.head) {
      token.heads.resize(p.head + 1);
      token.head_exponents.resize(p.head + 1);
    }
    auto& values = token.heads[p.head];
    if (i.epilogue == Epilogue::kQuery) {
      for (int k = 0; k < 4; ++k) {
        values.push_back(static_cast<int16_t>(p.head_data >> (16 * k)));
      }
    } else {
      for (int k = 0; k < 8; ++k) {
        const int32_t high = static_cast<int8_t>(p.head_data >> (8 * k));
        const int32_t low = static_cast<int8_t>(p.head_low >> (8 * k));
        values.push_back(p.head_wide ? 256 * high + low : high);
      }
    }
    if (p.head_last) token.head_exponents[p.head] = p.head_exponent;
  }

  void Show(uint32_t index, uint32_t first) {
    const auto instructions = program_.instructions();
    if (index >= instructions.size()) return;
    const Instruction& i = instructions[index];
    if (i.op == Op::kMatvec && i.epilogue == Epilogue::kCandidates) return;  // shown at the end
    for (uint32_t t = 0; t < n_tokens_; ++t) {
      Token& token = state_[t];
      std::vector<int32_t> shown;
      const bool residual =
          i.op == Op::kEmbed || (i.op == Op::kMatvec && i.epilogue == Epilogue::kAddResidual);
      const bool heads =
          i.op == Op::kMatvec && (i.epilogue == Epilogue::kQuery || i.epilogue == Epilogue::kKey ||
                                  i.epilogue == Epilogue::kValue);
      if (residual) {
        shown = token.residual;
      } else if (heads) {
        for (size_t h = 0; h < token.heads.size(); ++h) {
          shown.insert(shown.end(), token.heads[h].begin(), token.heads[h].end());
          if (i.epilogue != Epilogue::kQuery) shown.push_back(token.head_exponents[h]);
        }
        if (i.epilogue == Epilogue::kQuery) {
          shown.insert(shown.end(), token.head_exponents.begin(), token.head_exponents.end());
        }
        token.heads.clear();
        token.head_exponents.clear();
      } else {
        const auto b = static_cast<size_t>(i.target);
        shown.assign(token.x[b].begin(), token.x[b].end());
        shown.insert(shown.end(), token.exponents[b].begin(), token.exponents[b].end());
        token.x[b].clear();
        token.exponents[b].clear();
      }
      trace_({index, first + t, shown});
    }
  }

  std::span<const uint8_t> pack_;
  const program::Program& program_;
  std::unique_ptr<Fabric> fabric_;
  const uint32_t context_;
  std::optional<machine::MemorySystem> memory_;
  std::array<machine::HpSignals, machine::kHpPorts> signals_{};
  const uint64_t watchdog_;
  uint32_t filled_;
  const uint32_t tokens_;  // at once
  uint32_t positions_ = 0;
  std::vector<uint8_t> kv_, kv_low_, results_;
  // A record of rtl/control/result_write.sv: where its parts begin, and its size.
  uint64_t activations_at_ = 0, exponents_at_ = 0, record_ = 0;
  uint32_t kv_base_ = 0, kv_low_base_ = 0, result_base_ = 0, program_address_ = 0;
  uint32_t n_tokens_ = 0;
  uint64_t cycles_ = 0;
  uint64_t run_began_ = 0;
  double clock_hz_ = 0;
  std::vector<Token> state_;
  Trace trace_;
};

}  // namespace

base::Result<std::unique_ptr<Executor>> MakeRtlExecutor(std::span<const uint8_t> pack,
                                                        const program::Program& program,
                                                        const RtlOptions& options) {
  auto fabric = rtl::MakeFabric(options.configuration);
  if (fabric == nullptr) {
    return base::Fail("executor rtl", fmt::format("configuration {}", options.configuration),
                      "tiny, z2_decode or z2_block");
  }
  const rtl::FabricLimits& l = fabric->limits();
  const Sizes& s = program.sizes();
  const auto check = [&](const char* what, uint64_t value, uint64_t most) -> base::Status {
    if (value <= most) return {};
    return base::Fail(fmt::format("configuration {}", options.configuration),
                      fmt::format("{} of {}", what, value), fmt::format("at most {}", most));
  };
  const uint32_t ratio = s.n_heads / s.n_kv_heads;
  SLUICE_TRY_VOID(check("hidden size", s.hidden, l.max_hidden));
  SLUICE_TRY_VOID(
      check("hidden and widest size", (uint64_t{s.hidden} + s.widest) / 8, l.max_words));
  SLUICE_TRY_VOID(
      check("groups of hidden and widest", (uint64_t{s.hidden} + s.widest) / 32, l.max_groups));
  SLUICE_TRY_VOID(check("head size", s.head_dim, l.max_head_dim));
  SLUICE_TRY_VOID(check("number of heads", s.n_heads, l.max_heads));
  SLUICE_TRY_VOID(check("heads times size", uint64_t{s.n_heads} * s.head_dim / 4, l.max_q_words));
  SLUICE_TRY_VOID(check("query heads of a KV head", uint64_t{ratio} * l.tokens, l.max_slots));
  SLUICE_TRY_VOID(check("candidates", s.candidates, l.max_candidates));
  const uint32_t fits = std::min(l.max_context, l.scores);
  uint32_t context = options.context == 0 ? s.context : std::min(options.context, s.context);
  if (options.context == 0) context = std::min(context, fits);
  SLUICE_TRY_VOID(check("context", context, fits));
  try {
    auto executor =
        std::make_unique<RtlExecutor>(pack, program, std::move(fabric), context, options);
    SLUICE_TRY(const auto board, machine::LoadBoard("pynq-z2"));
    SLUICE_TRY_VOID(executor->Place(board.memory, {.ideal = options.ideal_memory,
                                                   .ideal_latency = options.ideal_latency,
                                                   .stall_probability = options.stall,
                                                   .seed = options.seed,
                                                   .errors = {}}));
    return executor;
  } catch (const std::bad_alloc&) {
    return base::Fail("executor rtl", "no memory");
  }
}

RtlAccount AccountOf(const Executor& executor) {
  return static_cast<const RtlExecutor&>(executor).account();
}

}  // namespace sluice::exec
