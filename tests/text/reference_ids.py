"""Token ids by the `tokenizers` and `sentencepiece` packages, for tokenizer_reference_test.cc.

reference_ids.py KIND MODEL SEED COUNT OUT
  KIND   a pre-tokenizer of byte-level BPE (gpt-2, llama-bpe, qwen2, smollm), or "llama"
  MODEL  a GGUF file whose vocabulary to use; empty: train a small one
OUT: metadata, count, then per string: the bytes, parse_special as a byte, the ids.
"""

import sys

try:
    import sentencepiece
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    import gguf  # noqa: F401, used by reference_file
except ImportError as error:
    print(f"reference_ids.py: {error}", file=sys.stderr)
    sys.exit(77)

import io
import json
import random

import strings
from reference_file import Writer, gguf_metadata

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>"]

# From the tokenizer.json files of Qwen2.5 and Llama 3; they differ in the digits only.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def pre_tokenizer(kind):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind in ("gpt-2", "smollm"))
    if kind == "gpt-2":
        return byte_level
    if kind == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    pattern = SPLIT % {"qwen2": "", "llama-bpe": "{1,3}"}[kind]
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def corpus():
    text = strings.source_text()
    return text.splitlines() + [" ".join(strings.WORDS)] * 3 + ["你好世界 中文分词测试"] * 3


def train_byte_level(kind):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(kind)
    # Some bytes get no token, as in SmolLM2: 00 to 07, which are U+0100 to U+0107.
    alphabet = [c for c in pre_tokenizers.ByteLevel.alphabet() if not 0x100 <= ord(c) < 0x108]
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=3000, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3 if t in CONTROL else 1 for t in tokens],
        "tokenizer.ggml.eos_token_id": 2,
    }


def byte_level(kind, metadata, nfc, normalized=()):
    """Completes `metadata` and returns it with its encode(text, parse_special). `normalized`: user-defined
    tokens that are looked for after normalising."""
    metadata |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": kind}
    vocabulary = {token: id for id, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]

    def build(control):
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=kind == "llama-bpe"))
        tokenizer.pre_tokenizer = pre_tokenizer(kind)
        if nfc:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.add_tokens([AddedToken(t, normalized=t in normalized) for t in user_defined])
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
        return tokenizer

    types = metadata["tokenizer.ggml.token_type"]
    user_defined = [token for token, type in zip(vocabulary, types) if type == 4]
    plain = build([])
    special = build([token for token, type in zip(vocabulary, types) if type == 3])

    def encode(text, parse_special):
        return (special if parse_special else plain).encode(text, add_special_tokens=False).ids

    return metadata, encode


def sentence_piece():
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in corpus() if line), model_writer=trained, model_type="bpe",
        vocab_size=2000, byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, character_coverage=0.999, minloglevel=2,
        control_symbols=["<|im_start|>", "<|im_end|>"])
    model = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    ids = range(model.get_piece_size())
    types = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1
             for i in ids]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [float(model.get_score(i)) for i in ids],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
    }
    control = {model.id_to_piece(i): i for i in ids if types[i] == 3}

    def encode(text, parse_special):
        if not parse_special:
            return model.encode(text)
        # Each run of ordinary text between control tokens is a text of its own.
        result = []
        while text:
            found = [(at, name) for name in control if (at := text.find(name)) >= 0]
            at, name = min(found, default=(len(text), ""))
            result += model.encode(text[:at])
            result += [control[name]] if name else []
            text = text[at + len(name):]
        return result

    return metadata, encode


def main(kind, model, seed, count, out):
    if kind == "llama":
        metadata, encode = sentence_piece()
    else:
        metadata = gguf_metadata(model) if model else train_byte_level(kind)
        metadata, encode = byte_level(kind, metadata, nfc=kind == "qwen2")
    writer = Writer(out)
    writer.metadata(metadata)
    texts = strings.make(int(seed), int(count))
    rng = random.Random(int(seed) + 1)
    writer.number("I", len(texts))
    for data in texts:
        parse_special = rng.random() < 0.5
        writer.string(data)
        writer.number("B", parse_special)
        writer.ints(encode(data.decode(errors="replace"), parse_special))


if __name__ == "__main__":
    main(*sys.argv[1:])
