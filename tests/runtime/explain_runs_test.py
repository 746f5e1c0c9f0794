#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`starpipe explain` against real runs with a known fault: a slow kernel, a slow link, a policy that ignores n. And the
watchdog's table of who waits for whom, against the jobs of the report.

usage: explain_runs_test.py PROGRAM SLOW_LINK LAUNCHER...   (PROGRAM is starpipe with the network `waiting`, and the
launcher starts 2 ranks)
"""
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

from job import JobTest

PROGRAM, SLOW_LINK, *LAUNCHER = sys.argv[1:]
PARTS = ["durations", "transfers", "order", "runtime"]
MS = 1_000_000  # nanoseconds
MICROBATCHES = 6

# One stage per worker, with one layer each; workers 0 and 1 are on rank 0, workers 2 and 3 on rank 1.
CONFIG = f"""
model: {{kind: waiting, F: 2, B: 2}}
training: {{microbatches: {MICROBATCHES}, microbatch_size: 2, steps: 7}}
schedule: {{name: 1f1b, workers: 4, stages: 4}}
runtime: {{workers_per_core: 16}}
"""


class ExplainRuns(JobTest):
    binary, launcher = PROGRAM, LAUNCHER

    def setUp(self):
        super().setUp()
        self.config.write_text(CONFIG)
        self.report = self.path / "report.json"

    def run_once(self, *settings, launcher=(), environment=None):
        """The report of a training run."""
        sets = [word for setting in settings for word in ("--set", setting)]
        result = subprocess.run([*launcher, PROGRAM, "train", str(self.config), "--report", str(self.report), *sets],
                                capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=100,
                                env={**os.environ, **(environment or {})})
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.report.read_text())

    def explained(self, *settings, **how):
        """Returns the output of `explain` for the report; its sums are exact."""
        self.run_once(*settings, **how)
        printed = subprocess.run([PROGRAM, "explain", str(self.report), "--json"], capture_output=True, text=True,
                                 check=True, timeout=60).stdout
        explain = json.loads(printed)
        steps = explain["per_step"]
        for i, measured in enumerate(steps["measured"]):
            self.assertEqual(steps["predicted"] + sum(steps[part][i] for part in PARTS), measured)
        makespan = steps["measured"][explain["steps"]["median"] - explain["steps"]["first"]]
        for busy, idle in zip(explain["busy"]["measured"], explain["idle"]["measured"]):
            self.assertEqual(busy + sum(idle.values()), makespan)
        return explain

    def part(self, explain, part, step=None):
        """A part of the difference, in nanoseconds: of a step counted from 1, or of the median step."""
        return explain["per_step"][part][(step or explain["steps"]["median"]) - explain["steps"]["first"]]

    def test_a_slow_kernel_is_named(self):
        for launcher in ([], LAUNCHER):
            for stage, name in ((2, "F"), (1, "BW")):
                with self.subTest(launcher=launcher, stage=stage, kernel=name):
                    explain = self.explained(f"model.slow={stage}", f"model.slow_{name[0]}=18", launcher=launcher)
                    slowest = explain["kernels"][0]
                    self.assertEqual((slowest["stage"], slowest["pass"], slowest["worker"], slowest["jobs"]),
                                     (stage, name, stage, MICROBATCHES))
                    self.assertGreater(slowest["times_typical"], explain["kernels"][1]["times_typical"])
                    waited = explain["waited_for"][0]
                    self.assertEqual((waited["stage"], waited["pass"], waited["worker"]), (stage, name, stage))
                    longest = explain["critical_path"]["jobs"][0]
                    self.assertEqual((longest["stage"], longest["pass"], longest["worker"]), (stage, name, stage))

    def test_a_kernel_that_is_slow_in_one_step_shows_as_durations(self):
        step = 4  # the calls of F from 18 to 23, with the steps counted from 1
        first = (step - 1) * MICROBATCHES
        for launcher in ([], LAUNCHER):
            explain = self.explained("model.slow=2", "model.slow_F=40", f"model.first={first}",
                                     f"model.last={first + MICROBATCHES - 1}", launcher=launcher)
            longer = self.part(explain, "durations", step)
            self.assertEqual(longer, max(self.part(explain, part, step) for part in PARTS))
            self.assertEqual(longer, max(explain["per_step"]["durations"]))

    def test_a_slow_link_is_named(self):
        # Of the ranks, so of the workers 1 to 2 and 2 to 1.
        for ranks, workers in (((0, 1), (1, 2)), ((1, 0), (2, 1))):
            with self.subTest(ranks=ranks):
                slow = {"STARPIPE_TEST_SLOW_FROM": str(ranks[0]), "STARPIPE_TEST_SLOW_TO": str(ranks[1]),
                        "STARPIPE_TEST_SLOW_MS": "12", "LD_PRELOAD": SLOW_LINK,
                        # The address sanitizer wants to be the first library.
                        "ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0"}
                explain = self.explained(launcher=LAUNCHER, environment=slow)
                link = explain["links"][0]
                self.assertEqual((link["from"], link["to"]), workers)
                self.assertGreaterEqual(link["median"], 12 * MS)  # the link never takes less
                self.assertEqual(link["times_typical"], max(other["times_typical"] for other in explain["links"]))
                waited = explain["waited_for_transfers"][0]
                self.assertEqual((waited["from"], waited["to"]), workers)
                on_path = explain["critical_path"]["transfers"][0]
                self.assertEqual((on_path["from"], on_path["to"]), workers)
                self.assertEqual(self.part(explain, "transfers"), max(self.part(explain, part) for part in PARTS))

    def test_a_policy_that_ignores_n_shows_as_order(self):
        for policy in ("random", "lws"):
            with self.subTest(policy=policy):
                explain = self.explained(f"runtime.policy={policy}")
                predicted = explain["per_step"]["predicted"]
                self.assertTrue(any(abs(order) > 0.02 * predicted for order in explain["per_step"]["order"]))
                record = json.loads(self.report.read_text())["explain"]["record"]["jobs"]
                self.assertNotEqual(record["ran_on"], "worker")

    def test_the_watchdog_names_the_jobs_that_the_report_has(self):
        long = "training.microbatches=150"  # a step of more than half a second, whose middle is easy to meet
        report = self.run_once(long, "training.steps=2", launcher=LAUNCHER)
        jobs = report["explain"]["record"]["jobs"]
        names = [f"{name}({s},{b})" for s, b, name in zip(jobs["stage"], jobs["microbatch"], jobs["pass"])]
        rank_of = {worker: rank for rank, found in enumerate(report["ranks"]) for worker in found["logical_workers"]}
        self.report.unlink()
        for stopped in 0, 1:
            with self.subTest(stopped=stopped):
                self.train("--set", long, "--set", "runtime.timeout=3", "--set", "training.steps=1000000")
                time.sleep(0.3)  # in which the ranks' statuses go to and fro once
                os.kill(self.pids_of(stopped)[1], signal.SIGSTOP)
                self.expect_end(60)
                waiting = 1 - stopped
                row = re.search(rf"(?m)^ +{waiting}  waits to run (\S+) +(\S+) +(.+), from (\S+) +rank (\d): silent for .* "
                                r"\(last known: .*\)", self.output())
                self.assertIsNotNone(row, self.output())
                does, job, datum, producer, sender = row.groups()
                self.assertEqual(does, job)
                self.assertEqual(int(sender), stopped)
                # The producer is the job on the other rank whose result the job reads, and it comes first in n.
                at, before = names.index(job), names.index(producer)
                self.assertLess(before, at)
                self.assertEqual((rank_of[jobs["worker"][at]], rank_of[jobs["worker"][before]]), (waiting, stopped))
                self.assertEqual(jobs["microbatch"][before], jobs["microbatch"][at])
                forward = jobs["pass"][at] == "F"
                self.assertEqual(jobs["pass"][before], jobs["pass"][at])
                self.assertEqual(jobs["stage"][before], jobs["stage"][at] + (-1 if forward else 1))
                kind, stage = ("activation", jobs["stage"][before]) if forward else ("gradient", jobs["stage"][at])
                self.assertEqual(datum, f"{kind} of stage {stage}, micro-batch {jobs['microbatch'][at]}")
                # In the measured step it waited for that job as well.
                self.assertGreaterEqual(jobs["ready"][at], jobs["end"][before])
                self.log.unlink()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
