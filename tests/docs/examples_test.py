# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of one page, in the order of the page, in a temporary folder that looks like a built clone.

Usage: examples_test.py PAGE SOURCE_DIR BUILD_DIR STARPIPE MPIEXEC COMPILER [SANITIZERS]

console   "$ COMMAND" must succeed; lines below it are its exact output. Lines that begin with "starpipe: " are an
          error message: the command must print them on standard error and exit with 2.
text      straight after a console block: the output of the last command, on either stream. Figures may differ, and a
          line may continue (a search that its budget ended says so).
yaml      a first line "# FILE" names a file for the commands below; without it the block is a configuration, and
          `starpipe simulate` must take it.
pycon     a session of Python with the package starpipe; the sessions of a page share their names. What they print is
          compared. Left out where BUILD has no package.
cpp       a first line "// FILE" names the file; a file in a folder is a source of the tree, compiled and run with the
          main program below. A file that exists has the block's lines, and other blocks build and run it.
Blocks in other languages (sh) are not run.
"""

import doctest
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

page, source, build, starpipe, mpiexec = (pathlib.Path(word).resolve() for word in sys.argv[1:6])
compiler = sys.argv[6]
sanitizers = [f"-fsanitize={names}" for names in sys.argv[7:]]

MAIN = {
    "src/plan/schedules": """
#include <cstdio>
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
int main() {
  using namespace starpipe::plan;
  const Schedule schedule = make_schedule("gpipe-fifo", {.workers = 4, .microbatches = 8});
  const double makespan = simulate(schedule).makespan;
  std::printf("%g\\n", makespan);
  return makespan == 33 ? 0 : 1;  // (8 + 3) slots of F + B + W
}
""",
    "codelets/cpu": """
#include <array>
#include "starpipe/model/layer.hpp"
int main() {
  const auto relu = starpipe::model::make_layer({.kind = "relu", .name = "", .rows = 1, .columns = 3, .options = {}});
  const std::array input = {-1.0F, 0.5F, 2.0F};
  const std::array gradient = {1.0F, 1.0F, 3.0F};
  std::array<float, 3> output{}, stash{}, back{};
  relu->forward({{}, input, output, stash, {}});
  relu->backward_input({{}, stash, gradient, back, {}});
  return output == std::array{0.0F, 0.5F, 2.0F} && back == std::array{0.0F, 1.0F, 3.0F} ? 0 : 1;
}
""",
}


def fail(message):
    sys.exit(f"{page.name}: {message}")


def execute(command, folder, env):
    shell = isinstance(command, str)
    return subprocess.run(command, cwd=folder, env=env, shell=shell, capture_output=True, text=True, timeout=300, check=False)


def run(command, folder, env):
    """A command that must succeed."""
    done = execute(command, folder, env)
    if done.returncode != 0:
        fail(f"{command!r} exits with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def lines(text):
    return [line.rstrip() for line in text.splitlines()]


def console(block, folder, env):
    """Runs the commands of a block and returns the last one's result."""
    done = None
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, _, expected = part.partition("\n")
        wrong = expected.startswith("starpipe: ")
        done = execute(command, folder, env) if wrong else run(command, folder, env)
        if wrong and done.returncode != 2:
            fail(f"{command!r} exits with {done.returncode} instead of 2")
        printed = done.stderr if wrong else done.stdout
        if expected and lines(printed) != lines(expected):
            fail(f"{command!r} prints\n{printed}\ninstead of\n{expected}")
    return done


def without_figures(text):
    text = re.sub(r"[-+]?\d+(\.\d+)?", "#", text)
    return [re.sub(r"\s+", " ", re.sub(r"# [KMGT]i?B", "# B", line)) for line in lines(text)]


def alike(shown, printed):
    shown, printed = without_figures(shown), without_figures(printed)
    return len(shown) == len(printed) and all(long.startswith(short) for short, long in zip(shown, printed))


def check_form(block, done):
    """Checks a text block against the output of a command."""
    if not alike(block, done.stdout) and not alike(block, done.stderr):
        fail(f"{done.args!r} prints\n{done.stdout}{done.stderr}\nwhich has not the form of\n{block}")


def file_of(block, comment):
    """The file that the first line of a block names, if any."""
    named = re.match(rf"{comment} (\S+\.\w+)$", block.partition("\n")[0])
    return pathlib.PurePath(named[1]) if named else None


def yaml_file(block, folder, env):
    file = file_of(block, "#")
    (folder / (file or "example.yaml")).write_text(block)
    if not file:
        run([starpipe, "simulate", "example.yaml"], folder, env)


def cpp_file(block, folder, env):
    path = file_of(block, "//")
    if not path:
        fail("a C++ example without the name of its file")
    if (source / path).exists():
        if block.partition("\n")[2] not in (source / path).read_text():
            fail(f"{path} has not the lines of its example")
        return
    example = folder / path.name
    example.write_text(block)
    if str(path.parent) == ".":
        return
    main = folder / f"main_{path.name}"
    main.write_text(MAIN[str(path.parent)])
    program = folder / path.stem
    libraries = ["-L", build / "lib", "-lstarpipe_model", "-lstarpipe_plan", f"-Wl,-rpath,{build / 'lib'}"]
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    run([compiler, "-std=c++20", *warnings, "-I", source / "include", *sanitizers, example, main, *libraries, "-o", program],
        folder, env)  # fmt: skip
    run([program], folder, env)


def pycon(block, folder, session):
    """Runs a session of Python, with the names of those before it."""
    if "to_pandas" in block and importlib.util.find_spec("pandas") is None:
        print(f"{page.name}: a session is left out: no pandas (Debian: python3-pandas)")
        return
    test = doctest.DocTestParser().get_doctest(block, session, page.name, page.name, 0)
    test.globs = session
    before = os.getcwd()
    os.chdir(folder)
    try:
        failed = doctest.DocTestRunner(verbose=False).run(test, clear_globs=False).failed
    finally:
        os.chdir(before)
    if failed:
        fail("a session of Python prints other lines, see above")


def has_package():
    return any((build / "python/starpipe").glob("_core*.so"))


def launcher(folder):
    """Returns a folder with an mpiexec that is this build's: where two MPIs are installed, the system's may be the other."""
    bin_folder = folder / ".bin"
    bin_folder.mkdir()
    command = bin_folder / "mpiexec"
    command.write_text(f'#!/bin/sh\nexec "{mpiexec}" "$@"\n')
    command.chmod(0o755)
    return bin_folder


def main():
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$(?=\n*(```text)?)", page.read_text(), re.M | re.S)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        env = dict(os.environ)
        env["PATH"] = f"{starpipe.parent}:{launcher(folder)}:{env['PATH']}"
        if any("cmake" in block for language, block, _ in blocks if language == "console"):
            run(["cmake", "--install", build, "--prefix", folder / "prefix"], folder, env)
            env["CMAKE_PREFIX_PATH"] = str(folder / "prefix")
        for link, target in (("experiments", source / "experiments"), ("include", source / "include"), ("build", build)):
            (folder / link).symlink_to(target)
        sys.path.insert(0, str(build / "python"))
        session, printed = {}, None
        for language, block, text_follows in blocks:
            if language == "text" and printed:
                check_form(block, printed)
            printed = None
            if language == "console":
                done = console(block, folder, env)
                printed = done if text_follows else None
            elif language == "yaml":
                yaml_file(block, folder, env)
            elif language == "cpp":
                cpp_file(block, folder, env)
            elif language == "pycon" and has_package():
                pycon(block, folder, session)
    print(f"{page.name}: {sum(language in ('console', 'yaml', 'cpp', 'pycon') for language, _, _ in blocks)} blocks")


main()
