#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program alone has functions named as MPI's; the library has none, and a profiler sees all calls. With more ranks, a
rank does not call more.

usage: mpi_calls_test.py STARPIPE RUNTIME_LIBRARY PROFILER NM LAUNCHER...   (COUNT in the launcher: number of ranks)
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from job import CONFIG

STARPIPE, LIBRARY, PROFILER, NM, *LAUNCHER = sys.argv[1:]


ALL_TO_ALL = "Allgather", "Iallgather", "Iallgatherv", "Alltoall"
COLLECTIVES = (*ALL_TO_ALL, "Barrier", "Ibarrier", "Ibcast", "Allreduce", "Iallreduce", "Igather", "Igatherv", "Comm_dup",
               "Comm_idup")


def emulated(ranks, steps):
    """A configuration with a worker for each rank."""
    return f"""
model:    {{kind: mlp, layers: {ranks}, hidden: 8, inputs: 8, outputs: 2}}
data:     {{kind: synthetic}}
training: {{microbatches: {2 * ranks}, microbatch_size: 1, steps: {steps}}}
schedule: {{name: 1f1b, workers: {ranks}}}
runtime:  {{emulate: {{F: 100us, B: 100us, W: 100us}}}}
"""


def defined(file):
    """The functions of MPI, and sched_yield, that a file defines for others."""
    lines = subprocess.run([NM, "-D", "--defined-only", file], check=True, capture_output=True, text=True).stdout
    names = [line.split()[-1].split("@")[0] for line in lines.splitlines()]
    return sorted(name for name in names if name.startswith(("MPI_", "PMPI_", "sched_yield")))


class MpiCalls(unittest.TestCase):
    def test_symbols(self):
        self.assertEqual(defined(LIBRARY), [])
        self.assertEqual(defined(STARPIPE), ["MPI_Irecv", "MPI_Isend", "MPI_Test", "sched_yield"])

    def test_profiler(self):
        for calls in self.calls_of(2, CONFIG.replace("steps: 1000000", "steps: 5")):
            self.assertGreater(calls["Test"], 5)  # at least the tests of barriers
            self.assertGreater(calls["Isend"], 5 * 4)  # a message per micro-batch
            self.assertGreater(calls["Irecv"], 5 * 4)

    def test_counts(self):
        per_step, other = set(), set()
        for ranks in 4, 8:
            few, many = (self.calls_of(ranks, emulated(ranks, steps)) for steps in (2, 4))
            for rank in range(ranks):
                step = {name: (many[rank][name] - few[rank][name]) / 2 for name in many[rank]}
                # An envelope and a datum for each micro-batch, to each neighbour.
                self.assertEqual(step["Isend"], 2 * 2 * ranks * (1 if rank in (0, ranks - 1) else 2))
                self.assertEqual(step["Irecv"], step["Isend"])
                # What every rank gets from every other.
                self.assertEqual(sum(step[name] for name in ALL_TO_ALL), 0)
                self.assertLessEqual(sum(few[rank][name] for name in ALL_TO_ALL), 4)
                self.assertEqual(many[rank]["Send"], 0)
                per_step.add(sum(step[name] for name in COLLECTIVES))
                other.add(sum(few[rank][name] - 2 * step[name] for name in COLLECTIVES))
        self.assertEqual(len(per_step), 1, per_step)
        self.assertLessEqual(max(other) - min(other), 2, other)  # where ranks share cores, they make their mailboxes
        self.assertLessEqual(per_step.pop(), 12)
        self.assertLessEqual(max(other), 100)

    def calls_of(self, ranks, text):
        """Runs the configuration. Returns for each rank the number of calls by name."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            config, calls = path / "job.yaml", path / "calls"
            config.write_text(text)
            launcher = [str(ranks) if word == "COUNT" else word for word in LAUNCHER]
            result = subprocess.run([*launcher, STARPIPE, "train", str(config)], capture_output=True, text=True, check=False,
                                    env={**os.environ, "LD_PRELOAD": PROFILER, "STARPIPE_TEST_CALLS": str(calls),
                                         # The address sanitizer wants to be the first library.
                                         "ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0"})
            self.assertEqual(result.returncode, 0, result.stderr)
            lines = [dict(word.split("=") for word in line.split()) for line in calls.read_text().splitlines()]
        self.assertEqual(len(lines), ranks)
        return [{name: int(number) for name, number in line.items()} for line in sorted(lines, key=lambda line: int(line["rank"]))]


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
