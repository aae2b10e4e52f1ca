// Walks the Program ahead of the execution and asks for the weight stream of one port: of every
// matrix the tiles Port, Port + 1 * Ports, Port + 2 * Ports ...; of an embedding, on port 0, the
// tile of each token's row. A tile's stream is its header and its plane; with two planes, unless
// only the high one is wanted, the planes alternate group by group behind the header.
//
// The matrix's tiles must be multiples of 128 bytes apart (the loader checks).
module weight_fetch #(
    parameter int unsigned Port   = 0,
    parameter int unsigned Ports  = 2,
    parameter int unsigned Tokens = 1
) (
    input  logic                             clk_i,
    input  logic                             rst_i,

    input  logic [31:0]                      pack_base_i,
    input  logic [32*Tokens-1:0]             token_ids_i,
    input  logic [7:0]                       n_tokens_i,

    input  logic                             valid_i,
    output logic                             ready_o,
    input  sluice_pkg::instruction_t         instruction_i,  // OpMatvec or OpEmbed

    output logic                             request_valid_o,
    input  logic                             request_ready_i,
    output logic [31:0]                      request_address_o,
    output logic [23:0]                      request_words_o
);
  typedef enum logic [2:0] {StIdle, StSeek, StTile, StHigh, StLow} state_e;
  state_e state_q;

  sluice_pkg::instruction_t i_q;
  logic [31:0] tile_q, low_tile_q;   // addresses of the current tile's two parts
  logic [31:0] tiles_q;              // tiles of the matrix that are left for this port
  logic [7:0]  token_q;
  logic [31:0] high_q, low_q;        // addresses of the current group
  logic [15:0] groups_q;             // left

  logic        embed, split;
  logic [31:0] header_bytes, plane_bytes;
  logic [15:0] groups, group_bytes;
  assign embed        = i_q.op == sluice_pkg::OpEmbed;
  // Whether planes alternate.
  assign split        = i_q.planes == 8'd2 && !i_q.flags[sluice_pkg::FlagScreened];
  assign groups       = i_q.group == 8'd64 ? 16'(i_q.cols >> 6) : 16'(i_q.cols >> 5);
  assign group_bytes  = i_q.group == 8'd64 ? 16'd512 : 16'd256;  // of a plane
  assign header_bytes = 32'(sluice_pkg::header_words(groups)) << 3;
  assign plane_bytes  = i_q.cols << 3;

  logic issue;
  assign issue = request_valid_o && request_ready_i;
  always_comb begin
    request_valid_o   = 1'b0;
    request_address_o = tile_q;
    request_words_o   = 24'((header_bytes + plane_bytes) >> 3);
    unique case (state_q)
      StTile: begin
        request_valid_o = 1'b1;
        if (split) request_words_o = 24'(header_bytes >> 3);
      end
      StHigh: begin
        request_valid_o   = 1'b1;
        request_address_o = high_q;
        request_words_o   = 24'(group_bytes >> 3);
      end
      StLow: begin
        request_valid_o   = 1'b1;
        request_address_o = low_q;
        request_words_o   = 24'(group_bytes >> 3);
      end
      default: ;
    endcase
  end

  logic [31:0] all_tiles, tile_bytes;
  assign all_tiles  = sluice_pkg::tile_count(instruction_i.epilogue, instruction_i.rows,
                                             instruction_i.valid_rows);
  assign tile_bytes = instruction_i.tile_stride;
  assign ready_o    = state_q == StIdle;

  logic [31:0] next_token_row;
  assign next_token_row = token_ids_i[32*token_q +: 32];

  // The next tile of a matrix or of the next token.
  logic tile_done;
  assign tile_done = issue && (split ? state_q == StLow && groups_q == 16'd1 : state_q == StTile);

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q <= StIdle;
    end else begin
      unique case (state_q)
        StIdle:
          if (valid_i) begin
            i_q        <= instruction_i;
            token_q    <= 8'd0;
            tile_q     <= pack_base_i + (instruction_i.weights << 7) +
                          (Port == 1 ? tile_bytes : 32'd0);
            low_tile_q <= pack_base_i + (instruction_i.low << 7) +
                          (Port == 1 ? instruction_i.low_stride : 32'd0);
            if (instruction_i.op == sluice_pkg::OpEmbed) begin
              if (Port == 0) state_q <= StSeek;
            end else begin
              tiles_q <= (all_tiles + 32'(Ports - 1 - Port)) / Ports;
              if (all_tiles > 32'(Port)) state_q <= StTile;
            end
          end
        StSeek: begin  // an embedding's row: one multiplication, once per token
          tile_q     <= pack_base_i + (i_q.weights << 7) + (next_token_row >> 4) * i_q.tile_stride;
          low_tile_q <= pack_base_i + (i_q.low << 7) + (next_token_row >> 4) * i_q.low_stride;
          state_q    <= StTile;
        end
        StTile:
          if (issue && split) begin
            high_q   <= tile_q + header_bytes;
            low_q    <= low_tile_q;
            groups_q <= groups;
            state_q  <= StHigh;
          end
        StHigh:
          if (issue) begin
            high_q  <= high_q + 32'(group_bytes);
            state_q <= StLow;
          end
        StLow:
          if (issue) begin
            low_q    <= low_q + 32'(group_bytes);
            groups_q <= groups_q - 16'd1;
            state_q  <= StHigh;
          end
        default: state_q <= StIdle;
      endcase
      if (tile_done) begin
        if (embed) begin
          token_q <= token_q + 8'd1;
          state_q <= token_q + 8'd1 == n_tokens_i ? StIdle : StSeek;
        end else begin
          tile_q     <= tile_q + i_q.tile_stride * Ports;
          low_tile_q <= low_tile_q + i_q.low_stride * Ports;
          tiles_q    <= tiles_q - 32'd1;
          state_q    <= tiles_q == 32'd1 ? StIdle : StTile;
        end
      end
    end
  end

endmodule
