#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "cli/common.h"
#include "formats/gguf.h"
#include "formats/model_reader.h"
#include "program/loaded_pack.h"

namespace sluice::cli {
namespace {

struct Flags {
  std::string model;
  std::string recipe{kDefaultRecipe};
  bool tensors = false;
  bool program = false;
  bool metadata = false;
  bool json = false;
};

// A value in one line; long arrays and strings are cut.
std::string ShowValue(const model::Value& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          const std::string line = OneLine(std::string_view(v).substr(0, 100));
          return v.size() > 100 ? line + " ..." : line;
        } else if constexpr (requires { v.size(); }) {
          return fmt::format("[{} values]", v.size());
        } else {
          return fmt::format("{}", v);
        }
      },
      value);
}

void PrintMetadata(const model::Metadata& metadata) {
  for (const auto& [key, value] : metadata.entries()) {
    fmt::print("  {:<44} {}\n", OneLine(key), ShowValue(value));
  }
}

nlohmann::json HyperJson(const model::Hyper& h) {
  return {{"family", h.family->name}, {"layers", h.n_layers},
          {"hidden", h.hidden},       {"ffn", h.ffn},
          {"heads", h.n_heads},       {"kv_heads", h.n_kv_heads},
          {"head_dim", h.head_dim},   {"vocab", h.vocab},
          {"context", h.context},     {"rms_eps", h.rms_eps},
          {"rope_base", h.rope_base}, {"tied", h.tied}};
}

base::Status InspectModel(const Flags& flags, const std::string& path) {
  SLUICE_TRY(const model::Model model, formats::OpenModel(path));
  const model::Hyper& h = model.hyper;
  nlohmann::json json{{"path", path}, {"kind", "model"}, {"hyperparameters", HyperJson(h)}};
  std::vector<std::pair<std::string, const model::FloatTensor*>> tensors;
  uint64_t parameters = 0;
  const auto add = [&](model::Role role, uint32_t layer, bool global) {
    if (const auto* tensor = model.Find(role, layer)) {
      parameters += tensor->rows() * tensor->cols();
      tensors.emplace_back(global ? std::string(model::RoleName(role))
                                  : fmt::format("{}.{}", layer, model::RoleName(role)),
                           tensor);
    }
  };
  for (const auto role : model::GlobalRoles()) add(role, 0, true);
  for (uint32_t layer = 0; layer < h.n_layers; ++layer) {
    for (const auto role : model::LayerRoles()) add(role, layer, false);
  }
  if (flags.json) {
    json["parameters"] = parameters;
    for (const auto& [name, t] : tensors) {
      json["tensors"].push_back(
          {{"name", name}, {"rows", t->rows()}, {"cols", t->cols()}, {"type", t->type_name()}});
    }
    PrintJson(json);
    return {};
  }
  fmt::print("{}: a {} model, not packed\n", path, h.family->name);
  fmt::print("  {:.1f} M parameters, {} layers, hidden {}, ffn {}, {} heads on {} KV heads of {}\n",
             static_cast<double>(parameters) / 1e6, h.n_layers, h.hidden, h.ffn, h.n_heads,
             h.n_kv_heads, h.head_dim);
  fmt::print("  vocabulary {}, context {}, RoPE base {}, RMSNorm epsilon {}, head {}\n", h.vocab,
             h.context, h.rope_base, h.rms_eps, h.tied ? "tied" : "separate");
  if (flags.metadata) PrintMetadata(model.metadata);
  if (flags.tensors) {
    for (const auto& [name, t] : tensors) {
      fmt::print("  {:<16} {:>7} x {:<7} {}\n", name, t->rows(), t->cols(), t->type_name());
    }
  }
  return {};
}

base::Status InspectPack(const Flags& flags, const std::string& path) {
  SLUICE_TRY(const program::LoadedPack loaded, program::LoadPack(path));
  const program::Program& program = loaded.program;
  const program::Sizes& s = program.sizes();
  const pack::Pack& pack = *loaded.pack;
  SLUICE_TRY(const std::string* recipe, pack.metadata().GetString(pack::kRecipeKey));
  SLUICE_TRY(const std::string* name, pack.metadata().GetString("general.name"));
  SLUICE_TRY(const auto calibrated, pack.metadata().GetUint("sluice.calibration_tokens"));
  const uint64_t per_token = program.BytesPerToken();
  const uint64_t kv = program.KvBytesPerPosition();
  uint64_t weights = 0, weight_bytes = 0;
  for (const auto& i : program.instructions()) {
    if (i.op != program::Op::kMatvec) continue;
    weights += uint64_t{i.rows} * i.cols;
    weight_bytes += program::StreamedBytes(i);
  }
  const double bits = 8.0 * static_cast<double>(weight_bytes) / static_cast<double>(weights);
  if (flags.json) {
    nlohmann::json json{{"path", path},
                        {"kind", "pack"},
                        {"bytes", pack.bytes().size()},
                        {"recipe", recipe ? *recipe : ""},
                        {"calibration_tokens", calibrated.value_or(0)},
                        {"hidden", s.hidden},
                        {"vocab", s.vocab},
                        {"layers", s.n_layers},
                        {"heads", s.n_heads},
                        {"kv_heads", s.n_kv_heads},
                        {"head_dim", s.head_dim},
                        {"context", s.context},
                        {"candidates", s.candidates},
                        {"bytes_per_token", per_token},
                        {"kv_bytes_per_position", kv},
                        {"streamed_bits_per_weight", bits}};
    for (const auto& t : pack.tensors()) {
      json["tensors"].push_back({{"name", t.name}, {"offset", t.offset}, {"bytes", t.bytes}});
    }
    for (const auto& i : program.instructions()) json["program"].push_back(Disassemble(i));
    PrintJson(json);
    return {};
  }
  fmt::print("{}: pack of {}, {}\n", path, name ? OneLine(*name) : "an unnamed model",
             Megabytes(pack.bytes().size()));
  fmt::print("  recipe {}, {} calibration tokens\n", recipe ? OneLine(*recipe) : "?",
             calibrated.value_or(0));
  fmt::print("  {} layers, hidden {}, {} heads on {} KV heads of {}, vocabulary {}, context {}\n",
             s.n_layers, s.hidden, s.n_heads, s.n_kv_heads, s.head_dim, s.vocab, s.context);
  fmt::print("  residual in units of 2^-{}, best {} candidates\n", s.residual_fraction,
             s.candidates);
  fmt::print(
      "  a token reads {} ({:.3f} bits a weight) and {} bytes of KV per position before it\n",
      Megabytes(per_token), bits, kv);
  fmt::print("  KV cache of the whole context: {}\n", Megabytes(kv * s.context));
  if (flags.metadata) PrintMetadata(pack.metadata());
  if (flags.tensors) {
    for (const auto& t : pack.tensors()) {
      fmt::print("  {:#012x}  {:>11}  {}\n", t.offset, t.bytes, OneLine(t.name));
    }
  }
  if (flags.program) {
    size_t index = 0;
    for (const auto& i : program.instructions()) {
      fmt::print("  {:>4}  {}\n", index++, Disassemble(i));
    }
  }
  return {};
}

base::Status Inspect(const Flags& flags) {
  // A name may have been packed, or only pulled; the pack says more.
  auto path = FindPack(flags.model, flags.recipe);
  if (!path) path = FindSource(flags.model, false);
  if (!path) return std::unexpected(path.error());
  std::error_code ignored;
  if (std::filesystem::is_directory(*path, ignored)) return InspectModel(flags, *path);
  SLUICE_TRY(const auto file, formats::GgufFile::Open(*path));
  return file->metadata().Find(pack::kVersionKey) != nullptr ? InspectPack(flags, *path)
                                                             : InspectModel(flags, *path);
}

}  // namespace

void AddInspect(CLI::App& app, ExitCode& exit) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("inspect", "Show what a model or a pack holds");
  command->add_option("model", flags->model, "A pack, a GGUF file, a Hugging Face folder or a name")
      ->required();
  command->add_option("--recipe", flags->recipe, "Which of a named model's packs")
      ->capture_default_str();
  command->add_flag("--tensors", flags->tensors, "List the tensors");
  command->add_flag("--program", flags->program, "Disassemble the Program");
  command->add_flag("--metadata", flags->metadata, "List the metadata keys");
  command->add_flag("--json", flags->json, "Everything as JSON");
  command->callback([flags, &exit] {
    if (const auto status = Inspect(*flags); !status) exit = Report(status.error());
  });
}

}  // namespace sluice::cli
