#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command next to a real Slurm of its own: munged, slurmctld and a slurmd for each virtual node, on loopback.

usage: cluster.py [--nodes N] [--cpus C | --own-cores] [--gpus G] COMMAND...

SLURM_CONF is set for the command, so sbatch, srun and squeue work unchanged. Its exit status is the command's, or 77
when there can be no cluster here (root and Debian's slurmctld, slurmd, slurm-client and munge are needed). Each node
has all CPUs of the machine, unless --cpus says otherwise; tasks are bound as on a cluster (task/affinity). With
--own-cores the nodes divide the machine's CPUs, so that jobs on two nodes do not meet on a core. With --gpus Slurm hands
out G GPUs of each node, by number: it sets CUDA_VISIBLE_DEVICES, and no device is behind it.
SLURMD_NODENAME tells nodes apart; the host's name is the same on all.

Nothing stays: all processes are descendants of this one, orphans included (PR_SET_CHILD_SUBREAPER), and whatever is
left of them at the end is killed.
"""
import argparse
import contextlib
import ctypes
import itertools
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from waiting import wait_until  # noqa: E402

CANNOT = 77
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None)
TOOLS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client",
         "srun": "slurm-client"}
SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

CONF = """
ClusterName=virtual
SlurmctldHost=localhost
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket,cred_expire=20
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/%n.log
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
"""


def reason_against():
    if os.geteuid() != 0:
        return "a Slurm of our own needs root"
    missing = {package for tool, package in TOOLS.items() if not shutil.which(tool, path=SYSTEM_PATH)}
    return "missing packages: " + " ".join(sorted(missing)) if missing else ""


def free_ports(count):
    """Returns ports that are free, and that the system gives to no connection before the daemons listen there."""
    first, _ = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    ports = []
    for port in random.sample(range(10000, max(int(first), 20000)), 1000):
        with socket.socket() as attempt, contextlib.suppress(OSError):
            attempt.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports


def descendants():
    """The processes below this one, the nearest first."""
    children = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def end_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def reserved_cpus(node, nodes, cpus):
    """The CPUs of the machine that are not for the jobs of this node (from 0), as Slurm's CpuSpecList: the controller
    gives them to no job. (Slurm's manual asks for cgroups too; these would confine slurmd.)"""
    own = range(cpus * node // nodes, cpus * (node + 1) // nodes)
    return ",".join(str(cpu) for cpu in range(cpus) if cpu not in own)


class Cluster:
    def __init__(self, home, nodes, cpus, own_cores, gpus):
        self.home = pathlib.Path(home)
        self.nodes = [f"n{i}" for i in range(1, nodes + 1)]
        self.cpus = cpus
        self.own_cores = own_cores
        self.gpus = gpus
        self.daemons = []
        self.environment = {**os.environ, "PATH": SYSTEM_PATH, "SLURM_CONF": str(self.home / "slurm.conf")}

    def start_daemon(self, *command):
        with (self.home / "daemons.log").open("ab") as log:
            self.daemons.append(subprocess.Popen(
                command, env=self.environment, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=end_with_parent))

    def start(self):
        (self.home / "state").mkdir()
        key = self.home / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        port, *node_ports = free_ports(1 + len(self.nodes))
        lines = [f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={p} CPUs={self.cpus}"
                 for name, p in zip(self.nodes, node_ports)]
        if self.own_cores:
            lines = [f"{line} CpuSpecList={reserved_cpus(i, len(self.nodes), self.cpus)}"
                     for i, line in enumerate(lines)]
        if self.gpus:
            # Slurm wants a file for each GPU, and never opens these.
            lines = ["GresTypes=gpu", *(f"{line} Gres=gpu:{self.gpus}" for line in lines)]
            (self.home / "gres.conf").write_text(f"Name=gpu File=/dev/tty[0-{self.gpus - 1}]\n")
        lines.append(f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES MaxTime=60 State=UP")
        (self.home / "slurm.conf").write_text(CONF.format(home=self.home, port=port) + "\n".join(lines) + "\n")
        self.start_daemon("munged", "--foreground", "--force", f"--key-file={key}",
                          f"--socket={self.home}/munge.socket", f"--pid-file={self.home}/munged.pid",
                          f"--log-file={self.home}/munged.log", f"--seed-file={self.home}/munge.seed")
        self.start_daemon("slurmctld", "-D")
        for name in self.nodes:
            (self.home / f"spool-{name}").mkdir()
            self.start_daemon("slurmd", "-D", "-N", name)

    def wait_until_up(self, seconds=60):
        def is_up():
            idle = subprocess.run(["sinfo", "--noheader", "--states=idle", "--format=%D"], env=self.environment,
                                  capture_output=True, text=True, check=False).stdout
            return sum(map(int, idle.split())) == len(self.nodes)

        def has_ended():
            return any(daemon.poll() is not None for daemon in self.daemons)

        if not wait_until(lambda: is_up() or has_ended(), seconds, pause=0.1) or has_ended():
            logs = "".join(f"== {log.name}\n{log.read_text()[-2000:]}" for log in sorted(self.home.glob("*.log")))
            sys.exit(f"cluster.py: the nodes did not come up\n{logs}")


def end_descendants():
    """First asks them to end, then kills; those that start meanwhile too."""
    asked = set()
    for pause in itertools.count():
        if not (left := descendants()):
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                if pause >= 100:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in asked:
                    os.kill(pid, signal.SIGTERM)
                    asked.add(pid)
        time.sleep(0.05)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def main():
    parser = argparse.ArgumentParser(description="Runs a command next to a Slurm of its own.")
    parser.add_argument("--nodes", type=int, default=2)
    cpus = parser.add_mutually_exclusive_group()
    cpus.add_argument("--cpus", type=int, default=os.cpu_count(), help="of each node")
    cpus.add_argument("--own-cores", action="store_true", help="divide the machine's CPUs among the nodes")
    parser.add_argument("--gpus", type=int, default=0, help="of each node, as Slurm counts them")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.own_cores and not 1 < options.nodes <= options.cpus:
        parser.error(f"--own-cores: {options.nodes} nodes cannot divide {options.cpus} CPUs")
    if reason := reason_against():
        print(f"cluster.py: skipped: {reason}", file=sys.stderr)
        return CANNOT
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="slurm-") as home:
        cluster = Cluster(home, options.nodes, options.cpus, options.own_cores, options.gpus)
        try:
            cluster.start()
            cluster.wait_until_up()
            return subprocess.run(options.command, env=cluster.environment, preexec_fn=end_with_parent,
                                  check=False).returncode
        finally:
            end_descendants()


if __name__ == "__main__":
    sys.exit(main())
