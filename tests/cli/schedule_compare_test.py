# SPDX-License-Identifier: Apache-2.0
"""`schedule compare` and times of a share of the model. Usage: schedule_compare_test.py BINARY"""

import csv
import io
import json
import sys
import unittest
import xml.etree.ElementTree as ElementTree

from support import CommandTest, mlp_config

DURATIONS = ("--durations", "F=1,B=2,W=0.5", "--comm", 0.1)


class ScheduleCompare(CommandTest):
    def compare(self, *arguments):
        return json.loads(self.ok("schedule", "compare", *arguments, "--json"))

    def show(self, name, workers, microbatches, *more):
        return json.loads(self.ok("schedule", "show", name, "--workers", workers, "--microbatches", microbatches,
                                  "--json", *more))

    def test_figures_are_those_of_show(self):
        names = [entry["name"] for entry in json.loads(self.ok("schedule", "list", "--json"))["schedules"]]
        names = [name for name in names if name not in ("lpp", "fslpp")]  # they need --groups
        for per, flag in (("share", ["--per-share"]), ("stage", [])):
            for more in ((), ("--home", "none"), ("--memory-limit", 5), ("--no-prefetch",)):
                if per == "stage" and more:
                    continue
                compared = self.compare(*names, "--workers", 4, "--microbatches", "8,12", f"--per-{per}", *DURATIONS, *more)
                self.assertEqual((compared["workers"], compared["per"]), (4, per))
                rows = compared["schedules"]
                self.assertEqual([(row["microbatches"], row["schedule"]) for row in rows],
                                 [(m, name) for m in (8, 12) for name in names])
                for row in rows:
                    with self.subTest(row=row, more=more):
                        arguments = (row["schedule"], 4, row["microbatches"], *flag, *DURATIONS, *more)
                        if "problem" in row:
                            self.refused(["schedule", "show", arguments[0], "--workers", 4, "--microbatches", *arguments[2:]])
                            continue
                        shown = self.show(*arguments)
                        parts = row["stages"] / 4 if per == "share" else 1
                        for name in ("makespan", "bubble_fraction", "device_bubble_fraction"):
                            self.assertEqual(row[name], shown[name])
                        self.assertEqual(row["peak_stashes"], max(shown["peak_stashes"]) / parts)
                        self.assertEqual(row["transfers"], sum(map(sum, shown["received"].values())))
                        self.assertEqual(row.get("reordered"), shown.get("reordered"))
                        if row["lower_bound"] is not None:
                            self.assertLessEqual(row["lower_bound"], row["makespan"])
                        if more == ("--memory-limit", 5):
                            self.assertLessEqual(row["peak_stashes"], 5)

    def test_all_do_the_same_work(self):
        """A worker is busy for B (F + B + W), whatever its number of stages."""
        for row in self.compare("1f1b", "v-half", "interleaved-1f1b", "ddp", "--workers", 4, "--microbatches", 8, *DURATIONS)["schedules"]:
            busy = row["makespan"] * (1 - row["bubble_fraction"])
            self.assertAlmostEqual(busy, 8 * 3.5)

    def test_a_time_for_each_share(self):
        self.write("shares.yaml", "- {F: 1, B: 2, W: 1}\n- {F: 3, B: 2, W: 1}\n")
        self.write("stages.yaml", "- {F: 0.5, B: 1, W: 0.5}\n" * 2 + "- {F: 1.5, B: 1, W: 0.5}\n" * 2)
        size = ("looped-bfs", 2, 4)
        self.assertEqual(self.show(*size, "--per-share", "--durations", "shares.yaml"),
                         self.show(*size, "--durations", "stages.yaml"))
        self.refused(["schedule", "show", "1f1b", "--workers", 2, "--microbatches", 4, "--stages", 3, "--placement", "0,1,0",
                      "--per-share", "--durations", "shares.yaml"], "2 shares", "3 stages")
        self.write("c.yaml", mlp_config(schedule="name: looped-bfs, workers: 2, stages: 4").replace("layers: 2", "layers: 4"))
        simulated = json.loads(self.ok("simulate", "c.yaml", "--per-share", "--durations", "shares.yaml", "--json"))
        emulated = json.loads(self.ok("simulate", "c.yaml", "--json", "--set",
                                      "runtime.emulate={F: [1s, 3s], B: 2s, W: 1s, per_share: true}"))
        self.assertEqual(simulated["makespan"], self.show("looped-bfs", 2, 4, "--durations", "stages.yaml")["makespan"])
        self.assertEqual(emulated["makespan"], simulated["makespan"])
        self.refused(["simulate", "c.yaml", "--set", "runtime.emulate={F: [1s, 3s, 1s, 3s], B: 2s, W: 1s, per_share: true}"],
                     "runtime.emulate.F", "4 times for 2 workers")

    def test_memory_in_shares(self):
        """A limit of M is M stashes of a stage for 1f1b, and 2 M of v-half's stages, which are half as large."""
        rows = {row["schedule"]: row for row in
                self.compare("1f1b", "v-half", "--workers", 4, "--microbatches", 8, "--memory-limit", 2)["schedules"]}
        self.assertEqual(rows["1f1b"]["reordered"]["limit"], 2)
        self.assertEqual(rows["v-half"]["reordered"]["limit"], 4)
        text = self.ok("schedule", "compare", "1f1b", "v-half", "--workers", 4, "--microbatches", 8, "--memory-limit", 2)
        self.assertIn("not in v-half's own order", text)

    def test_limits_of_slices_are_of_whole_micro_batches(self):
        rows = self.compare("1f1b", "gpipe", "--workers", 4, "--microbatches", 8, "--slices", 4, "--memory-limit", 2)["schedules"]
        self.assertEqual(rows[0]["peak_stashes"], (4 + 3) / 4)
        self.assertLessEqual(rows[0]["lower_bound"], rows[0]["makespan"])
        self.assertIsNone(rows[1].get("makespan"))  # it holds all 8

    def test_bound_with_copies(self):
        """The bound within a limit knows copies over one link; with homes on other workers it is the one without a limit."""
        def bound(*more, schedule="v-half"):
            row = self.compare(schedule, "--workers", 8, "--microbatches", 32, *DURATIONS, *more)["schedules"][0]
            self.assertLessEqual(row["lower_bound"], row["makespan"])
            return row["lower_bound"]
        limit = ("--memory-limit", 2, "--home", "auto")
        without, made_again = bound(), bound(*limit)
        copied = [bound(*limit, "--copy", copy) for copy in (2, 20)]
        self.assertLess(without, copied[1])
        self.assertLess(copied[0], copied[1])
        self.assertLessEqual(copied[1], made_again)
        self.assertEqual(bound("--home", "bpipe", "--copy", 0.5, "--memory-limit", 8, schedule="1f1b"), bound(schedule="1f1b"))

    def test_what_is_not_defined(self):
        """A row without figures, with the reason; an error where no schedule is defined."""
        arguments = ("schedule", "compare", "1f1b", "dualpipe", "--workers", 4, "--microbatches", "4,8", "-o", "c.csv")
        text = self.ok(*arguments)
        self.assertIn("4 micro-batches: dualpipe: ", text)
        rows = list(csv.DictReader(io.StringIO(self.read("c.csv"))))
        self.assertEqual([row["makespan"] != "" for row in rows], [True, False, True, True])
        self.assertEqual([row["problem"] != "" for row in rows], [False, True, False, False])
        self.refused(["schedule", "compare", "dualpipe", "--workers", 3, "--microbatches", 8], "dualpipe")
        self.refused(["schedule", "compare", "2f2b", "--workers", 3, "--microbatches", 8], "'2f2b'")
        self.refused(["schedule", "compare", "1f1b", "--workers", 3, "--microbatches", "8,0"], "--microbatches", "0")
        self.refused(["schedule", "compare", "1f1b", "--workers", 60000, "--microbatches", 1000], "--microbatches", "too many")
        self.refused(["schedule", "compare", "1f1b", "--workers", 3, "--microbatches", 8, "-o", "c.svg"], "-o", ".csv")

    def test_replicas_sum_their_gradients(self):
        """By hand: 2 replicas of 2 stages with 2 micro-batches each, passes of 1. Worker 1 sends worker 0 two gradients at once,
        which arrive 1 later, and their sums are back after another 1."""
        more = ("--workers", 2, "--microbatches", 4, "--comm", 1)
        ddp, pipeline = self.compare("ddp", "1f1b", *more)["schedules"]
        self.assertEqual((ddp["makespan"], ddp["gradients_summed"]), (12, 14))
        self.assertIsNone(pipeline["gradients_summed"])
        table = self.ok("schedule", "compare", "ddp", "1f1b", *more)
        self.assertRegex(table, r"makespan  gradients summed  bubble")
        self.assertIn("Gradients summed: until", table)
        self.assertNotIn("summed", self.ok("schedule", "compare", "1f1b", *more))
        show = ("schedule", "show", "ddp", *more)
        self.assertEqual(json.loads(self.ok(*show, "--json"))["gradients_summed"], 14)
        self.assertRegex(self.ok(*show), r"\nwith gradients summed +14\n")

    def test_files(self):
        arguments = ("1f1b", "zb-h1", "--workers", 3, "--microbatches", "4,6", "--durations", "F=1ms,B=2ms,W=1ms")
        compared = self.compare(*arguments)
        self.ok("schedule", "compare", *arguments, "-o", "c.csv", "--timeline", "c.svg")
        for row, wanted in zip(csv.DictReader(io.StringIO(self.read("c.csv"))), compared["schedules"], strict=True):
            self.assertEqual((row["workers"], row["per"], row["unit"], row["problem"]), ("3", "share", "s", ""))
            self.assertEqual(row["reordered"], "false")
            for name, value in wanted.items():
                self.assertEqual(row[name], "" if value is None else str(value))
        self.ok("schedule", "compare", *arguments, "-o", "c.json")
        self.assertEqual(json.loads(self.read("c.json")), compared)
        svg = ElementTree.fromstring(self.read("c.svg"))
        titles = "".join(svg.itertext())
        for title in ("1f1b, 4 micro-batches", "zb-h1, 6 micro-batches"):
            self.assertIn(title, titles)
        self.assertIn("holds 3", titles)
        # A stash of v-half is of half the size: drawn next to a stash of 1f1b it would look like as much memory.
        self.ok("schedule", "compare", "1f1b", "v-half", *arguments[2:], "--timeline", "v.svg")
        self.assertNotIn("holds", "".join(ElementTree.fromstring(self.read("v.svg")).itertext()))
        text = self.ok("schedule", "compare", *arguments)
        self.assertIn("makespan (ms)", text)


if __name__ == "__main__":
    ScheduleCompare.binary = sys.argv.pop(1)
    unittest.main()
