#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stashes that wait on the host, on simulated GPUs: StarPU moves them, and SimGrid times the links.

    experiments/studies/memory/on_gpus.py --starpipe build/bin/starpipe [-o results/memory-on-gpus]

Each GPU has 4 layers of a GPT (hidden size 4096, context 2048, bf16, micro-batches of one sequence), and F, B and W of a layer take the
time of their FLOP at 400 TFLOP/s. For each link to the host, the script runs schedules with all stashes on the GPUs, and within a half
and a quarter of that memory, with `home: auto`. It writes results.csv and prints its table: predicted and simulated makespan, and
GPU memory. With --gpus 64, nodes of 8 are connected by a network of 400 GB/s a node, and a case takes minutes. starpipe must have
simulated GPUs (scripts/setup --simgrid; cmake --preset simgrid).
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

LINKS = {"PCIe 4": "25GB/s", "PCIe 5": "50GB/s", "NVLink-C2C": "300GB/s"}
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "v-half": 2}  # and their stages on a GPU
LAYER_SECONDS = 24 * 2048 * 4096**2 / 400e12  # of F (Korthikanti et al., 2022, without the scores of attention)
COLUMNS = ("schedule", "gpus", "link", "limit", "stashes_gib", "predicted_ms", "simulated_ms", "difference", "predicted_gib", "simulated_gib", "reloads_gib")

CLUSTER = """gpus_per_node: 8
gpu_memory: 80GiB
host_link: {{latency: 10us, bandwidth: {bandwidth}}}
levels:
  - {{name: node, workers: 8, latency: 3us, bandwidth: 300GB/s, sharing: fair}}
  - {{name: network, latency: 5us, bandwidth: 400GB/s, sharing: fair}}
"""
RUN = """model: {{kind: gpt, layers: {layers}, hidden: 4096, heads: 32, context: 2048}}
data: {{path: {text}}}
training: {{steps: 2, microbatches: {microbatches}, microbatch_size: 1}}
schedule: {{name: {schedule}, workers: {gpus}{limit}}}
runtime: {{precision: bf16, emulate: {{F: {time}us, B: {time}us, W: {time}us}}}}
"""


def simulate(options, folder, schedule, gpus, link, limit):
    """A row of the table; None where no homes keep the limit."""
    (folder / "cluster.yaml").write_text(CLUSTER.format(bandwidth=LINKS[link]), encoding="utf-8")
    (folder / "run.yaml").write_text(
        RUN.format(layers=4 * gpus, text=pathlib.Path(__file__).resolve().parents[3] / "LICENSE", schedule=schedule, gpus=gpus,
                   microbatches=4 * gpus if gpus == 8 else 2 * gpus, time=round(4 * LAYER_SECONDS / SCHEDULES[schedule] * 1e6, 1),
                   limit="" if limit is None else f", memory_limit: {limit}, home: auto"), encoding="utf-8")  # fmt: skip
    run = subprocess.run([options.starpipe, "sim", "run.yaml", "--cluster", "cluster.yaml", "--report", "report.json"], cwd=folder,
                         capture_output=True, text=True, check=False)  # fmt: skip
    if run.returncode == 2 and "limit" in run.stderr:
        return None
    if run.returncode != 0:
        sys.exit(f"{schedule}, {gpus} GPUs, {link}: {run.stderr}")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    times = report["makespan"]
    largest = {key: {of: max(worker[key][of] for worker in report["workers"]) for of in ("predicted", "simulated")} for key in ("gpu_memory", "peak_stash_bytes", "peak_stashes")}
    if largest["peak_stashes"]["simulated"] != largest["peak_stashes"]["predicted"]:
        sys.exit(f"{schedule}, {gpus} GPUs, {link}: peaks of stashes differ: {largest['peak_stashes']}")
    gib = 1 << 30
    return {"schedule": schedule, "gpus": gpus, "link": link, "limit": "" if limit is None else limit,
            "stashes_gib": round(largest["peak_stash_bytes"]["simulated"] / gib, 2),
            "predicted_ms": round(times["predicted"] * 1e3, 1), "simulated_ms": round(times["simulated"] * 1e3, 1),
            "difference": f"{times['simulated'] / times['predicted'] - 1:+.2%}",
            "predicted_gib": round(largest["gpu_memory"]["predicted"] / gib, 1), "simulated_gib": round(largest["gpu_memory"]["simulated"] / gib, 1),
            "reloads_gib": round(max(worker["received"]["reloads"]["bytes"]["simulated"] for worker in report["workers"]) / gib, 1),
            "peak": largest["peak_stashes"]["simulated"]}  # fmt: skip


def rows(options, folder):
    for gpus in options.gpus:
        for schedule in options.schedules:
            free = simulate(options, folder, schedule, gpus, "PCIe 4", None)
            yield {**free, "link": ""}
            for link in LINKS:
                for part in (2, 4):
                    row = simulate(options, folder, schedule, gpus, link, max(1, free["peak"] // part))
                    if row:
                        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="starpipe")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8])
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("results/memory-on-gpus"), metavar="FOLDER")
    options = parser.parse_args()
    options.starpipe = str(pathlib.Path(options.starpipe).resolve()) if pathlib.Path(options.starpipe).exists() else options.starpipe
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open(options.output / "results.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        print("  ".join(COLUMNS))
        for row in rows(options, pathlib.Path(folder)):
            writer.writerow(row)
            file.flush()
            print("  ".join(str(row[column]).rjust(len(column)) for column in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
