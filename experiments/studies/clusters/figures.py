#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures and tables of the study of simulated clusters, from the results of clusters.py. Needs matplotlib.

    experiments/studies/clusters/figures.py [results/clusters] [-o docs/images]

studies-clusters.svg: makespans over the time that the jobs of a GPU take if all GPUs have as many, a panel for each number of
GPUs and of micro-batches and each model. studies-clusters-map.svg: the schedule of the shortest predicted makespan on 8, 64 and 512
GPUs, by the network's bandwidth and the number of micro-batches. The tables for the page go to standard output.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import matplotlib
except ModuleNotFoundError:
    print(f"{sys.argv[0]}: needs matplotlib for {sys.executable} (Debian: python3-matplotlib)", file=sys.stderr)
    sys.exit(2)

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402: after the choice of a backend without a window

SHARDED = ("fsdp", "fslpp")
SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "v-half", "searched", *SHARDED)
MODELS = {"80": ("9.6B", 12.96 + 13.22 + 9.76), "112": ("38.5B", 6.72 + 6.89 + 5.06)}  # ms per micro-batch of a GPU's share
CLUSTERS = {"nvlink-infiniband": ("#1c5d9c", "o"), "nvlink-ethernet": ("#a82a22", "s"), "pcie-ethernet": ("#c06000", "D")}


def read(folder):
    """All runs that are done, as maps of what the figures need. `simulated` is None where `simulate` alone has run."""
    runs = []
    for name in ("pipelines", "sharded", "predicted"):
        file = folder / name / "results.jsonl"
        if not file.exists():
            continue
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["status"] != "done":
                continue
            model, share = MODELS[str(row["model.hidden"])]
            compute = row["microbatches"] * share / 1e3  # seconds that each GPU computes, if all compute as much
            runs.append({"schedule": "searched" if "schedule.file" in row else row["schedule"], "gpus": row["workers"], "model": model,
                         "cluster": pathlib.Path(row.get("--cluster") or row["--links"]).stem, "sharing": row.get("--sharing", "fair"),
                         "microbatches": row["microbatches"], "compute": compute, "predicted": row["predicted_makespan"],
                         "simulated": row.get("simulated_makespan")})  # fmt: skip
    return runs


def simulated_runs(runs):
    """Without predictions of what has been simulated too."""
    keys = ("schedule", "gpus", "microbatches", "model", "cluster", "sharing")
    done = {tuple(run[key] for key in keys) for run in runs if run["simulated"] is not None}
    return [run for run in runs if run["simulated"] is not None or tuple(run[key] for key in keys) not in done]


def draw(runs, file):
    """Dots by schedule: filled with contention, hollow without, dashes as predicted."""
    sizes = sorted({(run["gpus"], run["microbatches"]) for run in runs})
    models = [model for model, _ in MODELS.values()]
    plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "starpipe", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(len(sizes), len(models), figsize=(6.6, 1.75 * len(sizes) + 0.7), sharey=True, squeeze=False, layout="constrained")
    for row, size in zip(axes, sizes):
        for at, model in zip(row, models):
            here = [run for run in runs if (run["gpus"], run["microbatches"]) == size and run["model"] == model]
            clusters = [name for name in CLUSTERS if any(run["cluster"] == name for run in here)]
            for run in here:
                colour, mark = CLUSTERS[run["cluster"]]
                y = len(SCHEDULES) - 1 - SCHEDULES.index(run["schedule"])
                y += 0.22 * ((len(clusters) - 1) / 2 - clusters.index(run["cluster"]))
                shared = run["sharing"] == "fair"
                if run["simulated"] is not None:
                    at.plot(run["simulated"] / run["compute"], y, mark, color=colour, markersize=4.5, markerfacecolor=colour if shared else "none")
                if shared:
                    at.plot(run["predicted"] / run["compute"], y, "|", color="#1f2328", markersize=7)
            at.set_yticks(range(len(SCHEDULES)), SCHEDULES[::-1])
            at.set_xscale("log")
            at.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
            at.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
            values = [value / run["compute"] for run in here for value in (run["simulated"], run["predicted"]) if value is not None]
            ticks = [t for t in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 50, 60, 70, 80, 100, 120, 150)
                     if not values or min(values) * 0.9 <= t <= max(values) * 1.1]  # fmt: skip
            at.set_xticks(ticks[:: len(ticks) // 7 + 1])
            at.grid(color="#d8dee4", linewidth=0.5)
            at.set_axisbelow(True)
            at.set_visible(len({run["schedule"] for run in here}) > 2)  # a panel compares
            at.set_title(f"{model}, {size[0]} GPUs, {size[1]} micro-batches", fontsize=8)
    for at in axes[-1]:
        at.set_xlabel("makespan / compute")
    marks = [plt.Line2D([], [], color=colour, marker=mark, linestyle="", markersize=4.5) for colour, mark in CLUSTERS.values()]
    marks += [plt.Line2D([], [], color="#59636e", marker="o", linestyle="", markersize=4.5, markerfacecolor="none"),
              plt.Line2D([], [], color="#1f2328", marker="|", linestyle="", markersize=7)]  # fmt: skip
    foot = 0.09 / len(sizes) + 0.02
    figure.get_layout_engine().set(rect=(0, foot, 1, 1 - foot))
    figure.legend(marks, [*CLUSTERS, "without contention", "simulate, with contention"], loc="lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(file, dpi=300, metadata={"Date": None} if file.suffix == ".svg" else None)


def table(runs):
    """Simulated milliseconds, and how far they are from `simulate`, by schedule; in italics the milliseconds of `simulate` alone."""
    keys = ("gpus", "microbatches", "model", "cluster", "sharing")
    for place in sorted({tuple(run[key] for key in keys) for run in runs}):
        here = {run["schedule"]: run for run in runs if tuple(run[key] for key in keys) == place}
        cells = []
        for name in SCHEDULES:
            run = here.get(name)
            if run is None:
                cells.append("")
            elif run["simulated"] is None:
                cells.append(f"*{run['predicted'] * 1e3:.0f}*")
            else:
                cells.append(f"{run['simulated'] * 1e3:.0f} ({(run['simulated'] / run['predicted'] - 1) * 100:+.1f} %)")
        print(f"| {' | '.join(map(str, place))} | {' | '.join(cells)} |")


MAPPED = {"1f1b": "#cfe0f1", "interleaved-1f1b": "#f7dcc0", "zb-h1": "#c9e7da", "v-half": "#e6d3ea", "v-zb": "#f6e6a9",
          "fsdp": "#f3c6c6", "fslpp": "#dcdcdc"}  # fmt: skip
SHORT = {"1f1b": "1F1B", "interleaved-1f1b": "Int.", "zb-h1": "ZB-H1", "v-half": "V-Half", "v-zb": "V-ZB", "fsdp": "FSDP", "fslpp": "FSLPP"}
BANDWIDTHS = (3.125, 6.25, 12.5, 25, 50, 100, 200)  # GB/s of a node's port
SIZES = {8: (8, 16, 32, 64), 64: (16, 32, 64, 128), 512: (64, 128, 256)}  # GPUs: micro-batches
SCALE = 4096  # as in clusters.py, for models with weights
SHARED = {"9.6B": (80, 10, 4), "38.5B": (112, 16, 1)}  # hidden size, heads, micro-batch in gpt.yaml
DURATIONS = {"9.6B": (12.96, 13.22, 9.76), "38.5B": (6.72, 6.89, 5.06)}
BYTES = {"9.6B": 4 * 1024 * 5120 * 2, "38.5B": 1024 * 7168 * 2}  # of an activation


def json_of(*command):
    return json.loads(subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout)


def predict(starpipe, model, gpus, bandwidth):
    """By number of micro-batches: the predicted makespan of each schedule on nodes of 8 GPUs, with contention. On one node there is
    no network, and `bandwidth` is the bandwidth of the PCIe switches."""
    here = pathlib.Path(__file__).parent
    times = {microbatches: {} for microbatches in SIZES[gpus]}
    f, b, w = DURATIONS[model]
    with tempfile.TemporaryDirectory() as folder:
        links = {}
        for scale in (1, SCALE):
            links[scale] = pathlib.Path(folder) / f"cluster-{scale}.yaml"
            text = subprocess.run([sys.executable, here.parents[1] / "clusters" / "generate.py", "--bandwidth", str(bandwidth), "--scale", str(scale)],
                                  check=True, capture_output=True, text=True).stdout  # fmt: skip
            if gpus == 8:
                text = f"levels: [{{latency: 8us, bandwidth: {bandwidth / scale:.10g}GB/s, sharing: fair}}]\n"
            links[scale].write_text(text)
        pipelines = [name for name in MAPPED if name not in SHARDED]
        compared = json_of(starpipe, "schedule", "compare", *pipelines, "--workers", gpus, "--microbatches", ",".join(map(str, SIZES[gpus])),
                           "--durations", f"F={f}ms,B={b}ms,W={w}ms", "--links", links[1], "--bytes", BYTES[model], "--json")  # fmt: skip
        for row in compared["schedules"]:
            times[row["microbatches"]][row["schedule"]] = row["makespan"]
        hidden, heads, batch = SHARED[model]
        settings = {"model.hidden": hidden, "model.heads": heads, "training.microbatch_size": batch, "schedule.workers": gpus,
                    "model.layers": 2 * gpus - 2, "runtime.emulate": f"{{F: {f}ms, B: {b}ms, W: {w}ms, per_share: true}}"}  # fmt: skip
        for microbatches in SIZES[gpus]:
            for name in SHARDED:
                of_run = {**settings, "training.microbatches": microbatches, "schedule.name": name}
                if name == "fslpp":
                    of_run["schedule.groups"] = 2 if gpus == 8 else gpus // 8
                words = [word for key, value in of_run.items() for word in ("--set", f"{key}={value}")]
                predicted = json_of(starpipe, "simulate", here / "gpt.yaml", *words, "--links", links[SCALE], "--ranks", max(1, gpus // 8), "--json")
                times[microbatches][name] = predicted["makespan"]
    return times


def draw_map(starpipe, file):
    """The fastest schedule of each cell, and by how much the next one is slower."""
    cells = [(model, gpus, bandwidth) for model, _ in MODELS.values() for gpus in SIZES for bandwidth in BANDWIDTHS]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        predicted = dict(zip(cells, pool.map(lambda cell: predict(starpipe, *cell), cells)))
    panels = [(gpus, model) for gpus in SIZES for model, _ in MODELS.values()]
    figure, axes = plt.subplots(len(panels), 1, figsize=(3.4, 1.25 * len(panels)), sharex=True, squeeze=False, layout="constrained",
                                height_ratios=[len(SIZES[gpus]) for gpus, _ in panels])  # fmt: skip
    for at, (gpus, model) in zip(axes[:, 0], panels):
        for x, bandwidth in enumerate(BANDWIDTHS):
            for y, (_, times) in enumerate(sorted(predicted[model, gpus, bandwidth].items())):
                (best, least), (_, second) = sorted(times.items(), key=lambda item: item[1])[:2]
                at.add_patch(plt.Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=MAPPED[best], edgecolor="white"))
                at.text(x, y + 0.15, SHORT[best], ha="center", va="center", fontsize=7)
                at.text(x, y - 0.27, f"{(second / least - 1) * 100:.0f} %", ha="center", va="center", fontsize=6, color="#4a535e")
        at.set_xlim(-0.5, len(BANDWIDTHS) - 0.5)
        at.set_ylim(-0.5, len(SIZES[gpus]) - 0.5)
        at.set_xticks(range(len(BANDWIDTHS)), [f"{b:.4g}" for b in BANDWIDTHS])
        at.set_yticks(range(len(SIZES[gpus])), SIZES[gpus])
        at.set_title(f"{model}, {gpus} GPUs", fontsize=8)
        at.set_ylabel("micro-batches")
        for side in at.spines.values():
            side.set_visible(False)
        at.tick_params(length=0)
    axes[-1, 0].set_xlabel("GB/s of a node's port (8 GPUs: of a GPU's)")
    figure.savefig(file, dpi=300, metadata={"Date": None} if file.suffix == ".svg" else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="?", default=pathlib.Path("results/clusters"))
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("docs/images"))
    parser.add_argument("--starpipe", default="build/bin/starpipe", help="the command, for the map")
    options = parser.parse_args()
    runs = simulated_runs(read(options.results))
    draw(runs, options.output / "studies-clusters.svg")
    draw_map(options.starpipe, options.output / "studies-clusters-map.svg")
    table(runs)


if __name__ == "__main__":
    main()
