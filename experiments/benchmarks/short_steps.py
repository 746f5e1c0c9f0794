#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks for lost wake-ups: many short steps on several ranks, while ranks are stopped for a second at random times.

    experiments/benchmarks/short_steps.py [--starpipe build/bin/starpipe] [--ranks 2,4] [--steps 10000] [--stops 20]

A step of this small network takes some milliseconds, and nearly all of it is waiting for a message or for a worker. A
wake-up that is lost once ends the run: no rank makes progress, and the watchdog says so. Each number of ranks runs without
stops, then with them: SIGSTOP for one second to a rank chosen at random. The losses of both must equal the losses of one process,
bit for bit. Prints the time of each run.
"""
import argparse
import json
import os
import pathlib
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time

CONFIG = """
model:    {kind: mlp, layers: 4, hidden: 8, inputs: 8, outputs: 2}
data:     {kind: synthetic}
training: {microbatches: 4, microbatch_size: 2, seed: 1}
schedule: {name: zb-h1, workers: 4}
runtime:  {timeout: 60}
"""
STOPPED = 1.0  # seconds


def children(pid):
    """The processes that a process has started."""
    try:
        return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return []


def processes_of_ranks(launcher):
    """Each rank's process: the last of its chain, under the launcher."""
    below = children(launcher)
    return [last for pid in below for last in processes_of_ranks(pid)] if below else [launcher]


def stop_now_and_then(run, stops, seconds, chance):
    """Stops a process of the run for a second, `stops` times, spread over `seconds`. Returns how often it did."""
    stopped = 0
    for _ in range(stops):
        time.sleep(chance.uniform(0, 2 * seconds / stops))
        if run.poll() is not None:
            break
        rank = chance.choice(processes_of_ranks(run.pid))
        try:
            os.kill(rank, signal.SIGSTOP)
            time.sleep(STOPPED)
            os.kill(rank, signal.SIGCONT)
            stopped += 1
        except ProcessLookupError:  # the run has just ended
            break
    return stopped


def train(arguments, folder, ranks, stops=0, expected_seconds=0.0):
    """Losses of one run, its time, and how often a rank was stopped."""
    config = folder / "short.yaml"
    config.write_text(CONFIG)
    report = folder / "report.json"
    launcher = [*shlex.split(arguments.launcher), str(ranks)] if ranks > 1 else []
    begin = time.monotonic()
    with subprocess.Popen([*launcher, arguments.starpipe, "train", config, "--report", report, "--set",
                           f"training.steps={arguments.steps}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True) as run:
        stopped = stop_now_and_then(run, stops, expected_seconds, random.Random(arguments.seed)) if stops else 0
        errors = run.communicate()[1]
    if run.returncode:
        sys.exit(f"{ranks} ranks: exit status {run.returncode}\n{errors}")
    return json.loads(report.read_text())["losses"], time.monotonic() - begin, stopped


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--ranks", default="2,4", help="comma-separated")
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--stops", type=int, default=20, help="in each of the runs with stops")
    parser.add_argument("--seed", type=int, default=1, help="of the times of the stops")
    parser.add_argument("--launcher", default="mpiexec.mpich -n", help="starts as many ranks as the number behind it says")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        losses, seconds, _ = train(arguments, folder, 1)
        print(f"1 rank: {arguments.steps} steps in {seconds:.1f} s", flush=True)
        for ranks in map(int, arguments.ranks.split(",")):
            undisturbed = 0.0
            for stops in (0, arguments.stops):
                same, seconds, stopped = train(arguments, folder, ranks, stops, undisturbed)
                undisturbed = seconds
                if same != losses:
                    sys.exit(f"{ranks} ranks, {stopped} stops: other losses than on one rank")
                print(f"{ranks} ranks: {arguments.steps} steps in {seconds:.1f} s, {stopped} stops, equal losses", flush=True)


if __name__ == "__main__":
    main()
