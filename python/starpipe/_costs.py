# SPDX-License-Identifier: Apache-2.0
"""What passes, data and transfers cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, Union

import numpy as np

from starpipe._arguments import _flag, _list, _number, _one_or_more, _require, _shown, _whole
from starpipe._core import InputError

Value = TypeVar("Value")


@dataclass(frozen=True)
class Durations:
    """Time of each pass of one stage, in any one unit. A fused backward pass BW lasts B + W."""

    F: float = 1.0
    B: float = 1.0
    W: float = 1.0


@dataclass(frozen=True)
class StageSizes:
    """Sizes in bytes of the data of one stage and one micro-batch. All zero when no model is known."""

    activation: int = 0
    """The stage's output."""
    gradient: int = 0
    """The gradient with respect to the stage's output."""
    stash: int = 0
    """What F keeps for B and W."""
    gradient_stash: int = 0
    """What B keeps for W where the backward pass is split."""
    weights: int = 0
    """The stage's own parameters, as passes read them."""
    master: int = 0
    """The optimizer's own copy of the parameters; 0 when it updates `weights`."""
    has_weights: bool = True
    """True if the stage has parameters of its own."""
    adds_inputs: bool = False
    """True if the stage adds its inputs. Then the preceding stages all read one gradient of the same datum."""
    keys_values: int = 0
    """Of a slice: what later slices of its sequences read of it (attention)."""
    keys_values_gradient: int = 0
    """Their gradient, which later slices hand back."""
    has_keys_values: bool = True
    """True if later slices read anything of the stage."""


@dataclass(frozen=True)
class SharedWeights:
    """Parameters that several stages use. The holders of the first stage's weights hold them."""

    stages: tuple[int, ...]
    """Ascending."""
    weights: int
    """Bytes, as in StageSizes."""
    master: int = 0
    """Bytes of the optimizer's own copy; 0 when it updates `weights`."""


@dataclass(frozen=True)
class LinkTime:
    """The time of a transfer of some bytes."""

    bytes: int
    time: float


@dataclass(frozen=True)
class Link:
    """The cost of a transfer that has its link for itself: alpha + beta * bytes, or by a table."""

    alpha: float = 0.0
    """Time of each transfer, its latency."""
    beta: float = 0.0
    """Time of each byte, the inverse of the bandwidth."""
    times: tuple[LinkTime, ...] = ()
    """The table, ascending; empty for a straight line. Times between its sizes are interpolated, from alpha for 0 bytes. Beyond its
    last size each byte takes beta."""


@dataclass(frozen=True)
class LinkPort:
    """A port, in and out, whose bandwidth differs from the other ports of its level."""

    member: int
    beta: float
    """Time of each byte."""


Sharing = Literal["none", "in-order", "fair"]
"""How transfers through one port delay each other. none: they do not. in-order: they run sequentially. fair: transfers under
way share the bandwidth, max-min fairly."""


@dataclass(frozen=True)
class LinkLevel:
    """One level of a machine, such as NVLink in a node or the network between nodes.

    It connects its members like a switch. The members of the first level are workers, the members of any other level are the
    groups of the level before.
    """

    link: Link
    """Latency and time per byte of each member's port, in and out."""
    workers: int = 0
    """Workers of a group: workers 0 to workers - 1 are the first. Not read of the last level, which has all workers."""
    sharing: Sharing = "none"
    """How transfers through one port delay each other."""
    name: str = ""
    """For people."""
    ports: tuple[LinkPort, ...] = ()
    """Those that differ, ascending by member."""


@dataclass(frozen=True)
class HomeLink:
    """The link between a worker and the host, or the disk, to which it copies stashes."""

    link: Link
    """Of a copy that has it for itself."""
    workers: int = 1
    """So many neighbouring workers share a link, fairly."""
    memory: int | None = None
    """Bytes of stashes that these workers may have there at once; None: no limit."""


@dataclass(frozen=True)
class Overlap:
    """How long a worker takes for a pair: F and a backward pass at once."""

    factor: float = 1.0
    """Of the sum of both durations, where there is no time."""
    F_B: float | None = None
    """Of F and B, on any stages."""
    F_BW: float | None = None
    """Of F and BW, on any stages."""


DurationsLike = Union[Durations, tuple[float, float, float]]


def _durations(value: DurationsLike) -> Durations:
    if isinstance(value, Durations):
        return value
    try:
        F, B, W = value
    except (TypeError, ValueError):
        raise InputError(f"durations: expected Durations or three times (F, B, W), got {_shown(value)}") from None
    return Durations(*(_number("durations", time) for time in (F, B, W)))


def _all_durations(value: DurationsLike | Sequence[DurationsLike]) -> tuple[Durations, ...]:
    if isinstance(value, Durations):
        return (value,)
    try:
        values = _list("durations", value, "times")
    except InputError:
        raise InputError(f"durations: expected Durations, three times (F, B, W), or one of these a stage, got {_shown(value)}") from None
    if len(values) == 3 and not any(isinstance(one, (Durations, tuple, list, np.ndarray)) for one in values):
        return (_durations((values[0], values[1], values[2])),)
    return tuple(_durations(one) for one in values)


def _levels(comm: float | None, links: Link | Sequence[LinkLevel]) -> tuple[LinkLevel, ...]:
    """The levels that `comm` or `links` describe; none when transfers take no time."""
    levels = (LinkLevel(links),) if isinstance(links, Link) else _each("links", links, LinkLevel)
    if comm is not None:
        if levels:
            raise InputError("comm: does not apply together with links")
        levels = (LinkLevel(Link(alpha=_number("comm", comm))),)
    return () if levels == (LinkLevel(Link()),) else levels


def _each(name: str, values: Sequence[Value], kind: type[Value]) -> tuple[Value, ...]:
    """The elements of a sequence of dataclasses."""
    elements = _list(name, values, kind.__name__)
    for element in elements:
        _require(name, element, kind)
    return tuple(elements)


def _overlap(value: Overlap | float | None) -> Overlap | None:
    """Checks how long pairs take."""
    if value is None:
        return None
    overlap = value if isinstance(value, Overlap) else Overlap(factor=value)
    times = {"overlap.F_B": overlap.F_B, "overlap.F_BW": overlap.F_BW}
    of = {name: None if time is None else _number(name, time, 0, 1e99) for name, time in times.items()}
    return Overlap(_number("overlap", overlap.factor, 0, 1), of["overlap.F_B"], of["overlap.F_BW"])


@dataclass(frozen=True, init=False)
class Costs:
    """Durations, sizes and the price of transfers. Immutable.

    `durations` and `sizes` have one entry for each stage, or a single one for all. With `slices` K, where slices of a sequence
    differ, they have K for each stage. All times have one unit: `unit`.
    """

    durations: tuple[Durations, ...]
    sizes: tuple[StageSizes, ...]
    slices: int
    shared: tuple[SharedWeights, ...]
    links: tuple[LinkLevel, ...]
    prefetch: bool
    unit: str
    workers_of_rank: int
    ordered_messages: bool
    relays: bool
    messages_pass_hosts: bool
    host: HomeLink | None
    disk: HomeLink | None
    peer: HomeLink | None
    overlap: Overlap | None

    def __init__(
        self,
        durations: DurationsLike | Sequence[DurationsLike] = Durations(),
        comm: float | None = None,
        links: Link | Sequence[LinkLevel] = (),
        sizes: StageSizes | Sequence[StageSizes] = StageSizes(),
        shared: Sequence[SharedWeights] = (),
        prefetch: bool = True,
        unit: str = "",
        workers_of_rank: int = 1,
        ordered_messages: bool = False,
        relays: bool = False,
        messages_pass_hosts: bool = False,
        copy: float | None = None,
        host: HomeLink | None = None,
        disk: HomeLink | None = None,
        peer: HomeLink | None = None,
        slices: int = 1,
        overlap: Overlap | float | None = None,
    ) -> None:
        """Makes the costs of a schedule's stages.

        durations: of all stages, or a sequence with one entry a stage. Three numbers stand for F, B and W.
        comm: time of any transfer between two workers, in place of `links`.
        links: between workers: one Link for all pairs, or the levels of a machine, innermost first. Empty: transfers
            take no time.
        sizes: of all stages, or a sequence with one entry a stage.
        shared: parameters that several stages use.
        prefetch: whether transfers overlap compute. Without, a worker fetches a job's inputs once it has picked the job.
        unit: of all times: "s", or "" when it has no name. Pictures show short times in seconds as ms or µs.
        workers_of_rank: so many neighbouring workers are a rank. With prefetch, a rank receives a datum of another rank
            once for all of its workers, and transfers from one of its workers to another follow each other.
        ordered_messages: whether messages from one rank to another pass one at a time, on levels with fair sharing.
        relays: whether weights that several other ranks read are passed on from rank to rank, in segments.
        messages_pass_hosts: whether messages from one rank to another also pass the links of `host`, at both ends, as those
            of GPUs without GPUDirect do. Needs `host`.
        copy: time of any copy of a stash to its home, and back, in place of `host`, `disk` and `peer`.
        host, disk: links to these homes of stashes. A schedule with such homes needs them.
        peer: link of copies to other workers, and back, which then delay no other transfer. Without it they are
            transfers on `links`.
        overlap: how long pairs take; a number is the factor of `Overlap`. Without it the jobs of a pair follow each other as other
            jobs do, and neither waits for the other.
        slices: K if `durations` and `sizes` have an entry for each stage and slice: that of stage s and slice k is s K + k.

        Raises InputError for values of another form, for both `comm` and `links`, and for `copy` with `host`, `disk` or `peer`.
        """
        each = _all_durations(durations)
        if unit not in ("", "s"):
            raise InputError(f"unit: expected 's', or '' for a unit without a name, got {_shown(unit)}")
        homes = {"host": host, "disk": disk, "peer": peer}
        for name, home in homes.items():
            if home is not None:
                _require(name, home, HomeLink)
                _whole(f"{name}.workers", home.workers, 1)
                if copy is not None:
                    raise InputError(f"copy: does not apply together with {name}")
            elif copy is not None:
                homes[name] = HomeLink(Link(alpha=_number("copy", copy, 0, 1e99)))
        for name, value in (
            ("durations", each),
            ("sizes", _each("sizes", _one_or_more("sizes", sizes, "StageSizes"), StageSizes)),
            ("slices", _whole("slices", slices, 1)),
            ("shared", _each("shared", shared, SharedWeights)),
            ("links", _levels(comm, links)),
            ("prefetch", _flag("prefetch", prefetch)),
            ("unit", unit),
            ("workers_of_rank", _whole("workers_of_rank", workers_of_rank, 1)),
            ("ordered_messages", _flag("ordered_messages", ordered_messages)),
            ("relays", _flag("relays", relays)),
            ("messages_pass_hosts", _flag("messages_pass_hosts", messages_pass_hosts)),
            ("host", homes["host"]),
            ("disk", homes["disk"]),
            ("peer", homes["peer"]),
            ("overlap", _overlap(overlap)),
        ):
            object.__setattr__(self, name, value)
