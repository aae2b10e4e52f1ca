// The best rows of the head, of each wanted token: a binary heap with the worst kept row on top.
// A row that is not better than the top goes by at one a cycle; one that is replaces it and sinks,
// at most three cycles a level, while the stream waits. Rows come in ascending order, so that of equal
// values the first is the better one, as in fixed::Better.
//
// Until the heap is full, rows are appended and rise.
module candidates #(
    parameter int unsigned Tokens = 1,
    parameter int unsigned Most   = 128,  // a power of two
    localparam int unsigned IndexBits = $clog2(Most),
    localparam int unsigned TokenBits = Tokens > 1 ? $clog2(Tokens) : 1
) (
    input  logic                 clk_i,
    input  logic                 rst_i,

    input  logic                 start_i,      // pulse: empties all heaps
    input  logic [IndexBits:0]   count_i,      // rows to keep, 1 .. Most; stable
    input  logic [31:0]          valid_rows_i,
    output logic                 idle_o,

    input  logic                 valid_i,
    output logic                 ready_o,
    input  logic signed [31:0]   y_i,
    input  logic [31:0]          row_i,
    input  logic [TokenBits-1:0] token_i,

    // Entries, in the heap's order: {row, value}. Data a cycle after the address; while idle.
    input  logic [TokenBits-1:0] read_token_i,
    input  logic [IndexBits-1:0] read_index_i,
    output logic [63:0]          read_data_o
);
  typedef enum logic [2:0] {StIdle, StRise, StRiseCompare, StLeft, StRight, StSink} state_e;
  state_e state_q;

  logic [IndexBits:0]   size_q [Tokens];
  logic signed [31:0]   top_q [Tokens];
  logic [TokenBits-1:0] token_q;
  logic signed [31:0]   y_q;
  logic [31:0]          row_q;
  logic [IndexBits:0]   at_q;     // 1 .. size: the place that the new entry takes, so far
  logic [63:0]          left_q;

  logic                 write, full, better;
  logic [IndexBits:0]   write_at, read_at, child;
  logic [63:0]          write_data, word;
  assign full   = size_q[token_i] == count_i;
  assign better = !full || y_i > top_q[token_i];
  assign ready_o = state_q == StIdle;

  // Entry a is worse than b: smaller, or as large and of a larger row.
  function automatic logic worse(input logic [63:0] a, input logic [63:0] b);
    worse = signed'(a[31:0]) < signed'(b[31:0]) || (a[31:0] == b[31:0] && a[63:32] > b[63:32]);
  endfunction

  logic [63:0] entry, smaller;
  logic        left_smaller;
  assign entry = {row_q, y_q};
  assign child = {at_q[IndexBits-1:0], 1'b0};

  // Places are 1-based: children of p are 2p and 2p + 1.
  logic [IndexBits:0] size;
  assign size = size_q[token_q];
  always_comb begin
    read_at    = at_q;
    write      = 1'b0;
    write_at   = at_q;
    write_data = entry;
    unique case (state_q)
      StIdle: read_at = {1'b0, read_index_i} + 1'b1;
      StRise: read_at = at_q >> 1;
      StRiseCompare: begin
        write = 1'b1;
        if (at_q != (IndexBits + 1)'(1) && worse(entry, word)) write_data = word;
      end
      StLeft:  read_at = child;
      StRight: read_at = child | 1'b1;
      StSink: begin
        write = 1'b1;
        if (worse(smaller, entry)) write_data = smaller;
      end
      default: ;
    endcase
  end
  // In StSink: left_q has come, the right child stands at word.
  assign left_smaller = child == size || worse(left_q, word);
  assign smaller      = left_smaller ? left_q : word;

  always_ff @(posedge clk_i) begin
    if (rst_i || start_i) begin
      state_q <= StIdle;
      for (int unsigned t = 0; t < Tokens; t++) size_q[t] <= '0;
    end else begin
      unique case (state_q)
        StIdle:
          if (valid_i && row_i < valid_rows_i && better) begin
            token_q <= token_i;
            y_q     <= y_i;
            row_q   <= row_i;
            if (full) begin
              at_q    <= (IndexBits + 1)'(1);
              state_q <= count_i == (IndexBits + 1)'(1) ? StRise : StLeft;
            end else begin
              at_q            <= size_q[token_i] + 1'b1;
              size_q[token_i] <= size_q[token_i] + 1'b1;
              state_q         <= StRise;
            end
          end
        StRise: state_q <= StRiseCompare;
        StRiseCompare:
          if (at_q != (IndexBits + 1)'(1) && worse(entry, word)) begin
            at_q    <= at_q >> 1;
            state_q <= StRise;
          end else begin
            if (at_q == (IndexBits + 1)'(1)) top_q[token_q] <= y_q;
            state_q <= StIdle;
          end
        StLeft: state_q <= StRight;
        StRight: begin
          left_q  <= word;
          state_q <= StSink;
        end
        StSink: begin
          if (at_q == (IndexBits + 1)'(1)) begin
            top_q[token_q] <= worse(smaller, entry) ? signed'(smaller[31:0]) : y_q;
          end
          at_q <= child | (IndexBits + 1)'(!left_smaller);
          if (!worse(smaller, entry)) state_q <= StIdle;
          // The place sunk to has no children: the entry is written there.
          else if ({child | (IndexBits + 1)'(!left_smaller), 1'b0} > {1'b0, size}) begin
            state_q <= StRise;
          end else state_q <= StLeft;
        end
        default: state_q <= StIdle;
      endcase
    end
  end

  ram #(
      .Width(64),
      .Depth((1 << TokenBits) * 2 * Most)
  ) u_entries (
      .clk_i,
      .write_i        (write),
      .write_address_i({token_q, write_at}),
      .write_data_i   (write_data),
      .read_i         (1'b1),
      .read_address_i ({state_q == StIdle ? read_token_i : token_q, read_at}),
      .read_data_o    (word)
  );
  assign read_data_o = word;
  assign idle_o      = state_q == StIdle && !valid_i;
endmodule
