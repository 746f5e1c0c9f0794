# SPDX-License-Identifier: Apache-2.0
"""A job of several ranks that trains without end, for tests of what ends it. Needs only the standard library."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from waiting import wait_until  # noqa: E402

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "SLURM_PROCID")

OPEN_MPI = os.environ.get("STARPIPE_MPI") == "openmpi"

CONFIG = """
model: {kind: mlp, layers: 4, hidden: 32, inputs: 8, outputs: 2}
data: {kind: synthetic}
training: {microbatches: 4, microbatch_size: 4, steps: 1000000, seed: 1,
           optimizer: {kind: sgd, learning_rate: 0.01, weight_decay: 0}}
schedule: {name: 1f1b, workers: 4, stages: 4}
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


def default_signals():
    """Shells start background jobs of scripts with SIGINT and SIGQUIT ignored, nohup those with SIGHUP ignored, and
    their children inherit that."""
    for number in signal.SIGINT, signal.SIGQUIT, signal.SIGHUP:
        signal.signal(number, signal.SIG_DFL)


class JobTest(unittest.TestCase):
    """Starts training without end under a launcher, and checks what is left of it."""

    binary = None
    launcher = []

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
            self.job = subprocess.Popen([*self.launcher, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                        start_new_session=True, preexec_fn=default_signals)
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

    def own_lines(self):
        """starpipe's lines. Open MPI's launcher ends the other ranks of a lost one by SIGTERM, as if the user had sent it to
        them, so they say so, too."""
        lines = [line for line in self.output().splitlines() if line.startswith("starpipe:")]
        if OPEN_MPI and len(lines) > 1:
            lines = [line for line in lines if " was ended by signal 15 " not in line] or lines[:1]
        return lines

    def train(self, *arguments):
        self.start(str(self.config), self.binary, "train", str(self.config), "--report", str(self.path / "report.json"),
                   *arguments)
        self.wait_for(lambda: re.search(r"^step .*1/", self.output(), re.MULTILINE))

    def wait_for(self, holds):
        """Waits until `holds()` while the job runs."""
        held = wait_until(lambda: holds() or self.job.poll() is not None, seconds=100)
        self.assertIsNone(self.job.poll(), self.output())
        self.assertTrue(held, "no progress in 100 s\n" + self.output())

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
        self.assertTrue(wait_until(lambda: not processes(self.marker), seconds=10), "left running")
        self.assertEqual(sorted(p.name for p in self.path.iterdir()), ["job.yaml", "log"], "left behind")
