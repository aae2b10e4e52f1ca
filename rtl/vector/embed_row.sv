// The embedding: takes from port 0's weight stream the tile of each token's row, and from the table
// stream the row's entry, and hands the row's products of level and sub-scale to row_scale, column
// by column.
//
// Bit-exact with Embed in src/exec/ref, up to the row's scale.
module embed_row #(
    parameter int unsigned Tokens    = 1,
    parameter int unsigned MaxGroups = 256,
    localparam int unsigned GroupBits = $clog2(MaxGroups),
    localparam int unsigned TokenBits = Tokens > 1 ? $clog2(Tokens) : 1
) (
    input  logic                 clk_i,
    input  logic                 rst_i,

    input  logic                 start_i,      // pulse while idle
    input  logic [32*Tokens-1:0] token_ids_i,  // stable until idle, as the following
    input  logic [TokenBits-1:0] last_token_i,
    input  logic [GroupBits-1:0] groups_i,
    input  logic                 group64_i,
    input  logic                 planes2_i,
    input  logic                 codebook_i,
    output logic                 idle_o,

    input  logic                 valid_i,
    output logic                 ready_o,
    input  logic [63:0]          data_i,

    input  logic                 table_valid_i,
    output logic                 table_ready_o,
    input  logic [63:0]          table_data_i,

    output logic                 valid_o,
    input  logic                 ready_i,
    output logic signed [31:0]   acc_o,
    output logic signed [15:0]   mantissa_o,
    output logic signed [7:0]    exponent_o,
    output logic [TokenBits-1:0] token_o
);
  typedef enum logic [2:0] {StIdle, StEntry, StHeader, StUnits, StEmit} state_e;
  state_e state_q;

  logic [TokenBits-1:0] token_q;
  logic [GroupBits+1:0] header_q;
  logic [GroupBits-1:0] group_q;
  logic                 plane_q;
  logic [2:0]           unit_q, beat_q, column_q;
  logic [31:0]          entry_q;
  logic [31:0]          units_q;           // the row's eight nibbles of a unit
  logic [31:0]          high [8];          // the same of the high plane, a group
  logic [63:0]          sub_scales [2*MaxGroups];

  logic [31:0] id;
  logic [3:0]  row;
  assign id  = token_ids_i[32*token_q +: 32];
  assign row = id[3:0];

  logic [GroupBits+1:0] header_words;
  logic [2:0]           last_unit;
  logic                 accept, emit, high_first;
  assign header_words  = (GroupBits + 2)'(sluice_pkg::header_words(16'(groups_i)));
  assign last_unit     = group64_i ? 3'd7 : 3'd3;
  assign ready_o       = state_q == StHeader || state_q == StUnits;
  assign accept        = valid_i && ready_o;
  assign table_ready_o = state_q == StEntry;
  assign high_first    = planes2_i && !plane_q;  // of two planes the first
  assign emit          = valid_o && ready_i;
  assign idle_o        = state_q == StIdle;

  // The last value of a group and plane, and of the token.
  logic group_ends, token_ends;
  assign group_ends = unit_q == last_unit;
  assign token_ends = group_ends && group_q == groups_i - 1'b1;

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q <= StIdle;
    end else begin
      unique case (state_q)
        StIdle: if (start_i) state_q <= StEntry;
        StEntry: if (table_valid_i) state_q <= StHeader;
        StHeader: if (accept && header_q == header_words - 1'b1) state_q <= StUnits;
        StUnits: if (accept && beat_q == 3'd7 && !high_first) state_q <= StEmit;
        StEmit:
          if (emit && column_q == 3'd7) begin
            if (!token_ends) state_q <= StUnits;
            else state_q <= token_q == last_token_i ? StIdle : StEntry;
          end
        default: state_q <= StIdle;
      endcase
    end
  end

  always_ff @(posedge clk_i) begin
    if (start_i) begin
      token_q  <= '0;
      header_q <= '0;
      group_q  <= '0;
      plane_q  <= 1'b0;
      unit_q   <= 3'd0;
      beat_q   <= 3'd0;
      column_q <= 3'd0;
    end else begin
      if (state_q == StEntry && table_valid_i) begin
        entry_q <= id[0] ? table_data_i[63:32] : table_data_i[31:0];
      end
      if (accept && state_q == StHeader) begin
        header_q <= header_q == header_words - 1'b1 ? '0 : header_q + 1'b1;
        if (!header_q[GroupBits+1]) sub_scales[header_q[GroupBits:0]] <= data_i;
      end
      if (accept && state_q == StUnits) begin
        beat_q <= beat_q + 3'd1;
        if (beat_q == row[3:1]) units_q <= row[0] ? data_i[63:32] : data_i[31:0];
        if (beat_q == 3'd7 && high_first) begin
          unit_q <= group_ends ? 3'd0 : unit_q + 3'd1;
          if (group_ends) plane_q <= 1'b1;
        end
      end
      if (high_first && accept && state_q == StUnits && beat_q == row[3:1]) begin
        high[unit_q] <= row[0] ? data_i[63:32] : data_i[31:0];
      end
      if (emit) begin
        column_q <= column_q + 3'd1;
        if (column_q == 3'd7) begin
          unit_q <= group_ends ? 3'd0 : unit_q + 3'd1;
          if (group_ends) begin
            plane_q <= 1'b0;
            group_q <= token_ends ? '0 : group_q + 1'b1;
          end
          if (token_ends) token_q <= token_q + 1'b1;
        end
      end
    end
  end

  // Columns 0..3 are the low nibbles of the row's four bytes, 4..7 the high ones.
  logic [4:0]         at;
  logic [3:0]         nibble, high_nibble;
  logic [31:0]        high_word;
  logic signed [4:0]  level;
  logic signed [8:0]  weight;
  logic [63:0]        sub_word;
  logic signed [7:0]  sub_scale;
  assign at          = {column_q[1:0], column_q[2], 2'b00};
  assign nibble      = units_q[at +: 4];
  assign high_word   = high[unit_q];
  assign high_nibble = high_word[at +: 4];
  assign level       = sluice_pkg::level(codebook_i, nibble);
  assign weight      = planes2_i
                     ? (9'(sluice_pkg::level(1'b0, high_nibble)) <<< 4) + 9'(level) : 9'(level);
  assign sub_word    = sub_scales[{group_q, row[3]}];
  assign sub_scale   = signed'(sub_word[8*row[2:0] +: 8]);
  assign valid_o     = state_q == StEmit;
  assign acc_o       = 32'(weight) * 32'(sub_scale);
  assign mantissa_o  = signed'(entry_q[15:0]);
  assign exponent_o  = signed'(entry_q[23:16]);
  assign token_o     = token_q;
endmodule
