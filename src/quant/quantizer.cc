#include "quant/quantizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "model/float_forward.h"
#include "model/gemm.h"
#include "quant/channel_scales.h"
#include "quant/kv_statistics.h"
#include "quant/search.h"

namespace sluice::quant {
namespace {

using base::Result;
using base::Status;
using model::Role;
using model::Rows;

constexpr size_t kTokenChunk = 1024;  // tokens that enter a second moment at once
constexpr size_t kReportRows = 128;   // rows of a matrix on which its output error is measured
constexpr uint64_t kReadRows = 256;
constexpr uint64_t kTableRows = 8192;  // of embedding or head that are quantised at once

using Clock = std::chrono::steady_clock;

// Matrices are rounded for the inputs that the float model gives them. The inputs that the layers
// quantised so far would give were tried on SmolLM2, with and without a correction of the weights
// towards the float model's outputs, and are no better with a short text at twice the cost.
class Run {
 public:
  Run(const model::Model& model, const QuantizeOptions& options, const Sink& sink)
      : model_(model), options_(options), sink_(sink), pool_(options.threads) {}

  Result<QuantizeOutcome> Go();

 private:
  // What is known of a matrix's input.
  struct Input {
    ChannelScales scales;
    Factor factor;  // of the input divided by `scales`
    // The sum of x x^T, x divided by `scales`, as a lower triangle that gives the same squares:
    // twice the values below the diagonal, zeros above.
    std::vector<float> triangle;
  };

  struct Errors {
    Clock::time_point start = Clock::now();
    double weight_square = 0, weight_error = 0;
    double output_square = 0, output_error = 0;
  };

  Status Table(Role role, const Input* input);
  Status Layer(uint32_t layer);
  Status Matrix(Role role, uint32_t layer, std::vector<float> w, const Input& input,
                const ChannelScales& row_scales = {});
  QuantizedMatrix Round(const std::vector<float>& w, uint32_t rows, MatrixFormat format,
                        const Input* input, Errors& errors);
  Status HandOn(Role role, uint32_t layer, QuantizedMatrix matrix, const Errors& errors,
                std::span<const float> row_scales);
  Status CheckFinite(Role role, uint32_t layer, std::span<const float> values, size_t cols,
                     uint64_t first_row) const;
  Result<Input> MeasureInput(Rows x, ChannelScales scales, std::string_view what);
  Result<Input> MeasureHeadInput();
  void AddOutputError(const std::vector<float>& w, const QuantizedMatrix& matrix,
                      const Input& input, Errors& errors);

  const model::Model& model_;
  const QuantizeOptions& options_;
  const Sink& sink_;
  base::ThreadPool pool_;
  std::optional<model::FloatStream> stream_;  // the calibration tokens on their way, if any
  QuantizeOutcome outcome_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

Status Run::CheckFinite(Role role, uint32_t layer, std::span<const float> values, size_t cols,
                        uint64_t first_row) const {
  // Far beyond any trained weight; what is larger does not fit a row's exponent.
  constexpr float kLargest = 1e15f;
  const auto bad =
      std::ranges::find_if(values, [](float v) { return !(std::fabs(v) <= kLargest); });
  if (bad == values.end()) return {};
  const auto at = static_cast<size_t>(bad - values.begin());
  const bool global = std::ranges::find(model::GlobalRoles(), role) != model::GlobalRoles().end();
  return base::Fail(fmt::format("{}: tensor {}{}", model_.name, RoleName(role),
                                global ? "" : fmt::format(" of layer {}", layer)),
                    fmt::format("{} in row {}, column {}", *bad, first_row + at / cols, at % cols),
                    "a finite value of at most 1e15");
}

Result<Run::Input> Run::MeasureInput(Rows x, ChannelScales scales, std::string_view what) {
  const size_t n = x.cols;
  Input input;
  input.triangle.assign(n * n, 0);
  for (size_t first = 0; first < x.rows; first += kTokenChunk) {
    const float* data = x.data + first * n;
    model::Gemm(&pool_, n, n, std::min(kTokenChunk, x.rows - first), {data, 1, n}, {data, n, 1},
                input.triangle.data(), n, {.accumulate = true, .lower = true});
  }
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(input.triangle[i * n + i])) {
      return base::Fail(
          model_.name,
          fmt::format("channel {} of {} is not finite on the calibration text", i, what),
          "a model that computes finite numbers");
    }
  }
  if (!scales.empty()) {
    pool_.ParallelFor(n, [&](size_t i) {
      for (size_t j = 0; j <= i; ++j) input.triangle[i * n + j] /= scales[i] * scales[j];
    });
  }
  input.scales = std::move(scales);
  input.factor = FactorHessian(input.triangle, static_cast<uint32_t>(n), pool_);
  pool_.ParallelFor(n, [&](size_t i) {
    float* row = &input.triangle[i * n];
    for (size_t j = 0; j < i; ++j) row[j] *= 2;
    std::fill(row + i + 1, row + n, 0.0f);
  });
  return input;
}

// Adds the squared outputs of some rows, and the squares of their errors.
void Run::AddOutputError(const std::vector<float>& w, const QuantizedMatrix& matrix,
                         const Input& input, Errors& errors) {
  const size_t n = input.factor.cols;
  const size_t step = (matrix.rows + kReportRows - 1) / kReportRows;
  const size_t count = (matrix.rows + step - 1) / step;
  std::vector<float> picked(2 * count * n);  // rows of w, then of the errors
  for (size_t i = 0; i < count; ++i) {
    const std::span<float> error(&picked[(count + i) * n], n);
    Dequantize(matrix, static_cast<uint32_t>(i * step), error);
    for (size_t c = 0; c < n; ++c) {
      picked[i * n + c] = w[i * step * n + c];
      error[c] -= picked[i * n + c];
    }
  }
  std::vector<float> product(picked.size());
  model::Gemm(&pool_, 2 * count, n, n, {picked.data(), n, 1}, {input.triangle.data(), n, 1},
              product.data(), n);
  for (size_t i = 0; i < picked.size(); ++i) {
    (i < count * n ? errors.output_square : errors.output_error) +=
        double{picked[i]} * double{product[i]};
  }
}

QuantizedMatrix Run::Round(const std::vector<float>& w, uint32_t rows, MatrixFormat format,
                           const Input* input, Errors& errors) {
  const size_t cols = w.size() / rows;
  QuantizedMatrix matrix =
      input != nullptr ? GptqMatrix(w, rows, format, input->factor, pool_)
                       : SearchMatrix(w, rows, static_cast<uint32_t>(cols), format, {}, pool_);
  std::vector<double> square(rows, 0), error(rows, 0);
  pool_.ParallelFor(rows, [&](size_t r) {
    std::vector<float> value(cols);
    Dequantize(matrix, static_cast<uint32_t>(r), value);
    for (size_t c = 0; c < cols; ++c) {
      const double weight = double{w[r * cols + c]};
      square[r] += weight * weight;
      error[r] += (double{value[c]} - weight) * (double{value[c]} - weight);
    }
  });
  for (size_t r = 0; r < rows; ++r) {
    errors.weight_square += square[r];
    errors.weight_error += error[r];
  }
  if (input != nullptr) AddOutputError(w, matrix, *input, errors);
  return matrix;
}

Status Run::HandOn(Role role, uint32_t layer, QuantizedMatrix matrix, const Errors& errors,
                   std::span<const float> row_scales) {
  const auto share = [](double error, double square) { return square > 0 ? error / square : 0; };
  outcome_.tensors.push_back(
      {.role = role,
       .layer = layer,
       .bits = matrix.format.bits,
       .output_error = share(errors.output_error, errors.output_square),
       .weight_error = share(errors.weight_error, errors.weight_square),
       .seconds = std::chrono::duration<double>(Clock::now() - errors.start).count()});
  SLUICE_TRY_VOID(sink_(role, layer, std::move(matrix), row_scales));
  ++done_;
  if (options_.progress) options_.progress(RoleName(role), done_, total_);
  return {};
}

Status Run::Matrix(Role role, uint32_t layer, std::vector<float> w, const Input& input,
                   const ChannelScales& row_scales) {
  Errors errors;
  const size_t cols = input.factor.cols;
  const size_t rows = w.size() / cols;
  pool_.ParallelFor(rows, [&](size_t r) {
    const float divisor = row_scales.empty() ? 1 : row_scales[r];
    for (size_t c = 0; c < cols; ++c) {
      w[r * cols + c] *= (input.scales.empty() ? 1 : input.scales[c]) / divisor;
    }
  });
  QuantizedMatrix matrix =
      Round(w, static_cast<uint32_t>(rows), options_.recipe.FormatOf(role, layer, model_.hyper),
            &input, errors);
  return HandOn(role, layer, std::move(matrix), errors, row_scales);
}

// Row block by row block: as floats the whole table would be the largest thing in memory by far.
Status Run::Table(Role role, const Input* input) {
  const model::FloatTensor& tensor = model_.Get(role);
  const uint64_t cols = tensor.cols();
  const MatrixFormat format = options_.recipe.FormatOf(role, 0, model_.hyper);
  Errors errors;
  std::optional<QuantizedMatrix> matrix;
  for (uint64_t first = 0; first < tensor.rows(); first += kTableRows) {
    const uint64_t rows = std::min(kTableRows, tensor.rows() - first);
    std::vector<float> w(rows * cols);
    std::vector<Status> found((rows + kReadRows - 1) / kReadRows);
    pool_.ParallelFor(found.size(), [&](size_t block) {
      const uint64_t row = block * kReadRows;
      const std::span<float> part(&w[row * cols], std::min(kReadRows, rows - row) * cols);
      tensor.ReadRows(first + row, part.size() / cols, part);
      found[block] = CheckFinite(role, 0, part, cols, first + row);
    });
    for (const Status& status : found) SLUICE_TRY_VOID(status);
    QuantizedMatrix part = Round(w, static_cast<uint32_t>(rows), format, input, errors);
    if (!matrix) {
      matrix = std::move(part);
      Reserve(*matrix, static_cast<uint32_t>(tensor.rows()));
    } else {
      Append(*matrix, part);
    }
  }
  return HandOn(role, 0, std::move(*matrix), errors, {});
}

Status Run::Layer(uint32_t layer) {
  const model::LayerWeights w = ReadLayer(model_, layer, pool_);
  for (const Role role : model::LayerRoles()) {
    const std::vector<float>& values = w.Of(role);
    if (values.empty()) continue;
    const size_t cols = model::ExpectedShape(model_.hyper, role).second;
    SLUICE_TRY_VOID(CheckFinite(role, layer, values, cols, 0));
  }
  if (!stream_) {
    for (const Role role :
         {Role::kQ, Role::kK, Role::kV, Role::kO, Role::kGate, Role::kUp, Role::kDown}) {
      const auto rows = static_cast<uint32_t>(model::ExpectedShape(model_.hyper, role).first);
      Errors errors;
      QuantizedMatrix matrix = Round(
          w.Of(role), rows, options_.recipe.FormatOf(role, layer, model_.hyper), nullptr, errors);
      SLUICE_TRY_VOID(HandOn(role, layer, std::move(matrix), errors, {}));
    }
    return {};
  }
  const auto input_of = [&](std::string_view what) {
    return fmt::format("{} of layer {}", what, layer);
  };
  // The rows of v and of up take the scales of what o and down multiply, so those come first.
  Calibration& calibration = outcome_.calibration;
  Rows x = stream_->AttentionInput(w);
  calibration.attn_scales.push_back(MakeChannelScales(x, pool_));
  SLUICE_TRY(Input input,
             MeasureInput(x, calibration.attn_scales[layer], input_of("attention's input")));
  x = stream_->Attention(w);
  const ChannelScales value_scales = MakeValueScales(x, model_.hyper, pool_);
  SLUICE_TRY_VOID(Matrix(Role::kQ, layer, w.q, input));
  SLUICE_TRY_VOID(Matrix(Role::kK, layer, w.k, input));
  SLUICE_TRY_VOID(Matrix(Role::kV, layer, w.v, input, value_scales));
  SLUICE_TRY(input, MeasureInput(x, PerQueryHead(value_scales, model_.hyper),
                                 input_of("attention's output")));
  MeasureAttention(*stream_, model_.hyper, layer, pool_, calibration);
  SLUICE_TRY_VOID(Matrix(Role::kO, layer, w.o, input));
  stream_->AddAttention(w);
  MeasureResidual(*stream_, pool_, calibration);

  x = stream_->FfnInput(w);
  calibration.ffn_scales.push_back(MakeChannelScales(x, pool_));
  SLUICE_TRY(input,
             MeasureInput(x, calibration.ffn_scales[layer], input_of("the feed-forward input")));
  x = stream_->Gate(w);
  const ChannelScales gated_scales = MakeChannelScales(x, pool_);
  SLUICE_TRY_VOID(Matrix(Role::kGate, layer, w.gate, input));
  SLUICE_TRY_VOID(Matrix(Role::kUp, layer, w.up, input, gated_scales));
  SLUICE_TRY(input, MeasureInput(x, gated_scales, input_of("the gated product")));
  SLUICE_TRY_VOID(Matrix(Role::kDown, layer, w.down, input));
  stream_->AddFfn(w);
  MeasureResidual(*stream_, pool_, calibration);
  return {};
}

// The head comes first in the stream, but its input last in the model: one more pass.
Result<Run::Input> Run::MeasureHeadInput() {
  model::FloatStream stream = *stream_;
  for (uint32_t layer = 0; layer < model_.hyper.n_layers; ++layer) {
    const model::LayerWeights w = ReadLayer(model_, layer, pool_);
    stream.AttentionInput(w);
    stream.Attention(w);
    stream.AddAttention(w);
    stream.FfnInput(w);
    stream.Gate(w);
    stream.AddFfn(w);
    ++done_;
    if (options_.progress) options_.progress("head input", done_, total_);
  }
  return MeasureInput(stream.Final(), {}, "the head's input");
}

Result<QuantizeOutcome> Run::Go() {
  const model::Hyper& hyper = model_.hyper;
  SLUICE_TRY_VOID(CheckRecipe(options_.recipe, hyper));
  outcome_.calibration = DefaultCalibration(hyper);
  SLUICE_TRY_VOID(
      CheckFinite(Role::kOutputNorm, 0, model_.ReadAll(Role::kOutputNorm), hyper.hidden, 0));
  const bool calibrate = !options_.calibration.empty();
  if (calibrate) {
    outcome_.calibration.measured = true;
    for (const auto& window : options_.calibration) outcome_.calibration.tokens += window.size();
    SLUICE_TRY(stream_, model::FloatStream::Create(model_, options_.calibration, pool_));
  }
  // 8 bits need no help.
  const bool measure_head = calibrate && options_.recipe.FormatOf(Role::kHead, 0, hyper).bits == 4;
  total_ = (hyper.tied ? 1 : 2) + uint64_t{hyper.n_layers} * (measure_head ? 8 : 7);
  if (options_.progress) options_.progress("start", 0, total_);

  std::optional<Input> head_input;
  if (measure_head) {
    SLUICE_TRY(head_input, MeasureHeadInput());
  }
  const Input* head = head_input ? &*head_input : nullptr;
  SLUICE_TRY_VOID(Table(Role::kEmbedding, hyper.tied ? head : nullptr));
  if (!hyper.tied) SLUICE_TRY_VOID(Table(Role::kHead, head));
  head_input.reset();
  for (uint32_t layer = 0; layer < hyper.n_layers; ++layer) SLUICE_TRY_VOID(Layer(layer));
  if (calibrate) ChooseWideHeads(outcome_.calibration);
  return std::move(outcome_);
}

}  // namespace

Result<QuantizeOutcome> Quantize(const model::Model& model, const QuantizeOptions& options,
                                 const Sink& sink) {
  return Run(model, options, sink).Go();
}

}  // namespace sluice::quant
