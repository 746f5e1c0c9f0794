# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the tests of the command. Needs only the standard library."""

import json
import os
import pty
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from waiting import wait_until  # noqa: E402, F401

# Variables of an MPI launcher, under which the tests themselves may run.
LAUNCHER_RANKS = ("PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def max_under_way(record):
    """Returns how many jobs of a run were submitted and had not ended at a time, at most. `record`: of the files of `train
    --report` and `compare -o`."""
    jobs = record["jobs"]
    return max(sum(other <= submitted < end for other, end in zip(jobs["submitted"], jobs["end"])) for submitted in jobs["submitted"])


class CommandTest(unittest.TestCase):
    """Runs the command in a new, empty folder each time."""

    binary = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return name

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def bytes(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def run_command(self, *arguments, launcher=(), environment=None, timeout=100, stdout=subprocess.PIPE):
        env = {k: v for k, v in os.environ.items() if k not in LAUNCHER_RANKS}
        env.update(environment or {})
        return subprocess.run(
            [*launcher, self.binary, *map(str, arguments)], cwd=self.folder, env=env, timeout=timeout,
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, encoding="utf-8", check=False)

    def progress(self, *arguments, status=0):
        """Returns the texts that a terminal shows on standard error, each of which replaces the one before it."""
        terminal, other_end = pty.openpty()
        with os.fdopen(other_end, "wb") as stderr, subprocess.Popen([self.binary, *arguments], cwd=self.folder, stdin=subprocess.DEVNULL,
                                                                    stdout=subprocess.DEVNULL, stderr=stderr) as process:
            stderr.close()
            shown = b""
            try:
                while part := os.read(terminal, 65536):
                    shown += part
            except OSError:  # all writers have ended
                pass
            os.close(terminal)
        self.assertEqual(process.returncode, status, shown)
        return shown.decode().split("\r\x1b[K")

    def ok(self, *arguments, **options):
        """Returns the command's standard output. The command must succeed and leave standard error empty."""
        result = self.run_command(*arguments, **options)
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return result.stdout

    def assert_predicted(self, report):
        """What a worker receives and holds is as predicted, in the report of `train`."""
        for kinds in report["received"].values():
            for figures in kinds.values():
                self.assertEqual(figures["predicted"], figures["measured"])
        for figures in (report["peak_stashes"], report["peak_stash_bytes"]):
            self.assertEqual(figures["predicted"], figures["measured"])

    def refused(self, arguments, *culprits, **options):
        """The command must exit with 2, print nothing on standard output and one line with all culprits on standard error."""
        result = self.run_command(*arguments, **options)
        with self.subTest(arguments=arguments, stderr=result.stderr):
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stdout, "")
            self.assertEqual(len(result.stderr.splitlines()), 1)
            self.assertTrue(result.stderr.startswith("starpipe: "))
            for culprit in culprits:
                self.assertIn(culprit, result.stderr)
        return result.stderr


def mlp_config(extra="", schedule="name: gpipe, workers: 2"):
    return f"""model: {{kind: mlp, layers: 2, hidden: 8, inputs: 4, outputs: 2}}
training: {{steps: 2, microbatches: 4, microbatch_size: 2}}
schedule: {{{schedule}}}
{extra}"""


def gpt_config(path):
    return f"""model: {{kind: gpt, layers: 2, hidden: 16, heads: 2, context: 16}}
data: {{kind: text, path: {path}}}
training: {{steps: 2, microbatches: 4}}
schedule: {{name: 1f1b, workers: 2}}
"""


class TrainTest(CommandTest):
    """Runs `train` with and without `launcher`, which starts two ranks. The folder has two models and a text."""

    launcher = ()

    def setUp(self):
        super().setUp()
        self.write("text", "The quick brown fox jumps over the lazy dog. " * 5)
        self.write("mlp.yaml", mlp_config())
        self.write("gpt.yaml", gpt_config("text"))

    def refused_by_all(self, arguments, *culprits, files=("gpt.yaml", "mlp.yaml", "text"), environment=None):
        """On one and on two ranks: one line, exit code 2, and no file left behind."""
        for launcher in ([], self.launcher):
            result = self.run_command("train", *arguments, launcher=launcher, environment=environment)
            # The launcher may print on standard output that a rank has failed. Standard error has the line of starpipe
            # and nothing else.
            lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
            with self.subTest(arguments=arguments, ranks=2 if launcher else 1, stderr=result.stderr):
                self.assertEqual(result.returncode, 2)
                self.assertEqual(len(lines), 1)
                if not launcher:
                    self.assertEqual(result.stderr.splitlines(), lines)
                for culprit in culprits:
                    self.assertIn(culprit, lines[0])
                self.assertEqual(sorted(os.listdir(self.folder)), sorted(files))

    def report_of(self, *arguments, **options):
        result = self.run_command("train", "mlp.yaml", "--report", "r.json", *arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.read("r.json"))
