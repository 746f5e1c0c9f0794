#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far the predicted makespan is from the measured one: real kernels, several schedules, one process and several ranks.

    experiments/studies/accuracy/accuracy.py --output FOLDER [--docs docs/experiments.md] [--schedules 1f1b,zb-h1]

Trains a GPT and an MLP under each schedule with 1, 2 and 4 workers, in one process and on 2 and 4 ranks where there are as
many workers. Prints mean, median and worst absolute error of two simulations: the prediction, and the step simulated again
with its own durations. Runs in which workers share cores, with each other or with the ranks' polling threads, are shown
apart, with the number of threads that want each core. Nothing else should run on the machine.

FOLDER receives results.csv, results.md and the folder reports/ with the report of each run. A run whose report is there is
not run again, so an interrupted study continues where it ended. --docs puts the tables between the markers of that page.
All runs take about 15 minutes.
"""

import argparse
import csv
import json
import pathlib
import shlex
import sys
import time

import runs
import tables

SCHEDULES = "gpipe,1f1b,zb-h1,interleaved-1f1b,v-half"


class Progress:
    """One line on a terminal; else a line for each run."""

    def __init__(self, count):
        self.count, self.done, self.ran, self.start = count, 0, 0, time.monotonic()

    def show(self, run):
        left = ""
        if self.ran:
            left = f", {(time.monotonic() - self.start) / self.ran * (self.count - self.done) / 60:.0f} min left"
        text = f"[{self.done + 1}/{self.count}{left}] {run}"
        print(f"\r\033[K{text}" if sys.stderr.isatty() else text, end="" if sys.stderr.isatty() else "\n", file=sys.stderr,
              flush=True)

    def end(self, ran):
        self.done += 1
        self.ran += ran

    def clear(self):
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def write_page(page, text):
    begin, end = "<!-- accuracy: begin -->\n", "<!-- accuracy: end -->\n"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"{page}: no lines '{begin.strip()}' and '{end.strip()}'")
    page.write_text(before + begin + "\n" + text + "\n" + end + after)


def require_same_study(options, settings):
    """Reports of other settings would be mixed with this study's reports."""
    file = options.output / "settings.json"
    if file.exists() and (kept := json.loads(file.read_text())) != settings:
        sys.exit(f"{options.output}: holds runs with {kept}, not with {settings}; choose another --output")
    file.write_text(json.dumps(settings) + "\n")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument("--starpipe", default="build/bin/starpipe", help="the command")
    parser.add_argument("--launcher", default="mpiexec.mpich -n", help="starts as many ranks as the number behind it says")
    parser.add_argument("--schedules", default=SCHEDULES, help=f"comma-separated (default {SCHEDULES})")
    parser.add_argument("--models", default=",".join(runs.MODELS), help="comma-separated")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the order of the runs")
    parser.add_argument("--docs", type=pathlib.Path, metavar="PAGE.md", help="the page that receives the tables")
    parser.add_argument("--small", action="store_true", help="small models and at most 2 workers, to try it out")
    return parser.parse_args()


def main():
    options = parse()
    reports = options.output / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    settings = {"training.steps": options.steps}
    layouts = runs.LAYOUTS
    if options.small:
        settings |= {"model.hidden": 32, "training.microbatch_size": 1}
        layouts = [layout for layout in layouts if layout[0] <= 2]
    require_same_study(options, settings)
    wanted = runs.all_runs(options.models.split(","), options.schedules.split(","), layouts, options.repetitions, options.seed)
    progress = Progress(len(wanted))
    rows = []
    for run in wanted:
        file = reports / f"{run.name}.json"
        missing = not file.exists()
        if missing:
            progress.show(run)
            try:
                runs.train(run, options.starpipe, shlex.split(options.launcher), settings, file)
            except runs.Failed as error:
                progress.clear()
                sys.exit(str(error))
        rows.append(runs.result(run, file))
        progress.end(missing)
    progress.clear()
    rows.sort(key=lambda row: row["report"])
    with open(options.output / "results.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0].keys())
        table.writeheader()
        table.writerows(rows)
    text = tables.all_tables(rows)
    (options.output / "results.md").write_text(text)
    print(text)
    if options.docs:
        write_page(options.docs, text)


if __name__ == "__main__":
    main()
