#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of two ranks on a full disk and in a folder that goes away: the run continues and says so in one line for each
checkpoint that is lost, what was whole stays whole, and the run can be resumed. Metrics on a full disk keep whole lines.

The full disk is a small file system of its own, which the system must allow to mount; without that this part is skipped.

usage: full_disk_test.py STARPIPE LAUNCHER...   (the launcher starts 2 ranks)
"""
import ctypes
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from job import OPEN_MPI
from kill_resume_test import STEPS, Run, whole_checkpoints

STARPIPE, *LAUNCHER = sys.argv[1:]
LOST = "starpipe: the checkpoint of step "
# A mount that ends with the test: in a name space of mounts, as root or as root of a name space of users.
NAMESPACES = ["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]


def namespace():
    """The command that runs another where it may mount, or None."""
    for command in NAMESPACES:
        mount = [*command, "mount", "-t", "tmpfs", "none", "/mnt"]
        if shutil.which("unshare") and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            return command
    return None


def exchange(one, other):
    """Two paths change places at once: a running job cannot make a new one between two renames."""
    at_folder, exchange_them = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(at_folder, os.fsencode(one), at_folder, os.fsencode(other), exchange_them) != 0:
        raise OSError(ctypes.get_errno(), f"cannot exchange {one} and {other}")


class FullDisk(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_ = Run(pathlib.Path(folder.name) / "run", STARPIPE, LAUNCHER)
        self.checkpoints = self.run_.path / "ckpt"

    def lost(self, output):
        return [line for line in output.splitlines() if line.startswith(LOST)]

    def test_a_full_disk(self):
        inside = namespace()
        if inside is None:
            self.skipTest("no file system can be mounted here")
        self.checkpoints.mkdir()
        # Room for three checkpoints of about 60 kB, and `keep` wants ten.
        train = " ".join([*LAUNCHER, *self.run_.command, "--set", "checkpoint.keep=10"])
        script = f"""
            mount -t tmpfs -o size=220k none {self.checkpoints} || exit 99
            {train}; echo "status $?"
            ls {self.checkpoints}
            cp -r {self.checkpoints} {self.run_.path}/kept
            rm -r {self.checkpoints}/step-00000002
            {train} --set checkpoint.keep=1 --set training.steps={STEPS + 2}; echo "status $?"
            cp -r {self.checkpoints} {self.run_.path}/resumed
        """
        done = subprocess.run([*inside, "sh", "-c", script], capture_output=True, text=True, timeout=120, check=False,
                              stdin=subprocess.DEVNULL)
        output = done.stdout + done.stderr
        statuses = [line for line in done.stdout.splitlines() if line.startswith("status")]
        self.assertEqual(statuses, ["status 1", "status 0"], output)
        kept = [step for step, _ in whole_checkpoints(self.run_.path / "kept", set())]
        self.assertEqual(kept, list(range(2, 2 * len(kept) + 1, 2)), output)
        self.assertTrue(kept, output)
        lost = self.lost(output)
        self.assertEqual(len(lost), STEPS // 2 - len(kept), output)
        for line in lost:
            self.assertRegex(line, r"could not be written: .*No space left on device$")
        resumed = [step for step, _ in whole_checkpoints(self.run_.path / "resumed", set())]
        self.assertEqual(resumed, [STEPS + 2], output)

    def test_metrics_on_a_full_disk(self):
        inside = namespace()
        if inside is None:
            self.skipTest("no file system can be mounted here")
        disk = self.run_.path / "disk"
        disk.mkdir()
        report = self.run_.path / "r.json"
        train = " ".join([STARPIPE, "train", str(self.run_.config), "--metrics", f"{disk}/m.jsonl", "--report", str(report)])
        script = f"mount -t tmpfs -o size=4k none {disk} || exit 99; {train}; echo status $?; cp {disk}/m.jsonl {self.run_.path}"
        done = subprocess.run([*inside, "sh", "-c", script], capture_output=True, text=True, timeout=120, check=False,
                              stdin=subprocess.DEVNULL)
        self.assertIn("status 1\n", done.stdout, done.stderr)
        problem = r"starpipe: metrics: cannot write .*m\.jsonl: No space left on device; "
        self.assertRegex(done.stderr, problem + "training continues, and each step tries again\n")
        self.assertRegex(done.stderr, problem + "its last lines are lost\n")
        self.assertEqual(len(json.loads(report.read_text())["losses"]), STEPS)
        text = (self.run_.path / "m.jsonl").read_text()
        self.assertTrue(text.endswith("}\n"), text[-300:])
        self.assertEqual([json.loads(line)["step"] for line in text.splitlines()], list(range(1, text.count("\n") + 1)))

    def test_starpus_folder_on_a_full_disk(self):
        """StarPU alone would abort, and abort again later: it reads the empty files that it has left."""
        inside = namespace()
        if inside is None:
            self.skipTest("no file system can be mounted here")
        for name in ("home", "tmp"):
            (self.run_.path / name).mkdir()
        home = self.run_.path / "home"
        bus = home / ".starpu/sampling/bus"
        unset = "-u STARPU_HOME -u STARPU_PERF_MODEL_DIR -u XDG_CACHE_HOME"
        train = f"env {unset} HOME={home} TMPDIR={self.run_.path}/tmp STARPU_HOSTNAME=node7 {STARPIPE} train {self.run_.config}"
        script = f"""
            mount -t tmpfs -o size=1m none {home} || exit 99
            mkdir -p {bus} && touch -d 2020-01-01 {bus}/node7.config {bus}/node7.affinity
            head -c 2000000 /dev/zero >{home}/full 2>&-
            {train} --set checkpoint.folder={self.run_.path}/first; echo "status $?"
            rm {home}/full
            {train} --set checkpoint.folder={self.run_.path}/second; echo "status $?"
            wc -c {bus}/node7.affinity
        """
        done = subprocess.run([*inside, "sh", "-c", script], capture_output=True, text=True, timeout=120, check=False,
                              stdin=subprocess.DEVNULL)
        output = done.stdout + done.stderr
        self.assertEqual(re.findall(r"^status \d+", done.stdout, re.M), ["status 0", "status 0"], output)
        lines = [line for line in done.stderr.splitlines() if "StarPU cannot write" in line]
        self.assertEqual(len(lines), 1, output)
        self.assertRegex(lines[0], r"^starpipe: HOME: StarPU cannot write to its folder \S+: No space left on device; .* set STARPU_HOME")
        self.assertRegex(done.stdout, r"\n[1-9]\d* \S+node7.affinity\n")

    def test_little_shared_memory(self):
        """UCX would print lines of its own, and MPICH a stack; containers often have 64 MiB."""
        if OPEN_MPI:
            self.skipTest("needs MPICH on UCX")
        inside = namespace()
        if inside is None:
            self.skipTest("no file system can be mounted here")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}

        def train(options, launcher=(), more=None):
            script = f'mount -t tmpfs -o {options} none /dev/shm || exit 99; exec "$0" "$@"'
            folder = f"checkpoint.folder={self.run_.path}/ckpt{len(os.listdir(self.run_.path))}"
            command = [*launcher, STARPIPE, "train", self.run_.config, "--set", "training.steps=1", "--set", folder]
            return subprocess.run([*inside, "sh", "-c", script, *command], capture_output=True, text=True, timeout=120, check=False,
                                  stdin=subprocess.DEVNULL, env={**environment, **(more or {})})

        remedy = "but MPI needs 4.2 MiB there for each rank; make it larger (docker run --shm-size), or set UCX_TLS=tcp,self\n"
        for options, launcher, what in (("size=4m", [], "has 4.0 MiB"), ("size=8m", LAUNCHER, "has 8.0 MiB"), ("ro", [], "cannot be written")):
            result = train(options, launcher)
            self.assertEqual((result.returncode, result.stderr), (2, f"starpipe: /dev/shm: {what}, {remedy}"))
        for options, launcher, more in (("size=5m", [], {}), ("size=9m", LAUNCHER, {}), ("size=1m", LAUNCHER, {"UCX_TLS": "tcp,self"})):
            result = train(options, launcher, more)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_starpus_folder_of_somebody_else(self):
        """Without HOME StarPU's folder is in the folder for temporary files, where another user may have made it: StarPU aborts."""
        user = ["setpriv", "--reuid", "65534", "--clear-groups"]
        if os.geteuid() != 0 or subprocess.run([*user, STARPIPE, "--version"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no other user can run it here")
        temporary = self.run_.path / "tmp"
        (temporary / ".starpu").mkdir(parents=True, mode=0o700)
        temporary.chmod(0o1777)
        for folder in (self.run_.path.parent, self.run_.path):
            folder.chmod(0o755)
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("HOME", "STARPU_HOME", "STARPU_PERF_MODEL_DIR", "XDG_CACHE_HOME")}
        done = subprocess.run([*user, STARPIPE, "train", self.run_.config, "--set", f"checkpoint.folder={temporary}/ckpt"], text=True,
                              capture_output=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
                              env={**environment, "TMPDIR": str(temporary)})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, rf"starpipe: \S+: StarPU cannot write to its folder {temporary}/\.starpu\S*: Permission denied; its "
                                      rf"measurements of this machine are in {temporary}/starpipe-65534 now")

    def test_a_folder_that_goes_away(self):
        self.run_.start(2)
        self.run_.wait(60, lambda: list(self.checkpoints.glob("step-*[0-9]")))
        self.checkpoints.rename(self.run_.path / "gone")
        self.run_.expect_end()
        output = self.run_.output()
        self.assertEqual(self.run_.job.returncode, 0, output)
        self.assertLessEqual(len(self.lost(output)), 1, output)
        self.assertEqual([step for step, _ in whole_checkpoints(self.checkpoints, set())][-1], STEPS, output)

    def test_a_file_in_the_place_of_the_folder(self):
        self.run_.start(2)
        self.run_.wait(60, lambda: list(self.checkpoints.glob("step-*[0-9]")))
        aside = self.run_.path / "aside"
        aside.write_text("a file")
        exchange(aside, self.checkpoints)
        self.run_.expect_end()
        output = self.run_.output()
        self.assertEqual(self.run_.job.returncode, 1, output)
        self.assertGreater(len(self.lost(output)), 1, output)
        self.assertEqual(self.checkpoints.read_text(), "a file")
        # The folder is there again.
        self.checkpoints.unlink()
        aside.rename(self.checkpoints)
        before = whole_checkpoints(self.checkpoints, set())[-1][0]
        self.run_.start(2)
        self.run_.expect_end()
        self.assertEqual(self.run_.job.returncode, 0, self.run_.output())
        self.assertIn(f"continues after step {before} of {STEPS}", self.run_.output())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
