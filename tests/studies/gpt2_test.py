# SPDX-License-Identifier: Apache-2.0
"""The GPT-2 benchmark at its smallest, on the CPU. No check depends on time.

Usage: gpt2_test.py BINARY MATRIX_PRODUCTS SCRIPT
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BINARY, MATRIX, SCRIPT = "", "", ""


class Gpt2(unittest.TestCase):
    def run_small(self, *more):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "gpt2.json"
            run = subprocess.run(
                [sys.executable, SCRIPT, "--starpipe", BINARY, "--matrix", MATRIX, "--layers", "2", "--hidden", "16", "--heads",
                 "2", "--context", "32", "--microbatches", "2", "--microbatch-size", "1", "--steps", "3", "--json", file, *more],
                capture_output=True, text=True, timeout=250, check=False)  # fmt: skip
            return run, json.loads(file.read_text()) if file.exists() else None

    def test_small(self):
        run, figures = self.run_small("--device", "cpu", "--precision", "fp32", "--stages", "1,2")
        self.assertEqual(run.returncode, 0, run.stderr)
        # A block's products: c_attn 16 x 48, c_proj 16 x 16, c_fc 16 x 64, c_proj 64 x 16; the head 16 x 256. Attention, F:
        # two products of 32 x 8 x 32 a head, half of them masked; twice that in B.
        parameters = 2 * (16 * 48 + 16 * 16 + 16 * 64 + 64 * 16) + 16 * 256
        attention = 3 * 2 * 2 * 2 * (2 * 32 * 8 * 32) / 2 / 32
        self.assertEqual(figures["flops_a_token"], 6 * parameters + attention)
        self.assertGreater(figures["matrix_flops"], 0)
        one, two, *pytorch = figures["results"]
        self.assertEqual([one["name"], two["name"]], ["starpipe, 1 stage", "starpipe, 2 stages"])
        self.assertEqual(one["losses"], two["losses"])
        for result in (one, two):
            self.assertAlmostEqual(result["flops"] / result["tokens_per_second"], figures["flops_a_token"])
            self.assertGreaterEqual(result["between_jobs"], 0)
        for result in pytorch:
            if "missing" in result:
                self.assertIn(f"{result['name']:<22}not run: {result['missing']}", run.stdout)
                self.assertIn("PyTorch", result["missing"])
            else:  # other start values and windows of the text
                self.assertLess(abs(result["losses"][0] - one["losses"][0]), 0.2)

    def test_refusal(self):
        run, figures = self.run_small("--device", "cpu", "--precision", "fp32", "--hidden", "15")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("model.heads", run.stderr)
        self.assertIsNone(figures)
        run, _ = self.run_small("--starpipe", "missing")
        self.assertEqual(run.stderr, "missing is not there: scripts/test builds it\n")


if __name__ == "__main__":
    BINARY, MATRIX, SCRIPT = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1])
