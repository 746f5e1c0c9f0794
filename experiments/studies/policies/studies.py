# SPDX-License-Identifier: Apache-2.0
"""The studies of policies.py: each one a configuration and the settings that change it."""

import dataclasses
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent
QUICKSTART = FOLDER.parents[1] / "quickstart.yaml"
CHUNKS = {"v-half": 2}  # number of stages on each worker


@dataclasses.dataclass(frozen=True)
class Study:
    group: str
    label: str  # name within the group
    config: pathlib.Path
    settings: dict
    timeline: bool = False
    peers: tuple = ("fsdp",)  # other placements, run under starpipe's policy

    @property
    def name(self):
        return f"{self.group}: {self.label}"


def scaled(group, schedule, workers, microbatches, comm, label):
    stages = workers * CHUNKS.get(schedule, 1)
    return Study(group, label, FOLDER / "scaling.yaml", {
        "schedule.name": schedule, "schedule.workers": workers, "schedule.stages": stages, "model.layers": stages,
        "training.microbatches": microbatches, "runtime.emulate.comm": comm})


def scaling(schedules, counts, comms):
    return [scaled("scaling", schedule, workers, 2 * workers, comm, f"{schedule}, {workers} workers, {comm} links")
            for schedule in schedules for comm in comms for workers in counts]


def uneven(group, config, schedules, **settings):
    return [Study(group, f"{schedule}, 8 workers", FOLDER / config, {"schedule.name": schedule, **settings})
            for schedule in schedules]


def all_studies():
    return [
        *scaling(("1f1b", "zb-h1", "v-half"), (4, 8, 16), ("0us", "200us")),
        *(scaled("links", "zb-h1", 8, 16, comm, f"zb-h1, 8 workers, {comm} links")
          for comm in ("500us", "1000us", "2000us")),
        *(scaled("long step", schedule, 4, 32, "200us", f"{schedule}, 4 workers, 32 micro-batches")
          for schedule in ("1f1b", "zb-h1")),
        *uneven("slow worker", "slow_worker.yaml", ("1f1b", "zb-h1")),
        Study("slow worker", "v-half, 4 workers", FOLDER / "slow_worker_v.yaml", {}, timeline=True),
        *uneven("heavy head", "heavy_head.yaml", ("1f1b", "zb-h1")),
        Study("gpt", "1f1b, 2 workers", QUICKSTART, {"training.steps": 5}, timeline=True),
    ]


def small_studies():
    """One of each kind, in seconds."""
    few = {"training.microbatches": 4, "training.steps": 2}
    return [
        *scaling(("1f1b", "v-half"), (2,), ("0us", "200us")),
        scaled("links", "1f1b", 2, 4, "1000us", "1f1b, 2 workers, 1000us links"),
        *uneven("slow worker", "slow_worker.yaml", ("1f1b",), **few),
        *uneven("heavy head", "heavy_head.yaml", ("zb-h1",), **few),
        Study("gpt", "1f1b, 2 workers", QUICKSTART, {"model.hidden": 32, **few}, timeline=True),
    ]
