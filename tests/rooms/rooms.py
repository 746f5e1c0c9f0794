# SPDX-License-Identifier: Apache-2.0
"""Holds the sources against the table of rooms in docs/architecture.md.

A room is a folder of sources, named by its path below src/, include/starpipe/ or the project's root: the headers of
include/starpipe/plan/simulate and the sources of src/plan/simulate are one room, plan/simulate. Each row of the
table names a room and what it may include: other rooms, a whole library (`plan` is all rooms of plan), and the
libraries in EXTERNAL.
"""

import collections
import pathlib
import re

SOURCES = {".hpp", ".cpp", ".cuh", ".cu"}
HEADERS = {".hpp", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)
HEADER_ROW = "| room | what it holds | may include |"

# Other projects' libraries that only some rooms may meet: their headers, and their names in a source that gets them by way
# of a header of ours.
EXTERNAL = {
    "StarPU": (re.compile(r"starpu"), re.compile(r"\bstarpu_(mpi_)?(task|data|worker|tag|codelet|memory|init|shutdown)\w*\s*\(")),
    "MPI": (re.compile(r"mpi\.h$|starpu_mpi"), re.compile(r"\bMPI_[A-Z][a-z]\w*\s*\(")),
    "CUDA": (re.compile(r"cuda|cublas"), re.compile(r"\bcuda[A-Z]\w*\s*\(")),
    "oneDNN": (re.compile(r"oneapi/dnnl/"), re.compile(r"\bdnnl_\w+\s*\(")),
    "OpenBLAS": (re.compile(r"cblas\.h$"), re.compile(r"\b(cblas_\w+|openblas_[gs]et_\w+)\s*\(")),
    "hwloc": (re.compile(r"hwloc"), re.compile(r"\bhwloc_\w+\s*\(")),
    "CLI11": (re.compile(r"CLI/"), re.compile(r"\bCLI::")),
    "zlib": (re.compile(r"zlib\.h$"), re.compile(r"\bcrc32\w*\s*\(")),
    "pybind11": (re.compile(r"pybind11/"), re.compile(r"\b(pybind11|py)::")),
    "yaml-cpp": (re.compile(r"yaml-cpp/"), re.compile(r"\bYAML::")),
}
COMMENT = re.compile(r"//.*?$|/\*.*?\*/", re.M | re.S)

# A source without a header of its own contains one of these: a registration, the program, functions that mpi.h declares,
# functions that the linker calls in place of a library's (--wrap), Python's module.
ALONE = re.compile(r"\bregister_\w+(?:<.+>)?\(|\bint main\(|^extern \"C\" int MPI_|\b__wrap_\w+\(|^PYBIND11_MODULE\(", re.M)

UMBRELLA = "include/starpipe/starpipe.hpp"  # includes what users need, from any room

MAX_FILES = 40  # of one room, headers and sources together
MIN_LINES = 30  # of a private header with one user


def table_of(text):
    """The rooms of the table: {room: what it may include}, in its order."""
    rows = {}
    lines = iter(text.splitlines())
    for line in lines:
        if line.strip() == HEADER_ROW:
            break
    else:
        raise SystemExit(f"docs/architecture.md has no table '{HEADER_ROW}'")
    next(lines)
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3:
            break
        words = re.findall(r"`([^`]+)`", cells[2]) + [name for name in EXTERNAL if re.search(rf"\b{name}\b", cells[2])]
        rows[cells[0].strip("`")] = words
    return rows


def sources(root):
    """{file relative to the root: its text}, of all rooms."""
    found = {}
    for top in ("src", "include/starpipe", "codelets", "python"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix in SOURCES:
                found[file.relative_to(root).as_posix()] = file.read_text()
    found.pop(UMBRELLA, None)
    return found


def room_of(file):
    return str(pathlib.PurePosixPath(file.removeprefix("src/").removeprefix("include/starpipe/")).parent)


def header_named(include, files):
    """The file that an #include "..." of ours names, or None."""
    if include == "starpipe/version.hpp":  # generated
        return "include/starpipe/base/version.hpp"
    for folder in ("include/", "src/", ""):
        if folder + include in files and (folder == "include/") == include.startswith("starpipe/"):
            return folder + include
    return None


def allowed(room, target, may_include):
    return target == room or any(target == word or target.startswith(word + "/") for word in may_include)


def check_edges(files, rooms):
    problems = []
    used = collections.defaultdict(set)
    for file, text in files.items():
        room = room_of(file)
        if room not in rooms:
            problems.append(f"{file}: the table has no room {room}")
            continue
        for quote, include in INCLUDE.findall(text):
            if quote == "<":
                for name, (header, _) in EXTERNAL.items():
                    if not header.search(include):
                        continue
                    used[room].add(name)
                    if name not in rooms[room]:
                        problems.append(f"{file}: {room} may not include {name} (<{include}>)")
                continue
            header = header_named(include, files)
            if header is None:
                problems.append(f'{file}: "{include}" is not a header by its full path')
                continue
            target = room_of(header)
            if target != room:
                used[room].add(target)
            if not allowed(room, target, rooms[room]):
                problems.append(f"{file}: {room} may not include {target} ({include})")
        code = COMMENT.sub("", text)
        for name, (_, call) in EXTERNAL.items():
            found = call.search(code)
            if not found:
                continue
            used[room].add(name)
            if name not in rooms[room]:
                problems.append(f"{file}: {room} may not use {name} ({found.group().strip(' (')})")
    for room, words in rooms.items():
        if not any(room_of(file) == room for file in files):
            problems.append(f"the table's room {room} has no sources")
        for word in words:
            if not any(allowed("", target, [word]) for target in used[room]):
                problems.append(f"the table lets {room} include {word}, but it does not")
    return problems, used


def check_cycles(used, rooms):
    """No room includes itself by way of others."""
    problems = []
    edges = {room: sorted(target for target in used[room] if target in rooms) for room in rooms}
    done, path = set(), []

    def visit(room):
        if room in path:
            problems.append("rooms include each other: " + " -> ".join([*path[path.index(room):], room]))
            return
        if room in done:
            return
        path.append(room)
        for target in edges[room]:
            visit(target)
        path.pop()
        done.add(room)

    for room in rooms:
        visit(room)
    return problems


def check_names(files):
    """A source implements a header of its room, registers something or is a program; and names are told apart: no two
    rooms of a library have files of one stem. A header is not smaller than it is worth."""
    problems = []
    places = collections.defaultdict(list)
    counts = collections.Counter()
    users = collections.defaultdict(set)
    for file, text in files.items():
        path = pathlib.PurePosixPath(file)
        room = room_of(file)
        places[room.split("/")[0] if not room.startswith("codelets") else room, path.stem].append((room, path.suffix))
        counts[room] += 1
        ours = [include for quote, include in INCLUDE.findall(text) if quote == '"']
        for include in ours:
            users[header_named(include, files)].add(file)
        if path.suffix in HEADERS:
            continue
        # On SimGrid simulated_x.cpp takes the place of x.cpp.
        own = [header for stem in (path.stem, path.stem.removeprefix("simulated_")) for header in files
               if room_of(header) == room and pathlib.PurePosixPath(header).stem == stem
               and pathlib.PurePosixPath(header).suffix in HEADERS]
        # clang-format keeps only a header of the file's whole name in the first place.
        first = ours if own and pathlib.PurePosixPath(own[0]).stem != path.stem else ours[:1]
        if own and own[0] not in [header_named(include, files) for include in first]:
            problems.append(f"{file}: does not begin with the header of its name, {own[0]}")
        of_room = [include for include in ours
                   if header_named(include, files) and room_of(header_named(include, files)) == room]
        if not own and not of_room and not ALONE.search(text):
            problems.append(f"{file}: includes no header of its room, registers nothing and has no main()")
    for (library, stem), where in places.items():
        if len({room for room, _ in where}) > 1:
            problems.append(f"{library}: {stem} is a file's name in " + " and in ".join(sorted({r for r, _ in where})))
        if sum(suffix in HEADERS for _, suffix in where) > 1:
            problems.append(f"{library}: two headers are named {stem}")
    for room, count in counts.items():
        if count > MAX_FILES:
            problems.append(f"{room}: {count} files in a room, at most {MAX_FILES}")
    for file, text in files.items():
        path = pathlib.PurePosixPath(file)
        if path.suffix not in HEADERS or file.startswith("include/"):
            continue
        others = {user for user in users[file] if pathlib.PurePosixPath(user).stem.removeprefix("simulated_") != path.stem}
        if len(text.splitlines()) < MIN_LINES and len(others) < 2:
            problems.append(f"{file}: a private header of fewer than {MIN_LINES} lines with one user belongs to its user")
    return problems


def check(root):
    """Returns what is wrong with the tree below `root`, one line each."""
    files = sources(root)
    rooms = table_of((root / "docs/architecture.md").read_text())
    problems, used = check_edges(files, rooms)
    return problems + check_cycles(used, rooms) + check_names(files)
