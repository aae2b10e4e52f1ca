// The rows of finished tiles to results: y = sat32(rs(acc * mantissa, exponent - largest - fraction)),
// plus the bias. Takes the ports' tiles in turn, which is the matrix's order, and for each tile its
// row table (and bias, and means) from the table stream. Results leave token by token, 16 rows each,
// one a cycle, 5 cycles after they are read.
//
// For an embedding it scales what embed_row hands in, with the row's entry of the table.
// Bit-exact with Row in src/exec/ref.
module row_scale #(
    parameter int unsigned Ports  = 2,
    parameter int unsigned Tokens = 1,
    localparam int unsigned TokenBits = Tokens > 1 ? $clog2(Tokens) : 1,
    localparam int unsigned ExpBits   = sluice_pkg::ExponentBits
) (
    input  logic                      clk_i,
    input  logic                      rst_i,

    input  logic                      start_i,        // pulse while idle: a matrix
    input  logic [31:0]               tiles_i,        // of all ports, at least 1
    input  logic                      has_bias_i,
    input  logic                      has_means_i,
    input  logic [TokenBits-1:0]      first_token_i,
    input  logic [TokenBits-1:0]      last_token_i,
    input  logic signed [7:0]         fraction_i,     // stable until idle
    input  logic [ExpBits*Tokens-1:0] largest_i,
    output logic                      idle_o,

    input  logic                      table_valid_i,
    output logic                      table_ready_o,
    input  logic [63:0]               table_data_i,

    input  logic [Ports-1:0]          tile_valid_i,
    output logic [Ports-1:0]          tile_release_o,
    output logic [TokenBits-1:0]      acc_token_o,
    output logic [3:0]                acc_row_o,
    input  logic [32*Ports-1:0]       acc_i,

    // Embedding: products of level and sub-scale, with mantissa and exponent of the row.
    input  logic                      embed_valid_i,
    output logic                      embed_ready_o,
    input  logic signed [31:0]        embed_acc_i,
    input  logic signed [15:0]        embed_mantissa_i,
    input  logic signed [7:0]         embed_exponent_i,
    input  logic [TokenBits-1:0]      embed_token_i,

    output logic                      valid_o,
    input  logic                      ready_i,
    output logic signed [31:0]        y_o,
    output logic signed [31:0]        mean_o,
    output logic [TokenBits-1:0]      token_o,
    output logic [31:0]               row_o           // of the matrix; not for an embedding
);
  localparam int unsigned PortBits = Ports > 1 ? $clog2(Ports) : 1;

  typedef enum logic [2:0] {StIdle, StRows, StBias, StMeans, StTile, StRun} state_e;
  state_e state_q;

  logic [31:0]          tile_q, tiles_q;
  logic                 has_bias_q, has_means_q;
  logic [2:0]           word_q;
  logic [PortBits-1:0]  port_q;
  logic [TokenBits-1:0] token_q;
  logic [3:0]           row_q;
  logic [63:0]          rows [8];
  logic [63:0]          bias [8];
  logic [63:0]          means [8];

  logic advance, run, run_last, last_word;
  assign advance   = ready_i || !valid_o;  // the pipeline moves
  assign run       = state_q == StRun && advance;
  assign run_last  = run && row_q == 4'd15 && token_q == last_token_i;
  assign last_word = table_valid_i && word_q == 3'd7;
  assign table_ready_o = state_q == StRows || state_q == StBias || state_q == StMeans;
  assign acc_token_o = token_q;
  assign acc_row_o   = row_q;
  for (genvar p = 0; p < Ports; p++) begin : gen_release
    assign tile_release_o[p] = run_last && port_q == PortBits'(p);
  end

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q <= StIdle;
    end else begin
      unique case (state_q)
        StIdle: if (start_i) state_q <= StRows;
        StRows:
          if (last_word) state_q <= has_bias_q ? StBias : has_means_q ? StMeans : StTile;
        StBias: if (last_word) state_q <= has_means_q ? StMeans : StTile;
        StMeans: if (last_word) state_q <= StTile;
        StTile: if (tile_valid_i[port_q]) state_q <= StRun;
        StRun: if (run_last) state_q <= tile_q == tiles_q - 32'd1 ? StIdle : StRows;
        default: state_q <= StIdle;
      endcase
    end
  end

  always_ff @(posedge clk_i) begin
    if (start_i) begin
      tile_q      <= 32'd0;
      tiles_q     <= tiles_i;
      has_bias_q  <= has_bias_i;
      has_means_q <= has_means_i;
      word_q      <= 3'd0;
      port_q      <= '0;
      token_q     <= first_token_i;
      row_q       <= 4'd0;
    end else begin
      if (table_ready_o && table_valid_i) word_q <= word_q + 3'd1;
      if (run) begin
        row_q <= row_q + 4'd1;
        if (row_q == 4'd15) token_q <= run_last ? first_token_i : token_q + 1'b1;
      end
      if (run_last) begin
        tile_q <= tile_q + 32'd1;
        port_q <= port_q == PortBits'(Ports - 1) ? '0 : port_q + 1'b1;
      end
    end
    if (table_valid_i && state_q == StRows) rows[word_q] <= table_data_i;
    if (table_valid_i && state_q == StBias) bias[word_q] <= table_data_i;
    if (table_valid_i && state_q == StMeans) means[word_q] <= table_data_i;
  end

  // --- The pipeline: operands, product, shift, bias ---

  assign embed_ready_o = state_q == StIdle && advance;

  logic [63:0] row_word, bias_word, mean_word;
  logic [31:0] row_entry;
  assign row_word  = rows[row_q[3:1]];
  assign bias_word = bias[row_q[3:1]];
  assign mean_word = means[row_q[3:1]];
  assign row_entry = row_q[0] ? row_word[63:32] : row_word[31:0];

  logic [4:0]         valid_q;
  logic signed [31:0] acc1_q;
  logic signed [15:0] mantissa1_q;
  logic signed [11:0] shift1_q, shift2_q, shift3_q;
  logic signed [47:0] product2_q, product3_q;
  logic signed [31:0] scaled4_q, y5_q;
  logic [31:0]        bias_q [4];
  logic [31:0]        mean_q [5];
  logic [31:0]        index_q [5];
  logic [TokenBits-1:0] tag_q [5];
  logic signed [ExpBits-1:0] largest;
  assign largest = signed'(largest_i[ExpBits*token_q +: ExpBits]);

  always_ff @(posedge clk_i) begin
    if (rst_i) valid_q <= '0;
    else if (advance) valid_q <= {valid_q[3:0], run || (embed_valid_i && embed_ready_o)};
  end
  always_ff @(posedge clk_i) begin
    if (advance) begin
      if (state_q == StIdle) begin
        acc1_q      <= embed_acc_i;
        mantissa1_q <= embed_mantissa_i;
        shift1_q    <= 12'(embed_exponent_i) - 12'(fraction_i);
        tag_q[0]    <= embed_token_i;
      end else begin
        acc1_q      <= signed'(acc_i[32*port_q +: 32]);
        mantissa1_q <= signed'(row_entry[15:0]);
        shift1_q    <= 12'(signed'(row_entry[23:16])) - 12'(largest) - 12'(fraction_i);
        tag_q[0]    <= token_q;
      end
      bias_q[0]  <= !has_bias_q || state_q == StIdle ? 32'd0
                  : row_q[0] ? bias_word[63:32] : bias_word[31:0];
      mean_q[0]  <= row_q[0] ? mean_word[63:32] : mean_word[31:0];
      index_q[0] <= {tile_q[27:0], row_q};

      product2_q <= 48'(acc1_q) * 48'(mantissa1_q);
      shift2_q   <= shift1_q;
      product3_q <= product2_q;
      shift3_q   <= shift2_q;
      scaled4_q  <= sluice_pkg::round_shift_sat32(64'(product3_q), shift3_q);
      y5_q       <= sluice_pkg::add_sat32(scaled4_q, signed'(bias_q[3]));
      for (int unsigned k = 1; k < 4; k++) bias_q[k] <= bias_q[k-1];
      for (int unsigned k = 1; k < 5; k++) begin
        mean_q[k]  <= mean_q[k-1];
        index_q[k] <= index_q[k-1];
        tag_q[k]   <= tag_q[k-1];
      end
    end
  end
  assign valid_o = valid_q[4];
  assign y_o     = y5_q;
  assign mean_o  = signed'(mean_q[4]);
  assign token_o = tag_q[4];
  assign row_o   = index_q[4];
  assign idle_o  = state_q == StIdle && valid_q == '0;
endmodule
