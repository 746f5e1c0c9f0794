#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Timelines of schedules, one below the other on one time axis, in the width of a paper's column. Needs matplotlib.

    experiments/studies/timeline.py FILE.json ... [-o FILE]

The files are JSON of `schedule show`, `search` or `simulate`: the report of each run of a study of `simulate` is one. A row
is a worker. A number is a micro-batch, where it fits; the passes of a worker's second stage, and of each other one, have a
line at their foot.
"""

import argparse
import json
import pathlib
import sys

try:
    import matplotlib
except ModuleNotFoundError:
    print(f"{sys.argv[0]}: needs matplotlib for {sys.executable} (Debian: python3-matplotlib)", file=sys.stderr)
    sys.exit(2)

matplotlib.use("Agg")
import matplotlib.patches  # noqa: E402: after the choice of a backend without a window
import matplotlib.pyplot as plt  # noqa: E402

WIDTH, ROW, LABEL = 3.4, 0.13, 5  # inches: a column of a paper with two, a worker's row; points: a label
PASSES = {"F": ("#b8d4ee", "forward"), "B": ("#1c5d9c", "backward, of the input"), "W": ("#e9a23b", "backward, of the weights"),
          "BW": ("#0b3a63", "backward, whole")}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=pathlib.Path, nargs="+", metavar="FILE.json")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("timeline.svg"), metavar="FILE", help=".svg, .png or .pdf")
    options = parser.parse_args()
    if options.output.suffix not in (".svg", ".png", ".pdf"):
        parser.error(f"-o: {options.output}: the suffix must be .svg, .png or .pdf")
    return options


def read(file):
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
        rows = [[(op["op"], op["stage"], op["microbatch"], op["start"], op["end"]) for op in row] for row in run["ops"]]
    except OSError as error:
        sys.exit(f"{file}: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        sys.exit(f"{file}: is not JSON of a schedule with times")
    factor, unit = (1e3, " ms") if run.get("unit") == "s" else (1, "")
    return {"name": run.get("schedule", file.stem), "unit": unit,
            "rows": [[(*job, start * factor, end * factor) for *job, start, end in row] for row in rows]}


def draw(axes, run, points_per_time):
    for worker, row in enumerate(run["rows"]):
        own = sorted({stage for _, stage, *_ in row})
        for kind, stage, microbatch, start, end in row:
            colour = PASSES[kind][0]
            axes.add_patch(matplotlib.patches.Rectangle((start, worker - 0.44), end - start, 0.88, facecolor=colour, edgecolor="white",
                                                        linewidth=0.3))
            dark = kind in ("B", "BW")
            if own.index(stage) % 2:
                axes.plot([start, end], [worker + 0.36] * 2, color="white" if dark else "black", linewidth=0.7, solid_capstyle="butt")
            if (end - start) * points_per_time >= 0.62 * LABEL * len(str(microbatch)) + 0.6:
                axes.text((start + end) / 2, worker, str(microbatch), fontsize=LABEL, color="white" if dark else "black", ha="center",
                          va="center_baseline", clip_on=True)
    workers = len(run["rows"])
    last = max(job[-1] for row in run["rows"] for job in row)
    axes.set_ylim(workers - 0.5, -0.5)
    axes.set_yticks(range(0, workers, max(1, workers // 4)))
    axes.tick_params(labelsize=6, length=2, pad=1)
    axes.set_title(f"{run['name']}, makespan {last:.4g}{run['unit']}", fontsize=7, pad=2, loc="left")


def main():
    options = parse()
    runs = [read(file) for file in options.files]
    if len({run["unit"] for run in runs}) > 1:
        sys.exit("some files have times in seconds, and others in a unit without a name")
    last = max(job[-1] for run in runs for row in run["rows"] for job in row)
    heights = [len(run["rows"]) * ROW for run in runs]
    plt.rcParams.update({"font.size": 7, "svg.fonttype": "none", "svg.hashsalt": "starpipe"})
    figure, axes = plt.subplots(len(runs), 1, figsize=(WIDTH, sum(heights) + 0.24 * len(runs) + 0.65), sharex=True, squeeze=False,
                                height_ratios=heights, layout="constrained")
    for at, run in zip(axes[:, 0], runs):
        draw(at, run, (WIDTH - 0.3) * 72 / last)
        at.set_xlim(0, last)
        at.spines[["top", "right"]].set_visible(False)
    axes[-1][0].set_xlabel("time" + (" (ms)" if runs[0]["unit"] else ""), labelpad=1)
    kinds = [kind for kind in PASSES if any(job[0] == kind for run in runs for row in run["rows"] for job in row)]
    below = (0.5, -0.28 / heights[-1])  # the axis' numbers and name are 0.28 inches high
    axes[-1][0].legend(handles=[matplotlib.patches.Patch(color=PASSES[kind][0], label=PASSES[kind][1]) for kind in kinds],
                       loc="upper center", bbox_to_anchor=below, ncols=2, frameon=False, fontsize=6, handlelength=1, columnspacing=1)
    # The same files give the same figure.
    try:
        figure.savefig(options.output, dpi=300, metadata={"Date": None} if options.output.suffix == ".svg" else None)
    except OSError as error:
        sys.exit(f"-o: {options.output}: {error.strerror}")


if __name__ == "__main__":
    main()
