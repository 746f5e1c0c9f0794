# SPDX-License-Identifier: Apache-2.0
"""`starpipe periodic` and the schedules made of patterns. Usage: periodic_test.py BINARY"""

import json
import pathlib
import sys
import unittest

from check_schedule import check
from support import CommandTest

CHAINS = pathlib.Path(__file__).resolve().parents[2] / "experiments/periodic"


class Periodic(CommandTest):
    def pattern(self, chain, *options):
        """Returns the schedule with its pattern, after the independent check."""
        data = json.loads(self.ok("periodic", chain, *options, "--json"))
        self.assertEqual(check(data), [])
        return data, data["pattern"]

    def test_the_makespan_grows_by_the_period_within_the_memory(self):
        for memory, repeat, each, stashes in (
            (1, 4, 19, [1, 1, 1, 1, 1, 1]),
            (2, 1, 11, [2, 2, 2, 1, 1, 1]),
            (2, 2, 9.5, [2, 2, 2, 2, 1, 1]),
            (3, 4, 7, [3, 3, 3, 2, 2, 1]),
            (9, 1, 5, [5, 5, 4, 3, 2, 1]),
        ):
            with self.subTest(memory=memory, repeat=repeat):
                options = ("--memory", memory, "--repeat", repeat, "--microbatches")
                short, pattern = self.pattern(CHAINS / "uneven.yaml", *options, 24)
                longer, _ = self.pattern(CHAINS / "uneven.yaml", *options, 36)
                self.assertAlmostEqual(pattern["normalized_period"], each)
                self.assertAlmostEqual(longer["makespan"] - short["makespan"], 12 * each)
                self.assertEqual(pattern["concurrent_activations"], stashes)
                self.assertEqual(short["peak_stashes"], stashes)
                self.assertEqual(pattern["memory"], stashes)
                self.assertTrue(pattern["optimal"])
                self.assertLessEqual(pattern["lower_bound"], each + 1e-9)

    def test_theorem_4(self):
        _, pattern = self.pattern(CHAINS / "theorem4.yaml", "--memory", 4, "--repeat", 3)
        self.assertEqual((pattern["period"], pattern["microbatches"]), (8, 3))
        self.assertEqual(pattern["memory"], [4, 4, 4, 4])
        self.assertEqual(len(pattern["operations"]), 4 * 2 * 3)

    def test_several_stages_a_worker(self):
        data, pattern = self.pattern(CHAINS / "general.yaml")
        self.assertEqual(data["workers"], 2)
        self.assertEqual(pattern["period"], 2)

    def test_a_period_of_ones_own(self):
        _, pattern = self.pattern(CHAINS / "uneven.yaml", "--period", 6.5)
        self.assertEqual(pattern["period"], 6.5)
        self.assertEqual(pattern["concurrent_activations"], [4, 3, 3, 2, 2, 1])

    def test_text(self):
        text = self.ok("periodic", CHAINS / "uneven.yaml", "--memory", 3, "--repeat", 2, "--microbatches", 5)
        self.assertIn("period 14 for 2 micro-batches: 7 each", text)
        self.assertRegex(text, r"\n +3 +3 +3 \+2, 9 \+3 +7 \+1, 12 \+2 +2\n")
        self.assertIn("worker 5 ", text)
        self.assertNotIn("is shorter", self.ok("periodic", CHAINS / "uneven.yaml", "--period", 7))

    def test_bad_input(self):
        def refused(text, *culprits, options=()):
            self.refused(["periodic", self.write("chain.yaml", text), *options], *culprits)

        refused("F: 1", "chain.yaml", "a list with one map for each stage")
        refused("[]", "0 stages")
        refused("[{F: 1}, 7]", "chain.yaml:1", "a map of F, B, weights, activation, worker", "7")
        refused("- {F: 1}\n- {W: 1}", "chain.yaml:2: unknown key 'W' (known: F, B, weights, activation, worker)")
        refused("[{F: -1}]", "F", "-1")
        refused("[{F: 1, F: 2}]", "twice")
        refused("[{worker: 0}, {F: 1}]", "worker must be given for all stages or for none")
        refused("[{F: 1}, {worker: 0}]", "worker must be given for all stages or for none")
        refused("[{worker: -1}]", "worker", "-1")
        refused("[{F: 0, B: 0}]", "no time")
        refused("[{F: 1}, {weights: 3}]", "stage 1 needs 4", "3.5", options=("--memory", "3.5"))
        refused("[{F: 1}, {F: 2, B: 2}]", "stage 1 takes 4", "3", options=("--period", "3"))
        refused("[{F: 1}, {F: 1}]", "--memory 1", "worker 0 would hold 2", options=("--memory", "1", "--period", "2"))
        refused("[{worker: 0}]", "--repeat", options=("--repeat", "2"))
        refused("[{F: 1}]", "--microbatches", options=("--microbatches", "0"))
        self.refused(["periodic", "none.yaml"], "none.yaml")


class NamedSchedules(CommandTest):
    def show(self, name, microbatches, *options):
        data = json.loads(self.ok("schedule", "show", name, "--workers", 6, "--microbatches", microbatches, "--json",
                                  *options))  # fmt: skip
        self.assertEqual(check(data), [])
        return data

    def test_they_are_the_command_s_patterns(self):
        self.write("times.yaml", "".join(f"- {{F: {f}, B: {b}, W: {w}}}\n" for f, b, w in
                                         [(1, 0.5, 0.5), *[(1, 1, 1)] * 4, (2, 2, 1)]))  # fmt: skip
        for name, each in (("1f1b-star", {1: 19, 2: 11, 3: 8, 4: 6, 5: 5}),
                           ("k-periodic", {1: 19, 2: 9.5, 3: 7, 4: 5.5, 5: 5})):  # fmt: skip
            for memory, period in each.items():
                options = ("--durations", "times.yaml", "--memory-limit", memory)
                short, longer = self.show(name, 24, *options), self.show(name, 36, *options)
                self.assertAlmostEqual(longer["makespan"] - short["makespan"], 12 * period)
                self.assertEqual(max(short["peak_stashes"]), memory)
                self.assertEqual(short["memory_limits"], [memory] * 6)
                self.assertEqual(short["discipline"], "ordered")

    def test_a_discipline_can_still_be_asked_for(self):
        data = self.show("1f1b-star", 12, "--memory-limit", 3, "--discipline", "bounded")
        self.assertEqual(data["discipline"], "bounded")
        self.assertEqual(max(data["peak_stashes"]), 3)


if __name__ == "__main__":
    CommandTest.binary = sys.argv.pop(1)
    unittest.main(verbosity=2)
