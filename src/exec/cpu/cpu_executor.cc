#include "exec/cpu/cpu_executor.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <new>
#include <optional>

#include "base/check.h"
#include "base/phases.h"
#include "base/thread_pool.h"
#include "exec/cpu/activations.h"
#include "exec/cpu/best.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/kv_cache.h"
#include "fixed/functions.h"
#include "fixed/rounding.h"
#include "pack/layout.h"
#include "quant/quantized_matrix.h"

namespace sluice::exec {
namespace {

using cpu::Activations;
using cpu::ActivationShape;
using cpu::Best;
using cpu::Kernels;
using cpu::KvHead;
using cpu::MatrixKind;
using cpu::Panel;
using cpu::Tile;
using program::Epilogue;
using program::Instruction;
using program::Op;
using program::Sizes;

constexpr uint32_t kMostHeadDim = 256;
constexpr uint32_t kRows = pack::kTileRows;

// One program instruction, or a run of matvecs into q, K and V, which share their input and are
// split among the threads as one matrix.
struct Step {
  uint32_t first = 0;  // index of its first instruction
  std::span<const Instruction> instructions;
};

bool IsHeads(const Instruction& i) {
  return i.op == Op::kMatvec && (i.epilogue == Epilogue::kQuery || i.epilogue == Epilogue::kKey ||
                                 i.epilogue == Epilogue::kValue);
}

std::vector<Step> MakeSteps(std::span<const Instruction> instructions) {
  std::vector<Step> steps;
  for (uint32_t begin = 0; begin < instructions.size();) {
    uint32_t end = begin + 1;
    if (IsHeads(instructions[begin])) {
      while (end < instructions.size() && IsHeads(instructions[end])) ++end;
    }
    steps.push_back({begin, instructions.subspan(begin, end - begin)});
    begin = end;
  }
  return steps;
}

MatrixKind KindOf(const Instruction& i, bool screen) {
  if (i.planes == 2) return screen ? MatrixKind::kHighPlane : MatrixKind::kTwoPlanes;
  const auto codebook = static_cast<quant::Codebook>(i.codebook);
  return codebook == quant::Codebook::kSluice16 ? MatrixKind::kCodebook : MatrixKind::kLinear;
}

// Grows, never shrinks.
template <typename T>
void Reserve(std::vector<T>& v, uint64_t size) {
  if (v.size() < size) v.resize(size);
}

class CpuExecutor : public Executor {
 public:
  CpuExecutor(std::span<const uint8_t> pack, const program::Program& program,
              const Kernels& kernels, unsigned threads, uint32_t context, uint32_t max_block)
      : pack_(pack),
        program_(program),
        kernels_(kernels),
        pool_(threads),
        phases_(pool_.size()),
        context_(context),
        max_block_(max_block),
        steps_(MakeSteps(program.instructions())),
        scratch_(pool_.size()) {
    const Sizes& s = sizes();
    for (const Instruction& i : program.instructions()) {
      if (i.op != Op::kMatvec || i.epilogue != Epilogue::kKey) continue;
      std::vector<KvHead> heads;
      for (uint32_t h = 0; h < s.n_kv_heads; ++h) {
        heads.emplace_back(s.head_dim, ((i.imm >> h) & 1) != 0);
      }
      cache_.push_back(std::move(heads));
    }
    for (const Step& step : steps_) row_width_ = std::max(row_width_, RowsOf(step));
    for (Scratch& scratch : scratch_) {
      scratch.scaled.resize(s.widest);
      scratch.q.resize(s.widest);
      scratch.exponent.resize(s.widest / 32);
    }
  }

  std::string_view name() const override { return "cpu"; }
  const Sizes& sizes() const override { return program_.sizes(); }
  uint32_t max_block() const override { return max_block_; }
  uint32_t context() const override { return context_; }
  void SetTrace(Trace trace) override { trace_ = std::move(trace); }

  base::Result<std::vector<Candidates>> Run(const Block& block) override {
    SLUICE_TRY_VOID(CheckBlock(*this, block, filled_));
    std::vector<Candidates> results;
    try {
      Prepare(block);
      pool_.OnEachThread([&](unsigned thread) {
        Worker worker{thread};
        RunThread(worker, block);
      });
      results.assign(results_.begin(), results_.begin() + static_cast<long>(n_results_));
    } catch (const std::bad_alloc&) {
      return base::Fail("executor cpu",
                        fmt::format("no memory for a block of {} tokens at position {}",
                                    block.tokens.size(), block.position));
    }
    filled_ = block.position + n_tokens_;
    return results;
  }

 private:
  // A thread on its way through the program.
  struct Worker {
    unsigned thread;
    size_t phase = 0;  // the next of phases_
  };

  // What one thread works in.
  struct Scratch {
    std::vector<int16_t> scaled;    // [widest]
    std::vector<int8_t> q;          // [widest]
    std::vector<int32_t> exponent;  // [widest / 32]
    std::vector<int16_t> scores;    // [kernels' queries][positions]
    std::vector<Best> best;         // [wanted tokens]
  };

  // int32 values per token that a step leaves in rows_ for its second half.
  uint32_t RowsOf(const Step& step) const {
    const Instruction& i = step.instructions.front();
    if (IsHeads(i)) {
      uint32_t rows = 0;
      for (const Instruction& part : step.instructions) rows += part.rows;
      return rows;
    }
    if (i.op == Op::kAttend) return i.cols;
    if (i.op == Op::kMatvec && i.epilogue == Epilogue::kSiluGate) return GateCols(i);
    return 0;
  }

  static uint32_t GateCols(const Instruction& i) {
    return static_cast<uint32_t>(pack::RoundUp(i.rows / 2, i.group));
  }

  bool Wanted(const Block& block) const { return block.want != Want::kNone; }

  // Takes all memory that the block needs, so that no thread has to.
  void Prepare(const Block& block) {
    const Sizes& s = sizes();
    n_tokens_ = static_cast<uint32_t>(block.tokens.size());
    const uint32_t length = block.position + n_tokens_;
    const auto positions = static_cast<uint32_t>(pack::RoundUp(length, uint64_t{cpu::kKeyBlock}));
    for (auto& heads : cache_) {
      for (KvHead& head : heads) {
        if (head.capacity() >= positions) continue;
        const auto most = static_cast<uint32_t>(pack::RoundUp(context_, uint64_t{cpu::kKeyBlock}));
        const uint32_t ahead = head.capacity() / 2 / cpu::kKeyBlock * cpu::kKeyBlock;
        head.Grow(std::max(positions, std::min(most, head.capacity() + ahead)));
      }
    }
    Reserve(residual_, uint64_t{n_tokens_} * s.hidden);
    Reserve(rows_, uint64_t{n_tokens_} * row_width_);
    for (Activations& a : buffers_) a.Reserve(n_tokens_, s.widest);
    Reserve(query_, uint64_t{n_tokens_} * s.n_heads * s.head_dim);
    Reserve(query_exponent_, uint64_t{n_tokens_} * s.n_heads);

    n_wanted_ = block.want == Want::kNone ? 0 : block.want == Want::kLast ? 1 : n_tokens_;
    n_results_ = block.use_logits ? 0 : n_wanted_;
    const Instruction& head = program_.head();
    wanted_.Reserve(n_wanted_, s.widest);
    if (block.use_logits) {
      Reserve(logits_, uint64_t{std::min(n_wanted_, cpu::kPanelTokens)} * head.rows);
    } else {
      Reserve(results_, n_wanted_);
      Reserve(ranked_, n_wanted_);
      for (uint32_t t = 0; t < n_wanted_; ++t) {
        results_[t].clear();
        results_[t].reserve(uint64_t{s.candidates} * pool_.size());
        ranked_[t].reserve(s.candidates);
      }
    }
    for (Scratch& scratch : scratch_) {
      Reserve(scratch.scores, uint64_t{kernels_.queries} * positions);
      if (block.use_logits) continue;
      Reserve(scratch.best, n_wanted_);
      for (uint32_t t = 0; t < n_wanted_; ++t) scratch.best[t].Reset(s.candidates);
    }
    score_stride_ = positions;
    // At most six phases to a step and one for the trace, and two for each panel of logits.
    phases_.Reset(steps_.size() * 7 + 2 * uint64_t{n_wanted_});
  }

  // Calls body(item) for all of [0, count), split among the threads, and returns when all is done.
  template <typename Body>
  void Share(Worker& worker, uint64_t count, const Body& body) {
    phases_.Share(worker.phase++, static_cast<uint32_t>(count), [&](uint32_t begin, uint32_t end) {
      for (uint32_t item = begin; item < end; ++item) body(item);
    });
  }

  // All threads walk the program together, phase by phase.
  void RunThread(Worker& worker, const Block& block) {
    for (const Step& step : steps_) {
      const Instruction& i = step.instructions.front();
      switch (i.op) {
        case Op::kEmbed:
          Embed(i, block, worker);
          break;
        case Op::kNorm:
          Norm(i, worker);
          break;
        case Op::kAttend:
          Attend(i, block.position, worker);
          QuantizeRows(i, uint32_t{i.heads} * i.head_dim, i.cols, worker);
          break;
        case Op::kMatvec:
          switch (i.epilogue) {
            case Epilogue::kAddResidual:
              AddResidual(i, worker);
              break;
            case Epilogue::kSiluGate:
              Gate(i, worker);
              QuantizeRows(i, i.rows / 2, GateCols(i), worker);
              break;
            case Epilogue::kCandidates:
              if (Wanted(block)) Head(step, block, worker);
              break;
            default:
              HeadRows(step, worker);
              FinishHeads(step, block.position, worker);
          }
          break;
        default:
          SLUICE_CHECK(false);
      }
      if (trace_) {
        phases_.Alone(worker.phase++, worker.thread == 0, [&] { ShowStep(step, block); });
      }
    }
  }

  template <typename T>
  const T* Table(uint32_t line) const {
    return reinterpret_cast<const T*>(pack_.data() + uint64_t{line} * pack::kLineBytes);
  }

  Tile TileAt(const Instruction& i, uint64_t tile) const {
    const uint8_t* header = Table<uint8_t>(i.weights) + tile * i.tile_stride;
    const uint32_t groups = i.cols / i.group;
    Tile result;
    result.sub_scales = reinterpret_cast<const int8_t*>(header);
    result.high = header + pack::RoundUp(uint64_t{groups} * kRows, pack::kLineBytes);
    if (i.planes == 2) result.low = Table<uint8_t>(i.low) + tile * i.low_stride;
    result.groups = groups;
    result.group = i.group;
    return result;
  }

  // Calls use(token, y[16]) for each token of `x` with 16 rows of the matrix in units of
  // 2^-fraction.
  template <typename Use>
  void TileRows(const Instruction& i, MatrixKind kind, uint64_t tile, const Activations& x,
                const ActivationShape& shape, uint32_t panel_index, const Use& use) const {
    alignas(64) int32_t acc[cpu::kPanelTokens * kRows];
    alignas(64) int32_t y[cpu::kPanelTokens * kRows];
    int32_t subtract[cpu::kPanelTokens];
    const uint32_t first = panel_index * shape.panel_tokens;
    const Panel panel = x.panel(shape, panel_index);
    kernels_.dot[static_cast<size_t>(kind)](TileAt(i, tile), panel, acc);
    const uint8_t* row_table = Table<uint8_t>(i.row_table) + tile * kRows * 4;
    for (uint32_t t = 0; t < panel.width; ++t) subtract[t] = x.largest(first + t) + i.fraction;
    kernels_.scale_rows(acc, panel.width, row_table, subtract, y);
    for (uint32_t t = 0; t < panel.width; ++t) use(first + t, y + t * kRows);
  }

  ActivationShape SourceShape(const Instruction& i) const { return {i.cols, i.group, n_tokens_}; }
  const Activations& Source(const Instruction& i) const {
    return buffers_[static_cast<size_t>(i.source)];
  }

  // One tile of a matrix over all tokens of the block.
  template <typename Use>
  void MatrixTile(const Instruction& i, uint64_t tile, const Use& use) const {
    const ActivationShape shape = SourceShape(i);
    const MatrixKind kind = KindOf(i, false);
    for (uint32_t p = 0; p < shape.panels(); ++p) {
      TileRows(i, kind, tile, Source(i), shape, p, use);
    }
  }

  void Embed(const Instruction& i, const Block& block, Worker& worker) {
    const auto levels = quant::Levels(static_cast<quant::Codebook>(i.codebook));
    Share(worker, n_tokens_, [&](uint64_t t) {
      const auto row = static_cast<uint32_t>(block.tokens[t]);
      const Tile tile = TileAt(i, row / kRows);
      const uint32_t r = row % kRows;
      const uint8_t* entry = Table<uint8_t>(i.row_table) + uint64_t{row} * 4;
      int16_t mantissa;
      std::memcpy(&mantissa, entry, 2);
      const int shift = static_cast<int8_t>(entry[2]) - i.fraction;
      int32_t* residual = &residual_[t * i.cols];
      for (uint32_t c = 0; c < i.cols; ++c) {
        const uint64_t at = uint64_t{c / pack::kUnitColumns} * pack::kUnitBytes + 4 * r + c % 4;
        const int nibble_shift = c % pack::kUnitColumns < 4 ? 0 : 4;
        const unsigned high = (tile.high[at] >> nibble_shift) & 15u;
        int weight = levels[high];
        if (i.planes == 2) {
          const unsigned low = (tile.low[at] >> nibble_shift) & 15u;
          weight = 16 * (static_cast<int>(high) - 8) + static_cast<int>(low) - 8;
        }
        const int64_t w = int64_t{weight} * tile.sub_scales[c / i.group * kRows + r] * mantissa;
        residual[c] = fixed::RoundShiftSat32(w, shift);
      }
    });
  }

  void Norm(const Instruction& i, Worker& worker) {
    Scratch& scratch = scratch_[worker.thread];
    Share(worker, n_tokens_, [&](uint64_t t) {
      kernels_.norm({.x = &residual_[t * i.cols],
                     .gain = Table<int16_t>(i.auxiliary),
                     .cols = i.cols,
                     .group = i.group,
                     .epsilon = i.imm,
                     .gain_fraction = i.fraction2,
                     .scaled = scratch.scaled.data(),
                     .q = scratch.q.data(),
                     .exponent = scratch.exponent.data()});
      buffers_[static_cast<size_t>(i.target)].Store(SourceShape(i), static_cast<uint32_t>(t),
                                                    scratch.q.data(), scratch.exponent.data());
    });
  }

  // rows_ [token][cols], of which `valid` were written, in units of 2^-fraction, to the target.
  void QuantizeRows(const Instruction& i, uint32_t valid, uint32_t cols, Worker& worker) {
    Scratch& scratch = scratch_[worker.thread];
    const ActivationShape shape{cols, i.group, n_tokens_};
    Share(worker, n_tokens_, [&](uint64_t t) {
      int32_t* v = &rows_[t * cols];
      std::fill(v + valid, v + cols, 0);
      for (uint32_t g = 0; g < shape.groups(); ++g) {
        const uint32_t begin = g * i.group;
        scratch.exponent[g] =
            kernels_.quantize8(v + begin, i.group, scratch.q.data() + begin) - i.fraction;
      }
      buffers_[static_cast<size_t>(i.target)].Store(shape, static_cast<uint32_t>(t),
                                                    scratch.q.data(), scratch.exponent.data());
    });
  }

  void AddResidual(const Instruction& i, Worker& worker) {
    Share(worker, i.rows / kRows, [&](uint64_t tile) {
      MatrixTile(i, tile, [&](uint32_t token, const int32_t* y) {
        kernels_.add_rows(y, &residual_[uint64_t{token} * sizes().hidden + tile * kRows]);
      });
    });
  }

  void Gate(const Instruction& i, Worker& worker) {
    const uint32_t cols = GateCols(i);
    Share(worker, i.rows / kRows, [&](uint64_t tile) {
      MatrixTile(i, tile, [&](uint32_t token, const int32_t* y) {
        kernels_.silu_gate(y, tables_, &rows_[uint64_t{token} * cols + tile * (kRows / 2)]);
      });
    });
  }

  // q, K and V before the work on whole heads, side by side in rows_.
  void HeadRows(const Step& step, Worker& worker) {
    const uint32_t width = RowsOf(step);
    Share(worker, width / kRows, [&](uint64_t at) {
      uint64_t tile = at;
      for (const Instruction& i : step.instructions) {
        const uint64_t tiles = i.rows / kRows;
        if (tile < tiles) {
          MatrixTile(i, tile, [&](uint32_t token, const int32_t* y) {
            std::copy(y, y + kRows, &rows_[uint64_t{token} * width + at * kRows]);
          });
          return;
        }
        tile -= tiles;
      }
    });
  }

  void FinishHeads(const Step& step, uint32_t position, Worker& worker) {
    const uint32_t width = RowsOf(step);
    const uint32_t d = sizes().head_dim;
    const uint32_t heads = width / d;
    Share(worker, uint64_t{n_tokens_} * heads, [&](uint64_t at) {
      const auto token = static_cast<uint32_t>(at / heads);
      auto head = static_cast<uint32_t>(at % heads);
      int32_t* y = &rows_[uint64_t{token} * width + uint64_t{head} * d];
      for (const Instruction& i : step.instructions) {
        if (head < i.heads) {
          FinishHead(i, token, head, position + token, y);
          return;
        }
        head -= i.heads;
      }
    });
  }

  // One head of one token, from its rows y on.
  void FinishHead(const Instruction& i, uint32_t token, uint32_t head, uint32_t position,
                  int32_t* y) {
    const uint32_t d = i.head_dim;
    if (i.flags & program::kHeadNorm) {
      NormHead(i, y);
    } else if (i.bias != 0) {
      const int32_t* bias = Table<int32_t>(i.bias) + uint64_t{head} * d;
      for (uint32_t c = 0; c < d; ++c) y[c] = fixed::Saturate32(int64_t{y[c]} + bias[c]);
    }
    int8_t high[kMostHeadDim], low[kMostHeadDim];
    if (i.epilogue == Epilogue::kValue) {
      const int exponent = kernels_.quantize8(y, d, high) - i.fraction;
      cache_[i.layer][head].SetValue(position, high, exponent);
      return;
    }
    const int shift = Rotate(position, y);
    if (i.epilogue == Epilogue::kQuery) {
      const uint64_t at = uint64_t{token} * sizes().n_heads + head;
      query_exponent_[at] = shift + kernels_.quantize16(y, d, &query_[at * d]) - i.fraction;
      return;
    }
    const int32_t* mean = Table<int32_t>(i.auxiliary) + uint64_t{head} * d;
    for (uint32_t c = 0; c < d; ++c) {
      y[c] = fixed::Saturate32(int64_t{y[c]} * (int64_t{1} << shift) - mean[c]);
    }
    KvHead& kv = cache_[i.layer][head];
    const int exponent = (kv.wide() ? fixed::QuantizeBlockTwoBytes({y, d}, {high, d}, {low, d})
                                    : kernels_.quantize8(y, d, high)) -
                         i.fraction;
    kv.SetKey(position, high, low, exponent);
  }

  // RMSNorm of one head, in place.
  void NormHead(const Instruction& i, int32_t* y) const {
    const uint32_t d = i.head_dim;
    const int16_t* gain = Table<int16_t>(i.bias);
    int16_t scaled[kMostHeadDim];
    const int shift = kernels_.quantize16(y, d, scaled);
    uint64_t sum = uint64_t{i.valid_rows} >> (2 * shift);
    for (uint32_t c = 0; c < d; ++c) {
      sum += static_cast<uint32_t>(int32_t{scaled[c]} * scaled[c]);
    }
    const fixed::Scaled root = fixed::ReciprocalRoot(std::max<uint64_t>(sum, 1));
    const int exponent = root.exponent + 16 - i.fraction2;
    for (uint32_t c = 0; c < d; ++c) {
      const int64_t u = fixed::RoundShift(int64_t{scaled[c]} * root.mantissa, 16);
      y[c] = fixed::RoundShiftSat32(u * gain[c], -exponent - i.fraction);
    }
  }

  // RoPE in place; returns the shift that the result's unit has grown by.
  int Rotate(uint32_t position, int32_t* y) const {
    const uint32_t d = sizes().head_dim;
    int16_t a[kMostHeadDim];
    const int shift = kernels_.quantize16(y, d, a);
    const int16_t* table = Table<int16_t>(sizes().rope_line) + uint64_t{position} * d;
    constexpr int32_t kHalf = 1 << (program::kRopeFraction - 1);
    for (uint32_t c = 0; c < d; c += 2) {
      // |a * cosine| <= 32767 * 2^15, two of which and the half stay below 2^31.
      y[c] = (a[c] * table[c] - a[c + 1] * table[c + 1] + kHalf) >> program::kRopeFraction;
      y[c + 1] = (a[c] * table[c + 1] + a[c + 1] * table[c] + kHalf) >> program::kRopeFraction;
    }
    return shift;
  }

  // The work is split by KV head and by a few queries that read the same keys: of the query heads
  // that share the KV head, or where each has its own, of consecutive tokens.
  void Attend(const Instruction& i, uint32_t position, Worker& worker) {
    const uint32_t ratio = i.heads / sizes().n_kv_heads;
    const uint32_t queries = n_tokens_ * ratio;  // of a KV head: token by token
    const uint32_t run = ratio == 1 ? queries : ratio;
    // In decoding, no more at once than leaves every thread some.
    const uint32_t fair = std::max(1u, n_tokens_ * i.heads / pool_.size());
    const uint32_t most = std::min(kernels_.queries, fair);
    const uint32_t parts = (run + most - 1) / most;  // of a run
    const uint32_t per_kv_head = queries / run * parts;
    Share(worker, uint64_t{per_kv_head} * sizes().n_kv_heads, [&](uint64_t at) {
      const auto kv_head = static_cast<uint32_t>(at / per_kv_head);
      const auto part = static_cast<uint32_t>(at % per_kv_head);
      const uint32_t begin = run * (part % parts) / parts;
      const uint32_t end = run * (part % parts + 1) / parts;
      AttendQueries(i, position, kv_head, part / parts * run + begin, end - begin,
                    scratch_[worker.thread]);
    });
  }

  void AttendQueries(const Instruction& i, uint32_t position, uint32_t kv_head, uint32_t first,
                     uint32_t n, Scratch& scratch) {
    const uint32_t d = i.head_dim;
    const uint32_t ratio = i.heads / sizes().n_kv_heads;
    const KvHead& kv = cache_[i.layer][kv_head];
    const auto token = [&](uint32_t k) { return (first + k) / ratio; };
    const auto head = [&](uint32_t k) { return kv_head * ratio + (first + k) % ratio; };
    const uint32_t longest = position + token(n - 1) + 1;

    cpu::ScoreJob score;
    score.k = kv.k();
    score.k_low = kv.k_low();
    score.exponent = kv.k_exponent();
    score.blocks = (longest + cpu::kKeyBlock - 1) / cpu::kKeyBlock;
    score.head_dim = d;
    score.n = n;
    for (uint32_t k = 0; k < n; ++k) {
      const uint64_t at = uint64_t{token(k)} * i.heads + head(k);
      score.q[k] = &query_[at * d];
      score.q_exponent[k] = query_exponent_[at];
    }
    score.fraction = i.fraction2;
    score.scores = scratch.scores.data();
    score.stride = score_stride_;
    kernels_.scores(score);

    std::array<cpu::WeightSum, cpu::kMaxQueries> sums;
    for (uint32_t k = 0; k < n; ++k) {
      int16_t* scores = scratch.scores.data() + uint64_t{k} * score_stride_;
      const uint32_t length = position + token(k) + 1;
      sums[k] = kernels_.weights({.scores = scores,
                                  .v_exponent = kv.v_exponent(),
                                  .length = length,
                                  .fraction = i.fraction2,
                                  .weights = scores},
                                 tables_);
      // Positions that other queries see, or that only fill a pair, weigh nothing.
      std::fill(scores + length, scores + pack::RoundUp(longest, 2), int16_t{0});
    }

    alignas(64) int64_t mixed[cpu::kMaxQueries * kMostHeadDim];
    std::fill_n(mixed, n * d, 0);
    kernels_.mix({.v = kv.v(),
                  .pairs = (longest + 1) / 2,
                  .head_dim = d,
                  .n = n,
                  .weights = scratch.scores.data(),
                  .stride = score_stride_,
                  .mixed = mixed});
    for (uint32_t k = 0; k < n; ++k) {
      const fixed::Scaled r = fixed::Reciprocal(sums[k].sum);
      const int shift = -(r.exponent + sums[k].largest) - i.fraction;
      int32_t* out = &rows_[uint64_t{token(k)} * i.cols + uint64_t{head(k)} * d];
      for (uint32_t c = 0; c < d; ++c) {
        out[c] = fixed::RoundShiftSat32(mixed[k * d + c] * r.mantissa, shift);
      }
    }
  }

  // Puts the wanted tokens into wanted_, each a panel of its own.
  ActivationShape TakeWanted(const Instruction& i, Worker& worker) {
    const ActivationShape shape{i.cols, i.group, n_wanted_, 1};
    Scratch& scratch = scratch_[worker.thread];
    Share(worker, n_wanted_, [&](uint64_t t) {
      const auto token = static_cast<uint32_t>(t);
      Source(i).Load(SourceShape(i), n_tokens_ - n_wanted_ + token, scratch.q.data(),
                     scratch.exponent.data());
      wanted_.Store(shape, token, scratch.q.data(), scratch.exponent.data());
    });
    return shape;
  }

  void Head(const Step& step, const Block& block, Worker& worker) {
    const Instruction& i = step.instructions.front();
    const ActivationShape singles = TakeWanted(i, worker);
    // Few tokens of many: from wanted_. All of them: in the panels that stand there already.
    const bool all = n_wanted_ == n_tokens_;
    const ActivationShape shape = all ? SourceShape(i) : singles;
    const Activations& x = all ? Source(i) : wanted_;
    if (block.use_logits) {
      Logits(i, x, shape, block, worker);
    } else {
      Rank(i, x, shape, worker);
      Merge(worker);
      if (i.flags & program::kScreened) Rescore(i, singles, worker);
    }
  }

  void Logits(const Instruction& i, const Activations& x, const ActivationShape& shape,
              const Block& block, Worker& worker) {
    for (uint32_t p = 0; p < shape.panels(); ++p) {
      const uint32_t first = p * shape.panel_tokens;
      Share(worker, i.rows / kRows, [&](uint64_t tile) {
        TileRows(i, KindOf(i, false), tile, x, shape, p, [&](uint32_t token, const int32_t* y) {
          std::copy(y, y + kRows, &logits_[uint64_t{token - first} * i.rows + tile * kRows]);
        });
      });
      phases_.Alone(worker.phase++, worker.thread == 0, [&] {
        for (uint32_t t = 0; t < shape.width(p); ++t) {
          block.use_logits(n_tokens_ - n_wanted_ + first + t,
                           std::span(logits_).subspan(uint64_t{t} * i.rows, i.valid_rows));
        }
      });
    }
  }

  void Rank(const Instruction& i, const Activations& x, const ActivationShape& shape,
            Worker& worker) {
    const MatrixKind kind = KindOf(i, i.flags & program::kScreened);
    std::vector<Best>& best = scratch_[worker.thread].best;
    Share(worker, (i.valid_rows + kRows - 1) / kRows, [&](uint64_t tile) {
      const auto first = static_cast<uint32_t>(tile * kRows);
      const uint32_t rows = std::min(kRows, i.valid_rows - first);
      for (uint32_t p = 0; p < shape.panels(); ++p) {
        TileRows(i, kind, tile, x, shape, p, [&](uint32_t token, const int32_t* y) {
          best[token].Add(first, {y, rows});
        });
      }
    });
  }

  // The threads' candidates of each wanted token to one ranked list.
  void Merge(Worker& worker) {
    Share(worker, n_wanted_, [&](uint64_t t) {
      Candidates& result = results_[t];
      for (Scratch& scratch : scratch_) {
        const auto best = scratch.best[t].Take();
        result.insert(result.end(), best.begin(), best.end());
      }
      const size_t count = std::min<size_t>(result.size(), sizes().candidates);
      std::ranges::partial_sort(result, result.begin() + static_cast<long>(count), fixed::Better);
      result.resize(count);
      ranked_[t].assign(result.begin(), result.end());
    });
  }

  void Rescore(const Instruction& i, const ActivationShape& singles, Worker& worker) {
    const uint32_t count = sizes().candidates;
    Share(worker, uint64_t{n_wanted_} * count, [&](uint64_t at) {
      const auto token = static_cast<uint32_t>(at / count);
      fixed::Candidate& candidate = results_[token][at % count];
      const auto row = static_cast<uint32_t>(candidate.id);
      TileRows(i, MatrixKind::kTwoPlanes, row / kRows, wanted_, singles, token,
               [&](uint32_t, const int32_t* y) { candidate.logit = y[row % kRows]; });
    });
    Share(worker, n_wanted_, [&](uint64_t t) { std::ranges::sort(results_[t], fixed::Better); });
  }

  // Trace events of all instructions of a step.
  void ShowStep(const Step& step, const Block& block) const {
    for (size_t k = 0; k < step.instructions.size(); ++k) {
      const Instruction& i = step.instructions[k];
      for (uint32_t t = 0; t < n_tokens_; ++t) {
        const std::vector<int32_t> values = Shown(i, t, block);
        if (!values.empty()) trace_({step.first + static_cast<uint32_t>(k), t, values});
      }
    }
  }

  std::vector<int32_t> Shown(const Instruction& i, uint32_t token, const Block& block) const {
    const Sizes& s = sizes();
    std::vector<int32_t> values;
    const auto residual = std::span(residual_).subspan(uint64_t{token} * s.hidden, s.hidden);
    switch (i.op == Op::kMatvec ? i.epilogue : Epilogue::kNone) {
      case Epilogue::kNone:
        if (i.op == Op::kEmbed) return {residual.begin(), residual.end()};
        return ShownActivations(i, i.cols, token);
      case Epilogue::kSiluGate:
        return ShownActivations(i, GateCols(i), token);
      case Epilogue::kAddResidual:
        return {residual.begin(), residual.end()};
      case Epilogue::kQuery: {
        const uint64_t width = uint64_t{s.n_heads} * s.head_dim;
        const auto q = std::span(query_).subspan(token * width, width);
        values.assign(q.begin(), q.end());
        const auto e = std::span(query_exponent_).subspan(uint64_t{token} * s.n_heads, s.n_heads);
        values.insert(values.end(), e.begin(), e.end());
        return values;
      }
      case Epilogue::kKey:
        for (const KvHead& head : cache_[i.layer]) head.AppendKey(block.position + token, values);
        return values;
      case Epilogue::kValue:
        for (const KvHead& head : cache_[i.layer]) head.AppendValue(block.position + token, values);
        return values;
      case Epilogue::kCandidates: {
        const uint32_t first = n_tokens_ - n_wanted_;
        if (token < first || block.use_logits) return {};
        for (const auto& [id, logit] : ranked_[token - first]) {
          values.insert(values.end(), {id, logit});
        }
        return values;
      }
    }
    return values;
  }

  std::vector<int32_t> ShownActivations(const Instruction& i, uint32_t cols, uint32_t token) const {
    const ActivationShape shape{cols, i.group, n_tokens_};
    std::vector<int8_t> q(cols);
    std::vector<int32_t> exponent(shape.groups());
    buffers_[static_cast<size_t>(i.target)].Load(shape, token, q.data(), exponent.data());
    std::vector<int32_t> values(q.begin(), q.end());
    values.insert(values.end(), exponent.begin(), exponent.end());
    return values;
  }

  std::span<const uint8_t> pack_;
  const program::Program& program_;
  const Kernels& kernels_;
  base::ThreadPool pool_;
  base::Phases phases_;
  const uint32_t context_;
  const uint32_t max_block_;
  const std::vector<Step> steps_;
  uint32_t row_width_ = 0;
  const cpu::Tables tables_ = cpu::MakeTables();
  uint32_t filled_ = 0;
  std::vector<std::vector<KvHead>> cache_;  // [layer][KV head]
  Trace trace_;

  // The block that runs.
  uint32_t n_tokens_ = 0;
  uint32_t n_wanted_ = 0;  // its last tokens
  uint32_t n_results_ = 0;
  std::vector<int32_t> residual_;        // [token][hidden]
  std::vector<int32_t> rows_;            // [token][what the step needs]
  std::array<Activations, 2> buffers_;   // A and B
  std::vector<int16_t> query_;           // [token][head][head_dim]
  std::vector<int32_t> query_exponent_;  // [token][head]
  uint32_t score_stride_ = 0;
  Activations wanted_;               // the head's input, of wanted tokens
  std::vector<int32_t> logits_;      // [panel's token][rows]
  std::vector<Candidates> results_;  // [wanted token]
  std::vector<Candidates> ranked_;   // the same before rescoring
  std::vector<Scratch> scratch_;     // [thread]
};

}  // namespace

base::Result<std::unique_ptr<Executor>> MakeCpuExecutor(std::span<const uint8_t> pack,
                                                        const program::Program& program,
                                                        const CpuOptions& options) {
  SLUICE_TRY(const Kernels* kernels, cpu::KernelsOfEnvironment());
  if (reinterpret_cast<uintptr_t>(pack.data()) % 64 != 0) {
    return base::Fail("executor cpu", "a pack at an odd address", "one aligned to 64 bytes");
  }
  const uint32_t most = program.sizes().context;
  const uint32_t context = options.context == 0 ? most : std::min(options.context, most);
  try {
    return std::make_unique<CpuExecutor>(pack, program, *kernels, options.threads, context,
                                         std::max(options.max_block, 1u));
  } catch (const std::bad_alloc&) {
    return base::Fail("executor cpu", "no memory");
  } catch (const std::system_error& error) {
    return base::Fail("executor cpu", fmt::format("cannot start threads: {}", error.what()));
  }
}

}  // namespace sluice::exec
