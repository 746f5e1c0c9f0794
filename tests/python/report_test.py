# SPDX-License-Identifier: Apache-2.0
"""Reports and pages. Usage: report_test.py PACKAGE_ROOT [STARPIPE]"""

import html
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, sys.argv[1])
STARPIPE = sys.argv[2] if len(sys.argv) > 2 else None
SOURCE = pathlib.Path(__file__).resolve().parents[2]

import starpipe  # noqa: E402
from starpipe import InputError, Report  # noqa: E402
from starpipe._core import has_page  # noqa: E402

needs_command = unittest.skipUnless(STARPIPE, "this build has no command")
needs_page = unittest.skipUnless(has_page(), "this build has no report page (npm)")


class Reports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.schedule = starpipe.schedule("v-half", workers=2, microbatches=4)
        cls.schedule.save(cls.folder / "plan.json")
        if STARPIPE:
            subprocess.run(
                [STARPIPE, "train", SOURCE / "experiments/emulated.yaml", "--set", "training.steps=3", "--set", "runtime.emulate.comm=200us",
                 "--report", "report.json"], cwd=cls.folder, check=True, capture_output=True)  # fmt: skip

    def command(self, *arguments):
        return subprocess.run([STARPIPE, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True, check=False)

    @needs_command
    def test_explain_says_what_the_command_says(self):
        report = Report(self.folder / "report.json")
        changes = ("comm=0", "schedule=gpipe", "runtime=0.5x")
        options = [word for change in changes for word in ("--what-if", change)]
        explained = report.explain(*changes)
        self.assertEqual(str(explained), self.command("explain", "report.json", *options).stdout)
        self.assertEqual(explained.figures, json.loads(self.command("explain", "report.json", "--json", *options).stdout))
        for wrong in (("comm",), ("worker.9=median",), ("comm=0", "comm=0"), ("schedule=none",)):
            options = [word for change in wrong for word in ("--what-if", change)]
            with self.assertRaises(InputError) as raised:
                report.explain(*wrong)
            self.assertEqual(f"starpipe: {raised.exception}\n", self.command("explain", "report.json", *options).stderr)

    @needs_command
    def test_its_timelines(self):
        report = Report(self.folder / "report.json")
        measured, predicted = report.measured, report.predicted
        data = json.loads((self.folder / "report.json").read_text())
        self.assertEqual(measured.schedule.job_count, predicted.schedule.job_count)
        self.assertEqual((measured.costs.unit, predicted.costs.unit), ("s", "s"))
        difference = report.explain().figures
        busy = [round(seconds * 1e9) for seconds in measured.busy]
        for ours, theirs in zip(busy, difference["busy"]["measured"]):
            self.assertLess(abs(ours - theirs), 1000)
        self.assertEqual(report.figures["config"], data["config"])
        self.assertGreater(measured.makespan, 0)
        self.assertAlmostEqual(sum(p.end - p.start for p in measured.critical_path()), measured.makespan)
        self.assertTrue(measured.svg().startswith("<svg"))

    def test_a_schedule_has_no_run(self):
        report = Report(self.folder / "plan.json")
        self.assertIsNone(report.measured)
        self.assertEqual(report.predicted.makespan, starpipe.simulate(self.schedule).makespan)
        with self.assertRaisesRegex(InputError, 'plan.json: no "explain": not a report of `starpipe train'):
            report.explain()

    @needs_command
    def test_the_step_of_sim_is_simulated(self):
        data = json.loads((self.folder / "report.json").read_text())
        data["makespan"] = {"predicted": 1, "simulated": 1}
        (self.folder / "sim.json").write_text(json.dumps(data))
        report = Report(self.folder / "sim.json")
        self.assertEqual(list(report.timelines), ["predicted", "simulated"])
        self.assertEqual(report.measured.makespan, Report(self.folder / "report.json").measured.makespan)
        self.assertIn("(predicted / simulated)", report.explain().text)

    @needs_command
    def test_a_compare_has_a_timeline_for_each_policy(self):
        done = self.command("compare", SOURCE / "experiments/emulated.yaml", "--set", "training.steps=2", "--repetitions", 1, "--policies",
                            "starpipe,eager", "--schedules", "1f1b,gpipe", "-o", "compared.json")  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        report = Report(self.folder / "compared.json")
        wanted = [f"{schedule}, {title}" for schedule in ("1f1b", "gpipe") for title in ("predicted", "starpipe", "eager")]
        self.assertEqual(list(report.timelines), wanted)
        self.assertEqual(len(report.figures["schedules"]), 2)
        self.assertIsNone(report.measured)

    def test_wrong_files(self):
        (self.folder / "empty.json").write_text("{}")
        (self.folder / "compare.json").write_text('{"policies": []}')
        for words, name in (("none.json", "none.json"), ("empty.json", "empty.json"), ("compare.json: the JSON that `compare --json` prints has no jobs", "compare.json")):
            with self.assertRaisesRegex(InputError, words):
                Report(self.folder / name)

    @needs_page
    def test_a_notebook_shows_the_page(self):
        (self.folder / "x<script>&\".json").write_text((self.folder / "plan.json").read_text())
        report = Report(self.folder / "x<script>&\".json")
        frame = report._repr_html_()
        self.assertTrue(frame.startswith('<iframe srcdoc="'))
        srcdoc = frame[len('<iframe srcdoc="'):].partition('"')[0]
        self.assertEqual(html.unescape(srcdoc), report.html())
        self.assertNotIn("<", srcdoc)
        self.assertIn('sandbox="allow-scripts', frame)

    @needs_page
    @needs_command
    def test_pages_are_those_of_the_command(self):
        first, second = Report(self.folder / "report.json"), Report(self.folder / "report.json")
        first.save(self.folder / "one.html")
        starpipe.save_page(self.folder / "two.html", first, second)
        for ours, files in (("one.html", 1), ("two.html", 2)):
            done = self.command("report", *[self.folder / "report.json"] * files, "-o", "theirs.html")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((self.folder / ours).read_text(), (self.folder / "theirs.html").read_text())
        with self.assertRaisesRegex(InputError, "they have no common axis"):
            starpipe.save_page(self.folder / "bad.html", first, Report(self.folder / "plan.json"))
        self.command("schedule", "show", "v-half", "--workers", 2, "--microbatches", 4, "-o", "out.json", "--html", "theirs.html")
        starpipe.simulate(self.schedule).save(self.folder / "ours.html")
        self.assertEqual((self.folder / "ours.html").read_text(), (self.folder / "theirs.html").read_text())

    @unittest.skipIf(has_page(), "this build has the report page")
    def test_without_the_page(self):
        report = Report(self.folder / "plan.json")
        self.assertIsNone(report._repr_html_())
        with self.assertRaisesRegex(InputError, "built without the report page"):
            report.html()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
