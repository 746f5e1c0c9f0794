# SPDX-License-Identifier: Apache-2.0
"""experiments/studies/memory/on_gpus.py: less memory with homes on the host, at the predicted times.

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
    def test_a_quarter_of_the_memory(self):
        subprocess.run([sys.executable, SCRIPT, "--starpipe", self.binary, "--gpus", "4", "--schedules", "1f1b", "-o", "m"], check=True,
                       cwd=self.folder, stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": self.folder})  # fmt: skip
        table = (Path(self.folder) / "m/results.csv").read_text(encoding="utf-8").splitlines()
        rows = {(row["link"], row["limit"]): row for row in csv.DictReader(table)}
        free = rows["", ""]
        for (link, limit), row in rows.items():
            self.assertLess(abs(float(row["simulated_ms"]) / float(row["predicted_ms"]) - 1), 0.005, row)
            self.assertLess(abs(float(row["simulated_gib"]) - float(row["predicted_gib"])), 0.5, row)
            if limit:
                self.assertLess(float(row["simulated_gib"]), float(free["simulated_gib"]), row)
        fast = rows["NVLink-C2C", "2"]
        self.assertLess(float(fast["simulated_ms"]), 1.005 * float(free["simulated_ms"]))
        self.assertGreater(float(fast["reloads_gib"]), 0)
        self.assertGreater(float(rows["PCIe 4", "2"]["simulated_ms"]), 1.01 * float(free["simulated_ms"]))


if __name__ == "__main__":
    CommandTest.binary = sys.argv.pop(1)
    SCRIPT = Path(sys.argv.pop(1)).resolve()
    unittest.main()
