#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stashes that wait in different places, on emulated workers: StarPU runs the schedules, and passes and copies are timed waits.

    experiments/studies/memory/on_workers.py --starpipe build/bin/starpipe [-o results/memory-on-workers]

F, B and W of a worker's share of the model take 10 ms each, and copies as long as ways.py says. For each link to the host, the script
runs schedules with all stashes on their workers, and with homes; where these need a memory limit, within parts of that memory (--parts).
It writes results.csv and prints its table: predicted and measured makespan, the median of the steps after the first.
"""

import json
import subprocess
import sys

from ways import COPIES, PEER_COPY, SCHEDULES, difference, runs_parser, write_table

MILLISECONDS = 10
COLUMNS = ("schedule", "homes", "link", "limit", "stashes", "measured_stashes", "predicted_ms", "measured_ms", "difference")
RUN = """model: {{kind: mlp, layers: {layers}, hidden: 8, inputs: 8, outputs: 2}}
data: {{kind: synthetic}}
training: {{steps: {steps}, microbatches: {microbatches}, microbatch_size: 1}}
schedule: {{file: schedule.json}}
runtime: {{emulate: {{F: {time}ms, B: {time}ms, W: {time}ms, per_share: true{copy}}}}}
"""


def measure(options, folder, case, made):
    copy, peer_copy = (time * MILLISECONDS / SCHEDULES[case["schedule"]] for time in (COPIES.get(case["link"], PEER_COPY), PEER_COPY))
    (folder / "run.yaml").write_text(
        RUN.format(layers=2 * options.workers, steps=options.steps, microbatches=options.microbatches, time=MILLISECONDS,
                   copy=f", copy: {copy}ms, peer_copy: {peer_copy}ms" if "copies" in made else ""), encoding="utf-8")  # fmt: skip
    run = subprocess.run([options.starpipe, "train", "run.yaml", "--report", "report.json"], cwd=folder, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{case}: {run.stderr}")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    times = report["makespan"]
    held = max(report["peak_stashes"]["measured"]) / SCHEDULES[case["schedule"]]
    return {**case, "measured_stashes": held, "predicted_ms": round(times["predicted"] * 1e3, 1), "measured_ms": round(times["measured"] * 1e3, 1),
            "difference": difference(times["measured"], times["predicted"])}  # fmt: skip


def main():
    parser = runs_parser(__doc__, "results/memory-on-workers")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    write_table(parser.parse_args(), COLUMNS, measure)


if __name__ == "__main__":
    main()
