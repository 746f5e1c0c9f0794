# SPDX-License-Identifier: Apache-2.0
"""The report page in headless Chromium: it loads without errors and without the network, has every job, tells true times,
keeps its place in zooms, and no text of a report becomes markup.

Usage: page_test.py BINARY. Skipped where there is no Chromium. A BINARY without the page must refuse to write one.
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))

from browser import SKIPPED, Browser, is_missing
from explain_test import MS, Pipeline
from support import mlp_config

BINARY = ""
HOSTILE = "</script><script>window.hacked=1</script><!-- <img src=x onerror=hacked=1> \"'`&amp; \u2028\u2029 \\u003c ${hacked=1}"


def run(folder, *arguments):
    return subprocess.run([BINARY, *map(str, arguments)], cwd=folder, capture_output=True, encoding="utf-8", timeout=100, check=False)


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)

    def make(self, *arguments):
        """Runs the command; the page is p.html."""
        result = run(self.folder, *arguments)
        said = [line for line in result.stderr.splitlines() if not line.startswith("starpipe: another run of starpipe has bound")]
        self.assertEqual((result.returncode, said), (0, []), arguments)
        return self.folder / "p.html"

    def open(self, page):
        """The page must load without errors, ask for no other address, and have drawn something."""
        self.browser.open(page)
        self.assertEqual(self.browser.messages(), [])
        address = page.resolve().as_uri()
        self.assertEqual([url for url in self.browser.requests(address) if not url.startswith("data:")], [address])

    def js(self, script, *arguments):
        return self.browser.run(f"const {{page, view}} = window.starpipe; {script}", *arguments)

    def place(self, lane, stage, microbatch, pass_):
        return self.js("const {jobs} = page.runs[0]; return view.placeOf(arguments[0], jobs.find(arguments[1], arguments[2], arguments[3]));",
                       lane, stage, microbatch, pass_)

    def hover(self, lane, stage, microbatch, pass_):
        """The text of the tip on a job."""
        self.browser.run("document.querySelector('#timelines').scrollIntoView()")
        at = self.place(lane, stage, microbatch, pass_)
        self.browser.move(at["x"], at["y"])
        return self.browser.run("const tip = document.querySelector('.tip'); return tip.hidden ? '' : tip.innerText;")

    def report(self, name="report.json", title=None, pipeline=None, **more):
        """A report of a run with known times, as `train` writes them."""
        report = (pipeline or Pipeline()).report()
        report.update(more)
        if title is not None:
            report["explain"]["record"]["schedule"]["name"] = title
        (self.folder / name).write_text(json.dumps(report), encoding="utf-8")
        return name

    # ---- jobs and times ----

    def test_every_job_is_there(self):
        self.open(self.make("schedule", "show", "v-half", "--workers", 4, "--microbatches", 8, "-o", "s.json", "--html", "p.html"))
        written = json.loads((self.folder / "s.json").read_text())
        found = self.js("""const run = page.runs[0], t = run.timelines[0], rows = [];
            for (let w = 0; w < t.workers; ++w) { const row = []; rows.push(row);
              for (let i = t.offsets[w]; i < t.offsets[w + 1]; ++i)
                row.push([run.jobs.name(t.id[i]), t.start[i] * run.tick, t.end[i] * run.tick]); }
            return rows;""")
        expected = [[[f"{op['op']}({op['stage']},{op['microbatch']})", op["start"], op["end"]] for op in row] for row in written["ops"]]
        self.assertEqual(found, expected)
        self.assertEqual(sum(map(len, found)), 4 * 2 * 8 * 3)

    def test_hover_tells_true_times(self):
        self.open(self.make("schedule", "show", "1f1b", "--workers", 4, "--microbatches", 8, "--durations", "F=1.25,B=2,W=1", "--comm",
                            0.5, "-o", "s.json", "--html", "p.html"))
        ops = json.loads((self.folder / "s.json").read_text())["ops"][2]
        op = next(op for op in ops if (op["op"], op["stage"], op["microbatch"]) == ("F", 2, 5))
        tip = self.hover(0, 2, 5, 0)
        self.assertIn("F(2,5): pass F of stage 2, micro-batch 5", tip)
        self.assertIn(f"worker 2, {op['start']:g} to {op['end']:g}\n", tip)
        self.assertIn("took 1.25;", tip)

    def test_a_shard_has_its_letter(self):
        """Stages 0 and 1 are the shards of the first stage, 2 and 3 the shards of the second; stage 4 is the loss."""
        self.open(self.make("schedule", "show", "1f1b", "--workers", 2, "--microbatches", 2, "--tensor", 2, "--html", "p.html"))
        self.assertEqual(self.js("return [0, 1, 2, 3, 4].map(stage => page.runs[0].jobs.label(stage))"), ["0a", "1b", "2a", "3b", "4"])
        self.assertIn("F(3b,1): pass F of stage 3b, micro-batch 1", self.hover(0, 3, 1, 0))
        find = "const {jobs} = page.runs[0]; return arguments[0].map(text => jobs.labelled(text));"
        self.assertEqual(self.js(find, ["3", "3b", "3a", "4", "4a", "5", ""]), [3, 3, -1, 4, -1, 5, -1])

    def test_reports_keep_the_letters(self):
        (self.folder / "text").write_text("It is a truth universally acknowledged. " * 20, encoding="utf-8")
        (self.folder / "c.yaml").write_text("""
model:    {kind: gpt, layers: 1, hidden: 16, heads: 2, context: 16, tensor: 2}
data:     {kind: text, path: text}
training: {steps: 2, microbatches: 2, seed: 1}
schedule: {name: 1f1b, workers: 1}
runtime:  {workers_per_core: 2}
""", encoding="utf-8")
        self.assertEqual(run(self.folder, "train", "c.yaml", "--report", "r.json").returncode, 0)
        self.open(self.make("report", "r.json", "-o", "p.html"))
        self.assertEqual(self.js("return [0, 1, 2, 3, 4, 5].map(stage => page.runs[0].jobs.label(stage))"), ["0", "1a", "2b", "3a", "4b", "5"])
        self.assertIn("with gradients summed", self.browser.run("return document.body.innerText"))

    def test_short_times_without_a_unit(self):
        self.open(self.make("schedule", "show", "1f1b", "--workers", 2, "--microbatches", 2, "--durations", "F=1e-9,B=2e-9,W=1e-9", "--html", "p.html"))
        self.assertIn("took 1e-9;", self.hover(0, 1, 1, 0))
        self.assertIn("makespan\n1.2e-8", self.browser.run("return document.querySelector('.key-figures').innerText"))

    def test_hover_on_a_report(self):
        pipeline = Pipeline()
        pipeline.links[(1, 2)] = 7 * MS  # F(2,0) on worker 2 is late by the transfer
        self.report(pipeline=pipeline)
        self.open(self.make("report", "report.json", "-o", "p.html"))
        self.assertEqual(self.js("return page.runs[0].timelines.map(t => [t.title, t.count])"), [["predicted", 48], ["measured", 48]])
        self.assertIn("took 4.000 ms", self.hover(0, 1, 0, 0))
        ready, start, end = pipeline.run()[(2, 0, "F")]
        tip = self.hover(1, 2, 0, 0)
        self.assertIn(f"worker 2, {start / MS:.3f} to {end / MS:.3f} ms", tip)
        self.assertIn(f"inputs ready at {ready / MS:.3f} ms", tip)
        self.assertIn("waited for F(1,0) on worker 1, whose result took 7.000 ms to arrive", tip)

    def test_a_click_shows_the_job_and_its_chain(self):
        self.open(self.make("schedule", "show", "1f1b", "--workers", 3, "--microbatches", 4, "--html", "p.html"))
        at = self.place(0, 1, 2, 0)
        self.browser.move(at["x"], at["y"], click=True)
        text = self.browser.run("return document.querySelector('#job').innerText")
        for words in ("F(1,2): pass F of stage 1, micro-batch 2", "F(0,2)", "F(2,2)", "BW(1,2)", "It waited for", "Waited for it"):
            self.assertIn(words, text)
        chain = self.js("return [...page.runs[0].jobs.chain(view.selected.id).jobs].map(id => page.runs[0].jobs.name(id)).sort()")
        self.assertEqual(chain, ["BW(0,2)", "BW(1,2)", "BW(2,2)", "F(0,2)", "F(1,2)", "F(2,2)"])
        self.browser.keys(".")
        self.assertEqual(self.js("return page.runs[0].jobs.name(view.selected.id)"), "BW(1,1)")
        self.browser.keys("\ue00c")  # Escape
        self.assertIsNone(self.js("return view.selected"))

    def test_slices_wait_for_each_other(self):
        self.open(self.make("schedule", "show", "1f1b", "--workers", 2, "--microbatches", 2, "--slices", 3, "--html", "p.html"))

        def of(which, stage, microbatch, pass_):
            return self.js(f"""const jobs = page.runs[0].jobs;
                return jobs.{which}(jobs.find({stage}, {microbatch}, {pass_})).map(id => jobs.name(id)).sort();""")

        forward, backward = 0, 3
        self.assertEqual(of("before", 0, 0, forward), [])
        self.assertEqual(of("before", 0, 1, forward), ["F(0,0)"])
        self.assertEqual(of("before", 1, 2, forward), ["F(0,2)", "F(1,1)"])
        self.assertEqual(of("before", 1, 3, forward), ["F(0,3)"])  # of the next sequence
        self.assertEqual(of("after", 0, 0, forward), ["BW(0,0)", "F(0,1)", "F(1,0)"])
        self.assertEqual(of("before", 0, 1, backward), ["BW(0,2)", "BW(1,1)", "F(0,1)"])
        self.assertEqual(of("before", 0, 2, backward), ["BW(1,2)", "F(0,2)"])
        self.assertEqual(of("after", 1, 1, backward), ["BW(0,1)", "BW(1,0)"])
        self.assertIn("micro-batch 4, slice 1 of 3", self.hover(0, 1, 4, forward))
        self.assertIn("slice", self.browser.run("return document.querySelector('#words').textContent"))

    def test_pairs_run_at_once(self):
        self.open(self.make("schedule", "show", "dualpipe", "--workers", 4, "--microbatches", 8, "--overlap", 0.8, "-o", "s.json", "--html", "p.html"))
        ops = json.loads((self.folder / "s.json").read_text())["ops"]
        written = {f"{op['op']}({op['stage']},{op['microbatch']})": f"{after['op']}({after['stage']},{after['microbatch']})"
                   for row in ops for op, after in zip(row, row[1:]) if op.get("with_next")}  # fmt: skip
        found = dict(self.js("const {jobs, schedule} = page.runs[0]; return schedule.pairs.map(ids => ids.map(id => jobs.name(id)));"))
        self.assertEqual(found, written)
        first, last = next(iter(written.items()))
        stage, microbatch = map(int, first[2:-1].split(","))
        self.assertIn(f"at once with {last}", self.hover(0, stage, microbatch, 0))
        waits = self.js(f"""const jobs = page.runs[0].jobs, id = jobs.find({stage}, {microbatch}, 0), other = jobs.partner(id);
            return [id, other].map(one => jobs.before(one).map(job => jobs.name(job)).sort());""")
        self.assertEqual(waits[0], waits[1])
        self.assertIn("pair", self.browser.run("return document.querySelector('#words').textContent"))

    # ---- copies of stashes ----

    def copying(self, name="1f1b", homes="host,disk,worker,worker", microbatches=8, copy=5, durations="F=1,B=1.5,W=0.5"):
        self.open(self.make("schedule", "show", name, "--workers", 4, "--microbatches", microbatches, "--durations", durations, "--home", homes,
                            "--copy", copy, "-o", "s.json", "--html", "p.html"))
        return json.loads((self.folder / "s.json").read_text())

    def test_every_copy_is_there(self):
        """With W apart from B, and with stashes that are made again: so ids have all slots."""
        written = self.copying("zb-h1", "host,none,worker,disk", microbatches=6, copy=1.25)
        found = self.js("""const run = page.runs[0], t = run.timelines[0], rows = [];
            for (let r = 0; r < t.rows; ++r) { const row = []; rows.push(row);
              for (let i = t.offsets[r]; i < t.offsets[r + 1]; ++i)
                row.push([run.jobs.name(t.id[i]), t.start[i] * run.tick, t.end[i] * run.tick, run.jobs.homeOf(t.id[i]), t.workerOf(i)]); }
            return rows;""")
        for w, row in enumerate(written["ops"]):
            self.assertEqual(found[w], [[f"{op['op']}({op['stage']},{op['microbatch']})", op["start"], op["end"], "", w] for op in row])
        self.assertEqual([len(row) for row in found[4:]], [6, 6, 0, 0, 0, 0, 6, 6])  # O and L of each worker
        for stage, home in ((0, "host"), (3, "disk")):
            for row, pass_ in ((4 + 2 * stage, "O"), (5 + 2 * stage, "L")):
                self.assertEqual([(name[0], home_, worker) for name, _, _, home_, worker in found[row]], [(pass_, home, stage)] * 6)
                self.assertTrue(all(end - start == 1.25 for _, start, end, *_ in found[row]))
                self.assertTrue(all(one[2] <= other[1] for one, other in zip(found[row], found[row][1:])))
        chain = """const {jobs} = page.runs[0]; return [...arguments].map(([stage, pass]) => [jobs.before, jobs.after].map(of =>
            of.call(jobs, jobs.find(stage, 2, pass)).map(id => jobs.name(id))))"""
        self.assertEqual(self.js(chain, [0, 0], [0, 5], [0, 6], [0, 1], [1, 4]),
                         [[[], ["F(1,2)", "O(0,2)"]], [["F(0,2)"], ["L(0,2)"]], [["O(0,2)"], ["B(0,2)"]],
                          [["L(0,2)", "B(1,2)"], ["W(0,2)"]], [["F(1,2)"], ["B(1,2)"]]])
        none = "const {jobs} = page.runs[0]; return [...arguments].map(([stage, pass]) => jobs.find(stage, 2, pass) ?? null)"
        self.assertEqual(self.js(none, [1, 5], [2, 6], [2, 4]), [None] * 3)

    def test_copies_are_strips_under_the_rows(self):
        self.copying()
        places = [self.place(0, 0, 3, pass_) for pass_ in (0, 5, 6)] + [self.place(0, 1, 3, 0)]
        self.assertEqual(sorted(place["y"] for place in places), [place["y"] for place in places])
        tip = self.hover(0, 1, 3, 5)
        self.assertIn("O(1,3): pass O of stage 1, micro-batch 3, to disk\npredicted: worker 1, ", tip)
        self.assertIn("took 5;", tip)
        self.assertIn("Waited for it: L(1,3) on worker 1, O(1,4) copied next", tip)
        self.assertIn("L(0,3): pass L of stage 0, micro-batch 3, from host", self.hover(0, 0, 3, 6))
        # Between two copies of a strip there is nothing to say, though the worker above is idle.
        at = self.place(0, 0, 0, 6)
        self.browser.move(self.place(0, 0, 0, 0)["x"], at["y"])
        self.assertTrue(self.browser.run("return document.querySelector('.tip').hidden"))
        # L waits for the memory of the stash before, and F for that of a stash under way.
        text = "const {run} = view.lanes[0]; view.select({run, id: run.jobs.find(...arguments)}); return document.querySelector('#job').innerText"
        for job, words in (((0, 3, 6), ("home\thost", "waited for memory that BW(0,2) freed.", "O(0,3)\tinput", "L(0,2)\tsame channel",
                                        "BW(0,3)\toutput")),
                           ((0, 1, 5), ("waited for O(0,0), which was copied before it.", "F(0,1)\tinput", "O(0,2)\tsame channel")),
                           ((0, 0, 5), ("waited for F(0,0).",)),
                           ((0, 4, 0), ("waited for memory that O(0,3) freed. Idle before: 3 copy (O(0,3)).",))):
            shown = self.js(text, *job)
            for word in words:
                self.assertIn(word, shown)
        self.assertNotIn("home", self.js(text, 0, 3, 0))

    def test_a_copy_is_found_and_selected(self):
        self.copying()
        self.browser.run("document.querySelector('input[type=search]').focus()")
        self.browser.keys("0,3,O\ue007")
        name = "return page.runs[0].jobs.name(view.selected.id)"
        self.assertEqual(self.js(name), "O(0,3)")
        chain = self.js("return [...page.runs[0].jobs.chain(view.selected.id).jobs].map(id => page.runs[0].jobs.name(id)).sort()")
        self.assertEqual(chain, ["BW(0,3)", "F(0,3)", "L(0,3)", "O(0,3)"])
        self.browser.run("document.querySelector('canvas').focus()")
        for key, job in ((".", "O(0,4)"), (",", "O(0,3)"), ("]", "L(0,3)"), ("]", "BW(0,3)"), ("[", "BW(1,3)")):
            self.browser.keys(key)
            self.assertEqual(self.js(name), job)
        self.browser.run("document.querySelector('#timelines').scrollIntoView()")
        at = self.place(0, 0, 3, 6)
        self.browser.move(at["x"], at["y"], click=True)
        self.assertEqual(self.js(name), "L(0,3)")
        self.browser.run("document.querySelector('input[type=search]').select()")
        self.browser.keys("2,3,O\ue007")  # a stash that waits with its worker
        self.assertEqual(self.js(name), "L(0,3)")

    def test_idle_time_for_a_recomputation(self):
        """The last cause has its own column, though there is none for copies before it."""
        self.open(self.make("schedule", "show", "1f1b", "--workers", 4, "--microbatches", 2, "--durations", "F=1,B=2,W=0", "--home", "none",
                            "-o", "s.json", "--html", "p.html"))  # fmt: skip
        rows = self.browser.run("return [...document.querySelectorAll('#idle .scroll tr')].slice(0, 3).map(r => [...r.cells].map(c => c.textContent))")
        self.assertEqual(rows[0], ["worker", "busy", "fill", "drain", "producer", "transfer", "order", "runtime", "recomputation"])
        self.assertEqual(rows[1], ["0", "47.1", "0.0", "0.0", "5.9", "0.0", "41.2", "0.0", "5.9"])  # of 17
        self.assertEqual(rows[2][-1], "5.9")

    def test_copies_have_words_and_figures(self):
        written = self.copying()
        text = self.browser.run("document.querySelectorAll('details').forEach(d => d.open = true); return document.body.innerText")
        for words in ("O: stash to its home (upper strip)", "L: stash back (lower strip)", "copies of stashes", "stashes brought back\t16",
                      "transfers between workers\t48", "O copied 16 stashes from workers to their homes", "O (offload)",
                      "its next job waits for a stash that L brings back"):
            self.assertIn(words, text)
        heads = "return [...document.querySelectorAll('#idle thead th')].slice(1, 9).map(e => e.textContent)"
        self.assertEqual(self.browser.run(heads), ["busy", "fill", "drain", "producer", "transfer", "order", "runtime", "copy"])
        last = "return [...document.querySelectorAll('#idle .scroll tbody tr')].map(r => r.lastChild.textContent)"
        self.assertGreater(float(self.browser.run(last)[0]), 0)
        # The critical path goes through copies, and its parts are the whole step.
        names, length = self.js("""const run = page.runs[0], {path} = run.timelines[0];
            return [[...path.job].map(id => run.jobs.name(id)), path.end.at(-1) - path.start[0]];""")
        offloads = [name for name in names if name.startswith("O(")]
        self.assertTrue(offloads, names)
        self.assertEqual(length * self.js("return page.runs[0].tick"), written["makespan"])
        stage = offloads[0][2]  # each stage is on the worker of its number
        self.assertIn(f"O of stage {stage} on worker {stage}", text)
        self.browser.run("[...document.querySelectorAll('.controls label')].find(l => l.textContent === 'critical path').firstChild.click()")
        self.browser.run_async("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        self.assertEqual(self.browser.messages(), [])

    def test_without_copies_nothing_speaks_of_them(self):
        self.open(self.make("schedule", "show", "1f1b", "--workers", 3, "--microbatches", 4, "--home", "none", "--html", "p.html"))
        text = self.browser.run("document.querySelectorAll('section details').forEach(d => d.open = true); return document.querySelector('#page').innerText")
        for words in ("copy", "copies", "copied", "brought back", "channel", "strip"):
            self.assertNotIn(words, text)
        self.assertNotIn("reloads", (self.folder / "p.html").read_text().split('id="data">', 1)[1].split("</script>", 1)[0])
        self.assertEqual(self.js("const [lane] = view.lanes; return [lane.timeline.rows, lane.pitch - lane.rowHeight]"), [3, 0])

    def test_many_copies_are_shares_of_pixels(self):
        self.copying("zb-h1", "host,none,worker,disk", microbatches=2500, copy=0.5)
        sums = self.js("""const [lane] = view.lanes, t = lane.timeline, kinds = lane.shares.kinds, shares = new Float64Array(kinds);
            return [5, 6].map(pass => {
              lane.shares.fill(t.rowOfCopies(3, pass), 0, t.last, 1, shares);
              return [...shares].map(share => Math.round(share * t.last * page.runs[0].tick)); });""")
        self.assertEqual(sums, [[0, 0, 0, 0, 0, 1250, 0], [0, 0, 0, 0, 0, 0, 1250]])

    # ---- zoom ----

    def test_zoom_keeps_its_place(self):
        self.open(self.make("schedule", "show", "1f1b", "--workers", 4, "--microbatches", 16, "--html", "p.html"))
        whole = self.js("return view.shown")
        before = self.place(0, 2, 5, 0)
        for _ in range(3):
            self.browser.wheel(before["x"], before["y"], -200)
        after = self.place(0, 2, 5, 0)
        self.assertAlmostEqual(before["x"], after["x"], delta=1)
        shown = self.js("return view.shown")
        self.assertLess(shown[1] - shown[0], 0.6 * (whole[1] - whole[0]))
        self.assertIn("F(2,5)", self.hover(0, 2, 5, 0))
        after = self.place(0, 2, 5, 0)
        self.browser.drag(after["x"], after["y"], 60)
        self.assertAlmostEqual(self.place(0, 2, 5, 0)["x"], after["x"] + 60, delta=1)
        width = shown[1] - shown[0]
        self.browser.run("document.querySelector('canvas').focus()")
        self.browser.keys("+")
        shown = self.js("return view.shown")
        self.assertAlmostEqual(shown[1] - shown[0], width / 1.5, delta=1e-6 * width)
        middle = sum(shown) / 2
        self.browser.command("Emulation.setDeviceMetricsOverride", width=700, height=900, deviceScaleFactor=1, mobile=False)
        self.browser.run_async("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        resized = self.js("return view.shown")
        self.browser.command("Emulation.clearDeviceMetricsOverride")
        self.assertAlmostEqual(sum(resized) / 2, middle, delta=1e-6 * width)
        self.browser.keys("0")
        self.assertEqual(self.js("return view.shown"), whole)

    def test_touch(self):
        page = self.make("schedule", "show", "1f1b", "--workers", 4, "--microbatches", 16, "--html", "p.html")
        self.browser.command("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
        try:
            self.open(page)
            before = self.place(0, 1, 8, 0)
            whole = self.js("return view.shown")
            self.browser.pinch(before["x"], before["y"], 50, 150)
            shown = self.js("return view.shown")
            self.assertAlmostEqual((shown[1] - shown[0]) / (whole[1] - whole[0]), 1 / 3, delta=0.02)
            self.assertAlmostEqual(self.place(0, 1, 8, 0)["x"], before["x"], delta=3)
            at = self.place(0, 1, 8, 0)
            self.browser.drag(at["x"], at["y"], 60, kind="touch")
            self.assertAlmostEqual(self.place(0, 1, 8, 0)["x"], at["x"] + 60, delta=3)
            at = self.place(0, 2, 8, 0)
            self.browser.tap(at["x"], at["y"])
            self.assertEqual(self.js("return page.runs[0].jobs.name(view.selected.id)"), "F(2,8)")
        finally:
            self.browser.command("Emulation.setTouchEmulationEnabled", enabled=False)

    def test_many_jobs_are_shares_of_pixels(self):
        """Where jobs are narrower than pixels, the shares drawn add up to the jobs' time."""
        self.open(self.make("schedule", "show", "zb-h1", "--workers", 4, "--microbatches", 2500, "--html", "p.html"))
        self.assertLess((self.folder / "p.html").stat().st_size, 2_000_000)
        jobs, sums = self.js("""const run = page.runs[0], t = run.timelines[0], lane = view.lanes[0], sums = [], jobs = [];
            const kinds = lane.shares.kinds, shares = new Float64Array(1000 * kinds), end = t.last, width = end / 1000;
            lane.shares.fill(1, 0, end, 1000, shares);
            for (let k = 0; k < kinds; ++k) { let sum = 0; for (let c = 0; c < 1000; ++c) sum += shares[c * kinds + k] * width; sums.push(sum); jobs.push(0); }
            for (let i = t.offsets[1]; i < t.offsets[2]; ++i) jobs[run.jobs.pass(t.id[i])] += t.end[i] - t.start[i];
            return [jobs, sums];""")
        self.assertEqual(jobs, [2500, 2500, 2500, 0, 0, 0, 0])
        for expected, found in zip(jobs, sums):
            self.assertAlmostEqual(found, expected, delta=1e-6 * 2500)
        self.js("view.show(3500, 3900)")
        self.assertIn("F(1,1200)", self.hover(0, 1, 1200, 0))

    def test_the_legend_says_what_colours_mean(self):
        self.open(self.make("schedule", "show", "zb-h1", "--workers", 3, "--microbatches", 4, "--html", "p.html"))
        read = "return document.querySelector('#timelines .legend').innerText.replace(/\\s+/g, ' ')"
        self.assertTrue(self.browser.run(read).startswith("F: forward B: backward, for the input W: backward, for the weights idle: fill"))
        for by in ("micro-batch", "stage", "pass"):
            self.browser.run("const s = document.querySelector('.controls select'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))", by)
            self.assertTrue(self.browser.run(read).startswith("F: forward B: back" if by == "pass" else f"a hue for each {by}"), by)

    # ---- sections ----

    def test_tables_have_the_reports_figures(self):
        self.report(config={"model": {"kind": "mlp"}}, versions={"starpipe": "0.1.0"}, losses=[2.5, None, 1.5], gradient_norms=[1, 2, 3],
                    learning_rates=[0.1, 0.1, 0.1], step_seconds=[1, 1, 1], tokens_per_second=1000,
                    ranks=[{"rank": 0, "host": "somewhere"}])
        self.open(self.make("report", "report.json", "-o", "p.html"))
        text = self.browser.run("document.querySelectorAll('details').forEach(d => d.open = true); return document.body.innerText")
        explain = json.loads(run(self.folder, "explain", "report.json", "--json").stdout)
        for part in ("durations", "transfers", "order", "runtime", "measured"):
            value = explain["per_step"][part][0] / MS
            self.assertIn(f"{value:.2f} ms", text.replace("−", "-").replace("+", ""), part)
        rows = self.browser.run("return [...document.querySelectorAll('#idle tbody tr')].map(r => [...r.cells].slice(1).map(c => c.textContent))")
        for w in range(4):
            for t, (name, makespan) in enumerate((("predicted", explain["per_step"]["predicted"]), ("measured", explain["per_step"]["measured"][0]))):
                idle = explain["idle"][name][w]
                times = [explain["busy"][name][w], *(idle[cause] for cause in ("fill", "drain", "producer", "transfer", "order", "runtime"))]
                self.assertEqual(rows[2 * w + t], [name, *(f"{100 * time / makespan:.1f}" for time in times)])
        for words in ("model.kind", "mlp", "Critical path", "What moved between workers", "loss", "learning rate", "tokens/s", "somewhere",
                      "d3-zoom"):
            self.assertIn(words, text)

    def test_the_page_explains_its_words(self):
        """A reader without the docs learns what the page's words mean; the table of ranks has words for its columns."""
        self.report(config={"model": {"kind": "gpt"}}, step_seconds=[1, 1], policy={"ran": "starpipe"},
                    ranks=[{"machine": "somewhere", "bound_by": "launcher", "workers_bound": True, "logical_workers": [0, 1]}] * 2)
        self.open(self.make("report", "report.json", "-o", "p.html"))
        title = f"Training step of gpt, schedule {json.loads((self.folder / 'report.json').read_text())['explain']['record']['schedule']['name']}"
        self.assertEqual(self.browser.run("return [document.title, document.querySelector('h1').firstChild.textContent]"), [f"{title} – starpipe", title])
        self.browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        words = self.browser.run("return [...document.querySelectorAll('#words tr')].map(r => r.cells[0].textContent)")
        for word in ("F", "BW", "stash", "device span", "ordered", "policy", "makespan", "bubble fraction", "worker"):
            self.assertIn(word, words)
        self.assertNotIn("greedy", words)
        ranks = self.browser.run("return [...document.querySelectorAll('table.ranks tr')].map(r => [...r.cells].map(c => c.textContent))")
        self.assertEqual(ranks[0], ["rank", "machine", "chosen by", "each on its own core", "numbers of its workers"])
        self.assertEqual([row[0] for row in ranks[1:]], ["0", "1"])
        self.assertEqual(ranks[2][3], "yes")

    def test_all_columns_can_be_reached_on_a_phone(self):
        self.report(machine={"name": "somewhere"}, ranks=[{"machine": "somewhere", "devices": ["core 1"] * 4}])
        page = self.make("report", "report.json", "-o", "p.html")
        self.browser.command("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=1, mobile=False)
        self.addCleanup(self.browser.command, "Emulation.clearDeviceMetricsOverride")
        self.open(page)
        self.browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        self.assertEqual(self.browser.run("return document.documentElement.scrollWidth"), 360)
        # The figures with their measured values and differences are on the screen at once.
        self.assertEqual(self.browser.run("return [...document.querySelectorAll('#figures .scroll')].map(s => s.scrollWidth - s.clientWidth)"), [0])
        # Every other table ends where its own scrolling ends.
        outside = self.browser.run("""return [...document.querySelectorAll('table')].filter(t => {
            const s = t.parentElement; s.scrollLeft = 1e6;
            return t.getBoundingClientRect().right > 360 || t.getBoundingClientRect().right > s.getBoundingClientRect().right + 1; }).length""")
        self.assertEqual(outside, 0)

    def test_several_reports(self):
        late = Pipeline()
        late.durations[(1, "F")] = 6 * MS
        self.report("a.json")
        self.report("b.json", pipeline=late)
        self.open(self.make("report", "a.json", "b.json", "-o", "p.html"))
        self.assertEqual(self.js("return view.lanes.map(lane => lane.title)"),
                         ["a.json, predicted", "a.json, measured", "b.json, predicted", "b.json, measured"])
        change = late.makespan() / Pipeline().makespan() - 1
        self.assertIn(f"+{100 * change:.1f} %", self.browser.run("return document.querySelector('#figures').innerText"))
        starts = [self.place(lane, 0, 0, 0)["x"] for lane in (0, 1)]
        self.assertAlmostEqual(starts[0], starts[1], delta=1)

    def test_a_report_of_sim_is_simulated(self):
        self.report(makespan={"predicted": 1, "simulated": 2}, bytes_between_ranks={"predicted": 4096, "simulated": 8192})
        self.open(self.make("report", "report.json", "-o", "p.html"))
        self.assertEqual(self.js("return view.lanes.map(lane => lane.title)"), ["predicted", "simulated"])
        text = self.browser.run("document.querySelectorAll('details').forEach(d => d.open = true); return document.body.innerText")
        self.assertNotIn("measured", text)
        self.assertIn("From predicted to simulated", text)
        self.assertIn("8192 B", text)

    def test_a_search_shows_its_bound(self):
        self.open(self.make("search", "--workers", 3, "--microbatches", 4, "--chunks", 1, "--budget", 0.2, "--memory-limit", 3, "--quiet",
                            "-o", "s.json", "--html", "p.html"))
        bound = json.loads((self.folder / "s.json").read_text())["lower_bound"]
        text = self.browser.run("return document.body.innerText")
        self.assertIn(f"No schedule ends before {bound:g}", text)
        self.assertIn("tabu search with seed 1", text)
        self.open(self.make("report", "s.json", "-o", "p.html"))
        self.assertIn(f"No schedule ends before {bound:g}", self.browser.run("return document.body.innerText"))

    def test_a_comparison_is_read_again(self):
        """The page of `compare --html`, and the page of `report` with the file of `compare -o`, have the same timelines."""
        (self.folder / "e.yaml").write_text(mlp_config("runtime: {emulate: {F: 1ms, B: 1ms, W: 1ms, comm: 100us}}"))
        data = """return page.runs.map(({report, schedule, timelines}) => [schedule.name, report.policies.length, timelines.map(
            ({title, id, start, end, traffic, figures}) => [title, [...id], [...start], [...end], traffic, figures])])"""
        for more, runs in (((), 1), (("--schedules", "1f1b,zb-h1"), 2)):
            self.make("compare", "e.yaml", "--policies", "starpipe,lws", "--repetitions", 1, "-o", "c.json", "--html", "p.html", *more)
            self.open(self.folder / "p.html")
            direct = self.js(data)
            self.open(self.make("report", "c.json", "-o", "p.html"))
            self.assertEqual(self.js(data), direct)
            self.assertEqual([[timeline[0] for timeline in run[2]] for run in direct], [["predicted", "starpipe", "lws"]] * runs)
            self.assertNotIn('"record"', (self.folder / "p.html").read_text())

    def test_schedules_side_by_side(self):
        self.open(self.make("schedule", "compare", "1f1b", "zb-h1", "--workers", 3, "--microbatches", "4,6", "-o", "s.json", "--html", "p.html"))
        figures = json.loads((self.folder / "s.json").read_text())["schedules"]
        self.assertEqual(self.js("return page.runs.map(run => [run.title, run.timelines[0].figures.makespan, run.report.lower_bound])"),
                         [[f"{one['schedule']}, {one['microbatches']} micro-batches", one["makespan"], one["lower_bound"]] for one in figures])

    # ---- memory ----

    def memory_text(self):
        return self.browser.run("return document.querySelector('#memory').innerText")

    def test_memory_has_its_limit_in_bytes(self):
        """`runtime.memory_limit` bounds all memory of a worker: the page draws what simulate predicts and what a run needed."""
        (self.folder / "m.yaml").write_text(mlp_config())
        most = max(sum(parts.values()) for parts in json.loads(run(self.folder, "simulate", "m.yaml", "--json").stdout)["memory"])
        (self.folder / "m.yaml").write_text(mlp_config(f"runtime: {{memory_limit: {2 * most}}}"))
        for command in (("simulate", "m.yaml", "-o", "m.json", "--html", "p.html"), ("report", "m.json", "-o", "p.html"),
                        ("train", "m.yaml", "--report", "t.json", "--html", "p.html"), ("report", "t.json", "-o", "p.html")):
            result = run(self.folder, *command)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.open(self.folder / "p.html")
            trained = command[0] == "train" or "t.json" in command
            report = json.loads((self.folder / ("t.json" if trained else "m.json")).read_text())
            needs, levels = ((report[key]["measured"] if trained else report[key]) for key in ("memory", "memory_over_time"))
            for w, (need, level) in enumerate(zip(needs, levels)):
                parts = list(need.values())
                self.assertEqual((max(level["bytes"]), level["limit"]), (sum(parts), 2 * most))
                cells = self.browser.run("return [...document.querySelectorAll('#memory tbody tr')[arguments[0]].cells].map(c => c.textContent)", w)
                self.assertEqual(cells, [str(w), *(f"{value} B" for value in parts), f"{sum(parts)} B"])
            self.assertIn("all memory", self.memory_text())
            limits = self.browser.run("return [...document.querySelectorAll('#memory .chart')].map(c => c.querySelectorAll('line.limit').length)")
            self.assertEqual(limits, [1, 1])
            self.assertIn(f"limit {2 * most} B", self.browser.run("return document.querySelector('#memory svg').textContent"))
            self.assertEqual(self.browser.run("return document.querySelectorAll('#memory .chart')[0].querySelectorAll('path.curve').length"),
                             2 if trained else 1)
        # A limit far above: the curve keeps its height.
        self.open(self.make("simulate", "m.yaml", "--set", "runtime.memory_limit=1GiB", "-o", "m.json", "--html", "p.html"))
        self.assertIn("↑ limit 1.0 GiB", self.browser.run("return document.querySelector('#memory svg').textContent"))
        self.assertLess(self.browser.run("return document.querySelector('#memory path.curve').getBBox().y"), 70)  # of 90

    def test_memory_of_many_workers(self):
        self.open(self.make("schedule", "show", "1f1b", "--workers", 20, "--microbatches", 24, "-o", "s.json", "--html", "p.html"))
        titles = "return [...document.querySelectorAll('#memory figcaption b')].map(b => b.textContent)"
        most = "the most that each worker holds"
        self.assertEqual(self.browser.run(titles), [most, *(f"worker {w}" for w in range(16))])
        self.browser.run("[...document.querySelectorAll('#memory .pager button')][1].click()")
        self.assertEqual(self.browser.run(titles), [most, *(f"worker {w}" for w in range(16, 20))])
        self.assertIn("workers 16 to 19 of 20", self.memory_text())
        peaks = json.loads((self.folder / "s.json").read_text())["peak_stashes"]
        for w in (0, 7, 19):
            self.assertIn(f"predicted: {peaks[w]}", self.read_chart("the most that each worker holds", (w + 0.5) / 20))

    def test_traffic_of_many_workers_in_words(self):
        self.open(self.make("schedule", "show", "1f1b", "--workers", 20, "--microbatches", 24, "--html", "p.html"))
        self.assertEqual(self.browser.run("return document.querySelectorAll('#traffic rect[class^=heat]').length"), 38)
        self.browser.run("document.querySelector('#traffic summary').click()")
        rows = self.browser.run("return [...document.querySelectorAll('#traffic tbody tr')].map(r => [...r.cells].map(c => c.textContent))")
        self.assertEqual(len(rows), 38)
        self.assertEqual(rows[0], ["0 to 1", "24", "24"])

    def read_chart(self, title, share):
        """Returns what a chart tells where the pointer is at a share of its width."""
        at = self.browser.run("""const chart = [...document.querySelectorAll('.chart')].find(c => c.querySelector('b').textContent === arguments[0]);
            chart.scrollIntoView({block: 'center'});
            const box = chart.querySelector('.axis .domain').ownerSVGElement.querySelectorAll('.axis')[1].querySelector('.domain').getBoundingClientRect();
            return [box.left + box.width * arguments[1], chart.querySelector('svg').getBoundingClientRect().top + 30];""", title, share)
        self.browser.move(*at)
        return self.browser.run("""const chart = [...document.querySelectorAll('.chart')].find(c => c.querySelector('b').textContent === arguments[0]);
            const readout = chart.querySelector('.readout'); return readout.hidden ? '' : readout.innerText;""", title)

    def test_charts_tell_their_values(self):
        """Each value with its own step: evaluations are not at every step."""
        self.report(config={"training": {"clip": 2.5}}, losses=[5 - 0.25 * i for i in range(11)], gradient_norms=[3] * 11, step_seconds=[1] * 11,
                    evaluations=[{"step": 0, "loss": 5.5}, {"step": 10, "loss": 2.75}], clipped_steps={"count": 11},
                    skipped_steps={"count": 1, "steps": [{"step": 4, "parameter": "x"}]})
        self.open(self.make("report", "report.json", "-o", "p.html"))
        text = self.read_chart("loss", 7 / 11)  # of steps 0 to 11
        self.assertEqual(text.splitlines(), ["step 7", "training: 3.5", "validation: 2.75 (step 10)"])
        self.browser.run("[...document.querySelectorAll('.chart svg')].find(s => s.closest('.chart').innerText.startsWith('loss')).focus()")
        self.browser.keys("\ue011\ue014\ue014")  # Home, right, right
        read = "return [...document.querySelectorAll('.chart')].find(c => c.innerText.startsWith('loss')).querySelector('.readout').innerText"
        self.assertEqual(self.browser.run(read).splitlines(), ["step 2", "training: 4.75", "validation: 5.5 (step 0)"])
        self.browser.run("document.activeElement.blur()")
        self.assertIsNone(self.browser.run("return [...document.querySelectorAll('.readout')].find(r => !r.hidden) ?? null"))
        at = self.browser.run("""const s = [...document.querySelectorAll('.chart svg')].find(s => s.closest('.chart').innerText.startsWith('loss'));
            const box = s.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]""")
        self.browser.tap(*at)  # what a finger has asked for stays
        self.assertRegex(self.browser.run(read), r"^step \d+\ntraining: ")
        self.assertIn("clip 2.5", self.browser.run("return document.querySelector('#training').textContent"))
        text = self.browser.run("return document.querySelector('#training').innerText")
        self.assertIn("The gradient was clipped in 11 steps.", text)
        self.assertIn("The update was skipped in 1 step, for infinity or NaN: 4.", text)

    def test_rows_of_all_workers_fit(self):
        """Prediction and measurement of 64 workers are seen together; taller rows are a choice."""
        self.report(pipeline=Pipeline(workers=64, microbatches=3))
        self.open(self.make("report", "report.json", "-o", "p.html"))
        heights = "const s = document.querySelector('.lanes'); return [s.scrollHeight - s.clientHeight, view.lanes[0].rowHeight]"
        beyond, row = self.js(heights)
        self.assertEqual(beyond, 0)
        self.browser.run("[...document.querySelectorAll('.controls label')].find(l => l.textContent === 'tall rows').firstChild.click()")
        beyond, tall = self.js(heights)
        self.assertGreater(beyond, 100)
        self.assertGreater(tall, row)

    # ---- keys ----

    def test_keys_reach_every_report(self):
        self.report("a.json")
        self.report("b.json", pipeline=Pipeline(workers=3, microbatches=2))
        self.open(self.make("report", "a.json", "b.json", "-o", "p.html"))
        selected = "const {run, id} = view.selected; return [run.title, run.jobs.name(id)]"
        self.browser.run("document.querySelector('input[type=search]').focus()")
        self.browser.keys("1,1,F\ue007")
        self.assertEqual(self.js(selected), ["a.json", "F(1,1)"])
        self.browser.keys("\ue007")
        self.assertEqual(self.js(selected), ["b.json", "F(1,1)"])
        self.browser.run("document.querySelector('#job td button, #job th button').click()")
        self.assertEqual(self.browser.run("return document.activeElement.tagName"), "CANVAS")
        self.assertEqual(self.js(selected), ["b.json", "F(0,1)"])
        self.browser.keys("n")
        self.assertEqual(self.js(selected), ["a.json", "F(0,1)"])
        # A job that the other report does not have: one in the middle of its step.
        self.browser.run("document.querySelector('input[type=search]').focus()")
        self.browser.keys("\ue009a\ue009")
        self.browser.run("document.querySelector('input[type=search]').select()")
        self.browser.keys("3,5,F\ue007")
        self.assertEqual(self.js(selected), ["a.json", "F(3,5)"])
        self.browser.run("document.querySelector('canvas').focus()")
        self.browser.keys("n")
        self.assertEqual(self.js("return view.selected.run.title"), "b.json")

    def test_what_does_not_fit_can_be_scrolled_with_keys(self):
        self.open(self.make("schedule", "show", "1f1b", "--workers", 40, "--microbatches", 4, "--html", "p.html"))
        self.assertEqual(self.browser.run_async("""requestAnimationFrame(() => requestAnimationFrame(() => arguments[0](
            [...document.querySelectorAll('.scroll')].filter(s => s.checkVisibility() && (s.scrollWidth > s.clientWidth || s.scrollHeight > s.clientHeight)
            !== (s.tabIndex === 0)).length)))"""), 0)

    def test_light_and_dark(self):
        page = self.make("schedule", "show", "1f1b", "--workers", 2, "--microbatches", 2, "--html", "p.html")
        self.open(page)
        colour = "requestAnimationFrame(() => requestAnimationFrame(() => arguments[0](getComputedStyle(document.body).backgroundColor)))"
        seen = []
        for scheme in ("light", "dark"):
            self.browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            seen.append(self.browser.run_async(colour))
            self.open(page)
            seen.append(self.browser.run("return [...document.querySelector('canvas').getContext('2d').getImageData(1, 1, 1, 1).data].slice(0, 3)"))
        self.browser.command("Emulation.setEmulatedMedia", features=[])
        self.assertEqual(seen, ["rgb(255, 255, 255)", [255, 255, 255], "rgb(20, 24, 29)", [20, 24, 29]])

    # ---- hostile reports ----

    def test_damaged_numbers_leave_the_page_in_order(self):
        """Numbers of any size, and none where one is expected, in all that the page draws: no drawing has NaN in it."""
        huge = 1.7e308
        odd = [huge, -huge, None, "x", [], {}, 5e-324, 3]
        workers = [{"time": [0, huge, 5e-324, 1e300], "bytes": [1, huge, 2, 3], "limit": huge}] * 4
        for numbers in (odd, [huge] * 3, [None] * 3, [], [1e99, 1]):
            report = {"config": {"training": {"clip": huge}}, "losses": numbers, "gradient_norms": numbers, "learning_rates": numbers,
                      "step_seconds": numbers, "tokens_per_second": huge, "first_step": huge,
                      "evaluations": [{"step": step, "loss": loss} for step in odd for loss in odd], "lower_bound": huge,
                      "memory": {"predicted": [{"weights": huge, "x": None}] * 4, "measured": odd},
                      "memory_over_time": {"predicted": workers, "measured": odd}, "bytes_between_ranks": {"predicted": huge, "measured": None},
                      "clipped_steps": {"count": huge}, "skipped_steps": {"steps": odd}, "ranks": odd, "policy": odd}
            self.report(**report)
            self.open(self.make("report", "report.json", "-o", "p.html"))
            for view in range(3):
                self.browser.run("""document.querySelectorAll('details').forEach(d => d.open = true);
                    const choice = document.querySelector('#memory select');
                    if (choice) { choice.selectedIndex = Math.min(arguments[0], choice.length - 1); choice.dispatchEvent(new Event('change')); }""", view)
                self.assertEqual(self.browser.run("""return [...document.querySelectorAll('svg *')].flatMap(e => [...e.attributes].filter(
                    a => /NaN|Infinity|undefined|null/.test(a.value)).map(a => `${e.nodeName} ${a.name}="${a.value.slice(0, 80)}"`))"""), [])
            for i in range(self.browser.run("return document.querySelectorAll('.chart svg').length")):
                self.browser.run("document.querySelectorAll('.chart svg')[arguments[0]].focus()", i)
                self.browser.keys("\ue012\ue014\ue010")
            self.assertEqual(self.browser.messages(), [])

    def test_a_run_of_very_many_steps(self):
        report = Pipeline().report()
        steps = 300_000
        report["explain"]["steps"]["last"] += steps - 1
        for name, values in report["explain"]["per_step"].items():
            if name != "predicted":
                report["explain"]["per_step"][name] = values * steps
        report.update(losses=[1 / (1 + i) for i in range(steps)], step_seconds=[1] * steps, evaluations=[{"step": i, "loss": 1} for i in range(steps)])
        (self.folder / "report.json").write_text(json.dumps(report))
        self.open(self.make("report", "report.json", "-o", "p.html"))
        self.assertIn(f"steps 2 to {steps + 1}", self.browser.run("return document.querySelector('#difference').innerText"))
        self.assertLess(self.browser.run("return document.querySelectorAll('*').length"), 5000)

    def test_no_text_becomes_markup(self):
        strings = {"config": {HOSTILE: HOSTILE, "model": {"kind": HOSTILE}}, "config_file": HOSTILE, "versions": {HOSTILE: HOSTILE},
                   "machine": {"name": HOSTILE}, "ranks": [{"rank": 0, HOSTILE: HOSTILE}], "policy": {"ran": HOSTILE},
                   f"{HOSTILE}_per_second": 3, "step_seconds": [1, 2], "losses": [1, 2], "evaluations": [{"step": HOSTILE, "loss": HOSTILE}]}
        name = "<img src=x onerror=hacked=1>&amp;.json"
        self.report(name, title=HOSTILE, **strings)
        shown = copy.deepcopy(strings)
        page = self.make("report", name, "-o", "p.html")
        data = page.read_text(encoding="utf-8").split('id="data">', 1)[1].split("</script>", 1)[0]
        self.assertFalse(set(data) & set("<>&\u2028\u2029"))
        self.open(page)
        self.browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        self.hover(0, 2, 5, 0)
        self.assertIsNone(self.browser.run("return window.hacked"))
        self.assertEqual(self.browser.run("return document.querySelectorAll('img, iframe, object, embed, a').length"), 0)
        self.assertEqual(self.browser.run("return document.scripts.length"), 3)
        self.assertEqual(self.js("return page.runs[0].report.config"), shown["config"])
        heading = self.browser.run("return document.querySelector('h1').textContent")
        self.assertTrue(heading.startswith("Training step of ") and heading.endswith(name), heading)
        self.assertIn(HOSTILE, self.browser.run("return document.querySelector('.subtitle').textContent"))

    def test_names_leave_the_page_in_order(self):
        """Long names, and names that turn the direction of text around: the page's own words and figures stay readable."""
        for name, shown in (("x" * 20_000, "x" * 150 + "…" + "x" * 150), ("\u202e\u05e9\u05dc\u05d5\u05dd", "\u2068\ufffd\u05e9\u05dc\u05d5\u05dd\u2069")):
            strings = {"config": {name: name}, "versions": {name: name}, "machine": {"name": name}, "ranks": [{name: name, "devices": [name] * 9}],
                       "policy": {"ran": name}, f"{name}_per_second": 3, "step_seconds": [1, 2], "losses": [1, 2]}
            self.report(title=name, **strings)
            page = self.make("report", "report.json", "-o", "p.html")
            for width in (1280, 400):
                self.browser.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
                self.open(page)
                self.browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
                self.js("view.press('Enter')")
                self.assertEqual(self.browser.run("return document.documentElement.scrollWidth"), width)
                self.assertEqual(self.browser.run("return document.querySelector('.subtitle').textContent"),
                                 f"{shown}, 4 workers, 4 stages, 6 micro-batches, ordered, 1 rank, policy {shown}")
                self.assertIn(f"3 {shown}/s", self.browser.run("return document.querySelector('.key-figures').textContent"))
        self.browser.command("Emulation.clearDeviceMetricsOverride")


class Refused(unittest.TestCase):
    def test_files_that_are_no_reports(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "compare.json").write_text('{"policies": []}')
            (Path(folder) / "compares.json").write_text('{"schedules": [{"policies": [{"policy": "lws"}]}]}')
            (Path(folder) / "side.json").write_text('{"schedules": [{"schedule": "1f1b"}]}')
            (Path(folder) / "record.json").write_text('{"policies": [{"policy": "lws", "makespan": 1, "record": {"jobs": {}, "schedule": 7}}]}')
            (Path(folder) / "list.json").write_text("[]")
            (Path(folder) / "old.json").write_text('{"config": {}}')
            (Path(folder) / "s.csv").write_text("0F0,0B0\n")
            (Path(folder) / "r.json").write_text(json.dumps(Pipeline().report()))
            deep = 100_000
            (Path(folder) / "deep.json").write_text(json.dumps(Pipeline().report())[:-1] + f', "config": {"[" * deep + "]" * deep}}}')
            for arguments, *culprits in ((("compare.json",), "compare.json", "--html"), (("compares.json",), "compares.json", "-o FILE.json"),
                                         (("side.json",), "side.json", "schedule compare", "--html"),
                                         (("record.json",), "record.json: policies[0].record.schedule: expected an object"),
                                         (("list.json",), "list.json"), (("old.json",), "old.json", "explain"),
                                         (("missing.json",), "missing.json"), (("deep.json",), "deep.json", "nested"), (("r.json", "s.csv"), "s.csv", "r.json", "common axis")):
                result = run(folder, "report", *arguments, "-o", "p.html")
                self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)
                for culprit in culprits:
                    self.assertIn(culprit, result.stderr)
                self.assertFalse((Path(folder) / "p.html").exists())


class WithoutPage(unittest.TestCase):
    """What a program does that was built without the page."""

    def test_the_page_is_refused_before_the_work(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "r.json").write_text(json.dumps(Pipeline().report()))
            (Path(folder) / "mlp.yaml").write_text(mlp_config())
            size = ("--workers", 2, "--microbatches", 2)
            for arguments in (("schedule", "show", "gpipe", *size, "--html", "p.html"), ("schedule", "compare", "gpipe", *size, "--html", "p.html"),
                              ("search", *size, "--html", "p.html"),
                              ("train", "mlp.yaml", "--html", "p.html"), ("compare", "mlp.yaml", "--html", "p.html"),
                              ("report", "r.json", "-o", "p.html")):
                result = run(folder, *arguments)
                self.assertEqual((result.returncode, result.stdout, len(result.stderr.splitlines())), (2, "", 1), result.stderr)
                self.assertIn("without the report page; install npm", result.stderr)
                self.assertFalse((Path(folder) / "p.html").exists())


if __name__ == "__main__":
    BINARY = os.path.abspath(sys.argv.pop(1))
    with tempfile.TemporaryDirectory() as empty:
        probe = run(empty, "schedule", "show", "gpipe", "--workers", 1, "--microbatches", 1, "--html", "p.html")
    if "without the report page" in probe.stderr:
        unittest.main(verbosity=2, defaultTest="WithoutPage")
    if missing := is_missing():
        print(f"skipped: no {missing}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2, defaultTest=("Page", "Refused"))
