#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `starpipe search` on the cases of published generators: with their placement, costs and memory.

    experiments/search_published.py build/bin/starpipe FIGURES.json [--budget SECONDS] [--only TEXT]

FIGURES.json has a list "cases" of {schedule, p, n, chunks, layout, tF, tB, tW, tComm, makespan,
peak_activation_memory}. Durations are of one stage; the unit of memory is the activations of 1/p of the model. Prints a
line for each case and a table over all. Exits with 1 if any published makespan is smaller than ours.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile


def search(binary, case, limit, budget, folder):
    """Makespan, lower bound and whether the budget sufficed, the first by `schedule check`."""
    file = os.path.join(folder, "found.json")
    subprocess.run(
        [binary, "search", "--quiet", "--budget", str(budget), "--workers", str(case["p"]), "--microbatches",
         str(case["n"]), "--chunks", str(case["chunks"]), "--layout", case["layout"].lower(), "--durations",
         f"F={case['tF']},B={case['tB']},W={case['tW']}", "--comm", str(case["tComm"]), "--memory-limit", str(limit),
         "-o", file], check=True)
    checked = json.loads(subprocess.run([binary, "schedule", "check", file, "--json"], check=True,
                                        stdout=subprocess.PIPE).stdout)
    if max(checked["peak_stashes"]) > limit:
        sys.exit(f"{case}: {max(checked['peak_stashes'])} stashes, over the limit of {limit}")
    with open(file, encoding="utf-8") as text:
        found = json.load(text)
    return checked["makespan"], found["lower_bound"], found["search"]["complete"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("figures")
    parser.add_argument("--budget", type=float, default=10)
    parser.add_argument("--only", default="", help="only schedules with this in their name")
    options = parser.parse_args()
    with open(options.figures, encoding="utf-8") as text:
        cases = [c for c in json.load(text)["cases"] if options.only in c["schedule"]]

    # For each schedule, numbers of cases (all, equal, smaller, proven) and the sum of the ratios.
    sums = collections.defaultdict(lambda: [0, 0, 0, 0, 0.0])
    costly = []  # ratios of the cases with unequal durations or transfers, at p/3 to p units of memory
    larger = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            limit = round(case["peak_activation_memory"] * case["chunks"])
            makespan, bound, complete = search(options.binary, case, limit, options.budget, folder)
            ratio = makespan / case["makespan"]
            larger += ratio > 1 + 1e-9
            entry = sums[case["schedule"]]
            entry[0] += 1
            entry[1] += abs(ratio - 1) <= 1e-9
            entry[2] += ratio < 1 - 1e-9
            entry[3] += makespan <= bound * (1 + 1e-9)
            entry[4] += ratio
            even = case["tF"] == case["tB"] == case["tW"] and case["tComm"] == 0
            if not even and case["p"] / 3 <= case["peak_activation_memory"] <= case["p"]:
                costly.append(ratio)
            print(f"{case['schedule']:17} p={case['p']:<2} n={case['n']:<2} F={case['tF']:<5} comm={case['tComm']:<4} "
                  f"limit={limit:<2} published {case['makespan']:8.2f}  found {makespan:8.2f}  bound {bound:8.2f}  "
                  f"{100 * (ratio - 1):+6.2f} %{'' if complete else '  (ended by its budget)'}", flush=True)

    print("\n| published schedule | cases | same makespan | smaller | larger | mean | proven optimal |")
    print("|---|---|---|---|---|---|---|")
    for name, (count, equal, smaller, proven, ratios) in sums.items():
        print(f"| {name} | {count} | {equal} | {smaller} | {count - equal - smaller} | "
              f"{100 * (ratios / count - 1):+.1f} % | {proven} |")
    if costly:
        print(f"\n{len(costly)} cases with unequal durations or transfers, at p/3 to p units of memory: "
              f"{100 * (sum(costly) / len(costly) - 1):+.2f} % on average")
    return int(larger > 0)


if __name__ == "__main__":
    sys.exit(main())
