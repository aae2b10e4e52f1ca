// Attention of a block's queries over the KV cache in memory, KV head by KV head.
//
// The query heads of all tokens that share a KV head are its slots, token by token; `Lanes` of them
// are worked on at once by 8 multipliers each, so a word of eight K or V bytes is used for
// ceil(slots / Lanes) cycles. First pass: scores of every position to a memory, and each slot's
// largest. Second pass: powers of two, their sum, and the sum of V. Where a block has more slots times
// positions than the score memory holds, the slots are taken in several runs, each of which reads K
// and V again.
//
// Bit-exact with Attend in src/exec/ref.
module attend #(
    parameter int unsigned Tokens     = 1,
    parameter int unsigned Lanes      = 7,
    parameter int unsigned MaxSlots   = 8,       // tokens * query heads of a KV head; a power of two
    parameter int unsigned MaxHeads   = 64,
    parameter int unsigned MaxHeadDim = 128,
    parameter int unsigned MaxQWords  = 512,     // of a token: heads * head_dim / 4; a power of two
    parameter int unsigned MaxContext = 2048,
    parameter int unsigned Scores     = 16384,
    localparam int unsigned TokenBits  = Tokens > 1 ? $clog2(Tokens) : 1,
    localparam int unsigned SlotBits   = $clog2(MaxSlots),
    localparam int unsigned QWordBits  = $clog2(MaxQWords),
    localparam int unsigned HeadBits   = $clog2(MaxHeads),
    localparam int unsigned PosBits    = $clog2(MaxContext + 1),
    localparam int unsigned ExpBits    = sluice_pkg::ExponentBits
) (
    input  logic                      clk_i,
    input  logic                      rst_i,

    // q from the heads unit: words of four, head by head, token by token.
    input  logic                      q_start_i,
    input  logic                      q_valid_i,        // always taken
    input  logic [63:0]               q_data_i,
    input  logic                      q_last_i,
    input  logic [15:0]               q_head_i,
    input  logic [TokenBits-1:0]      q_token_i,
    input  logic signed [ExpBits-1:0] q_exponent_i,

    input  logic                      start_i,          // pulse while idle
    input  logic [15:0]               kv_heads_i,       // stable until idle, as the following
    input  logic [15:0]               ratio_i,          // query heads of a KV head
    input  logic [15:0]               head_dim_i,
    input  logic [63:0]               wide_i,
    input  logic [TokenBits-1:0]      last_token_i,
    input  logic [31:0]               position_i,       // of the first token
    input  logic signed [7:0]         score_fraction_i,
    input  logic signed [7:0]         fraction_i,
    input  logic [31:0]               layer_base_i,
    input  logic [31:0]               head_stride_i,
    input  logic [31:0]               plane_bytes_i,
    input  logic [31:0]               low_base_i,
    output logic                      idle_o,
    output logic                      too_long_o,       // pulse: not one slot's scores fit

    output logic                      request_valid_o,
    input  logic                      request_ready_i,
    output logic [31:0]               request_address_o,
    output logic [23:0]               request_words_o,
    input  logic                      kv_valid_i,
    output logic                      kv_ready_o,
    input  logic [63:0]               kv_data_i,

    output logic                      valid_o,
    input  logic                      ready_i,
    output logic signed [31:0]        v_o,
    output logic [TokenBits-1:0]      token_o,
    output logic signed [ExpBits-1:0] exponent_o
);
  localparam int unsigned MaxChunks = (MaxSlots + Lanes - 1) / Lanes;
  localparam int unsigned ChunkBits = MaxChunks > 1 ? $clog2(MaxChunks) : 1;
  localparam int unsigned LaneBits  = Lanes > 1 ? $clog2(Lanes) : 1;
  localparam int unsigned DWordBits = $clog2(MaxHeadDim / 8);
  localparam int unsigned LaneWords = (1 << ChunkBits) * (MaxHeadDim / 8);
  localparam int unsigned LWordBits = ChunkBits + DWordBits;
  localparam int unsigned ScoreBits = $clog2(Scores);

  typedef enum logic [3:0] {
    StIdle, StRun, StLoad, StExponents, StScores, StScoresEnd, StMix, StMixEnd, StDivide, StWaitDivide,
    StOut, StOutEnd, StNextSlot
  } state_e;
  state_e state_q;

  // --- The store of q ---

  logic [QWordBits-1:0] store_base_q, store_word_q;
  logic [QWordBits-1:0] d4;
  assign d4 = QWordBits'(head_dim_i >> 2);
  always_ff @(posedge clk_i) begin
    if (rst_i || q_start_i) begin
      store_base_q <= '0;
      store_word_q <= '0;
    end else if (q_valid_i) begin
      store_word_q <= q_last_i ? '0 : store_word_q + 1'b1;
      if (q_last_i && q_token_i == last_token_i) store_base_q <= store_base_q + store_word_q + 1'b1;
    end
  end
  logic                 q_read;
  logic [TokenBits-1:0] q_read_token;
  logic [QWordBits-1:0] q_read_word;
  logic [63:0]          q_word;
  ram #(
      .Width(64),
      .Depth((1 << TokenBits) * MaxQWords)
  ) u_q (
      .clk_i,
      .write_i        (q_valid_i),
      .write_address_i({q_token_i, store_base_q + store_word_q}),
      .write_data_i   (q_data_i),
      .read_i         (q_read),
      .read_address_i ({q_read_token, q_read_word}),
      .read_data_o    (q_word)
  );
  logic [ExpBits-1:0] q_exponents [(1 << TokenBits) * MaxHeads];
  always_ff @(posedge clk_i) begin
    if (q_valid_i && q_last_i) q_exponents[{q_token_i, q_head_i[HeadBits-1:0]}] <= q_exponent_i;
  end

  // --- Which slots: runs over (token, head) ---

  logic [15:0]          kv_head_q;
  logic [31:0]          head_base_q, low_base_q;
  logic [SlotBits:0]    slots, slots_left_q;     // of the KV head; not yet done
  logic [SlotBits:0]    run_slots_q;             // of this run
  logic [ScoreBits:0]   run_scores_q;
  logic [TokenBits-1:0] run_token_q;             // first slot of the run
  logic [15:0]          run_head_q;              // within the KV head
  logic [PosBits-1:0]   positions;               // of the block's last token
  logic                 wide;
  assign slots     = (SlotBits + 1)'(ratio_i * (16'(last_token_i) + 16'd1));
  assign positions = PosBits'(position_i + 32'(last_token_i) + 32'd1);
  assign wide      = wide_i[kv_head_q[5:0]];

  // A walk over the run's slots, shared by all passes: lane, chunk, token, head.
  logic                 walk_reset, walk_step;
  logic [SlotBits:0]    slot_q;
  logic [LaneBits-1:0]  lane_q;
  logic [ChunkBits-1:0] chunk_q;
  logic [TokenBits-1:0] token_q;
  logic [15:0]          head_q;      // within the KV head
  logic                 last_slot;
  assign last_slot = slot_q == run_slots_q - 1'b1;
  always_ff @(posedge clk_i) begin
    if (walk_reset || (walk_step && last_slot)) begin
      slot_q  <= '0;
      lane_q  <= '0;
      chunk_q <= '0;
      token_q <= run_token_q;
      head_q  <= run_head_q;
    end else if (walk_step) begin
      slot_q <= slot_q + 1'b1;
      if (lane_q == LaneBits'(Lanes - 1)) begin
        lane_q  <= '0;
        chunk_q <= chunk_q + 1'b1;
      end else begin
        lane_q <= lane_q + 1'b1;
      end
      if (head_q == ratio_i - 16'd1) begin
        head_q  <= 16'd0;
        token_q <= token_q + 1'b1;
      end else begin
        head_q <= head_q + 16'd1;
      end
    end
  end
  logic [ChunkBits-1:0] last_chunk_q;  // of the run
  logic [DWordBits-1:0] last_dword;
  assign last_dword = DWordBits'((head_dim_i >> 3) - 16'd1);

  // --- Requests: exponents, K, V; of a wide K high and low bytes in turn ---

  typedef enum logic [2:0] {RqIdle, RqExponents, RqK, RqKLow, RqV} request_e;
  request_e           request_q;
  logic [31:0]        k_address_q, low_address_q;
  logic [PosBits-1:0] k_left_q;
  logic               request_start;
  logic [31:0]        d_words;
  assign d_words = 32'(head_dim_i >> 3);
  always_comb begin
    request_valid_o   = request_q != RqIdle;
    request_address_o = k_address_q;
    request_words_o   = 24'(d_words);
    unique case (request_q)
      RqExponents: begin
        request_address_o = head_base_q + (plane_bytes_i << 1);
        request_words_o   = 24'((32'(positions) + 32'd3) >> 2);
      end
      RqK: if (!wide) request_words_o = 24'(32'(positions) * d_words);
      RqKLow: request_address_o = low_address_q;
      RqV: begin
        request_address_o = head_base_q + plane_bytes_i;
        request_words_o   = 24'(32'(positions) * d_words);
      end
      default: ;
    endcase
  end
  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      request_q <= RqIdle;
    end else if (request_start) begin
      request_q     <= RqExponents;
      k_address_q   <= head_base_q;
      low_address_q <= low_base_q;
      k_left_q      <= positions;
    end else if (request_valid_o && request_ready_i) begin
      unique case (request_q)
        RqExponents: request_q <= RqK;
        RqK: begin
          request_q   <= wide ? RqKLow : RqV;
          k_address_q <= k_address_q + 32'(head_dim_i);
        end
        RqKLow: begin
          low_address_q <= low_address_q + 32'(head_dim_i);
          k_left_q      <= k_left_q - 1'b1;
          request_q     <= k_left_q == PosBits'(1) ? RqV : RqK;
        end
        default: request_q <= RqIdle;
      endcase
    end
  end

  // --- Exponents of the positions, and each token's largest of V ---

  logic [PosBits-1:0]   position_q;    // of the exponents, and of the K or V word
  logic [15:0]          exponents [MaxContext];
  logic [15:0]          exponent_in;
  logic signed [7:0]    v_largest_q [Tokens];
  logic signed [7:0]    v_in;
  logic                 exponent_step;
  assign exponent_step = state_q == StExponents && kv_valid_i;
  assign exponent_in   = kv_data_i[16*position_q[1:0] +: 16];
  assign v_in          = signed'(exponent_in[15:8]);
  always_ff @(posedge clk_i) begin
    if (exponent_step) begin
      exponents[position_q[$clog2(MaxContext)-1:0]] <= exponent_in;
      for (int unsigned t = 0; t < Tokens; t++) begin
        if (position_q == '0 ||
            (v_in > v_largest_q[t] && 32'(position_q) <= position_i + 32'(t))) begin
          v_largest_q[t] <= v_in;
        end
      end
    end
  end

  // --- Words of K and V against all chunks of slots ---

  logic [DWordBits-1:0] dword_q;
  logic                 low_q;         // the low bytes of a wide position
  logic [ChunkBits-1:0] mac_chunk_q;
  logic                 mac, mac_hold, mac_position_ends, mac_ends;
  logic                 last_word, last_position;
  assign last_word     = dword_q == last_dword && (low_q || !wide || state_q == StMix);
  assign last_position = position_q == positions - 1'b1;
  assign mac           = (state_q == StScores || state_q == StMix) && kv_valid_i && !mac_hold;
  assign mac_position_ends = mac && mac_chunk_q == last_chunk_q && last_word;
  assign mac_ends          = mac_position_ends && last_position;
  assign kv_ready_o = (mac && mac_chunk_q == last_chunk_q) ||
                      (exponent_step && (position_q[1:0] == 2'd3 || last_position));

  always_ff @(posedge clk_i) begin
    if (rst_i || state_q == StRun) begin
      position_q  <= '0;
      dword_q     <= '0;
      low_q       <= 1'b0;
      mac_chunk_q <= '0;
    end else begin
      if (exponent_step) position_q <= last_position ? '0 : position_q + 1'b1;
      if (mac) begin
        mac_chunk_q <= mac_chunk_q == last_chunk_q ? '0 : mac_chunk_q + 1'b1;
        if (mac_chunk_q == last_chunk_q) begin
          dword_q <= dword_q == last_dword ? '0 : dword_q + 1'b1;
          if (dword_q == last_dword && wide && state_q == StScores) low_q <= !low_q;
          if (last_word) position_q <= last_position ? '0 : position_q + 1'b1;
        end
      end
    end
  end

  // Stage 1: operands. 2: products. 3: sum of eight. 4: accumulated.
  logic [3:0]           mac_q;
  logic                 mixing1_q, mixing2_q, mixing3_q;
  logic                 first1_q, first2_q, first3_q;      // nothing to add to
  logic                 shift1_q, shift2_q, shift3_q;      // to the high bytes' sum, times 256
  logic                 done1_q, done2_q, done3_q;         // the score is complete
  logic [ChunkBits-1:0] chunk1_q, chunk2_q, chunk3_q;
  logic [DWordBits-1:0] dword1_q, dword2_q, dword3_q;
  logic [63:0]          bytes1_q;
  logic                 weight_bank_q;                     // of the weights in use
  always_ff @(posedge clk_i) begin
    if (rst_i) mac_q <= '0;
    else mac_q <= {mac_q[2:0], mac};
    mixing1_q <= state_q == StMix;
    mixing2_q <= mixing1_q;
    mixing3_q <= mixing2_q;
    first1_q  <= state_q == StMix ? position_q == '0 : dword_q == '0 && !low_q;
    first2_q  <= first1_q;
    first3_q  <= first2_q;
    shift1_q  <= state_q == StScores && dword_q == '0 && low_q;
    shift2_q  <= shift1_q;
    shift3_q  <= shift2_q;
    done1_q   <= state_q == StScores && last_word;
    done2_q   <= done1_q;
    done3_q   <= done2_q;
    chunk1_q  <= mac_chunk_q;
    chunk2_q  <= chunk1_q;
    chunk3_q  <= chunk2_q;
    dword1_q  <= dword_q;
    dword2_q  <= dword1_q;
    dword3_q  <= dword2_q;
    bytes1_q  <= kv_data_i;
  end

  // Loading q into the lanes: a word of four a cycle.
  logic                 load1_q;
  logic [QWordBits-1:0] load_word_q;
  logic [QWordBits-1:0] load_base_q;   // of the KV head's first query head
  logic [QWordBits-1:0] load_head_q;   // of the slot's head
  logic [LaneBits-1:0]  load_lane1_q;
  logic [ChunkBits-1:0] load_chunk1_q;
  logic [DWordBits:0]   load_dword1_q;
  logic                 load_last_word;
  assign load_last_word = load_word_q == d4 - 1'b1;
  assign q_read       = state_q == StLoad;
  assign q_read_token = token_q;
  assign q_read_word  = load_head_q + load_word_q;
  always_ff @(posedge clk_i) begin
    if (rst_i) load1_q <= 1'b0;
    else load1_q <= q_read;
    load_lane1_q  <= lane_q;
    load_chunk1_q <= chunk_q;
    load_dword1_q <= (DWordBits + 1)'(load_word_q);
    if (state_q == StRun) begin
      load_word_q <= '0;
      load_head_q <= load_base_q + QWordBits'(32'(run_head_q) * 32'(d4));
    end else if (q_read) begin
      load_word_q <= load_last_word ? '0 : load_word_q + 1'b1;
      if (load_last_word) begin
        load_head_q <= head_q == ratio_i - 16'd1 ? load_base_q : load_head_q + d4;
      end
    end
  end

  // Second pass: weights of a position's slots, in two banks.
  logic [1:0]           weights_full_q;   // all of a position's weights stand
  logic [1:0]           weights_taken_q;  // or are on their way
  logic                 weight_write, weight_write_bank;
  logic [LaneBits-1:0]  weight_lane;
  logic [ChunkBits-1:0] weight_chunk;
  logic [15:0]          weight_value;

  logic [40*Lanes-1:0]  lane_scores;   // of score_chunk
  logic [ChunkBits-1:0] score_chunk;
  logic [LWordBits-1:0] out_word;
  logic [320*Lanes-1:0] lane_mixed;    // of out_word
  for (genvar l = 0; l < Lanes; l++) begin : gen_lane
    logic [63:0]  q_low [LaneWords];   // four of the eight dimensions each
    logic [63:0]  q_high [LaneWords];
    logic [127:0] q1_q;
    logic [15:0]  weights [2*(1<<ChunkBits)];
    logic [15:0]  weight1_q;
    always_ff @(posedge clk_i) begin
      if (load1_q && load_lane1_q == LaneBits'(l)) begin
        if (load_dword1_q[0]) q_high[{load_chunk1_q, load_dword1_q[DWordBits:1]}] <= q_word;
        else q_low[{load_chunk1_q, load_dword1_q[DWordBits:1]}] <= q_word;
      end
      if (weight_write && weight_lane == LaneBits'(l)) begin
        weights[{weight_write_bank, weight_chunk}] <= weight_value;
      end
      q1_q      <= {q_high[{mac_chunk_q, dword_q}], q_low[{mac_chunk_q, dword_q}]};
      weight1_q <= weights[{weight_bank_q, mac_chunk_q}];
    end

    logic signed [23:0] product2_q [8];
    logic signed [23:0] product3_q [8];
    logic signed [26:0] sum3_q;
    for (genvar c = 0; c < 8; c++) begin : gen_multiplier
      always_ff @(posedge clk_i) begin
        product2_q[c] <= 24'(signed'(mixing1_q ? weight1_q : q1_q[16*c +: 16])) *
                         24'(signed'(bytes1_q[8*c +: 8]));
        product3_q[c] <= product2_q[c];
      end
    end
    always_ff @(posedge clk_i) begin
      sum3_q <= ((27'(product2_q[0]) + 27'(product2_q[1])) +
                 (27'(product2_q[2]) + 27'(product2_q[3]))) +
                ((27'(product2_q[4]) + 27'(product2_q[5])) +
                 (27'(product2_q[6]) + 27'(product2_q[7])));
    end

    logic signed [39:0] score [1<<ChunkBits];
    logic signed [39:0] complete [1<<ChunkBits];
    logic signed [39:0] score_before, score_now;
    assign score_before = first3_q ? 40'sd0 : shift3_q ? score[chunk3_q] <<< 8 : score[chunk3_q];
    assign score_now    = score_before + 40'(sum3_q);
    always_ff @(posedge clk_i) begin
      if (mac_q[2] && !mixing3_q) score[chunk3_q] <= score_now;
      if (mac_q[2] && !mixing3_q && done3_q) complete[chunk3_q] <= score_now;
    end
    assign lane_scores[40*l +: 40] = complete[score_chunk];

    logic [319:0] mixed [LaneWords];
    logic [319:0] mixed_before, mixed_now;
    assign mixed_before = first3_q ? 320'd0 : mixed[{chunk3_q, dword3_q}];
    for (genvar c = 0; c < 8; c++) begin : gen_mixed
      assign mixed_now[40*c +: 40] =
          signed'(mixed_before[40*c +: 40]) + 40'(product3_q[c]);
    end
    always_ff @(posedge clk_i) begin
      if (mac_q[2] && mixing3_q) mixed[{chunk3_q, dword3_q}] <= mixed_now;
    end
    assign lane_mixed[320*l +: 320] = mixed[out_word];
  end

  // --- Finishing a position's scores, slot by slot ---

  // A position's scores are complete 4 cycles after its last word went in; then the walk takes them.
  logic               finishing_q, finish, finish_start;
  logic [3:0]         finish_delay_q;
  logic [PosBits-1:0] finish_position_q;
  logic               score_waits_q;   // a position is complete or about to be, and not yet walked
  assign finish       = finishing_q;
  assign finish_start = finish_delay_q[3];
  assign score_chunk  = chunk_q;

  logic signed [39:0] dot1_q;
  logic signed [11:0] score_shift1_q;
  logic signed [15:0] score2, score2_q;
  logic signed [31:0] score_wide;
  logic               finish1_q, finish2_q, seen1_q, seen2_q, zero1_q, zero2_q;
  logic [SlotBits-1:0] slot1_q, slot2_q;
  logic signed [15:0] maximum [MaxSlots];
  logic [15:0]        finish_exponents;
  logic signed [ExpBits-1:0] q_exponent;
  logic [HeadBits-1:0] q_head;
  assign q_head           = HeadBits'(16'(kv_head_q) * ratio_i + head_q);
  assign q_exponent       = signed'(q_exponents[{token_q, q_head}]);
  assign finish_exponents = exponents[finish_position_q[$clog2(MaxContext)-1:0]];
  assign score_wide       = sluice_pkg::round_shift_sat32(64'(dot1_q), score_shift1_q);
  assign score2           = score_wide > 32'sd32767 ? 16'sd32767
                          : score_wide < -32'sd32767 ? -16'sd32767 : score_wide[15:0];

  logic [ScoreBits-1:0] score_write_q, score_read_q;
  logic [15:0]          score_word;
  logic                 score_read;
  ram #(
      .Width(16),
      .Depth(Scores)
  ) u_scores (
      .clk_i,
      .write_i        (finish2_q),
      .write_address_i(score_write_q),
      .write_data_i   (score2_q),
      .read_i         (score_read),
      .read_address_i (score_read_q),
      .read_data_o    (score_word)
  );

  always_ff @(posedge clk_i) begin
    if (rst_i || state_q == StRun) begin
      finish_delay_q    <= '0;
      finishing_q       <= 1'b0;
      score_waits_q     <= 1'b0;
      finish_position_q <= '0;
      score_write_q     <= '0;
    end else begin
      finish_delay_q <= {finish_delay_q[2:0], mac_position_ends && state_q == StScores};
      if (mac_position_ends && state_q == StScores) score_waits_q <= 1'b1;
      else if (finish && last_slot) score_waits_q <= 1'b0;
      if (finish_start) finishing_q <= 1'b1;
      else if (finish && last_slot) begin
        finishing_q       <= 1'b0;
        finish_position_q <= finish_position_q + 1'b1;
      end
      if (finish2_q) score_write_q <= score_write_q + 1'b1;
    end
    if (rst_i) begin
      finish1_q <= 1'b0;
      finish2_q <= 1'b0;
    end else begin
      finish1_q <= finish;
      finish2_q <= finish1_q;
    end
    dot1_q         <= signed'(lane_scores[40*lane_q +: 40]);
    score_shift1_q <= -(12'(q_exponent) + 12'(signed'(finish_exponents[7:0]))) -
                      12'(score_fraction_i);
    slot1_q        <= slot_q[SlotBits-1:0];
    slot2_q        <= slot1_q;
    seen1_q        <= 32'(finish_position_q) <= position_i + 32'(token_q);
    seen2_q        <= seen1_q;
    zero1_q        <= finish_position_q == '0;
    zero2_q        <= zero1_q;
    score2_q       <= score2;
    if (finish2_q && (zero2_q || (seen2_q && score2_q > maximum[slot2_q]))) begin
      maximum[slot2_q] <= score2_q;
    end
  end

  // --- Second pass: weights, position by position, ahead of V ---

  logic [14:0] exp2_table [256];
  initial begin
    for (int unsigned i = 0; i < 256; i++) exp2_table[i] = sluice_tables::Exp2[15*i +: 15];
  end

  logic               weighing_q, weigh, weigh_ends, mix_starts;
  logic               weigh_bank_q;
  logic               wbank_q [4];
  logic [PosBits-1:0] weigh_position_q;
  logic [3:0]         weigh_q;
  logic [SlotBits-1:0]  wslot_q [4];
  logic [LaneBits-1:0]  wlane_q [4];
  logic [ChunkBits-1:0] wchunk_q [4];
  logic [TokenBits-1:0] wtoken_q [4];
  logic                 wseen_q [4];
  logic                 wfirst_q [4];
  logic                 wlast_q [4];
  logic signed [7:0]    wexponent_q [4];
  logic [16:0]        distance;
  logic [16:0]        whole2_q;
  logic [7:0]         index2_q;
  logic [14:0]        power;
  logic [15:0]        p3_q, p3;
  logic [31:0]        total [MaxSlots];
  logic [31:0]        total_before;
  logic signed [8:0]  weight_shift;
  logic [15:0]        weigh_exponents;
  assign weigh_exponents = exponents[weigh_position_q[$clog2(MaxContext)-1:0]];
  // The next bank is free.
  assign weigh      = weighing_q && (slot_q != '0 || !weights_taken_q[weigh_bank_q]);
  assign weigh_ends = weigh && last_slot;
  assign score_read = weigh;

  assign distance = 17'(signed'(maximum[wslot_q[0]])) - 17'(signed'(score_word));
  assign power    = exp2_table[index2_q];
  // rs(power, whole): 0 beyond 15.
  assign p3       = !wseen_q[1] || whole2_q > 17'd15 ? 16'd0
                  : 16'((({1'b0, power, 1'b0} >> whole2_q[3:0]) + 17'd1) >> 1);
  assign weight_shift = 9'(v_largest_q[wtoken_q[2]]) - 9'(wexponent_q[2]);
  assign weight_value = weight_shift > 9'sd16 ? 16'd0
                      : 16'((({p3_q, 1'b0} >> weight_shift[4:0]) + 17'd1) >> 1);
  assign weight_write        = weigh_q[2];
  assign weight_lane         = wlane_q[2];
  assign weight_chunk        = wchunk_q[2];
  assign weight_write_bank = wbank_q[2];
  assign total_before        = wfirst_q[2] ? 32'd0 : total[wslot_q[2]];

  always_ff @(posedge clk_i) begin
    if (rst_i || state_q == StRun) begin
      weigh_q          <= '0;
      weighing_q       <= 1'b0;
      weigh_position_q <= '0;
      weights_full_q   <= 2'b00;
      weights_taken_q  <= 2'b00;
      weigh_bank_q     <= 1'b0;
      weight_bank_q    <= 1'b0;
      score_read_q     <= '0;
    end else begin
      weigh_q <= {weigh_q[2:0], weigh};
      if (state_q == StScoresEnd && mix_starts) weighing_q <= 1'b1;
      else if (weigh_ends && weigh_position_q == positions - 1'b1) weighing_q <= 1'b0;
      if (weigh) score_read_q <= score_read_q + 1'b1;
      if (weigh_ends) begin
        weigh_position_q              <= weigh_position_q + 1'b1;
        weights_taken_q[weigh_bank_q] <= 1'b1;
        weigh_bank_q                  <= !weigh_bank_q;
      end
      if (weigh_q[2] && wlast_q[2]) weights_full_q[wbank_q[2]] <= 1'b1;
      if (mac_position_ends && state_q == StMix) begin
        weights_full_q[weight_bank_q]  <= 1'b0;
        weights_taken_q[weight_bank_q] <= 1'b0;
        weight_bank_q                  <= !weight_bank_q;
      end
    end
    wslot_q[0]     <= slot_q[SlotBits-1:0];
    wlane_q[0]     <= lane_q;
    wchunk_q[0]    <= chunk_q;
    wtoken_q[0]    <= token_q;
    wseen_q[0]     <= 32'(weigh_position_q) <= position_i + 32'(token_q);
    wfirst_q[0]    <= weigh_position_q == '0;
    wlast_q[0]     <= last_slot;
    wbank_q[0]     <= weigh_bank_q;
    wexponent_q[0] <= signed'(weigh_exponents[15:8]);
    for (int unsigned k = 1; k < 4; k++) begin
      wslot_q[k]     <= wslot_q[k-1];
      wlane_q[k]     <= wlane_q[k-1];
      wchunk_q[k]    <= wchunk_q[k-1];
      wtoken_q[k]    <= wtoken_q[k-1];
      wseen_q[k]     <= wseen_q[k-1];
      wfirst_q[k]    <= wfirst_q[k-1];
      wlast_q[k]     <= wlast_q[k-1];
      wbank_q[k]     <= wbank_q[k-1];
      wexponent_q[k] <= wexponent_q[k-1];
    end
    whole2_q <= distance >> score_fraction_i[3:0];
    index2_q <= 8'((distance & ((17'd1 << score_fraction_i[3:0]) - 17'd1))
                   << (4'd8 - score_fraction_i[3:0]));
    p3_q     <= p3;
    if (weigh_q[2]) total[wslot_q[2]] <= total_before + 32'(p3_q);
  end

  // V waits for its position's weights; K for the walk over the position before it.
  assign mac_hold = state_q == StMix ? !weights_full_q[weight_bank_q]
                                     : last_word && mac_chunk_q == '0 && score_waits_q;

  // --- Out: reciprocal, then the slot's dimensions ---

  logic               divider_idle, divider_start;
  logic [15:0]        mantissa;
  logic signed [7:0]  divider_exponent;
  assign divider_start = state_q == StDivide;
  reciprocal u_reciprocal (
      .clk_i,
      .rst_i,
      .start_i   (divider_start),
      .root_i    (1'b0),
      .x_i       ({30'd0, total[slot_q[SlotBits-1:0]]}),
      .idle_o    (divider_idle),
      .mantissa_o(mantissa),
      .exponent_o(divider_exponent)
  );

  logic [DWordBits+2:0] column_q;
  logic                 out_advance, out, last_column;
  logic [2:0]           out_q;
  logic [319:0]         mixed_word;
  logic signed [39:0]   mixed1_q;
  logic signed [56:0]   product2_q;
  logic signed [31:0]   v3_q;
  logic signed [11:0]   out_shift_q;
  logic [TokenBits-1:0] out_token1_q, out_token2_q, out_token3_q;
  assign out_advance = !valid_o || ready_i;
  assign out         = state_q == StOut && out_advance;
  assign last_column = 16'(column_q) == head_dim_i - 16'd1;
  assign out_word    = {chunk_q, column_q[DWordBits+2:3]};
  assign mixed_word  = lane_mixed[320*lane_q +: 320];
  always_ff @(posedge clk_i) begin
    if (rst_i) out_q <= '0;
    else if (out_advance) out_q <= {out_q[1:0], out};
    if (state_q == StWaitDivide) begin
      out_shift_q <= -(12'(divider_exponent) + 12'(v_largest_q[token_q])) - 12'(fraction_i);
    end
    if (out_advance) begin
      mixed1_q     <= signed'(mixed_word[40*column_q[2:0] +: 40]);
      out_token1_q <= token_q;
      product2_q   <= 57'(mixed1_q) * 57'(signed'({1'b0, mantissa}));
      out_token2_q <= out_token1_q;
      v3_q         <= sluice_pkg::round_shift_sat32(64'(product2_q), out_shift_q);
      out_token3_q <= out_token2_q;
    end
  end
  assign valid_o    = out_q[2];
  assign v_o        = v3_q;
  assign token_o    = out_token3_q;
  assign exponent_o = -(ExpBits'(fraction_i));

  // --- Control ---

  logic                run_ready_q, more_fit;  // the run's slots are counted
  logic [LaneBits-1:0] run_lane_q;

  assign mix_starts    = !score_waits_q && !finish && !finish1_q && !finish2_q &&
                         finish_delay_q == '0;
  assign request_start = state_q == StRun && run_ready_q && run_slots_q != '0;
  assign walk_reset    = state_q == StRun || state_q == StExponents ||
                         (state_q == StScoresEnd && mix_starts) || state_q == StMixEnd;
  assign walk_step     = finish || weigh || (state_q == StLoad && load_last_word) ||
                         state_q == StNextSlot;
  assign too_long_o    = state_q == StRun && run_ready_q && run_slots_q == '0;

  // How many slots fit: counted up, a slot a cycle.
  assign more_fit = run_slots_q < slots_left_q && run_slots_q < (SlotBits + 1)'(MaxSlots) &&
                    32'(run_scores_q) + 32'(positions) <= 32'(Scores);

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q <= StIdle;
    end else begin
      unique case (state_q)
        StIdle:
          if (start_i) begin
            state_q      <= StRun;
            kv_head_q    <= 16'd0;
            head_base_q  <= layer_base_i;
            low_base_q   <= low_base_i;
            load_base_q  <= '0;
            slots_left_q <= slots;
            run_token_q  <= '0;
            run_head_q   <= 16'd0;
            run_slots_q  <= '0;
            run_scores_q <= '0;
            last_chunk_q <= '0;
            run_lane_q   <= '0;
            run_ready_q  <= 1'b0;
          end
        StRun:
          if (!run_ready_q) begin
            if (more_fit) begin
              run_slots_q  <= run_slots_q + 1'b1;
              run_scores_q <= run_scores_q + (ScoreBits + 1)'(positions);
              if (run_slots_q != '0) begin
                run_lane_q <= run_lane_q == LaneBits'(Lanes - 1) ? '0 : run_lane_q + 1'b1;
                if (run_lane_q == LaneBits'(Lanes - 1)) last_chunk_q <= last_chunk_q + 1'b1;
              end
            end else begin
              run_ready_q <= 1'b1;
            end
          end else begin
            state_q <= run_slots_q == '0 ? StIdle : StLoad;
          end
        StLoad: if (load_last_word && last_slot) state_q <= StExponents;
        StExponents: if (exponent_step && last_position) state_q <= StScores;
        StScores: if (mac_ends) state_q <= StScoresEnd;
        StScoresEnd: if (mix_starts) state_q <= StMix;
        StMix: if (mac_ends) state_q <= StMixEnd;
        StMixEnd: if (mac_q == '0) state_q <= StDivide;
        StDivide: begin
          column_q <= '0;
          state_q  <= StWaitDivide;
        end
        StWaitDivide: if (divider_idle) state_q <= StOut;
        StOut:
          if (out) begin
            column_q <= column_q + 1'b1;
            if (last_column) state_q <= StOutEnd;
          end
        StOutEnd: if (out_advance && !out_q[0] && !out_q[1]) state_q <= StNextSlot;
        StNextSlot: begin
          if (!last_slot) state_q <= StDivide;
          else if (slots_left_q != run_slots_q) begin
            // Another run over the same KV head.
            slots_left_q <= slots_left_q - run_slots_q;
            run_token_q  <= head_q == ratio_i - 16'd1 ? token_q + 1'b1 : token_q;
            run_head_q   <= head_q == ratio_i - 16'd1 ? 16'd0 : head_q + 16'd1;
            state_q      <= StRun;
          end else if (kv_head_q != kv_heads_i - 16'd1) begin
            kv_head_q    <= kv_head_q + 16'd1;
            head_base_q  <= head_base_q + head_stride_i;
            if (wide) low_base_q <= low_base_q + plane_bytes_i;
            load_base_q  <= load_base_q + QWordBits'(32'(ratio_i) * 32'(d4));
            slots_left_q <= slots;
            run_token_q  <= '0;
            run_head_q   <= 16'd0;
            state_q      <= StRun;
          end else begin
            state_q <= StIdle;
          end
          run_slots_q  <= last_slot ? '0 : run_slots_q;
          run_scores_q <= '0;
          run_ready_q  <= 1'b0;
          if (last_slot) begin
            last_chunk_q <= '0;
            run_lane_q   <= '0;
          end
        end
        default: state_q <= StIdle;
      endcase
    end
  end
  assign idle_o = state_q == StIdle && out_q == '0;
endmodule
