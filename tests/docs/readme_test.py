# SPDX-License-Identifier: Apache-2.0
"""Runs what README.md says: its console commands, its YAML, and its C++ examples.

Usage: readme_test.py README.md STARPIPE MPIEXEC COMPILER BUILD_DIR [SANITIZERS]
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

readme = pathlib.Path(sys.argv[1]).resolve()
starpipe = pathlib.Path(sys.argv[2]).resolve()
mpiexec = pathlib.Path(sys.argv[3])
compiler = sys.argv[4]
build = pathlib.Path(sys.argv[5]).resolve()
sanitizers = [f"-fsanitize={names}" for names in sys.argv[6:]]
source = readme.parent
text = readme.read_text()

MAIN = {
    "schedules": """
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
    "cpu": """
#include <array>
#include "starpipe/model/layer.hpp"
int main() {
  const auto relu = starpipe::model::make_layer({.kind = "relu", .name = "", .rows = 1, .columns = 3, .options = {}});
  const std::array input = {-1.0F, 0.5F, 2.0F};
  const std::array gradient = {1.0F, 1.0F, 3.0F};
  std::array<float, 3> output{}, stash{}, back{};
  relu->forward({}, input, output, stash, {});
  relu->backward_input({}, stash, gradient, back, {});
  return output == std::array{0.0F, 0.5F, 2.0F} && back == std::array{0.0F, 1.0F, 3.0F} ? 0 : 1;
}
""",
}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def run(command, cwd, env):
    done = subprocess.run(command, cwd=cwd, env=env, shell=isinstance(command, str), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"README: {command!r} exits with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def console_commands(folder, env):
    # As in a clone, but what the commands write stays out of it.
    (folder / "experiments").symlink_to(source / "experiments")
    count = 0
    for block in blocks("console"):
        command = ""
        expected = []
        for line in [*block.splitlines(), "$ "]:
            if not line.startswith("$ "):
                expected.append(line)
                continue
            if command:
                out = run(command, folder, env)
                count += 1
                if expected and [l.rstrip() for l in out.splitlines()] != [l.rstrip() for l in expected]:
                    sys.exit(f"README: {command!r} prints\n{out}\ninstead of\n" + "\n".join(expected))
            command, expected = line[2:].strip(), []
    return count


def yaml_examples(folder, env):
    for number, block in enumerate(blocks("yaml")):
        file = folder / f"example{number}.yaml"
        file.write_text(block)
        run([starpipe, "simulate", file], folder, env)
    return len(blocks("yaml"))


def cpp_examples(folder, env):
    count = 0
    for block in blocks("cpp"):
        path = pathlib.PurePath(block.splitlines()[0].removeprefix("// "))
        if (source / path).exists():
            sys.exit(f"README: {path} exists already")
        example = folder / path.name
        example.write_text(block)
        main = folder / f"main_{path.name}"
        main.write_text(MAIN[path.parent.name])
        program = folder / path.stem
        libraries = ["-L", build / "lib", "-lstarpipe_model", "-lstarpipe_plan", f"-Wl,-rpath,{build / 'lib'}"]
        run([compiler, "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", source / "include", *sanitizers, example, main,
             *libraries, "-o", program], folder, env)
        run([program], folder, env)
        count += 1
    return count


def links():
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
        if "://" not in target and not (source / target).exists():
            sys.exit(f"README: there is no {target}")


with tempfile.TemporaryDirectory() as name:
    temporary = pathlib.Path(name)
    environment = dict(os.environ)
    run(["cmake", "--install", build, "--prefix", temporary / "prefix"], temporary, environment)
    environment["CMAKE_PREFIX_PATH"] = str(temporary / "prefix")
    environment["PATH"] = f"{starpipe.parent}:{mpiexec.parent}:{environment['PATH']}"
    links()
    print(console_commands(temporary, environment), "commands")
    print(yaml_examples(temporary, environment), "YAML examples")
    print(cpp_examples(temporary, environment), "C++ examples")
