# SPDX-License-Identifier: Apache-2.0
"""`starpipe sim`: the engine on simulated GPUs against the prediction.

Usage: sim_test.py BINARY PLUGIN, where PLUGIN is tests/plugins/odd_plugin.
"""

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cli"))
from support import CommandTest  # noqa: E402

MIB = 1 << 20

# Links that transfers do not share, and that are fast compared with the jobs of 2 ms.
CLUSTER = """gpus_per_node: 8
gpu_memory: {memory}
host_link: {{latency: 10us, bandwidth: 25GB/s}}
levels:
  - {{workers: 8, latency: 3us, bandwidth: 300GB/s, sharing: none}}
  - {{latency: 5us, bandwidth: 50GB/s, sharing: none}}
"""


EMULATED = "runtime: {emulate: {F: 2ms, B: 2ms, W: 2ms}}\n"
PLUGIN = ""
# These write one datum or two, since StarPU frees twice as much memory as it wants.
FREED_TOO_MUCH = ("ddp", "dualpipe", "dualpipe-v", "fsdp", "gems", "interleaved-zb", "looped-bfs", "lpp", "v-half")
EXPERIMENTS = os.path.join(os.path.dirname(__file__), "..", "..", "experiments")


def config(schedule, microbatches=16, hidden=64, batch=64, layers=16, runtime=EMULATED, inputs=None):
    return f"""model: {{kind: mlp, layers: {layers}, hidden: {hidden}, inputs: {inputs or hidden}, outputs: 8}}
data: {{kind: synthetic}}
training: {{steps: 2, microbatches: {microbatches}, microbatch_size: {batch}}}
schedule: {{{schedule}}}
{runtime}"""


class Sim(CommandTest):
    def arguments(self, text, memory="16GiB", cluster=CLUSTER):
        self.write("run.yaml", text)
        self.write("cluster.yaml", cluster.format(memory=memory))
        return ["sim", "run.yaml", "--cluster", "cluster.yaml", "--report", "report.json"]

    def simulate(self, text, *options, memory="16GiB", cluster=CLUSTER, environment=None):
        self.ok(*self.arguments(text, memory, cluster), *options, environment=environment, timeout=300)
        return json.loads(self.read("report.json"))

    def assert_as_predicted(self, report, makespan=0.02, to_host=0):
        """What w and n imply is exact, and times are close. No worker writes more than `to_host` bytes to the host."""
        for number, worker in enumerate(report["workers"]):
            for key in ("peak_stashes", "peak_stash_bytes"):
                self.assertEqual(worker[key]["simulated"], worker[key]["predicted"], (number, key))
            for kind, received in worker["received"].items():
                for what in ("count", "bytes"):
                    self.assertEqual(received[what]["simulated"], received[what]["predicted"], (number, kind))
            if report["ranks"] == 1:
                # StarPU counts itself what it copied.
                received = {kind: one["bytes"]["predicted"] for kind, one in worker["received"].items()}
                reloads = received.pop("reloads")
                self.assertEqual(worker["copied"]["from_gpus"], sum(received.values()), number)
                self.assertGreaterEqual(worker["copied"]["from_host"], reloads, number)
                self.assertGreaterEqual(worker["copied"]["to_host"], reloads, number)
                self.assertLessEqual(worker["copied"]["to_host"], reloads + to_host, number)
        times = report["makespan"]
        self.assertLessEqual(abs(times["simulated"] / times["predicted"] - 1), makespan, times)

    def test_a_schedule_of_a_plugin(self):
        """It takes the times of its prediction. The ranks have the schedule, and not the plug-in."""
        report = self.simulate(config("name: counted, workers: 4, options: {copies: 2}"), "--plugin", PLUGIN)
        self.assertEqual((report["stages"], report["ranks"]), (8, 1))
        self.assert_as_predicted(report)
        self.refused([*self.arguments(config("name: counted, workers: 4, discipline: greedy, dynamic: true")), "--plugin", PLUGIN],
                     "schedule.dynamic", "fixed order")

    def test_slices_of_sequences(self):
        """Jobs of later slices last longer, and slices on several GPUs send each other keys and values."""
        text = """model: {kind: gpt, layers: 4, hidden: 64, heads: 4, context: 64}
data: {kind: text, path: text}
training: {steps: 2, microbatches: 4, microbatch_size: 1}
schedule: {SCHEDULE, slices: 4}
runtime: {emulate: {F: 20ms, B: 20ms, W: 20ms}}
"""
        self.write("text", "It is a truth universally acknowledged. " * 40)
        for name in ("1f1b", "zb-h1", "interleaved-1f1b"):
            with self.subTest(schedule=name):
                self.assert_as_predicted(self.simulate(text.replace("SCHEDULE", f"name: {name}, workers: 2")))
        made = json.loads(self.ok("schedule", "show", "ddp", "--workers", "1", "--stages", "2", "--microbatches", "4", "--slices", "4", "--json"))
        made["workers"] = 2  # slices 0 and 1 of each sequence on GPU 0, the others on GPU 1
        (jobs,) = made["ops"]
        made["ops"] = [[{**{key: job[key] for key in ("op", "stage", "microbatch")}, "weights_from": 0} for job in jobs if job["microbatch"] % 4 // 2 == gpu] for gpu in (0, 1)]
        self.write("ring.json", json.dumps({key: made[key] for key in ("workers", "stages", "microbatches", "slices", "ops")}))
        report = self.simulate(text.replace("SCHEDULE", "file: ring.json"))
        self.assert_as_predicted(report)
        received = report["workers"][1]["received"]
        self.assertEqual(received["keys_values"]["count"]["simulated"], 4 * 2 * 2)  # micro-batches, stages, slices
        self.assertGreater(received["keys_values"]["bytes"]["simulated"], 0)
        self.assertGreater(report["workers"][0]["received"]["keys_values_gradients"]["bytes"]["simulated"], 0)

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

    def test_large_data_on_slow_links(self):
        """A transfer takes up to eight times as long as a job. No transfer is stopped when StarPU evicts a copy: it would free its
        memory by `cudaFree`, which waits for all transfers. The difference from the prediction is explained: what jobs wait for
        is booked as transfers, as in the prediction."""
        slow = CLUSTER.replace("bandwidth: 300GB/s", "bandwidth: 1GB/s")
        for name in self.names():
            with self.subTest(schedule=name):
                report = self.simulate(config(self.schedule(name, 4), hidden=1024, batch=512), cluster=slow)
                self.assert_as_predicted(report)
                causes = report["explain"]["per_step"]
                # The prediction sends a sum of gradients before the last micro-batch's activations; StarPU sends it behind them.
                limit = 0.012 if name == "gems" else 0.005
                for cause in ("durations", "transfers", "order", "runtime"):
                    self.assertLessEqual(abs(causes[cause][0]), limit * causes["predicted"], cause)

    def test_memory_just_enough(self):
        """The prediction is right within 5 % if StarPU does not take memory in blocks of 32 MiB, else within a block. With more than
        that, runs take the predicted time; with 5 % less, data go to the host."""
        single = {"STARPU_SUBALLOCATOR": "0"}
        for name in self.names():
            with self.subTest(schedule=name):
                text = config(self.schedule(name, 4), hidden=1024, batch=512)
                need = max(w["gpu_memory"]["predicted"] for w in self.simulate(text, environment=single)["workers"])
                for enough, environment in ((math.ceil(1.05 * need / MIB), single), (math.ceil(need / MIB) + 32, {})):
                    report = self.simulate(text, memory=f"{enough}MiB", environment=environment)
                    # The optimizer's state of a stage: two values of 4 bytes for each parameter of its 4 layers.
                    largest = 2 * 4 * 4 * (1024 * 1024 + 1024 + 8 * 1024)
                    self.assert_as_predicted(report, to_host=2 * largest if name in FREED_TOO_MUCH else 0)
                    for worker in report["workers"]:
                        self.assertLessEqual(worker["gpu_memory"]["simulated"], enough * MIB)
                self.refused(self.arguments(text, memory=f"{math.floor(need / MIB)}MiB"), "gpu_memory", "needs")
                less = {**single, "STARPU_LIMIT_CUDA_MEM": str(math.floor(0.95 * need / MIB))}
                self.assertGreater(sum(w["copied"]["to_host"] for w in self.simulate(text, environment=less)["workers"]), 0)

    def test_stashes_on_the_host(self):
        """StarPU moves them over host_link, beside the passes, and frees the GPU's memory. A copy takes about half a pass."""
        slow = CLUSTER.replace("bandwidth: 25GB/s", "bandwidth: 8GB/s")
        single = {"STARPU_SUBALLOCATOR": "0"}
        for name in ("1f1b", "chimera", "ddp", "dualpipe-v", "fsdp", "gpipe", "interleaved-1f1b", "v-half", "zb-h1"):
            with self.subTest(schedule=name):
                # Large inputs would go to the GPU before or behind a stash, as it comes.
                text = config(self.schedule(name, 4) + ", home: host", hidden=1024, batch=512, inputs=8)
                report = self.simulate(text, cluster=slow, environment=single)
                reloads = sum(w["received"]["reloads"]["bytes"]["simulated"] for w in report["workers"])
                self.assertGreaterEqual(reloads, 16 * 16 * 4 * 512 * 1024)  # a layer keeps 4 bytes for each unit and sample
                self.assert_as_predicted(report)

    def test_stashes_on_other_gpus(self):
        """StarPU moves them between GPUs of a rank, and frees the memory that they leave."""
        slow = CLUSTER.replace("bandwidth: 300GB/s", "bandwidth: 30GB/s")
        single = {"STARPU_SUBALLOCATOR": "0"}
        for name, home in (("1f1b", "bpipe"), ("gpipe", "['worker:3', 'worker:2', 'worker', 'worker:0']"), ("zb-h1", "['worker:1', host, none, 'worker:0']")):
            with self.subTest(schedule=name):
                report = self.simulate(config(f"name: {name}, workers: 4, home: {home}", hidden=1024, batch=512), cluster=slow, environment=single)
                self.assertGreater(sum(w["received"]["stashes"]["bytes"]["simulated"] for w in report["workers"]), 0)
                self.assert_as_predicted(report)
        balanced = config("name: 1f1b, workers: 4, home: bpipe", hidden=1024, batch=512)
        need, kept = (max(w["gpu_memory"]["predicted"] for w in self.simulate(text, environment=single)["workers"])
                      for text in (balanced, balanced.replace(", home: bpipe", "")))  # fmt: skip
        self.assertLess(need, kept)
        self.assert_as_predicted(self.simulate(balanced, memory=f"{math.ceil(1.05 * need / MIB)}MiB", environment=single))

    def test_stashes_on_the_host_with_ranks(self):
        """Some stashes wait on the host, two GPUs share a link to it, and ranks exchange messages. A run fits into memory that is too
        little without homes."""
        shared = CLUSTER.replace("host_link: {{", "host_link: {{workers: 2, ").replace("bandwidth: 25GB/s", "bandwidth: 12GB/s")
        home = ", home: [host, none, host, worker]"
        for ranks in (1, 2, 4):
            with self.subTest(ranks=ranks):
                report = self.simulate(config("name: 1f1b, workers: 4" + home, hidden=1024, batch=512), "--ranks-per-node", ranks, cluster=shared)
                self.assert_as_predicted(report)
        single = {"STARPU_SUBALLOCATOR": "0"}
        less = config("name: gpipe, workers: 4, home: host", hidden=1024, batch=512)
        need = max(w["gpu_memory"]["predicted"] for w in self.simulate(less, environment=single)["workers"])
        enough = f"{math.ceil(1.05 * need / MIB)}MiB"
        report = self.simulate(less, memory=enough, environment=single)
        self.assert_as_predicted(report)
        self.refused(self.arguments(less.replace(", home: host", ""), memory=enough), "gpu_memory", "needs")

    def test_copies_take_what_the_cluster_says(self):
        """A configuration that `train` reads, too, may say how long emulated copies take. Simulated ones do not take so long."""
        home = "name: 1f1b, workers: 4, home: host"
        slow = EMULATED.replace("}}", ", copy: 1s}}")
        alone, beside = (self.simulate(config(home, runtime=runtime)) for runtime in (EMULATED, slow))
        self.assertEqual(beside["makespan"], alone["makespan"])

    def test_homes_that_gpus_do_not_have(self):
        self.refused(self.arguments(config("name: 1f1b, workers: 4, home: disk")), "schedule.home", "disk")
        self.refused([*self.arguments(config("name: 1f1b, workers: 4, home: 'worker:3'")), "--ranks-per-node", "2"], "schedule.home", "worker:3", "rank")
        self.refused([*self.arguments(config("name: 1f1b, workers: 4, home: host")), "--gpu-direct"], "--gpu-direct", "host_link")
        self.refused(self.arguments(config("name: 1f1b, workers: 4, home: host")), "schedule.home", "policy", environment={"STARPU_SCHED": "lws"})
        little = CLUSTER.replace("host_link: {{", "host_link: {{memory: 100KiB, ")
        self.refused(self.arguments(config("name: 1f1b, workers: 4, home: host"), cluster=little), "host_link: memory", "worker 0 ")

    def test_too_little_memory_does_not_hang(self):
        """StarPU moves data out and in again, or SimGrid finds the deadlock."""
        # In fsdp and ddp StarPU evicts inputs of an addition of gradients before it runs, also those that another rank has sent.
        for name, share, ranks in (("gpipe", 40, 1), ("gpipe", 80, 1), ("gpipe", 160, 1), ("fsdp", 122, 1), ("fsdp", 115, 2), ("ddp", 122, 2)):
            with self.subTest(schedule=name, MiB=share, ranks=ranks):
                text = config(self.schedule(name, 4), hidden=1024, batch=512)
                arguments = [*self.arguments(text), "--ranks-per-node", ranks]
                done = self.run_command(*arguments, environment={"STARPU_SUBALLOCATOR": "0", "STARPU_LIMIT_CUDA_MEM": str(share)})
                self.assertIn(done.returncode, (0, 1), done.stderr)
                if done.returncode == 1:
                    self.assertIn("starpipe: the simulation ended without a result", done.stderr)

    def test_several_nodes(self):
        for name in ("1f1b", "v-half", "fsdp"):
            with self.subTest(schedule=name):
                report = self.simulate(config(f"name: {name}", layers=32), "--nodes", 2)
                self.assertEqual(report["nodes"], 2)
                between = report["bytes_between_ranks"]
                self.assertEqual(between["simulated"], between["predicted"])
                self.assertGreater(between["predicted"], 0)
                self.assert_as_predicted(report)

    def test_messages_through_main_memory(self):
        """A message takes longer to main memory, and from it, than from rank to rank. Copies of stashes take these links, too."""
        slow = CLUSTER.replace("bandwidth: 25GB/s", "bandwidth: 4GB/s")
        for schedule, ranks in (("name: v-min", 4), ("name: zb-h2, home: [none, host, none, worker]", 4), ("name: interleaved-1f1b, home: host", 2)):
            with self.subTest(schedule=schedule, ranks=ranks):
                text = config(f"{schedule}, workers: 4", hidden=1024, batch=512)
                self.assert_as_predicted(self.simulate(text, "--ranks-per-node", ranks, cluster=slow), makespan=0.01)

    def test_sharded_weights(self):
        """Fetching weights and adding up gradients takes many jobs' time, and overlaps with them as predicted: weights are fetched from
        the start of the step, all messages of a rank are on their way at once (on 4 nodes more than StarPU-MPI's ten), and a job
        waits for no reduction, not even one that a worker could take while it has no job to run (chimera)."""
        slow = CLUSTER.replace("bandwidth: 300GB/s", "bandwidth: 20MB/s").replace("bandwidth: 50GB/s", "bandwidth: 20MB/s")
        # A GPU fetches the inputs of its next two jobs only, simulate sends them when they are made. So where ports are shared,
        # activations must be small for both to agree.
        fslpp = "fslpp, groups: 2"
        for name, sharing, batch in (("fsdp", "none", 64), ("fsdp", "fair", 64), (fslpp, "none", 64), (fslpp, "fair", 2), ("chimera", "none", 64)):
            for nodes in (1, 2, 4):
                with self.subTest(schedule=name, sharing=sharing, nodes=nodes):
                    text = config(f"name: {name}, workers: {8 * nodes}", microbatches=32, hidden=256, batch=batch, layers=16 * nodes)
                    report = self.simulate(text, "--sharing", sharing, "--gpu-direct", cluster=slow)
                    self.assert_as_predicted(report)

    def test_nothing_goes_on_when_sim_ends(self):
        """Neither when a sweep is interrupted, nor when it or `sim` is killed."""
        self.arguments(config("name: 1f1b, workers: 8", microbatches=8000))
        self.write("study.yaml", "command: sim\nconfig: run.yaml\nset: {--cluster: cluster.yaml}\n")
        for number, end in enumerate((signal.SIGINT, signal.SIGTERM, signal.SIGKILL)):
            with self.subTest(signal=end):
                folder = os.path.join(self.folder, f"tmp{number}")
                os.mkdir(folder)
                sweep = subprocess.Popen([self.binary, "sweep", "study.yaml", "-o", "out"], cwd=self.folder, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": folder})  # fmt: skip
                self.wait_for(lambda: any("smpimain" in line for line in self.commands(folder)))
                sweep.send_signal(end)
                sweep.wait(timeout=60)
                self.wait_for(lambda: not self.commands(folder))
                if end != signal.SIGKILL:
                    self.assertEqual(os.listdir(folder), [])

    @staticmethod
    def commands(folder):
        """The command lines of all processes that name the folder."""
        lines = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as file:
                lines.append(file.read().replace("\0", " "))
        return [line for line in lines if folder in line]

    def wait_for(self, condition):
        for _ in range(600):
            if condition():
                return
            time.sleep(0.1)
        self.fail("it did not happen within a minute")

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

    def test_durations_by_stage_and_device(self):
        """A file, the list of runtime.emulate and a profile with the same times give the same run."""
        times = [(1 + s, 2 + s, 1) for s in range(4)]
        emulated = "runtime: {emulate: {%s}}\n" % ", ".join(
            f"{p}: [{', '.join(f'{t[k]}ms' for t in times)}]" for k, p in enumerate("FBW"))
        run = config("name: zb-h1, workers: 4", runtime=emulated)
        expected = self.simulate(run)
        self.assert_as_predicted(expected)
        stages = [f"{{F: {f}ms, B: {b}ms, W: {w}ms}}" for f, b, w in times]
        bare = config("name: zb-h1, workers: 4", runtime="")
        self.write("stages.yaml", "".join(f"- {stage}\n" for stage in stages))
        self.assertEqual(self.simulate(bare, "--durations", "stages.yaml"), expected)
        # Two nodes of two kinds of GPUs: each kind's times for its own stages.
        two = CLUSTER.replace("gpus_per_node: 8", "gpus_per_node: 2\ndevice: [old, new]").replace("workers: 8", "workers: 2")
        other = "{F: 9ms, B: 9ms, W: 9ms}"
        self.write("kinds.yaml", f"old: [{', '.join(stages[:2] + [other] * 2)}]\nnew: [{', '.join([other] * 2 + stages[2:])}]\n")
        report = self.simulate(bare, "--durations", "kinds.yaml", "--gpu-direct", cluster=two)
        self.assertEqual(report["explain"]["record"]["costs"]["durations"], expected["explain"]["record"]["costs"]["durations"])
        self.assert_as_predicted(report)
        # A profile in seconds: 17 units, of which some in the middle take longer.
        units = "".join(f"  - {{F: {3e-3 if 8 <= u < 12 else 1e-3}, B: 1.e-3, W: 1.e-3}}\n" for u in range(17))
        self.write("profile.yaml", "layers:\n" + units)
        profiled = config("name: 1f1b, workers: 4, partition: auto, profile: profile.yaml", runtime="")
        report = self.simulate(profiled)
        predicted = json.loads(self.ok("simulate", "run.yaml", "--json"))
        self.assertEqual(report["explain"]["record"]["costs"]["durations"], predicted["durations"])
        self.assert_as_predicted(report)

    def test_machines(self):
        """The files of experiments/clusters: where nothing is shared, times equal the times of `simulate`, on all levels and with
        any number of ranks on a node."""
        text = config("name: v-half, workers: 16", layers=32, hidden=256, batch=256)
        makespans = {}
        for name in ("nvlink-infiniband", "pcie-ethernet"):
            with open(os.path.join(EXPERIMENTS, "clusters", name + ".yaml"), encoding="utf-8") as file:
                machine = file.read().replace("{", "{{").replace("}", "}}")
            for ranks in (1, 2, 8):
                with self.subTest(machine=name, ranks=ranks):
                    options = ("--ranks-per-node", ranks, "--gpu-direct")
                    report = self.simulate(text, *options, "--sharing", "none", cluster=machine)
                    self.assertEqual((report["nodes"], report["ranks"]), (2, 2 * ranks))
                    self.assert_as_predicted(report)
                    between = report["bytes_between_ranks"]
                    self.assertEqual(between["simulated"], between["predicted"])
            makespans[name] = self.simulate(text, cluster=machine)["makespan"]["simulated"]
        self.assertLess(makespans["nvlink-infiniband"], makespans["pcie-ethernet"])

    def test_shared_ports_to_main_memory(self):
        """Weights for four ranks through one port to main memory take longer than through a port each."""
        text = config("name: fsdp, workers: 4", hidden=1024)
        own, shared = (self.simulate(text, "--ranks-per-node", 4, memory="80GiB",
                                     cluster=CLUSTER.replace("host_link: {{latency: 10us, bandwidth: 25GB/s", "host_link: {{workers: %d, latency: 10us, bandwidth: 2GB/s" % workers))
                       for workers in (1, 4))
        self.assertGreater(shared["makespan"]["simulated"], own["makespan"]["simulated"])

    def test_a_lost_result_is_told(self):
        """SimGrid ends a run that cannot continue with status 0. One task's data do not fit here."""
        text = config(self.schedule("ddp", 4), hidden=1024, batch=512)
        done = self.run_command(*self.arguments(text), environment={"STARPU_SUBALLOCATOR": "0", "STARPU_LIMIT_CUDA_MEM": "4"})
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("starpipe: the simulation ended without a result", done.stderr)

    def test_sweep(self):
        """A study of simulated runs: its table has what the reports have."""
        self.arguments(config("name: 1f1b, workers: 4"))
        self.write("study.yaml", "command: sim\nconfig: run.yaml\nset: {--cluster: cluster.yaml}\n"
                                 "grid: {schedule.name: [1f1b, zb-h1], --sharing: [none, fair]}\n")
        text = self.ok("sweep", "study.yaml", "-o", "out", "--jobs", 2)
        self.assertIn("simulated", text.splitlines()[0])
        rows = [json.loads(line) for line in self.read("out/results.jsonl").splitlines()]
        self.assertEqual([row["status"] for row in rows], ["done"] * 4)
        for row in rows:
            report = json.loads(self.read(f"out/runs/{row['run']}/report.json"))
            for which in ("predicted", "simulated"):
                self.assertEqual(row[f"{which}_makespan"], report["makespan"][which])
                self.assertEqual(row[f"{which}_bubble_fraction"], report["bubble_fraction"][which])
                self.assertEqual(row[f"{which}_peak_stashes"],
                                 max(worker["peak_stashes"][which] for worker in report["workers"]))
                self.assertEqual(row[f"{which}_memory"], max(worker["gpu_memory"][which] for worker in report["workers"]))
                moved = sum(kind["bytes"][which] for worker in report["workers"] for kind in worker["received"].values())
                self.assertEqual(row[f"{which}_bytes_moved"], moved)
            self.assertEqual((row["schedule"], row["workers"], row["nodes"], row["ranks"]), (row["schedule.name"], 4, 1, 1))
        self.write("study.yaml", "command: sim\nconfig: run.yaml\nset: {--cluster: cluster.yaml, ranks: 2}\n")
        self.refused(["sweep", "study.yaml", "-o", "other"], "ranks", "--ranks-per-node")

    def test_mistakes(self):
        arguments = self.arguments(config("name: 1f1b, workers: 4"))
        self.refused([*arguments, "--nodes", 2, "--set", "schedule.workers=4"], "--nodes", "schedule.workers")
        self.refused([*arguments, "--set", "schedule.workers=12"], "schedule.workers: 12", "8 GPUs")
        tiny = config("name: 1f1b, workers: 4", batch=1)
        self.refused(self.arguments(tiny, memory="100KiB"), "cluster.yaml: gpu_memory: 100.0 KiB", "whole MiB")
        self.refused(self.arguments(tiny, memory="31MiB"), "cluster.yaml: gpu_memory: 31.0 MiB", "STARPU_SUBALLOCATOR=0")
        self.simulate(tiny, memory="31MiB", environment={"STARPU_SUBALLOCATOR": "0"})
        self.write("cluster.yaml", CLUSTER.format(memory="16GiB"))
        self.write("run.yaml", config("name: 1f1b, workers: 4").replace("runtime:", "#"))
        self.refused(arguments, "runtime.emulate")
        self.write("run.yaml", config("name: 1f1b, workers: 4"))
        self.refused([*arguments, "--ranks-per-node", 3], "--ranks-per-node", "3 ranks")
        self.refused([*arguments, "--per-share"], "--per-share", "--durations")
        self.refused([*arguments, "--durations", "F=1,B=1,W=1"], "--durations", "units")
        self.write("kinds.yaml", "a: {F: 1ms, B: 1ms, W: 1ms}\nb: {F: 2ms, B: 2ms, W: 2ms}\n")
        self.refused([*arguments, "--durations", "kinds.yaml"], "kinds.yaml", "kind")
        cluster = CLUSTER.format(memory="16GiB").replace("gpus_per_node: 8", "gpus_per_node: 2").replace("workers: 8", "workers: 2")
        self.write("run.yaml", config("name: ddp, workers: 4"))
        self.write("cluster.yaml", "device: c\n" + cluster)
        self.refused([*arguments, "--durations", "kinds.yaml"], "kinds.yaml", "device c")
        self.write("cluster.yaml", "device: [a]\n" + cluster)
        self.ok(*arguments, "--durations", "kinds.yaml")
        self.write("cluster.yaml", "device: [a, b]\n" + cluster)
        self.refused([*arguments, "--durations", "kinds.yaml"], "stage 0", "a and on b")
        self.refused([*arguments, "--durations", "kinds.yaml", "--set", "schedule.workers=6"], "schedule.workers", "3 nodes")
        self.write("run.yaml", config("name: 1f1b, workers: 4").replace("runtime:", "#"))
        for line, culprit in (("gpus_per_node: 9", "gpus_per_node"),
                              ("host_link: {workers: 3, latency: 1us, bandwidth: 1GB/s}", "host_link: workers"), ("device: []", "device"), ("gpu_memory: much", "gpu_memory"),
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
    PLUGIN = os.path.abspath(sys.argv.pop(1))
    unittest.main()
