// The accelerator without its registers: runs one Program over a block of tokens. Between start_i and
// done_o it needs nothing of the host: it reads program, weights, tables and KV cache from memory,
// writes the cache, and leaves the candidates of the wanted tokens in memory.
//
// Memory ports: 0 and 2 read weights, 1 reads and writes the KV cache, 3 reads program and tables
// and writes results. Weights, tables and program are read ahead of the execution; the instructions
// are executed one after the other, each until all its results stand.
module sluice_core #(
    parameter int unsigned Tokens      = 1,
    parameter int unsigned MaxHidden   = 1024,
    parameter int unsigned MaxWords    = 1024,   // words of 8: hidden + widest activation
    parameter int unsigned MaxGroups   = 256,    // the same in groups of 32
    parameter int unsigned MaxHeadDim  = 128,
    parameter int unsigned MaxHeads    = 64,
    parameter int unsigned MaxQWords   = 512,
    parameter int unsigned MaxSlots    = 8,
    parameter int unsigned Lanes       = 7,
    parameter int unsigned MaxContext  = 2048,
    parameter int unsigned Scores      = 16384,
    parameter int unsigned Most        = 128,
    parameter int unsigned WeightWords = 8192,   // FIFO of a weight port
    localparam int unsigned Ports      = 2,
    localparam int unsigned Masters    = 4,
    localparam int unsigned TokenBits  = Tokens > 1 ? $clog2(Tokens) : 1,
    localparam int unsigned WordBits   = $clog2(MaxWords),
    localparam int unsigned GroupBits  = $clog2(MaxGroups),
    localparam int unsigned HiddenBits = $clog2(MaxHidden),
    localparam int unsigned DimBits    = $clog2(MaxHeadDim),
    localparam int unsigned IndexBits  = $clog2(Most),
    localparam int unsigned ExpBits    = sluice_pkg::ExponentBits
) (
    input  logic                  clk_i,
    input  logic                  rst_i,

    // Stable from start_i to done_o. Addresses in bytes; bases multiples of 128.
    input  logic                  start_i,
    input  logic [31:0]           program_address_i,
    input  logic [15:0]           instructions_i,
    input  logic [31:0]           pack_base_i,
    input  logic [31:0]           kv_base_i,
    input  logic [31:0]           kv_low_base_i,
    input  logic [31:0]           context_i,       // positions that the cache has room for
    input  logic [31:0]           result_base_i,
    input  logic [31:0]           result_stride_i,
    input  logic [32*Tokens-1:0]  token_ids_i,
    input  logic [7:0]            n_tokens_i,
    input  logic [7:0]            n_wanted_i,      // the last of them whose candidates are wanted
    input  logic [31:0]           position_i,
    output logic                  done_o,          // pulse
    output logic                  busy_o,
    output logic [3:0]            bus_error_o,     // sticky to the next start, by port
    output logic                  too_long_o,      // the same: the scores do not fit

    output logic [15:0]           retired_o,       // instructions that are done
    output logic                  retire_o,        // pulse

    output logic [Masters-1:0]    arvalid_o,
    input  logic [Masters-1:0]    arready_i,
    output logic [32*Masters-1:0] araddr_o,
    output logic [4*Masters-1:0]  arlen_o,
    output logic [Masters-1:0]    arid_o,
    input  logic [Masters-1:0]    rvalid_i,
    output logic [Masters-1:0]    rready_o,
    input  logic [64*Masters-1:0] rdata_i,
    input  logic [2*Masters-1:0]  rresp_i,
    input  logic [Masters-1:0]    rlast_i,
    input  logic [Masters-1:0]    rid_i,
    output logic [Masters-1:0]    awvalid_o,
    input  logic [Masters-1:0]    awready_i,
    output logic [32*Masters-1:0] awaddr_o,
    output logic [4*Masters-1:0]  awlen_o,
    output logic [Masters-1:0]    wvalid_o,
    input  logic [Masters-1:0]    wready_i,
    output logic [64*Masters-1:0] wdata_o,
    output logic [8*Masters-1:0]  wstrb_o,
    output logic [Masters-1:0]    wlast_o,
    input  logic [Masters-1:0]    bvalid_i,
    output logic [Masters-1:0]    bready_o,
    input  logic [2*Masters-1:0]  bresp_i
);
  typedef enum logic [3:0] {
    SqIdle, SqNext, SqDecode, SqModel, SqStart, SqSettle, SqRun, SqPad, SqPadSettle, SqPadRun,
    SqRetire, SqResult, SqResultSettle, SqResultRun
  } state_e;
  state_e state_q;

  logic [TokenBits-1:0] last_token, first_wanted;
  assign last_token   = TokenBits'(n_tokens_i - 8'd1);
  assign first_wanted = TokenBits'(n_tokens_i - n_wanted_i);

  // --- Program ---

  logic         program_valid, program_ready;
  logic [63:0]  program_data;
  logic [511:0] fetched;
  logic [1:0]   weight_push, weight_room;
  logic         table_push, table_room, execute_push, execute_room;
  logic         execute_valid, execute_ready;
  logic [511:0] execute_word;
  sluice_pkg::instruction_t i_q;

  program_fetch #(
      .Ports(Ports)
  ) u_program_fetch (
      .clk_i,
      .rst_i,
      .start_i,
      .skip_head_i    (n_wanted_i == 8'd0),
      .valid_i        (program_valid),
      .ready_o        (program_ready),
      .data_i         (program_data),
      .instruction_o  (fetched),
      .weight_valid_o (weight_push),
      .weight_ready_i (weight_room),
      .table_valid_o  (table_push),
      .table_ready_i  (table_room),
      .execute_valid_o(execute_push),
      .execute_ready_i(execute_room)
  );
  logic [2:0] unused_execute_level;
  stream_fifo #(
      .Width(512),
      .Depth(4)
  ) u_execute_queue (
      .clk_i,
      .rst_i,
      .valid_i(execute_push),
      .ready_o(execute_room),
      .data_i (fetched),
      .valid_o(execute_valid),
      .ready_i(execute_ready),
      .data_o (execute_word),
      .level_o(unused_execute_level)
  );

  // --- Weight streams ---

  logic [Ports-1:0]    weight_valid, weight_ready;
  logic [64*Ports-1:0] weight_data;
  logic [Ports-1:0]    weight_error;
  for (genvar p = 0; p < Ports; p++) begin : gen_weights
    localparam int unsigned Master = 2 * p;
    logic         queue_valid, queue_ready, request_valid, request_ready, unused_idle;
    logic [511:0] queue_word;
    logic [31:0]  request_address;
    logic [23:0]  request_words;
    logic [2:0]   unused_level;
    stream_fifo #(
        .Width(512),
        .Depth(4)
    ) u_queue (
        .clk_i,
        .rst_i,
        .valid_i(weight_push[p]),
        .ready_o(weight_room[p]),
        .data_i (fetched),
        .valid_o(queue_valid),
        .ready_i(queue_ready),
        .data_o (queue_word),
        .level_o(unused_level)
    );
    weight_fetch #(
        .Port  (p),
        .Ports (Ports),
        .Tokens(Tokens)
    ) u_fetch (
        .clk_i,
        .rst_i,
        .pack_base_i,
        .token_ids_i,
        .n_tokens_i,
        .valid_i          (queue_valid),
        .ready_o          (queue_ready),
        .instruction_i    (queue_word),
        .request_valid_o  (request_valid),
        .request_ready_i  (request_ready),
        .request_address_o(request_address),
        .request_words_o  (request_words)
    );
    axi_reader #(
        .FifoWords(WeightWords)
    ) u_reader (
        .clk_i,
        .rst_i,
        .request_valid_i  (request_valid),
        .request_ready_o  (request_ready),
        .request_address_i(request_address),
        .request_words_i  (request_words),
        .valid_o          (weight_valid[p]),
        .ready_i          (weight_ready[p]),
        .data_o           (weight_data[64*p +: 64]),
        .idle_o           (unused_idle),
        .error_o          (weight_error[p]),
        .arvalid_o        (arvalid_o[Master]),
        .arready_i        (arready_i[Master]),
        .araddr_o         (araddr_o[32*Master +: 32]),
        .arlen_o          (arlen_o[4*Master +: 4]),
        .rvalid_i         (rvalid_i[Master]),
        .rready_o         (rready_o[Master]),
        .rdata_i          (rdata_i[64*Master +: 64]),
        .rresp_i          (rresp_i[2*Master +: 2]),
        .rlast_i          (rlast_i[Master])
    );
    assign arid_o[Master]              = 1'b0;
    assign awvalid_o[Master]           = 1'b0;
    assign awaddr_o[32*Master +: 32]   = 32'd0;
    assign awlen_o[4*Master +: 4]      = 4'd0;
    assign wvalid_o[Master]            = 1'b0;
    assign wdata_o[64*Master +: 64]    = 64'd0;
    assign wstrb_o[8*Master +: 8]      = 8'd0;
    assign wlast_o[Master]             = 1'b0;
    assign bready_o[Master]            = 1'b1;
  end

  // --- Tables and program share port 3 ---

  logic         table_queue_valid, table_queue_ready;
  logic [511:0] table_queue_word;
  logic         table_request_valid, table_request_ready;
  logic [31:0]  table_request_address;
  logic [23:0]  table_request_words;
  logic         table_valid, table_ready;
  logic [63:0]  table_data;
  logic [1:0]   small_error;
  logic [2:0]   unused_table_level;
  logic [1:0]   unused_small_idle;
  stream_fifo #(
      .Width(512),
      .Depth(4)
  ) u_table_queue (
      .clk_i,
      .rst_i,
      .valid_i(table_push),
      .ready_o(table_room),
      .data_i (fetched),
      .valid_o(table_queue_valid),
      .ready_i(table_queue_ready),
      .data_o (table_queue_word),
      .level_o(unused_table_level)
  );
  table_fetch #(
      .Tokens(Tokens)
  ) u_table_fetch (
      .clk_i,
      .rst_i,
      .pack_base_i,
      .token_ids_i,
      .n_tokens_i,
      .position_i,
      .valid_i          (table_queue_valid),
      .ready_o          (table_queue_ready),
      .instruction_i    (table_queue_word),
      .request_valid_o  (table_request_valid),
      .request_ready_i  (table_request_ready),
      .request_address_o(table_request_address),
      .request_words_o  (table_request_words)
  );

  // Reader 0: tables, 1: program. Tables first: who waits for them stands still.
  logic [1:0]  small_arvalid, small_arready, small_rready;
  logic [63:0] small_araddr;
  logic [7:0]  small_arlen;
  axi_reader #(
      .FifoWords(512)
  ) u_table_reader (
      .clk_i,
      .rst_i,
      .request_valid_i  (table_request_valid),
      .request_ready_o  (table_request_ready),
      .request_address_i(table_request_address),
      .request_words_i  (table_request_words),
      .valid_o          (table_valid),
      .ready_i          (table_ready),
      .data_o           (table_data),
      .idle_o           (unused_small_idle[0]),
      .error_o          (small_error[0]),
      .arvalid_o        (small_arvalid[0]),
      .arready_i        (small_arready[0]),
      .araddr_o         (small_araddr[31:0]),
      .arlen_o          (small_arlen[3:0]),
      .rvalid_i         (rvalid_i[3] && !rid_i[3]),
      .rready_o         (small_rready[0]),
      .rdata_i          (rdata_i[64*3 +: 64]),
      .rresp_i          (rresp_i[2*3 +: 2]),
      .rlast_i          (rlast_i[3])
  );
  logic unused_program_ready;
  axi_reader #(
      .FifoWords(64)
  ) u_program_reader (
      .clk_i,
      .rst_i,
      .request_valid_i  (start_i),
      .request_ready_o  (unused_program_ready),
      .request_address_i(program_address_i),
      .request_words_i  ({5'd0, instructions_i, 3'd0}),
      .valid_o          (program_valid),
      .ready_i          (program_ready),
      .data_o           (program_data),
      .idle_o           (unused_small_idle[1]),
      .error_o          (small_error[1]),
      .arvalid_o        (small_arvalid[1]),
      .arready_i        (small_arready[1]),
      .araddr_o         (small_araddr[63:32]),
      .arlen_o          (small_arlen[7:4]),
      .rvalid_i         (rvalid_i[3] && rid_i[3]),
      .rready_o         (small_rready[1]),
      .rdata_i          (rdata_i[64*3 +: 64]),
      .rresp_i          (rresp_i[2*3 +: 2]),
      .rlast_i          (rlast_i[3])
  );
  // Once offered, an address stays: the choice is kept until it is taken.
  logic choice_q, choice, chosen_q;
  assign choice = chosen_q ? choice_q : !small_arvalid[0];
  always_ff @(posedge clk_i) begin
    if (rst_i) chosen_q <= 1'b0;
    else chosen_q <= arvalid_o[3] && !arready_i[3];
    choice_q <= choice;
  end
  assign arvalid_o[3]          = small_arvalid[choice];
  assign araddr_o[32*3 +: 32]  = choice ? small_araddr[63:32] : small_araddr[31:0];
  assign arlen_o[4*3 +: 4]     = choice ? small_arlen[7:4] : small_arlen[3:0];
  assign arid_o[3]             = choice;
  assign small_arready         = {arready_i[3] && choice, arready_i[3] && !choice};
  assign rready_o[3]           = rid_i[3] ? small_rready[1] : small_rready[0];

  // --- Decoding ---

  logic        is_model, is_embed, is_norm, is_matvec, is_attend;
  logic        to_residual, to_heads, to_gate, to_candidates, group64, planes2, codebook;
  logic [31:0] tiles;
  logic [GroupBits-1:0] groups;
  logic        head_norm;
  assign is_model      = i_q.op == sluice_pkg::OpModel;
  assign is_embed      = i_q.op == sluice_pkg::OpEmbed;
  assign is_norm       = i_q.op == sluice_pkg::OpNorm;
  assign is_matvec     = i_q.op == sluice_pkg::OpMatvec;
  assign is_attend     = i_q.op == sluice_pkg::OpAttend;
  assign to_residual   = is_matvec && i_q.epilogue == sluice_pkg::EpAddResidual;
  assign to_heads      = is_matvec && (i_q.epilogue == sluice_pkg::EpQuery ||
                                       i_q.epilogue == sluice_pkg::EpKey ||
                                       i_q.epilogue == sluice_pkg::EpValue);
  assign to_gate       = is_matvec && i_q.epilogue == sluice_pkg::EpSiluGate;
  assign to_candidates = is_matvec && i_q.epilogue == sluice_pkg::EpCandidates;
  assign group64       = i_q.group == 8'd64;
  assign planes2       = i_q.planes == 8'd2;
  assign codebook      = !planes2 && i_q.codebook == 8'd0;
  assign tiles         = sluice_pkg::tile_count(i_q.epilogue, i_q.rows, i_q.valid_rows);
  assign groups        = group64 ? GroupBits'(i_q.cols >> 6) : GroupBits'(i_q.cols >> 5);
  assign head_norm     = sluice_pkg::has_head_norm(i_q.flags, i_q.epilogue);

  // Of the model. Vector B begins behind A, which is as wide as the residual.
  logic [WordBits-1:0]  b_word_q;
  logic [GroupBits-1:0] b_group_q;
  logic [15:0]          kv_heads_q, model_dim_q;
  logic [31:0]          plane_bytes_q, head_stride_q, layer_stride_q, layer_base_q;
  logic [31:0]          low_layer_q, low_next_q;
  logic [6:0]           wide_heads;
  always_comb begin
    wide_heads = 7'd0;
    for (int unsigned h = 0; h < 64; h++) begin
      if (i_q.imm[h] && 16'(h) < kv_heads_q) wide_heads = wide_heads + 7'd1;
    end
  end

  logic source_b, target_b /*verilator public_flat_rd*/;
  assign source_b = i_q.source == 8'd1;
  assign target_b = i_q.target == 8'd1;

  // Zeros behind the last value of a vector.
  logic [31:0] pad, pad_q, gate_cols;
  assign gate_cols = group64 ? ((i_q.rows >> 1) + 32'd63) & ~32'd63
                             : ((i_q.rows >> 1) + 32'd31) & ~32'd31;
  assign pad = to_gate ? gate_cols - (i_q.rows >> 1)
             : is_attend ? i_q.cols - 32'(i_q.heads) * 32'(i_q.head_dim) : 32'd0;
  logic [TokenBits-1:0] pad_token_q;
  logic                 pad_valid;
  assign pad_valid = state_q == SqPad;

  logic start;
  assign start = state_q == SqStart;

  // --- Activations ---

  logic                      quantise_valid, quantise_ready, quantise_idle;
  logic signed [31:0]        quantise_v;
  logic [TokenBits-1:0]      quantise_token;
  logic signed [ExpBits-1:0] quantise_exponent;
  logic                      x_write /*verilator public_flat_rd*/, e_write /*verilator public_flat_rd*/;
  logic [TokenBits-1:0]      x_token /*verilator public_flat_rd*/, e_token /*verilator public_flat_rd*/;
  logic [WordBits-1:0]       x_word /*verilator public_flat_rd*/;
  logic [63:0]               x_data /*verilator public_flat_rd*/;
  logic [GroupBits-1:0]      e_group /*verilator public_flat_rd*/;
  logic signed [ExpBits-1:0] e_data /*verilator public_flat_rd*/;
  logic [ExpBits*Tokens-1:0] largest_a, largest_b, largest;
  assign largest = source_b ? largest_b : largest_a;
  block_quantise #(
      .Tokens   (Tokens),
      .MaxWords (MaxWords),
      .MaxGroups(MaxGroups)
  ) u_quantise (
      .clk_i,
      .rst_i,
      .start_i    (start && (is_norm || is_attend || to_gate)),
      .target_i   (target_b),
      .x_base_i   (target_b ? b_word_q : '0),
      .e_base_i   (target_b ? b_group_q : '0),
      .group64_i  (group64),
      .idle_o     (quantise_idle),
      .valid_i    (quantise_valid),
      .ready_o    (quantise_ready),
      .v_i        (quantise_v),
      .token_i    (quantise_token),
      .exponent_i (quantise_exponent),
      .x_write_o  (x_write),
      .x_token_o  (x_token),
      .x_word_o   (x_word),
      .x_data_o   (x_data),
      .e_write_o  (e_write),
      .e_token_o  (e_token),
      .e_group_o  (e_group),
      .e_data_o   (e_data),
      .largest_a_o(largest_a),
      .largest_b_o(largest_b)
  );

  // --- Matrix times vector ---

  logic [Ports-1:0]     port_idle, port_ready, tile_valid, tile_release;
  logic [TokenBits-1:0] acc_token;
  logic [3:0]           acc_row;
  logic [32*Ports-1:0]  acc;
  for (genvar p = 0; p < Ports; p++) begin : gen_ports
    matvec_port #(
        .Tokens   (Tokens),
        .MaxWords (MaxWords),
        .MaxGroups(MaxGroups)
    ) u_port (
        .clk_i,
        .rst_i,
        .start_i       (start && is_matvec),
        .tiles_i       ((tiles + 32'(Ports - 1 - p)) / Ports),
        .groups_i      (groups),
        .group64_i     (group64),
        .planes2_i     (planes2 && !i_q.flags[sluice_pkg::FlagScreened]),
        .high_only_i   (planes2 && i_q.flags[sluice_pkg::FlagScreened]),
        .codebook_i    (codebook),
        .x_base_i      (source_b ? b_word_q : '0),
        .e_base_i      (source_b ? b_group_q : '0),
        .largest_i     (largest),
        .idle_o        (port_idle[p]),
        .valid_i       (weight_valid[p] && !is_embed),
        .ready_o       (port_ready[p]),
        .data_i        (weight_data[64*p +: 64]),
        .x_write_i     (x_write),
        .x_token_i     (x_token),
        .x_word_i      (x_word),
        .x_data_i      (x_data),
        .e_write_i     (e_write),
        .e_token_i     (e_token),
        .e_group_i     (e_group),
        .e_data_i      (e_data),
        .tile_valid_o  (tile_valid[p]),
        .tile_release_i(tile_release[p]),
        .acc_token_i   (acc_token),
        .acc_row_i     (acc_row),
        .acc_o         (acc[32*p +: 32])
    );
  end

  logic                 embed_idle, embed_ready, embed_table_ready, embed_valid, embed_take;
  logic signed [31:0]   embed_acc;
  logic signed [15:0]   embed_mantissa;
  logic signed [7:0]    embed_exponent;
  logic [TokenBits-1:0] embed_token;
  embed_row #(
      .Tokens   (Tokens),
      .MaxGroups(MaxGroups)
  ) u_embed (
      .clk_i,
      .rst_i,
      .start_i      (start && is_embed),
      .token_ids_i,
      .last_token_i (last_token),
      .groups_i     (groups),
      .group64_i    (group64),
      .planes2_i    (planes2),
      .codebook_i   (codebook),
      .idle_o       (embed_idle),
      .valid_i      (weight_valid[0] && is_embed),
      .ready_o      (embed_ready),
      .data_i       (weight_data[63:0]),
      .table_valid_i(table_valid),
      .table_ready_o(embed_table_ready),
      .table_data_i (table_data),
      .valid_o      (embed_valid),
      .ready_i      (embed_take),
      .acc_o        (embed_acc),
      .mantissa_o   (embed_mantissa),
      .exponent_o   (embed_exponent),
      .token_o      (embed_token)
  );
  assign weight_ready = is_embed ? {1'b0, embed_ready} : port_ready;

  // --- Results of rows ---

  logic                 y_valid, y_ready, scale_idle, scale_table_ready, heads_loading;
  logic signed [31:0]   y, y_mean;
  logic [TokenBits-1:0] y_token;
  logic [31:0]          y_row;
  row_scale #(
      .Ports (Ports),
      .Tokens(Tokens)
  ) u_scale (
      .clk_i,
      .rst_i,
      .start_i         (start && is_matvec),
      .tiles_i         (tiles),
      .has_bias_i      (i_q.bias != 32'd0 && !head_norm),
      .has_means_i     (i_q.epilogue == sluice_pkg::EpKey),
      .first_token_i   (to_candidates ? first_wanted : '0),
      .last_token_i    (last_token),
      .fraction_i      (i_q.fraction),
      .largest_i       (largest),
      .idle_o          (scale_idle),
      .table_valid_i   (table_valid && !heads_loading),
      .table_ready_o   (scale_table_ready),
      .table_data_i    (table_data),
      .tile_valid_i    (tile_valid),
      .tile_release_o  (tile_release),
      .acc_token_o     (acc_token),
      .acc_row_o       (acc_row),
      .acc_i           (acc),
      .embed_valid_i   (embed_valid),
      .embed_ready_o   (embed_take),
      .embed_acc_i     (embed_acc),
      .embed_mantissa_i(embed_mantissa),
      .embed_exponent_i(embed_exponent),
      .embed_token_i   (embed_token),
      .valid_o         (y_valid),
      .ready_i         (y_ready),
      .y_o             (y),
      .mean_o          (y_mean),
      .token_o         (y_token),
      .row_o           (y_row)
  );

  // --- Residual and norm ---

  logic                  residual_idle, norm_read, norm_idle, norm_valid, norm_table_ready;
  logic [TokenBits-1:0]  norm_read_token, norm_token;
  logic [HiddenBits-1:0] norm_read_row, embed_column_q;
  logic signed [31:0]    residual_value, norm_v;
  logic signed [ExpBits-1:0] norm_exponent;
  residual #(
      .Tokens   (Tokens),
      .MaxHidden(MaxHidden)
  ) u_residual (
      .clk_i,
      .rst_i,
      .valid_i     (y_valid && (is_embed || to_residual)),
      .add_i       (to_residual),
      .y_i         (y),
      .token_i     (y_token),
      .row_i       (is_embed ? embed_column_q : y_row[HiddenBits-1:0]),
      .idle_o      (residual_idle),
      .read_i      (norm_read),
      .read_token_i(norm_read_token),
      .read_row_i  (norm_read_row),
      .value_o     (residual_value)
  );
  always_ff @(posedge clk_i) begin
    if (start) embed_column_q <= '0;
    else if (is_embed && y_valid) begin
      embed_column_q <= 32'(embed_column_q) == i_q.cols - 32'd1 ? '0 : embed_column_q + 1'b1;
    end
  end

  logic              root_start, norm_root_start, heads_root_start, root_idle;
  logic [61:0]       norm_root_x, heads_root_x;
  logic [15:0]       root_mantissa;
  logic signed [7:0] root_exponent;
  assign root_start = norm_root_start || heads_root_start;
  reciprocal u_root (
      .clk_i,
      .rst_i,
      .start_i   (root_start),
      .root_i    (1'b1),
      .x_i       (is_norm ? norm_root_x : heads_root_x),
      .idle_o    (root_idle),
      .mantissa_o(root_mantissa),
      .exponent_o(root_exponent)
  );
  rms_norm #(
      .Tokens   (Tokens),
      .MaxHidden(MaxHidden)
  ) u_norm (
      .clk_i,
      .rst_i,
      .start_i        (start && is_norm),
      .cols_i         (i_q.cols[HiddenBits:0]),
      .group64_i      (group64),
      .last_token_i   (last_token),
      .epsilon_i      (i_q.imm),
      .gain_fraction_i(i_q.fraction2),
      .idle_o         (norm_idle),
      .table_valid_i  (table_valid),
      .table_ready_o  (norm_table_ready),
      .table_data_i   (table_data),
      .read_o         (norm_read),
      .read_token_o   (norm_read_token),
      .read_row_o     (norm_read_row),
      .value_i        (residual_value),
      .root_start_o   (norm_root_start),
      .root_x_o       (norm_root_x),
      .root_idle_i    (root_idle),
      .root_mantissa_i(root_mantissa),
      .root_exponent_i(root_exponent),
      .valid_o        (norm_valid),
      .ready_i        (quantise_ready),
      .v_o            (norm_v),
      .token_o        (norm_token),
      .exponent_o     (norm_exponent)
  );

  // --- Gate ---

  logic                 gate_ready, gate_valid, gate_idle;
  logic signed [31:0]   gate_h;
  logic [TokenBits-1:0] gate_token;
  silu_gate #(
      .Tokens(Tokens)
  ) u_gate (
      .clk_i,
      .rst_i,
      .valid_i(y_valid && to_gate),
      .ready_o(gate_ready),
      .y_i    (y),
      .up_i   (y_row[0]),
      .token_i(y_token),
      .valid_o(gate_valid),
      .ready_i(quantise_ready),
      .h_o    (gate_h),
      .token_o(gate_token),
      .idle_o (gate_idle)
  );

  // --- Heads, KV, attention ---

  logic                      heads_ready, heads_idle, heads_table_ready;
  logic                      head_valid /*verilator public_flat_rd*/, head_ready /*verilator public_flat_rd*/, head_wide /*verilator public_flat_rd*/, head_last /*verilator public_flat_rd*/;
  logic [63:0]               head_data /*verilator public_flat_rd*/, head_low_data /*verilator public_flat_rd*/;
  logic [15:0]               head_index /*verilator public_flat_rd*/;
  logic [TokenBits-1:0]      head_token /*verilator public_flat_rd*/;
  logic signed [ExpBits-1:0] head_exponent /*verilator public_flat_rd*/;
  logic                      rope_write;
  logic [TokenBits-1:0]      rope_token_q;
  logic [DimBits-3:0]        rope_word_q;
  logic                      is_query;
  assign is_query   = i_q.epilogue == sluice_pkg::EpQuery;
  assign rope_write = state_q == SqModel && table_valid;
  heads #(
      .Tokens    (Tokens),
      .MaxHeadDim(MaxHeadDim)
  ) u_heads (
      .clk_i,
      .rst_i,
      .start_i        (start && to_heads),
      .is_query_i     (is_query),
      .is_key_i       (i_q.epilogue == sluice_pkg::EpKey),
      .head_norm_i    (head_norm),
      .heads_i        (i_q.heads),
      .head_dim_i     (i_q.head_dim[DimBits:0]),
      .wide_i         (i_q.imm),
      .epsilon_i      (i_q.valid_rows),
      .fraction_i     (i_q.fraction),
      .gain_fraction_i(i_q.fraction2),
      .last_token_i   (last_token),
      .idle_o         (heads_idle),
      .rope_write_i   (rope_write),
      .rope_token_i   (rope_token_q),
      .rope_word_i    (rope_word_q),
      .rope_data_i    (table_data),
      .table_valid_i  (table_valid),
      .table_ready_o  (heads_table_ready),
      .table_data_i   (table_data),
      .loading_o      (heads_loading),
      .valid_i        (y_valid && to_heads),
      .ready_o        (heads_ready),
      .y_i            (y),
      .mean_i         (y_mean),
      .token_i        (y_token),
      .root_start_o   (heads_root_start),
      .root_x_o       (heads_root_x),
      .root_idle_i    (root_idle),
      .root_mantissa_i(root_mantissa),
      .root_exponent_i(root_exponent),
      .valid_o        (head_valid),
      .ready_i        (head_ready),
      .data_o         (head_data),
      .low_data_o     (head_low_data),
      .wide_o         (head_wide),
      .last_o         (head_last),
      .head_o         (head_index),
      .token_o        (head_token),
      .exponent_o     (head_exponent)
  );

  logic kv_write_ready, kv_write_idle, kv_write_error;
  assign head_ready = is_query || kv_write_ready;
  kv_write #(
      .Tokens    (Tokens),
      .MaxHeadDim(MaxHeadDim)
  ) u_kv_write (
      .clk_i,
      .rst_i,
      .start_i      (start && to_heads),
      .is_value_i   (i_q.epilogue == sluice_pkg::EpValue),
      .layer_base_i (layer_base_q),
      .head_stride_i(head_stride_q),
      .plane_bytes_i(plane_bytes_q),
      .low_base_i   (low_layer_q),
      .head_dim_i   (i_q.head_dim),
      .position_i,
      .idle_o       (kv_write_idle),
      .error_o      (kv_write_error),
      .valid_i      (head_valid && !is_query),
      .ready_o      (kv_write_ready),
      .data_i       (head_data),
      .low_data_i   (head_low_data),
      .wide_i       (head_wide),
      .last_i       (head_last),
      .token_i      (head_token),
      .last_token_i (last_token),
      .exponent_i   (head_exponent),
      .awvalid_o    (awvalid_o[1]),
      .awready_i    (awready_i[1]),
      .awaddr_o     (awaddr_o[32*1 +: 32]),
      .awlen_o      (awlen_o[4*1 +: 4]),
      .wvalid_o     (wvalid_o[1]),
      .wready_i     (wready_i[1]),
      .wdata_o      (wdata_o[64*1 +: 64]),
      .wstrb_o      (wstrb_o[8*1 +: 8]),
      .wlast_o      (wlast_o[1]),
      .bvalid_i     (bvalid_i[1]),
      .bready_o     (bready_o[1]),
      .bresp_i      (bresp_i[2*1 +: 2])
  );

  logic                      kv_request_valid, kv_request_ready, kv_valid, kv_ready;
  logic [31:0]               kv_request_address;
  logic [23:0]               kv_request_words;
  logic [63:0]               kv_data;
  logic                      kv_read_error, unused_kv_idle, attend_idle, attend_valid, too_long;
  logic signed [31:0]        attend_v;
  logic [TokenBits-1:0]      attend_token;
  logic signed [ExpBits-1:0] attend_exponent;
  attend #(
      .Tokens    (Tokens),
      .Lanes     (Lanes),
      .MaxSlots  (MaxSlots),
      .MaxHeads  (MaxHeads),
      .MaxHeadDim(MaxHeadDim),
      .MaxQWords (MaxQWords),
      .MaxContext(MaxContext),
      .Scores    (Scores)
  ) u_attend (
      .clk_i,
      .rst_i,
      .q_start_i        (start && to_heads && is_query),
      .q_valid_i        (head_valid && to_heads && is_query),
      .q_data_i         (head_data),
      .q_last_i         (head_last),
      .q_head_i         (head_index),
      .q_token_i        (head_token),
      .q_exponent_i     (head_exponent),
      .start_i          (start && is_attend),
      .kv_heads_i       (kv_heads_q),
      .ratio_i          (ratio_q),
      .head_dim_i       (i_q.head_dim),
      .wide_i           (i_q.imm),
      .last_token_i     (last_token),
      .position_i,
      .score_fraction_i (i_q.fraction2),
      .fraction_i       (i_q.fraction),
      .layer_base_i     (layer_base_q),
      .head_stride_i    (head_stride_q),
      .plane_bytes_i    (plane_bytes_q),
      .low_base_i       (low_layer_q),
      .idle_o           (attend_idle),
      .too_long_o       (too_long),
      .request_valid_o  (kv_request_valid),
      .request_ready_i  (kv_request_ready),
      .request_address_o(kv_request_address),
      .request_words_o  (kv_request_words),
      .kv_valid_i       (kv_valid),
      .kv_ready_o       (kv_ready),
      .kv_data_i        (kv_data),
      .valid_o          (attend_valid),
      .ready_i          (quantise_ready),
      .v_o              (attend_v),
      .token_o          (attend_token),
      .exponent_o       (attend_exponent)
  );
  axi_reader #(
      .FifoWords(512)
  ) u_kv_reader (
      .clk_i,
      .rst_i,
      .request_valid_i  (kv_request_valid),
      .request_ready_o  (kv_request_ready),
      .request_address_i(kv_request_address),
      .request_words_i  (kv_request_words),
      .valid_o          (kv_valid),
      .ready_i          (kv_ready),
      .data_o           (kv_data),
      .idle_o           (unused_kv_idle),
      .error_o          (kv_read_error),
      .arvalid_o        (arvalid_o[1]),
      .arready_i        (arready_i[1]),
      .araddr_o         (araddr_o[32*1 +: 32]),
      .arlen_o          (arlen_o[4*1 +: 4]),
      .rvalid_i         (rvalid_i[1]),
      .rready_o         (rready_o[1]),
      .rdata_i          (rdata_i[64*1 +: 64]),
      .rresp_i          (rresp_i[2*1 +: 2]),
      .rlast_i          (rlast_i[1])
  );
  assign arid_o[1] = 1'b0;

  // --- Candidates and results ---

  logic                 candidates_ready, candidates_idle;
  logic [TokenBits-1:0] read_token;
  logic [IndexBits-1:0] read_index;
  logic [63:0]          read_data;
  logic [IndexBits:0]   count_q;
  logic [WordBits:0]    head_words_q;
  logic [GroupBits:0]   head_groups_q;
  candidates #(
      .Tokens(Tokens),
      .Most  (Most)
  ) u_candidates (
      .clk_i,
      .rst_i,
      .start_i     (start && to_candidates),
      .count_i     (i_q.heads[IndexBits:0]),
      .valid_rows_i(i_q.valid_rows),
      .idle_o      (candidates_idle),
      .valid_i     (y_valid && to_candidates),
      .ready_o     (candidates_ready),
      .y_i         (y),
      .row_i       (y_row),
      .token_i     (y_token),
      .read_token_i(read_token),
      .read_index_i(read_index),
      .read_data_o (read_data)
  );
  logic result_idle, result_error;
  result_write #(
      .Tokens   (Tokens),
      .MaxWords (MaxWords),
      .MaxGroups(MaxGroups),
      .Most     (Most)
  ) u_result (
      .clk_i,
      .rst_i,
      .target_a_i   (!target_b),
      .x_write_i    (x_write),
      .x_token_i    (x_token),
      .x_word_i     (x_word),
      .x_data_i     (x_data),
      .e_write_i    (e_write),
      .e_token_i    (e_token),
      .e_group_i    (e_group),
      .e_data_i     (e_data),
      .start_i      (state_q == SqResult),
      .first_token_i(first_wanted),
      .last_token_i (last_token),
      .base_i       (result_base_i),
      .stride_i     (result_stride_i),
      .count_i      (count_q),
      .words_i      (head_words_q),
      .groups_i     (head_groups_q),
      .idle_o       (result_idle),
      .error_o      (result_error),
      .read_token_o (read_token),
      .read_index_o (read_index),
      .read_data_i  (read_data),
      .awvalid_o    (awvalid_o[3]),
      .awready_i    (awready_i[3]),
      .awaddr_o     (awaddr_o[32*3 +: 32]),
      .awlen_o      (awlen_o[4*3 +: 4]),
      .wvalid_o     (wvalid_o[3]),
      .wready_i     (wready_i[3]),
      .wdata_o      (wdata_o[64*3 +: 64]),
      .wstrb_o      (wstrb_o[8*3 +: 8]),
      .wlast_o      (wlast_o[3]),
      .bvalid_i     (bvalid_i[3]),
      .bready_o     (bready_o[3]),
      .bresp_i      (bresp_i[2*3 +: 2])
  );

  // --- Who takes rows, who brings values ---

  always_comb begin
    y_ready = 1'b1;
    if (to_gate) y_ready = gate_ready;
    else if (to_heads) y_ready = heads_ready;
    else if (to_candidates) y_ready = candidates_ready;

    quantise_valid    = norm_valid;
    quantise_v        = norm_v;
    quantise_token    = norm_token;
    quantise_exponent = norm_exponent;
    if (pad_valid) begin
      quantise_valid    = 1'b1;
      quantise_v        = 32'sd0;
      quantise_token    = pad_token_q;
      quantise_exponent = -(ExpBits'(i_q.fraction));
    end else if (is_attend) begin
      quantise_valid    = attend_valid;
      quantise_v        = attend_v;
      quantise_token    = attend_token;
      quantise_exponent = attend_exponent;
    end else if (to_gate) begin
      quantise_valid    = gate_valid;
      quantise_v        = gate_h;
      quantise_token    = gate_token;
      quantise_exponent = -(ExpBits'(i_q.fraction));
    end
  end

  assign table_ready = state_q == SqModel || embed_table_ready || norm_table_ready ||
                       heads_table_ready || (scale_table_ready && !heads_loading);

  // --- Sequence ---

  logic [15:0] ratio_q;
  logic        all_idle, rope_ends;
  assign all_idle = quantise_idle && port_idle == '1 && embed_idle && scale_idle && !y_valid &&
                    residual_idle && norm_idle && gate_idle && heads_idle && kv_write_idle &&
                    attend_idle && candidates_idle;
  assign rope_ends = rope_write && rope_word_q == (DimBits - 2)'((model_dim_q >> 2) - 16'd1);
  assign execute_ready = state_q == SqNext;

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q   <= SqIdle;
      retired_o <= 16'd0;
    end else begin
      unique case (state_q)
        SqIdle:
          if (start_i) begin
            state_q   <= SqNext;
            retired_o <= 16'd0;
          end
        SqNext: if (execute_valid) state_q <= SqDecode;
        SqDecode:
          if (is_model) state_q <= SqModel;
          else if (i_q.op == sluice_pkg::OpEnd) state_q <= n_wanted_i == 8'd0 ? SqIdle : SqResult;
          else state_q <= SqStart;
        SqModel: if (rope_ends && rope_token_q == last_token) state_q <= SqRetire;
        SqStart: state_q <= SqSettle;
        SqSettle: state_q <= SqRun;
        SqRun: if (all_idle) state_q <= pad != 32'd0 ? SqPad : SqRetire;
        SqPad:
          if (quantise_ready && pad_q == 32'd1 && pad_token_q == last_token) state_q <= SqPadSettle;
        SqPadSettle: state_q <= SqPadRun;
        SqPadRun: if (all_idle) state_q <= SqRetire;
        SqRetire: begin
          retired_o <= retired_o + 16'd1;
          state_q   <= SqNext;
        end
        SqResult: state_q <= SqResultSettle;
        SqResultSettle: state_q <= SqResultRun;
        SqResultRun: if (result_idle) state_q <= SqIdle;
        default: state_q <= SqIdle;
      endcase
    end

    if (start_i) low_next_q <= kv_low_base_i;
    if (state_q == SqNext && execute_valid) i_q <= execute_word;
    if (state_q == SqDecode) begin
      rope_token_q <= '0;
      rope_word_q  <= '0;
      pad_token_q  <= '0;
      pad_q        <= pad;
      layer_base_q <= kv_base_i + 32'(i_q.layer) * layer_stride_q;
      ratio_q      <= is_attend ? i_q.heads / kv_heads_q : ratio_q;
      if (is_model) begin
        b_word_q      <= WordBits'(i_q.rows >> 3);
        b_group_q     <= GroupBits'(i_q.rows >> 5);
        kv_heads_q    <= i_q.imm[47:32];
        model_dim_q   <= i_q.head_dim;
        plane_bytes_q <= context_i * 32'(i_q.head_dim);
      end
      if (to_candidates) begin
        count_q       <= i_q.heads[IndexBits:0];
        head_words_q  <= (WordBits + 1)'(i_q.cols >> 3);
        head_groups_q <= (GroupBits + 1)'(groups);
      end
      if (to_heads && i_q.epilogue == sluice_pkg::EpKey) begin
        low_layer_q <= low_next_q;
        low_next_q  <= low_next_q + 32'(wide_heads) * plane_bytes_q;
      end
    end
    if (state_q == SqModel) begin
      head_stride_q  <= (plane_bytes_q << 1) + (context_i << 1);
      layer_stride_q <= 32'(kv_heads_q) * head_stride_q;
      if (rope_write) begin
        rope_word_q <= rope_ends ? '0 : rope_word_q + 1'b1;
        if (rope_ends) rope_token_q <= rope_token_q + 1'b1;
      end
    end
    if (state_q == SqPad && quantise_ready) begin
      pad_q <= pad_q == 32'd1 ? pad : pad_q - 32'd1;
      if (pad_q == 32'd1) pad_token_q <= pad_token_q + 1'b1;
    end
  end
  assign retire_o = state_q == SqRetire;
  assign busy_o   = state_q != SqIdle;
  logic busy_before_q;
  always_ff @(posedge clk_i) busy_before_q <= busy_o && !rst_i;
  assign done_o = busy_before_q && !busy_o;

  always_ff @(posedge clk_i) begin
    if (rst_i || start_i) begin
      bus_error_o <= 4'd0;
      too_long_o  <= 1'b0;
    end else begin
      bus_error_o <= bus_error_o | {(small_error != 2'b00) || result_error, weight_error[1],
                                    kv_read_error || kv_write_error, weight_error[0]};
      if (too_long) too_long_o <= 1'b1;
    end
  end
endmodule
