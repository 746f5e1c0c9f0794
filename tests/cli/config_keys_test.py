# SPDX-License-Identifier: Apache-2.0
"""Every configuration key has an effect that can be seen, or is refused. Usage: config_keys_test.py BINARY.

A key of `starpipe info --json` without an entry in KEYS is a failure, and so is an entry without a key.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

from support import CommandTest, max_under_way, wait_until

MLP = """model: {kind: mlp, layers: 2, hidden: 8, inputs: 4, outputs: 2}
training: {steps: 2, microbatches: 4}
schedule: {name: gpipe, workers: 2}
"""
GPT = """model: {kind: gpt, layers: 2, hidden: 16, heads: 2, context: 16}
data: {path: text}
training: {steps: 2, microbatches: 2}
schedule: {name: 1f1b, workers: 2}
"""
LLAMA = """model: {kind: llama, layers: 2, hidden: 16, heads: 4, intermediate: 12, context: 16}
data: {path: text}
training: {steps: 4, microbatches: 2, optimizer: {learning_rate: 0.1}}
schedule: {name: 1f1b, workers: 2}
"""
# A network with the default of each of its own keys.
BARE = """model: {kind: mlp}
training: {steps: 2}
schedule: {name: 1f1b, workers: 2}
"""
SGD = "training.optimizer.kind=sgd"
LINEAR = "training.optimizer.schedule.kind=linear"
EMULATED = "runtime.emulate={F: 2ms, B: 2ms, W: 1ms, comm: 1ms}"
CHECKPOINTS = "checkpoint={folder: ck}"
VOCABULARY = "schedule.vocabulary.shards=2"
DYNAMIC = ("schedule.discipline=greedy", "schedule.dynamic=true")

# What `train` reports and what does not depend on the machine's speed.
FACTS = ("policy", "discipline", "workers", "stages", "microbatches", "parameters", "emulated", "losses", "skipped_steps",
         "offsets", "peak_stashes", "peak_stash_bytes", "received", "ranks", "partition")  # fmt: skip
# These are given, not measured, when workers are emulated.
EMULATED_FACTS = ("durations", "transfer_delay")


class Key:
    """Where a key has its effect: with the configuration `text` and the settings `base`, `value` changes what `seen` shows."""

    def __init__(self, seen, text, value, *base):
        self.seen, self.text, self.value, self.base = seen, text, value, base


# A limit of the instructions that the processor does not need changes nothing. One that it does not have is refused.
HAS_AVX512 = "avx512f" in pathlib.Path("/proc/cpuinfo").read_text()

KEYS = {
    "model.kind": Key("simulate", BARE, "gpt", "data={kind: synthetic}"),
    "model.layers": Key("simulate", MLP, 3),
    "model.hidden": Key("simulate", MLP, 16),
    "model.heads": Key("train", GPT, 4),
    "model.context": Key("simulate", GPT, 8),
    "model.vocabulary": Key("simulate", GPT, 300),
    "model.tied": Key("simulate", GPT, True),
    "model.tensor": Key("simulate", GPT, 2),
    "model.sums": Key("simulate", GPT, "one", "model.tensor=2"),
    "model.kv_heads": Key("simulate", LLAMA, 2),
    "model.intermediate": Key("simulate", LLAMA, 20),
    "model.rope_theta": Key("train", LLAMA, 10),
    "model.epsilon": Key("train", LLAMA, 1e-3),
    "model.inputs": Key("simulate", MLP, 6),
    "model.outputs": Key("simulate", MLP, 3),
    "model.branches": Key("simulate", MLP, 2, "schedule={name: 1f1b, workers: 3, stages: 3, placement: [0, 1, 2]}"),
    "model.init": Key("train", MLP, "weights"),
    "data.kind": Key("simulate", MLP, "text"),
    "data.path": Key("train", GPT, "other text"),
    "data.validation": Key("train", GPT, "other text"),
    "data.token_type": Key("train", GPT, "uint32", "data={kind: tokens, path: ids}"),
    "data.order": Key("train", GPT, "shuffled"),
    "evaluate.every": Key("train", MLP, 1, "evaluate.microbatches=3"),
    "evaluate.microbatches": Key("train", MLP, 3, "evaluate.every=2"),
    "training.microbatches": Key("simulate", MLP, 6),
    "training.microbatch_size": Key("simulate", MLP, 4),
    "training.steps": Key("train", MLP, 3),
    "training.seed": Key("train", MLP, 7),
    "training.nonfinite": Key("train", MLP, "continue", SGD, "training.optimizer.learning_rate=1e30", "training.steps=6"),
    "training.clip": Key("train", MLP, 1e-3, SGD),
    "training.optimizer.kind": Key("simulate", MLP, "sgd"),
    "training.optimizer.learning_rate": Key("train", MLP, 0),
    "training.optimizer.weight_decay": Key("train", MLP, 0.5),
    "training.optimizer.decay": Key("train", MLP, "matrices", "training.optimizer.weight_decay=100"),
    "training.optimizer.schedule.kind": Key("train", MLP, "inverse_sqrt", "training.steps=3"),
    "training.optimizer.schedule.warmup": Key("train", MLP, 5),
    "training.optimizer.schedule.floor": Key("train", MLP, 5e-4, LINEAR, "training.steps=3"),
    "training.optimizer.schedule.steps": Key("train", MLP, 9, LINEAR, "training.steps=3"),
    "training.optimizer.momentum": Key("simulate", MLP, 0.5, SGD),
    "training.optimizer.beta1": Key("train", MLP, 0.5, "training.steps=3"),
    "training.optimizer.beta2": Key("train", MLP, 0.5, "training.steps=3"),
    "training.optimizer.epsilon": Key("train", MLP, 0.5),
    "checkpoint.folder": Key("train", MLP, "ck"),
    "checkpoint.every": Key("train", MLP, 1, CHECKPOINTS),
    "checkpoint.keep": Key("train", MLP, 1, CHECKPOINTS, "checkpoint.every=1"),
    "checkpoint.on_signal": Key("signal", MLP, "USR2", CHECKPOINTS),
    "schedule.plugin": Key("simulate", MLP, "absent.so"),
    "schedule.name": Key("simulate", MLP, "naive"),
    "schedule.file": Key("simulate", MLP, "order.json"),
    "schedule.workers": Key("simulate", MLP, 3),
    "schedule.stages": Key("simulate", MLP, 3),
    "schedule.tensor": Key("simulate", GPT, 1, "model.tensor=2"),
    "schedule.slices": Key("simulate", GPT, 2),
    "schedule.slice_sizes": Key("simulate", GPT, "work", "schedule.slices=8", "model.context=128"),
    "schedule.groups": Key("simulate", MLP, 2, "schedule={name: lpp, groups: 1}"),
    "schedule.options": Key("simulate", MLP, "{waves: 2}"),
    "schedule.placement": Key("simulate", MLP, "[1, 0]"),
    "schedule.cuts": Key("simulate", MLP, "[2]"),
    "schedule.partition": Key("simulate", MLP, "auto"),
    "schedule.profile": Key("simulate", MLP, "light.yaml", "schedule={partition: auto, profile: heavy.yaml}"),
    "schedule.discipline": Key("train", MLP, "greedy"),
    "schedule.memory_limit": Key("simulate", MLP, 1),
    "schedule.dynamic": Key("simulate", MLP, "true", "schedule.memory_limit=4"),
    "schedule.home": Key("simulate", MLP, "none"),
    "schedule.vocabulary.shards": Key("simulate", GPT, 2),
    "schedule.vocabulary.placement": Key("simulate", GPT, "last", VOCABULARY),
    "schedule.vocabulary.ahead": Key("simulate", GPT, 0, VOCABULARY, "training.microbatches=6"),
    "runtime.policy": Key("train", MLP, "lws"),
    "runtime.device": Key("simulate", MLP, "cuda"),
    "runtime.precision": Key("simulate", MLP, "bf16"),
    "runtime.instructions": Key("train", MLP, "avx2" if HAS_AVX512 else "avx512"),
    "runtime.workers_per_core": Key("train on a core", MLP, 1),
    "runtime.window": Key("submission", MLP, 1, EMULATED),
    "runtime.timeout": Key("train", MLP, 0.02, "runtime.emulate={F: 500ms, B: 0s, W: 0s}", "training.microbatches=1",
                           "training.steps=1"),  # a job of more than ten timeouts is stuck
    "runtime.mapping": Key("info", MLP, "auto"),
    "runtime.memory_limit": Key("simulate", MLP, "1KiB"),
    "runtime.links": Key("simulate", MLP, "far.yaml", "runtime.emulate={F: 2ms, B: 2ms, W: 1ms}", "runtime.links=near.yaml"),
    "runtime.emulate.F": Key("train", MLP, "3ms", EMULATED),
    "runtime.emulate.B": Key("train", MLP, "3ms", EMULATED),
    "runtime.emulate.W": Key("train", MLP, "3ms", EMULATED),
    "runtime.emulate.per_share": Key("simulate", MLP, "true", EMULATED, "schedule.name=looped-bfs", "schedule.workers=1"),
    "runtime.emulate.comm": Key("train", MLP, "3ms", EMULATED),
    "runtime.emulate.links": Key("train", MLP, "far.yaml", "runtime.emulate={F: 2ms, B: 2ms, W: 1ms, links: near.yaml}"),
    "runtime.emulate.copy": Key("train", MLP, "9ms", "runtime.emulate={F: 2ms, B: 2ms, W: 1ms, copy: 0s}", "schedule.home=host"),
    "runtime.emulate.peer_copy": Key("train", MLP, "9ms", "runtime.emulate={F: 2ms, B: 2ms, W: 1ms, copy: 0s}", "schedule.home=[worker:1, worker]"),
    "runtime.emulate.overlap": Key("train", MLP, "0.9", "runtime.emulate={F: 2ms, B: 2ms, W: 1ms, overlap: 1}", "schedule.name=combined-1f1b"),
    "runtime.stash_folder": Key("train", MLP, "nowhere", "runtime.stash_folder=.", "schedule.home=disk"),
    "runtime.emulate.prefetch": Key("train", MLP, "false", EMULATED),
}

# Kinds of runs in which each key whose effect only a run shows is tried again.
RUNS = {"emulated": (EMULATED,), "chosen by StarPU": ("runtime.policy=lws",), "chosen at run time": DYNAMIC}


# Keys that `simulate` reads and does not need: what it predicts (times, memory, transfers) does not depend on them.
NOT_PREDICTED = {
    "model.init", "model.rope_theta", "model.epsilon", "data.path", "data.token_type", "data.order", "evaluate.every", "training.steps",
    "training.seed", "training.nonfinite", "training.clip",
    *(f"checkpoint.{name}" for name in ("folder", "every", "keep", "on_signal")),
    *(f"training.optimizer.{name}" for name in ("learning_rate", "weight_decay", "decay", "beta1", "beta2", "epsilon")),
    *(f"training.optimizer.schedule.{name}" for name in ("kind", "warmup", "floor", "steps")),
    "runtime.instructions", "runtime.workers_per_core", "runtime.window", "runtime.timeout", "runtime.mapping"}  # fmt: skip


# Keys and sections that change nothing in a command, which refuses --set with them.
TRAINED = ["training.steps", "training.clip", "training.optimizer", "checkpoint", "model.init"]
UNUSED = {
    "profile": [*TRAINED, "training.nonfinite", "data.validation", "evaluate", "schedule", "runtime.policy", "runtime.window", "runtime.workers_per_core",
                "runtime.timeout", "runtime.mapping", "runtime.memory_limit", "runtime.emulate", "runtime.links", "runtime.stash_folder"],
    "evaluate": [*TRAINED, "data.path", "data.order", "evaluate.every", "schedule.home", "schedule.memory_limit",
                 "runtime.emulate", "runtime.links", "runtime.stash_folder"],
    "compare": ["data.validation", "evaluate", "checkpoint"],
    "verify": ["data.validation", "evaluate", "checkpoint", "runtime.links"],
    "sim": ["training.steps", "runtime.timeout", "runtime.mapping", "runtime.emulate.comm", "runtime.emulate.links", "runtime.emulate.copy",
            "runtime.emulate.peer_copy", "runtime.emulate.overlap", "runtime.links", "runtime.stash_folder"],
}  # fmt: skip


USED = {"profile": ("schedule.slices", "schedule.slice_sizes")}


class ConfigKeys(CommandTest):
    shown = {}  # what runs have shown, by (how, text, *settings): tests and keys share runs

    def setUp(self):
        super().setUp()
        self.write("text", "The quick brown fox jumps over the lazy dog. " * 5)
        self.write("other text", "Pack my box with five dozen liquor jugs. " * 5)
        with open(self.path("ids"), "wb") as file:
            file.write(bytes([7, 0, 5, 0, 3, 0] * 100))
        self.write("heavy.yaml", "layers: [{F: 9}, {F: 1}, {F: 1}]\n")
        self.write("light.yaml", "layers: [{F: 1}, {F: 1}, {F: 9}]\n")
        for name, latency in (("near", "1ms"), ("far", "3ms")):
            self.write(f"{name}.yaml", f"levels: [{{latency: {latency}, bandwidth: 1GB/s}}]\n")
        self.write("cluster.yaml", "{gpus_per_node: 4, gpu_memory: 1GiB, host_link: {latency: 1us, bandwidth: 1GB/s}, "
                                   "levels: [{latency: 1us, bandwidth: 1GB/s}]}")
        self.write("mlp.yaml", MLP)
        result = self.run_command("train", "mlp.yaml", "--set", "training.seed=9", "--save-weights", "weights")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.ok("schedule", "show", "1f1b", "--workers", 2, "--microbatches", 4, "-o", "order.json")

    def seen(self, how, text, settings):
        run = (how, text, *settings)
        if run not in self.shown:
            self.shown[run] = self.run_and_see(how, text, settings)
        return self.shown[run]

    def run_and_see(self, how, text, settings):
        """What a run shows: its exit status, and what it prints or reports. None when it is refused."""
        self.write("c.yaml", text)
        shutil.rmtree(self.path("ck"), ignore_errors=True)
        arguments = [word for setting in settings for word in ("--set", setting)]
        if how == "signal":
            return self.continues_after_usr2(arguments)
        # One core: so runtime.workers_per_core can be too small.
        launcher = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if how == "train on a core" else []
        train = ["train", "c.yaml", "--report", "r.json"]
        command = {"simulate": ["simulate", "c.yaml", "--json"], "info": ["info", "c.yaml"]}.get(how, train)
        result = self.run_command(*command, *arguments, launcher=launcher)
        if result.returncode == 2:
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            return None
        if how == "info":
            return result.stdout
        if result.returncode != 0:
            return result.returncode
        if how == "submission":
            return max_under_way(json.loads(self.read("r.json"))["explain"]["record"]) > 1
        if how == "simulate":
            return result.stderr, {key: value for key, value in json.loads(result.stdout).items() if key != "config"}
        report = json.loads(self.read("r.json"))
        facts = {key: report.get(key) for key in FACTS + EMULATED_FACTS * report["emulated"]}
        facts["evaluations"] = [(one["step"], one["loss"]) for one in report.get("evaluations", [])]
        facts["products"] = [rank["products"] for rank in report["ranks"]]
        facts["steps"] = len(report["step_seconds"])
        facts["checkpoints"] = [one["step"] for one in report.get("checkpoints", {}).get("steps", [])]
        facts["kept"] = sorted(os.listdir(self.path("ck"))) if os.path.exists(self.path("ck")) else []
        if report["emulated"]:
            facts["makespan"] = report["makespan"]["predicted"]
        return facts

    def continues_after_usr2(self, arguments):
        """True if a run without end writes a checkpoint after the signal, and does not end."""
        job = subprocess.Popen([self.binary, "train", "c.yaml", *arguments, "--set", "training.steps=1000000", "--set",
                                "checkpoint.every=1000000", "--metrics", "m.jsonl"], cwd=self.folder, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            metrics = self.path("m.jsonl")
            self.assertTrue(wait_until(lambda: os.path.exists(metrics) and os.path.getsize(metrics) > 0))
            job.send_signal(signal.SIGUSR2)
            wait_until(lambda: job.poll() is not None or any(name.startswith("step-") for name in os.listdir(self.path("ck"))))
            return job.poll() is None
        finally:
            job.kill()
            job.wait()
            os.remove(self.path("m.jsonl"))

    def changes(self, name, key, extra=(), how=None):
        """True if the key changes something or is refused. None if the run is refused without it."""
        base = [*extra, *key.base]
        without = self.seen(how or key.seen, key.text, base)
        if without is None:
            return None
        return self.seen(how or key.seen, key.text, [*base, f"{name}={key.value}"]) != without

    def test_every_key_has_an_entry(self):
        keys = [key["name"] for key in json.loads(self.ok("info", "--json"))["configuration"]]
        self.assertEqual(sorted(keys), sorted(KEYS))

    def test_every_key_has_an_effect(self):
        for name, key in KEYS.items():
            with self.subTest(key=name):
                self.assertEqual(self.changes(name, key), True)

    def test_no_key_is_ignored_in_another_kind_of_run(self):
        for run, settings in RUNS.items():
            for name, key in KEYS.items():
                own = any(name.startswith(setting.split("=")[0]) for setting in settings)
                if own or key.seen not in ("train", "train on a core", "submission"):
                    continue
                with self.subTest(run=run, key=name):
                    self.assertIn(self.changes(name, key, settings), (True, None))

    def test_simulate_ignores_what_it_does_not_predict_and_nothing_else(self):
        for run, settings in {"plain": (), **RUNS}.items():
            for name, key in KEYS.items():
                if any(name.startswith(setting.split("=")[0]) for setting in settings):
                    continue
                with self.subTest(run=run, key=name):
                    allowed = (True, False, None) if name in NOT_PREDICTED else (True, None)
                    self.assertIn(self.changes(name, key, settings, how="simulate"), allowed)

    def test_other_commands_refuse_what_changes_nothing_in_them(self):
        for command, unused in UNUSED.items():
            for name, key in KEYS.items():
                used = USED.get(command, ())
                if name in used or not any(name == one or name.startswith(f"{one}.") for one in unused):
                    continue
                with self.subTest(command=command, key=name):
                    self.write("c.yaml", key.text)
                    words = [word for setting in [*key.base, f"{name}={key.value}"] for word in ("--set", setting)]
                    more = {"evaluate": ["--weights", "weights"], "sim": ["--cluster", "cluster.yaml"]}.get(command, [])
                    self.refused([command, "c.yaml", *more, *words], f"does not apply to {command}")

    def test_simulated_gpus_refuse_what_they_cannot_honour(self):
        for key, runtime in (("runtime.emulate.prefetch", "emulate: {F: 2ms, B: 2ms, W: 1ms, comm: 1ms, prefetch: false}"),
                             ("runtime.mapping", "mapping: auto")):
            self.write("c.yaml", f"{MLP}runtime: {{{runtime}}}\n")
            self.refused(["sim", "c.yaml", "--cluster", "cluster.yaml"], key)

    def test_the_environment_cannot_make_the_window_useless(self):
        self.refused(["train", "mlp.yaml", "--set", "runtime.window=5"], "STARPU_SCHED", "runtime.window", "lws",
                     environment={"STARPU_SCHED": "lws"})


if __name__ == "__main__":
    ConfigKeys.binary = os.path.abspath(sys.argv.pop(1))
    unittest.main()
