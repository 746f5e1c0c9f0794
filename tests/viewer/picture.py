#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/images/report-page.png: the page of a report in headless Chromium, with a job selected.

    tests/viewer/picture.py build/bin/starpipe build/quickstart/report.json docs/images/report-page.png
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from browser import Browser

SIZE = 1120, 716
JOB = (1, 4, 3)  # BW(1,4)

binary, report, picture = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder, Browser(*SIZE) as browser:
    page = Path(folder) / "page.html"
    subprocess.run([binary, "report", report, "-o", page], check=True)
    browser.command("Emulation.setDeviceMetricsOverride", width=SIZE[0], height=SIZE[1], deviceScaleFactor=1, mobile=False)
    browser.open(page)
    browser.run("const {page, view} = window.starpipe, [run] = page.runs; view.select({run, id: run.jobs.find(...arguments)});", *JOB)
    browser.run_async("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    browser.screenshot(picture)
