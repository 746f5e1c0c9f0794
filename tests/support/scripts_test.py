#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/lib.sh: long commands show their newest line on a terminal and stay quiet in a log; a failure shows the log's end.
Usage: scripts_test.py PROJECT_DIR"""
import os
import pathlib
import pty
import subprocess
import sys
import tempfile
import unittest

PROJECT = sys.argv.pop(1)


def script(log, body):
    return f'source "{PROJECT}/scripts/lib.sh"; set -euo pipefail; run_logged "{log}" bash -c \'{body}\''


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


if __name__ == "__main__":
    unittest.main()
