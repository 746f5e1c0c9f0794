# SPDX-License-Identifier: Apache-2.0
"""Builds the module of the Python package and its libraries with CMake; pyproject.toml has all else.

STARPIPE_BUILD   a folder in which CMake has built starpipe with this interpreter: its libraries are taken, and nothing is
                 compiled (default: a build of the package alone, in build/wheel)
CMAKE_ARGS       further options for CMake
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent


def run(*command):
    subprocess.run([os.fspath(part) for part in command], check=True)


class CMakeBuild(build_ext):
    """Puts the module and the libraries that it needs into the package."""

    def build_extension(self, ext):
        package = pathlib.Path(self.get_ext_fullpath(ext.name)).resolve().parent
        built = os.environ.get("STARPIPE_BUILD")
        folder = pathlib.Path(built or self.build_temp).resolve()
        if not built:
            run("cmake", "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}",
                "-DSTARPIPE_BUILD_PYTHON=ON", "-DSTARPIPE_WITH_RUNTIME=OFF", "-DSTARPIPE_BUILD_TESTS=OFF",
                "-DSTARPIPE_BUILD_BENCHMARKS=OFF", *shlex.split(os.environ.get("CMAKE_ARGS", "")))  # fmt: skip
            run("cmake", "--build", folder, "--target", "starpipe_python", "--parallel", str(os.cpu_count() or 1))
        run("cmake", "--install", folder, "--component", "wheel", "--prefix", package)
        for link in package.glob("*.so.*"):  # a wheel has no links
            if link.is_symlink():
                library = link.resolve()
                link.unlink()
                library.rename(link)


setup(
    version=re.search(r"project\(starpipe VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1],
    ext_modules=[Extension("starpipe._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
