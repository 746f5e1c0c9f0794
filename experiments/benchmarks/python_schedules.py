#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds to make a schedule from two functions of Python, and to simulate it, by its number of jobs.

usage: PYTHONPATH=build/python python_schedules.py [MICROBATCHES ...]
"""

import sys
import time

import starpipe

STAGES, WORKERS = 64, 32
PRIORITIES = {
    "int": lambda s, b, d: b if d == "F" else b - 1000,
    "tuple": lambda s, b, d: (d == "F", b),
}


def seconds(work, repetitions=3):
    """The least of some repetitions, and the last result."""
    least = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        result = work()
        least = min(least, time.perf_counter() - start)
    return least, result


def main():
    print(f"{'jobs':>8}  {'priority':8}  {'make (s)':>8}  {'simulate (s)':>12}")
    for microbatches in map(int, sys.argv[1:] or ["79", "782", "7813"]):
        for name, priority in PRIORITIES.items():
            made, schedule = seconds(lambda: starpipe.Schedule(
                STAGES, microbatches, WORKERS, placement=lambda s, b, d: min(s, STAGES - 1 - s), priority=priority,
                discipline="greedy"))  # fmt: skip
            simulated, _ = seconds(lambda: starpipe.simulate(schedule), 1)
            print(f"{schedule.job_count:>8}  {name:8}  {made:>8.2f}  {simulated:>12.2f}")


if __name__ == "__main__":
    main()
