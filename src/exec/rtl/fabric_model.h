// The adapter from a Verilated model, whose class has another name in every configuration.
#pragma once

#include <verilated.h>

#include "exec/rtl/fabric.h"

namespace sluice::exec::rtl {

template <typename Model, typename Root>
class FabricModel : public Fabric {
 public:
  explicit FabricModel(const FabricLimits& limits)
      : limits_(limits), context_(std::make_unique<VerilatedContext>()), model_(context_.get()) {
    Reset();
  }
  ~FabricModel() override { model_.final(); }

  const FabricLimits& limits() const override { return limits_; }

  void Reset() override {
    model_.rst_i = 1;
    model_.start_i = 0;
    for (int k = 0; k < 4; ++k) Clock();
    model_.rst_i = 0;
  }

  void Start(const Job& job) override {
    model_.program_address_i = job.program_address;
    model_.instructions_i = job.instructions;
    model_.pack_base_i = job.pack_base;
    model_.kv_base_i = job.kv_base;
    model_.kv_low_base_i = job.kv_low_base;
    model_.context_i = job.context;
    model_.result_base_i = job.result_base;
    model_.result_stride_i = job.result_stride;
    SetTokens(model_.token_ids_i, job.tokens);
    model_.n_tokens_i = static_cast<uint8_t>(job.tokens.size());
    model_.n_wanted_i = job.n_wanted;
    model_.position_i = job.position;
    start_ = true;
  }

  void Tick(std::array<machine::HpSignals, machine::kHpPorts>& hp) override {
    uint8_t arready = 0, rvalid = 0, rlast = 0, rid = 0, awready = 0, wready = 0, bvalid = 0,
            rresp = 0, bresp = 0;
    for (size_t p = 0; p < machine::kHpPorts; ++p) {
      const machine::HpSlave& s = hp[p];
      const auto bit = [&](bool value) { return static_cast<uint8_t>(value << p); };
      arready |= bit(s.arready);
      rvalid |= bit(s.rvalid);
      rlast |= bit(s.rlast);
      rid |= bit(s.rid != 0);
      awready |= bit(s.awready);
      wready |= bit(s.wready);
      bvalid |= bit(s.bvalid);
      rresp |= static_cast<uint8_t>(s.rresp << (2 * p));
      bresp |= static_cast<uint8_t>(s.bresp << (2 * p));
      model_.rdata_i[2 * p] = static_cast<uint32_t>(s.rdata);
      model_.rdata_i[2 * p + 1] = static_cast<uint32_t>(s.rdata >> 32);
    }
    model_.arready_i = arready;
    model_.rvalid_i = rvalid;
    model_.rlast_i = rlast;
    model_.rid_i = rid;
    model_.awready_i = awready;
    model_.wready_i = wready;
    model_.bvalid_i = bvalid;
    model_.rresp_i = rresp;
    model_.bresp_i = bresp;
    model_.start_i = start_;
    start_ = false;
    model_.clk_i = 0;
    model_.eval();

    for (size_t p = 0; p < machine::kHpPorts; ++p) {
      machine::HpMaster& m = hp[p];
      const auto bit = [&](auto value) { return ((value >> p) & 1) != 0; };
      m.arvalid = bit(model_.arvalid_o);
      m.araddr = model_.araddr_o[p];
      m.arlen = (model_.arlen_o >> (4 * p)) & 15;
      m.arid = bit(model_.arid_o);
      m.rready = bit(model_.rready_o);
      m.awvalid = bit(model_.awvalid_o);
      m.awaddr = model_.awaddr_o[p];
      m.awlen = (model_.awlen_o >> (4 * p)) & 15;
      m.wvalid = bit(model_.wvalid_o);
      m.wdata = model_.wdata_o[2 * p] | uint64_t{model_.wdata_o[2 * p + 1]} << 32;
      m.wstrb = (model_.wstrb_o >> (8 * p)) & 255;
      m.wlast = bit(model_.wlast_o);
      m.bready = bit(model_.bready_o);
    }
    Look();
    model_.clk_i = 1;
    model_.eval();
  }

  bool busy() const override { return start_ || model_.busy_o; }
  uint8_t bus_errors() const override { return model_.bus_error_o; }
  bool too_long() const override { return model_.too_long_o; }
  uint16_t retired() const override { return model_.retired_o; }
  const Probe& probe() const override { return probe_; }

 private:
  void Clock() {
    model_.clk_i = 0;
    model_.eval();
    model_.clk_i = 1;
    model_.eval();
  }

  // One token is a plain integer, more are an array of words.
  static void SetTokens(uint32_t& port, std::span<const int32_t> tokens) {
    port = static_cast<uint32_t>(tokens[0]);
  }
  static void SetTokens(uint64_t& port, std::span<const int32_t> tokens) {
    port = static_cast<uint32_t>(tokens[0]);
    if (tokens.size() > 1) port |= uint64_t{static_cast<uint32_t>(tokens[1])} << 32;
  }
  template <typename Wide>
  static void SetTokens(Wide& port, std::span<const int32_t> tokens) {
    for (size_t t = 0; t < tokens.size(); ++t) port[t] = static_cast<uint32_t>(tokens[t]);
  }

  // Sign-extends `bits` bits.
  static int32_t Signed(uint32_t value, int bits) {
    return static_cast<int32_t>(value << (32 - bits)) >> (32 - bits);
  }

  void Look() {
    const Root& r = *model_.rootp;
    probe_.x_write = r.sluice_core__DOT__x_write;
    probe_.e_write = r.sluice_core__DOT__e_write;
    probe_.target_b = r.sluice_core__DOT__target_b;
    probe_.x_token = r.sluice_core__DOT__x_token;
    probe_.x_word = r.sluice_core__DOT__x_word;
    probe_.x_data = r.sluice_core__DOT__x_data;
    probe_.e_token = r.sluice_core__DOT__e_token;
    probe_.e_group = r.sluice_core__DOT__e_group;
    probe_.e_data = Signed(r.sluice_core__DOT__e_data, 10);
    probe_.residual_write = r.sluice_core__DOT__u_residual__DOT__valid_q;
    probe_.residual_address = r.sluice_core__DOT__u_residual__DOT__address_q;
    probe_.residual_value = static_cast<int32_t>(r.sluice_core__DOT__u_residual__DOT__write_data);
    probe_.head_write = r.sluice_core__DOT__head_valid && r.sluice_core__DOT__head_ready;
    probe_.head_wide = r.sluice_core__DOT__head_wide;
    probe_.head_last = r.sluice_core__DOT__head_last;
    probe_.head = r.sluice_core__DOT__head_index;
    probe_.head_token = r.sluice_core__DOT__head_token;
    probe_.head_data = r.sluice_core__DOT__head_data;
    probe_.head_low = r.sluice_core__DOT__head_low_data;
    probe_.head_exponent = Signed(r.sluice_core__DOT__head_exponent, 10);
    probe_.retire = model_.retire_o;
  }

  FabricLimits limits_;
  std::unique_ptr<VerilatedContext> context_;
  mutable Model model_;
  bool start_ = false;
  Probe probe_;
};

}  // namespace sluice::exec::rtl
