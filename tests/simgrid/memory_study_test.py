# SPDX-License-Identifier: Apache-2.0
"""experiments/studies/memory/on_gpus.py: less memory with homes on the host and on other GPUs, at the predicted times.

Usage: memory_study_test.py BINARY SCRIPT.
"""

import csv
import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
from support import CommandTest  # noqa: E402


class Study(CommandTest):
    def test_homes_save_memory_at_the_predicted_times(self):
        subprocess.run([sys.executable, SCRIPT, "--starpipe", self.binary, "--gpus", "4", "--schedules", "1f1b", "--homes", "no homes", "other worker", "all",
                        "-o", "m"], check=True, cwd=self.folder, stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": self.folder})  # fmt: skip
        table = (Path(self.folder) / "m/results.csv").read_text(encoding="utf-8").splitlines()
        rows = {(row["homes"], row["link"], row["limit"]): row for row in csv.DictReader(table)}
        self.assertEqual(len(rows), 8)
        free = rows["no homes", "", ""]
        for case, row in rows.items():
            self.assertLess(abs(float(row["simulated_ms"]) / float(row["predicted_ms"]) - 1), 0.005, row)
            self.assertLess(abs(float(row["simulated_gib"]) - float(row["predicted_gib"])), 0.05 * float(row["predicted_gib"]), row)
            if row is not free:
                self.assertLess(float(row["simulated_gib"]), float(free["simulated_gib"]), row)
        for homes in (("all", "NVLink-C2C", "2"), ("other worker", "", "")):
            self.assertLess(float(rows[homes]["simulated_ms"]), 1.005 * float(free["simulated_ms"]))
            self.assertGreater(float(rows[homes]["moved_gib"]), 0)
        self.assertGreater(float(rows["all", "PCIe 4", "1"]["simulated_ms"]), 1.01 * float(free["simulated_ms"]))

    def test_stages_that_differ_by_token_ids_share_buffers(self):
        """Otherwise the first GPU takes 3.6 % more memory than predicted."""
        subprocess.run([sys.executable, SCRIPT, "--starpipe", self.binary, "--schedules", "interleaved-1f1b", "--homes", "host", "--links", "NVLink-C2C",
                        "-o", "m"], check=True, cwd=self.folder, stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": self.folder})  # fmt: skip
        (row,) = csv.DictReader((Path(self.folder) / "m/results.csv").read_text(encoding="utf-8").splitlines())
        self.assertLess(float(row["simulated_gib"]), 1.02 * float(row["predicted_gib"]))


if __name__ == "__main__":
    CommandTest.binary = sys.argv.pop(1)
    SCRIPT = Path(sys.argv.pop(1)).resolve()
    unittest.main()
