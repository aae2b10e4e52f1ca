// SiLU gate: of a stream of rows gate, up, gate, up ... of a token, silu(gate) * up in units of
// 2^-16. One row a cycle in, 7 cycles from an up to its result.
// Bit-exact with fixed::SiluGate. The table is fixed::kSigmoidTable.
module silu_gate #(
    parameter int unsigned Tokens = 1,
    localparam int unsigned TokenBits = Tokens > 1 ? $clog2(Tokens) : 1
) (
    input  logic                 clk_i,
    input  logic                 rst_i,
    input  logic                 valid_i,
    output logic                 ready_o,
    input  logic signed [31:0]   y_i,
    input  logic                 up_i,      // y is an up, of the gate before it
    input  logic [TokenBits-1:0] token_i,
    output logic                 valid_o,
    input  logic                 ready_i,
    output logic signed [31:0]   h_o,
    output logic [TokenBits-1:0] token_o,
    output logic                 idle_o
);
  // Entry i and the rise to entry i + 1.
  logic [28:0] table_q [256];
  initial begin
    for (int unsigned i = 0; i < 256; i++) table_q[i] = sluice_tables::Sigmoid[29*i +: 29];
  end

  logic advance;
  assign advance = !valid_o || ready_i;
  assign ready_o = advance;

  logic [6:0]           valid_q;  // of ups
  logic [TokenBits-1:0] token_q [7];
  logic signed [31:0]   gate_q [5];
  logic signed [31:0]   up_q [6];

  logic [31:0] magnitude;
  logic [19:0] a1_q;
  logic [28:0] entry2_q;
  logic [11:0] t2_q;
  logic [23:0] rise3_q;
  logic [16:0] value3_q, sigmoid4_q, sigmoid;
  logic [16:0] positive;
  logic signed [49:0] product5_q;
  logic signed [33:0] s6_q;
  logic signed [65:0] product7_q;
  logic signed [65:0] rounded;

  // A gate goes through the first stages alone; its up follows in the next cycle, so that they meet
  // where the sigmoid is multiplied.
  assign magnitude = y_i[31] ? 32'(-y_i) : 32'(y_i);
  assign positive  = value3_q + 17'((rise3_q + 24'd2048) >> 12);
  assign sigmoid   = gate_q[2][31] ? 17'd65536 - positive : positive;
  assign rounded   = (product7_q + 66'sd32768) >>> 16;

  always_ff @(posedge clk_i) begin
    if (rst_i) valid_q <= '0;
    else if (advance) valid_q <= {valid_q[5:0], valid_i && up_i};
  end
  always_ff @(posedge clk_i) begin
    if (advance) begin
      a1_q       <= magnitude > 32'h000f_ffff ? 20'hf_ffff : magnitude[19:0];
      gate_q[0]  <= y_i;
      up_q[0]    <= y_i;
      token_q[0] <= token_i;
      entry2_q   <= table_q[a1_q[19:12]];
      t2_q       <= a1_q[11:0];
      rise3_q    <= 24'(entry2_q[28:17]) * 24'(t2_q);
      value3_q   <= entry2_q[16:0];
      sigmoid4_q <= sigmoid;
      product5_q <= 50'(gate_q[3]) * 50'(signed'({1'b0, sigmoid4_q}));
      s6_q       <= 34'((product5_q + 50'sd32768) >>> 16);
      product7_q <= 66'(s6_q) * 66'(up_q[4]);
      for (int unsigned k = 1; k < 5; k++) gate_q[k] <= gate_q[k-1];
      for (int unsigned k = 1; k < 6; k++) up_q[k] <= up_q[k-1];
      for (int unsigned k = 1; k < 7; k++) token_q[k] <= token_q[k-1];
    end
  end
  // The up that came a cycle after a gate stands one stage behind it: with product7 its valid bit
  // is that of stage 6.
  assign valid_o = valid_q[5];
  assign token_o = token_q[5];
  assign h_o     = rounded > 66'sh7fff_ffff ? 32'sh7fff_ffff
                 : rounded < -66'sh8000_0000 ? 32'sh8000_0000 : rounded[31:0];
  assign idle_o  = valid_q == '0;
endmodule
