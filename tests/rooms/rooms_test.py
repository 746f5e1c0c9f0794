# SPDX-License-Identifier: Apache-2.0
"""The sources keep to the table of rooms in docs/architecture.md, no file has marks of a merge, and the checks find
what breaks this.

Usage: rooms_test.py PROJECT
"""

import pathlib
import sys
import tempfile

import merge_marks
import rooms

TABLE = f"""
{rooms.HEADER_ROW}
|---|---|---|
| `base` | Errors. | |
| `plan/a` | Numbers. | `base` |
| `plan/b` | Letters. | `plan/a` |
| `runtime` | All. | `plan`, StarPU |
"""

GOOD = {
    "docs/architecture.md": TABLE,
    "include/starpipe/base/error.hpp": "",
    "include/starpipe/plan/a/one.hpp": '#include "starpipe/base/error.hpp"\n',
    "src/plan/a/one.cpp": '#include "starpipe/plan/a/one.hpp"\n',
    "src/plan/b/two.cpp": '#include "starpipe/plan/a/one.hpp"\nconst bool registered = register_two();\n',
    "src/runtime/all.cpp": '#include <starpu.h>\n\n#include "starpipe/plan/a/one.hpp"\nint main() {}\n',
}

# Each entry: changes that break the good tree, and a part of the expected message.
BAD = [
    ({"src/plan/a/one.cpp": '#include "starpipe/plan/a/one.hpp"\n#include "plan/b/x.hpp"\n', "src/plan/b/x.hpp": ""},
     "plan/a may not include plan/b"),
    ({"src/plan/b/two.cpp": '#include "starpipe/base/error.hpp"\n'}, "plan/b may not include base"),
    ({"src/plan/b/two.cpp": "#include <starpu.h>\n"}, "plan/b may not include StarPU"),
    ({"src/plan/b/two.cpp": '#include "starpipe/plan/a/one.hpp"\nconst bool x = register_two(MPI_Init(0, 0));\n'},
     "plan/b may not use MPI (MPI_Init)"),
    ({"src/plan/b/two.cpp": ""}, "lets plan/b include plan/a, but it does not"),
    ({"src/plan/c/three.cpp": ""}, "no room plan/c"),
    ({"src/runtime/all.cpp": None}, "room runtime has no sources"),
    ({"src/plan/b/two.cpp": '#include "../a/one.hpp"\n'}, "is not a header by its full path"),
    ({"src/plan/a/one.cpp": '#include <vector>\n'}, "does not begin with the header of its name"),
    ({"src/plan/b/two.cpp": '#include "starpipe/plan/a/one.hpp"\n'}, "includes no header of its room"),
    ({"src/plan/b/one.cpp": '#include "starpipe/plan/a/one.hpp"\n'}, "one is a file's name in plan/a and in plan/b"),
    ({"src/plan/a/one.hpp": ""}, "two headers are named one"),
    ({"docs/architecture.md": TABLE.replace("| `plan/a` | Numbers. | `base` |", "| `plan/a` | Numbers. | `base`, `plan/b` |"),
      "src/plan/a/one.cpp": '#include "starpipe/plan/a/one.hpp"\n#include "plan/b/x.hpp"\n', "src/plan/b/x.hpp": ""},
     "rooms include each other: plan/a -> plan/b -> plan/a"),
    ({f"src/plan/b/f{i}.cpp": "" for i in range(rooms.MAX_FILES)}, "files in a room"),
    ({"src/plan/a/small.hpp": "", "src/plan/a/one.cpp": '#include "starpipe/plan/a/one.hpp"\n#include "plan/a/small.hpp"\n'},
     "with one user belongs to its user"),
]


def problems_of(files):
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for file, text in files.items():
            if text is None:
                continue
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text)
        return rooms.check(root)


# Texts that a merge left, and texts that only look so.
MARKED = ["a\n<<<<<<< HEAD\nb\n", "b\n>>>>>>> 1234567 (title)\n", "a\n=======\nb\n", "||||||| base\n", "<<<<<<<\n"]
UNMARKED = ["std::cout << x;\n", " <<<<<<< indented\n", "========\n", "a =======\n", '"<<<<<<< HEAD"\n']


def marks_in(text):
    with tempfile.TemporaryDirectory() as name:
        (pathlib.Path(name) / "a.cpp").write_text(text)
        return merge_marks.check(name, ["a.cpp"])


def main():
    failures = [f"no mark was found in {text!r}" for text in MARKED if not marks_in(text)]
    failures += [f"a mark was found in {text!r}" for text in UNMARKED if marks_in(text)]
    files = merge_marks.tracked_files(sys.argv[1])
    if files is None:  # not a repository: all files of the sources
        files = [str(path.relative_to(sys.argv[1])) for folder in ("include", "src", "codelets", "tests", "docs", "python", "scripts")
                 for path in (pathlib.Path(sys.argv[1]) / folder).rglob("*") if path.is_file()]
    failures += merge_marks.check(sys.argv[1], files)
    failures += [f"a good tree is refused: {line}" for line in problems_of(GOOD)]
    for change, wanted in BAD:
        found = problems_of({**GOOD, **change})
        if not any(wanted in line for line in found):
            failures.append(f"{sorted(change)}: '{wanted}' was not found, but {found}")
    failures += rooms.check(pathlib.Path(sys.argv[1]))
    if failures:
        sys.exit("\n".join(failures))
    print(f"{len(BAD)} broken trees were found out; the project keeps to its table")


main()
