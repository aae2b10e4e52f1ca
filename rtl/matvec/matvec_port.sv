// One weight stream times the activations of a block of tokens: the tiles of one port.
//
// Takes one 64-bit beat a cycle: a tile's header (sub-scales), then its units. A beat holds two rows
// by eight columns; eight beats make the 16 rows of the same eight columns, for which one word of
// activations serves. Of every group (and plane) the 16 x Tokens dot products go to a drain that
// multiplies by the sub-scale, shifts by the group's distance to the largest exponent and adds to
// the tile's accumulators, while the next group streams. Finished tiles are offered to the epilogue,
// which reads them while the next tile accumulates.
//
// Bit-exact with Accumulate in src/exec/ref. Sums wrap at 32 bits.
module matvec_port #(
    parameter int unsigned Tokens    = 1,
    parameter int unsigned MaxWords  = 1024,  // words of 8 activations, both buffers together
    parameter int unsigned MaxGroups = 256,   // groups, both buffers together; a power of two
    localparam int unsigned WordBits  = $clog2(MaxWords),
    localparam int unsigned GroupBits = $clog2(MaxGroups),
    localparam int unsigned TokenBits = Tokens > 1 ? $clog2(Tokens) : 1,
    localparam int unsigned ExpBits   = sluice_pkg::ExponentBits
) (
    input  logic                      clk_i,
    input  logic                      rst_i,

    // A matrix: for all of this port's tiles. x_base and e_base say where its activations begin.
    input  logic                      start_i,      // pulse while idle
    input  logic [31:0]               tiles_i,      // of this port; 0 allowed
    input  logic [GroupBits-1:0]      groups_i,     // 1 ..
    input  logic                      group64_i,
    input  logic                      planes2_i,    // two planes, alternating
    input  logic                      high_only_i,  // the high plane of two, alone
    input  logic                      codebook_i,
    input  logic [WordBits-1:0]       x_base_i,
    input  logic [GroupBits-1:0]      e_base_i,
    input  logic [ExpBits*Tokens-1:0] largest_i,    // the tokens' largest exponents
    output logic                      idle_o,

    input  logic                      valid_i,
    output logic                      ready_o,
    input  logic [63:0]               data_i,

    // Activations and exponents, written by block_quantise.
    input  logic                      x_write_i,
    input  logic [TokenBits-1:0]      x_token_i,
    input  logic [WordBits-1:0]       x_word_i,
    input  logic [63:0]               x_data_i,
    input  logic                      e_write_i,
    input  logic [TokenBits-1:0]      e_token_i,
    input  logic [GroupBits-1:0]      e_group_i,
    input  logic signed [ExpBits-1:0] e_data_i,

    // The oldest finished tile.
    output logic                      tile_valid_o,
    input  logic                      tile_release_i,
    input  logic [TokenBits-1:0]      acc_token_i,
    input  logic [3:0]                acc_row_i,
    output logic signed [31:0]        acc_o          // in the same cycle
);
  localparam int unsigned Lanes      = Tokens > 1 ? Tokens / 2 : 1;
  localparam int unsigned LaneTokens = Tokens / Lanes;  // 1 or 2
  localparam int unsigned Latency    = 13;  // from an accepted beat to its sums

  // --- Beats in: header and units ---

  typedef enum logic [1:0] {StIdle, StHeader, StUnits} state_e;
  state_e state_q;

  logic [31:0]          tiles_q;
  logic [GroupBits-1:0] groups_q, e_base_q;
  logic [WordBits-1:0]  x_base_q;
  logic                 group64_q, planes2_q, high_only_q, codebook_q;
  logic                 bank_q;        // of the tile that streams
  logic [GroupBits+1:0] header_q;      // header word
  logic [GroupBits-1:0] group_q;
  logic                 plane_q;       // 1: the low one of two
  logic [2:0]           unit_q, beat_q;
  logic [1:0]           undrained_q;   // sets whose last unit has begun
  logic                 drained;       // pulse: a set left the drain

  logic [GroupBits+1:0] header_words;
  logic [2:0]           last_unit;
  logic                 in_last_unit, accept, set_begins, set_ends, tile_ends;
  assign header_words = (GroupBits + 2)'(sluice_pkg::header_words(16'(groups_q)));
  assign last_unit    = group64_q ? 3'd7 : 3'd3;
  assign in_last_unit = unit_q == last_unit;
  assign ready_o      = state_q == StHeader ? undrained_q < 2'd2
                      : state_q == StUnits && (!(in_last_unit && beat_q == 3'd0) ||
                                               undrained_q < 2'd2);
  assign accept       = valid_i && ready_o;
  assign set_begins   = accept && state_q == StUnits && in_last_unit && beat_q == 3'd0;
  assign set_ends     = accept && state_q == StUnits && in_last_unit && beat_q == 3'd7;
  assign tile_ends    = set_ends && group_q == groups_q - 1'b1 && (!planes2_q || plane_q);

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q     <= StIdle;
      bank_q      <= 1'b0;
      undrained_q <= 2'd0;
    end else begin
      undrained_q <= undrained_q + 2'(set_begins) - 2'(drained);
      unique case (state_q)
        StIdle:
          if (start_i && tiles_i != 32'd0) state_q <= StHeader;
        StHeader:
          if (accept && header_q == header_words - 1'b1) state_q <= StUnits;
        StUnits:
          if (tile_ends) begin
            state_q <= tiles_q == 32'd1 ? StIdle : StHeader;
            bank_q  <= !bank_q;
          end
        default: state_q <= StIdle;
      endcase
    end
  end

  always_ff @(posedge clk_i) begin
    if (start_i) begin
      tiles_q     <= tiles_i;
      groups_q    <= groups_i;
      group64_q   <= group64_i;
      planes2_q   <= planes2_i;
      high_only_q <= high_only_i;
      codebook_q  <= codebook_i;
      x_base_q    <= x_base_i;
      e_base_q    <= e_base_i;
      header_q    <= '0;
      group_q     <= '0;
      plane_q     <= 1'b0;
      unit_q      <= 3'd0;
      beat_q      <= 3'd0;
    end else if (accept && state_q == StHeader) begin
      header_q <= header_q == header_words - 1'b1 ? '0 : header_q + 1'b1;
    end else if (accept) begin
      beat_q <= beat_q + 3'd1;
      if (beat_q == 3'd7) unit_q <= in_last_unit ? 3'd0 : unit_q + 3'd1;
      if (set_ends) begin
        if (planes2_q) plane_q <= !plane_q;
        if (!planes2_q || plane_q) group_q <= tile_ends ? '0 : group_q + 1'b1;
      end
      if (tile_ends) tiles_q <= tiles_q - 32'd1;
    end
  end

  // Two words of eight sub-scales a group and bank.
  logic                 sub_read;
  logic [GroupBits+1:0] sub_address;
  logic [63:0]          sub_word;
  ram #(
      .Width(64),
      .Depth(4 * MaxGroups)
  ) u_sub_scales (
      .clk_i,
      .write_i        (accept && state_q == StHeader && !header_q[GroupBits+1]),
      .write_address_i({bank_q, header_q[GroupBits:0]}),
      .write_data_i   (data_i),
      .read_i         (sub_read),
      .read_address_i (sub_address),
      .read_data_o    (sub_word)
  );

  // --- Beat to levels: two cycles, with the activations beside it ---

  logic [63:0]         word_q;
  logic [WordBits-1:0] x_word;
  assign x_word = x_base_q + (group64_q ? WordBits'({group_q, unit_q})
                                        : WordBits'({group_q, unit_q[1:0]}));
  logic [39:0] level_a_q, level_b_q;
  always_ff @(posedge clk_i) begin
    word_q <= data_i;
    for (int unsigned c = 0; c < 4; c++) begin
      level_a_q[5*c +: 5]     <= sluice_pkg::level(codebook_q, word_q[8*c +: 4]);
      level_a_q[5*(c+4) +: 5] <= sluice_pkg::level(codebook_q, word_q[8*c+4 +: 4]);
      level_b_q[5*c +: 5]     <= sluice_pkg::level(codebook_q, word_q[32+8*c +: 4]);
      level_b_q[5*(c+4) +: 5] <= sluice_pkg::level(codebook_q, word_q[32+8*c+4 +: 4]);
    end
  end

  // Column c is delayed by c cycles.
  logic [39:0] skewed_a, skewed_b;
  for (genvar c = 0; c < 8; c++) begin : gen_skew
    delay #(
        .Width (10),
        .Cycles(c)
    ) u_levels (
        .clk_i,
        .data_i({level_b_q[5*c +: 5], level_a_q[5*c +: 5]}),
        .data_o({skewed_b[5*c +: 5], skewed_a[5*c +: 5]})
    );
  end

  // What the beat is, until its sums stand.
  typedef struct packed {
    logic                 valid;
    logic                 first_unit;
    logic                 last_unit;
    logic [2:0]           beat;
  } beat_t;
  beat_t beat_in, beat_out;
  assign beat_in = {accept && state_q == StUnits, unit_q == 3'd0, in_last_unit, beat_q};
  logic [Latency-1:0] valid_pipe_q;
  always_ff @(posedge clk_i) begin
    if (rst_i) valid_pipe_q <= '0;
    else valid_pipe_q <= {valid_pipe_q[Latency-2:0], beat_in.valid};
  end
  logic [4:0] beat_rest;
  delay #(
      .Width (5),
      .Cycles(Latency)
  ) u_beat (
      .clk_i,
      .data_i({beat_in.first_unit, beat_in.last_unit, beat_in.beat}),
      .data_o(beat_rest)
  );
  assign beat_out = {valid_pipe_q[Latency-1], beat_rest};

  // A set's identity travels in a queue: sets leave in order.
  typedef struct packed {
    logic                 bank;
    logic                 first;    // of its tile
    logic                 last;     // of its tile
    logic                 low;      // the low plane, to which the high one is added
    logic                 high;     // a high plane whose low one follows
    logic                 high_only;
    logic [GroupBits-1:0] group;
  } set_t;
  localparam int unsigned SetBits = GroupBits + 6;
  set_t set_in;
  assign set_in = {bank_q, group_q == '0 && !plane_q,
                   group_q == groups_q - 1'b1 && (!planes2_q || plane_q),
                   plane_q, planes2_q && !plane_q, high_only_q, group_q};
  logic [SetBits-1:0] sets_q [2];
  logic               set_write_q, set_read_q;
  always_ff @(posedge clk_i) begin
    if (set_begins) sets_q[set_write_q] <= set_in;
    if (rst_i) begin
      set_write_q <= 1'b0;
      set_read_q  <= 1'b0;
    end else begin
      if (set_begins) set_write_q <= !set_write_q;
      if (drained) set_read_q <= !set_read_q;
    end
  end
  set_t set;
  assign set = sets_q[set_read_q];

  // Sets whose sums all stand in the drain memory.
  logic [1:0] complete_q;
  logic       completes;
  logic       drain_write_q;  // half of the drain memory that the next set goes to
  assign completes = beat_out.valid && beat_out.last_unit && beat_out.beat == 3'd7;
  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      complete_q    <= 2'd0;
      drain_write_q <= 1'b0;
    end else begin
      complete_q <= complete_q + 2'(completes) - 2'(drained);
      if (completes) drain_write_q <= !drain_write_q;
    end
  end

  // --- The drain's steps: one row a cycle in every lane, token by token ---

  typedef enum logic [0:0] {DrIdle, DrRun} drain_e;
  drain_e     drain_q;
  logic [4:0] step_q;       // {token of the lane, row}
  logic       run, last_step;
  logic [1:0] full_q;       // accumulator banks that the epilogue has not released
  logic       tile_bank_q;  // the oldest of them
  assign run       = drain_q == DrRun;
  assign last_step = step_q == 5'(16 * LaneTokens - 1);
  assign drained   = run && last_step;
  assign sub_read    = run;
  assign sub_address = {set.bank, set.group, step_q[3]};

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      drain_q <= DrIdle;
      step_q  <= 5'd0;
    end else begin
      unique case (drain_q)
        DrIdle: if (complete_q != 2'd0 && !(set.first && full_q[set.bank])) drain_q <= DrRun;
        default: begin
          step_q <= last_step ? 5'd0 : step_q + 5'd1;
          if (last_step) drain_q <= DrIdle;
        end
      endcase
    end
  end

  // Stage 1: the sum; 2: times the sub-scale; 3: shifted; 4: added.
  logic [3:0]  run_q;
  logic [4:0]  step1_q, step2_q, step3_q;
  set_t        set1_q, set2_q, set3_q;
  logic [3:0]  last_q;   // the set's last step, of a tile's last set
  logic signed [7:0] sub_scale;
  assign sub_scale = signed'(sub_word[8*step1_q[2:0] +: 8]);
  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      run_q  <= '0;
      last_q <= '0;
    end else begin
      run_q  <= {run_q[2:0], run};
      last_q <= {last_q[2:0], drained && set.last};
    end
    step1_q <= step_q;
    step2_q <= step1_q;
    step3_q <= step2_q;
    set1_q  <= set;
    set2_q  <= set1_q;
    set3_q  <= set2_q;
  end

  logic [32*Lanes-1:0] lane_acc;
  for (genvar l = 0; l < Lanes; l++) begin : gen_lane
    // The exponents of the lane's tokens.
    logic signed [ExpBits-1:0] exponent;
    logic [ExpBits-1:0]        exponent_word;
    localparam int unsigned LaneBits = LaneTokens > 1 ? 1 : 0;
    ram #(
        .Width(ExpBits),
        .Depth(LaneTokens * MaxGroups)
    ) u_exponents (
        .clk_i,
        .write_i        (e_write_i && 32'(e_token_i) / LaneTokens == l),
        .write_address_i((GroupBits + LaneBits)'({e_token_i, e_group_i})),
        .write_data_i   (e_data_i),
        .read_i         (run),
        .read_address_i ((GroupBits + LaneBits)'({step_q[4], e_base_q + set.group})),
        .read_data_o    (exponent_word)
    );
    assign exponent = signed'(exponent_word);

    logic signed [17:0] drain_word [LaneTokens];  // of the row in step_q
    for (genvar t = 0; t < LaneTokens; t++) begin : gen_token
      localparam int unsigned Token = l * LaneTokens + t;
      logic [63:0] x_q, x_d, skewed_x;
      ram #(
          .Width(64),
          .Depth(MaxWords)
      ) u_x (
          .clk_i,
          .write_i        (x_write_i && 32'(x_token_i) == Token),
          .write_address_i(x_word_i),
          .write_data_i   (x_data_i),
          .read_i         (1'b1),
          .read_address_i (x_word),
          .read_data_o    (x_d)
      );
      always_ff @(posedge clk_i) x_q <= x_d;
      for (genvar c = 0; c < 8; c++) begin : gen_skew_x
        delay #(
            .Width (8),
            .Cycles(c)
        ) u_x_delay (
            .clk_i,
            .data_i(x_q[8*c +: 8]),
            .data_o(skewed_x[8*c +: 8])
        );
      end
      logic signed [17:0] sum_a, sum_b;
      dot_chain u_chain (
          .clk_i,
          .a_i    (skewed_a),
          .b_i    (skewed_b),
          .x_i    (skewed_x),
          .sum_a_o(sum_a),
          .sum_b_o(sum_b)
      );
      // Two rows a word: running sums of the set, and finished ones of two sets.
      logic [35:0] running [8];
      logic [35:0] finished [16];
      logic [35:0] earlier;
      logic signed [17:0] now_a, now_b;
      assign earlier = beat_out.first_unit ? 36'd0 : running[beat_out.beat];
      assign now_a  = signed'(earlier[17:0]) + sum_a;
      assign now_b  = signed'(earlier[35:18]) + sum_b;
      always_ff @(posedge clk_i) begin
        if (beat_out.valid) running[beat_out.beat] <= {now_b, now_a};
        if (beat_out.valid && beat_out.last_unit) begin
          finished[{drain_write_q, beat_out.beat}] <= {now_b, now_a};
        end
      end
      logic [35:0] pair;
      assign pair = finished[{set_read_q, step_q[3:1]}];
      assign drain_word[t] = signed'(step_q[0] ? pair[35:18] : pair[17:0]);
    end

    logic signed [17:0] sum1_q;
    logic signed [21:0] whole;
    logic signed [29:0] product2_q;
    logic signed [31:0] term3_q;
    logic [4:0]         shift2_q;
    logic signed [17:0] high [16 * LaneTokens];  // of a group whose low plane follows
    logic signed [ExpBits-1:0] largest;
    logic signed [ExpBits:0]   distance;
    assign largest  = signed'(largest_i[ExpBits*(l*LaneTokens + 32'(step1_q[4])) +: ExpBits]);
    assign distance = (ExpBits + 1)'(largest) - (ExpBits + 1)'(exponent);
    assign whole = set1_q.high_only ? 22'(sum1_q) <<< 4
                 : set1_q.low ? (22'(high[step1_q]) <<< 4) + 22'(sum1_q) : 22'(sum1_q);

    logic signed [31:0] acc [32 * LaneTokens];
    localparam int unsigned AccBits = 5 + LaneBits;
    logic [AccBits-1:0] at;
    assign at = AccBits'({step3_q, 1'b0} >> 1) | (AccBits'(set3_q.bank) << (AccBits - 1));
    always_ff @(posedge clk_i) begin
      sum1_q <= step_q[4] ? drain_word[LaneTokens-1] : drain_word[0];
      if (run_q[0] && set1_q.high) high[step1_q] <= sum1_q;
      product2_q <= 30'(whole) * 30'(sub_scale);
      shift2_q   <= distance > (ExpBits + 1)'(31) ? 5'd31 : distance[4:0];
      term3_q    <= 32'(product2_q) >>> shift2_q;
      // A tile's accumulators begin with its first group, of whose planes the low one counts.
      if (run_q[2] && !set3_q.high) acc[at] <= (set3_q.group == '0 ? 32'sd0 : acc[at]) + term3_q;
    end

    logic [AccBits-1:0] acc_at;
    assign acc_at = AccBits'({32'(acc_token_i) % LaneTokens, acc_row_i}) |
                    (AccBits'(tile_bank_q) << (AccBits - 1));
    assign lane_acc[32*l +: 32] = acc[acc_at];
  end
  assign acc_o = signed'(lane_acc[32*(32'(acc_token_i) / LaneTokens) +: 32]);

  // --- Finished tiles ---

  logic finish_bank_q;  // the bank that finishes next
  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      full_q        <= 2'b00;
      tile_bank_q   <= 1'b0;
      finish_bank_q <= 1'b0;
    end else begin
      if (last_q[2]) begin
        full_q[finish_bank_q] <= 1'b1;
        finish_bank_q         <= !finish_bank_q;
      end
      if (tile_release_i) begin
        full_q[tile_bank_q] <= 1'b0;
        tile_bank_q         <= !tile_bank_q;
      end
    end
  end
  assign tile_valid_o = full_q[tile_bank_q];
  assign idle_o = state_q == StIdle && undrained_q == 2'd0 && run_q == '0 && full_q == 2'b00 &&
                  last_q == '0;
endmodule
