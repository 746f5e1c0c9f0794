#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Slices of long sequences on emulated workers: StarPU runs the schedules of slices.py, and passes are timed waits.

    experiments/studies/slices/on_workers.py --starpipe build/bin/starpipe [-o results/slices-on-workers]

F, B and W of a worker's share of the model take --time each for a whole sequence, and a slice has its part by FLOPs. Slices are of equal work.
With --search and the Python package (PYTHONPATH=build/python) an order that the search has found runs, too. The script writes results.csv and
prints its table: predicted and measured makespan, the median of the steps after the first, and whether each worker held the predicted memory
of stashes.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

from slices import CONFIG, SCHEDULES, SEARCHED, is_refused, search_order

COLUMNS = ("workers", "context", "schedule", "slices", "predicted_ms", "measured_ms", "difference", "stashes_as_predicted")
EMULATED = "runtime: {{emulate: {{F: {time}ms, B: {time}ms, W: {time}ms, per_share: true}}}}\n"


def measure(options, folder, case):
    """The row of a case; None where starpipe refuses it (slices.py says why)."""
    workers, context, schedule, slices = case
    sizes = ", slice_sizes: work" if slices > 1 else ""
    named = "1f1b" if schedule == SEARCHED else schedule
    text = CONFIG.format(layers=4 * workers, context=context, microbatches=max(2, workers // 2), schedule=named, workers=workers, slices=slices, sizes=sizes)
    (folder / "run.yaml").write_text(text.replace("steps: 1", f"steps: {options.steps}") + EMULATED.format(time=options.time), encoding="utf-8")
    command = [options.starpipe, "train", "run.yaml", "--report", "report.json"]
    if schedule == SEARCHED:
        shown = subprocess.run([options.starpipe, "simulate", "run.yaml", "--json"], cwd=folder, capture_output=True, text=True, check=False)
        if is_refused(shown):
            return None
        (folder / "1f1b.json").write_text(shown.stdout, encoding="utf-8")
        search_order(folder / "1f1b.json", slices, options.search).save(str(folder / "found.json"))
        command += ["--set", f"schedule={{file: found.json, slices: {slices}{sizes}}}"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if is_refused(run):
        return None
    if run.returncode != 0:
        sys.exit(f"{case}: {run.stderr}")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    times, stashes = report["makespan"], report["peak_stash_bytes"]
    values = (round(times["predicted"] * 1e3, 1), round(times["measured"] * 1e3, 1), f"{times['measured'] / times['predicted'] - 1:+.1%}", stashes["predicted"] == stashes["measured"])
    return dict(zip(COLUMNS, (*case, *values)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="starpipe")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--contexts", nargs="+", type=int, default=[2048, 131072])
    parser.add_argument("--slices", nargs="+", type=int, default=[1, 4, 8, 32])
    parser.add_argument("--time", type=float, default=160, metavar="MS", help="F, B and W of a worker's share of the model (default: 160)")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--search", type=float, metavar="SECONDS", help="also run orders of a search of so long, of up to 8 slices")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("results/slices-on-workers"), metavar="FOLDER")
    options = parser.parse_args()
    program = pathlib.Path(options.starpipe)
    options.starpipe = str(program.resolve()) if program.exists() else options.starpipe
    cases = [(options.workers, context, schedule, slices) for context in options.contexts for schedule in options.schedules for slices in options.slices]
    if options.search:
        cases += [(options.workers, context, SEARCHED, slices) for context in options.contexts for slices in options.slices if 1 < slices <= 8]
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, open(options.output / "results.csv", "w", newline="", encoding="utf-8") as file:
        folder = pathlib.Path(name)
        (folder / "text").write_text("It is a truth universally acknowledged. " * (max(options.contexts) // 20), encoding="utf-8")
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for case in cases:
            row = measure(options, folder, case)
            if row is None:
                continue
            writer.writerow(row)
            file.flush()
            print("  ".join(f"{row[key]!s:>{max(len(key), 8)}}" for key in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
