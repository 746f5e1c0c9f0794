# SPDX-License-Identifier: Apache-2.0
"""experiments/studies/memory: memory.py predicts schedules with each home of stashes, and draws them; on_workers.py runs them.

Usage: memory_test.py BINARY FOLDER.
"""

import csv
import os
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
from support import CommandTest  # noqa: E402


class Study(CommandTest):
    def test_homes_save_memory_and_time(self):
        subprocess.run([sys.executable, FOLDER / "memory.py", "--starpipe", self.binary, "--workers", "4", "--microbatches", "8", "--budget", "0.1",
                        "-o", "m"], check=True,
                       cwd=self.folder, stdout=subprocess.DEVNULL, env={**os.environ, "MPLCONFIGDIR": self.folder})  # fmt: skip
        rows = list(csv.DictReader((Path(self.folder) / "m/results.csv").read_text(encoding="utf-8").splitlines()))
        for schedule in ("gpipe", "1f1b", "interleaved-1f1b", "v-half"):
            def least(homes, memory):
                return min(float(row["makespan"]) for row in rows
                           if (row["schedule"], row["homes"]) == (schedule, homes) and float(row["memory"]) <= memory)  # fmt: skip

            free = least("no homes", 8)
            for limit in range(2, 9):
                self.assertLessEqual(least("all", limit), least("recomputation", limit))
                self.assertGreaterEqual(least("all", limit), free)
            for way in ("other worker", "host"):
                self.assertAlmostEqual(least(way, 8), free)
        searched = {homes: [float(row["makespan"]) for row in rows if (row["schedule"], row["homes"], row["limit"]) == ("searched", homes, "2")] for homes in ("no homes", "all")}
        self.assertEqual([len(found) for found in searched.values()], [1, 3])  # a search for each link to the host
        self.assertLessEqual(max(searched["all"]), searched["no homes"][0])
        words = [element.text for element in ElementTree.parse(Path(self.folder) / "m/memory.svg").iter() if element.text]
        self.assertIn("other worker", words)

    def test_homes_run(self):
        subprocess.run([sys.executable, FOLDER / "on_workers.py", "--starpipe", self.binary, "--workers", "4", "--microbatches", "8", "--steps", "2",
                        "--schedules", "1f1b", "searched", "--links", "NVLink-C2C", "--budget", "0.1", "-o", "m"], check=True,
                       cwd=self.folder, stdout=subprocess.DEVNULL)  # fmt: skip
        rows = list(csv.DictReader((Path(self.folder) / "m/results.csv").read_text(encoding="utf-8").splitlines()))
        self.assertEqual({row["homes"] for row in rows}, {"no homes", "recomputation", "host", "other worker", "all"})
        for row in rows:
            self.assertLessEqual(float(row["measured_stashes"]), float(row["stashes"]))
            self.assertGreaterEqual(float(row["measured_ms"]), float(row["predicted_ms"]) - 0.1, row)


if __name__ == "__main__":
    CommandTest.binary = sys.argv.pop(1)
    FOLDER = Path(sys.argv.pop(1)).resolve()
    unittest.main()
