#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time of one micro-batch of a GPT cut into T shards, relative to the same on one core.

    experiments/benchmarks/tensor.py [--starpipe build/bin/starpipe] [--pairs 5] [--steps 12] [--shards 2]

A step has one micro-batch, so nothing but the shards can use a second core. Runs of one process with one worker (T = 1)
and with T workers alternate, so that a disturbance of the machine meets both. Prints two times of the fastest step of each
run, and medians of the ratios:

    passes   from the start of the first forward pass to the end of the last backward pass. An update of weights may run in
             it, while its worker waits for a shard of another one.
    step     the whole step, updates included

Embedding, head and loss are not cut. Nothing else should run on the machine, which needs T cores.
"""
import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

CONFIG = """
model:    {{kind: gpt, layers: 4, hidden: 512, heads: 8, context: {context}}}
data:     {{kind: text, path: /usr/share/common-licenses/GPL-3}}
training: {{microbatches: 1, microbatch_size: {microbatch_size}, steps: {steps}, seed: 1}}
schedule: {{name: 1f1b, workers: 1}}
"""


def microbatch_times(arguments, shards):
    """Seconds of the passes and of the whole step, in the fastest one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STARPU_")}
    with tempfile.TemporaryDirectory() as folder:
        config, report = pathlib.Path(folder) / "gpt.yaml", pathlib.Path(folder) / "report.json"
        config.write_text(CONFIG.format(**vars(arguments)))
        run = subprocess.run([arguments.starpipe, "train", config, "--report", report, "--set", f"model.tensor={shards}",
                              "--set", f"runtime.policy={arguments.policy}"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env={**environment, "OPENBLAS_NUM_THREADS": "1"})
        if run.returncode:
            sys.exit(f"{shlex.join(map(str, run.args))} ended with status {run.returncode}:\n{run.stderr}")
        result = json.loads(report.read_text())
    return min(result["makespan"]["all_measured"]), min(result["step_seconds"][1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--policy", default="starpipe")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--microbatch-size", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{'pair':>4}" + "".join(f"{what + ', 1 worker':>18}{f'{arguments.shards} workers':>13}{'ratio':>8}"
                                   for what in ("passes", "step")))
    pairs = []
    for number in range(1, arguments.pairs + 1):
        pairs.append(list(zip(microbatch_times(arguments, 1), microbatch_times(arguments, arguments.shards))))
        print(f"{number:>4}" + "".join(f"{1000 * whole:>15.2f} ms{1000 * cut:>10.2f} ms{cut / whole:>8.3f}"
                                       for whole, cut in pairs[-1]), flush=True)
    medians = [statistics.median(cut / whole for whole, cut in times) for times in zip(*pairs)]
    print(f"median ratio of passes {medians[0]:.3f}, of steps {medians[1]:.3f}")


if __name__ == "__main__":
    main()
