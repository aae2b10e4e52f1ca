// First-in first-out buffer on valid/ready streams. Its memory has one synchronous read port, so a
// deep one becomes block RAM. Latency 2 cycles, one word a cycle.
module stream_fifo #(
    parameter int unsigned Width = 64,
    parameter int unsigned Depth = 16,  // power of two; one word more fits the output register
    localparam int unsigned LevelBits = $clog2(Depth + 2)
) (
    input  logic                 clk_i,
    input  logic                 rst_i,

    input  logic                 valid_i,
    output logic                 ready_o,
    input  logic [Width-1:0]     data_i,

    output logic                 valid_o,
    input  logic                 ready_i,
    output logic [Width-1:0]     data_o,

    output logic [LevelBits-1:0] level_o   // words inside
);
  localparam int unsigned AddressBits = $clog2(Depth);

  logic [Width-1:0]       memory [Depth];
  logic [AddressBits-1:0] write_q, read_q;
  logic [AddressBits:0]   stored_q;   // in the memory
  logic                   valid_q;
  logic [Width-1:0]       data_q;

  logic push, pop;
  assign ready_o = stored_q != (AddressBits + 1)'(Depth);
  assign push    = valid_i && ready_o;
  assign pop     = stored_q != '0 && (!valid_q || ready_i);
  assign valid_o = valid_q;
  assign data_o  = data_q;
  assign level_o = LevelBits'(stored_q) + LevelBits'(valid_q);

  always_ff @(posedge clk_i) begin
    if (push) memory[write_q] <= data_i;
    if (pop) data_q <= memory[read_q];
  end

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      write_q  <= '0;
      read_q   <= '0;
      stored_q <= '0;
      valid_q  <= 1'b0;
    end else begin
      if (push) write_q <= write_q + 1'b1;
      if (pop) read_q <= read_q + 1'b1;
      stored_q <= stored_q + (AddressBits + 1)'(push) - (AddressBits + 1)'(pop);
      if (pop) valid_q <= 1'b1;
      else if (ready_i) valid_q <= 1'b0;
    end
  end
endmodule
