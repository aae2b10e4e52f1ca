// What the modules share: the instruction as it lies in memory, and the encodings of its fields.
// The reference is src/program/instruction.h; tests/rtl compares the two.
package sluice_pkg;

  typedef enum logic [7:0] {
    OpEnd    = 8'd0,
    OpModel  = 8'd1,
    OpEmbed  = 8'd2,
    OpNorm   = 8'd3,
    OpMatvec = 8'd4,
    OpAttend = 8'd5
  } op_e;

  typedef enum logic [7:0] {
    EpNone        = 8'd0,
    EpAddResidual = 8'd1,
    EpQuery       = 8'd2,
    EpKey         = 8'd3,
    EpValue       = 8'd4,
    EpSiluGate    = 8'd5,
    EpCandidates  = 8'd6
  } epilogue_e;

  // 64 bytes, little-endian: the last field is the first byte. Offsets are in lines of 128 bytes.
  typedef struct packed {
    logic [63:0]        imm;
    logic signed [7:0]  fraction2;
    logic signed [7:0]  fraction;
    logic [15:0]        head_dim;
    logic [15:0]        heads;
    logic [15:0]        layer;
    logic [31:0]        valid_rows;
    logic [31:0]        auxiliary;
    logic [31:0]        bias;
    logic [31:0]        row_table;
    logic [31:0]        low_stride;
    logic [31:0]        low;
    logic [31:0]        tile_stride;
    logic [31:0]        weights;
    logic [31:0]        cols;
    logic [31:0]        rows;
    logic [7:0]         flags;
    logic [7:0]         codebook;
    logic [7:0]         planes;
    logic [7:0]         group;
    logic [7:0]         target;
    logic [7:0]         source;
    logic [7:0]         epilogue;
    logic [7:0]         op;
  } instruction_t;

  // Bits of instruction_t.flags.
  localparam int unsigned FlagHeadNorm = 0;
  localparam int unsigned FlagScreened = 1;

  // Activation exponents, and the emax of a vector.
  localparam int unsigned ExponentBits = 10;

  // Tiles of a matrix that are streamed: a head's only as far as the vocabulary goes.
  function automatic logic [31:0] tile_count(input logic [7:0] epilogue, input logic [31:0] rows,
                                             input logic [31:0] valid_rows);
    tile_count = epilogue == EpCandidates ? (valid_rows + 32'd15) >> 4 : rows >> 4;
  endfunction

  // Whether the heads of q or K are normalised: `bias` is then the gain table.
  function automatic logic has_head_norm(input logic [7:0] flags, input logic [7:0] epilogue);
    has_head_norm = flags[FlagHeadNorm] && (epilogue == EpQuery || epilogue == EpKey);
  endfunction

  // Words of a tile's header: two a group, to whole lines.
  function automatic logic [15:0] header_words(input logic [15:0] groups);
    header_words = ((groups << 1) + 16'd15) & ~16'd15;
  endfunction

  // The level of a nibble: of the codebook sluice16, or linear.
  function automatic logic signed [4:0] level(input logic codebook, input logic [3:0] nibble);
    if (!codebook) begin
      level = 5'(signed'({1'b0, nibble}) - 5'sd8);
    end else begin
      unique case (nibble)
        4'd0:    level = -5'sd15;
        4'd1:    level = -5'sd11;
        4'd2:    level = -5'sd8;
        4'd3:    level = -5'sd6;
        4'd4:    level = -5'sd4;
        4'd5:    level = -5'sd2;
        4'd6:    level = -5'sd1;
        4'd7:    level = 5'sd0;
        4'd8:    level = 5'sd1;
        4'd9:    level = 5'sd2;
        4'd10:   level = 5'sd3;
        4'd11:   level = 5'sd5;
        4'd12:   level = 5'sd7;
        4'd13:   level = 5'sd9;
        4'd14:   level = 5'sd12;
        default: level = 5'sd15;
      endcase
    end
  endfunction

  // One's-complement magnitude; fixed::Magnitude.
  function automatic logic [31:0] magnitude(input logic signed [31:0] x);
    magnitude = x[31] ? ~x : x;
  endfunction

  // Bit length: 0 for 0.
  function automatic logic [5:0] bit_width(input logic [31:0] x);
    bit_width = 6'd0;
    for (int unsigned k = 0; k < 32; k++) begin
      if (x[k]) bit_width = 6'(k + 1);
    end
  endfunction

  // max(0, bit length - bits); fixed::BlockShift.
  function automatic logic [5:0] block_shift(input logic [31:0] magnitudes, input logic [5:0] bits);
    logic [5:0] width;
    width = bit_width(magnitudes);
    block_shift = width > bits ? width - bits : 6'd0;
  endfunction

  // rs(v, shift) of a block's member by the block's own shift (0..32), saturated symmetrically to
  // 8 and to 16 bits; fixed::QuantizeBlock8 and 16.
  function automatic logic signed [32:0] round_shift32(input logic signed [31:0] v,
                                                       input logic [5:0] shift);
    logic signed [32:0] earlier;
    earlier = 33'(v) >>> (shift - 6'd1);
    round_shift32 = shift == 6'd0 ? 33'(v) : (earlier + 33'sd1) >>> 1;
  endfunction
  function automatic logic signed [7:0] quantize8(input logic signed [31:0] v,
                                                  input logic [5:0] shift);
    logic signed [32:0] r;
    r = round_shift32(v, shift);
    quantize8 = r > 33'sd127 ? 8'sd127 : r < -33'sd127 ? -8'sd127 : r[7:0];
  endfunction
  function automatic logic signed [15:0] quantize16(input logic signed [31:0] v,
                                                    input logic [5:0] shift);
    logic signed [32:0] r;
    r = round_shift32(v, shift);
    quantize16 = r > 33'sd32767 ? 16'sd32767 : r < -33'sd32767 ? -16'sd32767 : r[15:0];
  endfunction

  // sat32(rs(x, s)) for any s: fixed::RoundShiftSat32, |x| < 2^61.
  function automatic logic signed [31:0] round_shift_sat32(input logic signed [63:0] x,
                                                           input logic signed [11:0] s);
    logic signed [63:0] r;
    logic signed [63:0] limited;
    logic [11:0]        left;
    if (s > 12'sd0) begin
      r = s >= 12'sd62 ? 64'sd0 : ((x >>> (s - 12'sd1)) + 64'sd1) >>> 1;
    end else begin
      left = 12'(-s);
      // Beyond 32 bits it stays there, whatever the shift.
      limited = x > 64'sh7fff_ffff ? 64'sh7fff_ffff
              : x < -64'sh8000_0000 ? -64'sh8000_0000 : x;
      r = limited <<< (left > 12'd31 ? 12'd31 : left);
    end
    round_shift_sat32 = r > 64'sh7fff_ffff ? 32'sh7fff_ffff
                      : r < -64'sh8000_0000 ? 32'sh8000_0000 : r[31:0];
  endfunction

  function automatic logic signed [31:0] add_sat32(input logic signed [31:0] a,
                                                   input logic signed [31:0] b);
    logic signed [32:0] sum;
    sum = 33'(a) + 33'(b);
    add_sat32 = sum[32] == sum[31] ? sum[31:0] : {sum[32], {31{!sum[32]}}};
  endfunction

endpackage
