#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A wrong STARPU_SCHED or STARPU_SCHED_LIB ends a program with a line that says what is wrong. (StarPU itself runs
`lws`.)

Usage: wrong_policy_test.py OWN_CHOLESKY CHOLESKY LIBRARY
OWN_CHOLESKY requires the policy; CHOLESKY knows nothing of starpipe. LIBRARY is libstarpipe_sched.so.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

OWN, FOREIGN, LIBRARY = sys.argv[1:4]
del sys.argv[1:4]


def run(command, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STARPU_SCHED")}
    environment.update(variables, STARPU_NCPU="2")
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                          check=False, timeout=60)


class WrongPolicy(unittest.TestCase):
    def refused(self, result, begin, *words):
        lines = [line for line in result.stderr.splitlines() if line.startswith(begin)]
        self.assertEqual((result.returncode, len(lines)), (2, 1), result.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def test_a_program_that_requires_the_policy(self):
        own = [OWN, "3", "4"]
        self.assertEqual(run(own, STARPU_SCHED="starpipe", STARPU_SCHED_LIB=LIBRARY).returncode, 0)
        self.refused(run(own), "cholesky: ", "'lws'", "STARPU_SCHED is not set")
        self.refused(run(own, STARPU_SCHED="prio"), "cholesky: ", "'prio'", "STARPU_SCHED is 'prio'")
        self.refused(run(own, STARPU_SCHED="prio", STARPU_SCHED_LIB=LIBRARY), "cholesky: ", "STARPU_SCHED is 'prio'")
        self.refused(run(own, STARPU_SCHED="starpip"), "cholesky: ", "'lws'", "STARPU_SCHED is 'starpip'")
        self.refused(run(own, STARPU_SCHED="starpipe"), "cholesky: ", "STARPU_SCHED_LIB is not set", "libstarpipe_sched")
        self.refused(run(own, STARPU_SCHED="starpipe", STARPU_SCHED_LIB="/nonexistent/lib.so"), "cholesky: ",
                     "STARPU_SCHED_LIB", "/nonexistent/lib.so", "No such file")
        plan = os.path.join(os.path.dirname(LIBRARY), "libstarpipe_plan.so")
        self.refused(run(own, STARPU_SCHED="starpipe", STARPU_SCHED_LIB=plan), "cholesky: ", f"STARPU_SCHED_LIB is '{plan}'")

    def test_another_copy_of_the_library(self):
        """The program would ask one copy for the core, and the tasks would be in the other."""
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy(LIBRARY, os.path.join(folder, "copy.so"))
            self.refused(run([OWN, "3", "4"], STARPU_SCHED="starpipe", STARPU_SCHED_LIB=copy), "cholesky: ", "another copy")

    def test_a_program_that_knows_nothing_of_starpipe(self):
        """The library is asked for the policy, and ends the process if no library has it."""
        foreign = [FOREIGN, "lws", "3", "4", "1"]
        self.refused(run(foreign, STARPU_SCHED="starpip", STARPU_SCHED_LIB=LIBRARY), "starpipe: ", "'starpip'", "'starpipe'")
        foreign[1] = "prio"
        result = run(foreign, STARPU_SCHED="prio", STARPU_SCHED_LIB=LIBRARY)
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
