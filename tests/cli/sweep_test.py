# SPDX-License-Identifier: Apache-2.0
"""`sweep`. Usage: sweep_test.py BINARY LAUNCHER... (which starts 2 ranks)"""

import csv
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
import unittest

from support import LAUNCHER_RANKS, CommandTest, mlp_config, wait_until

EMULATE = "runtime: {emulate: {F: 1ms, B: 1ms, W: 1ms}}"


def study(command="simulate", **parts):
    lines = [f"command: {command}", "config: base.yaml"]
    return "\n".join(lines + [f"{name}: {text}" for name, text in parts.items()]) + "\n"


class Sweep(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("base.yaml", mlp_config(EMULATE, "name: 1f1b, workers: 2"))

    def sweep(self, *arguments, status=0, **options):
        result = self.run_command("sweep", "study.yaml", "-o", "out", *arguments, **options)
        self.assertEqual((result.returncode, result.stderr), (status, ""), result.stdout)
        return result.stdout

    def rows(self):
        with open(self.path("out/results.csv"), newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def folder_of(self, row):
        return pathlib.Path(self.path("out/runs")) / row["run"]

    def figures(self, row, *columns):
        return [float(row[column]) for column in columns]

    def test_a_grid_and_lists(self):
        self.write("study.yaml", study(
            set="{model.layers: 4}", grid="{training.microbatches: [4, 6]}",
            runs="[{schedule.name: 1f1b}, {schedule.name: looped-bfs, schedule.stages: 4}]"))
        text = self.sweep()
        self.assertIn("4 runs: 4 done;", text)
        rows = self.rows()
        self.assertEqual([(row["schedule.name"], row["schedule.stages"], row["training.microbatches"]) for row in rows],
                         [("1f1b", "", "4"), ("1f1b", "", "6"), ("looped-bfs", "4", "4"), ("looped-bfs", "4", "6")])
        for row in rows:
            with self.subTest(row=row):
                keys = ["--set", f"schedule.name={row['schedule.name']}",
                        "--set", f"training.microbatches={row['training.microbatches']}"]
                if row["schedule.stages"]:
                    keys += ["--set", f"schedule.stages={row['schedule.stages']}"]
                by_hand = json.loads(self.ok("simulate", "base.yaml", "--set", "model.layers=4", *keys, "--json"))
                self.assertEqual(json.loads((self.folder_of(row) / "report.json").read_text()), by_hand)
                self.assertEqual(self.figures(row, "predicted_makespan", "predicted_bubble_fraction",
                                              "predicted_peak_stashes", "predicted_peak_stash_bytes", "stages"),
                                 [by_hand["makespan"], by_hand["bubble_fraction"], max(by_hand["peak_stashes"]),
                                  max(by_hand["peak_stash_bytes"]), by_hand["stages"]])
                self.assertEqual(int(row["predicted_bytes_moved"]), sum(map(sum, by_hand["received_bytes"].values())))
                self.assertEqual(int(row["predicted_memory"]), max(sum(w.values()) for w in by_hand["memory"]))
                self.assertEqual((row["status"], row["unit"]), ("done", "s"))
                # Versions and machine, which reports of simulate do not have.
                record = json.loads((self.folder_of(row) / "run.json").read_text())
                version = self.ok("--version").split()[1]
                self.assertEqual((row["starpipe"], row["commit"], row["cores"]), (version, record["commit"], str(record["cores"])))
                self.assertTrue(row["commit"] and row["machine"])
        lines = [json.loads(line) for line in self.read("out/results.jsonl").splitlines()]
        for row, line in zip(rows, lines, strict=True):
            self.assertEqual({name: value for name, value in row.items() if value},
                             {name: value if isinstance(value, str) else json.dumps(value) for name, value in line.items()})

    def test_a_section_varies(self):
        """Its keys are columns of their own: `schedule` is a column of what ran."""
        self.write("study.yaml", study(
            set="{schedule.workers: 2}",
            grid="{schedule: [{name: 1f1b}, {name: 1f1b, memory_limit: 1}, {name: gpipe, memory_limit: 2}], "
                 "runtime: [{emulate: {F: 1ms, B: 1ms, W: 1ms}}]}"))
        text = self.sweep()
        rows = self.rows()
        self.assertEqual([(row["schedule.name"], row["schedule.memory_limit"], row["schedule"], row["runtime.emulate.F"]) for row in rows],
                         [("1f1b", "", "1f1b", "1ms"), ("1f1b", "1", "1f1b", "1ms"), ("gpipe", "2", "gpipe", "1ms")])
        lines = [json.loads(line) for line in self.read("out/results.jsonl").splitlines()]
        self.assertEqual([line.get("schedule.memory_limit") for line in lines], [None, "1", "2"])
        self.assertEqual(text.splitlines()[0].split()[:2], ["schedule.name", "schedule.memory_limit"])
        for row in rows:
            limit = ["--set", f"schedule.memory_limit={row['schedule.memory_limit']}"] if row["schedule.memory_limit"] else []
            by_hand = json.loads(self.ok("simulate", "base.yaml", "--set", f"schedule.name={row['schedule.name']}", *limit, "--json"))
            self.assertEqual(self.figures(row, "predicted_makespan", "predicted_peak_stashes"),
                             [by_hand["makespan"], max(by_hand["peak_stashes"])])
        # One key whose value is a map stays one setting.
        self.write("study.yaml", study(grid="{schedule: [{name: 1f1b, options: {waves: 2}}]}", set="{model.layers: 4}"))
        self.assertIn("schedule.options={waves: 2}", self.sweep("--print"))

    def test_no_setting_has_the_name_of_another_column(self):
        """Keys have a section, so a dot, and options have dashes; no column of results has."""
        keys = [line.split(":")[0] for line in self.ok("simulate", "--help-keys").splitlines() if line and line[0] != " "]
        self.assertIn("schedule.name", keys)
        self.assertEqual([key for key in keys if "." not in key], [])

    def test_times_in_other_units(self):
        """Without times 1 is a pass of an average stage, of which V-Half has twice as many."""
        self.write("timeless.yaml", self.read("base.yaml").replace("runtime:", "# "))
        names = "{schedule.name: [1f1b, v-half]}"
        self.write("study.yaml", study(set="{model.layers: 4}", grid=names).replace("base", "timeless"))
        self.assertIn("1 is a pass of an average stage", self.sweep())
        self.write("study.yaml", study(set="{model.layers: 4}", grid="{schedule.name: [1f1b, gpipe]}").replace("base", "timeless"))
        self.assertNotIn("1 is a pass of an average stage", self.sweep())
        self.write("study.yaml", study(set="{model.layers: 4}", grid=names))
        self.assertNotIn("1 is a pass of an average stage", self.sweep())

    def test_replicas_sum_their_gradients(self):
        self.write("study.yaml", study(set="{runtime.emulate.comm: 1ms}", grid="{schedule.name: [1f1b, ddp]}"))
        self.assertIn("with gradients summed", self.sweep())
        pipeline, replicas = self.rows()
        self.assertEqual(pipeline["predicted_gradients_summed"], "")
        by_hand = json.loads(self.ok("simulate", "base.yaml", "--set", "runtime.emulate.comm=1ms", "--set", "schedule.name=ddp", "--json"))
        self.assertEqual(float(replicas["predicted_gradients_summed"]), by_hand["gradients_summed"])
        self.assertGreater(by_hand["gradients_summed"], by_hand["makespan"])

    def test_training_on_ranks(self):
        self.write("study.yaml", study("train", grid="{ranks: [1, 2]}", repetitions=2, outputs="[timeline, metrics]",
                                       set="{training.steps: 3}"))
        self.sweep("--launcher", LAUNCHER)
        rows = self.rows()
        self.assertEqual([(row["ranks"], row["repetition"]) for row in rows], [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")])
        for row in rows:
            report = json.loads((self.folder_of(row) / "report.json").read_text())
            self.assertEqual(report["machine"]["ranks"], int(row["ranks"]))
            self.assertEqual(self.figures(row, "predicted_makespan", "measured_makespan"),
                             [report["makespan"]["predicted"], report["makespan"]["measured"]])
            for name in ("versions", "policy"):
                self.assertIn(name, report)
            self.assertEqual((row["commit"], row["policy"]), (report["versions"]["commit"], "starpipe"))
            # The parts add up to the difference in the median step.
            parts = self.figures(row, *(f"difference_{part}" for part in ("durations", "transfers", "order", "runtime")))
            steps = report["explain"]["steps"]
            median = report["explain"]["per_step"]["measured"][steps["median"] - steps["first"]] * 1e-9
            self.assertAlmostEqual(float(row["predicted_makespan"]) + sum(parts), median, delta=1e-8)
            self.assertEqual(sorted(file.name for file in self.folder_of(row).iterdir()),
                             ["config.yaml", "lock", "log.txt", "metrics.jsonl", "report.json", "run.json", "timeline.svg"])
            self.assertIn("predicted", (self.folder_of(row) / "log.txt").read_text())
            self.assertEqual((self.folder_of(row) / "config.yaml").read_text(), self.read("base.yaml"))

    def test_bytes_of_a_step_and_of_a_run(self):
        """The bytes that workers receive are counted for one step; StarPU-MPI counts what ranks send in all steps."""
        self.write("study.yaml", study("train", grid="{training.steps: [2, 4]}", set="{ranks: 2}"))
        self.sweep("--launcher", LAUNCHER)
        two, four = self.rows()
        for which in ("predicted", "measured"):
            self.assertGreater(int(two[f"{which}_bytes_moved"]), 0)
            self.assertEqual(two[f"{which}_bytes_moved"], four[f"{which}_bytes_moved"])
            bytes_in_all = f"{which}_bytes_between_ranks_in_all"
            self.assertGreater(int(two[bytes_in_all]), 0)
            self.assertEqual(2 * int(two[bytes_in_all]), int(four[bytes_in_all]))

    def test_policies(self):
        self.write("study.yaml", study("compare", grid="{schedule.name: [1f1b, gpipe]}",
                                       set='{--policies: "starpipe,lws", --repetitions: 1, training.steps: 2}'))
        self.sweep()
        rows = self.rows()
        self.assertEqual([(row["schedule"], row["policy"]) for row in rows],
                         [("1f1b", "starpipe"), ("1f1b", "lws"), ("gpipe", "starpipe"), ("gpipe", "lws")])
        for row in rows:
            report = json.loads((self.folder_of(row) / "report.json").read_text())
            policy = next(p for p in report["policies"] if p["policy"] == row["requested_policy"])
            self.assertEqual(self.figures(row, "measured_makespan", "measured_bytes_moved"),
                             [policy["makespan"], policy["bytes_moved"]])

    def test_options_and_flags(self):
        self.write("base.yaml", mlp_config())
        self.write("study.yaml", study(grid='{--durations: ["F=1,B=1,W=1", "F=1,B=2,W=1"], --no-prefetch: [true, false]}',
                                       set="{--comm: 0.5}"))
        self.sweep()
        for row in self.rows():
            flags = ["--no-prefetch"] if row["--no-prefetch"] == "true" else []
            by_hand = json.loads(self.ok("simulate", "base.yaml", "--json", "--comm", 0.5, "--durations", row["--durations"], *flags))
            self.assertEqual(self.figures(row, "predicted_makespan"), [by_hand["makespan"]])

    def test_what_is_done_is_skipped(self):
        self.write("study.yaml", study(grid="{training.microbatches: [4, 6]}"))
        self.sweep()
        reports = {row["run"]: (self.folder_of(row) / "report.json").stat().st_mtime_ns for row in self.rows()}
        self.write("study.yaml", study(grid="{training.microbatches: [4, 6, 8]}"))
        self.assertIn("3 runs: 3 done (2 before);", self.sweep())
        for row in self.rows()[:2]:
            self.assertEqual((self.folder_of(row) / "report.json").stat().st_mtime_ns, reports[row["run"]])
        # Another base configuration makes other runs; a comment in it does not.
        self.write("base.yaml", "# a comment\n" + self.read("base.yaml"))
        self.assertIn("3 runs: 3 done (3 before);", self.sweep())
        self.write("base.yaml", self.read("base.yaml").replace("hidden: 8", "hidden: 16"))
        self.assertIn("3 runs: 3 done;", self.sweep())
        self.assertEqual(len(list(pathlib.Path(self.path("out/runs")).iterdir())), 6)

    def test_a_changed_input_makes_other_runs(self):
        """Not only its name counts: results of the old contents would stand for the new ones."""
        self.ok("schedule", "show", "1f1b", "--workers", 2, "--microbatches", 4, "-o", "order.json")
        links = "levels: [{latency: %s, bandwidth: 1GB/s}]\n"
        self.write("links.yaml", links % "1ms")
        self.write("study.yaml", study(set="{--links: links.yaml}", runs="[{schedule.name: gpipe}, {schedule.file: order.json}]"))
        self.sweep()
        self.write("links.yaml", links % "2ms")
        self.assertIn("2 runs: 2 done;", self.sweep())
        by_hand = json.loads(self.ok("simulate", "base.yaml", "--set", "schedule.name=gpipe", "--links", "links.yaml", "--json"))
        self.assertEqual(float(self.rows()[0]["predicted_makespan"]), by_hand["makespan"])
        self.ok("schedule", "show", "gpipe", "--workers", 2, "--microbatches", 4, "-o", "order.json")
        self.assertIn("2 runs: 2 done (1 before);", self.sweep())
        self.assertEqual(self.rows()[0]["predicted_makespan"], self.rows()[1]["predicted_makespan"])

    def test_failures(self):
        """What fails is told, kept in the table, and run again on demand."""
        self.write("study.yaml", study(grid="{schedule.name: [1f1b, dualpipe]}", set="{schedule.workers: 3, training.microbatches: 6, model.layers: 6}"))
        text = self.sweep(status=1)
        self.assertIn("2 runs: 1 done, 1 failed;", text)
        self.assertRegex(text, r"(?m)^failed: schedule.name=dualpipe: starpipe: dualpipe needs an even number")
        self.assertEqual([(row["status"], row["problem"] != "", row["commit"] != "") for row in self.rows()],
                         [("done", False, True), ("failed", True, True)])
        failed = self.folder_of(self.rows()[1]) / "run.json"
        before = failed.stat().st_mtime_ns
        self.sweep(status=1)
        self.assertEqual(failed.stat().st_mtime_ns, before)
        self.sweep("--retry", status=1)
        self.assertNotEqual(failed.stat().st_mtime_ns, before)
        self.assertEqual(json.loads(failed.read_text())["command"][1:3], ["simulate", str(pathlib.Path("out/runs") / failed.parent.name / "config.yaml")])

    def test_a_failed_run_that_succeeds_by_hand(self):
        """Such as one that was killed for want of memory. Its report is newer than the record of the failure."""
        self.write("study.yaml", study(grid="{training.microbatches: [4, 6]}"))
        self.sweep()
        good = self.rows()
        record = self.folder_of(good[1]) / "run.json"
        (record.parent / "report.json").unlink()
        failed = json.loads(record.read_text()) | {"problem": "killed by signal 9"}
        record.write_text(json.dumps(failed))
        self.assertIn("2 runs: 1 done (1 before), 1 failed (1 before);", self.sweep("--collect", status=1))
        subprocess.run(failed["command"], cwd=self.folder, check=True, capture_output=True)
        self.assertIn("2 runs: 2 done (2 before);", self.sweep("--collect"))
        row = self.rows()[1]
        self.assertEqual((row["status"], row["problem"] if "problem" in row else "", row["predicted_makespan"]), ("done", "", good[1]["predicted_makespan"]))
        self.assertEqual(row["seconds"], "", "the time of the run that failed")

    def test_a_run_without_an_output_is_not_done(self):
        """One that was killed between its report and its page, so without a record."""
        self.write("study.yaml", study(outputs="[timeline]", grid="{training.microbatches: [4, 6]}"))
        self.assertIn("2 runs: 2 done;", self.sweep())
        folder = self.folder_of(self.rows()[1])
        (folder / "timeline.svg").unlink()
        self.assertIn("2 runs: 2 done (2 before);", self.sweep(), "its record says that it was made")
        (folder / "run.json").unlink()
        self.assertEqual(self.sweep("--print").count("&&"), 1)
        self.assertIn("2 runs: 2 done (1 before);", self.sweep())
        self.assertTrue((folder / "timeline.svg").exists())

    def test_a_damaged_report(self):
        """It costs its own run alone: the other rows are written, and --retry makes the run again."""
        self.write("study.yaml", study(grid="{training.microbatches: [4, 6, 8]}"))
        self.sweep()
        good = self.rows()
        report = self.folder_of(good[1]) / "report.json"
        for damage in ("", '{"makespan": 1', "\0" * 100):
            report.write_text(damage)
            text = self.sweep(status=1)
            self.assertIn("3 runs: 2 done (2 before), 1 failed (1 before);", text)
            self.assertIn("failed: training.microbatches=6: its report.json is damaged\n", text)
            self.assertEqual([row["status"] for row in self.rows()], ["done", "failed", "done"])
            self.assertEqual(report.read_text(), damage)
            self.sweep("--retry")
            self.assertEqual(self.rows()[1]["predicted_makespan"], good[1]["predicted_makespan"])
        # A report of something else is the user's: it is named, and stays.
        for other in ("[]", '{"makespan": {}, "received_bytes": 3, "memory": 3}'):
            report.write_text(other)
            self.refused(["sweep", "study.yaml", "-o", "out", "--collect"], "report.json", "not a report")
            self.assertEqual(report.read_text(), other)
        report.unlink()
        (report.parent / "run.json").write_text('{"seconds": "x", "problem": 3}')
        self.assertIn("3 runs: 3 done (2 before);", self.sweep())

    def test_an_interruption_loses_one_run(self):
        self.write("study.yaml", study("train", grid="{training.steps: [2, 100000, 3]}"))
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_RANKS}
        with subprocess.Popen([self.binary, "sweep", "study.yaml", "-o", "out"], cwd=self.folder, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            runs = pathlib.Path(self.path("out/runs"))
            try:
                self.assertTrue(wait_until(lambda: any("step" in log.read_text() for log in runs.glob("*100000*/log.txt"))))
                # Another sweep leaves that run alone, and runs the rest.
                text = self.sweep()
                self.assertIn("3 runs: 2 done (1 before), 1 run by another sweep;", text)
            finally:
                process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertEqual(errors, "starpipe: ended by signal 15 (Terminated)\n")
        self.assertEqual(list(runs.glob("*100000*/report.json")), [])
        commands = self.sweep("--print")
        self.assertEqual(len(commands.splitlines()), 1)
        self.assertIn("training.steps=100000", commands)
        self.assertIn("2 done (2 before)", self.sweep("--collect"))

    def test_printed_commands_do_the_same(self):
        self.write("study.yaml", study(grid="{training.microbatches: [4, 6]}"))
        for command in self.sweep("--print").splitlines():
            subprocess.run(command, shell=True, cwd=self.folder, check=True, capture_output=True)
        self.assertIn("2 runs: 2 done (2 before);", self.sweep("--collect"))
        by_hand = self.rows()
        for row in by_hand:  # what docs/studies.md says of such runs
            self.assertEqual(os.listdir(self.folder_of(row)), ["report.json"])
            self.assertFalse({"seconds", "starpipe", "commit", "machine", "cores"} & row.keys())
        pathlib.Path(self.path("out")).rename(self.path("other"))
        self.sweep()
        for row, mine in zip(self.rows(), by_hand, strict=True):
            self.assertEqual(row["predicted_makespan"], mine["predicted_makespan"])

    def test_blocks_make_the_whole(self):
        self.write("study.yaml", study(grid="{training.microbatches: [4, 5, 6, 7, 8]}"))
        for block in ("1/3", "2/3"):
            self.sweep("--block", block)
        self.assertEqual([row["status"] for row in self.rows()], ["done", "done", "open", "done", "done"])
        self.sweep("--block", "3/3")
        self.assertEqual({row["status"] for row in self.rows()}, {"done"})
        for block in ("0/3", "4/3", "2", "a/b", "1/"):
            self.refused(["sweep", "study.yaml", "-o", "out", "--block", block], "--block")

    def test_several_at_a_time(self):
        self.write("study.yaml", study(grid="{training.microbatches: [4, 5, 6, 7, 8]}"))
        self.assertIn("5 done", self.sweep("--jobs", 4))
        cores = len(os.sched_getaffinity(0))
        self.write("study.yaml", study("train", grid="{training.steps: [2, 3]}", set="{schedule.workers: 1}"))
        if cores >= 2:
            self.sweep("--jobs", 2)
            bindings = [json.loads((self.folder_of(row) / "report.json").read_text())["ranks"][0]["binding"] for row in self.rows()]
            self.assertEqual(len(set(bindings)), 2, bindings)
        self.refused(["sweep", "study.yaml", "-o", "out", "--jobs", 1000], "--jobs", "1000 runs", "core")

    def test_script_for_slurm(self):
        self.write("study.yaml", study("train", grid="{ranks: [1, 4]}", set="{schedule.workers: 4}"))
        script = self.sweep("--slurm", 3)
        for line in ("#SBATCH --array=1-3", "#SBATCH --ntasks=4", "#SBATCH --cpus-per-task=4"):
            self.assertIn(line + "\n", script)
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        self.assertEqual(os.listdir(self.path("out")), ["runs"])

    def test_names_with_blanks_in_the_script(self):
        """Slurm reads options of #SBATCH as a shell does, and replaces patterns in the names of logs."""
        self.folder = self.path("two words")
        os.mkdir(self.folder)
        self.write("base.yaml", mlp_config(EMULATE))
        self.write("a study.yaml", study())
        script = self.ok("sweep", "a study.yaml", "-o", "re 5%j", "--slurm", 1)
        options = dict(shlex.split(line)[1].split("=", 1) for line in script.splitlines() if line.startswith("#SBATCH"))
        here = os.path.realpath(self.folder)
        self.assertEqual((options["--job-name"], options["--chdir"], options["--output"]),
                         ("a study", here, f"{here}/re 5%%j/slurm-%A_%a.txt"))

    def test_workers_of_a_file(self):
        self.ok("schedule", "show", "1f1b", "--workers", 2, "--microbatches", 4, "-o", "order.csv")
        self.write("study.yaml", study("train", set="{schedule.file: order.csv}"))
        self.assertIn("#SBATCH --cpus-per-task=2\n", self.sweep("--slurm", 1))

    def test_a_policy_of_the_environment_is_another_run(self):
        self.write("study.yaml", study())
        for environment, told in (({}, "1 done;"), ({"STARPU_SCHED": "lws"}, "1 done;"), ({}, "1 done (1 before);")):
            self.assertIn(f"1 run: {told}", self.sweep(environment=environment))

    def test_refusals(self):
        for parts, *culprits in [
                (study("fly"), "study.yaml:1", "command", "'fly' is not one of train, simulate, compare"),
                ("config: base.yaml\n", "study.yaml", "missing key command"),
                ("command: train\n", "study.yaml", "missing key config"),
                (study(gird="{a: [1]}"), "study.yaml:3", "unknown key 'gird'"),
                (study(grid="{training.stops: [1]}"), "study.yaml", "training.stops=1", "unknown key"),
                (study(grid="{training.steps: [1, 0]}"), "study.yaml", "training.steps=0", "at least 1"),
                (study(grid="{training.steps: [1, 1]}"), "training.steps", "1 is there twice"),
                (study(grid="{training.steps: 3}"), "study.yaml:3", "training.steps", "a list"),
                (study(grid="{training.steps: []}"), "training.steps", "a list"),
                (study(grid="{training.steps: [~]}"), "training.steps", "a value"),
                (study(set="{training.steps: 3}", grid="{training.steps: [3]}"), "study.yaml:4", "training.steps is given twice"),
                (study(set="{schedule.workers: 2}", grid="{schedule: [{name: 1f1b}, {name: 1f1b, workers: 4}]}"),
                 "study.yaml:4", "schedule.workers is given twice"),
                (study(set="{schedule: {workers: 2}}", runs="[{schedule.workers: 4}]"), "schedule.workers is given twice"),
                (study(set="{schedule: {workers: 2, workers: 4}}"), "schedule.workers", "twice"),
                (study(grid="{schedule: [{workers: 2}, {workers: 2}]}"), "{workers: 2} is there twice"),
                (study(grid="{schedule: [{}]}"), "study.yaml", "schedule", "at least one key"),
                (study(grid="{schedule: [{memory_limit: ~}]}"), "schedule.memory_limit", "expected a value"),
                (study(grid="{schedule.name: [nosuch]}"), "schedule.name=nosuch", "unknown schedule 'nosuch'"),
                (study(grid="{--nosuch: [a.json]}"), "study.yaml", "--nosuch=a.json", "starpipe simulate --help"),
                (study(set="{--no-prefetch: maybe}"), "study.yaml", "--no-prefetch"),
                (study(set="{--help: true}"), "study.yaml", "print something instead"),
                (study(set="{runtime.policy: nosuch}"), "runtime.policy", "unknown policy 'nosuch'"),
                (study("compare", grid="{runtime.policy: [starpipe, lws]}"), "runtime.policy=lws", "--policies instead"),
                (study(set="{--report: a.json}"), "study.yaml:3", "--report", "each run has a report"),
                (study(set="{--html: a.html}"), "study.yaml:3", "--html", "outputs: [html]"),
                (study(set="{ranks: 2}"), "ranks", "one process"),
                (study("train", set="{ranks: 0}"), "ranks", "at least 1"),
                (study("train", outputs="[weights]"), "outputs", "'weights'"),
                (study(repetitions=3), "repetitions", "the same each time"),
                (study("train", repetitions=0), "repetitions", "at least 1"),
                (study(runs="[{training.steps: 1}, {training.steps: 01}]"), "two runs are the same"),
                (study(runs="{training.steps: 1}"), "runs", "a list of maps"),
                (study(grid="{%s}" % ", ".join(f"k{i}: [1, 2, 3, 4]" for i in range(10))), "more than 100000 runs")]:
            self.write("study.yaml", parts)
            with self.subTest(study=parts):
                self.refused(["sweep", "study.yaml", "-o", "out"], *culprits)
        self.assertFalse(os.path.exists(self.path("out")))
        self.write("study.yaml", study().replace("base.yaml", "missing.yaml"))
        self.refused(["sweep", "study.yaml", "-o", "out"], "missing.yaml", "No such file")
        self.write("study.yaml", study())
        self.refused(["sweep", "study.yaml", "-o", "."], "-o", "other things")
        self.refused(["sweep", "study.yaml", "-o", "base.yaml"], "-o", "not a folder")
        self.refused(["sweep", "study.yaml", "-o", "out", "--print", "--jobs", 2], "--print", "--jobs")
        self.refused(["sweep", "study.yaml"], "--output")


if __name__ == "__main__":
    Sweep.binary = sys.argv.pop(1)
    LAUNCHER = shlex.join(sys.argv[1:-1])  # without the number of ranks
    unittest.main(argv=sys.argv[:1])
