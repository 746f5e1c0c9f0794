#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A figure of the results of `starpipe sweep`, for a paper's column. Needs matplotlib.

    experiments/studies/plot.py results.csv --x training.microbatches --y predicted_makespan measured_makespan
    experiments/studies/plot.py results.csv --x predicted_peak_stash_bytes --y predicted_makespan --frontier -o memory.svg

A line, or with --frontier a set of points, for each combination of the other settings that vary (or of --series); a panel for
each value of --panel. Repetitions become their median, with a bar from the least to the greatest. With several --y, the first
is drawn with a line and marks, the others dashed. --frontier joins the points that no other point of the panel beats in
both x and y.
"""

import argparse
import csv
import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402: after the choice of a backend without a window
import matplotlib.ticker  # noqa: E402

COLUMN, ROW = 3.4, 2.4  # inches: a column of a paper with two, and a panel's height
MARKS = "osD^vPX*"
COLOURS = ["#1c5d9c", "#c06000", "#0b6e53", "#86358a", "#a82a22", "#766500", "#4a535e", "#2a9d8f"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, metavar="results.csv")
    parser.add_argument("--x", required=True, metavar="COLUMN")
    parser.add_argument("--y", required=True, nargs="+", metavar="COLUMN")
    parser.add_argument("--series", nargs="+", metavar="COLUMN", help="default: the settings that vary, but for those of the axes")
    parser.add_argument("--panel", metavar="COLUMN")
    parser.add_argument("--frontier", action="store_true", help="points, and the line of those that no other beats")
    parser.add_argument("--log", default="", choices=["x", "y", "xy"], help="logarithmic axes")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("figure.svg"), metavar="FILE", help=".svg, .png or .pdf")
    options = parser.parse_args()
    if options.output.suffix not in (".svg", ".png", ".pdf"):
        parser.error(f"-o: {options.output}: the suffix must be .svg, .png or .pdf")
    return options


def read(options):
    """The rows that can be drawn, and the columns. Says which rows are left out. Figures of the axes become numbers."""
    try:
        with open(options.results, newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            rows, columns = list(table), table.fieldnames or []
    except OSError as error:
        sys.exit(f"{options.results}: {error.strerror}")
    if not {"run", "status"} <= set(columns):
        sys.exit(f"{options.results}: is not a table of `starpipe sweep`: no columns run and status")
    for column in [options.x, *options.y, *(options.series or []), *([options.panel] if options.panel else [])]:
        if column not in columns:
            sys.exit(f"{options.results}: no column {column}; there are {', '.join(columns)}")
    drawn = [row for row in rows if row["status"] == "done" and row[options.x] and any(row[y] for y in options.y)]
    if not drawn:
        sys.exit(f"{options.results}: no run that is done has {options.x} and {' or '.join(options.y)}")
    if len(drawn) < len(rows):
        print(f"{options.results}: {len(rows) - len(drawn)} of {len(rows)} rows are not drawn: they are not done, or have no "
              f"{options.x}, or none of {', '.join(options.y)}", file=sys.stderr)
    for y in options.y:
        words = [row[y] for row in drawn if row[y] and number(row[y]) is None]
        if words:
            sys.exit(f"{options.results}: {y} is not a number: {words[0]}")
        for row in drawn:
            row[y] = number(row[y])
    values = [number(row[options.x]) for row in drawn]
    if None not in values:
        for row, value in zip(drawn, values):
            row[options.x] = value
    elif options.frontier or "x" in options.log:
        sys.exit(f"{options.results}: {options.x} is not a number everywhere")
    return drawn, columns


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def axis_of(column, rows):
    """The factor of the axis' unit, and its label. Times are in seconds and memory in bytes in the table."""
    words = column.replace("_", " ")
    last = column.rsplit("_", 1)[-1]
    if last in ("makespan", "span") and all(row.get("unit", "s") == "s" for row in rows):
        return 1e3, f"{words} (ms)"
    if last == "fraction":
        return 100, f"{words} (%)"
    if "bytes" in column or last == "memory":
        most = max(row[column] or 0 for row in rows)
        power = max(p for p in range(4) if most >= 1024**p or p == 0)
        return 1024**-power, f"{words.replace(' bytes', '')} ({('B', 'KiB', 'MiB', 'GiB')[power]})"
    return 1, words


def scaled(value, factor):
    """A number in the unit of its axis, or the word itself."""
    return value * factor if isinstance(value, float) else value


def varied(rows, columns):
    """The columns of settings, which stand between `run` and `status`, with several values."""
    settings = columns[1:columns.index("status")]
    return [c for c in settings if c != "repetition" and len({row[c] for row in rows}) > 1]


def grouped(rows, key):
    groups = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def frontier(points):
    """The points that no other beats in both, by x."""
    best = []
    for x, y in sorted(points):
        if not best or y < best[-1][1]:
            best.append((x, y))
    return best


def draw(axes, rows, options, series, styles, x_axis, y_axes):
    points = []
    for name, members in grouped(rows, lambda row: tuple(row[c] for c in series)).items():
        which = styles.setdefault(name, len(styles))
        # The marks shift when the colours begin again, so that no two of 64 sets look alike.
        style = {"color": COLOURS[which % len(COLOURS)], "marker": MARKS[(which + which // len(COLOURS)) % len(MARKS)], "markersize": 4}
        for k, y in enumerate(options.y):
            at = {x: [scaled(row[y], y_axes[k][0]) for row in found]
                  for x, found in grouped((row for row in members if row[y] is not None),
                                          lambda row: scaled(row[options.x], x_axis[0])).items()}
            xs = list(at) if any(isinstance(x, str) for x in at) else sorted(at)
            middle = [statistics.median(at[x]) for x in xs]
            label = ", ".join(filter(None, name)) + (f": {y.split('_')[0]}" if len(options.y) > 1 else "")
            if options.frontier:
                points += zip(xs, middle)
                axes.plot(xs, middle, linestyle="", label=label, **style)
                continue
            bars = [[m - min(at[x]) for x, m in zip(xs, middle)], [max(at[x]) - m for x, m in zip(xs, middle)]]
            axes.errorbar(xs, middle, yerr=bars if any(map(any, bars)) else None, linewidth=1.2, elinewidth=0.8, capsize=2, label=label,
                          linestyle="-" if k == 0 else "--", **(style if k == 0 else {**style, "marker": ""}))
    if options.frontier:
        axes.step(*zip(*frontier(points)), where="post", color="#59636e", linewidth=1, zorder=0)
    axes.set_axisbelow(True)
    axes.grid(color="#d8dee4", linewidth=0.5)
    axes.set_xlabel(x_axis[1])
    if "x" in options.log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    if "y" in options.log:
        axes.set_yscale("log")


def main():
    options = parse()
    rows, columns = read(options)
    taken = {options.x, *options.y, options.panel}
    series = options.series or [c for c in varied(rows, columns) if c not in taken]
    panels = grouped(rows, lambda row: row[options.panel]) if options.panel else {"": rows}
    plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "starpipe", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, len(panels), figsize=(COLUMN * len(panels), ROW), sharey=True, squeeze=False, layout="constrained")
    styles = {}
    x_axis, y_axes = axis_of(options.x, rows), [axis_of(y, rows) for y in options.y]
    for at, (value, members) in zip(axes[0], panels.items()):
        draw(at, members, options, series, styles, x_axis, y_axes)
        at.set_title(f"{options.panel}: {value}" if options.panel else "", fontsize=8)
    axes[0][0].set_ylabel(y_axes[0][1] if len(options.y) == 1 else y_axes[0][1].split(" ", 1)[-1])
    handles = {}
    for at in axes[0]:
        handles |= dict(zip(*reversed(at.get_legend_handles_labels())))
    axes[0][-1].legend(handles.values(), handles.keys(), loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=7)
    # The same table gives the same file.
    figure.savefig(options.output, dpi=300, metadata={"Date": None} if options.output.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
