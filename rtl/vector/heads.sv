// q, K and V: gathers the rows of one head (of every token of the block), then head by head and
// token by token normalises it (qwen3), rotates it (RoPE), subtracts K's mean, and quantises: q to
// 16 bits for the attention unit, K to 8 or to two times 8 bits and V to 8 bits for the KV writer.
// The next head comes in while this one is worked on, one value a cycle and pass.
//
// Bit-exact with Heads in src/exec/ref.
module heads #(
    parameter int unsigned Tokens     = 1,
    parameter int unsigned MaxHeadDim = 128,  // a power of two
    localparam int unsigned DimBits   = $clog2(MaxHeadDim),
    localparam int unsigned TokenBits = Tokens > 1 ? $clog2(Tokens) : 1,
    localparam int unsigned ExpBits   = sluice_pkg::ExponentBits
) (
    input  logic                      clk_i,
    input  logic                      rst_i,

    input  logic                      start_i,          // pulse while idle: a matrix
    input  logic                      is_query_i,       // stable until idle, as the following
    input  logic                      is_key_i,
    input  logic                      head_norm_i,
    input  logic [15:0]               heads_i,
    input  logic [DimBits:0]          head_dim_i,
    input  logic [63:0]               wide_i,           // bit h: K head h keeps 16 bits
    input  logic [31:0]               epsilon_i,
    input  logic signed [7:0]         fraction_i,
    input  logic signed [7:0]         gain_fraction_i,
    input  logic [TokenBits-1:0]      last_token_i,
    output logic                      idle_o,

    // RoPE rows of the block's positions: words of two (cosine, sine) pairs.
    input  logic                      rope_write_i,
    input  logic [TokenBits-1:0]      rope_token_i,
    input  logic [DimBits-3:0]        rope_word_i,
    input  logic [63:0]               rope_data_i,

    input  logic                      table_valid_i,    // gains of a head norm, before the rows
    output logic                      table_ready_o,
    input  logic [63:0]               table_data_i,
    output logic                      loading_o,        // the table stream is ours

    input  logic                      valid_i,
    output logic                      ready_o,
    input  logic signed [31:0]        y_i,
    input  logic signed [31:0]        mean_i,
    input  logic [TokenBits-1:0]      token_i,

    output logic                      root_start_o,
    output logic [61:0]               root_x_o,
    input  logic                      root_idle_i,
    input  logic [15:0]               root_mantissa_i,
    input  logic signed [7:0]         root_exponent_i,

    // Words of four q or eight bytes of K or V; the exponent stands with a head's last word.
    output logic                      valid_o,
    input  logic                      ready_i,
    output logic [63:0]               data_o,
    output logic [63:0]               low_data_o,       // K's second byte, if wide
    output logic                      wide_o,
    output logic                      last_o,
    output logic [15:0]               head_o,
    output logic [TokenBits-1:0]      token_o,
    output logic signed [ExpBits-1:0] exponent_o
);
  localparam int unsigned ValueBits = TokenBits + 1 + DimBits;

  // --- Rows in ---

  logic               write_bank_q, read_bank_q;
  logic [1:0]         full_q;
  logic [DimBits-1:0] in_q [Tokens];   // per token: rows of the head that are here
  logic               accept, head_in;
  assign ready_o = !full_q[write_bank_q] && !loading_o;
  assign accept  = valid_i && ready_o;
  assign head_in = accept && token_i == last_token_i &&
                   {1'b0, in_q[token_i]} == head_dim_i - 1'b1;

  // --- Passes ---

  typedef enum logic [3:0] {
    StIdle, StGains, StWait, StMagnitudes, StSquares, StRoot, StWaitRoot, StScale, StRotate,
    StQuantise, StFlush, StNext
  } state_e;
  state_e state_q, after_q;  // after_q: where StFlush leads

  logic [15:0]          head_q;
  logic [TokenBits-1:0] token_q;
  logic [DimBits:0]     index_q;
  logic                 normed_q;     // the head norm is done
  logic                 reading, advance, read, last_index;
  assign reading    = state_q == StMagnitudes || state_q == StSquares || state_q == StScale ||
                      state_q == StRotate || state_q == StQuantise;
  assign advance    = !valid_o || ready_i;
  assign read       = reading && advance;
  assign last_index = index_q == head_dim_i - 1'b1;

  state_e next_pass;
  always_comb begin
    unique case (state_q)
      StMagnitudes: next_pass = head_norm_i && !normed_q ? StSquares
                              : is_query_i || is_key_i ? StRotate : StQuantise;
      StSquares:    next_pass = StRoot;
      StScale:      next_pass = StMagnitudes;
      StRotate:     next_pass = StQuantise;
      default:      next_pass = StNext;
    endcase
  end

  // Stages of a value that was read: 1 here, 2 scaled ..., and which pass it belongs to.
  logic               read1_q, read2_q, read3_q, read4_q;
  logic [DimBits-1:0] index1_q, index2_q, index3_q, index4_q;
  logic               in_flight;
  assign in_flight = read1_q || read2_q || read3_q || read4_q;

  state_e pass_q;  // the pass whose values are in flight
  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q <= StIdle;
    end else begin
      unique case (state_q)
        StIdle: if (start_i) state_q <= head_norm_i ? StGains : StWait;
        StGains:
          if (table_valid_i && index_q == head_dim_i - (DimBits + 1)'(4)) state_q <= StWait;
        StWait: if (full_q[read_bank_q]) state_q <= StMagnitudes;
        StFlush: if (!in_flight && advance) state_q <= after_q;
        StRoot: state_q <= StWaitRoot;
        StWaitRoot: if (root_idle_i) state_q <= StScale;
        StNext:
          if (token_q != last_token_i) state_q <= StMagnitudes;
          else state_q <= head_q == heads_i - 16'd1 ? StIdle : StWait;
        default:
          if (read && last_index) begin
            state_q <= StFlush;
            after_q <= next_pass;
          end
      endcase
    end
    if (reading) pass_q <= state_q;
  end

  logic head_out;
  assign head_out = state_q == StNext && token_q == last_token_i;
  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      full_q       <= 2'b00;
      write_bank_q <= 1'b0;
      read_bank_q  <= 1'b0;
      for (int unsigned t = 0; t < Tokens; t++) in_q[t] <= '0;
    end else begin
      if (accept) begin
        in_q[token_i] <= {1'b0, in_q[token_i]} == head_dim_i - 1'b1 ? '0 : in_q[token_i] + 1'b1;
      end
      if (head_in) begin
        full_q[write_bank_q] <= 1'b1;
        write_bank_q         <= !write_bank_q;
      end
      if (head_out) begin
        full_q[read_bank_q] <= 1'b0;
        read_bank_q         <= !read_bank_q;
      end
    end
    if (state_q == StIdle) begin
      head_q   <= 16'd0;
      token_q  <= '0;
      index_q  <= '0;
      normed_q <= 1'b0;
    end else begin
      if (state_q == StGains && table_valid_i) begin
        index_q <= index_q == head_dim_i - (DimBits + 1)'(4) ? '0 : index_q + (DimBits + 1)'(4);
      end
      if (read) index_q <= last_index ? '0 : index_q + 1'b1;
      if (state_q == StScale) normed_q <= 1'b1;
      if (state_q == StNext) begin
        normed_q <= 1'b0;
        token_q  <= token_q == last_token_i ? '0 : token_q + 1'b1;
        if (token_q == last_token_i) head_q <= head_q + 16'd1;
      end
    end
  end
  assign loading_o     = state_q == StGains;
  assign table_ready_o = state_q == StGains;

  // Values: rows as they come in, or written back by a pass.
  logic                 back;
  logic [DimBits-1:0]   back_index;
  logic signed [31:0]   back_value;
  logic [31:0]          value_word;
  logic signed [31:0]   value;
  logic [DimBits-1:0]   in_index;
  assign in_index = in_q[token_i];
  // Two banks, so that rows come in while a pass writes back: two memories.
  logic [31:0] bank_word [2];
  for (genvar b = 0; b < 2; b++) begin : gen_bank
    logic mine_in;
    assign mine_in = accept && write_bank_q == 1'(b);
    ram #(
        .Width(32),
        .Depth(1 << (ValueBits - 1))
    ) u_values (
        .clk_i,
        .write_i        (mine_in || (back && read_bank_q == 1'(b))),
        .write_address_i(mine_in ? {token_i, in_index} : {token_q, back_index}),
        .write_data_i   (mine_in ? y_i : back_value),
        .read_i         (read),
        .read_address_i ({token_q, index_q[DimBits-1:0]}),
        .read_data_o    (bank_word[b])
    );
  end
  assign value_word = bank_word[read_bank_q];
  assign value      = signed'(value_word);

  logic [31:0] mean_word;
  ram #(
      .Width(32),
      .Depth(2 * MaxHeadDim)
  ) u_means (
      .clk_i,
      .write_i        (accept && token_i == '0),
      .write_address_i({write_bank_q, in_index}),
      .write_data_i   (mean_i),
      .read_i         (read),
      .read_address_i ({read_bank_q, index_q[DimBits-1:0]}),
      .read_data_o    (mean_word)
  );
  logic [63:0] gain_word, rope_word;
  ram #(
      .Width(64),
      .Depth(MaxHeadDim / 4)
  ) u_gains (
      .clk_i,
      .write_i        (state_q == StGains && table_valid_i),
      .write_address_i(index_q[DimBits-1:2]),
      .write_data_i   (table_data_i),
      .read_i         (read),
      .read_address_i (index_q[DimBits-1:2]),
      .read_data_o    (gain_word)
  );
  ram #(
      .Width(64),
      .Depth((1 << TokenBits) * MaxHeadDim / 4)
  ) u_rope (
      .clk_i,
      .write_i        (rope_write_i),
      .write_address_i({rope_token_i, rope_word_i}),
      .write_data_i   (rope_data_i),
      .read_i         (read),
      .read_address_i ({token_q, index_q[DimBits-1:2]}),
      .read_data_o    (rope_word)
  );

  // --- Stage 1: magnitudes, and the value at 16 bits ---

  logic [31:0]        magnitudes_q;
  logic [5:0]         shift16_q, shift_out_q;  // to 16 bits before, to the result after rotation
  logic signed [15:0] a;
  assign a = sluice_pkg::quantize16(value, shift16_q);

  // --- Stage 2: squares; or rs(a * root, 16); or the pair's first products ---

  logic signed [15:0] a2_q;
  logic [63:0]        rope2_q;
  logic signed [15:0] gain2_q;
  logic [36:0]        squares_q;
  logic [15:0]        root_q;
  logic signed [7:0]  root_exponent_q;
  logic signed [32:0] rounded;
  assign rounded = (33'(33'(a2_q) * 33'(signed'({1'b0, root_q}))) + 33'sd32768) >>> 16;

  // --- Stage 3 ---

  logic signed [15:0] u3_q, gain3_q;
  logic signed [31:0] cos3_q, sin3_q;   // products
  logic               odd3_q;
  logic signed [31:0] mean2_q, mean3_q, mean4_q;
  logic signed [32:0] turned;
  logic signed [17:0] rotated4_q;
  logic signed [31:0] scaled4_q;
  logic signed [35:0] centred;
  logic signed [31:0] result4;
  logic signed [11:0] scale_shift;

  // The pair's cosine and sine: a pair takes two cycles; its even value waits for the odd one.
  logic signed [15:0] cosine, sine;
  assign cosine = signed'(index2_q[1] ? rope2_q[47:32] : rope2_q[15:0]);
  assign sine   = signed'(index2_q[1] ? rope2_q[63:48] : rope2_q[31:16]);

  assign turned      = odd3_q ? 33'(sin3_q) + 33'(cos3_q) : 33'(cos3_q) - 33'(sin3_q);
  assign scale_shift = -(12'(root_exponent_q) + 12'sd16 - 12'(gain_fraction_i)) - 12'(fraction_i);
  assign centred     = (36'(rotated4_q) <<< shift16_q) - 36'(mean4_q);
  always_comb begin
    if (pass_q == StScale) result4 = scaled4_q;
    else if (!is_key_i) result4 = 32'(rotated4_q);
    else begin
      result4 = centred > 36'sh7fff_ffff ? 32'sh7fff_ffff
              : centred < -36'sh8000_0000 ? 32'sh8000_0000 : centred[31:0];
    end
  end
  assign back       = read4_q && (pass_q == StScale || pass_q == StRotate) && advance;
  assign back_index = index4_q;
  assign back_value = result4;

  // A value is read at index_q; in the rotation the results of a pair leave when its odd value has
  // come: the even one at stage 3, the odd one a cycle later, so both keep their distance.
  logic signed [15:0] even_hold_q;
  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      read1_q <= 1'b0;
      read2_q <= 1'b0;
      read3_q <= 1'b0;
      read4_q <= 1'b0;
    end else if (advance) begin
      read1_q <= read;
      read2_q <= read1_q;
      read3_q <= read2_q;
      read4_q <= read3_q;
    end
    if (advance) begin
      index1_q <= index_q[DimBits-1:0];
      index2_q <= index1_q;
      index3_q <= index2_q;
      index4_q <= index3_q;
      a2_q     <= a;
      gain2_q  <= signed'(gain_word[16*index1_q[1:0] +: 16]);
      rope2_q  <= rope_word;
      mean2_q  <= signed'(mean_word);
      // Stage 2 of an even value sees the odd one at stage 1; of an odd value, the even one was kept.
      even_hold_q <= a2_q;
      u3_q     <= rounded[15:0];
      gain3_q  <= gain2_q;
      mean3_q  <= mean2_q;
      odd3_q   <= index2_q[0];
      if (!index2_q[0]) begin
        cos3_q <= 32'(a2_q) * 32'(cosine);
        sin3_q <= 32'(a) * 32'(sine);
      end else begin
        cos3_q <= 32'(a2_q) * 32'(cosine);
        sin3_q <= 32'(even_hold_q) * 32'(sine);
      end
      mean4_q    <= mean3_q;
      rotated4_q <= 18'((turned + 33'sd8192) >>> 14);
      scaled4_q  <= sluice_pkg::round_shift_sat32(64'(32'(u3_q) * 32'(gain3_q)), scale_shift);
    end

    // Magnitudes of what was read, then of what a rotation wrote back.
    if (state_q == StWait || state_q == StNext || state_q == StSquares || state_q == StScale) begin
      magnitudes_q <= 32'd0;
    end else if (advance && read1_q && pass_q == StMagnitudes) begin
      magnitudes_q <= magnitudes_q | sluice_pkg::magnitude(value);
    end else if (back && pass_q == StRotate) begin
      magnitudes_q <= magnitudes_q | sluice_pkg::magnitude(result4);
    end
    if (state_q == StFlush && !in_flight && advance && pass_q == StMagnitudes) begin
      shift16_q    <= sluice_pkg::block_shift(magnitudes_q, 6'd15);
      shift_out_q  <= sluice_pkg::block_shift(magnitudes_q, 6'd7);
      magnitudes_q <= 32'd0;
    end
    if (state_q == StFlush && !in_flight && pass_q == StRotate) begin
      shift_out_q <= sluice_pkg::block_shift(magnitudes_q, is_query_i || wide_o ? 6'd15 : 6'd7);
    end
    if (state_q == StMagnitudes) squares_q <= 37'd0;
    else if (advance && read2_q && pass_q == StSquares) begin
      squares_q <= squares_q + 37'(unsigned'(32'(a2_q) * 32'(a2_q)));
    end
    if (state_q == StWaitRoot && root_idle_i) begin
      root_q          <= root_mantissa_i;
      root_exponent_q <= root_exponent_i;
    end
  end
  logic [61:0] total;
  assign total        = 62'(squares_q) + (62'(epsilon_i) >> {shift16_q, 1'b0});
  assign root_start_o = state_q == StRoot;
  assign root_x_o     = total == 62'd0 ? 62'd1 : total;

  // --- Out: quantised values gathered to words ---

  logic signed [15:0] q16, limited;
  logic signed [7:0]  q8, high8, low8;
  logic signed [15:0] high16;
  logic [47:0]        words_q;
  logic [55:0]        bytes_q, low_bytes_q;
  logic               word_ends, valid_q, last_q;
  logic [63:0]        data_q, low_data_q;
  assign q16     = sluice_pkg::quantize16(value, shift_out_q);
  assign q8      = sluice_pkg::quantize8(value, shift_out_q);
  // Two bytes: high = rs(value, 8), both within a signed byte.
  assign limited = q16 > 16'sd32639 ? 16'sd32639 : q16 < -16'sd32639 ? -16'sd32639 : q16;
  assign high16  = (limited + 16'sd128) >>> 8;
  assign high8   = high16[7:0];
  assign low8    = limited[7:0];
  assign wide_o  = is_key_i && wide_i[head_q[5:0]];
  assign word_ends = is_query_i ? index1_q[1:0] == 2'd3 : index1_q[2:0] == 3'd7;
  always_ff @(posedge clk_i) begin
    if (rst_i) valid_q <= 1'b0;
    else if (advance) valid_q <= read1_q && pass_q == StQuantise && word_ends;
    if (advance && read1_q) begin
      words_q     <= {q16, words_q[47:16]};
      bytes_q     <= {wide_o ? high8 : q8, bytes_q[55:8]};
      low_bytes_q <= {low8, low_bytes_q[55:8]};
      data_q      <= is_query_i ? {q16, words_q} : {wide_o ? high8 : q8, bytes_q};
      low_data_q  <= {low8, low_bytes_q};
      last_q      <= {1'b0, index1_q} == head_dim_i - 1'b1;
    end
  end
  assign valid_o    = valid_q;
  assign data_o     = data_q;
  assign low_data_o = low_data_q;
  assign last_o     = last_q;
  assign head_o     = head_q;
  assign token_o    = token_q;
  assign exponent_o = ExpBits'(signed'({1'b0, shift_out_q})) - ExpBits'(fraction_i) +
                      (is_query_i ? ExpBits'(signed'({1'b0, shift16_q})) : '0);
  assign idle_o     = state_q == StIdle;
endmodule
