# SPDX-License-Identifier: Apache-2.0
"""`pip` makes a wheel without network, and the wheel works in an empty virtual environment.

Usage: wheel_test.py PROJECT BUILD CMAKE GENERATOR COMPILER, where BUILD has the package. Nothing is compiled: the wheel gets
the libraries of BUILD, and a build by setup.py's own options is configured only. Exits with 77 where venv, setuptools or
wheel are missing.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

PROJECT, BUILD = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
CMAKE, GENERATOR, COMPILER = sys.argv[3:6]
# Not those of the tests' own run: a user's shell has none of them.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}

USE = """
import pathlib, sys
import starpipe
assert pathlib.Path(starpipe.__file__).is_relative_to(sys.prefix), starpipe.__file__
schedule = starpipe.schedule("v-half", workers=4, microbatches=8)
starpipe.check(schedule)
assert starpipe.search(workers=2, microbatches=4, budget=1).makespan > 0
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "starpipe" in line or "libfmt" in line}
assert mapped and all(name.startswith(sys.prefix) for name in mapped), mapped
libraries = {line.split()[-1] for line in open("/proc/self/maps")}
assert not [name for name in libraries if "starpu" in name or "libmpi" in name], libraries
print(starpipe.__version__, starpipe.simulate(schedule).makespan)
"""


def run(*command, **options):
    done = subprocess.run([os.fspath(word) for word in command], capture_output=True, text=True, check=False,
                          **{"env": ENVIRONMENT, **options})  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{command} exits with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def make_wheel(folder):
    """Builds the wheel as `pip install .` does, in a copy of what it reads: pip builds in the folder of the project."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "CMakeLists.txt", "LICENSE", "python"):
        (shutil.copytree if (PROJECT / name).is_dir() else shutil.copy)(PROJECT / name, source / name)
    builder = folder / "builder"
    run(sys.executable, "-m", "venv", "--system-site-packages", builder)
    run(builder / "bin/python", "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder / "wheels", source,
        env={**ENVIRONMENT, "STARPIPE_BUILD": os.fspath(BUILD)})  # fmt: skip
    (wheel,) = (folder / "wheels").iterdir()
    return wheel


def use_wheel(folder, wheel):
    """Installs it into an empty environment, into which this machine's NumPy is linked in place of a download."""
    import numpy

    empty = folder / "empty"
    run(sys.executable, "-m", "venv", empty)
    (packages,) = (empty / "lib").glob("python*/site-packages")
    (packages / "numpy").symlink_to(pathlib.Path(numpy.__file__).parent)
    run(empty / "bin/python", "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    return run(empty / "bin/python", "-c", USE, cwd=folder)


def configure(folder):
    """setup.py's own build needs neither StarPU nor MPI nor OpenBLAS."""
    options = re.findall(r'"(-D[A-Z_]+=\w+)"', (PROJECT / "setup.py").read_text())
    if len(options) < 5:
        sys.exit(f"setup.py has the options {options} only")
    missing = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("MPI", "CLI11", "yaml-cpp", "ZLIB", "CUDAToolkit", "GTest", "benchmark")]
    run(CMAKE, "-S", PROJECT, "-B", folder / "configured", "-G", GENERATOR, f"-DCMAKE_CXX_COMPILER={COMPILER}",
        f"-DPython_EXECUTABLE={sys.executable}", "-DSTARPIPE_BUILD_VIEWER=OFF", *options, *missing,
        env={**ENVIRONMENT, "PKG_CONFIG_LIBDIR": os.fspath(folder), "PKG_CONFIG_PATH": ""})  # fmt: skip


def main():
    missing = [name for name in ("ensurepip", "setuptools", "wheel") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"this interpreter has no {' and no '.join(missing)} (Debian: python3-venv, python3-setuptools, python3-wheel)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        wheel = make_wheel(folder)
        names = zipfile.ZipFile(wheel).namelist()
        for wanted in ("starpipe/py.typed", "starpipe/_core.pyi", "starpipe/__init__.py"):
            if wanted not in names:
                sys.exit(f"the wheel has no {wanted}, but {names}")
        print(wheel.name, use_wheel(folder, wheel), end="")
        configure(folder)


main()
