# SPDX-License-Identifier: Apache-2.0
"""`starpipe train` on one and on two ranks: its files, what it computes and what its workers hold.

Usage: train_test.py BINARY LAUNCHER..., the launcher being what starts two ranks.
"""

import array
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import threading
import unittest
import xml.etree.ElementTree as ElementTree

from support import TrainTest, mlp_config


class Train(TrainTest):
    def test_metrics(self):
        """A line per step, the same losses as the report's, on one and on two ranks; a picture of the losses."""
        for launcher in ([], self.launcher):
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
        four = ["4" if word == "2" else word for word in self.launcher]
        for name, limit, discipline, peaks in (("gpipe", 3, "bounded", [3, 3, 3, 3]), ("1f1b", 4, "ordered", [4, 3, 2, 1])):
            losses = []
            for launcher in ([], self.launcher, four):
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
        four = ["4" if word == "2" else word for word in self.launcher]
        mebibyte = 2**20
        for launcher, *settings in (([], "schedule.name=1f1b"), (four, "schedule.name=ddp"),
                                    (four, "schedule.name=fsdp", "model.tied=true"), (self.launcher, "schedule.name=chimera", "model.tensor=2")):
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
        for launcher in ([], self.launcher):
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
        for launcher in ([], self.launcher):
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
            for schedule, launcher in ((named, []), ("schedule.file=s.csv", []), ("schedule.file=s.csv", self.launcher),
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
                   "1RECV_F0,1F0,1RECV_F1,(1F1;1B0)OVERLAP_F_B,1SEND_B0,1B1,1SEND_B1\n")
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

    def test_greedy_and_dynamic_runs(self):
        """A greedy order is fixed before the run, unless `dynamic` is set; memory limits hold in both cases."""
        size = ("--set", "schedule.workers=4", "--set", "model.layers=4", "--set", "training.microbatches=8")
        for launcher in ([], self.launcher):
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

    def test_recomputation(self):
        """Recomputation holds fewer bytes, exactly as predicted, with the same losses, on one and on two ranks."""
        size = ("--set", "schedule.name=1f1b", "--set", "schedule.workers=4", "--set", "model.layers=4", "--set",
                "training.microbatches=8", "--set", "runtime.workers_per_core=16")
        for launcher in ([], self.launcher):
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
            for launcher in ([], self.launcher):
                result = self.run_command("train", "mlp.yaml", launcher=launcher,
                                          environment={"STARPU_SCHED": name, **environment})
                lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
                with self.subTest(name=name, environment=environment, stderr=result.stderr):
                    self.assertEqual((result.returncode, len(lines)), (2, 1))
                    for culprit in culprits:
                        self.assertIn(culprit, lines[0])
        # The policy starpipe knows the schedule, even if STARPU_SCHED_LIB loads another copy of it.
        for file in (library, copy):
            result = self.run_command("train", "mlp.yaml", "--report", "r.json", launcher=self.launcher,
                                      environment={"STARPU_SCHED": "starpipe", "STARPU_SCHED_LIB": file})
            self.assertEqual(result.returncode, 0, result.stderr)
            report = json.loads(self.read("r.json"))
            self.assertEqual(report["policy"], {"requested": "starpipe", "ran": "starpipe"})
            self.assertEqual(report["peak_stashes"]["predicted"], report["peak_stashes"]["measured"])

    def test_inputs_that_are_pipes(self):
        """One rank may read a configuration from a pipe; of several ranks only one would get it."""
        command = [self.binary, "train", "/dev/stdin"]
        for launcher, status in (([], 0), (self.launcher, 2)):
            result = subprocess.run([*launcher, *command], cwd=self.folder, input=mlp_config(), text=True, timeout=60,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
            self.assertEqual(result.returncode, status, result.stderr)
        self.assertIn("/dev/stdin: is not a file", result.stderr)

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


if __name__ == "__main__":
    TrainTest.binary = os.path.abspath(sys.argv[1])
    TrainTest.launcher = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
