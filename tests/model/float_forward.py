"""Logits of a tiny model in float64, written from the model's definition alone.

usage: float_forward.py MODEL.json TENSORS.bin LOGITS.bin
"""

import json
import sys

import numpy as np


def rms_norm(x, gain, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def rope(x, positions, base, factors):
    half = x.shape[-1] // 2
    frequency = base ** (-np.arange(half) / half) / factors
    angle = positions[:, None] * frequency[None, :]
    rotation = np.exp(1j * angle)[:, None, :]
    pair = (x[..., :half] + 1j * x[..., half:]) * rotation
    return np.concatenate([pair.real, pair.imag], axis=-1)


def forward(config, tensors, tokens):
    def get(role, layer=0):
        return tensors.get(f"{role}.{layer}")

    heads, kv_heads, dim = config["n_heads"], config["n_kv_heads"], config["head_dim"]
    eps = config["rms_eps"]
    positions = np.arange(len(tokens), dtype=np.float64)
    factors = np.array(config["rope_factors"]) if config["rope_factors"] else 1.0
    x = get("embedding")[tokens]
    mask = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for layer in range(config["n_layers"]):
        h = rms_norm(x, get("attn_norm", layer)[0], eps)
        states = {}
        for role, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            y = h @ get(role, layer).T
            if get(f"{role}_bias", layer) is not None:
                y = y + get(f"{role}_bias", layer)[0]
            y = y.reshape(len(tokens), count, dim)
            if get(f"{role}_norm", layer) is not None:
                y = rms_norm(y, get(f"{role}_norm", layer)[0], eps)
            states[role] = y
        q = rope(states["q"], positions, config["rope_base"], factors)
        k = np.repeat(rope(states["k"], positions, config["rope_base"], factors), heads // kv_heads, 1)
        v = np.repeat(states["v"], heads // kv_heads, 1)
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(dim) + mask
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        mixed = np.einsum("hts,shd->thd", p, v).reshape(len(tokens), -1)
        x = x + mixed @ get("o", layer).T
        h = rms_norm(x, get("ffn_norm", layer)[0], eps)
        gate = h @ get("gate", layer).T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ get("up", layer).T)) @ get("down", layer).T
    head = get("head") if get("head") is not None else get("embedding")
    return rms_norm(x, get("output_norm")[0], eps) @ head.T


def main():
    with open(sys.argv[1], encoding="utf-8") as handle:
        config = json.load(handle)
    values = np.fromfile(sys.argv[2], dtype=np.float32).astype(np.float64)
    tensors, at = {}, 0
    for name, rows, cols in config["tensors"]:
        tensors[name] = values[at : at + rows * cols].reshape(rows, cols)
        at += rows * cols
    assert at == len(values)
    logits = [forward(config, tensors, np.array(w)) for w in config["windows"]]
    np.concatenate(logits).astype(np.float32).tofile(sys.argv[3])


main()
