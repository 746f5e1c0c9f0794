#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of a task whose kernel costs nothing: microseconds of execution and of submission, by policy.

    experiments/benchmarks/overhead.py [--starpipe build/bin/starpipe] [--workers 1,2,4,8] [--repetitions 5]

Runs one `starpipe compare` of empty jobs for each schedule and number of workers, and one on two ranks. Execution is the
makespan over the number of jobs. Submission is the time in which rank 0 inserts its tasks, over the number of jobs. The
two overlap.

GPipe's order holds no job back, so GPipe shows the cost of a task. 1F1B shows the cost of a hand-over as well: after the
warm-up each worker waits for its neighbour's answer, with two messages per micro-batch on two ranks. Only starpipe and
worker-order keep this order; the others run jobs as they come, with as many stashes as there are micro-batches.
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

CONFIG = """
model:    {{kind: mlp, layers: {workers}, hidden: 4, inputs: 4, outputs: 2}}
data:     {{kind: synthetic}}
training: {{microbatches: {microbatches}, microbatch_size: 1, steps: 8}}
schedule: {{name: {schedule}, workers: {workers}}}
runtime:  {{emulate: {{F: 0us, B: 0us, W: 0us}}}}
"""
MICROBATCHES = 200
SCHEDULES = ["gpipe", "1f1b"]
POLICIES = "starpipe,on-worker,worker-order,eager,lws,prio,dmdas"


def compare(arguments, schedule, workers, launcher):
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "empty.yaml"
        config.write_text(CONFIG.format(schedule=schedule, workers=workers, microbatches=MICROBATCHES))
        run = subprocess.run([*launcher, arguments.starpipe, "compare", config, "--policies", POLICIES, "--repetitions",
                              str(arguments.repetitions), "--json"], check=True, capture_output=True, text=True)
        return json.loads(run.stdout)["policies"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--workers", default="1,2,4,8", help="comma-separated")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--launcher", default="mpiexec.mpich -n", help="starts as many ranks as the number behind it says")
    arguments = parser.parse_args()
    runs = [(int(w), 1, []) for w in arguments.workers.split(",")] + [(2, 2, [*shlex.split(arguments.launcher), "2"])]
    names = POLICIES.split(",")
    for schedule in SCHEDULES:
        print(f"{schedule:<7}workers ranks" + "".join(f"{name:>16}" for name in names) + "  starpipe/prio")
        for workers, ranks, launcher in runs:
            jobs = 2 * MICROBATCHES * workers
            policies = compare(arguments, schedule, workers, launcher)
            cells = [f"{p['makespan'] / jobs * 1e6:.1f} ({p['submission'] / jobs * 1e6:.1f})" for p in policies]
            makespans = dict(zip(names, (p["makespan"] for p in policies)))
            print(f"{workers:>14}{ranks:>6}" + "".join(f"{cell:>16}" for cell in cells) +
                  f"{makespans['starpipe'] / makespans['prio']:>15.2f}", flush=True)
    print("microseconds per job: execution (submission)")


if __name__ == "__main__":
    sys.exit(main())
