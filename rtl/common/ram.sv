// One write port, one synchronous read port. A word read in the cycle in which it is written is the
// old one.
module ram #(
    parameter int unsigned Width = 64,
    parameter int unsigned Depth = 1024,
    localparam int unsigned AddressBits = Depth > 1 ? $clog2(Depth) : 1
) (
    input  logic                   clk_i,
    input  logic                   write_i,
    input  logic [AddressBits-1:0] write_address_i,
    input  logic [Width-1:0]       write_data_i,
    input  logic                   read_i,           // read_data_o keeps its value otherwise
    input  logic [AddressBits-1:0] read_address_i,
    output logic [Width-1:0]       read_data_o
);
  logic [Width-1:0] memory [Depth];
  always_ff @(posedge clk_i) begin
    if (write_i) memory[write_address_i] <= write_data_i;
    if (read_i) read_data_o <= memory[read_address_i];
  end
endmodule
