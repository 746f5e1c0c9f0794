# SPDX-License-Identifier: Apache-2.0
"""`model.tensor`: shards compared with the whole model, on one rank, on two and on four.

Usage: tensor_test.py BINARY LAUNCHER..., the launcher being what starts two ranks: its last word is their number.
"""

import itertools
import json
import os
import re
import shutil
import sys
import unittest

from support import CommandTest

LAUNCHER = []
FOUR_RANKS = []

CONFIG = """
model:    {kind: gpt, layers: 2, hidden: 16, heads: 4, context: 16}
data:     {kind: text, path: text}
training: {steps: 4, microbatches: 3, seed: 1}
schedule: {name: 1f1b, workers: 2}
runtime:  {workers_per_core: 16}
"""
MLP_CONFIG = """
model:    {kind: mlp, layers: 3, hidden: 16, inputs: 6, outputs: 2}
training: {steps: 4, microbatches: 3, microbatch_size: 5, seed: 1}
schedule: {name: 1f1b, workers: 2}
runtime:  {workers_per_core: 16}
"""


class Tensor(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("c.yaml", CONFIG)
        self.write("mlp.yaml", MLP_CONFIG)
        self.write("text", "It is a truth universally acknowledged. " * 40)

    def train(self, shards, *arguments, config="c.yaml", **options):
        result = self.run_command("train", config, "--set", f"model.tensor={shards}", "--report", "r.json", *arguments,
                                  timeout=300, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("r.json"))

    def train_as_the_whole(self, *model, every_shards=(2, 4), **options):
        whole = self.train(1, *model, **options)
        for shards in every_shards:
            for launcher in ([], LAUNCHER, FOUR_RANKS):
                report = self.train(shards, *model, launcher=launcher, **options)
                self.assertEqual(report["workers"], 2 * (max(shards) if isinstance(shards, list) else shards))
                self.assertEqual(report["parameters"], whole["parameters"])
                for mine, expected in zip(report["losses"], whole["losses"], strict=True):
                    self.assertAlmostEqual(mine, expected, delta=2e-6 * expected)
                self.assert_as_predicted(report)
                self.assertGreater(sum(report["received"]["activations"]["count"]["measured"]), 0)

    def test_shards_train_as_the_whole(self):
        self.train_as_the_whole()

    def test_shards_of_llama_train_as_the_whole(self):
        self.train_as_the_whole("--set", "model={kind: llama, heads: 8, kv_heads: 4, intermediate: 24}")

    def test_shards_of_an_mlp_train_as_the_whole(self):
        self.train_as_the_whole(config="mlp.yaml", every_shards=(2, 4, [4, 1, 2]))

    def test_blocks_have_shards_of_their_own(self):
        self.train_as_the_whole(every_shards=([4, 1], [2, 4]))
        expected = self.train([4, 2])["losses"]
        for mine, other in zip(self.train([4, 2], "--set", "model.sums=one")["losses"], expected, strict=True):
            self.assertAlmostEqual(mine, other, delta=2e-6 * other)

    def test_shards_agree_with_the_network_that_was_never_cut(self):
        for config, shards in (("c.yaml", "[4, 2]"), ("mlp.yaml", "2"), ("mlp.yaml", "[1, 4, 2]")):
            for launcher in ([], LAUNCHER):
                with self.subTest(config, shards=shards, launcher=launcher):
                    result = self.run_command("verify", config, "--set", f"model.tensor={shards}", "--steps", 2, "--json",
                                              launcher=launcher)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertTrue(json.loads(result.stdout)["agrees"])

    def test_layers_of_an_mlp_exchange_columns(self):
        """By hand, for 3 micro-batches of 5 rows and 3 layers of 16 columns on 4 workers. Each of 4 shards of the second and
        the third layer reads 4 columns of 3 others, and the last layer does so once. Gradients go the other way."""
        report = self.train(4, "--set", "schedule.workers=1", config="mlp.yaml")
        for kind in ("activations", "gradients"):
            for figure, expected in (("count", 3 * (2 * 4 + 1) * 3), ("bytes", 3 * (2 * 4 + 1) * 3 * 5 * 4 * 4)):
                self.assertEqual(sum(report["received"][kind][figure]["measured"]), expected, (kind, figure))
        self.assert_as_predicted(report)

    def test_blocks_with_other_shards_exchange_results(self):
        """By hand, for 3 micro-batches and blocks with 4 and 2 shards on 4 workers. The embedding's output goes to 3 workers, and
        each of 4 results of the first half, too. The 2 shards of the third half read 3 results of others each, the shards of the
        fourth 1 each, and the head 1."""
        report = self.train("[4, 2]", "--set", "schedule.workers=1")
        self.assertEqual(sum(report["received"]["activations"]["count"]["measured"]), 3 * (3 + 4 * 3 + 2 * 3 + 2 * 1 + 1))
        # Each of 2 gradients of the third half's input goes to the 3 other workers with shards of the second.
        self.assertEqual(sum(report["received"]["gradients"]["count"]["measured"]), 3 * (3 + 4 * 3 + 2 * 3 + 2 * 1 + 1))
        self.assert_as_predicted(report)

    def test_every_schedule_runs_shards(self):
        """Each with another number of shards and ranks. The engine's tests run each with all of these numbers."""
        model = ("--set", "model.layers=6", "--set", "training.microbatches=4", "--set", "training.steps=1")
        names = [entry["name"] for entry in json.loads(self.ok("schedule", "list", "--json"))["schedules"]]
        whole = self.train(1, *model)["losses"][0]
        combinations = itertools.cycle(itertools.product((2, 4), ([], LAUNCHER)))
        for name, (shards, launcher) in zip(names, combinations):
            with self.subTest(name, shards=shards, launcher=launcher):
                groups = ("--set", "schedule.groups=2") if name in ("lpp", "fslpp") else ()
                report = self.train(shards, *model, "--set", f"schedule.name={name}", *groups, launcher=launcher)
                self.assertAlmostEqual(report["losses"][0], whole, delta=2e-6 * whole)
                self.assert_as_predicted(report)

    def assert_as_predicted(self, report):
        for kinds in report["received"].values():
            for figures in kinds.values():
                self.assertEqual(figures["predicted"], figures["measured"])

    def test_commands_for_chains_refuse_shards(self):
        self.refused(["search", "--workers", 2, "--microbatches", 4, "--tensor", 2], "--tensor", "search knows chains of stages only")
        self.refused(["partition", "absent.yaml", "--workers", 2, "--tensor", 2], "--tensor", "partition knows chains of units only")
        self.refused(["profile", "c.yaml", "--set", "model.tensor=2", "-o", "u.yaml"], "model.tensor", "units that are cut into shards")
        self.refused(["simulate", "c.yaml", "--set", "model.tensor=2", "--set", "schedule.partition=auto"], "model.tensor")
        # What they find for whole stages can be cut.
        self.ok("search", "--workers", 2, "--microbatches", 4, "--budget", 0.1, "--quiet", "-o", "found.json")
        self.ok("schedule", "check", "found.json", "--tensor", 2)
        self.ok("simulate", "c.yaml", "--set", "model.tensor=2", "--set", "schedule.cuts=[1]")

    def test_one_sum_moves_fewer_results(self):
        """By hand, for 3 micro-batches of 2 blocks on 4 workers: embedding and head exchange 3 results each with other
        workers. Between the 4 halves each shard reads 3 others; or one worker receives 3 and sends the sum to 3."""
        for sums, each in (("each", 3 * 4 * 3), ("one", 3 * (3 + 3))):
            report = self.train(4, "--set", "schedule.workers=1", "--set", f"model.sums={sums}")
            for kind in ("activations", "gradients"):
                self.assertEqual(sum(report["received"][kind]["count"]["measured"]), 3 * (3 + each + 3))
            self.assert_as_predicted(report)

    def test_one_sum_trains_as_the_whole(self):
        self.train_as_the_whole("--set", "model.layers=1", "--set", "schedule.name=zb-h1")
        one = ("--set", "model.sums=one")
        expected = self.train(2)["losses"]
        for launcher in ([], LAUNCHER):
            for mine, other in zip(self.train(2, *one, launcher=launcher)["losses"], expected, strict=True):
                self.assertAlmostEqual(mine, other, delta=2e-6 * other)

    def test_shards_run_wherever_a_file_says(self):
        """The head gets a worker of its own; both shards of the first half of the second block are on another one."""
        self.ok("simulate", "c.yaml", "--set", "model.tensor=2", "-o", "shards.json")
        plan = json.loads(self.read("shards.json"))
        self.assertEqual(plan["stages"], 10)
        self.assertEqual(plan["shards"], [[1, 2], [3, 4], [5, 6], [7, 8]])
        jobs = sorted((op["start"], op["end"], op["stage"], worker, op) for worker, row in enumerate(plan["ops"]) for op in row)
        plan["workers"], plan["ops"] = 5, [[] for _ in range(5)]
        for _, _, stage, worker, op in jobs:
            worker = {9: 4, 5: 0, 6: 0}.get(stage, worker)
            plan["ops"][worker].append({"op": op["op"], "stage": stage, "microbatch": op["microbatch"],
                                        "weights_from": worker})
        self.write("own.json", json.dumps(plan))
        own = ("--set", "schedule={file: own.json, stages: 2}")
        whole = self.train(1)
        for launcher in ([], LAUNCHER):
            report = self.train(2, *own, launcher=launcher)
            self.assertEqual(report["workers"], 5)
            self.assert_as_predicted(report)
            for mine, expected in zip(report["losses"], whole["losses"], strict=True):
                self.assertAlmostEqual(mine, expected, delta=2e-6 * expected)

        plan["shards"] = [[1, 10]]
        self.write("bad.json", json.dumps(plan))
        self.refused(["schedule", "check", "bad.json"], "bad.json: shards: there is no stage 10 to be a shard, only 10 stages")

    def test_shards_of_a_file_are_stages_like_others(self):
        """They may be picked at run time, and a limit counts them."""
        self.ok("simulate", "c.yaml", "--set", "model.tensor=2", "--set", "schedule.name=gpipe", "-o", "shards.json")
        whole = self.train(1)["losses"]
        for settings, launcher in (("discipline: greedy, dynamic: true", LAUNCHER), ("discipline: bounded, memory_limit: 6", [])):
            report = self.train(2, "--set", f"schedule={{file: shards.json, stages: 2, {settings}}}", launcher=launcher)
            self.assertEqual(report["discipline"], settings.split()[1].strip(","))
            for mine, expected in zip(report["losses"], whole, strict=True):
                self.assertAlmostEqual(mine, expected, delta=2e-6 * expected)
        self.assertEqual(report["peak_stashes"]["measured"], report["peak_stashes"]["predicted"])
        self.assertLessEqual(max(report["peak_stashes"]["measured"]), 6)
        self.assertGreater(max(self.train(2, "--set", "schedule={file: shards.json, stages: 2}")["peak_stashes"]["measured"]), 6)

    def test_a_greedy_order_is_that_of_whole_stages(self):
        report = self.train(2, "--set", "schedule.discipline=greedy")
        self.assertEqual(report["discipline"], "greedy")
        self.assert_as_predicted(report)

    def test_a_fold_of_a_schedule_is_a_file(self):
        show = ("schedule", "show", "zb-h1", "--workers", "2", "--microbatches", "4", "--durations", "F=2,B=4,W=2")
        whole = json.loads(self.ok(*show, "--json"))
        fold = json.loads(self.ok(*show, "--tensor", "2", "--json"))
        self.assertEqual(fold["makespan"], whole["makespan"] / 2)
        self.assertEqual(fold["workers"], 4)
        self.ok(*show, "--tensor", "2", "-o", "fold.json")
        self.assertEqual(json.loads(self.ok("schedule", "check", "fold.json", "--json")), fold)
        self.ok(*show, "-o", "whole.csv")
        of_file = json.loads(self.ok("schedule", "check", "whole.csv", "--durations", "F=2,B=4,W=2", "--tensor", "2",
                                     "--json"))
        self.assertEqual(of_file["makespan"], fold["makespan"])
        self.assertIn("F3b.0", self.ok(*show, "--tensor", "2", "--tensor-workers", "1", "--width", "400"))
        self.refused([*show, "--tensor", "2", "--tensor-workers", "3"],
                     "--tensor-workers: 3 workers are more than the 2 shards")
        self.refused(["schedule", "check", "fold.json", "--tensor", "2"],
                     "zb-h1: only a chain of stages can be cut into shards")

    def test_ranks_change_no_bit(self):
        one = self.train(2)["losses"]
        self.assertEqual(self.train(2, launcher=LAUNCHER)["losses"], one)

    def test_a_checkpoint_goes_on_with_the_same_shards(self):
        folder = ("--set", "checkpoint.folder=ck", "--set", "checkpoint.every=2")
        self.train(2, "--save-weights", "whole.safetensors")
        self.train(2, *folder, "--set", "training.steps=2")
        self.train(2, *folder, "--resume", "--save-weights", "resumed.safetensors", launcher=LAUNCHER)
        self.assertEqual(self.bytes("resumed.safetensors"), self.bytes("whole.safetensors"))
        self.train(2, *folder, "--resume", "--set", "model.sums=one", "--set", "training.steps=5")

    def test_a_checkpoint_goes_on_with_other_shards(self):
        """Its weights are the same, bit for bit, and its moments give the same next steps."""
        words = ["--set", "checkpoint.every=2", "--set", "checkpoint.folder=ck"]
        mlp = {"config": "mlp.yaml"}
        for model, options, changes in (
            (["--set", "model.tied=true"], {}, ((2, 1, []), (1, 4, LAUNCHER), ("[4, 2]", 2, []), (2, "[1, 4]", LAUNCHER))),
            (["--set", "model.kind=llama"], {}, ((4, 2, LAUNCHER),)),
            (["--set", "training.optimizer={kind: sgd, momentum: 0.9}"], mlp, ((2, "[1, 4, 2]", LAUNCHER),)),
        ):
            whole = self.train(1, *model, **options)["losses"]
            for before, after, launcher in changes:
                with self.subTest(model, before=before, after=after):
                    shutil.rmtree(self.path("ck"), ignore_errors=True)
                    two = [*model, *words, "--set", "training.steps=2"]
                    self.train(before, *two, "--save-weights", "saved.safetensors", launcher=launcher, **options)
                    self.train(after, *two, "--resume", "--save-weights", "read.safetensors", **options)
                    self.assertEqual(self.bytes("read.safetensors"), self.bytes("saved.safetensors"))
                    report = self.train(after, *model, *words, "--resume", launcher=launcher, **options)
                    self.assertEqual(report["first_step"], 3)
                    for mine, expected in zip(report["losses"], whole[2:], strict=True):
                        self.assertAlmostEqual(mine, expected, delta=2e-6 * expected)

    def test_a_checkpoint_of_other_sizes_is_refused(self):
        folder = ("--set", "checkpoint.folder=ck", "--set", "training.steps=2")
        self.train(4, *folder, config="mlp.yaml")
        for hidden, problem in ((32, "is there in part, and [32, 6] in the model"),
                                (8, "is in pieces of another shape, and [8, 6] in the model")):
            self.refused(["train", "mlp.yaml", *folder, "--resume", "--set", f"model.hidden={hidden}"],
                         "resume: ck/step-00000002: layers.0.weight " + problem)

    def test_shards_divide_emulated_times_by_their_flops(self):
        emulate = ("--set", "runtime.emulate={F: 1ms, B: 2ms, W: 3ms, per_share: true}")
        spans = {}
        for shards in (1, 2):
            self.ok("simulate", "c.yaml", *emulate, "--set", f"model.tensor={shards}", "--set", "schedule.stages=1",
                    "--set", "schedule.workers=1", "-o", "r.json")
            spans[shards] = json.loads(self.read("r.json"))["makespan"]
        self.assertAlmostEqual(spans[1], 3 * 6e-3)  # three micro-batches of the whole model
        # The head has no shards: its part of the FLOPs is not divided.
        rows, hidden, context, vocabulary, layers = 16, 16, 16, 256, 2
        head = 2 * rows * hidden * vocabulary
        blocks = layers * (24 * rows * hidden**2 + 4 * rows * context * hidden)
        self.assertGreater(spans[2], 2 * spans[1] * (head + blocks / 2) / (head + blocks) * 0.9)
        self.assertLess(spans[2], 2 * spans[1])

    def test_an_emulated_time_is_that_of_a_whole_stage(self):
        """Whatever its shards; one time for each shard is taken, too."""
        def work(*settings):
            words = [word for setting in settings for word in ("--set", setting)]
            result = json.loads(self.ok("simulate", "c.yaml", *words, "--json"))
            durations = result["durations"]
            return sum(times["F"] for times in durations) if isinstance(durations, list) else durations["F"] * result["stages"]

        for shards in (("model.tensor=1",), ("model.tensor=2",), ("model.tensor=[4, 1]",), ("schedule.vocabulary.shards=3",),
                       ("model.tensor=2", "schedule.vocabulary.shards=2")):
            with self.subTest(shards):
                self.assertAlmostEqual(work("schedule.workers=2", *shards, "runtime.emulate={F: 1ms, B: 1ms, W: 1ms}"), 2e-3)
                self.assertAlmostEqual(work("schedule.workers=2", *shards, "runtime.emulate={F: [1ms, 3ms], B: 1ms, W: 1ms}"), 4e-3)
        each = "[" + ", ".join(["1ms"] * 10) + "]"
        self.assertAlmostEqual(work("schedule.workers=2", "model.tensor=2", f"runtime.emulate={{F: {each}, B: 1ms, W: 1ms}}"), 10e-3)

    def test_the_advice_of_a_memory_limit_holds(self):
        """It is of the same number of workers, whatever the shards, and the schedule that it names needs and takes what it says."""
        self.write("c.yaml", CONFIG.replace("1f1b", "gpipe"))
        base = ("--set", "model.layers=4", "--set", "training.microbatches=4", "--set", "model.hidden=64",
                "--set", "training.microbatch_size=8", "--set", "model.tensor=2")
        self.ok("simulate", "c.yaml", *base, "-o", "file.json")
        file = ("schedule={file: file.json, stages: 2}",)
        emulated = ("runtime.emulate={F: 1ms, B: 2ms, W: 3ms}",)
        for settings in ((), ("schedule.tensor=1",), ("model.tensor=[2, 1, 4, 2]",), file, emulated,
                         ("schedule.vocabulary.shards=2", "model.tensor=1")):
            words = [*base, *(word for setting in settings for word in ("--set", setting))]
            with self.subTest(settings):
                own = json.loads(self.ok("simulate", "c.yaml", *words, "--json"))
                limit = max(sum(parts.values()) for parts in own["memory"]) * 2 // 3
                message = self.refused(["simulate", "c.yaml", *words, "--set", f"runtime.memory_limit={limit}"],
                                       "runtime.memory_limit: under gpipe, ")
                name, need, factor, share = re.search(
                    r"the fastest that fits is ([^(]*) \(([^,]*), ([0-9.]*) times the makespan"
                    r"(?: if its stages take ([0-9.]*) of the emulated times)?\)", message).groups()
                advice = [part.removeprefix("schedule.").replace(": ", "=") for part in name.split(", ")]
                named = base if settings == file else words
                advised = json.loads(self.ok("simulate", "c.yaml", *named, "--json",
                                             *(word for part in advice for word in ("--set", "schedule." + part))))
                self.assertEqual(advised["workers"], own["workers"])
                needed = max(sum(parts.values()) for parts in advised["memory"])
                self.assertLessEqual(needed, limit)
                self.assertAlmostEqual(needed / (float(need.split()[0]) * {"KiB": 2**10, "MiB": 2**20}[need.split()[1]]), 1, delta=0.02)
                # An emulated time is for a whole stage. The advised schedule may have more stages.
                whole = int(dict(part.split("=") for part in advice).get("stages", 2))
                self.assertEqual(float(share or 1), 2 / whole if settings == emulated else 1)
                of_stage = (whole, 2) if settings == emulated else (advised["stages"], own["stages"])
                self.assertAlmostEqual(advised["makespan"] / of_stage[0] / (own["makespan"] / of_stage[1]), float(factor), delta=0.006)

    def test_compared_schedules_have_the_same_emulated_work(self):
        """Blocks without shards are one stage where the schedule has few stages, and several where it has more."""
        for shards, vocabulary, stages in ((2, 1, (18, 18)), ("[1, 1, 2, 2]", 1, (10, 11)), (1, 2, (7, 9))):
            text = self.ok("compare", "c.yaml", "--schedules", "1f1b,interleaved-1f1b", "--set", "model.layers=4",
                           "--set", "training={microbatches: 4, steps: 1}", "--set", f"model.tensor={shards}",
                           "--set", f"schedule.vocabulary.shards={vocabulary}", "--repetitions", 1, "-o", "compared.json",
                           "--set", "runtime={emulate: {F: 1ms, B: 1ms, W: 1ms}}")
            compared = json.loads(self.read("compared.json"))["schedules"]
            self.assertEqual(tuple(one["stages"] for one in compared), stages, text)
            work = []
            for one in compared:
                self.write("again.json", json.dumps(one["config"]))
                durations = json.loads(self.ok("simulate", "again.json", "--json"))["durations"]
                work.append(sum(d["F"] for d in durations) if isinstance(durations, list) else durations["F"] * one["stages"])
            self.assertAlmostEqual(work[0], work[1])

    def test_what_takes_no_shards_says_so(self):
        self.ok("simulate", "c.yaml", "-o", "f.json")
        for settings, message in (
            (["schedule.memory_limit=4"], "schedule.memory_limit: does not apply with model.tensor: "),
            (["schedule.discipline=greedy", "schedule.dynamic=true"], "schedule.dynamic: does not apply with model.tensor: "),
            (["runtime.emulate={F: [1ms, 2ms], B: 1ms, W: 1ms, per_share: true}"], "runtime.emulate.F: 2 times for 4 workers"),
            (["runtime.emulate={F: [1ms, 2ms, 1ms, 1ms], B: 1ms, W: 1ms, per_share: true}"],
             "runtime.emulate.per_share: a list of times does not apply with shards"),
            (["runtime.device=[cpu, cpu]"],
             "runtime.device: 2 values for schedule.workers 2, each of which becomes 2 workers"),
            (["model.tensor=[2, 2, 2]"], "model.tensor: 3 values for model.layers, 2"),
            (["model.tensor=[]"], "model.tensor: expected a list of integers such as [0, 1], got a list"),
            (["model.tensor=[2, 0]"], "model.tensor: must be at least 1, got 0"),
            (["schedule={file: f.json}"], "schedule.stages: is required with schedule.file and model.tensor: "),
            (["schedule={file: f.json, stages: 2}"],
             "f.json: the model cannot be cut into its 2 stages: with its shards it has 10 stages"),
            (["schedule.tensor=3"], "schedule.tensor: 3 workers are more than the shards of model.tensor, 2"),
            (["model.tensor=1", "model.sums=one"], "model.sums: one needs shards, but model.tensor is 1"),
            (["model.heads=2", "model.tensor=4"], "model.tensor: 4 does not divide model.heads, 2"),
        ):
            arguments = [word for setting in settings for word in ("--set", setting)]
            self.refused(["simulate", "c.yaml", "--set", "model.tensor=2", *arguments], message)
        self.refused(["profile", "c.yaml", "--set", "model.tensor=2"], "model.tensor: ")
        for settings, message in (
            (["model.tensor=3"], "model.tensor: 3 does not divide model.hidden, 16"),
            (["model.tensor=2", "model.branches=2"], "model.tensor: does not apply with model.branches, 2: only a chain has shards"),
            (["model.sums=one"], "model.sums: does not apply to model.kind mlp"),
        ):
            self.refused(["simulate", "mlp.yaml", *(word for setting in settings for word in ("--set", setting))], message)

    def test_lists_have_a_value_for_each_worker(self):
        four = ("--set", "model.tensor=2", "--set", "runtime.device=[cpu, cpu, cpu, cpu]")
        self.assertEqual(self.train(2, *four)["workers"], 4)
        self.ok("simulate", "c.yaml", *four, "--set", "runtime.memory_limit=[1GiB, 1GiB, 1GiB, 1GiB]")
        self.refused(["simulate", "c.yaml", *four, "--set", "runtime.memory_limit=[1GiB, 1GiB, 2KiB, 1GiB]"], "worker 2 needs")


if __name__ == "__main__":
    CommandTest.binary, LAUNCHER = os.path.abspath(sys.argv[1]), sys.argv[2:]
    FOUR_RANKS = [*LAUNCHER[:-1], "4"]
    unittest.main(argv=sys.argv[:1])
