# SPDX-License-Identifier: Apache-2.0
"""The policy studies at their smallest, and the pages and figures that they write. No check depends on time.

Usage: policies_test.py BINARY SCRIPT
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

BINARY, SCRIPT = "", ""
PAGE = "before\n<!-- results: begin -->\nold\n<!-- results: end -->\nafter\n"


class Policies(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.page = self.folder / "docs" / "page.md"
        self.page.parent.mkdir()
        self.page.write_text(PAGE)

    def studies(self, *more):
        return subprocess.run(
            [sys.executable, SCRIPT, "--starpipe", BINARY, "--small", "--repetitions", "1", "--any-speed", "--output",
             self.folder / "out", "--docs", self.page, *more],
            capture_output=True, text=True, timeout=1100 if os.environ.get("STARPIPE_SANITIZE") else 250, check=False)  # fmt: skip

    def test_small(self):
        run = self.studies()
        self.assertEqual(run.returncode, 0, run.stderr)
        results = json.loads((self.folder / "out" / "results.json").read_text())
        self.assertEqual({r["group"] for r in results}, {"scaling", "links", "slow worker", "heavy head", "gpt"})
        page = self.page.read_text()
        self.assertTrue(page.startswith("before\n<!--") and page.endswith("-->\nafter\n"))
        self.assertNotIn("\nold\n", page)
        for result in results:
            with self.subTest(study=result["name"]):
                self.check(result)
                self.assertEqual(page.count(f"**{result['name']}**"), 1)
        pictures = {p.name for p in (self.folder / "docs" / "images").iterdir()}
        for name in ("scaling-0us", "scaling-200us", "links", "uneven", "gpt", "gpt-timeline"):
            self.assertIn(f"policies-{name}.svg", pictures)
        for name in pictures:
            ElementTree.fromstring((self.folder / "docs" / "images" / name).read_text())

        # Run one study again: the results of the others stay.
        run = self.studies("--studies", "heavy")
        self.assertEqual(run.returncode, 0, run.stderr)
        again = json.loads((self.folder / "out" / "results.json").read_text())
        self.assertEqual([r["name"] for r in again], [r["name"] for r in results])
        self.assertEqual([r for r in again if r["group"] != "heavy head"],
                         [r for r in results if r["group"] != "heavy head"])

    def check(self, result):
        rows = {r["policy"]: r for r in result["rows"]}
        ours = rows["starpipe"]
        for name in ("starpipe", "worker-order"):  # figures that the order alone fixes
            for key in ("peak_stashes", "peak_stash_bytes", "bytes_moved"):
                self.assertEqual(rows[name][key], ours[key])
        for name in {"starpipe, bounded", "starpipe, dynamic"} & rows.keys():
            self.assertLessEqual(rows[name]["peak_stashes"], ours["peak_stashes"])
        controls = [rows[name] for name in ("on-worker", "worker-order")]
        for key in ("peak_stashes", "peak_stash_bytes"):
            self.assertLessEqual(rows[result["control"]][key], ours[key])
        fitting = [c["makespan"] for c in controls
                   if all(c[key] <= ours[key] for key in ("peak_stashes", "peak_stash_bytes"))]
        self.assertAlmostEqual(result["ordered_over_control"], ours["makespan"] / min(fitting))
        self.assertLessEqual(result["over_control"], result["ordered_over_control"])
        if result["emulated"]:
            self.assertGreaterEqual(ours["fastest"], 0.999 * ours["predicted"])

    def test_bad_input(self):
        run = self.studies("--studies", "nothing")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("nothing", run.stderr)


if __name__ == "__main__":
    BINARY, SCRIPT = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1], verbosity=2)
