#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The scripts of experiments/slurm, and the commands of docs/slurm.md, on a cluster of four nodes with two GPUs each
that Slurm counts and the machine does not have.

usage: cluster.py --nodes 4 --gpus 2 slurm_test.py SOURCE_DIR STARPIPE
"""
import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from waiting import wait_until  # noqa: E402

SOURCE, STARPIPE = (pathlib.Path(word).resolve() for word in sys.argv[1:])
TRAIN, COMPARE = "experiments/slurm/train.sbatch", "experiments/slurm/compare.sbatch"


def page_commands(name):
    """The commands of docs/slurm.md that call sbatch or srun, without comments."""
    page = (SOURCE / "docs/slurm.md").read_text()
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S) for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [command for command in words if command and command[0] == name]


def processes_of(job, rank):
    """{pid: its parent} of starpipe's."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if (entry / "exe").samefile(STARPIPE) and {b"SLURM_JOB_ID=%d" % job,
                                                       b"SLURM_PROCID=%d" % rank} <= set(variables):
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


class Slurm(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # As in a clone that is built, but what jobs write stays out of it.
        (self.folder / "experiments").symlink_to(SOURCE / "experiments")
        (self.folder / "build" / "bin").mkdir(parents=True)
        (self.folder / "build" / "bin" / "starpipe").symlink_to(STARPIPE)

    def run_command(self, *command, **variables):
        return subprocess.run(command, cwd=self.folder, env={**os.environ, **variables}, capture_output=True,
                              text=True, timeout=240, check=False)

    def submit(self, *command, **variables):
        """The number of the job."""
        submitted = self.run_command(*command, **variables)
        self.assertRegex(submitted.stdout, r"^Submitted batch job \d+$", submitted.stderr)
        return int(submitted.stdout.split()[-1])

    def output(self, job):
        file = self.folder / f"slurm-{job}.out"
        return file.read_text() if file.exists() else ""

    def wait(self, job, seconds=240):
        """The exit status of the batch script."""
        def state():
            return self.run_command("scontrol", "--oneliner", "show", "job", str(job)).stdout

        def status():
            shown = state()
            return re.search(r" JobState=(COMPLETED|FAILED|CANCELLED) ", shown) and re.search(r" ExitCode=(\d+):\d+ ", shown)

        if found := wait_until(status, seconds, pause=0.2):
            return int(found[1])
        last = state()
        self.run_command("scancel", str(job))
        self.fail(f"job {job} did not end in {seconds} s: {last}\n{self.output(job)}")

    def results(self, job):
        """Its folder, named in the first line of its output."""
        folder = re.match(r"results: (.+)\n", self.output(job))[1]
        self.assertRegex(folder, rf"^results/\w+-{job}-\d+T\d+Z$")
        return self.folder / folder

    def check_places(self, report, nodes):
        """Two ranks, on as many nodes."""
        machines = [rank["machine"] for rank in report["ranks"]]
        self.assertRegex(" ".join(machines), r"^n[1-4] n[1-4]$")
        self.assertEqual(len(set(machines)), nodes)

    def check_training(self, job, nodes):
        output, results = self.output(job), self.results(job)
        self.assertEqual(sorted(file.name for file in results.iterdir()),
                         ["prediction.txt", "report.json", "table.txt", "timeline.svg", "trace.json",
                          "weights.safetensors"])
        report = json.loads((results / "report.json").read_text())
        self.check_places(report, nodes)
        for figure in report["makespan"]["predicted"], report["makespan"]["measured"]:
            self.assertGreater(figure, 0)
        self.assertGreater(report["bytes_between_ranks"]["measured"], 0)
        # Rank 0 alone prints: one table, and no step twice.
        table = (results / "table.txt").read_text()
        self.assertRegex(table, r"(?m)^1f1b on 2 workers, 2 ranks, ")
        steps = re.findall(r"^step +(\d+)/", output, re.M)
        self.assertEqual(len(steps), len(set(steps)))
        self.assertGreater(len(steps), 1)
        without_steps = [re.sub(r"(?m)^(results: .*|step .*|starpipe: resume: .* has no checkpoint.*|starpipe: rank 0 has a worker.*)\n", "", text) for text in (output, table)]
        self.assertEqual(*without_steps, "that is all")

    def check_comparison(self, job, nodes):
        output, results = self.output(job), self.results(job)
        self.assertEqual(sorted(file.name for file in results.iterdir()),
                         ["compare.json", "prediction.txt", "table.txt", "timeline.svg"])
        report = json.loads((results / "compare.json").read_text())
        self.check_places(report, nodes)
        self.assertGreater(report["predicted"]["makespan"], 0)
        for policy in report["policies"]:
            self.assertGreater(policy["makespan"], 0)
        self.assertEqual(output, f"results: {results.relative_to(self.folder)}\n" + (results / "table.txt").read_text())

    def test_the_page(self):
        jobs = [(command, self.submit(*command, REPETITIONS="1")) for command in page_commands("sbatch")
                if "runtime.device=cuda" not in command]
        for command, job in jobs:
            self.assertEqual(self.wait(job), 0, self.output(job))
            check = self.check_training if TRAIN in command else self.check_comparison
            check(job, 1 if "--nodes=1" in command else 2)
        self.assertTrue(any(TRAIN in command for command, _ in jobs))
        self.assertTrue(any(COMPARE in command for command, _ in jobs))
        commands = page_commands("srun")
        self.assertTrue(commands)
        for command in commands:
            result = self.run_command(*command)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_results_are_kept(self):
        script = [TRAIN, "--set", "training.steps=2"]
        jobs = [self.submit("sbatch", *script, CONFIG="experiments/mlp.yaml") for _ in range(2)]
        self.assertEqual([self.wait(job) for job in jobs], [0, 0])
        self.assertEqual(len({self.results(job) for job in jobs}), 2)

    def test_bad_configurations(self):
        for script in TRAIN, COMPARE:
            job = self.submit("sbatch", script, "--set", "training.stops=1")
            self.assertEqual(self.wait(job), 2)
            self.assertRegex(self.output(job), r"^starpipe: .*training\.stops.*\n$")
        for arguments in ["train", "nosuch.yaml"], ["compare", "experiments/mlp.yaml", "--policies", "nosuch"]:
            result = self.run_command("srun", "--mpi=pmi2", "-N", "2", str(STARPIPE), *arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(len(re.findall(r"^starpipe: .*nosuch", result.stderr, re.M)), 1, result.stderr)

    def start_training(self, **variables):
        """A job without end, in its first steps."""
        job = self.submit("sbatch", TRAIN, "--set", "training.steps=1000000", CONFIG="experiments/mlp.yaml", **variables)
        self.assertTrue(wait_until(lambda: re.search(r"^step .*1/", self.output(job), re.M), 120), self.output(job))
        return job

    def test_signals_end_the_job(self):
        for number, command in ((signal.SIGUSR1, ["scancel", "--signal=USR1"]), (signal.SIGINT, ["scancel", "--signal=INT"]),
                                (signal.SIGTERM, ["scancel"])):
            with self.subTest(command=command):
                job = self.start_training(CHECKPOINTS="")
                self.assertEqual(self.run_command(*command, str(job)).returncode, 0)
                self.wait(job, 20)
                lines = re.findall(r"(?m)^starpipe: .*$", self.output(job))
                self.assertEqual(len(lines), 1, self.output(job))
                self.assertRegex(lines[0], rf"^starpipe: rank 0 was ended by signal {number.value} ")
                self.assertEqual([processes_of(job, rank) for rank in range(2)], [{}, {}], "left running")

    def test_a_chain_of_jobs(self):
        """A job whose time is too short for its steps puts itself in the queue again, and continues until they are done."""
        text = (SOURCE / "experiments/mlp.yaml").read_text()
        config = self.folder / "chain.yaml"
        config.write_text(re.sub(r"steps: \d+", "steps: 100000000", text))
        job = self.submit("sbatch", "--time=1", "--signal=B:USR1@15", TRAIN, CONFIG="chain.yaml")
        ended = wait_until(lambda: re.search(
            r"(?m)^starpipe: ended by SIGTERM after step (\d+) of [\s\S]*^not all steps are done", self.output(job)), 150)
        self.assertTrue(ended, self.output(job))
        steps = int(ended[1]) + 50
        config.write_text(re.sub(r"steps: \d+", f"steps: {steps}", text))  # before Slurm starts the job again
        self.assertEqual(self.wait(job), 0, self.output(job))
        parts = [self.folder / name for name in re.findall(r"(?m)^results: (.+)$", self.output(job))]
        reports = [json.loads((part / "report.json").read_text()) for part in parts]
        self.assertEqual([(report["first_step"], len(report["losses"]), report["complete"]) for report in reports],
                         [(1, steps - 50, False), (steps - 49, 50, True)])
        self.assertEqual([(part / "weights.safetensors").exists() for part in parts], [False, True])

    def test_scancel_leaves_a_checkpoint_and_ends_the_chain(self):
        job = self.start_training()
        self.assertEqual(self.run_command("scancel", str(job)).returncode, 0)
        self.wait(job, 60)
        self.assertRegex(self.output(job), r"(?m)^starpipe: ended by SIGTERM after step \d+ of 1000000")
        # On two nodes, which Slurm signals at different times. It kills what has not ended after a while.
        def ends():
            return re.findall(r"(?m)^srun: error: .* task \d: (.+)$", self.output(job))

        wait_until(lambda: len(ends()) >= 2, 30)
        self.assertEqual(ends(), ["Exited with exit code 75"] * 2, self.output(job))
        state = self.run_command("scontrol", "--oneliner", "show", "job", str(job)).stdout
        self.assertRegex(state, r" JobState=CANCELLED .* Restarts=0 ")
        self.assertTrue(list((self.folder / f"results/train-{job}-checkpoints").glob("step-*/manifest.json")))

    def test_a_study(self):
        """An array of two jobs divides the runs of a study, those on several ranks among them."""
        (self.folder / "study.yaml").write_text(
            "command: train\nconfig: experiments/mlp.yaml\nset: {training.steps: 2}\n"
            "grid: {ranks: [1, 2], training.seed: [1, 2]}\n")
        sweep = [str(STARPIPE), "sweep", "study.yaml", "-o", "results/study"]
        script = self.run_command(*sweep, "--slurm", "2")
        self.assertEqual((script.returncode, script.stderr), (0, ""))
        submitted = subprocess.run(["sbatch", "--wait"], input=script.stdout, cwd=self.folder, capture_output=True, text=True,
                                   timeout=200, check=False)
        output = "".join(file.read_text() for file in sorted((self.folder / "results/study").glob("slurm-*.txt")))
        self.assertEqual(submitted.returncode, 0, submitted.stderr + output)
        self.assertEqual(output.count("2 runs: 2 done;"), 2, output)
        collected = self.run_command(*sweep, "--collect")
        self.assertIn("4 runs: 4 done (4 before);", collected.stdout)
        rows = [json.loads(line) for line in (self.folder / "results/study/results.jsonl").read_text().splitlines()]
        self.assertEqual([(row["ranks"], row["training.seed"]) for row in rows], [(1, "1"), (1, "2"), (2, "1"), (2, "2")])

    def test_links_between_nodes(self):
        """Ranks on one node are a level, and nodes another; other commands read the file."""
        measured = self.run_command("srun", "--mpi=pmi2", "--nodes=4", "--ntasks-per-node=2", "--overcommit", str(STARPIPE), "info",
                                    "--links", "links.yaml")
        self.assertEqual((measured.returncode, measured.stdout), (0, ""), measured.stderr)
        text = (self.folder / "links.yaml").read_text()
        self.assertIn("# Measured between 8 ranks on 4 hosts, for one worker per rank.\n", text)
        self.assertRegex(text, r"(?s)\n  - \{name: node, workers: 2, latency: .*\}\n  - \{name: network, latency: .*\}\n$")
        shown = self.run_command(str(STARPIPE), "schedule", "show", "1f1b", "--workers", "8", "--microbatches", "8", "--durations",
                                 "F=1ms,B=1ms,W=1ms", "--links", "links.yaml", "--bytes", "1MiB", "--json")
        self.assertEqual([level["name"] for level in json.loads(shown.stdout)["links"]], ["node", "network"])
        refused = self.run_command("srun", "--mpi=pmi2", "--nodes=2", "--ntasks=4", "--distribution=cyclic", "--overcommit",
                                   str(STARPIPE), "info", "--links", "other.yaml")
        self.assertRegex(refused.stderr, r"(?m)^starpipe: --links: the ranks on host n\d are not consecutive$")
        self.assertEqual(refused.returncode, 2)

    def test_processes_that_are_no_ranks(self):
        """Without PMI each of them would be a whole run, and write the same files."""
        train = [str(STARPIPE), "train", "experiments/mlp.yaml", "--set", "training.steps=2", "--report", "alone.json"]
        result = self.run_command("srun", "--mpi=none", "--overcommit", "--ntasks=2", *train)
        lines = [line for line in result.stderr.splitlines() if not line.startswith("srun: ")]
        self.assertEqual((result.returncode, len(lines)), (2, 1), result.stderr)
        self.assertRegex(lines[0], "^starpipe: SLURM_STEP_NUM_TASKS: a launcher has started 2 processes, ")
        self.assertFalse((self.folder / "alone.json").exists())
        self.assertEqual(self.run_command("srun", "--mpi=none", "--ntasks=1", *train).returncode, 0)
        self.assertTrue((self.folder / "alone.json").exists())

    def test_a_rank_that_ends_before_mpi(self):
        """The other rank of the node sees that."""
        result = self.run_command("srun", "--mpi=pmi2", "--nodes=1", "--ntasks=2", "--overcommit", "sh", "-c",
                                  '[ $SLURM_PROCID = 0 ] || exit 3; exec "$0" "$@"', str(STARPIPE), "train",
                                  "experiments/mlp.yaml")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("starpipe: rank 0: rank 1 has ended before MPI has started: every rank needs the same command\n",
                      result.stderr)

    def test_a_lost_rank_ends_the_job(self):
        job = self.start_training()
        family = processes_of(job, rank=1)
        self.assertEqual(len(family), 2, self.output(job))
        worker = next(pid for pid in family if pid not in family.values())
        os.kill(worker, signal.SIGKILL)
        self.assertNotEqual(self.wait(job, 30), 0)
        self.assertRegex(self.output(job), rf"(?m)^starpipe: rank 1 was lost: process {worker} was ended by signal 9 ")
        self.assertEqual(sorted(file.name for file in self.results(job).iterdir()), ["prediction.txt", "table.txt"])
        self.assertEqual([processes_of(job, rank) for rank in range(2)], [{}, {}], "left running")

    def test_several_ranks_a_node(self):
        job = self.submit("sbatch", "--nodes=4", "--ntasks-per-node=2", TRAIN, "--set", "training.steps=2", "--set",
                          "schedule={name: gpipe, workers: 8}", "--set", "model.layers=8", "--set",
                          "runtime.workers_per_core=8", CONFIG="experiments/mlp.yaml")
        self.assertEqual(self.wait(job), 0, self.output(job))
        self.assertRegex(self.output(job), r"(?m)^gpipe on 8 workers, 8 ranks, ")

    def test_gpus(self):
        """Slurm gives each rank the GPUs that the page's commands ask for. Here none is behind the numbers, and one line
        from all ranks together says so."""
        visible = self.run_command("srun", "--nodes=4", "--ntasks-per-node=2", "--gpus-per-task=1", "printenv",
                                   "CUDA_VISIBLE_DEVICES")
        self.assertEqual(sorted(visible.stdout.split()), ["0"] * 4 + ["1"] * 4, visible.stderr)
        if pathlib.Path("/dev/nvidiactl").exists():
            self.skipTest("ranks would find the host's GPUs, which are not the virtual nodes' GPUs")
        commands = [command for command in page_commands("sbatch") if "runtime.device=cuda" in command]
        self.assertEqual(len(commands), 2)
        for job in [self.submit(*command) for command in commands]:
            self.assertEqual(self.wait(job), 2)
            lines = re.findall(r"(?m)^starpipe: (.*)", self.output(job))
            self.assertEqual(len(lines), 1, self.output(job))
            self.assertTrue(lines[0].startswith("runtime.device: cuda: "), lines)

    def test_ranks_stay_where_slurm_binds_them(self):
        if os.cpu_count() < 2:
            self.skipTest("one core")
        train = ["--mpi=pmi2", "-N", "1", "-n", "2", str(STARPIPE), "train", "experiments/mlp.yaml", "--set",
                 "training.steps=2", "--report", "r.json"]
        for bind, together in ("cores", 0), ("none", os.cpu_count()):
            result = self.run_command("srun", f"--cpu-bind={bind}", *train)
            self.assertEqual(result.returncode, 0, result.stderr)
            first, second = json.loads((self.folder / "r.json").read_text())["ranks"]
            self.assertEqual(first["machine"], second["machine"])
            if bind == "cores":
                self.assertNotEqual(first["binding"], second["binding"])
                self.assertEqual((first["cores"], second["cores"]), (1, 1))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
