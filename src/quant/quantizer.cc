#include "quant/quantizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "model/float_forward.h"
#include "model/gemm.h"
#include "quant/kv_statistics.h"
#include "quant/search.h"
#include "quant/knobs.h"

namespace sluice::quant {
namespace {

using base::Result;
using base::Status;
using model::Role;

constexpr size_t kTokenChunk = 1024;  // tokens that enter a Hessian at once

class Clock {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Run {
 public:
  Run(const model::Model& model, const QuantizeOptions& options, const Sink& sink)
      : model_(model), options_(options), sink_(sink), pool_(options.threads) {}

  Result<QuantizeOutcome> Go();

 private:
  Status Table(Role role);
  Status Layer(uint32_t layer);
  // Quantises w.Of(role) and replaces it by the values of the result.
  Status Matrix(Role role, uint32_t layer, std::vector<float>& w, const Factor* factor,
                std::span<const float> hessian);
  Status CheckFinite(Role role, uint32_t layer, std::span<const float> values, size_t cols,
                     uint64_t first_row) const;
  std::vector<float> Hessian(model::Rows x);
  void Step(std::string_view what);

  const model::Model& model_;
  const QuantizeOptions& options_;
  const Sink& sink_;
  base::ThreadPool pool_;
  std::optional<model::FloatStream> stream_;
  std::optional<model::FloatStream> fstream_;
  QuantizeOutcome outcome_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

Status Run::CheckFinite(Role role, uint32_t layer, std::span<const float> values, size_t cols,
                        uint64_t first_row) const {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    return base::Fail(
        fmt::format("{}: tensor {} of layer {}", model_.name, RoleName(role), layer),
        fmt::format("{} in row {}, column {}", values[i], first_row + i / cols, i % cols),
        "a finite value");
  }
  return {};
}

void Run::Step(std::string_view what) {
  ++done_;
  if (options_.progress) options_.progress(what, done_, total_);
}

std::vector<float> Run::Hessian(model::Rows x) {
  std::vector<float> h(x.cols * x.cols, 0);
  std::vector<float> xs;
  for (size_t first = 0; first < x.rows; first += kTokenChunk) {
    const size_t rows = std::min(kTokenChunk, x.rows - first);
    const float* data = x.data + first * x.cols;
    if(knobs.tokw){
      xs.resize(rows*x.cols);
      auto res=stream_->Residual();
      for(size_t t=0;t<rows;t++){ double s=0; auto r=res[first+t]; for(float v:r)s+=double(v)*v; s/=double(r.size());
        double sx=0; for(size_t i=0;i<x.cols;i++)sx+=double(data[t*x.cols+i])*data[t*x.cols+i]; sx/=double(x.cols);
        float g=knobs.tokw==1?float(1/std::sqrt(s+1e-6)): float(1/std::sqrt(sx+1e-12));
        for(size_t i=0;i<x.cols;i++)xs[t*x.cols+i]=data[t*x.cols+i]*g;}
      data=xs.data();
    }
    model::Gemm(&pool_, x.cols, x.cols, rows, {data, 1, x.cols}, {data, x.cols, 1}, h.data(),
                x.cols, {.accumulate = true, .lower = true});
  }
  return h;
}

Status Run::Matrix(Role role, uint32_t layer, std::vector<float>& w, const Factor* factor,
                   std::span<const float> hessian) {
  const Clock clock;
  const auto [rows64, cols64] = model::ExpectedShape(model_.hyper, role);
  const auto rows = static_cast<uint32_t>(rows64);
  const auto cols = static_cast<uint32_t>(cols64);
  const MatrixFormat format = options_.recipe.FormatOf(role, layer, model_.hyper.tied);
  QuantizedMatrix matrix =
      factor && knobs.gptq && (format.bits==4||knobs.gptq8) ? GptqMatrix(w, rows, format, *factor, pool_)
             : SearchMatrix(w, rows, cols, format, factor?std::span<const float>(factor->importance):std::span<const float>(), pool_);
  std::vector<double> squares(rows, 0), errors(rows, 0);
  std::vector<float> difference(w.size());
  pool_.ParallelFor(rows, [&](size_t r) {
    std::vector<float> value(cols);
    Dequantize(matrix, static_cast<uint32_t>(r), value);
    for (size_t c = 0; c < cols; ++c) {
      const float original = w[r * cols + c];
      difference[r * cols + c] = value[c] - original;
      squares[r] += double{original} * double{original};
      errors[r] += double{difference[r * cols + c]} * double{difference[r * cols + c]};
    }
  });
  TensorReport report{.role = role, .layer = layer, .bits = format.bits};
  double square = 0, error = 0;
  for (size_t r = 0; r < rows; ++r) {
    square += squares[r];
    error += errors[r];
  }
  report.weight_error = square > 0 ? error / square : 0;
  if (!hessian.empty()) {
    // sum over rows of e H e^T, with the lower triangle of H counted twice off the diagonal.
    const auto quadratic = [&](const std::vector<float>& m) {
      std::vector<float> full(hessian.begin(), hessian.end());
      std::vector<float> product(m.size());
      pool_.ParallelFor(cols, [&](size_t i) {
        for (size_t j = 0; j < i; ++j) full[i * cols + j] *= 2;
        for (size_t j = i + 1; j < cols; ++j) full[i * cols + j] = 0;
      });
      model::Gemm(&pool_, rows, cols, cols, {m.data(), cols, 1}, {full.data(), cols, 1},
                  product.data(), cols);
      double sum = 0;
      for (size_t i = 0; i < m.size(); ++i) sum += double{m[i]} * double{product[i]};
      return sum;
    };
    const double output = quadratic(w);
    report.output_error = output > 0 ? quadratic(difference) / output : 0;
  }
  for (size_t i = 0; i < w.size(); ++i) w[i] += difference[i];
  report.seconds = clock.Seconds();
  outcome_.tensors.push_back(report);
  SLUICE_TRY_VOID(sink_(role, layer, std::move(matrix)));
  Step(RoleName(role));
  return {};
}

Status Run::Table(Role role) {
  const Clock clock;
  const model::FloatTensor& tensor = model_.Get(role);
  std::vector<float> w(tensor.rows() * tensor.cols());
  constexpr size_t kRows = 256;
  std::vector<Status> found((tensor.rows() + kRows - 1) / kRows);
  pool_.ParallelFor(found.size(), [&](size_t block) {
    const uint64_t row = block * kRows;
    const uint64_t rows = std::min<uint64_t>(kRows, tensor.rows() - row);
    const std::span<float> part(w.data() + row * tensor.cols(), rows * tensor.cols());
    tensor.ReadRows(row, rows, part);
    found[block] = CheckFinite(role, 0, part, tensor.cols(), row);
  });
  for (const Status& status : found) SLUICE_TRY_VOID(status);
  return Matrix(role, 0, w, nullptr, {});
}

Status Run::Layer(uint32_t layer) {
  const model::Hyper& hyper = model_.hyper;
  model::LayerWeights w = ReadLayer(model_, layer, pool_);
  for (const Role role : model::LayerRoles()) {
    const auto& values = w.Of(role);
    if (values.empty()) continue;
    SLUICE_TRY_VOID(CheckFinite(role, layer, values, model::ExpectedShape(hyper, role).second, 0));
  }
  model::LayerWeights q = w;
  const auto quantise = [&](std::initializer_list<Role> roles, model::Rows x, model::Rows xf) -> Status {
    if (!stream_) {
      for (const Role role : roles) SLUICE_TRY_VOID(Matrix(role, layer, q.Of(role), nullptr, {}));
      return {};
    }
    std::vector<float> hessian = Hessian(x);
    const Factor factor = FactorHessian(hessian, static_cast<uint32_t>(x.cols),
                                        options_.recipe.group, pool_);
    if (knobs.correct > 0 && fstream_) {
      // M = (xf - x)^T x ; W += a * W M H^-1
      const size_t n=x.cols;
      std::vector<float> dx(x.rows*n); 
      for(size_t i=0;i<dx.size();i++) dx[i]=xf.data[i]-x.data[i];
      if(knobs.tokw){auto res=stream_->Residual();
        for(size_t t=0;t<x.rows;t++){ double s=0; auto r=res[t]; for(float v:r)s+=double(v)*v; s/=double(r.size());
        double sx=0; for(size_t i=0;i<n;i++)sx+=double(x.data[t*n+i])*x.data[t*n+i]; sx/=double(n);
        float g=knobs.tokw==1?float(1/(s+1e-6)): float(1/(sx+1e-12));
        for(size_t i=0;i<n;i++)dx[t*n+i]*=g;}}
      std::vector<float> m(n*n);
      model::Gemm(&pool_,n,n,x.rows,{dx.data(),1,n},{x.data,n,1},m.data(),n);
      // H^-1 via factor: H = R D R^T (order) ; full inverse by solving; plain double loops parallel
      // solve Y H = B rows: Y R D R^T = B -> Z R^T = B ; Z: for j from n-1 down.. ; then scale, then Y R = Z
      for (const Role role: roles){ auto& W=q.Of(role); size_t rows=W.size()/n; std::vector<float> B(W.size());
        model::Gemm(&pool_,rows,n,n,{W.data(),n,1},{m.data(),n,1},B.data(),n);
        // transpose R for contiguous
        std::vector<float> rt(n*n); for(size_t i=0;i<n;i++)for(size_t j=i;j<n;j++)rt[j*n+i]=factor.r[i*n+j];
        pool_.ParallelFor(rows,[&](size_t r){ std::vector<float> y(n); for(size_t j=0;j<n;j++)y[j]=B[r*n+factor.order[j]];
          // Z R^T = B: B_j = sum_{i>=j} z_i R[j][i]  -> z_j from last: after z_j known subtract from B_i for i<j: z_j R[i][j]
          for(size_t j=n;j-->0;){ float z=y[j]; const float* c=&rt[j*n]; for(size_t i=0;i<j;i++)y[i]-=z*c[i]; }
          for(size_t j=0;j<n;j++)y[j]/=factor.d[j];
          // Y R = Z : Z_j = sum_{i<=j} y_i R[i][j]
          for(size_t i=0;i<n;i++){ float v=y[i]; const float* c=&factor.r[i*n]; for(size_t j=i+1;j<n;j++)y[j]-=v*c[j]; }
          for(size_t j=0;j<n;j++)W[r*n+factor.order[j]]+=knobs.correct*y[j]; });
      }
    }
    for (const Role role : roles) {
      SLUICE_TRY_VOID(Matrix(role, layer, q.Of(role), &factor, hessian));
    }
    return {};
  };
  if (!stream_) {
    SLUICE_TRY_VOID(quantise({Role::kQ, Role::kK, Role::kV, Role::kO, Role::kGate, Role::kUp, Role::kDown}, {}, {}));
    return {};
  }
  auto& s=*stream_; auto* f=fstream_?&*fstream_:nullptr;
  const model::LayerWeights& u = f ? q : w;
  model::Rows x, xf;
  if(f) xf=f->AttentionInput(w);
  SLUICE_TRY_VOID(quantise({Role::kQ, Role::kK, Role::kV}, s.AttentionInput(w), xf));
  if(f) xf=f->Attention(w);
  x=s.Attention(u);
  MeasureAttention(f?*f:s, hyper, layer, pool_, outcome_.calibration);
  SLUICE_TRY_VOID(quantise({Role::kO}, x, xf));
  if(f) f->AddAttention(w);
  s.AddAttention(u);
  MeasureResidual(f?*f:s, pool_, outcome_.calibration);
  if(f) xf=f->FfnInput(w);
  SLUICE_TRY_VOID(quantise({Role::kGate, Role::kUp}, s.FfnInput(w), xf));
  if(f) xf=f->Gate(w);
  SLUICE_TRY_VOID(quantise({Role::kDown}, s.Gate(u), xf));
  if(f) f->AddFfn(w);
  s.AddFfn(u);
  MeasureResidual(f?*f:s, pool_, outcome_.calibration);
  return {};
}

Result<QuantizeOutcome> Run::Go() {
  SLUICE_TRY_VOID(CheckRecipe(options_.recipe, model_.hyper));
  outcome_.calibration = DefaultCalibration(model_.hyper);
  total_ = (model_.hyper.tied ? 1 : 2) + uint64_t{model_.hyper.n_layers} * 7;
  if (options_.progress) options_.progress("start", 0, total_);
  SLUICE_TRY_VOID(Table(Role::kEmbedding));
  if (!model_.hyper.tied) SLUICE_TRY_VOID(Table(Role::kHead));
  if (!options_.calibration.empty()) {
    outcome_.calibration.measured = true;
    for (const auto& window : options_.calibration) outcome_.calibration.tokens += window.size();
    SLUICE_TRY(stream_, model::FloatStream::Create(model_, options_.calibration, pool_));
    if (knobs.prefix) fstream_ = *stream_;
  }
  for (uint32_t layer = 0; layer < model_.hyper.n_layers; ++layer) {
    SLUICE_TRY_VOID(Layer(layer));
  }
  ChooseWideHeads(outcome_.calibration);
  return std::move(outcome_);
}

}  // namespace

Result<QuantizeOutcome> Quantize(const model::Model& model, const QuantizeOptions& options,
                                 const Sink& sink) {
  return Run(model, options, sink).Go();
}

}  // namespace sluice::quant
