#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A StarPU program that knows nothing of starpipe (tests/sched/cholesky.cpp), under our policy and StarPU's.

All policies run in each round, in shuffled order. The table has a row for each policy: the median seconds of a
factorisation, the spread, and the ratio to the first policy (the median of the ratios of neighbouring runs).

Usage: cholesky_policies.py [--build DIR] [--policies starpipe,prio] [--rounds N] [--workers W] [--tiles T]
                            [--tile-size B] [--json FILE]
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "build")
    parser.add_argument("--policies", default="prio,starpipe", help="the others are compared with the first one")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repetitions", type=int, default=5, help="factorisations in each process")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--tiles", type=int, default=24)
    parser.add_argument("--tile-size", type=int, default=64)
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def seconds(arguments, policy):
    environment = {**os.environ, "STARPU_NCPU": str(arguments.workers), "STARPU_SCHED": policy, "STARPU_SILENT": "1",
                   "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("STARPU_SCHED_LIB", None)
    if policy == "starpipe":
        environment["STARPU_SCHED_LIB"] = str(arguments.build / "lib" / "libstarpipe_sched.so")
    command = [arguments.build / "bin" / "tests" / "cholesky", policy, arguments.tiles, arguments.tile_size,
               arguments.repetitions]
    output = subprocess.run(list(map(str, command)), env=environment, check=True, stdout=subprocess.PIPE,
                            encoding="utf-8").stdout
    # Without the first factorisation, which fills caches and touches memory.
    return statistics.median([float(line.split()[1]) for line in output.splitlines() if line.startswith("seconds")][1:])


def main():
    arguments = parse_arguments()
    policies = arguments.policies.split(",")
    order = random.Random(1)
    rounds = []
    for _ in range(arguments.rounds):
        shuffled = order.sample(policies, len(policies))
        times = {policy: seconds(arguments, policy) for policy in shuffled}
        rounds.append(times)
    n = arguments.tiles
    print(f"{n} x {n} tiles of {arguments.tile_size}, {n * (n + 1) * (n + 2) // 6} tasks, {arguments.workers} workers, "
          f"{arguments.rounds} rounds")
    print(f"{'policy':<12}{'median ms':>12}{'quartiles ms':>20}{'ratio':>8}")
    result = {}
    for policy in policies:
        times = [r[policy] * 1e3 for r in rounds]
        low, middle, high = statistics.quantiles(times, n=4)
        ratio = statistics.median(r[policy] / r[policies[0]] for r in rounds)
        result[policy] = {"seconds": [r[policy] for r in rounds], "ratio": ratio}
        print(f"{policy:<12}{middle:>12.2f}{f'{low:.2f}..{high:.2f}':>20}{ratio:>8.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"tiles": n, "tile_size": arguments.tile_size,
                                              "workers": arguments.workers, "policies": result}, indent=1))


if __name__ == "__main__":
    main()
