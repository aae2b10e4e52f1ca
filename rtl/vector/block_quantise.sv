// Values to activations: groups of 32 or 64 int32, each with the shift that brings its largest to 8
// bits. Keeps a group of every token while it comes in, two for each, so that tokens may come in
// turns and the next group may come while the last one leaves. Writes words of eight activations and
// the exponents into the copies that matvec_port keeps, and the largest exponent of each token.
//
// One value a cycle in, one out. Bit-exact with fixed::QuantizeBlock8.
module block_quantise #(
    parameter int unsigned Tokens    = 1,
    parameter int unsigned MaxWords  = 1024,
    parameter int unsigned MaxGroups = 256,
    localparam int unsigned WordBits  = $clog2(MaxWords),
    localparam int unsigned GroupBits = $clog2(MaxGroups),
    localparam int unsigned TokenBits = Tokens > 1 ? $clog2(Tokens) : 1,
    localparam int unsigned ExpBits   = sluice_pkg::ExponentBits
) (
    input  logic                      clk_i,
    input  logic                      rst_i,

    input  logic                      start_i,     // pulse while idle: a new vector of all tokens
    input  logic                      target_i,    // which of the two vectors, for largest_o
    input  logic [WordBits-1:0]       x_base_i,    // where it begins
    input  logic [GroupBits-1:0]      e_base_i,
    input  logic                      group64_i,
    output logic                      idle_o,

    input  logic                      valid_i,
    output logic                      ready_o,
    input  logic signed [31:0]        v_i,
    input  logic [TokenBits-1:0]      token_i,
    input  logic signed [ExpBits-1:0] exponent_i,  // of the value's unit; that of a group's last counts

    output logic                      x_write_o,
    output logic [TokenBits-1:0]      x_token_o,
    output logic [WordBits-1:0]       x_word_o,
    output logic [63:0]               x_data_o,
    output logic                      e_write_o,
    output logic [TokenBits-1:0]      e_token_o,
    output logic [GroupBits-1:0]      e_group_o,
    output logic signed [ExpBits-1:0] e_data_o,
    output logic [ExpBits*Tokens-1:0] largest_a_o,
    output logic [ExpBits*Tokens-1:0] largest_b_o
);
  localparam logic signed [ExpBits-1:0] Least = {1'b1, {(ExpBits-1){1'b0}}};

  logic                 target_q, group64_q;
  logic [WordBits-1:0]  x_base_q;
  logic [GroupBits-1:0] e_base_q;

  // Per token: the group that comes in.
  logic [5:0]           count_q [Tokens];
  logic                 bank_q [Tokens];
  logic [1:0]           waiting_q [Tokens];  // groups that have not left
  logic [GroupBits-1:0] group_q [Tokens];
  logic [31:0]          magnitude_q [Tokens];

  logic        accept, ends;
  logic [31:0] magnitude;
  assign ready_o   = waiting_q[token_i] != 2'd2;
  assign accept    = valid_i && ready_o;
  assign ends      = accept && count_q[token_i] == (group64_q ? 6'd63 : 6'd31);
  assign magnitude = sluice_pkg::magnitude(v_i) |
                     (count_q[token_i] == 6'd0 ? 32'd0 : magnitude_q[token_i]);

  // Finished groups, in order.
  typedef struct packed {
    logic [TokenBits-1:0]      token;
    logic                      bank;
    logic [GroupBits-1:0]      group;
    logic [5:0]                shift;
    logic signed [ExpBits-1:0] exponent;
  } group_t;
  localparam int unsigned QueueDepth = 2 * Tokens;
  localparam int unsigned QueueBits  = $clog2(QueueDepth);
  localparam int unsigned EntryBits  = TokenBits + GroupBits + 7 + ExpBits;
  logic [EntryBits-1:0] queue [QueueDepth];
  logic [QueueBits-1:0] queue_write_q, queue_read_q;
  logic [QueueBits:0]   queued_q;
  group_t               group_in, head;
  logic [5:0]           shift_in;
  logic                 leaves;  // the last value of the head group is read
  assign shift_in = sluice_pkg::block_shift(magnitude, 6'd7);
  assign group_in = {token_i, bank_q[token_i], group_q[token_i], shift_in,
                     exponent_i + ExpBits'(shift_in)};
  assign head     = queue[queue_read_q];

  logic [5:0] out_q;
  logic       out;
  assign out    = queued_q != '0;
  assign leaves = out && out_q == (group64_q ? 6'd63 : 6'd31);

  always_ff @(posedge clk_i) begin
    if (ends) queue[queue_write_q] <= group_in;
    if (rst_i || start_i) begin
      queue_write_q <= '0;
      queue_read_q  <= '0;
      queued_q      <= '0;
      out_q         <= 6'd0;
      for (int unsigned t = 0; t < Tokens; t++) begin
        count_q[t]   <= 6'd0;
        bank_q[t]    <= 1'b0;
        waiting_q[t] <= 2'd0;
        group_q[t]   <= '0;
      end
    end else begin
      if (accept) begin
        count_q[token_i] <= ends ? 6'd0 : count_q[token_i] + 6'd1;
      end
      if (ends) begin
        bank_q[token_i]  <= !bank_q[token_i];
        group_q[token_i] <= group_q[token_i] + 1'b1;
        queue_write_q    <= queue_write_q == QueueBits'(QueueDepth - 1) ? '0 : queue_write_q + 1'b1;
      end
      if (leaves) begin
        queue_read_q <= queue_read_q == QueueBits'(QueueDepth - 1) ? '0 : queue_read_q + 1'b1;
      end
      for (int unsigned t = 0; t < Tokens; t++) begin
        waiting_q[t] <= waiting_q[t] + 2'(ends && token_i == TokenBits'(t)) -
                        2'(leaves && head.token == TokenBits'(t));
      end
      queued_q <= queued_q + (QueueBits + 1)'(ends) - (QueueBits + 1)'(leaves);
      if (out) out_q <= leaves ? 6'd0 : out_q + 6'd1;
    end
  end
  always_ff @(posedge clk_i) begin
    if (accept) magnitude_q[token_i] <= magnitude;
    if (start_i) begin
      target_q  <= target_i;
      group64_q <= group64_i;
      x_base_q  <= x_base_i;
      e_base_q  <= e_base_i;
    end
  end

  logic [31:0] value;
  ram #(
      .Width(32),
      .Depth(128 * (1 << TokenBits))
  ) u_values (
      .clk_i,
      .write_i        (accept),
      .write_address_i({token_i, bank_q[token_i], count_q[token_i]}),
      .write_data_i   (v_i),
      .read_i         (out),
      .read_address_i ({head.token, head.bank, out_q}),
      .read_data_o    (value)
  );

  // Read, quantised, gathered to words.
  logic        out1_q, last1_q;
  logic [5:0]  out1_index_q;
  group_t      head1_q;
  logic [55:0] bytes_q;
  logic signed [7:0] quantised;
  assign quantised = sluice_pkg::quantize8(signed'(value), head1_q.shift);
  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      out1_q  <= 1'b0;
      last1_q <= 1'b0;
    end else begin
      out1_q  <= out;
      last1_q <= leaves;
    end
    out1_index_q <= out_q;
    head1_q      <= head;
    if (out1_q) bytes_q <= {quantised, bytes_q[55:8]};
  end
  assign x_write_o = out1_q && out1_index_q[2:0] == 3'd7;
  assign x_token_o = head1_q.token;
  assign x_word_o  = x_base_q + (group64_q ? WordBits'({head1_q.group, out1_index_q[5:3]})
                                           : WordBits'({head1_q.group, out1_index_q[4:3]}));
  assign x_data_o  = {quantised, bytes_q};
  assign e_write_o = last1_q;
  assign e_token_o = head1_q.token;
  assign e_group_o = e_base_q + head1_q.group;
  assign e_data_o  = head1_q.exponent;

  for (genvar t = 0; t < Tokens; t++) begin : gen_largest
    logic signed [ExpBits-1:0] a_q, b_q;
    always_ff @(posedge clk_i) begin
      if (start_i && !target_i) a_q <= Least;
      else if (e_write_o && !target_q && e_token_o == TokenBits'(t) && e_data_o > a_q) begin
        a_q <= e_data_o;
      end
      if (start_i && target_i) b_q <= Least;
      else if (e_write_o && target_q && e_token_o == TokenBits'(t) && e_data_o > b_q) begin
        b_q <= e_data_o;
      end
    end
    assign largest_a_o[ExpBits*t +: ExpBits] = a_q;
    assign largest_b_o[ExpBits*t +: ExpBits] = b_q;
  end

  logic idle_counts;
  always_comb begin
    idle_counts = 1'b1;
    for (int unsigned t = 0; t < Tokens; t++) begin
      if (waiting_q[t] != 2'd0) idle_counts = 1'b0;
    end
  end
  assign idle_o = idle_counts && !out1_q && !accept;
endmodule
