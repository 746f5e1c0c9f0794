# SPDX-License-Identifier: Apache-2.0
"""experiments/studies/memory/memory.py predicts schedules with each home of stashes, and draws them.

Usage: memory_test.py BINARY SCRIPT.
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
        subprocess.run([sys.executable, SCRIPT, "--starpipe", self.binary, "--workers", "4", "--microbatches", "8", "-o", "m"], check=True,
                       cwd=self.folder, stdout=subprocess.DEVNULL, env={**os.environ, "MPLCONFIGDIR": self.folder})  # fmt: skip
        rows = list(csv.DictReader((Path(self.folder) / "m/results.csv").open()))
        for schedule in ("gpipe", "1f1b", "interleaved-1f1b", "v-half"):
            def least(homes, memory):
                return min(float(row["makespan"]) for row in rows
                           if (row["schedule"], row["homes"]) == (schedule, homes) and float(row["memory"]) <= memory)  # fmt: skip

            free = least("no homes", 8)
            for limit in range(2, 9):
                self.assertLessEqual(least("host", limit), least("recomputation", limit))
                self.assertGreaterEqual(least("host", limit), free)
            for way in ("bpipe", "pipeoffload"):
                self.assertAlmostEqual(least(way, 8), free)
        words = [element.text for element in ElementTree.parse(Path(self.folder) / "m/memory.svg").iter() if element.text]
        self.assertIn("pipeoffload", words)


if __name__ == "__main__":
    CommandTest.binary = sys.argv.pop(1)
    SCRIPT = Path(sys.argv.pop(1)).resolve()
    unittest.main()
