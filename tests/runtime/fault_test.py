#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank that is killed, or that no longer answers, ends the job soon, with an exit status other than 0. No file
is half written, and no process is left running.

usage: fault_test.py STARPIPE ENGINE_TEST LAUNCHER...   (the launcher starts 2 ranks)
"""
import os
import signal
import sys
import unittest

from job import JobTest

STARPIPE, ENGINE_TEST, *LAUNCHER = sys.argv[1:]


class Faults(JobTest):
    binary, launcher = STARPIPE, LAUNCHER

    def expect_watchdog(self, seconds):
        lines = [line for line in self.output().splitlines() if "runtime.timeout" in line]
        self.assertEqual(len(lines), 1, self.output())
        self.assertRegex(lines[0], rf"starpipe: rank 0: no task finished for {seconds} s in step \d+")

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
