// A pack with its Program read and checked: all that an executor needs.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "pack/pack.h"
#include "program/program.h"

namespace sluice::program {

struct LoadedPack {
  std::shared_ptr<const pack::Pack> pack;
  Program program;
};

base::Result<LoadedPack> LoadPack(const std::string& path);
base::Result<LoadedPack> LoadPack(std::shared_ptr<const pack::Pack> pack);

}  // namespace sluice::program
