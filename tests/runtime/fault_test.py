#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank that is killed, or that no longer answers, ends the job soon, with an exit status other than 0. No file
is half written, and no process is left running.

usage: fault_test.py STARPIPE ENGINE_TEST LAUNCHER...   (the launcher starts 2 ranks)
"""
import os
import re
import signal
import subprocess
import sys
import unittest

from job import OPEN_MPI, JobTest

STARPIPE, ENGINE_TEST, *LAUNCHER = sys.argv[1:]


class Faults(JobTest):
    binary, launcher = STARPIPE, LAUNCHER

    def expect_watchdog(self, seconds, table, speaker=0, where="in"):
        """`table`: a pattern of the message's table of who waits for whom."""
        lines = [line for line in self.output().splitlines() if "runtime.timeout" in line]
        self.assertEqual(len(lines), 1, self.output())
        problem = "no rank has made progress for" if where == "in" else "a rank has been silent for more than"
        self.assertRegex(lines[0], rf"starpipe: rank {speaker}: {problem} {seconds} s {where} step \d+")
        self.assertRegex(self.output(), table)
        self.assertNotIn("Abort(", self.output(), "a line of MPI's")

    def expect_line(self, rank, pid):
        lines = self.own_lines()
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

    def test_a_rank_that_ends_before_mpi(self):
        """With a status, or because the dynamic loader does not find a library. srun starts the ranks on two nodes, where
        they do not see each other's processes."""
        if "srun" in LAUNCHER:
            self.skipTest("two nodes")
        if OPEN_MPI:
            self.skipTest("the launcher itself ends such a job, with lines of its own")
        for rank, end in (0, "exit 3"), (1, "exec /bin/true"):
            command = f'[ $PMI_RANK != {rank} ] || {end}; exec "$0" "$@"'
            done = subprocess.run([*LAUNCHER, "sh", "-c", command, STARPIPE, "train", str(self.config)], capture_output=True,
                                  text=True, stdin=subprocess.DEVNULL, timeout=100, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(re.findall(r"(?m)^starpipe: .*$", done.stderr),
                             [f"starpipe: rank {1 - rank}: rank {rank} has ended before MPI has started: every rank needs "
                              "the same command"], done.stderr)

    def test_stopped(self):
        for rank in 0, 1:
            with self.subTest(rank=rank):
                self.train("--set", "runtime.timeout=3")
                os.kill(self.pids_of(rank)[1], signal.SIGSTOP)
                self.expect_end(60)
                self.expect_watchdog(3, rf"(?m)^ +{rank}  silent for [23]\.\d s \(last known: ", speaker=1 - rank)
                self.assertRegex(self.output(), rf"(?m)^ +{1 - rank}  waits .*rank {rank}: silent for")
                self.log.unlink()

    def test_a_job_may_last_longer_than_the_timeout(self):
        """On rank 1; rank 0 waits meanwhile. Then one lasts for more than ten timeouts."""
        steps = ["--set", "training.steps=1", "--set", "training.microbatches=2", "--set", "runtime.timeout=0.5",
                 "--set", "schedule={name: 1f1b, workers: 2, stages: 2}", "--set"]
        run = [*LAUNCHER, STARPIPE, "train", str(self.config), *steps]
        done = subprocess.run([*run, "runtime.emulate={F: [1ms, 1200ms], B: 1ms, W: 1ms}"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([*run, "runtime.emulate={F: [1ms, 60s], B: 1ms, W: 1ms}"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=50, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"(?m)^ +0  waits to run BW\(0,0\) +BW\(0,0\) +gradient of stage 0, "
                         r"micro-batch 0, from BW\(1,0\)  rank 1: runs F\(1,0\) for 5\.\d s, longer than ten timeouts")

    def test_an_emulated_transfer_may_last_longer_than_the_timeout(self):
        """Then one lasts for more than ten timeouts. Short timeouts end the run with one message, too."""
        run = [*LAUNCHER, STARPIPE, "train", str(self.config), "--set", "training.steps=1", "--set",
               "training.microbatches=2", "--set", "schedule={name: 1f1b, workers: 2, stages: 2}", "--set"]
        done = subprocess.run([*run, "runtime.emulate={F: 1ms, B: 1ms, W: 1ms, comm: 1200ms}", "--set",
                               "runtime.timeout=0.5"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for long in "F: 1ms, comm: 60s", "F: 60s":
            done = subprocess.run([*run, "runtime.emulate={B: 1ms, W: 1ms, %s}" % long, "--set", "runtime.timeout=0.2"],
                                  capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=50, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(done.stderr.count("runtime.timeout"), 1, done.stderr)
            self.assertRegex(done.stderr, r"(?m)^ +\d  (waits for an emulated transfer|runs F\(0,0\)) for \d\.\d s, "
                             "longer than ten timeouts")

    def test_stopped_between_steps(self):
        self.start("--stall=yes", ENGINE_TEST, "--stall=yes", "--workers=2")
        self.expect_end(60)
        self.expect_watchdog(2, r"(?m)^ +0  waits for all ranks to begin step 2 .*rank 1: is in no step")

    def test_stopped_in_the_last_gathering(self):
        self.start("--stall=gathering", ENGINE_TEST, "--stall=gathering", "--workers=2")
        self.expect_end(60)
        self.expect_watchdog(2, r"(?m)^ +0  is in no step .*rank 1: silent for [23]\.\d s", where="after")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
