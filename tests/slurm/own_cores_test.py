#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks on two virtual nodes that divide the machine's cores, and the benchmark that measures them.

usage: cluster.py --own-cores own_cores_test.py SOURCE_DIR STARPIPE
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE, STARPIPE = (pathlib.Path(word).resolve() for word in sys.argv[1:])
LAUNCHER = ["srun", "--mpi=pmi2", "--nodes=2", "--overcommit", "--cpu-bind=cores", "-n"]


class OwnCores(unittest.TestCase):
    def test_ranks_of_two_nodes_share_no_core(self):
        for ranks in 2, 4:
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                report = pathlib.Path(folder) / "report.json"
                result = subprocess.run([*LAUNCHER, str(ranks), STARPIPE, "train", SOURCE / "experiments/mlp.yaml", "--set",
                                         "training.steps=2", "--set", f"schedule.workers={ranks}", "--report", report],
                                        capture_output=True, text=True, timeout=200, check=False)
                self.assertEqual(result.returncode, 0, result.stderr)
                cores = {"n1": set(), "n2": set()}
                for rank in json.loads(report.read_text())["ranks"]:
                    cores[rank["machine"]].add(rank["binding"])
                self.assertTrue(cores["n1"] and cores["n2"])
                self.assertFalse(cores["n1"] & cores["n2"])

    def test_benchmark(self):
        result = subprocess.run([sys.executable, SOURCE / "experiments/benchmarks/ranks.py", "--starpipe", STARPIPE, "--pairs",
                                 "1", "--steps", "2", "--schedules", "1f1b", "--launcher", " ".join(LAUNCHER)],
                                cwd=SOURCE, capture_output=True, text=True, timeout=400, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = [line.split()[:3] for line in result.stdout.splitlines()[1:]]
        self.assertEqual(rows, [["1f1b", "2", "2"], ["1f1b", "4", "2"], ["1f1b", "4", "4"]])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
