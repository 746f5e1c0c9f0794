#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study of docs/tensor.md: tensor, pipeline, data and vocabulary parallelism of one GPT on 8 workers.

    experiments/studies/tensor/tensor.py [--starpipe build/bin/starpipe] [--only parallel|vocabulary|emulated|kernels]

Run it in the project's folder. It writes to results/tensor: the links, a STUDY.yaml for each part, and the results of its
sweep. `parallel` and `vocabulary` are simulated; `emulated` runs some layouts as timed waits, at a smaller size; `kernels`
trains on two cores. What is done is not run again. figures.py draws the results.
"""

import argparse
import json
import math
import pathlib
import subprocess

HERE = pathlib.Path(__file__).parent
RESULTS = pathlib.Path("results/tensor")
WORKERS = 8
FAST = 200  # GB/s within a group of four workers
SLOW = (200, 100, 50, 25, 12.5, 6.25, 3.125, 1.5625)  # GB/s between the two groups
MICROBATCHES = (16, 64)
SCALE = 256  # hidden size and context of `emulated` are a 16th, so all data are a SCALEth
SLOWER = 10  # `emulated` takes so many times the time: a timed wait is a few tens of microseconds too long
BLOCK = {"F": 1.2, "B": 1.9, "W": 0.5}  # ms, as in gpt.yaml
HEAD = 20992  # tokens of a head that has a block's FLOPs


def links(slow, scale=1, slower=1):
    """The file of a machine with two groups of four workers. JSON is YAML."""
    file = RESULTS / f"links-{slow:g}{'' if scale == 1 else '-scaled'}.yaml"

    def level(name, latency, bandwidth, **more):
        return {"name": name, **more, "latency": f"{latency * slower}us", "bandwidth": f"{bandwidth / scale / slower}GB/s", "sharing": "fair"}

    file.write_text(json.dumps({"levels": [level("group", 3, FAST, workers=4), level("network", 10, slow)]}), encoding="utf-8")
    return str(file)


def layouts(workers):
    """All T (shards), P (stages of a pipeline) and G (groups, each with a pipeline of its own) with T P G = workers."""
    sizes = [n for n in range(1, workers + 1) if workers % n == 0]
    return [(t, p, workers // t // p) for t in sizes for p in sizes if workers % (t * p) == 0]


def settings(t, p, g):
    return {"model.tensor": t, "schedule.workers": p * g, "schedule.stages": p, "schedule.groups": g}


def parallel():
    runs = [{**settings(*layout), "model.sums": sums} for sums in ("each", "one") for layout in layouts(WORKERS)
            if sums == "each" or layout[0] > 1]  # fmt: skip
    return {"command": "simulate", "config": str(HERE / "gpt.yaml"), "runs": runs,
            "grid": {"training.microbatches": MICROBATCHES, "runtime.emulate.links": [links(slow) for slow in SLOW]}}  # fmt: skip


def blocks_beside(head, stages, even):
    """Blocks of each stage when the last one also has the head, which takes the time of `head` blocks: as many on each stage, or so
    that the stage with the most work has little."""
    if even:
        return [WORKERS // stages] * stages
    most = next(most for most in range(WORKERS + head) if most >= head and most * (stages - 1) + most - head >= WORKERS)
    blocks = []
    for left in range(stages - 1, 0, -1):  # the later the fewer
        blocks.append(min(most, math.ceil((WORKERS - sum(blocks) - (most - head)) / left)))
    return [*blocks, WORKERS - sum(blocks)]


def vocabulary():
    """A head of 1, 2 and 4 times a block's FLOPs: whole on the last stage, with as many blocks as the others or fewer, and in shards
    on all workers."""
    runs = []
    for head in (1, 2, 4):
        # per_share: the times of an eighth of the model. A block keeps its own.
        times = {f"runtime.emulate.{name}": f"{time * (WORKERS + head) / WORKERS:g}ms" for name, time in BLOCK.items()}
        for t, p in ((1, 8), (2, 4), (4, 2)):
            run = {**settings(t, p, 1), "model.vocabulary": head * HEAD}
            runs.append({**run, **times, "schedule.vocabulary.shards": WORKERS})
            even, balanced = (blocks_beside(head, p, even) for even in (True, False))
            for blocks in [even] + [balanced] * (balanced != even):
                whole = {"schedule.vocabulary.shards": 1, "schedule.cuts": [1 + sum(blocks[:s]) for s in range(1, p)]}
                if t == 1:  # per_share would take all stages for equal
                    work = [*blocks[:-1], blocks[-1] + head]
                    whole.update({f"runtime.emulate.{name}": [f"{time * units:g}ms" for units in work] for name, time in BLOCK.items()})
                    whole["runtime.emulate.per_share"] = False
                runs.append({**run, **(times if t > 1 else {}), **whole})
    return {"command": "simulate", "config": str(HERE / "gpt.yaml"), "set": {"runtime.emulate.links": links(50)}, "runs": runs}


def emulated():
    small = {"model.hidden": 64, "model.context": 512, "model.vocabulary": 256, "training.microbatches": 16, "training.steps": 3,
             **{f"runtime.emulate.{name}": f"{time * SLOWER:g}ms" for name, time in BLOCK.items()}}  # fmt: skip
    runs = [settings(*layout) for layout in layouts(WORKERS) if layout[0] < WORKERS]  # T = 8 takes minutes per step
    grid = {"runtime.emulate.links": [links(slow, SCALE, SLOWER) for slow in (100, 12.5)]}
    return {"command": "train", "config": str(HERE / "gpt.yaml"), "set": small, "runs": runs, "grid": grid}


def kernels():
    model = {"model.layers": 4, "model.hidden": 512, "model.heads": 8, "model.context": 128, "training.microbatches": 4, "training.steps": 6}
    runs = [{**settings(*layout), "ranks": ranks} for workers in (1, 2) for layout in layouts(workers) for ranks in range(1, workers + 1)]
    return {"command": "train", "config": str(HERE.parent.parent / "quickstart.yaml"), "set": model, "runs": runs, "repetitions": 3}


PARTS = {"parallel": parallel, "vocabulary": vocabulary, "emulated": emulated, "kernels": kernels}


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
