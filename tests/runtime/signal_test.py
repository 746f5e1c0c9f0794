#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A signal that asks a run to end does so within seconds, wherever it arrives: one line names it, the exit status is
128 + its number where the launcher passes it on, no process and no temporary file is left.

usage: signal_test.py STARPIPE PLUGIN LAUNCHER...   (the word COUNT in the launcher's command stands for the number of ranks)
"""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from job import CONFIG, OPEN_MPI, JobTest, default_signals, processes, read, wait_until

STARPIPE, PLUGIN, *LAUNCHER = sys.argv[1:]
ASKED = signal.SIGUSR1, signal.SIGTERM, signal.SIGINT


def users_of(folder):
    """The command lines with a file in `folder`."""
    lines = [read(entry / "cmdline") for entry in pathlib.Path("/proc").glob("[0-9]*")]
    return [line for line in lines if f"{folder}/".encode() in line]


# A search that does not reach its lower bound within its budget.
SEARCH = ("search --workers=32 --microbatches=2048 --chunks=2 --layout=loop --durations=F=2.3,B=3.1,W=1.7 --comm=0.9 "
          "--memory-limit=48 --quiet").split()

# Becomes the command of its arguments. On one rank a signal is then pending, as if it had come in the first moment.
PENDING = """
import os, signal, sys
number, rank, *command = sys.argv[1:]
if any(os.environ.get(name) == rank for name in ("PMI_RANK", "PMIX_RANK", "SLURM_PROCID")):
    signal.pthread_sigmask(signal.SIG_BLOCK, [int(number)])
    os.kill(os.getpid(), int(number))
os.execv(command[0], command)
"""


class OfARun(JobTest):
    binary = STARPIPE

    def expect_line(self, who, *numbers):
        lines = self.own_lines()
        self.assertEqual(len(lines), 1, self.output())
        signals = "|".join(str(number.value) for number in numbers)
        self.assertRegex(lines[0], rf"^starpipe: {who} was ended by signal ({signals}) \(.+\)$")

    def send(self, target, number, ranks):
        """Returns who says so."""
        if target == "launcher":
            os.kill(self.job.pid, number)
            return r"rank 0"
        if target == "all":  # as scancel
            for pid in {self.job.pid, *processes(self.marker)}:
                with contextlib.suppress(ProcessLookupError):  # ended by the launcher, which got the signal before
                    os.kill(pid, number)
            return r"rank 0"
        kind, rank = target
        launched, working = self.pids_of(rank % ranks)
        if kind == "group":
            os.killpg(os.getpgid(launched), number)
        else:
            os.kill(launched if kind == "launched" else working, number)
        return rf"rank {rank % ranks}"

    def check(self, ranks, target, number):
        with self.subTest(ranks=ranks, target=target, signal=number.name):
            self.launcher = [str(ranks) if word == "COUNT" else word for word in LAUNCHER]
            self.train()
            who = self.send(target, number, ranks)
            self.expect_end(10)
            if OPEN_MPI and target in ("launcher", "all") and number in (signal.SIGTERM, signal.SIGINT):
                # The launcher sends the ranks SIGTERM for either signal, and has a status of its own.
                self.expect_line(who, number, signal.SIGTERM)
                # Open MPI 4.1.4's launcher sometimes crashes at its own end when its ranks end at the same moment.
                own_end = (1, -signal.SIGSEGV) if target == "all" else (1,)
                self.assertIn(self.job.returncode, own_end, self.output())
            else:
                self.expect_line(who, number)
                self.assertEqual(self.job.returncode, 128 + number, self.output())
            self.log.unlink()

    def test_two_ranks(self):
        for number in ASKED:
            for target in ("launched", 0), ("working", -1), ("group", -1), "launcher", "all":
                self.check(2, target, number)

    def test_other_numbers_of_ranks(self):
        self.check(1, ("working", 0), signal.SIGUSR1)
        self.check(1, "launcher", signal.SIGTERM)
        self.check(4, ("launched", -1), signal.SIGUSR1)
        self.check(4, "launcher", signal.SIGUSR1)
        self.check(4, "all", signal.SIGTERM)

    def test_other_signals(self):
        for number in (signal.SIGQUIT, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP, signal.SIGALRM, signal.SIGVTALRM,
                       signal.SIGPROF):
            self.check(2, ("group", 0), number)

    def test_before_the_parent_watches(self):
        """A signal that a rank finds pending when it starts: the other ranks wait for this rank in MPI's start."""
        self.launcher = ["2" if word == "COUNT" else word for word in LAUNCHER]
        for command, number, rank in (*(("train", number, rank) for number in ASKED for rank in (0, 1)),
                                      *((command, signal.SIGTERM, 1) for command in ("compare", "verify"))):
            with self.subTest(command=command, signal=number.name, rank=rank):
                self.start(str(self.config), sys.executable, "-c", PENDING, str(int(number)), str(rank), STARPIPE, command,
                           str(self.config))
                self.expect_end(20)
                self.expect_line(f"rank {rank}", number)
                self.assertEqual(self.job.returncode, 128 + number, self.output())
                self.log.unlink()

    def test_the_launcher_dies(self):
        """Its process on this host, which starts the ranks, is killed. mpiexec itself may then wait indefinitely."""
        self.launcher = ["2" if word == "COUNT" else word for word in LAUNCHER]
        self.train()
        launched, _ = self.pids_of(0)
        proxy = int(read(f"/proc/{launched}/stat").rpartition(b")")[2].split()[1])
        if proxy == self.job.pid or b"hydra" not in read(f"/proc/{proxy}/cmdline"):
            self.skipTest("this launcher has no process of its own on the host")
        ranks = {pid for rank in range(2) for pid in self.pids_of(rank)}
        os.kill(proxy, signal.SIGKILL)
        self.assertTrue(wait_until(lambda: not ranks & set(processes(self.marker)), seconds=15), "left running")

    def test_a_run_in_the_background(self):
        """Its shell, in a Slurm job, ends before it does."""
        config = self.path / "short.yaml"
        config.write_text(CONFIG.replace("steps: 1000000", "steps: 300"))
        report = self.path / "report.json"
        command = ["sh", "-c", '"$@" & sleep 0.1', "sh", STARPIPE, "train", str(config), "--report", str(report)]
        log = self.path / "background.log"
        with log.open("wb") as out:
            subprocess.run(command, env={**os.environ, "SLURM_PROCID": "0"}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                           check=True)
        self.assertTrue(wait_until(report.exists), log.read_text())

    def test_without_a_launcher(self):
        for number in ASKED:
            for which in "launched", "working", "group":
                with self.subTest(signal=number.name, which=which):
                    self.launcher = []
                    self.train()
                    working = next(pid for pid in processes(self.marker) if pid != self.job.pid)
                    if which == "group":  # as Ctrl-C in a terminal
                        os.killpg(self.job.pid, number)
                    else:
                        os.kill(self.job.pid if which == "launched" else working, number)
                    self.expect_end(10)
                    self.expect_line("the run", number)
                    self.assertEqual(self.job.returncode, 128 + number)
                    self.log.unlink()


class Ignored(unittest.TestCase):
    """Signals that were ignored when the program started stay ignored, as nohup and shells want it, though libraries
    install handlers of their own before `main`."""

    def expect_success(self, *command):
        """Starts a job for each signal. They run at the same time, since they mostly wait."""
        jobs = {}
        for number in signal.SIGHUP, signal.SIGINT, signal.SIGQUIT:
            jobs[number] = subprocess.Popen([STARPIPE, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT, encoding="utf-8", start_new_session=True,
                                            preexec_fn=lambda number=number: signal.signal(number, signal.SIG_IGN))
            self.addCleanup(jobs[number].kill)
        time.sleep(1.5)
        for number, job in jobs.items():
            self.assertIsNone(job.poll(), "ended too early to receive a signal")
            os.killpg(job.pid, number)
        for number, job in jobs.items():
            with self.subTest(command=command[0], signal=number.name):
                output, _ = job.communicate(timeout=60)
                self.assertEqual(job.returncode, 0, output)
                self.assertNotIn("signal", output)

    def test_train(self):
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "job.yaml"
            config.write_text(CONFIG)
            self.expect_success("train", str(config), "--set", "training.steps=2", "--set",
                                "runtime.emulate={F: 100ms, B: 100ms, W: 100ms}")

    def test_search(self):
        self.expect_success(*SEARCH, "--budget=3")

    def test_the_end_of_a_child(self):
        """This signal, SIGCHLD, says that the working process has ended. The program does not inherit that it is ignored."""
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "job.yaml"
            config.write_text(CONFIG)
            done = subprocess.run([STARPIPE, "train", str(config), "--set", "training.steps=1"], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=60, check=False,
                                  preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
            self.assertEqual(done.returncode, 0, done.stderr)


class OfOtherCommands(JobTest):
    """Commands that start no ranks, or start them in processes of their own."""

    binary = STARPIPE

    def check(self, number, ready, *command):
        """Sends the signal when `ready` holds, and expects one line, the status, an empty folder for temporary files and
        no process that uses it."""
        with self.subTest(command=command, signal=number.name):
            scratch = self.path / "scratch"
            scratch.mkdir(exist_ok=True)
            with self.log.open("wb") as log:
                self.job = subprocess.Popen([STARPIPE, *map(str, command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, "TMPDIR": str(scratch)}, start_new_session=True,
                                            preexec_fn=default_signals)
            self.addCleanup(self.job.wait)
            self.addCleanup(self.job.kill)
            self.wait_for(lambda: ready(scratch))
            os.kill(self.job.pid, number)
            self.assertEqual(self.job.wait(10), 128 + number, self.output())
            self.assertRegex(self.output(), rf"^starpipe: ended by signal {number.value} \(.+\)\n$")
            self.assertTrue(wait_until(lambda: not users_of(scratch), seconds=10), "left running")
            # Open MPI leaves its own folder where a process ends by a signal while MPI starts.
            self.assertEqual([item for item in scratch.iterdir() if not item.name.startswith("ompi.")], [], "left behind")

    def computing(self, _):
        """Holds when the process has used half a second of CPU time, of which its start takes a tenth."""
        fields = read(f"/proc/{self.job.pid}/stat").rpartition(b")")[2].split()
        return fields and (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > 0.5

    def test_search(self):
        for number in ASKED:
            self.check(number, self.computing, *SEARCH, "--budget=60", "-o", self.path / "found.json")
        self.assertFalse((self.path / "found.json").exists())

    def test_search_on_ranks(self):
        self.launcher = ["2" if word == "COUNT" else word for word in LAUNCHER]
        found = str(self.path / "found.json")
        self.start(found, STARPIPE, *SEARCH, "--budget=60", "-o", found)
        time.sleep(3)
        os.kill(self.job.pid, signal.SIGTERM)
        self.job.wait(10)  # hydra's exit status is sometimes 0, since such ranks do not speak to it
        self.assertEqual(self.output().count("starpipe:"), 1, self.output())

    def test_simulate(self):
        self.config.write_text(CONFIG.replace("microbatches: 4", "microbatches: 200000"))
        self.check(signal.SIGTERM, self.computing, "simulate", self.config)

    def test_plugin_check(self):
        for number in ASKED:  # while the test prepares a run, and while the run's launcher runs
            self.check(number, lambda scratch: any(scratch.glob("*/config.yaml")), "plugin", "check", PLUGIN)
            self.check(number, users_of, "plugin", "check", PLUGIN)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
