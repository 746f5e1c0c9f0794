# SPDX-License-Identifier: Apache-2.0
"""`checkpoint:` and `train --resume`: a run that stops and is resumed equals a run that never stopped.

Usage: checkpoint_test.py BINARY LAUNCHER..., the launcher being what starts two ranks.
"""

import contextlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest
import zlib

from support import LAUNCHER_RANKS, CommandTest, wait_until

LAUNCHER = []
# What differs from run to run in the lines of --metrics.
TIMES = ("seconds", "checkpoint_seconds", "bubble_fraction")
GPT = """model: {kind: gpt, layers: 2, hidden: 16, heads: 2, context: 16}
data: {kind: text, path: text, order: shuffled}
training: {microbatches: 4, microbatch_size: 2, steps: 4, seed: 3, clip: 1.0,
           optimizer: {schedule: {kind: cosine, warmup: 1, steps: 4}}}
schedule: {name: 1f1b, workers: 2}
checkpoint: {folder: ck, every: 2}
"""
MLP = """model: {kind: mlp, layers: 2, hidden: 16, inputs: 4, outputs: 2}
training: {microbatches: 4, microbatch_size: 2, steps: 4}
schedule: {name: 1f1b, workers: 2}
checkpoint: {folder: ck, every: 2}
"""
ENDLESS = ("--set", "training.steps=1000000", "--set", "checkpoint.every=1000000")


def settings(*pairs):
    return [word for pair in pairs for word in ("--set", pair)]


def launcher_rank(pid):
    variables = pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0")
    return next(int(value) for name, _, value in (word.partition("=") for word in variables) if name in LAUNCHER_RANKS)


class CheckpointTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("text", "The quick brown fox jumps over the lazy dog. " * 20)
        self.write("gpt.yaml", GPT)
        self.write("mlp.yaml", MLP)

    def train(self, *arguments, launcher=(), status=0, **options):
        result = self.run_command("train", *arguments, launcher=launcher, **options)
        self.assertEqual(result.returncode, status, result.stderr)
        return result

    def messages(self, result):
        return [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]

    def report(self, name):
        return json.loads(self.read(name))

    def metrics(self, name):
        lines = [json.loads(line) for line in self.read(name).splitlines()]
        return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]

    def checkpoints(self):
        return sorted(name for name in os.listdir(self.path("ck")) if name.startswith("step-"))

    def run_once(self, config, *changes):
        """The run that never stops: its losses, and its files once.jsonl, once.safetensors."""
        self.train(config, *settings("checkpoint.folder=once", *changes), "--report", "once.json", "--metrics", "once.jsonl",
                   "--save-weights", "once.safetensors")
        return self.report("once.json")["losses"]

    def stop_and_go_on(self, config, before=(), after=(), launchers=((), ())):
        """Stops after two steps; returns the report of the resumed part."""
        shutil.rmtree(self.path("ck"), ignore_errors=True)
        pathlib.Path(self.path("m.jsonl")).unlink(missing_ok=True)
        self.train(config, *settings("training.steps=2", *before), "--metrics", "m.jsonl", launcher=launchers[0])
        result = self.train(config, *settings(*after), "--resume", "--report", "r.json", "--metrics", "m.jsonl",
                            "--save-weights", "w.safetensors", launcher=launchers[1])
        self.assertRegex("\n".join(self.messages(result)), r"(?m)continues after step 2 of 4, from ck/step-00000002$")
        return self.report("r.json")


class Resume(CheckpointTest):
    def expect_same_bits(self, losses, part):
        self.assertEqual(part["first_step"], 3)
        self.assertEqual(part["losses"], losses[2:])
        self.assertEqual(self.metrics("m.jsonl"), self.metrics("once.jsonl"))
        self.assertEqual(self.bytes("w.safetensors"), self.bytes("once.safetensors"))

    def test_the_same_schedule(self):
        """Losses, norms, rates, metrics and weights bit by bit: AdamW and clipping on one rank, from one rank to two and
        back, momentum, bf16."""
        losses = self.run_once("gpt.yaml")
        for launchers in ((), ()), ((), LAUNCHER), (LAUNCHER, ()):
            with self.subTest(launchers=launchers):
                self.expect_same_bits(losses, self.stop_and_go_on("gpt.yaml", launchers=launchers))
        for config, changes in (("mlp.yaml", ("training.optimizer={kind: sgd, learning_rate: 0.05, momentum: 0.9}",)),
                                ("mlp.yaml", ("runtime.precision=bf16", "training.optimizer={kind: adamw}")),
                                ("gpt.yaml", ("model.tied=true", "runtime.precision=bf16"))):
            with self.subTest(changes=changes):
                os.remove(self.path("once.jsonl"))
                shutil.rmtree(self.path("once"))
                self.expect_same_bits(self.run_once(config, *changes),
                                      self.stop_and_go_on(config, changes, changes, ((), LAUNCHER)))

    def test_another_schedule_or_placement(self):
        """Losses within fp32 rounding, and the same data."""
        for tied in "model.tied=false", "model.tied=true":
            with self.subTest(tied=tied):
                shutil.rmtree(self.path("once"), ignore_errors=True)
                pathlib.Path(self.path("once.jsonl")).unlink(missing_ok=True)
                self.expect_close(tied)

    def expect_close(self, tied):
        losses = self.run_once("gpt.yaml", tied)
        offsets = None
        for before, after, launchers in (
                ("schedule={name: zb-h1, workers: 2}", "schedule={name: gpipe, workers: 2}", ((), ())),
                ("schedule={name: gpipe, workers: 3, cuts: [1, 3]}", "schedule={name: naive, workers: 1}", ((), ())),
                ("schedule={name: 1f1b, workers: 2}", "schedule={name: v-half, workers: 2}", ((), LAUNCHER)),
                ("schedule={name: ddp, workers: 2}", "schedule={name: fsdp, workers: 2}", (LAUNCHER, ()))):
            with self.subTest(before=before, after=after):
                part = self.stop_and_go_on("gpt.yaml", (tied, before), (tied, after), launchers)
                for one, other in zip(part["losses"], losses[2:], strict=True):
                    self.assertAlmostEqual(one, other, delta=2e-6 * abs(other))
                offsets = offsets or part["offsets"]
                self.assertEqual(part["offsets"], offsets)
                self.assertEqual(len(part["offsets"]), 2)  # steps 3 and 4

    def test_another_precision(self):
        """The parameters in fp32 and the optimizer's state go from bf16 to fp32 and back as they are."""
        bf16 = ("runtime.precision=bf16",)
        for before, after in ((bf16, ()), ((), bf16)):
            losses = self.run_once("mlp.yaml", *before)
            part = self.stop_and_go_on("mlp.yaml", before, after)
            for one, other in zip(part["losses"], losses[2:], strict=True):
                self.assertAlmostEqual(one, other, delta=0.02 * abs(other))
            # All steps are done: nothing happens to the values but that they are read and saved.
            shutil.rmtree(self.path("ck"))
            self.train("mlp.yaml", *settings(*before), "--save-weights", "w1.safetensors")
            result = self.train("mlp.yaml", *settings(*after), "--resume", "--save-weights", "w2.safetensors")
            self.assertIn("nothing is left to train", result.stdout)
            self.assertEqual(self.bytes("w2.safetensors"), self.bytes("w1.safetensors"))
            os.remove(self.path("once.jsonl"))
            shutil.rmtree(self.path("once"))

    def test_more_steps(self):
        """A constant learning rate does not depend on training.steps; a cosine without its own steps does."""
        self.train("mlp.yaml")
        self.train("mlp.yaml", "--resume", *settings("training.steps=6"), "--report", "r.json")
        self.assertEqual(len(self.report("r.json")["losses"]), 2)
        self.assertEqual(self.checkpoints()[-1], "step-00000006")
        self.refused(["train", "mlp.yaml", "--resume"], "step-00000006 is after step 6, and training.steps is 4")
        shutil.rmtree(self.path("ck"))
        cosine = settings("training.optimizer.schedule.kind=cosine")
        self.train("mlp.yaml", *cosine)
        self.refused(["train", "mlp.yaml", "--resume", *cosine, *settings("training.steps=6")],
                     "training.optimizer.schedule.steps", "with 4, this run has 6")
        self.train("mlp.yaml", "--resume", *cosine, *settings("training.steps=6", "training.optimizer.schedule.steps=6"))

    def test_changed_settings_are_told(self):
        self.train("mlp.yaml", *settings("training.steps=2"))
        result = self.train("mlp.yaml", "--resume", *settings("training.clip=0.5", "training.optimizer.learning_rate=0.1",
                                                              "schedule.name=gpipe"))
        goes_on, *changes = self.messages(result)
        self.assertIn("continues after step 2 of 4", goes_on)
        self.assertEqual(changes, [
            "starpipe: resume: training.optimizer.learning_rate was 0.001, and is 0.1 from now on",
            "starpipe: resume: training.clip was nothing, and is 0.5 from now on"])
        result = self.train("mlp.yaml", "--resume", *settings("training.clip=0.5", "training.optimizer.learning_rate=0.1",
                                                              "training.steps=5"))
        self.assertEqual(len(self.messages(result)), 1, result.stderr)
        # The same number of micro-batches, from a file of the schedule.
        self.ok("schedule", "show", "1f1b", "--workers", 2, "--microbatches", 4, "-o", "s.json")
        self.write("file.yaml", re.sub("microbatches: 4, ", "", self.read("mlp.yaml")).replace(
            "schedule: {name: 1f1b, workers: 2}", "schedule: {file: s.json}"))
        result = self.train("file.yaml", "--resume", *settings("training.clip=0.5", "training.optimizer.learning_rate=0.1",
                                                               "training.steps=6"))
        resumed, unequal = self.messages(result)
        self.assertIn("continues after step 5 of 6", resumed)
        self.assertIn("s.json: the stages of the model are unequal", unequal)

    def test_changed_evaluations_are_told(self):
        """Else the validation losses before and after would seem to belong together."""
        self.write("other", "Pack my box with five dozen liquor jugs. " * 20)
        validation = ("data.validation=text", "evaluate.microbatches=2")
        self.train("gpt.yaml", *settings("training.steps=2", *validation))
        result = self.train("gpt.yaml", "--resume", *settings("training.steps=3", "data.validation=other", validation[1]))
        self.assertEqual(self.messages(result)[1:],
                         ['starpipe: resume: data.validation was "text", and is "other" from now on'])
        result = self.train("gpt.yaml", "--resume", *settings("data.validation=other", "evaluate.microbatches=3"))
        self.assertEqual(self.messages(result)[1:],
                         ["starpipe: resume: evaluate.microbatches was 2, and is 3 from now on"])
        # The same name, and another file.
        self.write("other", "The quick brown fox jumps over the lazy dog. " * 20)
        result = self.train("gpt.yaml", "--resume", *settings("training.steps=5", "data.validation=other", "evaluate.microbatches=3"))
        [told] = self.messages(result)[1:]
        self.assertIn("data.validation has other content than before", told)
        result = self.train("gpt.yaml", "--resume", *settings("training.steps=6", "data.validation=other", "evaluate.microbatches=3"))
        self.assertEqual(self.messages(result)[1:], [])

    def test_another_processor_is_told(self):
        """Products of SSE instructions, as a processor without AVX2 computes them, and then the processor's own."""
        older = {"ONEDNN_MAX_CPU_ISA": "SSE41", "OPENBLAS_CORETYPE": "Nehalem"}
        self.train("mlp.yaml", *settings("training.steps=2"), environment=older)
        first = json.loads(self.read("ck/step-00000002/manifest.json"))["run"]["products"]
        self.assertEqual(len(first), 1)
        told = "\n".join(self.messages(self.train("mlp.yaml", "--resume")))
        self.assertRegex(told, f"resume: matrix products were computed by {re.escape(first[0])}, and are by .* from now on")
        self.train("gpt.yaml", *settings("training.steps=2", "checkpoint.folder=same"))
        result = self.train("gpt.yaml", "--resume", *settings("checkpoint.folder=same"))
        self.assertNotIn("matrix products", result.stderr)

    def test_start_weights_are_those_of_step_1(self):
        """A resumed run needs neither the file nor the key."""
        self.train("gpt.yaml", *settings("checkpoint.folder=other", "training.steps=1"), "--save-weights", "start.safetensors")
        start = ("model.init=start.safetensors",)
        losses = self.run_once("gpt.yaml", *start)
        part = self.stop_and_go_on("gpt.yaml", start, ())
        self.assertEqual(part["losses"], losses[2:])

    def test_the_report(self):
        self.train("mlp.yaml", *settings("checkpoint.every=1", "checkpoint.keep=2"), "--report", "r.json")
        report = self.report("r.json")
        self.assertEqual((report["first_step"], report["complete"]), (1, True))
        checkpoints = report["checkpoints"]
        self.assertEqual((checkpoints["count"], checkpoints["failed"]), (4, 0))
        self.assertEqual([one["step"] for one in checkpoints["steps"]], [1, 2, 3, 4])
        self.assertTrue(all(one["pause_seconds"] > 0 for one in checkpoints["steps"]))
        self.assertEqual(self.checkpoints(), ["step-00000003", "step-00000004"])
        self.train("mlp.yaml", "--resume", *settings("training.steps=7"), "--report", "r.json")
        report = self.report("r.json")
        self.assertEqual((report["first_step"], report["explain"]["steps"]["first"]), (5, 6))


class Refused(CheckpointTest):
    def refused_resume(self, config, changes, *culprits):
        self.refused(["train", config, "--resume", *settings(*changes)], "resume: ", *culprits)

    def test_another_training(self):
        """The first parameter that differs is named, else the key."""
        self.train("gpt.yaml")
        before = self.checkpoints()
        self.write("other", "Another text of the same length or not. " * 30)
        for change, culprits in (
                ("model.hidden=32", ("transformer.wte.weight is [256, 16]", "[256, 32] in the model")),
                ("model.layers=3", ("has no transformer.h.2.ln_1.weight",)),
                ("model.layers=1", ("has transformer.h.1.", "is not a parameter of the model")),
                ("model.heads=4", ("model.heads: ", "with 2, this run has 4")),
                ("training.seed=4", ("training.seed: ", "with 3, this run has 4")),
                ("training.microbatches=8", ("training.microbatches: ", "with 4, this run has 8")),
                ("training.microbatch_size=1", ("training.microbatch_size: ",)),
                ("data.order=random", ("data.order: ", '"shuffled"', '"random"')),
                ("data.path=other", ("data.path: ", "content ")),
                ("training.optimizer.kind=sgd", ("training.optimizer.kind: ", '"adamw"', '"sgd"'))):
            self.refused_resume("gpt.yaml", (change,), "ck/step-00000004", *culprits)
        self.assertEqual(self.checkpoints(), before)
        shutil.rmtree(self.path("ck"))
        self.train("mlp.yaml", *settings("training.optimizer.kind=sgd"))
        self.refused_resume("mlp.yaml", ("training.optimizer.kind=sgd", "training.optimizer.momentum=0.5"),
                            "training.optimizer.momentum", "without momentum")

    def edit_manifest(self, edit):
        """Changes the text of the manifest of step 2, whose checksums stay right."""
        manifest = "ck/step-00000002/manifest.json"
        begin, crc32 = self.read(manifest).split(',\n "crc32": "')
        self.assertEqual(crc32, f'{zlib.crc32(begin.encode()):08x}"\n}}\n')
        changed = edit(begin)
        self.assertNotEqual(changed, begin)
        self.write(manifest, f'{changed},\n "crc32": "{zlib.crc32(changed.encode()):08x}"\n}}\n')

    def test_a_manifest_without_what_a_run_needs(self):
        """Checksums do not tell what another program has written. A run never continues from a number that it must guess."""
        self.train("mlp.yaml", *settings("training.steps=2"), "--metrics", "m.jsonl")
        good = self.read("ck/step-00000002/manifest.json")
        for key, value in (("updates", "-1"), ("updates", "3"), ("updates", "1.5"), ("updates", "true"), ("updates", '"2"'),
                           ("metrics_bytes", "-1"), ("metrics_hash", "0.5"), ("facts", "[]"), ("config", "[]")):
            with self.subTest(key=key, value=value):
                self.write("ck/step-00000002/manifest.json", good)
                self.edit_manifest(lambda text, key=key, value=value: re.sub(
                    rf'(\n  "{key}": )(\{{.*?\n  \}}|[^\n,]+)', rf"\g<1>{value}", text, count=1, flags=re.DOTALL))
                part = ".training" if key == "config" else ""
                self.refused(["train", "mlp.yaml", "--resume"], f'ck/step-00000002: manifest.json has no valid "run.{key}{part}"')
        for key, name in (("precision", "config.runtime.precision"), ("facts", "facts"), ("updates", "updates")):
            self.write("ck/step-00000002/manifest.json", good)
            self.edit_manifest(lambda text, key=key: re.sub(f'"{key}":', '"other":', text))
            self.refused(["train", "mlp.yaml", "--resume"], f'manifest.json has no valid "run.{name}"')

    def test_a_checkpoint_that_is_older_than_a_key(self):
        """It was written with the key's default."""
        self.train("gpt.yaml", *settings("training.steps=2"))
        self.edit_manifest(lambda text: re.sub(r'\s*"model\.tied": \w+,', "", text))
        self.train("gpt.yaml", "--resume")

    def test_an_optimizers_state_that_is_missing(self):
        self.train("mlp.yaml", *settings("training.steps=2"))
        part = pathlib.Path(self.path("ck/step-00000002/rank-0000.safetensors"))
        before = part.read_bytes()
        after = before.replace(b"optimizer:second_moment:head.bias", b"optimizer:second_momenT:head.bias")
        part.write_bytes(after)
        self.edit_manifest(lambda text: text.replace("second_moment:head.bias", "second_momenT:head.bias").replace(
            f"{zlib.crc32(before):08x}", f"{zlib.crc32(after):08x}"))
        self.refused(["train", "mlp.yaml", "--resume"], "step-00000002 has no optimizer:second_moment:head.bias")

    def test_a_file_without_a_tensor_of_the_manifest(self):
        """The file's checksum is right, so it shows when StarPU has started. The run ends."""
        for optimizer, launcher in (("adamw", ()), ("adamw", LAUNCHER), ("sgd", ())):
            with self.subTest(optimizer=optimizer, launcher=launcher):
                shutil.rmtree(self.path("ck"), ignore_errors=True)
                kind = settings(f"training.optimizer.kind={optimizer}")
                self.train("mlp.yaml", *kind, *settings("training.steps=2"))
                part = pathlib.Path(self.path("ck/step-00000002/rank-0000.safetensors"))
                before = part.read_bytes()
                after = before.replace(b'"head.bias"', b'"head.biaS"')
                part.write_bytes(after)
                self.edit_manifest(lambda text, before=before, after=after: text.replace(f"{zlib.crc32(before):08x}",
                                                                                         f"{zlib.crc32(after):08x}"))
                result = self.train("mlp.yaml", *kind, "--resume", launcher=launcher, status=2, timeout=15)
                goes_on, problem = (line for line in self.messages(result) if "cores" not in line)
                self.assertIn("continues after step 2", goes_on)
                self.assertRegex(problem, r"rank-0000\.safetensors: tensor head\.bias: is missing, or has another shape")

    def test_a_folder_with_checkpoints(self):
        """Nothing of an earlier run is touched without --resume."""
        self.train("mlp.yaml")
        before = {name: self.bytes(f"ck/{name}/manifest.json") for name in self.checkpoints()}
        for launcher in ([], LAUNCHER):
            result = self.train("mlp.yaml", launcher=launcher, status=2)
            self.assertEqual(len(self.messages(result)), 1, result.stderr)
            self.assertIn("checkpoint.folder: ck has checkpoints; resume from them", result.stderr)
        self.assertEqual({name: self.bytes(f"ck/{name}/manifest.json") for name in self.checkpoints()}, before)

    def test_options(self):
        self.refused(["train", "mlp.yaml", "--resume", *settings("checkpoint=")], "--set checkpoint")
        self.write("none.yaml", MLP.replace("checkpoint:", "#"))
        self.refused(["train", "none.yaml", "--resume"], "--resume", "checkpoint.folder")
        self.refused(["train", "none.yaml", *settings("checkpoint.every=2")], "checkpoint.every", "checkpoint.folder")
        self.refused(["train", "mlp.yaml", *settings("runtime.emulate={F: 1ms, B: 1ms, W: 1ms}", "checkpoint={folder: ck}")],
                     "checkpoint.folder", "runtime.emulate")

    def test_files_of_metrics(self):
        """--resume cuts the file at the checkpoint, and touches no file that is another run's."""
        self.train("mlp.yaml", "--metrics", "m.jsonl")
        whole = self.read("m.jsonl")
        self.write("m.jsonl", whole + '{"step":5,"loss":')  # a line that a crash has cut short
        self.train("mlp.yaml", "--resume", "--metrics", "m.jsonl", *settings("training.steps=5"))
        self.assertEqual([line["step"] for line in self.metrics("m.jsonl")], [1, 2, 3, 4, 5])
        self.assertTrue(self.read("m.jsonl").startswith(whole))
        self.train("mlp.yaml", "--resume", "--metrics", "new.jsonl", *settings("training.steps=6"))
        self.assertEqual([line["step"] for line in self.metrics("new.jsonl")], [6])
        changed = self.read("new.jsonl").replace('"loss":0.', '"loss":1.')
        for content in ("my notes\n", whole[:-20], whole, whole.replace('"step":4', '"step":9') * 2, changed):
            self.write("other", content)
            self.refused(["train", "mlp.yaml", "--resume", "--metrics", "new.jsonl", *settings("training.steps=2")],
                         "step-00000006")
            result = self.train("mlp.yaml", "--resume", "--metrics", "other", *settings("training.steps=7"), status=2)
            self.assertIn("metrics: other is not the record of this training up to step 6", result.stderr)
            self.assertEqual(self.read("other"), content)

    def test_no_checkpoint_yet(self):
        """One command line for a job that may be started again: it begins with step 1, and so does its file of metrics."""
        before = '{"step":1,"loss":1.5}\n{"step":2'
        self.write("m.jsonl", before)
        result = self.train("mlp.yaml", "--resume", "--metrics", "m.jsonl")
        self.assertEqual(self.messages(result), [
            "starpipe: resume: ck has no checkpoint; training begins with step 1",
            "starpipe: metrics: m.jsonl had metrics of steps that are done again; it is m.jsonl.old now"])
        self.assertEqual([line["step"] for line in self.metrics("m.jsonl")], [1, 2, 3, 4])
        self.assertEqual(self.read("m.jsonl.old"), before)
        # A link stays one: the record is renamed where it is.
        shutil.rmtree(self.path("ck"))
        os.mkdir(self.path("disk"))
        self.write("disk/m.jsonl", before)
        os.symlink("disk/m.jsonl", self.path("linked.jsonl"))
        self.train("mlp.yaml", "--resume", "--metrics", "linked.jsonl")
        self.assertTrue(os.path.islink(self.path("linked.jsonl")))
        self.assertEqual(self.read("disk/m.jsonl.old"), before)
        self.assertEqual([line["step"] for line in self.metrics("disk/m.jsonl")], [1, 2, 3, 4])
        shutil.rmtree(self.path("ck"))
        self.write("m.jsonl", "my notes\n")
        result = self.train("mlp.yaml", "--resume", "--metrics", "m.jsonl", status=2)
        self.assertIn("metrics: m.jsonl is not the record", result.stderr)
        self.assertEqual(self.read("m.jsonl"), "my notes\n")


class Faults(CheckpointTest):
    def damage(self, name, rank=0):
        file = pathlib.Path(self.path(f"ck/{name}/rank-000{rank}.safetensors"))
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

    def test_damage(self):
        """The newest whole checkpoint counts, and the run says which it skips. It never begins anew in silence."""
        self.run_once("mlp.yaml")
        self.train("mlp.yaml")
        self.damage("step-00000004")
        result = self.train("mlp.yaml", "--resume", "--save-weights", "w.safetensors")
        first, second = self.messages(result)[:2]
        self.assertRegex(first, r"skipped the checkpoint of step 4: .*rank-0000\.safetensors")
        self.assertRegex(second, r"continues after step 2 of 4, from ck/step-00000002$")
        self.assertEqual(self.bytes("w.safetensors"), self.bytes("once.safetensors"))
        for name in self.checkpoints():
            if not name.endswith(".damaged"):
                self.damage(name)
        self.refused(["train", "mlp.yaml", "--resume"], "resume: no checkpoint in ck can be read", "rank-0000.safetensors")

    def test_damage_with_two_ranks(self):
        """Each rank checks half of the files; the first that is damaged is named."""
        self.run_once("mlp.yaml")
        for launcher in (LAUNCHER, ()):
            for ranks in ((1,), (1, 0)):
                with self.subTest(launcher=launcher, ranks=ranks):
                    shutil.rmtree(self.path("ck"), ignore_errors=True)
                    self.train("mlp.yaml", launcher=LAUNCHER)
                    for rank in ranks:
                        self.damage("step-00000004", rank)
                    result = self.train("mlp.yaml", "--resume", "--save-weights", "w.safetensors", launcher=launcher)
                    lines = [line for line in self.messages(result) if "resume: " in line]
                    self.assertRegex(lines[0], rf"skipped the checkpoint of step 4: .*rank-000{ranks[-1]}\.safetensors: has checksum")
                    self.assertRegex(lines[1], r"continues after step 2 of 4, from ck/step-00000002$")
                    self.assertEqual(self.bytes("w.safetensors"), self.bytes("once.safetensors"))

    def test_the_only_one_is_damaged(self):
        self.train("mlp.yaml", *settings("checkpoint.keep=1"))
        (name,) = self.checkpoints()
        self.damage(name)
        self.refused(["train", "mlp.yaml", "--resume"], "resume: no checkpoint in ck can be read", "rank-0000.safetensors")

    def test_a_link_that_leads_nowhere(self):
        """It may lead to a checkpoint on a disk that is not mounted."""
        self.train("mlp.yaml")
        for name in ("step-00000004", "step-00000002"):
            shutil.rmtree(self.path(f"ck/{name}"))
            os.symlink("/nowhere", self.path(f"ck/{name}"))
            if name == "step-00000004":
                result = self.train("mlp.yaml", "--resume", *settings("training.steps=3"))
                self.assertRegex(self.messages(result)[0], "skipped the checkpoint of step 4: .*manifest.json: is missing")
                self.assertTrue(os.path.islink(self.path("ck/step-00000004.damaged")))
                shutil.rmtree(self.path("ck/step-00000003"))
        self.refused(["train", "mlp.yaml", "--resume"], "resume: no checkpoint in ck can be read", "is missing")
        self.refused(["train", "mlp.yaml"], "ck has checkpoints")

    def test_infinite_weights_are_no_checkpoint(self):
        """They would push out the good ones, and no later run could be resumed."""
        self.train("mlp.yaml", *settings("training.steps=3", "checkpoint.every=1", "checkpoint.keep=1"))
        for how in ("stop", "skip"):
            result = self.train("mlp.yaml", "--resume", *settings(
                "training.steps=5" if how == "skip" else "training.steps=4", "checkpoint.every=1", "checkpoint.keep=1",
                f"training.nonfinite={how}", "training.optimizer={kind: adamw, learning_rate: 3e38, weight_decay: 100}"), status=1)
            self.assertRegex("\n".join(self.messages(result)),
                             "the checkpoint of step 4 could not be written: .* has infinity or NaN")
            self.assertEqual(self.checkpoints(), ["step-00000003"])

    def test_the_steps_fail(self):
        """The checkpoint of an earlier step is finished first."""
        result = self.train("mlp.yaml", *settings("checkpoint.every=1", "training.optimizer={kind: sgd, learning_rate: 1e30}"),
                            status=1)
        self.assertRegex(self.messages(result)[-1], "step 2, .*infinity or NaN")
        self.assertEqual(self.checkpoints(), ["step-00000001"])

    def start(self, *arguments, launcher=()):
        environment = {k: v for k, v in os.environ.items() if k not in LAUNCHER_RANKS}
        with open(self.path("log"), "wb") as log:
            job = subprocess.Popen([*launcher, self.binary, "train", *arguments], cwd=self.folder, env=environment,
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        return job

    def wait_for(self, job, holds):
        held = wait_until(lambda: job.poll() is not None or holds())
        self.assertIsNone(job.poll(), self.read("log"))
        self.assertTrue(held, self.read("log"))

    def steps(self):
        """Returns the number of lines that --metrics has written."""
        try:
            return self.read("m.jsonl").count("\n")
        except OSError:
            return 0

    def test_two_runs_in_one_folder(self):
        job = self.start("mlp.yaml", *ENDLESS, "--metrics", "m.jsonl")
        self.wait_for(job, self.steps)
        self.refused(["train", "mlp.yaml", "--resume"], "ck is in use by process ")
        job.kill()
        job.wait()

    def test_a_folder_that_ranks_do_not_share(self):
        """Each rank has a folder of this name of its own, as on the disks of two hosts."""
        script = 'mkdir -p own$PMI_RANK/ck; cd own$PMI_RANK; exec "$0" "$@"'
        for lock in "", '{"host": "a", "pid": 1}':
            if lock:
                self.write("own1/ck/lock", lock)
            result = self.run_command("train", self.path("mlp.yaml"), launcher=[*LAUNCHER, "sh", "-c", script])
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(len(self.messages(result)), 1)
            self.assertRegex(result.stderr, r"starpipe: checkpoint.folder: ck is not the same folder on rank 1 \(host \S+\) and rank 0 "
                                            r"\(host \S+\); name a folder that all ranks share\n")
            self.assertEqual(os.listdir(self.path("own0/ck")), ["lock"])

    def test_a_checkpoint_that_cannot_be_written(self):
        """Training continues; the status tells when the last checkpoint is missing. `ulimit -f` stands for a full disk."""
        self.write("large.yaml", MLP.replace("hidden: 16", "hidden: 1024"))
        limit = 9 << 20  # less than a checkpoint of 12 MiB, enough for MPI
        result = subprocess.run([self.binary, "train", "large.yaml", "--report", "r.json", "--metrics", "/dev/full"], cwd=self.folder, timeout=100,
                                capture_output=True, text=True, check=False,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertEqual(result.returncode, 1, result.stderr)
        lines = self.messages(result)
        self.assertEqual(len(lines), 4, result.stderr)
        no_metrics = "metrics: cannot write /dev/full: No space left on device; "
        self.assertIn(f"{no_metrics}training continues", lines[0])
        for line, step in zip(lines[1:], (2, 4)):
            self.assertRegex(line, rf"the checkpoint of step {step} could not be written: .*rank-0000\.safetensors.*: File too large")
        self.assertIn(f"the last checkpoint, of step 4, could not be written; {no_metrics}its last lines are lost", lines[3])
        self.assertEqual(self.checkpoints(), [])
        report = self.report("r.json")
        self.assertEqual((len(report["losses"]), report["checkpoints"]["failed"]), (4, 2))

    def test_a_signal_asks_for_a_checkpoint(self):
        """SIGUSR1, or the configured one, to any process of any rank or to the launcher; training continues."""
        for launcher, word, of_rank in (((), "USR1", False), (LAUNCHER, "USR1", False), (LAUNCHER, "USR2", True)):
            with self.subTest(ranks=2 if launcher else 1, signal=word):
                shutil.rmtree(self.path("ck"), ignore_errors=True)
                pathlib.Path(self.path("m.jsonl")).unlink(missing_ok=True)
                job = self.start("mlp.yaml", *ENDLESS, "--metrics", "m.jsonl", *settings(f"checkpoint.on_signal={word}"),
                                 launcher=launcher)
                self.wait_for(job, self.steps)
                os.kill(max(self.processes(job)) if of_rank else job.pid, getattr(signal, f"SIG{word}"))
                self.wait_for(job, lambda: [name for name in self.checkpoints() if "writing" not in name])
                steps = self.steps()
                self.wait_for(job, lambda steps=steps: self.steps() > steps)
                self.end_by_sigterm(job)
                self.assertLessEqual(len(self.checkpoints()), 3)

    def test_no_memory_for_the_copy(self):
        """The checkpoint is lost, with a line, and training continues. A limit on a rank's addresses stands for a full memory."""
        # Matrices of 64 MiB: the allocator reserves 64 MiB of addresses for each thread, which the limit does not concern.
        self.write("large.yaml", MLP.replace("hidden: 16", "hidden: 4096"))
        for launcher in (), LAUNCHER:
            workers = 2 if launcher else 1
            with self.subTest(launcher=launcher):
                shutil.rmtree(self.path("ck"), ignore_errors=True)
                pathlib.Path(self.path("m.jsonl")).unlink(missing_ok=True)
                job = self.start("large.yaml", *ENDLESS, "--metrics", "m.jsonl", *settings(f"schedule.workers={workers}"),
                                 launcher=launcher)
                self.wait_for(job, self.steps)
                pids = self.processes(job) if launcher else [self.child_of(job)]
                sizes = {pid: int(re.search(r"VmSize:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())[1])
                         for pid in pids}
                limit = (max(sizes.values()) + (20 << 10)) << 10
                for pid in pids:
                    resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
                os.kill(job.pid, signal.SIGUSR1)
                lost = r"the checkpoint of step \d+ could not be written: rank \d has no memory for a copy of the weights\n"
                self.wait_for(job, lambda: re.search(lost, self.read("log")))
                for pid in pids:
                    resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                self.end_by_sigterm(job)
                self.assertEqual(len(self.checkpoints()), 1)

    def child_of(self, job):
        (child,) = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        return int(child)

    def processes(self, job):
        """Returns the processes of both ranks."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if os.path.samefile(entry / "cwd", self.folder) and os.path.samefile(entry / "exe", self.binary):
                    found.append(int(entry.name))
            except OSError:
                pass
        self.assertEqual(len(found), 4, f"two per rank, besides process {job.pid}")
        return found

    def end_by_sigterm(self, job):
        os.kill(job.pid, signal.SIGTERM)
        self.assertEqual(job.wait(60), 75, self.read("log"))
        lines = [line for line in self.read("log").splitlines() if line.startswith("starpipe: ")]
        self.assertRegex(lines[-1], r"ended by SIGTERM after step (\d+) of 1000000; --resume continues from its checkpoint")
        step = int(re.search(r"after step (\d+)", lines[-1])[1])
        self.assertEqual(self.checkpoints()[-1], f"step-{step:08}")
        self.assertEqual(self.steps(), step)
        return step

    def test_sigterm_ends_the_run_with_a_checkpoint(self):
        """And the resumed run has the same bits; the report tells that the run is not complete."""
        for launcher in ((), LAUNCHER):
            with self.subTest(ranks=2 if launcher else 1):
                for name in ("ck", "once"):
                    shutil.rmtree(self.path(name), ignore_errors=True)
                for name in ("m.jsonl", "once.jsonl"):
                    pathlib.Path(self.path(name)).unlink(missing_ok=True)
                job = self.start("mlp.yaml", *ENDLESS, "--metrics", "m.jsonl", "--report", "r.json", launcher=launcher)
                self.wait_for(job, self.steps)
                step = self.end_by_sigterm(job)
                self.assertFalse(self.report("r.json")["complete"])
                self.run_once("mlp.yaml", f"training.steps={step + 2}", "checkpoint.every=1000000")
                self.train("mlp.yaml", "--resume", *settings(f"training.steps={step + 2}", "checkpoint.every=1000000"),
                           "--metrics", "m.jsonl", "--save-weights", "w.safetensors")
                self.assertEqual(self.metrics("m.jsonl"), self.metrics("once.jsonl"))
                self.assertEqual(self.bytes("w.safetensors"), self.bytes("once.safetensors"))

    def test_sigterm_in_the_last_step(self):
        """The run is complete, so its last validation is there, too."""
        large = settings("model.hidden=256", "training.microbatch_size=64", "training.steps=1", "data.validation=text")
        job = self.start("gpt.yaml", *large, "--metrics", "m.jsonl")
        self.wait_for(job, self.steps)
        os.kill(job.pid, signal.SIGTERM)
        self.assertEqual(job.wait(60), 0, self.read("log"))
        self.assertEqual([(line["step"], "validation_loss" in line) for line in self.metrics("m.jsonl")],
                         [(0, True), (1, False), (1, True)])

    def test_the_same_sigterm_comes_late(self):
        """A batch system signals each process of a rank, and some of these signals arrive while the run ends."""
        job = self.start("mlp.yaml", *ENDLESS, "--metrics", "m.jsonl")
        self.wait_for(job, self.steps)
        os.kill(self.child_of(job), signal.SIGTERM)
        while job.poll() is None:
            os.kill(job.pid, signal.SIGTERM)
            time.sleep(0.001)
        self.assertEqual(job.returncode, 75, self.read("log"))
        self.assertNotIn("was ended by signal", self.read("log"))

    def test_sigterm_reaches_the_ranks_at_different_times(self):
        """As on a cluster: when one rank's SIGTERM has stopped the run, the other ranks' signals are still on their way."""
        for first in range(2):
            with self.subTest(first=first):
                shutil.rmtree(self.path("ck"), ignore_errors=True)
                pathlib.Path(self.path("m.jsonl")).unlink(missing_ok=True)
                job = self.start("mlp.yaml", *ENDLESS, "--metrics", "m.jsonl", launcher=LAUNCHER)
                self.wait_for(job, self.steps)
                rank_of = {pid: launcher_rank(pid) for pid in self.processes(job)}
                for pid in (pid for pid, rank in rank_of.items() if rank == first):
                    os.kill(pid, signal.SIGTERM)
                self.wait_for(job, lambda: "ended by SIGTERM after step" in self.read("log"))
                while job.poll() is None:
                    for pid in (pid for pid, rank in rank_of.items() if rank != first):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGTERM)
                    time.sleep(0.01)
                self.assertEqual(job.returncode, 75, self.read("log"))
                self.assertNotIn("was ended by signal", self.read("log"))

    def test_sigterm_before_the_first_step_ends_at_once(self):
        """An evaluation comes before it, which may take long."""
        self.write("text", "The quick brown fox jumps over the lazy dog. " * 20000)
        job = self.start("gpt.yaml", *ENDLESS, "--metrics", "m.jsonl",
                         *settings("data.validation=text", "evaluate={every: 10, microbatches: 200000}"))
        self.wait_for(job, pathlib.Path(self.path("m.jsonl")).exists)
        time.sleep(1)  # the evaluation begins
        os.kill(job.pid, signal.SIGTERM)
        self.assertEqual(job.wait(20), 128 + signal.SIGTERM, self.read("log"))
        self.assertEqual(self.steps(), 0)

    def test_a_second_sigterm_ends_at_once(self):
        self.write("slow.yaml", MLP.replace("hidden: 16", "hidden: 2048").replace("microbatch_size: 2", "microbatch_size: 8192"))
        job = self.start("slow.yaml", *ENDLESS, "--metrics", "m.jsonl")
        self.wait_for(job, pathlib.Path(self.path("m.jsonl")).exists)
        time.sleep(1)  # the first step begins
        os.kill(job.pid, signal.SIGTERM)
        time.sleep(2.5)
        if job.poll() is None:
            os.kill(job.pid, signal.SIGTERM)
            self.assertEqual(job.wait(10), 128 + signal.SIGTERM, self.read("log"))
        else:
            self.fail("the step was too short for a second signal")

    def test_without_on_signal(self):
        job = self.start("mlp.yaml", *ENDLESS, "--metrics", "m.jsonl", *settings("checkpoint.on_signal=none"))
        self.wait_for(job, self.steps)
        os.kill(job.pid, signal.SIGTERM)
        self.assertEqual(job.wait(20), 128 + signal.SIGTERM, self.read("log"))
        self.assertEqual(self.checkpoints(), [])


if __name__ == "__main__":
    LAUNCHER = sys.argv[2:]
    CommandTest.binary = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1], verbosity=2)
