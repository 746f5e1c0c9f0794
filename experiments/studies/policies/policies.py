#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""starpipe's policy compared with StarPU's, on emulated workers and on the GPT of the quick start: docs/policies.md.

    experiments/studies/policies/policies.py --output FOLDER [--docs docs/policies.md] [--studies TEXT]

Each study is one `starpipe compare` under all policies, and one more for each variant under our policy: the
bounded discipline within the memory of the schedule (decided once, or at run time), and the placement of fsdp. FOLDER
receives results.json, results.md, figures and timelines (SVG). --docs puts the tables between the markers of that
page, and the pictures into the folder images/ next to it. All studies take about seven minutes. On a machine that does
other work as well, real-time priority keeps this work out of the figures (chrt -r 5 ..., needs root); do not use it with
--studies gpt.

The controls are on-worker and worker-order: StarPU's own means to run w and n. "Ours" is the faster of two: the schedule
as it is, and the bounded discipline within the memory that the schedule holds (the same w and n). Exits 1 when ours takes
more than 1 % longer than the best control that holds no more memory than ours, unless --any-speed.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import figures
import tables
from studies import all_studies, small_studies

POLICIES = ["starpipe", "on-worker", "worker-order", "eager", "lws", "prio", "dmdas"]
CONTROLS = ["on-worker", "worker-order"]
MARGIN = 1.01


def compare(options, study, settings, policies, timeline=None):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "compare.json"
        command = [options.starpipe, "compare", str(study.config), "--policies", ",".join(policies),
                   "--repetitions", str(options.repetitions), "-o", str(report)]
        for key, value in {**study.settings, **settings}.items():
            command += ["--set", f"{key}={value}"]
        if timeline:
            command += ["--timeline", str(timeline)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(f"{' '.join(command)}: {run.stderr.strip()}")
        return json.loads(report.read_text())


def row(name, policy, predicted):
    return {
        "policy": name,
        "predicted": predicted["makespan"],
        "makespan": policy["makespan"],
        "fastest": min(policy["makespans"]),
        "slowest": max(policy["makespans"]),
        "bubble_fraction": policy["bubble_fraction"],
        "peak_stashes": max(policy["peak_stashes"]),
        "peak_stash_bytes": max(policy["peak_stash_bytes"]),
        "bytes_moved": policy["bytes_moved"],
    }


def variants(study, predicted):
    limit = max(predicted["peak_stashes"])
    bounded = {"schedule.discipline": "bounded", "schedule.memory_limit": limit}
    found = {"starpipe, bounded": bounded}
    if study.group in ("slow worker", "heavy head", "gpt"):  # studies with unequal durations
        found["starpipe, dynamic"] = {**bounded, "schedule.dynamic": "true"}
    return found | {f"starpipe, {peer}": {"schedule.name": peer} for peer in study.peers}


def fits(one, other):
    return all(one[key] <= other[key] for key in ("peak_stashes", "peak_stash_bytes"))


def best(rows, names, limit=None):
    """The fastest of these, among those that hold no more than the row `limit`; None when there is none."""
    chosen = [r for r in rows if r["policy"] in names and (limit is None or fits(r, limit))]
    return min(chosen, key=lambda r: r["makespan"], default=None)


def measure(options, study):
    timeline = options.output / f"policies-{study.group.replace(' ', '-')}-timeline.svg" if study.timeline else None
    report = compare(options, study, {}, POLICIES)
    rows = [row(p["policy"], p, report["predicted"]) for p in report["policies"]]
    if timeline:  # only a few policies, because every job is a rectangle of the figure
        compare(options, study, {}, ["starpipe", "on-worker", "lws"], timeline)
    for name, settings in variants(study, report["predicted"]).items():
        other = compare(options, study, settings, ["starpipe"])
        rows.append(row(name, other["policies"][0], other["predicted"]))
    ours = rows[0]
    control = best(rows, CONTROLS, ours)
    ordered_or_bounded = best(rows, ["starpipe", "starpipe, bounded"], ours)
    emulate = report["config"]["runtime"].get("emulate", {})
    return {
        "name": study.name,
        "group": study.group,
        "label": study.label,
        "schedule": report["config"]["schedule"],
        "emulated": report["emulated"],
        "link_us": round(1e6 * float(emulate.get("comm", "0s").removesuffix("s")), 3),
        "versions": report["versions"],
        "machine": report["machine"],
        "rows": rows,
        "control": control["policy"],
        "ordered_over_control": ours["makespan"] / control["makespan"],
        "over_control": ordered_or_bounded["makespan"] / control["makespan"],
        "best_moving": best(rows, ["eager", "lws", "prio", "dmdas"])["policy"],
        "best_ours": best(rows, [r["policy"] for r in rows if r["policy"].startswith("starpipe")])["policy"],
    }


def write_page(page, folder, text):
    begin, end = "<!-- results: begin -->\n", "<!-- results: end -->\n"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"{page}: no lines '{begin.strip()}' and '{end.strip()}'")
    page.write_text(before + begin + "\n" + text + "\n" + end + after)
    images = page.parent / "images"
    images.mkdir(exist_ok=True)
    for picture in sorted(folder.glob("policies-*.svg")):
        shutil.copyfile(picture, images / picture.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument("--starpipe", default="build/bin/starpipe", help="the command")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--docs", type=pathlib.Path, metavar="PAGE.md", help="the page that receives the tables")
    parser.add_argument("--studies", default="", metavar="TEXT", help="only studies with this in their name; the others "
                        "are taken from FOLDER's results.json when it is there")
    parser.add_argument("--small", action="store_true", help="few and short studies, to try it out")
    parser.add_argument("--any-speed", action="store_true", help="exit 0 even if ours was slower")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "results.json"
    known = {r["name"]: r for r in json.loads(file.read_text())} if options.studies and file.exists() else {}
    studies = small_studies() if options.small else all_studies()
    if not any(options.studies in study.name for study in studies):
        sys.exit(f"--studies {options.studies}: no such study")
    for study in studies:
        if options.studies in study.name:
            print(f"{study.name} ...", end=" ", flush=True)
            known[study.name] = result = measure(options, study)
            print(f"{result['over_control']:.3f} x {result['control']}", flush=True)
            # After each study, so that an interrupted run can continue with --studies.
            results = [known[s.name] for s in studies if s.name in known]
            file.write_text(json.dumps(results, indent=1) + "\n")
    text = tables.all_tables(results)
    (options.output / "results.md").write_text(text)
    figures.draw_all(results, POLICIES, options.output)
    if options.docs:
        write_page(options.docs, options.output, text)
    slow = [r["name"] for r in results if r["over_control"] > MARGIN]
    print(f"slower than the best control by more than 1 %: {'; '.join(slow) or 'none'}")
    return 1 if slow and not options.any_speed else 0


if __name__ == "__main__":
    sys.exit(main())
