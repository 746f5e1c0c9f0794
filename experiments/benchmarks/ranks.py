#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Throughput of several ranks on one host, relative to one process with as many workers.

    experiments/benchmarks/ranks.py [--starpipe build/bin/starpipe] [--pairs 7] [--steps 20] [--schedules 1f1b,zb-h1]

Trains the quickstart's model. One process and the ranks alternate, so that a disturbance of the machine meets both. Prints
medians over the pairs: tokens per second of both, their ratio, and how far each kind of run misses its own prediction
(measured over predicted makespan). Nothing else should run on the machine.

The one process is started without --launcher. Under a real Slurm with two virtual nodes that divide the machine's cores
(as root):

    tests/slurm/cluster.py --own-cores experiments/benchmarks/ranks.py \
        --launcher "srun --mpi=pmi2 --nodes=2 --overcommit --cpu-bind=cores -n"
"""
import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

LAYOUTS = [(2, 2), (4, 2), (4, 4)]  # workers, ranks


def train(arguments, schedule, workers, ranks):
    """Tokens per second and the makespan's relative error of one run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STARPU_")}
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        launcher = [*shlex.split(arguments.launcher), str(ranks)] if ranks > 1 else []
        run = subprocess.run([*launcher, arguments.starpipe, "train", arguments.config, "--report", report,
                              "--set", f"training.steps={arguments.steps}", "--set", f"schedule.name={schedule}",
                              "--set", f"schedule.workers={workers}", "--set", f"schedule.stages={workers}"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env={**environment, "OPENBLAS_NUM_THREADS": "1"})
        if run.returncode:
            sys.exit(f"{shlex.join(map(str, run.args))} ended with status {run.returncode}:\n{run.stderr}")
        result = json.loads(report.read_text())
    makespan = result["makespan"]
    return result["tokens_per_second"], makespan["measured"] / makespan["predicted"] - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--config", default="experiments/quickstart.yaml")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--schedules", default="1f1b,zb-h1", help="comma-separated")
    parser.add_argument("--launcher", default="mpiexec.mpich -n", help="starts as many ranks as the number behind it says")
    arguments = parser.parse_args()
    print(f"{'schedule':<10}{'workers':>8}{'ranks':>7}{'tokens/s':>11}{'one process':>13}{'ratio':>8}"
          f"{'error of prediction':>27}{'one process':>20}")
    for schedule in arguments.schedules.split(","):
        for workers, ranks in LAYOUTS:
            pairs = [(train(arguments, schedule, workers, ranks), train(arguments, schedule, workers, 1))
                     for _ in range(arguments.pairs)]
            tokens, alone = (statistics.median(pair[side][0] for pair in pairs) for side in (0, 1))
            ratio = statistics.median(several[0] / one[0] for several, one in pairs)
            errors = [sorted(pair[side][1] for pair in pairs) for side in (0, 1)]
            spread = [f"{100 * e[0]:+.0f} % .. {100 * e[-1]:+.0f} %" for e in errors]
            print(f"{schedule:<10}{workers:>8}{ranks:>7}{tokens:>11.0f}{alone:>13.0f}{ratio:>8.2f}{spread[0]:>27}"
                  f"{spread[1]:>20}", flush=True)


if __name__ == "__main__":
    main()
