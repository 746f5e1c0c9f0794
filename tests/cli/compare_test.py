# SPDX-License-Identifier: Apache-2.0
"""Emulated workers, and `starpipe compare`: alone and as two ranks.

Usage: compare_test.py BINARY LAUNCHER..., the launcher being what starts two ranks.
"""

import json
import os
import re
import sys
import unittest
import xml.etree.ElementTree as ElementTree

from support import CommandTest, gpt_config, max_under_way, mlp_config

LAUNCHER = []


def emulated(times, schedule="name: 1f1b, workers: 4", microbatches=8):
    return f"""model: {{kind: mlp, layers: 8, hidden: 4, inputs: 4, outputs: 2}}
training: {{steps: 2, microbatches: {microbatches}, microbatch_size: 1}}
schedule: {{{schedule}}}
runtime: {{emulate: {{{times}}}}}
"""


MS = 1e6  # nanoseconds


def gaps(report, waits):
    """The times from the end of a job to the start of the next one of its worker, in nanoseconds, for each next job that
    `waits(stage, pass, worker, weights)` holds for. A transfer that is not prefetched lies in the gap: a wait never ends
    early."""
    jobs = report["explain"]["record"]["jobs"]
    before = {}
    found = []
    for start, end, *job in sorted(zip(*(jobs[column] for column in ("start", "end", "stage", "pass", "worker", "weights")))):
        worker = job[2]
        if worker in before and waits(*job):
            found.append(start - before[worker])
        before[worker] = end
    return found


class ReportTest(CommandTest):
    def report(self, text, *more, launcher=()):
        self.write("job.yaml", text)
        result = self.run_command("train", "job.yaml", "--report", "report.json", *more, launcher=launcher)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("report.json"))


class Emulation(ReportTest):
    def assert_not_faster(self, report):
        """Emulated jobs never end early, so an ordered run takes at least the predicted time."""
        self.assertGreaterEqual(min(report["makespan"]["all_measured"]), 0.999 * report["makespan"]["predicted"])

    def test_any_number_of_workers(self):
        for launcher in ([], LAUNCHER):
            report = self.report(emulated("F: 1ms, B: 1ms, W: 1ms", "name: 1f1b, workers: 24, stages: 24",
                                          microbatches=24).replace("layers: 8", "layers: 24"), launcher=launcher)
            # (B + P - 1) times 3 ms
            self.assertAlmostEqual(report["makespan"]["predicted"], 47 * 3e-3)
            self.assert_not_faster(report)
            self.assertEqual(report["peak_stashes"]["measured"], list(range(24, 0, -1)))
            self.assertEqual(report["peak_stashes"]["predicted"], report["peak_stashes"]["measured"])
            self.assertTrue(report["emulated"])
            self.assertNotIn("losses", report)

    def test_simulate_predicts_what_train_predicts(self):
        """Times, transfers, prefetch, recomputation and limits of an emulated run: the makespan of both is the same."""
        one = "F: 1ms, B: 1ms, W: 1ms"
        for times, schedule, more in (
                (one, "name: 1f1b, workers: 4", ()),
                (one + ", comm: 700us", "name: 1f1b, workers: 4", ()),
                (one + ", comm: 700us, prefetch: false", "name: gpipe, workers: 4", ()),
                ("F: [1ms, 2ms, 3ms, 4ms], B: 2ms, W: 0us", "name: zb-1p, workers: 4", ()),
                ("F: 0us, B: 1ms, W: 0us", "name: 1f1b, workers: 4", ()),
                (one + ", comm: 300us", "name: v-half, workers: 4", ("schedule.memory_limit=4",)),
                (one + ", comm: 300us", "name: 1f1b, workers: 4", ("schedule.discipline=greedy", "schedule.home=none")),
                (one, "name: 1f1b, workers: 4", ("schedule.discipline=greedy", "schedule.dynamic=true"))):
            with self.subTest(times=times, schedule=schedule, more=more):
                sets = [word for key in more for word in ("--set", key)]
                report = self.report(emulated(times, schedule), *sets)
                predicted = json.loads(self.ok("simulate", "job.yaml", *sets, "--json"))
                self.assertEqual(predicted["makespan"], report["makespan"]["predicted"])
                self.assertEqual(predicted["peak_stashes"], report["peak_stashes"]["predicted"])
                self.assertEqual(predicted["comm"], report["transfer_delay"])
                if "dynamic" not in str(more):
                    self.assertEqual(predicted["peak_stashes"], report["peak_stashes"]["measured"])
                durations = predicted["durations"]
                if isinstance(durations, dict):
                    durations = [durations] * predicted["stages"]
                self.assertEqual(durations, report["durations"])
        # Options replace what the configuration emulates.
        data = json.loads(self.ok("simulate", "job.yaml", "--durations", "F=1,B=1,W=1", "--comm", 2, "--json"))
        self.assertEqual((data["durations"], data["comm"]), ({"F": 1, "B": 1, "W": 1}, 2))
        self.refused(["simulate", "job.yaml", "--set", "runtime.device=cuda"], "runtime.device: cuda", "runtime.emulate")

    def test_times_by_stage_and_units(self):
        report = self.report(emulated("F: [1ms, 2ms, 3000us, 0.004s], B: 1ms, W: 0us"))
        self.assertEqual([d["F"] for d in report["durations"]], [0.001, 0.002, 0.003, 0.004])
        self.assertEqual(report["durations"][0]["W"], 0)
        self.assert_not_faster(report)

    def test_transfers_hide_behind_compute_when_they_are_prefetched(self):
        # Two stages and a link as slow as a job: with prefetch, an activation travels while the worker is busy.
        text = emulated("F: 10ms, B: 10ms, W: 0ms, comm: 10ms, prefetch: WANTED", "name: gpipe, workers: 2", 16)
        for launcher in ([], LAUNCHER):
            hidden = self.report(text.replace("WANTED", "true"), launcher=launcher)
            exposed = self.report(text.replace("WANTED", "false"), launcher=launcher)
            for report in (hidden, exposed):
                self.assert_not_faster(report)
            self.assertLess(hidden["makespan"]["predicted"], 0.6 * exposed["makespan"]["predicted"])
            of_stage_1 = lambda stage, name, worker, weights: (stage, name) == (1, "F")  # noqa: E731
            self.assertLess(min(gaps(hidden, of_stage_1)), 5 * MS)
            self.assertGreaterEqual(min(gaps(exposed, of_stage_1)), 9.99 * MS)

    def test_fetched_weights_are_prefetched_too(self):
        # fsdp: worker 1 computes micro-batch 1 of every stage, and worker 0 holds a part of the weights.
        text = emulated("F: 20ms, B: 20ms, W: 0ms, comm: 80ms, prefetch: WANTED", "name: fsdp, workers: 2, stages: 8", 2)
        hidden, exposed = (self.report(text.replace("WANTED", value)) for value in ("true", "false"))
        for report in (hidden, exposed):
            self.assertGreater(sum(report["received"]["weights"]["count"]["measured"]), 0)
            self.assert_not_faster(report)
        fetches = lambda stage, name, worker, weights: name == "F" and worker != weights  # noqa: E731
        self.assertLess(min(gaps(hidden, fetches)), 40 * MS)
        self.assertGreaterEqual(min(gaps(exposed, fetches)), 79.9 * MS)

    def test_bad_input(self):
        def refused(times, *culprits):
            self.write("bad.yaml", emulated(times))
            self.refused(["train", "bad.yaml"], *culprits)

        refused("F: 1ms, B: 1ms", "runtime.emulate.W")
        refused("F: 1, B: 1ms, W: 1ms", "runtime.emulate.F", "2ms")
        refused("F: 1h, B: 1ms, W: 1ms", "runtime.emulate.F", "1h")
        refused("F: -1ms, B: 1ms, W: 1ms", "runtime.emulate.F")
        refused("F: [1ms, 1ms], B: 1ms, W: 1ms", "runtime.emulate.F", "2 times for 4 stages")
        refused("F: [], B: 1ms, W: 1ms", "runtime.emulate.F")
        refused("F: 1ms, B: 1ms, W: 1ms, prefetch: perhaps", "runtime.emulate.prefetch", "perhaps")
        refused("F: 1ms, B: 1ms, W: 1ms, speed: 2", "runtime.emulate.speed")


class Compare(ReportTest):
    POLICIES = ["starpipe", "on-worker", "worker-order", "eager", "lws", "prio", "dmdas"]

    def test_skipped_updates_are_told(self):
        self.write("far.yaml", mlp_config())
        result = self.run_command("compare", "far.yaml", "--policies", "starpipe", "--repetitions", 1, "-o", "c.json", "--set",
                                  "training.steps=4", "--set", "training.optimizer.learning_rate=1e30", "--set",
                                  "training.nonfinite=skip")
        self.assertEqual(result.returncode, 0, result.stderr)
        skipped = json.loads(self.read("c.json"))["policies"][0]["skipped_steps"]
        self.assertGreater(skipped, 0)
        self.assertIn(f"gpipe under starpipe: {skipped} steps of all repetitions skipped their update", result.stdout)

    def test_a_memory_limit(self):
        """What fits is kept; another order is told of, in text and JSON."""
        self.write("job.yaml", emulated("F: 1ms, B: 1ms, W: 1ms", "name: gpipe, workers: 4, memory_limit: 3"))
        compare = ["compare", "job.yaml", "--policies", "starpipe", "--repetitions", 1]
        result = self.run_command(*compare)
        self.assertIn("not in gpipe's own order", result.stdout)
        result = self.run_command(*compare, "--json")
        self.assertEqual(json.loads(result.stdout)["reordered"], {"worker": 0, "stashes": 8, "limit": 3})
        result = self.run_command(*compare, "--json", "--set", "schedule.memory_limit=8")
        self.assertNotIn("reordered", json.loads(result.stdout))
        self.assertNotIn("record", json.loads(result.stdout)["policies"][0])

    def test_emulated(self):
        self.write("job.yaml", emulated("F: 1ms, B: 1ms, W: 1ms, comm: 100us"))
        for launcher in ([], LAUNCHER):
            result = self.run_command("compare", "job.yaml", "--repetitions", 2, "-o", "compare.json", "--timeline",
                                      "compare.svg", launcher=launcher)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("2 ranks; 2 repetitions of" if launcher else " 1 rank; 2 repetitions of", result.stdout)
            comparison = json.loads(self.read("compare.json"))
            self.assertEqual([p["policy"] for p in comparison["policies"]], self.POLICIES)
            self.assertEqual([p["ran"] for p in comparison["policies"]],
                             ["starpipe", "prio", "prio", "eager", "lws", "prio", "dmdas"])
            for policy in comparison["policies"]:
                self.assertEqual(policy["predicted_makespan"], comparison["predicted"]["makespan"])
                self.assertEqual(len(policy["makespans"]), 2)
                self.assertIn(policy["policy"], result.stdout)
                jobs = policy["record"]["jobs"]
                self.assertEqual(max(jobs["end"]), round(1e9 * policy["makespan"]))
                self.assertEqual(len(jobs["end"]), len(jobs["stage"]))
            for policy in comparison["policies"]:
                if policy["policy"] in ("starpipe", "worker-order"):
                    self.assertEqual(policy["peak_stashes"], comparison["predicted"]["peak_stashes"])
                    self.assertEqual(policy["bytes_moved"], comparison["predicted"]["bytes_moved"])
                    self.assertGreaterEqual(min(policy["makespans"]), 0.999 * comparison["predicted"]["makespan"])
            ElementTree.fromstring(self.read("compare.svg"))

    def test_submission_overlaps_execution_within_its_window(self):
        for launcher in ([], LAUNCHER):
            for schedule in ("1f1b", "fsdp"):
                self.write("job.yaml", emulated("F: 2ms, B: 2ms, W: 2ms, comm: 100us", f"name: {schedule}, workers: 4"))
                for window in (1, 10000):
                    result = self.run_command("compare", "job.yaml", "--policies", "starpipe", "--repetitions", 1,
                                              "--set", f"runtime.window={window}", "-o", "c.json", launcher=launcher)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    comparison = json.loads(self.read("c.json"))
                    [run] = comparison["policies"]
                    self.assertEqual(run["peak_stashes"], comparison["predicted"]["peak_stashes"])
                    self.assertGreater(run["submission"], 0)
                    at_once = max_under_way(run["record"])
                    ranks = 2 if launcher else 1
                    self.assertTrue(at_once <= ranks if window == 1 else at_once > 2 * ranks, f"{schedule}, window {window}: {at_once}")

    def test_real(self):
        self.write("text", "The quick brown fox jumps over the lazy dog. " * 5)
        self.write("gpt.yaml", gpt_config("text"))
        policies = ["worker-order", "starpipe", "lws"]
        text = self.ok("compare", "gpt.yaml", "--policies", ",".join(policies), "--repetitions", 3, "-o", "c.json",
                       "--timeline", "c.svg")
        comparison = json.loads(self.read("c.json"))
        self.assertEqual([p["policy"] for p in comparison["policies"]], policies)
        self.assertFalse(comparison["emulated"])
        # Each run has a prediction from its own durations; output that takes one policy's durations says so.
        first = comparison["predicted"]
        self.assertEqual(first["durations_of"], "worker-order")
        self.assertEqual(comparison["policies"][0]["predicted_makespan"], first["makespan"])
        self.assertEqual(len({p["predicted_makespan"] for p in comparison["policies"]}), 3)
        self.assertRegex(text, rf"(?m)^\(prediction\) +{first['makespan'] * 1e3:.2f} ms +\d")
        for policy in comparison["policies"]:
            predicted, makespan = policy["predicted_makespan"], policy["makespan"]
            self.assertRegex(text, rf"(?m)^{policy['policy']} +{predicted * 1e3:.2f} ms +{makespan * 1e3:.2f} ms +(> )?[-+]")
        self.assertIn("(prediction): with those under worker-order", text)
        self.assertIn("predicted with the durations under worker-order", self.read("c.svg"))

    def test_every_policy_trains_the_same(self):
        self.write("mlp.yaml", mlp_config(schedule="name: 1f1b, workers: 2"))
        losses = {}
        for policy in self.POLICIES:
            result = self.run_command("train", "mlp.yaml", "--set", f"runtime.policy={policy}", "--report", "r.json")
            self.assertEqual(result.returncode, 0, result.stderr)
            losses[policy] = json.loads(self.read("r.json"))["losses"]
        for policy in self.POLICIES:
            for loss, expected in zip(losses[policy], losses["starpipe"]):
                self.assertAlmostEqual(loss, expected, delta=1e-5 * expected, msg=policy)
        self.assertEqual(losses["worker-order"], losses["starpipe"])

    def test_every_policy_that_is_known_runs(self):
        """All names of the message about an unknown policy: of ours and of StarPU."""
        self.write("mlp.yaml", mlp_config(schedule="name: 1f1b, workers: 2"))
        message = self.refused(["compare", "mlp.yaml", "--policies", "nosuch"], "known:")
        known = message.split("known: ")[1].split(";")[0].split(", ")
        self.assertGreater(len(known), 20)
        comparison = json.loads(self.ok("compare", "mlp.yaml", "--policies", ",".join(known), "--repetitions", 1, "--json"))
        self.assertEqual([p["policy"] for p in comparison["policies"]], known)

    def test_bad_input(self):
        self.write("mlp.yaml", mlp_config())
        self.refused(["compare", "mlp.yaml", "--policies", "starpipe,lsw"], "--policies", "lsw", "lws")
        # Found before anything else, here before the weights, which are missing.
        self.refused(["compare", "mlp.yaml", "--policies", "lws,lws", "--set", "model.init=missing"], "--policies", "lws", "twice")
        self.refused(["compare", "mlp.yaml", "--repetitions", 0], "--repetitions")
        self.refused(["compare", "mlp.yaml", "-o", "no/such/folder.json"], "--output", "no/such")
        self.refused(["compare", "mlp.yaml"], "STARPU_SCHED_LIB", "no.so", environment={"STARPU_SCHED_LIB": "./no.so"})
        self.assertEqual(os.listdir(self.folder), ["mlp.yaml"])

    def test_the_environment_does_not_choose(self):
        self.write("mlp.yaml", mlp_config())
        comparison = json.loads(self.ok("compare", "mlp.yaml", "--policies", "starpipe,prio", "--repetitions", 1,
                                        "--json", environment={"STARPU_SCHED": "eager"}))
        self.assertEqual([p["ran"] for p in comparison["policies"]], ["starpipe", "prio"])


class Schedules(CommandTest):
    """`compare --schedules`."""

    NAMES = ["1f1b", "zb-h1", "v-half"]

    def compare(self, *arguments, launcher=()):
        result = self.run_command("compare", *arguments, launcher=launcher)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_emulated_work_is_the_same(self):
        """v-half has twice the stages, so each lasts half as long. Each schedule is the one that train would run."""
        self.write("job.yaml", emulated("F: 2ms, B: 2ms, W: 2ms, comm: 100us"))
        for launcher in ([], LAUNCHER):
            text = self.compare("job.yaml", "--schedules", ",".join(self.NAMES), "--repetitions", 2, "-o", "c.json",
                                "--timeline", "c.svg", launcher=launcher)
            self.assertIn(f"3 schedules on 4 workers, {'2 ranks' if launcher else '1 rank'}, policy starpipe; "
                          "2 repetitions of 2 steps", text)
            self.assertIn("v-half has 8 stages: each lasts 0.5 times the time in runtime.emulate", text)
            self.assertRegex(text, r"schedule +predicted +makespan +difference +min \.\. max +bubble +stashes +stash bytes +moved")
            picture = self.read("c.svg")
            for drawn in ("v-half, predicted", "v-half, starpipe", "idle: producer", "critical path"):
                self.assertIn(drawn, picture)
            compared = json.loads(self.read("c.json"))["schedules"]
            self.assertEqual([c["config"]["schedule"]["name"] for c in compared], self.NAMES)
            self.assertEqual([c["stages"] for c in compared], [4, 4, 8])
            self.assertEqual([c.get("stage_share") for c in compared], [None, None, 0.5])
            for name, one in zip(self.NAMES, compared):
                self.write("again.json", json.dumps(one["config"]))
                simulated = json.loads(self.ok("simulate", "again.json", "--json"))
                self.assertEqual(simulated["durations"]["F"], 0.001 if name == "v-half" else 0.002)
                self.assertEqual(one["predicted"]["makespan"], simulated["makespan"])
                [run] = one["policies"]
                self.assertEqual((run["policy"], len(run["makespans"])), ("starpipe", 2))
                self.assertEqual(run["peak_stashes"], simulated["peak_stashes"])
                self.assertGreaterEqual(min(run["makespans"]), 0.999 * simulated["makespan"])
                predicted, makespan = one["predicted"]["makespan"], run["makespan"]
                difference = f"{100 * (makespan / predicted - 1):+.1f} %"
                self.assertRegex(text, rf"(?m)^{name} +{predicted * 1e3:.2f} ms +{makespan * 1e3:.2f} ms +"
                                 + re.escape(difference))
            picture = self.read("c.svg")
            ElementTree.fromstring(picture)
            titles = [picture.find(f">{name}, {run}<") for name in self.NAMES for run in ("predicted", "starpipe")]
            self.assertEqual(titles, sorted(titles))
            self.assertGreater(titles[0], 0)

    def test_every_pair_runs(self):
        """Real kernels: the model is cut as each schedule needs it."""
        self.write("mlp.yaml", mlp_config(schedule="name: gpipe, workers: 2").replace("layers: 2", "layers: 4"))
        policies = ["worker-order", "starpipe"]
        for launcher in ([], LAUNCHER):
            text = self.compare("mlp.yaml", "--schedules", "v-half,1f1b", "--policies", ",".join(policies), "--repetitions", 2,
                                "-o", "c.json", "--timeline", "c.svg", launcher=launcher)
            self.assertIn("1f1b cuts the model into 2 stages, v-half into 4", text)
            for name in ("v-half", "1f1b"):
                for policy in policies:
                    self.assertRegex(text, rf"(?m)^{name} +{policy} +[\d.]+ ms +[\d.]+ ms +(> )?[-+][\d.]+ %")
            compared = json.loads(self.read("c.json"))["schedules"]
            self.assertEqual([c["stages"] for c in compared], [4, 2])
            for one in compared:
                self.assertFalse(one["emulated"])
                self.assertEqual([p["policy"] for p in one["policies"]], policies)
                for run in one["policies"]:
                    self.assertEqual(len(run["makespans"]), 2)
                    self.assertEqual(run["peak_stashes"], one["predicted"]["peak_stashes"])
                    self.assertEqual(run["bytes_moved"], one["predicted"]["bytes_moved"])

    def test_each_schedule_has_a_map_of_its_own(self):
        """With runtime.mapping: auto the workers of each schedule are where train puts them."""
        self.write("mlp.yaml", mlp_config("runtime: {mapping: auto}", schedule="name: 1f1b, workers: 4")
                   .replace("layers: 2, hidden: 8", "layers: 4, hidden: 64"))
        names = ["1f1b", "gems"]
        self.compare("mlp.yaml", "--schedules", ",".join(names), "--repetitions", 1, "-o", "c.json", launcher=LAUNCHER)
        found = [[rank["logical_workers"] for rank in c["ranks"]] for c in json.loads(self.read("c.json"))["schedules"]]
        for name, ranks in zip(names, found):
            result = self.run_command("train", "mlp.yaml", "--set", f"schedule.name={name}", "--report", "r.json",
                                      launcher=LAUNCHER)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(ranks, [rank["logical_workers"] for rank in json.loads(self.read("r.json"))["ranks"]])
        self.assertNotEqual(found[0], found[1])

    def test_a_schedule_that_cannot_be_made(self):
        """The others are shown, and one line says why it is not."""
        self.write("mlp.yaml", mlp_config(schedule="name: gpipe, workers: 2"))
        for launcher in ([], LAUNCHER):
            result = self.run_command("compare", "mlp.yaml", "--schedules", "lpp,1f1b,v-half,gpipe", "--repetitions", 1, "--json",
                                      launcher=launcher)
            self.assertEqual(result.returncode, 0, result.stderr)
            shown = [one["config"]["schedule"]["name"] for one in json.loads(result.stdout)["schedules"]]
            self.assertEqual(shown, ["1f1b", "gpipe"])
            lines = result.stderr.splitlines()
            self.assertEqual([line.split(": ")[:3] for line in lines],
                             [["starpipe", "--schedules", "lpp"], ["starpipe", "--schedules", "v-half"]])

    def test_bad_input(self):
        self.write("mlp.yaml", mlp_config())
        self.write("job.yaml", emulated("F: [1ms, 2ms, 3ms, 4ms], B: 1ms, W: 1ms"))
        self.write("s.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
        for launcher in ([], LAUNCHER):
            for arguments, *culprits in (
                    (["mlp.yaml", "--schedules", "1f1b,zbh1"], "--schedules", "'zbh1'", "zb-h1"),
                    (["mlp.yaml", "--schedules", "1f1b,gpipe,1f1b"], "--schedules", "'1f1b'", "twice"),
                    (["mlp.yaml", "--schedules", "1f1b,1F1B"], "--schedules", "'1F1B'", "twice"),
                    (["mlp.yaml", "--schedules", "v-half,v-min", "--set", "schedule.stages=2"],
                     "--schedules: v-half: schedule.stages: v-half", "2 workers need 4 stages"),
                    (["mlp.yaml", "--schedules", "v-half,lpp"], "--schedules: v-half", "schedule.stages", "the units of the model"),
                    (["mlp.yaml", "--schedules", "lpp,v-half"], "--schedules: lpp: schedule.groups"),
                    (["mlp.yaml", "--schedules", "1f1b", "--set", "schedule.name=gpipe"], "schedule.name", "--schedules"),
                    (["mlp.yaml", "--schedules", "1f1b", "--set", "schedule={name: gpipe}"], "schedule.name", "--schedules"),
                    (["mlp.yaml", "--schedules", "1f1b", "--set", "schedule.file=s.csv"], "--schedules", "schedule.file"),
                    (["mlp.yaml", "--schedules", "1f1b,gpipe", "--policies", "lws,lws"], "--policies", "twice"),
                    (["job.yaml", "--schedules", "1f1b,v-half"], "--schedules: v-half", "runtime.emulate.F",
                     "the 4 stages of 1f1b, v-half has 8")):
                self.refused(["compare", *arguments], *culprits, launcher=launcher)


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv[1])
    LAUNCHER[:] = sys.argv[2:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
