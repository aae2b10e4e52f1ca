#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "formats/model_reader.h"
#include "model/float_forward.h"

namespace sluice::quant {
namespace {

// The small model that scripts/test provides; its tokens are written out, as no tokenizer is below
// this folder.
TEST(FloatForward, ContinuesASentenceAsARealModelShould) {
  const char* path = std::getenv("SLUICE_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODEL is not set";
  const auto model = formats::OpenModel(path);
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  const std::vector<std::vector<int32_t>> windows = {
      {504, 3575, 282, 4649, 314},  // "The capital of France is"
  };
  base::ThreadPool pool(0);
  int32_t best = -1;
  const auto status = model::FloatForward(
      *model, windows, pool, [&](size_t, size_t, model::Rows logits) -> base::Status {
        const auto last = logits[logits.rows - 1];
        best = static_cast<int32_t>(std::ranges::max_element(last) - last.begin());
        return {};
      });
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(best, 7042);  // " Paris"
}

}  // namespace
}  // namespace sluice::quant
