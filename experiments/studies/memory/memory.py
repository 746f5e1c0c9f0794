#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makespan over memory: schedules whose stashes wait in different places. Needs matplotlib for the figure.

    experiments/studies/memory/memory.py --starpipe build/bin/starpipe [-o results/memory]

ways.py has the schedules, their homes and the links. The script predicts each schedule with each limit of memory, in shares of stashes,
and writes results.csv and memory.svg. The searches take most of the time: up to 10 minutes with the default budget.
"""

import concurrent.futures
import csv

from ways import COPIES, HOMES, all_cases, make, memory, options_parser

COLUMNS = ("schedule", "link", "homes", "limit", "memory", "makespan", "idle", "remade")
COLOURS = {"no homes": "#4a535e", "recomputation": "#c06000", "host": "#0b6e53", "other worker": "#a82a22", "all": "#1c5d9c"}


def predict_all(options):
    def row(case):
        schedule, homes, link, limit = case
        made = make(options, schedule, homes, COPIES.get(link), limit)
        if made is None:
            return None
        found = (memory(schedule, made), made["makespan"], made["bubble_fraction"], made.get("recomputed_fraction", 0))
        return dict(zip(COLUMNS, (schedule, link, homes, limit or "", *found)))

    def limits(schedule, homes, has_limit):  # without homes a limit makes another order
        if not has_limit and homes != "no homes":
            return (None,)
        return range(1, (options.workers if schedule == "searched" else options.microbatches) + 1)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [found for found in pool.map(row, all_cases(options, limits)) if found]


def frontier(rows):
    """The points that no other has less of both: memory and makespan."""
    points, best = [], float("inf")
    for held, makespan in sorted((row["memory"], row["makespan"]) for row in rows):
        if makespan < best:
            points.append((held, makespan))
            best = makespan
    return points


def draw(options, rows):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "starpipe", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(options.links), len(options.schedules), figsize=(2.2 * len(options.schedules), 2.1 * len(options.links)), sharex=True, sharey=True, squeeze=False)
    ideal = 3 * options.microbatches
    for i, link in enumerate(options.links):
        for j, schedule in enumerate(options.schedules):
            panel = axes[i][j]
            for homes, colour in COLOURS.items():
                points = frontier([row for row in rows if (row["schedule"], row["homes"]) == (schedule, homes) and row["link"] in ("", link)])
                if not points:
                    continue
                x, y = [held for held, _ in points], [makespan / ideal for _, makespan in points]
                if schedule != "searched" and homes in ("host", "other worker"):
                    panel.plot(x, y, "*" if homes == "host" else "D", color=colour, label=homes, markersize=6, zorder=3)
                else:
                    panel.plot(x, y, color=colour, label=homes, drawstyle="steps-post", marker=".", markersize=4)
            panel.set_title(schedule if i == 0 else "", fontsize=9)
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter("{x:.0f}")
            panel.set_ylim(1, 2)
            panel.grid(True, color="#e6e6e6")
        axes[i][0].set_ylabel(f"{link}\nmakespan / work", fontsize=8)
    for panel in axes[-1]:
        panel.set_xlabel("stashes of a worker, shares", fontsize=8)
    handles = {label: handle for row in axes for panel in row for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend([handles[homes] for homes in HOMES if homes in handles], [homes for homes in HOMES if homes in handles], loc="lower center", ncol=len(HOMES), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(options.output / "memory.svg", metadata={"Date": None})


def main():
    parser = options_parser(__doc__, "results/memory")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=32)
    options = parser.parse_args()
    rows = predict_all(options)
    options.output.mkdir(parents=True, exist_ok=True)
    with open(options.output / "results.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    draw(options, rows)
    print(f"{len(rows)} predictions in {options.output / 'results.csv'}, and {options.output / 'memory.svg'}")


if __name__ == "__main__":
    main()
