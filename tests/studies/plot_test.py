# SPDX-License-Identifier: Apache-2.0
"""experiments/studies/plot.py and timeline.py draw what `starpipe sweep` has written. Usage: plot_test.py BINARY PLOT"""

import json
import os
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
from support import CommandTest, mlp_config  # noqa: E402

PLOT = ""


class Plot(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("base.yaml", mlp_config("runtime: {emulate: {F: 1ms, B: 1ms, W: 1ms}}"))
        self.write("study.yaml", "command: simulate\nconfig: base.yaml\n"
                   "grid: {training.microbatches: [4, 8], schedule.name: [gpipe, 1f1b]}\n")
        self.ok("sweep", "study.yaml", "-o", "out")

    def plot(self, *arguments):
        return subprocess.run([sys.executable, PLOT, "out/results.csv", *arguments], cwd=self.folder, capture_output=True, text=True,
                              env={**os.environ, "MPLCONFIGDIR": self.folder}, timeout=100, check=False)

    def texts(self, *arguments):
        """The words in an SVG figure."""
        result = self.plot(*arguments, "-o", "f.svg")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        return [element.text for element in ElementTree.parse(self.path("f.svg")).iter() if element.text and element.text.strip()]

    def test_lines(self):
        texts = self.texts("--x", "training.microbatches", "--y", "predicted_makespan")
        for text in ("microbatches", "predicted makespan (ms)", "gpipe", "1f1b"):
            self.assertIn(text, texts)

    def test_several_figures(self):
        """Predicted and measured values of one figure, or two figures of one unit; the legend tells them apart."""
        x = ("--x", "training.microbatches", "--y", "predicted_makespan")
        texts = self.texts(*x, "predicted_device_span")
        for text in ("ms", "gpipe: predicted makespan", "1f1b: predicted device span"):
            self.assertIn(text, texts)
        self.write("out/results.csv", "run,name,status,x,predicted_makespan,measured_makespan\na,s,done,1,1,2\nb,s,done,2,2,3\n")
        texts = self.texts("--x", "x", "--y", "predicted_makespan", "measured_makespan")
        for text in ("makespan (ms)", "predicted", "measured"):
            self.assertIn(text, texts)
        # The largest value chooses the unit for both.
        self.write("out/results.csv", "run,name,status,x,predicted_peak_bytes,measured_peak_bytes\na,s,done,1,900000000,1300000000\n")
        texts = self.texts("--x", "x", "--y", "predicted_peak_bytes", "measured_peak_bytes", "--label", "predicted_peak_bytes=planned (here)")
        for text in ("peak (GiB)", "planned (here)", "measured"):
            self.assertIn(text, texts)

    def test_figures_of_different_units(self):
        result = self.plot("--x", "training.microbatches", "--y", "predicted_makespan", "predicted_bubble_fraction", "predicted_peak_stashes")
        self.assertEqual((result.returncode, result.stderr),
                         (2, "--y: predicted_makespan, predicted_bubble_fraction, predicted_peak_stashes cannot share an axis: time, fraction, number\n"))

    def test_panels_and_a_frontier(self):
        texts = self.texts("--x", "predicted_peak_stash_bytes", "--y", "predicted_makespan", "--panel", "schedule.name",
                           "--frontier")
        for text in ("schedule: gpipe", "schedule: 1f1b", "predicted peak stash (KiB)", "microbatches 4", "microbatches 8"):
            self.assertIn(text, texts)

    def test_timelines(self):
        """Reports of runs below each other: a cell for each job, as wide as the job is long."""
        def drawn(*files, output="t.svg"):
            return subprocess.run([sys.executable, Path(PLOT).with_name("timeline.py"), *files, "-o", output], cwd=self.folder,
                                  capture_output=True, text=True, env={**os.environ, "MPLCONFIGDIR": self.folder}, timeout=100, check=False)

        reports = sorted(str(file) for file in Path(self.path("out/runs")).glob("microbatches=4*/report.json"))
        result = drawn(*reports)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        svg = ElementTree.parse(self.path("t.svg"))
        texts = [element.text for element in svg.iter() if element.text and element.text.strip()]
        for report in map(json.loads, (Path(file).read_text() for file in reports)):
            self.assertIn(f"{report['schedule']}, makespan {1e3 * report['makespan']:.4g} ms", texts)
        for text in ("forward", "backward, whole", "time (ms)"):
            self.assertIn(text, texts)
        # Two schedules of two workers: F and BW of four micro-batches each, 1 ms and 2 ms long.
        widths = []
        for path in svg.iter("{http://www.w3.org/2000/svg}path"):
            if "stroke: #ffffff" in (path.get("style") or ""):
                xs = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", path.get("d"))]
                widths.append(round(max(xs) - min(xs), 2))
        self.assertEqual(len(widths), 32)
        self.assertAlmostEqual(max(widths), 2 * min(widths), delta=0.05)
        self.assertEqual(widths.count(max(widths)), 16)
        self.write("other.json", "{}")
        for file, culprit in (("other.json", "is not JSON of a schedule"), ("missing.json", "No such file")):
            result = drawn(file)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(culprit, result.stderr)
            self.assertNotIn("Traceback", result.stderr)
        self.assertIn(".svg, .png or .pdf", drawn(*reports, output="t.gif").stderr)

    def test_formats(self):
        for suffix, begin in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
            self.assertEqual(self.plot("--x", "training.microbatches", "--y", "predicted_makespan", "-o", f"f.{suffix}").returncode, 0)
            self.assertTrue(Path(self.path(f"f.{suffix}")).read_bytes().startswith(begin))

    def test_no_two_sets_look_alike(self):
        """More sets than colours, and a set that only the second panel has."""
        rows = [f"r,{b},s{i},done,{i + b}" for b in (4, 8) for i in range(11 + b // 8)]
        self.write("out/results.csv", "run,microbatches,name,status,predicted_makespan\n" + "\n".join(rows) + "\n")
        texts = self.texts("--x", "predicted_makespan", "--y", "predicted_makespan", "--panel", "microbatches", "--frontier")
        self.assertEqual({text for text in texts if text.startswith("s")}, {f"s{i}" for i in range(12)})
        looks = {(use.get("{http://www.w3.org/1999/xlink}href"), use.get("style"))
                 for group in ElementTree.parse(self.path("f.svg")).iter("{http://www.w3.org/2000/svg}g")
                 if group.get("id", "").startswith("legend") for use in group.iter("{http://www.w3.org/2000/svg}use")}
        self.assertEqual(len(looks), 12)

    def test_runs_without_a_value(self):
        """They are left out, and a line says so. Words on an axis keep their order."""
        self.write("out/results.csv", "run,stages,name,status,y\na,,x,done,3\nb,4,x,done,4\nc,two,x,done,5\nd,4,x,failed,\n")
        result = self.plot("--x", "stages", "--y", "y", "-o", "f.svg")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "out/results.csv: 2 of 4 rows are not drawn: they are not done, or have no stages, or none of y\n")
        for wrong, culprit in ((["--x", "stages", "--y", "name"], "name is not a number: x"),
                               (["--x", "stages", "--y", "y", "--frontier"], "stages is not a number everywhere"),
                               (["--x", "stages", "--y", "y", "-o", "f.gif"], ".svg, .png or .pdf")):
            result = self.plot(*wrong)
            self.assertEqual(result.returncode, 2)
            self.assertIn(culprit, result.stderr)
            self.assertNotIn("Traceback", result.stderr)
        self.write("out/results.csv", "a,b\n1,2\n")
        self.assertIn("not a table of", self.plot("--x", "a", "--y", "b").stderr)

    def test_runs_that_differ_are_no_repetitions(self):
        """Two link speeds would become one point; a seed may, if asked for."""
        rows = [f"r{i},{n},{b},{speed},{seed},0,done,{y}" for i, (n, b, speed, seed, y) in enumerate(
            (n, b, speed, seed, 0.5 + seed / 10 + (0.2 if speed == "100MB/s" else 0))
            for n in ("gpipe", "1f1b") for b in (4, 8) for speed in ("100MB/s", "1GB/s") for seed in (1, 2))]
        self.write("out/results.csv", "run,schedule.name,training.microbatches,links.bandwidth,training.seed,repetition,status,predicted_makespan\n"
                   + "\n".join(rows) + "\n")
        axes = ("--x", "training.microbatches", "--y", "predicted_makespan")
        for given, differs in ((["--series", "schedule.name"], "differ in links.bandwidth (100MB/s, 1GB/s), training.seed (1, 2)"),
                               (["--series", "schedule.name", "links.bandwidth"], "differ in training.seed (1, 2)"),
                               (["--series", "training.seed", "--panel", "schedule.name"], "differ in links.bandwidth (100MB/s, 1GB/s)")):
            result = self.plot(*axes, *given)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1))
            self.assertIn(f"{differs}: they are not repetitions", result.stderr)
        texts = self.texts(*axes, "--repetitions", "training.seed")
        self.assertEqual({text for text in texts if "B/s" in text}, {f"{n}, {speed}" for n in ("gpipe", "1f1b") for speed in ("100MB/s", "1GB/s")})
        texts = self.texts(*axes, "--panel", "training.seed", "--label", "gpipe=GPipe", "training.seed=Seed", "training.microbatches=m",
                           "predicted_makespan=a step")
        for text in ("GPipe, 1GB/s", "Seed: 1", "m", "a step (ms)"):
            self.assertIn(text, texts)
        for label in ("gpip=GPipe", "gpipe"):
            self.assertEqual(self.plot(*axes, "--label", label).returncode, 2)

    def test_settings_that_change_along_with_x(self):
        """Lines of several points, not a line for each run."""
        rows = [f"r,{n},{k},{2 * k},{4 * k},done,{k}" for n in ("gpipe", "1f1b") for k in (2, 4, 8)]
        self.write("out/results.csv", "run,schedule.name,schedule.workers,model.layers,training.microbatches,status,y\n" + "\n".join(rows) + "\n")
        result = self.plot("--x", "schedule.workers", "--y", "y", "-o", "f.svg")
        self.assertEqual((result.returncode, result.stderr), (0, "out/results.csv: no lines of their own for model.layers, training.microbatches, "
                                                                 "which change along with schedule.workers (--series makes them)\n"))
        texts = [element.text for element in ElementTree.parse(self.path("f.svg")).iter() if element.text and element.text.strip()]
        self.assertEqual([text for text in texts if text in ("gpipe", "1f1b")], ["gpipe", "1f1b"])
        self.assertFalse([text for text in texts if "layers" in text])

    def test_a_long_legend_is_within_the_figure(self):
        for entries, name in ((40, "s"), (3, "a-schedule-whose-name-is-longer-than-the-column-of-a-paper-is-wide-")):
            rows = [f"r,{name}{i},done,{i + 1},{i + 2}" for i in range(entries)]
            self.write("out/results.csv", "run,name,status,x,y\n" + "\n".join(rows) + "\n")
            self.texts("--x", "x", "--y", "y", "--frontier")
            svg = ElementTree.parse(self.path("f.svg")).getroot()
            width, height = (float(size) for size in svg.get("viewBox").split()[2:])
            self.assertAlmostEqual(width, 3.4 * 72, delta=0.1)
            legend = next(g for g in svg.iter("{http://www.w3.org/2000/svg}g") if g.get("id", "").startswith("legend"))
            uses = [(float(use.get("x")), float(use.get("y"))) for use in legend.iter("{http://www.w3.org/2000/svg}use")]
            self.assertEqual(len(uses), entries)
            for x, y in uses:
                self.assertTrue(0 < x < width and 0 < y < height, (x, y))

    def test_without_matplotlib(self):
        self.write("matplotlib.py", "raise ModuleNotFoundError(\"No module named 'matplotlib'\")\n")
        studies = Path(PLOT).parent
        for script in (PLOT, studies / "timeline.py", studies / "clusters/figures.py", studies / "tensor/figures.py"):
            result = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True,
                                    env={**os.environ, "PYTHONPATH": self.folder}, timeout=100, check=False)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
            self.assertIn("needs matplotlib", result.stderr)

    def test_an_unknown_column(self):
        result = self.plot("--x", "training.microbatches", "--y", "makespan")
        self.assertEqual(result.returncode, 2)
        self.assertIn("no column makespan; there are run, training.microbatches", result.stderr)

    def test_files_that_cannot_be_read_or_written(self):
        axes = ("--x", "training.microbatches", "--y", "predicted_makespan")
        result = self.plot(*axes, "-o", "nowhere/f.svg")
        self.assertEqual((result.returncode, result.stderr), (2, "-o: nowhere/f.svg: No such file or directory\n"))
        table = Path(self.path("out/results.csv"))
        text = table.read_text()
        table.write_bytes(b"\xef\xbb\xbf" + text.encode())  # as spreadsheets write it
        self.assertEqual(self.plot(*axes, "-o", "f.svg").returncode, 0)
        for content, words in (b"\x1f\x8b\x08", "is not a table"), (text.rpartition(",")[0].encode(), "is damaged: a row has not as many cells"):
            table.write_bytes(content)
            result = self.plot(*axes, "-o", "f.svg")
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"out/results.csv: {words}", result.stderr)


if __name__ == "__main__":
    CommandTest.binary = sys.argv.pop(1)
    PLOT = sys.argv.pop(1)
    unittest.main()
