#include "quant/quantizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "model/float_forward.h"
#include "model/gemm.h"
#include "quant/knobs.h"
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
constexpr size_t kReadRows = 256;

using Clock = std::chrono::steady_clock;

// Two streams of hidden states go through the model side by side: one as the float model has them,
// one as the matrices quantised so far produce them. The second gives the inputs on which the next
// matrix is rounded; the first, what its outputs should be.
class Run {
 public:
  Run(const model::Model& model, const QuantizeOptions& options, const Sink& sink)
      : model_(model), options_(options), sink_(sink), pool_(options.threads) {}

  Result<QuantizeOutcome> Go();

 private:
  // What is known of a matrix's input.
  struct Input {
    std::vector<float> moment;  // sum of x x^T, lower triangle
    std::vector<float> cross;   // sum of (own x - x) x^T, or empty
    Factor factor;
  };

  Status Table(Role role, const Input* input);
  Status Layer(uint32_t layer);
  Status LayerWithInputs(uint32_t layer, const model::LayerWeights& own);
  Status Matrix(Role role, uint32_t layer, std::vector<float>& w, const Input* input);
  Status CheckFinite(Role role, uint32_t layer, std::span<const float> values, size_t cols,
                     uint64_t first_row) const;
  Input MeasureInput(Rows x, Rows own);
  Result<Input> MeasureHeadInput();
  double OutputError(const std::vector<float>& w, const std::vector<float>& value, size_t rows,
                     const Input& input);

  const model::Model& model_;
  const QuantizeOptions& options_;
  const Sink& sink_;
  base::ThreadPool pool_;
  std::optional<model::FloatStream> own_;      // the float model's
  std::optional<model::FloatStream> rounded_;  // the quantised model's
  QuantizeOutcome outcome_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

Status Run::CheckFinite(Role role, uint32_t layer, std::span<const float> values, size_t cols,
                        uint64_t first_row) const {
  const auto bad = std::ranges::find_if(values, [](float v) { return !std::isfinite(v); });
  if (bad == values.end()) return {};
  const auto at = static_cast<size_t>(bad - values.begin());
  const bool global = std::ranges::find(model::GlobalRoles(), role) != model::GlobalRoles().end();
  return base::Fail(fmt::format("{}: tensor {}{}", model_.name, RoleName(role),
                                global ? "" : fmt::format(" of layer {}", layer)),
                    fmt::format("{} in row {}, column {}", *bad, first_row + at / cols, at % cols),
                    "a finite value");
}

// Second moments of the tokens' inputs, and their factor.
Run::Input Run::MeasureInput(Rows x, Rows own) {
  const size_t n = x.cols;
  Input input;
  input.moment.assign(n * n, 0);
  if (own.data != nullptr) input.cross.assign(n * n, 0);
  std::vector<float> difference;
  for (size_t first = 0; first < x.rows; first += kTokenChunk) {
    const size_t rows = std::min(kTokenChunk, x.rows - first);
    const float* data = x.data + first * n;
    model::Gemm(&pool_, n, n, rows, {data, 1, n}, {data, n, 1}, input.moment.data(), n,
                {.accumulate = true, .lower = true});
    if (own.data == nullptr) continue;
    difference.resize(rows * n);
    pool_.ParallelFor(rows, [&](size_t row) {
      for (size_t i = row * n; i < (row + 1) * n; ++i) {
        difference[i] = own.data[first * n + i] - data[i];
      }
    });
    model::Gemm(&pool_, n, n, rows, {difference.data(), 1, n}, {data, n, 1}, input.cross.data(), n,
                {.accumulate = true});
  }
  input.factor =
      FactorHessian(input.moment, static_cast<uint32_t>(n), options_.recipe.group, pool_);
  return input;
}

// Squared error of the outputs over their square, on some rows.
double Run::OutputError(const std::vector<float>& w, const std::vector<float>& value, size_t rows,
                        const Input& input) {
  const size_t n = input.factor.cols;
  const size_t step = (rows + kReportRows - 1) / kReportRows;
  const size_t count = (rows + step - 1) / step;
  std::vector<float> picked(2 * count * n);  // rows of w, then of value - w
  for (size_t i = 0; i < count; ++i) {
    for (size_t c = 0; c < n; ++c) {
      const size_t at = i * step * n + c;
      picked[i * n + c] = w[at];
      picked[(count + i) * n + c] = value[at] - w[at];
    }
  }
  // x M x^T, M symmetric: its lower triangle counts twice off the diagonal.
  std::vector<float> triangle = input.moment;
  pool_.ParallelFor(n, [&](size_t i) {
    for (size_t j = 0; j < i; ++j) triangle[i * n + j] *= 2;
    std::fill(&triangle[i * n] + i + 1, &triangle[i * n] + n, 0.0f);
  });
  std::vector<float> product(picked.size());
  model::Gemm(&pool_, 2 * count, n, n, {picked.data(), n, 1}, {triangle.data(), n, 1},
              product.data(), n);
  double sums[2] = {0, 0};
  for (size_t i = 0; i < picked.size(); ++i) {
    sums[i / (count * n)] += double{picked[i]} * double{product[i]};
  }
  return sums[0] > 0 ? sums[1] / sums[0] : 0;
}

// Quantises `w`, hands the result on and replaces `w` by its values.
Status Run::Matrix(Role role, uint32_t layer, std::vector<float>& w, const Input* input) {
  const auto start = Clock::now();
  const auto [rows, cols] = model::ExpectedShape(model_.hyper, role);
  const auto row_count = static_cast<uint32_t>(rows);
  const auto col_count = static_cast<uint32_t>(cols);
  const MatrixFormat format = options_.recipe.FormatOf(role, layer, model_.hyper.tied);
  QuantizedMatrix matrix;
  if (input == nullptr) {
    matrix = SearchMatrix(w, row_count, col_count, format, {}, pool_);
  } else if (input->cross.empty()) {
    matrix = GptqMatrix(w, row_count, format, input->factor, pool_);
  } else {
    const std::vector<float> wanted =
        CorrectForInputs(w, row_count, input->cross, knobs.correct, input->factor, pool_);
    matrix = GptqMatrix(wanted, row_count, format, input->factor, pool_);
  }

  std::vector<float> value(w.size());
  std::vector<double> squares(rows, 0), errors(rows, 0);
  pool_.ParallelFor(rows, [&](size_t r) {
    Dequantize(matrix, static_cast<uint32_t>(r), {&value[r * cols], cols});
    for (size_t i = r * cols; i < (r + 1) * cols; ++i) {
      const double error = double{value[i]} - double{w[i]};
      squares[r] += double{w[i]} * double{w[i]};
      errors[r] += error * error;
    }
  });
  double square = 0, error = 0;
  for (size_t r = 0; r < rows; ++r) {
    square += squares[r];
    error += errors[r];
  }
  TensorReport report{.role = role, .layer = layer, .bits = format.bits};
  report.weight_error = square > 0 ? error / square : 0;
  if (input != nullptr) report.output_error = OutputError(w, value, rows, *input);
  w = std::move(value);
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  outcome_.tensors.push_back(report);
  SLUICE_TRY_VOID(sink_(role, layer, std::move(matrix)));
  ++done_;
  if (options_.progress) options_.progress(RoleName(role), done_, total_);
  return {};
}

Status Run::Table(Role role, const Input* input) {
  const model::FloatTensor& tensor = model_.Get(role);
  const uint64_t cols = tensor.cols();
  std::vector<float> w(tensor.rows() * cols);
  std::vector<Status> found((tensor.rows() + kReadRows - 1) / kReadRows);
  pool_.ParallelFor(found.size(), [&](size_t block) {
    const uint64_t row = block * kReadRows;
    const uint64_t rows = std::min<uint64_t>(kReadRows, tensor.rows() - row);
    const std::span<float> part(w.data() + row * cols, rows * cols);
    tensor.ReadRows(row, rows, part);
    found[block] = CheckFinite(role, 0, part, cols, row);
  });
  for (const Status& status : found) SLUICE_TRY_VOID(status);
  return Matrix(role, 0, w, input);
}

Status Run::Layer(uint32_t layer) {
  model::LayerWeights w = ReadLayer(model_, layer, pool_);
  for (const Role role : model::LayerRoles()) {
    const std::vector<float>& values = w.Of(role);
    if (values.empty()) continue;
    const size_t cols = model::ExpectedShape(model_.hyper, role).second;
    SLUICE_TRY_VOID(CheckFinite(role, layer, values, cols, 0));
  }
  if (own_) return LayerWithInputs(layer, w);
  for (const Role role :
       {Role::kQ, Role::kK, Role::kV, Role::kO, Role::kGate, Role::kUp, Role::kDown}) {
    SLUICE_TRY_VOID(Matrix(role, layer, w.Of(role), nullptr));
  }
  return {};
}

Status Run::LayerWithInputs(uint32_t layer, const model::LayerWeights& own) {
  model::LayerWeights rounded = own;
  const auto quantise = [&](std::initializer_list<Role> roles, Rows x, Rows own_x) -> Status {
    const Input input = MeasureInput(x, own_x);
    for (const Role role : roles) SLUICE_TRY_VOID(Matrix(role, layer, rounded.Of(role), &input));
    return {};
  };
  model::FloatStream& o = *own_;
  Calibration& calibration = outcome_.calibration;
  if (!rounded_) {
    SLUICE_TRY_VOID(quantise({Role::kQ, Role::kK, Role::kV}, o.AttentionInput(own), {}));
    Rows x = o.Attention(own);
    MeasureAttention(o, model_.hyper, layer, pool_, calibration);
    SLUICE_TRY_VOID(quantise({Role::kO}, x, {}));
    o.AddAttention(own);
    SLUICE_TRY_VOID(quantise({Role::kGate, Role::kUp}, o.FfnInput(own), {}));
    SLUICE_TRY_VOID(quantise({Role::kDown}, o.Gate(own), {}));
    o.AddFfn(own);
    return {};
  }
  model::FloatStream& r = *rounded_;
  const auto both = [&](std::initializer_list<Role> roles, Rows x, Rows own_x) {
    return quantise(roles, x, knobs.correct > 0 ? own_x : Rows{});
  };
  Rows own_x = o.AttentionInput(own);
  SLUICE_TRY_VOID(both({Role::kQ, Role::kK, Role::kV}, r.AttentionInput(rounded), own_x));
  own_x = o.Attention(own);
  MeasureAttention(o, model_.hyper, layer, pool_, calibration);
  SLUICE_TRY_VOID(both({Role::kO}, r.Attention(rounded), own_x));
  o.AddAttention(own);
  r.AddAttention(rounded);
  MeasureResidual(o, pool_, calibration);
  own_x = o.FfnInput(own);
  SLUICE_TRY_VOID(both({Role::kGate, Role::kUp}, r.FfnInput(rounded), own_x));
  own_x = o.Gate(own);
  SLUICE_TRY_VOID(both({Role::kDown}, r.Gate(rounded), own_x));
  o.AddFfn(own);
  r.AddFfn(rounded);
  MeasureResidual(o, pool_, calibration);
  return {};
}

// The head comes first in the stream, but its input last in the model: one more pass.
Result<Run::Input> Run::MeasureHeadInput() {
  model::FloatStream stream = *own_;
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
  return MeasureInput(stream.Final(), {});
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
    SLUICE_TRY(own_, model::FloatStream::Create(model_, options_.calibration, pool_));
    if (knobs.prefix) rounded_ = own_;
  }
  // 8 bits need no help.
  const bool measure_head =
      calibrate && options_.recipe.FormatOf(Role::kHead, 0, hyper.tied).bits == 4;
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
