#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program alone has functions named as MPI's; the library has none, and a profiler sees all calls.

usage: mpi_calls_test.py STARPIPE RUNTIME_LIBRARY PROFILER NM LAUNCHER...   (the launcher starts 2 ranks)
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from job import CONFIG

STARPIPE, LIBRARY, PROFILER, NM, *LAUNCHER = sys.argv[1:]


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
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            config, calls = path / "job.yaml", path / "calls"
            config.write_text(CONFIG.replace("steps: 1000000", "steps: 5"))
            result = subprocess.run([*LAUNCHER, STARPIPE, "train", str(config)], capture_output=True, text=True, check=False,
                                    env={**os.environ, "LD_PRELOAD": PROFILER, "STARPIPE_TEST_CALLS": str(calls),
                                         # The address sanitizer wants to be the first library.
                                         "ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0"})
            self.assertEqual(result.returncode, 0, result.stderr)
            ranks = [list(map(int, line.split())) for line in calls.read_text().splitlines()]
            self.assertEqual(len(ranks), 2)
            for tests, sends, receives in ranks:
                self.assertGreater(tests, 5)  # at least the tests of barriers
                self.assertGreater(sends, 5 * 4)  # a message per micro-batch
                self.assertGreater(receives, 5 * 4)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
