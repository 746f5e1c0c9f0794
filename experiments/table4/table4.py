#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bubble rates of Table 4 of "Pipeline Parallelism with Controllable Memory", and ours next to them.

Durations come from Table 5: a worker's share of the model, or half of it for each of the two stages of the V
schedules. Transfers take 0.67, 0.45 and 0.29 ms for the three models. The rate is 1 - work / longest device span, in percent.

    experiments/table4/table4.py [--starpipe build/bin/starpipe] [--search SECONDS]

With --search, each cell has a third figure: the rate that `starpipe search` reaches in that many seconds, within the
memory of the row's schedule. Exits 1 when a rate is more than 0.3 points from the paper's.
"""

import argparse
import json
import subprocess
import sys

MODELS = {  # workers, F, B, W, transfer (ms)
    "9.6B": (16, 12.96, 13.22, 9.76, 0.67),
    "21B": (24, 9.30, 9.47, 7.19, 0.45),
    "38.5B": (32, 6.72, 6.89, 5.06, 0.29),
}
PAPER = {  # for each model: figures for W, 2 W, ... 16 W micro-batches
    "v-zb": [[18.7, 8.88, 4.57, 2.32, 1.16], [18.9, 8.51, 4.39, 2.19, 1.09], [18.7, 8.61, 4.3, 2.24, 1.14]],
    "zb-1p": [[31.7, 20.1, 11.2, 5.92, 3.06], [31.5, 19.8, 11.0, 5.82, 3.0], [32.1, 20.1, 11.1, 5.89, 3.04]],
    "v-half": [[40.5, 24.2, 13.8, 7.41, 3.84], [41.3, 24.6, 14.0, 7.5, 3.89], [42.0, 24.9, 14.3, 7.6, 3.97]],
    "1f1b": [[50.1, 34.3, 21.7, 13.5, 8.76], [50.5, 34.6, 21.9, 13.5, 8.67], [50.7, 34.6, 21.8, 13.4, 8.44]],
    "v-min": [[48.4, 36.5, 28.0, 23.1, 20.3], [47.8, 35.8, 27.4, 21.9, 19.1], [48.6, 36.5, 27.8, 22.5, 19.5]],
}
TOLERANCE = 0.3


def run(command):
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def predicted(options, workers, counts, times):
    """The rows of `schedule compare`, by schedule and number of micro-batches."""
    report = run([options.starpipe, "schedule", "compare", *PAPER, "--json", "--workers", str(workers),
                  "--microbatches", ",".join(map(str, counts)), *times(1)])
    return {(row["schedule"], row["microbatches"]): row for row in report["schedules"]}


def searched(options, row, workers, times, work):
    """The rate of the best schedule that `search` finds within the memory of this row."""
    chunks = row["stages"] // workers
    limit = round(row["peak_stashes"] * chunks)
    found = run([options.starpipe, "search", "--json", "--workers", str(workers), "--microbatches", str(row["microbatches"]),
                 "--chunks", str(chunks), "--memory-limit", str(limit), "--budget", str(options.search), *times(chunks)])
    return 100 * (1 - row["microbatches"] * work / found["device_span"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe", help="the command")
    parser.add_argument("--search", type=float, metavar="SECONDS", help="also search, for this time in each cell")
    options = parser.parse_args()
    print("Bubble rate by device span, %: paper, ours" + (", searched" if options.search else ""))
    worst = 0.0
    for index, (model, (workers, *durations, comm)) in enumerate(MODELS.items()):
        counts = [workers << i for i in range(5)]

        def times(chunks):
            durations_of_stage = ",".join(f"{name}={time / chunks}" for name, time in zip("FBW", durations))
            return ["--durations", durations_of_stage, "--comm", str(comm)]

        rows = predicted(options, workers, counts, times)
        print(f"\n{model}, {workers} workers\n{'micro-batches':14}" + "".join(f"{n:>22}" for n in counts))
        for name, paper in PAPER.items():
            print(f"{name:14}", end="", flush=True)
            for count, published in zip(counts, paper[index]):
                row = rows[name, count]
                ours = 100 * row["device_bubble_fraction"]
                worst = max(worst, abs(ours - published))
                text = f"{published:6.2f} {ours:6.2f}"
                if options.search:
                    text += f" {searched(options, row, workers, times, sum(durations)):6.2f}"
                print(f"{text:>22}", end="", flush=True)
            print()
    print(f"\nlargest difference: {worst:.2f} points")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
