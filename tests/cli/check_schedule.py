# SPDX-License-Identifier: Apache-2.0
"""Checks the JSON of `starpipe schedule show` without any of starpipe's code.

Everything is derived again from the list of jobs: what depends on what, who waits for which transfer,
what a worker holds at any time and what it receives. Returns problems as text; empty means sound.
"""

import json
import math
import sys

EPS = 1e-9


def check(data, expect=None):
    """Returns the problems of the JSON, as lines. `expect`: required values of some keys."""
    problems = []

    def need(good, message):
        if not good and len(problems) < 20:
            problems.append(message)

    for key, value in (expect or {}).items():
        need(data.get(key) == value, f"{key} is {data.get(key)!r}, not {value!r}")

    workers, stages, count = data["workers"], data["stages"], data["microbatches"]
    durations = data["durations"]
    durations = durations if isinstance(durations, list) else [durations] * stages
    comm = data["comm"]
    edges = [tuple(e) for e in data.get("stage_graph", [[s, s + 1] for s in range(stages - 1)])]
    pred = {s: [a for a, b in edges if b == s] for s in range(stages)}
    succ = {s: [b for a, b in edges if a == s] for s in range(stages)}
    need(len(data["ops"]) == workers, "ops has not one row per worker")

    # Each job runs once and for its duration, and jobs of a worker do not overlap.
    jobs = {}
    for worker, row in enumerate(data["ops"]):
        before = 0.0
        for op in row:
            key = (op["stage"], op["microbatch"], op["op"])
            need(key not in jobs, f"{key} is there twice")
            jobs[key] = (worker, op)
            cost = durations[op["stage"]]
            lengths = {**cost, "BW": cost["B"] + cost["W"], "R": cost["F"]}
            length = lengths[op["op"]]
            need(abs(op["end"] - op["start"] - length) < EPS * (1 + op["end"]), f"{key} lasts not {length}")
            need(op["start"] >= before - EPS, f"{key} starts before the job ahead of it on its worker ends")
            need(0 <= op["weights_from"] < workers, f"{key}: weights from worker {op['weights_from']}")
            before = op["end"]
    expected = set()
    backward = {}  # (stage, micro-batch) -> key of the pass (B or BW) that computes the input's gradient
    maker = {}  # (stage, micro-batch) -> key of the pass (F or R) that makes the stash
    for s in range(stages):
        for b in range(count):
            fused = (s, b, "BW") in jobs
            expected |= {(s, b, "F"), (s, b, "BW")} if fused else {(s, b, "F"), (s, b, "B"), (s, b, "W")}
            backward[s, b] = (s, b, "BW" if fused else "B")
            maker[s, b] = (s, b, "R" if (s, b, "R") in jobs else "F")
            expected.add(maker[s, b])
    need(set(jobs) == expected, f"jobs missing or unknown: {sorted(set(jobs) ^ expected)[:5]}")
    if problems:
        return problems
    need(data["split_backward"] == any(d == "W" for _, _, d in jobs), "split_backward is wrong")

    def where(key):
        return jobs[key][0]

    def start(key):
        return jobs[key][1]["start"]

    def end(key):
        return jobs[key][1]["end"]

    # Each job starts after the jobs it depends on and the transfers between.
    late = data["discipline"] != "ordered" or data.get("late_recomputation", False)
    prefetch = data.get("prefetch", True)
    for key, (worker, op) in jobs.items():
        s, b, d = key
        gradients = [backward[n, b] for n in succ[s]]
        if d == "F":
            inputs = [(p, b, "F") for p in pred[s]]
        elif d == "R":
            inputs = [(p, b, "F") for p in pred[s]] + (gradients if late else [])
            need(start(key) >= end((s, b, "F")) - EPS, f"{key} starts before F has ended")
        elif d == "W":
            inputs = [maker[s, b], (s, b, "B")]
        else:
            inputs = [maker[s, b], *gradients]
        for source in inputs:
            wait = comm if where(source) != worker else 0
            need(start(key) >= end(source) + wait - EPS, f"{key} starts before {source} is there")
        if d != "W" and op["weights_from"] != worker and prefetch:
            need(start(key) >= comm - EPS, f"{key} starts before its weights are there")

    # Makespan, bubbles.
    first = min(start(k) for k in jobs)
    makespan = max(end(k) for k in jobs) - first
    busy = [sum(op["end"] - op["start"] for op in row) for row in data["ops"]]
    spans = [row[-1]["end"] - row[0]["start"] for row in data["ops"] if row]
    need(abs(makespan - data["makespan"]) < EPS * (1 + makespan), f"makespan is {makespan}")
    if makespan > 0:
        bubble = 1 - sum(busy) / (workers * makespan)
        need(abs(bubble - data["bubble_fraction"]) < 1e-9, f"bubble_fraction is {bubble}")
        again = sum(op["end"] - op["start"] for (_, _, d), (_, op) in jobs.items() if d == "R") / (workers * makespan)
        need(abs(again - data.get("recomputed_fraction", 0)) < 1e-9, f"recomputed_fraction is {again}")
        device = 1 - max(busy) / max(spans)
        need(abs(max(spans) - data["device_span"]) < EPS * (1 + makespan), f"device_span is {max(spans)}")
        need(abs(device - data["device_bubble_fraction"]) < 1e-9, f"device_bubble_fraction is {device}")

    # A stash lasts from the start of its maker (F or R) to the end of its last reader on that worker; a copy on another
    # worker lasts from the end of the maker. At equal times ends come before starts.
    changes = [[] for _ in range(workers)]
    for s in range(stages):
        for b in range(count):
            forward = maker[s, b]
            readers = [k for k in ((s, b, "B"), (s, b, "W"), (s, b, "BW")) if k in jobs]
            for holder in {where(forward), *map(where, readers)}:
                home = holder == where(forward)
                until = [end(k) for k in readers if where(k) == holder] + ([end(forward)] if home else [])
                begin = start(forward) if home else end(forward)
                if max(until) > begin:
                    changes[holder] += [(begin, 1), (max(until), -1)]
    peaks = []
    for changed in changes:
        live = peak = 0
        for _, step in sorted(changed):
            live += step
            peak = max(peak, live)
        peaks.append(peak)
    if all(d[k] > 0 for d in durations for k in "FBW"):  # with jobs of length zero, peaks at an instant are not defined
        need(peaks == data["peak_stashes"], f"peak_stashes are {peaks}")
    for worker, limit in enumerate(data.get("memory_limits", [])):
        need(peaks[worker] <= limit, f"worker {worker} holds {peaks[worker]} stashes, its limit is {limit}")

    # Transfers that each worker receives.
    sets = {kind: [set() for _ in range(workers)] for kind in ("activations", "gradients", "weights", "stashes")}
    for (s, b, d), (worker, op) in jobs.items():
        if d != "W" and op["weights_from"] != worker:
            sets["weights"][worker].add((s, op["weights_from"]))
        gradients = {(s, n, b) for n in succ[s] if where(backward[n, b]) != worker}
        if d in ("F", "R"):
            sets["activations"][worker] |= {(p, b) for p in pred[s] if where((p, b, "F")) != worker}
            if d == "R" and late:
                sets["gradients"][worker] |= gradients
            continue
        if where(maker[s, b]) != worker:
            sets["stashes"][worker].add((s, b, "F"))
        if d == "W":
            if where((s, b, "B")) != worker:
                sets["stashes"][worker].add((s, b, "B"))
        else:
            sets["gradients"][worker] |= gradients
    for kind, received in sets.items():
        counts = [len(r) for r in received]
        need(counts == data["received"][kind], f"received.{kind} are {counts}")
    # How a sum is made is left open. Every other contributor sends something, every other holder gets something, and P
    # workers that halve and double send at most one message a round: P in each of 2 log2 P rounds.
    least = most = 0
    for s in range(stages):
        here = [(k, v) for k, v in jobs.items() if k[0] == s]
        holders = {op["weights_from"] for _, (_, op) in here}
        contributors = {worker for (_, _, d), (worker, _) in here if d in ("W", "BW")}
        least += len(contributors - {min(holders)}) + len(holders) - 1
        tree = len(contributors | {min(holders)})
        most += 2 * tree * math.ceil(math.log2(tree)) + len(holders - contributors)
    moves = sum(data["received"]["weight_gradients"])
    need(least <= moves <= most, f"weight gradients move {moves} times, not {least} to {most} times")
    return problems


def main():
    status = 0
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as file:
            problems = check(json.load(file))
        for problem in problems:
            print(f"{name}: {problem}")
        status = status or int(bool(problems))
    return status


if __name__ == "__main__":
    sys.exit(main())
