# SPDX-License-Identifier: Apache-2.0
"""The accuracy study: its figures, from reports that a stand-in writes, and its smallest run. No check depends on time.

Usage: accuracy_test.py BINARY SCRIPT LAUNCHER..., the launcher being what starts two ranks.
"""

import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BINARY, SCRIPT, LAUNCHER = "", "", []

# Stands in for starpipe and for mpiexec. Its machine has two cores, which the ranks divide. Two steps of 90 and 110 ms are
# predicted to take 80 ms per worker; their own durations explain all but 1 ms.
STAND_IN = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
ranks = int(words[1]) if words[0] == "-n" else 1
given = dict(words[i + 1].split("=") for i, word in enumerate(words) if word == "--set")
workers = int(given["schedule.workers"])
pathlib.Path("calls").open("a").write(" ".join(words) + "\\n")
if given["schedule.name"] == "none":
    sys.exit("starpipe: no such schedule")
ms = 1000000
report = {{"stages": workers, "explain": {{"per_step": {{
    "predicted": 80 * ms * workers, "durations": [9 * ms - 80 * ms * (workers - 1), 29 * ms - 80 * ms * (workers - 1)],
    "measured": [90 * ms, 110 * ms]}}}},
    "ranks": [{{"machine": "m", "binding": f"{{r % 2}}" if ranks > 1 else "0-1", "cores": 1 if ranks > 1 else 2}}
              for r in range(ranks)]}}
pathlib.Path(words[words.index("--report") + 1]).write_text(json.dumps(report))
"""


class Accuracy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.stand_in = self.folder / "stand_in"
        self.stand_in.write_text(STAND_IN.format(python=sys.executable))
        self.stand_in.chmod(0o755)

    def study(self, *more, starpipe=None, launcher=None):
        return subprocess.run(
            [sys.executable, SCRIPT, "--output", self.folder / "out", "--starpipe", starpipe or self.stand_in, "--launcher",
             launcher or f"{self.stand_in} -n", *more], cwd=self.folder, capture_output=True, text=True, check=False,
            timeout=1100 if os.environ.get("STARPIPE_SANITIZE") else 250)  # fmt: skip

    def rows(self):
        with open(self.folder / "out" / "results.csv", newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def calls(self):
        return (self.folder / "calls").read_text().splitlines()

    def test_figures(self):
        page = self.folder / "page.md"
        page.write_text("before\n<!-- accuracy: begin -->\nold\n<!-- accuracy: end -->\nafter\n")
        study = ["--schedules", "1f1b,gpipe", "--repetitions", "2", "--docs", page]
        run = self.study(*study)
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = self.rows()
        # 2 models, 2 schedules, 6 layouts, 2 repetitions
        self.assertEqual((len(rows), len(self.calls())), (48, 48))
        self.assertEqual(len(list((self.folder / "out" / "reports").iterdir())), 48)
        self.assertTrue(all(int(row["ranks"]) <= int(row["workers"]) for row in rows))
        for row in rows:
            workers, ranks = int(row["workers"]), int(row["ranks"])
            self.assertEqual(int(row["cores"]), 2)
            self.assertAlmostEqual(float(row["threads_a_core"]), (workers + (ranks if ranks > 1 else 0)) / 2)
            self.assertAlmostEqual(float(row["measured"]), 0.1)
            self.assertAlmostEqual(float(row["prediction_error"]), 0.8 * workers - 1)
            self.assertAlmostEqual(float(row["own_durations_worst_step"]), 89 / 90 - 1)
            self.assertAlmostEqual(float(row["own_durations_error"]), (89 / 90 + 109 / 110) / 2 - 1)
        # With a core each: 1 or 2 workers in one process, -20 % and +60 %. Two ranks poll on the two cores of 2 workers.
        self.assertIn("| workers have a core each | 16 | 0.5 to 1.0 | 40.0 % | 40.0 % | 60.0 % | 1.0 % | 1.0 % | 1.0 % |", run.stdout)
        self.assertIn("| workers share cores with polling threads | 8 | 2.0 | 60.0 % |", run.stdout)
        self.assertIn("| workers share cores with each other | 24 | 2.0 to 4.0 | 220.0 % |", run.stdout)
        for name, figure in (("SimAI", "1.9 %"), ("Charon", "3.7 %"), ("vTrain", "8.4 % to 14.7 %")):
            self.assertRegex(run.stdout, rf"\| {name}[^|]*\|[ |]*{figure}")
        self.assertIn("| mlp | gpipe | 4 | one process | 2.0 | 100.0 | +220.0 % | -1.0 % | -1.1 % |", run.stdout)
        self.assertTrue(page.read_text().startswith("before\n<!-- accuracy: begin -->\n\nAbsolute errors"))
        self.assertNotIn("\nold\n", page.read_text())
        self.assertEqual((self.folder / "out" / "results.md").read_text() + "\n", run.stdout)

        # What is there is not run again; what is missing is.
        (self.folder / "out" / "reports" / "gpt-1f1b-2w-2r-1.json").unlink()
        again = self.study(*study)
        self.assertEqual((again.returncode, again.stdout), (0, run.stdout))
        self.assertEqual(len(self.calls()), 49)
        self.assertRegex(self.calls()[-1], "^-n 2 .*gpt.yaml .*schedule.name=1f1b .*schedule.workers=2")

    def test_refusals(self):
        run = self.study("--schedules", "1f1b,none", "--models", "mlp", "--repetitions", "1")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("no such schedule", run.stderr)
        kept = len(list((self.folder / "out" / "reports").iterdir()))
        self.assertEqual(kept, len(self.calls()) - 1)
        # Continues after the failure, but not with other settings.
        run = self.study("--schedules", "1f1b", "--models", "mlp", "--repetitions", "1", "--steps", "7")
        self.assertIn("training.steps", run.stderr)
        self.assertNotEqual(run.returncode, 0)
        self.assertEqual(len(self.calls()), kept + 1)

    def test_small(self):
        run = self.study("--small", "--steps", "3", "--repetitions", "1", "--schedules", "1f1b,v-half", starpipe=BINARY,
                         launcher=" ".join(LAUNCHER[:-1]))
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = self.rows()
        self.assertEqual(len(rows), 2 * 2 * 3)
        for row in rows:
            self.assertEqual(int(row["stages"]), int(row["workers"]) * (2 if row["schedule"] == "v-half" else 1))
            self.assertEqual(row["steps"], "2")
            self.assertGreater(float(row["predicted"]), 0)
            report = json.loads((self.folder / "out" / "reports" / row["report"]).read_text())
            self.assertEqual(len(report["ranks"]), int(row["ranks"]))
            self.assertEqual(report["config"]["schedule"]["name"], row["schedule"])


if __name__ == "__main__":
    BINARY, SCRIPT, *LAUNCHER = sys.argv[1:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
