# SPDX-License-Identifier: Apache-2.0
"""Reports of `starpipe train`, read again."""

from __future__ import annotations

import html
import json
import os
from dataclasses import dataclass, replace
from typing import Any

from starpipe import _core
from starpipe._schedule import Schedule
from starpipe._timeline import Timeline


@dataclass(frozen=True)
class Explanation:
    """Why a run took other times than predicted. `print` it for the tables of `starpipe explain`."""

    text: str
    """The tables."""
    figures: dict[str, Any]
    """The same figures, as `starpipe explain --json` has them: times in nanoseconds. docs/explain.md has the keys."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


class Report:
    """A report of `starpipe train` or `sim`, the JSON of `compare -o`, or a schedule with its predicted run.

    A notebook shows it as the report page, where this starpipe was built with the page.
    """

    file: str
    _handle: _core.ReportFile

    def __init__(self, file: str | os.PathLike[str]) -> None:
        """Reads a report, or a schedule in JSON or CSV. Raises InputError, naming the file, for anything else."""
        self.file = os.fspath(file)
        self._handle = _core.read_report(self.file)

    @property
    def figures(self) -> dict[str, Any]:
        """What the file has besides the jobs: configuration, losses, memory, ranks, ... (docs/training.md)."""
        each: list[dict[str, Any]] = [json.loads(run.json) for run in self._handle.runs]
        return each[0] if len(each) == 1 else {"schedules": each}

    @property
    def timelines(self) -> dict[str, Timeline]:
        """The steps by name: "predicted", and "measured" (the step with the median makespan), "simulated" or a policy's name.

        Times are in seconds, of a schedule in the unit of its file. The schedule of a measured step is the one that ran.
        When a `compare` has several schedules, the schedule's name comes first: "1f1b, predicted".
        """
        return {
            f"{run.schedule}, {title}" if run.schedule else title: self._timeline(run, step)
            for run in self._handle.runs
            for title, step in run.timelines
        }

    @property
    def predicted(self) -> Timeline:
        """The predicted step, of the first schedule."""
        return next(iter(self.timelines.values()))

    @property
    def measured(self) -> Timeline | None:
        """The measured step with the median makespan; of a report of `sim` the simulated step.

        None for a schedule, and for a `compare`, whose steps `timelines` has.
        """
        timelines = self.timelines
        return timelines.get("measured") or timelines.get("simulated")

    def _timeline(self, run: _core.ReportRun, step: _core.Step) -> Timeline:
        costs = replace(run.costs, unit=run.unit)
        return Timeline._of(Schedule._of(step.as_run, costs), costs, step.timeline, step=step)

    def explain(self, *what_if: str) -> Explanation:
        """Why the run took other times than predicted, as `starpipe explain` says it.

        what_if: changes such as "comm=0", "worker.2=median" or "schedule=zb-h1"; each answer is what the median step would
        have taken with this change alone.

        Raises InputError for a file without a run and for a change that the run does not have.
        """
        run = self._handle.runs[0].compared
        if run is None:
            _core.require_compared_run(self.file)
            raise AssertionError("a run appeared in the file")
        text, figures = _core.explain(run, list(what_if))
        return Explanation(text, json.loads(figures))

    def html(self) -> str:
        """The report page: one HTML file that needs no network. Raises InputError where starpipe was built without it."""
        return _core.report_page([self._handle])

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes the report page to a file.html."""
        save_page(file, self)

    def _repr_html_(self) -> str | None:
        return _frame(self.html()) if _core.has_page() else None

    def __repr__(self) -> str:
        return f"<starpipe.Report {self.file}>"


def save_page(file: str | os.PathLike[str], *reports: Report) -> None:
    """Writes one report page with several reports side by side, as `starpipe report` does.

    Raises InputError when their times have no common unit, and where starpipe was built without the page.
    """
    name = os.fspath(file)
    _core.require_suffix("save_page", name, [".html"])
    _core.write_file("save_page", name, _core.report_page([report._handle for report in reports]))


def _frame(page: str) -> str:
    """The page inside a notebook. It has scripts of its own and no access to the notebook."""
    return (
        f'<iframe srcdoc="{html.escape(page, quote=True)}" sandbox="allow-scripts allow-downloads" title="starpipe report" '
        'style="width: 100%; height: 45em; border: 1px solid #8888"></iframe>'
    )
