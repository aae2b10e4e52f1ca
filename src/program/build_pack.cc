#include "program/build_pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>
#include <optional>

#include "base/check.h"
#include "fixed/candidate.h"
#include "pack/layout.h"
#include "pack/pack.h"
#include "program/instruction.h"
#include "program/program.h"

namespace sluice::program {
namespace {

using model::Role;
using pack::Layout;
using pack::RoundUp;

constexpr int kActivationFraction = 16;  // q, k, v, gate, up, attention output
constexpr uint16_t kCandidateCount = 64;
constexpr uint16_t kScreenedCandidateCount = 128;

constexpr std::string_view kRopeTensor = "sluice.rope";
constexpr std::string_view kKeyMeansTensor = "sluice.key_means";

int32_t ToFixed(double value, int fraction) {
  return static_cast<int32_t>(
      std::clamp(std::round(std::ldexp(value, fraction)), -2147483648.0, 2147483647.0));
}

template <typename T>
std::span<const uint8_t> Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

// Position in the packed head of element c of a head of d: RoPE pairs (c, c + d/2) side by side.
uint32_t PairPosition(uint32_t c, uint32_t d) { return c < d / 2 ? 2 * c : 2 * (c - d / 2) + 1; }
// The inverse.
uint32_t FromPair(uint32_t position, uint32_t d) {
  return position / 2 + (position % 2 ? d / 2 : 0);
}

// int16 gains times `factor`, and the fraction that uses their range.
struct Gains {
  std::vector<int16_t> values;
  int8_t fraction = 0;
};
Gains MakeGains(std::span<const float> gain, double factor, size_t padded) {
  double largest = 0;
  for (const float g : gain) largest = std::max(largest, std::abs(g * factor));
  Gains result;
  result.values.resize(padded);
  if (largest == 0) return result;
  // largest * 2^fraction in [2^14, 2^15), kept below 32767.5.
  int exponent = 0;
  std::frexp(largest, &exponent);
  result.fraction = static_cast<int8_t>(std::clamp(15 - exponent, -64, 64));
  for (size_t i = 0; i < gain.size(); ++i) {
    const double value = std::round(std::ldexp(gain[i] * factor, result.fraction));
    result.values[i] = static_cast<int16_t>(std::clamp(value, -32767.0, 32767.0));
  }
  return result;
}

class Builder {
 public:
  Builder(const model::Model& model, const BuildOptions& options)
      : model_(model), h_(model.hyper), options_(options), recipe_(options.quantize.recipe) {}

  base::Result<BuildSummary> Build(const std::string& path);

 private:
  // One matrix of the pack. gate and up are one, under the name of gate.
  struct Matrix {
    Role role;
    uint32_t layer;
    std::string tensor;
    Layout layout;
    quant::MatrixFormat format;
  };

  base::Status Check() const;
  void PlanTensors();
  void AddMatrix(Role role, uint32_t layer, std::string tensor, uint64_t rows, uint64_t cols,
                 bool split_planes, bool has_bias);
  void AddTable(std::string tensor, uint64_t bytes) {
    sizes_.push_back({std::move(tensor), bytes});
  }
  model::Metadata MakeMetadata() const;
  base::Status WriteNorm(Role role, uint32_t layer, std::span<const float> scales);
  base::Status WriteNorms(const quant::Calibration& calibration);
  base::Status WriteHeadNorm(Role role, uint32_t layer, double factor);
  base::Status WriteRope();
  base::Status Consume(Role role, uint32_t layer, quant::QuantizedMatrix matrix,
                       std::span<const float> row_scales);
  base::Status WriteMatrix(Role role, uint32_t layer, std::span<const pack::RowSource> rows,
                           std::span<const int32_t> bias);
  base::Status WriteHeads(Role role, uint32_t layer, quant::QuantizedMatrix matrix,
                          std::span<const float> row_scales);
  base::Result<std::vector<float>> ReadVector(Role role, uint32_t layer) const;
  base::Status WriteKeyMeans(const quant::Calibration& calibration);
  std::vector<Instruction> Compile(const quant::Calibration& calibration) const;
  Instruction MatrixInstruction(Op op, Role role, uint32_t layer) const;
  Instruction NormInstruction(Role role, uint32_t layer, int residual_fraction) const;
  uint32_t Line(std::string_view tensor, uint64_t offset = 0) const;

  uint32_t hidden() const { return static_cast<uint32_t>(RoundUp(h_.hidden, recipe_.group)); }
  uint32_t attention() const {
    return static_cast<uint32_t>(RoundUp(uint64_t{h_.n_heads} * h_.head_dim, recipe_.group));
  }
  uint32_t ffn() const { return static_cast<uint32_t>(RoundUp(h_.ffn, recipe_.group)); }
  uint32_t context() const {
    return options_.context != 0 ? std::min(options_.context, kMaxContext)
                                 : std::min(h_.context, kDefaultMaxContext);
  }
  Role head_role() const { return h_.tied ? Role::kEmbedding : Role::kHead; }
  // Softmax in base 2 with the usual 1/sqrt(d): folded into q.
  double query_factor() const { return std::numbers::log2e / std::sqrt(h_.head_dim); }
  // Of a head norm: head_dim * epsilon in the square of the unit of q and k.
  double HeadEpsilon() const {
    return std::round(std::ldexp(double{h_.rms_eps} * h_.head_dim, 2 * kActivationFraction));
  }
  static std::string LayerTensor(uint32_t layer, std::string_view name) {
    return fmt::format("blk.{}.{}", layer, name);
  }

  const model::Model& model_;
  const model::Hyper& h_;
  const BuildOptions& options_;
  const quant::Recipe& recipe_;
  std::vector<pack::PackWriter::TensorSize> sizes_;
  std::map<std::pair<Role, uint32_t>, Matrix> matrices_;
  std::map<std::pair<Role, uint32_t>, int8_t> gain_fractions_;
  std::optional<quant::QuantizedMatrix> gate_;  // waits for up
  std::optional<pack::PackWriter> writer_;
};

base::Status Builder::Check() const {
  if (h_.head_dim % 16 != 0) {
    return base::Fail(model_.name, fmt::format("heads of {}", h_.head_dim), "a multiple of 16");
  }
  if (h_.n_kv_heads > 64) {
    return base::Fail(model_.name, fmt::format("{} KV heads", h_.n_kv_heads), "at most 64");
  }
  if (h_.family->qk_norm && HeadEpsilon() >= 4294967296.0) {
    return base::Fail(model_.name,
                      fmt::format("RMSNorm epsilon {} for heads of {}", h_.rms_eps, h_.head_dim),
                      fmt::format("less than {}", 1.0 / h_.head_dim));
  }
  for (uint32_t layer = 0; layer < h_.n_layers; ++layer) {
    if (recipe_.FormatOf(Role::kGate, layer, h_) != recipe_.FormatOf(Role::kUp, layer, h_)) {
      return base::Fail(fmt::format("recipe {}: layer {}", recipe_.name, layer),
                        "gate and up of different formats", "one, as they share tiles");
    }
  }
  return quant::CheckRecipe(recipe_, h_);
}

void Builder::AddMatrix(Role role, uint32_t layer, std::string tensor, uint64_t rows, uint64_t cols,
                        bool split_planes, bool has_bias) {
  const quant::MatrixFormat format = recipe_.FormatOf(role, layer, h_);
  const Layout layout =
      pack::MakeLayout(rows, cols, format.group, format.bits / 4, split_planes, has_bias);
  sizes_.push_back({tensor, layout.bytes});
  matrices_.emplace(std::pair(role, layer), Matrix{role, layer, std::move(tensor), layout, format});
}

// The tensors in the order in which a token reads them.
void Builder::PlanTensors() {
  const uint64_t kv = uint64_t{h_.n_kv_heads} * h_.head_dim;
  const uint64_t q = uint64_t{h_.n_heads} * h_.head_dim;
  const bool bias = h_.family->qkv_bias;
  // kModel, embed, 9 instructions a layer, norm, head, end.
  AddTable(std::string(pack::kProgramTensor),
           RoundUp((5 + 9 * uint64_t{h_.n_layers}) * sizeof(Instruction), pack::kLineBytes));
  AddTable(std::string(kRopeTensor), uint64_t{context()} * h_.head_dim * 2);
  AddTable(std::string(kKeyMeansTensor), h_.n_layers * RoundUp(kv * 4, pack::kLineBytes));
  if (!h_.tied) {
    AddMatrix(Role::kEmbedding, 0, "token_embd.weight", h_.vocab, h_.hidden, false, false);
  }
  for (uint32_t layer = 0; layer < h_.n_layers; ++layer) {
    AddTable(LayerTensor(layer, "attn_norm.weight"), uint64_t{hidden()} * 2);
    if (h_.family->qk_norm) {
      AddTable(LayerTensor(layer, "attn_q_norm.weight"), uint64_t{h_.head_dim} * 2);
      AddTable(LayerTensor(layer, "attn_k_norm.weight"), uint64_t{h_.head_dim} * 2);
    }
    AddMatrix(Role::kQ, layer, LayerTensor(layer, "attn_q.weight"), q, h_.hidden, false, bias);
    AddMatrix(Role::kK, layer, LayerTensor(layer, "attn_k.weight"), kv, h_.hidden, false, bias);
    AddMatrix(Role::kV, layer, LayerTensor(layer, "attn_v.weight"), kv, h_.hidden, false, bias);
    AddMatrix(Role::kO, layer, LayerTensor(layer, "attn_output.weight"), h_.hidden, q, false,
              false);
    AddTable(LayerTensor(layer, "ffn_norm.weight"), uint64_t{hidden()} * 2);
    AddMatrix(Role::kGate, layer, LayerTensor(layer, "ffn_gate_up.weight"), 2 * uint64_t{h_.ffn},
              h_.hidden, false, false);
    AddMatrix(Role::kDown, layer, LayerTensor(layer, "ffn_down.weight"), h_.hidden, h_.ffn, false,
              false);
  }
  AddTable("output_norm.weight", uint64_t{hidden()} * 2);
  AddMatrix(head_role(), 0, h_.tied ? "token_embd.weight" : "output.weight", h_.vocab, h_.hidden,
            recipe_.screen_head, false);
}

model::Metadata Builder::MakeMetadata() const {
  model::Metadata metadata = model_.metadata;
  metadata.Set(std::string(pack::kRecipeKey), recipe_.name);
  metadata.Set("sluice.group", static_cast<uint32_t>(recipe_.group));
  metadata.Set("sluice.calibration_tokens", uint64_t{0});
  // The error report, known when all is packed: tensors in the quantiser's order.
  const size_t matrices = (h_.tied ? 1 : 2) + size_t{7} * h_.n_layers;
  std::vector<std::string> names;
  const auto name = [&](Role role, uint32_t layer) {
    const bool global = role == Role::kEmbedding || role == Role::kHead;
    names.push_back(global ? std::string(model::RoleName(role))
                           : fmt::format("{}.{}", layer, model::RoleName(role)));
  };
  name(Role::kEmbedding, 0);
  if (!h_.tied) name(Role::kHead, 0);
  for (uint32_t layer = 0; layer < h_.n_layers; ++layer) {
    for (const Role role :
         {Role::kQ, Role::kK, Role::kV, Role::kO, Role::kGate, Role::kUp, Role::kDown}) {
      name(role, layer);
    }
  }
  SLUICE_CHECK(names.size() == matrices);
  metadata.Set("sluice.report.matrix", std::move(names));
  metadata.Set("sluice.report.bits", std::vector<uint8_t>(matrices));
  metadata.Set("sluice.report.output_error", std::vector<float>(matrices));
  metadata.Set("sluice.report.weight_error", std::vector<float>(matrices));
  return metadata;
}

base::Result<std::vector<float>> Builder::ReadVector(Role role, uint32_t layer) const {
  std::vector<float> values = model_.ReadAll(role, layer);
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return base::Fail(
          fmt::format("{}: tensor {} of layer {}", model_.name, model::RoleName(role), layer),
          fmt::format("{} at element {}", values[i], i), "finite numbers");
    }
  }
  return values;
}

base::Status Builder::WriteNorm(Role role, uint32_t layer, std::span<const float> scales) {
  SLUICE_TRY(auto gain, ReadVector(role, layer));
  for (size_t i = 0; i < scales.size(); ++i) gain[i] /= scales[i];
  // RMSNorm divides by the root of the mean; the executors' of the sum.
  const Gains gains = MakeGains(gain, std::sqrt(static_cast<double>(h_.hidden)), hidden());
  gain_fractions_[{role, layer}] = gains.fraction;
  const std::string tensor = role == Role::kOutputNorm ? "output_norm.weight"
                             : role == Role::kAttnNorm ? LayerTensor(layer, "attn_norm.weight")
                                                       : LayerTensor(layer, "ffn_norm.weight");
  return writer_->Write(tensor, Bytes(gains.values));
}

base::Status Builder::WriteNorms(const quant::Calibration& calibration) {
  for (uint32_t layer = 0; layer < h_.n_layers; ++layer) {
    const auto scales_of = [&](const std::vector<std::vector<float>>& scales) {
      return scales.empty() ? std::span<const float>() : std::span(scales[layer]);
    };
    SLUICE_TRY_VOID(WriteNorm(Role::kAttnNorm, layer, scales_of(calibration.attn_scales)));
    SLUICE_TRY_VOID(WriteNorm(Role::kFfnNorm, layer, scales_of(calibration.ffn_scales)));
    if (h_.family->qk_norm) {
      SLUICE_TRY_VOID(WriteHeadNorm(Role::kQNorm, layer, query_factor()));
      SLUICE_TRY_VOID(WriteHeadNorm(Role::kKNorm, layer, 1.0));
    }
  }
  return WriteNorm(Role::kOutputNorm, 0, {});
}

base::Status Builder::WriteHeadNorm(Role role, uint32_t layer, double factor) {
  SLUICE_TRY(const auto gain, ReadVector(role, layer));
  std::vector<float> pairs(gain.size());
  for (uint32_t c = 0; c < h_.head_dim; ++c) pairs[PairPosition(c, h_.head_dim)] = gain[c];
  const Gains gains = MakeGains(pairs, std::sqrt(h_.head_dim) * factor, h_.head_dim);
  gain_fractions_[{role, layer}] = gains.fraction;
  return writer_->Write(
      LayerTensor(layer, role == Role::kQNorm ? "attn_q_norm.weight" : "attn_k_norm.weight"),
      Bytes(gains.values));
}

base::Status Builder::WriteRope() {
  std::vector<int16_t> table;
  table.reserve(uint64_t{context()} * h_.head_dim);
  for (uint32_t position = 0; position < context(); ++position) {
    for (uint32_t pair = 0; pair < h_.head_dim / 2; ++pair) {
      const double factor = h_.rope_factors.empty() ? 1.0 : h_.rope_factors[pair];
      const double angle = position * std::pow(h_.rope_base, -2.0 * pair / h_.head_dim) / factor;
      const double one = 1 << kRopeFraction;
      table.push_back(static_cast<int16_t>(std::round(std::cos(angle) * one)));
      table.push_back(static_cast<int16_t>(std::round(std::sin(angle) * one)));
    }
  }
  return writer_->Write(kRopeTensor, Bytes(table));
}

base::Status Builder::WriteMatrix(Role role, uint32_t layer, std::span<const pack::RowSource> rows,
                                  std::span<const int32_t> bias) {
  const Matrix& matrix = matrices_.at({role, layer});
  return writer_->Write(matrix.tensor, pack::LayOut(matrix.layout, rows, bias));
}

// q, k, v: rows of a head in RoPE pairs (v as it is), biases beside them.
base::Status Builder::WriteHeads(Role role, uint32_t layer, quant::QuantizedMatrix matrix,
                                 std::span<const float> row_scales) {
  const uint32_t d = h_.head_dim;
  const bool head_norm = h_.family->qk_norm;
  // A head norm undoes any scale before it, so there the factor goes into its gains.
  const double factor = role == Role::kQ && !head_norm ? query_factor() : 1.0;
  if (factor != 1.0) quant::MultiplyScale(matrix, factor);
  std::vector<float> float_bias;
  if (h_.family->qkv_bias) {
    const Role bias_role = role == Role::kQ   ? Role::kQBias
                           : role == Role::kK ? Role::kKBias
                                              : Role::kVBias;
    SLUICE_TRY(float_bias, ReadVector(bias_role, layer));
    for (size_t i = 0; i < row_scales.size(); ++i) float_bias[i] /= row_scales[i];
  }
  std::vector<pack::RowSource> rows;
  std::vector<int32_t> bias;
  for (uint32_t packed = 0; packed < matrix.rows; ++packed) {
    const uint32_t source = role == Role::kV ? packed : packed / d * d + FromPair(packed % d, d);
    rows.push_back({&matrix, source});
    if (!float_bias.empty())
      bias.push_back(ToFixed(float_bias[source] * factor, kActivationFraction));
  }
  return WriteMatrix(role, layer, rows, bias);
}

base::Status Builder::Consume(Role role, uint32_t layer, quant::QuantizedMatrix matrix,
                              std::span<const float> row_scales) {
  switch (role) {
    case Role::kQ:
    case Role::kK:
    case Role::kV:
      return WriteHeads(role, layer, std::move(matrix), row_scales);
    case Role::kGate:
      gate_ = std::move(matrix);
      return {};
    case Role::kUp: {
      SLUICE_CHECK(gate_.has_value() && gate_->rows == matrix.rows);
      std::vector<pack::RowSource> rows;
      for (uint32_t row = 0; row < matrix.rows; ++row) {
        rows.push_back({&*gate_, row});
        rows.push_back({&matrix, row});
      }
      const auto status = WriteMatrix(Role::kGate, layer, rows, {});
      gate_.reset();
      return status;
    }
    default: {
      std::vector<pack::RowSource> rows;
      for (uint32_t row = 0; row < matrix.rows; ++row) rows.push_back({&matrix, row});
      return WriteMatrix(role, layer, rows, {});
    }
  }
}

base::Status Builder::WriteKeyMeans(const quant::Calibration& calibration) {
  const uint32_t d = h_.head_dim;
  const uint32_t kv = h_.n_kv_heads * d;
  const uint64_t stride = RoundUp(uint64_t{kv} * 4, pack::kLineBytes) / 4;
  std::vector<int32_t> means(h_.n_layers * stride);
  for (uint32_t layer = 0; layer < h_.n_layers; ++layer) {
    for (uint32_t i = 0; i < kv; ++i) {
      means[layer * stride + i / d * d + PairPosition(i % d, d)] =
          ToFixed(calibration.k_mean[uint64_t{layer} * kv + i], kActivationFraction);
    }
  }
  return writer_->Write(kKeyMeansTensor, Bytes(means));
}

uint32_t Builder::Line(std::string_view tensor, uint64_t offset) const {
  const uint64_t byte = writer_->OffsetOf(tensor) + offset;
  SLUICE_CHECK(byte % pack::kLineBytes == 0);
  return static_cast<uint32_t>(byte / pack::kLineBytes);
}

Instruction Builder::MatrixInstruction(Op op, Role role, uint32_t layer) const {
  const Matrix& matrix = matrices_.at({role, layer});
  const Layout& layout = matrix.layout;
  Instruction i;
  i.op = op;
  i.group = static_cast<uint8_t>(layout.group);
  i.planes = static_cast<uint8_t>(layout.planes);
  i.codebook = static_cast<uint8_t>(matrix.format.codebook);
  i.rows = layout.rows;
  i.cols = layout.cols;
  i.weights = Line(matrix.tensor);
  i.tile_stride = layout.tile_stride;
  if (layout.planes == 2) {
    i.low = Line(matrix.tensor, layout.low_offset);
    i.low_stride = layout.low_stride;
  }
  i.row_table = Line(matrix.tensor, layout.row_table);
  if (layout.bias_table != 0) i.bias = Line(matrix.tensor, layout.bias_table);
  i.layer = static_cast<uint16_t>(layer);
  i.fraction = kActivationFraction;
  return i;
}

Instruction Builder::NormInstruction(Role role, uint32_t layer, int residual_fraction) const {
  Instruction i;
  i.op = Op::kNorm;
  i.target = Buffer::kA;
  i.group = recipe_.group;
  i.cols = hidden();
  i.auxiliary = Line(role == Role::kOutputNorm ? "output_norm.weight"
                     : role == Role::kAttnNorm ? LayerTensor(layer, "attn_norm.weight")
                                               : LayerTensor(layer, "ffn_norm.weight"));
  i.layer = static_cast<uint16_t>(layer);
  i.fraction2 = gain_fractions_.at({role, layer});
  i.imm = static_cast<uint64_t>(
      std::round(std::ldexp(double(h_.hidden) * h_.rms_eps, 2 * residual_fraction)));
  return i;
}

std::vector<Instruction> Builder::Compile(const quant::Calibration& calibration) const {
  // Two bits of headroom over what calibration saw; 14 bits suit every model seen so far.
  int residual_fraction = 14;
  if (calibration.max_residual > 0) {
    int exponent = 0;
    std::frexp(calibration.max_residual, &exponent);
    residual_fraction = std::clamp(31 - 2 - exponent, 8, 20);
  }
  std::vector<Instruction> program;

  Instruction sizes;
  sizes.op = Op::kModel;
  sizes.group = recipe_.group;
  sizes.rows = hidden();
  sizes.cols = std::max({hidden(), attention(), ffn()});
  sizes.auxiliary = Line(kRopeTensor);
  sizes.valid_rows = h_.vocab;
  sizes.layer = static_cast<uint16_t>(h_.n_layers);
  sizes.heads = static_cast<uint16_t>(h_.n_heads);
  sizes.head_dim = static_cast<uint16_t>(h_.head_dim);
  sizes.fraction = static_cast<int8_t>(residual_fraction);
  sizes.imm = context() | uint64_t{h_.n_kv_heads} << 32;
  program.push_back(sizes);

  Instruction embed = MatrixInstruction(Op::kEmbed, Role::kEmbedding, 0);
  embed.valid_rows = h_.vocab;
  embed.fraction = static_cast<int8_t>(residual_fraction);
  program.push_back(embed);

  const auto heads = [&](Role role, uint32_t layer, Epilogue epilogue, uint32_t count) {
    Instruction i = MatrixInstruction(Op::kMatvec, role, layer);
    i.epilogue = epilogue;
    i.heads = static_cast<uint16_t>(count);
    i.head_dim = static_cast<uint16_t>(h_.head_dim);
    if (h_.family->qk_norm && role != Role::kV) {
      const bool query = role == Role::kQ;
      i.flags |= kHeadNorm;
      i.bias = Line(LayerTensor(layer, query ? "attn_q_norm.weight" : "attn_k_norm.weight"));
      i.fraction2 = gain_fractions_.at({query ? Role::kQNorm : Role::kKNorm, layer});
      i.valid_rows = static_cast<uint32_t>(HeadEpsilon());
    }
    return i;
  };
  const auto add_residual = [&](Role role, uint32_t layer) {
    Instruction i = MatrixInstruction(Op::kMatvec, role, layer);
    i.epilogue = Epilogue::kAddResidual;
    i.source = Buffer::kB;
    i.fraction = static_cast<int8_t>(residual_fraction);
    return i;
  };
  const uint64_t mean_stride = RoundUp(uint64_t{h_.n_kv_heads} * h_.head_dim * 4, pack::kLineBytes);
  for (uint32_t layer = 0; layer < h_.n_layers; ++layer) {
    uint64_t wide = 0;
    for (uint32_t head = 0; head < h_.n_kv_heads; ++head) {
      const bool flagged = calibration.k_wide[uint64_t{layer} * h_.n_kv_heads + head] != 0;
      wide |= uint64_t{flagged} << head;
    }
    program.push_back(NormInstruction(Role::kAttnNorm, layer, residual_fraction));
    program.push_back(heads(Role::kQ, layer, Epilogue::kQuery, h_.n_heads));
    Instruction key = heads(Role::kK, layer, Epilogue::kKey, h_.n_kv_heads);
    key.auxiliary = Line(kKeyMeansTensor, layer * mean_stride);
    key.imm = wide;
    program.push_back(key);
    program.push_back(heads(Role::kV, layer, Epilogue::kValue, h_.n_kv_heads));

    Instruction attend;
    attend.op = Op::kAttend;
    attend.target = Buffer::kB;
    attend.group = recipe_.group;
    attend.cols = attention();
    attend.layer = static_cast<uint16_t>(layer);
    attend.heads = static_cast<uint16_t>(h_.n_heads);
    attend.head_dim = static_cast<uint16_t>(h_.head_dim);
    attend.fraction = kActivationFraction;
    // Scores in 16 bits with two bits of headroom over what calibration saw.
    attend.fraction2 = 6;
    if (calibration.max_score[layer] > 0) {
      int exponent = 0;
      std::frexp(calibration.max_score[layer], &exponent);
      attend.fraction2 = static_cast<int8_t>(std::clamp(15 - 2 - exponent, 0, 8));
    }
    attend.imm = wide;
    program.push_back(attend);
    program.push_back(add_residual(Role::kO, layer));

    program.push_back(NormInstruction(Role::kFfnNorm, layer, residual_fraction));
    Instruction gate = MatrixInstruction(Op::kMatvec, Role::kGate, layer);
    gate.epilogue = Epilogue::kSiluGate;
    gate.target = Buffer::kB;
    program.push_back(gate);
    program.push_back(add_residual(Role::kDown, layer));
  }
  program.push_back(NormInstruction(Role::kOutputNorm, 0, residual_fraction));
  Instruction head = MatrixInstruction(Op::kMatvec, head_role(), 0);
  head.epilogue = Epilogue::kCandidates;
  head.valid_rows = h_.vocab;
  head.fraction = fixed::kLogitFraction;
  head.heads = recipe_.screen_head ? kScreenedCandidateCount : kCandidateCount;
  if (recipe_.screen_head) head.flags |= kScreened;
  program.push_back(head);
  program.push_back(Instruction{});
  return program;
}

base::Result<BuildSummary> Builder::Build(const std::string& path) {
  SLUICE_TRY_VOID(Check());
  PlanTensors();
  SLUICE_TRY(auto writer, pack::PackWriter::Create(path, MakeMetadata(), sizes_));
  writer_.emplace(std::move(writer));
  SLUICE_TRY_VOID(WriteRope());
  BuildSummary summary;
  SLUICE_TRY(summary.quantized,
             quant::Quantize(model_, options_.quantize,
                             [this](Role role, uint32_t layer, quant::QuantizedMatrix matrix,
                                    std::span<const float> row_scales) {
                               return Consume(role, layer, std::move(matrix), row_scales);
                             }));
  const quant::Calibration& calibration = summary.quantized.calibration;
  SLUICE_TRY_VOID(WriteNorms(calibration));
  SLUICE_TRY_VOID(WriteKeyMeans(calibration));
  std::vector<Instruction> program = Compile(calibration);
  program.resize(RoundUp(program.size(), pack::kLineBytes / sizeof(Instruction)));
  SLUICE_TRY_VOID(writer_->Write(pack::kProgramTensor, Bytes(program)));

  std::vector<uint8_t> bits;
  std::vector<float> output_error, weight_error;
  for (const quant::TensorReport& report : summary.quantized.tensors) {
    bits.push_back(report.bits);
    output_error.push_back(static_cast<float>(report.output_error));
    weight_error.push_back(static_cast<float>(report.weight_error));
  }
  writer_->Set("sluice.calibration_tokens", calibration.tokens);
  writer_->Set("sluice.report.bits", std::move(bits));
  writer_->Set("sluice.report.output_error", std::move(output_error));
  writer_->Set("sluice.report.weight_error", std::move(weight_error));
  SLUICE_TRY_VOID(writer_->Commit());
  summary.bytes = writer_->file_bytes();
  return summary;
}

}  // namespace

base::Result<BuildSummary> BuildPack(const model::Model& model, const BuildOptions& options,
                                     const std::string& path) {
  return Builder(model, options).Build(path);
}

}  // namespace sluice::program
