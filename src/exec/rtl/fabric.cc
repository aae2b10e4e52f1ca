#include "exec/rtl/fabric.h"

namespace sluice::exec::rtl {

std::unique_ptr<Fabric> MakeFabric_tiny();
std::unique_ptr<Fabric> MakeFabric_z2_decode();
std::unique_ptr<Fabric> MakeFabric_z2_block();

std::unique_ptr<Fabric> MakeFabric(std::string_view configuration) {
  if (configuration == "tiny") return MakeFabric_tiny();
  if (configuration == "z2_decode") return MakeFabric_z2_decode();
  if (configuration == "z2_block") return MakeFabric_z2_block();
  return nullptr;
}

}  // namespace sluice::exec::rtl
