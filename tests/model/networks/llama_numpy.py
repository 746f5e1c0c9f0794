# SPDX-License-Identifier: Apache-2.0
"""Llama in NumPy, from its description alone, with weights in Hugging Face's names and shapes.

usage: llama_numpy.py make JOB.json WEIGHTS.safetensors   writes random weights
       llama_numpy.py run JOB.json WEIGHTS.safetensors    prints a line for each micro-batch, its mean loss, then one
                                                          "NAME INDEX DERIVATIVE" for some weights: the derivative of
                                                          the last micro-batch's loss, by central differences
JOB.json: {"layers", "hidden", "heads", "kv_heads", "intermediate", "context", "vocabulary", "rope_theta", "epsilon",
           "batches": [{"input": [...], "target": [...]}, ...]}
"""
import json
import struct
import sys

import numpy as np


def shapes(job):
    """The tensors of LlamaForCausalLM."""
    hidden, inner = job["hidden"], job["intermediate"]
    keys = hidden // job["heads"] * job["kv_heads"]
    result = {"model.embed_tokens.weight": (job["vocabulary"], hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (job["vocabulary"], hidden)}
    for layer in range(job["layers"]):
        for name, shape in {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden),
                            "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, hidden),
                            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
                            "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
                            "post_attention_layernorm": (hidden,)}.items():
            result[f"model.layers.{layer}.{name}.weight"] = shape
    return result


def write(path, tensors):
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))


def read(path):
    data = open(path, "rb").read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    return {name: np.frombuffer(data[start + t["data_offsets"][0]:start + t["data_offsets"][1]], "<f4")
            .astype(np.float64).reshape(t["shape"]) for name, t in json.loads(data[8:start]).items()
            if name != "__metadata__"}


def norm(weight, x, job):
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + job["epsilon"])


def rotate_half(x):
    left, right = np.split(x, 2, -1)
    return np.concatenate([-right, left], -1)


def rotary(x, job):
    """x: [..., position, column of a head]."""
    count, size = x.shape[-2:]
    frequencies = 1 / job["rope_theta"] ** (np.arange(0, size, 2) / size)
    angles = np.tile(np.outer(np.arange(count), frequencies), 2)
    return x * np.cos(angles) + rotate_half(x) * np.sin(angles)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(w, name, x, job):
    def heads(part, count):  # sequence, head, position, column
        y = x @ w[f"{name}.{part}_proj.weight"].T
        return y.reshape(*y.shape[:2], count, -1).swapaxes(1, 2)

    q = rotary(heads("q", job["heads"]), job)
    k = rotary(heads("k", job["kv_heads"]), job)
    k, v = (np.repeat(part, job["heads"] // job["kv_heads"], 1) for part in (k, heads("v", job["kv_heads"])))
    mask = np.where(np.tri(x.shape[1]) > 0, 0, -np.inf)
    y = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + mask) @ v
    return y.swapaxes(1, 2).reshape(x.shape) @ w[name + ".o_proj.weight"].T


def loss(w, batch, job):
    tokens, target = (np.array(batch[key]).reshape(-1, job["context"]) for key in ("input", "target"))
    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(job["layers"]):
        name = f"model.layers.{layer}."
        x = x + attention(w, name + "self_attn", norm(w[name + "input_layernorm.weight"], x, job), job)
        u = norm(w[name + "post_attention_layernorm.weight"], x, job)
        gate, up = (u @ w[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[name + "mlp.down_proj.weight"].T
    p = softmax(norm(w["model.norm.weight"], x, job) @ w["lm_head.weight"].T)
    return float(-np.log(np.take_along_axis(p, target[..., None], -1)).mean())


def derivative(w, name, index, batch, job):
    flat, step = w[name].reshape(-1), 1e-4
    start, values = flat[index], []
    for distance in (2, 1, -1, -2):
        flat[index] = start + distance * step
        values.append(loss(w, batch, job))
    flat[index] = start
    return (8 * (values[1] - values[2]) - (values[0] - values[3])) / (12 * step)


def main():
    action, job, path = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3]
    random = np.random.default_rng(7)
    if action == "make":
        tensors = {name: random.normal(1.0 if len(shape) == 1 else 0.0, 0.3, shape) for name, shape in shapes(job).items()}
        # Old versions of transformers saved these too.
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(job["hidden"] // job["heads"] // 2)
        return write(path, {name: values.astype("<f4") for name, values in tensors.items()})
    w = read(path)
    assert {name: values.shape for name, values in w.items()} == shapes(job), "names or shapes are not Llama's"
    for batch in job["batches"]:
        print(repr(loss(w, batch, job)))
    last = job["batches"][-1]
    for name, values in w.items():
        # Rows of tokens that the micro-batch does not have get no gradient.
        rows = last["input"] if name == "model.embed_tokens.weight" else range(len(values))
        columns = values.size // len(values)
        for _ in range(3):
            index = int(random.choice(rows)) * columns + int(random.integers(columns))
            print(name, index, repr(derivative(w, name, index, last, job)))


main()
