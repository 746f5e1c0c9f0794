# SPDX-License-Identifier: Apache-2.0
"""The periodic theory of Pipelined Model Parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from starpipe import _core
from starpipe._arguments import _list, _number, _require, _whole
from starpipe._core import size_limits
from starpipe._costs import Costs
from starpipe._jobs import Pass
from starpipe._schedule import Schedule
from starpipe._timeline import Timeline


@dataclass(frozen=True)
class ChainStage:
    """Costs of one stage of a chain: times in any one unit, memory in another."""

    forward: float = 1.0
    """Time of F."""
    backward: float = 1.0
    """Time of the whole backward pass BW."""
    weights: float = 0.0
    """Memory that the stage takes under any schedule."""
    activation: float = 1.0
    """Memory of each of its stashes."""


@dataclass(frozen=True)
class PeriodicOperation:
    """A pass that repeats: in period j it starts at j * period + start, on micro-batch j * microbatches + shift."""

    stage: int
    pass_: Pass
    worker: int
    start: float
    shift: int


@dataclass(frozen=True)
class PeriodicResult:
    """The shortest pattern that was found, and the schedule that repeats it. A notebook shows its timeline."""

    period: float
    """Time after which the pattern repeats."""
    microbatches: int
    """Number of micro-batches of a period."""
    operations: tuple[PeriodicOperation, ...]
    lower_bound: float
    """No schedule with this placement and memory takes less time per micro-batch."""
    optimal: bool
    """True if no pattern of up to `repeat` micro-batches is shorter."""
    concurrent_activations: tuple[int, ...]
    """The largest number of stashes of each stage that are live at once."""
    memory: tuple[float, ...]
    """Peak memory of each worker."""
    schedule: Schedule
    """The pattern repeated."""
    timeline: Timeline
    """Its predicted run."""
    _more: str = field(repr=False, compare=False)

    @property
    def normalized_period(self) -> float:
        """Time a micro-batch in the long run."""
        return self.period / self.microbatches

    def _repr_svg_(self) -> str:
        return self.timeline.svg()


def periodic(
    chain: Sequence[ChainStage],
    *,
    workers: Sequence[int] = (),
    memory: float | None = None,
    repeat: int | None = None,
    period: float | None = None,
    microbatches: int = 16,
) -> PeriodicResult:
    """Finds the shortest periodic schedule of a chain of stages, as `starpipe periodic` does.

    workers: the worker of each stage (default: stage s on worker s).
    memory: of each worker, for weights and stashes (default: no limit).
    repeat: try patterns of up to so many micro-batches (default 1: 1F1B* with the shortest period).
    period: take 1F1B* with this period instead of searching.
    microbatches: of the schedule that repeats the pattern.

    Raises InputError for a chain that takes no time, and for a memory that is too small. docs/periodic.md has the theory.
    """
    stages = _list("chain", chain, "ChainStage")
    for stage in stages:
        _require("chain", stage, ChainStage)
    max_worker = size_limits["periodic_stages"] - 1
    found = _core.periodic(
        stages, [_whole("workers", worker, 0, max_worker) for worker in _list("workers", workers, "workers")],
        None if memory is None else _number("memory", memory),
        None if repeat is None else _whole("repeat", repeat, 1, size_limits["periodic_repetitions"]),
        None if period is None else _number("period", period), _whole("microbatches", microbatches),
    )  # fmt: skip
    costs: Costs = found["costs"]
    schedule = Schedule._of(found["schedule"], costs)
    return PeriodicResult(
        period=found["period"],
        microbatches=found["microbatches"],
        operations=tuple(found["operations"]),
        lower_bound=found["lower_bound"],
        optimal=found["optimal"],
        concurrent_activations=tuple(found["concurrent_activations"]),
        memory=tuple(found["memory"]),
        schedule=schedule,
        timeline=Timeline._of(schedule, costs, _core.simulate(schedule._handle, costs), more=found["json"]),
        _more=found["json"],
    )
