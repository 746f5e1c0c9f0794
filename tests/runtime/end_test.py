#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The end of MPI: every run ends, with its own exit status.

usage: end_test.py END_PROGRAM LAUNCHER...   (COUNT in the launcher stands for the number of ranks)
"""
import os
import subprocess
import sys
import unittest

PROGRAM, *LAUNCHER = sys.argv[1:]
OPEN_MPI = os.environ.get("STARPIPE_MPI") == "openmpi"
LEFT = "MPI is left behind: MPI_Finalize has not returned within 0.5 s"


def run(ranks, *arguments, environment=None):
    launcher = [str(ranks) if word == "COUNT" else word for word in LAUNCHER]
    return subprocess.run([*launcher, PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, **(environment or {})})


class End(unittest.TestCase):
    def check(self, result, ranks, status):
        lines = [line for line in result.stderr.splitlines() if not line.startswith("srun: ")]  # it may wait for resources
        self.assertEqual((result.returncode, lines, result.stdout.count("ended")), (status, [], ranks))

    def test_over_tcp(self):
        """MPICH 4.0 does not end by itself in nine of ten runs."""
        tcp = {"UCX_TLS": "tcp,self", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
        if run(1, "0", environment=tcp).returncode != 0:
            self.skipTest("no UCX over TCP here")
        for _ in range(3):
            self.check(run(8, "0", environment=tcp), 8, 0)

    def test_mpi_that_does_not_end(self):
        """Rank 0 stays in MPI_Finalize, and the others wait for it in MPI's last barrier. One line says so, and neither
        the ranks nor the launcher take it for a failure. Open MPI's launcher has no message by which a rank could tell
        it: it returns 1, or crashes."""
        for ranks in 1, 2, 4:
            for status in 0, 3:
                with self.subTest(ranks=ranks, status=status):
                    result = run(ranks, str(status), "stuck")
                    if not OPEN_MPI:
                        self.assertEqual(result.returncode, status, result.stderr)
                    self.assertEqual(result.stdout.count("ended"), ranks, result.stderr)
                    lines = [line for line in result.stderr.splitlines() if not line.startswith("srun: ")]
                    self.assertEqual(lines[:1] if OPEN_MPI else lines, [LEFT])

    def test_a_rank_that_does_not_come_to_the_end_of_the_run(self):
        result = run(2, "0", "lost")
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stdout.count("ended"), 0)
        self.assertEqual([line for line in result.stderr.splitlines() if line.startswith("starpipe: ")],
                         ["starpipe: rank 0: not all ranks have ended the run within 0.2 s: a rank is lost or stopped"], result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
