# SPDX-License-Identifier: Apache-2.0
"""`pip` makes a wheel without network, and the wheel works in an empty virtual environment.

Usage: wheel_test.py PROJECT BUILD CMAKE GENERATOR COMPILER, where BUILD has the package. Nothing is compiled: the wheel gets
the libraries of BUILD, and a build by setup.py alone is configured only. Exits with 77 where venv, setuptools or
wheel are missing.
"""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

PROJECT, BUILD = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
CMAKE, GENERATOR, COMPILER = sys.argv[3:6]
# Leaves out the variables of the tests' own run: a user's shell has none of them.
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


# Takes the place of cmake: it configures as asked, compiles nothing, and installs what BUILD has.
STAND_IN = """#!{python}
import subprocess, sys
words = sys.argv[1:]
if words[0] == "--build":
    assert words[2:4] == ["--target", "starpipe_python"] and words[4] == "--parallel" and int(words[5]) > 0, words
    sys.exit(0)
if words[0] == "--install":
    words[1] = {build!r}
sys.exit(subprocess.run([{cmake!r}, *words]).returncode)
"""


def bare_builder(folder):
    """An environment like that in which pip builds a wheel: it has setuptools and wheel, and no NumPy."""
    builder = folder / "bare"
    run(sys.executable, "-m", "venv", builder)
    (packages,) = (builder / "lib").glob("python*/site-packages")
    for name in ("setuptools", "wheel", "_distutils_hack", "pkg_resources"):
        spec = importlib.util.find_spec(name)
        if spec is None or (packages / name).exists():
            continue
        for part in pathlib.Path(spec.submodule_search_locations[0]).parent.glob(f"{name}*"):
            (packages / part.name).symlink_to(part)
    return builder / "bin/python"


def make_own_wheel(folder):
    """setup.py's own build, in a copy of the project: it needs neither StarPU nor MPI nor OpenBLAS, and no NumPy."""
    source, tools = folder / "project", folder / "tools"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "CMakeLists.txt", "LICENSE", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "python", "cmake",
                 "src", "include", "codelets", "viewer", "experiments", "docs"):  # fmt: skip
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, source / name, ignore=shutil.ignore_patterns("node_modules", "images"))
        else:
            shutil.copy(PROJECT / name, source / name)
    tools.mkdir()
    (tools / "cmake").write_text(STAND_IN.format(python=sys.executable, build=os.fspath(BUILD), cmake=CMAKE))
    (tools / "cmake").chmod(0o755)
    missing = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("MPI", "CLI11", "yaml-cpp", "ZLIB", "CUDAToolkit", "GTest", "benchmark")]
    options = " ".join(["-G", f"'{GENERATOR}'", f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DSTARPIPE_BUILD_VIEWER=OFF", *missing])
    run(bare_builder(folder), "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder / "own", source,
        env={**ENVIRONMENT, "PATH": f"{tools}:{ENVIRONMENT['PATH']}", "CMAKE_ARGS": options,
             "PKG_CONFIG_LIBDIR": os.fspath(folder), "PKG_CONFIG_PATH": ""})  # fmt: skip
    (wheel,) = (folder / "own").iterdir()
    return wheel


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
        own = zipfile.ZipFile(make_own_wheel(folder)).namelist()
        if sorted(own) != sorted(names):
            sys.exit(f"the two wheels differ: {sorted(set(own) ^ set(names))}")


main()
