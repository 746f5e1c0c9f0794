# SPDX-License-Identifier: Apache-2.0
"""`starpipe verify`: right runs agree, and each wrong one is named.

Usage: verify_test.py BINARY PLUGIN NETWORK_PLUGIN LAUNCHER..., where the plug-ins come from tests/plugins/wrong_plugin.cpp,
with and without a schedule, and the launcher starts two ranks.
"""

import json
import os
import struct
import sys
import unittest

from support import CommandTest, gpt_config, mlp_config

PLUGIN = ""
NETWORK_PLUGIN = ""
LAUNCHER = []


class Verify(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("text", "The quick brown fox jumps over the lazy dog. " * 5)
        self.write("mlp.yaml", mlp_config())
        self.write("gpt.yaml", gpt_config("text"))
        self.write("wrong.yaml", "model: {kind: suspect}\n"
                   "training: {steps: 3, microbatches: 4, microbatch_size: 2}\n"
                   "schedule: {name: in-order, workers: 4}\n")

    def verify(self, *arguments, launcher=(), status=0):
        result = self.run_command("verify", *arguments, "--json", launcher=launcher)
        self.assertEqual(result.returncode, status, (arguments, result.stderr))
        verdict = json.loads(result.stdout)
        self.assertEqual(verdict["agrees"], status == 0)
        return verdict, result.stderr

    def suspect(self, fault, *arguments, status=1):
        return self.verify("wrong.yaml", "--plugin", PLUGIN, "--set", f"model.fault={fault}", *arguments, status=status)

    def test_progress(self):
        """Long parts of a run say on a terminal what they do. Everywhere else the tests find no such line in a log."""
        shown = self.progress("verify", "mlp.yaml")
        order = ["plans the run", "starts StarPU", "start values of 130 parameters", "step 1/2",
                 "step 1/2, computed sequentially", "step 2/2", "step 2/2, computed sequentially", "finite differences 1/6  layers.0.weight",
                 "finite differences 6/6  head.bias"]
        self.assertEqual([text for text in shown if text in order], order)
        self.assertEqual(shown[-1], "")
        shown = self.progress("train", "mlp.yaml", "--save-weights", "w.safetensors")
        first = shown.index("step 1/2")
        self.assertEqual(shown[first - 2:first], ["starts StarPU", "start values of 130 parameters"])
        self.assertEqual(shown[-2:], ["saves the weights", ""])
        shown = self.progress("evaluate", "mlp.yaml", "--weights", "w.safetensors")
        self.assertEqual(shown[-2:], ["evaluates", ""])
        self.write("wrong.safetensors", "")
        shown = self.progress("evaluate", "mlp.yaml", "--weights", "wrong.safetensors", status=2)
        self.assertEqual(shown[-1], "starpipe: wrong.safetensors: is too short for a safetensors file\r\n")

    def test_right_runs_agree(self):
        recipe = ["training.clip=0.1", "training.optimizer.decay=matrices", "training.optimizer.schedule.kind=cosine",
                  "training.optimizer.schedule.warmup=1"]
        for file, *keys in (["mlp.yaml"], ["gpt.yaml", *recipe], ["gpt.yaml", "schedule.name=zb-h1"],
                            ["gpt.yaml", "schedule.name=ddp", "model.layers=1"],
                            ["gpt.yaml", "model.tied=true", *recipe],
                            ["gpt.yaml", "model.tied=true", "schedule.name=fsdp", "runtime.precision=bf16"],
                            ["gpt.yaml", "schedule.name=zb-h1", "runtime.precision=bf16", *recipe],
                            ["mlp.yaml", "training.optimizer.kind=sgd", "training.optimizer.momentum=0.9", "schedule.home=none"]):
            for launcher in ([], LAUNCHER):
                with self.subTest(file=file, keys=keys, ranks=2 if launcher else 1):
                    words = [word for key in keys for word in ("--set", key)]
                    verdict, _ = self.verify(file, *words, launcher=launcher)
                    self.assertEqual(verdict["ranks"], 2 if launcher else 1)
                    self.assertEqual(verdict["steps"], 2)
                    found = {(c["what"], c["step"]) for c in verdict["compared"]}
                    self.assertEqual(found, {("repeat", 1), ("derivative", 1)} |
                                     {(what, step) for what in ("loss", "gradient", "norm", "update") for step in (1, 2)})
                    # On cores a loss and an update have the bits of the other side: one order of additions.
                    for compared in verdict["compared"]:
                        if compared["what"] in ("loss", "update"):
                            self.assertEqual(compared["absolute"], 0, compared)

    def test_every_parameter_is_compared(self):
        verdict, _ = self.verify("mlp.yaml", "--steps", 1)
        names = [f"{layer}.{part}" for layer in ("layers.0", "layers.1", "head") for part in ("weight", "bias")]
        for what in ("gradient", "update"):
            self.assertEqual([c["name"] for c in verdict["compared"] if c["what"] == what], names)
        self.assertEqual(sum(c["what"] == "derivative" for c in verdict["compared"]) + verdict["undecided_derivatives"], 6)

    def test_a_right_plugin_agrees(self):
        verdict, _ = self.suspect("none", status=0)
        self.assertEqual(verdict["undecided_derivatives"], 0)

    def test_a_plugin_may_have_the_network_alone(self):
        keys = ["--set", "schedule.name=1f1b", "--set", "schedule.workers=2"]
        self.suspect("none", *keys, status=0)
        self.suspect("half", *keys)
        self.refused(["verify", "mlp.yaml", "--plugin", PLUGIN],
                     "has no schedule 'gpipe' and no network 'mlp', so it would change nothing")

    def test_a_plugin_need_not_have_a_schedule(self):
        keys = ["--set", "schedule.name=1f1b", "--set", "schedule.workers=2", "--plugin", NETWORK_PLUGIN]
        self.verify("wrong.yaml", *keys, "--set", "model.fault=none")
        self.verify("wrong.yaml", *keys, "--set", "model.fault=half", status=1)
        self.ok("schedule", "show", "1f1b", "--workers", 2, "--microbatches", 4, "-o", "s.json")
        file = ["--set", "schedule={file: s.json}", "--plugin", NETWORK_PLUGIN]
        result = self.run_command("simulate", "wrong.yaml", *file, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"\Astarpipe: s.json: the stages of the model are unequal: [^\n]*\n\Z")
        self.refused(["simulate", "mlp.yaml", *file], "has no network 'mlp', so it would change nothing")
        for command in (["schedule", "list", "--plugin", NETWORK_PLUGIN], ["plugin", "check", NETWORK_PLUGIN]):
            self.refused(command, f"plug-in {NETWORK_PLUGIN}: it adds no schedule")

    def test_wrong_derivatives_are_named(self):
        for fault in ("factor", "half"):
            with self.subTest(fault=fault):
                verdict, line = self.suspect(fault)
                wrong = [(c["what"], c["stage"], c["name"]) for c in verdict["compared"] if not c["agrees"]]
                self.assertEqual(wrong, [("derivative", 1, "suspect.scale")])
                self.assertIn("starpipe: verify: step 1, stage 1: the derivative of suspect.scale differs by ", line)
                self.assertEqual(len(line.splitlines()), 1)

    def test_a_layer_that_is_wrong_with_some_values_is_named(self):
        """Those of micro-batch 0 are not among them."""
        few = ["--set", "training.microbatches=1"]
        self.suspect("big", "--steps", 1, *few, status=0)
        _, line = self.suspect("big")
        self.assertIn("step 1, stage 1: the derivative of suspect.scale differs by ", line)

    def test_derivatives_are_those_of_four_micro_batches(self):
        line = "derivatives are from the first 4 of 5 micro-batches of step 1\n"
        for count in 3, 4, 5:
            keys = ["--steps", 1, "--set", f"training.microbatches={count}"]
            verdict, _ = self.suspect("none", *keys, status=0)
            self.assertEqual(verdict["derivative_microbatches"], min(4, count))
            result = self.run_command("verify", "wrong.yaml", "--plugin", PLUGIN, *keys)
            self.assertEqual(result.stdout.endswith(line), count == 5, result.stdout)

    def test_a_wrong_input_gradient_is_seen_in_what_lies_before(self):
        verdict, line = self.suspect("backward")
        wrong = {c["name"] for c in verdict["compared"] if not c["agrees"]}
        self.assertEqual(wrong, {"first.weight", "first.bias", "right.scale"})
        self.assertIn("stage 0: the derivative of right.scale differs", line)  # the nearest

    def test_a_layer_that_does_not_add_up_is_named(self):
        verdict, line = self.suspect("overwrites")
        first = verdict["first_difference"]
        self.assertEqual((first["what"], first["step"], first["stage"], first["name"]), ("gradient", 1, 1, "suspect.scale"))
        self.assertIn("step 1, stage 1: the gradient of suspect.scale differs by ", line)

    def test_a_layer_that_adds_in_some_calls_only_is_named(self):
        """The engine's calls and the other side's would otherwise be wrong in the same micro-batches."""
        for fault in ("skips-odd", "one-in-four"):
            for keys in ([], ["--set", "schedule.workers=1", "--set", "training.microbatches=2"]):
                with self.subTest(fault=fault, keys=keys):
                    verdict, line = self.suspect(fault, "--no-derivatives", *keys)
                    first = verdict["first_difference"]
                    self.assertEqual((first["what"], first["step"], first["stage"], first["name"]),
                                     ("repeat", 1, 0 if keys else 1, "suspect.scale"))
                    self.assertIn(": the gradient of suspect.scale, from two runs of the same passes, differs by ", line)
                    self.assertIn("keeps state between passes", line)

    def train(self, *arguments):
        result = self.run_command("train", "mlp.yaml", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)

    def tensors(self, file):
        """A safetensors file of fp32 tensors: {name: (shape, values)}."""
        with open(self.path(file), "rb") as stream:
            data = stream.read()
        size, = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + size])
        header.pop("__metadata__", None)
        return {name: (t["shape"], struct.unpack_from(f"<{(t['data_offsets'][1] - t['data_offsets'][0]) // 4}f", data,
                                                      8 + size + t["data_offsets"][0])) for name, t in header.items()}

    def save(self, file, tensors):
        header, values = {}, b""
        for name, (shape, numbers) in tensors.items():
            part = struct.pack(f"<{len(numbers)}f", *numbers)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(values), len(values) + len(part)]}
            values += part
        text = json.dumps(header).encode()
        with open(self.path(file), "wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text + values)

    def differing(self, verdict, what):
        compared = [c for c in verdict["compared"] if c["what"] == what]
        self.assertEqual(len(compared), 6)
        return [c["name"] for c in compared if not c["agrees"]]

    def test_weights_of_another_framework(self):
        self.train("--set", "training.steps=2", "--save-weights", "w.safetensors")
        weights = self.tensors("w.safetensors")
        for launcher in ([], LAUNCHER):
            verdict, _ = self.verify("mlp.yaml", "--steps", 2, "--against-weights", "w.safetensors", launcher=launcher)
            self.assertEqual(self.differing(verdict, "file's weight"), [])
        shape, values = weights["layers.1.bias"]
        self.save("other.safetensors", {**weights, "layers.1.bias": (shape, [value + 1e-3 for value in values])})
        verdict, line = self.verify("mlp.yaml", "--steps", 2, "--against-weights", "other.safetensors", status=1)
        self.assertEqual(self.differing(verdict, "file's weight"), ["layers.1.bias"])
        self.assertRegex(line, "^starpipe: verify: step 2, stage 1: the file's weight of layers.1.bias differs")
        # The weights after another step differ from this step's.
        verdict, _ = self.verify("mlp.yaml", "--steps", 1, "--against-weights", "w.safetensors", status=1)
        self.assertEqual(len(self.differing(verdict, "file's weight")), 6)
        del weights["layers.1.bias"]
        self.save("fewer.safetensors", weights)
        for option in "--against-weights", "--against-gradients":
            self.refused(["verify", "mlp.yaml", option, "fewer.safetensors"], "fewer.safetensors", "layers.1.bias")

    def test_weights_whose_gradients_are_rounding_errors(self):
        """The loss does not depend on the biases of keys. AdamW moves them by rounding errors, in every framework otherwise."""
        result = self.run_command("train", "gpt.yaml", "--save-weights", "w.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        weights = self.tensors("w.safetensors")
        name = "transformer.h.1.attn.c_attn.bias"
        shape, values = weights[name]
        for first, status in ((16, 0), (0, 1)):  # 16 biases of queries, of keys, of values
            moved = [value + 1e-3 * (first <= i < first + 16) for i, value in enumerate(values)]
            self.save("moved.safetensors", {**weights, name: (shape, moved)})
            verdict, line = self.verify("gpt.yaml", "--against-weights", "moved.safetensors", "--no-derivatives", status=status)
            self.assertGreaterEqual(verdict["undecided_weights"], 2 * 16)
            self.assertEqual(name in line, status == 1)

    def test_gradients_of_another_framework(self):
        """An update of SGD by a learning rate of 1 is the gradient."""
        sgd = ["--set", "training.optimizer.kind=sgd", "--set", "training.steps=1"]
        for rate in 0, 1:
            self.train(*sgd, "--set", f"training.optimizer.learning_rate={rate}", "--save-weights", f"w{rate}.safetensors")
        after = self.tensors("w1.safetensors")
        gradients = {name: (shape, [a - b for a, b in zip(values, after[name][1])])
                     for name, (shape, values) in self.tensors("w0.safetensors").items()}
        self.save("g.safetensors", gradients)
        # Rounding of the weights is in these gradients.
        verdict, _ = self.verify("mlp.yaml", "--against-gradients", "g.safetensors", "--tolerance", 1e-3)
        self.assertEqual(self.differing(verdict, "file's gradient"), [])
        shape, values = gradients["head.weight"]
        self.save("sum.safetensors", {**gradients, "head.weight": (shape, [4 * value for value in values])})
        verdict, line = self.verify("mlp.yaml", "--against-gradients", "sum.safetensors", "--tolerance", 1e-3, status=1)
        self.assertEqual(self.differing(verdict, "file's gradient"), ["head.weight"])
        self.assertIn("step 1, stage 1: the file's gradient of head.weight differs by ", line)

    def test_files_of_another_framework_are_not_completed(self):
        """As start weights, a file without a head gets a copy of the embedding, and a short table gets rows."""
        result = self.run_command("train", "gpt.yaml", "--save-weights", "w.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        weights = self.tensors("w.safetensors")
        self.save("headless.safetensors", {name: t for name, t in weights.items() if name != "lm_head.weight"})
        (rows, columns), values = weights["transformer.wte.weight"]
        self.save("short.safetensors",
                  {**weights, "transformer.wte.weight": ([rows - 1, columns], values[:-columns])})
        for option in "--against-weights", "--against-gradients":
            self.refused(["verify", "gpt.yaml", option, "headless.safetensors"], "tensor lm_head.weight: is missing")
            self.refused(["verify", "gpt.yaml", option, "short.safetensors"],
                         f"tensor transformer.wte.weight: has shape [{rows - 1}, {columns}], the model has [{rows}, {columns}]")

    def test_the_file_of_validation_is_not_opened(self):
        self.write("evaluated.yaml", gpt_config("text, validation: absent") + "evaluate: {every: 1}\n")
        self.verify("evaluated.yaml", "--no-derivatives")

    def test_without_derivatives(self):
        verdict, _ = self.suspect("factor", "--no-derivatives", status=0)
        self.assertNotIn("derivative", {c["what"] for c in verdict["compared"]})

    def test_wrong_gradients_on_two_ranks(self):
        result = self.run_command("verify", "wrong.yaml", "--plugin", PLUGIN, "--set", "model.fault=overwrites",
                                  "--report", "r.json", launcher=LAUNCHER)
        lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn("suspect.scale", lines[0])
        self.assertFalse(json.loads(self.read("r.json"))["agrees"])

    def test_a_task_without_memory(self):
        """The standard library throws std::bad_alloc there, which no pass may let out."""
        if os.environ.get("STARPIPE_SANITIZE"):
            self.skipTest("sanitizers refuse the size by themselves")
        for launcher in ([], LAUNCHER):
            result = self.run_command("train", "wrong.yaml", "--plugin", PLUGIN, "--set", "model.fault=memory", launcher=launcher)
            self.assertNotEqual(result.returncode, 0)
            lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: rank")]
            self.assertEqual(len(lines), 1, result.stderr)
            self.assertRegex(lines[0], r"^starpipe: rank \d: out of memory in .*F")

    def test_ranks_with_different_plugins(self):
        """Hosts may have copies of a plug-in that are not equally old."""
        for rank, more in enumerate(("", "", " ")):
            os.mkdir(self.path(str(rank)))
            self.write(f"{rank}/wrong.yaml", self.read("wrong.yaml"))
            with open(PLUGIN, "rb") as plugin, open(self.path(f"{rank}/p.so"), "wb") as copy:
                copy.write(plugin.read() + more.encode())
        command = ["train", "wrong.yaml", "--plugin", "./p.so", "--set", "model.fault=none"]
        for other, status in ((1, 0), (2, 2)):
            script = f'if [ "$PMI_RANK" = 0 ]; then cd 0; else cd {other}; fi; exec "$0" "$@"'
            result = self.run_command(*command, launcher=[*LAUNCHER, "sh", "-c", script])
            self.assertEqual(result.returncode, status, result.stderr)
        self.assertRegex(result.stderr, r"^starpipe: schedule\.plugin: \S*p\.so is not the same file on all ranks\n$")

    def test_tolerance(self):
        verdict, line = self.verify("gpt.yaml", "--tolerance", 0, "--no-derivatives", status=1)
        self.assertEqual(verdict["tolerance"], 0)
        self.assertIn(": the gradient of ", line)
        verdict, _ = self.suspect("overwrites", "--tolerance", 10, "--no-derivatives", status=0)
        self.assertEqual(verdict["tolerance"], 10)

    def test_a_run_that_stops_for_infinity(self):
        result = self.run_command("verify", "mlp.yaml", "--set", "training.optimizer.learning_rate=1e38", "--set",
                                  "training.optimizer.kind=sgd")
        self.assertEqual(result.returncode, 1)
        self.assertIn("training.nonfinite: stop", result.stderr)

    def test_steps_that_are_skipped(self):
        for value in ("skip", "continue"):
            with self.subTest(nonfinite=value):
                self.verify("mlp.yaml", "--set", "training.optimizer.learning_rate=1e38", "--set", "training.optimizer.kind=sgd",
                            "--set", f"training.nonfinite={value}")

    def test_refusals(self):
        self.refused(["verify", "mlp.yaml", "--steps", 3], "--steps: 3", "training.steps")
        self.refused(["verify", "mlp.yaml", "--steps", 0], "--steps")
        self.refused(["verify", "mlp.yaml", "--tolerance", -1], "--tolerance")
        self.refused(["verify", "mlp.yaml", "--set", "runtime.emulate.F=1ms", "--set", "runtime.emulate.B=1ms", "--set",
                      "runtime.emulate.W=1ms"], "runtime.emulate")
        self.refused(["verify", "mlp.yaml", "--report", "r.txt"], "--report", ".json")
        self.refused(["verify", "wrong.yaml"], "model.kind", "suspect")


if __name__ == "__main__":
    CommandTest.binary, PLUGIN, NETWORK_PLUGIN = map(os.path.abspath, sys.argv[1:4])
    LAUNCHER = sys.argv[4:]
    unittest.main(argv=sys.argv[:1])
