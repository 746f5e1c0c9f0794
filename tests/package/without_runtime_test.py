# SPDX-License-Identifier: Apache-2.0
"""STARPIPE_WITH_RUNTIME=OFF looks for no StarPU and no MPI, and what it compiles is not compiled again with the runtime.

Usage: without_runtime_test.py CMAKE GENERATOR COMPILER PROJECT BUILD, where BUILD has the runtime.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

CMAKE, GENERATOR, COMPILER, PROJECT, BUILD = sys.argv[1:]
RUNTIME_PACKAGES = ("MPI", "CLI11", "yaml-cpp", "ZLIB", "CUDAToolkit")


def cached(build):
    """The options of CMake that decide how `build` compiles."""
    lines = (pathlib.Path(build) / "CMakeCache.txt").read_text().splitlines()
    return [f"-D{line}" for line in lines
            if line.startswith(("CMAKE_BUILD_TYPE:", "CMAKE_CXX_FLAGS", "STARPIPE_SANITIZE:", "CMAKE_UNITY_BUILD:",
                                "CMAKE_DISABLE_PRECOMPILE_HEADERS:"))]


def configure(folder, *options):
    return subprocess.run([CMAKE, "-S", PROJECT, "-B", folder, "-G", GENERATOR, f"-DCMAKE_CXX_COMPILER={COMPILER}",
                           "-DSTARPIPE_WITH_RUNTIME=OFF", *options], capture_output=True, text=True, timeout=100)


def compiled(build):
    """The command for each object file of our libraries."""
    entries = json.loads((pathlib.Path(build) / "compile_commands.json").read_text().replace(str(build), "BUILD"))
    found = ((re.search(r" -o (src/CMakeFiles/starpipe_\S+)", one["command"]), one["command"]) for one in entries)
    return {output[1]: command for output, command in found if output}


class WithoutRuntime(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_it_needs_neither_starpu_nor_mpi(self):
        """A package that CMake must not look for would end the configuration."""
        done = configure(self.folder, *cached(BUILD), *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in RUNTIME_PACKAGES))
        self.assertEqual(done.returncode, 0, done.stderr)
        commands, with_runtime = compiled(self.folder), compiled(BUILD)
        libraries = {re.match(r"src/CMakeFiles/(\w+)\.dir", output)[1].removesuffix("_unhurried") for output in commands}
        self.assertEqual(libraries, {f"starpipe_{name}" for name in ("base", "plan", "model", "codelets")})
        for output, command in commands.items():
            self.assertEqual(command, with_runtime[output])

    def test_the_cuda_code_needs_it(self):
        done = configure(self.folder, "-DSTARPIPE_WITH_CUDA=ON")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("STARPIPE_WITH_RUNTIME is OFF", " ".join(done.stderr.split()))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
