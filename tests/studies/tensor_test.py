# SPDX-License-Identifier: Apache-2.0
"""experiments/studies/tensor: tensor.py writes studies that starpipe takes, and figures.py draws their runs.

Usage: tensor_test.py BINARY FOLDER, the folder being experiments/studies/tensor of the project.
"""

import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
from support import CommandTest  # noqa: E402


def load(file):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(file):
    return [element.text for element in ElementTree.parse(file).iter() if element.text and element.text.strip()]


def printed(function, *arguments):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        function(*arguments)
    return text.getvalue().splitlines()


class Studies(CommandTest):
    """The parts with few bandwidths, and their results elsewhere."""

    def setUp(self):
        super().setUp()
        TENSOR.RESULTS = Path(self.path("results"))
        TENSOR.RESULTS.mkdir()
        TENSOR.SLOW, TENSOR.MICROBATCHES = (25,), (16,)

    def sweep(self, name, *more):
        file = TENSOR.RESULTS / f"{name}.yaml"
        file.write_text(json.dumps(TENSOR.PARTS[name]()), encoding="utf-8")
        result = self.run_command("sweep", file, "-o", TENSOR.RESULTS / name, *more, timeout=250)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        return result.stdout

    def test_layouts(self):
        self.assertEqual(TENSOR.layouts(4), [(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)])
        self.assertEqual(len(TENSOR.layouts(8)), 10)

    def test_blocks_beside_a_head(self):
        self.assertEqual(TENSOR.blocks_beside(4, 8, even=True), [1] * 8)
        for head in (1, 2, 4):
            for stages in (2, 4, 8):
                blocks = TENSOR.blocks_beside(head, stages, even=False)
                self.assertEqual((len(blocks), sum(blocks)), (stages, 8))
                # No stage has more work than is needed: with one unit less everywhere, not all would have a place.
                most = max(*blocks[:-1], blocks[-1] + head)
                self.assertTrue(most == head or (most - 1) * (stages - 1) + max(0, most - 1 - head) < 8, (head, stages, blocks))

    def test_simulated_parts(self):
        self.sweep("parallel")
        rows = FIGURES.read(TENSOR.RESULTS / "parallel" / "results.jsonl")
        self.assertEqual({row["layout"] for row in rows}, set(TENSOR.layouts(8)))
        for row in rows:
            # Replicas are not free: 25 GB/s take a while for the gradients.
            self.assertEqual(row["layout"][2] > 1, FIGURES.step_time(row) > 1.005 * row["predicted_makespan"], row["run"])
        self.sweep("vocabulary")
        lines = printed(FIGURES.print_vocabulary, FIGURES.read(TENSOR.RESULTS / "vocabulary" / "results.jsonl"))
        self.assertEqual(len(lines), 3 * 3)

    def test_measured_parts_are_accepted(self):
        self.assertEqual(self.sweep("emulated", "--print").count("train "), 2 * 9)
        self.assertEqual(self.sweep("kernels", "--print").count("train "), 3 * (1 + 2 * 3))


class Figures(CommandTest):
    @staticmethod
    def row(layout, slow, seconds, gib, sums="each", microbatches=64, **more):
        t, p, g = layout
        run = f"{layout}-{slow}-{seconds}-{sums}"
        return {"run": run, "gib": gib, "status": "done", "model.tensor": str(t), "schedule.stages": str(p), "schedule.groups": str(g),
                "model.sums": sums, "microbatches": microbatches, "runtime.emulate.links": f"somewhere/links-{slow:g}.yaml", "predicted_makespan": seconds,
                "predicted_bytes_moved": 2**30, **more}  # fmt: skip

    def read(self, *rows):
        for row in rows:
            worker = {part: 0 for part in FIGURES.MEMORY}
            workers = [worker, {**worker, "stashes": row["gib"] * 2**29, "weights": row["gib"] * 2**29, "workspace": 2**40}]
            folder = Path(self.path("runs")) / row["run"]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "report.json").write_text(json.dumps({"memory": workers}), encoding="utf-8")
        self.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        return FIGURES.read(Path(self.path("rows.jsonl")))

    def test_steps_end_with_their_sums(self):
        """Pipelines of 0.3 s compared with replicas of 0.2 s, whose gradients take until 0.4 s. The latter need 4 GiB."""
        rows = self.read(*(self.row((1, 8, 1), slow, 0.3, 2.6) for slow in FIGURES.SHOWN),
                         *(self.row((1, 1, 8), slow, 0.2, 4, predicted_gradients_summed=0.4) for slow in FIGURES.SHOWN),
                         *(self.row((2, 4, 1), slow, 0.24, 3.2, sums="one") for slow in FIGURES.SHOWN),
                         self.row((1, 2, 4), 200, 0.1, 1, status="failed"))  # fmt: skip
        self.assertEqual(FIGURES.best_of(rows, 200, 3)[0]["layout"], (1, 8, 1))
        best, others = FIGURES.best_of(rows, 200, 7)
        self.assertEqual(best["layout"], (2, 4, 1))
        self.assertAlmostEqual(others, 0.25)
        self.assertIsNone(FIGURES.best_of(rows, 200, 2))
        FIGURES.style()
        FIGURES.draw(rows, Path(self.path("runs.svg")))
        for text in ("8·1", "1·8", "25 GB/s between groups", "T = 2"):
            self.assertIn(text, words(self.path("runs.svg")))
        FIGURES.draw_map(rows, Path(self.path("map.svg")))
        texts = words(self.path("map.svg"))
        self.assertEqual([texts.count(text) for text in ("1·8·1", "2·4·1*", "25 %", "64 micro-batches")], [3, 3, 3, 1])
        self.assertEqual(printed(FIGURES.print_parallel, rows)[1:], [
            "| 1·1·8 | each | 4.0 | 1.0 | 200 / 400 | 200 / 400 | 200 / 400 |",
            "| 1·8·1 | each | 2.6 | 1.0 | 300 | 300 | 300 |",
            "| 2·4·1 | one | 3.2 | 1.0 | 240 | 240 | 240 |"])  # fmt: skip

    def test_measured_beside_predicted(self):
        more = {"predicted_gradients_summed": 0.4, "measured_gradients_summed": 0.42}
        rows = self.read(*(self.row((1, 1, 2), 25, 0.2, 1, measured_makespan=seconds, **more) for seconds in (0.21, 0.2, 0.3)),
                         self.row((1, 2, 1), 25, 0.1, 1, measured_makespan=0.101))  # fmt: skip
        self.assertEqual(printed(FIGURES.print_measured, rows, "slow"), [
            "| 1·1·2 | 25 | 200.0 | 210.0 | +5.0 % | 400.0 | 420.0 | +5.0 % |", "| 1·2·1 | 25 | 100.0 | 101.0 | +1.0 % |  |  |  |"])  # fmt: skip


if __name__ == "__main__":
    CommandTest.binary = sys.argv.pop(1)
    STUDY = Path(sys.argv.pop(1)).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MPLCONFIGDIR"] = folder
        TENSOR, FIGURES = load(STUDY / "tensor.py"), load(STUDY / "figures.py")
        unittest.main()
