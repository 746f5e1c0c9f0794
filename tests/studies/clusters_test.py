# SPDX-License-Identifier: Apache-2.0
"""experiments/clusters/generate.py writes files that `starpipe` reads. Usage: clusters_test.py BINARY GENERATE"""

import itertools
import json
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
from support import CommandTest, mlp_config  # noqa: E402

GENERATE = ""


class Clusters(CommandTest):
    def generate(self, *options):
        return subprocess.run([sys.executable, GENERATE, *map(str, options)], capture_output=True, text=True, timeout=60, check=True).stdout

    def test_the_files_are_those_that_it_writes(self):
        for node, network in itertools.product(("nvlink", "pcie"), ("infiniband", "ethernet")):
            file = Path(GENERATE).parent / f"{node}-{network}.yaml"
            self.assertEqual(file.read_text(encoding="utf-8"), self.generate("--node", node, "--network", network), file.name)

    def test_every_shape_is_a_cluster(self):
        """All keys are read and all groups fit: only the number of ranks is refused, which is checked later."""
        self.write("run.yaml", mlp_config("runtime: {emulate: {F: 1ms, B: 1ms, W: 1ms}}"))
        for node, gpus, pod in itertools.product(("nvlink", "pcie"), (1, 3, 4, 8), (None, 4)):
            options = ["--node", node, "--gpus", gpus, *(["--pod", pod, "--oversubscribed", 2] if pod else [])]
            with self.subTest(options=options):
                self.write("cluster.yaml", self.generate(*options))
                self.refused(["sim", "run.yaml", "--cluster", "cluster.yaml", "--nodes", 2, "--set", f"model.layers={2 * gpus}",
                              "--ranks-per-node", 7], "--ranks-per-node")  # fmt: skip

    def test_simulate_reads_its_links(self):
        """A pod's port carries what all of its nodes send: it is the slowest link of a run on two pods."""
        self.write("run.yaml", mlp_config("runtime: {emulate: {F: 1ms, B: 1ms, W: 1ms}}"))
        self.write("cluster.yaml", self.generate("--gpus", 2, "--pod", 2, "--oversubscribed", 8))
        links = json.loads(self.ok("simulate", "run.yaml", "--set", "schedule.workers=8", "--set", "model.layers=8", "--links",
                                   "cluster.yaml", "--json"))["links"]  # fmt: skip
        self.assertEqual([level.get("workers") for level in links], [2, 4, None])


if __name__ == "__main__":
    CommandTest.binary = sys.argv.pop(1)
    GENERATE = sys.argv.pop(1)
    unittest.main()
