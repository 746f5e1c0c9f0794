#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures and tables of the study of tensor parallelism, from the results of tensor.py. Needs matplotlib.

    experiments/studies/tensor/figures.py [results/tensor] [-o docs/images]

studies-tensor.svg: predicted makespan by memory, a panel for each of three bandwidths between the groups.
studies-tensor-map.svg: the fastest layout by this bandwidth and by the memory of a worker. The tables for the page go to
standard output.
"""

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402: after the choice of a backend without a window

COLOURS = {1: "#1c5d9c", 2: "#2a8a5a", 4: "#c06000", 8: "#a82a22"}  # by T
FILLS = {1: "#cfe0f1", 2: "#c9e7da", 4: "#f7dcc0", 8: "#f1cfcc"}
SHOWN = (200, 12.5, 1.5625)  # GB/s, a panel each
GIB = 2**30


def read(file):
    """The rows of a sweep that are done, each with its layout (T, P, G) and the bandwidth between the groups."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["status"] == "done":
            row["layout"] = (row["model.tensor"], row["schedule.stages"], row["schedule.groups"])
            if links := row.get("runtime.emulate.links"):
                row["slow"] = float(pathlib.Path(links).stem.split("-")[1])
            rows.append(row)
    return rows


def label(layout):
    return "T{} P{} G{}".format(*layout)


def style():
    plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "starpipe", "axes.spines.top": False, "axes.spines.right": False})


def save(figure, file):
    figure.savefig(file, dpi=300, metadata={"Date": None} if file.suffix == ".svg" else None)


def draw(rows, file):
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(7, 2.6), sharex=True, layout="constrained")
    for at, slow in zip(axes, SHOWN):
        for row in rows:
            if row["slow"] != slow:
                continue
            x, y, t = row["predicted_memory"] / GIB, row["predicted_makespan"] * 1e3, row["layout"][0]
            at.plot(x, y, "o", color=COLOURS[t], markersize=4.5)
            at.annotate("{1}x{2}".format(*row["layout"]), (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6, color="#4a535e")
        at.set_xscale("log")
        at.set_yscale("log")
        for axis in (at.xaxis, at.yaxis):
            axis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
            axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        at.set_xticks([4, 8, 16, 32])
        at.grid(color="#d8dee4", linewidth=0.5, which="both")
        at.set_axisbelow(True)
        at.set_title(f"{slow:g} GB/s between groups", fontsize=8)
        at.set_xlabel("GiB of the worker that needs most")
    axes[0].set_ylabel("makespan, ms")
    marks = [plt.Line2D([], [], color=colour, marker="o", linestyle="", markersize=4.5) for colour in COLOURS.values()]
    figure.get_layout_engine().set(rect=(0, 0.09, 1, 0.91))
    figure.legend(marks, [f"T = {t}" for t in COLOURS], loc="lower center", ncols=4, frameon=False, fontsize=8)
    save(figure, file)


def draw_map(rows, file):
    """The fastest layout of each cell, and by how much the best one with another T is slower."""
    speeds = sorted({row["slow"] for row in rows})
    needs = sorted({row["predicted_memory"] / GIB for row in rows})
    limits = [limit for limit in (4, 6, 8, 12, 16, 24, 32, 48, 64) if needs[0] <= limit <= 1.5 * needs[-1]]
    figure, at = plt.subplots(figsize=(3.6, 0.34 * len(limits) + 0.6), layout="constrained")
    for x, slow in enumerate(speeds):
        for y, limit in enumerate(limits):
            fit = [row for row in rows if row["slow"] == slow and row["predicted_memory"] <= limit * GIB]
            best = min(fit, key=lambda row: row["predicted_makespan"])
            t, p, g = best["layout"]
            others = [row["predicted_makespan"] for row in fit if row["layout"][0] != t]
            at.add_patch(plt.Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=FILLS[t], edgecolor="white"))
            at.text(x, y + 0.13, f"{t}·{p}·{g}", ha="center", va="center", fontsize=7)
            if others:
                at.text(x, y - 0.27, f"{(min(others) / best['predicted_makespan'] - 1) * 100:.0f} %", ha="center", va="center", fontsize=5.5, color="#4a535e")
    at.set_xlim(-0.5, len(speeds) - 0.5)
    at.set_ylim(-0.5, len(limits) - 0.5)
    at.set_xticks(range(len(speeds)), [f"{s:.3g}" for s in speeds])
    at.set_yticks(range(len(limits)), limits)
    at.set_xlabel("GB/s between the groups")
    at.set_ylabel("GiB of a worker")
    for side in at.spines.values():
        side.set_visible(False)
    at.tick_params(length=0)
    save(figure, file)


def print_parallel(rows):
    print("| T, P, G | GiB | MiB moved | " + " | ".join(f"{slow:g} GB/s" for slow in SHOWN) + " |")
    for layout in sorted({row["layout"] for row in rows}):
        mine = {row["slow"]: row for row in rows if row["layout"] == layout}
        one = next(iter(mine.values()))
        cells = " | ".join(f"{mine[slow]['predicted_makespan'] * 1e3:.1f}" for slow in SHOWN)
        print(f"| {label(layout)} | {one['predicted_memory'] / GIB:.1f} | {one['predicted_bytes_moved'] / 2**20:.0f} | {cells} |")


def print_measured(rows, by):
    for row in rows:
        error = (row["measured_makespan"] / row["predicted_makespan"] - 1) * 100
        print(f"| {label(row['layout'])} | {row.get(by)} | {row['predicted_makespan'] * 1e3:.1f} | {row['measured_makespan'] * 1e3:.1f} | {error:+.1f} % |")


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
    for part, by in (("emulated", "slow"), ("kernels", "ranks")):
        if (file := options.results / part / "results.jsonl").exists():
            print_measured(read(file), by)


if __name__ == "__main__":
    main()
