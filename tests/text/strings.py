"""Strings to tokenize, from a seed: the kinds of text that tokenizers disagree about."""

import os
import random
import sys
import unicodedata

WORDS = (
    "the of and to in is it's don't we'll they've I'm you're he'd can't WE'LL It'S o'clock river "
    "weights token stream memory Hello world naïve café résumé Straße Ελλάδα Москва привет שלום "
    "مرحبا नमस्ते สวัสดี 안녕하세요 こんにちは 你好世界 中文分词测试 a1b2 3.14159 1234567 x86_64 e-mail http://a.b/c?d=e&f "
    "CamelCase snake_case UPPER 'ſ 'S 'RE 't''s ''ll"
).split(" ")
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\t\t", "\v", "\f", "\x85", "\xa0",
          "\u1680", "\u180e", "\u2000", "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f",
          "\u3000", "\ufeff", "\x1c", "\x1f"]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪", "❤️", "🏳️‍🌈", "1️⃣", "🤖", "☃", "𝕏", "🀄"]
# Spellings of tokens, and what nearly is one.
TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_end", "<|im_start|", "<s>", "</s>", "<unk>",
          "<file_sep>", "<0x0A>", "<|", "|>", "<|im_start|>user\n", "[INST]", "▁"]


def source_text():
    """Text that every Python brings along: the sources of its library."""
    folder = os.path.dirname(os.__file__)
    names = ["argparse.py", "random.py", "textwrap.py", "json/decoder.py", "html/entities.py", "this.py"]
    return "".join(open(os.path.join(folder, name), encoding="utf-8").read() for name in names)


def assigned():
    """Code points that are characters in this Python's version of Unicode."""
    points = [c for c in range(0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    # Of combining marks only old ones: packages differ in the age of the Unicode that they normalise by.
    old = unicodedata.ucd_3_2_0
    points = [c for c in points if unicodedata.combining(chr(c)) == old.combining(chr(c))]
    common = [c for c in points if c < 0x3000]
    return points, common


def make(seed, count):
    """`count` byte strings; a fraction is no valid UTF-8."""
    print(f"strings.py: seed {seed}, {count} strings", file=sys.stderr)
    rng = random.Random(seed)
    code = source_text()
    points, common = assigned()

    def words():
        return "".join(rng.choice(WORDS) + rng.choice([" ", " ", " ", ", ", ". ", rng.choice(SPACES)])
                       for _ in range(rng.randint(1, 20)))

    def code_part():
        begin = rng.randrange(len(code))
        return code[begin:begin + rng.randint(1, 300)]

    def chinese():
        return "".join(chr(rng.randint(0x4E00, 0x9FA5)) if rng.random() < 0.9 else rng.choice("，。！？ \n")
                       for _ in range(rng.randint(1, 40)))

    def characters():
        source = rng.choice([points, common, common, range(0x80), range(0x20, 0x100)])
        return "".join(chr(rng.choice(source)) for _ in range(rng.randint(1, 30)))

    def numbers():
        digits = "0123456789²½Ⅷ٣५一①"
        return "".join(rng.choice(digits) if rng.random() < 0.8 else rng.choice(" .,-'aé\n")
                       for _ in range(rng.randint(1, 25)))

    def spaces():
        return "".join(rng.choice(SPACES) if rng.random() < 0.7 else rng.choice("a1.'\u00e9-")
                       for _ in range(rng.randint(1, 20)))

    def emoji():
        return "".join(rng.choice(EMOJI) + rng.choice(["", "", " ", "a"]) for _ in range(rng.randint(1, 10)))

    def tokens():
        return "".join(rng.choice(TOKENS) if rng.random() < 0.5 else rng.choice(WORDS + SPACES)
                       for _ in range(rng.randint(1, 12)))

    def run():
        unit = rng.choice([" ", "\n", "a", "1", "=", "ab", "é", "😀", "\r\n", " \n", "中", "'s", "\t", "A1 "])
        return rng.choice(["", "x", " "]) + unit * rng.randint(1, 400) + rng.choice(["", "y", " ", "\n"])

    def mixture():
        return "".join(rng.choice(kinds)()[:30] for _ in range(4))

    kinds = [words, code_part, chinese, characters, numbers, spaces, emoji, tokens, run]

    def broken():
        data = bytearray(rng.choice(kinds)().encode()[:80])
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            data[at:at + rng.randint(0, 2)] = rng.choice(
                [b"\xff", b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90",
                 bytes([rng.randrange(256)])])
        return bytes(data)

    fixed = ["", " ", "  ", "\n", "a", " a", "\0", "'s", "'", "▁", " ▁ ", "é", "e\u0301",
             "a" * 20000, " " * 20000, "\n" * 20000, "7" * 20000, "😀" * 5000, "ab " * 7000, "." * 20000]
    strings = [text.encode() for text in fixed]
    while len(strings) < count:
        pick = rng.randrange(len(kinds) + 3)
        strings.append(broken() if pick < 2 else (mixture if pick == 2 else kinds[pick - 3])().encode())
    return strings
