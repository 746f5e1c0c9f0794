# SPDX-License-Identifier: Apache-2.0
"""Jobs: what a stage computes for a micro-batch, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Union

Pass = Literal["F", "B", "W", "BW", "R", "O", "L"]
"""What a job does: F forward, B the gradient of the stage's input, W the gradient of its weights, BW both, R makes the
stash again, O copies it to its home, L copies it back."""

Home = Union[Literal["worker", "none", "host", "disk"], int]
"""Where the stash of a stage and micro-batch waits from F to B. worker: with the worker that computes F. none: nowhere, R
makes it again. host, disk: O copies it to the main memory or a disk of the worker's host, and L copies it back. A number: on
this worker, to which O sends it, and from which L brings it back."""

Discipline = Literal["greedy", "bounded", "ordered"]
"""How a worker uses the priority n. greedy: of the jobs that are ready, the smallest n. bounded: the same within the
memory limits. ordered: exactly in the order of n, waiting for the next job."""


@dataclass(frozen=True, order=True)
class Job:
    """One job (s, b, d) of a schedule."""

    stage: int
    """From 0."""
    microbatch: int
    """From 0."""
    pass_: Pass
    """F, B, W, BW, R, O or L."""

    def __str__(self) -> str:
        return f"{self.pass_}({self.stage},{self.microbatch})"


class Placement(NamedTuple):
    """w(s, b, d): the worker that holds the stage's weights, and the worker that computes."""

    weights: int
    compute: int
