# SPDX-License-Identifier: Apache-2.0
"""mypy checks the package, what users write with it, and that the stubs say what the modules have.
Usage: typing_test.py PACKAGE_ROOT. Exits with 77 where there is no mypy."""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1]).resolve()

USE = """
import starpipe
from typing import assert_type
import numpy as np
import numpy.typing as npt

def w(s: int, b: int, d: starpipe.Pass) -> int:
    return s

schedule = starpipe.Schedule(4, 8, 4, placement=w, priority=lambda s, b, d: (d == "F", b), discipline="greedy")
timeline = starpipe.simulate(schedule, starpipe.Costs((1, 2, 1), comm=0.1))
assert_type(timeline.start, npt.NDArray[np.float64])
assert_type(schedule.job(0), starpipe.Job)
assert_type(starpipe.search(workers=2, microbatches=4).lower_bound, float)
"""
MISUSE = {
    "discipline": 'starpipe.Schedule(4, 8, 4, placement=w, priority=w, discipline="fast")',
    "pass": 'starpipe.Schedule(4, 8, 4, placement=w, priority=lambda s, b, d: d == "f")',
    "arguments": 'starpipe.schedule("1f1b", 4, 8)',
}


def mypy(*arguments, **options):
    environment = {**os.environ, "MYPYPATH": os.fspath(ROOT), "PYTHONPATH": os.fspath(ROOT)}
    return subprocess.run([sys.executable, "-m", *arguments], env=environment, capture_output=True, text=True, check=False, **options)


def fail(what, done):
    sys.exit(f"{what}:\n{done.stdout}{done.stderr}")


if mypy("mypy", "--version").returncode != 0:
    print("there is no mypy of this interpreter (Debian: mypy)")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    cache = f"--cache-dir={folder}/cache"
    done = mypy("mypy", "--strict", cache, "-p", "starpipe", cwd=folder)
    if done.returncode != 0:
        fail("the package", done)
    for name, text in {"use": USE, **{name: USE + text + "\n" for name, text in MISUSE.items()}}.items():
        (pathlib.Path(folder) / "used.py").write_text(text)
        done = mypy("mypy", "--strict", cache, "used.py", cwd=folder)
        if (done.returncode != 0) != (name in MISUSE):
            fail(name, done)
    # pybind11's classes have a metaclass of their own, and an __init__ of any arguments where none is bound.
    (pathlib.Path(folder) / "allowed").write_text("starpipe\\._core\\.[A-Z]\\w+(\\.__init__)?\n")
    done = mypy("mypy.stubtest", "starpipe._core", "--allowlist", "allowed", "--ignore-unused-allowlist", cwd=folder)
    if done.returncode != 0:
        fail("stubs", done)
    (pathlib.Path(folder) / "allowed").unlink()
print("types and stubs fit")
