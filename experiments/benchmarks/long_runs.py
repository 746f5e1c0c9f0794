#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What clipping, metrics, evaluation and checkpoints cost in a step, and tokens per second compared with an earlier build.

    experiments/benchmarks/long_runs.py [--starpipe build/bin/starpipe] [--rounds 15] [--steps 20] [--before BINARY]

    experiments/benchmarks/long_runs.py --shares .deps/starpu/bin/starpu_fxt_tool [--starpipe build/bin/starpipe] [--steps 20]

Trains the quickstart's model. A round runs every variant once, in an order that turns by one each round, so that a
disturbance of the machine meets all alike. Prints, for each variant, the median time of its steps over the median of the plain
run of the same round: the median of all rounds and the quartiles. Then the pauses for checkpoints, as a share of a step.
Nothing else should run on the machine. --before adds the plain run of another starpipe, such as one built from an earlier
commit.

--shares trains once, with clipping and under StarPU's traces, and prints what each kind of task takes of the time that
the workers compute. This says what is too small to see in a step's time: the tasks of the gradient norm (norm, judge,
merge) are extra work of the step, and nothing else of clipping is.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

WARM_UP = 2  # steps at the start that are not counted


def variants(arguments):
    """By name: the binary and its further arguments. FOLDER stands for an empty folder."""
    clip = ["--set", "training.clip=1"]
    metrics = ["--metrics", "FOLDER/metrics.jsonl"]
    checkpoints = ["--set", "checkpoint={folder: FOLDER/checkpoints, every: 4}"]
    found = {"plain": [], "again": [], "clip": clip, "metrics": metrics, "clip, metrics": clip + metrics, "checkpoints": checkpoints}
    runs = {name: (arguments.starpipe, extra) for name, extra in found.items()}
    if arguments.before:
        runs["before"] = (arguments.before, [])
    return runs


def train(arguments, binary, extra):
    """The median step of a run, in seconds, and its pauses for checkpoints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STARPU_")}
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        run = subprocess.run([*shlex.split(arguments.launcher), binary, "train", arguments.config, "--report", report, "--set",
                              f"training.steps={arguments.steps}", *(word.replace("FOLDER", folder) for word in extra)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env={**environment, "OPENBLAS_NUM_THREADS": "1"})
        if run.returncode:
            sys.exit(f"{shlex.join(map(str, run.args))} ended with status {run.returncode}:\n{run.stderr}")
        result = json.loads(report.read_text())
    pauses = [one["pause_seconds"] for one in result.get("checkpoints", {}).get("steps", [])]
    return statistics.median(result["step_seconds"][WARM_UP:]), pauses


def print_shares(arguments):
    """The shares of kinds of tasks, from the trace of one run."""
    times = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "STARPU_FXT_TRACE": "1", "STARPU_FXT_PREFIX": f"{folder}/"}
        subprocess.run([arguments.starpipe, "train", arguments.config, "--set", f"training.steps={arguments.steps}", "--set",
                        "training.clip=1"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        trace = next(pathlib.Path(folder).glob("prof_file_*"))
        subprocess.run([arguments.shares.resolve(), "-i", trace.name], check=True, cwd=folder, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        for record in (pathlib.Path(folder) / "tasks.rec").read_text().split("\n\n"):
            task = dict(line.split(": ", 1) for line in record.splitlines() if ": " in line)
            if "EndTime" in task:
                times[re.match(r"\w+", task["Name"])[0]] += float(task["EndTime"]) - float(task["StartTime"])
    for kind, time in times.most_common():
        print(f"{kind:<10}{100 * time / times.total():>9.3f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--before", help="another starpipe")
    parser.add_argument("--config", default="experiments/quickstart.yaml")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--launcher", default="", help="such as: mpiexec.mpich -n 2")
    parser.add_argument("--shares", metavar="FXT_TOOL", type=pathlib.Path, help="StarPU's starpu_fxt_tool: prints shares of tasks instead")
    arguments = parser.parse_args()
    if arguments.shares:
        print_shares(arguments)
        return
    if arguments.steps <= WARM_UP or arguments.rounds < 2:
        sys.exit(f"--steps must be greater than {WARM_UP} and --rounds than 1")
    runs = variants(arguments)
    steps = {name: [] for name in runs}
    pauses = []
    for turn in range(arguments.rounds):
        names = list(runs)
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            seconds, paused = train(arguments, *runs[name])
            steps[name].append(seconds)
            pauses += [pause / seconds for pause in paused]
        if sys.stderr.isatty():
            print(f"\rround {turn + 1} of {arguments.rounds}", end="", file=sys.stderr)
    print(f"{'variant':<16}{'step':>10}{'over plain':>12}{'quartiles':>18}")
    for name, seconds in steps.items():
        ratios = [one / plain for one, plain in zip(seconds, steps["plain"])]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name:<16}{1e3 * statistics.median(seconds):>7.1f} ms{middle:>12.3f}{f'{low:.3f} .. {high:.3f}':>18}")
    print(f"pauses for {len(pauses)} checkpoints: median {statistics.median(pauses):.3f} of a step, longest {max(pauses):.3f}")


if __name__ == "__main__":
    main()
