// RMSNorm of the residual of each token of a block, to the values that block_quantise brings to 8
// bits. Three passes over a token's residual (magnitudes, squares, values) at one value a cycle, with
// the reciprocal root between the second and the third.
//
// Bit-exact with Norm in src/exec/ref.
module rms_norm #(
    parameter int unsigned Tokens    = 1,
    parameter int unsigned MaxHidden = 1024,
    localparam int unsigned HiddenBits = $clog2(MaxHidden),
    localparam int unsigned TokenBits  = Tokens > 1 ? $clog2(Tokens) : 1,
    localparam int unsigned ExpBits    = sluice_pkg::ExponentBits
) (
    input  logic                      clk_i,
    input  logic                      rst_i,

    input  logic                      start_i,          // pulse while idle
    input  logic [HiddenBits:0]       cols_i,           // stable until idle, as the following
    input  logic                      group64_i,
    input  logic [TokenBits-1:0]      last_token_i,
    input  logic [63:0]               epsilon_i,
    input  logic signed [7:0]         gain_fraction_i,
    output logic                      idle_o,

    input  logic                      table_valid_i,    // gains, four a word
    output logic                      table_ready_o,
    input  logic [63:0]               table_data_i,

    output logic                      read_o,
    output logic [TokenBits-1:0]      read_token_o,
    output logic [HiddenBits-1:0]     read_row_o,
    input  logic signed [31:0]        value_i,

    // The shared reciprocal unit.
    output logic                      root_start_o,
    output logic [61:0]               root_x_o,
    input  logic                      root_idle_i,
    input  logic [15:0]               root_mantissa_i,
    input  logic signed [7:0]         root_exponent_i,

    output logic                      valid_o,
    input  logic                      ready_i,
    output logic signed [31:0]        v_o,
    output logic [TokenBits-1:0]      token_o,
    output logic signed [ExpBits-1:0] exponent_o
);
  typedef enum logic [3:0] {
    StIdle, StGains, StMagnitudes, StSquares, StFlush, StEpsilon, StRoot, StWaitRoot, StValues,
    StDrain
  } state_e;
  state_e state_q;
  logic   squares_done_q;  // what StFlush leads to

  logic [TokenBits-1:0]  token_q;
  logic [HiddenBits:0]   row_q;
  logic                  advance, read, last_row;
  assign advance  = state_q != StValues && state_q != StDrain ? 1'b1 : !valid_o || ready_i;
  assign read     = (state_q == StMagnitudes || state_q == StSquares || state_q == StValues) &&
                    advance;
  assign last_row = row_q == cols_i - 1'b1;
  assign read_o       = read;
  assign read_token_o = token_q;
  assign read_row_o   = row_q[HiddenBits-1:0];

  // The value a cycle after its address.
  logic                  read1_q, group_ends1_q;
  logic [HiddenBits-6:0] group1_q, group;
  logic                  group_ends;
  assign group      = group64_i ? (HiddenBits - 4)'(row_q >> 6) : (HiddenBits - 4)'(row_q >> 5);
  assign group_ends = group64_i ? row_q[5:0] == 6'd63 : row_q[4:0] == 5'd31;

  // First pass: a shift for each group, and the largest.
  logic [4:0]  shifts [MaxHidden/32];
  logic [4:0]  largest_q, shift_now, shift;
  logic [31:0] magnitudes_q, magnitudes;
  assign magnitudes = magnitudes_q | sluice_pkg::magnitude(value_i);
  assign shift_now  = 5'(sluice_pkg::block_shift(magnitudes, 6'd15));
  assign shift      = shifts[group1_q];

  // Second pass: squares in units of the largest shift.
  logic signed [15:0] scaled, scaled2_q;
  logic               read2_q, group_ends2_q;
  logic [5:0]         distance2_q;
  logic [36:0]        squares_q, squares;
  logic [61:0]        total_q;
  assign scaled  = sluice_pkg::quantize16(value_i, {1'b0, shift});
  assign squares = squares_q + 37'(unsigned'(32'(scaled2_q) * 32'(scaled2_q)));

  // Third pass: times root, times gain.
  logic [15:0]        root_q;
  logic signed [15:0] u3_q;
  logic signed [31:0] product;
  logic signed [15:0] gain2_q, gain3_q;
  logic               read3_q, valid4_q;
  logic signed [31:0] v4_q;
  logic signed [ExpBits-1:0] exponent2_q, exponent3_q, exponent4_q;
  logic [63:0]        gain_word;
  logic [1:0]         gain_index_q;
  logic signed [32:0] rounded;
  assign product = 32'(33'(scaled2_q) * 33'(signed'({1'b0, root_q})));
  assign rounded = (33'(product) + 33'sd32768) >>> 16;

  ram #(
      .Width(64),
      .Depth(MaxHidden / 4)
  ) u_gains (
      .clk_i,
      .write_i        (table_ready_o && table_valid_i),
      .write_address_i(row_q[HiddenBits-1:2]),
      .write_data_i   (table_data_i),
      .read_i         (read),
      .read_address_i (row_q[HiddenBits-1:2]),
      .read_data_o    (gain_word)
  );
  assign table_ready_o = state_q == StGains;

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q <= StIdle;
    end else begin
      unique case (state_q)
        StIdle: if (start_i) state_q <= StGains;
        StGains: if (table_valid_i && row_q == cols_i - (HiddenBits + 1)'(4)) state_q <= StMagnitudes;
        StMagnitudes, StSquares: if (last_row) state_q <= StFlush;
        StFlush:
          if (!read1_q && !read2_q) state_q <= squares_done_q ? StRoot : StEpsilon;
        StEpsilon: state_q <= StSquares;
        StRoot: state_q <= StWaitRoot;
        StWaitRoot: if (root_idle_i) state_q <= StValues;
        StValues: if (last_row && advance) state_q <= StDrain;
        StDrain:
          if (!read1_q && !read2_q && !read3_q && advance) begin
            state_q <= token_q == last_token_i ? StIdle : StMagnitudes;
          end
        default: state_q <= StIdle;
      endcase
    end
  end

  always_ff @(posedge clk_i) begin
    if (state_q == StIdle) begin
      token_q <= '0;
      row_q   <= '0;
    end else if (state_q == StGains) begin
      if (table_valid_i) begin
        row_q <= row_q == cols_i - (HiddenBits + 1)'(4) ? '0 : row_q + (HiddenBits + 1)'(4);
      end
    end else if (read) begin
      row_q <= last_row ? '0 : row_q + 1'b1;
    end
    if (state_q == StDrain && !read1_q && !read2_q && !read3_q && advance) token_q <= token_q + 1'b1;
    if (state_q == StMagnitudes) squares_done_q <= 1'b0;
    if (state_q == StSquares) squares_done_q <= 1'b1;

    if (rst_i) begin
      read1_q  <= 1'b0;
      read2_q  <= 1'b0;
      read3_q  <= 1'b0;
      valid4_q <= 1'b0;
    end else if (advance) begin
      read1_q  <= read;
      read2_q  <= read1_q;
      read3_q  <= read2_q && (state_q == StValues || state_q == StDrain);
      valid4_q <= read3_q;
    end
    if (advance) begin
      group1_q      <= group;
      group_ends1_q <= group_ends;
      gain_index_q  <= row_q[1:0];
      scaled2_q     <= scaled;
      group_ends2_q <= group_ends1_q;
      distance2_q   <= {largest_q - shift, 1'b0};
      gain2_q       <= signed'(gain_word[16*gain_index_q +: 16]);
      exponent2_q   <= signed'({5'd0, shift}) - signed'({5'd0, largest_q}) +
                       ExpBits'(root_exponent_i) + ExpBits'(16) - ExpBits'(gain_fraction_i);
      u3_q          <= rounded[15:0];
      gain3_q       <= gain2_q;
      exponent3_q   <= exponent2_q;
      v4_q          <= 32'(u3_q) * 32'(gain3_q);
      exponent4_q   <= exponent3_q;
    end

    // The sums of the first two passes, cleared before each.
    if (state_q == StIdle || state_q == StGains || state_q == StDrain) begin
      magnitudes_q <= 32'd0;
      largest_q    <= 5'd0;
    end else if (read1_q && (state_q == StMagnitudes || (state_q == StFlush && !squares_done_q))) begin
      magnitudes_q <= group_ends1_q ? 32'd0 : magnitudes;
      if (group_ends1_q) begin
        shifts[group1_q] <= shift_now;
        if (shift_now > largest_q) largest_q <= shift_now;
      end
    end
    if (state_q == StEpsilon) begin
      squares_q <= 37'd0;
      total_q   <= 62'(epsilon_i >> {largest_q, 1'b0});
    end else if (read2_q && (state_q == StSquares || (state_q == StFlush && squares_done_q))) begin
      squares_q <= group_ends2_q ? 37'd0 : squares;
      if (group_ends2_q) total_q <= total_q + 62'(squares >> distance2_q);
    end
    if (state_q == StWaitRoot && root_idle_i) root_q <= root_mantissa_i;
  end

  assign root_start_o = state_q == StRoot;
  assign root_x_o     = total_q == 62'd0 ? 62'd1 : total_q;
  assign valid_o      = valid4_q;
  assign v_o          = v4_q;
  assign token_o      = token_q;
  assign exponent_o   = exponent4_q;
  assign idle_o       = state_q == StIdle;
endmodule
