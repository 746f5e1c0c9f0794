# SPDX-License-Identifier: Apache-2.0
"""Files of `train --save-weights`: their types, several files with an index, ranks that share no folder.

Usage: weights_test.py BINARY LAUNCHER..., the launcher being what starts two ranks.
"""

import array
import json
import math
import os
import pathlib
import struct
import sys
import unittest

from support import CommandTest, gpt_config

LAUNCHER = []
UNTRAINED = ("--set", "training.steps=1", "--set", "training.optimizer={kind: sgd, learning_rate: 0}")


def bf16(bits):
    """The value of the upper half of a float."""
    return struct.unpack("<f", struct.pack("<HH", 0, bits))[0]


def rounded_bf16(value):
    """The nearest bf16, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return bf16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def rounded_fp16(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def read_tensors(path):
    """Returns name -> (type, shape, values) of a file."""
    data = pathlib.Path(path).read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        bits = data[start + begin:start + end]
        if entry["dtype"] == "BF16":
            values = [bf16(one) for one in array.array("H", bits)]
        else:
            values = [one for one, in struct.iter_unpack({"F32": "<f", "F16": "<e"}[entry["dtype"]], bits)]
        assert len(values) == math.prod(entry["shape"])
        tensors[name] = (entry["dtype"], entry["shape"], values)
    assert start + max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__") == len(data)
    return tensors


class SavedWeights(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("text", "The quick brown fox jumps over the lazy dog. " * 5)
        self.write("gpt.yaml", gpt_config(self.path("text")))

    def save(self, *arguments, launcher=(), status=0):
        result = self.run_command("train", self.path("gpt.yaml"), *arguments, launcher=launcher)
        self.assertEqual(result.returncode, status, result.stderr)
        lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
        return [line for line in lines if "has a worker on each of its cores" not in line]

    def leftovers(self):
        return [name for name in os.listdir(self.folder) if name.startswith(".")]

    def test_types(self):
        """Numbers are rounded to the nearest, from any number of ranks, also from shards of tensors and a tied table."""
        for sets in ([], ["--set", "model.tensor=2", "--set", "model.tied=true"]):
            self.save(*sets, "--save-weights", "w.safetensors")
            exact = read_tensors(self.path("w.safetensors"))
            for (word, name, rounded), launcher in ((("bf16", "BF16", rounded_bf16), LAUNCHER), (("fp16", "F16", rounded_fp16), []),
                                                    (("fp32", "F32", lambda value: value), LAUNCHER)):
                self.save(*sets, "--save-weights", f"{word}.safetensors", "--save-precision", word, launcher=launcher)
                saved = read_tensors(self.path(f"{word}.safetensors"))
                self.assertEqual(saved, {key: (name, shape, [rounded(value) for value in values])
                                         for key, (_, shape, values) in exact.items()})
            # They load with these values.
            self.save(*sets, *UNTRAINED, "--set", "model.init=bf16.safetensors", "--save-weights", "loaded.safetensors")
            loaded = read_tensors(self.path("loaded.safetensors"))
            self.assertEqual({key: values for key, (_, _, values) in loaded.items()},
                             {key: [rounded_bf16(value) for value in values] for key, (_, _, values) in exact.items()})

    def test_several_files(self):
        self.save("--save-weights", "one.safetensors")
        exact = read_tensors(self.path("one.safetensors"))
        for launcher in ([], LAUNCHER):
            for limit in ("5000", "5KB"):
                self.save("--save-weights", "w.safetensors", "--max-shard-size", limit, launcher=launcher)
                index = json.loads(self.read("w.safetensors.index.json"))
                files = sorted(set(index["weight_map"].values()))
                count = len(files)
                self.assertGreater(count, 3)
                self.assertEqual(files, [f"w-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)])
                self.assertEqual(index["metadata"]["total_size"], sum(4 * len(values) for _, _, values in exact.values()))
                seen = {}
                for file in files:
                    tensors = read_tensors(self.path(file))
                    self.assertEqual({index["weight_map"][name] for name in tensors}, {file})
                    size = sum(4 * len(values) for _, _, values in tensors.values())
                    self.assertTrue(size <= 5000 or len(tensors) == 1, (file, size))
                    seen.update(tensors)
                self.assertEqual(seen, exact)
                self.assertEqual(self.leftovers(), [])
        self.save(*UNTRAINED, "--set", "model.init=w.safetensors.index.json", "--save-weights", "loaded.safetensors")
        self.assertEqual(read_tensors(self.path("loaded.safetensors")), exact)
        # One file where the limit is large enough; then the index would be passed over.
        self.save("--save-weights", "small.safetensors", "--max-shard-size", "1GiB")
        self.assertEqual(read_tensors(self.path("small.safetensors")), exact)
        line, = self.save("--save-weights", "small.safetensors", "--max-shard-size", "5KB", status=2)
        self.assertIn("weights: small.safetensors exists", line)
        # No part may replace an input.
        before = pathlib.Path(self.path(files[0])).read_bytes()
        line, = self.save("--set", "model.init=w.safetensors.index.json", "--save-weights", "w.safetensors",
                          "--max-shard-size", "5000", status=2)
        self.assertIn("is also an input", line)
        self.assertEqual(pathlib.Path(self.path(files[0])).read_bytes(), before)
        line, = self.save("--save-weights", "/dev/null", "--max-shard-size", "5000", status=2)
        self.assertIn("--max-shard-size: /dev/null", line)

    def test_numbers_beyond_the_range(self):
        """They are named, and the trained weights are not lost."""
        self.save(*UNTRAINED, "--save-weights", "w.safetensors")
        data = bytearray(pathlib.Path(self.path("w.safetensors")).read_bytes())
        start = 8 + struct.unpack("<Q", data[:8])[0]
        first = start + json.loads(data[8:start])["transformer.h.1.mlp.c_fc.bias"]["data_offsets"][0]
        for value, word, status in ((65519.0, "fp16", 0), (-65520.0, "fp16", 1), (65520.0, "bf16", 0)):
            data[first + 4:first + 8] = struct.pack("<f", value)
            pathlib.Path(self.path("large.safetensors")).write_bytes(data)
            for launcher in ([], LAUNCHER):
                lines = self.save(*UNTRAINED, "--set", "model.init=large.safetensors", "--save-weights", "out.safetensors",
                                  "--save-precision", word, launcher=launcher, status=status)
                saved = read_tensors(self.path("out.safetensors"))["transformer.h.1.mlp.c_fc.bias"]
                if status == 0:
                    self.assertEqual(saved[2][1], {"fp16": 65504.0, "bf16": 65536.0}[word])
                else:
                    self.assertEqual((saved[0], saved[2][1]), ("F32", value))
                    self.assertIn("weights: transformer.h.1.mlp.c_fc.bias holds -65520, which fp16 cannot; out.safetensors "
                                  "has the weights in fp32", lines[0])

    def of_rank_1(self, command):
        """Two ranks, the second of which runs a command of the shell first."""
        script = f'if [ "${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}" = 1 ]; then {command}; fi; exec "$0" "$@"'
        return [*LAUNCHER, "sh", "-c", script]

    def test_ranks_that_share_no_folder(self):
        """Rank 0 says so before the first step, and writes all."""
        self.save("--save-weights", "one.safetensors")
        os.mkdir(self.path("other"))
        line, = self.save("--save-weights", "/proc/self/cwd/w.safetensors", launcher=self.of_rank_1("cd other"))
        self.assertRegex(line, r"^starpipe: --save-weights: the ranks do not share the folder of /proc/self/cwd.*: rank 1 does not find "
                               r"rank 0's file, so rank 0 receives each parameter and writes it$")
        self.assertEqual(read_tensors(self.path("w.safetensors")), read_tensors(self.path("one.safetensors")))
        self.assertEqual((self.leftovers(), os.listdir(self.path("other"))), ([], []))

    def test_a_rank_that_cannot_write(self):
        """The earlier file stays."""
        self.write("w.safetensors", "mine")
        wide = ("--set", "model.hidden=512")
        line, = self.save(*wide, "--save-weights", "w.safetensors", launcher=self.of_rank_1("ulimit -f 17000"), status=1)
        self.assertIn("rank 1: safetensors: cannot write w.safetensors: File too large", line)
        self.assertEqual((self.read("w.safetensors"), self.leftovers()), ("mine", []))


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv[1])
    LAUNCHER = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
