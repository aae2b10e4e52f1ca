// Every kernel of every instruction set that this processor has gives the bits of the scalar one,
// on random and on extreme operands. Needs no pack, so that it can be built alone for other
// processors (tests/arm).
#include "exec/cpu/kernels.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace sluice::exec::cpu {
namespace {

constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
constexpr uint32_t kRows = 16;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int Between(int low, int high) {
    if (low == high) return low;
    return low + static_cast<int>(engine_() % static_cast<uint64_t>(int64_t{high} - low + 1));
  }
  template <typename T, size_t n>
  T OneOf(const T (&values)[n]) {
    return values[engine_() % n];
  }
  // Of any magnitude, and often one of the least and greatest.
  int32_t Word() {
    if (Between(0, 7) == 0) return OneOf({kMin, kMin + 1, -1, 0, 1, kMax - 1, kMax});
    return static_cast<int32_t>(engine_() >> 32) >> Between(0, 31);
  }
  template <typename T>
  std::vector<T> Vector(size_t size, int low, int high) {
    std::vector<T> values(size);
    for (T& value : values) value = static_cast<T>(Between(low, high));
    return values;
  }
  std::vector<int32_t> Words(size_t size) {
    std::vector<int32_t> values(size);
    for (int32_t& value : values) value = Word();
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

// Calls check(kernels) for all but the scalar ones, until one fails.
void ForEach(const std::function<void(const Kernels&)>& check) {
  for (const Kernels* kernels : SupportedKernels()) {
    if (kernels == &ScalarKernels()) continue;
    SCOPED_TRACE(std::string(kernels->name));
    check(*kernels);
    if (::testing::Test::HasFailure()) return;
  }
}

// Operands of one tile and one panel.
struct DotOperands {
  std::vector<int8_t> sub_scales, x;
  std::vector<uint8_t> high, low;
  std::vector<int32_t> sums, shifts;
  Tile tile;
  Panel panel;

  // x, weights and scales between the limits given; nibbles of 0 and 15 are the extremes.
  struct Limits {
    int x_low, x_high, nibble_low, nibble_high, scale_low, scale_high, shift_low, shift_high;
  };
  DotOperands(Random& random, uint32_t groups, uint32_t group, uint32_t width, const Limits& l)
      : sub_scales(random.Vector<int8_t>(groups * kRows, l.scale_low, l.scale_high)),
        x(random.Vector<int8_t>(groups * group * width, l.x_low, l.x_high)),
        high(Nibbles(random, groups * group * 8, l)),
        low(Nibbles(random, groups * group * 8, l)),
        sums(groups * width),
        shifts(random.Vector<int32_t>(groups * width, l.shift_low, l.shift_high)),
        tile{sub_scales.data(), high.data(), low.data(), groups, group},
        panel{x.data(), sums.data(), shifts.data(), width} {
    for (size_t i = 0; i < x.size(); ++i) {
      sums[i / (group * width) * width + i / 4 % width] += x[i];
    }
  }

 private:
  static std::vector<uint8_t> Nibbles(Random& random, size_t bytes, const Limits& l) {
    std::vector<uint8_t> result(bytes);
    for (uint8_t& byte : result) {
      byte = static_cast<uint8_t>(random.Between(l.nibble_low, l.nibble_high) |
                                  random.Between(l.nibble_low, l.nibble_high) << 4);
    }
    return result;
  }
};

void ExpectSameDot(const DotOperands& operands) {
  for (size_t kind = 0; kind < kMatrixKinds; ++kind) {
    SCOPED_TRACE("matrix kind " + std::to_string(kind));
    Tile tile = operands.tile;
    if (kind != static_cast<size_t>(MatrixKind::kTwoPlanes)) tile.low = nullptr;
    std::array<int32_t, kPanelTokens * kRows> expected;
    expected.fill(12345);  // of which what no token has is to stay
    auto found = expected;
    ScalarKernels().dot[kind](tile, operands.panel, expected.data());
    ForEach([&](const Kernels& kernels) {
      kernels.dot[kind](tile, operands.panel, found.data());
      EXPECT_EQ(found, expected);
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Kernels, MultiplyMatricesAsTheScalarOnesDo) {
  Random random(1);
  for (const uint32_t group : {32u, 64u}) {
    for (uint32_t width = 1; width <= kPanelTokens; ++width) {
      for (uint32_t groups : {1u, 2u, 7u, 20u}) {
        SCOPED_TRACE("group " + std::to_string(group) + " width " + std::to_string(width));
        ExpectSameDot({random, groups, group, width, {-127, 127, 0, 15, -127, 127, 0, 40}});
        if (HasFailure()) return;
      }
    }
  }
}

// All weights at one extreme against all activations at one; 1280 columns are enough to wrap.
TEST(Kernels, MultiplyExtremesAsTheScalarOnesDo) {
  Random random(2);
  for (const uint32_t group : {32u, 64u}) {
    for (uint32_t width = 1; width <= kPanelTokens; ++width) {
      for (const int x : {-127, 127}) {
        for (const int nibble : {0, 15}) {
          for (const int scale : {-128, 127}) {
            SCOPED_TRACE("group " + std::to_string(group) + " width " + std::to_string(width) +
                         " x " + std::to_string(x) + " nibble " + std::to_string(nibble));
            ExpectSameDot(
                {random, 1280 / group, group, width, {x, x, nibble, nibble, scale, scale, 0, 0}});
            ExpectSameDot({random, 3, group, width, {x, x, nibble, nibble, scale, scale, 0, 40}});
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Kernels, ShiftGroupsAsTheScalarOnesDo) {
  Random random(3);
  for (int shift = 0; shift <= 40; ++shift) {
    SCOPED_TRACE("shift " + std::to_string(shift));
    ExpectSameDot({random, 2, 32, 8, {-127, 127, 0, 15, -127, 127, shift, shift}});
    ExpectSameDot({random, 2, 64, 3, {127, 127, 0, 0, 127, 127, shift, shift}});
    if (HasFailure()) return;
  }
}

TEST(Kernels, ScaleRowsAsTheScalarOnesDo) {
  Random random(4);
  for (int round = 0; round < 2000; ++round) {
    const auto width = static_cast<uint32_t>(random.Between(1, kPanelTokens));
    const auto acc = random.Words(width * kRows);
    // Of each row an int16 mantissa, an int8 exponent and a zero byte.
    auto row_table = random.Vector<uint8_t>(kRows * 4, 0, 255);
    for (uint32_t r = 0; r < kRows; ++r) row_table[4 * r + 3] = 0;
    if (round % 4 == 0) {  // the least and the greatest mantissa
      for (uint32_t r = 0; r < kRows; ++r) {
        row_table[4 * r] = r % 2 ? 0x00 : 0xff;
        row_table[4 * r + 1] = r % 2 ? 0x80 : 0x7f;
      }
    }
    const int reach = random.OneOf({4, 40, 400});
    const auto subtract = random.Vector<int32_t>(width, -reach, reach);
    std::vector<int32_t> expected(kPanelTokens * kRows, 12345), found = expected;
    ScalarKernels().scale_rows(acc.data(), width, row_table.data(), subtract.data(),
                               expected.data());
    ForEach([&](const Kernels& kernels) {
      kernels.scale_rows(acc.data(), width, row_table.data(), subtract.data(), found.data());
      EXPECT_EQ(found, expected) << "round " << round;
    });
    if (HasFailure()) return;
  }
}

TEST(Kernels, AddRowsAsTheScalarOnesDo) {
  Random random(5);
  for (int round = 0; round < 2000; ++round) {
    const auto x = random.Words(kRows), y = random.Words(kRows);
    auto expected = x;
    ScalarKernels().add_rows(y.data(), expected.data());
    ForEach([&](const Kernels& kernels) {
      auto found = x;
      kernels.add_rows(y.data(), found.data());
      EXPECT_EQ(found, expected) << "round " << round;
    });
    if (HasFailure()) return;
  }
}

TEST(Kernels, GateAsTheScalarOnesDo) {
  const Tables tables = MakeTables();
  Random random(6);
  for (int round = 0; round < 5000; ++round) {
    auto y = random.Words(16);
    // Gates about the ends of the sigmoid's segments, and about its last.
    if (round % 2 == 0) y[0] = random.Between(-260, 260) * (1 << 12) + random.Between(-1, 1);
    if (round % 3 == 0) y[2] = random.OneOf({-1, 1}) * ((256 << 12) + random.Between(-2, 2));
    std::array<int32_t, 8> expected, found;
    ScalarKernels().silu_gate(y.data(), tables, expected.data());
    ForEach([&](const Kernels& kernels) {
      kernels.silu_gate(y.data(), tables, found.data());
      EXPECT_EQ(found, expected) << "round " << round;
    });
    if (HasFailure()) return;
  }
}

// Blocks of random magnitude, of one value, and of small values with one large.
std::vector<int32_t> Block(Random& random, uint32_t n) {
  const int kind = random.Between(0, 3);
  if (kind == 0) return std::vector<int32_t>(n, random.Word());
  std::vector<int32_t> v = random.Words(n);
  if (kind == 1) return v;
  const int shift = random.Between(0, 31);
  for (int32_t& value : v) value >>= shift;
  if (kind == 2) v[static_cast<size_t>(random.Between(0, static_cast<int>(n) - 1))] = random.Word();
  return v;
}

template <typename T>
void ExpectSameQuantize(int (*Kernels::*quantize)(const int32_t*, uint32_t, T*)) {
  Random random(7);
  for (int round = 0; round < 3000; ++round) {
    const auto n = static_cast<uint32_t>(16 * random.Between(1, 16));
    const auto v = Block(random, n);
    std::vector<T> expected(n + 1, 99), found = expected;
    const int shift = (ScalarKernels().*quantize)(v.data(), n, expected.data());
    ForEach([&](const Kernels& kernels) {
      EXPECT_EQ((kernels.*quantize)(v.data(), n, found.data()), shift) << "round " << round;
      EXPECT_EQ(found, expected) << "round " << round;
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Kernels, QuantizeTo8BitsAsTheScalarOnesDo) { ExpectSameQuantize(&Kernels::quantize8); }
TEST(Kernels, QuantizeTo16BitsAsTheScalarOnesDo) { ExpectSameQuantize(&Kernels::quantize16); }

TEST(Kernels, NormaliseAsTheScalarOnesDo) {
  Random random(8);
  for (int round = 0; round < 1500; ++round) {
    const auto group = random.OneOf({32u, 64u});
    const auto groups = static_cast<uint32_t>(random.Between(1, 12));
    const uint32_t cols = group * groups;
    std::vector<int32_t> x;
    for (uint32_t g = 0; g < groups; ++g) {
      const auto block = Block(random, group);
      x.insert(x.end(), block.begin(), block.end());
    }
    const auto gain = round % 5 == 0
                          ? std::vector<int16_t>(cols, random.OneOf<int16_t>({-32768, 0, 32767}))
                          : random.Vector<int16_t>(cols, -32768, 32767);
    struct Result {
      std::vector<int8_t> q;
      std::vector<int32_t> exponent;
      bool operator==(const Result&) const = default;
    };
    const uint64_t epsilon = uint64_t{1} << random.Between(0, 50);
    const int gain_fraction = random.Between(0, 15);
    const auto norm = [&](const Kernels& kernels) {
      std::vector<int16_t> scaled(cols);
      Result result{std::vector<int8_t>(cols), std::vector<int32_t>(groups)};
      kernels.norm({.x = x.data(),
                    .gain = gain.data(),
                    .cols = cols,
                    .group = group,
                    .epsilon = epsilon,
                    .gain_fraction = gain_fraction,
                    .scaled = scaled.data(),
                    .q = result.q.data(),
                    .exponent = result.exponent.data()});
      return result;
    };
    const Result expected = norm(ScalarKernels());
    ForEach([&](const Kernels& kernels) {
      EXPECT_TRUE(norm(kernels) == expected) << "round " << round;
    });
    if (HasFailure()) return;
  }
}

// In some rounds all at an extreme.
template <typename T>
std::vector<T> Values(Random& random, bool extreme, size_t size, int low, int high) {
  if (!extreme) return random.Vector<T>(size, low, high);
  return std::vector<T>(size, static_cast<T>(random.OneOf({low, high})));
}

TEST(Kernels, ScoreAsTheScalarOnesDo) {
  Random random(9);
  for (int round = 0; round < 1000; ++round) {
    ScoreJob job;
    job.blocks = static_cast<uint32_t>(random.Between(1, 3));
    job.head_dim = static_cast<uint32_t>(16 * random.Between(1, 16));
    job.n = static_cast<uint32_t>(random.Between(1, kMaxQueries));
    job.fraction = random.Between(0, 8);
    job.stride = job.blocks * kKeyBlock + 16;
    const bool extreme = round % 4 == 0;
    const size_t size = size_t{job.blocks} * kKeyBlock * job.head_dim;
    const auto k = Values<int8_t>(random, extreme, size, -127, 127);
    const auto k_low = Values<int8_t>(random, extreme, size, -128, 127);
    // Exponents that bring the scores about 16 bits, and any.
    const bool any = random.Between(0, 3) == 0;
    const auto exponent =
        random.Vector<int8_t>(job.blocks * kKeyBlock, any ? -128 : -20, any ? 127 : 4);
    std::vector<std::vector<int16_t>> q;
    for (uint32_t i = 0; i < job.n; ++i) {
      q.push_back(Values<int16_t>(random, extreme, job.head_dim, -32767, 32767));
      job.q[i] = q[i].data();
      job.q_exponent[i] = any ? random.Between(-200, 200) : random.Between(-20, 4);
    }
    job.k = k.data();
    job.k_low = random.Between(0, 1) == 0 ? k_low.data() : nullptr;
    job.exponent = exponent.data();
    std::vector<int16_t> expected(job.n * job.stride, 99), found = expected;
    job.scores = expected.data();
    ScalarKernels().scores(job);
    ForEach([&](const Kernels& kernels) {
      if (job.n > kernels.queries) return;
      job.scores = found.data();
      kernels.scores(job);
      EXPECT_EQ(found, expected) << "round " << round;
    });
    if (HasFailure()) return;
  }
}

TEST(Kernels, WeighAsTheScalarOnesDo) {
  const Tables tables = MakeTables();
  Random random(10);
  for (int round = 0; round < 3000; ++round) {
    const auto length = static_cast<uint32_t>(random.Between(1, 100));
    const int reach = random.OneOf({0, 3, 300, 32767});
    const int exponents = random.OneOf({0, 3, 20, 127});
    const auto scores = random.Vector<int16_t>(length, -reach, reach);
    const auto v_exponent = random.Vector<int8_t>(length, -exponents - 1, exponents);
    WeightJob job;
    job.scores = scores.data();
    job.v_exponent = v_exponent.data();
    job.length = length;
    job.fraction = random.Between(0, 8);
    std::vector<int16_t> expected(length + 5, 99);
    job.weights = expected.data();
    const WeightSum sum = ScalarKernels().weights(job, tables);
    ForEach([&](const Kernels& kernels) {
      std::vector<int16_t> found(length + 5, 99);
      std::copy(scores.begin(), scores.end(), found.begin());
      WeightJob in_place = job;
      in_place.scores = in_place.weights = found.data();
      const WeightSum found_sum = kernels.weights(in_place, tables);
      EXPECT_EQ(found, expected) << "round " << round;
      EXPECT_EQ(found_sum.sum, sum.sum) << "round " << round;
      EXPECT_EQ(found_sum.largest, sum.largest) << "round " << round;
    });
    if (HasFailure()) return;
  }
}

TEST(Kernels, MixAsTheScalarOnesDo) {
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    const bool extreme = round % 4 == 0;
    MixJob job;
    job.pairs = static_cast<uint32_t>(round % 8 == 0 ? random.OneOf({255, 256, 257, 600})
                                                     : random.Between(1, 40));
    job.head_dim = static_cast<uint32_t>(16 * random.Between(1, 16));
    job.n = static_cast<uint32_t>(random.Between(1, kMaxQueries));
    job.stride = 2 * job.pairs + 6;
    const auto v = Values<int8_t>(random, extreme, size_t{job.pairs} * job.head_dim * 2, -127, 127);
    const auto weights =
        Values<int16_t>(random, extreme, size_t{job.n} * job.stride, extreme ? 32767 : 0, 32767);
    std::vector<int64_t> before(size_t{job.n} * job.head_dim + 1);
    for (int64_t& value : before) value = int64_t{random.Word()} * 100000;
    job.v = v.data();
    job.weights = weights.data();
    auto expected = before;
    job.mixed = expected.data();
    ScalarKernels().mix(job);
    ForEach([&](const Kernels& kernels) {
      if (job.n > kernels.queries) return;
      auto found = before;
      job.mixed = found.data();
      kernels.mix(job);
      EXPECT_EQ(found, expected) << "round " << round;
    });
    if (HasFailure()) return;
  }
}

std::string Names() {
  std::string names;
  for (const Kernels* kernels : SupportedKernels()) {
    names += (names.empty() ? "" : ", ") + std::string(kernels->name);
  }
  return names;
}

// The emulated processors' are given by who starts the test.
TEST(ChooseKernels, HasWhatTheProcessorHas) {
  EXPECT_EQ(SupportedKernels().back(), &ScalarKernels());
  if (const char* expected = std::getenv("SLUICE_TEST_KERNELS")) {
    EXPECT_EQ(Names(), expected);
  }
}

TEST(ChooseKernels, TakesTheFirstOrTheForced) {
  EXPECT_EQ(*ChooseKernels(""), SupportedKernels().front());
  for (const Kernels* kernels : SupportedKernels()) {
    const auto chosen = ChooseKernels(kernels->name);
    ASSERT_TRUE(chosen) << kernels->name;
    EXPECT_EQ(*chosen, kernels);
  }
}

TEST(ChooseKernels, RefusesWithTheListOfWhatThereIs) {
  for (const std::string_view name : {"avx2", "avx512vnni", "neon", "neon-dotprod", "mmx"}) {
    const auto chosen = ChooseKernels(name);
    if (chosen) continue;
    EXPECT_EQ(chosen.error().ToString(), "SLUICE_ISA: " + std::string(name) +
                                             ", expected what this processor has: " + Names());
  }
  EXPECT_FALSE(ChooseKernels("mmx"));
}

}  // namespace
}  // namespace sluice::exec::cpu
