# SPDX-License-Identifier: Apache-2.0
"""`partition` and `periodic`, compared with the command's results. Usage: partition_test.py PACKAGE_ROOT [STARPIPE]"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, sys.argv[1])
STARPIPE = sys.argv[2] if len(sys.argv) > 2 else None

import starpipe  # noqa: E402
from starpipe import ChainStage, InputError, Link, SharedUnits, Unit  # noqa: E402

LAYERS = [
    {"name": "embedding", "F": 1, "B": 0, "W": 2, "weights": 4000, "activation": 100, "stash": 50},
    {"name": "block", "F": 3, "B": 3, "W": 3, "weights": 1000, "activation": 100, "stash": 400, "count": 8},
    {"name": "head", "F": 5, "B": 4, "W": 4, "weights": 4000, "activation": 4, "stash": 300},
]
UNITS = [Unit(**layer) for layer in LAYERS]


class WithCommand(unittest.TestCase):
    def command(self, name, data, *options):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "data.json"
            file.write_text(json.dumps(data))
            done = subprocess.run([STARPIPE, name, file, *map(str, options), "--json"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)


class Partitions(WithCommand):
    @unittest.skipUnless(STARPIPE, "this build has no command")
    def test_it_is_the_partition_of_the_command(self):
        for options, given in (
            ((), {}),
            (("--general",), {"general": True}),
            (("--chunks", 2, "--layout", "v"), {"chunks": 2, "layout": "v"}),
            (("--schedule", "v-half"), {"schedule": "v-half"}),
            (("--comm", 2, "--comm-per-byte", 0.01), {"links": Link(2, 0.01)}),
            (("--memory-limit", 22000, "--optimizer-states", 0), {"memory_limit": 22000, "optimizer_states": 0}),
        ):
            with self.subTest(options):
                theirs = self.command("partition", {"layers": LAYERS}, "--workers", 4, *options)
                ours = starpipe.partition(UNITS, 4, **given)
                self.assertEqual((list(ours.cuts), list(ours.placement)), (theirs["cuts"], theirs["placement"]))
                self.assertEqual((ours.bottleneck, ours.lower_bound, ours.optimal),
                                 (theirs["bottleneck"], theirs["lower_bound"], theirs["optimal"]))  # fmt: skip
                self.assertEqual([(load.load, load.memory) for load in ours.loads],
                                 [(load["load"], load["memory"]) for load in theirs["loads"]])  # fmt: skip

    def test_its_costs_predict_a_run(self):
        found = starpipe.partition(UNITS, 4, comm=1)
        schedule = starpipe.schedule("1f1b", workers=4, microbatches=16, placement=found.placement, costs=found.costs)
        timeline = starpipe.simulate(schedule)
        self.assertEqual(max(timeline.busy), 16 * max(load.time for load in found.loads))
        self.assertEqual(found.costs.links[0].link.alpha, 1)

    def test_kinds_of_devices(self):
        two = [Unit(cpu={"F": 4, "spread": {}}, cuda={"F": 1}) for _ in range(10)]
        found = starpipe.partition(two, 2, devices=["cpu", "cuda"])
        self.assertEqual((found.cuts, found.bottleneck), ((2,), 8))
        self.assertEqual(starpipe.partition(two, 2, devices="cuda").bottleneck, 5)
        for words, units, devices in (
            ("devices: the units have times on cpu and cuda: give the kind of each worker", two, None),
            ("devices: 3 devices for 2 workers", two, ["cpu"] * 3),
            ("devices: the units have times without a kind of device", UNITS, "cpu"),
            ("units: unit 1 has times for other devices than unit 0", [two[0], UNITS[0]], "cpu"),
            ("give F, B and W either directly or under cuda", [Unit(F=1, cuda={"F": 1})], "cuda"),
        ):
            with self.assertRaisesRegex(InputError, words):
                starpipe.partition(units, 2, devices=devices)

    def test_shared_weights(self):
        alone = starpipe.partition(UNITS, 2)
        tied = starpipe.partition(UNITS, 2, shared=[SharedUnits((0, 9), weights=1000)])
        self.assertGreater(tied.loads[0].memory, alone.loads[0].memory)
        self.assertEqual(tied.costs.shared[0].stages, (0, 1))

    def test_refusals(self):
        for words, changes in (
            ("^units: 10 units do not make 16 stages, 4 on each of 4 workers", {"chunks": 4}),
            ("^layout: applies to", {"layout": "v"}),
            ("^general: v-half has a placement of its own", {"general": True, "schedule": "v-half"}),
            ("^unknown schedule 'x'", {"schedule": "x"}),
            ("memory_limit: expected a number, got 'x'", {"memory_limit": "x"}),
            ("comm: does not apply together with links", {"comm": 1, "links": Link(1)}),
        ):
            with self.assertRaisesRegex(InputError, words):
                starpipe.partition(UNITS, 4, **changes)
        for call in (starpipe.partition, lambda values, _: starpipe.periodic(values)):
            with self.assertRaisesRegex(InputError, "(units: expected Unit|chain: expected ChainStage), got 3"):
                call([3], 2)
        with self.assertRaisesRegex(InputError, "1[0-9]+"):  # the least limit
            starpipe.partition(UNITS, 4, memory_limit=10)


class Periodic(WithCommand):
    CHAIN = ({"F": 1, "B": 2}, {"F": 2, "B": 2, "weights": 1}, {"F": 1, "B": 3}, {"F": 1, "B": 1, "activation": 2})
    STAGES = (ChainStage(1, 2), ChainStage(2, 2, weights=1), ChainStage(1, 3), ChainStage(1, 1, activation=2))

    @unittest.skipUnless(STARPIPE, "this build has no command")
    def test_it_is_the_pattern_of_the_command(self):
        for options, given in (((), {}), (("--memory", 3, "--repeat", 2), {"memory": 3, "repeat": 2}), (("--period", 6), {"period": 6})):
            with self.subTest(options):
                theirs = self.command("periodic", self.CHAIN, *options)
                ours = starpipe.periodic(self.STAGES, **given)
                self.assertEqual(json.loads(ours.timeline.json()), theirs)
                pattern = theirs["pattern"]
                self.assertEqual((ours.period, ours.microbatches, ours.normalized_period, ours.lower_bound, ours.optimal),
                                 tuple(pattern[key] for key in ("period", "microbatches", "normalized_period", "lower_bound", "optimal")))  # fmt: skip
                self.assertEqual((list(ours.memory), list(ours.concurrent_activations)), (pattern["memory"], pattern["concurrent_activations"]))
                self.assertEqual(len(ours.operations), len(pattern["operations"]))

    def test_several_stages_a_worker(self):
        found = starpipe.periodic(self.STAGES, workers=[0, 1, 1, 0], microbatches=8)
        self.assertEqual(found.period, 8)
        self.assertEqual({op.worker for op in found.operations if op.stage == 1}, {1})
        self.assertEqual(found.timeline.makespan, starpipe.simulate(found.schedule).makespan)

    def test_refusals(self):
        for words, changes in (
            ("^repeat: applies to chains with one stage per worker", {"workers": [0, 1, 1, 0], "repeat": 2}),
            ("^period: applies to", {"workers": [0, 1, 1, 0], "period": 9}),
            ("^memory 3: worker 0 would hold", {"memory": 3, "period": 4}),
            ("stage 0 needs 1 for its weights and one stash", {"memory": 0.5}),
        ):
            with self.assertRaisesRegex(InputError, words):
                starpipe.periodic(self.STAGES, **changes)
        with self.assertRaises(InputError):
            starpipe.periodic([])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
