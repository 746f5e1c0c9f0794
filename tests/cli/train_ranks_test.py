# SPDX-License-Identifier: Apache-2.0
"""`starpipe train` on several ranks: how they are started, joined and bound, and what they must have in common.

Usage: train_ranks_test.py BINARY LAUNCHER..., the launcher being what starts two ranks.
"""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import unittest
import unittest.mock

from support import TrainTest, mlp_config


class TrainRanks(TrainTest):
    def test_two_ranks(self):
        result = self.run_command("train", "mlp.yaml", "--report", "r.json", launcher=self.launcher)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(json.loads(self.read("r.json"))["losses"]), 2)

    def test_ranks_that_were_asked_for_different_things(self):
        """Each rank may have a command line of its own. Weights that no configuration stands for were the result."""
        same = ["train", "mlp.yaml"]
        self.write("other.yaml", mlp_config().replace("steps: 2", "steps: 3"))
        for first, second, message in (
                (same, [*same, "--set", "training.optimizer.learning_rate=0.5"],
                 "training.optimizer.learning_rate: rank 0 has 0.001, rank 1 has 0.5;"),
                (same, ["train", "other.yaml"], "training.steps: rank 0 has 2, rank 1 has 3;"),
                (same, [*same, "--set", "checkpoint.folder=c"], "checkpoint.folder: rank 0 has no value, rank 1 has c;"),
                ([*same, "--save-weights", "w.safetensors"], same,
                 "--save-weights: rank 0 has w.safetensors, rank 1 has no value;"),
                (same, [*same, "--metrics", "m.jsonl"], "--metrics: rank 0 has no value, rank 1 has m.jsonl;"),
                (same, ["compare", "mlp.yaml"], "command: rank 0 has train, rank 1 has compare;"),
                (["compare", "mlp.yaml", "--policies", "starpipe", "--repetitions", "1"],
                 ["compare", "mlp.yaml", "--policies", "starpipe", "--repetitions", "2"],
                 "--repetitions: rank 0 has 1, rank 1 has 2;")):
            with self.subTest(first=first, second=second):
                commands = [shlex.join([self.binary, *arguments]) for arguments in (first, second)]
                script = f'if [ "$PMI_RANK" = 0 ]; then exec {commands[0]}; else exec {commands[1]}; fi'
                result = subprocess.run([*self.launcher, "sh", "-c", script], cwd=self.folder, stdin=subprocess.DEVNULL,
                                        capture_output=True, text=True, timeout=60, check=False)
                lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
                self.assertEqual((result.returncode, lines),
                                 (2, [f"starpipe: {message} all ranks need the same configuration"]), result.stderr)
                self.assertEqual(sorted(os.listdir(self.folder)), ["gpt.yaml", "mlp.yaml", "other.yaml", "text"])

    def test_ranks_with_different_environments(self):
        """StarPU-MPI waited indefinitely, or stopped at an assertion."""
        def run(variable):
            script = f'if [ "$PMI_RANK" = 1 ]; then export {variable}; fi; exec "$0" "$@"'
            return self.run_command("train", "mlp.yaml", launcher=[*self.launcher, "sh", "-c", script])

        for variable in ("STARPU_SCHED=eager", "STARPU_SCHED_LIB=x.so", "STARPU_MPI_CACHE=0", "STARPU_MPI_STATS=0",
                         "STARPU_COMM_STATS=1", "STARPU_FXT_TRACE=1", "STARPU_GENERATE_TRACE=1", "STARPU_DISPLAY_BINDINGS=1",
                         "STARPU_MPI_TRACE_SYNC_CLOCKS=0"):
            with self.subTest(variable):
                name, value = variable.split("=")
                first = "1" if name == "STARPU_MPI_STATS" else "no value"
                result = run(variable)
                lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
                self.assertEqual((result.returncode, lines),
                                 (2, [f"starpipe: {name}: rank 0 has {first}, rank 1 has {value}; "
                                      "all ranks need the same configuration"]), result.stderr)
        # Rank 1 would use another algorithm of MPICH, also for the exchange by which ranks agree.
        result = run("MPIR_CVAR_IALLREDUCE_INTRA_ALGORITHM=sched_naive")
        self.assertEqual((result.returncode, result.stderr.count("starpipe: rank 1 has other variables MPIR_CVAR_*")), (2, 1), result.stderr)
        # Rank 1 alone prints StarPU-MPI's statistics.
        result = run("STARPU_MPI_STATS=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("nb_sends"), 1, result.stderr)

    def test_processes_that_mpi_does_not_join(self):
        """Started by srun without PMI, or by another MPI's launcher: each was a whole run, and wrote the same files."""
        train = ["train", "mlp.yaml", "--report", "r.json"]
        for name, rank in ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"), ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK"):
            self.refused(train, f"starpipe: {name}: a launcher has started 2 processes, but MPI does not join them",
                         environment={name: "2", rank: "0"})
            other = self.run_command(*train, environment={name: "2", rank: "1"})  # rank 0 prints the line
            self.assertEqual((other.returncode, other.stdout, other.stderr), (2, "", ""))
            self.assertFalse(os.path.exists(os.path.join(self.folder, "r.json")))
            self.assertEqual(self.run_command(*train, environment={name: "1", rank: "0"}).returncode, 0)
            # Ranks of a launcher within the step.
            self.assertEqual(self.run_command(*train, launcher=self.launcher, environment={name: "8"}).returncode, 0)
            os.remove(os.path.join(self.folder, "r.json"))
        for name in "ROLE_WORLD_SIZE", "WORLD_SIZE", "HOROVOD_SIZE":  # torchrun, DeepSpeed, Horovod
            self.refused(train, f"starpipe: {name}: a launcher has started 3 processes", environment={name: "3", "LOCAL_RANK": "0"})
        self.assertEqual(self.run_command("train", "mlp.yaml", environment={"WORLD_SIZE": "3"}).returncode, 0)  # of a shell
        # The script of a job, which has one process.
        script = self.run_command("train", "mlp.yaml", environment={"SLURM_NTASKS": "2", "SLURM_NPROCS": "2", "SLURM_PROCID": "0"})
        self.assertEqual(script.returncode, 0, script.stderr)

    def test_ranks_in_user_namespaces(self):
        own = [*self.launcher, "unshare", "-r"]
        if subprocess.run(["unshare", "-r", "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no user namespaces")
        warning = "starpipe: ranks of a host are in user namespaces (containers) of their own"
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("UCX_TLS", None)
            self.assertEqual(self.run_command("train", "mlp.yaml", launcher=own).stderr.count(warning), 1)
            # One namespace with the launcher in it.
            together = self.run_command("train", "mlp.yaml", launcher=["unshare", "-r", *self.launcher])
        self.assertNotIn(warning, together.stderr)
        result = self.run_command("train", "mlp.yaml", launcher=own, environment={"UCX_TLS": "tcp,self"})
        self.assertEqual((result.returncode, result.stderr.count(warning)), (0, 0), result.stderr)

    def test_ranks_with_shared_memory_of_their_own(self):
        """As in a container of Docker for each rank: MPICH ends at its start, with messages that name no remedy."""
        own = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"']
        if subprocess.run([*own, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no mounts here")
        line = "starpipe: ranks of a host have a /dev/shm of their own each (containers)"
        self.assertEqual(self.run_command("train", "mlp.yaml", launcher=[*self.launcher, *own]).stderr.count(line), 1)
        for launcher, environment in ([*self.launcher, *own], {"MPIR_CVAR_NOLOCAL": "1"}), ([*own, *self.launcher], {}):
            result = self.run_command("train", "mlp.yaml", launcher=launcher, environment=environment)
            self.assertEqual((result.returncode, result.stderr.count(line)), (0, 0), result.stderr)

    def test_a_policy_for_one_rank(self):
        self.refused(["train", "mlp.yaml", "--set", "runtime.policy=graph_test"], "runtime.policy: graph_test works with one rank only",
                     launcher=self.launcher)
        self.assertEqual(self.run_command("train", "mlp.yaml", "--set", "runtime.policy=graph_test").returncode, 0)

    def test_where_ranks_run(self):
        cores = sorted(os.sched_getaffinity(0))[:2]
        if len(cores) < 2:
            self.skipTest("one core")
        # Each rank is bound to a core, as Slurm does it, and stays there.
        bind = f'exec taskset -c $((PMI_RANK == 0 ? {cores[0]} : {cores[1]})) "$0" "$@"'
        report = self.report_of(launcher=[*self.launcher, "sh", "-c", bind])
        self.assertEqual([(r["binding"], r["cores"], r["workers"]) for r in report["ranks"]],
                         [(str(cores[0]), 1, 1), (str(cores[1]), 1, 1)])
        self.assertEqual(report["machine"]["ranks"], 2)
        # Slurm's names of the nodes.
        report = self.report_of(launcher=[*self.launcher, "sh", "-c", 'SLURMD_NODENAME=n$PMI_RANK exec "$0" "$@"'])
        self.assertEqual([r["machine"] for r in report["ranks"]], ["n0", "n1"])

    def test_workers_are_bound_where_there_is_a_core_for_each(self):
        one = ["--set", "schedule={name: gpipe, workers: 1}"]
        self.assertFalse(self.report_of(*one, environment={"STARPU_WORKERS_NOBIND": "1"})["ranks"][0]["workers_bound"])
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("STARPU_WORKERS_NOBIND", None)
            own = sorted(os.sched_getaffinity(0))
            for workers, cores in (1, 1), (1, 2), (2, 1), (2, 2):
                if len(own) < cores:
                    continue
                rank, = self.report_of("--set", f"schedule={{name: gpipe, workers: {workers}}}",
                                       launcher=["taskset", "-c", ",".join(map(str, own[:cores]))])["ranks"]
                self.assertEqual((rank["cores"], rank["workers_bound"]), (cores, workers <= cores))
            # Ranks divide the cores, with and without a core for each MPI thread.
            if len(own) > 1:
                report = self.report_of(launcher=["taskset", "-c", f"{own[0]},{own[1]}", *self.launcher])
                self.assertEqual([(r["binding"], r["bound_by"], r["workers_bound"]) for r in report["ranks"]],
                                 [(str(own[0]), "starpipe", True), (str(own[1]), "starpipe", True)])
            # Two ranks on a host of eight cores, which hwloc reads from a file.
            report = self.report_of(launcher=self.launcher, environment={"HWLOC_SYNTHETIC": "package:2 core:4 pu:1"})
            self.assertEqual([(r["binding"], r["cores"], r["workers_bound"]) for r in report["ranks"]],
                             [("0-3", 4, True), ("4-7", 4, True)])

    def test_info_tells_where_ranks_would_run(self):
        """Under the launcher as train does, and without it for as many ranks."""
        keys = ("binding", "bound_by", "cores", "workers", "mpi_thread", "logical_workers")
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("STARPU_WORKERS_NOBIND", None)
            eight = {"HWLOC_SYNTHETIC": "package:2 core:4 pu:1"}
            three = ("--set", "schedule={name: gpipe, workers: 3, stages: 3}")
            ranks = [[rank[key] for key in keys] for rank in self.report_of(*three, launcher=self.launcher, environment=eight)["ranks"]]
            self.assertEqual([rank[:5] for rank in ranks], [["0-2", "starpipe", 3, 1, "on PUs 1-2"], ["3-7", "starpipe", 5, 2, "on PUs 5-7"]])
            for more, launcher in ((), self.launcher), (("--ranks", 2), []):
                result = self.run_command("info", "mlp.yaml", *three, *more, "--json", launcher=launcher, environment=eight)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual([[rank[key] for key in keys] for rank in json.loads(result.stdout)["ranks"]], ranks)
                text = self.run_command("info", "mlp.yaml", *three, *more, launcher=launcher, environment=eight).stdout
                for number, rank in enumerate(ranks):
                    row = rf"(?m)^ +{number}  \S+ +{rank[0]} +{rank[2]}  starpipe  {rank[3]}, each bound to a core +{rank[4]}$"
                    self.assertEqual(len(re.findall(row, text)), 1, text)
            # Without a configuration each rank tells its own.
            text = self.run_command("info", launcher=self.launcher, environment=eight).stdout
            self.assertEqual(sorted(re.findall(r"(?m)^rank +(\d of 2; on PUs [-\d]+) in a run", text)),
                             ["0 of 2; on PUs 0-3", "1 of 2; on PUs 4-7"])
            self.refused(["info", "mlp.yaml", "--set", "schedule.workers=1"], "2 ranks for 1 workers", launcher=self.launcher)

    def test_cores_that_slow_a_run(self):
        """One line says so, and what to do."""
        one_step = ("train", "mlp.yaml", "--set", "training.steps=1", "--set")
        three = "schedule={name: gpipe, workers: 3, stages: 3}"
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("STARPU_WORKERS_NOBIND", None)
            for cores, more, line in ((3, {}, "rank 0 has a worker on each of its cores, so MPI's thread"),
                                      (2, {}, "3 workers run on 2 cores of "),
                                      (5, {"STARPU_MPI_THREAD_CPUID": "0"}, "STARPU_MPI_THREAD_CPUID binds MPI's thread of rank 0"),
                                      (5, {}, None)):
                host = {"HWLOC_SYNTHETIC": f"package:1 core:{cores} pu:1", **more}
                result = self.run_command(*one_step, three, launcher=self.launcher, environment=host)
                self.assertEqual(result.returncode, 0, result.stderr)
                advice = [found for found in re.findall(r"(?m)^starpipe: (.*)$", result.stderr)
                          if not found.startswith("another run")]
                self.assertEqual(len(advice), 0 if line is None else 1, result.stderr)
                self.assertTrue(line is None or advice[0].startswith(line), result.stderr)

    def test_a_core_of_another_run(self):
        """Workers are not bound to a core that another run has claimed, and one line says so."""
        with unittest.mock.patch.dict(os.environ), contextlib.ExitStack() as claims:
            os.environ.pop("STARPU_WORKERS_NOBIND", None)
            for core in os.sched_getaffinity(0):
                claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                with contextlib.suppress(OSError):  # another run has claimed it indeed
                    claim.bind(f"\0starpipe.core.{core}")
            result = self.run_command("train", "mlp.yaml", "--report", "r.json", "--set",
                                      "schedule={name: gpipe, workers: 1}")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr, "(?m)^starpipe: another run of starpipe has bound a worker to PU ")
            self.assertFalse(json.loads(self.read("r.json"))["ranks"][0]["workers_bound"])

    def test_mapping(self):
        """Four workers in two distant pairs, on two ranks: the losses are the same, and each worker is on its device."""
        self.write("towers.yaml", "model: {kind: mlp, layers: 3, hidden: 64, inputs: 4, outputs: 2, branches: 2}\n"
                   "training: {steps: 2, microbatches: 4, microbatch_size: 8}\n"
                   "schedule: {name: 1f1b, workers: 5, stages: 5}\nruntime: {workers_per_core: 8}\n")
        reports = []
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("STARPU_WORKERS_NOBIND", None)
            for mapping in ("linear", "auto"):
                result = self.run_command("train", "towers.yaml", "--set", f"runtime.mapping={mapping}", "--report", "r.json",
                                          launcher=self.launcher, environment={"HWLOC_SYNTHETIC": "package:2 [numa] core:6 pu:1"})
                self.assertEqual(result.returncode, 0, result.stderr)
                reports.append(json.loads(self.read("r.json")))
        linear, auto = reports
        self.assertEqual(linear["losses"], auto["losses"])
        self.assertEqual((linear["config"]["runtime"]["mapping"], auto["config"]["runtime"]["mapping"]), ("linear", "auto"))
        self.assertEqual([r["logical_workers"] for r in linear["ranks"]], [[0, 1], [2, 3, 4]])
        self.assertEqual(sorted(w for r in auto["ranks"] for w in r["logical_workers"]), list(range(5)))
        # One branch (workers 0 and 1, or 2 and 3) shares a package with the join; the other branch has the other package.
        self.assertIn(sorted(auto["ranks"][0]["logical_workers"]), ([0, 1], [2, 3]))
        self.assertLessEqual(auto["bytes_between_ranks"]["measured"], linear["bytes_between_ranks"]["measured"])
        for report in reports:
            for figures in (report["peak_stash_bytes"], report["bytes_between_ranks"]):
                self.assertEqual(figures["predicted"], figures["measured"])
            for rank in report["ranks"]:
                self.assertEqual(len(set(rank["devices"])), rank["workers"])

    def test_the_table_is_last(self):
        """A launcher forwards standard error and standard output apart."""
        result = self.run_command("train", "mlp.yaml", launcher=self.launcher)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^step 2/2 ")
        self.assertNotIn("step 2/2", result.stderr)
        alone = self.run_command("train", "mlp.yaml")
        self.assertIn("step 2/2 ", alone.stderr)
        self.assertNotIn("step 2/2", alone.stdout)

    def test_a_rank_that_cannot_start(self):
        """Rank 0 waited for rank 1, which was silent, for five minutes."""
        script = 'if [ "$PMI_RANK" = 1 ]; then {}; fi; exec "$0" "$@"'
        for on_rank_1, status, line in (("ulimit -n 32", 2, "ulimit -n: a process may open at most 32 files, but MPI needs 64"),
                                        ('exec "$0" "$@" --steps', 2, "The following argument was not expected: --steps "
                                         "(see starpipe train --help)")):
            with self.subTest(on_rank_1):
                result = self.run_command("train", "mlp.yaml", launcher=[*self.launcher, "bash", "-c", script.format(on_rank_1)])
                self.assertEqual((result.returncode, result.stderr), (status, f"starpipe: rank 1: {line}\n"))

    def test_variables_of_a_launcher_that_is_not_there(self):
        self.refused(["train", "mlp.yaml"], "PMI_FD: 77 is not an open file", environment={"PMI_FD": "77", "PMI_RANK": "0", "PMI_SIZE": "2"})


if __name__ == "__main__":
    TrainTest.binary = os.path.abspath(sys.argv[1])
    TrainTest.launcher = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
