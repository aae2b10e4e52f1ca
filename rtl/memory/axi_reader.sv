// Reads regions of memory over AXI3 into one stream of 64-bit words, in the order of the requests.
//
// A region is cut into bursts of at most 16 beats that do not cross a 128-byte line, so none crosses
// 4 KB. A burst is asked for only when the FIFO has room for all of it: the bus is never blocked by
// this master, and up to MaxOutstanding bursts are on their way.
module axi_reader #(
    parameter int unsigned FifoWords      = 64,  // power of two, at least 32
    parameter int unsigned MaxOutstanding = 8,
    parameter int unsigned WordsBits      = 24
) (
    input  logic                 clk_i,
    input  logic                 rst_i,

    // Region: address (8-byte aligned) and length in words, at least 1.
    input  logic                 request_valid_i,
    output logic                 request_ready_o,
    input  logic [31:0]          request_address_i,
    input  logic [WordsBits-1:0] request_words_i,

    output logic                 valid_o,
    input  logic                 ready_i,
    output logic [63:0]          data_o,

    output logic                 idle_o,   // nothing asked for, on its way or in the FIFO
    output logic                 error_o,  // pulse: a beat came with SLVERR or DECERR

    output logic                 arvalid_o,
    input  logic                 arready_i,
    output logic [31:0]          araddr_o,
    output logic [3:0]           arlen_o,
    input  logic                 rvalid_i,
    output logic                 rready_o,
    input  logic [63:0]          rdata_i,
    input  logic [1:0]           rresp_i,
    input  logic                 rlast_i
);
  localparam int unsigned RoomBits = $clog2(FifoWords + 1);
  localparam int unsigned CountBits = $clog2(MaxOutstanding + 1);

  logic                 busy_q;
  logic [31:0]          address_q;
  logic [WordsBits-1:0] words_q;
  logic [RoomBits-1:0]  room_q;  // words of the FIFO that no burst was promised
  logic [CountBits-1:0] outstanding_q;

  // The next burst: to the end of the line or of the region.
  logic [4:0] to_line, beats;
  assign to_line = 5'd16 - {1'b0, address_q[6:3]};
  assign beats   = words_q < WordsBits'(to_line) ? 5'(words_q) : to_line;

  logic issue, first, done, pop;
  assign arvalid_o = busy_q && room_q >= RoomBits'(beats) &&
                     outstanding_q != CountBits'(MaxOutstanding);
  assign araddr_o  = address_q;
  assign arlen_o   = 4'(beats - 5'd1);
  assign issue     = arvalid_o && arready_i;
  assign done      = issue && words_q == WordsBits'(beats);
  assign request_ready_o = !busy_q || done;
  assign first     = request_valid_i && request_ready_o;
  assign pop       = valid_o && ready_i;

  logic last_beat;
  assign last_beat = rvalid_i && rready_o && rlast_i;
  assign error_o   = rvalid_i && rready_o && rresp_i != 2'b00;

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      busy_q        <= 1'b0;
      room_q        <= RoomBits'(FifoWords);
      outstanding_q <= '0;
    end else begin
      if (first) busy_q <= 1'b1;
      else if (done) busy_q <= 1'b0;
      room_q <= room_q + RoomBits'(pop) - (issue ? RoomBits'(beats) : '0);
      outstanding_q <= outstanding_q + CountBits'(issue) - CountBits'(last_beat);
    end
  end

  always_ff @(posedge clk_i) begin
    if (first) begin
      address_q <= request_address_i;
      words_q   <= request_words_i;
    end else if (issue) begin
      address_q <= address_q + {24'd0, beats, 3'd0};
      words_q   <= words_q - WordsBits'(beats);
    end
  end

  logic unused_level_ready;
  logic [$clog2(FifoWords + 2)-1:0] level;
  stream_fifo #(
      .Width(64),
      .Depth(FifoWords)
  ) u_fifo (
      .clk_i,
      .rst_i,
      .valid_i(rvalid_i),
      .ready_o(unused_level_ready),
      .data_i (rdata_i),
      .valid_o,
      .ready_i,
      .data_o,
      .level_o(level)
  );
  assign rready_o = 1'b1;
  assign idle_o   = !busy_q && room_q == RoomBits'(FifoWords);
endmodule
