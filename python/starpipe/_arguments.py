# SPDX-License-Identifier: Apache-2.0
"""Checks of what users give. Each raises InputError with one line that names the argument and shows the value."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from starpipe._core import InputError, require_few_jobs, size_limits

_GREATEST_INT = 2**31 - 1
_MOST_WORKERS = size_limits["workers"]
_MOST_MICROBATCHES = size_limits["microbatches"]
_MOST_SLICES = size_limits["slices"]
_MOST_STAGES = size_limits["stages"]


def _shown(value: object) -> str:
    """The value as messages show it: in one line, and not longer than a line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a class of the user's, or a number of more digits than Python writes
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:60]} ... {text[-20:]}"


def _require(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InputError(f"{name}: expected {kind.__name__}, got {_shown(value)}")


def _require_function(name: str, value: object, of: str) -> None:
    if not callable(value):
        raise InputError(f"{name}: expected a function of {of}, got {_shown(value)}")


def _require_word(name: str, value: object) -> None:
    """The words themselves are checked where they are read."""
    if not isinstance(value, str):
        raise InputError(f"{name}: expected a word, got {_shown(value)}")


def _whole(name: str, value: Any, least: int = 1, most: int = _GREATEST_INT) -> int:
    """`value` as an int that C++ can hold."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InputError(f"{name}: expected a whole number, got {_shown(value)}") from None
    if not least <= number <= most:
        raise InputError(f"{name}: expected a whole number from {least} to {most}, got {_shown(value)}")
    return number


def _number(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    if isinstance(value, (str, bytes, bool)):
        raise InputError(f"{name}: expected a number, got {_shown(value)}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name}: expected a number, got {_shown(value)}") from None
    if not least <= number <= most:  # also NaN
        bounds = "" if math.isinf(least) else f" from {least:g} to {most:g}"
        raise InputError(f"{name}: expected a number{bounds}, got {_shown(value)}")
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name}: expected True or False, got {_shown(value)}")
    return bool(value)


def _list(name: str, value: Any, of: str) -> list[Any]:
    """The elements of any sequence or array; `of` says what they are."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        try:
            return list(value)
        except TypeError:
            pass  # an array without dimensions
    raise InputError(f"{name}: expected a sequence of {of}, got {_shown(value)}")


def _one_or_more(name: str, value: Any, of: str) -> list[Any]:
    """One value, or a sequence of them: as a list."""
    single = isinstance(value, (str, bytes)) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0
    values = [value] if single else list(value)
    if not values:
        raise InputError(f"{name}: expected {of}, or a sequence of them, got {_shown(value)}")
    return values


def _numbers(name: str, value: Any) -> list[float]:
    """One number, or a sequence of them."""
    return [_number(name, each) for each in _one_or_more(name, value, "a number")]


def _limits(name: str, value: Any) -> list[int]:
    """A memory limit in stashes: one for all workers, or one for each; empty if there is none."""
    return [] if value is None else [_whole(name, each) for each in _one_or_more(name, value, "a whole number")]


def _require_few_jobs(stages: int, microbatches: int) -> None:
    require_few_jobs("microbatches", stages, microbatches)
