#include "exec/ref/ref_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "base/check.h"
#include "exec/matrices.h"
#include "fixed/functions.h"
#include "fixed/rounding.h"
#include "pack/layout.h"

namespace sluice::exec {
namespace {

using program::Epilogue;
using program::Instruction;
using program::Op;
using program::Sizes;

constexpr uint32_t kMaxBlock = 64;

// A vector in block floating point: value of column c = q[c] * 2^exponent[c / group].
struct Activations {
  std::vector<int8_t> q;
  std::vector<int> exponent;
};

// One head's vector: value = v[i] * 2^exponent.
struct HeadVector {
  std::vector<int32_t> v;
  int exponent = 0;
};

// v, in units of 2^-fraction, to block floating point; padded with zeros to `cols`.
Activations Quantize(std::vector<int32_t> v, uint32_t cols, uint32_t group, int fraction) {
  v.resize(cols);
  Activations a;
  a.q.resize(cols);
  for (uint32_t begin = 0; begin < cols; begin += group) {
    const int shift = fixed::QuantizeBlock8(std::span(v).subspan(begin, group),
                                            std::span(a.q).subspan(begin, group));
    a.exponent.push_back(shift - fraction);
  }
  return a;
}

// RMSNorm of x (any common unit u, epsilon given as n * eps / u^2) with gains of `gain_fraction`
// bits that include sqrt(n). In groups of `group`; the result of group g is v[c] * 2^exponent[g].
struct Normed {
  std::vector<int32_t> v;
  std::vector<int> exponent;
};
Normed Norm(std::span<const int32_t> x, uint32_t group, uint64_t epsilon,
            std::span<const int16_t> gain, int gain_fraction) {
  const size_t groups = x.size() / group;
  std::vector<int16_t> scaled(x.size());
  std::vector<int> shift(groups);
  std::vector<uint64_t> squares(groups);
  for (size_t g = 0; g < groups; ++g) {
    const auto part = std::span(scaled).subspan(g * group, group);
    shift[g] = fixed::QuantizeBlock16(x.subspan(g * group, group), part);
    for (const int16_t s : part) squares[g] += static_cast<uint64_t>(int64_t{s} * s);
  }
  const int largest = *std::ranges::max_element(shift);
  uint64_t sum = epsilon >> (2 * largest);
  for (size_t g = 0; g < groups; ++g) sum += squares[g] >> (2 * (largest - shift[g]));
  const fixed::Scaled root = fixed::ReciprocalRoot(std::max<uint64_t>(sum, 1));
  Normed result;
  for (size_t g = 0; g < groups; ++g) {
    for (size_t c = g * group; c < (g + 1) * group; ++c) {
      const int64_t u = fixed::RoundShift(int64_t{scaled[c]} * root.mantissa, 16);
      result.v.push_back(static_cast<int32_t>(u * gain[c]));
    }
    result.exponent.push_back(shift[g] - largest + root.exponent + 16 - gain_fraction);
  }
  return result;
}

class RefExecutor : public Executor {
 public:
  RefExecutor(std::span<const uint8_t> pack, const program::Program& program, uint32_t context)
      : memory_(pack), program_(program), context_(context) {
    const Sizes& s = sizes();
    cache_.resize(s.n_layers, std::vector<std::vector<KvEntry>>(s.n_kv_heads));
  }

  std::string_view name() const override { return "ref"; }
  const Sizes& sizes() const override { return program_.sizes(); }
  uint32_t max_block() const override { return kMaxBlock; }
  uint32_t context() const override { return context_; }
  void SetTrace(Trace trace) override { trace_ = std::move(trace); }

  base::Result<std::vector<Candidates>> Run(const Block& block) override {
    SLUICE_TRY_VOID(CheckBlock(*this, block, filled_));
    try {
      return RunChecked(block);
    } catch (const std::bad_alloc&) {
      return base::Fail("executor ref", "no memory left");
    }
  }

 private:
  // What the cache holds of one position and KV head; k has 8 or 16 bits.
  struct KvEntry {
    HeadVector k;
    HeadVector v;
  };

  // The state of one token of the block.
  struct Token {
    std::vector<int32_t> residual;
    Activations buffer[2];
    std::vector<HeadVector> q;
  };

  base::Result<std::vector<Candidates>> RunChecked(const Block& block) {
    std::vector<Token> tokens(block.tokens.size());
    std::vector<Candidates> results;
    filled_ = block.position;
    const auto instructions = program_.instructions();
    for (uint32_t index = 0; index < instructions.size(); ++index) {
      const Instruction& i = instructions[index];
      for (uint32_t t = 0; t < tokens.size(); ++t) {
        Token& token = tokens[t];
        const uint32_t position = block.position + t;
        std::vector<int32_t> shown;
        switch (i.op) {
          case Op::kEmbed:
            Embed(i, static_cast<uint32_t>(block.tokens[t]), token);
            shown = token.residual;
            break;
          case Op::kNorm: {
            token.buffer[static_cast<size_t>(i.target)] = NormActivations(i, token.residual);
            shown = Show(token.buffer[static_cast<size_t>(i.target)]);
            break;
          }
          case Op::kAttend:
            token.buffer[static_cast<size_t>(i.target)] = Attend(i, token, position);
            shown = Show(token.buffer[static_cast<size_t>(i.target)]);
            break;
          case Op::kMatvec:
            if (i.epilogue == Epilogue::kCandidates) {
              const bool wanted =
                  block.want == Want::kAll || (block.want == Want::kLast && t + 1 == tokens.size());
              if (wanted) shown = Head(i, token, t, block, results);
            } else {
              shown = Matvec(i, token, position);
            }
            break;
          default:
            SLUICE_CHECK(false);
        }
        if (trace_ && !shown.empty()) trace_({index, t, shown});
      }
    }
    filled_ = block.position + static_cast<uint32_t>(block.tokens.size());
    return results;
  }

  static std::vector<int32_t> Show(const Activations& a) {
    std::vector<int32_t> values(a.q.begin(), a.q.end());
    values.insert(values.end(), a.exponent.begin(), a.exponent.end());
    return values;
  }

  void Embed(const Instruction& i, uint32_t row, Token& token) const {
    token.residual.resize(i.cols);
    const int mantissa = memory_.RowMantissa(i, row);
    const int shift = memory_.RowExponent(i, row) - i.fraction;
    for (uint32_t c = 0; c < i.cols; ++c) {
      const int64_t w = int64_t{memory_.Weight(i, row, c, true)} *
                        memory_.SubScale(i, row, c / i.group) * mantissa;
      token.residual[c] = fixed::RoundShiftSat32(w, shift);
    }
  }

  Activations NormActivations(const Instruction& i, std::span<const int32_t> residual) const {
    std::vector<int16_t> gain(i.cols);
    for (uint32_t c = 0; c < i.cols; ++c) gain[c] = memory_.Read<int16_t>(i.auxiliary, c);
    const Normed n = Norm(residual, i.group, i.imm, gain, i.fraction2);
    Activations a;
    a.q.resize(i.cols);
    for (uint32_t g = 0; g < i.cols / i.group; ++g) {
      const int shift =
          fixed::QuantizeBlock8(std::span(n.v).subspan(uint64_t{g} * i.group, i.group),
                                std::span(a.q).subspan(uint64_t{g} * i.group, i.group));
      a.exponent.push_back(n.exponent[g] + shift);
    }
    return a;
  }

  int32_t Row(const Instruction& i, uint32_t row, const Activations& x, int largest,
              bool low) const {
    return memory_.Row(i, row, x.q, x.exponent, largest, low);
  }

  static int Largest(const Activations& x) { return *std::ranges::max_element(x.exponent); }

  std::vector<int32_t> Matvec(const Instruction& i, Token& token, uint32_t position) {
    const Activations& x = token.buffer[static_cast<size_t>(i.source)];
    const int largest = Largest(x);
    std::vector<int32_t> y(i.rows);
    for (uint32_t row = 0; row < i.rows; ++row) y[row] = Row(i, row, x, largest, true);

    switch (i.epilogue) {
      case Epilogue::kAddResidual:
        for (uint32_t row = 0; row < i.rows; ++row) {
          token.residual[row] = fixed::Saturate32(int64_t{token.residual[row]} + y[row]);
        }
        return token.residual;
      case Epilogue::kSiluGate: {
        std::vector<int32_t> h(i.rows / 2);
        for (uint32_t j = 0; j < h.size(); ++j) h[j] = fixed::SiluGate(y[2 * j], y[2 * j + 1]);
        const uint32_t cols = static_cast<uint32_t>(pack::RoundUp(h.size(), i.group));
        Activations& target = token.buffer[static_cast<size_t>(i.target)];
        target = Quantize(std::move(h), cols, i.group, i.fraction);
        return Show(target);
      }
      case Epilogue::kQuery:
      case Epilogue::kKey:
      case Epilogue::kValue:
        return Heads(i, y, token, position);
      default:
        SLUICE_CHECK(false);
    }
  }

  // q, k or v of all heads from the rows y.
  std::vector<int32_t> Heads(const Instruction& i, std::vector<int32_t>& y, Token& token,
                             uint32_t position) {
    const uint32_t d = i.head_dim;
    if (i.bias != 0 && !(i.flags & program::kHeadNorm)) {
      for (uint32_t row = 0; row < i.rows; ++row) {
        y[row] = fixed::Saturate32(int64_t{y[row]} + memory_.Read<int32_t>(i.bias, row));
      }
    }
    std::vector<int32_t> shown, exponents;
    if (i.epilogue == Epilogue::kQuery) token.q.clear();
    for (uint32_t h = 0; h < i.heads; ++h) {
      std::span<int32_t> head = std::span(y).subspan(uint64_t{h} * d, d);
      if (i.flags & program::kHeadNorm) NormHead(i, head);
      HeadVector out;
      if (i.epilogue == Epilogue::kValue) {
        out = ToBytes(head, i.fraction);
        Slot(i.layer, h, position).v = out;
      } else {
        int shift = 0;
        std::vector<int32_t> rotated = Rotate(head, position, shift);
        if (i.epilogue == Epilogue::kQuery) {
          std::vector<int16_t> q(d);
          shift += fixed::QuantizeBlock16(rotated, q);
          out = {{q.begin(), q.end()}, shift - i.fraction};
          token.q.push_back(out);
        } else {
          for (uint32_t c = 0; c < d; ++c) {
            const int64_t k = int64_t{rotated[c]} << shift;
            rotated[c] = fixed::Saturate32(k - memory_.Read<int32_t>(i.auxiliary, h * d + c));
          }
          out = (i.imm >> h) & 1 ? ToTwoBytes(rotated, i.fraction) : ToBytes(rotated, i.fraction);
          Slot(i.layer, h, position).k = out;
        }
      }
      shown.insert(shown.end(), out.v.begin(), out.v.end());
      // K and V keep each head's exponent beside it, q all exponents behind the heads.
      (i.epilogue == Epilogue::kQuery ? exponents : shown).push_back(out.exponent);
    }
    shown.insert(shown.end(), exponents.begin(), exponents.end());
    return shown;
  }

  static HeadVector ToBytes(std::span<const int32_t> v, int fraction) {
    std::vector<int8_t> q(v.size());
    const int shift = fixed::QuantizeBlock8(v, q);
    return {{q.begin(), q.end()}, shift - fraction};
  }

  static HeadVector ToTwoBytes(std::span<const int32_t> v, int fraction) {
    std::vector<int8_t> high(v.size()), low(v.size());
    const int shift = fixed::QuantizeBlockTwoBytes(v, high, low);
    HeadVector result{std::vector<int32_t>(v.size()), shift - fraction};
    for (size_t c = 0; c < v.size(); ++c) result.v[c] = 256 * high[c] + low[c];
    return result;
  }

  // RMSNorm of one head, in place, from and to units of 2^-fraction.
  void NormHead(const Instruction& i, std::span<int32_t> head) const {
    std::vector<int16_t> gain(head.size());
    for (uint32_t c = 0; c < gain.size(); ++c) gain[c] = memory_.Read<int16_t>(i.bias, c);
    const Normed n = Norm(head, i.head_dim, i.valid_rows, gain, i.fraction2);
    for (size_t c = 0; c < head.size(); ++c) {
      head[c] = fixed::RoundShiftSat32(n.v[c], -n.exponent[0] - i.fraction);
    }
  }

  // RoPE on a head whose pairs are neighbours. The head is first brought to 16 bits by `shift`,
  // which is returned; the result has at most 17 bits, in units of 2^shift of the input's.
  std::vector<int32_t> Rotate(std::span<const int32_t> head, uint32_t position, int& shift) const {
    std::vector<int16_t> a(head.size());
    shift = fixed::QuantizeBlock16(head, a);
    std::vector<int32_t> rotated(head.size());
    for (uint32_t pair = 0; pair < head.size() / 2; ++pair) {
      const uint64_t at = (uint64_t{position} * head.size() / 2 + pair) * 2;
      const int64_t cosine = memory_.Read<int16_t>(rope_line_, at);
      const int64_t sine = memory_.Read<int16_t>(rope_line_, at + 1);
      const int64_t x = a[2 * pair];
      const int64_t y = a[2 * pair + 1];
      rotated[2 * pair] =
          static_cast<int32_t>(fixed::RoundShift(x * cosine - y * sine, program::kRopeFraction));
      rotated[2 * pair + 1] =
          static_cast<int32_t>(fixed::RoundShift(x * sine + y * cosine, program::kRopeFraction));
    }
    return rotated;
  }

  KvEntry& Slot(uint32_t layer, uint32_t head, uint32_t position) {
    auto& positions = cache_[layer][head];
    if (positions.size() <= position) positions.resize(position + 1);
    return positions[position];
  }

  Activations Attend(const Instruction& i, const Token& token, uint32_t position) const {
    std::vector<int32_t> out;
    for (uint32_t h = 0; h < i.heads; ++h) {
      const auto& entries = cache_[i.layer][h / (i.heads / sizes().n_kv_heads)];
      const HeadVector& q = token.q[h];
      // First pass: scores base 2, in 16 bits of `fraction2`, their maximum, and V's largest
      // exponent.
      std::vector<int32_t> score(position + 1);
      int32_t best = -32767;
      int largest = entries[0].v.exponent;
      for (uint32_t t = 0; t <= position; ++t) {
        int64_t dot = 0;
        for (uint32_t c = 0; c < i.head_dim; ++c) dot += int64_t{q.v[c]} * entries[t].k.v[c];
        score[t] = fixed::SaturateSymmetric<16>(
            fixed::RoundShiftSat32(dot, -(q.exponent + entries[t].k.exponent) - i.fraction2));
        best = std::max(best, score[t]);
        largest = std::max(largest, entries[t].v.exponent);
      }
      // Second pass: probabilities, their sum, and the sum of V in units of V's largest exponent.
      uint64_t sum = 0;
      std::vector<int64_t> mixed(i.head_dim);
      for (uint32_t t = 0; t <= position; ++t) {
        const uint32_t p = fixed::Exp2Negative(static_cast<uint32_t>(best - score[t]), i.fraction2);
        sum += p;
        const int64_t weight = fixed::RoundShift(p, largest - entries[t].v.exponent);
        for (uint32_t c = 0; c < i.head_dim; ++c) mixed[c] += weight * entries[t].v.v[c];
      }
      const fixed::Scaled r = fixed::Reciprocal(sum);
      for (uint32_t c = 0; c < i.head_dim; ++c) {
        out.push_back(
            fixed::RoundShiftSat32(mixed[c] * r.mantissa, -(r.exponent + largest) - i.fraction));
      }
    }
    return Quantize(std::move(out), i.cols, i.group, i.fraction);
  }

  std::vector<int32_t> Head(const Instruction& i, const Token& token, uint32_t index,
                            const Block& block, std::vector<Candidates>& results) const {
    const Activations& x = token.buffer[static_cast<size_t>(i.source)];
    const int largest = Largest(x);
    if (block.use_logits) {
      std::vector<int32_t> logits(i.valid_rows);
      for (uint32_t row = 0; row < i.valid_rows; ++row) logits[row] = Row(i, row, x, largest, true);
      block.use_logits(index, logits);
      return {};
    }
    const bool screened = i.flags & program::kScreened;
    Candidates best;
    for (uint32_t row = 0; row < i.valid_rows; ++row) {
      best.push_back({static_cast<int32_t>(row), Row(i, row, x, largest, !screened)});
    }
    std::ranges::sort(best, fixed::Better);
    best.resize(std::min<size_t>(best.size(), i.heads));
    std::vector<int32_t> shown;
    for (const auto& [id, logit] : best) shown.insert(shown.end(), {id, logit});
    if (screened) {
      for (auto& [id, logit] : best) logit = Row(i, static_cast<uint32_t>(id), x, largest, true);
      std::ranges::sort(best, fixed::Better);
    }
    results.push_back(std::move(best));
    return shown;
  }

  Matrices memory_;
  const program::Program& program_;
  uint32_t context_;
  uint32_t rope_line_ = program_.sizes().rope_line;
  uint32_t filled_ = 0;
  std::vector<std::vector<std::vector<KvEntry>>> cache_;  // [layer][kv head][position]
  Trace trace_;
};

}  // namespace

base::Result<std::unique_ptr<Executor>> MakeRefExecutor(std::span<const uint8_t> pack,
                                                        const program::Program& program,
                                                        uint32_t context) {
  const uint32_t most = program.sizes().context;
  return std::make_unique<RefExecutor>(pack, program,
                                       context == 0 ? most : std::min(context, most));
}

}  // namespace sluice::exec
