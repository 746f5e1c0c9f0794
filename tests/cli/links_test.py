# SPDX-License-Identifier: Apache-2.0
"""--links, `runtime.emulate.links` and `info --links`. Usage: links_test.py BINARY MPIEXEC..."""

import json
import os
import sys
import unittest

from support import CommandTest, mlp_config

LAUNCHER = []
TIMES = ("--durations", "F=1ms,B=2ms,W=1ms")
MACHINE = """levels:
  - {name: pair, workers: 2, latency: 100us, bandwidth: 10MB/s}
  - {name: network, latency: 300us, bandwidth: 4MB/s, sharing: SHARING}
"""
EMULATED = """model: {kind: mlp, layers: 4, hidden: 64, inputs: 16, outputs: 2}
training: {steps: 4, microbatches: 6, microbatch_size: 16}
schedule: {name: gpipe, workers: 4}
runtime: {emulate: {F: 4ms, B: 8ms, W: 4ms, links: links.yaml}}
"""


LITTLE_HOME = "disk_link: {latency: 1us, bandwidth: 1GB/s, memory: 1GiB}\n"  # runs keep to no such limit


def one_level(latency, bandwidth, more=""):
    return f"levels: [{{latency: {latency}, bandwidth: {bandwidth}{more}}}]\n"


class Links(CommandTest):
    def show(self, *arguments):
        return json.loads(self.ok("schedule", "show", "1f1b", "--workers", 4, "--microbatches", 6, *arguments, "--json"))

    def test_one_level_is_comm(self):
        self.write("links.yaml", one_level("250us", "1GB/s"))
        self.assertEqual(self.show(*TIMES, "--links", "links.yaml", "--bytes", 0)["makespan"],
                         self.show(*TIMES, "--comm", "250us")["makespan"])
        self.write("plain.yaml", one_level(0.25, 100))
        self.assertEqual(self.show("--links", "plain.yaml", "--bytes", 0)["ops"], self.show("--comm", 0.25)["ops"])
        # 50 bytes at 100 bytes per unit of time.
        self.assertEqual(self.show("--links", "plain.yaml", "--bytes", 50)["ops"], self.show("--comm", 0.75)["ops"])

    def test_levels_and_sharing_by_hand(self):
        """F of stages 0 to 3 of one micro-batch: 1 ms each; transfers 0.1 + 1 ms within pairs, 0.3 + 2.5 ms between."""
        self.write("links.yaml", MACHINE.replace("SHARING", "none"))
        shown = json.loads(self.ok("schedule", "show", "gpipe", "--workers", 4, "--microbatches", 1, *TIMES,
                                   "--links", "links.yaml", "--bytes", 10000, "--json"))
        starts = [next(op["start"] for op in row if op["op"] == "F") for row in shown["ops"]]
        for start, expected in zip(starts, (0, 2.1e-3, 5.9e-3, 8e-3)):
            self.assertAlmostEqual(start, expected)
        makespans = []
        for sharing in ("none", "in-order", "fair"):
            self.write("links.yaml", MACHINE.replace("SHARING", sharing))
            many = self.ok("schedule", "show", "gpipe", "--workers", 4, "--microbatches", 6, *TIMES, "--links", "links.yaml",
                           "--bytes", 20000, "--json")
            makespans.append(json.loads(many)["makespan"])
        self.assertLess(makespans[0], min(makespans[1:]))

    def test_files_keep_the_links(self):
        for sharing in ("none", "in-order", "fair"):
            self.write("links.yaml", MACHINE.replace("SHARING", sharing))
            for more in ((), ("--no-prefetch",)):
                arguments = ["1f1b", "--workers", 4, "--microbatches", 6, *TIMES, "--links", "links.yaml", "--bytes", "10KiB",
                             *more]
                self.ok("schedule", "show", *arguments, "-o", "s.json")
                written = json.loads(self.read("s.json"))
                again = json.loads(self.ok("schedule", "check", "s.json", "--json"))
                for data in (written, again):
                    data.pop("schedule")
                self.assertEqual(again, written)
                self.assertEqual(written["links"][1]["sharing"], sharing)

    def test_simulate_takes_the_bytes_of_the_model(self):
        self.write("c.yaml", mlp_config())
        self.write("links.yaml", one_level("1ms", "1MB/s"))
        shown = json.loads(self.ok("simulate", "c.yaml", *TIMES, "--links", "links.yaml", "--json"))
        received = shown["received_bytes"]["activations"][1] / shown["received"]["activations"][1]
        first = [next(op for op in row if op["op"] == "F") for row in shown["ops"]]
        self.assertAlmostEqual(first[1]["start"], first[0]["end"] + 1e-3 + received * 1e-6)

    def test_tables_and_ports(self):
        """Stages 0 to 3 of one micro-batch, 1 ms each; node 1 is worker 1, whose port is slow."""
        level = "levels: [{latency: 1ms, bandwidth: 1MB/s, times: [[1000, 1ms], [2000, 3ms]], sharing: SHARING, ports: {1: {bandwidth: 500kB/s}}}]\n"
        for sharing in ("none", "in-order", "fair"):
            self.write("links.yaml", level.replace("SHARING", sharing))
            arguments = ["gpipe", "--workers", 4, "--microbatches", 1, *TIMES, "--links", "links.yaml", "--bytes", 3000]
            shown = json.loads(self.ok("schedule", "show", *arguments, "--json"))
            starts = [next(op["start"] for op in row if op["op"] == "F") for row in shown["ops"]]
            for start, expected in zip(starts, (0, 8e-3, 16e-3, 21e-3)):
                self.assertAlmostEqual(start, expected)
            self.ok("schedule", "show", *arguments, "-o", "s.json")
            again = json.loads(self.ok("schedule", "check", "s.json", "--json"))
            self.assertEqual(again["makespan"], shown["makespan"])
            self.ok("search", "--workers", 4, "--microbatches", 2, "--chunks", 1, *TIMES, "--links", "links.yaml", "--bytes", 3000,
                    "--budget", 0.1, "--quiet", "--json")

    def test_compare_search_and_partition(self):
        self.write("links.yaml", MACHINE.replace("SHARING", "fair"))
        costs = (*TIMES, "--links", "links.yaml", "--bytes", "10KB")
        row = json.loads(self.ok("schedule", "compare", "1f1b", "--workers", 4, "--microbatches", 6, *costs, "--json"))
        self.assertEqual(row["schedules"][0]["makespan"], self.show(*costs)["makespan"])
        found = json.loads(self.ok("search", "--workers", 4, "--microbatches", 6, "--chunks", 1, *costs, "--budget", 0.3,
                                   "--quiet", "--json"))
        self.assertLessEqual(found["lower_bound"], found["makespan"])
        self.assertLessEqual(found["makespan"], self.show(*costs)["makespan"])
        self.write("s.json", json.dumps(found))
        self.assertEqual(json.loads(self.ok("schedule", "check", "s.json", "--json"))["makespan"], found["makespan"])
        units = "".join(f"  - {{F: 1, B: 1, W: 1, activation: {size}}}\n" for size in (4, 400, 4, 400))
        self.write("units.yaml", "layers:\n" + units)
        # Only the cut behind unit 1 has much to send. It lies on the fast link.
        for near, far, cuts in ((1000, 10, [2, 3]), (10, 1000, [1, 2])):
            self.write("slow.yaml", f"levels: [{{workers: 2, latency: 0, bandwidth: {near}}}, {{latency: 0, bandwidth: {far}}}]\n")
            cut = json.loads(self.ok("partition", "units.yaml", "--workers", 3, "--links", "slow.yaml", "--json"))
            self.assertEqual(cut["cuts"], cuts)

    def test_wrong_files(self):
        def refused(text, *culprits):
            self.write("links.yaml", text)
            self.refused(["schedule", "show", "1f1b", "--workers", 4, "--microbatches", 4, *TIMES, "--links", "links.yaml",
                          "--bytes", 8], "links.yaml", *culprits)

        level = "{latency: 1us, bandwidth: 1GB/s}"
        refused("", "a map of levels")
        refused("level: []\n", "unknown key 'level'")
        refused("levels: []\n", "levels: expected a list of levels")
        refused("levels: [{latency: 1us}]\n", "levels[0]: bandwidth is missing")
        refused("levels: [{bandwidth: 1GB/s}]\n", "levels[0]: latency is missing")
        refused("levels: [{latency: 1us, bandwidth: 0GB/s}]\n", "levels[0].bandwidth", "greater than 0")
        refused("levels: [{latency: 1us, bandwidth: 1Gb/s}]\n", "levels[0].bandwidth", "25GB/s or 100Gbit/s", "'1Gb/s'")
        refused("levels: [{latency: 1us, bandwidth: 1 parsec/s}]\n", "levels[0].bandwidth")
        refused("levels: [{latency: -1us, bandwidth: 1GB/s}]\n", "levels[0].latency")
        refused("levels: [{latency: 1us, bandwidth: 1GB/s, speed: 3}]\n", "unknown key 'speed'")
        refused("levels: [{latency: 1us, bandwidth: 1GB/s, sharing: some}]\n", "levels[0].sharing", "none, in-order, fair")
        refused("levels: [{latency: 1us, bandwidth: 1GB/s, workers: 4}]\n", "the last level has all workers")
        refused(f"levels: [{level}, {level}]\n", "levels[0]: workers is missing")
        refused(f"levels: [{{workers: 1, latency: 1us, bandwidth: 1GB/s}}, {level}]\n", "levels[0].workers", "at least 2")
        refused(f"levels: [{{workers: 4, latency: 1us, bandwidth: 1GB/s}}, {{workers: 6, latency: 1us, bandwidth: 1GB/s}}, {level}]\n",
                "levels[1]: workers: 6 are not two or more groups of 4")
        refused("levels: [{latency: 1us, bandwidth: 1GB/s, times: 3}]\n", "levels[0].times", "a list of pairs [bytes, time]")
        refused("levels: [{latency: 1us, bandwidth: 1GB/s, times: [[1, 2us, 3]]}]\n", "levels[0].times", "a pair [bytes, time]")
        refused("levels: [{latency: 1us, bandwidth: 1GB/s, times: [[1, 2]]}]\n", "levels[0]", "with units, or none")
        refused("levels: [{latency: 3us, bandwidth: 1GB/s, times: [[1, 2us]]}]\n", "level 0: the times of a table must ascend")
        refused("levels: [{latency: 1us, bandwidth: 1GB/s, ports: [1]}]\n", "levels[0].ports", "a map from members")
        refused("levels: [{latency: 1us, bandwidth: 1GB/s, ports: {a: {bandwidth: 1GB/s}}}]\n", "levels[0].ports", "'a'")
        refused("levels: [{latency: 1us, bandwidth: 1GB/s, ports: {1: {}}}]\n", "levels[0].ports.1", "bandwidth is missing")
        refused("levels: [{latency: 1us, bandwidth: 1GB/s, ports: {1: {latency: 1us}}}]\n", "levels[0].ports.1", "unknown key 'latency'")
        refused("levels: [{latency: 1, bandwidth: 1GB/s}]\n", "levels[0]", "with units, or none")
        refused("levels: [{latency: 1, bandwidth: 1}]\n", "--links links.yaml", "no units, but the durations have")
        self.refused(["schedule", "show", "1f1b", "--workers", 4, "--microbatches", 4, *TIMES, "--links", "absent.yaml"],
                     "absent.yaml")

    def test_latencies_alone_are_read_back(self):
        """With --bytes 0 a file has bandwidths and no bytes."""
        for name in ("1f1b", "fsdp"):
            self.write("links.yaml", one_level("1us", "1GB/s"))
            show = ["schedule", "show", name, "--workers", 2, "--microbatches", 2, *TIMES, "--links", "links.yaml", "--bytes", 0]
            self.ok(*show, "-o", "s.json")
            self.assertEqual(self.ok("schedule", "check", "s.json", "--json"), self.read("s.json"))

    def test_transfers_without_bytes_are_told(self):
        """--bytes is of activations and gradients; fsdp fetches weights, too."""
        self.write("links.yaml", one_level("1us", "1GB/s"))
        more = ["--workers", 2, "--microbatches", 2, *TIMES, "--links", "links.yaml", "--bytes", 8]
        note = "starpipe: fsdp: transfers of weights and weight gradients take a latency only: --bytes is of activations and gradients\n"
        for command in (["show", "fsdp"], ["compare", "1f1b", "fsdp"]):
            result = self.run_command("schedule", *command, *more)
            self.assertEqual((result.returncode, result.stderr), (0, note))
        self.ok("schedule", "show", "1f1b", *more)

    def test_options_that_do_not_go_together(self):
        self.write("links.yaml", one_level("1us", "1GB/s"))
        show = ["schedule", "show", "1f1b", "--workers", 2, "--microbatches", 2, "--links", "links.yaml"]
        self.refused([*show, *TIMES, "--comm", "1us"], "--links", "--comm")
        self.refused([*show, *TIMES], "--links links.yaml", "--bytes")
        self.refused([*show, "--bytes", 1], "--links links.yaml", "units")
        self.refused(show[:-2] + ["--bytes", 1], "--bytes", "--links")
        self.refused([*show, *TIMES, "--bytes", 1, "-o", "links.yaml"], "links.yaml")


class Emulation(CommandTest):
    def report(self, *more, launcher=()):
        result = self.run_command("train", "c.yaml", "--report", "r.json", *more, launcher=launcher)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("r.json"))

    def test_prediction_is_that_of_simulate_and_near_the_run(self):
        self.write("c.yaml", EMULATED)
        alone = None
        for sharing in ("none", "in-order", "fair"):
            # An activation passes in 8.2 ms, and stages make one every 4 ms.
            self.write("links.yaml", MACHINE.replace("4MB/s", "500kB/s").replace("SHARING", sharing))
            predicted = json.loads(self.ok("simulate", "c.yaml", "--json"))["makespan"]
            alone = alone or predicted
            self.assertEqual(predicted > 1.1 * alone, sharing != "none")
            report = self.report()
            self.assertAlmostEqual(report["makespan"]["predicted"], predicted)
            self.assertGreater(report["makespan"]["measured"], 0.97 * predicted)
            self.assertEqual(self.run_command("explain", "r.json").returncode, 0)

    def test_between_ranks(self):
        self.write("c.yaml", EMULATED)
        self.write("links.yaml", MACHINE.replace("SHARING", "none"))
        self.assertGreater(self.report(launcher=LAUNCHER)["makespan"]["measured"], 0.07)
        for sharing in ("in-order", "fair"):
            self.write("links.yaml", MACHINE.replace("SHARING", sharing))
            self.refused(["train", "c.yaml"], "runtime.emulate.links", "one rank", launcher=LAUNCHER)

    def test_sums_of_gradients_take_the_time_of_their_links(self):
        """Two replicas: worker 1 sends its gradient to worker 0, and worker 0 sends the sum back. A wait never ends early."""
        for launcher in ([], LAUNCHER):
            self.write("c.yaml", EMULATED)
            self.write("links.yaml", MACHINE.replace("SHARING", "none").replace("latency: 100us", "latency: 30ms"))
            replicas = ["--set", "schedule={name: ddp, workers: 2, stages: 1}"]
            predicted = json.loads(self.ok("simulate", "c.yaml", *replicas, "--json"))
            report = self.report(*replicas, launcher=launcher)
            self.assertAlmostEqual(report["gradients_summed"]["predicted"], predicted["gradients_summed"])
            self.assertGreaterEqual(predicted["gradients_summed"], predicted["makespan"] + 0.06)
            jobs = report["explain"]["record"]["jobs"]
            first = max(end for end, worker in zip(jobs["end"], jobs["worker"]) if worker == 1) * 1e-9
            self.assertGreaterEqual(report["gradients_summed"]["measured"], first + 0.06 - 1e-6)
            self.assertIn("with gradients summed", self.run_command("train", "c.yaml", *replicas, launcher=launcher).stdout)
            self.assertEqual(self.run_command("explain", "r.json").returncode, 0)

    def test_links_to_homes(self):
        """Copies take the time of host_link and the stash's bytes, and `auto` copies where that is cheap."""
        self.write("c.yaml", EMULATED)
        homes = ("--set", "schedule.home=auto", "--set", "schedule.memory_limit=1")
        for bandwidth, copied in (("1kB/s", False), ("1GB/s", True)):
            self.write("links.yaml", one_level("1us", "1GB/s") + f"host_link: {{latency: 1us, bandwidth: {bandwidth}}}\n")
            predicted = json.loads(self.ok("simulate", "c.yaml", *homes, "--json"))
            self.assertEqual(bool(predicted.get("copies")), copied)
            report = self.report(*homes)
            self.assertAlmostEqual(report["makespan"]["predicted"], predicted["makespan"])
            self.assertEqual(max(report["peak_stashes"]["measured"]), 1)
        # A stash has 5 to 12 KiB, so a copy takes 6 to 13 ms.
        self.write("links.yaml", one_level("1us", "1GB/s") + "disk_link: {latency: 1ms, bandwidth: 1MB/s}\n")
        on_disk = json.loads(self.ok("simulate", "c.yaml", "--set", "schedule.home=disk", "--json"))
        report = self.report("--set", "schedule.home=disk")
        self.assertAlmostEqual(report["makespan"]["predicted"], on_disk["makespan"])
        self.assertGreaterEqual(report["makespan"]["measured"], on_disk["makespan"] * 0.97)
        self.refused(["train", "c.yaml", "--set", "schedule.home=host"], "runtime.emulate.copy", "host_link")

    def test_refusals(self):
        self.write("c.yaml", EMULATED)
        self.write("links.yaml", one_level("1us", "1GB/s") + "host_link: {latency: 1us, bandwidth: 1GB/s, workers: 2}\n")
        self.refused(["train", "c.yaml"], "runtime.emulate.links", "links.yaml", "host_link: workers")
        self.write("links.yaml", MACHINE.replace("SHARING", "fair"))
        self.refused(["train", "c.yaml", "--set", "runtime.policy=lws"], "runtime.emulate.links", "lws")
        self.refused(["train", "c.yaml", "--set", "runtime.emulate.prefetch=false"], "runtime.emulate.links", "prefetch")
        self.write("links.yaml", one_level(1, 1))
        self.refused(["train", "c.yaml"], "runtime.emulate.links", "units")
        self.write("links.yaml", one_level("1us", "1GB/s") + LITTLE_HOME)
        self.refused(["train", "c.yaml"], "runtime.emulate.links", "links.yaml", "disk_link: memory")
        self.write("both.yaml", EMULATED.replace("links:", "comm: 1ms, links:"))
        self.refused(["train", "both.yaml"], "runtime.emulate.comm", "links")


class RealLinks(CommandTest):
    """`runtime.links`: the real links, with which only the prediction counts."""

    NETWORK = one_level("40ms", "1MB/s")

    def setUp(self):
        super().setUp()
        self.write("c.yaml", EMULATED.replace(", links: links.yaml}", "}, links: net.yaml"))
        self.write("net.yaml", self.NETWORK)

    def report(self, *more, launcher=()):
        result = self.run_command("train", "c.yaml", "--report", "r.json", *more, launcher=launcher)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("r.json"))

    def test_only_the_prediction_counts_with_them(self):
        simulated = json.loads(self.ok("simulate", "c.yaml", "--ranks", 2, "--json"))
        self.write("levels.yaml", "levels: [{workers: 2, latency: 0us, bandwidth: 1000GB/s}, " + self.NETWORK.split("[")[1])
        as_option = self.ok("simulate", "c.yaml", "--ranks", 2, "--links", "levels.yaml", "--json")
        self.assertAlmostEqual(simulated["makespan"], json.loads(as_option)["makespan"], places=5)
        report = self.report(launcher=LAUNCHER)
        self.assertAlmostEqual(report["makespan"]["predicted"], simulated["makespan"])
        self.assertLess(report["makespan"]["measured"], report["makespan"]["predicted"] - 0.02)
        costs = report["explain"]["record"]["costs"]
        self.assertEqual((costs["workers_of_rank"], len(costs["links"])), (2, 2))
        self.assertIn("Busiest port: out of rank 0 (workers 0 to 1) at level 1: its bytes take", self.ok("explain", "r.json"))
        ports = json.loads(self.ok("explain", "r.json", "--json"))["ports"]
        self.assertEqual([(port["workers"], port["direction"]) for port in ports[:2]], [([0, 1], "out"), ([0, 1], "in")])
        self.ok("compare", "c.yaml", "--repetitions", 1, "-o", "compared.json", launcher=LAUNCHER)
        self.assertAlmostEqual(json.loads(self.read("compared.json"))["predicted"]["makespan"], simulated["makespan"])

    def test_workers_of_a_rank_share_their_data(self):
        self.assertAlmostEqual(self.report()["makespan"]["predicted"],
                               json.loads(self.ok("simulate", "c.yaml", "--comm", "0s", "--json"))["makespan"])

    def test_real_kernels(self):
        self.write("c.yaml", EMULATED.split("runtime")[0] + "runtime: {links: net.yaml}\n")
        costs = self.report(launcher=LAUNCHER)["explain"]["record"]["costs"]
        self.assertEqual((costs["workers_of_rank"], costs["links"][1]["comm"]), (2, 0.04))
        result = self.run_command("simulate", "c.yaml")
        self.assertEqual((result.returncode, "runtime.links: does not count" in result.stderr), (0, True))
        with_times = ["simulate", "c.yaml", *TIMES, "--json"]
        self.assertEqual(json.loads(self.ok(*with_times))["makespan"],
                         json.loads(self.ok(*with_times, "--links", "net.yaml"))["makespan"])

    def test_refusals(self):
        def refused(*culprits, more=()):
            self.refused(["train", "c.yaml", *more], "runtime.links", *culprits, launcher=LAUNCHER)

        refused("mapping", more=["--set", "runtime.mapping=auto"])
        self.refused(["train", "c.yaml", "--set", "runtime.emulate.comm=1ms"], "runtime.emulate.comm", "runtime.links")
        three = ["--set", "schedule.workers=3", "--set", "model.layers=6"]
        refused("3 workers cannot be divided equally among 2 ranks", more=three)
        six = ["--set", "schedule.workers=6", "--set", "model.layers=6"]
        level = "{latency: 1us, bandwidth: 1GB/s"
        self.write("net.yaml", f"levels: [{level}, name: pair, workers: 2}}, {level}}}]\n")
        refused("level 0 (pair) has groups of 2 workers, a rank has 3", more=six)
        self.write("net.yaml", f"levels: [{level}, workers: 4}}, {level}}}]\n")
        refused("level 0 has groups of 4 workers, which do not divide the 6 workers", more=six)
        self.write("net.yaml", one_level(1, 1))
        refused("without units")
        self.write("net.yaml", one_level("1us", "1GB/s") + LITTLE_HOME)
        refused("net.yaml", "disk_link: memory")


class Measured(CommandTest):
    def test_the_file_can_be_used(self):
        self.ok("info", "--links", "links.yaml", launcher=LAUNCHER)
        text = self.read("links.yaml")
        self.assertRegex(text, r"\n  - \{name: node, latency: [0-9.]+us, bandwidth: [0-9.e+-]+GB/s, sharing: (none|in-order|fair)")
        self.assertRegex(text, "# node: 1 pair of ranks, messages of 1 B to [0-9.]+ [KM]iB")
        self.ok("schedule", "show", "1f1b", "--workers", 4, "--microbatches", 6, *TIMES, "--links", "links.yaml", "--bytes", "1MiB")

    def test_refusals(self):
        self.refused(["info", "--links", "links.yaml"], "--links", "two ranks or more")
        self.refused(["info", "--links", "links.txt"], "--links", ".yaml", launcher=LAUNCHER)
        self.refused(["info", "--links", "absent/links.yaml"], "--links", "absent", launcher=LAUNCHER)
        self.refused(["info", "--links", "links.yaml", "--json"], "--links", "--json")


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv[1])
    LAUNCHER = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
