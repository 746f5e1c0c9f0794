# SPDX-License-Identifier: Apache-2.0
"""Schedules: from two functions, by name, and whether they finish."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np
import numpy.typing as npt

from starpipe import _core
from starpipe._arguments import (
    _GREATEST_INT,
    _MOST_MICROBATCHES,
    _MOST_SLICES,
    _MOST_STAGES,
    _MOST_WORKERS,
    _flag,
    _limits,
    _list,
    _require,
    _require_few_jobs,
    _require_function,
    _require_word,
    _shown,
    _whole,
)
from starpipe._core import InputError, StageGraph
from starpipe._costs import Costs
from starpipe._jobs import Discipline, Home, Job, Pass, Placement

if TYPE_CHECKING:
    import pandas  # type: ignore[import]

PlacementFunction = Callable[[int, int, Pass], Union[int, tuple[int, int], Placement]]
"""w(s, b, d): the worker that computes and holds the weights, or the pair (weights, compute)."""

PriorityFunction = Callable[[int, int, Pass], Any]
"""n(s, b, d): numbers, or other values with an order such as tuples of numbers. Smaller goes first."""

Homes = Union[Home, Sequence[Home], Callable[[int, int], Home]]
"""h(s, b): where stashes wait. One home for all stages, one for each, or a function of stage and micro-batch."""

_HOME_WORDS: tuple[Literal["worker", "none", "host", "disk"], ...] = ("worker", "none", "host", "disk")  # by their codes in C++

Limits = Union[int, Sequence[int], None]


@dataclass(frozen=True)
class Reordering:
    """Why a schedule does not run in its own order: the first worker that would hold more than its limit."""

    worker: int
    held: int
    """The largest number of stashes on this worker in the schedule's own order."""
    limit: int
    """Limit of this worker, in stashes."""


class CheckError(InputError):
    """A schedule cannot finish, or cannot keep its memory limits. The message names the job, worker or stage at fault."""

    cycle: tuple[Job, ...]
    """When jobs wait for each other: each waits for the job before it, the first for the last. Else empty."""

    def __init__(self, problem: str, cycle: Sequence[Job] = ()) -> None:
        super().__init__(problem)
        self.cycle = tuple(cycle)


def _graph(graph: StageGraph | int) -> StageGraph:
    return graph if isinstance(graph, StageGraph) else StageGraph.chain(_whole("graph", graph, 1, _MOST_STAGES))


def _home_code(name: str, home: object) -> int:
    """The code of a home in C++."""
    if isinstance(home, (int, np.integer)) and not isinstance(home, bool):
        return len(_HOME_WORDS) + _whole(name, home, 0)
    if not isinstance(home, str) or home not in _HOME_WORDS:
        raise InputError(f"{name}: expected one of {', '.join(_HOME_WORDS)}, or a worker's number, got {_shown(home)}")
    return _HOME_WORDS.index(home)


def _home_of(code: int) -> Home:
    return _HOME_WORDS[code] if code < len(_HOME_WORDS) else code - len(_HOME_WORDS)


def _home_passes(code: int) -> tuple[Pass, ...]:
    """The passes that a home with this code adds."""
    home = _home_of(code)
    if home == "worker":
        return ()
    if home == "none":
        return ("R",)
    return ("O", "L")


def _home_codes(name: str, homes: object) -> list[int]:
    """One home, or a list of homes, as a list of their codes."""
    one = isinstance(homes, (str, int, np.integer))
    return [_home_code(name, home) for home in ([homes] if one else _list(name, homes, "homes"))]


def _home_texts(name: str, homes: object) -> list[str]:
    """One home, or a list of homes, as C++ reads them."""
    return [home if isinstance(home, str) else f"worker:{home}" for home in map(_home_of, _home_codes(name, homes))]


def _homes(homes: Homes | str, stages: int, pairs: list[tuple[int, int]]) -> list[int]:
    """The home of each pair of stage and micro-batch, as its code in C++."""
    if callable(homes):
        return [_home_code(f"home: stage {s}, micro-batch {b}", homes(s, b)) for s, b in pairs]
    codes = _home_codes("home", homes)
    if len(codes) not in (1, stages):
        raise InputError(f"home: expected one home or {stages}, one for each stage, got {len(codes)}")
    return [codes[s % len(codes)] for s, _ in pairs]


def _job_text(job: tuple[int, int, Pass]) -> str:
    return str(Job(*job))


def _placements(values: list[Any], jobs: list[tuple[int, int, Pass]]) -> tuple[list[int], list[int]]:
    """The workers of weights and computation. A worker has both where the function returns one."""
    if all(type(value) is int for value in values):
        return values, values
    weights, compute = [], []
    for value, job in zip(values, jobs):
        try:
            if isinstance(value, bool):
                raise TypeError
            pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
            at, on = map(operator.index, pair)
        except (TypeError, ValueError):
            raise InputError(
                f"placement: {_job_text(job)}: expected a worker, or a pair of workers (weights, compute), got {_shown(value)}"
            ) from None
        weights.append(at)
        compute.append(on)
    return weights, compute


def _require_workers(values: list[int], jobs: list[tuple[int, int, Pass]], workers: int) -> None:
    if min(values) >= 0 and max(values) < workers:
        return
    worker, job = next((value, job) for value, job in zip(values, jobs) if not 0 <= value < workers)
    raise InputError(
        f"placement: {_job_text(job)}: there is no worker {_shown(worker)}; the workers are 0 to {workers - 1}"
    )


def _priorities(values: list[Any], jobs: list[tuple[int, int, Pass]]) -> npt.NDArray[np.int64]:
    """The values as whole numbers in the same order. Equal values stay equal."""
    if all(type(value) is int for value in values):
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass  # their ranks fit
    try:
        order = sorted(range(len(values)), key=values.__getitem__)
        ranks = np.empty(len(values), dtype=np.int64)
        ranks[order[0]] = rank = 0
        for before, after in zip(order, order[1:]):
            if values[before] < values[after]:
                rank += 1
            elif not values[before] == values[after]:
                odd = next((i for i in (before, after) if values[i] != values[i]), after)
                raise InputError(f"priority: {_job_text(jobs[odd])}: {_shown(values[odd])} has no place in an order")
            ranks[after] = rank
    except InputError:
        raise
    except (TypeError, ValueError):  # ValueError: arrays, whose comparison does not give a single answer
        odd = next((i for i in range(len(values)) if not _comparable(values[0], values[i])), 0)
        raise InputError(
            f"priority: {_job_text(jobs[odd])}: expected values with one order, such as numbers or tuples of numbers, "
            f"got {_shown(values[odd])}" + (f" next to {_shown(values[0])}" if odd else "")
        ) from None
    return ranks


def _comparable(one: Any, other: Any) -> bool:
    try:
        bool(one < other)
    except (TypeError, ValueError):
        return False
    return True


class Schedule:
    """A schedule as a value: stage graph, micro-batches, workers, placement w, priority n, discipline, memory limits.

    Jobs have numbers, their ids. Arrays "by id" have `id_count` entries. Where some backward passes are split and others
    are not, some ids have no job: `order` has the ids of all jobs. All arrays are read-only.

    A notebook shows a schedule as its timeline.
    """

    _handle: _core.Schedule
    costs: Costs
    """With which it is simulated when no others are given: those that it was made for or that its file states."""
    reordering: Reordering | None
    """Why it runs in another order than its own, when a memory limit is the cause."""

    def __init__(
        self,
        graph: StageGraph | int,
        microbatches: int,
        workers: int,
        *,
        placement: PlacementFunction,
        priority: PriorityFunction,
        split_backward: bool | Callable[[int, int], bool] = False,
        discipline: Discipline = "ordered",
        memory_limit: Limits = None,
        home: Homes = "worker",
        slices: int = 1,
        pairs: bool = False,
        name: str = "mine",
        costs: Costs = Costs(),
    ) -> None:
        """Makes a schedule from w and n. Each function is called once for each job.

        graph: a StageGraph, or the number of stages of a chain.
        microbatches, workers: their numbers; both count from 0 in the functions.
        placement: w(s, b, d) for stage s, micro-batch b and pass d. The worker that computes and holds the weights, or
            the pair (weights, compute).
        priority: n(s, b, d), smaller first: numbers, or other values with one order such as tuples. Equal values are
            ordered by micro-batch, stage and pass.
        split_backward: whether (stage, micro-batch) has the passes B and W instead of BW: for all, or a function.
        discipline: how a worker uses n; see `Discipline`.
        memory_limit: the largest number of stashes that a worker may hold at once: one for all workers, or one for each.
        slices: K of each sequence: micro-batches q K to q K + K - 1 have the parts of the same sequences, in order. On each stage F
            of a slice also waits for F of the slice before, and B for B of the slice after.
        pairs: whether F and a backward pass of one worker that have the same n are a pair, which the worker runs at once. Both
            wait until both can start. `Costs.overlap` says how long they take.
        home: h(s, b): where the stash waits from F to B. With "none" R makes it again before B, from the stage's input. R
            needs w and n of its own. With "host" and "disk" O copies it there, and L copies it back. O and L need n alone:
            they run beside F and beside the backward pass.
        name: for people and files.
        costs: with which it is simulated when no others are given.

        Exceptions of the functions go through unchanged. Raises InputError for anything that makes no schedule; whether
        the schedule can finish is for `check` to say.
        """
        graph = _graph(graph)
        microbatches = _whole("microbatches", microbatches, 1, _MOST_MICROBATCHES)
        workers = _whole("workers", workers, 1, _MOST_WORKERS)
        _require_few_jobs(graph.stages, microbatches)
        _require("costs", costs, Costs)
        _require("name", name, str)
        _require_word("discipline", discipline)
        _require_function("placement", placement, "(s, b, d)")
        _require_function("priority", priority, "(s, b, d)")
        run_at_once = _flag("pairs", pairs)
        stashes = [(s, b) for b in range(microbatches) for s in range(graph.stages)]
        if callable(split_backward):
            split = [_flag(f"split_backward: stage {s}, micro-batch {b}", split_backward(s, b)) for s, b in stashes]
        else:
            split = [_flag("split_backward", split_backward)] * len(stashes)
        homes = _homes(home, graph.stages, stashes)
        for i, (s, b) in enumerate(stashes):
            if isinstance(_home_of(homes[i]), int):  # the worker of F itself is the home "worker"
                _, (own,) = _placements([placement(s, b, "F")], [(s, b, "F")])
                homes[i] = 0 if _home_of(homes[i]) == own else homes[i]
        fused: tuple[Pass, ...] = ("F", "BW")
        divided: tuple[Pass, ...] = ("F", "B", "W")
        jobs = [
            (s, b, d)
            for (s, b), is_split, waits in zip(stashes, split, homes)
            for d in (divided if is_split else fused) + _home_passes(waits)
        ]
        weights, compute = _placements([0 if d in ("O", "L") else placement(s, b, d) for s, b, d in jobs], jobs)
        for values in (compute, weights):
            _require_workers(values, jobs, workers)
        priorities = _priorities([priority(s, b, d) for s, b, d in jobs], jobs)
        limits = _limits("memory_limit", memory_limit)
        self._handle = _core.Schedule(
            name, graph, microbatches, _slices(slices, microbatches), workers, np.array(split), np.array(homes, dtype=np.int32),
            np.array(weights, dtype=np.int32), np.array(compute, dtype=np.int32), priorities, discipline,
            limits * workers if len(limits) == 1 else limits, False, run_at_once,
        )  # fmt: skip
        self.costs = costs
        self.reordering = None

    @classmethod
    def _of(cls, core: _core.Schedule, costs: Costs, reordering: Reordering | None = None) -> Schedule:
        made = cls.__new__(cls)
        made._handle = core
        made.costs = costs
        made.reordering = reordering
        return made

    @property
    def name(self) -> str:
        """For people and files."""
        return self._handle.name

    @property
    def graph(self) -> StageGraph:
        """The stages and their edges."""
        return self._handle.graph

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self._handle.graph.stages

    @property
    def microbatches(self) -> int:
        """Number of micro-batches of a step; each slice counts."""
        return self._handle.microbatches

    @property
    def slices(self) -> int:
        """Slices K of a sequence: micro-batches q K to q K + K - 1 have the parts of the same sequences. 1: there are none."""
        return self._handle.slices

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self._handle.workers

    @property
    def discipline(self) -> Discipline:
        """How a worker uses n."""
        return self._handle.discipline

    @property
    def memory_limits(self) -> tuple[int, ...]:
        """The most stashes that each worker may hold at once; empty: no limits."""
        return tuple(self._handle.memory_limits)

    @property
    def recomputes(self) -> bool:
        """True if R makes any stash again."""
        return self._handle.recomputes

    @property
    def recomputes_late(self) -> bool:
        """True if R waits for the gradients that B waits for: under greedy and bounded, and in an order that they gave."""
        return self._handle.recomputes_late

    @property
    def copies(self) -> bool:
        """True if any stash is copied to its home, and back."""
        return self._handle.copies

    @property
    def has_pairs(self) -> bool:
        """True if a worker runs any F and backward pass at once."""
        return self._handle.has_pairs

    @property
    def partner(self) -> npt.NDArray[np.int64]:
        """By JobId: the job that runs at once with this one, -1 for a job that runs alone."""
        return self._handle.partner

    def home(self, stage: int, microbatch: int) -> Home:
        """h(s, b): where the stash waits from F to B. Raises InputError for a pair that does not exist."""
        for key, value, count in (("stage", stage, self.stages), ("microbatch", microbatch, self.microbatches)):
            if _whole(key, value, 0) >= count:
                raise InputError(f"{key}: there is no {key} {value}; the last is {count - 1}")
        return _home_of(int(self._handle.home[microbatch * self.stages + stage]))

    @property
    def split_backward(self) -> bool:
        """True if any backward pass is split into B and W."""
        return self._handle.split_backward

    @property
    def id_count(self) -> int:
        """Ids run over [0, id_count)."""
        return self._handle.id_count

    @property
    def job_count(self) -> int:
        """Number of jobs."""
        return self._handle.job_count

    @property
    def order(self) -> npt.NDArray[np.uint32]:
        """The ids of all jobs, smallest n first."""
        return self._handle.order

    def order_of(self, worker: int) -> npt.NDArray[np.uint32]:
        """The ids of the jobs that `worker` computes, smallest n first. Raises InputError for a worker that is none."""
        return self._handle.order_of(self._worker(worker))

    @property
    def compute(self) -> npt.NDArray[np.int32]:
        """The worker that computes each job, by id."""
        return self._handle.compute

    @property
    def weights(self) -> npt.NDArray[np.int32]:
        """The worker that holds the weights for each job, by id."""
        return self._handle.weights

    @property
    def turn(self) -> npt.NDArray[np.uint32]:
        """The position of each job in `order`, by id; 0xffffffff for an id without a job."""
        return self._handle.turn

    @property
    def stage(self) -> npt.NDArray[np.int64]:
        """The stage of each id."""
        return self._pairs() % self.stages

    @property
    def microbatch(self) -> npt.NDArray[np.int64]:
        """The micro-batch of each id."""
        return self._pairs() // self.stages

    @property
    def passes(self) -> npt.NDArray[np.str_]:
        """The pass of each id: F, B, W, BW or R; empty text for an id without a job."""
        stride = self._stride()
        which = np.arange(self.id_count) % stride
        exists = self.turn != 0xFFFFFFFF
        words: npt.NDArray[np.str_] = np.array(["F", "BW", "W", "", ""])[which]
        if self.split_backward:
            words[(which == 1) & np.append(exists[1:], False)] = "B"
        last = 3 if self.split_backward else 2  # R or O
        homes = np.repeat(self._handle.home, stride)
        words[which == last] = "O"
        words[(which == last) & (homes == _HOME_WORDS.index("none"))] = "R"
        words[which == last + 1] = "L"
        words[~exists] = ""
        return words

    def _stride(self) -> int:
        return self.id_count // (self.stages * self.microbatches)

    def _pairs(self) -> npt.NDArray[np.int64]:
        return np.arange(self.id_count) // self._stride()

    def _worker(self, worker: int) -> int:
        number = _whole("worker", worker, 0)
        if number >= self.workers:
            raise InputError(f"worker: there is no worker {number}; the workers are 0 to {self.workers - 1}")
        return number

    def job(self, id: int) -> Job:
        """The job of an id. Raises InputError for an id without a job."""
        number = _whole("id", id, 0)
        if number >= self.id_count or self.turn[number] == 0xFFFFFFFF:
            raise InputError(f"id: {number} has no job")
        return self._handle.job(number)

    def id_of(self, stage: int, microbatch: int, pass_: Pass) -> int:
        """The id of a job. Raises InputError when there is no such job."""
        _require_word("pass_", pass_)
        job = Job(_whole("stage", stage, 0), _whole("microbatch", microbatch, 0), pass_)
        found = self._handle.find(job)
        if found is None:
            raise InputError(f"{self.name}: there is no job {job}")
        return found

    def with_discipline(self, discipline: Discipline, memory_limit: Limits = None) -> Schedule:
        """The same jobs, w and n under another discipline and memory limit (stashes, one for all or one per worker)."""
        _require_word("discipline", discipline)
        limits = _limits("memory_limit", memory_limit)
        limits = limits * self.workers if len(limits) == 1 else limits
        return Schedule._of(self._handle.with_discipline(discipline, limits), self.costs)

    def with_memory_limit(self, memory_limit: Limits, costs: Costs | None = None) -> Schedule:
        """The schedule within a memory limit: the largest number of stashes of a worker, one for all or one for each.

        A schedule whose order needs no more keeps its order. Otherwise it runs under the bounded discipline, and
        `reordering` of the result says why. `check` says whether the limit can be kept.
        """
        used = self._complete(costs)
        core, reordering = _core.as_requested(self._handle, _limits("memory_limit", memory_limit), "", used)
        return Schedule._of(core, used, reordering)

    def with_homes(self, home: Homes | str, memory_limit: Limits = None, costs: Costs | None = None) -> Schedule:
        """The same schedule with other homes.

        home: homes, or the name of a way to choose them: "auto", "bpipe", "mario", "megatron" or "pipeoffload".
        memory_limit, costs: of a way.

        A new R runs directly before B, on its worker. A new O may last until the end of the job after F, and a new L may
        begin with the job before B.

        Raises InputError for what the way is not defined for.
        """
        if isinstance(home, str) and home not in _HOME_WORDS:
            used = self._complete(costs)
            core, reordering = _core.as_requested(self._handle, _limits("memory_limit", memory_limit), home, used)
            return Schedule._of(core, used, reordering)
        if memory_limit is not None or costs is not None:
            raise InputError("memory_limit, costs: only with the name of a way")
        pairs = [(s, b) for b in range(self.microbatches) for s in range(self.stages)]
        return Schedule._of(self._handle.with_homes(_homes(home, self.stages, pairs)), self.costs, self.reordering)

    def with_homes_to_fit(self, memory_limit: Limits, costs: Costs | None = None) -> Schedule:
        """The schedule in its own order, where as few stashes as the limit needs have no home.

        memory_limit: the largest number of stashes of a worker, one for all or one for each.
        costs: with which the order of a greedy or bounded schedule is simulated.

        Raises InputError if recomputation cannot keep the limit.
        """
        used = self._complete(costs)
        core, reordering = _core.as_requested(self._handle, _limits("memory_limit", memory_limit), "auto", used)
        return Schedule._of(core, used, reordering)

    def _complete(self, costs: Costs | None) -> Costs:
        given = self.costs if costs is None else costs
        _require("costs", given, Costs)
        return given

    def save(self, file: str | os.PathLike[str], format: str | None = None) -> None:
        """Writes the schedule with its predicted run, as `Timeline.save` does: .json and .csv are schedule files.

        `starpipe train CONFIG.yaml --set schedule.file=FILE` trains it.
        """
        from starpipe._timeline import simulate

        simulate(self).save(file, format)

    def _repr_svg_(self) -> str | None:
        from starpipe._timeline import simulate

        try:
            return simulate(self).svg()
        except InputError:
            return None  # it cannot finish, as `check` says

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each job, in the order of n, with the columns worker, weights, stage, microbatch and pass."""
        pandas = _pandas()
        ids = self.order
        return pandas.DataFrame(
            {
                "worker": self.compute[ids],
                "weights": self.weights[ids],
                "stage": self.stage[ids],
                "microbatch": self.microbatch[ids],
                "pass": self.passes[ids],
            },
            index=pandas.Index(ids, name="id"),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        exists = self.turn != 0xFFFFFFFF
        stride = self._stride()
        split = exists[2::stride] if self.split_backward else np.zeros(self.id_count // stride, dtype=np.bool_)
        # The backward pass of a pair has the n of its F, which has the smaller turn.
        partner = self.partner
        first = np.where(partner >= 0, np.minimum(self.turn, self.turn[partner]), self.turn)
        tables = (split, self._handle.home, self.weights[exists], self.compute[exists], first[exists].astype(np.int64))
        core = (
            self.name, self.graph, self.microbatches, self.slices, self.workers, *tables, self.discipline, self.memory_limits,
            self._handle.recomputes_late, self._handle.has_pairs,
        )  # fmt: skip
        return _unpickled, (core, self.costs, self.reordering)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._handle == other._handle

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"<starpipe.Schedule {self.name}: {self.workers} workers, {self.stages} stages, {self.microbatches} micro-batches, "
            f"{self.discipline}>"
        )


def _slices(slices: int, microbatches: int) -> int:
    count = _whole("slices", slices, 1, _MOST_SLICES)
    if microbatches % count != 0:
        raise InputError(f"slices: {microbatches} micro-batches are not sequences of {count} slices")
    return count


def _unpickled(core: tuple[Any, ...], costs: Costs, reordering: Reordering | None) -> Schedule:
    return Schedule._of(_core.Schedule(*core), costs, reordering)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_pandas needs pandas (Debian: python3-pandas)") from error
    return pandas


def check(schedule: Schedule) -> None:
    """Proves that a schedule finishes whatever the timing, before anything runs.

    Every job is on a worker that exists, the memory limits hold, and there is no cycle in the data dependencies and,
    under the ordered discipline, the workers' orders. Raises CheckError, whose `cycle` has the jobs of a cycle. Its time
    grows in proportion to the number of jobs.
    """
    _require("schedule", schedule, Schedule)
    problem, cycle = _core.check(schedule._handle)
    if problem:
        raise CheckError(problem, cycle)


@dataclass(frozen=True)
class ScheduleOption:
    """A whole number that a named schedule takes besides the numbers of workers and micro-batches."""

    name: str
    meaning: str
    default: int
    min: int
    max: int


@dataclass(frozen=True)
class ScheduleEntry:
    """A named schedule."""

    name: str
    summary: str
    """What it is, in one line."""
    source: str
    """The publication."""
    alias: str
    """Its name in torch.distributed.pipelining, which `schedule` takes too; empty if it has none there."""
    options: tuple[ScheduleOption, ...]


def schedules() -> list[ScheduleEntry]:
    """All named schedules, sorted by name. Plug-ins add to them (`load_plugin`)."""
    return [
        ScheduleEntry(
            name=entry["name"],
            summary=entry["summary"],
            source=entry["source"],
            alias=entry["alias"],
            options=tuple(ScheduleOption(**option) for option in entry["options"]),
        )
        for entry in _core.schedule_entries()
    ]


def load_plugin(file: str | os.PathLike[str]) -> list[str]:
    """Adds the schedules of a plug-in (docs/extending.md) and returns their names.

    Raises InputError, naming the file, for a file that is not a plug-in or was built for another starpipe.
    """
    return _core.load_plugin(os.fspath(file))


def read_schedule(file: str | os.PathLike[str]) -> Schedule:
    """Reads a schedule from JSON (of starpipe or any other program) or from PyTorch's CSV, with or without communication.

    Its `costs` are the costs that the file states. Raises InputError, naming file, key or cell, for a file that is
    not a schedule. docs/schedule-files.md describes both formats.
    """
    core, costs, unit = _core.read_schedule(os.fspath(file))
    return Schedule._of(core, replace(costs, unit=unit))


def schedule(
    name: str,
    *,
    workers: int,
    microbatches: int,
    slices: int = 1,
    graph: StageGraph | int | None = None,
    groups: int | None = None,
    placement: Sequence[int] = (),
    discipline: Discipline | None = None,
    memory_limit: Limits = None,
    home: Home | Sequence[Home] | None = None,
    costs: Costs = Costs(),
    per_share: bool = False,
    **options: int,
) -> Schedule:
    """A named schedule, as `starpipe schedule show` makes it. `schedules` lists the names.

    graph: a StageGraph, or the number of stages of a chain (default: the schedule's own number of stages per worker).
    slices: into which each micro-batch is cut along its sequences; the schedule has slices x microbatches micro-batches.
        `costs` are of whole micro-batches.
    groups: independent pipelines G of lpp and fslpp, workers / G each.
    placement: the worker of each stage, for schedules that take one.
    discipline: how workers use the priorities (default: the schedule's own).
    memory_limit: the largest number of stashes that a worker may hold: one for all workers, or one for each. A schedule whose order
        needs no more keeps its order; otherwise it runs in another one, and `reordering` says why.
    home: where stashes wait from F to B: one home for all stages, or one for each (default: the schedule's own).
        `Schedule.with_homes` takes a function, too.
    costs: for schedules that choose their order by them, and for `simulate` later.
    per_share: costs and memory_limit are for 1/W of the model, whatever the number of stages.
    options: of the schedule, such as waves=2; `schedules` has them.

    Raises InputError for an unknown name and for what the schedule is not defined for.
    """
    _require("name", name, str)
    _require("costs", costs, Costs)
    if discipline is not None:
        _require_word("discipline", discipline)
    workers = _whole("workers", workers, 1, _MOST_WORKERS)
    microbatches = _whole("microbatches", microbatches, 1, _MOST_MICROBATCHES)
    stage_workers = [_whole("placement", worker, 0) for worker in _list("placement", placement, "workers")]
    if graph is None and stage_workers:
        graph = len(stage_workers)
    homes = [] if home is None else _home_texts("home", home)
    core, reordering, used = _core.named_schedule(
        name, workers, microbatches, _whole("slices", slices, 1, _MOST_SLICES), None if graph is None else _graph(graph),
        None if groups is None else _whole("groups", groups, 0), stage_workers,
        {key: _whole(key, value, -_GREATEST_INT) for key, value in options.items()}, discipline,
        _limits("memory_limit", memory_limit), homes, costs, _flag("per_share", per_share),
    )  # fmt: skip
    return Schedule._of(core, replace(used, unit=costs.unit), reordering)
