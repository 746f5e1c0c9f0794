# SPDX-License-Identifier: Apache-2.0
"""GPT-2's forward pass in NumPy, from its description alone: the mean loss of each micro-batch.

usage: gpt2_numpy.py WEIGHTS.safetensors BATCHES.json
WEIGHTS: tensors with or without the prefix "transformer."; without lm_head.weight, the head is the token embedding.
BATCHES.json: {"heads": H, "context": T, "batches": [{"input": [...], "target": [...]}, ...]}
"""
import json
import struct
import sys

import numpy as np


def load(path):
    data = open(path, "rb").read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    w = {name.removeprefix("transformer."):
         np.frombuffer(data[start + t["data_offsets"][0]:start + t["data_offsets"][1]], "<f4")
         .astype(np.float64).reshape(t["shape"]) for name, t in header.items()}
    w.setdefault("lm_head.weight", w["wte.weight"])
    return w


def norm(w, name, x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[name + ".weight"] + w[name + ".bias"]


def conv(w, name, x):
    return x @ w[name + ".weight"] + w[name + ".bias"]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def logits(w, tokens, heads):
    count = tokens.shape[1]
    x = w["wte.weight"][tokens] + w["wpe.weight"][:count]
    mask = np.where(np.tri(count) > 0, 0, -np.inf)
    block = 0
    while f"h.{block}.ln_1.weight" in w:
        h = f"h.{block}."
        q, k, v = (np.stack(np.split(part, heads, -1), 1)  # sequence, head, token, column
                   for part in np.split(conv(w, h + "attn.c_attn", norm(w, h + "ln_1", x)), 3, -1))
        p = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + mask)
        x = x + conv(w, h + "attn.c_proj", np.concatenate(list((p @ v).swapaxes(0, 1)), -1))
        u = conv(w, h + "mlp.c_fc", norm(w, h + "ln_2", x))
        gelu = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))
        x = x + conv(w, h + "mlp.c_proj", gelu)
        block += 1
    return norm(w, "ln_f", x) @ w["lm_head.weight"].T


weights, job = load(sys.argv[1]), json.load(open(sys.argv[2]))
for batch in job["batches"]:
    tokens, target = (np.array(batch[key]).reshape(-1, job["context"]) for key in ("input", "target"))
    p = softmax(logits(weights, tokens, job["heads"]))
    print(repr(float(-np.log(np.take_along_axis(p, target[..., None], -1)).mean())))
