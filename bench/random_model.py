"""Writes a GGUF model of Qwen2.5-0.5B's exact shape with random weights, for timing and memory.

    random_model.py TOKENIZER.gguf OUT.gguf

The tokenizer is taken from another GGUF file (its tokens are fewer than the vocabulary's rows, as
in padded vocabularies). Needs the PyPI packages gguf and numpy.
"""

import sys

import gguf
import numpy

SEED = 20250101
LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 24, 896, 4864, 14, 2, 64, 151936


def main(tokenizer_path: str, out_path: str) -> None:
    print(f"seed {SEED}")
    random = numpy.random.default_rng(SEED)
    writer = gguf.GGUFWriter(out_path, "qwen2")
    writer.add_name("random weights of Qwen2.5-0.5B's shape")
    writer.add_block_count(LAYERS)
    writer.add_context_length(32768)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    source = gguf.GGUFReader(tokenizer_path)

    def contents(key):
        return source.fields[f"tokenizer.{key}"].contents()

    writer.add_tokenizer_model(contents("ggml.model"))
    writer.add_tokenizer_pre(contents("ggml.pre"))
    writer.add_token_list(contents("ggml.tokens"))
    writer.add_token_types(contents("ggml.token_type"))
    writer.add_token_merges(contents("ggml.merges"))
    writer.add_eos_token_id(contents("ggml.eos_token_id"))
    writer.add_chat_template(contents("chat_template"))

    def matrix(name, rows, cols):
        # Student's t: the heavy tails of real weights.
        values = random.standard_t(5, (rows, cols)).astype(numpy.float32) * (0.5 / cols**0.5)
        writer.add_tensor(name, gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0),
                          raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    def vector(name, size, scale, offset):
        writer.add_tensor(name, (random.standard_normal(size) * scale + offset).astype(numpy.float32))

    matrix("token_embd.weight", VOCAB, HIDDEN)
    for layer in range(LAYERS):
        b = f"blk.{layer}."
        vector(b + "attn_norm.weight", HIDDEN, 0.2, 1)
        matrix(b + "attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        matrix(b + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(b + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        vector(b + "attn_q.bias", HEADS * HEAD_DIM, 1, 0)
        vector(b + "attn_k.bias", KV_HEADS * HEAD_DIM, 10, 0)
        vector(b + "attn_v.bias", KV_HEADS * HEAD_DIM, 0.1, 0)
        matrix(b + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        vector(b + "ffn_norm.weight", HIDDEN, 0.2, 1)
        matrix(b + "ffn_gate.weight", FFN, HIDDEN)
        matrix(b + "ffn_up.weight", FFN, HIDDEN)
        matrix(b + "ffn_down.weight", HIDDEN, FFN)
    vector("output_norm.weight", HIDDEN, 0.2, 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
