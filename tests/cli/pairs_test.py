# SPDX-License-Identifier: Apache-2.0
"""Pairs of F and a backward pass on emulated workers (`runtime.emulate.overlap`) and in files (--overlap).

Usage: pairs_test.py BINARY LAUNCHER..., the launcher being what starts two ranks.
"""

import json
import os
import sys
import unittest

from support import CommandTest

LAUNCHER = []
FACTOR = 0.75
PASS = 4e6  # nanoseconds of F, B and W
CONFIG = """
model:    {kind: gpt, layers: 8, hidden: 8, heads: 1, context: 8}
data:     {kind: text, path: text}
training: {steps: 3, microbatches: 12, microbatch_size: 1}
schedule: {name: combined-1f1b, workers: 4}
runtime:  {emulate: {F: 4ms, B: 4ms, W: 4ms}}
"""


class Pairs(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("c.yaml", CONFIG)
        self.write("text", "It is a truth universally acknowledged. " * 40)

    def record(self, *settings, **options):
        words = [word for setting in settings for word in ("--set", setting)]
        result = self.run_command("train", "c.yaml", *words, "--report", "r.json", **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("r.json"))["explain"]["record"]["jobs"]

    def test_emulated_workers_run_them_at_once(self):
        for name in ("combined-1f1b", "dualpipe", "dualpipe-v"):
            for launcher in ((), LAUNCHER):
                with self.subTest(name=name, ranks=2 if launcher else 1):
                    self.check(self.record(f"schedule.name={name}", f"runtime.emulate.overlap={FACTOR}", launcher=launcher))

    def check(self, jobs):
        job = {key: i for i, key in enumerate(zip(jobs["pass"], jobs["stage"], jobs["microbatch"]))}
        start, end, worker = jobs["start"], jobs["end"], jobs["worker"]
        last = {i: i + 1 for i, with_next in enumerate(jobs["with_next"]) if with_next}
        self.assertTrue(last)
        slack = 2000  # nanoseconds: clocks of ranks, and rounding
        stages = max(jobs["stage"])
        # A busy machine delays some pairs, but not all of them by a quarter.
        self.assertLess(min(end[second] - start[first] for first, second in last.items()), 3 * PASS)
        for first, second in last.items():
            self.assertEqual(worker[first], worker[second])
            self.assertLessEqual(abs(start[second] - end[first]), slack)
            self.assertGreaterEqual(end[second] - start[first], FACTOR * 3 * PASS - slack)
            # Both wait until both can start, and what reads a result starts when both have ended.
            stage, microbatch = jobs["stage"][second], jobs["microbatch"][second]
            after = [key for key in (("BW", stage + 1, microbatch), ("B", stage + 1, microbatch)) if stage < stages and key in job]
            if stage < stages and worker[job[after[0]]] == worker[first]:
                self.assertGreaterEqual(start[first], end[last.get(job[after[0]], job[after[0]])] - slack)
            stage, microbatch = jobs["stage"][first], jobs["microbatch"][first]
            reader = job.get(("F", stage + 1, microbatch))
            if reader is not None and worker[reader] == worker[first]:
                self.assertGreaterEqual(start[reader], end[second] - slack)

    def test_questions_about_a_run_with_pairs(self):
        self.record(f"runtime.emulate.overlap={FACTOR}")
        explained = json.loads(self.ok("explain", "r.json", "--what-if", "runtime=0", "--json"))
        predicted = json.loads(self.read("r.json"))["explain"]["per_step"]["predicted"]
        # Without the runtime's part the step takes as long as predicted: a result never leaves before its pair has ended.
        self.assertGreater(explained["what_if"][0]["makespan"], 0.98 * predicted)
        self.refused(["explain", "r.json", "--what-if", "schedule=1f1b"], "schedule=1f1b", "pairs", "durations of their own")

    def test_without_their_time_jobs_follow_each_other(self):
        self.assertNotIn("with_next", self.record())

    def test_files(self):
        self.ok("schedule", "show", "dualpipe", "--workers", "4", "--microbatches", "8", "-o", "d.csv")
        self.assertIn("OVERLAP_F_B", self.read("d.csv"))
        shown = json.loads(self.ok("schedule", "show", "dualpipe", "--workers", "4", "--microbatches", "8", "--overlap", "F+BW=2.5", "--json"))
        read = json.loads(self.ok("schedule", "check", "d.csv", "--overlap", "F+BW=2.5", "--json"))
        self.assertEqual(read["makespan"], shown["makespan"])
        # DeepSeek-V3, table 2: busy for 8 (F + B + W) less the time that pairs save, idle for (4 / 2 - 1) (2.5 + 2 - 3).
        pairs = sum(op.get("with_next", False) for op in shown["ops"][1])
        self.assertAlmostEqual(shown["makespan"], 8 * 3 - pairs * 0.5 + 1.5)
        self.write("d.json", json.dumps(shown))
        self.assertEqual(json.loads(self.ok("schedule", "check", "d.json", "--json"))["makespan"], shown["makespan"])
        for lost in (["--memory-limit", "4"], ["--tensor", "2"], ["--home", "pipeoffload", "--copy", "0.1"], ["--home", "worker:1", "--copy", "peer=0.1"]):
            self.refused(["schedule", "check", "d.json", *lost], "d.json", "pairs do not apply")
        self.ok("schedule", "compare", "dualpipe", "dualpipe-v", "--workers", "4", "--microbatches", "8", "--overlap", "F+BW=2.5")
        self.ok("schedule", "show", "dualpipe", "--workers", "4", "--microbatches", "8", "--overlap", "0.8", "-o", "d.svg")
        self.assertIn('class="pairs"', self.read("d.svg"))

    def test_bad_input_is_refused(self):
        show = ["schedule", "show", "dualpipe", "--workers", "4", "--microbatches", "8", "--overlap"]
        self.refused([*show, "1.2"], "--overlap", "1.2")
        self.refused([*show, "0.5"], "overlap", "at least the longer")
        self.refused([*show, "F+BW=9"], "overlap", "at most their sum")
        self.refused([*show, "F=1"], "--overlap F=1", "F+BW=T")
        self.refused([*show, "F+BW=2ms"], "--overlap 2ms", "unit")
        self.refused([*show, "F+BW=2,F+BW=2"], "--overlap", "twice")
        self.refused([*show, "F+BW=2.5,"], "--overlap", "comma")
        self.refused(["schedule", "compare", "1f1b", "gpipe", "--workers", "4", "--microbatches", "8", "--overlap", "0.9"], "--overlap", "no pairs")
        self.write("odd.json", '{"ops": [[{"op": "F", "stage": 0, "microbatch": 0}, {"op": "BW", "stage": 0, "microbatch": 0}]], "overlap": {"factor": 2}}')
        self.refused(["schedule", "check", "odd.json"], "odd.json", "overlap.factor", "from 0 to 1")
        self.refused(["schedule", "show", "1f1b", "--workers", "4", "--microbatches", "8", "--overlap", "0.9"], "--overlap", "1f1b", "no pairs")
        train = ["train", "c.yaml", "--set", f"runtime.emulate.overlap={FACTOR}", "--set"]
        self.refused([*train, "schedule.name=1f1b"], "runtime.emulate.overlap", "no pairs")
        self.refused([*train, "runtime.policy=dmda"], "runtime.emulate.overlap")
        self.refused([*train, "runtime.window=7"], "runtime.window", "at least 2 for each worker")
        self.write("never.csv", "(0F0;0B0)OVERLAP_F_B\n")
        self.refused(["schedule", "check", "never.csv"], "never.csv", "row 1, cell 1", "cannot run at once")


if __name__ == "__main__":
    CommandTest.binary, LAUNCHER = os.path.abspath(sys.argv[1]), sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
