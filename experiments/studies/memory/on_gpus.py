#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stashes that wait on the host and on other GPUs, on simulated GPUs: StarPU moves them, and SimGrid times the links.

    experiments/studies/memory/on_gpus.py --starpipe build/bin/starpipe [-o results/memory-on-gpus]

Each GPU has 2 layers of a GPT (hidden size 8192, context 2048, bf16, micro-batches of one sequence), and F, B and W of a layer take the
time of their FLOP at 400 TFLOP/s. ways.py has the schedules, their homes and the links. For each, the script runs the schedule with all
stashes on the GPUs, and with homes; where these need a memory limit, within parts of that memory (--parts). It writes results.csv and
prints its table: predicted and simulated makespan, how many GPUs hold more or fewer stashes than predicted, and GPU memory. With --gpus
64, nodes of 8 are connected by a network of 400 GB/s a node, and a case takes a minute. starpipe must have simulated GPUs
(scripts/setup --simgrid; cmake --preset simgrid).
"""

import json
import pathlib
import subprocess
import sys

from ways import difference, runs_parser, write_table

BANDWIDTHS = {"PCIe 4": "25GB/s", "PCIe 5": "50GB/s", "NVLink-C2C": "300GB/s"}
LAYER_SECONDS = 24 * 2048 * 8192**2 / 400e12  # of F (Korthikanti et al., 2022, without the scores of attention)
COLUMNS = ("schedule", "gpus", "homes", "link", "limit", "stashes", "predicted_ms", "simulated_ms", "difference", "other_peaks", "predicted_gib", "simulated_gib", "moved_gib")

CLUSTER = """gpus_per_node: 8
gpu_memory: 200GiB
host_link: {{latency: 10us, bandwidth: {bandwidth}}}
levels:
  - {{name: node, workers: 8, latency: 3us, bandwidth: 300GB/s, sharing: fair}}
  - {{name: network, latency: 5us, bandwidth: 400GB/s, sharing: fair}}
"""
RUN = """model: {{kind: gpt, layers: {layers}, hidden: 8192, heads: 64, context: 2048}}
data: {{path: {text}}}
training: {{steps: 2, microbatches: {microbatches}, microbatch_size: 1}}
schedule: {{file: schedule.json}}
runtime: {{precision: bf16, emulate: {{F: {time}us, B: {time}us, W: {time}us, per_share: true}}}}
"""


def simulate(options, folder, case, made):
    """A row of the table; None where GPUs do not have these homes."""
    (folder / "cluster.yaml").write_text(CLUSTER.format(bandwidth=BANDWIDTHS[case["link"] or "PCIe 4"]), encoding="utf-8")
    text = pathlib.Path(__file__).resolve().parents[3] / "LICENSE"
    (folder / "run.yaml").write_text(RUN.format(layers=2 * options.workers, text=text, microbatches=options.microbatches, time=round(2e6 * LAYER_SECONDS, 1)), encoding="utf-8")
    run = subprocess.run([options.starpipe, "sim", "run.yaml", "--cluster", "cluster.yaml", "--report", "report.json"], cwd=folder,
                         capture_output=True, text=True, check=False)  # fmt: skip
    if run.returncode == 2 and "of their rank" in run.stderr:
        print(f"{case}: {run.stderr.strip()}", file=sys.stderr)
        return None
    if run.returncode != 0:
        sys.exit(f"{case}: {run.stderr}")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    times = report["makespan"]
    peaks = [worker["peak_stashes"] for worker in report["workers"]]
    other_peaks = sum(peak["simulated"] != peak["predicted"] for peak in peaks)
    largest = {of: max(worker["gpu_memory"][of] for worker in report["workers"]) for of in ("predicted", "simulated")}
    gib = 1 << 30
    moved = [sum(worker["received"][kind]["bytes"]["simulated"] for kind in ("reloads", "stashes")) for worker in report["workers"]]
    return {**case, "gpus": options.workers, "predicted_ms": round(times["predicted"] * 1e3, 1), "simulated_ms": round(times["simulated"] * 1e3, 1),
            "difference": difference(times["simulated"], times["predicted"]), "other_peaks": other_peaks,
            "predicted_gib": round(largest["predicted"] / gib, 1), "simulated_gib": round(largest["simulated"] / gib, 1),
            "moved_gib": round(max(moved) / gib, 1)}  # fmt: skip


def main():
    parser = runs_parser(__doc__, "results/memory-on-gpus")
    parser.add_argument("--gpus", dest="workers", type=int, default=8)
    parser.add_argument("--microbatches", type=int, help="default: four for each GPU")
    options = parser.parse_args()
    options.microbatches = options.microbatches or 4 * options.workers
    write_table(options, COLUMNS, simulate)


if __name__ == "__main__":
    main()
