#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a task costs when its kernel costs nothing: microseconds of execution and of submission, by policy.

    experiments/benchmarks/overhead.py [--starpipe build/bin/starpipe] [--workers 1,2,4,8] [--repetitions 5]

One `starpipe compare` of empty jobs (1F1B) for each number of workers, and one on two ranks. Execution: makespan
over jobs. Submission: the time in which rank 0 inserts its tasks, over jobs; the two overlap.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

CONFIG = """
model:    {{kind: mlp, layers: {workers}, hidden: 4, inputs: 4, outputs: 2}}
data:     {{kind: synthetic}}
training: {{microbatches: {microbatches}, microbatch_size: 1, steps: 8}}
schedule: {{name: 1f1b, workers: {workers}}}
runtime:  {{emulate: {{F: 0us, B: 0us, W: 0us}}}}
"""
MICROBATCHES = 200
POLICIES = "starpipe,on-worker,worker-order,eager,lws,prio,dmdas"


def compare(arguments, workers, launcher):
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "empty.yaml"
        config.write_text(CONFIG.format(workers=workers, microbatches=MICROBATCHES))
        run = subprocess.run([*launcher, arguments.starpipe, "compare", config, "--policies", POLICIES, "--repetitions",
                              str(arguments.repetitions), "--json"], check=True, capture_output=True, text=True)
        return json.loads(run.stdout)["policies"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--workers", default="1,2,4,8", help="comma-separated")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--mpiexec", default="mpiexec.mpich")
    arguments = parser.parse_args()
    runs = [(int(w), 1, []) for w in arguments.workers.split(",")] + [(2, 2, [arguments.mpiexec, "-n", "2"])]
    print(f"{'workers':>7}{'ranks':>6}" + "".join(f"{name:>18}" for name in POLICIES.split(",")))
    for workers, ranks, launcher in runs:
        jobs = 2 * MICROBATCHES * workers
        cells = [f"{p['makespan'] / jobs * 1e6:.1f} ({p['submission'] / jobs * 1e6:.1f})"
                 for p in compare(arguments, workers, launcher)]
        print(f"{workers:>7}{ranks:>6}" + "".join(f"{cell:>18}" for cell in cells), flush=True)
    print("microseconds a job: execution (submission)")


if __name__ == "__main__":
    sys.exit(main())
