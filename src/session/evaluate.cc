#include "session/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/thread_pool.h"
#include "model/float_forward.h"

namespace sluice::session {
namespace {

// log of the sum of exponentials.
template <typename T>
double LogSum(std::span<const T> logits, double unit) {
  const double best = static_cast<double>(*std::ranges::max_element(logits)) * unit;
  double sum = 0;
  for (const T logit : logits) sum += std::exp(static_cast<double>(logit) * unit - best);
  return best + std::log(sum);
}

template <typename T>
size_t Top(std::span<const T> logits) {
  return static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
}

constexpr double kUnit = 1.0 / (1 << fixed::kLogitFraction);

class Judge {
 public:
  // `theirs`: the float model's logits, or empty.
  void Add(std::span<const int32_t> ours, std::span<const float> theirs, int32_t next) {
    const double our_sum = LogSum(ours, kUnit);
    const double loss = our_sum - ours[static_cast<size_t>(next)] * kUnit;
    ++count_;
    loss_ += loss;
    loss_squared_ += loss * loss;
    if (theirs.empty()) return;
    const double their_sum = LogSum(theirs, 1.0);
    float_loss_ += their_sum - static_cast<double>(theirs[static_cast<size_t>(next)]);
    double kl = 0;
    for (size_t i = 0; i < theirs.size(); ++i) {
      const double log_p = static_cast<double>(theirs[i]) - their_sum;
      kl += std::exp(log_p) * (log_p - (ours[i] * kUnit - our_sum));
    }
    kl_ += kl;
    max_kl_ = std::max(max_kl_, kl);
    same_top_ += Top(ours) == Top(theirs);
  }

  Quality Result(bool with_float) const {
    const double n = static_cast<double>(count_);
    const double mean = loss_ / n;
    const double variance = std::max(0.0, loss_squared_ / n - mean * mean);
    Quality q;
    q.predictions = count_;
    q.perplexity = std::exp(mean);
    q.perplexity_error = q.perplexity * std::sqrt(variance / n);
    if (with_float) {
      q.float_perplexity = std::exp(float_loss_ / n);
      q.mean_kl = kl_ / n;
      q.max_kl = max_kl_;
      q.same_top = static_cast<double>(same_top_) / n;
    }
    return q;
  }

  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
  uint64_t same_top_ = 0;
  double loss_ = 0, loss_squared_ = 0, float_loss_ = 0, kl_ = 0, max_kl_ = 0;
};

}  // namespace

base::Result<Quality> Evaluate(exec::Executor& executor,
                               std::span<const std::vector<int32_t>> windows,
                               const model::Model* model, unsigned threads,
                               const base::Progress& progress) {
  uint64_t total = 0;
  const uint32_t vocab = executor.sizes().vocab;
  for (const auto& window : windows) {
    if (!window.empty()) total += window.size() - 1;
    // The executor checks what it runs, but a window's last token is only looked up.
    for (const int32_t token : window) {
      if (token < 0 || static_cast<uint32_t>(token) >= vocab) {
        return base::Fail("text", fmt::format("token {}", token),
                          fmt::format("0 to {}", vocab - 1));
      }
    }
  }
  if (total == 0) return base::Fail("text", "no token to predict", "at least 2 tokens");
  Judge judge;
  // Judges `count` positions of a window from `first` on. `theirs`: [count][vocab], or null.
  const auto judge_rows = [&](size_t w, size_t first, size_t count,
                              const float* theirs) -> base::Status {
    const std::vector<int32_t>& window = windows[w];
    count = std::min(count, window.size() - 1 - first);
    for (size_t done = 0; done < count;) {
      const size_t n = std::min<size_t>(count - done, std::min<uint32_t>(executor.max_block(), 32));
      const exec::Block block{.tokens = std::span(window).subspan(first + done, n),
                              .position = static_cast<uint32_t>(first + done),
                              .want = exec::Want::kAll,
                              .use_logits = [&](uint32_t t, std::span<const int32_t> logits) {
                                const size_t row = done + t;
                                std::span<const float> row_of_theirs;
                                if (theirs)
                                  row_of_theirs = {theirs + row * logits.size(), logits.size()};
                                judge.Add(logits, row_of_theirs, window[first + row + 1]);
                              }};
      SLUICE_TRY(const auto unused, executor.Run(block));
      SLUICE_CHECK(unused.empty());
      done += n;
      if (progress) progress("judging", judge.count(), total);
    }
    return {};
  };

  if (model == nullptr) {
    for (size_t w = 0; w < windows.size(); ++w) {
      SLUICE_TRY_VOID(judge_rows(w, 0, windows[w].size(), nullptr));
    }
    return judge.Result(false);
  }
  if (model->hyper.vocab != vocab) {
    return base::Fail(model->name, fmt::format("a vocabulary of {}", model->hyper.vocab),
                      fmt::format("the pack's {}", vocab));
  }
  base::ThreadPool pool(threads);
  SLUICE_TRY_VOID(model::FloatForward(
      *model, windows, pool,
      [&](size_t w, size_t position, model::Rows logits) -> base::Status {
        if (position >= windows[w].size() - 1) return {};
        return judge_rows(w, position, logits.rows, logits.data);
      },
      {}, progress));
  return judge.Result(true);
}

}  // namespace sluice::session
