# SPDX-License-Identifier: Apache-2.0
"""`model.tensor`: shards beside the whole model, on one rank, on two and on four.

Usage: tensor_test.py BINARY LAUNCHER..., the launcher being what starts two ranks: its last word is their number.
"""

import itertools
import json
import os
import sys
import unittest

from support import CommandTest

LAUNCHER = []
FOUR_RANKS = []

CONFIG = """
model:    {kind: gpt, layers: 2, hidden: 16, heads: 4, context: 16}
data:     {kind: text, path: text}
training: {steps: 4, microbatches: 3, seed: 1}
schedule: {name: 1f1b, workers: 2}
runtime:  {workers_per_core: 16}
"""


class Tensor(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("c.yaml", CONFIG)
        self.write("text", "It is a truth universally acknowledged. " * 40)

    def train(self, shards, *arguments, **options):
        result = self.run_command("train", "c.yaml", "--set", f"model.tensor={shards}", "--report", "r.json", *arguments,
                                  timeout=300, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("r.json"))

    def train_as_the_whole(self, *model):
        whole = self.train(1, *model)
        for shards in (2, 4):
            for launcher in ([], LAUNCHER, FOUR_RANKS):
                report = self.train(shards, *model, launcher=launcher)
                self.assertEqual(report["workers"], 2 * shards)
                self.assertEqual(report["parameters"], whole["parameters"])
                for mine, expected in zip(report["losses"], whole["losses"], strict=True):
                    self.assertAlmostEqual(mine, expected, delta=2e-6 * expected)
                self.assert_as_predicted(report)
                self.assertGreater(sum(report["received"]["activations"]["count"]["measured"]), 0)

    def test_shards_train_as_the_whole(self):
        self.train_as_the_whole()

    def test_shards_of_llama_train_as_the_whole(self):
        self.train_as_the_whole("--set", "model={kind: llama, heads: 8, kv_heads: 4, intermediate: 24}")

    def test_every_schedule_runs_shards(self):
        """Each with another number of shards and ranks."""
        model = ("--set", "model.layers=6", "--set", "training.microbatches=4", "--set", "training.steps=1")
        names = [entry["name"] for entry in json.loads(self.ok("schedule", "list", "--json"))["schedules"]]
        whole = self.train(1, *model)["losses"][0]
        combinations = itertools.cycle(itertools.product((2, 4), ([], LAUNCHER, FOUR_RANKS)))
        for name, (shards, launcher) in zip(names, combinations):
            with self.subTest(name, shards=shards, launcher=launcher):
                groups = ("--set", "schedule.groups=2") if name in ("lpp", "fslpp") else ()
                report = self.train(shards, *model, "--set", f"schedule.name={name}", *groups, launcher=launcher)
                self.assertAlmostEqual(report["losses"][0], whole, delta=2e-6 * whole)
                self.assert_as_predicted(report)

    def assert_as_predicted(self, report):
        for kinds in report["received"].values():
            for figures in kinds.values():
                self.assertEqual(figures["predicted"], figures["measured"])

    def test_commands_for_chains_refuse_shards(self):
        self.refused(["search", "--workers", 2, "--microbatches", 4, "--tensor", 2], "--tensor", "search knows chains of stages only")
        self.refused(["partition", "absent.yaml", "--workers", 2, "--tensor", 2], "--tensor", "partition knows chains of units only")
        self.refused(["profile", "c.yaml", "--set", "model.tensor=2", "-o", "u.yaml"], "model.tensor", "units that are cut into shards")
        self.refused(["simulate", "c.yaml", "--set", "model.tensor=2", "--set", "schedule.partition=auto"], "model.tensor")
        # What they find for whole stages can be cut.
        self.ok("search", "--workers", 2, "--microbatches", 4, "--budget", 0.1, "--quiet", "-o", "found.json")
        self.ok("schedule", "check", "found.json", "--tensor", 2)
        self.ok("simulate", "c.yaml", "--set", "model.tensor=2", "--set", "schedule.cuts=[1]")

    def test_one_sum_moves_fewer_results(self):
        """By hand, for 3 micro-batches of 2 blocks on 4 workers: embedding and head exchange 3 results each with other
        workers. Between the 4 halves each shard reads 3 others; or one worker receives 3 and sends the sum to 3."""
        for sums, each in (("each", 3 * 4 * 3), ("one", 3 * (3 + 3))):
            report = self.train(4, "--set", "schedule.workers=1", "--set", f"model.sums={sums}")
            for kind in ("activations", "gradients"):
                self.assertEqual(sum(report["received"][kind]["count"]["measured"]), 3 * (3 + each + 3))
            self.assert_as_predicted(report)

    def test_one_sum_trains_as_the_whole(self):
        self.train_as_the_whole("--set", "model.layers=1", "--set", "schedule.name=zb-h1")
        one = ("--set", "model.sums=one")
        expected = self.train(2)["losses"]
        for launcher in ([], LAUNCHER):
            for mine, other in zip(self.train(2, *one, launcher=launcher)["losses"], expected, strict=True):
                self.assertAlmostEqual(mine, other, delta=2e-6 * other)

    def test_shards_run_wherever_a_file_says(self):
        """The head gets a worker of its own; both shards of the first half of the second block are on another one."""
        self.ok("simulate", "c.yaml", "--set", "model.tensor=2", "-o", "shards.json")
        plan = json.loads(self.read("shards.json"))
        self.assertEqual(plan["stages"], 10)
        self.assertEqual(plan["shards"], [[1, 2], [3, 4], [5, 6], [7, 8]])
        jobs = sorted((op["start"], op["end"], op["stage"], worker, op) for worker, row in enumerate(plan["ops"]) for op in row)
        plan["workers"], plan["ops"] = 5, [[] for _ in range(5)]
        for _, _, stage, worker, op in jobs:
            worker = {9: 4, 5: 0, 6: 0}.get(stage, worker)
            plan["ops"][worker].append({"op": op["op"], "stage": stage, "microbatch": op["microbatch"],
                                        "weights_from": worker})
        self.write("own.json", json.dumps(plan))
        own = ("--set", "schedule={file: own.json, stages: 2}")
        whole = self.train(1)
        for launcher in ([], LAUNCHER):
            report = self.train(2, *own, launcher=launcher)
            self.assertEqual(report["workers"], 5)
            self.assert_as_predicted(report)
            for mine, expected in zip(report["losses"], whole["losses"], strict=True):
                self.assertAlmostEqual(mine, expected, delta=2e-6 * expected)

        plan["shards"] = [[1, 10]]
        self.write("bad.json", json.dumps(plan))
        self.refused(["schedule", "check", "bad.json"], "bad.json: shards: there is no stage 10 to be a shard, only 10 stages")

    def test_a_fold_of_a_schedule_is_a_file(self):
        show = ("schedule", "show", "zb-h1", "--workers", "2", "--microbatches", "4", "--durations", "F=2,B=4,W=2")
        whole = json.loads(self.ok(*show, "--json"))
        fold = json.loads(self.ok(*show, "--tensor", "2", "--json"))
        self.assertEqual(fold["makespan"], whole["makespan"] / 2)
        self.assertEqual(fold["workers"], 4)
        self.ok(*show, "--tensor", "2", "-o", "fold.json")
        self.assertEqual(json.loads(self.ok("schedule", "check", "fold.json", "--json")), fold)
        self.ok(*show, "-o", "whole.csv")
        of_file = json.loads(self.ok("schedule", "check", "whole.csv", "--durations", "F=2,B=4,W=2", "--tensor", "2",
                                     "--json"))
        self.assertEqual(of_file["makespan"], fold["makespan"])
        self.assertIn("F3b.0", self.ok(*show, "--tensor", "2", "--tensor-workers", "1", "--width", "400"))
        self.refused([*show, "--tensor", "2", "--tensor-workers", "3"],
                     "--tensor-workers: 3 workers are more than the 2 shards")
        self.refused(["schedule", "check", "fold.json", "--tensor", "2"],
                     "zb-h1: only a chain of stages can be cut into shards")

    def test_ranks_change_no_bit(self):
        one = self.train(2)["losses"]
        self.assertEqual(self.train(2, launcher=LAUNCHER)["losses"], one)

    def test_a_checkpoint_goes_on_with_the_same_shards(self):
        folder = ("--set", "checkpoint.folder=ck", "--set", "checkpoint.every=2")
        self.train(2, "--save-weights", "whole.safetensors")
        self.train(2, *folder, "--set", "training.steps=2")
        self.train(2, *folder, "--resume", "--save-weights", "resumed.safetensors", launcher=LAUNCHER)
        with open(self.path("whole.safetensors"), "rb") as whole, open(self.path("resumed.safetensors"), "rb") as resumed:
            self.assertEqual(resumed.read(), whole.read())
        self.train(2, *folder, "--resume", "--set", "model.sums=one", "--set", "training.steps=5")
        self.refused(["train", "c.yaml", *folder, "--resume", "--set", "training.steps=6"],
                     "--resume: model.tensor: ck/step-00000005 was written with 2, this run has 1")

    def test_shards_divide_emulated_times_by_their_flops(self):
        emulate = ("--set", "runtime.emulate={F: 1ms, B: 2ms, W: 3ms, per_share: true}")
        spans = {}
        for shards in (1, 2):
            self.ok("simulate", "c.yaml", *emulate, "--set", f"model.tensor={shards}", "--set", "schedule.stages=1",
                    "--set", "schedule.workers=1", "-o", "r.json")
            spans[shards] = json.loads(self.read("r.json"))["makespan"]
        self.assertAlmostEqual(spans[1], 3 * 6e-3)  # three micro-batches of the whole model
        # The head has no shards: its part of the FLOPs is not divided.
        rows, hidden, context, vocabulary, layers = 16, 16, 16, 256, 2
        head = 2 * rows * hidden * vocabulary
        blocks = layers * (24 * rows * hidden**2 + 4 * rows * context * hidden)
        self.assertGreater(spans[2], 2 * spans[1] * (head + blocks / 2) / (head + blocks) * 0.9)
        self.assertLess(spans[2], 2 * spans[1])

    def test_what_takes_no_shards_says_so(self):
        self.ok("simulate", "c.yaml", "-o", "f.json")
        for settings, message in (
            (["schedule.memory_limit=4"], "schedule.memory_limit: does not apply with model.tensor: "),
            (["schedule.discipline=greedy", "schedule.dynamic=true"], "schedule.dynamic: does not apply with model.tensor: "),
            (["runtime.emulate={F: [1ms, 2ms], B: 1ms, W: 1ms, per_share: true}"], "runtime.emulate.F: 2 times for 4 workers"),
            (["runtime.emulate={F: [1ms, 2ms, 1ms, 1ms], B: 1ms, W: 1ms, per_share: true}"],
             "runtime.emulate.per_share: a list of times does not apply with shards"),
            (["runtime.device=[cpu, cpu]"], "runtime.device, a list: does not apply with model.tensor: "),
            (["schedule={file: f.json}"], "schedule.stages: is required with schedule.file and model.tensor: "),
            (["schedule={file: f.json, stages: 2}"],
             "f.json: the model cannot be cut into its 2 stages: with its shards it has 10 stages"),
            (["schedule.tensor=3"], "schedule.tensor: 3 workers are more than the shards of model.tensor, 2"),
            (["model.tensor=1", "model.sums=one"], "model.sums: one needs shards, but model.tensor is 1"),
            (["model.heads=2", "model.tensor=4"], "model.tensor: 4 does not divide model.heads, 2"),
        ):
            arguments = [word for setting in settings for word in ("--set", setting)]
            self.refused(["simulate", "c.yaml", "--set", "model.tensor=2", *arguments], message)
        self.refused(["profile", "c.yaml", "--set", "model.tensor=2"], "model.tensor: ")


if __name__ == "__main__":
    CommandTest.binary, LAUNCHER = os.path.abspath(sys.argv[1]), sys.argv[2:]
    FOUR_RANKS = [*LAUNCHER[:-1], "4"]
    unittest.main(argv=sys.argv[:1])
