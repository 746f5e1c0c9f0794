#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures and tables of the study of tensor parallelism, from the results of tensor.py. Needs matplotlib.

    experiments/studies/tensor/figures.py [results/tensor] [-o docs/images]

studies-tensor.svg: the time of a step by memory, a panel for each of three bandwidths between the groups.
studies-tensor-map.svg: the fastest layout by this bandwidth and by the memory of a worker, a panel for each number of
micro-batches. The tables for the page go to standard output. The time of a step is its makespan with the gradients summed. Memory is the need of the worker that needs most: weights,
gradients, optimizer state, stashes and activations, but not the workspace of kernels, which differs between cores and GPUs.
"""

import argparse
import json
import pathlib
import statistics
import sys

try:
    import matplotlib
except ModuleNotFoundError:
    print(f"{sys.argv[0]}: needs matplotlib for {sys.executable} (Debian: python3-matplotlib)", file=sys.stderr)
    sys.exit(2)

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402: after the choice of a backend without a window
import matplotlib.ticker  # noqa: E402

COLOURS = {1: "#1c5d9c", 2: "#0b6e53", 4: "#c06000", 8: "#a82a22"}  # by T
FILLS = {1: "#cfe0f1", 2: "#c9e7da", 4: "#f7dcc0", 8: "#f1cfcc"}
SHOWN = (200, 25, 3.125)  # GB/s, a panel each
MICROBATCHES = 64  # of the panels and of the table
LIMITS = (1.4, 1.6, 1.8, 2, 2.5, 3, 4)  # GiB
GIB = 2**30
MEMORY = ("weights", "gradients", "optimizer", "stashes", "activations")


def step_time(row, which="predicted"):
    """Seconds until the last job has ended and all gradients are summed."""
    return row.get(f"{which}_gradients_summed", row[f"{which}_makespan"])


def read(file):
    """The rows of a sweep that are done, each with its layout (T, P, G) and the bandwidth between the groups."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["status"] == "done":
            row["microbatches"] = int(row.get("training.microbatches", row["microbatches"]))
            row["layout"] = tuple(int(row[key]) for key in ("model.tensor", "schedule.stages", "schedule.groups"))
            report = file.parent / "runs" / row["run"] / "report.json"
            parts = json.loads(report.read_text(encoding="utf-8")).get("memory", [])
            row["bytes"] = max((sum(worker[part] for part in MEMORY) for worker in parts), default=None)
            if links := row.get("runtime.emulate.links"):
                row["slow"] = float(pathlib.Path(links).stem.split("-")[1])
            rows.append(row)
    return rows


def label(layout):
    return "·".join(map(str, layout))


def style():
    plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "starpipe", "axes.spines.top": False, "axes.spines.right": False})


def save(figure, file):
    figure.savefig(file, dpi=300, metadata={"Date": None} if file.suffix == ".svg" else None)


def draw(rows, file):
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(7, 3), sharex=True, sharey=True, layout="constrained")
    for at, slow in zip(axes, SHOWN):
        shown = [row for row in rows if (row["slow"], row["microbatches"], row["model.sums"]) == (slow, MICROBATCHES, "each")]
        for i, row in enumerate(sorted(shown, key=lambda row: row["bytes"])):
            x, y, t = row["bytes"] / GIB, step_time(row) * 1e3, row["layout"][0]
            at.plot(x, y, "o", color=COLOURS[t], markersize=4.5)
            at.annotate("{1}·{2}".format(*row["layout"]), (x, y), xytext=(0, (6, -11)[i % 2]), textcoords="offset points", ha="center", fontsize=7,
                        color="#2b333b", annotation_clip=True)  # fmt: skip
        at.set_xscale("log")
        at.set_yscale("log")
        for axis in (at.xaxis, at.yaxis):
            axis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
            axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        at.set_xticks([1.5, 2, 3, 4])
        at.set_yticks([250, 500, 1000, 2000])
        at.set_ylim(180, 3200)  # T = 8 is above
        at.margins(x=0.12)
        at.grid(color="#d8dee4", linewidth=0.5, which="major")
        at.set_axisbelow(True)
        at.set_title(f"{slow:g} GB/s between groups", fontsize=8)
    axes[1].set_xlabel("GiB of the worker that needs most, without workspace")
    axes[0].set_ylabel("step, gradients summed, ms")
    marks = [plt.Line2D([], [], color=COLOURS[t], marker="o", linestyle="", markersize=4.5) for t in (1, 2, 4)]
    figure.get_layout_engine().set(rect=(0, 0.08, 1, 0.92))
    figure.legend(marks, [f"T = {t}" for t in (1, 2, 4)], loc="lower center", ncols=3, frameon=False, fontsize=8)
    save(figure, file)


def best_of(rows, slow, limit):
    """The fastest run within the memory, and by how much longer the fastest with another T takes; None where none fits."""
    fit = sorted((row for row in rows if row["slow"] == slow and row["bytes"] <= limit * GIB), key=step_time)
    if not fit:
        return None
    others = [row for row in fit if row["layout"][0] != fit[0]["layout"][0]]
    return fit[0], step_time(others[0]) / step_time(fit[0]) - 1 if others else None


def draw_map(rows, file):
    counts = sorted({row["microbatches"] for row in rows})
    figure, axes = plt.subplots(1, len(counts), figsize=(3.5 * len(counts), 0.34 * len(LIMITS) + 0.8), squeeze=False, layout="constrained")
    for at, count in zip(axes[0], counts):
        draw_map_of(at, [row for row in rows if row["microbatches"] == count])
        at.set_title(f"{count} micro-batches", fontsize=8)
    axes[0][0].set_ylabel("GiB of a worker")
    save(figure, file)


def draw_map_of(at, rows):
    speeds = sorted({row["slow"] for row in rows})
    for x, slow in enumerate(speeds):
        for y, limit in enumerate(LIMITS):
            best = best_of(rows, slow, limit)
            if best is None:
                continue
            row, others = best
            at.add_patch(plt.Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=FILLS[row["layout"][0]], edgecolor="white"))
            name = label(row["layout"]) + ("*" if row.get("model.sums") == "one" else "")
            at.text(x, y + 0.15, name, ha="center", va="center", fontsize=7)
            if others is not None:
                text = f"{others * 100:.0f} %" if others < 1 else f"×{others + 1:.3g}"
                at.text(x, y - 0.25, text, ha="center", va="center", fontsize=6, color="#2b333b")
    at.set_xlim(-0.5, len(speeds) - 0.5)
    at.set_ylim(-0.5, len(LIMITS) - 0.5)
    at.set_xticks(range(len(speeds)), [f"{s:.3g}" for s in speeds])
    at.set_yticks(range(len(LIMITS)), LIMITS)
    at.set_xlabel("GB/s between the groups")
    for side in at.spines.values():
        side.set_visible(False)
    at.tick_params(length=0)


def print_parallel(rows):
    rows = [row for row in rows if row["microbatches"] == MICROBATCHES]
    print("| T·P·G | sums | GiB | GiB moved | " + " | ".join(f"{slow:g} GB/s" for slow in SHOWN) + " |")
    for layout, sums in sorted({(row["layout"], row["model.sums"]) for row in rows}):
        mine = {row["slow"]: row for row in rows if (row["layout"], row["model.sums"]) == (layout, sums)}
        one = next(iter(mine.values()))
        cells = []
        for slow in SHOWN:
            makespan, whole = (f"{seconds * 1e3:.0f}" for seconds in (mine[slow]["predicted_makespan"], step_time(mine[slow])))
            cells.append(makespan if makespan == whole else f"{makespan} / {whole}")
        print(f"| {label(layout)} | {sums} | {one['bytes'] / GIB:.1f} | {one['predicted_bytes_moved'] / GIB:.1f} | {' | '.join(cells)} |")


def print_vocabulary(rows):
    """Whole with even cuts, whole with the best of both cuts, and in shards."""
    for head in sorted({int(row["model.vocabulary"]) for row in rows}):
        for layout in sorted({row["layout"] for row in rows}):
            mine = [row for row in rows if (int(row["model.vocabulary"]), row["layout"]) == (head, layout)]
            whole = [row for row in mine if int(row["schedule.vocabulary.shards"]) == 1]
            (shards,) = [row for row in mine if row not in whole]
            even, best = whole[0], min(whole, key=step_time)
            gains = [f"{(1 - step_time(shards) / step_time(row)) * 100:.0f} %" for row in (even, best)]
            cells = [f"{step_time(row) * 1e3:.0f} ({row['bytes'] / GIB:.1f} GiB)" for row in (even, best, shards)]
            print(f"| {head} | {label(layout)} | {' | '.join(cells + gains)} |")


def print_measured(rows, by):
    """Medians of the repetitions."""
    for key in sorted({(row["layout"], float(row[by])) for row in rows}):
        mine = [row for row in rows if (row["layout"], float(row[by])) == key]
        cells = []
        for name in ("makespan", "gradients_summed"):
            found = [(row[f"predicted_{name}"], row[f"measured_{name}"]) for row in mine if f"measured_{name}" in row]
            if not found:
                cells += ["", "", ""]
                continue
            predicted, measured = (statistics.median(times) * 1e3 for times in zip(*found))
            cells += [f"{predicted:.1f}", f"{measured:.1f}", f"{(measured / predicted - 1) * 100:+.1f} %"]
        print(f"| {label(key[0])} | {key[1]:g} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="?", default=pathlib.Path("results/tensor"))
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("docs/images"))
    options = parser.parse_args()
    style()
    rows = read(options.results / "parallel" / "results.jsonl")
    draw(rows, options.output / "studies-tensor.svg")
    draw_map(rows, options.output / "studies-tensor-map.svg")
    print_parallel(rows)
    if (file := options.results / "vocabulary" / "results.jsonl").exists():
        print_vocabulary(read(file))
    for part, by in (("emulated", "slow"), ("kernels", "ranks")):
        if (file := options.results / part / "results.jsonl").exists():
            print_measured(read(file), by)


if __name__ == "__main__":
    main()
