#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makespan over memory: schedules whose stashes wait in different places. Needs matplotlib for the figure.

    experiments/studies/memory/memory.py --starpipe build/bin/starpipe [-o results/memory]

A worker has 1/W of a transformer's layers, and F, B and W of its share take 1 each. `copy` is the time in which the stash of a share
passes the link to the host, in these units. The links are named after buses; LINKS says how their times follow from a GPU. The
script predicts each schedule with each limit of memory, in shares of stashes, and writes results.csv and memory.svg.
"""

import argparse
import concurrent.futures
import csv
import json
import pathlib
import subprocess
import sys

# A layer's stash has 34 bytes and its F 24 h FLOP for each of b s h numbers (Korthikanti et al., 2022, without the scores of
# attention). With h = 8192 and 400 TFLOP/s, F takes 0.49 ns and the stash 1.36 ns at 25 GB/s: 2.77 times F.
LINKS = {"PCIe 4, 25 GB/s": 2.77, "PCIe 5, 50 GB/s": 1.38, "NVLink-C2C, 300 GB/s": 0.23}
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "v-half": 2}  # and their stages on a worker
COLUMNS = ("schedule", "link", "homes", "limit", "memory", "makespan", "idle", "remade")
COLOURS = {"no homes": "#4a535e", "recomputation": "#c06000", "host": "#1c5d9c", "bpipe": "#a82a22", "pipeoffload": "#0b6e53"}


def predict(options, schedule, more):
    """The memory in shares, the makespan, the bubble fraction without R and R's part; None where starpipe refuses the limit."""
    run = subprocess.run(
        [options.starpipe, "schedule", "show", schedule, "--workers", str(options.workers), "--microbatches", str(options.microbatches),
         "--per-share", "--durations", "F=1,B=1,W=1", "--format", "json", *more], capture_output=True, text=True)  # fmt: skip
    if run.returncode == 2 and ("limit" in run.stderr or "home: " in run.stderr):
        return None
    if run.returncode != 0:
        sys.exit(f"{schedule} {' '.join(more)}: {run.stderr}")
    result = json.loads(run.stdout)
    memory = max(result["peak_stashes"]) / SCHEDULES[schedule]
    return memory, result["makespan"], result["bubble_fraction"], result.get("recomputed_fraction", 0)


def cases(options):
    """(schedule, link, homes, limit, options of the command) of each prediction."""
    for schedule in SCHEDULES:
        for limit in range(1, options.microbatches + 1):
            most = ["--memory-limit", str(limit)]
            yield schedule, "", "no homes", limit, most
            yield schedule, "", "recomputation", limit, [*most, "--home", "auto"]
            for link, copy in LINKS.items():
                yield schedule, link, "host", limit, [*most, "--home", "auto", "--copy", str(copy / SCHEDULES[schedule])]
        for link, copy in LINKS.items():
            yield schedule, link, "pipeoffload", "", ["--home", "pipeoffload", "--copy", str(copy / SCHEDULES[schedule])]
            yield schedule, link, "bpipe", "", ["--home", "bpipe", "--copy", str(copy / SCHEDULES[schedule])]


def predict_all(options):
    def row(case):
        schedule, link, homes, limit, more = case
        found = predict(options, schedule, more)
        return None if found is None else dict(zip(COLUMNS, (schedule, link, homes, limit, *found)))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [found for found in pool.map(row, cases(options)) if found]


def frontier(rows):
    """The points that no other has less of both: memory and makespan."""
    points, best = [], float("inf")
    for memory, makespan in sorted((row["memory"], row["makespan"]) for row in rows):
        if makespan < best:
            points.append((memory, makespan))
            best = makespan
    return points


def draw(options, rows):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "starpipe", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(LINKS), len(SCHEDULES), figsize=(2.6 * len(SCHEDULES), 2.1 * len(LINKS)), sharex=True, sharey=True, squeeze=False)
    ideal = 3 * options.microbatches
    for i, link in enumerate(LINKS):
        for j, schedule in enumerate(SCHEDULES):
            panel = axes[i][j]
            for homes, colour in COLOURS.items():
                points = frontier([row for row in rows if (row["schedule"], row["homes"]) == (schedule, homes) and row["link"] in ("", link)])
                if not points:
                    continue
                x, y = [memory for memory, _ in points], [makespan / ideal for _, makespan in points]
                if homes in ("bpipe", "pipeoffload"):
                    panel.plot(x, y, "D" if homes == "bpipe" else "*", color=colour, label=homes, markersize=6, zorder=3)
                else:
                    panel.plot(x, y, color=colour, label=homes, drawstyle="steps-post", marker=".", markersize=4)
            panel.set_title(schedule if i == 0 else "", fontsize=9)
            panel.set_xscale("log", base=2)
            panel.set_ylim(1, 2)
            panel.grid(True, color="#e6e6e6")
        axes[i][0].set_ylabel(f"{link}\nmakespan / work", fontsize=8)
    for panel in axes[-1]:
        panel.set_xlabel("stashes of a worker, shares", fontsize=8)
    handles = {label: handle for row in axes for panel in row for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncol=len(handles), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(options.output / "memory.svg", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="starpipe")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("results/memory"), metavar="FOLDER")
    options = parser.parse_args()
    rows = predict_all(options)
    options.output.mkdir(parents=True, exist_ok=True)
    with open(options.output / "results.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    draw(options, rows)
    print(f"{len(rows)} predictions in {options.output / 'results.csv'}, and {options.output / 'memory.svg'}")


if __name__ == "__main__":
    main()
