# SPDX-License-Identifier: Apache-2.0
"""Executes docs/tutorial.ipynb, and compares what its cells print with what the file has; figures may differ.

Usage: tutorial_test.py PACKAGE_ROOT PROJECT STARPIPE; with --write the notebook gets the new outputs. Its times are those
of an idle machine, or of one where the test runs under `chrt -r 5`. Exits with 77 where
nbconvert or ipykernel are missing.
"""

import difflib
import importlib.util
import json
import os
import pathlib
import re
import sys
import tempfile

ROOT, PROJECT, STARPIPE = (pathlib.Path(word).resolve() for word in sys.argv[1:4])
NOTEBOOK = PROJECT / "docs/tutorial.ipynb"
missing = [name for name in ("nbconvert", "nbformat", "ipykernel") if importlib.util.find_spec(name) is None]
if missing:
    print(f"this interpreter has no {' and no '.join(missing)} (Debian: jupyter-nbconvert, python3-ipykernel)")
    sys.exit(77)

import nbformat  # noqa: E402
from nbconvert.preprocessors import ExecutePreprocessor  # noqa: E402


def execute(folder):
    """Runs all cells in an empty folder, with this interpreter as the kernel."""
    kernel = folder / "jupyter/kernels/python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    os.environ.update(JUPYTER_PATH=os.fspath(folder / "jupyter"), JUPYTER_DATA_DIR=os.fspath(folder / "data"),
                      JUPYTER_RUNTIME_DIR=os.fspath(folder / "runtime"), IPYTHONDIR=os.fspath(folder / "ipython"),
                      PYTHONPATH=os.fspath(ROOT), PATH=f"{STARPIPE.parent}:{os.environ['PATH']}")  # fmt: skip
    work = folder / "work"
    work.mkdir()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    ExecutePreprocessor(timeout=120, kernel_name="python3").preprocess(notebook, {"metadata": {"path": os.fspath(work)}})
    return notebook


def shown(notebook):
    """For each cell, what it prints and the kinds of what it shows."""
    cells = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        text = "".join(output.get("text", "") for output in outputs)
        kinds = sorted(kind for output in outputs for kind in output.get("data", {}))
        cells.append(re.sub(r"[-+]?\d+(\.\d+)?", "#", text).split() + kinds)
    return cells


def main():
    with tempfile.TemporaryDirectory() as name:
        executed = execute(pathlib.Path(name))
    if "--write" in sys.argv:
        for cell in executed.cells:
            cell.get("metadata", {}).pop("execution", None)
        nbformat.write(executed, NOTEBOOK)
        return
    kept = nbformat.read(NOTEBOOK, as_version=4)
    for number, (old, new) in enumerate(zip(shown(kept), shown(executed))):
        if old != new:
            sys.exit(f"cell {number} shows something else than docs/tutorial.ipynb has (--write keeps the new outputs):\n" +
                     "\n".join(difflib.unified_diff(old, new, lineterm="")))  # fmt: skip
    print(f"{len(executed.cells)} cells")


main()
