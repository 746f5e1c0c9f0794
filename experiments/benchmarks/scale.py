#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory and submission time of a step, by its number of jobs.

    experiments/benchmarks/scale.py [--starpipe build/bin/starpipe] [--workers 8] [--schedule 1f1b]
                                    [--microbatches 100,1000,6250,62500] [--set KEY=VALUE]

Runs `starpipe compare` of two steps of empty jobs for each number of micro-batches. Memory is the peak of the process
that runs the step: its resident memory as the system counts it, set-up and report included. Submission is the time in
which the tasks of the second step are inserted; it includes waits for room in `runtime.window`.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

CONFIG = """
model:    {{kind: mlp, layers: {workers}, hidden: 4, inputs: 4, outputs: 2}}
data:     {{kind: synthetic}}
training: {{microbatches: {microbatches}, microbatch_size: 1, steps: 2}}
schedule: {{name: {schedule}, workers: {workers}}}
runtime:  {{emulate: {{F: 0us, B: 0us, W: 0us}}}}
"""


def measure(arguments, microbatches):
    """Peak memory in bytes, and the comparison of `compare --json`."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "empty.yaml"
        config.write_text(CONFIG.format(schedule=arguments.schedule, workers=arguments.workers, microbatches=microbatches))
        output = pathlib.Path(folder) / "comparison.json"
        with open(output, "w", encoding="utf-8") as file:
            run = subprocess.Popen([arguments.starpipe, "compare", config, "--policies", "starpipe", "--repetitions", "1",
                                    "--json", *(word for value in arguments.set for word in ("--set", value))],
                                   stdout=file, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(run.pid, 0)  # children that the process waited for count as well
        run.returncode = os.waitstatus_to_exitcode(status)
        if run.returncode != 0:
            raise subprocess.CalledProcessError(run.returncode, run.args)
        return usage.ru_maxrss * 1024, json.loads(output.read_text(encoding="utf-8"))["policies"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--schedule", default="1f1b", help="one whose backward passes are not split")
    parser.add_argument("--microbatches", default="100,1000,6250,62500", help="comma-separated")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for starpipe compare")
    arguments = parser.parse_args()
    print("     jobs  peak MB  KB per job  submission us per job  makespan us per job")
    for microbatches in arguments.microbatches.split(","):
        jobs = 2 * int(microbatches) * arguments.workers
        memory, policy = measure(arguments, microbatches)
        print(f"{jobs:>9}{memory / 1e6:>9.0f}{memory / jobs / 1e3:>12.1f}{policy['submission'] / jobs * 1e6:>23.1f}"
              f"{policy['makespan'] / jobs * 1e6:>21.1f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
