# SPDX-License-Identifier: Apache-2.0
"""Markdown tables of the results of accuracy.py."""

import statistics

PUBLISHED = [("SimAI", "1.9 %"), ("Charon", "3.7 %"), ("vTrain", "8.4 % to 14.7 %")]  # of GPU clusters
ALONE = "workers have a core each"
WITH_POLLING = "workers share cores with polling threads"
WITH_WORKERS = "workers share cores with each other"


def group(row):
    if row["workers"] > row["cores"]:
        return WITH_WORKERS
    return ALONE if row["workers"] + row["polling_threads"] <= row["cores"] else WITH_POLLING


def table(head, rows):
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def percent(share):
    return f"{100 * share:.1f} %"


def errors(rows, key):
    """Mean, median and worst absolute error."""
    found = [abs(row[key]) for row in rows]
    return [percent(of(found)) for of in (statistics.mean, statistics.median, max)]


def threads(rows):
    """How many threads want each core."""
    least, most = (of(row["threads_a_core"] for row in rows) for of in (min, max))
    return f"{least:.1f}" if least == most else f"{least:.1f} to {most:.1f}"


def summary(rows):
    head = ["runs", "number", "threads per core", "prediction: mean error", "median", "worst", "own durations: mean error",
            "median", "worst"]
    lines = []
    for name in (ALONE, WITH_POLLING, WITH_WORKERS):
        members = [row for row in rows if group(row) == name]
        if members:
            lines.append([name, len(members), threads(members), *errors(members, "prediction_error"),
                          *errors(members, "own_durations_error")])
    lines += [[f"{name}, as published for GPU clusters", "", "", figure, "", "", "", "", ""] for name, figure in PUBLISHED]
    return table(head, lines)


def combinations(rows):
    """A row for each combination, the worst of its repetitions counting."""
    head = ["model", "schedule", "workers", "ranks", "threads per core", "measured, ms", "prediction: error", "own durations: error",
            "own durations: worst step"]
    key = ("model", "schedule", "workers", "ranks")
    lines = []
    for name in sorted({tuple(row[k] for k in key) for row in rows}):
        members = [row for row in rows if tuple(row[k] for k in key) == name]

        def worst(of):
            return f"{100 * max((row[of] for row in members), key=abs):+.1f} %"

        model, schedule, workers, ranks = name
        lines.append([model, schedule, workers, "one process" if ranks == 1 else ranks, threads(members),
                      f"{1e3 * statistics.median(row['measured'] for row in members):.1f}", worst("prediction_error"),
                      worst("own_durations_error"), worst("own_durations_worst_step")])
    return table(head, lines)


def all_tables(rows):
    parts = ["Absolute errors of the makespan, relative to the measured one. *Prediction*: the durations come from the "
             "compared steps, as `train` prints it. *Own durations*: each step is simulated again with its own durations.\n",
             summary(rows)]
    for name in (ALONE, WITH_POLLING, WITH_WORKERS):
        members = [row for row in rows if group(row) == name]
        if members:
            parts.append(f"**{name[0].upper()}{name[1:]}**\n\n{combinations(members)}")
    return "\n".join(parts)
