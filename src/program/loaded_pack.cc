#include "program/loaded_pack.h"

namespace sluice::program {

base::Result<LoadedPack> LoadPack(const std::string& path) {
  SLUICE_TRY(auto file, pack::Pack::Open(path));
  return LoadPack(std::move(file));
}

base::Result<LoadedPack> LoadPack(std::shared_ptr<const pack::Pack> file) {
  SLUICE_TRY(const auto bytes, file->Tensor(pack::kProgramTensor));
  SLUICE_TRY(auto program, Program::Parse(bytes, file->bytes(), file->name()));
  return LoadedPack{std::move(file), std::move(program)};
}

}  // namespace sluice::program
