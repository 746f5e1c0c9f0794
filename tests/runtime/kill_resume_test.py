#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training that is killed at random and resumed is, bit by bit, the training that was never killed.

Each cycle resumes a run, on any number of ranks, and sends SIGKILL to some of its processes at a random moment: while it
starts, reads a checkpoint, trains or writes. Now and then the newest checkpoint is damaged before the next cycle. After a
kill the job must end, no process may be left, every other checkpoint must be whole (checked here without starpipe), and
the newest may not be older than before. A run that comes to its end is compared with one that was never killed: losses,
gradient norms and learning rates of every step, and the saved weights. The next cycle then begins with an empty folder.

usage: kill_resume_test.py [--cycles N] [--seed N] STARPIPE LAUNCHER...   (the word COUNT in the launcher's command stands
for the number of ranks)
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import zlib

from job import OPEN_MPI, default_signals, processes, wait_until

STEPS = 60
CONFIG = f"""
model: {{kind: mlp, layers: 4, hidden: 32, inputs: 8, outputs: 2}}
data: {{kind: synthetic}}
training: {{microbatches: 4, microbatch_size: 4, steps: {STEPS}, seed: 1, clip: 0.5,
           optimizer: {{kind: adamw, learning_rate: 0.01, weight_decay: 0.1}}}}
schedule: {{name: 1f1b, workers: 4, stages: 4}}
runtime: {{workers_per_core: 16}}
checkpoint: {{folder: FOLDER, every: 2, keep: 2}}
"""
TIMES = "seconds", "tokens_per_second", "samples_per_second", "checkpoint_seconds", "bubble_fraction"


def require(condition, message):
    if not condition:
        raise SystemExit(f"kill_resume_test.py: {message}")


def lines_of(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


def records(file):
    """The steps of a file of metrics, without times."""
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: value for key, value in step.items() if key not in TIMES} for step in steps]


def whole_checkpoints(folder, damaged):
    """The checkpoints, the oldest first. Each must be whole, but for those that the test has damaged (their inodes): the
    manifest's own checksum, and the sizes and checksums of its files."""
    found = []
    for directory in folder.glob("step-*"):
        if directory.suffix in (".writing", ".removing") or directory.stat().st_ino in damaged:
            continue
        require(directory.suffix != ".damaged", f"{directory.name}: a run could not read it")
        text = (directory / "manifest.json").read_bytes()
        manifest = json.loads(text)
        start = text[:text.rindex(b',\n "crc32"')]
        require(f"{zlib.crc32(start):08x}" == manifest["crc32"], f"{directory}: the manifest is damaged")
        for part in manifest["parts"]:
            data = (directory / part["file"]).read_bytes()
            require((len(data), f"{zlib.crc32(data):08x}") == (part["bytes"], part["crc32"]),
                    f"{directory}: {part['file']} is damaged")
        found.append((manifest["step"], directory))
    return sorted(found)


class Run:
    """A training run with a folder of its own, of as many jobs as it takes."""

    def __init__(self, path, starpipe, launcher):
        self.path = path
        path.mkdir()
        self.config = path / "job.yaml"
        self.config.write_text(CONFIG.replace("FOLDER", str(path / "ckpt")))
        self.metrics = path / "metrics.jsonl"
        self.weights = path / "weights.safetensors"
        self.launcher = launcher
        self.command = [starpipe, "train", str(self.config), "--resume", "--metrics", str(self.metrics),
                        "--save-weights", str(self.weights)]
        self.log = path / "log"
        self.newest = 0
        self.kills = 0
        self.damaged = set()
        self.expected_line = None

    def start(self, ranks):
        launcher = [str(ranks) if word == "COUNT" else word for word in self.launcher]
        with self.log.open("wb") as log:
            self.job = subprocess.Popen([*launcher, *self.command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                        start_new_session=True, preexec_fn=default_signals)

    def output(self):
        return self.log.read_text(errors="replace")

    def wait(self, seconds, done=lambda: False):
        """Waits until `done` or the end of the job."""
        wait_until(lambda: done() or self.job.poll() is not None, seconds, pause=0.002)

    def metrics_changed(self):
        return self.metrics.exists() and self.metrics.stat().st_mtime_ns

    def kill_some(self, chance):
        """Kills one process of a rank (the one that the launcher started, or its child, which works), all, or the
        launcher. Returns which."""
        ranks = [pid for pid in processes(str(self.config)) if pid != self.job.pid]
        # Slurm's srun leaves its ranks running.
        kind = chance.choice(["one", "one", "all"] + (["launcher"] if "srun" not in self.launcher[0] else []))
        victims = {"one": chance.sample(ranks, min(1, len(ranks))), "all": ranks, "launcher": [self.job.pid]}[kind]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        self.kills += 1
        return kind

    def expect_end(self):
        """Waits for the end of all processes; they have a minute. Open MPI's launcher does not always end when a rank is
        killed while MPI starts; no rank may be left."""
        self.wait(60)
        if OPEN_MPI and self.kills and set(processes(str(self.config))) <= {self.job.pid}:
            self.job.kill()
            self.job.wait()
        ended = wait_until(lambda: not processes(str(self.config)))
        if self.job.poll() is None or not ended:
            for pid in processes(str(self.config)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.job.kill()
            self.job.wait()
            require(False, f"the job did not end:\n{self.output()}")

    def check_checkpoints(self):
        found = whole_checkpoints(self.path / "ckpt", self.damaged)
        newest = found[-1][0] if found else 0
        require(newest >= self.newest, f"the newest checkpoint was of step {self.newest}, now of {newest}")
        self.newest = newest
        return found

    def damage_newest(self, chance):
        """Damages the newest of at least two checkpoints. Returns whether there are two."""
        found = self.check_checkpoints()
        if len(found) < 2:
            return False
        step, directory = found[-1]
        file = chance.choice(sorted(directory.iterdir()))
        data = bytearray(file.read_bytes())
        place = chance.randrange(len(data))
        kind = chance.choice(["flip", "truncate", "remove"])
        if kind == "remove":
            file.unlink()
        else:
            data[place] ^= chance.randrange(1, 256)
            file.write_bytes(data if kind == "flip" else data[:place])
        self.damaged.add(directory.stat().st_ino)
        self.newest = found[-2][0]
        self.expected_line = f"skipped the checkpoint of step {step}"
        return True

    def check_line(self, has_trained):
        """The job that sets a checkpoint aside has said so before. When the launcher is killed, the line may be lost."""
        aside = {directory.stat().st_ino for directory in (self.path / "ckpt").glob("*.damaged*")}
        if has_trained and self.expected_line:
            require(self.damaged <= aside, f"trained, and did not set aside what is damaged:\n{self.output()}")
            require(self.expected_line in self.output(), f"no line '{self.expected_line}':\n{self.output()}")
        if self.damaged <= aside:
            self.expected_line = None

    def compare(self, reference):
        for want, have in zip(records(reference.metrics), records(self.metrics)):
            require(want == have, f"after {self.kills} kills a step has {have}, not {want}")
        require(lines_of(self.metrics) == STEPS, f"{lines_of(self.metrics)} steps in the metrics, not {STEPS}")
        require(self.weights.read_bytes() == reference.weights.read_bytes(), "the weights differ")


class Stress:
    def __init__(self, arguments, folder, chance):
        self.new_run = lambda name: Run(folder / name, arguments.starpipe, arguments.launcher)
        self.cycles = arguments.cycles
        self.chance = chance
        self.counts = dict.fromkeys(("jobs", "runs to their end", "kills", "one", "all", "launcher", "in the start",
                                     "with a checkpoint half written", "damaged"), 0)

    def train_reference(self):
        self.reference = run = self.new_run("reference")
        run.start(2)
        run.wait(120)
        run.expect_end()
        require(run.job.returncode == 0, f"status {run.job.returncode}\n{run.output()}")
        require(len(records(run.metrics)) == STEPS, "the first run has not written all its metrics")

    def kill_later(self, run, changed):
        """Kills at a random moment of the start, or after a step."""
        in_start = self.chance.random() < 0.25
        if in_start:
            run.wait(self.chance.uniform(0, 0.5))
        else:
            run.wait(120, lambda: run.metrics_changed() != changed)
            steps = lines_of(run.metrics) + self.chance.randrange(STEPS // 2)
            run.wait(120, lambda: lines_of(run.metrics) >= steps)
            run.wait(self.chance.uniform(0, 0.01))
        if run.job.poll() is None:
            self.counts[run.kill_some(self.chance)] += 1
            self.counts["kills"] += 1
            self.counts["in the start"] += in_start

    def one_job(self, run):
        """Returns whether the run has come to its end."""
        self.counts["jobs"] += 1
        changed = run.metrics_changed()
        run.start(self.chance.choice([1, 2, 2, 4]))
        if self.counts["kills"] < self.cycles:
            self.kill_later(run, changed)
        killed = run.kills
        run.expect_end()
        self.counts["with a checkpoint half written"] += any((run.path / "ckpt").glob("*.writing"))
        run.check_checkpoints()
        run.check_line(run.metrics_changed() != changed)
        if run.job.returncode != 0:
            require(killed, f"status {run.job.returncode}\n{run.output()}")
            if not run.expected_line and self.chance.random() < 0.2:
                self.counts["damaged"] += run.damage_newest(self.chance)
            return False
        run.compare(self.reference)
        self.counts["runs to their end"] += 1
        return True

    def run(self):
        self.train_reference()
        while self.counts["kills"] < self.cycles:
            run = self.new_run(f"run{self.counts['jobs']}")
            while not self.one_job(run):
                pass
            shutil.rmtree(run.path)
        print(f"runs of {STEPS} steps: " + ", ".join(f"{count} {what}" for what, count in self.counts.items()))


def main():
    parser = argparse.ArgumentParser(description="Kills and resumes training.")
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--seed", type=int, help="default: another each time, and printed")
    parser.add_argument("starpipe")
    parser.add_argument("launcher", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"--seed={seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        Stress(arguments, pathlib.Path(folder), random.Random(seed)).run()


if __name__ == "__main__":
    main()
