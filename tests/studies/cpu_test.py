# SPDX-License-Identifier: Apache-2.0
"""The benchmark of networks on two cores at its smallest, without PyTorch. No check depends on time.

Usage: cpu_test.py BINARY STEP_PRODUCTS SCRIPT
"""

import subprocess
import sys
import unittest

BINARY, PRODUCTS, SCRIPT = "", "", ""


class Cpu(unittest.TestCase):
    def run_small(self, *more):
        return subprocess.run([sys.executable, SCRIPT, "--starpipe", BINARY, "--products", PRODUCTS, "--no-pytorch", "--models",
                               "1x64x1", "--precisions", "fp32", "--runs", "1", "--steps", "3", *more],
                              capture_output=True, text=True, timeout=250, check=False)  # fmt: skip

    def test_small(self):
        self.check_small("1x64x1")

    def test_small_mlp(self):
        self.check_small("mlp2x64x16")

    def check_small(self, model):
        run = self.run_small("--models", model)
        self.assertEqual(run.returncode, 0, run.stderr)
        _, alone, *schedules = run.stdout.splitlines()
        *name, rate = alone.split()
        self.assertEqual(name, [model, "fp32", "products", "alone"])
        products = float(rate.replace(",", ""))
        losses = set()
        for row, schedule in zip(schedules, ("ddp", "1f1b"), strict=True):
            name, rate, share, loss = row.split()
            self.assertEqual(name, schedule)
            self.assertAlmostEqual(float(share.rstrip("%")), 100 * float(rate.replace(",", "")) / products, delta=0.6)
            losses.add(loss)
        self.assertEqual(len(losses), 1, "the schedules do not compute the same")

    def test_refusals(self):
        run = self.run_small("--schedules", "1f2b")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("1f2b", run.stderr)
        run = self.run_small("--steps", "2")
        self.assertEqual(run.returncode, 2)
        self.assertIn("at least 3", run.stderr)

    def products(self, *arguments):
        return subprocess.run([PRODUCTS, *arguments], capture_output=True, text=True, timeout=60, check=False)

    def test_products(self):
        run = self.products("bf16", "1", "64", "32", "1")
        if run.returncode == 0:
            self.assertGreater(float(run.stdout), 0)
        else:
            self.assertEqual((run.returncode, run.stderr),
                             (2, "step_products_benchmark: this processor or library has no products in bf16\n"))  # fmt: skip
        for arguments, problem in ((["fp32", "1"], "required"), (["fp64", "1", "64", "32", "1"], "fp64"),
                                   (["fp32", "1", "65", "32", "1"], "hidden: not a multiple of 64")):  # fmt: skip
            run = self.products(*arguments)
            self.assertEqual(run.returncode, 2)
            self.assertIn(problem, run.stderr)


if __name__ == "__main__":
    BINARY, PRODUCTS, SCRIPT = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1])
