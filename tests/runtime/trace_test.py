# SPDX-License-Identifier: Apache-2.0
"""StarPU's own traces name the jobs: one record for each (s,b,d) of each step, on the rank that w names.

Usage: trace_test.py BINARY STARPU_FXT_TOOL LAUNCHER..., where the launcher starts two ranks.
"""

import collections
import glob
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
from support import CommandTest, mlp_config  # noqa: E402

FXT_TOOL = ""
LAUNCHER = []
STEPS, MICROBATCHES = 2, 4  # of mlp_config


class Traces(CommandTest):
    def records(self):
        """tasks.rec: blocks of "Key: value" lines."""
        return [dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
                for block in self.read("tasks.rec").split("\n\n")]

    def test_jobs_are_named(self):
        self.write("mlp.yaml", mlp_config())
        os.mkdir(self.path("fxt"))
        result = self.run_command("train", "mlp.yaml", launcher=LAUNCHER,
                                  environment={"STARPU_FXT_TRACE": "1", "STARPU_FXT_PREFIX": self.path("fxt") + "/"})
        self.assertEqual(result.returncode, 0, result.stderr)
        files = sorted(glob.glob(self.path("fxt/prof_file_*")))
        self.assertEqual(len(files), 2)
        subprocess.run([FXT_TOOL, "-c", *(word for file in files for word in ("-i", file))], cwd=self.folder, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)

        expected = {f"{kind}({stage},{b})": (kind, stage) for kind in ("F", "BW") for stage in (0, 1)
                    for b in range(MICROBATCHES)}
        seen = collections.Counter()
        for record in self.records():
            name = record.get("Name", "")
            if name not in expected or "StartTime" not in record:
                continue
            kind, stage = expected[name]
            self.assertEqual((record["Model"], int(record["MPIRank"])), (kind, stage), record)
            self.assertLess(float(record["StartTime"]), float(record["EndTime"]))
            seen[name, int(record["Iteration"])] += 1
        self.assertEqual(seen, {(name, step): 1 for name in expected for step in range(STEPS)})
        paje = self.read("paje.trace").splitlines()
        for name in expected:
            # ViTE and StarVZ show the states of workers.
            self.assertTrue(any(line.startswith("20\t") and f'"{name}"' in line for line in paje), name)


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv[1])
    FXT_TOOL = os.path.abspath(sys.argv[2])
    LAUNCHER = sys.argv[3:]
    unittest.main(argv=sys.argv[:1])
