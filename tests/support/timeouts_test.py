# SPDX-License-Identifier: Apache-2.0
"""Nothing may hang, tests included: each has a timeout, also one that somebody adds without our functions.

Usage: timeouts_test.py CTEST BUILD_DIR
"""

import json
import subprocess
import sys

ctest, build = sys.argv[1:]
shown = subprocess.run([ctest, "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True)
tests = json.loads(shown.stdout)["tests"]
without = [t["name"] for t in tests if not any(p["name"] == "TIMEOUT" for p in t["properties"])]
if without or not tests:
    sys.exit(f"{len(tests)} tests, without a TIMEOUT: {', '.join(without)} (use starpipe_add_test)")
