#include "program/loaded_pack.h"

namespace sluice::program {

base::Result<LoadedPack> LoadPack(const std::string& path) {
  SLUICE_TRY(auto file, pack::Pack::Open(path));
  SLUICE_TRY(const auto bytes, file->Tensor(pack::kProgramTensor));
  SLUICE_TRY(auto program, Program::Parse(bytes, file->bytes(), path));
  return LoadedPack{std::move(file), std::move(program)};
}

}  // namespace sluice::program
