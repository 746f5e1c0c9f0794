# SPDX-License-Identifier: Apache-2.0
"""Training on files of tokens: their forms, the order of samples, and files that turn out to be bad, on one and two ranks.

Usage: data_test.py BINARY LAUNCHER..., the launcher being what starts two ranks.
"""

import array
import json
import os
import pathlib
import shlex
import struct
import subprocess
import sys
import time
import unittest

from support import CommandTest

LAUNCHER = []
CONTEXT = 16


def header(magic, version, tokens):
    """A header of llm.c: 256 numbers of 4 bytes."""
    return array.array("i", [magic, version, tokens] + 253 * [0]).tobytes()


class Data(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("c.yaml", f"""model: {{kind: gpt, layers: 1, hidden: 8, heads: 2, context: {CONTEXT}, vocabulary: 300}}
data: {{kind: tokens, path: tokens.bin}}
training: {{steps: 3, microbatches: 4, microbatch_size: 2}}
schedule: {{name: 1f1b, workers: 2}}
""")
        self.text = ("The quick brown fox jumps over the lazy dog. " * 40).encode()
        self.tokens = array.array("H", [token % 300 for token in range(100_000)])
        self.save("tokens.bin", self.tokens.tobytes())

    def save(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)

    def train(self, *settings, launcher=()):
        """The report of a run that must succeed."""
        arguments = [word for setting in settings for word in ("--set", setting)]
        result = self.run_command("train", "c.yaml", "--report", "r.json", *arguments, launcher=launcher)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("r.json"))

    def ends(self, status, line, *arguments, launcher=()):
        """The run ends with this status, and one line of ours on standard error that has `line`."""
        result = self.run_command("train", "c.yaml", *arguments, launcher=launcher)
        lines = [text for text in result.stderr.splitlines() if text.startswith("starpipe: ")]
        with self.subTest(arguments=arguments, ranks=2 if launcher else 1, stderr=result.stderr):
            self.assertEqual((result.returncode, len(lines)), (status, 1))
            self.assertIn(line, lines[0])

    def test_the_same_tokens_in_any_form(self):
        numbers = list(self.text)
        two, four = array.array("H", numbers).tobytes(), array.array("I", numbers).tobytes()
        self.save("text", self.text)
        self.save("flat.bin", two)
        self.save("v1.bin", header(20240520, 1, len(numbers)) + two)
        self.save("v7.bin", header(20240801, 7, len(numbers)) + four)
        for order in ("random", "shuffled"):
            runs = [self.train(f"data={{kind: {kind}, path: {path}, order: {order}}}", launcher=launcher)
                    for kind, path in (("text", "text"), ("tokens", "flat.bin"), ("tokens", "v1.bin"), ("tokens", "v7.bin"))
                    for launcher in ([], LAUNCHER)]  # fmt: skip
            for run in runs:
                self.assertEqual((run["losses"], run["offsets"]), (runs[0]["losses"], runs[0]["offsets"]))
            self.assertGreater(runs[0]["losses"][0], 4)

    def test_weights_in_several_files(self):
        """By their index, as Hugging Face publishes larger models. No output may replace one of the files."""
        self.run_command("train", "c.yaml", "--save-weights", "one.safetensors")
        data = pathlib.Path(self.path("one.safetensors")).read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        tensors = json.loads(data[8:start])
        tensors.pop("__metadata__")
        files = {}
        for number, (name, tensor) in enumerate(sorted(tensors.items())):
            begin, end = tensor["data_offsets"]
            header, values = files.setdefault(f"part-{number % 2}.safetensors", ({}, bytearray()))
            header[name] = {**tensor, "data_offsets": [len(values), len(values) + end - begin]}
            values += data[start + begin:start + end]
        for file, (header, values) in files.items():
            text = json.dumps(header).encode()
            self.save(file, struct.pack("<Q", len(text)) + text + values)
        self.write("w.index.json", json.dumps({"weight_map": {name: file for file, (header, _) in files.items()
                                                              for name in header}}))
        losses = [self.train(f"model.init={file}")["losses"] for file in ("one.safetensors", "w.index.json")]
        self.assertEqual(losses[0], losses[1])
        self.refused(["train", "c.yaml", "--set", "model.init=w.index.json", "--save-weights", "part-1.safetensors"],
                     "--save-weights", "part-1.safetensors", "input")

    def test_a_shuffled_epoch(self):
        """Each sequence once per epoch, whatever the schedule, the ranks and the micro-batches. Three steps are an epoch."""
        sequences = 3 * 8
        self.save("tokens.bin", self.tokens[: sequences * CONTEXT + 1].tobytes())
        shuffled = "data.order=shuffled"
        orders = []
        for settings, launcher in (((), []), ((), LAUNCHER), (("schedule.name=gpipe", "schedule.workers=3"), []),
                                   (("training.microbatches=2", "training.microbatch_size=4"), [])):
            report = self.train(shuffled, *settings, launcher=launcher)
            orders.append([start for step in report["offsets"] for microbatch in step for start in microbatch])
        self.assertEqual(sorted(orders[0]), [CONTEXT * i for i in range(sequences)])
        self.assertNotEqual(sorted(orders[0]), orders[0])
        for order in orders[1:]:
            self.assertEqual(order, orders[0])
        other = self.train(shuffled, "training.seed=2")["offsets"]
        self.assertNotEqual([start for step in other for microbatch in step for start in microbatch], orders[0])

    def test_files_that_cannot_be_read(self):
        whole = self.tokens.tobytes()
        for data, why in ((b"", "tokens.bin has 0 tokens, fewer than model.context + 1 = 17"),
                          (whole[: 2 * CONTEXT], "tokens.bin has 16 tokens"),
                          (whole[:-1], "tokens.bin: has 199999 bytes, an odd number"),
                          (header(20240520, 1, 100)[:1000], "tokens.bin: begins with the magic number 20240520 but has 1000 "),
                          (header(20240520, 2, 100) + whole[:200], "tokens.bin: has the magic number 20240520 with version 2"),
                          (header(20240520, 1, 100) + whole[:198], "counts 100 tokens of 2 bytes, but 198 bytes follow"),
                          (header(20240522, 1, 100) + whole[:200], "begins with the magic number 20240522, expected"),
                          (array.array("q", self.tokens).tobytes(), "every second uint16 is 0")):  # fmt: skip
            self.save("tokens.bin", data)
            for launcher in ([], LAUNCHER):
                self.ends(2, why, launcher=launcher)
            self.refused(["simulate", "c.yaml"], why)
        os.remove(self.path("tokens.bin"))
        os.mkfifo(self.path("tokens.bin"))
        for launcher in ([], LAUNCHER):
            self.ends(2, "tokens.bin: is not a file", launcher=launcher)
            self.ends(2, ".: is not a file", "--set", "data.path=.", launcher=launcher)
        if os.geteuid() != 0:  # root may read anything
            self.save("closed.bin", whole)
            os.chmod(self.path("closed.bin"), 0)
            self.ends(2, "closed.bin: cannot be read: Permission denied", "--set", "data.path=closed.bin")

    def test_the_vocabulary(self):
        small = ["--set", "model.vocabulary=299"]
        for launcher in ([], LAUNCHER):
            self.ends(2, "tokens.bin: token 299 at position ", *small, launcher=launcher)
        self.save("text", self.text)
        self.ends(2, "model.vocabulary: 255 is less than 256", "--set", "data={kind: text, path: text}", "--set",
                  "model.vocabulary=255")
        self.ends(2, "model.vocabulary: must be at most 16777216", "--set", "model.vocabulary=16777217")
        self.save("tokens.bin", bytes(1000))
        self.assertEqual(self.train("model.vocabulary=1")["losses"], [0, 0, 0])

    def test_a_bad_token_ends_the_run_when_it_is_read(self):
        """The token is in the third step: in an input, or in the last target, which only the last stage reads."""
        starts = self.train()["offsets"][2]
        for position in (starts[1][0] + 3, starts[2][1] + CONTEXT):
            tokens = self.tokens[:]
            tokens[position] = 301
            self.save("tokens.bin", tokens.tobytes())
            line = f"starpipe: step 3: tokens.bin: token 301 at position {position} is not below model.vocabulary, 300"
            for launcher in ([], LAUNCHER):
                for policy in ("starpipe", "lws"):
                    self.ends(2, line, "--set", f"runtime.policy={policy}", "--save-weights", "w", launcher=launcher)
                    self.assertFalse(os.path.exists(self.path("w")))
        result = self.run_command("compare", "c.yaml", "--policies", "starpipe", "--repetitions", 1)
        self.assertEqual((result.returncode, result.stderr.splitlines()[-1]), (2, line))

    def test_a_file_that_becomes_shorter(self):
        for launcher in ([], LAUNCHER):
            self.save("tokens.bin", self.tokens.tobytes())
            with subprocess.Popen([*launcher, self.binary, "train", "c.yaml", "--set", "training.steps=100000"],
                                  cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True) as run:  # fmt: skip
                self.assertIn("step ", run.stderr.readline())
                time.sleep(0.2)
                os.truncate(self.path("tokens.bin"), 1000)
                _, errors = run.communicate(timeout=60)
            lines = [line for line in errors.splitlines() if line.startswith("starpipe: ")]
            with self.subTest(ranks=2 if launcher else 1, errors=errors):
                self.assertEqual((run.returncode, len(lines)), (2, 1))
                self.assertRegex(lines[0], r"^starpipe: step \d+: tokens.bin: has become shorter during the run: 1000 bytes, "
                                 "200000 at its start$")

    def test_ranks_with_different_files(self):
        for rank in (0, 1):
            os.mkdir(self.path(f"host{rank}"))
            self.save(f"host{rank}/tokens.bin", self.tokens[rank:].tobytes())
        result = self.on_two_hosts("train ../c.yaml")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("starpipe: data.path: tokens.bin is not the same file on all ranks\n", result.stderr)

    def test_ranks_that_resume_from_different_checkpoints(self):
        for rank in (0, 1):
            self.train("training.steps=1", f"training.optimizer.learning_rate={rank + 1}e-3",
                       f"checkpoint={{folder: host{rank}/ck, every: 1}}")
        settings = "--set data.path=../tokens.bin --set checkpoint.folder=ck"
        result = self.on_two_hosts(f"train ../c.yaml --resume {settings}")
        lines = [line for line in result.stderr.splitlines() if "checkpoint" in line and "ck" in line and "continues" not in line]
        self.assertEqual((result.returncode, len(lines)), (2, 1), result.stderr)

    def on_two_hosts(self, arguments):
        """Runs the command on two ranks, each in a folder of its own."""
        command = f"cd host$PMI_RANK && exec {shlex.quote(self.binary)} {arguments}"
        return subprocess.run([*LAUNCHER, "sh", "-c", command], cwd=self.folder, stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=60, check=False)


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv[1])
    LAUNCHER = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
