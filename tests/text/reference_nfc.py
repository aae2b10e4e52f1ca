"""Text in NFC and its token ids by the `tokenizers` package, for nfc_reference_test.cc.

reference_nfc.py KIND SEED COUNT OUT
  KIND   qwen2, or another pre-tokenizer of byte-level BPE: then metadata ask for NFC
OUT: metadata, count, then per string: the bytes, parse_special as a byte, the text in NFC, the ids.
"""

import random
import sys
import unicodedata

import reference_ids  # first: it says so where a package is missing
import strings
from reference_file import Writer
from tokenizers import normalizers

# Half in NFC, half not; one begins with a mark, one is part of another.
RAW = ["<tool>", "<\u00e9>", "<a\u0323\u0301>", "<tool>\u0338"]
NORMALIZED = ["<|\u1ec7|>", "<|o\u0302\u0323|>", "<|\u212b|>", "  ", "\u0301]", "tool"]

SYLLABLES = "tiếng Việt nghiêng những Đường ỷ ỗ ậ ặ ợ ữ ằm ẵ Nguyễn Huế phở".split(" ")
# Letters with several marks that the order of typing leaves open, and marks of many classes.
MARKS = [0x300, 0x301, 0x302, 0x303, 0x304, 0x306, 0x307, 0x308, 0x30A, 0x30C, 0x313, 0x314, 0x315, 0x316, 0x31B,
         0x323, 0x324, 0x325, 0x327, 0x328, 0x32D, 0x330, 0x331, 0x335, 0x338, 0x340, 0x341, 0x342, 0x343, 0x344,
         0x345, 0x34F, 0x358, 0x360, 0x5B0, 0x5BC, 0x5C1, 0x64B, 0x651, 0x653, 0x654, 0x655, 0x670, 0x93C, 0x94D,
         0x9BE, 0x9D7, 0xB3E, 0xB56, 0xBBE, 0xC56, 0xCC2, 0xCD5, 0xD3E, 0xDCA, 0xDCF, 0xDDF, 0xE38, 0xE48, 0xF71,
         0xF72, 0xF74, 0xF80, 0x102E, 0x1B35, 0x20D0, 0x3099, 0x309A, 0xFB1E, 0xFE20, 0x110BA, 0x11127, 0x1133E,
         0x11357, 0x114B0, 0x114BA, 0x114BD, 0x115AF, 0x1D165, 0x1D16E]
# What composes with them, and what is excluded from composition.
BASES = [0x41, 0x45, 0x4F, 0x61, 0x65, 0x69, 0x6F, 0x75, 0x79, 0x73, 0x3C, 0x3D, 0x3E, 0xE2, 0x1A1, 0x1EA1, 0x3B1,
         0x3C9, 0x1F00, 0x418, 0x5E9, 0x627, 0x648, 0x915, 0x928, 0x9C7, 0xB47, 0xBC6, 0xCC6, 0xD46, 0xDD9, 0x1025,
         0x1B05, 0x304B, 0x306F, 0x30CF, 0x2ADD, 0xF40, 0x11099, 0x11131, 0x11347, 0x114B9, 0x115B8, 0x1D157,
         *range(0x958, 0x960), 0x9DC, 0x9DD, 0x9DF, 0xA33, 0xA36, 0xB5C, 0xF43, 0xF73, 0xF75, 0xF76, 0xF81, 0x2ADC,
         *range(0xFB1D, 0xFB4F), 0x1D15E, 0x1D1BC]
SINGLES = [0x2126, 0x212A, 0x212B, 0x374, 0x37E, 0x387, 0x1F71, 0x1FBE, 0x1FEF, 0x2000, 0x2001, 0x2329, 0x232A]


def old_characters():
    """Characters that Unicode 3.2 has: every package has these, and none normalises them otherwise."""
    known = unicodedata.ucd_3_2_0.category
    return [c for c in range(0x30000) if known(chr(c)) not in ("Cn", "Cs", "Co")]


def make(seed, count):
    """`count` byte strings; most are not in NFC, a few no valid UTF-8."""
    print(f"reference_nfc.py: seed {seed}, {count} strings", file=sys.stderr)
    rng = random.Random(seed)
    old = old_characters()
    apart = [c for c in old if unicodedata.normalize("NFD", chr(c)) != chr(c)]

    def several(make_one, most):
        return "".join(make_one() for _ in range(rng.randint(1, most)))

    def pick(codes):
        return chr(rng.choice(codes))

    def vietnamese():
        form = rng.choice(["NFD", "NFD", "NFC"])
        return unicodedata.normalize(form, rng.choice(SYLLABLES)) + rng.choice([" ", " ", "", ", ", "\n"])

    def jamo():
        kind = rng.randrange(8)
        lead, vowel = rng.randint(0x1100, 0x1112), rng.randint(0x1161, 0x1175)
        trail = rng.randint(0x11A7, 0x11C2)
        if kind < 4:
            return chr(lead) + chr(vowel) + (chr(trail) if kind < 2 else "")
        if kind == 4:
            return chr(rng.randint(0xAC00, 0xD7A3)) + chr(trail)
        if kind == 5:
            return pick([0x1113, 0x115F, 0x1160, 0x1176, 0x11C3, lead, vowel, trail])
        return chr(lead) + pick(MARKS) + chr(vowel) if kind == 6 else pick([0x20, 0x61, 0x4E00])

    def marked():
        return pick(BASES) + "".join(pick(MARKS) for _ in range(rng.randint(0, 6)))

    def only_marks():
        return "".join(pick(MARKS) for _ in range(rng.randint(1, 40)))

    def single():
        return pick(SINGLES) + rng.choice(["", " ", "\u0301", "a"])

    def ideograph():
        return chr(rng.choice([rng.randint(0xF900, 0xFA2D), rng.randint(0xFA30, 0xFA6A), rng.randint(0x2F800, 0x2FA1D),
                               rng.randint(0x4E00, 0x9FA5)]))

    def any_decomposed():
        return unicodedata.normalize(rng.choice(["NFD", "NFC"]), pick(apart)) + rng.choice(["", pick(MARKS)])

    def any_old():
        return pick(old)

    def words():
        return unicodedata.normalize("NFD", rng.choice(strings.WORDS)) + rng.choice([" ", "\n", "  "])

    def tokens():
        text = rng.choice(RAW + NORMALIZED + reference_ids.CONTROL + ["<|", "]", ">", "  ", "a"])
        text = unicodedata.normalize(rng.choice(["NFC", "NFD"]), text) if rng.random() < 0.5 else text
        return text + rng.choice(["", "", "\u0338", "\u0301", " ", pick(BASES)])

    kinds = [vietnamese, jamo, marked, only_marks, single, ideograph, any_decomposed, any_old, words, tokens]

    def mixture():
        return rng.choice(kinds)()

    texts = [b"", "\u0301".encode(), "\u1100\u1161\u11A7".encode(), "<|im_end|>\u0338".encode(),
             ("a" + "\u0316\u0301" * 3000).encode(), ("\u0301" * 5000).encode(), ("\u1100\u1161\u11A8" * 2000).encode()]
    while len(texts) < count:
        kind = rng.choice(kinds + [mixture] * 4)
        data = bytearray(several(kind, 15).encode())
        if rng.random() < 0.05:
            at = rng.randrange(len(data) + 1)
            data[at:at] = rng.choice([b"\xff", b"\xcc", b"\xe2\x82", b"\xed\xa0\x80"])
        texts.append(bytes(data))
    return texts


def main(kind, seed, count, out):
    metadata = reference_ids.train_byte_level(kind)
    added = RAW + NORMALIZED
    metadata["tokenizer.ggml.tokens"] += added
    metadata["tokenizer.ggml.token_type"] += [4] * len(added)
    end = len(metadata["tokenizer.ggml.tokens"])
    metadata["sluice.normalized_tokens"] = list(range(end - len(NORMALIZED), end))
    if kind != "qwen2":
        metadata["sluice.nfc"] = True
    metadata, encode = reference_ids.byte_level(kind, metadata, nfc=True, normalized=NORMALIZED)
    writer = Writer(out)
    writer.metadata(metadata)
    texts = make(int(seed), int(count))
    rng = random.Random(int(seed) + 1)
    nfc = normalizers.NFC()
    writer.number("I", len(texts))
    for data in texts:
        parse_special = rng.random() < 0.5
        text = data.decode(errors="replace")
        writer.string(data)
        writer.number("B", parse_special)
        writer.string(nfc.normalize_str(text))
        writer.ints(encode(text, parse_special))


if __name__ == "__main__":
    main(*sys.argv[1:])
