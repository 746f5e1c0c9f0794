#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A figure of the results of `starpipe sweep`, for a paper's column. Needs matplotlib.

    experiments/studies/plot.py results.csv --x training.microbatches --y predicted_makespan measured_makespan
    experiments/studies/plot.py results.csv --x predicted_peak_stash_bytes --y predicted_makespan --frontier -o memory.svg

A line, or with --frontier a set of points, for each combination of the other settings that vary (or of --series); a panel for
each value of --panel. Repetitions become their median, with a bar from minimum to maximum: these are runs with the same
settings, except for the columns of --repetitions. With several --y, the first is drawn with a line and marks, the others
dashed. --frontier joins the points that no other point of the panel beats in both x and y.
"""

import argparse
import csv
import pathlib
import statistics
import sys
import textwrap

try:
    import matplotlib
except ModuleNotFoundError:
    print(f"{sys.argv[0]}: needs matplotlib for {sys.executable} (Debian: python3-matplotlib)", file=sys.stderr)
    sys.exit(2)

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402: after the choice of a backend without a window
import matplotlib.ticker  # noqa: E402

COLUMN, ROW = 3.4, 2.4  # inches: a column of a paper with two, and a panel's height
LABEL = 50  # characters in a line of the legend
MARKS = "osD^vPX*"
COLOURS = ["#1c5d9c", "#c06000", "#0b6e53", "#86358a", "#a82a22", "#766500", "#4a535e", "#2a9d8f"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, metavar="results.csv")
    parser.add_argument("--x", required=True, metavar="COLUMN")
    parser.add_argument("--y", required=True, nargs="+", metavar="COLUMN")
    parser.add_argument("--series", nargs="+", metavar="COLUMN", help="default: the settings that vary, except x and panel")
    parser.add_argument("--panel", metavar="COLUMN")
    parser.add_argument("--repetitions", nargs="+", default=[], metavar="COLUMN", help="runs that differ in these are repetitions, e.g. seeds")
    parser.add_argument("--frontier", action="store_true", help="points, and the line of those that no other beats")
    parser.add_argument("--log", default="", choices=["x", "y", "xy"], help="logarithmic axes")
    parser.add_argument("--label", nargs="+", default=[], metavar="NAME=TEXT", help="the text for a column, or for a value of a series or panel")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("figure.svg"), metavar="FILE", help=".svg, .png or .pdf")
    options = parser.parse_args()
    wrong = [label for label in options.label if not label.partition("=")[0] or "=" not in label]
    if wrong:
        parser.error(f"--label: {wrong[0]}: write NAME=TEXT")
    options.label = dict(label.split("=", 1) for label in options.label)
    if options.output.suffix not in (".svg", ".png", ".pdf"):
        parser.error(f"-o: {options.output}: the suffix must be .svg, .png or .pdf")
    return options


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(2)


def read(options):
    """The rows that can be drawn, and the columns. Prints which rows are left out. Figures of the axes become numbers."""
    try:
        with open(options.results, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            rows, columns = list(table), table.fieldnames or []
    except OSError as error:
        fail(f"{options.results}: {error.strerror}")
    except (UnicodeDecodeError, csv.Error):
        rows, columns = [], []
    if not {"run", "status"} <= set(columns):
        fail(f"{options.results}: is not a table of `starpipe sweep`: no columns run and status")
    if any(None in row or None in row.values() for row in rows):
        fail(f"{options.results}: is damaged: a row has not as many cells as there are columns")
    for column in [options.x, *options.y, *(options.series or []), *options.repetitions, *([options.panel] if options.panel else [])]:
        if column not in columns:
            fail(f"{options.results}: no column {column}; there are {', '.join(columns)}")
    drawn = [row for row in rows if row["status"] == "done" and row[options.x] and any(row[y] for y in options.y)]
    if not drawn:
        fail(f"{options.results}: no run that is done has {options.x} and {' or '.join(options.y)}")
    if len(drawn) < len(rows):
        print(f"{options.results}: {len(rows) - len(drawn)} of {len(rows)} rows are not drawn: they are not done, or have no "
              f"{options.x}, or none of {', '.join(options.y)}", file=sys.stderr)
    for y in options.y:
        words = [row[y] for row in drawn if row[y] and number(row[y]) is None]
        if words:
            fail(f"{options.results}: {y} is not a number: {words[0]}")
        for row in drawn:
            row[y] = number(row[y])
    values = [number(row[options.x]) for row in drawn]
    if None not in values:
        for row, value in zip(drawn, values):
            row[options.x] = value
    elif options.frontier or "x" in options.log:
        fail(f"{options.results}: {options.x} is not a number everywhere")
    return drawn, columns


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def words_of(column):
    """Words for a column: the words of a setting without its section, where the rest says enough."""
    parts = column.lstrip("-").split(".")
    return (parts[-2] if len(parts) > 1 and parts[-1] in ("name", "kind", "file") else parts[-1]).replace("_", " ").replace("-", " ")


def text_of(column, value, labels):
    """A value in a legend: a word stands for itself, a number has its column before it."""
    if str(value) in labels:
        return labels[str(value)]
    return f"{labels.get(column, words_of(column))} {value}" if number(value) is not None or value in ("true", "false") else value


def quantity_of(column, rows):
    """What a column measures. Times are in seconds and memory in bytes in the table; a study may have another unit of time."""
    last = column.rsplit("_", 1)[-1]
    if last in ("makespan", "span") and all(row.get("unit", "s") == "s" for row in rows):
        return "time"
    if last == "fraction":
        return "fraction"
    return "memory" if "bytes" in column or last == "memory" else "number"


def axis_of(columns, rows, labels):
    """The factor of the unit that the columns share, and the label of their axis."""
    quantities = [quantity_of(column, rows) for column in columns]
    if len(set(quantities)) > 1:
        fail(f"--y: {', '.join(columns)} cannot share an axis: {', '.join(quantities)}")
    factor, unit = {"time": (1e3, "ms"), "fraction": (100, "%"), "number": (1, "")}.get(quantities[0], (1, "B"))
    if quantities[0] == "memory":
        largest = max(row[column] or 0 for row in rows for column in columns)
        power = max(p for p in range(4) if largest >= 1024**p or p == 0)
        factor, unit = 1024**-power, ("B", "KiB", "MiB", "GiB")[power]
    if len(columns) == 1:
        words = labels.get(columns[0], words_of(columns[0]).replace(" bytes", ""))
    else:
        words = words_of(columns[0].partition("_")[2]).replace(" bytes", "") if are_one_figure(columns) else ""
    return factor, f"{words} ({unit})" if words and unit else words or unit


def are_one_figure(columns):
    """True for columns such as predicted_makespan and measured_makespan."""
    return len({column.partition("_")[2] for column in columns}) == 1


def kind_of(column, columns, labels):
    """The words that tell one of several columns of an axis from the others."""
    return labels.get(column, column.partition("_")[0] if are_one_figure(columns) else words_of(column))


def scaled(value, factor):
    """A number in the unit of its axis, or the word itself."""
    return value * factor if isinstance(value, float) else value


def varied(rows, columns, options):
    """The columns of settings, which stand between `run` and `status`, with several values; without the columns of repetitions."""
    settings = columns[1:columns.index("status")]
    return [c for c in settings if c not in ("repetition", *options.repetitions) and len({row[c] for row in rows}) > 1]


def chosen(column, columns):
    """True for a column that a study chooses: a setting, or what follows from settings alone. The others are results."""
    return column in columns[:columns.index("status")] or column in ("schedule", "workers", "stages", "microbatches", "ranks", "policy", "parameters")


def series_of(rows, columns, settings, options):
    """The settings that tell the lines apart. A number that others determine adds nothing; one that goes along with x (`runs:`
    of a study couples them) would leave a point for each line. Prints which ones follow x."""
    fixed = [options.panel] if options.panel else []
    series = [c for c in settings if c not in (options.x, options.panel)]
    numeric = {c for c in series if all(number(row[c]) is not None for row in rows)}
    with_x = []
    for column in sorted(series, key=lambda c: c not in numeric):
        others = [*fixed, *(c for c in series if c != column)]
        words = [c for c in others if c not in numeric]
        along = chosen(options.x, columns) and (column in numeric or isinstance(rows[0][options.x], str))
        if determined(rows, column, words if column in numeric else fixed):
            series.remove(column)
        elif along and determined(rows, column, [options.x, *others]):
            series.remove(column)
            with_x.append(column)
        elif column in numeric and determined(rows, column, others):
            series.remove(column)
    if with_x:
        print(f"{options.results}: no lines of their own for {', '.join(with_x)}, which change along with {options.x} "
              "(--series makes them)", file=sys.stderr)
    return series


def determined(rows, column, by):
    return all(len({row[column] for row in members}) == 1 for members in grouped(rows, lambda row: tuple(row[c] for c in by)).values())


def check_repetitions(rows, columns, settings, series, options):
    """Refuses runs for one point of a line that differ in other settings: their median would mean nothing."""
    if not chosen(options.x, columns):
        return  # each run is a point of its own
    shown = [c for c in (options.panel, *series, options.x) if c]
    for place, members in grouped(rows, lambda row: tuple(row[c] for c in shown)).items():
        values = {c: sorted({str(row[c]) or "none" for row in members}) for c in settings if c not in shown}
        other = [f"{c} ({', '.join(found)})" for c, found in values.items() if len(found) > 1]
        if other:
            where = ", ".join(f"{c} {value:g}" if isinstance(value, float) else f"{c} {value}" for c, value in zip(shown, place))
            fail(f"{options.results}: {len(members)} runs with {where} differ in {', '.join(other)}: they are not repetitions. "
                 "Name what differs in --series or --panel, or in --repetitions for a median over it")


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


def points_of(rows, y, settings):
    """Of the runs with equal settings: the median of x (a word stays), and y of each."""
    points = []
    for members in grouped((row for row in rows if row[y] is not None), lambda row: tuple(row[c] for c in settings)).values():
        xs = [row["x"] for row in members]
        points.append((xs[0] if isinstance(xs[0], str) else statistics.median(xs), [row[y] for row in members]))
    return points if any(isinstance(x, str) for x, _ in points) else sorted(points)


def draw(axes, rows, options, settings, series, styles, x_axis, y_axis):
    points = []
    for name, members in grouped(rows, lambda row: tuple(row[c] for c in series)).items():
        which = styles.setdefault(name, len(styles))
        # The marks shift when the colours begin again, so that no two of 64 sets look alike.
        style = {"color": COLOURS[which % len(COLOURS)], "marker": MARKS[(which + which // len(COLOURS)) % len(MARKS)], "markersize": 4}
        for k, y in enumerate(options.y):
            found = points_of([{**row, "x": scaled(row[options.x], x_axis[0])} for row in members], y, settings)
            xs = [x for x, _ in found]
            at = [[scaled(value, y_axis[0]) for value in values] for _, values in found]
            middle = [statistics.median(values) for values in at]
            words = [text_of(c, value, options.label) for c, value in zip(series, name) if value]
            label = ", ".join(words) + (f"{': ' if words else ''}{kind_of(y, options.y, options.label)}" if len(options.y) > 1 else "")
            label = "\n".join(textwrap.wrap(label, LABEL)) or None
            if options.frontier:
                points += zip(xs, middle)
                axes.plot(xs, middle, linestyle="", label=label, **style, **({"markerfacecolor": "none"} if k > 0 else {}))
                continue
            bars = [[m - min(values) for m, values in zip(middle, at)], [max(values) - m for m, values in zip(middle, at)]]
            axes.errorbar(xs, middle, yerr=bars if any(map(any, bars)) else None, linewidth=1.2, elinewidth=0.8, capsize=2, label=label,
                          linestyle="-" if k == 0 else "--", **(style if k == 0 else {**style, "marker": ""}))
    if options.frontier:
        axes.step(*zip(*frontier(points)), where="post", color="#59636e", linewidth=1, zorder=0)
    axes.set_axisbelow(True)
    axes.grid(color="#d8dee4", linewidth=0.5)
    axes.set_xlabel(x_axis[1])
    if x_axis[0] == 1 and all(isinstance(row[options.x], float) and row[options.x].is_integer() for row in rows):
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    if "x" in options.log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    if "y" in options.log:
        axes.set_yscale("log")


def add_legend(figure, axes):
    """Right of the panels if that leaves them most of the figure, else below them. The figure gets as high as it must."""
    handles = {}
    for at in axes:
        handles |= dict(zip(*reversed(at.get_legend_handles_labels())))
    if not handles:
        return

    def placed(**place):
        legend = figure.legend(handles.values(), handles.keys(), frameon=False, fontsize=7, **place)
        figure.canvas.draw()
        extent = legend.get_window_extent()
        return legend, extent.width / figure.dpi, extent.height / figure.dpi

    width = figure.get_figwidth()
    legend, wide, high = placed(loc="center right")
    if wide < 0.4 * width:
        figure.set_figheight(max(ROW, high + 0.1))
        figure.get_layout_engine().set(rect=(0, 0, 1 - wide / width, 1))
        return
    legend.remove()
    column = wide + 0.1
    legend, wide, high = placed(loc="lower center", ncol=max(1, min(len(handles), int(width / column))))
    figure.set_figheight(ROW + high)
    figure.get_layout_engine().set(rect=(0, high / (ROW + high), 1, ROW / (ROW + high)))


def main():
    options = parse()
    rows, columns = read(options)
    settings = varied(rows, columns, options)
    series = options.series or series_of(rows, columns, settings, options)
    check_repetitions(rows, columns, settings, series, options)
    unknown = [name for name in options.label if name not in columns and not any(name in (row[c], options.panel and row[options.panel])
                                                                                 for row in rows for c in series)]
    if unknown:
        fail(f"--label: {unknown[0]} is neither a column nor a value of a series or panel")
    panels = grouped(rows, lambda row: row[options.panel]) if options.panel else {"": rows}
    plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "starpipe", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, len(panels), figsize=(COLUMN * len(panels), ROW), sharey=True, squeeze=False, layout="constrained")
    styles = {}
    x_axis, y_axis = axis_of([options.x], rows, options.label), axis_of(options.y, rows, options.label)
    for at, (value, members) in zip(axes[0], panels.items()):
        draw(at, members, options, settings, series, styles, x_axis, y_axis)
        title = f"{options.label.get(options.panel, words_of(options.panel))}: {options.label.get(value, value)}" if options.panel else ""
        at.set_title(title, fontsize=8)
    axes[0][0].set_ylabel(y_axis[1])
    add_legend(figure, axes[0])
    # The same table gives the same file.
    try:
        figure.savefig(options.output, dpi=300, metadata={"Date": None} if options.output.suffix == ".svg" else None)
    except OSError as error:
        fail(f"-o: {options.output}: {error.strerror}")


if __name__ == "__main__":
    main()
