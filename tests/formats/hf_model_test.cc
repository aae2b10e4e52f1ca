#include "formats/hf_model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "allocation_meter.h"
#include "formats/hf_tokenizer.h"
#include "formats/model_reader.h"
#include "support/python.h"
#include "support/tiny_model.h"

namespace sluice::formats {
namespace {

using model::Role;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::TinyTensor;
using testing::WriteFile;

constexpr uint64_t kSeed = 12;

// A number without its type: GGUF writers differ in the width they choose.
std::string Describe(const model::Value& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_arithmetic_v<T>) {
          return fmt::format("{}", v);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return v;
        } else {
          std::string text;
          for (const auto& x : v) text += fmt::format("{}\n", x);
          return text;
        }
      },
      value);
}

class WrittenTwice : public ::testing::TestWithParam<const char*> {};

TEST_P(WrittenTwice, FolderAndGgufAreTheSameModel) {
  SLUICE_NEEDS_PYTHON("gguf, numpy, tokenizers");
  const TempDir dir;
  ASSERT_EQ(testing::RunPython(fmt::format("'{}/tests/formats/make_models.py' {} {}",
                                           SLUICE_SOURCE_DIR, GetParam(), dir.path())),
            0);
  const auto folder = OpenModel(dir / "hf");
  const auto file = OpenModel(dir / "model.gguf");
  ASSERT_TRUE(folder.has_value()) << folder.error().ToString();
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  EXPECT_EQ(folder->hyper, file->hyper);
  EXPECT_EQ(folder->hyper.rope_factors.empty(), std::string(GetParam()) == "qwen2");
  size_t tensors = 0;
  for (uint32_t layer = 0; layer < folder->hyper.n_layers; ++layer) {
    for (const auto roles : {model::GlobalRoles(), model::LayerRoles()}) {
      for (const Role role : roles) {
        const auto* a = folder->Find(role, layer);
        const auto* b = file->Find(role, layer);
        ASSERT_EQ(a == nullptr, b == nullptr);
        if (a == nullptr) continue;
        EXPECT_EQ(folder->ReadAll(role, layer), file->ReadAll(role, layer))
            << model::RoleName(role) << " " << layer;
        ++tensors;
      }
    }
  }
  EXPECT_GE(tensors, 20u);
  for (const auto& [key, value] : file->metadata.entries()) {
    const model::Value* same = folder->metadata.Find(key);
    ASSERT_NE(same, nullptr) << key;
    EXPECT_EQ(Describe(*same), Describe(value)) << key;
  }
  EXPECT_EQ(folder->metadata.GetInts("sluice.eos_token_ids").value(), (std::vector<int32_t>{1, 0}));
}

INSTANTIATE_TEST_SUITE_P(Families, WrittenTwice, ::testing::Values("llama", "qwen2", "qwen3"));

class TinyFolder {
 public:
  explicit TinyFolder(const std::string& family = "llama") : h_(testing::TinyHyper(family)) {
    testing::WriteTinyHf(dir_.path(), h_, testing::TinyTensors(h_, kSeed));
  }
  void Write(const std::string& name, std::string_view text) { WriteFile(dir_ / name, text); }
  void Remove(const std::string& name) { std::filesystem::remove(dir_ / name); }
  base::Result<model::Model> Open() const { return OpenModel(dir_.path()); }
  const model::Hyper& hyper() const { return h_; }
  const std::string& path() const { return dir_.path(); }

 private:
  model::Hyper h_;
  TempDir dir_;
};

TEST(HfModel, HasTheTensorsThatWereWritten) {
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    const TinyFolder folder(family);
    const auto model = folder.Open();
    ASSERT_TRUE(model.has_value()) << model.error().ToString();
    EXPECT_EQ(model->hyper, folder.hyper());
    for (const TinyTensor& t : testing::TinyTensors(folder.hyper(), kSeed)) {
      EXPECT_EQ(model->ReadAll(t.role, t.layer), t.values) << model::RoleName(t.role);
    }
    auto expected = testing::TinyMetadata(folder.hyper());
    for (const auto& [key, value] : expected.entries()) {
      if (key == "general.name") continue;
      const model::Value* found = model->metadata.Find(key);
      ASSERT_NE(found, nullptr) << key;
      EXPECT_EQ(*found, value) << key;
    }
  }
}

TEST(HfModel, NeedsItsFiles) {
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    TinyFolder folder;
    folder.Remove(name);
    const auto model = folder.Open();
    ASSERT_FALSE(model.has_value());
    EXPECT_THAT(model.error().ToString(), HasSubstr(name));
  }
}

TEST(HfModel, NamesTheFolderThatHoldsNoModel) {
  const testing::TempDir folder;
  const auto model = OpenModel(folder.path());
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().object, folder.path());
  EXPECT_THAT(model.error().ToString(), HasSubstr("a folder without config.json"));
}

TEST(HfModel, TellsWhatToDoWithABareSafetensorsFile) {
  const TinyFolder folder;
  const auto model = OpenModel(folder.path() + "/model.safetensors");
  ASSERT_FALSE(model.has_value());
  EXPECT_THAT(model.error().ToString(), HasSubstr("the folder with config.json"));
  EXPECT_FALSE(OpenModel(folder.path() + "/config.json").has_value());
  EXPECT_FALSE(OpenModel(folder.path() + "/nothing").has_value());
}

struct Edit {
  std::string key;  // JSON pointer
  std::string value;
  std::string message;
};

// Sets what the pointer names to the value, or removes it where the value is empty.
void Apply(nlohmann::json& json, const Edit& edit) {
  const nlohmann::json::json_pointer at(edit.key);
  if (edit.value.empty()) {
    json[at.parent_pointer()].erase(at.back());
  } else {
    json[at] = nlohmann::json::parse(edit.value);
  }
}

void ExpectRefused(const TinyFolder& folder, const std::string& message) {
  const testing::AllocationMeter meter;
  const auto model = folder.Open();
  uint64_t size = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    size += entry.file_size();
  }
  EXPECT_LT(meter.peak(), size + (64 << 20));
  ASSERT_FALSE(model.has_value());
  EXPECT_FALSE(model.error().object.empty() || model.error().got.empty());
  EXPECT_THAT(model.error().ToString(), HasSubstr(message));
}

TEST(HfModel, RefusesEveryBadConfig) {
  std::vector<Edit> edits = {
      {"/model_type", "\"gpt2\"", "one of llama, qwen2, qwen3, mistral"},
      {"/model_type", "\"\"", "model_type"},
      {"/model_type", "", "model_type: missing"},
      {"/num_experts", "8", "num_experts"},
      {"/num_local_experts", "8", "num_local_experts"},
      {"/quantization_config", R"({"bits":4})", "quantization_config"},
      {"/use_sliding_window", "true", "use_sliding_window"},
      {"/attention_bias", "true", "attention_bias"},
      {"/mlp_bias", "true", "mlp_bias"},
      {"/mlp_bias", "1", "mlp_bias"},
      {"/hidden_act", "\"gelu\"", "silu"},
      {"/partial_rotary_factor", "0.5", "partial_rotary_factor"},
      {"/layer_types", R"(["full_attention","sliding_attention"])", "layer_types"},
      {"/rope_scaling", R"({"type":"yarn","factor":4.0})", "yarn"},
      {"/rope_scaling", R"({"rope_type":"dynamic","factor":4.0})", "dynamic"},
      {"/rope_scaling", R"({"rope_type":"longrope"})", "longrope"},
      {"/rope_scaling", R"({"type":"linear"})", "factor: missing"},
      {"/rope_scaling", R"({"type":"linear","factor":"2"})", "factor"},
      {"/rope_scaling", R"({"type":"linear","factor":0})", "RoPE factor"},
      {"/rope_scaling", R"({"type":"linear","factor":1e99})", "RoPE factor"},
      {"/rope_scaling", R"({"rope_type":"llama3","factor":0.5})", "factor >= 1"},
      {"/rope_scaling", R"({"rope_type":"llama3","factor":8,"low_freq_factor":4})", "low_freq"},
      {"/rope_scaling", R"({"rope_type":"llama3","factor":8,"original_max_position_embeddings":0})",
       "above 0"},
      {"/rope_scaling", "[]", "rope_scaling"},
      {"/rope_scaling", "\"linear\"", "rope_scaling"},
      {"/rope_theta", "\"10000\"", "rope_theta"},
      {"/rope_theta", "0", "RoPE base"},
      {"/rope_theta", "1e99", "RoPE base"},
      {"/rms_norm_eps", "0", "epsilon"},
      {"/rms_norm_eps", "[]", "rms_norm_eps"},
      {"/tie_word_embeddings", "\"no\"", "tie_word_embeddings"},
      {"/num_attention_heads", "3", ""},
      {"/num_key_value_heads", "3", ""},
      {"/num_key_value_heads", "8", ""},
      {"/head_dim", "16", ""},
      {"/head_dim", "7", ""},
      {"/head_dim", "0", "head_dim: 0, expected a positive integer"},
      {"/head_dim", "1000000", "head_dim"},
      {"/vocab_size", "287", "embedding"},
      {"/vocab_size", "289", "embedding"},
      {"/vocab_size", "4000000000", "vocab_size"},
      {"/vocab_size", "200", ""},
      {"/num_hidden_layers", "1", "layer 1"},
      {"/num_hidden_layers", "3", "missing"},
      {"/eos_token_id", "288", "eos_token_id"},
      {"/eos_token_id", "-1", "eos_token_id"},
      {"/eos_token_id", "\"2\"", "eos_token_id"},
      {"/eos_token_id", "[1, 288]", "eos_token_id"},
      {"/bos_token_id", "1.5", "bos_token_id"},
  };
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    const std::string pointer = fmt::format("/{}", key);
    edits.push_back({pointer, "", fmt::format("{}: missing", key)});
    edits.push_back({pointer, "null", fmt::format("{}: missing", key)});
    edits.push_back({pointer, "\"32\"", key});
    edits.push_back({pointer, "-32", key});
    edits.push_back({pointer, "32.5", key});
    edits.push_back({pointer, "[32]", key});
    edits.push_back({pointer, "0", fmt::format("{}: 0, expected a positive integer", key)});
    edits.push_back({pointer, "4294967296", key});
    edits.push_back({pointer, "18446744073709551616", key});
    edits.push_back({pointer, "4294967295", ""});
  }
  EXPECT_GT(edits.size(), 100u);
  TinyFolder folder;
  for (const Edit& edit : edits) {
    SCOPED_TRACE(edit.key + " = " + edit.value);
    nlohmann::json config = testing::TinyHfConfig(folder.hyper());
    Apply(config, edit);
    folder.Write("config.json", config.dump());
    ExpectRefused(folder, edit.message);
  }
  for (const char* text : {"", "x", "[]", "{", "{}", "null", "{\"a\":1,\"a\":2}", "\xff\xfe"}) {
    SCOPED_TRACE(text);
    folder.Write("config.json", text);
    ExpectRefused(folder, "config.json");
  }
}

TEST(HfModel, TakesMistralWithoutAWindowAsLlama) {
  TinyFolder folder;
  auto config = testing::TinyHfConfig(folder.hyper());
  config["model_type"] = "mistral";
  config["sliding_window"] = nullptr;
  folder.Write("config.json", config.dump());
  const auto model = folder.Open();
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  EXPECT_EQ(model->hyper.family->name, "llama");
  config["sliding_window"] = 4096;
  folder.Write("config.json", config.dump());
  ExpectRefused(folder, "sliding_window");
}

TEST(HfModel, LeavesOutAHeadThatIsTied) {
  TinyFolder folder;
  auto config = testing::TinyHfConfig(folder.hyper());
  config["tie_word_embeddings"] = true;
  folder.Write("config.json", config.dump());
  const auto model = folder.Open();
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  EXPECT_TRUE(model->hyper.tied);
  EXPECT_EQ(model->Find(Role::kHead), nullptr);
}

TEST(HfModel, TakesRopeParametersOfNewConfigurations) {
  TinyFolder folder;
  auto config = testing::TinyHfConfig(folder.hyper());
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 500000.0}};
  folder.Write("config.json", config.dump());
  const auto model = folder.Open();
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  EXPECT_EQ(model->hyper.rope_base, 500000.0f);
  EXPECT_EQ(model->hyper.rope_factors, std::vector<float>(4, 2.0f));
}

TEST(HfModel, RefusesTensorsThatTheFamilyLacks) {
  const auto h = testing::TinyHyper("llama");
  for (const Role role : {Role::kQBias, Role::kKNorm}) {
    auto tensors = testing::TinyTensors(h, kSeed);
    tensors.push_back({role, 0, 1, 32, std::vector<float>(32)});
    TinyFolder folder;
    const auto bytes =
        testing::TinySafetensors(testing::TinySafetensorsHeader(tensors).dump(), tensors);
    folder.Write("model.safetensors",
                 std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    ExpectRefused(folder, "none in the llama family");
  }
}

TEST(HfModel, RefusesEverySpoiledTensor) {
  const auto h = testing::TinyHyper("qwen2");
  TinyFolder folder("qwen2");
  const auto tensors = testing::TinyTensors(h, kSeed);
  const auto write = [&](const std::vector<TinyTensor>& spoiled, const std::string& header) {
    const auto bytes = testing::TinySafetensors(header, spoiled);
    folder.Write("model.safetensors",
                 std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = testing::HfTensorName(tensors[i].role, tensors[i].layer);
    SCOPED_TRACE(name);
    auto fewer = tensors;
    fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(i));
    write(fewer, testing::TinySafetensorsHeader(fewer).dump());
    ExpectRefused(folder, "missing");

    auto wider = tensors;
    wider[i].cols += 1;
    wider[i].values.resize(wider[i].rows * wider[i].cols);
    write(wider, testing::TinySafetensorsHeader(wider).dump());
    ExpectRefused(folder, fmt::format("expected {} x {}", tensors[i].rows, tensors[i].cols));

    auto header = testing::TinySafetensorsHeader(tensors);
    header[name + "x"] = header[name];
    header.erase(name);
    write(tensors, header.dump());
    ExpectRefused(folder, name + "x: unknown");
  }
}

TEST(HfTokenizer, RefusesEveryBadTokenizer) {
  const std::vector<Edit> edits = {
      {"/model", "", "model: missing"},
      {"/model", "[]", "model"},
      {"/model/type", "\"WordPiece\"", "BPE"},
      {"/model/type", "\"Unigram\"", "BPE"},
      {"/model/vocab", "", "vocab: missing"},
      {"/model/vocab", "[]", "vocab"},
      {"/model/vocab/a", "-1", "a token id"},
      {"/model/vocab/a", "\"1\"", "a token id"},
      {"/model/vocab/a", "1.0", "a token id"},
      {"/model/vocab/a", "288", "below 288"},
      {"/model/vocab/a", "18446744073709551615", "below 288"},
      {"/model/vocab/a", "0", "each id once"},
      {"/model/merges", "", "merges: missing"},
      {"/model/merges", "{}", "merges"},
      {"/model/merges/0", "\"th\"", "merges"},
      {"/model/merges/0", "\"\"", "merges"},
      {"/model/merges/0", "\"t \"", "merges"},
      {"/model/merges/0", "1", "merges"},
      {"/model/merges/0", R"(["t"])", "merges"},
      {"/model/merges/0", R"(["t","h","e"])", "merges"},
      {"/model/merges/0", R"(["t",1])", "merges"},
      {"/model/merges/0", R"(["t",""])", "merges"},
      {"/model/merges/0", R"(["t","h e"])", "merges"},
      {"/model/continuing_subword_prefix", "\"##\"", "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
      {"/model/ignore_merges", "true", "ignore_merges"},
      {"/model/ignore_merges", "1", "ignore_merges"},
      {"/model/byte_fallback", "\"yes\"", "byte_fallback"},
      {"/model/byte_fallback", "true", "Metaspace"},
      {"/added_tokens", "{}", "added_tokens"},
      {"/added_tokens/0", "1", "added_tokens"},
      {"/added_tokens/0/id", "", "id: missing"},
      {"/added_tokens/0/id", "288", "below 288"},
      {"/added_tokens/0/id", "0", "one token for each id"},
      {"/added_tokens/0/content", "", "content: missing"},
      {"/added_tokens/0/content", "1", "content"},
      {"/added_tokens/0/special", "\"yes\"", "special"},
      {"/normalizer", R"({"type":"Lowercase"})", "Lowercase"},
      {"/normalizer", R"({"type":"Sequence"})", "normalizers: missing"},
      {"/normalizer", R"({"type":"Sequence","normalizers":[{"type":"NFKC"}]})", "NFKC"},
      {"/normalizer", "[]", "normalizer"},
      {"/pre_tokenizer", "null", "pre_tokenizer: missing"},
      {"/pre_tokenizer", "{}", "type: missing"},
      {"/pre_tokenizer", R"({"type":"Whitespace"})", "Whitespace"},
      {"/pre_tokenizer/pretokenizers", "", "pretokenizers: missing"},
      {"/pre_tokenizer/pretokenizers", "[]", "no steps"},
      {"/pre_tokenizer/pretokenizers/0", "1", "pre_tokenizer"},
      {"/pre_tokenizer/pretokenizers/0/individual_digits", "false", "Digits"},
      {"/pre_tokenizer/pretokenizers/0/type", "\"Punctuation\"", "Punctuation"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "add_prefix_space"},
      {"/pre_tokenizer/pretokenizers/1/use_regex", "false", "Digits"},
      {"/post_processor", "[]", "post_processor"},
      {"/post_processor", R"({"type":"TemplateProcessing"})", "single: missing"},
  };
  TinyFolder folder;
  for (const Edit& edit : edits) {
    SCOPED_TRACE(edit.key + " = " + edit.value);
    nlohmann::json tokenizer = testing::TinyHfTokenizer();
    Apply(tokenizer, edit);
    folder.Write("tokenizer.json", tokenizer.dump());
    ExpectRefused(folder, edit.message);
  }
  for (const char* text : {"", "x", "[]", "{", "{}", "null", "{\"a\":1,\"a\":2}"}) {
    SCOPED_TRACE(text);
    folder.Write("tokenizer.json", text);
    ExpectRefused(folder, "tokenizer.json");
  }
}

TEST(HfTokenizer, RefusesBadSideFiles) {
  struct Case {
    std::string file;
    std::string text;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"tokenizer_config.json", "[]", "tokenizer_config.json"},
      {"tokenizer_config.json", R"({"bos_token":1})", "bos_token"},
      {"tokenizer_config.json", R"({"eos_token":"<none>"})", "eos_token"},
      {"tokenizer_config.json", R"({"pad_token":{"content":[]}})", "pad_token"},
      {"tokenizer_config.json", R"({"add_bos_token":"yes"})", "add_bos_token"},
      {"tokenizer_config.json", R"({"chat_template":5})", "chat_template"},
      {"tokenizer_config.json", R"({"chat_template":[5]})", "chat_template"},
      {"tokenizer_config.json", R"({"chat_template":[{"name":"default"}]})", "chat_template"},
      {"generation_config.json", "{", "generation_config.json"},
      {"generation_config.json", R"({"eos_token_id":{}})", "eos_token_id"},
      {"generation_config.json", R"({"eos_token_id":[1,"2"]})", "eos_token_id"},
      {"generation_config.json", R"({"eos_token_id":[1,288]})", "eos_token_id"},
      {"chat_template.jinja", std::string((1 << 20) + 1, 'x'), "chat_template.jinja"},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.file + " " + bad.text.substr(0, 100));
    TinyFolder folder;
    folder.Write(bad.file, bad.text);
    ExpectRefused(folder, bad.message);
  }
}

TEST(HfTokenizer, PrefersTheTemplateThatStandsAlone) {
  TinyFolder folder;
  folder.Write("tokenizer_config.json", R"({"chat_template":"in config"})");
  EXPECT_EQ(**folder.Open()->metadata.GetString("tokenizer.chat_template"), "in config");
  folder.Write("chat_template.jinja", "alone");
  EXPECT_EQ(**folder.Open()->metadata.GetString("tokenizer.chat_template"), "alone");
}

TEST(HfTokenizer, TakesMergesInBothForms) {
  TinyFolder folder;
  auto tokenizer = testing::TinyHfTokenizer();
  nlohmann::json pairs = nlohmann::json::array();
  for (const std::string text : tokenizer["model"]["merges"]) {
    const size_t space = text.find(' ');
    pairs.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  tokenizer["model"]["merges"] = pairs;
  folder.Write("tokenizer.json", tokenizer.dump());
  const auto model = folder.Open();
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  EXPECT_EQ(**model->metadata.GetStrings("tokenizer.ggml.merges"),
            testing::MakeTinyTokenizer().merges);
}

TEST(HfTokenizer, RecognisesWordPatterns) {
  const std::string split = R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)"
                            R"({"Regex":"%"},"behavior":"Isolated","invert":false},)"
                            R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})";
  const auto with = [&](const std::string& regex) {
    std::string text = split;
    return text.replace(text.find('%'), 1, regex);
  };
  const std::string head = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|)";
  const std::string tail = R"(| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
  const std::vector<std::pair<std::string, std::string>> known = {
      {R"({"type":"ByteLevel","add_prefix_space":false})", "gpt-2"},
      {R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},)"
       R"({"type":"ByteLevel","add_prefix_space":false}]})",
       "smollm"},
      {with(head + R"(\\p{N})" + tail), "qwen2"},
      {with(head + R"(\\p{N}{1,3})" + tail), "llama-bpe"},
  };
  for (const auto& [text, name] : known) {
    const auto found = RecognisePreTokenizer(Json::parse(text), "test");
    ASSERT_TRUE(found.has_value()) << found.error().ToString();
    EXPECT_EQ(*found, name);
  }
  EXPECT_FALSE(RecognisePreTokenizer(Json::parse(with(head + R"(\\p{N}{1,2})" + tail)), "test"));
}

// A SentencePiece-like tokenizer: <unk>, <s>, </s>, 256 bytes, letters and merges.
nlohmann::json SentencePiece() {
  nlohmann::json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  int id = 259;
  for (const char* token : {"\u2581", "a", "b", "ab", "\u2581a", "\u2581ab"}) vocab[token] = id++;
  nlohmann::json added = nlohmann::json::array();
  for (const auto& [text, number] : {std::pair{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}}) {
    added.push_back({{"id", number}, {"content", text}, {"special", true}});
  }
  nlohmann::json normalizers = nlohmann::json::array();
  normalizers.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
  normalizers.push_back(
      {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}});
  return {{"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"pre_tokenizer", nullptr},
          {"model",
           {{"type", "BPE"},
            {"byte_fallback", true},
            {"unk_token", "<unk>"},
            {"vocab", vocab},
            {"merges", {"\u2581 a", "a b", "\u2581a b", "\u2581 ab"}}}}};
}

TEST(HfTokenizer, ReadsSentencePieceWithByteFallback) {
  TinyFolder folder;
  folder.Write("tokenizer.json", SentencePiece().dump());
  folder.Write("tokenizer_config.json",
               R"({"bos_token":"<s>","eos_token":"</s>","unk_token":"<unk>"})");
  auto model = folder.Open();
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  const auto& m = model->metadata;
  EXPECT_EQ(**m.GetString("tokenizer.ggml.model"), "llama");
  const auto types = **m.GetInts("tokenizer.ggml.token_type");
  EXPECT_EQ(types[0], 2);
  EXPECT_EQ(types[1], 3);
  EXPECT_EQ(types[3], 6);
  EXPECT_EQ(types[258], 6);
  EXPECT_EQ(types[259], 1);
  EXPECT_EQ(types[287], 5);
  const auto scores = **m.GetFloats("tokenizer.ggml.scores");
  EXPECT_EQ(scores[262], -1.0f);  // ab
  EXPECT_EQ(scores[263], 0.0f);   // _a
  EXPECT_EQ(scores[264], -2.0f);  // _ab, by its better merge
  EXPECT_EQ(m.GetUint("tokenizer.ggml.bos_token_id").value(), 1u);
  EXPECT_EQ(m.GetUint("tokenizer.ggml.eos_token_id").value(), 2u);
  EXPECT_EQ(m.GetUint("tokenizer.ggml.unknown_token_id").value(), 0u);
  EXPECT_EQ(m.GetBool("tokenizer.ggml.add_space_prefix").value(), true);
  EXPECT_EQ(m.GetBool("tokenizer.ggml.add_bos_token").value(), true);
  // config.json names another end.
  EXPECT_EQ(**m.GetInts("sluice.eos_token_ids"), (std::vector<int32_t>{2, 256}));

  auto metaspace = SentencePiece();
  metaspace["normalizer"] = nullptr;
  metaspace["pre_tokenizer"] = {{"type", "Metaspace"},
                                {"replacement", "\u2581"},
                                {"prepend_scheme", "never"},
                                {"split", false}};
  folder.Write("tokenizer.json", metaspace.dump());
  model = folder.Open();
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  EXPECT_EQ(model->metadata.GetBool("tokenizer.ggml.add_space_prefix").value(), false);

  metaspace["pre_tokenizer"]["split"] = true;
  folder.Write("tokenizer.json", metaspace.dump());
  EXPECT_FALSE(folder.Open().has_value());
  metaspace["pre_tokenizer"] = nullptr;
  folder.Write("tokenizer.json", metaspace.dump());
  EXPECT_FALSE(folder.Open().has_value());
}

TEST(HfTokenizer, ReadsWhetherATextBeginsWithASpecialToken) {
  TinyFolder folder;
  auto tokenizer = testing::TinyHfTokenizer();
  tokenizer["post_processor"] = nlohmann::json::parse(
      R"({"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing",)"
      R"("single":[{"SpecialToken":{"id":"<|end|>","type_id":0}},{"Sequence":{"id":"A"}}]}]})");
  folder.Write("tokenizer.json", tokenizer.dump());
  auto model = folder.Open();
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  EXPECT_EQ(model->metadata.GetBool("tokenizer.ggml.add_bos_token").value(), true);
  EXPECT_EQ(model->metadata.GetBool("tokenizer.ggml.add_eos_token").value(), false);
  folder.Write("tokenizer_config.json", R"({"add_bos_token":false})");
  EXPECT_EQ(folder.Open()->metadata.GetBool("tokenizer.ggml.add_bos_token").value(), false);
}

TEST(HfModel, SurvivesRandomDamageToItsJson) {
  std::mt19937_64 random(kSeed);
  TinyFolder folder;
  const std::string texts[] = {testing::TinyHfConfig(folder.hyper()).dump(),
                               testing::TinyHfTokenizer().dump()};
  const std::string names[] = {"config.json", "tokenizer.json"};
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " round " << round);
    const int which = round % 2;
    std::string text = texts[which];
    for (int i = 0; i < 2; ++i) text[random() % text.size()] = "{}[],:\"0-"[random() % 9];
    folder.Write(names[which], text);
    const auto model = folder.Open();
    if (!model) {
      ASSERT_FALSE(model.error().object.empty() || model.error().got.empty());
    }
    folder.Write(names[which], texts[which]);
  }
}

}  // namespace
}  // namespace sluice::formats
