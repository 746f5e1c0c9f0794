# SPDX-License-Identifier: Apache-2.0
"""experiments/studies/clusters/figures.py draws the runs of a study. Usage: clusters_figures_test.py BINARY FIGURES"""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
from support import CommandTest  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def words(file):
    return [element.text for element in ElementTree.parse(file).iter() if element.text and element.text.strip()]


class Figures(CommandTest):
    def setUp(self):
        super().setUp()
        self.results = Path(self.path("results"))

    def rows(self, name, *rows):
        (self.results / name).mkdir(parents=True)
        (self.results / name / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    @staticmethod
    def row(schedule, simulated, predicted=0.5, **more):
        return {"status": "done", "schedule": schedule, "workers": 8, "microbatches": 10, "model.hidden": 80,
                "--cluster": "somewhere/nvlink-infiniband.yaml", "--sharing": "fair", "predicted_makespan": predicted,
                "simulated_makespan": simulated, **more}  # fmt: skip

    def test_a_dot_for_each_run(self):
        """Filled with contention, hollow without, at makespan over compute; a dash where simulate has it."""
        self.rows("pipelines", self.row("1f1b", 0.5), self.row("1f1b", 0.5, **{"--sharing": "none"}), self.row("zb-h1", 0.625),
                  self.row("search-8-10", 0.45, 0.4, **{"schedule.file": "found.json"}))  # fmt: skip
        self.rows("sharded", self.row("fsdp", 1.0, status="failed"), self.row("fsdp", 1.0, **{"model.hidden": 112}))
        alone = {"status": "done", "workers": 8, "microbatches": 10, "model.hidden": 80, "--links": "x/nvlink-infiniband.yaml"}
        self.rows("predicted", {**alone, "schedule": "1f1b", "predicted_makespan": 7}, {**alone, "schedule": "fslpp", "predicted_makespan": 0.75})
        runs = FIGURES.simulated_runs(FIGURES.read(self.results))
        self.assertEqual([(run["schedule"], run["model"], run["sharing"]) for run in runs],
                         [("1f1b", "9.6B", "fair"), ("1f1b", "9.6B", "none"), ("zb-h1", "9.6B", "fair"), ("searched", "9.6B", "fair"),
                          ("fsdp", "38.5B", "fair"), ("fslpp", "9.6B", "fair")])  # fmt: skip
        self.assertAlmostEqual(runs[0]["compute"], 10 * (12.96 + 13.22 + 9.76) / 1e3)
        FIGURES.draw(runs, Path(self.path("runs.svg")))
        texts = words(self.path("runs.svg"))
        for text in ("9.6B, 8 GPUs, 10 micro-batches", *FIGURES.SCHEDULES, *FIGURES.CLUSTERS, "without contention"):
            self.assertIn(text, texts)
        # A panel with one schedule compares nothing.
        self.assertNotIn("38.5B, 8 GPUs, 10 micro-batches", texts)
        colour = FIGURES.CLUSTERS["nvlink-infiniband"][0]
        dots = [use for group in ElementTree.parse(self.path("runs.svg")).iter(f"{SVG}g") if group.get("id", "").startswith("line2d")
                for use in group.iter(f"{SVG}use") if f"stroke: {colour}" in (use.get("style") or "")]  # fmt: skip
        filled = [f"fill: {colour}" in dot.get("style") for dot in dots]
        self.assertEqual((filled.count(True), filled.count(False)), (3 + 1, 1))  # one is the legend's
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            FIGURES.table(runs)
        self.assertEqual(printed.getvalue().splitlines(), [
            "| 8 | 10 | 38.5B | nvlink-infiniband | fair |  |  |  |  |  | 1000 (+100.0 %) |  |",
            "| 8 | 10 | 9.6B | nvlink-infiniband | fair | 500 (+0.0 %) |  | 625 (+25.0 %) |  | 450 (+12.5 %) |  | *750* |",
            "| 8 | 10 | 9.6B | nvlink-infiniband | none | 500 (+0.0 %) |  |  |  |  |  |  |"])  # fmt: skip

    def test_the_map_has_the_fastest(self):
        """On a slow network ZB-H1, which has one stage per GPU; on a fast one V-ZB with two."""
        FIGURES.BANDWIDTHS, FIGURES.SIZES = (1.5625, 200), {64: (16,)}
        FIGURES.draw_map(self.binary, Path(self.path("map.svg")))
        texts = words(self.path("map.svg"))
        for text in ("9.6B, 64 GPUs", "38.5B, 64 GPUs", "1.562", "200", "16"):
            self.assertIn(text, texts)
        links = subprocess.run([sys.executable, Path(FIGURES.__file__).parents[2] / "clusters" / "generate.py", "--bandwidth", "1.5625"],
                               check=True, capture_output=True, text=True).stdout  # fmt: skip
        self.write("slow.yaml", links)
        pipelines = [name for name in FIGURES.MAPPED if name not in FIGURES.SHARDED]
        compared = self.ok("schedule", "compare", *pipelines, "--workers", 64, "--microbatches", 16, "--durations",
                           "F=12.96ms,B=13.22ms,W=9.76ms", "--links", "slow.yaml", "--bytes", 4 * 1024 * 5120 * 2, "--json")  # fmt: skip
        times = sorted((row["makespan"], row["schedule"]) for row in json.loads(compared)["schedules"])
        self.assertEqual([FIGURES.SHORT[times[0][1]], f"{(times[1][0] / times[0][0] - 1) * 100:.0f} %"], texts[texts.index("9.6B, 64 GPUs") - 4:][:2])


if __name__ == "__main__":
    CommandTest.binary = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MPLCONFIGDIR"] = folder
        spec = importlib.util.spec_from_file_location("figures", sys.argv.pop(1))
        FIGURES = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(FIGURES)
        unittest.main()
