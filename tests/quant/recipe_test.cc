#include "quant/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace sluice::quant {
namespace {

using model::Role;
using ::testing::HasSubstr;

// Of 30 layers.
model::Hyper Shape(bool tied) {
  model::Hyper hyper;
  hyper.n_layers = 30;
  hyper.tied = tied;
  return hyper;
}

TEST(Recipe, BuiltInRecipesAreWhatTheirNamesSay) {
  const auto balanced = LoadRecipe("balanced");
  ASSERT_TRUE(balanced.has_value()) << balanced.error().ToString();
  EXPECT_EQ(balanced->group, 64);
  EXPECT_TRUE(balanced->screen_head);
  EXPECT_EQ(balanced->FormatOf(Role::kDown, 3, Shape(true)),
            (MatrixFormat{4, 64, Codebook::kSluice16}));
  EXPECT_EQ(balanced->FormatOf(Role::kDown, 0, Shape(true)).bits, 8);
  EXPECT_EQ(balanced->FormatOf(Role::kDown, 29, Shape(true)).bits, 8);
  EXPECT_EQ(balanced->FormatOf(Role::kK, 3, Shape(true)), (MatrixFormat{8, 64, Codebook::kLinear}));
  EXPECT_EQ(balanced->FormatOf(Role::kEmbedding, 0, Shape(true)).bits, 8);
  EXPECT_EQ(balanced->FormatOf(Role::kHead, 0, Shape(false)).bits, 8);

  const auto fine = LoadRecipe("fine");
  ASSERT_TRUE(fine.has_value());
  EXPECT_EQ(fine->FormatOf(Role::kUp, 0, Shape(false)).group, 32);

  const auto compact = LoadRecipe("compact");
  ASSERT_TRUE(compact.has_value());
  EXPECT_FALSE(compact->screen_head);
  EXPECT_EQ(compact->FormatOf(Role::kEmbedding, 0, Shape(true)).bits, 4);
  EXPECT_EQ(compact->FormatOf(Role::kEmbedding, 0, Shape(false)).bits, 4);
  EXPECT_EQ(compact->FormatOf(Role::kHead, 0, Shape(false)).bits, 4);
  EXPECT_EQ(compact->FormatOf(Role::kV, 0, Shape(false)).bits, 8);
}

TEST(Recipe, LayersOverrideRolesAndRolesTheDefault) {
  const auto recipe = ParseRecipe(R"({"name": "x", "group": 32,
      "default": {"bits": 4, "codebook": "linear"},
      "roles": {"down": {"bits": 4}, "head": {"bits": 8}},
      "layers": [{"role": "down", "layers": [1, 7], "bits": 8}],
      "tied": {"bits": 4}})",
                                  "test");
  ASSERT_TRUE(recipe.has_value()) << recipe.error().ToString();
  EXPECT_EQ(recipe->FormatOf(Role::kUp, 1, Shape(true)).codebook, Codebook::kLinear);
  EXPECT_EQ(recipe->FormatOf(Role::kDown, 0, Shape(true)).codebook, Codebook::kSluice16);
  EXPECT_EQ(recipe->FormatOf(Role::kDown, 7, Shape(true)).bits, 8);
  EXPECT_EQ(recipe->FormatOf(Role::kHead, 0, Shape(false)).bits, 8);
  EXPECT_EQ(recipe->FormatOf(Role::kEmbedding, 0, Shape(true)).bits, 4);
}

TEST(Recipe, WithoutTiedTheTableHasTheFormatOfTheHead) {
  const auto recipe = ParseRecipe(
      R"({"name": "x", "group": 64, "default": {"bits": 4},
          "roles": {"head": {"bits": 8}}, "screen_head": true})",
      "test");
  ASSERT_TRUE(recipe.has_value());
  EXPECT_EQ(recipe->FormatOf(Role::kEmbedding, 0, Shape(true)).bits, 8);
  EXPECT_EQ(recipe->FormatOf(Role::kEmbedding, 0, Shape(false)).bits, 4);
}

TEST(Recipe, CountsNegativeLayersFromTheLastOn) {
  const auto recipe = ParseRecipe(R"({"name": "x", "group": 64, "default": {"bits": 4},
      "layers": [{"role": "up", "layers": [-1, -30], "bits": 8}]})",
                                  "test");
  ASSERT_TRUE(recipe.has_value());
  for (const auto& [layer, bits] : {std::pair(0, 8), {1, 4}, {28, 4}, {29, 8}}) {
    EXPECT_EQ(recipe->FormatOf(Role::kUp, static_cast<uint32_t>(layer), Shape(true)).bits, bits);
  }
  EXPECT_TRUE(CheckRecipe(*recipe, Shape(true)).has_value());
  model::Hyper hyper = Shape(true);
  hyper.n_layers = 29;
  EXPECT_THAT(CheckRecipe(*recipe, hyper).error().ToString(), HasSubstr("up of layer -30"));
}

// Where the first layer is the last as well.
TEST(Recipe, TheBuiltInOnesFitAModelOfOneLayer) {
  for (const char* name : {"balanced", "fine", "compact"}) {
    model::Hyper hyper = Shape(true);
    hyper.n_layers = 1;
    EXPECT_TRUE(CheckRecipe(*LoadRecipe(name), hyper).has_value()) << name;
  }
}

TEST(Recipe, RefusesALayerThatTheModelLacks) {
  const auto recipe = ParseRecipe(R"({"name": "x", "group": 64, "default": {"bits": 4},
      "layers": [{"role": "up", "layers": [2], "bits": 8}]})",
                                  "test");
  ASSERT_TRUE(recipe.has_value());
  model::Hyper hyper = testing::TinyHyper("llama");
  EXPECT_THAT(CheckRecipe(*recipe, hyper).error().ToString(), HasSubstr("up of layer 2"));
  hyper.n_layers = 3;
  EXPECT_TRUE(CheckRecipe(*recipe, hyper).has_value());
}

// Putting such a list into the message overflowed the stack.
TEST(Recipe, RefusesAListOfLayersThatIsNestedWithoutEnd) {
  const std::string deep(500'000, '[');
  const auto recipe = ParseRecipe(R"({"name": "x", "group": 64, "default": {"bits": 4},
      "layers": [{"role": "up", "bits": 8, "layers": )" +
                                      deep + std::string(deep.size(), ']') + "}]}",
                                  "test");
  ASSERT_FALSE(recipe.has_value());
  EXPECT_THAT(recipe.error().ToString(), HasSubstr("nested deeper"));
}

TEST(Recipe, IsReadFromAFile) {
  const testing::TempDir folder;
  const std::string path = folder.path() + "/mine.json";
  testing::WriteFile(path, R"({"name": "mine", "group": 64, "default": {"bits": 8}})");
  const auto recipe = LoadRecipe(path);
  ASSERT_TRUE(recipe.has_value()) << recipe.error().ToString();
  EXPECT_EQ(recipe->name, "mine");
  EXPECT_FALSE(LoadRecipe(folder.path() + "/absent.json").has_value());
  EXPECT_THAT(LoadRecipe("best").error().ToString(), HasSubstr("balanced, compact, fine"));
}

struct BadRecipe {
  const char* text;
  const char* message;
};

class BadRecipes : public ::testing::TestWithParam<BadRecipe> {};

TEST_P(BadRecipes, AreRefusedWithTheirFault) {
  const auto recipe = ParseRecipe(GetParam().text, "test");
  ASSERT_FALSE(recipe.has_value());
  EXPECT_THAT(recipe.error().ToString(), HasSubstr(GetParam().message));
}

#define SLUICE_BASE R"("name": "x", "group": 64, "default": {"bits": 4})"
INSTANTIATE_TEST_SUITE_P(
    Recipe, BadRecipes,
    ::testing::Values(
        BadRecipe{"{", "not JSON"}, BadRecipe{"", "not JSON"}, BadRecipe{"4E491", "not JSON"},
        BadRecipe{"[]", "array, expected an object"}, BadRecipe{"{}", "no key \"name\""},
        BadRecipe{R"({"name": 3, "group": 64, "default": {"bits": 4}})", "expected a string"},
        BadRecipe{R"({"name": "x", "default": {"bits": 4}})", "no key \"group\""},
        BadRecipe{R"({"name": "x", "group": 48, "default": {"bits": 4}})", "expected 32 or 64"},
        BadRecipe{R"({"name": "x", "group": -64, "default": {"bits": 4}})", "whole number"},
        BadRecipe{R"({"name": "x", "group": "64", "default": {"bits": 4}})", "whole number"},
        BadRecipe{R"({"name": "x", "group": 64})", "no key \"default\""},
        BadRecipe{R"({"name": "x", "group": 64, "default": {"bits": 5}})", "expected 4 or 8"},
        BadRecipe{R"({"name": "x", "group": 64, "default": {}})", "no key \"bits\""},
        BadRecipe{R"({"name": "x", "group": 64, "default": 4})", "expected an object"},
        BadRecipe{R"({"name": "x", "group": 64, "default": {"bits": 4, "codebook": "nf4"}})",
                  "sluice16 or linear"},
        BadRecipe{R"({"name": "x", "group": 64, "default": {"bits": 8, "codebook": "linear"}})",
                  "8-bit weights are linear"},
        BadRecipe{"{" SLUICE_BASE R"(, "goup": 32})", "key \"goup\""},
        BadRecipe{"{" SLUICE_BASE R"(, "group": 32})", "a key that occurs twice"},
        BadRecipe{"{" SLUICE_BASE R"(, "roles": []})", "array, expected an object"},
        BadRecipe{"{" SLUICE_BASE R"(, "roles": {"attn_norm": {"bits": 8}}})",
                  "role \"attn_norm\""},
        BadRecipe{"{" SLUICE_BASE R"(, "roles": {"q": {"bits": 8, "x": 1}}})", "key \"x\""},
        BadRecipe{"{" SLUICE_BASE R"(, "layers": {}})", "expected a list"},
        BadRecipe{"{" SLUICE_BASE R"(, "layers": [{"role": "q", "bits": 8}]})",
                  "no key \"layers\""},
        BadRecipe{"{" SLUICE_BASE R"(, "layers": [{"role": "head", "layers": [0], "bits": 8}]})",
                  "a role of a layer"},
        BadRecipe{"{" SLUICE_BASE R"(, "layers": [{"role": "q", "layers": [-1025], "bits": 8}]})",
                  "layer numbers"},
        BadRecipe{"{" SLUICE_BASE R"(, "layers": [{"role": "q", "layers": [0.5], "bits": 8}]})",
                  "layer numbers"},
        BadRecipe{"{" SLUICE_BASE R"(, "layers": [{"role": "q", "layers": [2, 2], "bits": 8}]})",
                  "q of layer 2 named twice"},
        BadRecipe{"{" SLUICE_BASE R"(, "screen_head": 1})", "true or false"},
        BadRecipe{"{" SLUICE_BASE R"(, "screen_head": true})", "head of 4 bits"},
        BadRecipe{"{" SLUICE_BASE
                  R"(, "roles": {"head": {"bits": 8}}, "tied": {"bits": 4}, "screen_head": true})",
                  "tied table of 4 bits"}));

}  // namespace
}  // namespace sluice::quant
