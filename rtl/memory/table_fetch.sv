// Walks the Program ahead of the execution and asks for the small tables, in the order in which the
// units use them:
//   model   per token the RoPE row of its position
//   embed   per token the word with the row table's entry of its row
//   norm    the gains
//   matvec  the gains of a head norm, if any; then per tile 8 words of the row table, 8 of the bias,
//           if any, and for keys 8 of the means
module table_fetch #(
    parameter int unsigned Tokens = 1
) (
    input  logic                     clk_i,
    input  logic                     rst_i,

    input  logic [31:0]              pack_base_i,
    input  logic [32*Tokens-1:0]     token_ids_i,
    input  logic [7:0]               n_tokens_i,
    input  logic [31:0]              position_i,

    input  logic                     valid_i,
    output logic                     ready_o,
    input  sluice_pkg::instruction_t instruction_i,

    output logic                     request_valid_o,
    input  logic                     request_ready_i,
    output logic [31:0]              request_address_o,
    output logic [23:0]              request_words_o
);
  typedef enum logic [2:0] {StIdle, StModel, StEmbed, StGains, StRows, StBias, StMeans} state_e;
  state_e state_q;

  sluice_pkg::instruction_t i_q;
  logic [7:0]  token_q;
  logic [31:0] tiles_q;
  logic [31:0] row_q, bias_q, mean_q;

  logic head_norm, has_bias, has_means;
  assign head_norm = sluice_pkg::has_head_norm(i_q.flags, i_q.epilogue);
  assign has_bias  = i_q.bias != 32'd0 && !head_norm;
  assign has_means = i_q.epilogue == sluice_pkg::EpKey;

  logic issue;
  assign issue   = request_valid_o && request_ready_i;
  assign ready_o = state_q == StIdle;

  always_comb begin
    request_valid_o   = state_q != StIdle;
    request_address_o = row_q;
    request_words_o   = 24'd8;
    unique case (state_q)
      StModel: begin
        request_address_o = pack_base_i + (i_q.auxiliary << 7) +
                            (position_i + 32'(token_q)) * (32'(i_q.head_dim) << 1);
        request_words_o   = 24'(i_q.head_dim >> 2);
      end
      StEmbed: begin
        request_address_o = pack_base_i + (i_q.row_table << 7) +
                            ((token_ids_i[32*token_q +: 32] >> 1) << 3);
        request_words_o   = 24'd1;
      end
      StGains: begin
        if (i_q.op == sluice_pkg::OpNorm) begin
          request_address_o = pack_base_i + (i_q.auxiliary << 7);
          request_words_o   = 24'(i_q.cols >> 2);
        end else begin
          request_address_o = pack_base_i + (i_q.bias << 7);
          request_words_o   = 24'(i_q.head_dim >> 2);
        end
      end
      StBias:  request_address_o = bias_q;
      StMeans: request_address_o = mean_q;
      default: ;
    endcase
  end

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q <= StIdle;
    end else begin
      unique case (state_q)
        StIdle:
          if (valid_i) begin
            i_q     <= instruction_i;
            token_q <= 8'd0;
            row_q   <= pack_base_i + (instruction_i.row_table << 7);
            bias_q  <= pack_base_i + (instruction_i.bias << 7);
            mean_q  <= pack_base_i + (instruction_i.auxiliary << 7);
            tiles_q <= sluice_pkg::tile_count(instruction_i.epilogue, instruction_i.rows,
                                              instruction_i.valid_rows);
            unique case (instruction_i.op)
              sluice_pkg::OpModel:  state_q <= StModel;
              sluice_pkg::OpEmbed:  state_q <= StEmbed;
              sluice_pkg::OpNorm:   state_q <= StGains;
              sluice_pkg::OpMatvec: state_q <=
                  sluice_pkg::has_head_norm(instruction_i.flags, instruction_i.epilogue)
                  ? StGains : StRows;
              default:              state_q <= StIdle;
            endcase
          end
        StModel, StEmbed:
          if (issue) begin
            token_q <= token_q + 8'd1;
            if (token_q + 8'd1 == n_tokens_i) state_q <= StIdle;
          end
        StGains: if (issue) state_q <= i_q.op == sluice_pkg::OpNorm ? StIdle : StRows;
        StRows: if (issue) row_q <= row_q + 32'd64;
        StBias: if (issue) bias_q <= bias_q + 32'd64;
        StMeans: if (issue) mean_q <= mean_q + 32'd64;
        default: state_q <= StIdle;
      endcase
      // From one part of a tile's tables to the next, and from tile to tile.
      if (issue && (state_q == StRows || state_q == StBias || state_q == StMeans)) begin
        if (state_q == StRows && has_bias) state_q <= StBias;
        else if (state_q != StMeans && has_means) state_q <= StMeans;
        else begin
          tiles_q <= tiles_q - 32'd1;
          state_q <= tiles_q == 32'd1 ? StIdle : StRows;
        end
      end
    end
  end
endmodule
