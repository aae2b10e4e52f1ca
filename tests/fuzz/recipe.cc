// Recipes of one's own: src/quant/recipe.h.
#include "quant/recipe.h"

#include <cstdint>
#include <string_view>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto recipe = quant::ParseRecipe(text, "fuzz");
  if (!recipe) {
    SLUICE_CHECK(!recipe.error().object.empty() && !recipe.error().got.empty());
    return 0;
  }
  model::Hyper hyper;
  hyper.n_layers = 30;
  for (const bool tied : {false, true}) {
    hyper.tied = tied;
    for (const auto role : {model::Role::kEmbedding, model::Role::kHead, model::Role::kDown}) {
      const quant::MatrixFormat format = recipe->FormatOf(role, 3, hyper);
      SLUICE_CHECK(format.bits == 4 || format.bits == 8);
      SLUICE_CHECK(format.group == 32 || format.group == 64);
    }
  }
  return 0;
}
