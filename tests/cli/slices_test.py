# SPDX-License-Identifier: Apache-2.0
"""`schedule.slices` and --slices: sequences in slices compared with whole ones, on one rank and on several.

Usage: slices_test.py BINARY LAUNCHER..., the launcher being what starts two ranks.
"""

import json
import os
import sys
import unittest

from support import CommandTest, mlp_config

LAUNCHER = []

CONFIG = """
model:    {kind: gpt, layers: 2, hidden: 16, heads: 4, context: 16}
data:     {kind: text, path: text}
training: {steps: 4, microbatches: 3, microbatch_size: 2, seed: 1}
schedule: {name: 1f1b, workers: 2}
runtime:  {workers_per_core: 16}
"""
LLAMA = "model={kind: llama, layers: 2, hidden: 16, heads: 4, kv_heads: 2, intermediate: 12, context: 16}"


class Slices(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("c.yaml", CONFIG)
        self.write("text", "It is a truth universally acknowledged. " * 40)

    def train(self, slices, *settings, arguments=(), **options):
        words = [word for setting in (f"schedule.slices={slices}", *settings) for word in ("--set", setting)]
        result = self.run_command("train", "c.yaml", *words, *arguments, "--report", "r.json", timeout=300, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("r.json"))

    def assert_near(self, report, whole, tolerance=2e-5):
        self.assertEqual(len(report["losses"]), len(whole["losses"]))
        for loss, expected in zip(report["losses"], whole["losses"]):
            self.assertAlmostEqual(loss, expected, delta=tolerance * expected)

    def test_slices_train_as_whole_sequences(self):
        for settings in ((), (LLAMA,), ("runtime.precision=bf16",), (LLAMA, "runtime.precision=bf16"),
                         # Rows of keys and values that are no multiple of 16 bytes.
                         ("model.hidden=6", "model.heads=3", "model.context=15", "runtime.precision=bf16"), ("model.tied=true",), ("schedule.name=zb-h1",), ("schedule.name=ddp",),
                         ("model.tensor=2", "schedule.tensor=1"), ("schedule.vocabulary.shards=3",)):
            with self.subTest(settings=settings):
                whole = self.train(1, *settings)
                for slices in (2, 3):
                    report = self.train(slices, *settings)
                    self.assert_predicted(report)
                    self.assert_near(report, whole, 2e-3 if "runtime.precision=bf16" in settings else 2e-5)
                    self.assertEqual(report["microbatches"], 3)
                    self.assertEqual(report["tokens_per_second"] > 0, True)
                # Many ranks give the same bits.
                ranks = self.train(3, *settings, launcher=LAUNCHER)
                self.assert_predicted(ranks)
                self.assertEqual(ranks["losses"], report["losses"])

    def test_slices_need_less_memory(self):
        whole = self.train(1, "training.microbatches=6", "schedule.workers=3")
        sliced = self.train(4, "training.microbatches=6", "schedule.workers=3")
        # 1F1B on 3 workers: 3 stashes, and 3 + 3 of a quarter each.
        self.assertEqual(sliced["peak_stashes"]["measured"][0], 6)
        self.assertLess(sliced["peak_stash_bytes"]["measured"][0], 0.65 * whole["peak_stash_bytes"]["measured"][0])

    def test_a_context_that_fits_only_in_slices(self):
        settings = [word for setting in ("model.context=256", "training.steps=1", "runtime.memory_limit=2MiB") for word in ("--set", setting)]
        self.write("text", "It is a truth universally acknowledged. " * 100)
        self.refused(["train", "c.yaml", *settings], "runtime.memory_limit", "more than 2.0 MiB")
        result = self.run_command("train", "c.yaml", *settings, "--set", "schedule.slices=8")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_verify(self):
        self.ok("verify", "c.yaml", "--set", "schedule.slices=3")

    def test_a_run_resumes_with_other_slices(self):
        whole = self.train(1)
        folder = ("checkpoint.folder=ck", "checkpoint.every=2")
        self.train(2, *folder, "training.steps=2")
        resumed = self.train(3, *folder, arguments=("--resume",))
        self.assertEqual(len(resumed["losses"]), 2)
        for loss, expected in zip(resumed["losses"], whole["losses"][2:]):
            self.assertAlmostEqual(loss, expected, delta=2e-5 * expected)

    def test_evaluation(self):
        settings = ("data.validation=text", "evaluate.every=2", "evaluate.microbatches=2")
        whole, sliced = (self.train(slices, *settings)["evaluations"] for slices in (1, 3))
        self.assertEqual(len(whole), len(sliced))
        for expected, found in zip(whole, sliced):
            self.assertAlmostEqual(found["loss"], expected["loss"], delta=2e-5 * expected["loss"])

    def test_simulate_explain_and_files(self):
        predicted = json.loads(self.ok("simulate", "c.yaml", "--set", "schedule.slices=2", "--json"))
        self.assertEqual((predicted["slices"], predicted["microbatches"]), (2, 6))
        # Later slices see more keys.
        self.assertEqual(len(predicted["durations"]), 4)
        self.assertGreater(predicted["durations"][1]["F"], predicted["durations"][0]["F"])
        self.write("s.json", json.dumps(predicted))
        again = json.loads(self.ok("schedule", "check", "s.json", "--json"))
        for key in ("slices", "makespan", "peak_stash_bytes", "received_bytes", "ops"):
            self.assertEqual(again[key], predicted[key])
        report = self.train(2, "schedule={file: s.json, slices: 2}")
        self.assert_predicted(report)
        for slices, problem in (("4", "6 micro-batches are no sequences of 4 slices"), ("5000", "5000 are more than 1024")):
            self.write("odd.json", json.dumps({**predicted, "slices": int(slices)}))
            self.refused(["schedule", "check", "odd.json"], "odd.json", "slices", problem)
        self.assertIn("3 micro-batches of 2 slices", self.ok("explain", "r.json", "--what-if", "schedule=gpipe"))
        self.refused(["explain", "r.json", "--what-if", "stage.0=median"], "median", "slices")
        self.refused(["train", "c.yaml", "--set", "schedule={file: s.json}"], "schedule.slices: 1", "s.json has 2")

    def test_slices_of_equal_work(self):
        long = ("--set", "model.context=512", "--set", "schedule.slices=4")
        shown = [json.loads(self.ok("simulate", "c.yaml", *long, "--set", f"schedule.slice_sizes={word}", "--json")) for word in ("tokens", "work")]
        def spread(run):
            # Of the first stage: F of each slice. The stage's share of attention is not the network's.
            times = [entry["F"] for entry in run["durations"][:4]]
            return max(times) / min(times)
        self.assertGreater(spread(shown[0]), 1.2)
        self.assertLess(spread(shown[1]), 1.15)
        self.assertLess(shown[1]["makespan"], shown[0]["makespan"])
        self.write("text", "It is a truth universally acknowledged. " * 400)
        settings = ("model.context=100", "schedule.name=zb-h1")
        whole = self.train(1, *settings)
        report = self.train(3, *settings, "schedule.slice_sizes=work")
        self.assert_predicted(report)
        self.assert_near(report, whole)

    def test_slices_of_given_sizes(self):
        whole = self.train(1)
        sizes = ("schedule.slice_sizes=[9, 1, 6]",)
        report = self.train(3, *sizes)
        self.assert_predicted(report)
        self.assert_near(report, whole)
        self.assertEqual(self.train(3, *sizes, launcher=LAUNCHER)["losses"], report["losses"])

        def refuse(sizes, *parts):
            self.refused(["train", "c.yaml", "--set", "schedule.slices=3", "--set", f"schedule.slice_sizes={sizes}"], "schedule.slice_sizes", *parts)

        refuse("[9, 7]", "2 numbers for 3 slices")
        refuse("[9, 7, 1]", "17", "16")
        refuse("[16, 0, 0]", "'0'", "tokens")
        refuse("even", "'even'", "tokens nor work")

    def test_profile_finds_slices_of_equal_times(self):
        long = [word for setting in ("model.context=768", "model.layers=1", "training.microbatches=1", "schedule.slices=4") for word in ("--set", setting)]
        self.write("text", "It is a truth universally acknowledged. " * 100)
        shown = self.ok("profile", "c.yaml", *long, "-o", "p.json")
        profile = json.loads(self.read("p.json"))
        even = profile["even_slices"]
        self.assertEqual((sum(even), len(even)), (768, 4))
        self.assertGreaterEqual(min(even), 1)
        line = f"schedule.slice_sizes: {even}"
        self.assertIn(line, shown)
        self.ok("simulate", "c.yaml", *long, "--set", line.replace(": ", "="))

    def test_profile_measures_slices(self):
        long = ("model.context=64", "model.layers=1", "schedule.partition=auto", "schedule.profile=p.json")
        words = [word for setting in long[:2] for word in ("--set", setting)]
        self.ok("profile", "c.yaml", *words, "--set", "schedule.slices=3", "--repetitions", 3, "-o", "p.json")
        profile = json.loads(self.read("p.json"))
        for unit in profile["layers"]:
            times = unit["cpu"]
            self.assertEqual(len(times["slices"]), 3)
            for name in "FBW":
                self.assertGreater(times[name], 0)
                self.assertTrue(all(slice[name] > 0 for slice in times["slices"]), unit["name"])
        # Times that no machine has: of the first unit each slice takes twice as long as the one before.
        for unit in profile["layers"]:
            unit["cpu"]["slices"] = [{"F": 1 << k, "B": 2 << k, "W": 4 << k} for k in range(3)]
            unit["cpu"].update(F=7, B=14, W=28)
        self.write("p.json", json.dumps(profile))

        def durations(slices, *more):
            given = [word for setting in (*long, f"schedule.slices={slices}", *more) for word in ("--set", setting)]
            return json.loads(self.ok("simulate", "c.yaml", *given, "--json"))

        measured = durations(3)
        units = len(profile["layers"])
        first = measured["cuts"][0]
        self.assertEqual([entry["F"] for entry in measured["durations"]], [(1 << k) * count for count in (first, units - first) for k in range(3)])
        # Of other slices the file says nothing.
        self.assertEqual(profile["slice_sizes"], [21, 21, 22])
        for settings in ((2,), (3, "schedule.slice_sizes=work")):
            by_flops = durations(*settings)["durations"]
            self.assertAlmostEqual(sum(entry["W"] for entry in by_flops), 28 * units)
            self.assertNotEqual([entry["W"] for entry in by_flops], [entry["W"] for entry in measured["durations"]])
        report = self.train(3, *long)
        self.assert_near(report, self.train(1, *long[:2]))
        self.ok("partition", "p.json", "--workers", "2")
        self.write("odd.json", json.dumps({**profile, "slice_sizes": [32, 32]}))
        self.refused(["partition", "odd.json", "--workers", "2"], "odd.json", "slice_sizes", "each slice")
        profile["layers"][0]["cpu"]["slices"].pop()
        self.write("odd.json", json.dumps(profile))
        self.refused(["partition", "odd.json", "--workers", "2"], "odd.json", "layers[1]", "another number of slices")
        profile["layers"][0]["cpu"]["slices"] = [{"F": 1}]
        self.write("odd.json", json.dumps(profile))
        self.refused(["partition", "odd.json", "--workers", "2"], "layers[0]", "a time is missing")
        profile["layers"][0]["cpu"]["slices"] = [{"F": 1, "B": 1, "W": 1}]
        self.write("odd.json", json.dumps(profile))
        self.refused(["partition", "odd.json", "--workers", "2"], "layers[0]", "at least two slices")

    def test_emulated_times_are_of_micro_batches(self):
        emulated = ("--set", "runtime.emulate={F: 6ms, B: 6ms, W: 6ms}", "--set", "data={kind: text, path: text}")
        for slices in (1, 3):
            shown = json.loads(self.ok("simulate", "c.yaml", *emulated, "--set", f"schedule.slices={slices}", "--json"))
            busy = [sum(op["end"] - op["start"] for op in row) for row in shown["ops"]]
            for time in busy:
                self.assertAlmostEqual(time, 3 * 18e-3)

    def test_durations_are_of_whole_micro_batches(self):
        given = ("--durations", "F=6ms,B=6ms,W=12ms")
        sliced = json.loads(self.ok("simulate", "c.yaml", "--set", "schedule.slices=3", *given, "--json"))
        self.write("s.json", json.dumps(sliced))
        again = json.loads(self.ok("schedule", "check", "s.json", "--durations", "F=12ms,B=12ms,W=24ms", "--json"))
        show = ("schedule", "show", "1f1b", "--workers", "2", "--microbatches", "3", "--slices", "3", *given, "--json")
        for run, factor in ((sliced, 1), (again, 2), (json.loads(self.ok(*show)), 1)):
            for row in run["ops"]:
                self.assertAlmostEqual(sum(op["end"] - op["start"] for op in row), factor * 3 * 24e-3)
        # Later slices have longer times, as by FLOPs.
        self.assertGreater(sliced["durations"][2]["F"], sliced["durations"][0]["F"])

    def test_schedule_show(self):
        show = ["schedule", "show", "1f1b", "--workers", "4", "--microbatches", "2", "--durations", "F=1,B=1,W=1", "--json", "--slices"]
        whole, sliced = (json.loads(self.ok(*show, k)) for k in ("1", "4"))
        self.assertEqual((whole["makespan"], sliced["makespan"]), (15, 8.25))
        self.assertEqual((whole["peak_stashes"][0], sliced["peak_stashes"][0]), (2, 7))
        self.assertNotIn("slices", whole)
        compared = json.loads(self.ok("schedule", "compare", "1f1b", "--workers", "4", "--microbatches", "2", "--slices", "4", "--json"))
        row = compared["schedules"][0]
        self.assertEqual((row["makespan"], row["peak_stashes"]), (8.25, 1.75))
        self.assertLessEqual(row["lower_bound"], row["makespan"])
        self.refused([*show[:-2], "--slices", "2", "-o", "s.csv"], "CSV", "slices")

    def test_refusals(self):
        def refused(*settings, parts):
            self.refused(["train", "c.yaml", "--set", "schedule.slices=2", *(w for s in settings for w in ("--set", s))], *parts)

        refused("schedule.home=none", parts=("schedule.home", "slices"))
        refused("schedule.home=auto", "schedule.memory_limit=2", parts=("schedule.home", "slices"))
        refused("schedule.slices=17", parts=("schedule.slices", "17", "model.context"))
        refused("schedule.slices=0", parts=("schedule.slices", "0"))
        self.write("m.yaml", mlp_config())
        self.refused(["train", "m.yaml", "--set", "schedule.slices=2"], "schedule.slices", "mlp")


if __name__ == "__main__":
    CommandTest.binary, LAUNCHER = os.path.abspath(sys.argv[1]), sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
