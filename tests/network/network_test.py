#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs over a real network, on hosts that scripts/hosts makes of this machine: what crosses it, and its faults.

usage: network_test.py HOSTS STARPIPE MPIEXEC   (status 77: this machine cannot make hosts)
"""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from waiting import wait_until  # noqa: E402

HOSTS, STARPIPE, MPIEXEC = sys.argv[1:]
OPEN_MPI = os.environ.get("STARPIPE_MPI") == "openmpi"
CANNOT = 3  # exit status of scripts/hosts
# A set of hosts of its own, so that tests of two builds do not meet.
ENVIRONMENT = {**os.environ, "STARPIPE_HOSTS": f"starpipe-test{os.getpid()}-", "MPIEXEC": MPIEXEC}

EMULATED = """
model:    {kind: mlp, layers: 4, hidden: 128, inputs: 8, outputs: 2}
data:     {kind: synthetic}
training: {microbatches: 8, microbatch_size: 512, steps: 5}
schedule: {name: 1f1b, workers: 4}
runtime:  {emulate: {F: 20ms, B: 20ms, W: 20ms}}
"""
STEPS, MESSAGES, MESSAGE = 5, 8, 512 * 128 * 4  # in each direction between the hosts: messages per step, and their bytes

# What a program sees of ports of 200 Mbit/s: 1448 of the 1514 bytes of each frame.
LINKS = """
levels:
  - {name: host, workers: 2, latency: 5us, bandwidth: 2GB/s}
  - {name: network, latency: 20us, bandwidth: 23.9MB/s, sharing: fair}
"""

ENDLESS = """
model:    {kind: mlp, layers: 4, hidden: 32, inputs: 8, outputs: 2}
data:     {kind: synthetic}
training: {microbatches: 4, microbatch_size: 16, steps: 1000000}
schedule: {name: 1f1b, workers: 2}
runtime:  {emulate: {F: 2ms, B: 2ms, W: 2ms}, timeout: 3}
"""

# One holder, whose weights three other hosts read.
WEIGHTS = """
model:    {kind: gpt, layers: 4, hidden: 128, heads: 4, context: 32}
data:     {kind: text, path: /usr/share/common-licenses/GPL-3}
training: {microbatches: 4, microbatch_size: 1, steps: 3}
schedule: {name: fsdp, workers: 4, stages: 1}
runtime:  {emulate: {F: 5ms, B: 5ms, W: 5ms}}
"""

# Kernels compute. At 50 Mbit/s a step sends for 0.2 s, so a checkpoint is under way for as long.
COMPUTED = """
model:      {kind: mlp, layers: 4, hidden: 128, inputs: 8, outputs: 2}
data:       {kind: synthetic}
training:   {microbatches: 8, microbatch_size: 256, steps: 8, seed: 1, clip: 0.5,
             optimizer: {kind: adamw, learning_rate: 0.01, weight_decay: 0.1}}
schedule:   {name: 1f1b, workers: 4}
runtime:    {workers_per_core: 16, timeout: 3}
checkpoint: {folder: FOLDER, every: 2, keep: 2}
"""
TIMES = "seconds", "tokens_per_second", "samples_per_second", "checkpoint_seconds", "bubble_fraction"


def hosts(*words):
    return subprocess.run([HOSTS, *map(str, words)], env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, check=True).stdout


def port_bytes():
    """The bytes that each host has sent and received: [(sent, received), ...]."""
    return [tuple(int(word) for word in line.split()[1:]) for line in hosts("bytes").splitlines()[1:]]


def bytes_on_wire(sent, received):
    """The bytes of the frames that carry `sent` bytes by TCP, and that acknowledge `received` bytes, every second frame."""
    payload, headers = 1448, 66
    return sent + sent / payload * headers + received / payload / 2 * headers


class Network(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.log = self.path / "log"

    def write(self, name, text):
        path = self.path / name
        path.write_text(text)
        return str(path)

    def output(self):
        return self.log.read_text(errors="replace")

    def start(self, config, *arguments, ranks=2, per_host=1):
        command = [HOSTS, "mpiexec", "-n", str(ranks), "-ppn", str(per_host), STARPIPE, "train", config, *map(str, arguments)]
        with self.log.open("wb") as log:
            self.job = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(self.end)

    def end(self):
        self.job.kill()
        self.job.wait()

    def wait_for(self, holds):
        """Waits until `holds()` while the job runs."""
        held = wait_until(lambda: holds() or self.job.poll() is not None, seconds=30)
        self.assertIsNone(self.job.poll(), self.output())
        self.assertTrue(held, self.output())

    def wait_for_steps(self):
        self.wait_for(lambda: re.search(r"(?m)^step .*1/", self.output()))

    def status(self, seconds):
        try:
            return self.job.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"the job did not end in {seconds} s:\n{self.output()}")

    def rank_processes(self, host):
        """The processes of the host's ranks, and their parents."""
        listed = subprocess.run(["ip", "netns", "pids", f"{ENVIRONMENT['STARPIPE_HOSTS']}{host}"], capture_output=True, text=True,
                                check=True).stdout.split()
        parents = {}
        for pid in listed:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                _, name, _, parent, *_ = pathlib.Path(f"/proc/{pid}/stat").read_text().split()
                if name == "(starpipe)":
                    parents[int(pid)] = int(parent)
        return parents

    def working_process(self, host):
        """The process of the host's rank that works: the child of the one that the launcher has started."""
        parent = self.rank_processes(host)
        return next(pid for pid in parent if parent[pid] in parent)

    def expect_silent_rank(self, rank):
        """The watchdog ends the run, within its time and a few seconds, and names the rank."""
        if OPEN_MPI:  # its launcher waits for a host that does not answer
            self.wait_for(lambda: "(runtime.timeout)" in self.output())
            self.end()
            self.assertTrue(wait_until(lambda: not self.rank_processes(1), seconds=10), "a rank on host 1 has not ended")
        else:
            self.assertNotEqual(self.status(15), 0, self.output())
        self.assertEqual(self.output().count("(runtime.timeout)"), 1, self.output())
        self.assertRegex(self.output(), rf"(?m)^ +{rank}  silent for [2-5]\.\d s")

    def test_the_run_is_as_predicted(self):
        hosts("up", 2, "200mbit", os.getpid())
        config, report = self.write("run.yaml", EMULATED), self.path / "report.json"
        simulated = subprocess.run([STARPIPE, "simulate", config, "--links", self.write("links.yaml", LINKS), "--json"],
                                   capture_output=True, text=True, timeout=30, check=True)
        predicted = json.loads(simulated.stdout)["makespan"]
        before = port_bytes()
        self.start(config, "--report", report)
        self.assertEqual(self.status(30), 0, self.output())
        measured = json.loads(report.read_text())
        between = measured["bytes_between_ranks"]
        self.assertEqual(between["predicted"], between["measured"])
        expected = bytes_on_wire(STEPS * MESSAGES * MESSAGE, STEPS * MESSAGES * MESSAGE)
        for host, (first, last) in enumerate(zip(before, port_bytes()), start=1):
            for direction, from_, to in zip(("sent", "received"), first, last):
                with self.subTest(host=host, direction=direction):
                    self.assertAlmostEqual((to - from_) / expected, 1, delta=0.05)
        # A rendezvous of MPI's may let the directions take turns, which costs less than the hidden part of the transfers.
        self.assertAlmostEqual(measured["makespan"]["measured"] / predicted, 1.05, delta=0.1)

    def test_workers_that_exchange_data_share_a_host(self):
        """The stages are on workers 0, 2, 1 and 3. With two workers per host in their order, each message between stages
        crosses the network; runtime.mapping: auto leaves one pair of stages apart."""
        place = [0, 2, 1, 3]
        config, show, file = self.write("run.yaml", EMULATED), self.path / "1f1b.json", self.path / "placed.json"
        subprocess.run([STARPIPE, "schedule", "show", "1f1b", "--workers", "4", "--microbatches", str(MESSAGES), "-o", show],
                       stdout=subprocess.DEVNULL, timeout=30, check=True)
        ops = json.loads(show.read_text())["ops"]
        placed = [[{"op": op["op"], "stage": op["stage"], "microbatch": op["microbatch"]} for op in ops[place.index(worker)]]
                  for worker in range(4)]  # fmt: skip
        file.write_text(json.dumps({"ops": placed}))
        with unittest.mock.patch.dict(ENVIRONMENT, STARPIPE_HOSTS_APART="1"):
            hosts("up", 2, "1gbit", os.getpid())
            sent = {}
            for mapping in ("linear", "auto"):
                report, before = self.path / f"{mapping}.json", port_bytes()
                self.start(config, "--set", f"schedule={{file: {file}}}", "--set", f"runtime.mapping={mapping}", "--report", report)
                self.assertEqual(self.status(60), 0, self.output())
                ranks = json.loads(report.read_text())["ranks"]
                self.assertEqual(len({rank["machine"] for rank in ranks}), 2)
                sent[mapping] = [last[0] - first[0] for first, last in zip(before, port_bytes())]
        self.assertIn(sorted(ranks[0]["logical_workers"]), ([0, 2], [1, 3]))
        pairs = {"linear": 3, "auto": 1}  # of stages on two hosts; one direction each way
        for mapping, count in pairs.items():
            for host, amount in enumerate(sent[mapping], start=1):
                with self.subTest(mapping=mapping, host=host):
                    self.assertAlmostEqual(amount / bytes_on_wire(*[count * STEPS * MESSAGES * MESSAGE] * 2), 1, delta=0.1)

    def test_the_study_of_networks(self):
        study = pathlib.Path(__file__).resolve().parents[2] / "experiments/networks/networks.py"
        done = subprocess.run([study, "--hosts", HOSTS, "--programs", pathlib.Path(STARPIPE).parent, "--cases", "emulated:2:200mbit",
                               "--schedules", "1f1b", "--budget", "0.5"], env=ENVIRONMENT, capture_output=True, text=True, timeout=90,
                              check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("emulated.yaml, 2 hosts, 8 workers, ports of 200mbit:", done.stdout)
        for name in ("searched", "1f1b"):
            row = re.search(rf"(?m)^\| {name} \| ([0-9.,]+) \| ([0-9.,]+) \|", done.stdout)
            self.assertIsNotNone(row, done.stdout)
            predicted, measured = (float(number.replace(",", "")) for number in row.groups())
            self.assertAlmostEqual(measured / predicted, 1.05, delta=0.1, msg=done.stdout)

    def test_weights_leave_their_holder_once(self):
        hosts("up", 4, "200mbit", os.getpid())
        config, report = self.write("run.yaml", WEIGHTS), self.path / "report.json"
        before = port_bytes()
        self.start(config, "--report", report, ranks=4)
        self.assertEqual(self.status(30), 0, self.output())
        received = json.loads(report.read_text())["received"]["weights"]["bytes"]["measured"]
        self.assertEqual(received, [0] + 3 * [max(received)])
        # Each host sends them once, at most twice, and its part of the sums of gradients.
        weights = 3 * max(received)
        sent = [last[0] - first[0] for first, last in zip(before, port_bytes())]
        self.assertAlmostEqual(sent[0] / weights, 1.05, delta=0.1)
        self.assertLess(max(sent), 2.2 * weights)

    def test_a_cable_that_is_out_for_seconds(self):
        hosts("up", 2, "200mbit", os.getpid())
        self.start(self.write("run.yaml", ENDLESS), "--set", "training.steps=150", "--set", "runtime.timeout=60")
        self.wait_for_steps()
        hosts("cut", 2)
        with self.assertRaises(subprocess.TimeoutExpired, msg=self.output()):
            self.job.wait(4)
        self.assertNotIn("step 150/150", self.output())
        hosts("mend", 2)
        self.assertEqual(self.status(40), 0, self.output())
        self.assertIn("step 150/150", self.output())

    def test_a_cable_that_stays_out(self):
        hosts("up", 2, "200mbit", os.getpid())
        self.start(self.write("run.yaml", ENDLESS))
        self.wait_for_steps()
        hosts("cut", 2)
        self.expect_silent_rank(1)

    def test_a_host_without_power(self):
        """No process of it says goodbye, and no rank's parent is left to name it."""
        hosts("up", 2, "200mbit", os.getpid())
        self.start(self.write("run.yaml", ENDLESS))
        self.wait_for_steps()
        hosts("cut", 2)
        hosts("kill", 2)
        self.expect_silent_rank(1)

    def test_a_rank_that_is_killed(self):
        hosts("up", 2, "200mbit", os.getpid())
        self.start(self.write("run.yaml", ENDLESS))
        self.wait_for_steps()
        pid = self.working_process(2)
        os.kill(pid, signal.SIGKILL)
        self.assertNotEqual(self.status(10), 0, self.output())
        self.assertIn(f"starpipe: rank 1 was lost: process {pid} was ended by signal 9", self.output())
        self.assertNotIn("rank 0 was lost", self.output())

    def checkpoints(self):
        return sorted(path.name for path in (self.path / "ckpt").iterdir() if path.name.startswith("step-"))

    def records(self, name):
        steps = [json.loads(line) for line in (self.path / name).read_text().splitlines()]
        return [{key: value for key, value in step.items() if key not in TIMES} for step in steps]

    def test_computed_on_one_host_and_on_four(self):
        """The losses are the same, to the bit. On four hosts the network fails while a checkpoint is written; the run
        continues from the one before it, with the same losses."""
        hosts("up", 4, "50mbit", os.getpid())
        config = self.write("run.yaml", COMPUTED.replace("FOLDER", str(self.path / "ckpt")))
        files = {name: ["--metrics", self.path / f"{name}.jsonl", "--save-weights", self.path / f"{name}.safetensors"]
                 for name in ("one", "four")}
        self.start(config, *files["one"], "--set", f"checkpoint.folder={self.path / 'other'}", ranks=4, per_host=4)
        self.assertEqual(self.status(30), 0, self.output())

        self.start(config, "--resume", *files["four"], ranks=4)
        under_way = "step-00000004.writing"
        self.wait_for(lambda: (self.path / "ckpt" / under_way).exists())
        hosts("cut", 3)
        hosts("kill", 3)
        self.expect_silent_rank(2)
        self.assertEqual(self.checkpoints(), ["step-00000002", under_way])
        self.assertFalse((self.path / "ckpt" / under_way / "manifest.json").exists())

        hosts("mend", 3)
        self.start(config, "--resume", *files["four"], ranks=4)
        self.assertEqual(self.status(30), 0, self.output())
        self.assertIn("resume: continues after step 2 of 8", self.output())
        self.assertEqual(len(self.records("one.jsonl")), 8)
        self.assertEqual(self.records("one.jsonl"), self.records("four.jsonl"))
        one, four = ((self.path / f"{name}.safetensors").read_bytes() for name in files)
        self.assertEqual(one, four)


def main():
    made = subprocess.run([HOSTS, "up", "2", "200mbit", str(os.getpid())], env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60, check=False)
    if made.returncode == CANNOT:
        print(f"skipped: {made.stderr.strip()}")
        sys.exit(77)
    made.check_returncode()
    try:
        unittest.main(argv=sys.argv[:1], verbosity=2)
    finally:
        hosts("down")


if __name__ == "__main__":
    main()
