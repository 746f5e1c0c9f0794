#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How large the report page is, how soon it can be used, and how smoothly it pans, by the number of jobs.

    page.py build/bin/starpipe [--jobs 10000 100000 1000000] [--workers 8] [--reports REPORT.json ...]

Makes pages of 1F1B with `schedule show --html`, and of reports of `train` with `report`, opens them in headless Chromium (which draws without a GPU), and prints the size
of the file, the time from its opening to the first picture after the data have been read, and the frames per second of a pan of
120 steps: of the whole step, where pixels show shares of many jobs, and of a part with about 1000 jobs.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "viewer"))
from browser import Browser, is_missing

PAN = """const done = arguments[arguments.length - 1], [share] = arguments, {view} = window.starpipe;
const [begin, end] = [0, view.end], width = (end - begin) * share, gaps = [];
let last = performance.now(), step = 0;
const next = now => {
  if (step > 0) gaps.push(now - last);
  last = now;
  if (step++ === 120) return done(gaps);
  const from = (end - width) * (0.2 + 0.6 * step / 121);
  view.show(from, from + width);
  requestAnimationFrame(next);
};
requestAnimationFrame(next);"""


def measure(name, *command):
    """Makes a page with a command, whose last argument is to be the page, and measures it."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        subprocess.run([*command, page], check=True, stdout=subprocess.DEVNULL)
        with Browser() as browser:
            start = time.monotonic()
            browser.open(page)
            browser.run_async("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
            ready = time.monotonic() - start
            jobs = browser.run("return window.starpipe.page.runs[0].timelines[0].count")
            half, near = (1000 / statistics.median(browser.run_async(PAN, share)) for share in (0.5, min(0.5, 1000 / jobs)))
        size = page.stat().st_size / 1e6
        print(f"{name:20} {jobs:>9} {size:>7.2f} MB {ready:>7.2f} s {half:>6.0f} fps {near:>6.0f} fps", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--jobs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--reports", nargs="*", default=[])
    options = parser.parse_args()
    if missing := is_missing():
        sys.exit(f"needs {missing}")
    print(f"{'':20} {'jobs':>9} {'page':>10} {'usable':>9} {'pan, half':>10} {'pan, near':>10}")
    for jobs in options.jobs:
        measure("1f1b, predicted", options.binary, "schedule", "show", "1f1b", "--workers", str(options.workers), "--microbatches",
                str(jobs // (2 * options.workers)), "--durations", "F=1.031,B=1.273,W=0.957", "--comm", "0.113", "--html")
    for report in options.reports:
        measure(Path(report).name, options.binary, "report", report, "-o")


if __name__ == "__main__":
    main()
