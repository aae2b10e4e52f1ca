// A value, some cycles later. Without reset, so that it becomes shift-register LUTs.
module delay #(
    parameter int unsigned Width  = 8,
    parameter int unsigned Cycles = 1  // 0: a wire
) (
    input  logic             clk_i,
    input  logic [Width-1:0] data_i,
    output logic [Width-1:0] data_o
);
  if (Cycles == 0) begin : gen_wire
    assign data_o = data_i;
  end else begin : gen_registers
    logic [Width-1:0] stage_q [Cycles];
    always_ff @(posedge clk_i) begin
      stage_q[0] <= data_i;
      for (int unsigned k = 1; k < Cycles; k++) stage_q[k] <= stage_q[k-1];
    end
    assign data_o = stage_q[Cycles-1];
  end
endmodule
