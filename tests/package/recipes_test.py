#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes of packaging/, as far as they can be checked without Spack and Apptainer: they name what the project has, and
the same versions.

usage: recipes_test.py SOURCE_DIR
"""
import contextlib
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

SOURCE = pathlib.Path(sys.argv[1]).resolve()
SPACK = SOURCE / "packaging/spack/spack_repo/starpipe"
APPTAINER = SOURCE / "packaging/apptainer/starpipe.def"
# What cmake/Dependencies.cmake and cmake/StarPU.cmake find, and Spack's name for it.
LIBRARIES = {"fmt": "fmt", "nlohmann_json": "nlohmann-json", "yaml-cpp": "yaml-cpp", "CLI11": "cli11", "ZLIB": "zlib-api",
             "openblas": "openblas", "hwloc": "hwloc", "MPI": "mpi", "PkgConfig": "pkgconfig"}
# Those that need no package: part of the compiler, or of cuda, which Spack's CudaPackage depends on.
WITHOUT_PACKAGE = {"Threads", "CUDAToolkit"}


def read(name):
    return (SOURCE / name).read_text()


def cmake_options():
    return set(re.findall(r"(?m)^(?:option|set)\((STARPIPE_\w+)", read("CMakeLists.txt")))


class Directives:
    """Takes the place of Spack's functions, and keeps what they were called with."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments, **options: self.calls.append((name, arguments, options))

    def of(self, name):
        return [arguments[0] for called, arguments, _ in self.calls if called == name]


class InstallError(Exception):
    """Takes the place of Spack's."""


def load(package):
    """The class of a package.py, and the directives in it."""
    directives = Directives()
    spack = types.ModuleType("spack.package")
    # Only what Spack's module has: a recipe imports the others from the modules of build systems.
    names = "version variant depends_on requires conflicts license".split()
    for name in names:
        setattr(spack, name, getattr(directives, name))
    spack.InstallError = InstallError
    spack.__all__ = [*names, "InstallError"]
    modules = {"spack": types.ModuleType("spack"), "spack.package": spack}
    for module, base in (("spack_repo.builtin.build_systems.cmake", "CMakePackage"),
                         ("spack_repo.builtin.build_systems.cuda", "CudaPackage"),
                         ("spack_repo.builtin.packages.starpu.package", "Starpu")):
        parts = module.split(".")
        for end in range(1, len(parts)):
            modules.setdefault(".".join(parts[:end]), types.ModuleType(parts[end - 1]))
        modules[module] = types.ModuleType(module)
        setattr(modules[module], base, type(base, (), {}))
    modules["spack_repo.builtin.build_systems.cmake"].generator = directives.generator
    with unittest.mock.patch.dict(sys.modules, modules):
        spec = importlib.util.spec_from_file_location("recipe", SPACK / "packages" / package / "package.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return getattr(module, package.capitalize()), directives


class Spack(unittest.TestCase):
    def setUp(self):
        self.package, self.directives = load("starpipe")

    def test_every_library_has_its_package(self):
        found = set(re.findall(r"find_package\((\w[\w-]*)", read("cmake/Dependencies.cmake") + read("cmake/StarPU.cmake")))
        found |= set(re.findall(r"pkg_check_modules\((\w+)", read("cmake/Dependencies.cmake")))
        self.assertEqual(found - WITHOUT_PACKAGE, set(LIBRARIES))
        packages = {re.match(r"[\w-]+", spec)[0] for spec in self.directives.of("depends_on")}
        self.assertLessEqual(set(LIBRARIES.values()) | {"starpu"}, packages)

    def test_versions(self):
        specs = self.directives.of("depends_on")
        minimum = re.search(r"starpu_minimum=(\S+)", read("scripts/lib.sh"))[1]
        self.assertIn(f"starpu@{minimum}:1.4+mpi", specs)
        cmake = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", read("CMakeLists.txt"))[1]
        self.assertIn(f"cmake@{cmake}:", specs)

    def test_options_of_cmake(self):
        given = {}
        package = self.package()
        package.run_tests = True
        package.define = given.__setitem__
        package.define_from_variant = given.__setitem__
        variants = {"cuda_arch": types.SimpleNamespace(value=("80", "90"))}
        package.spec = types.SimpleNamespace(satisfies=lambda spec: spec == "+cuda", variants=variants)
        package.cmake_args()
        self.assertEqual(given.pop("CMAKE_CUDA_ARCHITECTURES"), ("80", "90"))
        self.assertEqual(given, {"STARPIPE_WITH_CUDA": "cuda", "STARPIPE_BUILD_TESTS": True,
                                 "STARPIPE_BUILD_BENCHMARKS": False})
        self.assertLessEqual(set(given), cmake_options())

    def test_gpus_need_an_architecture(self):
        """Spack's "none" reaches CMake as the name of an architecture."""
        self.assertIn(("conflicts", ("cuda_arch=none",), "+cuda"),
                      [(name, arguments, options.get("when")) for name, arguments, options in self.directives.calls])

    def test_the_generator_has_its_package(self):
        self.assertEqual(self.directives.of("generator"), ["ninja"])
        self.assertIn("ninja", self.directives.of("depends_on"))

    def test_the_source_is_this_clone(self):
        self.assertEqual(self.package.git, SOURCE.as_uri())
        self.assertIn("namespace: starpipe", (SPACK / "repo.yaml").read_text())

    def test_starpu_is_changed_as_by_the_setup(self):
        source = ("STARPU_VALGRIND_YIELD();\n\t\t/* let others run, not\n\t\t   monopolizing it while polling */\n"
                  "\t\tSTARPU_PTHREAD_MUTEX_UNLOCK(&lock);\n\t\tSTARPU_VALGRIND_YIELD();\n\t\tSTARPU_PTHREAD_MUTEX_LOCK(&lock);\n"
                  "\t\tSTARPU_VALGRIND_YIELD();\n")
        setup = re.search(r"(?ms)^patch_polling\(\) \{.*?^\}$", read("scripts/setup"))[0]
        starpu, _ = load("starpu")
        results = []
        for change in (lambda: starpu.patch(None),
                       lambda: subprocess.run(["bash", "-euc", f"{setup}\nversion=1.4\npatch_polling"], check=True)):
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                for root in (pathlib.Path(), pathlib.Path("source")):
                    (root / "mpi/src/mpi").mkdir(parents=True)
                    (root / "mpi/src/mpi/starpu_mpi_mpi.c").write_text(source)
                change()
                texts = {(root / "mpi/src/mpi/starpu_mpi_mpi.c").read_text() for root in (pathlib.Path(), pathlib.Path("source"))}
                results.append(texts - {source})
        self.assertEqual(results[0], results[1])
        self.assertEqual([text.count("sched_yield();") for text in results[0]], [1])

    def test_another_starpu_is_refused(self):
        """One without the place to change would be built without the change, and the user would not know."""
        starpu, _ = load("starpu")
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            source = pathlib.Path("mpi/src/mpi/starpu_mpi_mpi.c")
            source.parent.mkdir(parents=True)
            for text in ("STARPU_VALGRIND_YIELD();\n", "/* monopolizing it while polling */\n"):
                source.write_text(text)
                with self.assertRaisesRegex(InstallError, "polling loop"):
                    starpu.patch(None)
                self.assertEqual(source.read_text(), text)


class Apptainer(unittest.TestCase):
    def setUp(self):
        header, *parts = re.split(r"(?m)^%(\w+)\n", APPTAINER.read_text())
        self.header = header
        self.sections = dict(zip(parts[::2], parts[1::2]))

    def test_sections(self):
        self.assertEqual(set(self.sections), {"files", "post", "environment", "test", "runscript", "help"})
        for name in ("post", "environment", "test", "runscript"):
            subprocess.run(["bash", "-n"], input=self.sections[name], text=True, check=True)
        self.assertIn(f"packaging/apptainer/{APPTAINER.name}", self.header)

    def test_commands_and_options_exist(self):
        post = self.sections["post"]
        for script in re.findall(r"scripts/\w+", post):
            self.assertTrue((SOURCE / script).exists(), script)
        presets = {preset["name"] for preset in json.loads(read("CMakePresets.json"))["configurePresets"]}
        self.assertLessEqual(set(re.findall(r"--preset (\w+)", post)), presets)
        options = set(re.findall(r"-D(STARPIPE_\w+)", post))
        self.assertTrue(options)
        self.assertLessEqual(options, cmake_options())
        tar = re.search(r"\S+\.tar", self.sections["files"])[0]
        self.assertIn(f"--output {tar} HEAD", self.header)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
