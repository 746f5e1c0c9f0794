# SPDX-License-Identifier: Apache-2.0
"""`model.tensor`: shards beside the whole model, on one rank, on two and on four.

Usage: tensor_test.py BINARY LAUNCHER..., the launcher being what starts two ranks: its last word is their number.
"""

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
                for kinds in report["received"].values():
                    for figures in kinds.values():
                        self.assertEqual(figures["predicted"], figures["measured"])
                self.assertGreater(sum(report["received"]["activations"]["count"]["measured"]), 0)

    def test_shards_train_as_the_whole(self):
        self.train_as_the_whole()

    def test_shards_of_llama_train_as_the_whole(self):
        self.train_as_the_whole("--set", "model={kind: llama, heads: 8, kv_heads: 4, intermediate: 24}")

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
        self.refused(["train", "c.yaml", *folder, "--resume"],
                     "--resume: model.tensor: ck/step-00000004 was written with 2, this run has 1")

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
            (["schedule.file=f.json"], "f.json: the model cannot be cut into its 2 stages: model.tensor: "),
            (["model.heads=2", "model.tensor=4"], "model.tensor: 4 does not divide model.heads, 2"),
        ):
            arguments = [word for setting in settings for word in ("--set", setting)]
            self.refused(["simulate", "c.yaml", "--set", "model.tensor=2", *arguments], message)
        self.refused(["profile", "c.yaml", "--set", "model.tensor=2"], "model.tensor: ")


if __name__ == "__main__":
    CommandTest.binary, LAUNCHER = os.path.abspath(sys.argv[1]), sys.argv[2:]
    FOUR_RANKS = [*LAUNCHER[:-1], "4"]
    unittest.main(argv=sys.argv[:1])
