#include "program/program.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "fixed/candidate.h"
#include "pack/layout.h"

namespace sluice::program {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kLine = pack::kLineBytes;
constexpr uint64_t kMaxInstructions = 1u << 16;

// Checks one program, instruction by instruction, keeping track of what has been written.
class Checker {
 public:
  Checker(std::span<const uint8_t> pack, std::string object)
      : pack_(pack), object_(std::move(object)) {}

  base::Status Check(const Instruction& i, size_t index, Sizes& sizes) {
    index_ = index;
    SLUICE_TRY_VOID(Flags(i));
    switch (i.op) {
      case Op::kModel:
        return Model(i, sizes);
      case Op::kEmbed:
        return Embed(i, sizes);
      case Op::kNorm:
        return Norm(i, sizes);
      case Op::kMatvec:
        return Matvec(i, sizes);
      case Op::kAttend:
        return Attend(i, sizes);
      case Op::kEnd:
        break;
    }
    return Bad(fmt::format("opcode {}", static_cast<int>(i.op)), "a known one");
  }

 private:
  std::unexpected<base::Error> Bad(std::string got, std::string expected) const {
    return base::Fail(fmt::format("{}: instruction {}", object_, index_), std::move(got),
                      std::move(expected));
  }

  base::Status InRange(const char* what, uint64_t value, uint64_t low, uint64_t high) const {
    if (value >= low && value <= high) return {};
    return Bad(fmt::format("{} is {}", what, value), fmt::format("{} to {}", low, high));
  }

  base::Status Fraction(const char* what, int8_t value, int low, int high) const {
    if (value >= low && value <= high) return {};
    return Bad(fmt::format("{} is {}", what, value), fmt::format("{} to {}", low, high));
  }

  // An executor must not have to ask whether a flag or a bias means something where it stands.
  base::Status Flags(const Instruction& i) const {
    uint8_t allowed = 0;
    bool bias = false;
    if (i.op == Op::kMatvec) {
      const bool rotated = i.epilogue == Epilogue::kQuery || i.epilogue == Epilogue::kKey;
      if (rotated) allowed = kHeadNorm;
      if (i.epilogue == Epilogue::kCandidates) allowed = kScreened;
      bias = rotated || i.epilogue == Epilogue::kValue;
    }
    if ((i.flags & ~allowed) != 0) {
      return Bad(fmt::format("flags {:#x}", i.flags), fmt::format("none but {:#x}", allowed));
    }
    if (i.bias != 0 && !bias) return Bad("a bias", "none here");
    return {};
  }

  // `bytes` bytes from line `line` on must lie in the pack.
  base::Status Inside(const char* what, uint32_t line, uint64_t bytes) const {
    const uint64_t begin = line * kLine;
    if (line != 0 && begin <= pack_.size() && bytes <= pack_.size() - begin) return {};
    return Bad(fmt::format("{} at bytes {} to {}", what, begin, begin + bytes),
               fmt::format("inside the pack of {} bytes", pack_.size()));
  }

  base::Status Group(const Instruction& i) const {
    if (i.group == 32 || i.group == 64) return {};
    return Bad(fmt::format("group size {}", i.group), "32 or 64");
  }

  base::Status Model(const Instruction& i, Sizes& s) const {
    if (index_ != 0) return Bad("the model's sizes again", "them once, first");
    SLUICE_TRY_VOID(InRange("hidden size", i.rows, 16, 1u << 17));
    SLUICE_TRY_VOID(InRange("widest activation", i.cols, i.rows, 1u << 19));
    SLUICE_TRY_VOID(InRange("vocabulary size", i.valid_rows, 1, 1u << 20));
    SLUICE_TRY_VOID(InRange("number of layers", i.layer, 1, 1024));
    SLUICE_TRY_VOID(InRange("number of heads", i.heads, 1, 1024));
    SLUICE_TRY_VOID(InRange("head size", i.head_dim, 16, 256));
    if (i.head_dim % 16 != 0)
      return Bad(fmt::format("head size {}", i.head_dim), "a multiple of 16");
    const uint64_t kv_heads = i.imm >> 32;
    // 64: one bit each in the mask of heads with 16-bit keys.
    SLUICE_TRY_VOID(InRange("number of KV heads", kv_heads, 1, std::min<uint64_t>(i.heads, 64)));
    if (i.heads % kv_heads != 0) {
      return Bad(fmt::format("{} heads on {} KV heads", i.heads, kv_heads), "a whole number each");
    }
    const uint64_t context = i.imm & 0xffffffff;
    // 65535: the sum of the softmax' 15-bit probabilities stays below 2^31.
    SLUICE_TRY_VOID(InRange("context", context, 1, 65535));
    SLUICE_TRY_VOID(Fraction("residual fraction", i.fraction, 0, 28));
    SLUICE_TRY_VOID(Inside("the RoPE table", i.auxiliary, context * i.head_dim * 2));
    s = Sizes{.hidden = i.rows,
              .widest = i.cols,
              .vocab = i.valid_rows,
              .n_layers = i.layer,
              .n_heads = i.heads,
              .n_kv_heads = static_cast<uint32_t>(kv_heads),
              .head_dim = i.head_dim,
              .context = static_cast<uint32_t>(context),
              .rope_line = i.auxiliary,
              .residual_fraction = i.fraction};
    return {};
  }

  base::Status Matrix(const Instruction& i, const Sizes& s) const {
    SLUICE_TRY_VOID(Group(i));
    SLUICE_TRY_VOID(InRange("planes", i.planes, 1, 2));
    SLUICE_TRY_VOID(InRange("codebook", i.codebook, 0, 1));
    SLUICE_TRY_VOID(InRange("columns", i.cols, i.group, s.widest));
    SLUICE_TRY_VOID(InRange("rows", i.rows, 16, 1u << 20));
    if (i.cols % i.group != 0) {
      return Bad(fmt::format("{} columns", i.cols), fmt::format("a multiple of {}", i.group));
    }
    if (i.rows % pack::kTileRows != 0)
      return Bad(fmt::format("{} rows", i.rows), "a multiple of 16");
    const uint64_t header = pack::HeaderBytes(i.cols, i.group);
    const uint64_t plane = pack::PlaneBytes(i.cols);
    const uint64_t tiles = i.rows / pack::kTileRows;
    if (i.tile_stride % 64 != 0 || i.tile_stride < header + plane) {
      return Bad(fmt::format("tile stride {}", i.tile_stride),
                 fmt::format("at least {}, a multiple of 64", header + plane));
    }
    SLUICE_TRY_VOID(Inside("the weights", i.weights, (tiles - 1) * i.tile_stride + header + plane));
    if (i.planes == 2) {
      if (i.low_stride % 64 != 0 || i.low_stride < plane) {
        return Bad(fmt::format("low-plane stride {}", i.low_stride),
                   fmt::format("at least {}, a multiple of 64", plane));
      }
      SLUICE_TRY_VOID(Inside("the low plane", i.low, (tiles - 1) * i.low_stride + plane));
    }
    return Inside("the row table", i.row_table, uint64_t{i.rows} * 4);
  }

  base::Status Embed(const Instruction& i, const Sizes& s) {
    SLUICE_TRY_VOID(Matrix(i, s));
    if (i.cols != s.hidden || i.rows < s.vocab || i.valid_rows != s.vocab ||
        i.fraction != s.residual_fraction) {
      return Bad("an embedding table of other sizes", "those of the model");
    }
    residual_ = true;
    return {};
  }

  base::Status Norm(const Instruction& i, const Sizes& s) {
    SLUICE_TRY_VOID(Group(i));
    if (!residual_) return Bad("a norm before any embedding", "the embedding first");
    if (i.cols != s.hidden || i.cols % i.group != 0) {
      return Bad(fmt::format("norm of {} columns in groups of {}", i.cols, i.group),
                 fmt::format("{}, a multiple of the group", s.hidden));
    }
    SLUICE_TRY_VOID(Fraction("gain fraction", i.fraction2, -64, 64));
    SLUICE_TRY_VOID(InRange("epsilon", i.imm, 0, uint64_t{1} << 60));
    SLUICE_TRY_VOID(Inside("the gains", i.auxiliary, uint64_t{i.cols} * 2));
    return Write(i.target, i.cols, i.group);
  }

  base::Status Write(Buffer target, uint32_t cols, uint8_t group) {
    if (target > Buffer::kB) return Bad("an unknown buffer", "A or B");
    written_[static_cast<size_t>(target)] = {cols, group};
    return {};
  }

  base::Status Matvec(const Instruction& i, const Sizes& s) {
    SLUICE_TRY_VOID(Matrix(i, s));
    if (i.source > Buffer::kB) return Bad("an unknown buffer", "A or B");
    const Written& x = written_[static_cast<size_t>(i.source)];
    if (x.cols != i.cols || x.group != i.group) {
      return Bad(fmt::format("a matrix of {} columns in groups of {} over {} in groups of {}",
                             i.cols, i.group, x.cols, x.group),
                 "the same");
    }
    SLUICE_TRY_VOID(Fraction("fraction", i.fraction, 0, 28));
    switch (i.epilogue) {
      case Epilogue::kAddResidual:
        if (i.rows > s.hidden || i.fraction != s.residual_fraction) {
          return Bad("a result that does not fit the residual", "its size and fraction");
        }
        return {};
      case Epilogue::kQuery:
        return Heads(i, s, s.n_heads, queries_);
      case Epilogue::kKey:
        SLUICE_TRY_VOID(Inside("the key means", i.auxiliary, uint64_t{i.rows} * 4));
        if (s.n_kv_heads < 64 && i.imm >> s.n_kv_heads != 0) {
          return Bad(fmt::format("16-bit keys of heads {:#x}", i.imm),
                     fmt::format("{} heads", s.n_kv_heads));
        }
        wide_ = i.imm;
        return Heads(i, s, s.n_kv_heads, keys_);
      case Epilogue::kValue:
        return Heads(i, s, s.n_kv_heads, values_);
      case Epilogue::kSiluGate: {
        if (i.fraction != 16) return Bad(fmt::format("gate fraction {}", i.fraction), "16");
        const uint64_t outputs = pack::RoundUp(i.rows / 2, i.group);
        if (outputs > s.widest) return Bad(fmt::format("{} gated values", outputs), "fewer");
        if (i.source == i.target) return Bad("source and target alike", "two buffers");
        return Write(i.target, static_cast<uint32_t>(outputs), i.group);
      }
      case Epilogue::kCandidates:
        if (i.valid_rows != s.vocab || i.rows < s.vocab)
          return Bad("a head of other size", "the vocabulary's");
        if (i.fraction != fixed::kLogitFraction) {
          return Bad(fmt::format("logit fraction {}", i.fraction),
                     fmt::format("{}", fixed::kLogitFraction));
        }
        SLUICE_TRY_VOID(InRange("candidates", i.heads, 1, 4096));
        if ((i.flags & kScreened) && i.planes != 2)
          return Bad("a screened head of one plane", "two");
        return {};
      case Epilogue::kNone:
        break;
    }
    return Bad(fmt::format("epilogue {}", static_cast<int>(i.epilogue)), "a known one");
  }

  // q, k or v of a layer. `next_layer` counts the layers that have it.
  base::Status Heads(const Instruction& i, const Sizes& s, uint32_t heads, uint32_t& next_layer) {
    if (i.heads != heads || i.head_dim != s.head_dim || i.rows != heads * s.head_dim) {
      return Bad(fmt::format("{} rows for {} heads of {}", i.rows, i.heads, i.head_dim),
                 fmt::format("{} heads of {}", heads, s.head_dim));
    }
    if (i.layer != next_layer || next_layer >= s.n_layers) {
      return Bad(fmt::format("layer {}", i.layer), fmt::format("layer {}", next_layer));
    }
    ++next_layer;
    if (i.flags & kHeadNorm) {
      if (i.epilogue == Epilogue::kValue) return Bad("a head norm on values", "none");
      SLUICE_TRY_VOID(Fraction("gain fraction", i.fraction2, -64, 64));
      return Inside("the head norm's gains", i.bias, uint64_t{i.head_dim} * 2);
    }
    return i.bias == 0 ? base::Status{} : Inside("the bias", i.bias, uint64_t{i.rows} * 4);
  }

  base::Status Attend(const Instruction& i, const Sizes& s) {
    SLUICE_TRY_VOID(Group(i));
    if (i.heads != s.n_heads || i.head_dim != s.head_dim) {
      return Bad(fmt::format("attention of {} heads of {}", i.heads, i.head_dim),
                 fmt::format("{} of {}", s.n_heads, s.head_dim));
    }
    const uint32_t done = i.layer + 1u;
    if (i.layer != attended_ || queries_ != done || keys_ != done || values_ != done) {
      return Bad(fmt::format("attention of layer {}", i.layer),
                 "q, k and v of that layer, and nothing later, before it");
    }
    // Nothing later than this layer's key instruction can have set the mask.
    if (i.imm != wide_) {
      return Bad(fmt::format("16-bit keys of heads {:#x}", i.imm),
                 fmt::format("{:#x}, as they were written", wide_));
    }
    ++attended_;
    if (i.cols != pack::RoundUp(uint64_t{s.n_heads} * s.head_dim, i.group) || i.cols > s.widest) {
      return Bad(fmt::format("{} columns", i.cols), "n_heads * head_dim, padded");
    }
    SLUICE_TRY_VOID(Fraction("score fraction", i.fraction2, 0, 8));
    SLUICE_TRY_VOID(Fraction("fraction", i.fraction, 0, 28));
    return Write(i.target, i.cols, i.group);
  }

  struct Written {
    uint32_t cols = 0;
    uint8_t group = 0;
  };

  std::span<const uint8_t> pack_;
  std::string object_;
  size_t index_ = 0;
  bool residual_ = false;
  std::array<Written, 2> written_;
  uint64_t wide_ = 0;  // heads with 16-bit keys, of the last key instruction
  uint32_t queries_ = 0, keys_ = 0, values_ = 0, attended_ = 0;
};

}  // namespace

std::string_view OpName(Op op) {
  switch (op) {
    case Op::kEnd:
      return "end";
    case Op::kModel:
      return "model";
    case Op::kEmbed:
      return "embed";
    case Op::kNorm:
      return "norm";
    case Op::kMatvec:
      return "matvec";
    case Op::kAttend:
      return "attend";
  }
  return "?";
}

std::string_view EpilogueName(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return "none";
    case Epilogue::kAddResidual:
      return "add_residual";
    case Epilogue::kQuery:
      return "query";
    case Epilogue::kKey:
      return "key";
    case Epilogue::kValue:
      return "value";
    case Epilogue::kSiluGate:
      return "silu_gate";
    case Epilogue::kCandidates:
      return "candidates";
  }
  return "?";
}

base::Result<Program> Program::Parse(std::span<const uint8_t> bytes, std::span<const uint8_t> pack,
                                     const std::string& object) {
  constexpr size_t kSize = sizeof(Instruction);
  const size_t count = bytes.size() / kSize;
  if (count < 4 || count > kMaxInstructions) {
    return base::Fail(object, fmt::format("a program of {} bytes", bytes.size()),
                      fmt::format("4 to {} instructions of 64", kMaxInstructions));
  }
  Program program;
  Checker checker(pack, object);
  bool ended = false;
  for (size_t index = 0; index < count && !ended; ++index) {
    Instruction instruction;
    std::memcpy(&instruction, bytes.data() + index * kSize, kSize);
    if ((index == 0) != (instruction.op == Op::kModel)) {
      return base::Fail(fmt::format("{}: instruction {}", object, index),
                        fmt::format("opcode {}", static_cast<int>(instruction.op)),
                        "the model's sizes first, and once");
    }
    program.stored_.push_back(instruction);
    if (instruction.op == Op::kEnd) {
      ended = true;
      break;
    }
    SLUICE_TRY_VOID(checker.Check(instruction, index, program.sizes_));
  }
  if (!ended) return base::Fail(object, "a program without end");
  const auto all = program.instructions();
  size_t heads = 0, attends = 0;
  for (const Instruction& i : all) {
    heads += i.op == Op::kMatvec && i.epilogue == Epilogue::kCandidates;
    attends += i.op == Op::kAttend;
  }
  if (all.empty() || heads != 1 || all.back().epilogue != Epilogue::kCandidates ||
      all.front().op != Op::kEmbed || attends != program.sizes_.n_layers) {
    return base::Fail(
        object,
        fmt::format("a program of {} instructions with {} heads and {} attentions", all.size(),
                    heads, attends),
        fmt::format("an embedding first, one head last, {} attentions", program.sizes_.n_layers));
  }
  program.sizes_.candidates = std::min<uint32_t>(all.back().heads, program.sizes_.vocab);
  return program;
}

uint64_t StreamedBytes(const Instruction& i) {
  if (i.op == Op::kNorm) return uint64_t{i.cols} * 2;
  if (i.op != Op::kMatvec && i.op != Op::kEmbed) return 0;
  const uint64_t header = pack::HeaderBytes(i.cols, i.group);
  const uint64_t plane = pack::PlaneBytes(i.cols);
  const uint64_t planes = (i.flags & kScreened) ? 1 : i.planes;
  // An embedding reads the one tile that holds the row.
  const uint64_t tiles = i.op == Op::kEmbed ? 1 : i.rows / pack::kTileRows;
  const uint64_t tables =
      1u + (i.bias != 0 && !(i.flags & kHeadNorm)) + (i.epilogue == Epilogue::kKey);
  return tiles * (header + planes * plane + tables * 4 * pack::kTileRows);
}

uint64_t Program::BytesPerToken() const {
  uint64_t bytes = 0;
  for (const Instruction& i : instructions()) bytes += StreamedBytes(i);
  return bytes;
}

uint64_t Program::KvBytesPerPosition() const {
  uint64_t bytes = 0;
  for (const Instruction& i : instructions()) {
    if (i.op != Op::kAttend) continue;
    const uint64_t wide = static_cast<uint64_t>(std::popcount(i.imm));
    bytes += sizes_.n_kv_heads * (2 * sizes_.head_dim + 2ull) + wide * sizes_.head_dim;
  }
  return bytes;
}

std::string Disassemble(const Instruction& i) {
  const auto buffer = [](Buffer b) { return b == Buffer::kA ? "A" : "B"; };
  const auto matrix = [&] {
    return fmt::format("{}x{} {} g{} @{:#x}", i.rows, i.cols,
                       i.planes == 2     ? "8-bit"
                       : i.codebook == 0 ? "4-bit"
                                         : "4-bit linear",
                       i.group, uint64_t{i.weights} * kLine);
  };
  switch (i.op) {
    case Op::kModel:
      return fmt::format(
          "model   hidden {} widest {} vocab {} layers {} heads {}/{} of {} context {} residual "
          "2^-{}",
          i.rows, i.cols, i.valid_rows, i.layer, i.heads, i.imm >> 32, i.head_dim,
          i.imm & 0xffffffff, i.fraction);
    case Op::kEmbed:
      return fmt::format("embed   residual <- {}", matrix());
    case Op::kNorm:
      return fmt::format("norm    {} <- residual, {} columns, gains 2^-{} @{:#x}, eps {}",
                         buffer(i.target), i.cols, i.fraction2, uint64_t{i.auxiliary} * kLine,
                         i.imm);
    case Op::kMatvec: {
      std::string target;
      switch (i.epilogue) {
        case Epilogue::kAddResidual:
          target = "residual +=";
          break;
        case Epilogue::kQuery:
          target = fmt::format("q.{} <-", i.layer);
          break;
        case Epilogue::kKey:
          target = fmt::format("K.{} <-", i.layer);
          break;
        case Epilogue::kValue:
          target = fmt::format("V.{} <-", i.layer);
          break;
        case Epilogue::kSiluGate:
          target = fmt::format("{} <- silu gate", buffer(i.target));
          break;
        default:
          target = fmt::format("best {} <-", i.heads);
      }
      std::string notes;
      if (i.flags & kHeadNorm) notes += " +head norm";
      if (i.bias != 0 && !(i.flags & kHeadNorm)) notes += " +bias";
      if (i.flags & kScreened) notes += " screened";
      if (i.epilogue == Epilogue::kKey && i.imm != 0) notes += fmt::format(" wide {:#x}", i.imm);
      return fmt::format("matvec  {} {} * {}, 2^-{}{}", target, matrix(), buffer(i.source),
                         i.fraction, notes);
    }
    case Op::kAttend:
      return fmt::format("attend  {} <- q over KV.{}, scores 2^-{}{}", buffer(i.target), i.layer,
                         i.fraction2, i.imm ? fmt::format(" wide {:#x}", i.imm) : "");
    case Op::kEnd:
      return "end";
  }
  return "?";
}

}  // namespace sluice::program
