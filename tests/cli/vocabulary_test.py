# SPDX-License-Identifier: Apache-2.0
"""`schedule.vocabulary`: shards of embedding and head compared with the whole model, on one rank and on several.

Usage: vocabulary_test.py BINARY LAUNCHER..., the launcher being what starts two ranks.
"""

import json
import os
import shutil
import sys
import unittest

from support import CommandTest, mlp_config

LAUNCHER = []

CONFIG = """
model:    {kind: gpt, layers: 2, hidden: 16, heads: 4, context: 16}
data:     {kind: text, path: text}
training: {steps: 4, microbatches: 5, seed: 1}
schedule: {name: 1f1b, workers: 2}
runtime:  {workers_per_core: 16}
"""


class Vocabulary(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("c.yaml", CONFIG)
        self.write("text", "It is a truth universally acknowledged. " * 40)

    def train(self, shards, *settings, arguments=(), **options):
        words = [word for setting in settings for word in ("--set", setting)]
        result = self.run_command("train", "c.yaml", "--set", f"schedule.vocabulary.shards={shards}", *words, *arguments,
                                  "--report", "r.json", timeout=300, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("r.json"))

    def test_shards_train_as_the_whole(self):
        for settings in (
            (),
            ("schedule.vocabulary.placement=last",),
            ("model.tied=true",),
            ("model={kind: llama, layers: 2, hidden: 16, heads: 4, intermediate: 12, context: 16}",),
            ("schedule.name=zb-h1",),
            ("schedule.home=none",),
            ("schedule.name=interleaved-1f1b", "training.microbatches=4"),
        ):
            with self.subTest(settings=settings):
                base = [s for s in settings if "vocabulary" not in s]
                whole = self.train(1, *base)
                for shards, launcher in ((5, LAUNCHER), *([] if settings else [(2, []), (2, LAUNCHER)])):
                    report = self.train(shards, *settings, launcher=launcher)
                    self.assertEqual(report["parameters"], whole["parameters"])
                    for mine, expected in zip(report["losses"], whole["losses"], strict=True):
                        self.assertAlmostEqual(mine, expected, delta=2e-6 * expected)
                    self.assert_predicted(report)

    def test_ranks_change_no_bit(self):
        four = ("schedule.workers=4", "model.layers=4")
        one = self.train(4, *four)["losses"]
        for ranks in ("1", "2", "4"):
            launcher = [ranks if word == "2" else word for word in LAUNCHER]
            report = self.train(4, *four, launcher=launcher)
            self.assertEqual(report["losses"], one)
            self.assert_predicted(report)

    # Activations and gradients of one micro-batch between two workers: the chain's, one of the embedding, one of
    # the head, and the two numbers of each of the 16 rows.
    def test_what_moves(self):
        report = self.train(2, "runtime.precision=bf16")
        activation = 16 * 16 * 2
        for kind in ("activations", "gradients"):
            self.assertEqual(sum(report["received"][kind]["bytes"]["measured"]), 5 * (3 * activation + 16 * 2 * 4))

    def test_goes_with_tensor_parallelism(self):
        whole = self.train(1)["losses"]
        report = self.train(3, "model.tensor=2", launcher=LAUNCHER)
        for mine, expected in zip(report["losses"], whole, strict=True):
            self.assertAlmostEqual(mine, expected, delta=2e-6 * expected)

    def test_a_checkpoint_goes_on_with_the_same_shards_and_with_others(self):
        folder = ("checkpoint.folder=ck", "checkpoint.every=2")
        whole = self.train(2, arguments=("--save-weights", "whole.safetensors"))["losses"]
        self.train(2, *folder, "training.steps=2")
        self.train(2, *folder, arguments=("--resume", "--save-weights", "resumed.safetensors"), launcher=LAUNCHER)
        saved = self.bytes("whole.safetensors")
        self.assertEqual(self.bytes("resumed.safetensors"), saved)
        for shards in (1, 3):
            self.train(shards, *folder, arguments=("--resume", "--save-weights", "resumed.safetensors"))
            self.assertEqual(self.bytes("resumed.safetensors"), saved)
        for shards in (1, 3):
            shutil.rmtree(self.path("ck"))
            self.train(2, *folder, "training.steps=2")
            report = self.train(shards, *folder, "model.tensor=2", arguments=("--resume",), launcher=LAUNCHER)
            for mine, expected in zip(report["losses"], whole[2:], strict=True):
                self.assertAlmostEqual(mine, expected, delta=2e-6 * expected)

    # Times of whole stages are divided among the parts by their FLOPs, so the work is the same.
    def test_emulated_times_are_those_of_whole_stages(self):
        times = ("--set", "runtime.emulate={F: [2ms, 6ms], B: [2ms, 6ms], W: [2ms, 6ms], comm: 0ms}",
                 "--set", "schedule.cuts=[2]", "--set", "model.vocabulary=4096")

        def predicted(shards):
            output = self.ok("simulate", "c.yaml", *times, "--set", f"schedule.vocabulary.shards={shards}", "--json")
            return json.loads(output)
        whole, shared = predicted(1), predicted(2)

        def work(run):
            return sum(job["end"] - job["start"] for worker in run["ops"] for job in worker)

        self.assertAlmostEqual(work(whole), work(shared), places=6)
        self.assertLess(shared["makespan"], 0.8 * whole["makespan"])
        # A head that is shared out is in the bound.
        for run in (whole, shared):
            self.assertLessEqual(run["lower_bound"], run["makespan"])
            busiest = max(sum(job["end"] - job["start"] for job in worker) for worker in run["ops"])
            self.assertGreaterEqual(run["lower_bound"], busiest * (1 - 1e-9))

    def test_what_takes_no_shards_says_so(self):
        self.ok("simulate", "c.yaml", "-o", "f.json")
        for settings, message in (
            (["schedule.memory_limit=4"], "schedule.memory_limit: does not apply with schedule.vocabulary.shards: "),
            (["schedule.discipline=greedy", "schedule.dynamic=true"],
             "schedule.dynamic: does not apply with schedule.vocabulary.shards: "),
            (["schedule.vocabulary.shards=300"], "schedule.vocabulary.shards: 300 is more than model.vocabulary, 256"),
            (["schedule.partition=auto"], "schedule.vocabulary: "),
        ):
            arguments = [word for setting in settings for word in ("--set", setting)]
            self.refused(["simulate", "c.yaml", "--set", "schedule.vocabulary.shards=2", *arguments], message)
        self.write("mlp.yaml", mlp_config())
        self.refused(["simulate", "mlp.yaml", "--set", "schedule.vocabulary.shards=2"],
                     "schedule.vocabulary.shards: does not apply to model.kind mlp")
        self.refused(["profile", "c.yaml", "--set", "schedule.vocabulary.shards=2"], "schedule.vocabulary")
        self.refused(["simulate", "c.yaml", "--set", "schedule.vocabulary.ahead=1"], "schedule.vocabulary.ahead: ")


if __name__ == "__main__":
    CommandTest.binary, LAUNCHER = os.path.abspath(sys.argv[1]), sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
