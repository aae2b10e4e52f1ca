// Writes one position of one KV head at a time to the cache in memory: the bytes of K or V (and the
// low bytes of a wide K), gathered to bursts that stay within a line of 128 bytes, and the byte of the
// exponent. Cache of a (layer, KV head), `context` positions of d bytes:
//   K, then V, then per position the exponents of K and V, a byte each
// and, of wide heads only, the low bytes elsewhere.
module kv_write #(
    parameter int unsigned Tokens     = 1,
    parameter int unsigned MaxHeadDim = 128,
    localparam int unsigned TokenBits = Tokens > 1 ? $clog2(Tokens) : 1,
    localparam int unsigned WordBits  = $clog2(MaxHeadDim / 8),
    localparam int unsigned ExpBits   = sluice_pkg::ExponentBits
) (
    input  logic                      clk_i,
    input  logic                      rst_i,

    // Of the matrix; stable until idle.
    input  logic                      start_i,         // pulse: back to head 0
    input  logic                      is_value_i,
    input  logic [31:0]               layer_base_i,    // cache of the layer's first KV head
    input  logic [31:0]               head_stride_i,   // bytes from one KV head's cache to the next
    input  logic [31:0]               plane_bytes_i,   // context * d
    input  logic [31:0]               low_base_i,      // of the layer's first wide head
    input  logic [15:0]               head_dim_i,
    input  logic [31:0]               position_i,      // of the block's first token
    output logic                      idle_o,          // and all is in memory
    output logic                      error_o,         // pulse

    input  logic                      valid_i,
    output logic                      ready_o,
    input  logic [63:0]               data_i,
    input  logic [63:0]               low_data_i,
    input  logic                      wide_i,
    input  logic                      last_i,
    input  logic [TokenBits-1:0]      token_i,
    input  logic [TokenBits-1:0]      last_token_i,
    input  logic signed [ExpBits-1:0] exponent_i,

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
  typedef enum logic [2:0] {StFill, StAddress, StData, StExponent, StExponentData} state_e;
  state_e state_q;

  logic [63:0]        words [MaxHeadDim/8];
  logic [63:0]        low_words [MaxHeadDim/8];
  logic [WordBits-1:0] fill_q, out_q;
  logic [31:0]        head_base_q, low_base_q;   // of the current head
  logic [31:0]        address_q, low_address_q, exponent_address_q;
  logic [7:0]         left_q;                    // words of the current plane
  logic [4:0]         beats_q;
  logic               wide_q, low_q, next_head_q;
  logic [7:0]         exponent_q;
  logic [7:0]         pending_q;                 // bursts without an answer

  logic [4:0] to_line, beats;
  assign to_line = 5'd16 - {1'b0, address_q[6:3]};
  assign beats   = left_q < 8'(to_line) ? left_q[4:0] : to_line;

  logic accept, aw, w;
  assign ready_o = state_q == StFill;
  assign accept  = valid_i && ready_o;
  assign awvalid_o = state_q == StAddress || state_q == StExponent;
  assign awaddr_o  = state_q == StExponent ? {exponent_address_q[31:3], 3'b000} : address_q;
  assign awlen_o   = state_q == StExponent ? 4'd0 : 4'(beats - 5'd1);
  assign wvalid_o  = state_q == StData || state_q == StExponentData;
  assign wdata_o   = state_q == StExponentData ? {8{exponent_q}}
                   : low_q ? low_words[out_q] : words[out_q];
  assign wstrb_o   = state_q == StExponentData ? 8'd1 << exponent_address_q[2:0] : 8'hff;
  assign wlast_o   = state_q == StExponentData || beats_q == 5'd1;
  assign bready_o  = 1'b1;
  assign error_o   = bvalid_i && bresp_i != 2'b00;
  assign aw        = awvalid_o && awready_i;
  assign w         = wvalid_o && wready_i;

  logic [31:0] position;
  assign position = position_i + 32'(token_i);

  always_ff @(posedge clk_i) begin
    if (rst_i) begin
      state_q   <= StFill;
      pending_q <= 8'd0;
    end else begin
      pending_q <= pending_q + 8'(aw) - 8'(bvalid_i);
      unique case (state_q)
        StFill: if (accept && last_i) state_q <= StAddress;
        StAddress: if (aw) state_q <= StData;
        StData:
          if (w && beats_q == 5'd1) begin
            if (left_q != 8'd0 || (wide_q && !low_q)) state_q <= StAddress;
            else state_q <= StExponent;
          end
        StExponent: if (aw) state_q <= StExponentData;
        StExponentData: if (w) state_q <= StFill;
        default: state_q <= StFill;
      endcase
    end
    if (start_i) begin
      head_base_q <= layer_base_i;
      low_base_q  <= low_base_i;
      fill_q      <= '0;
    end
    if (accept) begin
      words[fill_q]     <= data_i;
      low_words[fill_q] <= low_data_i;
      fill_q            <= last_i ? '0 : fill_q + 1'b1;
      if (last_i) begin
        // One product a position; d is small.
        address_q          <= head_base_q + (is_value_i ? plane_bytes_i : 32'd0) +
                              position * 32'(head_dim_i);
        low_address_q      <= low_base_q + position * 32'(head_dim_i);
        exponent_address_q <= head_base_q + (plane_bytes_i << 1) + (position << 1) +
                              32'(is_value_i);
        exponent_q         <= exponent_i[7:0];
        left_q             <= 8'(head_dim_i >> 3);
        wide_q             <= wide_i;
        low_q              <= 1'b0;
        out_q              <= '0;
        next_head_q        <= token_i == last_token_i;
      end
    end
    if (aw && state_q == StAddress) begin
      beats_q   <= beats;
      left_q    <= left_q - 8'(beats);
      address_q <= address_q + {24'd0, beats, 3'd0};
    end
    if (w && state_q == StData) begin
      beats_q <= beats_q - 5'd1;
      out_q   <= out_q + 1'b1;
      if (beats_q == 5'd1 && left_q == 8'd0 && wide_q && !low_q) begin
        low_q     <= 1'b1;
        address_q <= low_address_q;
        left_q    <= 8'(head_dim_i >> 3);
        out_q     <= '0;
      end
    end
    if (state_q == StExponentData && w && next_head_q) begin
      head_base_q <= head_base_q + head_stride_i;
      if (wide_q) low_base_q <= low_base_q + plane_bytes_i;
    end
  end
  assign idle_o = state_q == StFill && fill_q == '0 && pending_q == 8'd0;
endmodule
