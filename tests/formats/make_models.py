"""Writes one random tiny model twice, as a Hugging Face folder and as a GGUF file.

  make_models.py FAMILY OUT     makes OUT/hf/ and OUT/model.gguf

The GGUF file goes through the gguf package, the safetensors through the format's own description,
so the readers are checked against two writers that know nothing of them.
"""

import json
import pathlib
import struct
import sys

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, CONTEXT = 32, 64, 4, 2, 8, 2, 128
QWEN_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
              r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA_WORDS = QWEN_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
TEXT = ["the river runs past the mill", "the mill grinds what the river brings", "12 345 miles"] * 9


def make_tokenizer(family):
    from tokenizers import Regex
    words = LLAMA_WORDS if family == "llama" else QWEN_WORDS
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(words), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin|>", "<|end|>"], show_progress=False))
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.tobytes())


def permute(weights, heads):
    """Rows of each head from (half, pair) to (pair, half), as GGUF keeps llama's q and k."""
    shape = weights.shape
    half = shape[0] // heads // 2
    return weights.reshape(heads, 2, half, *shape[1:]).swapaxes(1, 2).reshape(shape)


def main(family, out):
    rng = np.random.default_rng(20240917)
    tokenizer = make_tokenizer(family)
    document = json.loads(tokenizer.to_str())
    n_tokens = tokenizer.get_vocab_size()
    vocab = n_tokens + 3  # rows without a token, as many checkpoints have
    folder = out / "hf"
    folder.mkdir(parents=True, exist_ok=True)
    tied = family == "qwen2"

    q_rows, kv_rows = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {"model.embed_tokens.weight": ("token_embd.weight", (vocab, HIDDEN)),
              "model.norm.weight": ("output_norm.weight", (HIDDEN,))}
    if not tied:
        shapes["lm_head.weight"] = ("output.weight", (vocab, HIDDEN))
    for n in range(LAYERS):
        layer, block = f"model.layers.{n}.", f"blk.{n}."
        for name, (short, shape) in {
            "input_layernorm.weight": ("attn_norm.weight", (HIDDEN,)),
            "self_attn.q_proj.weight": ("attn_q.weight", (q_rows, HIDDEN)),
            "self_attn.k_proj.weight": ("attn_k.weight", (kv_rows, HIDDEN)),
            "self_attn.v_proj.weight": ("attn_v.weight", (kv_rows, HIDDEN)),
            "self_attn.o_proj.weight": ("attn_output.weight", (HIDDEN, q_rows)),
            "post_attention_layernorm.weight": ("ffn_norm.weight", (HIDDEN,)),
            "mlp.gate_proj.weight": ("ffn_gate.weight", (FFN, HIDDEN)),
            "mlp.up_proj.weight": ("ffn_up.weight", (FFN, HIDDEN)),
            "mlp.down_proj.weight": ("ffn_down.weight", (HIDDEN, FFN)),
        }.items():
            shapes[layer + name] = (block + short, shape)
        if family == "qwen2":
            for short, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
                shapes[f"{layer}self_attn.{short}_proj.bias"] = (f"{block}attn_{short}.bias", (rows,))
        if family == "qwen3":
            for short in "qk":
                shapes[f"{layer}self_attn.{short}_norm.weight"] = (
                    f"{block}attn_{short}_norm.weight", (HEAD_DIM,))

    # Values that BF16 holds exactly, so that both files can hold them in any of the types.
    values = {}
    for name, (_, shape) in shapes.items():
        bits = rng.standard_normal(shape, dtype=np.float32).view(np.uint32) & 0xFFFF0000
        values[name] = bits.view(np.float32)
    as_bf16 = lambda a: (a.view(np.uint32) >> 16).astype(np.uint16)
    safe = {name: ("BF16", as_bf16(a)) if a.ndim == 2 else ("F32", a)
            for name, a in values.items()}
    names = list(safe)
    shards = {"model-00001-of-00002.safetensors": names[::2],
              "model-00002-of-00002.safetensors": names[1::2]}
    if family == "llama":
        for shard, part in shards.items():
            write_safetensors(folder / shard, {name: safe[name] for name in part})
        (folder / "model.safetensors.index.json").write_text(json.dumps(
            {"weight_map": {name: shard for shard, part in shards.items() for name in part}}))
    else:
        write_safetensors(folder / "model.safetensors", safe)

    config = {
        "model_type": family, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "vocab_size": vocab,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
        "hidden_act": "silu", "tie_word_embeddings": tied, "bos_token_id": 0, "eos_token_id": 1,
        "sliding_window": 64, "use_sliding_window": False, "rope_scaling": None,
    }
    factors = None
    if family == "llama":
        config["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                  "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
        factors = []
        for i in range(HEAD_DIM // 2):
            turn = 2 * np.pi * 100000.0 ** (2 * i / HEAD_DIM)
            smooth = np.clip((64 / turn - 1) / 3, 0, 1)
            factors.append(1 / ((1 - smooth) / 8 + smooth))
    if family == "qwen3":
        config["head_dim"] = HEAD_DIM
        config["rope_scaling"] = {"type": "linear", "factor": 4.0}
    chat = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}))
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "add_bos_token": True,
         "chat_template": [{"name": "default", "template": chat}]}))

    writer = gguf.GGUFWriter(out / "model.gguf", family)
    writer.add_name("hf")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    writer.add_rope_dimension_count(HEAD_DIM)
    if family == "qwen3":
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    by_id = {number: token for token, number in ids.items()}
    special = {0: 3, 1: 3, ids["<tool>"]: 4}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(vocab)]
    types = [special.get(i, 1) if i in by_id else 5 for i in range(vocab)]
    merges = [m if isinstance(m, str) else " ".join(m) for m in document["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe" if family == "llama" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(chat)
    for number, (name, array) in enumerate(values.items()):
        short = shapes[name][0]
        if family == "llama" and short.endswith("attn_q.weight"):
            array = permute(array, HEADS)
        if family == "llama" and short.endswith("attn_k.weight"):
            array = permute(array, KV_HEADS)
        if array.ndim == 2 and number % 2:
            quantized = gguf.quants.quantize(array, gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(short, quantized, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(short, array)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
