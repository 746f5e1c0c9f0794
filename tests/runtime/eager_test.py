#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Messages over TCP are sent eagerly, so that both directions of a pair carry data at once.

usage: eager_test.py EAGER_PROGRAM LAUNCHER...   (COUNT in the launcher stands for the number of ranks)
"""
import os
import subprocess
import sys
import unittest

PROGRAM, *LAUNCHER = sys.argv[1:]


class Eager(unittest.TestCase):
    def run_program(self, **environment):
        """What the program prints, and its warnings."""
        launcher = ["2" if word == "COUNT" else word for word in LAUNCHER]
        own = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
        result = subprocess.run([*launcher, PROGRAM], capture_output=True, text=True, timeout=120, check=False, env={**own, **environment})
        if result.returncode != 0 or not result.stdout.endswith(("eager\n", "rendezvous\n")):
            self.skipTest("no UCX with these transports here: " + result.stderr)
        if result.stdout.startswith(": "):
            self.skipTest("no UCX here")
        return result.stdout, [line for line in result.stderr.splitlines() if "UCX_" in line]

    def test_over_tcp(self):
        text, warnings = self.run_program(UCX_TLS="tcp,self")
        self.assertRegex(text, r"^TCP \(\S+\): eager\n$")
        self.assertEqual(warnings, [])

    def test_in_shared_memory(self):
        text, warnings = self.run_program()
        if not text.startswith("shared memory"):
            self.skipTest("no shared memory here")
        self.assertRegex(text, r"^shared memory \([a-z, ]+\): rendezvous\n$")
        self.assertEqual(warnings, [])

    def test_a_setting_of_the_user_holds_and_is_told(self):
        line = "of larger messages, TCP carries one direction of a pair of ranks at a time, so a step may take up to twice as long; unset it, or set inf"
        for name in "UCX_RNDV_THRESH", "UCX_RNDV_SEND_NBR_THRESH":
            text, warnings = self.run_program(UCX_TLS="tcp,self", **{name: "64k"})
            self.assertRegex(text, r"rendezvous\n$")
            self.assertEqual(warnings, [f"{name}=64k: {line}"])

    def test_other_settings_are_not_told(self):
        for value in "inf", "auto":
            text, warnings = self.run_program(UCX_TLS="tcp,self", UCX_RNDV_THRESH=value)
            self.assertRegex(text, r": eager\n$")
            self.assertEqual(warnings, [])
        self.assertEqual(self.run_program(UCX_RNDV_THRESH="64k")[1], [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
