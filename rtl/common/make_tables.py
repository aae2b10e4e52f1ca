#!/usr/bin/env python3
"""Writes sluice_tables.sv: the tables of src/fixed/functions.h for the fabric."""
import math

sigmoid = [math.floor(65536 / (1 + math.exp(-i / 16)) + 0.5) for i in range(257)]
rises = [(sigmoid[i + 1] - sigmoid[i]) << 17 | sigmoid[i] for i in range(256)]
powers = [min(math.floor(2 ** (15 - i / 256) + 0.5), 32767) for i in range(256)]


def vector(name, bits, values, text):
    entries = [f"{bits}'h{value:x}" for value in reversed(values)]
    rows = [", ".join(entries[i:i + 8]) for i in range(0, len(entries), 8)]
    body = ",\n      ".join(rows)
    return (f"  // {text}\n  localparam logic [{bits * len(values) - 1}:0] {name} = {{\n"
            f"      {body}}};\n")


print("// Made by make_tables.py from the formulas of src/fixed/functions.h: do not edit.")
print("package sluice_tables;\n")
print(vector("Sigmoid", 29, rises, "Entry i: fixed::kSigmoidTable[i], and above its 17 bits the rise"
             " to entry i + 1."))
print(vector("Exp2", 15, powers, "Entry i: fixed::kExp2Table[i]."))
print("endpackage")
