# SPDX-License-Identifier: Apache-2.0
"""`starpipe sim`: the engine on simulated GPUs against the prediction.

Usage: sim_test.py BINARY
"""

import json
import math
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cli"))
from support import CommandTest  # noqa: E402

MIB = 1 << 20

# Links that transfers do not share, and that are fast beside the jobs of 2 ms.
CLUSTER = """gpus_per_node: 8
gpu_memory: {memory}
host_link: {{latency: 10us, bandwidth: 25GB/s}}
levels:
  - {{workers: 8, latency: 3us, bandwidth: 300GB/s, sharing: none}}
  - {{latency: 5us, bandwidth: 50GB/s, sharing: none}}
"""


def config(schedule, microbatches=16, hidden=64, batch=64, layers=16):
    return f"""model: {{kind: mlp, layers: {layers}, hidden: {hidden}, inputs: {hidden}, outputs: 8}}
data: {{kind: synthetic}}
training: {{steps: 2, microbatches: {microbatches}, microbatch_size: {batch}}}
schedule: {{{schedule}}}
runtime: {{emulate: {{F: 2ms, B: 2ms, W: 2ms}}}}
"""


class Sim(CommandTest):
    def arguments(self, text, memory="16GiB"):
        self.write("run.yaml", text)
        self.write("cluster.yaml", CLUSTER.format(memory=memory))
        return ["sim", "run.yaml", "--cluster", "cluster.yaml", "--report", "report.json"]

    def simulate(self, text, *options, memory="16GiB", environment=None):
        self.ok(*self.arguments(text, memory), *options, environment=environment)
        return json.loads(self.read("report.json"))

    def assert_as_predicted(self, report, makespan=0.02):
        """What w and n imply is exact, and times are close."""
        for number, worker in enumerate(report["workers"]):
            for key in ("peak_activations", "peak_activation_bytes"):
                self.assertEqual(worker[key]["simulated"], worker[key]["predicted"], (number, key))
            for kind, received in worker["received"].items():
                for what in ("count", "bytes"):
                    self.assertEqual(received[what]["simulated"], received[what]["predicted"], (number, kind))
            if report["nodes"] == 1:
                # StarPU counts itself what it copied. Nothing goes back to the host.
                received = sum(received["bytes"]["predicted"] for received in worker["received"].values())
                self.assertEqual((worker["copied"]["from_gpus"], worker["copied"]["to_host"]), (received, 0), number)
        times = report["makespan"]
        self.assertLessEqual(abs(times["simulated"] / times["predicted"] - 1), makespan, times)

    def names(self):
        return [s["name"] for s in json.loads(self.ok("schedule", "list", "--json"))["schedules"]]

    @staticmethod
    def schedule(name, workers):
        groups = ", groups: 2" if name in ("lpp", "fslpp") else ""
        return f"name: {name}, workers: {workers}{groups}"

    def test_every_schedule(self):
        for workers in (4, 8):
            for name in self.names():
                with self.subTest(schedule=name, workers=workers):
                    self.assert_as_predicted(self.simulate(config(self.schedule(name, workers))))

    def test_memory_just_enough(self):
        """With 5 % more than the prediction StarPU evicts nothing, if it does not take memory in blocks of 32 MiB."""
        for name in ("1f1b", "gpipe", "zb-h1", "v-half", "fsdp", "ddp"):
            with self.subTest(schedule=name):
                text = config(self.schedule(name, 4), hidden=1024, batch=512)
                single = {"STARPU_SUBALLOCATOR": "0"}
                need = max(w["gpu_memory"]["predicted"] for w in self.simulate(text, environment=single)["workers"])
                enough = math.ceil(1.05 * need / MIB)
                report = self.simulate(text, memory=f"{enough}MiB", environment=single)
                self.assert_as_predicted(report)
                for worker in report["workers"]:
                    self.assertLessEqual(worker["gpu_memory"]["simulated"], enough * MIB)
                self.refused(self.arguments(text, memory=f"{math.floor(need / MIB)}MiB"), "gpu_memory", "needs")

    def test_too_little_memory_does_not_hang(self):
        """StarPU moves data out and in again, or SimGrid finds the deadlock."""
        text = config(self.schedule("gpipe", 4), hidden=1024, batch=512)
        arguments = self.arguments(text)
        for share in (40, 80, 160):
            with self.subTest(MiB=share):
                done = self.run_command(*arguments, environment={"STARPU_SUBALLOCATOR": "0", "STARPU_LIMIT_CUDA_MEM": str(share)})
                self.assertIn(done.returncode, (0, 1), done.stderr)
                if done.returncode == 1:
                    self.assertIn("starpipe: the simulation ended without a result", done.stderr)

    def test_several_nodes(self):
        for name in ("1f1b", "v-half", "fsdp"):
            with self.subTest(schedule=name):
                report = self.simulate(config(f"name: {name}", layers=32), "--nodes", 2)
                self.assertEqual(report["nodes"], 2)
                between = report["bytes_between_nodes"]
                self.assertEqual(between["simulated"], between["predicted"])
                self.assertGreater(between["predicted"], 0)
                self.assert_as_predicted(report)

    def test_random_orders(self):
        """A wake-up that is lost is a deadlock here, which SimGrid finds."""
        chance = random.Random(7)
        for number in range(20):
            workers = chance.choice((2, 3, 4, 8))
            stages = workers * chance.choice((1, 2))
            microbatches = chance.randint(1, 8)
            placement = [s % workers for s in range(stages)]
            chance.shuffle(placement)
            schedule = f"name: {chance.choice(('1f1b', 'gpipe', 'eager-1f1b'))}, workers: {workers}, stages: {stages}, placement: {placement}"
            discipline = chance.choice(("greedy", "ordered"))
            with self.subTest(number=number, schedule=schedule, discipline=discipline):
                text = config(schedule, microbatches=microbatches)
                report = self.simulate(text, "--set", f"schedule.discipline={discipline}")
                self.assert_as_predicted(report, makespan=0.05)

    def test_mistakes(self):
        arguments = self.arguments(config("name: 1f1b, workers: 4"))
        self.refused([*arguments, "--nodes", 2, "--set", "schedule.workers=4"], "--nodes", "schedule.workers")
        self.refused([*arguments, "--set", "schedule.workers=12"], "schedule.workers: 12", "8 GPUs")
        self.write("run.yaml", config("name: 1f1b, workers: 4").replace("runtime:", "#"))
        self.refused(arguments, "runtime.emulate")
        for line, culprit in (("gpus_per_node: 9", "gpus_per_node"), ("gpu_memory: much", "gpu_memory"),
                              ("host_link: {latency: 10us}", "bandwidth"), ("nodes: 2", "nodes"),
                              ("levels: [{latency: 1us, bandwidth: 1GB/s, sharing: in-order}]", "in-order")):
            key = line.split(":")[0]
            kept = [kept for kept in CLUSTER.format(memory="1GiB").splitlines() if not kept.startswith(key)]
            if key == "levels":
                kept = [kept for kept in kept if not kept.startswith("  -")]
            self.write("cluster.yaml", "\n".join([*kept, line]))
            self.refused(arguments, "cluster.yaml", culprit)


if __name__ == "__main__":
    Sim.binary = os.path.abspath(sys.argv.pop(1))
    unittest.main()
