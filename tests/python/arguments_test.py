# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of every public function: each gets InputError with one short line that names the argument, at once.

Usage: arguments_test.py PACKAGE_ROOT [STARPIPE]
"""

import sys
import unittest

sys.path.insert(0, sys.argv[1])

import numpy as np  # noqa: E402

import starpipe  # noqa: E402
from starpipe import ChainStage, Costs, InputError, LinkLevel, Schedule, StageGraph, StageSizes, Unit  # noqa: E402

HUGE = 10**5000  # more digits than Python writes
ANY = {"placement": lambda s, b, d: 0, "priority": lambda s, b, d: 0}
NAMED = {"name": "1f1b", "workers": 2, "microbatches": 4}
SEARCH = {"workers": 2, "microbatches": 4}
UNITS = [Unit(F=1, B=1, W=1)] * 4


def make(**changes):
    return Schedule(**{"graph": 2, "microbatches": 2, "workers": 1, **ANY, **changes})


SOUND = make(discipline="greedy")

ONE_CHAIN = {"chain": [ChainStage()]}
CUT = {"units": UNITS, "workers": 2}


def gives(*values):
    """Functions w or n that give one of the values for every job."""
    return [lambda s, b, d, value=value: value for value in values]


# What is called, with which sound arguments, and wrong values of one more. The message begins with its name.
WRONG = [
    (make, {}, "graph", ["x", 0, None, 1e3, [2], 10**9, HUGE]),
    (make, {}, "microbatches", [0, -1, None, 1.0, True, 10**9, float("nan")]),
    (make, {"graph": 2**16}, "microbatches", [2**20]),
    (make, {}, "workers", [0, "2", 2.0, 10**9, HUGE]),
    (make, {}, "split_backward", ["no", None, 1, lambda s, b: None, lambda s, b: "B"]),
    (make, {}, "home", ["no", -1, None, ["none"] * 7, [1.5], lambda s, b: None, lambda s, b: "B"]),
    (make, {}, "name", [None, 3, b"x"]),
    (make, {}, "discipline", [None, 3, ["ordered"]]),
    (make, {}, "memory_limit", [1.5, "2", [], [2.5], [None], np.array([]), HUGE]),
    (make, {}, "costs", [None, (1, 1, 1)]),
    (make, {}, "placement", [None, 0, [0, 1], *gives(None, 1, -1, 0.0, "0", HUGE, np.array([0, 0, 0]), {}, object())]),
    (make, {}, "priority", [None, 0, [0, 1], *gives(None, float("nan"), 1j, {}, object(), np.array([1, 2])),
                            lambda s, b, d: b if d == "F" else str(b), lambda s, b, d: (b,) if d == "F" else b]),
    (StageGraph.chain, {}, "stages", [10**9]),
    (StageGraph, {"edges": []}, "stages", [10**9]),
    (starpipe.schedule, NAMED, "name", [None, 3]),
    (starpipe.schedule, NAMED, "workers", [0, None, 1.5, 10**9]),
    (starpipe.schedule, NAMED, "microbatches", [0, None, 1.5, 10**9]),
    (starpipe.schedule, {**NAMED, "workers": 2**10}, "microbatches", [2**20]),
    (starpipe.schedule, NAMED, "discipline", [3, ("ordered",)]),
    (starpipe.schedule, NAMED, "placement", [3, "01", [0.5], [None], None, [-1, 0]]),
    (starpipe.schedule, NAMED, "home", ["no", True, [-1]]),
    (starpipe.schedule, NAMED, "per_share", ["no", 1]),
    (starpipe.schedule, NAMED, "memory_limit", [[], 0, 2.5, "x"]),
    (starpipe.search, SEARCH, "workers", [0, 10**6, None]),
    (starpipe.search, SEARCH, "microbatches", [0, 10**9, None]),
    (starpipe.search, {"workers": 2**10}, "microbatches", [2**16]),
    (starpipe.search, SEARCH, "chunks", [0, 1000, "2"]),
    (starpipe.search, {**SEARCH, "chunks": 2}, "layout", [3, ["v"]]),
    (starpipe.search, SEARCH, "stash", [None, "x", [], [float("nan")]]),
    (starpipe.search, SEARCH, "memory_limit", [[], [float("nan")], True]),
    (starpipe.search, SEARCH, "seed", [-1, 0.5, 2**64]),
    (starpipe.search, SEARCH, "budget", [None, 0, HUGE]),
    (starpipe.partition, {"workers": 2}, "units",
     [3, None, "x", [3], [Unit(count=4000)] * 2, [Unit(name=3)]]),
    (starpipe.partition, CUT, "shared", [3, [3]]),
    (starpipe.partition, CUT, "schedule", [3, None]),
    (starpipe.partition, CUT, "layout", [3]),
    (starpipe.partition, CUT, "general", ["no"]),
    (starpipe.partition, CUT, "devices", [3, [3]]),
    (starpipe.periodic, {}, "chain", [3, None, [3]]),
    (starpipe.periodic, {"chain": [ChainStage()] * 4000}, "microbatches", [1000, None]),
    (starpipe.periodic, ONE_CHAIN, "workers", [3, None, ["x"], [10**9]]),
    (starpipe.periodic, ONE_CHAIN, "repeat", [0, 10**6]),
    (Costs, {}, "durations", [3, None, "FBW", [(1, 2)]]),
    (Costs, {}, "comm", ["x", float("nan"), True]),
    (Costs, {}, "links", [3, None, [3], LinkLevel]),
    (Costs, {}, "sizes", [3, None, [3], "x", []]),
    (Costs, {}, "shared", [3, [3]]),
    (Costs, {}, "prefetch", [1, "no"]),
    (Costs, {}, "ordered_messages", [1, "no"]),
    (Costs, {}, "relays", [1, "no"]),
    (Costs, {}, "messages_pass_hosts", [1, "no"]),
    (Costs, {}, "unit", [3, "ms"]),
    (SOUND.with_discipline, {}, "discipline", [3]),
    (SOUND.id_of, {"stage": 0, "microbatch": 0}, "pass_", [3]),
    (SOUND.id_of, {"microbatch": 0, "pass_": "F"}, "stage", ["x", -1]),
    (starpipe.simulate(SOUND).text, {}, "columns", [0, "x"]),
]  # fmt: skip


class Arguments(unittest.TestCase):
    def test_each_wrong_argument_gets_its_line(self):
        for function, sound, argument, values in WRONG:
            for i, value in enumerate(values):
                with self.subTest(getattr(function, "__qualname__", function), argument=argument, value=i):
                    with self.assertRaises(InputError) as raised:
                        function(**{**sound, argument: value})
                    words = str(raised.exception)
                    self.assertTrue(words.startswith(argument + ":"), words)
                    self.assertEqual(len(words.splitlines()), 1)
                    self.assertLess(len(words), 250)

    def test_numpys_values_are_taken(self):
        self.assertEqual(make(workers=np.int64(2), microbatches=np.uint8(2), memory_limit=np.array([2, 2]),
                              discipline="bounded"),
                         make(workers=2, microbatches=2, memory_limit=[2, 2], discipline="bounded"))  # fmt: skip
        named = starpipe.schedule("1f1b", workers=2, microbatches=4, placement=np.array([0, 1, 1, 0]))
        self.assertEqual(named, starpipe.schedule("1f1b", workers=2, microbatches=4, placement=[0, 1, 1, 0]))
        self.assertEqual(Costs(np.array([1.0, 2.0, 1.0])).durations, (starpipe.Durations(1, 2, 1),))
        self.assertEqual(Costs(np.ones((3, 3))).durations, (starpipe.Durations(1, 1, 1),) * 3)
        self.assertEqual(Costs(sizes=(StageSizes(stash=1), StageSizes())).sizes, (StageSizes(stash=1), StageSizes()))

    def test_a_wrong_number_of_arguments_is_pythons_own_error(self):
        with self.assertRaises(TypeError):
            make(placement=lambda s, b: 0)
        with self.assertRaises(TypeError):
            starpipe.schedule("1f1b", 2, 4)
        with self.assertRaises(TypeError):
            starpipe.Report(3)

    def test_infinite_and_negative_costs(self):
        for wrong in (float("nan"), float("inf"), -1.0, 1e308, HUGE):
            with self.subTest(str(wrong)[:9] if wrong != HUGE else "HUGE"), self.assertRaises(InputError):
                starpipe.simulate(SOUND, Costs((wrong, 1, 1)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
