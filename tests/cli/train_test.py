# SPDX-License-Identifier: Apache-2.0
"""`starpipe train`: its files, and its refusals of bad input, on one and on two ranks.

Usage: train_test.py BINARY LAUNCHER..., the launcher being what starts two ranks.
"""

import array
import contextlib
import itertools
import json
import math
import os
import pathlib
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import unittest
import unittest.mock
import xml.etree.ElementTree as ElementTree

from support import CommandTest, gpt_config, mlp_config

LAUNCHER = []


class Train(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("text", "The quick brown fox jumps over the lazy dog. " * 5)
        self.write("mlp.yaml", mlp_config())
        self.write("gpt.yaml", gpt_config("text"))

    def refused_by_all(self, arguments, *culprits, files=("gpt.yaml", "mlp.yaml", "text"), environment=None):
        """On one and on two ranks: one line, exit code 2, and no file left behind."""
        for launcher in ([], LAUNCHER):
            result = self.run_command("train", *arguments, launcher=launcher, environment=environment)
            # The launcher may print on standard output that a rank has failed. Standard error has the line of starpipe
            # and nothing else.
            lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
            with self.subTest(arguments=arguments, ranks=2 if launcher else 1, stderr=result.stderr):
                self.assertEqual(result.returncode, 2)
                self.assertEqual(len(lines), 1)
                if not launcher:
                    self.assertEqual(result.stderr.splitlines(), lines)
                for culprit in culprits:
                    self.assertIn(culprit, lines[0])
                self.assertEqual(sorted(os.listdir(self.folder)), sorted(files))

    def test_contradictions(self):
        """Nothing that was asked for is ignored: a policy on the command line, a section without keys."""
        self.refused_by_all(["mlp.yaml", "--set", "runtime.policy=prio"], "STARPU_SCHED: lws", "runtime.policy=prio",
                            environment={"STARPU_SCHED": "lws"})
        for command in ("simulate", "verify", "info", "profile"):
            self.refused([command, "mlp.yaml", "--set", "runtime.policy=prio"],
                         "STARPU_SCHED: lws contradicts --set runtime.policy=prio", environment={"STARPU_SCHED": "lws"})
        for value in ("", "{}"):
            self.refused_by_all(["mlp.yaml", "--set", f"runtime.emulate={value}"], "--set runtime.emulate")
        self.refused_by_all(["mlp.yaml"], "STARPU_MPI_DRIVER_CALL_FREQUENCY",
                            environment={"STARPU_MPI_DRIVER_CALL_FREQUENCY": "1"})
        os.symlink("a.json", self.path("b.json"))  # to a file that does not exist yet
        self.refused_by_all(["mlp.yaml", "--report", "a.json", "--trace", "b.json"], "--trace", "b.json",
                            files=("b.json", "gpt.yaml", "mlp.yaml", "text"))

    def test_metrics(self):
        """A line per step, the same losses as the report's, on one and on two ranks; a picture of the losses."""
        for launcher in ([], LAUNCHER):
            with self.subTest(ranks=2 if launcher else 1):
                result = self.run_command("train", "gpt.yaml", "--set", "training.steps=3", "--metrics", "m.jsonl", "--report",
                                          "r.json", launcher=launcher)
                self.assertEqual(result.returncode, 0, result.stderr)
                lines = [json.loads(line) for line in self.read("m.jsonl").splitlines()]
                report = json.loads(self.read("r.json"))
                self.assertEqual([line["step"] for line in lines], [1, 2, 3])
                for key in ("loss", "gradient_norm", "learning_rate"):
                    self.assertEqual([line[key] for line in lines], report["losses" if key == "loss" else f"{key}s"])
                self.assertNotIn("clipped", lines[0])
                self.assertEqual(lines[2]["tokens"], 3 * lines[0]["tokens"])
                for line in lines:
                    self.assertTrue(0 <= line["bubble_fraction"] < 1)
                    self.assertGreater(line["seconds"], 0)
                self.assertEqual(lines[-1]["peak_stash_bytes"], max(report["peak_stash_bytes"]["measured"]))
            os.remove(self.path("m.jsonl"))

    def test_metrics_are_kept(self):
        """A file with content may be the record of another run: it stays as it is."""
        self.write("m.jsonl", "mine")
        self.refused_by_all(["gpt.yaml", "--metrics", "m.jsonl"], "metrics: ", "m.jsonl",
                            files=("gpt.yaml", "m.jsonl", "mlp.yaml", "text"))
        self.assertEqual(self.read("m.jsonl"), "mine")

    def test_metrics_during_the_run(self):
        """Each line is there when its step has ended, also when the run fails later."""
        result = self.run_command("train", "mlp.yaml", "--set", "training.steps=20", "--set", "training.optimizer.kind=sgd",
                                  "--set", "training.optimizer.learning_rate=1e30", "--metrics", "m.jsonl")
        self.assertEqual(result.returncode, 1)
        lines = self.read("m.jsonl").splitlines()
        self.assertTrue(1 <= len(lines) < 20)
        self.assertEqual(json.loads(lines[0])["step"], 1)
        for option in ("--metrics", "--report", "--save-weights", "--trace", "--timeline"):
            for name in ("-", "/dev/stdout"):
                self.refused(["train", "gpt.yaml", option, name], f"{option}: standard output has the tables")

    def test_metrics_that_cannot_be_written(self):
        """Training continues, all other results are there, and the status tells."""
        for launcher in ([], LAUNCHER):
            result = self.run_command("train", "mlp.yaml", "--metrics", "/dev/full", "--report", "r.json", "--save-weights",
                                      "w.safetensors", launcher=launcher)
            lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
            problem = "starpipe: metrics: cannot write /dev/full: No space left on device"
            self.assertEqual((result.returncode, lines), (1, [f"{problem}; training continues, and each step tries again",
                                                              f"{problem}; its last lines are lost"]))
            report = json.loads(self.read("r.json"))
            self.assertEqual(len(report["losses"]), 2)
            for name in ("r.json", "w.safetensors"):
                os.remove(self.path(name))

    def test_metrics_in_a_pipe_whose_reader_has_ended(self):
        """A signal ended the run, which lost its results."""
        os.mkfifo(self.path("pipe.jsonl"))
        reader = threading.Thread(target=lambda: open(self.path("pipe.jsonl"), encoding="utf-8").close())
        reader.start()
        result = self.run_command("train", "mlp.yaml", "--set", "training.steps=200", "--metrics", "pipe.jsonl", "--report", "r.json")
        reader.join()
        problem = "starpipe: metrics: cannot write pipe.jsonl: Broken pipe"
        self.assertEqual((result.returncode, [line for line in result.stderr.splitlines() if line.startswith("starpipe: metrics")]),
                         (1, [f"{problem}; training continues, and each step tries again",
                              f"{problem}; its last lines are lost"]))
        self.assertEqual(len(json.loads(self.read("r.json"))["losses"]), 200)

    def test_what_fails_after_the_last_step(self):
        """The evaluation overflows: weights and report of the steps are there all the same."""
        for launcher in ([], LAUNCHER):
            result = self.run_command("train", "gpt.yaml", "--set", "training.steps=1", "--set", "data.validation=text", "--set",
                                      "training.optimizer={kind: sgd, learning_rate: 1e37}", "--report", "r.json",
                                      "--save-weights", "w.safetensors", launcher=launcher)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("the evaluation after step 1, micro-batch 0: the loss is infinity or NaN", result.stderr)
            self.assertEqual(len(json.loads(self.read("r.json"))["losses"]), 1)
            for name in ("r.json", "w.safetensors"):
                os.remove(self.path(name))

    def test_no_memory(self):
        """The run ends, and the line says why: where StarPU's data of a rank need more than it may have."""
        if os.environ.get("STARPIPE_SANITIZE"):
            self.skipTest("sanitizers take more addresses than the limit")
        self.write("large.yaml", mlp_config().replace("hidden: 8", "hidden: 4096").replace(
            "microbatch_size: 2", "microbatch_size: 20000"))
        limited = ["bash", "-c", 'ulimit -v 4000000; exec "$0" "$@"']
        for launcher in ([], LAUNCHER):
            result = self.run_command("train", "large.yaml", launcher=[*launcher, *limited])
            self.assertNotEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr, r"starpipe: rank \d: out of memory: \d+\.\d [MG]iB for data of a task; the process may have "
                                            r"3\.8 GiB \(ulimit -v\)\n")
            self.assertIn(result.stderr.count("out of memory"), range(1, 3), result.stderr)  # both may run out at the same time

    def test_outputs(self):
        result = self.run_command("train", "gpt.yaml", "--set", "training.steps=3", "--report", "r.json", "--trace",
                                  "t.json", "--timeline", "t.svg", "--save-weights", "w.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(self.read("r.json"))
        self.assertEqual(len(report["losses"]), 3)
        self.assertIn("traceEvents", json.loads(self.read("t.json")))
        ElementTree.fromstring(self.read("t.svg"))
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["gpt.yaml", "mlp.yaml", "r.json", "t.json", "t.svg", "text", "w.safetensors"])
        # A run can start from the saved weights.
        result = self.run_command("train", "gpt.yaml", "--set", "model.init=w.safetensors", "--report", "r.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotEqual(json.loads(self.read("r.json"))["losses"][0], report["losses"][0])

    def test_bounded_runs_hold_what_is_predicted(self):
        """The losses are the same bits each time, on 1, 2 and 4 ranks, whatever the timing."""
        four = ["4" if word == "2" else word for word in LAUNCHER]
        for name, limit, discipline, peaks in (("gpipe", 3, "bounded", [3, 3, 3, 3]), ("1f1b", 4, "ordered", [4, 3, 2, 1])):
            losses = []
            for launcher in ([], LAUNCHER, four):
                result = self.run_command(
                    "train", "mlp.yaml", "--report", "r.json", "--set", f"schedule.name={name}", "--set",
                    f"schedule.memory_limit={limit}", "--set", "schedule.workers=4", "--set", "model.layers=4", "--set",
                    "training.microbatches=8", "--set", "runtime.workers_per_core=16", launcher=launcher)
                self.assertEqual(result.returncode, 0, result.stderr)
                report = json.loads(self.read("r.json"))
                self.assertEqual(report["discipline"], discipline)
                reordered = {"worker": 0, "stashes": 8, "limit": 3} if name == "gpipe" else None
                self.assertEqual(report.get("reordered"), reordered)
                self.assertEqual("not in gpipe's own order" in result.stdout, name == "gpipe")
                self.assertEqual(report["peak_stashes"], {"predicted": peaks, "measured": peaks})
                for figures in (report["peak_stash_bytes"], *report["received"]["activations"].values()):
                    self.assertEqual(figures["predicted"], figures["measured"])
                losses.append(report["losses"])
            self.assertTrue(losses[0] == losses[1] == losses[2], losses)

    @unittest.skipIf(os.environ.get("STARPIPE_SANITIZE"), "a sanitizer's memory")
    def test_main_memory_is_as_predicted(self):
        """Parameters, 48 MiB, and what ranks receive of each other are much larger than what a process has besides."""
        four = ["4" if word == "2" else word for word in LAUNCHER]
        mebibyte = 2**20
        for launcher, *settings in (([], "schedule.name=1f1b"), (four, "schedule.name=ddp"),
                                    (four, "schedule.name=fsdp", "model.tied=true"), (LAUNCHER, "schedule.name=chimera", "model.tensor=2")):
            sets = [word for setting in settings for word in ("--set", setting)]
            result = self.run_command(
                "train", "gpt.yaml", "--report", "r.json", "--set", "model.layers=4", "--set", "model.hidden=512", "--set",
                "schedule.workers=4", "--set", "training.microbatches=4", "--set", "training.microbatch_size=1", "--set",
                "training.optimizer={kind: adamw, learning_rate: 1e-4}", "--set", "training.steps=1", "--set",
                "runtime.workers_per_core=16", *sets, launcher=launcher)
            self.assertEqual(result.returncode, 0, result.stderr)
            memory = json.loads(self.read("r.json"))["main_memory"]
            for predicted, measured in zip(memory["predicted"], memory["measured"], strict=True):
                with self.subTest(settings=settings, memory=memory):
                    self.assertLess(measured, 1.05 * predicted + 10 * mebibyte)
                    self.assertGreater(measured, 0.95 * predicted - 40 * mebibyte)

    def test_values_that_are_not_finite(self):
        """The first step is good; its update makes the weights so large that the second step's passes overflow."""
        absurd = ["train", "mlp.yaml", "--set", "training.optimizer={kind: sgd, learning_rate: 1e30}", "--set",
                  "training.steps=4", "--report", "r.json"]
        for launcher in ([], LAUNCHER):
            with self.subTest(ranks=2 if launcher else 1):
                result = self.run_command(*absurd, "--save-weights", "w", launcher=launcher)
                self.assertEqual(result.returncode, 1, result.stderr)
                lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
                self.assertEqual(len(lines), 1, result.stderr)
                self.assertRegex(lines[0], r"^starpipe: step 2, micro-batch 0, stage [01], pass F: the first result with "
                                 r"infinity or NaN \(training.nonfinite: stop\)$")
                self.assertFalse(os.path.exists(self.path("r.json")) or os.path.exists(self.path("w")))

                # The update of the last step spoils the weights, but no pass reads them.
                spoilt = ["mlp.yaml", "--set", "training.optimizer={kind: sgd, learning_rate: 1e38, weight_decay: 1e38}",
                          "--set", "training.steps=1"]
                for policy, words in (("stop", r" \(training.nonfinite: stop\)"),
                                      ("skip", "; training.nonfinite: skip cannot undo an update")):
                    for more in [], ["--save-weights", "w"]:
                        result = self.run_command("train", *spoilt, "--set", f"training.nonfinite={policy}", *more,
                                                  launcher=launcher)
                        self.assertEqual(result.returncode, 1, result.stderr)
                        self.assertRegex(result.stderr, r"(?m)^starpipe: after step 1 the weights of stage 0 hold infinity "
                                         rf"or NaN{words}$")
                        self.assertFalse(os.path.exists(self.path("w")))
                result = self.run_command("train", *spoilt, "--set", "training.nonfinite=continue", launcher=launcher)
                self.assertEqual(result.returncode, 0, result.stderr)
                result = self.run_command("compare", *spoilt, "--policies", "starpipe", "--repetitions", 1, launcher=launcher)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn("the weights of stage 0 hold infinity or NaN", result.stderr)

                result = self.run_command(*absurd, "--set", "training.nonfinite=continue", launcher=launcher)
                self.assertEqual(result.returncode, 0, result.stderr)
                report = json.loads(self.read("r.json"))
                self.assertEqual([loss is None for loss in report["losses"]], [False, True, True, True])
                self.assertNotIn("skipped_steps", report)

                result = self.run_command(*absurd, "--set", "training.nonfinite=skip", launcher=launcher)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual((result.stderr + result.stdout).count("update skipped"), 3, result.stderr)
                self.assertRegex(result.stdout, "updates skipped +3 of 4")
                skipped = json.loads(self.read("r.json"))["skipped_steps"]
                self.assertEqual(skipped["count"], 3)
                self.assertEqual([(step["step"], step["microbatch"], step["pass"]) for step in skipped["steps"]],
                                 [(2, 0, "F"), (3, 0, "F"), (4, 0, "F")])
                os.remove(self.path("r.json"))
                result = self.run_command("compare", "mlp.yaml", "--policies", "starpipe,lws", "--repetitions", 1,
                                          *absurd[2:-2], launcher=launcher)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn("pass F: the first result with infinity or NaN", result.stderr)

    def weights_after_a_step(self, *settings, launcher=()):
        """All numbers of the saved file, and the report."""
        sets = [word for setting in ("training.steps=1", *settings) for word in ("--set", setting)]
        result = self.run_command("train", "mlp.yaml", *sets, "--report", "r.json", "--save-weights", "w", launcher=launcher)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("w"), "rb") as file:
            file.seek(int.from_bytes(file.read(8), "little"), os.SEEK_CUR)
            return array.array("f", file.read()), json.loads(self.read("r.json"))

    def test_clipping(self):
        """A plain step shows the gradient. From it follow the norm and the clipped step, as torch's clip_grad_norm_ has it."""
        sgd = "training.optimizer={kind: sgd, learning_rate: RATE}"
        start, _ = self.weights_after_a_step(sgd.replace("RATE", "0"))
        plain, report = self.weights_after_a_step(sgd.replace("RATE", "1"))
        gradient = [before - after for before, after in zip(start, plain)]
        norm = math.sqrt(sum(g * g for g in gradient))
        self.assertAlmostEqual(report["gradient_norms"][0] / norm, 1, 6)
        self.assertNotIn("clipped_steps", report)
        for launcher in ([], LAUNCHER):
            for clip, count in ((norm / 10, 1), (norm * 1.001, 0)):
                clipped, again = self.weights_after_a_step(sgd.replace("RATE", "1"), f"training.clip={clip}", launcher=launcher)
                self.assertEqual(again["gradient_norms"], report["gradient_norms"])
                self.assertEqual(again["clipped_steps"], {"count": count, "steps": [1] * count})
                scale = min(1, clip / (norm + 1e-6))
                for before, after, g in zip(start, clipped, gradient):
                    self.assertAlmostEqual(after, before - scale * g, delta=1e-6 * max(abs(before), abs(g)))
                self.assertEqual(clipped == plain, count == 0)

    def test_learning_rates(self):
        result = self.run_command(
            "train", "mlp.yaml", "--report", "r.json", "--set", "training.steps=5", "--set",
            "training.optimizer={learning_rate: 0.01, schedule: {kind: linear, warmup: 1, floor: 0.002}}")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(self.read("r.json"))
        for rate, expected in zip(report["learning_rates"], (0.005, 0.01, 0.008, 0.006, 0.004), strict=True):
            self.assertAlmostEqual(rate, expected, 12)
        self.assertNotIn("steps", report["config"]["training"]["optimizer"]["schedule"])
        os.remove(self.path("r.json"))
        rates = "training.optimizer.schedule"
        for settings, culprits in (
            ([f"{rates}={{kind: cosine, floor: 0.1}}"], [f"{rates}.floor: 0.1 is more than", "learning_rate, 0.001"]),
            ([f"{rates}={{kind: linear, warmup: 9, steps: 9}}"], [f"{rates}.steps: 9 is not more than", "warmup, 9"]),
            ([f"{rates}={{kind: linear, warmup: 7}}", "training.steps=7"], [f"{rates}.warmup: 7 is not less than training.steps, 7"]),
            (["training.optimizer={kind: adamw, weight_decay: 0, decay: matrices}"],
             ["training.optimizer.decay: does not apply with training.optimizer.weight_decay 0"]),
            (["training.optimizer={kind: sgd, decay: matrices}"], ["training.optimizer.decay: does not apply with"]),
            ([f"{rates}.floor=1e-5"], [f"{rates}.floor: does not apply to {rates}.kind constant"]),
            ([f"{rates}={{kind: inverse_sqrt, steps: 9}}"], [f"{rates}.steps: does not apply to {rates}.kind inverse_sqrt"]),
            ([f"{rates}.kind=cosin"], [f"{rates}.kind", "cosin", "cosine"]),
            (["training.clip=0"], ["training.clip: must be greater than 0, got 0"]),
            (["training.optimizer.decay=some"], ["training.optimizer.decay", "some", "matrices"]),
            *((["runtime.emulate={F: 1ms, B: 1ms, W: 1ms}", f"{key}={value}"], [f"{key}: does not apply with runtime.emulate"])
              for key, value in (("training.clip", 1), (f"{rates}.warmup", 1), ("training.optimizer.decay", "matrices"))),
        ):  # fmt: skip
            self.refused_by_all(["mlp.yaml", *(word for setting in settings for word in ("--set", setting))], *culprits)

    def test_schedules_of_files_train_as_the_named_ones(self):
        """A schedule from compute-only CSV and from JSON, on one and on two ranks, gives the same losses and weights."""
        self.write("mlp.yaml", mlp_config().replace("layers: 2", "layers: 3").replace("batches: 4", "batches: 6"))
        for name, stages in (("1f1b", 2), ("v-zb", 4), ("interleaved-zb", 4), ("chimera", 2)):
            show = ["schedule", "show", name, "--workers", 2, "--microbatches", 6]
            self.ok(*show, "-o", "s.csv")
            self.ok(*show, "-o", "s.json")
            runs = []
            named = f"schedule={{name: {name}, workers: 2, stages: {stages}}}"
            for schedule, launcher in ((named, []), ("schedule.file=s.csv", []), ("schedule.file=s.csv", LAUNCHER),
                                       ("schedule.file=s.json", [])):
                result = self.run_command("train", "mlp.yaml", "--set", schedule, "--report", "r.json",
                                          "--save-weights", "w", launcher=launcher)
                self.assertEqual(result.returncode, 0, result.stderr)
                report = json.loads(self.read("r.json"))
                with open(self.path("w"), "rb") as weights:
                    runs.append((report["losses"], report["peak_stashes"]["measured"], weights.read()))
            with self.subTest(name=name):
                for run in runs[1:]:
                    self.assertEqual(run, runs[0])

    def test_a_file_says_how_many_workers_and_microbatches(self):
        self.write("x.csv", "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD,0REDUCE_GRAD\n"
                   "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,(1F1;1B1)OVERLAP_F_B,1SEND_B1\n")
        self.write("c.yaml", "model: {kind: mlp, layers: 2, hidden: 8, inputs: 4, outputs: 2}\n"
                   "training: {steps: 2}\nschedule: {file: x.csv}\n")
        result = self.run_command("train", "c.yaml", "--report", "r.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(self.read("r.json"))
        self.assertEqual([report[key] for key in ("workers", "stages", "microbatches")], [2, 2, 2])
        self.assertEqual(report["config"]["schedule"], {"file": "x.csv"})
        simulated = json.loads(self.ok("simulate", "c.yaml", "--json"))
        self.assertEqual((simulated["schedule"], simulated["microbatches"], len(simulated["ops"])), ("x", 2, 2))
        result = self.run_command("compare", "c.yaml", "--policies", "starpipe,lws", "--repetitions", 1, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(json.loads(result.stdout)["policies"]), 2)

    def test_a_tree_of_stages_from_a_file(self):
        self.write("towers.yaml", "model: {kind: mlp, layers: 2, hidden: 8, inputs: 4, outputs: 2, branches: 2}\n"
                   "training: {steps: 2, microbatches: 4}\nschedule: {name: 1f1b, workers: 3}\n")
        result = self.run_command("simulate", "towers.yaml", "-o", "t.csv")
        self.assertEqual((result.returncode, result.stderr),
                         (0, "starpipe: a CSV file cannot say which stages read which; a JSON file can\n"))
        losses = []
        for override in ("schedule.name=1f1b", "schedule.file=t.csv"):
            result = self.run_command("train", "towers.yaml", "--set", override, "--report", "r.json")
            self.assertEqual(result.returncode, 0, result.stderr)
            losses.append(json.loads(self.read("r.json"))["losses"])
        self.assertEqual(*losses)

    def test_bad_schedule_files(self):
        files = ("bad.csv", "bad.json", "gpt.yaml", "mlp.yaml", "text")
        good = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"

        def refused(text, *culprits, name="bad.csv", overrides=()):
            self.write("bad.csv", "")
            self.write("bad.json", "")
            self.write(name, text)
            sets = [word for o in (f"schedule={{file: {name}}}", *overrides) for word in ("--set", o)]
            self.refused_by_all(["mlp.yaml", *sets, "--report", "r.json"], *culprits, files=files)

        two = ("training.microbatches=2",)
        refused("0F0,0F1,0B1,0B0\n1F0,1B0,1F1,1B1\n1F9", "bad.csv: row 3, cell 1", overrides=two)
        refused("0F0,0B0\n1B0,1F0\n", "bad.csv: row 2, cell 1", "BW(1,0) can never start")
        refused("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "bad.csv: row 1, cell 3", "BW(0,0)")
        refused("nonsense", "bad.csv: row 1, cell 1")
        refused("{", "bad.json", name="bad.json")
        refused(good, "training.microbatches: 4, but bad.csv has 2")
        refused(good, "schedule.workers: 3, but bad.csv has 2", overrides=(*two, "schedule.workers=3"))
        refused(good, "schedule.stages: 3, but bad.csv has 2", overrides=("schedule.workers=2", *two, "schedule.stages=3"))
        refused(good, "bad.csv: the model cannot be cut into its 2 stages", "branches", overrides=("schedule.workers=2", *two, "model.branches=2"))
        refused(good, "worker 0", "limit of 1", overrides=(
            "schedule.workers=2", *two, "schedule.memory_limit=1", "schedule.discipline=ordered"))
        self.refused_by_all(["mlp.yaml", "--set", "schedule.file=missing.csv"], "missing.csv", files=files)

    def test_greedy_and_dynamic_runs(self):
        """A greedy order is fixed before the run, unless `dynamic` is set; memory limits hold in both cases."""
        size = ("--set", "schedule.workers=4", "--set", "model.layers=4", "--set", "training.microbatches=8")
        for launcher in ([], LAUNCHER):
            for dynamic in ("false", "true"):
                for name, more in (("1f1b", "schedule.discipline=greedy"), ("gpipe", "schedule.memory_limit=3")):
                    result = self.run_command("train", "mlp.yaml", "--report", "r.json", *size, "--set", more, "--set",
                                              f"schedule.dynamic={dynamic}", "--set", f"schedule.name={name}",
                                              launcher=launcher)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    peaks = json.loads(self.read("r.json"))["peak_stashes"]
                    if dynamic == "false":
                        self.assertEqual(peaks["predicted"], peaks["measured"])
                    elif name == "gpipe":
                        self.assertLessEqual(max(peaks["measured"]), 3)
        self.refused_by_all(("mlp.yaml", *size, "--set", "schedule.dynamic=true"), "schedule.dynamic", "ordered",
                            files=("gpt.yaml", "mlp.yaml", "text", "r.json"))

    def test_starpus_limits_of_submitted_tasks(self):
        """Safe where each worker's order is fixed; refused where waiting for room could deadlock."""
        limits = {"STARPU_LIMIT_MAX_SUBMITTED_TASKS": "4", "STARPU_LIMIT_MIN_SUBMITTED_TASKS": "2"}
        for launcher in ([], LAUNCHER):
            result = self.run_command("train", "mlp.yaml", environment=limits, launcher=launcher)
            self.assertEqual(result.returncode, 0, result.stderr)
        for name, value in limits.items():
            for words in (["runtime.emulate={F: 2ms, B: 3ms, W: 1ms, comm: 1ms}"],
                          ["schedule.dynamic=true", "schedule.discipline=greedy"]):
                sets = [word for setting in words for word in ("--set", setting)]
                self.refused_by_all(["mlp.yaml", *sets], name, "unset it", environment={name: value})

    def test_recomputation(self):
        """Recomputation holds fewer bytes, exactly as predicted, with the same losses, on one and on two ranks."""
        size = ("--set", "schedule.name=1f1b", "--set", "schedule.workers=4", "--set", "model.layers=4", "--set",
                "training.microbatches=8", "--set", "runtime.workers_per_core=16")
        for launcher in ([], LAUNCHER):
            kept = self.report_of(*size, launcher=launcher)
            report = self.report_of(*size, "--set", "schedule.home=none", launcher=launcher)
            self.assertEqual(report["config"]["schedule"]["home"], "none")
            self.assertEqual(report["losses"], kept["losses"])
            self.assertEqual(report["peak_stashes"], {"predicted": [1] * 4, "measured": [1] * 4})
            figures = report["peak_stash_bytes"]
            self.assertEqual(figures["predicted"], figures["measured"])
            for less, more in list(zip(figures["measured"], kept["peak_stash_bytes"]["measured"]))[:2]:
                self.assertLess(less, more)
            for kind in ("activations", "stashes", "gradients"):
                for figures in report["received"][kind].values():
                    self.assertEqual(figures["predicted"], figures["measured"])
                self.assertEqual(report["received"][kind], kept["received"][kind])

    def test_recomputation_of_a_file(self):
        """The file or the configuration may ask for it."""
        config = mlp_config(schedule="file: s.json").replace("layers: 2", "layers: 4")
        self.write("mlp.yaml", config)
        reports = []
        for shown, wanted in (("--home", "none"), ()), ((), ("--set", "schedule.home=none")):
            self.ok("schedule", "show", "1f1b", "--workers", 4, "--microbatches", 4, *shown, "-o", "s.json")
            reports.append(self.report_of("--set", "runtime.workers_per_core=16", *wanted))
            self.assertEqual(reports[-1]["peak_stashes"], {"predicted": [1] * 4, "measured": [1] * 4})
        for key in ("losses", "peak_stash_bytes"):
            self.assertEqual(reports[0][key], reports[1][key])

    def test_r_of_an_emulated_run(self):
        arguments = ("--set", "schedule={name: 1f1b, workers: 4, home: none}", "--set", "model.layers=4", "--set",
                     "training.microbatches=8")
        report = self.report_of(*arguments, "--set", "runtime.emulate={F: 2ms, B: 3ms, W: 1ms}")
        self.assertEqual(report["durations"], [{"F": 0.002, "B": 0.003, "W": 0.001}] * 4)
        self.assertAlmostEqual(report["makespan"]["predicted"], 82e-3)
        self.assertGreater(report["makespan"]["measured"], 0.99 * report["makespan"]["predicted"])
        self.assertEqual(report["peak_stashes"]["measured"], [1] * 4)
        result = json.loads(self.ok("simulate", "mlp.yaml", *arguments, "--durations", "F=2,B=3,W=1", "--json"))
        self.assertEqual(result["makespan"], 82)

    def test_two_ranks(self):
        result = self.run_command("train", "mlp.yaml", "--report", "r.json", launcher=LAUNCHER)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(json.loads(self.read("r.json"))["losses"]), 2)

    def test_ranks_that_were_asked_for_different_things(self):
        """Each rank may have a command line of its own. Weights that no configuration stands for were the result."""
        same = ["train", "mlp.yaml"]
        self.write("other.yaml", mlp_config().replace("steps: 2", "steps: 3"))
        for first, second, message in (
                (same, [*same, "--set", "training.optimizer.learning_rate=0.5"],
                 "training.optimizer.learning_rate: rank 0 has 0.001, rank 1 has 0.5;"),
                (same, ["train", "other.yaml"], "training.steps: rank 0 has 2, rank 1 has 3;"),
                (same, [*same, "--set", "checkpoint.folder=c"], "checkpoint.folder: rank 0 has no value, rank 1 has c;"),
                ([*same, "--save-weights", "w.safetensors"], same,
                 "--save-weights: rank 0 has w.safetensors, rank 1 has no value;"),
                (same, [*same, "--metrics", "m.jsonl"], "--metrics: rank 0 has no value, rank 1 has m.jsonl;"),
                (same, ["compare", "mlp.yaml"], "command: rank 0 has train, rank 1 has compare;"),
                (["compare", "mlp.yaml", "--policies", "starpipe", "--repetitions", "1"],
                 ["compare", "mlp.yaml", "--policies", "starpipe", "--repetitions", "2"],
                 "--repetitions: rank 0 has 1, rank 1 has 2;")):
            with self.subTest(first=first, second=second):
                commands = [shlex.join([self.binary, *arguments]) for arguments in (first, second)]
                script = f'if [ "$PMI_RANK" = 0 ]; then exec {commands[0]}; else exec {commands[1]}; fi'
                result = subprocess.run([*LAUNCHER, "sh", "-c", script], cwd=self.folder, stdin=subprocess.DEVNULL,
                                        capture_output=True, text=True, timeout=60, check=False)
                lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
                self.assertEqual((result.returncode, lines),
                                 (2, [f"starpipe: {message} all ranks need the same configuration"]), result.stderr)
                self.assertEqual(sorted(os.listdir(self.folder)), ["gpt.yaml", "mlp.yaml", "other.yaml", "text"])

    def test_ranks_with_different_environments(self):
        """StarPU-MPI waited indefinitely, or stopped at an assertion."""
        def run(variable):
            script = f'if [ "$PMI_RANK" = 1 ]; then export {variable}; fi; exec "$0" "$@"'
            return self.run_command("train", "mlp.yaml", launcher=[*LAUNCHER, "sh", "-c", script])

        for variable in ("STARPU_SCHED=eager", "STARPU_SCHED_LIB=x.so", "STARPU_MPI_CACHE=0", "STARPU_MPI_STATS=0",
                         "STARPU_COMM_STATS=1", "STARPU_FXT_TRACE=1", "STARPU_GENERATE_TRACE=1", "STARPU_DISPLAY_BINDINGS=1",
                         "STARPU_MPI_TRACE_SYNC_CLOCKS=0"):
            with self.subTest(variable):
                name, value = variable.split("=")
                first = "1" if name == "STARPU_MPI_STATS" else "no value"
                result = run(variable)
                lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
                self.assertEqual((result.returncode, lines),
                                 (2, [f"starpipe: {name}: rank 0 has {first}, rank 1 has {value}; "
                                      "all ranks need the same configuration"]), result.stderr)
        # Rank 1 would use another algorithm of MPICH, also for the exchange by which ranks agree.
        result = run("MPIR_CVAR_IALLREDUCE_INTRA_ALGORITHM=sched_naive")
        self.assertEqual((result.returncode, result.stderr.count("starpipe: rank 1 has other variables MPIR_CVAR_*")), (2, 1), result.stderr)
        # Rank 1 alone prints StarPU-MPI's statistics.
        result = run("STARPU_MPI_STATS=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("nb_sends"), 1, result.stderr)

    def test_processes_that_mpi_does_not_join(self):
        """Started by srun without PMI, or by another MPI's launcher: each was a whole run, and wrote the same files."""
        train = ["train", "mlp.yaml", "--report", "r.json"]
        for name, rank in ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"), ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK"):
            self.refused(train, f"starpipe: {name}: a launcher has started 2 processes, but MPI does not join them",
                         environment={name: "2", rank: "0"})
            other = self.run_command(*train, environment={name: "2", rank: "1"})  # rank 0 prints the line
            self.assertEqual((other.returncode, other.stdout, other.stderr), (2, "", ""))
            self.assertFalse(os.path.exists(os.path.join(self.folder, "r.json")))
            self.assertEqual(self.run_command(*train, environment={name: "1", rank: "0"}).returncode, 0)
            # Ranks of a launcher within the step.
            self.assertEqual(self.run_command(*train, launcher=LAUNCHER, environment={name: "8"}).returncode, 0)
            os.remove(os.path.join(self.folder, "r.json"))
        for name in "ROLE_WORLD_SIZE", "WORLD_SIZE", "HOROVOD_SIZE":  # torchrun, DeepSpeed, Horovod
            self.refused(train, f"starpipe: {name}: a launcher has started 3 processes", environment={name: "3", "LOCAL_RANK": "0"})
        self.assertEqual(self.run_command("train", "mlp.yaml", environment={"WORLD_SIZE": "3"}).returncode, 0)  # of a shell
        # The script of a job, which has one process.
        script = self.run_command("train", "mlp.yaml", environment={"SLURM_NTASKS": "2", "SLURM_NPROCS": "2", "SLURM_PROCID": "0"})
        self.assertEqual(script.returncode, 0, script.stderr)

    def test_ranks_in_user_namespaces(self):
        own = [*LAUNCHER, "unshare", "-r"]
        if subprocess.run(["unshare", "-r", "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no user namespaces")
        warning = "starpipe: ranks of a host are in user namespaces (containers) of their own"
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("UCX_TLS", None)
            self.assertEqual(self.run_command("train", "mlp.yaml", launcher=own).stderr.count(warning), 1)
            # One namespace with the launcher in it.
            together = self.run_command("train", "mlp.yaml", launcher=["unshare", "-r", *LAUNCHER])
        self.assertNotIn(warning, together.stderr)
        result = self.run_command("train", "mlp.yaml", launcher=own, environment={"UCX_TLS": "tcp,self"})
        self.assertEqual((result.returncode, result.stderr.count(warning)), (0, 0), result.stderr)

    def test_ranks_with_shared_memory_of_their_own(self):
        """As in a container of Docker for each rank: MPICH ends at its start, with messages that name no remedy."""
        own = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"']
        if subprocess.run([*own, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no mounts here")
        line = "starpipe: ranks of a host have a /dev/shm of their own each (containers)"
        self.assertEqual(self.run_command("train", "mlp.yaml", launcher=[*LAUNCHER, *own]).stderr.count(line), 1)
        for launcher, environment in ([*LAUNCHER, *own], {"MPIR_CVAR_NOLOCAL": "1"}), ([*own, *LAUNCHER], {}):
            result = self.run_command("train", "mlp.yaml", launcher=launcher, environment=environment)
            self.assertEqual((result.returncode, result.stderr.count(line)), (0, 0), result.stderr)

    def test_a_policy_for_one_rank(self):
        self.refused(["train", "mlp.yaml", "--set", "runtime.policy=graph_test"], "runtime.policy: graph_test works with one rank only",
                     launcher=LAUNCHER)
        self.assertEqual(self.run_command("train", "mlp.yaml", "--set", "runtime.policy=graph_test").returncode, 0)

    def report_of(self, *arguments, **options):
        result = self.run_command("train", "mlp.yaml", "--report", "r.json", *arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("r.json"))

    def test_where_ranks_run(self):
        cores = sorted(os.sched_getaffinity(0))[:2]
        if len(cores) < 2:
            self.skipTest("one core")
        # Each rank is bound to a core, as Slurm does it, and stays there.
        bind = f'exec taskset -c $((PMI_RANK == 0 ? {cores[0]} : {cores[1]})) "$0" "$@"'
        report = self.report_of(launcher=[*LAUNCHER, "sh", "-c", bind])
        self.assertEqual([(r["binding"], r["cores"], r["workers"]) for r in report["ranks"]],
                         [(str(cores[0]), 1, 1), (str(cores[1]), 1, 1)])
        self.assertEqual(report["machine"]["ranks"], 2)
        # Slurm's names of the nodes.
        report = self.report_of(launcher=[*LAUNCHER, "sh", "-c", 'SLURMD_NODENAME=n$PMI_RANK exec "$0" "$@"'])
        self.assertEqual([r["machine"] for r in report["ranks"]], ["n0", "n1"])

    def test_workers_are_bound_where_there_is_a_core_for_each(self):
        one = ["--set", "schedule={name: gpipe, workers: 1}"]
        self.assertFalse(self.report_of(*one, environment={"STARPU_WORKERS_NOBIND": "1"})["ranks"][0]["workers_bound"])
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("STARPU_WORKERS_NOBIND", None)
            own = sorted(os.sched_getaffinity(0))
            for workers, cores in (1, 1), (1, 2), (2, 1), (2, 2):
                if len(own) < cores:
                    continue
                rank, = self.report_of("--set", f"schedule={{name: gpipe, workers: {workers}}}",
                                       launcher=["taskset", "-c", ",".join(map(str, own[:cores]))])["ranks"]
                self.assertEqual((rank["cores"], rank["workers_bound"]), (cores, workers <= cores))
            # Ranks divide the cores, with and without a core for each MPI thread.
            if len(own) > 1:
                report = self.report_of(launcher=["taskset", "-c", f"{own[0]},{own[1]}", *LAUNCHER])
                self.assertEqual([(r["binding"], r["bound_by"], r["workers_bound"]) for r in report["ranks"]],
                                 [(str(own[0]), "starpipe", True), (str(own[1]), "starpipe", True)])
            # Two ranks on a host of eight cores, which hwloc reads from a file.
            report = self.report_of(launcher=LAUNCHER, environment={"HWLOC_SYNTHETIC": "package:2 core:4 pu:1"})
            self.assertEqual([(r["binding"], r["cores"], r["workers_bound"]) for r in report["ranks"]],
                             [("0-3", 4, True), ("4-7", 4, True)])

    def test_info_tells_where_ranks_would_run(self):
        """Under the launcher as train does, and without it for as many ranks."""
        keys = ("binding", "bound_by", "cores", "workers", "mpi_thread", "logical_workers")
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("STARPU_WORKERS_NOBIND", None)
            eight = {"HWLOC_SYNTHETIC": "package:2 core:4 pu:1"}
            three = ("--set", "schedule={name: gpipe, workers: 3, stages: 3}")
            ranks = [[rank[key] for key in keys] for rank in self.report_of(*three, launcher=LAUNCHER, environment=eight)["ranks"]]
            self.assertEqual([rank[:5] for rank in ranks], [["0-2", "starpipe", 3, 1, "on PUs 1-2"], ["3-7", "starpipe", 5, 2, "on PUs 5-7"]])
            for more, launcher in ((), LAUNCHER), (("--ranks", 2), []):
                result = self.run_command("info", "mlp.yaml", *three, *more, "--json", launcher=launcher, environment=eight)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual([[rank[key] for key in keys] for rank in json.loads(result.stdout)["ranks"]], ranks)
                text = self.run_command("info", "mlp.yaml", *three, *more, launcher=launcher, environment=eight).stdout
                for number, rank in enumerate(ranks):
                    row = rf"(?m)^ +{number}  \S+ +{rank[0]} +{rank[2]}  starpipe  {rank[3]}, each bound to a core +{rank[4]}$"
                    self.assertEqual(len(re.findall(row, text)), 1, text)
            # Without a configuration each rank tells its own.
            text = self.run_command("info", launcher=LAUNCHER, environment=eight).stdout
            self.assertEqual(sorted(re.findall(r"(?m)^rank +(\d of 2; on PUs [-\d]+) in a run", text)),
                             ["0 of 2; on PUs 0-3", "1 of 2; on PUs 4-7"])
            self.refused(["info", "mlp.yaml", "--set", "schedule.workers=1"], "2 ranks for 1 workers", launcher=LAUNCHER)

    def test_cores_that_slow_a_run(self):
        """One line says so, and what to do."""
        one_step = ("train", "mlp.yaml", "--set", "training.steps=1", "--set")
        three = "schedule={name: gpipe, workers: 3, stages: 3}"
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("STARPU_WORKERS_NOBIND", None)
            for cores, more, line in ((3, {}, "rank 0 has a worker on each of its cores, so MPI's thread"),
                                      (2, {}, "3 workers run on 2 cores of "),
                                      (5, {"STARPU_MPI_THREAD_CPUID": "0"}, "STARPU_MPI_THREAD_CPUID binds MPI's thread of rank 0"),
                                      (5, {}, None)):
                host = {"HWLOC_SYNTHETIC": f"package:1 core:{cores} pu:1", **more}
                result = self.run_command(*one_step, three, launcher=LAUNCHER, environment=host)
                self.assertEqual(result.returncode, 0, result.stderr)
                advice = [found for found in re.findall(r"(?m)^starpipe: (.*)$", result.stderr)
                          if not found.startswith("another run")]
                self.assertEqual(len(advice), 0 if line is None else 1, result.stderr)
                self.assertTrue(line is None or advice[0].startswith(line), result.stderr)

    def test_a_core_of_another_run(self):
        """Workers are not bound to a core that another run has claimed, and one line says so."""
        with unittest.mock.patch.dict(os.environ), contextlib.ExitStack() as claims:
            os.environ.pop("STARPU_WORKERS_NOBIND", None)
            for core in os.sched_getaffinity(0):
                claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                with contextlib.suppress(OSError):  # another run has claimed it indeed
                    claim.bind(f"\0starpipe.core.{core}")
            result = self.run_command("train", "mlp.yaml", "--report", "r.json", "--set",
                                      "schedule={name: gpipe, workers: 1}")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr, "(?m)^starpipe: another run of starpipe has bound a worker to PU ")
            self.assertFalse(json.loads(self.read("r.json"))["ranks"][0]["workers_bound"])

    def test_mapping(self):
        """Four workers in two distant pairs, on two ranks: the losses are the same, and each worker is on its device."""
        self.write("towers.yaml", "model: {kind: mlp, layers: 3, hidden: 64, inputs: 4, outputs: 2, branches: 2}\n"
                   "training: {steps: 2, microbatches: 4, microbatch_size: 8}\n"
                   "schedule: {name: 1f1b, workers: 5, stages: 5}\nruntime: {workers_per_core: 8}\n")
        reports = []
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("STARPU_WORKERS_NOBIND", None)
            for mapping in ("linear", "auto"):
                result = self.run_command("train", "towers.yaml", "--set", f"runtime.mapping={mapping}", "--report", "r.json",
                                          launcher=LAUNCHER, environment={"HWLOC_SYNTHETIC": "package:2 [numa] core:6 pu:1"})
                self.assertEqual(result.returncode, 0, result.stderr)
                reports.append(json.loads(self.read("r.json")))
        linear, auto = reports
        self.assertEqual(linear["losses"], auto["losses"])
        self.assertEqual((linear["config"]["runtime"]["mapping"], auto["config"]["runtime"]["mapping"]), ("linear", "auto"))
        self.assertEqual([r["logical_workers"] for r in linear["ranks"]], [[0, 1], [2, 3, 4]])
        self.assertEqual(sorted(w for r in auto["ranks"] for w in r["logical_workers"]), list(range(5)))
        # One branch (workers 0 and 1, or 2 and 3) shares a package with the join; the other branch has the other package.
        self.assertIn(sorted(auto["ranks"][0]["logical_workers"]), ([0, 1], [2, 3]))
        self.assertLessEqual(auto["bytes_between_ranks"]["measured"], linear["bytes_between_ranks"]["measured"])
        for report in reports:
            for figures in (report["peak_stash_bytes"], report["bytes_between_ranks"]):
                self.assertEqual(figures["predicted"], figures["measured"])
            for rank in report["ranks"]:
                self.assertEqual(len(set(rank["devices"])), rank["workers"])

    def test_the_table_is_last(self):
        """A launcher forwards standard error and standard output apart."""
        result = self.run_command("train", "mlp.yaml", launcher=LAUNCHER)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^step 2/2 ")
        self.assertNotIn("step 2/2", result.stderr)
        alone = self.run_command("train", "mlp.yaml")
        self.assertIn("step 2/2 ", alone.stderr)
        self.assertNotIn("step 2/2", alone.stdout)

    def test_bad_configurations(self):
        self.refused_by_all(["missing.yaml"], "missing.yaml", "No such file")
        self.refused_by_all(["mlp.yaml", "--frobnicate"], "--frobnicate")
        self.refused_by_all(["mlp.yaml", "--set", "training.stops=1"], "training.stops", "training.steps")
        self.refused_by_all(["mlp.yaml", "--set", "schedule.memory_limit=0"], "schedule.memory_limit", "0")
        self.refused_by_all(["mlp.yaml", "--report", "f", "--trace", "./f"], "--trace", "./f")

    def test_experiments_that_cannot_be(self):
        for override, *names in (("schedule.name=2f2b", "'2f2b'"),
                                 ("runtime.policy=nonsense", "nonsense"),
                                 ("schedule.placement=[0, 5]", "stage 1", "worker 5"),
                                 ("schedule.groups=3", "schedule.groups")):
            self.refused_by_all(["mlp.yaml", "--report", "r.json", "--set", override], *names)
        self.refused_by_all(["mlp.yaml", "--set", "schedule={name: lpp, workers: 4, groups: 3, stages: 2}"], "lpp",
                            "4 workers", "3")
        self.refused_by_all(["mlp.yaml", "--set", "schedule={name: ddp, workers: 640, stages: 2}"], "640")

    def test_gpus_where_there_are_none(self):
        self.refused_by_all(["mlp.yaml", "--set", "runtime.device=cuda"], "runtime.device: cuda",
                            environment={"CUDA_VISIBLE_DEVICES": ""})

    def test_plugins_that_are_none(self):
        self.refused_by_all(["mlp.yaml", "--plugin", "text"], "text", "not a plug-in")
        self.refused_by_all(["mlp.yaml", "--set", "schedule.plugin=[missing.so]"], "missing.so", "No such file")

    def test_policies_of_a_library(self):
        """A missing policy or library is refused. (StarPU itself only warns, and runs lws.)"""
        library = os.path.join(os.path.dirname(self.binary), "..", "lib", "libstarpipe_sched.so")
        copy = shutil.copy(library, self.path("copy.so"))
        for name, culprits, environment in (
                ("starpip", ["STARPU_SCHED", "'starpip'", "starpipe"], {"STARPU_SCHED_LIB": library}),
                ("starpip", ["STARPU_SCHED", "'starpip'"], {}),
                ("starpipe", ["STARPU_SCHED_LIB", "missing.so"], {"STARPU_SCHED_LIB": "missing.so"}),
                ("starpipe", ["STARPU_SCHED_LIB", "starpu_get_sched_lib_policy"],
                 {"STARPU_SCHED_LIB": os.path.join(os.path.dirname(library), "libstarpipe_plan.so")})):
            for launcher in ([], LAUNCHER):
                result = self.run_command("train", "mlp.yaml", launcher=launcher,
                                          environment={"STARPU_SCHED": name, **environment})
                lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
                with self.subTest(name=name, environment=environment, stderr=result.stderr):
                    self.assertEqual((result.returncode, len(lines)), (2, 1))
                    for culprit in culprits:
                        self.assertIn(culprit, lines[0])
        # The policy starpipe knows the schedule, even if STARPU_SCHED_LIB loads another copy of it.
        for file in (library, copy):
            result = self.run_command("train", "mlp.yaml", "--report", "r.json", launcher=LAUNCHER,
                                      environment={"STARPU_SCHED": "starpipe", "STARPU_SCHED_LIB": file})
            self.assertEqual(result.returncode, 0, result.stderr)
            report = json.loads(self.read("r.json"))
            self.assertEqual(report["policy"], {"requested": "starpipe", "ran": "starpipe"})
            self.assertEqual(report["peak_stashes"]["predicted"], report["peak_stashes"]["measured"])

    def test_bad_data(self):
        self.refused_by_all(["gpt.yaml", "--report", "r.json", "--set", "data.path=missing"], "missing")
        self.refused_by_all(["gpt.yaml", "--report", "r.json", "--set", "data.path=/dev/null"], "/dev/null")
        self.refused_by_all(["gpt.yaml", "--report", "r.json", "--set", "model.init=missing"], "missing")
        self.refused_by_all(["gpt.yaml", "--report", "r.json", "--set", "model.init=text"], "text")

    def test_limits_on_files_and_stacks(self):
        """MPI could not make its files, and would print lines of its own; StarPU would overflow its stack."""
        for limit, message in (("-f 1", "-f: a file may have at most 1024 B, but MPI needs files of up to 8.0 MiB in shared memory"),
                               ("-n 32", "-n: a process may open at most 32 files, but MPI needs 64"),
                               ("-s 256", "-s: a stack may have at most 256.0 KiB, but the threads of StarPU and MPI need 512.0 KiB")):
            for launcher in [], LAUNCHER:
                with self.subTest(limit=limit, ranks=2 if launcher else 1):
                    command = shlex.join([self.binary, "train", "mlp.yaml"])
                    result = subprocess.run([*launcher, "bash", "-c", f"ulimit {limit}; exec {command}"], cwd=self.folder,
                                            text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=100, check=False)
                    self.assertEqual(result.returncode, 2, result.stderr)
                    self.assertEqual(result.stderr, f"starpipe: ulimit {message}\n")

    def test_limits_on_addresses(self):
        """From the lowest limit under which the libraries load: a line about memory, or a run that ends well."""
        if os.environ.get("STARPIPE_SANITIZE"):
            self.skipTest("sanitizers take more addresses")

        def run(kibibytes, launcher, *arguments):
            return self.run_command(*arguments, launcher=[*launcher, "bash", "-c", f'ulimit -v {kibibytes}; exec "$0" "$@"'])

        step = 32 << 10
        for launcher in [], LAUNCHER:
            limit, said = step, 0
            while run(limit, [], "--version").returncode != 0:
                limit += step
            while (result := run(limit, launcher, "train", "mlp.yaml")).returncode != 0:
                self.assertRegex(result.stderr, r"(?m)^starpipe: .*memory.*\n\Z")
                limit, said = limit + step, said + 1
            self.assertGreater(said, 2)

    def test_a_rank_that_cannot_start(self):
        """Rank 0 waited for rank 1, which was silent, for five minutes."""
        script = 'if [ "$PMI_RANK" = 1 ]; then {}; fi; exec "$0" "$@"'
        for on_rank_1, status, line in (("ulimit -n 32", 2, "ulimit -n: a process may open at most 32 files, but MPI needs 64"),
                                        ('exec "$0" "$@" --steps', 2, "The following argument was not expected: --steps "
                                         "(see starpipe train --help)")):
            with self.subTest(on_rank_1):
                result = self.run_command("train", "mlp.yaml", launcher=[*LAUNCHER, "bash", "-c", script.format(on_rank_1)])
                self.assertEqual((result.returncode, result.stderr), (status, f"starpipe: rank 1: {line}\n"))

    def test_limits_on_threads(self):
        """MPI and StarPU would stop at assertions. Each limit applies to the threads of one user, who has no other process."""
        user = ["setpriv", "--reuid", "65530", "--clear-groups"]
        if os.geteuid() != 0 or subprocess.run([*user, self.binary, "--version"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no other user can run it here")
        os.chmod(self.folder, 0o755)
        for limit, threads in ((3, 3), (5, 4)):  # of MPI, and of StarPU
            result = self.run_command("train", "mlp.yaml", launcher=[*user, "bash", "-c", f'ulimit -u {limit}; exec "$0" "$@"'],
                                      environment={"HOME": "/nonexistent", "TMPDIR": "/tmp"})
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertRegex(result.stderr, rf"starpipe: ulimit -u: the system starts only \d of {threads} threads; the user or the "
                                            r"container \(pids\.max\) may have no more\n\Z")

    def test_variables_of_a_launcher_that_is_not_there(self):
        self.refused(["train", "mlp.yaml"], "PMI_FD: 77 is not an open file", environment={"PMI_FD": "77", "PMI_RANK": "0", "PMI_SIZE": "2"})

    def test_standard_error_that_cannot_be_written(self):
        """The run ends, and its result is printed: on a full disk, where standard error is closed, and where it is a pipe
        whose reader has ended."""
        for error, launcher in itertools.product((">/dev/full", ">&-", "> >(exec true)"), ([], LAUNCHER)):
            rank = ["bash", "-c", f"exec {shlex.quote(self.binary)} train mlp.yaml 2{error}"]
            with self.subTest(rank=rank, ranks=2 if launcher else 1):
                result = subprocess.run([*launcher, *rank], cwd=self.folder, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, text=True, timeout=60, check=False)
                self.assertEqual(result.returncode, 0)
                self.assertIn("makespan", result.stdout)

    def test_a_result_that_cannot_be_written_costs_no_other(self):
        """A full disk, and a pipe whose reader has ended."""
        everything = ("--report", "r.json", "--save-weights", "w.safetensors", "--timeline", "t.svg", "--trace", "t.json")
        names = everything[1::2]
        for full in (*names, None):
            with self.subTest(full=full), open("/dev/full" if full is None else os.devnull, "w", encoding="utf-8") as output:
                result = self.run_command("train", "mlp.yaml", *("/dev/full" if word == full else word for word in everything),
                                          stdout=output)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn("No space left on device", result.stderr.splitlines()[-1])
                for name in names:
                    self.assertEqual(os.path.exists(self.path(name)), name != full)
                    pathlib.Path(self.path(name)).unlink(missing_ok=True)

    def test_inputs_that_are_pipes(self):
        """One rank may read a configuration from a pipe; of several ranks only one would get it."""
        command = [self.binary, "train", "/dev/stdin"]
        for launcher, status in (([], 0), (LAUNCHER, 2)):
            result = subprocess.run([*launcher, *command], cwd=self.folder, input=mlp_config(), text=True, timeout=60,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
            self.assertEqual(result.returncode, status, result.stderr)
        self.assertIn("/dev/stdin: is not a file", result.stderr)

    def test_variables_that_starpu_cannot_read(self):
        """StarPU would abort, or crash."""
        for name, value in (("STARPU_NCPUS", "abc"), ("STARPU_NCUDA", "-1"), ("STARPU_LIMIT_MAX_SUBMITTED_TASKS", "abc"),
                            ("STARPU_WORKERS_CPUID", "-1"), ("STARPU_MAIN_THREAD_BIND", "1"), ("STARPU_NCPU", "99999999999"),
                            ("STARPU_DISABLE_KERNELS", "1"), ("STARPU_MPI_FAKE_SIZE", "2"), ("STARPU_MPI_HOSTNAMES", "a"),
                            ("STARPU_HOSTNAME", "a/b"), ("STARPU_MPI_NREADY_PROCESS", "0"), ("STARPU_NWORKER_PER_CUDA", "0"),
                            ("STARPU_HWLOC_INPUT", "host.xml"),
                            ("STARPU_RESERVE_NCPU", "1"), ("STARPU_LIMIT_CPU_MEM", "100000"), ("STARPU_LIMIT_CPU_NUMA_0_MEM", "1"), ("STARPU_MAIN_THREAD_CPUID", "9999"),
                            ("STARPU_MPI_THREAD_COREID", "9999"), ("STARPU_WORKERS_CPUID", "0 9999")):
            self.refused_by_all(["mlp.yaml"], f"{name}: expected ", f"got '{value}'", environment={name: value})
        result = self.run_command("train", "mlp.yaml", environment={"STARPU_NCPU": "64"})
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_folders_that_starpu_cannot_make(self):
        """StarPU would abort, with a list of addresses. The run has a folder of its own and says so in one line."""
        self.write("file", "")
        os.mkdir(self.path("tmp"))
        own = self.path(f"tmp/starpipe-{os.geteuid()}")
        free = {key: value for key, value in os.environ.items()
                if key not in ("STARPU_PERF_MODEL_DIR", "XDG_CACHE_HOME", "STARPU_HOME")}
        for name, launcher in (("STARPU_PERF_MODEL_DIR", []), ("XDG_CACHE_HOME", LAUNCHER), ("STARPU_HOME", []), ("HOME", [])):
            with self.subTest(name=name), unittest.mock.patch.dict(os.environ, free, clear=True):
                result = self.run_command("train", "mlp.yaml", launcher=launcher,
                                          environment={name: self.path("file"), "TMPDIR": self.path("tmp")})
                self.assertEqual(result.returncode, 0, result.stderr)
                lines = [line for line in result.stderr.splitlines() if "StarPU cannot write" in line]
                self.assertEqual(len(lines), 1, result.stderr)
                self.assertIn(f"{name}: StarPU cannot write to its folder {self.path('file')}", lines[0])
                self.assertIn(f"are in {own} now", lines[0])
                self.assertTrue(os.listdir(os.path.join(own, ".starpu/sampling/bus")))

    @unittest.skipIf(os.environ.get("STARPIPE_SANITIZE"), "a sanitizer's allocator")
    def test_freed_memory_serves_the_next_step(self):
        """The stashes of a step are 130 MB. If the allocator gave them back, each step would have 16,000 page faults."""
        self.write("wide.yaml", "model: {kind: mlp, layers: 4, hidden: 32, inputs: 32, outputs: 2}\n"
                                "training: {steps: 1, microbatches: 8, microbatch_size: 16384}\n"
                                "schedule: {name: gpipe, workers: 2}\n")
        faults = []
        for steps in (1, 3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
            result = self.run_command("train", "wide.yaml", "--set", f"training.steps={steps}")
            self.assertEqual(result.returncode, 0, result.stderr)
            faults.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before)
        self.assertLess(faults[1] - faults[0], 8000)

    def test_weights_that_are_not_finite(self):
        result = self.run_command("train", "mlp.yaml", "--save-weights", "w.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("w.safetensors"), "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(array.array("f", [math.nan]).tobytes())
        self.refused_by_all(["mlp.yaml", "--set", "model.init=w.safetensors"], "w.safetensors: tensor ", "is NaN",
                            files=("gpt.yaml", "mlp.yaml", "text", "w.safetensors"))

    def test_memory_limit(self):
        self.refused_by_all(["gpt.yaml", "--report", "r.json", "--set", "runtime.memory_limit=64KiB"],
                            "runtime.memory_limit: under 1f1b, worker 1 needs ", "more than 64.0 KiB")
        self.refused(["compare", "mlp.yaml", "--set", "runtime.memory_limit=1KiB"], "runtime.memory_limit")
        result = self.run_command("train", "mlp.yaml", "--report", "r.json", "--set", "runtime.memory_limit=8GiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(self.read("r.json"))["config"]["runtime"]["memory_limit"], 2**33)

    def test_limits_that_a_policy_does_not_keep(self):
        for key, value in (("schedule.memory_limit", 1), ("runtime.memory_limit", "8GiB")):
            limit = ["mlp.yaml", "--set", f"{key}={value}"]
            for policy in ("lws", "on-worker"):
                self.refused(["train", *limit, "--set", f"runtime.policy={policy}"], key, "runtime.policy", policy)
                self.refused(["compare", *limit, "--policies", policy], key, f"--policies {policy}")
                self.refused_by_all(limit, "STARPU_SCHED", key, policy, environment={"STARPU_SCHED": policy})
            result = self.run_command("train", *limit, "--set", "runtime.policy=worker-order", "--report", "r.json")
            self.assertEqual(result.returncode, 0, result.stderr)
            report = json.loads(self.read("r.json"))
            self.assertEqual(report["peak_stashes"]["predicted"], report["peak_stashes"]["measured"])
            os.remove(self.path("r.json"))
            # Some of the policies keep it: the output names those that do not.
            text = self.ok("compare", *limit, "--policies", "starpipe,lws,on-worker", "--repetitions", 1, "-o", "c.json")
            self.assertIn(f"\n{key} is not kept by lws, on-worker\n", text)
            self.assertEqual(json.loads(self.read("c.json"))["not_kept"], {key: ["lws", "on-worker"]})
            os.remove(self.path("c.json"))

    def test_an_order_of_the_run_time(self):
        """`schedule.dynamic` takes away the order that worker-order runs, and the needs that are known before the run."""
        dynamic = ["mlp.yaml", "--set", "schedule.dynamic=true", "--set", "schedule.discipline=bounded", "--set",
                   "schedule.memory_limit=1"]
        self.refused(["train", *dynamic, "--set", "runtime.policy=worker-order"], "schedule.dynamic", "worker-order")
        for policies in (["--policies", "starpipe,worker-order"], []):  # worker-order is one of the usual ones
            self.refused(["compare", *dynamic, *policies], "schedule.dynamic", "worker-order; give --policies without it")
        self.refused_by_all(dynamic, "STARPU_SCHED", "schedule.dynamic", environment={"STARPU_SCHED": "worker-order"})
        self.refused(["train", *dynamic, "--set", "runtime.memory_limit=8GiB"], "runtime.memory_limit", "schedule.dynamic")

    def test_bad_outputs(self):
        for option in ("--report", "--trace", "--timeline", "--save-weights"):
            self.refused_by_all(["mlp.yaml", option, "nowhere/f"], option, "nowhere/f")
            self.refused_by_all(["mlp.yaml", option, "."], option)
            # A full disk is found when the file is written: a failure, and not wrong use.
            for launcher in [], LAUNCHER:
                result = self.run_command("train", "mlp.yaml", option, "/dev/full", launcher=launcher)
                self.assertEqual(result.returncode, 1, result.stderr)
                lines = [line for line in result.stderr.splitlines() if not line.startswith("step ")]
                self.assertEqual(len(lines), 1, "MPI adds lines: " + result.stderr)
                self.assertRegex(lines[0], "^starpipe: rank 0: .*: cannot write /dev/full: No space left on device$")
        if os.geteuid() != 0:  # root may write anywhere
            os.mkdir(self.path("closed"), mode=0o500)
            self.refused_by_all(["mlp.yaml", "--report", "closed/f"], "--report", "closed/f",
                                files=("closed", "gpt.yaml", "mlp.yaml", "text"))


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv[1])
    LAUNCHER = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
