// Reads the Program once, in order, and hands each instruction to the queues of all units that walk
// it: the weight ports, the tables, and the execution. Waits while one that needs it is full.
module program_fetch #(
    parameter int unsigned Ports = 2
) (
    input  logic             clk_i,
    input  logic             rst_i,
    input  logic             start_i,         // pulse
    input  logic             skip_head_i,     // no results are wanted: leave the head out

    input  logic             valid_i,
    output logic             ready_o,
    input  logic [63:0]      data_i,

    output logic [511:0]     instruction_o,
    output logic [Ports-1:0] weight_valid_o,
    input  logic [Ports-1:0] weight_ready_i,
    output logic             table_valid_o,
    input  logic             table_ready_i,
    output logic             execute_valid_o,
    input  logic             execute_ready_i
);
  logic [511:0]             word_q;
  logic [3:0]               words_q;   // of the instruction that are here
  logic                     ended_q;
  sluice_pkg::instruction_t instruction;
  assign instruction = word_q;

  logic full, has_weights, has_tables, skipped, all_ready, push;
  assign full        = words_q == 4'd8;
  assign has_weights = instruction.op == sluice_pkg::OpMatvec ||
                       instruction.op == sluice_pkg::OpEmbed;
  assign has_tables  = has_weights || instruction.op == sluice_pkg::OpModel ||
                       instruction.op == sluice_pkg::OpNorm;
  assign skipped     = skip_head_i && instruction.op == sluice_pkg::OpMatvec &&
                       instruction.epilogue == sluice_pkg::EpCandidates;
  assign all_ready   = execute_ready_i && (!has_tables || table_ready_i) &&
                       (!has_weights || weight_ready_i == '1);
  assign push        = full && !ended_q && (skipped || all_ready);

  assign instruction_o   = word_q;
  assign execute_valid_o = push && !skipped;
  assign table_valid_o   = push && !skipped && has_tables;
  assign weight_valid_o  = push && !skipped && has_weights ? '1 : '0;
  // Behind the end nothing is of interest.
  assign ready_o = !full || ended_q || push;

  always_ff @(posedge clk_i) begin
    if (rst_i || start_i) begin
      words_q <= 4'd0;
      ended_q <= 1'b0;
    end else begin
      if (valid_i && ready_o) words_q <= full ? 4'd1 : words_q + 4'd1;
      else if (push) words_q <= 4'd0;
      if (push && instruction.op == sluice_pkg::OpEnd) ended_q <= 1'b1;
    end
    if (valid_i && ready_o) word_q <= {data_i, word_q[511:64]};
  end
endmodule
