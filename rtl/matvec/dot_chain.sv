// Dot products of two weight rows with one token's activations: eight columns a beat, in a cascade
// of eight DSP48E1.
//
// DSP c computes (b_c * 2^20 + a_c) * x_c, both rows in one multiplication, and adds the neighbour's
// result on the carry path: the low sum is the signed 20-bit field, the high sum what is above it
// plus the low field's sign. |level * x| <= 15 * 127, eight of which fit 15 bits.
//
// Operands of column c must come c cycles after those of column 0 (matvec_port skews them);
// sum_a_o and sum_b_o stand Latency cycles after column 0's operands.
module dot_chain #(
    localparam int unsigned Latency = 11
) (
    input  logic               clk_i,
    input  logic [39:0]        a_i,      // 8 levels of 5 bits, row a
    input  logic [39:0]        b_i,      // the same of row b
    input  logic [63:0]        x_i,      // 8 activations
    output logic signed [17:0] sum_a_o,
    output logic signed [17:0] sum_b_o
);
  localparam int unsigned Field = 20;

  logic signed [47:0] sum [8];

  for (genvar c = 0; c < 8; c++) begin : gen_dsp
    logic signed [24:0] weight_q;
    logic signed [7:0]  x_q;
    logic signed [47:0] product_q;
    logic signed [47:0] sum_q;
    logic signed [24:0] low, high;
    assign low  = 25'(signed'(a_i[5*c +: 5]));
    assign high = 25'(signed'(b_i[5*c +: 5])) <<< Field;
    always_ff @(posedge clk_i) begin
      weight_q  <= high + low;
      x_q       <= signed'(x_i[8*c +: 8]);
      product_q <= 48'(weight_q) * 48'(x_q);
    end
    if (c == 0) begin : gen_first
      always_ff @(posedge clk_i) sum_q <= product_q;
    end else begin : gen_next
      always_ff @(posedge clk_i) sum_q <= sum[c-1] + product_q;
    end
    assign sum[c] = sum_q;
  end

  // Field c arrives at sum[7] 3 cycles after its operands, which were 7 behind: 10; one more here.
  always_ff @(posedge clk_i) begin
    sum_a_o <= sum[7][17:0];
    sum_b_o <= sum[7][Field+:18] + 18'(sum[7][Field-1]);
  end
endmodule
