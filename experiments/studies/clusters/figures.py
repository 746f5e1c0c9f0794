#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures and tables of the study of simulated clusters, from the results of clusters.py. Needs matplotlib.

    experiments/studies/clusters/figures.py [results/clusters] [-o docs/images]

studies-clusters.svg: simulated makespans over the time that a GPU computes, a panel for each number of GPUs and each model.
studies-clusters-map.svg: the schedule of the shortest predicted makespan on 64 GPUs, by the network's bandwidth and the number
of micro-batches. The tables for the page go to standard output.
"""

import argparse
import concurrent.futures
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402: after the choice of a backend without a window

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "v-half", "searched", "fsdp", "fslpp")
MODELS = {"320": ("9.6B", 12.96 + 13.22 + 9.76), "448": ("38.5B", 6.72 + 6.89 + 5.06)}  # ms of a GPU's share, a micro-batch
CLUSTERS = {"nvlink-infiniband": ("#1c5d9c", "o"), "nvlink-ethernet": ("#a82a22", "s"), "pcie-ethernet": ("#c06000", "D")}


def read(folder):
    """All runs that are done, as maps of what the figures need."""
    runs = []
    for name in ("named", "searched", "large"):
        file = folder / name / "results.jsonl"
        if not file.exists():
            continue
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["status"] != "done":
                continue
            cluster = pathlib.Path(row.get("--cluster", "nvlink-infiniband")).stem
            model, share = MODELS[str(row["model.hidden"])]
            compute = row["microbatches"] * share / 1e3  # seconds that each GPU computes, if all compute as much
            runs.append({"schedule": "searched" if "schedule.file" in row else row["schedule"], "gpus": row["workers"], "model": model,
                         "cluster": cluster, "sharing": row.get("--sharing", "fair"), "microbatches": row["microbatches"],
                         "compute": compute, "predicted": row["predicted_makespan"], "simulated": row["simulated_makespan"],
                         "memory": row["predicted_memory"], "bytes": row["simulated_bytes_between_ranks"]})  # fmt: skip
    return runs


def draw(runs, file):
    """Dots by schedule: filled with contention, hollow without, dashes as predicted."""
    sizes = sorted({run["gpus"] for run in runs})
    models = [model for model, _ in MODELS.values()]
    plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "starpipe", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(len(models), len(sizes), figsize=(2.4 * len(sizes) + 0.6, 4.4), sharey=True, squeeze=False, layout="constrained")
    for row, model in zip(axes, models):
        for at, size in zip(row, sizes):
            here = [run for run in runs if run["gpus"] == size and run["model"] == model]
            clusters = [name for name in CLUSTERS if any(run["cluster"] == name for run in here)]
            for run in here:
                colour, mark = CLUSTERS[run["cluster"]]
                y = len(SCHEDULES) - 1 - SCHEDULES.index(run["schedule"])
                y += 0.22 * ((len(clusters) - 1) / 2 - clusters.index(run["cluster"]))
                shared = run["sharing"] == "fair"
                at.plot(run["simulated"] / run["compute"], y, mark, color=colour, markersize=4.5, markerfacecolor=colour if shared else "none")
                if shared:
                    at.plot(run["predicted"] / run["compute"], y, "|", color="#1f2328", markersize=7)
            at.set_yticks(range(len(SCHEDULES)), SCHEDULES[::-1])
            at.set_xscale("log")
            at.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
            at.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
            ticks = [t for t in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 50, 60, 70, 80, 100, 120, 150)
                     if not here or min(run["simulated"] / run["compute"] for run in here) * 0.9 <= t
                     <= max(max(run["simulated"], run["predicted"]) / run["compute"] for run in here) * 1.1]  # fmt: skip
            at.set_xticks(ticks[:: len(ticks) // 7 + 1])
            at.grid(color="#d8dee4", linewidth=0.5)
            at.set_axisbelow(True)
            at.set_visible(len({run["schedule"] for run in here}) > 2)  # a panel compares
            if here:
                at.set_title(f"{model}, {size} GPUs, {here[0]['microbatches']} micro-batches", fontsize=8)
            at.set_xlabel("makespan / compute")
    marks = [plt.Line2D([], [], color=colour, marker=mark, linestyle="", markersize=4.5) for colour, mark in CLUSTERS.values()]
    marks += [plt.Line2D([], [], color="#59636e", marker="o", linestyle="", markersize=4.5, markerfacecolor="none"),
              plt.Line2D([], [], color="#1f2328", marker="|", linestyle="", markersize=7)]  # fmt: skip
    columns = min(3, len(sizes))
    foot = 0.05 * math.ceil(len(marks) / columns)
    figure.get_layout_engine().set(rect=(0, foot, 1, 1 - foot))
    figure.legend(marks, [*CLUSTERS, "without contention", "simulate, with contention"], loc="lower center", ncols=columns, frameon=False, fontsize=8)
    figure.savefig(file, dpi=300, metadata={"Date": None} if file.suffix == ".svg" else None)


def table(runs):
    """Simulated milliseconds, and how far `simulate` is from them, by schedule."""
    places = sorted({(run["gpus"], run["model"], run["cluster"], run["sharing"]) for run in runs})
    for gpus, model, cluster, sharing in places:
        here = {run["schedule"]: run for run in runs if (run["gpus"], run["model"], run["cluster"], run["sharing"]) == (gpus, model, cluster, sharing)}
        cells = []
        for name in SCHEDULES:
            run = here.get(name)
            cells.append("" if run is None else f"{run['simulated'] * 1e3:.0f} ({(run['simulated'] / run['predicted'] - 1) * 100:+.1f} %)")
        print(f"| {gpus} | {model} | {cluster} | {sharing} | {' | '.join(cells)} |")


MAPPED = {"1f1b": "#cfe0f1", "interleaved-1f1b": "#f7dcc0", "zb-h1": "#c9e7da", "v-half": "#e6d3ea", "v-zb": "#f6e6a9"}
SHORT = {"1f1b": "1F1B", "interleaved-1f1b": "Int.", "zb-h1": "ZB-H1", "v-half": "V-Half", "v-zb": "V-ZB"}
BANDWIDTHS = (1.5625, 3.125, 6.25, 12.5, 25, 50, 100, 200)  # GB/s of a node's port
MICROBATCHES = (16, 32, 64, 128)


def predict(starpipe, model, bandwidth):
    """By number of micro-batches: the predicted makespan of each schedule on eight nodes, with contention."""
    f, b, w, bytes_sent = {"9.6B": (12.96, 13.22, 9.76, 4 * 1024 * 5120 * 2), "38.5B": (6.72, 6.89, 5.06, 1024 * 7168 * 2)}[model]
    with tempfile.TemporaryDirectory() as folder:
        links = pathlib.Path(folder) / "cluster.yaml"
        generate = pathlib.Path(__file__).parents[2] / "clusters" / "generate.py"
        links.write_text(subprocess.run([sys.executable, generate, "--bandwidth", str(bandwidth)], check=True, capture_output=True, text=True).stdout)
        out = subprocess.run([starpipe, "schedule", "compare", *MAPPED, "--workers", "64", "--microbatches", ",".join(map(str, MICROBATCHES)),
                              "--durations", f"F={f}ms,B={b}ms,W={w}ms", "--links", links, "--bytes", str(bytes_sent), "--json"],
                             check=True, capture_output=True, text=True).stdout  # fmt: skip
    times = {}
    for row in json.loads(out)["schedules"]:
        times.setdefault(row["microbatches"], {})[row["schedule"]] = row["makespan"]
    return times


def draw_map(starpipe, file):
    """The fastest schedule of each cell, and by how much the next one is slower."""
    cells = [(model, bandwidth) for model, _ in MODELS.values() for bandwidth in BANDWIDTHS]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        predicted = dict(zip(cells, pool.map(lambda cell: predict(starpipe, *cell), cells)))
    figure, axes = plt.subplots(len(MODELS), 1, figsize=(3.4, 3.6), sharex=True, layout="constrained")
    for at, (model, _) in zip(axes, MODELS.values()):
        for x, bandwidth in enumerate(BANDWIDTHS):
            for y, (_, times) in enumerate(sorted(predicted[model, bandwidth].items())):
                (best, least), (_, second) = sorted(times.items(), key=lambda item: item[1])[:2]
                at.add_patch(plt.Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=MAPPED[best], edgecolor="white"))
                at.text(x, y + 0.13, SHORT[best], ha="center", va="center", fontsize=7)
                at.text(x, y - 0.24, f"{(second / least - 1) * 100:.0f} %", ha="center", va="center", fontsize=5.5, color="#4a535e")
        at.set_xlim(-0.5, len(BANDWIDTHS) - 0.5)
        at.set_ylim(-0.5, len(MICROBATCHES) - 0.5)
        at.set_xticks(range(len(BANDWIDTHS)), [f"{b:.3g}" for b in BANDWIDTHS])
        at.set_yticks(range(len(MICROBATCHES)), MICROBATCHES)
        at.set_title(model, fontsize=8)
        at.set_ylabel("micro-batches")
        for side in at.spines.values():
            side.set_visible(False)
        at.tick_params(length=0)
    axes[-1].set_xlabel("GB/s of a node's port to the network")
    figure.savefig(file, dpi=300, metadata={"Date": None} if file.suffix == ".svg" else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="?", default=pathlib.Path("results/clusters"))
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("docs/images"))
    parser.add_argument("--starpipe", default="build/bin/starpipe", help="the command, for the map")
    options = parser.parse_args()
    runs = read(options.results)
    draw(runs, options.output / "studies-clusters.svg")
    draw_map(options.starpipe, options.output / "studies-clusters-map.svg")
    table(runs)


if __name__ == "__main__":
    main()
