# SPDX-License-Identifier: Apache-2.0
"""Runs of schedules: when each job ran, and what follows from it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from starpipe import _core
from starpipe._arguments import _require, _shown, _whole
from starpipe._core import InputError
from starpipe._costs import Costs
from starpipe._jobs import Job
from starpipe._schedule import Schedule, _pandas

if TYPE_CHECKING:
    import pandas  # type: ignore[import]


@dataclass(frozen=True)
class Received:
    """Data of one kind that a worker received from others."""

    count: int
    bytes: int


@dataclass(frozen=True)
class Transfers:
    """What one worker receives in a step. Data that it receives once and keeps are counted once."""

    activations: Received
    stashes: Received
    gradients: Received
    keys_values: Received
    keys_values_gradients: Received
    weights: Received
    weight_gradients: Received
    reloads: Received


class MemoryCurve(NamedTuple):
    """What a worker holds for backward passes: entry i holds from time[i] to time[i + 1]."""

    time: npt.NDArray[np.float64]
    """In the unit of the durations."""
    stashes: npt.NDArray[np.int32]
    """Number of stashes."""
    bytes: npt.NDArray[np.uint64]
    """Of stashes, gradient stashes, and inputs kept for recomputation."""


IdleCause = Literal["fill", "drain", "producer", "transfer", "order", "runtime", "copy", "recomputation"]
"""Why a worker was idle; docs/explain.md has the meanings."""


@dataclass(frozen=True)
class IdlePart:
    """A time in which a worker computed nothing, for one cause."""

    worker: int
    start: float
    end: float
    cause: IdleCause
    next: Job | None
    """The job that the worker ran next; None in drain."""
    producer: Job | None
    """With fill, producer and order the job of another worker for which the next job waits; with transfer the job whose
    result is under way; with copy L or O, with recomputation R."""
    sender: int | None
    """With transfer: the worker that sends."""
    held_back: Job | None
    """With order: a job that was ready."""


@dataclass(frozen=True)
class PathPart:
    """A time of the critical path, the chain of jobs and waits that decides the makespan."""

    start: float
    end: float
    kind: Literal["compute", "transfer", "runtime"]
    """The job runs, its input is under way, or it could start and did not."""
    job: Job
    sender: int | None
    """With transfer: the worker that sends."""


class Timeline:
    """A run of a schedule. Times have the unit of the costs.

    Arrays "by id" go with the ids of `schedule`. Arrays are views of the timeline's own memory: read-only, never copied,
    and alive as long as they are used. A notebook shows the timeline as a picture; `print` draws it as text.
    """

    schedule: Schedule
    costs: Costs
    """Costs of the run; with recomputation, B includes F."""
    _handle: _core.Timeline
    _step: _core.Step | None
    _more: str

    def __init__(self) -> None:
        raise TypeError("simulate() makes timelines")

    @classmethod
    def _of(
        cls, schedule: Schedule, costs: Costs, core: _core.Timeline, step: _core.Step | None = None, more: str = ""
    ) -> Timeline:
        made = cls.__new__(cls)
        made.schedule = schedule
        made.costs = costs
        made._handle = core
        made._step = step
        made._more = more
        return made

    @property
    def start(self) -> npt.NDArray[np.float64]:
        """When each job starts to compute, by id; 0 for an id without a job."""
        return self._handle.start

    @property
    def end(self) -> npt.NDArray[np.float64]:
        """When each job ends, by id; 0 for an id without a job."""
        return self._handle.end

    @property
    def ready(self) -> npt.NDArray[np.float64]:
        """When all inputs of each job were on its worker, by id."""
        return self._handle.ready

    def order_of(self, worker: int) -> npt.NDArray[np.uint32]:
        """The ids of the jobs of `worker` in the order in which they ran."""
        return self._handle.order_of(self.schedule._worker(worker))

    @property
    def makespan(self) -> float:
        """Time from the first start to the last end, over all workers."""
        return self._handle.makespan

    @property
    def gradients_summed(self) -> float | None:
        """Time from the first start until the weight gradients of all stages are summed on all workers that hold them, at
        least the makespan. None where no gradient is summed over workers."""
        return self._handle.gradients_summed

    @property
    def bubble_fraction(self) -> float:
        """Share of the makespan in which workers are idle: 1 - busy / (workers * makespan)."""
        return self._handle.bubble_fraction

    @property
    def recomputed_fraction(self) -> float:
        """Share of the makespan in which workers compute F again: the time of all R / (workers * makespan). bubble_fraction
        counts it as work."""
        return self._handle.recomputed_fraction

    @property
    def device_span(self) -> float:
        """The longest time from the first start to the last end of one worker."""
        return self._handle.device_span

    @property
    def device_bubble_fraction(self) -> float:
        """The zero-bubble papers' bubble rate: 1 - (longest busy time of a worker) / device_span."""
        return self._handle.device_bubble_fraction

    @property
    def busy(self) -> npt.NDArray[np.float64]:
        """Time that each worker computes."""
        return self._handle.busy

    @property
    def peak_stashes(self) -> npt.NDArray[np.int32]:
        """The largest number of stashes that each worker holds at once."""
        return self._handle.peak_stashes

    @property
    def peak_stash_bytes(self) -> npt.NDArray[np.uint64]:
        """The most bytes that each worker holds for backward passes."""
        return self._handle.peak_stash_bytes

    @property
    def received(self) -> tuple[Transfers, ...]:
        """What each worker receives from others in the step."""
        return tuple(self._handle.received)

    def memory(self, worker: int) -> MemoryCurve:
        """What a worker holds for backward passes, over time."""
        number = self.schedule._worker(worker)
        curve = _core.memory_over_time(self.schedule._handle, self.costs, self._handle)[number]
        return MemoryCurve(curve.time, curve.stashes, curve.bytes)

    def _recorded(self) -> _core.Step:
        if self._step is None:
            self._step = _core.simulated_step(self.schedule._handle, self.costs)
        return self._step

    def _job(self, id: int | None) -> Job | None:
        return None if id is None else self.schedule._handle.job(id)

    def idle(self) -> list[IdlePart]:
        """All idle time by cause, worker by worker in the order of time. With the jobs it fills the makespan."""
        return [
            IdlePart(
                worker, start, end, cause, self._job(next), self._job(producer), None if sender < 0 else sender,
                self._job(held_back),
            )  # fmt: skip
            for worker, start, end, cause, next, producer, sender, held_back in self._recorded().idle()
        ]

    def critical_path(self) -> list[PathPart]:
        """The critical path in the order of time. The lengths of its parts sum to the makespan."""
        job = self.schedule._handle.job
        return [
            PathPart(start, end, kind, job(id), None if sender < 0 else sender)
            for start, end, kind, id, sender in self._recorded().critical_path()
        ]

    def _form(self, form: Callable[..., str]) -> str:
        return form(
            self.schedule._handle, self.costs, self._handle, self.costs.unit, self.schedule.reordering, self._more
        )

    def text(self, columns: int = 100) -> str:
        """A drawing for the terminal, with a table of each worker's peak stashes and received data."""
        return _core.run_text(self.schedule._handle, self._handle, self.costs.unit, _whole("columns", columns))

    def svg(self) -> str:
        """The run as an SVG image: a row for each worker, and below the stashes that it holds."""
        return self._form(_core.run_svg)

    def json(self) -> str:
        """Schedule and run as JSON, a schedule file (docs/schedule-files.md)."""
        return self._form(_core.run_json)

    def csv(self) -> str:
        """The CSV of torch.distributed.pipelining. Warns when the format cannot say all of the schedule."""
        lost = _core.lost_in_csv(self.schedule._handle)
        if lost:
            warnings.warn(lost, stacklevel=2)
        return self._form(_core.run_csv)

    def trace(self) -> str:
        """A trace for ui.perfetto.dev and Chrome, as JSON. A unit of time without a name is shown as a second."""
        return self._form(_core.run_trace)

    def html(self) -> str:
        """The run as the report page, one file. Raises InputError where starpipe was built without the page."""
        return self._form(_core.run_page)

    def save(self, file: str | os.PathLike[str], format: str | None = None) -> None:
        """Writes the run to a file. The suffix decides the form: .json, .csv, .svg, .html or .txt.

        format: json, csv, svg, html, text or trace. A trace for ui.perfetto.dev is JSON, too: give format="trace".

        The file is replaced at once or not at all. Raises InputError for another suffix and for a file that cannot be
        written.
        """
        name = os.fspath(file)
        suffixes = {"json": ".json", "csv": ".csv", "svg": ".svg", "html": ".html", "text": ".txt", "trace": ".json"}
        if format is None:
            _core.require_suffix("save", name, list(dict.fromkeys(suffixes.values())))
            suffix = os.path.splitext(name)[1].lower()
            format = next((known for known, of in suffixes.items() if of == suffix), None)
            if format is None:
                raise InputError(f"save: {name}: has no suffix that says its form; name it .json, .csv, .svg, .html or .txt")
        elif format not in suffixes:
            raise InputError(f"format: expected {', '.join(suffixes)}, got {_shown(format)}")
        _core.require_suffix("save", name, [suffixes[format]])
        _core.write_file("save", name, getattr(self, format)())

    def _repr_svg_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        return self.text()

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each job, by worker and start: worker, weights, stage, microbatch, pass, ready, start, end."""
        frame = self.schedule.to_pandas()
        ids = frame.index.to_numpy()
        frame["ready"] = self.ready[ids] if len(self.ready) else _pandas().NA
        frame["start"] = self.start[ids]
        frame["end"] = self.end[ids]
        return frame.sort_values(["worker", "start"], kind="stable")

    def __repr__(self) -> str:
        unit = f" {self.costs.unit}" if self.costs.unit else ""
        return (
            f"<starpipe.Timeline of {self.schedule.name}: makespan {self.makespan:g}{unit}, "
            f"bubble fraction {100 * self.bubble_fraction:.1f} %>"
        )


def simulate(schedule: Schedule, costs: Costs | None = None) -> Timeline:
    """Predicts the run of a schedule.

    costs: durations, sizes and transfers (default: the schedule's). With recomputation F's time is added to B,
    unless the costs say that it is there.

    Raises InputError when the schedule cannot finish, and for costs that do not fit it. Deterministic.
    """
    _require("schedule", schedule, Schedule)
    used = schedule._complete(costs)
    return Timeline._of(schedule, used, _core.simulate(schedule._handle, used))
