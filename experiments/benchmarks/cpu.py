#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens/s of networks on two cores: starpipe, PyTorch, and the matrix products of a step alone.

    experiments/benchmarks/cpu.py [--models 4x256x1,6x384x1,4x512x2] [--precisions fp32,bf16] [--schedules ddp,1f1b]

A model is a GPT, layers x hidden x sequences of 256 tokens in each of 8 micro-batches, or an MLP, such as mlp8x1024x64: layers
x hidden x samples in each of 8 micro-batches; for it "tokens" are samples. starpipe has two workers. PyTorch
(gpt2_pytorch.py) has one process with one thread and one with two; the faster one counts. "Products" are those of
starpipe's layers, on both cores, without anything else (step_products_benchmark). All programs run in turn, several
times; the figures are medians over the steps of all runs. Nothing else should run on the machine.

PyTorch of Debian multiplies with OpenBLAS, which knows processors by their model. The command gives it the kernels that
starpipe would choose from the processor's features (OPENBLAS_CORETYPE), unless this variable is set.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TEXT = "/usr/share/common-licenses/GPL-3"
CONTEXT, MICROBATCHES = 256, 8
GPT = """
model:    {{kind: gpt, layers: {layers}, hidden: {hidden}, heads: {heads}, context: {context}}}
data:     {{kind: text, path: {text}}}"""
MLP = """
model:    {{kind: mlp, layers: {layers}, hidden: {hidden}, inputs: {hidden}, outputs: {hidden}}}"""
CONFIG = """
training: {{microbatches: {microbatches}, microbatch_size: {sequences}, steps: {steps}, seed: 1,
           optimizer: {{kind: adamw, learning_rate: 3.0e-4, weight_decay: 0.1}}}}
schedule: {{name: {schedule}, workers: 2}}
runtime:  {{precision: {precision}}}
"""


def ended(run):
    if run.returncode:
        sys.exit(f"{' '.join(map(str, run.args))} ended with status {run.returncode}:\n{run.stderr}")
    return run


def kernels():
    """The environment with OpenBLAS's kernels for this processor's features."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        features = next((line for line in file if line.startswith("flags")), "").split()
    core = "SkylakeX" if "avx512vl" in features else "Haswell" if "avx2" in features else None
    return {**({"OPENBLAS_CORETYPE": core} if core else {}), **os.environ}


def starpipe(arguments, model, precision, schedule):
    with tempfile.TemporaryDirectory() as folder:
        config, report = (pathlib.Path(folder) / name for name in ("network.yaml", "report.json"))
        text = (MLP if model["mlp"] else GPT) + CONFIG
        config.write_text(text.format(text=TEXT, microbatches=MICROBATCHES, steps=arguments.steps, schedule=schedule,
                                      precision=precision, **model))
        ended(subprocess.run([arguments.starpipe, "train", config, "--report", report], capture_output=True, text=True,
                             check=False))
        return json.loads(report.read_text())


def pytorch(arguments, model, precision, threads):
    command = [arguments.python, HERE / "gpt2_pytorch.py", "--device", "cpu", "--precision", precision, "--threads", threads,
               "--layers", model["layers"], "--hidden", model["hidden"], "--microbatches", MICROBATCHES,
               "--microbatch-size", model["sequences"], "--steps", arguments.steps]
    command += ["--mlp"] if model["mlp"] else ["--text", TEXT, "--heads", model["heads"], "--context", CONTEXT]
    return json.loads(ended(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False,
                                           env=kernels())).stdout)


def products(arguments, model, precision):
    command = [arguments.products, *(["--mlp"] if model["mlp"] else []), precision, model["layers"], model["hidden"],
               model["context"], model["sequences"]]
    return float(ended(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False,
                                      env={**kernels(), "OPENBLAS_NUM_THREADS": "1"})).stdout)


def measure(arguments, model, precision):
    """Tokens/s of each program, and its last loss."""
    seconds, losses, alone = {}, {}, []
    tokens = MICROBATCHES * model["sequences"] * model["context"]
    for _ in range(arguments.runs):
        alone.append(products(arguments, model, precision))
        runs = [(schedule, starpipe(arguments, model, precision, schedule)) for schedule in arguments.schedules.split(",")]
        if not arguments.no_pytorch:
            runs += [(f"PyTorch, {n} thread{'s' * (n > 1)}", pytorch(arguments, model, precision, n)) for n in (1, 2)]
        for name, result in runs:
            seconds.setdefault(name, []).extend(result["step_seconds"][2:])
            losses[name] = result["losses"][-1]
    rates = {name: tokens / statistics.median(times) for name, times in seconds.items()}
    return statistics.median(alone), rates, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--products", default="build/bin/step_products_benchmark")
    parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter with PyTorch (default: the system's)")
    parser.add_argument("--models", default="4x256x1,6x384x1,4x512x2", help="layers x hidden x sequences, comma-separated")
    parser.add_argument("--precisions", default="fp32,bf16", help="comma-separated")
    parser.add_argument("--schedules", default="ddp,1f1b", help="comma-separated")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="of a run; the first two do not count")
    parser.add_argument("--no-pytorch", action="store_true")
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps: the first two do not count, so at least 3")
    for program in (arguments.starpipe, arguments.products):
        if not pathlib.Path(program).exists():
            sys.exit(f"{program} is not there: scripts/test builds it")
    print(f"{'model':<14}{'':<6}{'':<20}{'tokens/s':>10}{'of products':>13}{'x PyTorch':>11}{'loss':>8}", flush=True)
    for name in arguments.models.split(","):
        mlp = name.startswith("mlp")
        layers, hidden, sequences = map(int, name.removeprefix("mlp").split("x"))
        model = {"mlp": mlp, "layers": layers, "hidden": hidden, "heads": hidden // 64, "context": 1 if mlp else CONTEXT,
                 "sequences": sequences}
        for precision in arguments.precisions.split(","):
            alone, rates, losses = measure(arguments, model, precision)
            best = max((rate for run, rate in rates.items() if run.startswith("PyTorch")), default=None)
            print(f"{name:<14}{precision:<6}{'products alone':<20}{alone:>10,.0f}")
            for run, rate in rates.items():
                ratio = f"{rate / best:>11.2f}" if best and not run.startswith("PyTorch") else " " * 11
                print(f"{'':<20}{run:<20}{rate:>10,.0f}{rate / alone:>13.0%}{ratio}{losses[run]:>8.3f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
