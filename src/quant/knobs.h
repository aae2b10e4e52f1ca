#pragma once
namespace sluice::quant {
struct Knobs {
  int gptq = 2;
  int search = 1;
  bool prefix = false;
  float correct = 0;
  float residual = 0;
  int tokw = 0;
  double damp = 0.01;
  int order = 0;
  bool gptq8 = true;
  int cd = 0;
  float room = 1;
  int dscale = 0;
  bool resid_in = false;
  double corrdamp = 1;
};
inline Knobs knobs;
}  // namespace sluice::quant
