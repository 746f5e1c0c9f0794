#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/lib.sh: long commands show their newest line on a terminal and stay quiet in a log; a failure shows the log's end.
Commands that run at once end together. Failed tests are named again at the end.
Usage: scripts_test.py PROJECT_DIR"""
import os
import pathlib
import pty
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROJECT = sys.argv.pop(1)


def script(log, body):
    return f'source "{PROJECT}/scripts/lib.sh"; set -euo pipefail; run_logged "{log}" bash -c \'{body}\''


class RunCtest(unittest.TestCase):
    def test_failed_tests_are_repeated_at_the_end(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "CTestTestfile.cmake").write_text("""
add_test(good "true")
add_test(bad "sh" "-c" "seq 1 20; echo 'a < b'; exit 3")
""")
            body = f'source "{PROJECT}/scripts/lib.sh"; run_ctest "{folder}" --quiet'
            result = subprocess.run(["bash", "-c", body], capture_output=True, text=True, timeout=30)
            self.assertNotEqual(result.returncode, 0)
            self.assertEqual(result.stdout, "bad ended with:\n    16\n    17\n    18\n    19\n    20\n    a < b\n")


class RunLogged(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.log = os.path.join(self.folder.name, "log")

    def tearDown(self):
        self.folder.cleanup()

    def on_terminal(self, body):
        """Runs the body with standard error on a terminal; returns the exit status and what the terminal got."""
        master, slave = pty.openpty()
        process = subprocess.Popen(["bash", "-c", script(self.log, body)], stdin=subprocess.DEVNULL, stdout=slave,
                                   stderr=slave, env={**os.environ, "TERM": "dumb"})
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # all other ends of the terminal are closed
                break
            if not part:
                break
            shown += part
        os.close(master)
        return process.wait(timeout=30), shown.decode()

    def test_a_terminal_shows_each_line_in_place_of_the_last(self):
        status, shown = self.on_terminal('echo "[1/2] one"; echo "[2/2] two"')
        self.assertEqual(status, 0)
        self.assertIn("\r\033[K[1/2] one\r\033[K[2/2] two\r\033[K", shown)
        self.assertNotIn("\n", shown)
        self.assertEqual(pathlib.Path(self.log).read_text(), "[1/2] one\n[2/2] two\n")

    def test_a_log_stays_quiet(self):
        result = subprocess.run(["bash", "-c", script(self.log, "echo one; echo two >&2")], capture_output=True, text=True,
                                timeout=30)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        self.assertEqual(pathlib.Path(self.log).read_text(), "one\ntwo\n")

    def test_a_failure_shows_the_end_of_the_log(self):
        body = "seq 50; exit 3"
        status, shown = self.on_terminal(body)
        self.assertEqual(status, 1)
        self.assertIn("failed (exit status 3)", shown)
        result = subprocess.run(["bash", "-c", script(self.log, body)], capture_output=True, text=True, timeout=30)
        self.assertEqual(result.returncode, 1)
        self.assertIn("failed (exit status 3)", result.stderr)
        self.assertEqual(result.stderr.splitlines()[1:], [str(n) for n in range(11, 51)])


class AtOnce(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, *commands, **options):
        words = " ".join(f"'{command}'" for command in commands)
        return subprocess.Popen(["bash", "-c", f'set -euo pipefail; source "{PROJECT}/scripts/lib.sh"; at_once {words}; echo all'],
                                stdin=subprocess.DEVNULL, cwd=self.folder, text=True, **options)

    def sleeper(self, name):
        """A command with a process of its own, which notes its number in a file."""
        return f"bash -c \"echo \\$\\$ >{name}; exec sleep 60\""

    def number(self, name):
        while not (self.folder / name).exists() or not (self.folder / name).read_text():
            time.sleep(0.01)
        return int((self.folder / name).read_text())

    def assert_ends(self, process):
        for _ in range(1000):
            try:
                if pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    return
            except FileNotFoundError:
                return
            time.sleep(0.01)
        self.fail("a process still runs")

    def test_idle_cores_are_used_until_the_command_ends(self):
        wait = "while [[ ! -s a ]]; do sleep 0.01; done; cat /proc/$(cat a)/stat; exit 3"
        text = f"set -euo pipefail; source '{PROJECT}/scripts/lib.sh'; on_idle_cores '{self.sleeper('a')}' bash -c '{wait}'"
        done = subprocess.run(["bash", "-c", text], stdin=subprocess.DEVNULL, cwd=self.folder, text=True, check=False,
                              capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (3, ""))
        self.assertEqual(done.stdout.rpartition(")")[2].split()[38], "5")  # the policy SCHED_IDLE
        self.assert_ends(self.number("a"))

    def test_it_waits_for_all(self):
        job = self.start("sleep 0.2; echo one", "echo two", "echo three", stdout=subprocess.PIPE)
        self.assertEqual(sorted(job.communicate(timeout=30)[0].split()), ["all", "one", "three", "two"])
        self.assertEqual(job.returncode, 0)

    def test_one_that_fails_ends_the_others(self):
        failing = "while [[ ! -s other ]]; do sleep 0.01; done; run_logged log bash -c \"echo broken; exit 3\""
        for commands in ((failing, self.sleeper("other")), (self.sleeper("other"), failing)):
            job = self.start(*commands, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            other = self.number("other")
            shown, told = job.communicate(timeout=30)
            self.assertEqual((job.returncode, shown), (1, ""))
            self.assertIn("failed (exit status 3)", told)
            self.assertEqual(told.splitlines()[-1], "broken")
            self.assert_ends(other)
            (self.folder / "other").unlink()

    def test_a_signal_ends_all(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            job = self.start(self.sleeper("a"), self.sleeper("b"), stderr=subprocess.PIPE)
            processes = [self.number("a"), self.number("b")]
            job.send_signal(number)
            self.assertEqual(job.communicate(timeout=30)[1], "")
            self.assertEqual(job.returncode, 128 + number)
            for name, process in zip("ab", processes):
                self.assert_ends(process)
                (self.folder / name).unlink()


class Mpi(unittest.TestCase):
    def test_another_mpi_is_refused(self):
        for script in "setup", "test", "quickstart":
            done = subprocess.run([f"{PROJECT}/scripts/{script}"], env={**os.environ, "STARPIPE_MPI": "lam"}, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=30, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertEqual(done.stderr, f"[{script}] error: STARPIPE_MPI must be mpich or openmpi, not 'lam'\n")

    def test_each_mpi_has_its_own_folders(self):
        found = set()
        for mpi in "mpich", "openmpi":
            text = f"source '{PROJECT}/scripts/lib.sh'; echo \"$build_dir $starpu_prefix $release_preset\""
            found |= set(subprocess.run(["bash", "-euc", text], env={**os.environ, "STARPIPE_MPI": mpi}, stdin=subprocess.DEVNULL,
                                        capture_output=True, text=True, timeout=30, check=True).stdout.split())
        self.assertEqual(len(found), 6)


class Hosts(unittest.TestCase):
    def test_usage(self):
        for words in (), ("up",), ("up", "2"), ("cut",), ("down", "1"), ("mpiexec",), ("fly", "1"):
            done = subprocess.run([f"{PROJECT}/scripts/hosts", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=30, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn("hosts up N RATE", done.stderr)


if __name__ == "__main__":
    unittest.main()
