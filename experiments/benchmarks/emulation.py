#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measured over predicted makespan of emulated runs, for every named schedule and discipline.

    experiments/benchmarks/emulation.py [--starpipe build/bin/starpipe] [--workers 8,16] [--duration 2ms] [--comm 0us]

Each run trains six steps; the figure is the median of the last five. The limit of the bounded discipline is as many
stashes as there are workers. A schedule that refuses a number of workers or micro-batches is listed with its message.
On a machine that does other work as well, real-time priority keeps this work out of the figures
(chrt -r 5 experiments/benchmarks/emulation.py ...; it needs root and is for runs of one rank only).
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

CONFIG = """
model:    {{kind: mlp, layers: {layers}, hidden: 4, inputs: 4, outputs: 2}}
data:     {{kind: synthetic}}
training: {{microbatches: {microbatches}, microbatch_size: 1, steps: 6}}
schedule: {{name: {name}, workers: {workers}{more}}}
runtime:  {{emulate: {{F: {duration}, B: {duration}, W: {duration}, comm: {comm}}}}}
"""


def ratio(starpipe, folder, **values):
    """(measured over predicted, None), or (None, starpipe's message)."""
    config = folder / "emulated.yaml"
    report = folder / "report.json"
    config.write_text(CONFIG.format(**values))
    run = subprocess.run([starpipe, "train", config, "--report", report], capture_output=True, text=True, timeout=600)
    if run.returncode != 0:
        return None, run.stderr.strip().splitlines()[-1]
    makespan = json.loads(report.read_text())["makespan"]
    return statistics.median(makespan["all_measured"][-5:]) / makespan["predicted"], None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--workers", default="8,16", help="comma-separated")
    parser.add_argument("--duration", default="2ms", help="of F, B and W")
    parser.add_argument("--comm", default="0us", help="of each transfer")
    parser.add_argument("--schedules", help="comma-separated; all by default")
    arguments = parser.parse_args()
    listed = json.loads(subprocess.run([arguments.starpipe, "schedule", "list", "--json"], check=True,
                                       capture_output=True, text=True).stdout)["schedules"]
    names = arguments.schedules.split(",") if arguments.schedules else [entry["name"] for entry in listed]
    worst = {}
    print(f"{'schedule':<24}{'workers':>8}{'ordered':>10}{'greedy':>10}{'bounded':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for workers in map(int, arguments.workers.split(",")):
                row = f"{name:<24}{workers:>8}"
                for discipline in ("ordered", "greedy", f"bounded, memory_limit: {workers}"):
                    more = f", discipline: {discipline}" + (", groups: 2" if name in ("lpp", "fslpp") else "")
                    value, problem = ratio(arguments.starpipe, pathlib.Path(folder), name=name, workers=workers,
                                           layers=2 * workers, microbatches=2 * workers, duration=arguments.duration,
                                           comm=arguments.comm, more=more)
                    if value is None:
                        row += f"  {problem}"
                        break
                    worst[workers] = max(worst.get(workers, 0), value)
                    row += f"{value:>10.4f}"
                print(row, flush=True)
    for workers, value in worst.items():
        print(f"largest at {workers} workers: {value:.4f}")


if __name__ == "__main__":
    sys.exit(main())
