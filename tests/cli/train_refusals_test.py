# SPDX-License-Identifier: Apache-2.0
"""`starpipe train` refuses bad input, and says what it cannot have, on one and on two ranks.

Usage: train_refusals_test.py BINARY LAUNCHER..., the launcher being what starts two ranks.
"""

import array
import itertools
import json
import math
import os
import pathlib
import shlex
import subprocess
import sys
import unittest
import unittest.mock

from support import TrainTest, mlp_config


class TrainRefusals(TrainTest):
    def test_contradictions(self):
        """Nothing that was asked for is ignored: a policy on the command line, a section without keys."""
        self.refused_by_all(["mlp.yaml", "--set", "runtime.policy=prio"], "STARPU_SCHED: lws", "runtime.policy=prio",
                            environment={"STARPU_SCHED": "lws"})
        for command in ("simulate", "verify", "info", "profile"):
            self.refused([command, "mlp.yaml", "--set", "runtime.policy=prio"],
                         "STARPU_SCHED: lws contradicts --set runtime.policy=prio", environment={"STARPU_SCHED": "lws"})
        for value in ("", "{}"):
            self.refused_by_all(["mlp.yaml", "--set", f"runtime.emulate={value}"], "--set runtime.emulate")
        self.refused_by_all(["mlp.yaml"], "STARPU_MPI_DRIVER_CALL_FREQUENCY",
                            environment={"STARPU_MPI_DRIVER_CALL_FREQUENCY": "1"})
        os.symlink("a.json", self.path("b.json"))  # to a file that does not exist yet
        self.refused_by_all(["mlp.yaml", "--report", "a.json", "--trace", "b.json"], "--trace", "b.json",
                            files=("b.json", "gpt.yaml", "mlp.yaml", "text"))

    def test_instructions_of_products(self):
        """The key, the environment and the processor. OpenBLAS has no limit of instructions."""
        avx2, avx512 = (["mlp.yaml", "--set", f"runtime.instructions={word}"] for word in ("avx2", "avx512"))
        flags = pathlib.Path("/proc/cpuinfo").read_text()
        library = self.report_of()["versions"]["products"]
        os.remove(self.path("r.json"))
        if not library.startswith("oneDNN"):
            self.refused_by_all(avx2, "runtime.instructions: avx2", "OpenBLAS")
            return
        self.refused_by_all(avx2, "ONEDNN_MAX_CPU_ISA: contradicts runtime.instructions: avx2",
                            environment={"ONEDNN_MAX_CPU_ISA": "SSE41"})
        if "avx512f" not in flags:
            self.refused_by_all(avx512, "runtime.instructions: avx512: the processor")
        if "avx2" in flags:
            [rank] = self.report_of("--set", "runtime.instructions=avx2")["ranks"]
            self.assertRegex(rank["products"], "^oneDNN .*, AVX2$")
        [rank] = self.report_of("--set", "runtime.emulate={F: 1ms, B: 1ms, W: 1ms}")["ranks"]
        self.assertIsNone(rank["products"])

    def test_metrics_that_cannot_be_written(self):
        """Training continues, all other results are there, and the status tells."""
        for launcher in ([], self.launcher):
            result = self.run_command("train", "mlp.yaml", "--metrics", "/dev/full", "--report", "r.json", "--save-weights",
                                      "w.safetensors", launcher=launcher)
            lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
            problem = "starpipe: metrics: cannot write /dev/full: No space left on device"
            self.assertEqual((result.returncode, lines), (1, [f"{problem}; training continues, and each step tries again",
                                                              f"{problem}; its last lines are lost"]))
            report = json.loads(self.read("r.json"))
            self.assertEqual(len(report["losses"]), 2)
            for name in ("r.json", "w.safetensors"):
                os.remove(self.path(name))

    def test_what_fails_after_the_last_step(self):
        """The evaluation overflows: weights and report of the steps are there all the same."""
        for launcher in ([], self.launcher):
            result = self.run_command("train", "gpt.yaml", "--set", "training.steps=1", "--set", "data.validation=text", "--set",
                                      "training.optimizer={kind: sgd, learning_rate: 1e37}", "--report", "r.json",
                                      "--save-weights", "w.safetensors", launcher=launcher)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("the evaluation after step 1, micro-batch 0: the loss is infinity or NaN", result.stderr)
            self.assertEqual(len(json.loads(self.read("r.json"))["losses"]), 1)
            for name in ("r.json", "w.safetensors"):
                os.remove(self.path(name))

    def test_no_memory(self):
        """The run ends, and the line says why: where StarPU's data of a rank need more than it may have."""
        if os.environ.get("STARPIPE_SANITIZE"):
            self.skipTest("sanitizers take more addresses than the limit")
        self.write("large.yaml", mlp_config().replace("hidden: 8", "hidden: 4096").replace(
            "microbatch_size: 2", "microbatch_size: 20000"))
        limited = ["bash", "-c", 'ulimit -v 4000000; exec "$0" "$@"']
        for launcher in ([], self.launcher):
            result = self.run_command("train", "large.yaml", launcher=[*launcher, *limited])
            self.assertNotEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr, r"starpipe: rank \d: out of memory: \d+\.\d [MG]iB for data of a task; the process may have "
                                            r"3\.8 GiB \(ulimit -v\)\n")
            self.assertIn(result.stderr.count("out of memory"), range(1, 3), result.stderr)  # both may run out at the same time

    def test_bad_schedule_files(self):
        files = ("bad.csv", "bad.json", "gpt.yaml", "mlp.yaml", "text")
        good = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"

        def refused(text, *culprits, name="bad.csv", overrides=()):
            self.write("bad.csv", "")
            self.write("bad.json", "")
            self.write(name, text)
            sets = [word for o in (f"schedule={{file: {name}}}", *overrides) for word in ("--set", o)]
            self.refused_by_all(["mlp.yaml", *sets, "--report", "r.json"], *culprits, files=files)

        two = ("training.microbatches=2",)
        refused("0F0,0F1,0B1,0B0\n1F0,1B0,1F1,1B1\n1F9", "bad.csv: row 3, cell 1", overrides=two)
        refused("0F0,0B0\n1B0,1F0\n", "bad.csv: row 2, cell 1", "BW(1,0) can never start")
        refused("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "bad.csv: row 1, cell 3", "BW(0,0)")
        refused("nonsense", "bad.csv: row 1, cell 1")
        refused("{", "bad.json", name="bad.json")
        refused(good, "training.microbatches: 4, but bad.csv has 2")
        refused(good, "schedule.workers: 3, but bad.csv has 2", overrides=(*two, "schedule.workers=3"))
        refused(good, "schedule.stages: 3, but bad.csv has 2", overrides=("schedule.workers=2", *two, "schedule.stages=3"))
        refused(good, "bad.csv: the model cannot be cut into its 2 stages", "branches", overrides=("schedule.workers=2", *two, "model.branches=2"))
        refused(good, "worker 0", "limit of 1", overrides=(
            "schedule.workers=2", *two, "schedule.memory_limit=1", "schedule.discipline=ordered"))
        self.refused_by_all(["mlp.yaml", "--set", "schedule.file=missing.csv"], "missing.csv", files=files)

    def test_starpus_limits_of_submitted_tasks(self):
        """Safe where each worker's order is fixed; refused where waiting for room could deadlock."""
        limits = {"STARPU_LIMIT_MAX_SUBMITTED_TASKS": "4", "STARPU_LIMIT_MIN_SUBMITTED_TASKS": "2"}
        for launcher in ([], self.launcher):
            result = self.run_command("train", "mlp.yaml", environment=limits, launcher=launcher)
            self.assertEqual(result.returncode, 0, result.stderr)
        for name, value in limits.items():
            for words in (["runtime.emulate={F: 2ms, B: 3ms, W: 1ms, comm: 1ms}"],
                          ["schedule.dynamic=true", "schedule.discipline=greedy"]):
                sets = [word for setting in words for word in ("--set", setting)]
                self.refused_by_all(["mlp.yaml", *sets], name, "unset it", environment={name: value})

    def test_bad_configurations(self):
        self.refused_by_all(["missing.yaml"], "missing.yaml", "No such file")
        self.refused_by_all(["mlp.yaml", "--frobnicate"], "--frobnicate")
        self.refused_by_all(["mlp.yaml", "--set", "training.stops=1"], "training.stops", "training.steps")
        self.refused_by_all(["mlp.yaml", "--set", "schedule.memory_limit=0"], "schedule.memory_limit", "0")
        self.refused_by_all(["mlp.yaml", "--report", "f", "--trace", "./f"], "--trace", "./f")

    def test_experiments_that_cannot_be(self):
        for override, *names in (("schedule.name=2f2b", "'2f2b'"),
                                 ("runtime.policy=nonsense", "nonsense"),
                                 ("schedule.placement=[0, 5]", "stage 1", "worker 5"),
                                 ("schedule.groups=3", "schedule.groups")):
            self.refused_by_all(["mlp.yaml", "--report", "r.json", "--set", override], *names)
        self.refused_by_all(["mlp.yaml", "--set", "schedule={name: lpp, workers: 4, groups: 3, stages: 2}"], "lpp",
                            "4 workers", "3")
        self.refused_by_all(["mlp.yaml", "--set", "schedule={name: ddp, workers: 640, stages: 2}"], "640")

    def test_gpus_where_there_are_none(self):
        self.refused_by_all(["mlp.yaml", "--set", "runtime.device=cuda"], "runtime.device: cuda",
                            environment={"CUDA_VISIBLE_DEVICES": ""})

    def test_plugins_that_are_none(self):
        self.refused_by_all(["mlp.yaml", "--plugin", "text"], "text", "not a plug-in")
        self.refused_by_all(["mlp.yaml", "--set", "schedule.plugin=[missing.so]"], "missing.so", "No such file")

    def test_bad_data(self):
        self.refused_by_all(["gpt.yaml", "--report", "r.json", "--set", "data.path=missing"], "missing")
        self.refused_by_all(["gpt.yaml", "--report", "r.json", "--set", "data.path=/dev/null"], "/dev/null")
        self.refused_by_all(["gpt.yaml", "--report", "r.json", "--set", "model.init=missing"], "missing")
        self.refused_by_all(["gpt.yaml", "--report", "r.json", "--set", "model.init=text"], "text")

    def test_limits_on_files_and_stacks(self):
        """MPI could not make its files, and would print lines of its own; StarPU would overflow its stack."""
        for limit, message in (("-f 1", "-f: a file may have at most 1024 B, but MPI needs files of up to 8.0 MiB in shared memory"),
                               ("-n 32", "-n: a process may open at most 32 files, but MPI needs 64"),
                               ("-s 256", "-s: a stack may have at most 256.0 KiB, but the threads of StarPU and MPI need 512.0 KiB")):
            for launcher in [], self.launcher:
                with self.subTest(limit=limit, ranks=2 if launcher else 1):
                    command = shlex.join([self.binary, "train", "mlp.yaml"])
                    result = subprocess.run([*launcher, "bash", "-c", f"ulimit {limit}; exec {command}"], cwd=self.folder,
                                            text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=100, check=False)
                    self.assertEqual(result.returncode, 2, result.stderr)
                    self.assertEqual(result.stderr, f"starpipe: ulimit {message}\n")

    def test_limits_on_addresses(self):
        """From the lowest limit under which the libraries load: a line about memory, or a run that ends well."""
        if os.environ.get("STARPIPE_SANITIZE"):
            self.skipTest("sanitizers take more addresses")

        def run(kibibytes, launcher, *arguments):
            return self.run_command(*arguments, launcher=[*launcher, "bash", "-c", f'ulimit -v {kibibytes}; exec "$0" "$@"'])

        step = 32 << 10
        for launcher in [], self.launcher:
            limit, said = step, 0
            while run(limit, [], "--version").returncode != 0:
                limit += step
            while (result := run(limit, launcher, "train", "mlp.yaml")).returncode != 0:
                self.assertRegex(result.stderr, r"(?m)^starpipe: .*memory.*\n\Z")
                limit, said = limit + step, said + 1
            self.assertGreater(said, 2)

    def test_limits_on_threads(self):
        """MPI and StarPU would stop at assertions. Each limit applies to the threads of one user, who has no other process."""
        user = ["setpriv", "--reuid", "65530", "--clear-groups"]
        if os.geteuid() != 0 or subprocess.run([*user, self.binary, "--version"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no other user can run it here")
        os.chmod(self.folder, 0o755)
        for limit, threads in ((3, 3), (5, 4)):  # of MPI, and of StarPU
            result = self.run_command("train", "mlp.yaml", launcher=[*user, "bash", "-c", f'ulimit -u {limit}; exec "$0" "$@"'],
                                      environment={"HOME": "/nonexistent", "TMPDIR": "/tmp"})
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertRegex(result.stderr, rf"starpipe: ulimit -u: the system starts only \d of {threads} threads; the user or the "
                                            r"container \(pids\.max\) may have no more\n\Z")

    def test_standard_error_that_cannot_be_written(self):
        """The run ends, and its result is printed: on a full disk, where standard error is closed, and where it is a pipe
        whose reader has ended."""
        for error, launcher in itertools.product((">/dev/full", ">&-", "> >(exec true)"), ([], self.launcher)):
            rank = ["bash", "-c", f"exec {shlex.quote(self.binary)} train mlp.yaml 2{error}"]
            with self.subTest(rank=rank, ranks=2 if launcher else 1):
                result = subprocess.run([*launcher, *rank], cwd=self.folder, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, text=True, timeout=60, check=False)
                self.assertEqual(result.returncode, 0)
                self.assertIn("makespan", result.stdout)

    def test_a_result_that_cannot_be_written_costs_no_other(self):
        """A full disk, and a pipe whose reader has ended."""
        everything = ("--report", "r.json", "--save-weights", "w.safetensors", "--timeline", "t.svg", "--trace", "t.json")
        names = everything[1::2]
        for full in (*names, None):
            with self.subTest(full=full), open("/dev/full" if full is None else os.devnull, "w", encoding="utf-8") as output:
                result = self.run_command("train", "mlp.yaml", *("/dev/full" if word == full else word for word in everything),
                                          stdout=output)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn("No space left on device", result.stderr.splitlines()[-1])
                for name in names:
                    self.assertEqual(os.path.exists(self.path(name)), name != full)
                    pathlib.Path(self.path(name)).unlink(missing_ok=True)

    def test_variables_that_starpu_cannot_read(self):
        """StarPU would abort, or crash."""
        for name, value in (("STARPU_NCPUS", "abc"), ("STARPU_NCUDA", "-1"), ("STARPU_LIMIT_MAX_SUBMITTED_TASKS", "abc"),
                            ("STARPU_WORKERS_CPUID", "-1"), ("STARPU_MAIN_THREAD_BIND", "1"), ("STARPU_NCPU", "99999999999"),
                            ("STARPU_DISABLE_KERNELS", "1"), ("STARPU_MPI_FAKE_SIZE", "2"), ("STARPU_MPI_HOSTNAMES", "a"),
                            ("STARPU_HOSTNAME", "a/b"), ("STARPU_MPI_NREADY_PROCESS", "0"), ("STARPU_NWORKER_PER_CUDA", "0"),
                            ("STARPU_HWLOC_INPUT", "host.xml"),
                            ("STARPU_RESERVE_NCPU", "1"), ("STARPU_LIMIT_CPU_MEM", "100000"), ("STARPU_LIMIT_CPU_NUMA_0_MEM", "1"), ("STARPU_MAIN_THREAD_CPUID", "9999"),
                            ("STARPU_MPI_THREAD_COREID", "9999"), ("STARPU_WORKERS_CPUID", "0 9999")):
            self.refused_by_all(["mlp.yaml"], f"{name}: expected ", f"got '{value}'", environment={name: value})
        result = self.run_command("train", "mlp.yaml", environment={"STARPU_NCPU": "64"})
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_folders_that_starpu_cannot_make(self):
        """StarPU would abort, with a list of addresses. The run has a folder of its own and says so in one line."""
        self.write("file", "")
        os.mkdir(self.path("tmp"))
        own = self.path(f"tmp/starpipe-{os.geteuid()}")
        free = {key: value for key, value in os.environ.items()
                if key not in ("STARPU_PERF_MODEL_DIR", "XDG_CACHE_HOME", "STARPU_HOME")}
        for name, launcher in (("STARPU_PERF_MODEL_DIR", []), ("XDG_CACHE_HOME", self.launcher), ("STARPU_HOME", []), ("HOME", [])):
            with self.subTest(name=name), unittest.mock.patch.dict(os.environ, free, clear=True):
                result = self.run_command("train", "mlp.yaml", launcher=launcher,
                                          environment={name: self.path("file"), "TMPDIR": self.path("tmp")})
                self.assertEqual(result.returncode, 0, result.stderr)
                lines = [line for line in result.stderr.splitlines() if "StarPU cannot write" in line]
                self.assertEqual(len(lines), 1, result.stderr)
                self.assertIn(f"{name}: StarPU cannot write to its folder {self.path('file')}", lines[0])
                self.assertIn(f"are in {own} now", lines[0])
                self.assertTrue(os.listdir(os.path.join(own, ".starpu/sampling/bus")))

    def test_weights_that_are_not_finite(self):
        result = self.run_command("train", "mlp.yaml", "--save-weights", "w.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("w.safetensors"), "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(array.array("f", [math.nan]).tobytes())
        self.refused_by_all(["mlp.yaml", "--set", "model.init=w.safetensors"], "w.safetensors: tensor ", "is NaN",
                            files=("gpt.yaml", "mlp.yaml", "text", "w.safetensors"))

    def test_memory_limit(self):
        self.refused_by_all(["gpt.yaml", "--report", "r.json", "--set", "runtime.memory_limit=64KiB"],
                            "runtime.memory_limit: under 1f1b, worker 1 needs ", "more than 64.0 KiB")
        self.refused(["compare", "mlp.yaml", "--set", "runtime.memory_limit=1KiB"], "runtime.memory_limit")
        result = self.run_command("train", "mlp.yaml", "--report", "r.json", "--set", "runtime.memory_limit=8GiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(self.read("r.json"))["config"]["runtime"]["memory_limit"], 2**33)

    def test_limits_that_a_policy_does_not_keep(self):
        for key, value in (("schedule.memory_limit", 1), ("runtime.memory_limit", "8GiB")):
            limit = ["mlp.yaml", "--set", f"{key}={value}"]
            for policy in ("lws", "on-worker"):
                self.refused(["train", *limit, "--set", f"runtime.policy={policy}"], key, "runtime.policy", policy)
                self.refused(["compare", *limit, "--policies", policy], key, f"--policies {policy}")
                self.refused_by_all(limit, "STARPU_SCHED", key, policy, environment={"STARPU_SCHED": policy})
            result = self.run_command("train", *limit, "--set", "runtime.policy=worker-order", "--report", "r.json")
            self.assertEqual(result.returncode, 0, result.stderr)
            report = json.loads(self.read("r.json"))
            self.assertEqual(report["peak_stashes"]["predicted"], report["peak_stashes"]["measured"])
            os.remove(self.path("r.json"))
            # Some of the policies keep it: the output names those that do not.
            text = self.ok("compare", *limit, "--policies", "starpipe,lws,on-worker", "--repetitions", 1, "-o", "c.json")
            self.assertIn(f"\n{key} is not kept by lws, on-worker\n", text)
            self.assertEqual(json.loads(self.read("c.json"))["not_kept"], {key: ["lws", "on-worker"]})
            os.remove(self.path("c.json"))

    def test_an_order_of_the_run_time(self):
        """`schedule.dynamic` takes away the order that worker-order runs, and the needs that are known before the run."""
        dynamic = ["mlp.yaml", "--set", "schedule.dynamic=true", "--set", "schedule.discipline=bounded", "--set",
                   "schedule.memory_limit=1"]
        self.refused(["train", *dynamic, "--set", "runtime.policy=worker-order"], "schedule.dynamic", "worker-order")
        for policies in (["--policies", "starpipe,worker-order"], []):  # worker-order is one of the usual ones
            self.refused(["compare", *dynamic, *policies], "schedule.dynamic", "worker-order; give --policies without it")
        self.refused_by_all(dynamic, "STARPU_SCHED", "schedule.dynamic", environment={"STARPU_SCHED": "worker-order"})
        self.refused(["train", *dynamic, "--set", "runtime.memory_limit=8GiB"], "runtime.memory_limit", "schedule.dynamic")

    def test_bad_outputs(self):
        for option in ("--report", "--trace", "--timeline", "--save-weights"):
            self.refused_by_all(["mlp.yaml", option, "nowhere/f"], option, "nowhere/f")
            self.refused_by_all(["mlp.yaml", option, "."], option)
            # A full disk is found when the file is written: a failure, and not wrong use.
            for launcher in [], self.launcher:
                result = self.run_command("train", "mlp.yaml", option, "/dev/full", launcher=launcher)
                self.assertEqual(result.returncode, 1, result.stderr)
                lines = [line for line in result.stderr.splitlines() if not line.startswith("step ")]
                self.assertEqual(len(lines), 1, "MPI adds lines: " + result.stderr)
                self.assertRegex(lines[0], "^starpipe: rank 0: .*: cannot write /dev/full: No space left on device$")
        if os.geteuid() != 0:  # root may write anywhere
            os.mkdir(self.path("closed"), mode=0o500)
            self.refused_by_all(["mlp.yaml", "--report", "closed/f"], "--report", "closed/f",
                                files=("closed", "gpt.yaml", "mlp.yaml", "text"))


if __name__ == "__main__":
    TrainTest.binary = os.path.abspath(sys.argv[1])
    TrainTest.launcher = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
