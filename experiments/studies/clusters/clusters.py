#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The study of docs/simulated-clusters.md: schedules on simulated clusters of 8, 64 and 512 GPUs.

    experiments/studies/clusters/clusters.py [--starpipe build/bin/starpipe] [--only named|searched|large]

Run it in the project's folder. It writes to results/clusters: the files of the clusters, schedules that `starpipe search` finds
for them, a STUDY.yaml for these, and the results of three sweeps, in named/, searched/ and large/. What is done is not run
again. figures.py draws the results.
"""

import argparse
import json
import pathlib
import subprocess

HERE = pathlib.Path(__file__).parent
RESULTS = pathlib.Path("results/clusters")
SCALE = 256  # the data of gpt.yaml are a SCALEth of the model's
MODELS = {  # hidden size in gpt.yaml: F, B, W (ms) of a GPU's share, micro-batch, activation in bytes
    320: (12.96, 13.22, 9.76, 4, 4 * 64 * 320 * 2),
    448: (6.72, 6.89, 5.06, 1, 64 * 448 * 2),
}
MACHINES = {  # GPUs: micro-batches, clusters, ways of sharing
    8: (32, ("nvlink-infiniband", "pcie-ethernet"), ("fair", "none")),
    64: (16, ("nvlink-infiniband", "nvlink-ethernet"), ("fair", "none")),
    512: (8, ("nvlink-infiniband",), ("fair",)),
}
BUDGET = {8: 3, 64: 6, 512: 12}  # seconds of search


def write_clusters():
    for name in ("nvlink-infiniband", "nvlink-ethernet", "pcie-ethernet"):
        node, network = name.split("-")
        # Memory is not what this study is about: it tells the need, and lets all schedules run.
        text = subprocess.run([HERE.parent.parent / "clusters" / "generate.py", "--node", node, "--network", network, "--scale",
                               str(SCALE), "--memory", "64TiB"], check=True, capture_output=True, text=True).stdout  # fmt: skip
        (RESULTS / f"{name}.yaml").write_text(text, encoding="utf-8")


def search(starpipe, hidden, gpus, cluster):
    """A schedule with two stages a GPU in a V, for the links, within the stashes that 1F1B needs."""
    microbatches = MACHINES[gpus][0]
    *durations, _, activation = MODELS[hidden]
    file = RESULTS / "schedules" / f"{hidden}-{gpus}-{cluster}.json"
    if not file.exists():
        subprocess.run([starpipe, "search", "--workers", str(gpus), "--microbatches", str(microbatches), "--chunks", "2", "--layout",
                        "v", "--durations", ",".join(f"{p}={d / 2}ms" for p, d in zip("FBW", durations)), "--links",
                        RESULTS / f"{cluster}.yaml", "--bytes", str(activation), "--memory-limit", str(2 * min(gpus, microbatches)),
                        "--budget", str(BUDGET[gpus]), "--quiet", "-o", file], check=True)  # fmt: skip
    return file


def write_searched(starpipe):
    """The study of the searched schedules. JSON is YAML."""
    (RESULTS / "schedules").mkdir(exist_ok=True)
    runs = []
    for gpus, (microbatches, clusters, ways) in MACHINES.items():
        for cluster in clusters:
            for hidden, (f, b, w, size, _) in MODELS.items():
                file = search(starpipe, hidden, gpus, cluster)
                model = {"model.hidden": hidden, "model.heads": 40 if hidden == 320 else 64, "training.microbatch_size": size,
                         "runtime.emulate": {"F": f"{f}ms", "B": f"{b}ms", "W": f"{w}ms", "per_share": True}}  # fmt: skip
                runs += [{**model, "schedule.workers": gpus, "model.layers": 2 * gpus - 2, "training.microbatches": microbatches,
                          "schedule.file": str(file), "--cluster": f"results/clusters/{cluster}.yaml", "--sharing": way}
                         for way in ways]  # fmt: skip
    study = {"command": "sim", "config": str(HERE / "gpt.yaml"), "set": {"--gpu-direct": True}, "runs": runs}
    file = RESULTS / "searched.yaml"
    file.write_text(json.dumps(study, indent=1), encoding="utf-8")
    return file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--only", choices=("named", "searched", "large"))
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_clusters()
    for name in ("named", "searched", "large"):
        if options.only in (None, name):
            study = write_searched(options.starpipe) if name == "searched" else HERE / f"{name}.yaml"
            subprocess.run([options.starpipe, "sweep", study, "-o", RESULTS / name, "--jobs", "2"], check=True)


if __name__ == "__main__":
    main()
