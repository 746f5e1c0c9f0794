# SPDX-License-Identifier: Apache-2.0
"""The page's sources have no errors of types. Skipped where the build could not install the page's packages.

Usage: types_test.py NODE VIEWER_FOLDER
"""

import subprocess
import sys
from pathlib import Path

from browser import SKIPPED

node, viewer = sys.argv[1:]
compiler = Path(viewer) / "node_modules" / "typescript" / "bin" / "tsc"
if not compiler.exists():
    print("skipped: viewer/node_modules has no TypeScript")
    sys.exit(SKIPPED)
sys.exit(subprocess.run([node, str(compiler), "--noEmit", "-p", viewer], check=False).returncode)
