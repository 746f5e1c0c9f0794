#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted and measured steps on hosts of this machine, with a real network between them (docs/networks.md).

    experiments/networks/networks.py [--hosts scripts/hosts] [--programs build/bin] [--cases emulated:4:200mbit,...]

A case is CONFIG:HOSTS:RATE or CONFIG:HOSTS:RATE:SLOW. CONFIG is `emulated`, `kernels` or `sums`, a file beside this script.
RATE is the rate of each host's port. With SLOW the port of the last host has this rate. Each case starts its hosts, writes
or measures their links, trains under each schedule, and prints a table with predicted and measured makespans. `emulated`
also runs the schedule that `starpipe search` finds for these links. `sums` has one replica on each host, and compares the
time from the last job to the summed gradient with MPI_Allreduce. A run that fails is a row with its message. Hosts need root
and Linux (scripts/hosts --help).
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
NAMED = "1f1b,gpipe,interleaved-1f1b,zb-h1,v-half,v-zb,looped-bfs,chimera,ddp,fsdp"
CASES = ("emulated:4:200mbit,emulated:2:200mbit,emulated:8:200mbit,emulated:4:100mbit,emulated:4:200mbit:100mbit,kernels:2:200mbit,"
         "sums:2:200mbit,sums:4:200mbit,sums:8:200mbit")  # fmt: skip
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
# TCP's payload in a frame of Ethernet: 1,448 of 1,514 bytes, as the ports count.
PAYLOAD = 1448 / 1514
# One activation and one gradient of emulated.yaml.
MESSAGE = "256KiB"
RUN_LIMIT = 180  # seconds


def progress(text):
    """One line that the next one replaces; nothing in a log."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def bandwidth(rate):
    """What messages see of a port's rate."""
    amount, unit = re.fullmatch(r"([0-9.]+)([kmg]bit)", rate).groups()
    return f"{float(amount) * UNITS[unit] / 8 * PAYLOAD / 1e6:.2f}MB/s"


class Failure(Exception):
    """A command that failed, with the last line of its message."""


class Case:
    """The hosts of a case. Commands run in `folder`."""

    def __init__(self, arguments, text, folder):
        self.name, hosts, self.rate, *slow = text.split(":")
        if len(slow) > 1 or self.name not in ("emulated", "kernels", "sums"):
            raise ValueError(text)
        self.hosts = int(hosts)
        self.slow = slow[0] if slow else None
        self.arguments, self.folder = arguments, pathlib.Path(folder)
        self.config = HERE / f"{self.name}.yaml"
        self.workers = 8 if self.name == "emulated" else self.hosts
        self.environment = dict(os.environ, STARPIPE_HOSTS_BIND="1" if self.name == "kernels" else "0")

    def call(self, *command, limit=RUN_LIMIT, **variables):
        """The standard output of a command. `variables`: of its environment."""
        try:
            done = subprocess.run([str(word) for word in command], cwd=self.folder, env={**self.environment, **variables},
                                  capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failure(f"not ready after {limit} s") from None
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.startswith("starpipe: ")] or done.stderr.splitlines()
            raise Failure(lines[-1] if lines else f"status {done.returncode}")
        return done.stdout

    def starpipe(self, *command, **more):
        return self.call(self.arguments.programs / "starpipe", *command, **more)

    def on_hosts(self, *command, program="starpipe", **more):
        return self.call(self.arguments.hosts, "mpiexec", "-n", self.hosts, self.arguments.programs / program, *command, **more)

    def up(self):
        self.call(self.arguments.hosts, "up", self.hosts, self.rate)
        if self.slow:
            self.call(self.arguments.hosts, "rate", self.hosts, self.slow)

    def down(self):
        subprocess.run([self.arguments.hosts, "down"], env=self.environment, capture_output=True, check=False, timeout=60)

    def write_links(self):
        """links.yaml for the runs, and workers.yaml for the search, which has workers and no ranks."""
        if self.arguments.links == "measured":
            self.on_hosts("info", "--links", "links.yaml")
        else:
            ports = f", ports: {{{self.hosts - 1}: {{bandwidth: {bandwidth(self.slow)}}}}}" if self.slow else ""
            (self.folder / "links.yaml").write_text("levels:\n  - {name: network, latency: 15us, "
                                                    f"bandwidth: {bandwidth(self.rate)}, sharing: fair{ports}}}\n")  # fmt: skip
        levels = (self.folder / "links.yaml").read_text()
        each = self.workers // self.hosts
        if each > 1 and "workers:" not in levels:
            host = f"  - {{name: host, workers: {each}, latency: 0us, bandwidth: 1000GB/s}}\n"
            levels = re.sub(r"(?m)^levels:\n", f"levels:\n{host}", levels)
        (self.folder / "workers.yaml").write_text(levels)

    def train(self, *settings):
        """The report of a training run."""
        emulated = [f"runtime.emulate.{name}={self.arguments.duration}" for name in "FBW"] if self.name == "emulated" else []
        words = [word for setting in (*settings, *emulated, "runtime.links=links.yaml") for word in ("--set", setting)]
        self.on_hosts("train", self.config, *words, "--report", "report.json")
        return json.loads((self.folder / "report.json").read_text())

    def run(self, setting):
        """The makespans, predicted and measured, of a training run in seconds."""
        makespan = self.train(setting)["makespan"]
        return makespan["predicted"], statistics.median(makespan["all_measured"])

    def search(self):
        durations = ",".join(f"{name}={self.arguments.duration}" for name in "FBW")
        self.starpipe("search", "--workers", self.workers, "--microbatches", 16, "--chunks", 1, "--durations", durations,
                      "--links", "workers.yaml", "--bytes", MESSAGE, "--budget", self.arguments.budget, "--quiet", "-o",
                      "searched.json", limit=RUN_LIMIT + 10 * self.arguments.budget)  # fmt: skip
        return self.run("schedule={file: searched.json}")


def table_of_sums(case):
    """Lines of Markdown: the sum of gradients beside MPI_Allreduce and the limit of the ports."""
    report = case.train(f"schedule.workers={case.hosts}", f"training.microbatches={2 * case.hosts}")
    parameters = report["parameters"]
    predicted, measured = (report["gradients_summed"][key] - report["makespan"][key] for key in ("predicted", "measured"))
    limit = 2 * (case.hosts - 1) / case.hosts * 4 * parameters / (float(bandwidth(case.rate)[:-4]) * 1e6)

    def allreduce(**variables):
        try:
            return f"{float(case.on_hosts(parameters, program='allreduce_benchmark', limit=60, **variables)) * 1e3:,.0f}"
        except Failure as problem:
            return str(problem)

    figures = " | ".join(f"{seconds * 1e3:,.0f}" for seconds in (limit, predicted, measured))
    # With MPICH's rendezvous over TCP the two directions of a pair take turns (docs/links.md), with `inf` they do not.
    return [f"sums.yaml, {case.hosts} hosts, ports of {case.rate}, {4 * parameters / 1e6:.1f} MB:", "",
            "| limit of the ports, ms | predicted | measured | measured / limit | MPI_Allreduce | with UCX_RNDV_THRESH=inf |",
            "|---|---|---|---|---|---|",
            f"| {figures} | {measured / limit:.2f} | {allreduce()} | {allreduce(UCX_RNDV_THRESH='inf')} |"]  # fmt: skip


def table(case):
    """Lines of Markdown."""
    if case.name == "sums":
        return table_of_sums(case)
    slow = f", the last one {case.slow}" if case.slow else ""
    lines = [f"{case.config.name}, {case.hosts} hosts, {case.workers} workers, ports of {case.rate}{slow}:", "",
             "| schedule | predicted, ms | measured, ms | difference |", "|---|---|---|---|"]
    schedules = case.arguments.schedules.split(",")
    if case.name == "emulated":
        schedules.insert(0, "searched")
    for number, name in enumerate(schedules):
        progress(f"{case.name}, {case.hosts} hosts, {case.rate}{slow}: {name} ({number + 1} of {len(schedules)})")
        try:
            predicted, measured = case.search() if name == "searched" else case.run(f"schedule.name={name}")
        except Failure as problem:
            lines.append(f"| {name} | | | {problem} |")
            continue
        lines.append(f"| {name} | {predicted * 1e3:,.1f} | {measured * 1e3:,.1f} | {(measured / predicted - 1) * 100:+.1f} % |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = HERE.parent.parent
    parser.add_argument("--hosts", default=root / "scripts/hosts", help="the script that makes hosts (default: scripts/hosts)")
    parser.add_argument("--programs", default=root / "build/bin", help="the folder of starpipe and allreduce_benchmark (default: build/bin)")
    parser.add_argument("--cases", default=CASES, help=f"comma-separated (default: {CASES})")
    parser.add_argument("--schedules", default=NAMED, help=f"comma-separated (default: {NAMED})")
    parser.add_argument("--links", choices=("rate", "measured"), default="rate",
                        help="the network's links: from the ports' rates, or as `starpipe info --links` measures them on the "
                        "hosts (default: rate)")  # fmt: skip
    parser.add_argument("--duration", default="20ms", help="of each pass of `emulated` (default: 20ms)")
    parser.add_argument("--budget", type=float, default=5, help="seconds of a start of the search (default: 5)")
    parser.add_argument("-o", metavar="FILE.md", help="write the tables there, not to standard output")
    arguments = parser.parse_args()
    arguments.hosts = os.path.abspath(arguments.hosts)
    arguments.programs = pathlib.Path(os.path.abspath(arguments.programs))
    pages = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            cases = [Case(arguments, text, folder) for text in arguments.cases.split(",")]
        except ValueError as wrong:
            parser.error(f"--cases: expected CONFIG:HOSTS:RATE or CONFIG:HOSTS:RATE:SLOW, got {wrong}")
        for case in cases:
            try:
                case.up()
                case.write_links()
                pages.append("\n".join(table(case)) + "\n")
            except Failure as problem:
                progress("")
                print(f"networks.py: {case.hosts} hosts, {case.rate}: {problem}", file=sys.stderr)
                return 1
            finally:
                case.down()
            if not arguments.o:
                progress("")
                print(pages[-1], flush=True)
    progress("")
    if arguments.o:
        pathlib.Path(arguments.o).write_text("\n".join(pages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
