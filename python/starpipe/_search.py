# SPDX-License-Identifier: Apache-2.0
"""The search for a short schedule within a memory limit."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Union

from starpipe import _core
from starpipe._arguments import _list, _number, _numbers, _require, _require_function, _require_word, _whole
from starpipe._core import InputError, size_limits
from starpipe._costs import Costs
from starpipe._jobs import Home
from starpipe._schedule import Schedule, _home_texts
from starpipe._timeline import Timeline

Layout = Literal["loop", "v"]
"""The worker of each stage. loop: stage s on worker s mod W. v: from worker 0 to W - 1 and back."""


@dataclass(frozen=True)
class SearchProgress:
    """The state of a running search."""

    seconds: float
    """Since the start."""
    done: float
    """Share of the work, 0 to 1."""
    makespan: float
    """Makespan of the best schedule so far, in the unit of the costs."""
    lower_bound: float
    """Lower bound of the makespan for the problem that is being searched."""


@dataclass(frozen=True)
class SearchResult:
    """The best schedule that a search found. A notebook shows its timeline."""

    schedule: Schedule
    """Ordered, named "search"."""
    timeline: Timeline
    """Its predicted run."""
    lower_bound: float
    """No schedule of any problem that was considered has a smaller makespan."""
    layout: Layout
    chunks: int
    """Stages on each worker."""
    peak_memory: tuple[float, ...]
    """By worker, in the unit of the memory limit."""
    complete: bool
    """False when the budget or an interruption ended the search: another run may then find another schedule."""
    interrupted: bool
    """True if a KeyboardInterrupt ended the search."""
    unused: dict[str, str] = field(repr=False)
    """Named schedules that the search could not start from, and why."""
    _more: str = field(repr=False, compare=False)

    @property
    def makespan(self) -> float:
        """Makespan of the schedule, in the unit of the costs."""
        return self.timeline.makespan

    @property
    def above_bound(self) -> float:
        """How far the makespan is above the lower bound, as a share of it: 0 is proved optimal."""
        return self.makespan / self.lower_bound - 1 if self.lower_bound > 0 else 0.0

    def save(self, file: str | os.PathLike[str], format: str | None = None) -> None:
        """Writes the schedule and its run, as `Timeline.save` does. JSON and page have the lower bound, too."""
        self.timeline.save(file, format)

    def _repr_svg_(self) -> str:
        return self.timeline.svg()


def _searched_homes(homes: object) -> list[str]:
    """The words as C++ reads them. "peer" stands for any other worker."""
    words = _list("homes", homes, "homes")
    near = [word for word in words if word != "peer"]
    return _home_texts("homes", near) + ["peer"] * (len(near) < len(words))


def search(
    *,
    workers: int,
    microbatches: int,
    slices: int = 1,
    chunks: int | None = None,
    layout: Layout | None = None,
    costs: Costs = Costs(),
    stash: float | Sequence[float] = 1.0,
    memory_limit: Union[float, Sequence[float], None] = None,
    homes: Sequence[Union[Home, Literal["peer"]]] = ("worker",),
    budget: float = 10.0,
    work: float | None = None,
    seed: int = 1,
    progress: Callable[[SearchProgress], object] | None = None,
) -> SearchResult:
    """Searches for the schedule with the smallest makespan within a memory limit, and bounds how short any can be.

    slices: K into which each micro-batch is cut along its sequences. Costs, stash and limit are of whole micro-batches, unless
        `costs.slices` is K; `stash` may then also have one value for each stage and slice.
    chunks: stages on each worker. Without, 1 to 4 are tried; costs and stash then belong to 1/W of the model.
    layout: the worker of each stage. Without, both are tried.
    costs: of each stage, or one for all, and transfers that overlap compute.
    stash: memory of one stash: one value for all stages, or one for each, in the unit of the limit.
    memory_limit: the largest memory of all stashes on a worker: one for all workers, or one for each. With stash = 1 it
        counts stashes.
    homes: that a stash may have, "worker" among them. With "none" the search may compute F again where memory is short. It then
        works twice, first without recomputation, and takes up to twice the budget. With "host" or "disk" it may copy stashes
        there, and with "peer" to other workers; `costs` then needs the times of these copies, and the search takes longer.
    budget: seconds after which the search ends with the best schedule so far.
    work: amount of work in seconds of a slow core, so that the result does not depend on the clock (default: budget).
    seed: of the random choices.
    progress: called about five times per second with a SearchProgress. An exception of it ends the search and goes through.

    Other threads run meanwhile. A KeyboardInterrupt (Ctrl-C, or a notebook's stop button) ends the search at once: the
    result is the best schedule so far, with `interrupted` true. docs/search.md has the method and the bound.

    Raises InputError for costs of a wrong number and for a limit that no schedule can keep; the message then has the
    smallest limit that works.
    """
    _require("costs", costs, Costs)
    if progress is not None:
        _require_function("progress", progress, "a SearchProgress")
    if layout is not None:
        _require_word("layout", layout)
    found = _core.search(
        _whole("workers", workers, 1, size_limits["search_workers"]),
        _whole("microbatches", microbatches, 1, size_limits["search_microbatches"]),
        _whole("slices", slices, 1, size_limits["slices"]),
        None if chunks is None else _whole("chunks", chunks, 1, size_limits["search_chunks"]), layout, costs, _numbers("stash", stash),
        [] if memory_limit is None else _numbers("memory_limit", memory_limit), _searched_homes(homes), _number("budget", budget, 0.01, 1e6),
        None if work is None else _number("work", work, 0.01, 1e6), _whole("seed", seed, 0, 2**64 - 1), progress,
    )  # fmt: skip
    used = replace(found["costs"], unit=costs.unit)
    schedule = Schedule._of(found["schedule"], used)
    return SearchResult(
        schedule=schedule,
        timeline=Timeline._of(schedule, used, found["timeline"], more=found["json"]),
        lower_bound=found["lower_bound"],
        layout=found["layout"],
        chunks=found["chunks"],
        peak_memory=tuple(found["peak_memory"]),
        complete=found["complete"],
        interrupted=found["interrupted"],
        unused=dict(found["unused"]),
        _more=found["json"],
    )
