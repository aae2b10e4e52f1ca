// 1 / x or 1 / sqrt(x) as mantissa * 2^exponent, bit by bit: about 25 cycles, or 60 with the root.
// Bit-exact with fixed::Reciprocal (x < 2^31) and fixed::ReciprocalRoot (x < 2^62).
module reciprocal (
    input  logic               clk_i,
    input  logic               rst_i,
    input  logic               start_i,     // pulse while idle
    input  logic               root_i,
    input  logic [61:0]        x_i,         // 1 ..
    output logic               idle_o,      // the result stands from here to the next start
    output logic [15:0]        mantissa_o,
    output logic signed [7:0]  exponent_o
);
  typedef enum logic [1:0] {StIdle, StNormalise, StRoot, StDivide} state_e;
  state_e state_q;

  logic        root_q;
  logic [61:0] x_q;          // StRoot: what of it was not taken yet, at the top
  logic [5:0]  shift_q;
  logic [5:0]  step_q;
  logic [30:0] divisor_q;    // the root, or x normalised to 31 bits
  logic [33:0] rest_q;
  logic [16:0] quotient_q;

  // Position of the leading one; a word at a time would not be faster where it matters.
  logic        top_root, top_plain;
  assign top_root  = x_q[61:60] != 2'b00;
  assign top_plain = x_q[30];

  // Square root, two bits of x a step: does (4 * root + 1) fit the rest?
  logic [33:0] root_rest, root_try;
  assign root_rest = {rest_q[31:0], x_q[61:60]};
  assign root_try  = {1'b0, divisor_q, 2'b01};
  // Division of 2^46 by a divisor of 31 bits.
  logic [33:0] divide_rest;
  assign divide_rest = rest_q - 34'(divisor_q);

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q <= StIdle;
    end else begin
      unique case (state_q)
        StIdle:
          if (start_i) begin
            state_q    <= StNormalise;
            root_q     <= root_i;
            x_q        <= x_i;
            shift_q    <= 6'd0;
            quotient_q <= 17'd0;
          end
        StNormalise:
          if (root_q ? top_root : top_plain) begin
            step_q    <= 6'd0;
            rest_q    <= root_q ? 34'd0 : 34'h4000_0000;
            divisor_q <= root_q ? 31'd0 : x_q[30:0];
            state_q   <= root_q ? StRoot : StDivide;
          end else begin
            x_q     <= root_q ? x_q << 2 : x_q << 1;
            shift_q <= shift_q + 6'd1;
          end
        StRoot: begin
          x_q    <= x_q << 2;
          step_q <= step_q + 6'd1;
          if (root_rest >= root_try) begin
            rest_q    <= root_rest - root_try;
            divisor_q <= {divisor_q[29:0], 1'b1};
          end else begin
            rest_q    <= root_rest;
            divisor_q <= {divisor_q[29:0], 1'b0};
          end
          if (step_q == 6'd30) begin
            step_q  <= 6'd0;
            rest_q  <= 34'h4000_0000;
            state_q <= StDivide;
          end
        end
        StDivide: begin
          step_q <= step_q + 6'd1;
          if (rest_q >= 34'(divisor_q)) begin
            rest_q     <= divide_rest << 1;
            quotient_q <= {quotient_q[15:0], 1'b1};
          end else begin
            rest_q     <= rest_q << 1;
            quotient_q <= {quotient_q[15:0], 1'b0};
          end
          if (step_q == 6'd16) state_q <= StIdle;
        end
        default: state_q <= StIdle;
      endcase
    end
  end

  assign idle_o     = state_q == StIdle;
  assign mantissa_o = quotient_q[16] ? 16'hffff : quotient_q[15:0];
  // Root: sh / 2 - 46, shift_q having counted pairs of bits. Reciprocal: -(bit length + 15), which
  // is the same, as the bit length is 31 - shift_q.
  assign exponent_o = signed'({2'b00, shift_q}) - 8'sd46;
endmodule
