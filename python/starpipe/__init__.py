# SPDX-License-Identifier: Apache-2.0
"""Schedules of deep-network training: w(s, b, d) says where a job runs, n(s, b, d) says when.

    import starpipe

    schedule = starpipe.schedule("v-half", workers=4, microbatches=8)
    timeline = starpipe.simulate(schedule)

Times have any one unit, sizes are in bytes. Errors in what is given are `InputError`, a `ValueError`.
"""

from starpipe._core import InputError, StageGraph
from starpipe._core import version as __version__
from starpipe._costs import Costs, Durations, HomeLink, Link, LinkLevel, LinkPort, LinkTime, Overlap, SharedWeights, Sharing, StageSizes
from starpipe._jobs import Discipline, Home, Job, Pass, Placement
from starpipe._partition import Partition, SharedUnits, Unit, WorkerLoad, partition
from starpipe._periodic import ChainStage, PeriodicOperation, PeriodicResult, periodic
from starpipe._report import Explanation, Report, save_page
from starpipe._schedule import (
    CheckError,
    Reordering,
    Schedule,
    ScheduleEntry,
    ScheduleOption,
    check,
    load_plugin,
    read_schedule,
    schedule,
    schedules,
)
from starpipe._search import Layout, SearchProgress, SearchResult, search
from starpipe._timeline import IdleCause, IdlePart, MemoryCurve, PathPart, Received, Timeline, Transfers, simulate

__all__ = [
    "ChainStage",
    "CheckError",
    "Costs",
    "Discipline",
    "Durations",
    "Explanation",
    "Home",
    "HomeLink",
    "IdleCause",
    "IdlePart",
    "InputError",
    "Job",
    "Layout",
    "Link",
    "LinkLevel",
    "LinkPort",
    "LinkTime",
    "MemoryCurve",
    "Overlap",
    "Partition",
    "Pass",
    "PathPart",
    "PeriodicOperation",
    "PeriodicResult",
    "Placement",
    "Received",
    "Reordering",
    "Report",
    "Schedule",
    "ScheduleEntry",
    "ScheduleOption",
    "SearchProgress",
    "SearchResult",
    "SharedUnits",
    "SharedWeights",
    "Sharing",
    "StageGraph",
    "StageSizes",
    "Timeline",
    "Transfers",
    "Unit",
    "WorkerLoad",
    "check",
    "load_plugin",
    "partition",
    "periodic",
    "read_schedule",
    "save_page",
    "schedule",
    "schedules",
    "search",
    "simulate",
]
