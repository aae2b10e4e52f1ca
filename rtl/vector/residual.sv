// The residual stream of a block: int32 values of each token. Embeddings are written, matrix results
// added with saturation; the norm reads. One value a cycle.
module residual #(
    parameter int unsigned Tokens    = 1,
    parameter int unsigned MaxHidden = 1024,  // a power of two
    localparam int unsigned HiddenBits = $clog2(MaxHidden),
    localparam int unsigned TokenBits  = Tokens > 1 ? $clog2(Tokens) : 1
) (
    input  logic                  clk_i,
    input  logic                  rst_i,

    input  logic                  valid_i,   // always accepted
    input  logic                  add_i,     // else written
    input  logic signed [31:0]    y_i,
    input  logic [TokenBits-1:0]  token_i,
    input  logic [HiddenBits-1:0] row_i,
    output logic                  idle_o,

    input  logic                  read_i,    // while nothing is written
    input  logic [TokenBits-1:0]  read_token_i,
    input  logic [HiddenBits-1:0] read_row_i,
    output logic signed [31:0]    value_o    // a cycle later
);
  localparam int unsigned AddressBits = HiddenBits + $clog2(Tokens);

  logic                   valid_q /*verilator public_flat_rd*/;
  logic                   add_q;
  logic signed [31:0]     y_q;
  logic [AddressBits-1:0] address_q /*verilator public_flat_rd*/;
  logic [AddressBits-1:0] address;
  logic [31:0]            value;
  logic [31:0]            write_data /*verilator public_flat_rd*/;
  assign write_data = add_q ? sluice_pkg::add_sat32(signed'(value), y_q) : y_q;
  assign address = valid_i ? AddressBits'({token_i, row_i})
                           : AddressBits'({read_token_i, read_row_i});
  always_ff @(posedge clk_i) begin
    if (rst_i) valid_q <= 1'b0;
    else valid_q <= valid_i;
    add_q     <= add_i;
    y_q       <= y_i;
    address_q <= address;
  end
  ram #(
      .Width(32),
      .Depth(Tokens * MaxHidden)
  ) u_ram (
      .clk_i,
      .write_i        (valid_q),
      .write_address_i(address_q),
      .write_data_i   (write_data),
      .read_i         (valid_i || read_i),
      .read_address_i (address),
      .read_data_o    (value)
  );
  assign value_o = signed'(value);
  assign idle_o  = !valid_q;
endmodule
