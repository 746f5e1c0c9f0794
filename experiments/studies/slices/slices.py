#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What slices of long sequences gain: predicted makespan and memory by their number. Needs matplotlib for the figure.

    experiments/studies/slices/slices.py --starpipe build/bin/starpipe [-o results/slices]

A GPT has four blocks on each worker, and a step half as many micro-batches of one sequence as workers. F, B and W take times in proportion
to the FLOPs of each stage and slice. For each context, schedule and number of slices, of equal tokens and of equal work, the script
predicts the step by `starpipe simulate`. With --search and the Python package (PYTHONPATH=build/python) it also searches for an order
whose stashes, with keys and values, take no more memory than 1F1B's peak with the same slices, on at most 8 workers. (The gradients of keys and
values come on top.) It writes results.csv and slices.svg, and prints a
table: the makespan over the time in which the busiest worker computes, and the largest memory of stashes of a worker, in GiB. 64 workers
take a few minutes.
"""

import argparse
import concurrent.futures
import csv
import json
import pathlib
import subprocess
import tempfile

SCHEDULES = ("1f1b", "zb-h1", "slimpipe", "v-half")
SEARCHED = "search"
COLUMNS = ("workers", "context", "schedule", "slices", "sizes", "makespan", "idle", "gib")
CONFIG = """model: {{kind: gpt, layers: {layers}, hidden: 512, heads: 8, context: {context}, vocabulary: 512}}
data: {{kind: text, path: text}}
training: {{steps: 1, microbatches: {microbatches}, microbatch_size: 1}}
schedule: {{name: {schedule}, workers: {workers}, slices: {slices}{sizes}}}
"""


def is_refused(run):
    """Whether starpipe cannot do it: a stash of so long a sequence fits no handle of StarPU, and SlimPipe needs a multiple of W slices."""
    return run.returncode == 2 and ("handle" in run.stderr or "needs a multiple" in run.stderr)


def predict(options, folder, case):
    """The row of a case; None where starpipe refuses it."""
    workers, context, schedule, slices, sizes = case
    file = folder / f"{'-'.join(map(str, case))}.yaml"
    file.write_text(CONFIG.format(layers=4 * workers, context=context, microbatches=max(2, workers // 2), schedule=schedule, workers=workers,
                                  slices=slices, sizes=f", slice_sizes: {sizes}" if slices > 1 else ""), encoding="utf-8")  # fmt: skip
    run = subprocess.run([options.starpipe, "simulate", file.name, "--json"], cwd=folder, capture_output=True, text=True, check=False)
    if is_refused(run):
        return None
    if run.returncode != 0:
        raise SystemExit(f"{file.name}: {run.stderr}")
    return row_of(case, json.loads(run.stdout))


def search_order(file, slices, budget):
    """The order that the search finds with the costs of a schedule in a file, within its peak of memory."""
    import starpipe

    of = starpipe.read_schedule(file)
    costs = of.costs
    stash = [size.stash + size.keys_values for size in costs.sizes]
    limits = starpipe.simulate(of).peak_stash_bytes
    return starpipe.search(workers=len(limits), microbatches=of.microbatches // slices, slices=slices, chunks=1, costs=costs, stash=stash,
                           memory_limit=[int(limit) for limit in limits], budget=budget)  # fmt: skip


def search(options, folder, case):
    """The row of the order that the search finds with the costs of 1F1B, within 1F1B's peak of memory."""
    workers, context, _, slices, sizes = case
    file = folder / f"{workers}-{context}-1f1b-{slices}-{sizes}.yaml"
    run = subprocess.run([options.starpipe, "simulate", file.name, "--json"], cwd=folder, capture_output=True, text=True, check=False)
    if is_refused(run):
        return None
    (folder / "1f1b.json").write_text(run.stdout, encoding="utf-8")
    found = search_order(folder / "1f1b.json", slices, options.search).timeline
    return row_of(case, {"makespan": found.makespan, "busy": list(found.busy), "peak_stash_bytes": list(found.peak_stash_bytes)})


def row_of(case, found):
    busiest = max(found.get("busy") or (sum(op["end"] - op["start"] for op in row) for row in found["ops"]))
    return dict(zip(COLUMNS, (*case, found["makespan"] / busiest, 1 - busiest / found["makespan"], max(found["peak_stash_bytes"]) / 2**30)))


def draw(options, rows):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "starpipe", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(options.workers), len(options.contexts), figsize=(2.6 * len(options.contexts), 2.4 * len(options.workers)), sharey=True, squeeze=False)
    for i, workers in enumerate(options.workers):
        for j, context in enumerate(options.contexts):
            panel = axes[i][j]
            for schedule, colour in zip((*SCHEDULES, SEARCHED), ("#1c5d9c", "#0b6e53", "#c06000", "#a82a22", "#4b525d")):
                points = [row for row in rows if (row["workers"], row["context"], row["schedule"], row["sizes"]) == (workers, context, schedule, "work")]
                if not points:
                    continue
                panel.plot([row["gib"] for row in points], [row["makespan"] for row in points], color=colour, marker=".", label=schedule)
                for row in points[:1] + points[-1:]:
                    panel.annotate(row["slices"], (row["gib"], row["makespan"]), textcoords="offset points", xytext=(3, 3), fontsize=7, color=colour)
            panel.set_title(f"{workers} workers, context {context:,}", fontsize=9)
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter("{x:g}")
            panel.set_xlabel("GiB of stashes of a worker", fontsize=8)
            panel.grid(True, color="#e6e6e6")
        axes[i][0].set_ylabel("makespan / busiest worker", fontsize=8)
    axes[0][0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(options.output / "slices.svg", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="starpipe")
    parser.add_argument("--workers", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--contexts", nargs="+", type=int, default=[2048, 16384, 131072])
    parser.add_argument("--slices", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--search", type=float, metavar="SECONDS", help="also search for orders, each for so long")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("results/slices"), metavar="FOLDER")
    options = parser.parse_args()
    program = pathlib.Path(options.starpipe)
    options.starpipe = str(program.resolve()) if program.exists() else options.starpipe
    cases = [(workers, context, schedule, slices, sizes) for workers in options.workers for context in options.contexts for schedule in SCHEDULES
             for slices in options.slices for sizes in ("tokens", "work")]  # fmt: skip
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(2) as pool:
        folder = pathlib.Path(name)
        # Long enough for a sequence of the longest context.
        (folder / "text").write_text("It is a truth universally acknowledged. " * (max(options.contexts) // 20), encoding="utf-8")
        rows = [row for row in pool.map(lambda case: predict(options, folder, case), cases) if row]
        if options.search:
            searched = [(workers, context, SEARCHED, slices, "work") for workers in options.workers if workers <= 8 for context in options.contexts
                        for slices in options.slices if 1 < slices <= 8]  # fmt: skip
            rows += [row for row in (search(options, folder, case) for case in searched) if row]
    options.output.mkdir(parents=True, exist_ok=True)
    with open(options.output / "results.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(f"{row['workers']:>3} workers  context {row['context']:>6}  {row['schedule']:<16}  {row['slices']:>2} slices of equal {row['sizes']:<6}  {row['makespan']:.3f}  {row['gib']:.3g} GiB")
    draw(options, rows)
    print(f"{len(rows)} predictions in {options.output / 'results.csv'}, and {options.output / 'slices.svg'}")


if __name__ == "__main__":
    main()
