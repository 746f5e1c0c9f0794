#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank that is killed, or that no longer answers, ends the job soon, with an exit status other than 0. No file
is half written, and no process is left running.

usage: fault_test.py STARPIPE ENGINE_TEST LAUNCHER...   (the launcher starts 2 ranks)
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

STARPIPE, ENGINE_TEST, *LAUNCHER = sys.argv[1:]
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "SLURM_PROCID")

CONFIG = """
model: {kind: mlp, layers: 4, hidden: 32, inputs: 8, outputs: 2}
data: {kind: synthetic}
training: {microbatches: 4, microbatch_size: 4, steps: 1000000, seed: 1,
           optimizer: {kind: sgd, learning_rate: 0.01, weight_decay: 0}}
schedule: {name: 1f1b, workers: 2, stages: 2}
runtime: {workers_per_core: 16}
"""


def read(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:  # the process has ended
        return b""


def processes(marker):
    """The processes that have `marker` as a word of their command line: {pid: (rank or None, parent)}."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or marker.encode() not in read(entry / "cmdline").split(b"\0"):
            continue
        status = dict(line.split(":\t", 1) for line in read(entry / "status").decode().splitlines() if ":\t" in line)
        if not status or status["State"].startswith("Z"):
            continue
        environment = dict(item.split("=", 1) for item in read(entry / "environ").decode(errors="replace").split("\0")
                           if "=" in item)
        rank = next((environment[name] for name in RANK_VARIABLES if name in environment), None)
        found[int(entry.name)] = (rank, int(status["PPid"]))
    return found


class Faults(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        self.config = self.path / "job.yaml"
        self.config.write_text(CONFIG)
        self.log = self.path / "log"

    def start(self, marker, *command):
        self.marker = marker
        with self.log.open("wb") as log:
            self.job = subprocess.Popen([*LAUNCHER, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                        start_new_session=True)
        self.addCleanup(self.end)

    def end(self):
        for pid in processes(self.marker):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.job.kill()
        self.job.wait()

    def output(self):
        return self.log.read_text(errors="replace")

    def train(self, *arguments):
        self.start(str(self.config), STARPIPE, "train", str(self.config), "--report", str(self.path / "report.json"),
                   *arguments)
        give_up = time.monotonic() + 90
        while not re.search(r"^step .*1/", self.output(), re.MULTILINE):
            self.assertIsNone(self.job.poll(), self.output())
            self.assertLess(time.monotonic(), give_up, "no step in 90 s\n" + self.output())
            time.sleep(0.05)

    def pids_of(self, rank):
        """For a rank: (the process that the launcher started, its child, which works)."""
        family = {pid: parent for pid, (r, parent) in processes(self.marker).items() if r == str(rank)}
        self.assertEqual(len(family), 2, f"processes of rank {rank}")
        worker = next(pid for pid in family if pid not in family.values())
        return family[worker], worker

    def expect_end(self, seconds):
        try:
            status = self.job.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fail(f"the job did not end in {seconds} s:\n{self.output()}")
        self.assertNotEqual(status, 0, self.output())
        give_up = time.monotonic() + 10
        while processes(self.marker) and time.monotonic() < give_up:
            time.sleep(0.05)
        self.assertEqual(processes(self.marker), {}, "left running")
        self.assertEqual(sorted(p.name for p in self.path.iterdir()), ["job.yaml", "log"], "left behind")

    def expect_watchdog(self, seconds):
        lines = [line for line in self.output().splitlines() if "runtime.timeout" in line]
        self.assertEqual(len(lines), 1, self.output())
        self.assertRegex(lines[0], rf"starpipe: rank 0: no job finished for {seconds} s in step \d+")

    def expect_line(self, rank, pid):
        lines = [line for line in self.output().splitlines() if line.startswith("starpipe:")]
        self.assertEqual(len(lines), 1, self.output())
        self.assertRegex(lines[0], rf"^starpipe: rank {rank} was lost: process {pid} was (killed|ended by signal 9)")

    def test_killed(self):
        for rank in 0, 1:
            for which in "launched", "working":
                with self.subTest(rank=rank, process=which):
                    self.train()
                    pid = self.pids_of(rank)[which == "working"]
                    os.kill(pid, signal.SIGKILL)
                    self.expect_end(30)
                    self.expect_line(rank, pid)
                    self.log.unlink()

    def test_stopped(self):
        self.train("--set", "runtime.timeout=3")
        os.kill(self.pids_of(1)[1], signal.SIGSTOP)
        self.expect_end(60)
        self.expect_watchdog(3)

    def test_stopped_between_steps(self):
        self.start("--stall=yes", ENGINE_TEST, "--stall=yes", "--workers=2")
        self.expect_end(60)
        self.expect_watchdog(2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
