# SPDX-License-Identifier: Apache-2.0
"""Cutting a chain of units into stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from starpipe import _core
from starpipe._arguments import _MOST_WORKERS, _flag, _list, _number, _numbers, _require, _require_word, _shown, _whole
from starpipe._core import InputError, size_limits
from starpipe._costs import Costs, Durations, Link, LinkLevel, StageSizes, _each, _levels
from starpipe._search import Layout

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Unit:
    """Layers of a chain that are never separated, such as a block: times and sizes of one micro-batch.

    The fields are the keys of a profile (`starpipe profile`), so `Unit(**layer)` makes a unit of one of its maps. Times
    are F, B and W, in any one unit, or a mapping of these for each kind of device in `cpu` and `cuda`. Sizes are in bytes.
    """

    name: str = ""
    F: float = 0.0
    B: float = 0.0
    W: float = 0.0
    weights: int = 0
    """The unit's parameters, as passes read them."""
    master: int = 0
    """The optimizer's own copy of them; 0 when it updates `weights`."""
    activation: int = 0
    """The unit's output."""
    gradient: int | None = None
    """The gradient of the output; None: as large as the activation."""
    stash: int = 0
    """What F keeps for B and W."""
    gradient_stash: int = 0
    """What B keeps for W."""
    count: int = 1
    """So many such units in a row."""
    cpu: Mapping[str, Any] | None = None
    cuda: Mapping[str, Any] | None = None
    spread: object = None
    """Of measured times; not read."""

    @property
    def sizes(self) -> StageSizes:
        """The sizes as a stage's sizes."""
        gradient = self.activation if self.gradient is None else self.gradient
        return StageSizes(self.activation, gradient, self.stash, self.gradient_stash, self.weights, self.master)

    @property
    def devices(self) -> tuple[str, ...]:
        """The kinds of devices that have times of their own; ("",) when F, B and W are for any."""
        return tuple(device for device in _DEVICES if getattr(self, device) is not None) or ("",)

    @property
    def times(self) -> dict[str, Durations]:
        """The times on each of `devices`. Raises InputError when a unit has times of both forms."""
        devices = self.devices
        if devices == ("",):
            return {"": Durations(self.F, self.B, self.W)}
        if (self.F, self.B, self.W) != (0, 0, 0):
            raise InputError(f"unit {self.name!r}: give F, B and W either directly or under {' and '.join(devices)}")
        each = {device: getattr(self, device) for device in devices}
        for device, of in each.items():
            if not isinstance(of, Mapping):
                raise InputError(f"unit {self.name!r}: {device}: expected a mapping with F, B and W, got {_shown(of)}")
        return {device: Durations(*(of.get(d, 0.0) for d in ("F", "B", "W"))) for device, of in each.items()}


@dataclass(frozen=True)
class SharedUnits:
    """Parameters that several units use, such as a tied embedding."""

    units: tuple[int, ...]
    """Numbers of the units, ascending."""
    weights: int
    """Bytes."""
    master: int = 0
    """Bytes of the optimizer's own copy; 0 when it updates `weights`."""
    name: str = ""


@dataclass(frozen=True)
class WorkerLoad:
    """What one micro-batch costs a worker."""

    time: float
    """F + B + W of its units."""
    transfers: float
    """Time of the activations and gradients that it receives."""
    memory: float
    """Bytes of weights, gradients, optimizer state and stashes."""

    @property
    def load(self) -> float:
        """time + transfers."""
        return self.time + self.transfers


@dataclass(frozen=True)
class Partition:
    """Stages and their workers. Give `placement` and `costs` to `schedule` to predict its run."""

    cuts: tuple[int, ...]
    """The first unit of stages 1, 2, ..."""
    placement: tuple[int, ...]
    """The worker of each stage."""
    loads: tuple[WorkerLoad, ...]
    """By worker."""
    bottleneck: float
    """The largest load: no schedule has a shorter time per micro-batch."""
    lower_bound: float
    """No partition that was allowed has a smaller bottleneck."""
    optimal: bool
    """True if the bottleneck is the lower bound."""
    costs: Costs
    """Costs of the stages, with the links."""


def partition(
    units: Sequence[Unit],
    workers: int,
    *,
    schedule: str = "1f1b",
    microbatches: int | None = None,
    chunks: int | None = None,
    layout: Layout | None = None,
    general: bool = False,
    comm: float | None = None,
    links: Link | Sequence[LinkLevel] = (),
    memory_limit: Union[int, Sequence[int], None] = None,
    optimizer_states: float = 2.0,
    shared: Sequence[SharedUnits] = (),
    devices: str | Sequence[str] | None = None,
    unit: str = "",
) -> Partition:
    """Cuts a chain of units into stages for the smallest bottleneck, as `starpipe partition` does.

    schedule: name of the schedule that decides how many stashes a worker holds.
    microbatches: of a step (default: 4 for each worker).
    chunks: stages on each worker (default: the schedule's own number).
    layout: worker of each stage with several chunks.
    general: a worker may get any units, not only consecutive ones.
    comm, links: transfers between workers, as in Costs.
    memory_limit: bytes that a worker may hold: one for all workers, or one for each.
    optimizer_states: optimizer state as a multiple of the weights: 2 for AdamW, 1 for momentum, 0 for SGD.
    shared: parameters that several units use.
    devices: the kind of the workers' devices, cpu or cuda: one for all, or one for each. Needed when units have several.
    unit: of the times, as in Costs.

    Raises InputError when the units do not make so many stages, and for a limit that no found partition keeps; the
    message then has the smallest limit that one keeps. docs/partition.md has the method.
    """
    workers = _whole("workers", workers, 1, _MOST_WORKERS)
    _require_word("schedule", schedule)
    if layout is not None:
        _require_word("layout", layout)
    units = _each("units", units, Unit)
    kinds = units[0].devices if units else ("",)
    max_units = size_limits["units"]
    each: list[Unit] = []
    for number, of in enumerate(units):
        _require_word(f"units: name of unit {number}", of.name)
        if of.devices != kinds:
            raise InputError(f"units: unit {number} has times for other devices than unit 0")
        each.extend([of] * _whole("count", of.count, 1, max_units))
        if len(each) > max_units:
            raise InputError(f"units: more than {max_units}")
    if devices is None:
        if len(kinds) > 1:
            raise InputError(f"devices: the units have times on {' and '.join(kinds)}: give the kind of each worker")
        wanted = list(kinds)
    else:
        wanted = [devices] if isinstance(devices, str) else _list("devices", devices, "words")
        for device in wanted:
            _require_word("devices", device)
        if kinds == ("",):
            raise InputError("devices: the units have times without a kind of device")
        if len(wanted) not in (1, workers):
            raise InputError(f"devices: {len(wanted)} devices for {workers} workers")
    found = _core.partition(
        each, list(_each("shared", shared, SharedUnits)), list(kinds), wanted, workers, schedule,
        4 * workers if microbatches is None else _whole("microbatches", microbatches),
        None if chunks is None else _whole("chunks", chunks), layout, _flag("general", general), _levels(comm, links),
        [] if memory_limit is None else _numbers("memory_limit", memory_limit),
        _number("optimizer_states", optimizer_states, 0, 100),
    )  # fmt: skip
    costs: Costs = found["costs"]
    return Partition(
        cuts=tuple(found["cuts"]),
        placement=tuple(found["placement"]),
        loads=tuple(found["loads"]),
        bottleneck=found["bottleneck"],
        lower_bound=found["lower_bound"],
        optimal=found["optimal"],
        costs=Costs(costs.durations, sizes=costs.sizes, shared=costs.shared, links=costs.links, unit=unit),
    )
