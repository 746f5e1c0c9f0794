#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes files of clusters for `starpipe sim --cluster`.

    experiments/clusters/generate.py --node nvlink --network ethernet --gpus 4 > small.yaml
    experiments/clusters/generate.py --node nvlink --network infiniband --pod 4 --oversubscribed 2 > pods.yaml
    experiments/clusters/generate.py --all

A file says how a node is made and how nodes are connected; `sim --nodes N` says how many there are. --pod puts so many nodes
behind a switch, which shares one port to the network; by --oversubscribed this port is narrower than its nodes' ports
together. --scale divides all bandwidths by a number, for a model whose data are so much smaller than those that are meant: all
times stay, and a simulation takes less memory. --all writes the four files next to this script. Bandwidths are for one direction, by the vendors'
data sheets: NVLink of an A100 300 GB/s, PCIe 4.0 x16 25 GB/s, InfiniBand NDR 400 Gbit/s, Ethernet 100 Gbit/s.
"""

import argparse
import pathlib
import sys

# Memory of a GPU, GPUs that share a port to main memory, and levels: name, GPUs of a group (none: the node), latency, GB/s.
NODES = {
    "nvlink": ("GPUs connected by NVLink, with a port to main memory for two of them",
               "80GiB", 2, [("node", None, "3us", 300)]),
    "pcie": ("GPUs behind PCIe switches, four to a switch, which has one port to main memory",
             "48GiB", 4, [("switch", 4, "8us", 25), ("node", None, "12us", 20)]),
}  # fmt: skip
# Latency, and GB/s of the port of a node.
NETWORKS = {"infiniband": ("InfiniBand", "5us", 50.0), "ethernet": ("Ethernet", "20us", 12.5)}


def speed(gigabytes, scale):
    return f"bandwidth: {gigabytes / scale:.10g}GB/s"


def level(name, workers, latency, bandwidth):
    size = "" if workers is None else f"workers: {workers}, "
    return f"  - {{name: {name}, {size}latency: {latency}, {bandwidth}, sharing: fair}}\n"


def cluster(node, network, gpus=8, pod=None, oversubscribed=1.0, scale=1.0, memory=None, bandwidth=None):
    """The text of a file."""
    of_node, usual_memory, at_a_port, levels = NODES[node]
    of_network, latency, usual_bandwidth = NETWORKS[network]
    bandwidth = bandwidth or usual_bandwidth
    port = max(n for n in range(1, min(at_a_port, gpus) + 1) if gpus % n == 0)
    text = f"# {gpus} {of_node}. {of_network}: a port for each node"
    text += ".\n" if pod is None else f", and one for each {pod} nodes.\n"
    if scale != 1:
        text += f"# Bandwidths are divided by {scale:g}.\n"
    text += f"gpus_per_node: {gpus}\ngpu_memory: {memory or usual_memory}\n"
    text += f"host_link: {{workers: {port}, latency: 10us, {speed(25, scale)}}}\nlevels:\n"
    for name, workers, node_latency, node_bandwidth in levels:
        if workers is None or (workers < gpus and gpus % workers == 0):
            text += level(name, workers or gpus, node_latency, speed(node_bandwidth, scale)) if gpus > 1 else ""
    if pod is not None:
        text += level("pod", gpus * pod, latency, speed(bandwidth, scale))
        bandwidth *= pod / oversubscribed
    return text + level("network", None, latency, speed(bandwidth, scale))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", choices=NODES, default="nvlink")
    parser.add_argument("--network", choices=NETWORKS, default="infiniband")
    parser.add_argument("--gpus", type=int, choices=range(1, 9), default=8, help="of a node (8)", metavar="N")
    parser.add_argument("--pod", type=int, metavar="NODES", help="nodes behind one switch")
    parser.add_argument("--oversubscribed", type=float, default=1, metavar="X",
                        help="how much narrower a pod's port is than its nodes' ports together (1)")  # fmt: skip
    parser.add_argument("--scale", type=float, default=1, metavar="X", help="divides all bandwidths (1)")
    parser.add_argument("--memory", metavar="BYTES", help="of a GPU, such as 40GiB")
    parser.add_argument("--bandwidth", type=float, metavar="GB/s", help="of a node's port to the network")
    parser.add_argument("--all", action="store_true", help="write all four files next to this script")
    options = parser.parse_args()
    if options.pod is not None and options.pod < 2:
        parser.error("--pod: a pod has two or more nodes")
    for name in ("oversubscribed", "scale", "bandwidth"):
        if getattr(options, name) is not None and not getattr(options, name) > 0:
            parser.error(f"--{name}: must be greater than 0")
    if not options.all:
        sys.stdout.write(cluster(**{name: value for name, value in vars(options).items() if name != "all"}))
        return
    for node in NODES:
        for network in NETWORKS:
            file = pathlib.Path(__file__).parent / f"{node}-{network}.yaml"
            file.write_text(cluster(node, network), encoding="utf-8")


if __name__ == "__main__":
    main()
