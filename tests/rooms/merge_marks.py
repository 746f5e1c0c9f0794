# SPDX-License-Identifier: Apache-2.0
"""Finds lines that a merge left in a file: the marks around two versions, and the line between them."""

import pathlib
import re
import subprocess

# git puts these at the beginning of a line. Seven equals signs alone also underline a heading in some markups.
AROUND = re.compile(rb"^(<{7}|>{7}|\|{7})( |$)")
BETWEEN = re.compile(rb"^={7}$")
UNDERLINED = (".rst", ".txt")


def check(root, files):
    """A line for each mark in `files`, paths relative to `root`."""
    problems = []
    for name in files:
        lines = (pathlib.Path(root) / name).read_bytes().splitlines()
        for number, line in enumerate(lines, 1):
            if AROUND.match(line) or (BETWEEN.match(line) and not name.endswith(UNDERLINED)):
                problems.append(f"{name}:{number}: a merge left '{line[:40].decode(errors='replace')}'")
    return problems


def tracked_files(root):
    """The files that git has at `root`; None where there is no repository, as in an unpacked archive."""
    done = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=False)
    if done.returncode != 0:
        return None
    names = [name.decode() for name in done.stdout.split(b"\0") if name]
    return [name for name in names if (pathlib.Path(root) / name).is_file()]
