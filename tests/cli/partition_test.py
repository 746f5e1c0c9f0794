# SPDX-License-Identifier: Apache-2.0
"""`starpipe partition`, `starpipe profile` and schedule.partition. Usage: partition_test.py BINARY LAUNCHER..."""

import json
import os
import re
import sys
import tomllib
import unittest

from support import CommandTest, gpt_config, mlp_config

launcher = []

EXERCISE = "layers: [{F: 10, count: 4}, {F: 20, count: 4}]\n"  # "Pipeline Parallelism from Separability"


class PartitionTest(CommandTest):
    def partition(self, text, *arguments):
        """Returns the JSON, after checking that the loads follow from the listed stages."""
        file = self.write("layers.yaml", text)
        result = json.loads(self.ok("partition", file, "--json", *arguments))
        times = [0] * result["workers"]
        layers = []
        for stage in result["stages"]:
            times[stage["worker"]] += stage["F"] + stage["B"] + stage["W"]
            layers += stage["layers"]
        self.assertEqual(layers, list(range(result["layers"])))
        self.assertEqual(result["cuts"], [stage["layers"][0] for stage in result["stages"][1:]])
        self.assertEqual(result["placement"], [stage["worker"] for stage in result["stages"]])
        for worker, time in enumerate(times):
            self.assertAlmostEqual(result["loads"][worker]["time"], time)
        self.assertAlmostEqual(result["bottleneck"], max(load["load"] for load in result["loads"]))
        self.assertLessEqual(result["lower_bound"], result["bottleneck"] * (1 + 1e-9))
        return result

    def test_exercise_of_source_001(self):
        contiguous = self.partition(EXERCISE, "--workers", 4)
        self.assertEqual((contiguous["bottleneck"], contiguous["optimal"]), (40, True))
        general = self.partition(EXERCISE, "--workers", 4, "--general")
        self.assertEqual((general["bottleneck"], general["optimal"]), (30, True))
        for layout in ("loop", "v"):
            chunks = self.partition(EXERCISE, "--workers", 4, "--chunks", 2, "--layout", layout)
            self.assertEqual((chunks["bottleneck"], chunks["optimal"]), (30, True))
        self.assertEqual(chunks["placement"], [0, 1, 2, 3, 3, 2, 1, 0])
        text = self.ok("partition", "layers.yaml", "--workers", 4)
        self.assertRegex(text, r"bottleneck +40, optimal\n")
        self.assertRegex(text, r"equal unit counts +40\n")

    def test_transfers_cost_both_workers(self):
        text = "layers: [{F: 4, activation: 2, gradient: 6}, {B: 4, activation: 8}]\n"
        result = self.partition(text, "--workers", 2, "--comm", 0.5, "--comm-per-byte", 0.25)
        self.assertEqual([load["transfers"] for load in result["loads"]], [2, 1])
        self.assertEqual(result["bottleneck"], 6)
        self.assertEqual(self.partition(text, "--workers", 2, "--comm", "500ms", "--comm-per-byte", "250ms"), result)
        self.assertEqual(self.partition(text, "--workers", 2, "--comm", 5)["placement"], [0])

    def test_memory_follows_the_schedule(self):
        text = "layers: [{F: 1, weights: 10, stash: 100, gradient_stash: 7, count: 4}]\n"
        for schedule, memory in [("1f1b", [2 * 240, 280]), ("gpipe", [2 * 440, 880]), ("zb-h1", [2 * 254, 508])]:
            result = self.partition(text, "--workers", 2, "--schedule", schedule, "--microbatches", 4)
            self.assertEqual([load["memory"] for load in result["loads"]], memory, schedule)
        self.assertEqual(self.partition(text, "--workers", 2, "--optimizer-states", 0)["loads"][0]["memory"], 440)
        tight = self.partition(text, "--workers", 2, "--memory-limit", 479)
        self.assertEqual((tight["cuts"], tight["bottleneck"]), ([1], 3))
        self.refused(["partition", "layers.yaml", "--workers", 2, "--memory-limit", 419], "419 bytes", "is 420")
        self.refused(["partition", "layers.yaml", "--workers", 2, "--schedule", "gpipe", "--memory-limit", "0.5KiB"],
                     "--memory-limit")

    def test_predicts_the_schedule(self):
        text = "layers: [{F: 1, B: 1, W: 1, stash: 5, count: 4}]\n"
        predicted = self.partition(text, "--workers", 4, "--microbatches", 8)["predicted"]
        self.assertEqual((predicted["makespan"], predicted["peak_stash_bytes"]), (33, [20, 15, 10, 5]))
        loop = self.partition(text, "--workers", 2, "--schedule", "interleaved-1f1b", "--microbatches", 4)
        self.assertEqual(loop["placement"], [0, 1, 0, 1])
        self.assertEqual(self.partition(text, "--workers", 2, "--schedule", "v-half")["placement"], [0, 1, 1, 0])

    def test_output_file(self):
        self.write("layers.yaml", EXERCISE)
        self.assertEqual(self.ok("partition", "layers.yaml", "--workers", 2, "-o", "p.json"), "")
        self.assertEqual(json.loads(self.read("p.json"))["bottleneck"], 60)
        self.ok("partition", "layers.yaml", "--workers", 2, "-o", "p.txt")
        self.assertIn("bottleneck", self.read("p.txt"))

    def test_memory_limits_of_workers(self):
        text = "layers: [{F: 1, stash: 10, count: 8}]\n"
        arguments = ("--workers", 2, "--schedule", "gpipe", "--microbatches", 1)
        equal = self.partition(text, *arguments, "--memory-limit", 60)
        self.assertEqual((equal["cuts"], equal["memory_limit"]), ([4], 60))
        uneven = self.partition(text, *arguments, "--memory-limit", "20,60")
        self.assertEqual((uneven["cuts"], uneven["memory_limit"]), ([2], [20, 60]))
        self.refused(["partition", "layers.yaml", *arguments, "--memory-limit", "20,50"], "memory limits of the workers")
        self.refused(["partition", "layers.yaml", *arguments, "--memory-limit", "20,60,60"], "--memory-limit: 3 values for 2 workers")

    def test_stages_for_megatron(self):
        """Its layout, read as Megatron-LM's page on custom pipeline layouts says."""
        def stages(layout):
            while "(" in layout:
                layout = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), layout)
            layout = re.sub(r"(\w)\*(\d+)", lambda m: m[1] * int(m[2]), layout)
            return layout.replace(",", "").split("|")

        # The example of that page: 61 blocks and one of multi-token prediction on 16 ranks with two stages each.
        example = stages("Et*3|(tt|)*29,m|L")
        self.assertEqual(example, ["Ettt", *["tt"] * 29, "m", "L"])
        file = self.write("t.yaml", "layers: [{name: embedding, F: 3}, {name: block, F: 1, count: 13}, {name: head, F: 4}]\n")
        for arguments in ([], ["--chunks", 2], ["--schedule", "interleaved-1f1b"]):
            planned = json.loads(self.ok("partition", file, "--workers", 4, "--json", *arguments))
            text = self.ok("partition", file, "--workers", 4, "--format", "megatron", *arguments)
            size, layout = re.fullmatch(r'--pipeline-model-parallel-size (\d+)\n--pipeline-model-parallel-layout "(.*)"\n', text).groups()
            self.assertEqual(int(size), 4)
            letters = {"embedding": "E", "block": "t", "head": "L"}
            self.assertEqual(stages(layout), ["".join(letters[name] for name in stage["names"]) for stage in planned["stages"]])
        self.refused(["partition", file, "--workers", 4, "--format", "megatron", "--schedule", "v-half"], "--format megatron", "mod 4")
        self.refused(["partition", file, "--workers", 4, "--format", "megatron", "-o", "a.json"], "-o", ".txt")
        few = self.write("f.yaml", "layers: [{name: embedding, F: 1}, {name: block, F: 1, count: 2}, {name: head, F: 1}]\n")
        for form in ("megatron", "torchtitan"):
            for workers in (5, 8):
                self.refused(["partition", few, "--workers", workers, "--format", form],
                             f"--format {form}: each of {workers} ranks needs a stage, but 4 stages of the network (4 units) leave {workers - 4} worker",
                             "use --workers 4")
        other = self.write("o.yaml", EXERCISE)
        self.refused(["partition", other, "--workers", 4, "--format", "megatron"], "--format megatron", "unit 0", "embedding")

    def test_stages_for_torchtitan(self):
        """Names of modules as torchtitan documents them: its example has five layers in three parts."""
        file = self.write("t.yaml", "layers: [{name: embedding, F: 1}, {name: block, F: 1, count: 5}, {name: head, F: 0}]\n")
        self.ok("partition", file, "--workers", 3, "--format", "torchtitan", "-o", "t.toml")
        section = tomllib.loads(self.read("t.toml"))["parallelism"]
        example = [["tok_embeddings", "layers.0"], ["layers.1", "layers.2"], ["layers.3", "layers.4"]]
        self.assertEqual(section, {"pipeline_parallel_degree": 3,
                                   "module_fqns_per_model_part": [*example[:2], [*example[2], "norm", "output"]]})
        text = self.ok("partition", file, "--workers", 2, "--format", "torchtitan", "--schedule", "v-zb")
        self.assertIn("ZBVZeroBubble", text)
        self.assertIn('"output" is called\n# "lm_head"', text)
        self.assertEqual(len(tomllib.loads(text)["parallelism"]["module_fqns_per_model_part"]), 4)
        # Its schedules in a V have two stages per rank.
        longer = self.write("l.yaml", "layers: [{name: embedding, F: 1}, {name: block, F: 1, count: 9}, {name: head, F: 1}]\n")
        self.refused(["partition", longer, "--workers", 2, "--chunks", 4, "--layout", "v", "--format", "torchtitan"],
                     "--format torchtitan", "two in a V")
        self.refused(["partition", file, "--workers", 2, "--format", "torchtitan", "--json"], "--json", "--format")
        self.refused(["partition", self.write("o.yaml", EXERCISE), "--workers", 4, "--format", "torchtitan"], "unit 0")

    def test_bad_files(self):
        for text, *culprits in [
                ("", "layers.yaml", "map with layers"), ("[1]", "layers.yaml", "map with layers"),
                ("layers: 3", "layers.yaml: layers", "'3'"), ("layers: []", "layers.yaml: layers: the list is empty"),
                ("layer: []", "layers.yaml:1", "'layer'"), ("layers: [1]", "layers[0]", "'1'"),
                ("layers:\n- {F: 1}\n- {F: -1}", "layers.yaml:3: layers[1].F", "-1"),
                ("layers: [{F: .nan}]", "layers[0].F"), ("layers: [{F: x}]", "layers[0].F", "'x'"),
                ("layers: [{Q: 1}]", "layers[0]: unknown key 'Q' (known: cpu, cuda, name,"), ("layers: [{F: 1, F: 2}]", "F is given twice"),
                ("layers: [{name: a}]", "a time is missing"), ("layers: [{F: 1, count: 0}]", "layers[0].count", "0"),
                ("layers: [{F: 1, count: 4096}, {F: 1}]", "more than 4096 units"),
                ("layers: [{F: 1, stash: -1}]", "layers[0].stash", "-1"),
                ("layers: [{F: 1, weights: 1.5}]", "layers[0].weights", "'1.5'"),
                ("layers: [{F: 1, spread: 2}]", "layers[0].spread"), ("layers: {", "layers.yaml:1", "not YAML"),
                ("layers: [{F: 1}]\nlayers: [{F: 1}]", "layers.yaml:2", "twice")]:
            self.refused(["partition", self.write("layers.yaml", text), "--workers", 1], *culprits)
        self.refused(["partition", "none.yaml", "--workers", 1], "none.yaml")

    def test_wrong_use(self):
        self.write("layers.yaml", EXERCISE)
        for arguments, *culprits in [
                ([], "--workers"), (["--workers", 0], "--workers"),
                (["--workers", 5, "--chunks", 2], "8 units do not make 10 stages"),
                (["--workers", 2, "--layout", "v"], "--layout"),
                (["--workers", 2, "--layout", "loop", "--schedule", "v-half"], "--layout", "v-half"),
                (["--workers", 2, "--general", "--chunks", 2], "--chunks"),
                (["--workers", 2, "--general", "--schedule", "zb-1p"], "--general", "zb-1p"),
                (["--workers", 2, "--schedule", "ddp"], "--schedule", "ddp"),
                (["--workers", 2, "--schedule", "nothing"], "nothing"), (["--workers", 2, "--comm", -1], "--comm"),
                (["--workers", 2, "--comm", "2minutes"], "--comm", "2minutes"),
                (["--workers", 2, "--comm", "2ms", "--comm-per-byte", 1], "--comm-per-byte 1: needs a unit"),
                (["--workers", 2, "--comm", 2, "--comm-per-byte", "1us"], "--comm-per-byte 1us: has a unit"),
                (["--workers", 2, "--memory-limit", "much"], "--memory-limit", "much"),
                (["--workers", 2, "--memory-limit", 0], "--memory-limit: must be at least 1, got 0 (see"),
                (["--workers", 2, "--schedule", "lpp"], "--schedule: lpp needs"),
                (["--workers", 2, "--schedule", "v-half", "--chunks", 4], "--chunks: v-half"),
                (["--workers", 2, "-o", "no/where.json"], "-o", "no/where.json"),
                (["--workers", 8, "--microbatches", 1000000], "--microbatches")]:
            self.refused(["partition", "layers.yaml", *arguments], *culprits)

    def test_devices(self):
        # On a GPU three times as fast.
        two = "layers: [{cuda: {F: 1, W: 1}, cpu: {F: 3, W: 3}, count: 8}]"
        result = self.partition(two, "--workers", 2, "--device", "cuda,cpu")
        self.assertEqual(result["cuts"], [6])
        self.assertEqual([load["load"] for load in result["loads"]], [12, 12])
        self.assertEqual([stage["F"] for stage in result["stages"]], [6, 6])
        self.assertTrue(result["optimal"])
        self.assertEqual(self.partition(two, "--workers", 2, "--device", "cpu,cuda")["cuts"], [2])
        self.assertEqual(self.partition(two, "--workers", 2, "--device", "cpu,cuda", "--general")["bottleneck"], 12)
        self.assertEqual(self.partition(two, "--workers", 2, "--device", "cpu")["bottleneck"], 24)
        # With one kind of device --device may be left out; times without a kind have no use for it.
        self.assertEqual(self.partition("layers: [{cpu: {F: 1}, count: 4}]", "--workers", 2)["bottleneck"], 2)
        self.refused(["partition", self.write("bare.yaml", "layers: [{F: 1, count: 4}]"), "--workers", 2, "--device", "cuda"],
                     "--device", "bare.yaml")

    def test_bad_devices(self):
        def refused(text, *culprits, arguments=()):
            self.write("layers.yaml", f"layers: [{text}]")
            self.refused(["partition", "layers.yaml", "--workers", 2, *arguments], *culprits)

        both = "{cpu: {F: 1}, cuda: {F: 1}, count: 4}"
        refused(both, "--device", "times on cpu and cuda")
        refused(both, "--device", "3 devices for --workers 2", arguments=["--device", "cpu,cpu,cuda"])
        refused(both, "--device", "gpu", arguments=["--device", "gpu"])
        refused("{cpu: {F: 1}, count: 4}", "--device", "no times on cuda", arguments=["--device", "cpu,cuda"])
        refused("{F: 1, count: 4}", "--device", "without a kind of device", arguments=["--device", "cpu,cuda"])
        refused("{F: 1, cpu: {F: 1}}", "layers[0]", "give F, B and W either directly or under cpu")
        refused("{cpu: {F: 1}}, {F: 1}", "layers[1]", "other devices")
        refused("{cpu: 3}", "layers[0].cpu", "a map")
        refused("{cpu: {}}", "layers[0].cpu", "a time is missing")
        refused("{cpu: {F: 1, stash: 3}}", "layers[0].cpu", "unknown key 'stash'")

    def test_profile_is_what_partition_reads(self):
        text = self.write("text", "x" * 300)
        self.write("c.yaml", gpt_config(text))
        self.assertIn("block 1", self.ok("profile", "c.yaml", "--repetitions", 2, "-o", "layers.yaml"))
        profile = self.read("layers.yaml")
        self.assertIn("embedding", profile)
        result = self.partition(profile, "--workers", 2)
        self.assertEqual(result["stages"][0]["names"][0], "embedding")
        self.assertEqual(result["stages"][1]["names"][-1], "head")
        self.assertEqual(result["layers"], 4)
        rows = json.loads(self.ok("profile", "c.yaml", "--repetitions", 1, "--json"))["layers"]
        for row in rows:
            self.assertGreater(row["cpu"]["F"] + row["cpu"]["B"] + row["cpu"]["W"], 0)
            self.assertNotIn("cuda", row)
        self.assertEqual(rows[1]["weights"], 4 * (12 * 16 * 16 + 13 * 16))  # of a GPT-2 block with hidden 16
        self.assertEqual(rows[1]["activation"], 4 * 16 * 16)
        self.assertTrue(self.ok("profile", "c.yaml", "--repetitions", 1).startswith("#"))

    def test_profile_of_tied_weights(self):
        """The table counts once, in addition to the units' own weights, in both forms of the file."""
        self.write("text", "x" * 300)
        self.write("c.yaml", gpt_config("text").replace("heads: 2,", "heads: 2, tied: true,"))
        table = 4 * 256 * 16
        measure = ["profile", "c.yaml", "--repetitions", 1]
        profile = json.loads(self.ok(*measure, "--json"))
        self.assertEqual(profile["shared"], [{"name": "tokens", "units": [0, 3], "weights": table}])
        self.assertEqual(profile["layers"][0]["weights"], 4 * 16 * 16)  # the table of positions
        self.assertIn("tokens: 16.0 KiB of weights, shared by units 0 and 3\n", self.ok(*measure, "-o", "layers.yaml"))
        self.assertIn("shared:\n  - {name: tokens, units: [0, 3], weights: 16384}", self.read("layers.yaml"))
        bf16 = json.loads(self.ok(*measure, "--json", "--set", "runtime.precision=bf16"))
        self.assertEqual(bf16["shared"], [{"name": "tokens", "units": [0, 3], "weights": table // 2, "master": table}])

        # llama's embedding has no weights of its own.
        llama = json.loads(self.ok(*measure, "--json", "--set", "model.kind=llama"))
        self.assertEqual((llama["layers"][0]["weights"], llama["shared"]), (0, profile["shared"]))
        # Without `tied` each of the two units has a table.
        apart = json.loads(self.ok(*measure, "--json", "--set", "model.tied=false"))
        self.assertNotIn("shared", apart)
        self.assertEqual(apart["layers"][0]["weights"], 4 * 16 * 16 + table)
        self.assertEqual(apart["layers"][3]["weights"], profile["layers"][3]["weights"] + table)

    def test_memory_of_shared_weights(self):
        """The first worker has the table, its state and two gradients, the other one a copy and a gradient."""
        layers = "layers: [{F: 1, weights: 10, count: 4}]\n"
        shared = layers + "shared: [{name: tokens, units: [0, 3], weights: 100, master: 200}]\n"
        self.assertEqual([load["memory"] for load in self.partition(layers, "--workers", 2)["loads"]], [80, 80])
        self.assertEqual([load["memory"] for load in self.partition(shared, "--workers", 2)["loads"]],
                         [80 + 100 + 4 * 200 + 200, 80 + 100 + 200])
        limit = ["--memory-limit", 1150]
        self.assertEqual(self.partition(layers, "--workers", 2, *limit)["cuts"], [2])
        self.assertEqual(self.partition(shared, "--workers", 2, *limit)["cuts"], [1])
        alone = self.partition(shared, "--workers", 2, "--memory-limit", 1060)  # where no gradient is received
        self.assertEqual((alone["cuts"], alone["loads"][0]["memory"]), ([], 160 + 100 + 4 * 200))
        self.refused(["partition", "layers.yaml", "--workers", 2, "--memory-limit", 1059], "1059 bytes", "is 1060")
        general = self.partition(shared, "--workers", 2, "--general", "--memory-limit", 1100)
        self.assertEqual(general["bottleneck"], 2)
        self.assertEqual(general["placement"][0], general["placement"][-1])
        self.assertRegex(self.ok("partition", "layers.yaml", "--workers", 2), r"\n +0 +0 +0-1 +2 +0 +0 +120 B ")
        # The head's worker waits for the table: 100 bytes.
        text = "layers: [{F: 1, count: 2}]\nshared: [{units: [0, 1], weights: 100}]\n"
        late = self.partition(text, "--workers", 2, "--microbatches", 1, "--comm-per-byte", 0.25)
        self.assertEqual((late["bottleneck"], late["predicted"]["makespan"]), (1, 26))

    def test_bad_shared_weights(self):
        for shared, *culprits in [
                ("5", "shared: expected a list"), ("[5]", "shared[0]", "a map"), ("[{weights: 1}]", "shared[0]: units is missing"),
                ("[{units: [0]}]", "shared[0]: weights is missing"), ("[{units: 0, weights: 1}]", "shared[0].units: expected a list"),
                ("[{units: [], weights: 1}]", "shared[0]: units: the list is empty"),
                ("[{units: [1, 0], weights: 1}]", "[1, 0] does not ascend"), ("[{units: [1, 1], weights: 1}]", "[1, 1]"),
                ("[{units: [0, 2], weights: 1}]", "no unit 2; the units are 0 to 1"),
                ("[{units: [0, -1], weights: 1}]", "shared[0].units", "-1"), ("[{units: [0], weights: x}]", "shared[0].weights", "'x'"),
                ("[{units: [0], weights: 1, size: 2}]", "size")]:
            self.write("layers.yaml", f"layers: [{{F: 1, count: 2}}]\nshared: {shared}\n")
            self.refused(["partition", "layers.yaml", "--workers", 2], "layers.yaml", *culprits)

    def test_profile_checks_what_it_does_not_need(self):
        self.write("no weights", "x")
        gpipe = "name: gpipe, workers: 2"
        for schedule, culprit in [
                ("name: nonsense, workers: 2", "'nonsense'"), (f"{gpipe}, placement: [0, 9]", "worker 9"),
                (f"{gpipe}, groups: 3", "schedule.groups: gpipe"), (f"{gpipe}, plugin: none.so", "none.so"),
                ("name: nonsense, workers: 2, partition: auto", "'nonsense'"), ("file: none.csv", "none.csv")]:
            self.write("c.yaml", mlp_config(schedule=schedule))
            self.refused(["profile", "c.yaml", "--repetitions", 1], culprit)
        for key, value, *culprits in [
                ("microbatch_size: 2", "optimizer: {schedule: {kind: linear, floor: 1}}", "training.optimizer.schedule.floor"),
                ("microbatch_size: 2", "optimizer: {schedule: {kind: linear, warmup: 9, steps: 3}}", "training.optimizer.schedule.steps"),
                ("outputs: 2", "init: none", "none: cannot be read"), ("outputs: 2", "init: no weights", "no weights", "safetensors")]:
            self.write("c.yaml", mlp_config().replace(key, f"{key}, {value}"))
            self.refused(["profile", "c.yaml", "--repetitions", 1], *culprits)
        # What does not fit one worker may be measured: the profile tells how to cut it.
        self.write("c.yaml", mlp_config("runtime: {memory_limit: 1KiB}"))
        self.ok("profile", "c.yaml", "--repetitions", 1)
        self.write("c.yaml", mlp_config(schedule=f"{gpipe}, partition: auto"))
        self.ok("profile", "c.yaml", "--repetitions", 1)

    def test_profile_needs_memory_for_all_units(self):
        self.write("huge.yaml", """model: {kind: gpt, layers: 1000, hidden: 8192, heads: 64, context: 64}
data: {kind: text, path: huge.yaml}
training: {steps: 1, microbatches: 2, microbatch_size: 1}
schedule: {name: 1f1b, workers: 1002}
""")
        words = ("measuring the units", "main memory", "more than", "schedule.profile")
        self.refused(["profile", "huge.yaml"], *words)
        self.refused(["train", "huge.yaml", "--set", "schedule.partition=auto"], *words)

    def test_profile_overwrites_nothing_unasked(self):
        self.write("c.yaml", mlp_config())
        self.write("layers.yaml", "mine")
        self.refused(["profile", "c.yaml", "-o", "layers.yaml"], "-o", "layers.yaml exists already")
        self.assertEqual(self.read("layers.yaml"), "mine")
        self.ok("profile", "c.yaml", "-o", "layers.yaml", "--replace")
        self.assertIn("layers:", self.read("layers.yaml"))
        self.refused(["profile", "c.yaml", "-o", "c.yaml", "--replace"], "-o", "c.yaml")
        self.refused(["profile", "c.yaml", "-o", "no/where.yaml"], "-o", "no/where.yaml")
        self.refused(["profile", "none.yaml"], "none.yaml")


LAYERS = "layers: [{F: 1}, {F: 1}, {F: 1}, {F: 9}, {F: 1}]\n"


class AutoTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("layers.yaml", LAYERS)
        self.write("c.yaml", mlp_config(schedule="name: 1f1b, workers: 2, partition: auto, profile: layers.yaml")
                   .replace("layers: 2", "layers: 4"))

    def test_simulate_says_what_was_chosen(self):
        text = self.ok("simulate", "c.yaml")
        self.assertIn("cuts [3] by layers.yaml", text)
        found = json.loads(self.ok("simulate", "c.yaml", "--json"))
        self.assertEqual([d["F"] for d in found["durations"]], [3, 10])

    def test_default_cuts_are_shown(self):
        """Balanced by FLOPs; for each the busiest worker's work over the mean."""
        self.write("d.yaml", mlp_config(schedule="name: 1f1b, workers: 2").replace("layers: 2", "layers: 4"))
        self.assertEqual(json.loads(self.ok("simulate", "d.yaml", "--json"))["cuts"], [2])
        self.assertIn("cuts [2] of 5 units, balanced by FLOPs: the busiest worker has ", self.ok("simulate", "d.yaml"))
        given = ["simulate", "d.yaml", "--set", "schedule.cuts=[4]", "--set", "runtime.emulate={F: [1s, 3s], B: 1s, W: 0s}"]
        self.assertIn("cuts [4] of 5 units: the busiest worker has 1.33 times the mean work, by runtime.emulate\n", self.ok(*given))
        self.assertEqual(json.loads(self.ok(*given, "--json"))["cuts"], [4])
        self.assertEqual(json.loads(self.ok("simulate", "c.yaml", "--json"))["cuts"], [3])
        result = self.run_command("train", "d.yaml", "--report", "r.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(self.read("r.json"))["cuts"], [2])

    def test_unequal_stages_are_named(self):
        """A schedule that was planned with equal stages, for a model whose stages differ."""
        self.ok("schedule", "show", "1f1b", "--workers", 4, "--microbatches", 4, "-o", "s.json")
        self.write("u.yaml", mlp_config(schedule="file: s.json").replace("layers: 2, hidden: 8", "layers: 3, hidden: 64"))
        for command in ("simulate", "train"):
            run = self.run_command(command, "u.yaml", "--set", "training.steps=1")
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertRegex(run.stderr, r"starpipe: s\.json: the stages of the model are unequal: the busiest worker has [12]\.\d\d "
                                         r"times the mean work, by FLOPs; ")
        emulate = "runtime.emulate={F: %s, B: 1s, W: 1s}"
        self.ok("simulate", "u.yaml", "--set", emulate % "1s")
        self.assertIn("1.75 times the mean work, by runtime.emulate",
                      self.run_command("simulate", "u.yaml", "--set", emulate % "[1s, 1s, 1s, 5s]").stderr)
        # Workers with fewer stages are the schedule's own.
        self.ok("schedule", "show", "gpipe", "--workers", 2, "--microbatches", 4, "--placement", "0,1,1,1", "-o", "s.json")
        self.ok("simulate", "u.yaml", "--set", emulate % "1s")

    def test_workers_of_two_kinds(self):
        self.write("layers.yaml", "layers: [{cpu: {F: 4}, cuda: {F: 1, W: 0.5}, count: 5}]")
        for devices, cuts, times in [("[cuda, cpu]", "4", [4, 4]), ("[cpu, cuda]", "1", [4, 4]), ("cuda", "2", [2, 3])]:
            found = ["simulate", "c.yaml", "--set", f"runtime.device={devices}"]
            self.assertIn(f"cuts [{cuts}] by layers.yaml", self.ok(*found))
            self.assertEqual([d["F"] for d in json.loads(self.ok(*found, "--json"))["durations"]], times)
        self.refused(["simulate", "c.yaml", "--set", "runtime.device=[cuda, cpu]", "--set", "schedule.name=chimera",
                      "--set", "schedule.stages=2"], "schedule.partition", "several kinds of devices")
        self.write("layers.yaml", LAYERS)
        self.refused(["simulate", "c.yaml", "--set", "runtime.device=[cuda, cpu]"], "schedule.profile",
                     "one kind of device, not of cuda and cpu")

    def test_every_stage_of_a_worker_counts(self):
        # Worker 0 has the first and the last stage of the V. With cuts [1, 2, 3] no stage is longer than 4 either, but
        # worker 0 would have 8 of the 12.
        self.write("layers.yaml", "layers: [{F: 4}, {F: 3}, {F: 1}, {F: 3}, {F: 1}]")
        text = self.ok("simulate", "c.yaml", "--set", "schedule.name=v-half")
        self.assertRegex(text, r"cuts \[1, [23], 4\] by layers.yaml: the busiest worker has 1.17 times")

    def test_a_placement_is_chosen_where_none_is_given(self):
        text = self.ok("simulate", "c.yaml", "--set", "schedule.stages=3")
        self.assertRegex(text, r"cuts \[\d, \d\], placement \[\d, \d, \d\], by")
        text = self.ok("simulate", "c.yaml", "--set", "schedule.stages=3", "--set", "schedule.placement=[1, 0, 1]")
        self.assertIn("cuts [3, 4], placement [1, 0, 1], by", text)

    def test_replicas_are_cut_as_if_apart(self):
        text = self.ok("simulate", "c.yaml", "--set", "schedule.name=chimera", "--set", "schedule.stages=2")
        self.assertIn("cuts [3] by", text)

    def test_branches_are_cut_alike(self):
        self.write("branch.yaml", "layers: [{F: 1}, {F: 1}, {F: 1}, {F: 9}]\n")
        text = self.ok("simulate", "c.yaml", "--set", "model.branches=2", "--set", "schedule.stages=5", "--set",
                       "schedule.workers=5", "--set", "schedule.profile=branch.yaml")
        self.assertIn("cuts [3] by branch.yaml", text)

    def test_train_on_ranks(self):
        for command in ([], launcher):
            result = self.run_command("train", "c.yaml", "--report", "r.json", launcher=command)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("cuts [3] by layers.yaml", result.stdout)
            report = json.loads(self.read("r.json"))
            self.assertEqual(report["config"]["schedule"]["cuts"], [3])
            self.assertEqual(report["partition"]["loads"], [3, 10])
            # A run with these cuts in its configuration gives the same losses: only the cuts were decided.
            self.write("cuts.yaml", self.read("c.yaml").replace("partition: auto, profile: layers.yaml", "cuts: [3]"))
            self.run_command("train", "cuts.yaml", "--report", "same.json", launcher=command)
            self.assertEqual(json.loads(self.read("same.json"))["losses"], report["losses"])
            # The report's configuration gives the same run.
            self.write("again.yaml", json.dumps(report["config"]))
            result = self.run_command("train", "again.yaml", "--report", "again.json", launcher=command)
            self.assertEqual(result.returncode, 0, result.stderr)
            again = json.loads(self.read("again.json"))
            self.assertEqual(again["config"], report["config"])
            self.assertEqual(again["losses"], report["losses"])

    def write_tied(self):
        """Writes a configuration of a tied model without a partition, and with one by tied-layers.yaml."""
        self.write("text", "some text to learn from. " * 40)
        self.write("plain.yaml", gpt_config("text").replace("heads: 2,", "heads: 2, tied: true,"))
        self.write("tied.yaml", self.read("plain.yaml").replace(
            "workers: 2", "workers: 2, partition: auto, profile: tied-layers.yaml"))

    def test_tied_weights_on_ranks(self):
        """The cuts change nothing but the times: the losses equal the losses with equal cuts, to the last bit."""
        self.write_tied()
        self.ok("profile", "plain.yaml", "--repetitions", 1, "-o", "tied-layers.yaml")
        self.write("heavy-head.yaml", "layers: [{F: 1, count: 3}, {F: 9}]")
        self.write("equal.yaml", self.read("plain.yaml").replace("workers: 2", "workers: 2, cuts: [2]"))
        text = self.read("tied.yaml")

        def losses(config, command, cuts=""):
            result = self.run_command("train", config, "--report", "r.json", launcher=command)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stdout, cuts or "1f1b on 2 workers")
            return json.loads(self.read("r.json"))["losses"]

        for command in ([], launcher):
            equal = losses("equal.yaml", command)
            for profile, cuts in [(", profile: tied-layers.yaml", r"cuts \[[123]\] by tied-layers.yaml"),
                                  ("", r"cuts \[[123]\] by measured times"),
                                  (", profile: heavy-head.yaml", r"cuts \[3\] by heavy-head.yaml")]:
                self.write("tied.yaml", text.replace(", profile: tied-layers.yaml", profile))
                self.assertEqual(losses("tied.yaml", command, cuts), equal)

    def test_tied_predictions(self):
        self.write_tied()
        self.ok("profile", "plain.yaml", "--repetitions", 1, "-o", "tied-layers.yaml")
        times = ["--durations", "F=1,B=1,W=1", "--json"]  # when a gradient arrives depends on the times
        found = json.loads(self.ok("simulate", "tied.yaml", *times))
        cut = re.search(r"cuts (\[\d\]) by", self.ok("simulate", "tied.yaml"))[1]
        self.write("cuts.yaml", re.sub(r"partition: auto.*}", f"cuts: {cut}}}", self.read("tied.yaml")))
        same = json.loads(self.ok("simulate", "cuts.yaml", *times))
        table = 4 * 256 * 16
        self.assertEqual([found["received_bytes"][kind] for kind in ("weights", "weight_gradients")], [[0, table], [table, 0]])
        for key in "memory", "received", "received_bytes", "shared_weights":
            self.assertEqual(found[key], same[key], key)

        # The need that runtime.memory_limit is compared with has times by FLOPs.
        by_flops = json.loads(self.ok("simulate", "cuts.yaml", "--json"))["memory"]
        need = max(sum(worker.values()) for worker in by_flops)
        for limit, fits in (need, True), (need - 1, False):
            for command in "train", "simulate":
                arguments = [command, "tied.yaml", "--set", f"runtime.memory_limit={limit}"]
                if fits:
                    self.assertEqual(self.run_command(*arguments).returncode, 0)
                else:
                    self.refused(arguments, "runtime.memory_limit", "worker ")

    def test_planned_memory_of_tied_weights(self):
        """`partition` is never below the exact need. With one stage per worker, it is above the need by no more than the
        gradient that worker 0 receives."""
        self.write_tied()
        for precision in "fp32", "bf16":
            keys = ["--set", f"runtime.precision={precision}"]
            self.ok("profile", "plain.yaml", *keys, "--repetitions", 1, "--replace", "-o", "tied-layers.yaml")
            for schedule, placed in ("1f1b", True), ("gpipe", True), ("zb-h1", False), ("interleaved-1f1b", False), ("v-half", False):
                planned = json.loads(self.ok("partition", "tied-layers.yaml", "--workers", 2, "--microbatches", 4, "--json",
                                             "--schedule", schedule))
                keys += ["--set", f"schedule.name={schedule}", "--set", f"schedule.cuts={planned['cuts']}"]
                need = json.loads(self.ok("simulate", "plain.yaml", *keys, "--json"))
                for worker, load in enumerate(planned["loads"]):
                    exact = sum(need["memory"][worker][part] for part in ("weights", "gradients", "optimizer", "stashes"))
                    self.assertLessEqual(exact, load["memory"], schedule)
                    if placed:
                        self.assertLessEqual(load["memory"], exact + 4 * 256 * 16, schedule)

    def test_profiles_of_other_shared_weights(self):
        self.write_tied()
        measure = ["profile", "plain.yaml", "--repetitions", 1, "--replace", "-o", "tied-layers.yaml"]
        self.ok(*measure, "--set", "model.tied=false")
        self.refused(["simulate", "tied.yaml"], "schedule.profile: tied-layers.yaml", "there no units share weights",
                     "here units [0, 3] share 16384 bytes")
        self.ok(*measure)
        self.refused(["simulate", "tied.yaml", "--set", "model.tied=false"], "schedule.profile: tied-layers.yaml")
        self.refused(["simulate", "tied.yaml", "--set", "runtime.precision=bf16"], "there units [0, 3] share 16384 bytes",
                     "here units [0, 3] share 8192 bytes and a master of 16384")
        self.write("tied-layers.yaml", "layers: [{F: 1, count: 4}]\n")  # without sizes: valid for any model of four units
        self.assertIn("cuts [2] by tied-layers.yaml", self.ok("simulate", "tied.yaml"))

    def test_train_measures(self):
        self.write("c.yaml", self.read("c.yaml").replace(", profile: layers.yaml", ""))
        for command in ([], launcher):
            result = self.run_command("train", "c.yaml", "--report", "r.json", launcher=command)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stdout, r"cuts \[[1-4]\] by measured times")
            layers = json.loads(self.read("r.json"))["partition"]["layers"]
            self.assertEqual([layer["name"] for layer in layers], [f"layer {n}" for n in range(4)] + ["head"])
            self.assertTrue(all(layer["cpu"]["F"] > 0 for layer in layers))

    def test_compare(self):
        result = self.run_command("compare", "c.yaml", "--policies", "starpipe", "--repetitions", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("cuts [3] by layers.yaml", result.stdout)

    def test_compare_schedules_by_the_same_times(self):
        """Measured once, the units' times decide the cuts of all schedules."""
        self.write("c.yaml", self.read("c.yaml").replace(", profile: layers.yaml", ""))
        for command in ([], launcher):
            result = self.run_command("compare", "c.yaml", "--schedules", "1f1b,v-half", "--repetitions", 1, "-o", "c.json",
                                      launcher=command)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stdout, r"1f1b: cuts \[\d\] by measured times: [^\n]*\nv-half: cuts \[\d, \d, \d\] by measured")
            one, other = (schedule["partition"]["layers"] for schedule in json.loads(self.read("c.json"))["schedules"])
            self.assertEqual(one, other)

    def test_bad_configurations(self):
        self.write("short.yaml", "layers: [{F: 1}]\n")
        self.write("other.yaml", "layers: [{F: 1, stash: 1, count: 5}]\n")
        for key, *culprits in [
                ("schedule.partition=best", "schedule.partition", "'best'"),
                ("schedule.cuts=[1]", "schedule.cuts", "schedule.partition"),
                ("schedule.profile=none.yaml", "none.yaml"),
                ("schedule.profile=short.yaml", "schedule.profile", "short.yaml has 1 units, the model has 5"),
                ("schedule.profile=other.yaml", "schedule.profile", "other.yaml", "activation of unit 0"),
                ("schedule.stages=6", "schedule.stages", "6"),
                ("runtime.emulate={F: 1ms, B: 1ms, W: 1ms}", "runtime.emulate.F", "schedule.partition")]:
            self.refused(["simulate", "c.yaml", "--set", key], *culprits)
            self.refused(["train", "c.yaml", "--set", key], *culprits, launcher=launcher)
        self.refused(["simulate", "c.yaml", "--set", "schedule.name=zb-1p", "--set", "schedule.stages=3"], "zb-1p")
        self.write("c.yaml", self.read("c.yaml").replace("partition: auto, ", ""))
        self.refused(["simulate", "c.yaml"], "schedule.profile", "schedule.partition")


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv[1])
    launcher = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
