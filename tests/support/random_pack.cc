#include "support/random_pack.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <vector>

#include "fixed/candidate.h"
#include "pack/layout.h"
#include "pack/pack.h"
#include "program/instruction.h"
#include "quant/quantized_matrix.h"

namespace sluice::testing {
namespace {

using pack::RoundUp;
using program::Buffer;
using program::Epilogue;
using program::Instruction;
using program::Op;

constexpr int kResidualFraction = 12;

class Writer {
 public:
  Writer(uint64_t seed, const RandomPackOptions& options) : random_(seed), o_(options) {}

  base::Status Write(const std::string& path) {
    Compile();
    Add(std::string(pack::kProgramTensor),
        std::vector<uint8_t>(RoundUp((program_.size() + 1) * sizeof(Instruction), 128)));
    std::vector<pack::PackWriter::TensorSize> sizes;
    for (const Tensor& tensor : tensors_) sizes.push_back({tensor.name, tensor.bytes.size()});
    model::Metadata metadata;
    metadata.Set("general.architecture", std::string("random"));
    SLUICE_TRY(auto writer, pack::PackWriter::Create(path, metadata, sizes));
    for (const Patch& patch : patches_) {
      const uint64_t offset = writer.OffsetOf(tensors_[patch.tensor].name) + patch.offset;
      program_[patch.instruction].*patch.field = static_cast<uint32_t>(offset / pack::kLineBytes);
    }
    std::memcpy(tensors_.back().bytes.data(), program_.data(),
                program_.size() * sizeof(Instruction));
    for (const Tensor& tensor : tensors_) {
      SLUICE_TRY_VOID(writer.Write(tensor.name, tensor.bytes));
    }
    return writer.Commit();
  }

 private:
  struct Tensor {
    std::string name;
    std::vector<uint8_t> bytes;
  };
  // A line number that is known only when all tensors are.
  struct Patch {
    size_t instruction;
    uint32_t Instruction::*field;
    size_t tensor;
    uint64_t offset;
  };

  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool noise() const { return o_.fill == Fill::kNoise; }
  uint32_t hidden() const { return static_cast<uint32_t>(RoundUp(o_.hidden, o_.group)); }

  size_t Add(std::string name, std::vector<uint8_t> bytes) {
    tensors_.push_back({std::move(name), std::move(bytes)});
    return tensors_.size() - 1;
  }

  template <typename T>
  size_t AddTable(const std::vector<T>& values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    if (noise()) {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(Draw(0, 255));
    }
    return Add(fmt::format("table.{}", tensors_.size()), std::move(bytes));
  }

  void Point(uint32_t Instruction::*field, size_t tensor, uint64_t offset = 0) {
    patches_.push_back({program_.size(), field, tensor, offset});
  }

  quant::QuantizedMatrix RandomMatrix(uint32_t rows, uint32_t cols, uint8_t bits, double unit) {
    quant::QuantizedMatrix m;
    m.format.bits = bits;
    m.format.group = o_.group;
    m.format.codebook = o_.linear ? quant::Codebook::kLinear : quant::Codebook::kSluice16;
    m.rows = rows;
    m.cols = cols;
    const auto groups = static_cast<int>(m.groups());
    const int most = std::min(127, quant::MaxSubScaleSum(m.format) / groups);
    const double level = bits == 8 ? 74 : o_.linear ? 4.6 : 8.2;
    // Rows whose outputs are about `unit` for inputs of about 1.
    const int exponent = static_cast<int>(
        std::lround(std::log2(level * 0.58 * most * 24000 * std::sqrt(double(cols)) / unit)));
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t c = 0; c < m.padded_cols(); ++c) {
        int weight = bits == 8 ? Draw(-136, 119) : Draw(0, 15);
        if (o_.fill == Fill::kLowest) weight = bits == 8 ? -136 : 0;
        if (o_.fill == Fill::kHighest) weight = bits == 8 ? 119 : 15;
        if (c >= cols) weight = bits == 8 ? 0 : quant::ZeroIndex(m.format.codebook);
        m.weights.push_back(static_cast<int16_t>(weight));
      }
      for (int g = 0; g < groups; ++g) {
        m.sub_scales.push_back(static_cast<int8_t>(Draw(-most, most)));
      }
      m.row_mantissa.push_back(static_cast<int16_t>(Draw(1 << 14, (1 << 15) - 1)));
      m.row_exponent.push_back(static_cast<int8_t>(exponent + Draw(-1, 1)));
    }
    return m;
  }

  struct Matrix {
    pack::Layout layout;
    size_t tensor;
  };

  Matrix AddMatrix(uint32_t rows, uint32_t cols, uint8_t bits, double unit, bool split,
                   bool has_bias) {
    const quant::QuantizedMatrix m = RandomMatrix(rows, cols, bits, unit);
    const pack::Layout layout = pack::MakeLayout(rows, cols, o_.group, bits / 4, split, has_bias);
    std::vector<pack::RowSource> sources;
    for (uint32_t r = 0; r < rows; ++r) sources.push_back({&m, r});
    std::vector<int32_t> bias;
    if (has_bias) {
      for (uint32_t r = 0; r < rows; ++r) bias.push_back(Draw(-(1 << 17), 1 << 17));
    }
    std::vector<uint8_t> bytes = pack::LayOut(layout, sources, bias);
    if (noise()) {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(Draw(0, 255));
    }
    return {layout, Add(fmt::format("matrix.{}", tensors_.size()), std::move(bytes))};
  }

  Instruction MatrixInstruction(Op op, const Matrix& m) {
    Instruction i;
    i.op = op;
    i.group = o_.group;
    i.planes = static_cast<uint8_t>(m.layout.planes);
    i.codebook = static_cast<uint8_t>(o_.linear && m.layout.planes == 1);
    i.rows = m.layout.rows;
    i.cols = m.layout.cols;
    i.tile_stride = m.layout.tile_stride;
    i.low_stride = m.layout.low_stride;
    Point(&Instruction::weights, m.tensor);
    if (m.layout.planes == 2) Point(&Instruction::low, m.tensor, m.layout.low_offset);
    Point(&Instruction::row_table, m.tensor, m.layout.row_table);
    if (m.layout.bias_table != 0) Point(&Instruction::bias, m.tensor, m.layout.bias_table);
    return i;
  }

  size_t AddGains(uint32_t n, uint32_t padded, int8_t& fraction) {
    fraction = static_cast<int8_t>(14 - std::lround(std::log2(std::sqrt(double(n)))));
    std::vector<int16_t> gains(padded);
    for (uint32_t c = 0; c < n; ++c) gains[c] = static_cast<int16_t>(Draw(2000, 32767));
    if (o_.fill == Fill::kOutlier) {
      for (uint32_t c = 0; c < n; ++c) gains[c] = static_cast<int16_t>(c == n / 3 ? 32000 : 32);
    }
    return AddTable(gains);
  }

  void AddNorm() {
    Instruction i;
    i.op = Op::kNorm;
    i.group = o_.group;
    i.cols = hidden();
    const size_t gains = AddGains(o_.hidden, hidden(), i.fraction2);
    Point(&Instruction::auxiliary, gains);
    i.imm = noise() ? uint64_t{1} << Draw(0, 60)
                    : static_cast<uint64_t>(o_.hidden * 1e-5 * (1 << (2 * kResidualFraction)));
    program_.push_back(i);
  }

  void AddHeads(uint32_t layer, Epilogue epilogue, uint32_t heads, uint64_t wide) {
    const bool norm = o_.head_norm && epilogue != Epilogue::kValue;
    const bool bits8 = o_.k_and_v8 && epilogue != Epilogue::kQuery;
    const double unit = epilogue == Epilogue::kQuery ? 1.44 / std::sqrt(double(o_.head_dim)) : 1;
    const Matrix m =
        AddMatrix(heads * o_.head_dim, o_.hidden, bits8 ? 8 : 4, unit, false, o_.bias && !norm);
    Instruction i = MatrixInstruction(Op::kMatvec, m);
    i.epilogue = epilogue;
    i.layer = static_cast<uint16_t>(layer);
    i.heads = static_cast<uint16_t>(heads);
    i.head_dim = static_cast<uint16_t>(o_.head_dim);
    i.fraction = 16;
    if (norm) {
      i.flags |= program::kHeadNorm;
      const size_t gains = AddGains(o_.head_dim, o_.head_dim, i.fraction2);
      Point(&Instruction::bias, gains);
      i.valid_rows = noise() ? 0xffffffffu : o_.head_dim * 43000u;
    }
    if (epilogue == Epilogue::kKey) {
      std::vector<int32_t> means(heads * o_.head_dim);
      for (int32_t& mean : means) mean = Draw(-(1 << 16), 1 << 16);
      Point(&Instruction::auxiliary, AddTable(means));
      i.imm = wide;
    }
    program_.push_back(i);
  }

  void AddResidual(uint32_t cols) {
    const Matrix m = AddMatrix(o_.hidden, cols, o_.down8 ? 8 : 4, 1, false, false);
    Instruction i = MatrixInstruction(Op::kMatvec, m);
    i.epilogue = Epilogue::kAddResidual;
    i.source = Buffer::kB;
    i.fraction = kResidualFraction;
    program_.push_back(i);
  }

  void AddLayer(uint32_t layer) {
    uint64_t wide = 0;
    for (uint32_t h = 0; h < o_.n_kv_heads; ++h) {
      wide |= ((o_.wide >> ((layer * o_.n_kv_heads + h) % 64)) & 1) << h;
    }
    AddNorm();
    AddHeads(layer, Epilogue::kQuery, o_.n_heads, 0);
    AddHeads(layer, Epilogue::kKey, o_.n_kv_heads, wide);
    AddHeads(layer, Epilogue::kValue, o_.n_kv_heads, 0);
    Instruction attend;
    attend.op = Op::kAttend;
    attend.target = Buffer::kB;
    attend.group = o_.group;
    attend.cols = static_cast<uint32_t>(RoundUp(uint64_t{o_.n_heads} * o_.head_dim, o_.group));
    attend.layer = static_cast<uint16_t>(layer);
    attend.heads = static_cast<uint16_t>(o_.n_heads);
    attend.head_dim = static_cast<uint16_t>(o_.head_dim);
    attend.fraction = 16;
    attend.fraction2 = static_cast<int8_t>(Draw(0, 8));
    attend.imm = wide;
    program_.push_back(attend);
    AddResidual(o_.n_heads * o_.head_dim);
    AddNorm();
    const Matrix m = AddMatrix(2 * o_.ffn, o_.hidden, 4, 2, false, false);
    Instruction gate = MatrixInstruction(Op::kMatvec, m);
    gate.epilogue = Epilogue::kSiluGate;
    gate.target = Buffer::kB;
    gate.fraction = 16;
    program_.push_back(gate);
    // As many columns as the gate has outputs.
    AddResidual(gate.rows / 2);
  }

  void AddModel() {
    Instruction i;
    i.op = Op::kModel;
    i.rows = hidden();
    i.cols = static_cast<uint32_t>(
        std::max<uint64_t>({hidden(), RoundUp(uint64_t{o_.n_heads} * o_.head_dim, o_.group),
                            RoundUp(RoundUp(2 * uint64_t{o_.ffn}, 16) / 2, o_.group)}));
    i.valid_rows = o_.vocab;
    i.layer = static_cast<uint16_t>(o_.n_layers);
    i.heads = static_cast<uint16_t>(o_.n_heads);
    i.head_dim = static_cast<uint16_t>(o_.head_dim);
    i.fraction = kResidualFraction;
    i.imm = o_.context | uint64_t{o_.n_kv_heads} << 32;
    std::vector<int16_t> rope;
    for (uint32_t pair = 0; pair < o_.context * o_.head_dim / 2; ++pair) {
      const double angle = Draw(0, 9999) * 1e-3;
      rope.push_back(static_cast<int16_t>(std::lround(std::cos(angle) * 16384)));
      rope.push_back(static_cast<int16_t>(std::lround(std::sin(angle) * 16384)));
    }
    Point(&Instruction::auxiliary, AddTable(rope));
    program_.push_back(i);
  }

  void Compile() {
    // No table may stand at line 0, which means none; the header does.
    AddModel();
    const uint8_t bits = o_.head8 ? 8 : 4;
    const Matrix table =
        AddMatrix(o_.vocab, o_.hidden, bits, std::sqrt(double(o_.hidden)), o_.screened, false);
    Instruction embed = MatrixInstruction(Op::kEmbed, table);
    embed.valid_rows = o_.vocab;
    embed.fraction = kResidualFraction;
    program_.push_back(embed);
    for (uint32_t layer = 0; layer < o_.n_layers; ++layer) AddLayer(layer);
    AddNorm();
    const Matrix head_table =
        o_.tied ? table : AddMatrix(o_.vocab, o_.hidden, bits, 3, o_.screened, false);
    Instruction head = MatrixInstruction(Op::kMatvec, head_table);
    head.epilogue = Epilogue::kCandidates;
    head.valid_rows = o_.vocab;
    head.fraction = fixed::kLogitFraction;
    head.heads = o_.candidates;
    if (o_.screened) head.flags |= program::kScreened;
    program_.push_back(head);
  }

  std::mt19937_64 random_;
  const RandomPackOptions& o_;
  std::vector<Tensor> tensors_;
  std::vector<Instruction> program_;
  std::vector<Patch> patches_;
};

[[noreturn]] void Abort(const base::Error& error) {
  std::fprintf(stderr, "random pack: %s\n", error.ToString().c_str());
  std::abort();
}

}  // namespace

RandomPackOptions DrawOptions(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  RandomPackOptions o;
  o.n_layers = draw(1, 3);
  o.hidden = draw(40, 200);
  o.ffn = draw(40, 300);
  o.n_kv_heads = draw(1, 3);
  o.n_heads = o.n_kv_heads * draw(1, 7);
  o.head_dim = 16 * draw(1, 5);
  o.vocab = draw(30, 500);
  o.context = draw(70, 90);
  o.group = draw(0, 1) ? 32 : 64;
  o.linear = draw(0, 3) == 0;
  o.k_and_v8 = draw(0, 3) != 0;
  o.down8 = draw(0, 3) == 0;
  o.head8 = draw(0, 3) != 0;
  o.screened = o.head8 && draw(0, 2) != 0;
  o.tied = draw(0, 1) != 0;
  o.head_norm = draw(0, 2) == 0;
  o.bias = draw(0, 1) != 0;
  o.candidates = static_cast<uint16_t>(draw(1, 64));
  o.wide = draw(0, 2) == 0 ? 0 : (uint64_t{random()} & random());
  return o;
}

std::string Describe(const RandomPackOptions& o) {
  return fmt::format(
      "layers {} hidden {} ffn {} heads {}/{} of {} vocab {} group {} linear {} kv8 {} down8 {} "
      "head8 {} screened {} tied {} head norm {} bias {} candidates {} wide {:#x} fill {}",
      o.n_layers, o.hidden, o.ffn, o.n_heads, o.n_kv_heads, o.head_dim, o.vocab, o.group, o.linear,
      o.k_and_v8, o.down8, o.head8, o.screened, o.tied, o.head_norm, o.bias, o.candidates, o.wide,
      static_cast<int>(o.fill));
}

base::Status WriteRandomPack(uint64_t seed, const RandomPackOptions& options,
                             const std::string& path) {
  return Writer(seed, options).Write(path);
}

program::LoadedPack MakeRandomPack(uint64_t seed, const RandomPackOptions& options) {
  static int count = 0;
  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("sluice-random-{}-{}.pack", ::getpid(), count++);
  if (auto status = WriteRandomPack(seed, options, path); !status) Abort(status.error());
  auto loaded = program::LoadPack(path);
  std::filesystem::remove(path);
  if (!loaded) Abort(loaded.error());
  return *std::move(loaded);
}

}  // namespace sluice::testing
