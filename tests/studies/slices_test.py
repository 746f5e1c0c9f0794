# SPDX-License-Identifier: Apache-2.0
"""experiments/studies/slices: more slices take less time and memory, and slices of equal work less time than of equal tokens.

Usage: slices_test.py BINARY FOLDER.
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
    def test_more_slices_need_less(self):
        subprocess.run([sys.executable, FOLDER / "slices.py", "--starpipe", self.binary, "--workers", "4", "--contexts", "4096", "--slices", "1", "4", "16",
                        "-o", "s"], check=True,
                       cwd=self.folder, stdout=subprocess.DEVNULL, env={**os.environ, "MPLCONFIGDIR": self.folder})  # fmt: skip
        rows = list(csv.DictReader((Path(self.folder) / "s/results.csv").read_text(encoding="utf-8").splitlines()))
        self.assertEqual(len(rows), 4 * 3 * 2)

        def found(sizes, figure):
            return [float(row[figure]) for row in rows if (row["schedule"], row["sizes"]) == ("1f1b", sizes)]

        for sizes in ("tokens", "work"):
            for figure in ("makespan", "gib"):
                values = found(sizes, figure)
                self.assertEqual(values, sorted(values, reverse=True))
        self.assertEqual(found("tokens", "makespan")[0], found("work", "makespan")[0])
        self.assertLess(found("work", "makespan")[1], found("tokens", "makespan")[1])
        words = [element.text for element in ElementTree.parse(Path(self.folder) / "s/slices.svg").iter() if element.text]
        self.assertIn("4 workers, context 4,096", words)

    def test_runs_are_as_predicted(self):
        run = subprocess.run([sys.executable, FOLDER / "on_workers.py", "--starpipe", self.binary, "--workers", "2", "--schedules", "1f1b", "slimpipe", "--contexts", "512",
                              "131072", "--slices", "1", "2", "--time", "20", "--steps", "2", "-o", "w"], check=True, cwd=self.folder, stdout=subprocess.PIPE, text=True)  # fmt: skip
        rows = list(csv.DictReader((Path(self.folder) / "w/results.csv").read_text(encoding="utf-8").splitlines()))
        self.assertEqual([(row["context"], row["schedule"], row["slices"]) for row in rows],
                         [(context, schedule, slices) for context in ("512", "131072") for schedule in ("1f1b", "slimpipe") for slices in "12"
                          if (context, schedule, slices) != ("131072", "1f1b", "1")])  # a handle is too small for so large a stash
        for row in rows:
            self.assertEqual(row["stashes_as_predicted"], "True")
            self.assertGreater(float(row["measured_ms"]), 0.999 * float(row["predicted_ms"]))
            self.assertIn(row["difference"], run.stdout)


if __name__ == "__main__":
    CommandTest.binary, FOLDER = os.path.abspath(sys.argv[1]), Path(sys.argv[2]).resolve()
    unittest.main(argv=sys.argv[:1])
