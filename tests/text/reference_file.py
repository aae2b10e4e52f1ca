"""The format in which the references hand their results to the C++ tests (reference.h)."""

import struct


class Writer:
    def __init__(self, path):
        self.file = open(path, "wb")

    def number(self, format, value):
        self.file.write(struct.pack("<" + format, value))

    def string(self, value):
        data = value if isinstance(value, bytes) else value.encode()
        self.number("I", len(data))
        self.file.write(data)

    def ints(self, values):
        self.number("I", len(values))
        self.file.write(struct.pack(f"<{len(values)}i", *values))

    def metadata(self, pairs):
        self.number("I", len(pairs))
        for key, value in pairs.items():
            self.string(key)
            if isinstance(value, str):
                self.file.write(b"s")
                self.string(value)
            elif isinstance(value, bool):
                self.file.write(b"b")
                self.number("B", value)
            elif isinstance(value, int):
                self.file.write(b"u")
                self.number("I", value)
            elif isinstance(value[0], str):
                self.file.write(b"S")
                self.number("I", len(value))
                for item in value:
                    self.string(item)
            elif isinstance(value[0], int):
                self.file.write(b"I")
                self.ints(value)
            else:
                self.file.write(b"F")
                self.number("I", len(value))
                self.file.write(struct.pack(f"<{len(value)}f", *value))


def gguf_metadata(path, prefix="tokenizer."):
    """The metadata of a GGUF file under `prefix`, as plain Python values."""
    import gguf

    fields = gguf.GGUFReader(path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith(prefix)}
