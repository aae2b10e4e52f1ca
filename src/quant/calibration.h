// What running the float model over the calibration text tells about a model's activations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/embedded.h"
#include "model/model.h"

namespace sluice::quant {

struct Calibration {
  // False: no text was given; the members below then hold the defaults of DefaultCalibration().
  bool measured = false;
  uint64_t tokens = 0;

  // Mean of K after RoPE, to be subtracted from every K before it is stored: [n_layers]
  // [n_kv_heads][head_dim], Hugging Face order. A constant added to all keys of a head changes all
  // scores of a query alike, so softmax does not see it. Default 0.
  std::vector<float> k_mean;
  // 1 where K must be kept in 16 bits: [n_layers][n_kv_heads]. Default 0.
  std::vector<uint8_t> k_wide;
  // Root mean square error of the attention scores (unit of the exponent, base e) if K - k_mean
  // were stored in 8 bits: [n_layers][n_kv_heads]. What k_wide was decided on. Default 0.
  std::vector<float> k_score_error;

  // Channel scales (quant/channel_scales.h) that q, k and v, and gate and up, were quantised with:
  // [n_layers][hidden]. The gains of the norms before them must be divided by them. Default none.
  std::vector<std::vector<float>> attn_scales, ffn_scales;

  // Largest |residual| after any layer, both halves counted. Default 0: unknown, keep headroom.
  float max_residual = 0;
  // Largest |q . (k - k_mean)| * log2(e) / sqrt(head_dim), the exponent base 2 that softmax sees:
  // [n_layers]. Default 0: unknown.
  std::vector<float> max_score;
};

// The values that stand in for a calibration that was not made.
Calibration DefaultCalibration(const model::Hyper& hyper);

// The texts that the project ships for calibration: prose, code, Chinese, other languages, chat.
std::span<const base::EmbeddedFile> CalibrationTexts();

// Cuts token sequences into windows of at most `length` tokens, at most `max_tokens` together,
// taken from the sequences in turn so that every sequence is represented. A sequence's last piece
// shorter than length / 8 is dropped unless it is all there is. `bos` >= 0 is put first in each.
std::vector<std::vector<int32_t>> CutWindows(std::span<const std::vector<int32_t>> sequences,
                                             uint32_t length, uint64_t max_tokens,
                                             int32_t bos = -1);

}  // namespace sluice::quant
