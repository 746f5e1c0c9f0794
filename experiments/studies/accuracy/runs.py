# SPDX-License-Identifier: Apache-2.0
"""The runs of accuracy.py: which there are, how one is started, and what its report says."""

import dataclasses
import json
import os
import pathlib
import random
import shlex
import statistics
import subprocess

FOLDER = pathlib.Path(__file__).resolve().parent
MODELS = ("gpt", "mlp")
LAYOUTS = ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4))  # workers, ranks


@dataclasses.dataclass(frozen=True)
class Run:
    model: str
    schedule: str
    workers: int
    ranks: int  # 1: one process, without a launcher
    repetition: int

    @property
    def name(self):
        return f"{self.model}-{self.schedule}-{self.workers}w-{self.ranks}r-{self.repetition}"

    def __str__(self):
        ranks = "one process" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{self.model}, {self.schedule}, {self.workers} worker{'s'[:self.workers - 1]}, {ranks}"


def all_runs(models, schedules, layouts, repetitions, seed):
    """Every combination once in each repetition, in an order of its own, so that a disturbance of the machine meets all."""
    order = random.Random(seed)
    runs = []
    for repetition in range(1, repetitions + 1):
        of_repetition = [Run(model, schedule, workers, ranks, repetition)
                         for model in models for schedule in schedules for workers, ranks in layouts]
        order.shuffle(of_repetition)
        runs += of_repetition
    return runs


class Failed(Exception):
    pass


def train(run, starpipe, launcher, settings, file):
    """Runs `train` and leaves its report in `file`, which is written when the run has ended well."""
    launched = [*launcher, str(run.ranks)] if run.ranks > 1 else []
    unfinished = file.with_suffix("")
    settings = {"schedule.name": run.schedule, "schedule.workers": run.workers, **settings}
    command = [*launched, starpipe, "train", str(FOLDER / f"{run.model}.yaml"), "--report", str(unfinished)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STARPU_")}
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env={**environment, "OPENBLAS_NUM_THREADS": "1"}, check=False)
    if done.returncode:
        raise Failed(f"{shlex.join(command)} ended with status {done.returncode}:\n{done.stderr.strip()}")
    unfinished.rename(file)


def result(run, file):
    """A row of results.csv. Makespans are in seconds; errors are signed, and relative to what was measured."""
    report = json.loads(file.read_text())
    steps = report["explain"]["per_step"]  # nanoseconds
    predicted = steps["predicted"]
    measured = steps["measured"]
    own = [(predicted + durations) / whole - 1 for durations, whole in zip(steps["durations"], measured)]
    # Ranks with one binding share its cores.
    cores = sum({(rank["machine"], rank["binding"]): rank["cores"] for rank in report["ranks"]}.values())
    polling = run.ranks if run.ranks > 1 else 0  # each of several ranks has a thread that waits for messages
    return {
        **dataclasses.asdict(run),
        "stages": report["stages"],
        "cores": cores,
        "polling_threads": polling,
        "threads_a_core": (run.workers + polling) / cores,
        "steps": len(measured),
        "predicted": predicted * 1e-9,
        "measured": statistics.median(measured) * 1e-9,
        "fastest": min(measured) * 1e-9,
        "slowest": max(measured) * 1e-9,
        "prediction_error": predicted / statistics.median(measured) - 1,
        "own_durations_error": statistics.median(own),
        "own_durations_worst_step": max(own, key=abs),
        "report": file.name,
    }
