#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study of docs/simulated-clusters.md: schedules on simulated clusters of 8, 64 and 512 GPUs.

    experiments/studies/clusters/clusters.py [--starpipe build/bin/starpipe] [--only PART] [--jobs N]

Run it in the project's folder. It writes to results/clusters: the files of the clusters, schedules that `starpipe search` finds
for them, and for each part of the study its STUDY.yaml and the results of its sweep. What is done is not run again. figures.py
draws the results.

The parts: `pipelines` and `sharded` (FSDP and FSLPP) with few micro-batches, so that simulations are short; `sharded` also with a
micro-batch for each of 64 GPUs, since FSDP computes on as many GPUs as there are micro-batches; and `predicted`, which has `simulate`
alone with a micro-batch for each GPU.
"""

import argparse
import json
import pathlib
import subprocess

HERE = pathlib.Path(__file__).parent
RESULTS = pathlib.Path("results/clusters")
SCALE = 4096  # the data of gpt.yaml are a SCALEth of the model's
MODELS = {  # hidden size in gpt.yaml: heads, F, B, W (ms) of a GPU's share, micro-batch, activation in bytes
    80: (10, (12.96, 13.22, 9.76), 4, 4 * 16 * 80 * 2),
    112: (16, (6.72, 6.89, 5.06), 1, 16 * 112 * 2),
}
CLUSTERS = {8: ("nvlink-infiniband", "pcie-ethernet"), 64: ("nvlink-infiniband", "nvlink-ethernet"), 512: ("nvlink-infiniband",)}
NAMED = ("1f1b", "interleaved-1f1b", "zb-h1", "v-half")
SEARCHED = "searched"
SHARDED = ("fsdp", "fslpp")
REPLICAS = {8: 4, 64: 8, 512: 8}  # of each group of fslpp: a node's GPUs, where there are several nodes
FEW = [(8, 32, CLUSTERS[8]), (64, 16, CLUSTERS[64]), (512, 8, CLUSTERS[512])]  # GPUs, micro-batches, clusters
PARTS = {  # command, sizes, schedules
    "pipelines": ("sim", FEW, (*NAMED, SEARCHED)),
    "sharded": ("sim", [*FEW, (64, 64, CLUSTERS[512])], SHARDED),
    "predicted": ("simulate", [(64, 64, CLUSTERS[512]), (512, 512, CLUSTERS[512])], (*NAMED, *SHARDED)),
}
BUDGET = {8: 3, 64: 6, 512: 12}  # seconds of search


def write_clusters():
    for name in ("nvlink-infiniband", "nvlink-ethernet", "pcie-ethernet"):
        node, network = name.split("-")
        # Memory is not what this study is about: it tells the need, and lets all schedules run.
        text = subprocess.run([HERE.parent.parent / "clusters" / "generate.py", "--node", node, "--network", network, "--scale",
                               str(SCALE), "--memory", "64TiB"], check=True, capture_output=True, text=True).stdout  # fmt: skip
        file = RESULTS / f"{name}.yaml"
        # Another sweep may read it: what runs depend on is known by its contents.
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def search(starpipe, hidden, gpus, microbatches, cluster):
    """A schedule with two stages per GPU in a V, for the links, within the stashes that 1F1B needs."""
    _, durations, _, activation = MODELS[hidden]
    file = RESULTS / "schedules" / f"{hidden}-{gpus}-{microbatches}-{cluster}.json"
    file.parent.mkdir(exist_ok=True)
    if not file.exists():
        subprocess.run([starpipe, "search", "--workers", str(gpus), "--microbatches", str(microbatches), "--chunks", "2", "--layout",
                        "v", "--durations", ",".join(f"{p}={d / 2}ms" for p, d in zip("FBW", durations)), "--links",
                        RESULTS / f"{cluster}.yaml", "--bytes", str(activation), "--memory-limit", str(2 * min(gpus, microbatches)),
                        "--budget", str(BUDGET[gpus]), "--quiet", "-o", file], check=True)  # fmt: skip
    return file


def schedule_of(starpipe, name, hidden, gpus, microbatches, cluster):
    """The settings of a schedule."""
    if name == SEARCHED:
        return {"schedule.file": str(search(starpipe, hidden, gpus, microbatches, cluster))}
    groups = {"schedule.groups": gpus // REPLICAS[gpus]} if name == "fslpp" else {}
    return {"schedule.name": name, **groups}


def runs_of(starpipe, part):
    command, sizes, schedules = PARTS[part]
    ways = ("fair", "none") if command == "sim" else ("fair",)
    for gpus, microbatches, clusters in sizes:
        for cluster in clusters:
            for hidden, (heads, (f, b, w), batch, _) in MODELS.items():
                for way in ways:
                    for name in schedules:
                        links = f"{RESULTS}/{cluster}.yaml"
                        machine = {"--cluster": links, "--sharing": way, "--gpu-direct": True}
                        if command == "simulate":
                            machine = {"--links": links, "--ranks": gpus // 8}
                        yield {"model.hidden": hidden, "model.heads": heads, "training.microbatch_size": batch,
                               "runtime.emulate": {"F": f"{f}ms", "B": f"{b}ms", "W": f"{w}ms", "per_share": True},
                               "schedule.workers": gpus, "model.layers": 2 * gpus - 2, "training.microbatches": microbatches,
                               **schedule_of(starpipe, name, hidden, gpus, microbatches, cluster), **machine}  # fmt: skip


def write_study(starpipe, part):
    """The part's STUDY.yaml. JSON is YAML."""
    study = {"command": PARTS[part][0], "config": str(HERE / "gpt.yaml"), "runs": list(runs_of(starpipe, part))}
    file = RESULTS / f"{part}.yaml"
    file.write_text(json.dumps(study, indent=1), encoding="utf-8")
    return file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_clusters()
    for part in PARTS:
        if options.only in (None, part):
            study = write_study(options.starpipe, part)
            subprocess.run([options.starpipe, "sweep", study, "-o", RESULTS / part, "--jobs", str(options.jobs)], check=True)


if __name__ == "__main__":
    main()
