#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study of docs/tensor.md: tensor, pipeline and data parallelism of one GPT on 8 workers.

    experiments/studies/tensor/tensor.py [--starpipe build/bin/starpipe] [--only parallel|emulated|kernels]

Run it in the project's folder. It writes to results/tensor: the links, a STUDY.yaml for each part, and the results of its
sweep. `parallel` is simulated; `emulated` runs some of it as timed waits, at a smaller size; `kernels` trains on two cores.
What is done is not run again. figures.py draws the results.
"""

import argparse
import json
import pathlib
import subprocess

HERE = pathlib.Path(__file__).parent
RESULTS = pathlib.Path("results/tensor")
FAST = 200  # GB/s within a group of four workers
SLOW = (200, 100, 50, 25, 12.5, 6.25, 3.125, 1.5625)  # GB/s between the two groups
SCALE = 256  # hidden size and context of `emulated` are a 16th, so all data are a SCALEth


def links(slow, scale=1):
    """The file of a machine with two groups of four workers. JSON is YAML."""
    file = RESULTS / f"links-{slow:g}{'' if scale == 1 else '-scaled'}.yaml"
    levels = [{"name": "group", "workers": 4, "latency": "3us", "bandwidth": f"{FAST / scale}GB/s"},
              {"name": "network", "latency": "10us", "bandwidth": f"{slow / scale}GB/s", "sharing": "fair"}]  # fmt: skip
    file.write_text(json.dumps({"levels": levels}), encoding="utf-8")
    return str(file)


def layouts(workers, most_shards):
    """All T (shards), P (stages of a pipeline) and G (groups, each with a pipeline of its own) with T P G = workers."""
    sizes = [n for n in range(1, workers + 1) if workers % n == 0]
    return [(t, p, workers // t // p) for t in sizes for p in sizes if workers % (t * p) == 0 and t <= most_shards]


def settings(t, p, g):
    return {"model.tensor": t, "schedule.workers": p * g, "schedule.stages": p, "schedule.groups": g}


def parallel():
    runs = [settings(*layout) for layout in layouts(8, 8)]
    return {"command": "simulate", "config": str(HERE / "gpt.yaml"), "runs": runs,
            "grid": {"runtime.emulate.links": [links(slow) for slow in SLOW]}}  # fmt: skip


def emulated():
    small = {"model.hidden": 256, "model.context": 128, "model.vocabulary": 256, "runtime.workers_per_core": 8,
             "runtime.emulate.F": "22ms", "runtime.emulate.B": "24ms", "runtime.emulate.W": "20ms"}  # fmt: skip
    # Ten times the time, so ten times less bandwidth: a timed wait is a few tens of microseconds too long.
    grid = {"runtime.emulate.links": [links(slow, SCALE * 10) for slow in (100, 6.25)]}
    return {"command": "train", "config": str(HERE / "gpt.yaml"), "set": small, "runs": [settings(*x) for x in layouts(8, 8)], "grid": grid}


def kernels():
    model = {"model.layers": 4, "model.hidden": 512, "model.heads": 8, "model.context": 128, "training.microbatches": 4, "training.steps": 6}
    runs = [{**settings(*layout), "ranks": ranks} for layout in [*layouts(1, 1), *layouts(2, 2)] for ranks in (1, 2) if ranks <= layout[0] * layout[1] * layout[2]]
    return {"command": "train", "config": "experiments/quickstart.yaml", "set": model, "runs": runs, "repetitions": 3}


PARTS = {"parallel": parallel, "emulated": emulated, "kernels": kernels}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, study in PARTS.items():
        if options.only in (None, name):
            file = RESULTS / f"{name}.yaml"
            file.write_text(json.dumps(study(), indent=1), encoding="utf-8")
            subprocess.run([options.starpipe, "sweep", file, "-o", RESULTS / name], check=True)


if __name__ == "__main__":
    main()
