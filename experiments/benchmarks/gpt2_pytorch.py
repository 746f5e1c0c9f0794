#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The work of gpt2.py and cpu.py in PyTorch: the same network, micro-batches, optimizer and precision; prints one JSON object.
With --mlp the network is cpu.py's MLP, and a micro-batch has samples.

Weights are fp32. With bf16, autocast makes bf16 copies for the matrix products, as is usual. The gradients of the
micro-batches accumulate; then AdamW updates the weights, fused on a GPU (weight decay on all parameters, as in starpipe).
PyTorch 1 has no fused attention: there it is products and a softmax, on the CPU only.
"""
import argparse
import contextlib
import json
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    sys.exit("PyTorch is not installed")

VOCABULARY = 256


def attention(q, k, v):
    if hasattr(functional, "scaled_dot_product_attention"):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.c_attn, self.attn_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.c_fc, self.mlp_proj = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, context, hidden = x.shape
        q, k, v = (part.view(batch, context, self.heads, hidden // self.heads).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).split(hidden, dim=2))
        y = attention(q, k, v)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(batch, context, hidden))
        return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, context):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, hidden), nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(hidden), nn.Linear(hidden, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02 / ((2 * layers) ** 0.5 if "_proj" in name else 1))

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x)).float()
        return functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


class Mlp(nn.Module):
    def __init__(self, layers, hidden):
        super().__init__()
        hidden_layers = (module for _ in range(layers) for module in (nn.Linear(hidden, hidden), nn.GELU(approximate="tanh")))
        self.layers = nn.Sequential(*hidden_layers, nn.Linear(hidden, hidden))

    def forward(self, inputs, targets):
        return functional.mse_loss(self.layers(inputs).float(), targets)


def work(arguments, device):
    """The network, and a function that draws inputs and targets of a micro-batch."""
    if arguments.mlp:
        teacher = torch.randn(arguments.hidden, arguments.hidden, device=device) / arguments.hidden**0.5

        def samples():
            inputs = torch.randn(arguments.microbatch_size, arguments.hidden, device=device)
            return inputs, (inputs @ teacher).tanh()

        return Mlp(arguments.layers, arguments.hidden).to(device), samples

    with open(arguments.text, "rb") as file:
        text = torch.tensor(list(file.read()), device=device)

    def sequences():
        starts = torch.randint(len(text) - arguments.context, (arguments.microbatch_size, 1), device=device)
        at = starts + torch.arange(arguments.context, device=device)
        return text[at], text[at + 1]

    return Gpt(arguments.layers, arguments.hidden, arguments.heads, arguments.context).to(device), sequences


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "hidden", "microbatches", "microbatch-size", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    for name in ("heads", "context"):
        parser.add_argument("--" + name, type=int, help="of a GPT")
    parser.add_argument("--mlp", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], required=True)
    parser.add_argument("--text", help="of a GPT")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU (default: 1, as starpipe with one stage)")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    if not arguments.mlp and None in (arguments.heads, arguments.context, arguments.text):
        parser.error("a GPT needs --heads, --context and --text")
    if (arguments.compile or arguments.device == "cuda") and not hasattr(torch, "compile"):
        sys.exit(f"PyTorch {torch.__version__} is too old for this; 2.0 is not")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"PyTorch {torch.__version__} finds no CUDA device")

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high" if arguments.precision == "tf32" else "highest")
    device = torch.device(arguments.device)
    if arguments.device == "cpu":
        torch.set_num_threads(arguments.threads)
    model, batch = work(arguments, device)
    fast = {"fused": True} if arguments.device == "cuda" else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, **fast)
    loss_of = torch.compile(model) if arguments.compile else model
    cast = (torch.autocast(arguments.device, dtype=torch.bfloat16) if arguments.precision == "bf16"
            else contextlib.nullcontext())

    def step():
        loss_sum = torch.zeros((), device=device)
        for _ in range(arguments.microbatches):
            inputs, targets = batch()
            with cast:
                loss = loss_of(inputs, targets) / arguments.microbatches
            loss.backward()
            loss_sum += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss_sum.item()  # reading the value waits for the GPU

    losses, seconds = [], []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"name": f"PyTorch, {'compiled' if arguments.compile else 'eager'}",
                      "version": torch.__version__, "step_seconds": seconds, "losses": losses}))


if __name__ == "__main__":
    main()
