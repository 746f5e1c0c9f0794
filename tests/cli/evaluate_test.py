# SPDX-License-Identifier: Apache-2.0
"""Evaluations of `train`, and `starpipe evaluate`. Usage: evaluate_test.py BINARY LAUNCHER..."""

import json
import os
import sys
import unittest

from support import CommandTest, gpt_config, mlp_config

LAUNCHER = []
EVALUATE = ("--set", "evaluate.every=2", "--set", "evaluate.microbatches=3")


class Evaluate(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("text", "The quick brown fox jumps over the lazy dog. " * 5)
        self.write("other", "Pack my box with five dozen liquor jugs. " * 4)
        self.write("plain.yaml", gpt_config("text"))
        self.write("gpt.yaml", gpt_config("text").replace("path: text}", "path: text, validation: other}"))
        self.write("mlp.yaml", mlp_config())

    def train(self, *arguments, launcher=()):
        result = self.run_command("train", *arguments, "--report", "r.json", launcher=launcher)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("r.json")), result

    def evaluate(self, *arguments, launcher=()):
        return json.loads(self.ok("evaluate", *arguments, "--json", launcher=launcher))

    def test_training(self):
        """Before the first step, every two steps and after the last; the training has the same bits as without."""
        steps = ("--set", "training.steps=5")
        plain, _ = self.train("plain.yaml", *steps)
        self.assertNotIn("evaluations", plain)
        seen = []
        for launcher in ([], LAUNCHER):
            report, result = self.train("gpt.yaml", *steps, *EVALUATE, "--metrics", "m.jsonl", launcher=launcher)
            done = report["evaluations"]
            self.assertEqual([one["step"] for one in done], [0, 2, 4, 5])
            self.assertEqual({one["microbatches"] for one in done}, {3})
            for key in ("losses", "gradient_norms"):
                self.assertEqual(report[key], plain[key])
            self.assertEqual(report["bytes_between_ranks"]["predicted"], report["bytes_between_ranks"]["measured"])
            self.assertGreater(done[0]["loss"], done[-1]["loss"])
            lines = [json.loads(line) for line in self.read("m.jsonl").splitlines()]
            self.assertEqual([(line["step"], "loss" in line) for line in lines],
                             [(0, False), (1, True), (2, True), (2, False), (3, True), (4, True), (4, False), (5, True),
                              (5, False)])
            self.assertEqual([line["validation_loss"] for line in lines if "loss" not in line],
                             [one["loss"] for one in done])
            text = result.stderr + result.stdout
            for one in done:
                self.assertIn(f"evaluation  loss {one['loss']:.4f} (3 micro-batches: the first 48 of 160 tokens)", text)
            seen.append([one["loss"] for one in done])
            os.remove(self.path("m.jsonl"))
        self.assertEqual(seen[0], seen[1])

    def test_validation_alone_asks_for_two(self):
        report, _ = self.train("gpt.yaml", "--set", "training.steps=3")
        self.assertEqual([(one["step"], one["microbatches"]) for one in report["evaluations"]], [(0, 4), (3, 4)])
        report, _ = self.train("mlp.yaml", "--set", "evaluate.every=1")  # made-up data need no file
        self.assertEqual([one["step"] for one in report["evaluations"]], [0, 1, 2])

    def test_command(self):
        """The loss of saved weights equals the loss of the last evaluation, on any ranks; under other schedules too."""
        report, _ = self.train("gpt.yaml", *EVALUATE, "--save-weights", "w.safetensors")
        of_weights = ("gpt.yaml", "--weights", "w.safetensors")
        last = report["evaluations"][-1]["loss"]
        self.assertEqual(self.evaluate(*of_weights, "--set", "evaluate.microbatches=3")["loss"], last)
        many = self.evaluate(*of_weights, "--microbatches", 7)
        self.assertEqual(len(many["losses"]), 7)
        self.assertEqual(many["tokens"], 7 * 16)
        self.assertAlmostEqual(sum(many["losses"][:3]) / 3, last, places=6)
        self.assertEqual(self.evaluate(*of_weights, "--microbatches", 7, launcher=LAUNCHER)["losses"], many["losses"])
        self.assertEqual(self.evaluate(*of_weights, "--microbatches", 1)["losses"], many["losses"][:1])
        for setting in ("schedule.name=zb-h1", "schedule.name=dualpipe", "schedule.workers=1", "runtime.policy=lws"):
            other = self.evaluate(*of_weights, "--microbatches", 7, "--set", setting)
            self.assertAlmostEqual(other["loss"], many["loss"], places=5, msg=setting)
        text = self.ok("evaluate", *of_weights, "--microbatches", 7, "--report", "e.json")
        self.assertEqual(text, f"evaluation  loss {many['loss']:.4f} (7 micro-batches: the first 112 of 160 tokens)\n")
        report = json.loads(self.read("e.json"))
        self.assertEqual((report["loss"], report["config"]["data"]["validation"]), (many["loss"], "other"))
        # Ten sequences, each counted once, whatever the size of a micro-batch and however many were asked for.
        whole = self.evaluate(*of_weights, "--microbatches", 20)
        self.assertEqual((len(whole["losses"]), whole["tokens"], whole["tokens_in_file"]), (10, 160, 160))
        by_three = self.evaluate(*of_weights, "--microbatches", 4, "--set", "training.microbatch_size=3", launcher=LAUNCHER)
        self.assertEqual((len(by_three["losses"]), by_three["tokens"]), (4, 160))
        self.assertAlmostEqual(by_three["loss"], whole["loss"], places=6)

    def test_resumed_runs_evaluate_as_if_never_stopped(self):
        settings = (*EVALUATE, "--set", "checkpoint.every=2", "--metrics")
        self.train("gpt.yaml", *settings, "whole.jsonl", "--set", "checkpoint.folder=whole", "--set", "training.steps=4")
        parts = (*settings, "parts.jsonl", "--set", "checkpoint.folder=parts", "--resume", "--set")
        self.train("gpt.yaml", *parts, "training.steps=2")
        report, _ = self.train("gpt.yaml", *parts, "training.steps=4")
        self.assertEqual([one["step"] for one in report["evaluations"]], [2, 4])
        again = self.run_command("train", "gpt.yaml", *parts, "training.steps=4")
        self.assertIn("All 4 steps are done", again.stdout, again.stderr)
        whole, resumed = ([{key: line.get(key) for key in ("step", "loss", "validation_loss")}
                           for line in map(json.loads, self.read(name).splitlines())] for name in ("whole.jsonl", "parts.jsonl"))
        self.assertEqual(resumed, whole)

    def test_training_data_are_not_needed(self):
        self.train("gpt.yaml", "--save-weights", "w.safetensors")
        os.remove(self.path("text"))
        self.ok("evaluate", "gpt.yaml", "--weights", "w.safetensors")

    def test_made_up_data(self):
        self.train("mlp.yaml", "--save-weights", "w.safetensors", "--set", "training.steps=30")
        trained = self.evaluate("mlp.yaml", "--weights", "w.safetensors", "--microbatches", 20)
        self.train("mlp.yaml", "--save-weights", "w.safetensors", "--set", "training.optimizer.learning_rate=0")
        self.assertLess(trained["loss"], self.evaluate("mlp.yaml", "--weights", "w.safetensors", "--microbatches", 20)["loss"])

    def test_refusals(self):
        self.train("gpt.yaml", "--save-weights", "w.safetensors")
        self.write("short", "abc")
        weights = ("--weights", "w.safetensors")
        self.refused(["train", "plain.yaml", "--set", "evaluate.every=2"], "data.validation")
        self.refused(["train", "gpt.yaml", "--set", "data.validation=absent"], "absent")
        self.refused(["train", "gpt.yaml", "--set", "data.validation=short"], "data.validation", "short")
        self.refused(["train", "mlp.yaml", "--set", "data.validation=other"], "data.validation")
        self.refused(["train", "gpt.yaml", "--set", "evaluate.microbatches=0"], "evaluate.microbatches")
        self.refused(["train", "gpt.yaml", "--set", "evaluate.microbatches=600000"], "evaluate.microbatches")
        emulated = "runtime.emulate={F: 1ms, B: 1ms, W: 1ms}"
        self.refused(["train", "mlp.yaml", "--set", emulated, "--set", "evaluate.every=2"], "evaluate.every", "runtime.emulate")
        self.refused(["evaluate", "mlp.yaml", *weights, "--set", emulated], "runtime.emulate")
        self.refused(["evaluate", "plain.yaml", *weights], "data.validation")
        self.refused(["evaluate", "gpt.yaml"], "--weights")
        self.refused(["evaluate", "gpt.yaml", "--weights", "absent"], "absent")
        self.refused(["evaluate", "gpt.yaml", *weights, "--microbatches", 0], "--microbatches")
        self.refused(["evaluate", "gpt.yaml", *weights, "--microbatches", 2, "--set", "evaluate.microbatches=3"],
                     "--microbatches")
        self.refused(["evaluate", "gpt.yaml", *weights, "--set", "evaluate.every=3"], "evaluate.every")
        self.refused(["evaluate", "gpt.yaml", *weights, "--set", "model.hidden=32"], "w.safetensors")
        self.refused(["evaluate", "gpt.yaml", *weights, "--report", "w.safetensors.json", "--report", "text"], "--report")
        self.refused(["evaluate", "gpt.yaml", *weights, "--set", "runtime.memory_limit=1KiB"],
                     "runtime.memory_limit", "more than 1024 B\n")
        self.refused(["evaluate", "gpt.yaml", *weights, "--set", "training.seed=2"], "training.seed")

    def test_weights_that_are_not_finite(self):
        def train(steps):
            self.train("mlp.yaml", "--set", "training.optimizer={kind: sgd, learning_rate: 1.0e+30}", "--set",
                       f"training.steps={steps}", "--set", "training.nonfinite=continue", "--save-weights", "w.safetensors")

        train(9)
        self.refused(["evaluate", "mlp.yaml", "--weights", "w.safetensors"], "w.safetensors", "weight")
        train(1)  # finite weights, whose losses are not
        result = self.run_command("evaluate", "mlp.yaml", "--weights", "w.safetensors")
        self.assertEqual((result.returncode, result.stdout, len(result.stderr.splitlines())), (1, "", 1))
        self.assertIn("infinity or NaN", result.stderr)
        for policy in ("skip", "continue"):
            self.assertRegex(self.ok("evaluate", "mlp.yaml", "--weights", "w.safetensors", "--set", f"training.nonfinite={policy}"),
                             r"^evaluation  loss (nan|inf), which is not finite \(")
        # A program that reads the JSON gets null.
        self.assertIsNone(self.evaluate("mlp.yaml", "--weights", "w.safetensors", "--set", "training.nonfinite=continue")["loss"])


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv[1])
    LAUNCHER = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
