// Writes what the host needs of each wanted token: the candidates, in the heap's order, and the
// head's input, which the host rescores a screened head's candidates with. Keeps a copy of vector A
// as block_quantise writes it.
//
// A record: count entries of {value, row}, int32 each; then the activations, a byte each; then an
// int16 exponent per group; each part from a line of 128 bytes on.
module result_write #(
    parameter int unsigned Tokens    = 1,
    parameter int unsigned MaxWords  = 1024,   // of vector A
    parameter int unsigned MaxGroups = 256,
    parameter int unsigned Most      = 128,
    localparam int unsigned TokenBits = Tokens > 1 ? $clog2(Tokens) : 1,
    localparam int unsigned WordBits  = $clog2(MaxWords),
    localparam int unsigned GroupBits = $clog2(MaxGroups),
    localparam int unsigned IndexBits = $clog2(Most),
    localparam int unsigned ExpBits   = sluice_pkg::ExponentBits
) (
    input  logic                      clk_i,
    input  logic                      rst_i,

    input  logic                      target_a_i,    // what is written is vector A
    input  logic                      x_write_i,
    input  logic [TokenBits-1:0]      x_token_i,
    input  logic [WordBits-1:0]       x_word_i,
    input  logic [63:0]               x_data_i,
    input  logic                      e_write_i,
    input  logic [TokenBits-1:0]      e_token_i,
    input  logic [GroupBits-1:0]      e_group_i,
    input  logic signed [ExpBits-1:0] e_data_i,

    input  logic                      start_i,       // pulse
    input  logic [TokenBits-1:0]      first_token_i,
    input  logic [TokenBits-1:0]      last_token_i,
    input  logic [31:0]               base_i,        // multiples of 128
    input  logic [31:0]               stride_i,      // from one token's record to the next
    input  logic [IndexBits:0]        count_i,
    input  logic [WordBits:0]         words_i,       // of the activations
    input  logic [GroupBits:0]        groups_i,
    output logic                      idle_o,
    output logic                      error_o,       // pulse

    output logic [TokenBits-1:0]      read_token_o,
    output logic [IndexBits-1:0]      read_index_o,
    input  logic [63:0]               read_data_i,   // a cycle later

    output logic                      awvalid_o,
    input  logic                      awready_i,
    output logic [31:0]               awaddr_o,
    output logic [3:0]                awlen_o,
    output logic                      wvalid_o,
    input  logic                      wready_i,
    output logic [63:0]               wdata_o,
    output logic [7:0]                wstrb_o,
    output logic                      wlast_o,
    input  logic                      bvalid_i,
    output logic                      bready_o,
    input  logic [1:0]                bresp_i
);
  typedef enum logic [2:0] {StIdle, StPart, StAddress, StRead, StData, StWait} state_e;
  state_e state_q;

  logic [1:0]           part_q;         // entries, activations, exponents
  logic [TokenBits-1:0] token_q;
  logic [31:0]          record_q, address_q;
  logic [15:0]          index_q, left_q;
  logic [3:0]           beat_q;
  logic [7:0]           pending_q;

  // Four exponents make a word; a token's come in ascending order.
  logic [63:0] x_word, e_word, e_merged;
  logic [63:0] e_gather_q [Tokens];
  always_comb begin
    e_merged = e_gather_q[e_token_i];
    e_merged[16*e_group_i[1:0] +: 16] = 16'(e_data_i);
  end
  always_ff @(posedge clk_i) begin
    if (e_write_i && target_a_i) e_gather_q[e_token_i] <= e_merged;
  end
  ram #(
      .Width(64),
      .Depth((1 << TokenBits) * MaxWords)
  ) u_x (
      .clk_i,
      .write_i        (x_write_i && target_a_i),
      .write_address_i({x_token_i, x_word_i}),
      .write_data_i   (x_data_i),
      .read_i         (1'b1),
      .read_address_i ({token_q, index_q[WordBits-1:0]}),
      .read_data_o    (x_word)
  );
  ram #(
      .Width(64),
      .Depth((1 << TokenBits) * MaxGroups / 4)
  ) u_e (
      .clk_i,
      .write_i        (e_write_i && target_a_i),
      .write_address_i({e_token_i, e_group_i[GroupBits-1:2]}),
      .write_data_i   (e_merged),
      .read_i         (1'b1),
      .read_address_i ({token_q, index_q[GroupBits-3:0]}),
      .read_data_o    (e_word)
  );

  logic [15:0] part_words;
  always_comb begin
    unique case (part_q)
      2'd0:    part_words = 16'(count_i);
      2'd1:    part_words = 16'(words_i);
      default: part_words = 16'((17'(groups_i) + 17'd3) >> 2);
    endcase
  end
  logic [4:0] beats;
  assign beats = left_q < 16'd16 ? left_q[4:0] : 5'd16;

  logic aw, w;
  assign awvalid_o    = state_q == StAddress;
  assign awaddr_o     = address_q;
  assign awlen_o      = 4'(beats - 5'd1);
  assign wvalid_o     = state_q == StData;
  assign wdata_o      = part_q == 2'd0 ? read_data_i : part_q == 2'd1 ? x_word : e_word;
  assign wstrb_o      = 8'hff;
  assign wlast_o      = beat_q == 4'd0;
  assign bready_o     = 1'b1;
  assign error_o      = bvalid_i && bresp_i != 2'b00;
  assign aw           = awvalid_o && awready_i;
  assign w            = wvalid_o && wready_i;
  assign read_token_o = token_q;
  assign read_index_o = index_q[IndexBits-1:0];
  assign idle_o       = state_q == StIdle;

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q   <= StIdle;
      pending_q <= 8'd0;
    end else begin
      pending_q <= pending_q + 8'(aw) - 8'(bvalid_i);
      unique case (state_q)
        StIdle:
          if (start_i) begin
            state_q   <= StPart;
            part_q    <= 2'd0;
            token_q   <= first_token_i;
            record_q  <= base_i;
            address_q <= base_i;
          end
        StPart: begin
          index_q <= 16'd0;
          left_q  <= part_words;
          state_q <= StAddress;
        end
        StAddress:
          if (aw) begin
            beat_q    <= 4'(beats - 5'd1);
            left_q    <= left_q - 16'(beats);
            address_q <= address_q + 32'd128;
            state_q   <= StRead;
          end
        StRead: state_q <= StData;  // the word of index_q comes
        StData:
          if (w) begin
            index_q <= index_q + 16'd1;
            beat_q  <= beat_q - 4'd1;
            state_q <= StRead;
            if (beat_q == 4'd0) begin
              if (left_q != 16'd0) begin
                state_q <= StAddress;
              end else if (part_q != 2'd2) begin
                part_q  <= part_q + 2'd1;
                state_q <= StPart;
              end else if (token_q != last_token_i) begin
                part_q    <= 2'd0;
                token_q   <= token_q + 1'b1;
                record_q  <= record_q + stride_i;
                address_q <= record_q + stride_i;
                state_q   <= StPart;
              end else begin
                state_q <= StWait;
              end
            end
          end
        StWait: if (pending_q == 8'd0) state_q <= StIdle;
        default: state_q <= StIdle;
      endcase
    end
  end
endmodule
