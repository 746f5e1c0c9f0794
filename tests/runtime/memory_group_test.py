# SPDX-License-Identifier: Apache-2.0
"""A GPT in a control group whose memory it fits into only when its stashes wait elsewhere, or nowhere.

Skipped where the test may not make a control group with a limit of memory.

Usage: memory_group_test.py STARPIPE.
"""

import contextlib
import os
import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
from support import CommandTest  # noqa: E402

GROUPS = Path("/sys/fs/cgroup")
# Where version 1 and 2 have the groups of memory, and the file with a group's limit.
VERSIONS = ((GROUPS / "memory", "memory.limit_in_bytes"), (GROUPS, "memory.max"))
LIMIT = 300_000_000

# 16 micro-batches of 2 stages have stashes of 17 and 18 MB.
CONFIG = f"""model: {{kind: gpt, layers: 4, hidden: 128, heads: 4, context: 128}}
data: {{path: {Path(__file__).resolve()}}}
training: {{steps: 2, microbatches: 16, microbatch_size: 8}}
schedule: {{name: gpipe, workers: 2}}
"""


EMULATED = """model: {kind: mlp, layers: 2, hidden: 8, inputs: 8, outputs: 2}
data: {kind: synthetic}
training: {steps: 1, microbatches: 2, microbatch_size: 1}
schedule: {name: 1f1b, workers: 2}
runtime: {emulate: {F: 1ms, B: 1ms, W: 1ms}}
"""


def make_group(bytes_):
    """A new group with the limit, or None."""
    for folder, limit in VERSIONS:
        group = folder / f"starpipe-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        with contextlib.suppress(OSError):
            (group / limit).write_text(str(bytes_), encoding="ascii")
            return group
        group.rmdir()
    return None


class MemoryOfAGroup(CommandTest):
    def group(self, bytes_):
        """A launcher into a new group with the limit."""
        group = make_group(bytes_)
        if group is None:
            self.skipTest("no control group with a limit of memory can be made here")
        self.addCleanup(group.rmdir)
        return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]

    def test_emulated_processes_count(self):
        self.write("emulated.yaml", EMULATED)
        launcher = self.group(14_500_000)
        self.refused(["train", "emulated.yaml"], "control group", "process", launcher=launcher)

    def test_homes_make_room(self):
        launcher = self.group(LIMIT)
        self.write("gpt.yaml", CONFIG)
        arguments = ["train", "gpt.yaml"]
        self.refused(arguments, "control group", "stashes", launcher=launcher)
        free = self.losses(*arguments)
        self.assertEqual(len(free), 2)
        for settings in (["schedule.home=none"], ["schedule.home=disk", "runtime.stash_folder=."]):
            options = [word for setting in settings for word in ("--set", setting)]
            self.assertEqual(self.losses(*arguments, *options, launcher=launcher), free, settings)

    def losses(self, *arguments, **options):
        result = self.run_command(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return re.findall(r"loss ([0-9.]+)", result.stderr)


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv.pop(1))
    unittest.main()
