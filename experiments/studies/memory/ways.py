# SPDX-License-Identifier: Apache-2.0
"""The schedules of the studies of memory, and where their stashes wait. Each is a command that writes a schedule file.

A worker has 1/W of a transformer's layers, and F, B and W of its share take 1 each. `copy` is the time in which the stash of a share
passes a link, in these units: COPIES has it for a link to the host, and PEER_COPY for one between GPUs.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

# A layer's stash has 34 bytes and its F 24 h FLOP for each of b s h numbers (Korthikanti et al., 2022, without the scores of
# attention). With h = 8192 and 400 TFLOP/s, F takes 0.49 ns and the stash 1.36 ns at 25 GB/s: 2.77 times F.
COPIES = {"PCIe 4": 2.77, "PCIe 5": 1.38, "NVLink-C2C": 0.23}
PEER_COPY = 0.23  # NVLink, 300 GB/s
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "v-half": 2, "searched": 2}  # and their stages on a worker
HOMES = ("no homes", "recomputation", "host", "other worker", "all")
SEARCHED_HOMES = {"no homes": "worker", "recomputation": "none,worker", "host": "worker,host", "all": "none,worker,host"}
NODE = 8  # workers of more nodes are not homes for each other: GPUs send stashes to GPUs of their rank only


def cases(schedule, homes):
    """Whether these homes depend on the link to the host, and on a memory limit. None: there are no such schedules."""
    if schedule == "searched":
        return (homes in ("host", "all"), True) if homes in SEARCHED_HOMES else None
    return {"no homes": (False, False), "recomputation": (False, True), "host": (True, False), "other worker": (False, False), "all": (True, True)}[homes]


def arguments(options, schedule, homes, copy, limit):
    """The command line, without the program. `limit`: stashes of shares; None: no limit."""
    stages = SCHEDULES[schedule]
    command = ["--workers", str(options.workers), "--microbatches", str(options.microbatches)]
    has_peers = homes == "all" and options.workers <= NODE
    if homes in ("host", "all"):
        command += ["--copy", f"host={copy / stages}" + (f",peer={PEER_COPY / stages}" if has_peers else "")]
    if schedule == "searched":
        share = ",".join(f"{name}={1 / stages}" for name in "FBW")
        return ["search", *command, "--chunks", str(stages), "--layout", "v", "--durations", share, "--quiet", "--budget", str(options.budget),
                "--memory-limit", str(limit * stages), "--homes", SEARCHED_HOMES[homes] + (",peer" if has_peers else "")]  # fmt: skip
    command = ["schedule", "show", schedule, *command, "--per-share", "--durations", "F=1,B=1,W=1"]
    if limit is not None:
        command += ["--memory-limit", str(limit)]
    home = {"recomputation": "auto", "host": "pipeoffload", "other worker": "bpipe", "all": "auto"}.get(homes)
    if homes == "other worker":
        command += ["--copy", str(PEER_COPY / stages)]
    return [*command, "--home", home] if home else command


def make(options, schedule, homes, copy, limit):
    """The schedule as `--format json` writes it; None where starpipe refuses the limit."""
    command = [options.starpipe, *arguments(options, schedule, homes, copy, limit), "--format", "json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode == 2 and ("limit" in run.stderr or "home" in run.stderr):
        return None
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: {run.stderr}")
    made = json.loads(run.stdout)
    return with_adjacent_partners(made) if homes == "other worker" and "copies" in made else made


def with_adjacent_partners(made):
    """The schedule with its workers renumbered: partners x and p - 1 - x become 2x and 2x + 1, so that they are on one node, as in BPipe's
    pair-adjacent assignment (Kim et al., ICML 2023). Figures by worker that no reader needs are left out."""
    workers = made["workers"]
    number = [2 * min(x, workers - 1 - x) + (2 * x >= workers) for x in range(workers)]

    def renumbered(lists):
        return [lists[x] for x in sorted(range(workers), key=lambda x: number[x])]

    for job in (job for jobs in made["copies"] for job in jobs):
        job["home"] = f"worker:{number[int(job['home'].removeprefix('worker:'))]}"
    for job in (job for jobs in made["ops"] for job in jobs):
        job["weights_from"] = number[job["weights_from"]]
    kept = {key: value for key, value in made.items() if key not in ("received", "stashes_kept")}
    return {**kept, **{key: renumbered(made[key]) for key in ("copies", "ops", "peak_stashes")}}


def memory(schedule, made):
    """The largest number of shares of stashes on a worker."""
    return max(made["peak_stashes"]) / SCHEDULES[schedule]


def options_parser(description, output):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="starpipe")
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--homes", nargs="+", default=list(HOMES), choices=HOMES)
    parser.add_argument("--links", nargs="+", default=list(COPIES), choices=COPIES)
    parser.add_argument("--budget", type=float, default=5, help="seconds of each search, which works up to six times (default: 5)")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path(output), metavar="FOLDER")
    return parser


def runs_parser(description, output):
    """Of the scripts that run `limited_cases`."""
    parser = options_parser(description, output)
    parser.add_argument("--parts", nargs="+", type=int, default=[2, 4], metavar="N", help="memory limits of 1/N of all stashes (default: 2 4)")
    return parser


def all_stashes(options, schedule):
    """The shares of stashes that a worker holds if all wait there."""
    free = "v-half" if schedule == "searched" else schedule
    return memory(free, make(options, free, "no homes", None, None))


def all_cases(options, limits):
    """(schedule, homes, link, limit) of all options. `limits(schedule, homes, has_limit)`: the memory limits of these homes."""
    for schedule in options.schedules:
        for homes in options.homes:
            found = cases(schedule, homes)
            if found is None:
                continue
            has_link, has_limit = found
            for link in options.links if has_link else ("",):
                for limit in limits(schedule, homes, has_limit):
                    yield schedule, homes, link, limit


def limited_cases(options):
    """(case, schedule) of each run: homes that need a memory limit have a part of the stashes that a worker holds without, see --parts."""
    whole = {schedule: all_stashes(options, schedule) for schedule in options.schedules}

    def limits(schedule, homes, has_limit):
        return dict.fromkeys(max(1, round(whole[schedule] / part)) for part in options.parts) if has_limit else (None,)

    for schedule, homes, link, limit in all_cases(options, limits):
        made = make(options, schedule, homes, COPIES.get(link), limit)
        if made:
            yield {"schedule": schedule, "homes": homes, "link": link, "limit": limit or "", "stashes": memory(schedule, made)}, made


def write_table(options, columns, run):
    """Runs all cases, and writes and prints what `run(options, folder, case, schedule)` returns: a row, or None."""
    program = pathlib.Path(options.starpipe)
    options.starpipe = str(program.resolve()) if program.exists() else options.starpipe
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open(options.output / "results.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        print("  ".join(columns))
        for case, made in limited_cases(options):
            pathlib.Path(folder, "schedule.json").write_text(json.dumps(made), encoding="utf-8")
            row = run(options, pathlib.Path(folder), case, made)
            if row is None:
                continue
            writer.writerow(row)
            file.flush()
            print("  ".join(str(row[column]).rjust(len(column)) for column in columns), flush=True)


def difference(measured, predicted):
    return f"{measured / predicted - 1:+.2%}"
