# SPDX-License-Identifier: Apache-2.0
"""Simulated runs: their arrays, figures and forms. Usage: timeline_test.py PACKAGE_ROOT [STARPIPE]"""

import gc
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

sys.path.insert(0, sys.argv[1])
STARPIPE = sys.argv[2] if len(sys.argv) > 2 else None

import numpy as np  # noqa: E402

import starpipe  # noqa: E402
from starpipe import Costs, Durations, InputError, Link, LinkLevel, StageSizes  # noqa: E402

try:
    import pandas
except ImportError:
    pandas = None


def run(name="1f1b", costs=None, **options):
    return starpipe.simulate(starpipe.schedule(name, **{"workers": 4, "microbatches": 8, **options}), costs)


class Arrays(unittest.TestCase):
    def test_they_are_views_of_the_timelines_memory(self):
        timeline = run()
        for name in ("start", "end", "ready", "busy", "peak_stashes", "peak_stash_bytes"):
            one, again = getattr(timeline, name), getattr(timeline, name)
            self.assertEqual(one.__array_interface__["data"][0], again.__array_interface__["data"][0], name)
            self.assertFalse(one.flags.owndata, name)
            self.assertFalse(one.flags.writeable, name)
            with self.assertRaises(ValueError):
                one[0] = 1
        # Start and end of a job are neighbours in memory.
        self.assertEqual(timeline.end.__array_interface__["data"][0] - timeline.start.__array_interface__["data"][0], 8)
        self.assertEqual(timeline.order_of(1).__array_interface__["data"], timeline.order_of(1).__array_interface__["data"])

    def test_they_outlive_the_timeline(self):
        timeline = run()
        wanted = timeline.end.copy(), timeline.schedule.compute.copy()
        end, compute = timeline.end, timeline.schedule.compute
        curve = timeline.memory(0).stashes
        peak = int(timeline.peak_stashes[0])
        del timeline
        gc.collect()
        for _ in range(20):
            run(microbatches=9)  # other values where freed memory is used again
        np.testing.assert_array_equal(end, wanted[0])
        np.testing.assert_array_equal(compute, wanted[1])
        self.assertEqual(curve.max(), peak)

    def test_figures_follow_from_them(self):
        timeline = run("zb-h1", Costs((1, 2, 1), comm=0.25))
        schedule = timeline.schedule
        length = timeline.end - timeline.start
        for worker in range(4):
            ids = timeline.order_of(worker)
            self.assertTrue((schedule.compute[ids] == worker).all())
            self.assertTrue((np.diff(timeline.start[ids]) > 0).all())
            self.assertAlmostEqual(length[ids].sum(), timeline.busy[worker])
        self.assertTrue((timeline.ready <= timeline.start).all())
        self.assertEqual(timeline.makespan, timeline.end.max() - timeline.start.min())
        self.assertAlmostEqual(timeline.bubble_fraction, 1 - timeline.busy.sum() / (4 * timeline.makespan))
        self.assertAlmostEqual(timeline.device_bubble_fraction, 1 - timeline.busy.max() / timeline.device_span)

    def test_sums_of_replicas_come_after_the_last_job(self):
        """Two replicas: one transfer to the first worker, and one back."""
        replicas = run("ddp", Costs(links=Link(alpha=1)), workers=2)
        self.assertEqual((replicas.makespan, replicas.gradients_summed), (4 * 2 * 3, 4 * 2 * 3 + 2))
        self.assertIsNone(run().gradients_summed)

    def test_durations_of_each_stage(self):
        costs = Costs([(1, 2, 0), Durations(3, 1, 1)])
        timeline = run(costs=costs, workers=2)
        length = timeline.end - timeline.start
        for id in timeline.schedule.order:
            job = timeline.schedule.job(id)
            self.assertEqual(length[id], {(0, "F"): 1, (0, "BW"): 2, (1, "F"): 3, (1, "BW"): 2}[job.stage, job.pass_])


class Cost(unittest.TestCase):
    def test_transfers(self):
        plain, comm = run(), run(costs=Costs(comm=0.5))
        self.assertGreater(comm.makespan, plain.makespan)
        self.assertEqual(run(costs=Costs(links=Link(alpha=0.5))).makespan, comm.makespan)
        sizes = StageSizes(activation=100, gradient=100)
        self.assertEqual(run(costs=Costs(links=Link(beta=0.005), sizes=sizes)).makespan, comm.makespan)
        nodes = [LinkLevel(Link(alpha=0.1), workers=2, name="node"), LinkLevel(Link(alpha=0.5))]
        self.assertTrue(plain.makespan < run(costs=Costs(links=nodes)).makespan < comm.makespan)
        self.assertGreater(run(costs=Costs(comm=0.5, prefetch=False)).makespan, comm.makespan)
        received = run(costs=Costs(sizes=sizes)).received
        self.assertEqual((received[1].activations.count, received[1].activations.bytes), (8, 800))

    def test_one_gradient_of_inputs_that_are_added(self):
        """The stages before a sum read one gradient, which their worker receives once. It survives a file."""
        schedule = starpipe.Schedule(starpipe.StageGraph(3, [(0, 2), (1, 2)]), 1, 2, placement=lambda s, b, d: s // 2,
                                     priority=lambda s, b, d: s if d == "F" else 5 - s)
        for adds, count in ((False, 2), (True, 1)):
            costs = Costs(sizes=[StageSizes(gradient=8, adds_inputs=adds and s == 2) for s in range(3)])
            timeline = starpipe.simulate(schedule, costs)
            self.assertEqual(timeline.received[0].gradients.count, count)
            with tempfile.TemporaryDirectory() as folder:
                timeline.save(f"{folder}/t.json")
                again = starpipe.simulate(starpipe.read_schedule(f"{folder}/t.json"))
            self.assertEqual(again.received[0].gradients.count, count)

    def test_memory(self):
        timeline = run(costs=Costs(sizes=StageSizes(stash=10)))
        self.assertEqual(list(timeline.peak_stashes), [4, 3, 2, 1])
        self.assertEqual(list(timeline.peak_stash_bytes), [40, 30, 20, 10])
        curve = timeline.memory(2)
        self.assertEqual((curve.stashes.max(), curve.bytes.max(), curve.stashes[-1]), (2, 20, 0))
        with self.assertRaisesRegex(InputError, "there is no worker 4; the workers are 0 to 3"):
            timeline.memory(4)

    def test_wrong_costs(self):
        for words, make in (
            ("durations: expected Durations, three times", lambda: Costs(3)),
            ("durations: expected Durations or three times", lambda: Costs([(1, 2)])),
            ("comm: does not apply together with links", lambda: Costs(comm=1, links=Link(1))),
            ("unit: expected 's', or '' for a unit without a name, got 'ms'", lambda: Costs(unit="ms")),
            ("durations: expected a number, got 'x'", lambda: Costs(("x", 1, 1))),
            ("Durations.F: expected a number, got 'x'", lambda: run(costs=Costs(Durations("x", 1, 1)))),
            ("StageSizes.stash: expected a whole number, 0 or greater, got 1.5", lambda: run(costs=Costs(sizes=StageSizes(stash=1.5)))),
            ("StageSizes.stash: expected a whole number, 0 or greater, got -1", lambda: run(costs=Costs(sizes=StageSizes(stash=-1)))),
            ("unknown sharing 'no' \\(none, in-order, fair\\)", lambda: run(costs=Costs(links=[LinkLevel(Link(1), sharing="no")]))),
            ("links: level 0: a group of 1 workers has no link", lambda: run(costs=Costs(links=[LinkLevel(Link(1), 1), LinkLevel(Link(1))]))),
            ("costs: expected Costs, got 3", lambda: starpipe.simulate(run().schedule, 3)),
            ("", lambda: run(costs=Costs((-1, 1, 1)))),
            ("", lambda: run(costs=Costs([(1, 1, 1)] * 3))),
        ):  # fmt: skip
            with self.assertRaisesRegex(InputError, words):
                make()


class Causes(unittest.TestCase):
    def test_idle_time_and_critical_path_fill_the_makespan(self):
        timeline = run("v-half", Costs(comm=0.5))
        idle = timeline.idle()
        self.assertAlmostEqual(sum(part.end - part.start for part in idle) + timeline.busy.sum(), 4 * timeline.makespan)
        self.assertLessEqual({part.cause for part in idle}, {"fill", "drain", "producer", "transfer", "order", "runtime"})
        transfer = next(part for part in idle if part.cause == "transfer")
        self.assertEqual(transfer.sender, timeline.schedule.compute[timeline.schedule.id_of(*vars(transfer.producer).values())])
        self.assertTrue(all(part.sender is None for part in idle if part.cause != "transfer"))
        path = timeline.critical_path()
        self.assertAlmostEqual(math.fsum(part.end - part.start for part in path), timeline.makespan)
        self.assertTrue(all(one.end == next.start for one, next in zip(path, path[1:])))


class Forms(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_a_notebook_shows_a_picture(self):
        timeline = run()
        for shown in (timeline, timeline.schedule):
            picture = xml.dom.minidom.parseString(shown._repr_svg_())
            jobs = [group for group in picture.getElementsByTagName("g") if group.getAttribute("class") == "jobs"]
            self.assertEqual(sum(len(group.getElementsByTagName("rect")) for group in jobs), 64)
        self.assertIn("starpipe.Timeline of 1f1b: makespan 33, bubble fraction 27.3 %", repr(timeline))

    @unittest.skipUnless(STARPIPE, "this build has no command")
    def test_each_form_is_that_of_the_command(self):
        timeline = run("v-half", Costs((0.001, 0.002, 0.001), comm=0.0005, unit="s"))
        command = [STARPIPE, "schedule", "show", "v-half", "--workers", "4", "--microbatches", "8", "--durations", "F=1ms,B=2ms,W=1ms", "--comm", "0.5ms"]
        for suffix, format in (("json", None), ("csv", None), ("svg", None), ("txt", None), ("json", "trace"), ("html", None)):
            if suffix == "html":
                continue  # report_test.py
            ours, theirs = self.folder / f"ours.{suffix}", self.folder / f"theirs.{suffix}"
            timeline.save(ours, format)
            more = ["--format", format] if format else ["--width", "100"] if suffix == "txt" else []
            subprocess.run([*command, *more, "-o", theirs], check=True, capture_output=True)
            self.assertEqual(ours.read_text(), theirs.read_text(), (suffix, format))

    def test_the_suffix_and_the_format(self):
        timeline = run()
        timeline.save(self.folder / "a.JSON")
        self.assertEqual(json.loads((self.folder / "a.JSON").read_text())["schedule"], "1f1b")
        for words, file, format in (("ends in .svg, expected .json", "a.svg", "trace"), ("has no suffix", "a", None), ("format: expected json", "a.json", "x")):
            with self.assertRaisesRegex(InputError, words):
                timeline.save(self.folder / file, format)
        timeline.save(self.folder / "b", "svg")
        self.assertTrue((self.folder / "b").read_text().startswith("<svg"))

    @unittest.skipUnless(pandas, "no pandas (Debian: python3-pandas)")
    def test_pandas(self):
        timeline = run("zb-h1")
        frame = timeline.to_pandas()
        self.assertEqual(list(frame.columns), ["worker", "weights", "stage", "microbatch", "pass", "ready", "start", "end"])
        self.assertEqual(len(frame), timeline.schedule.job_count)
        self.assertEqual(frame[frame["worker"] == 2].index.tolist(), list(timeline.order_of(2)))
        self.assertEqual(frame.groupby("worker").apply(lambda jobs: (jobs["end"] - jobs["start"]).sum()).tolist(), list(timeline.busy))
        self.assertEqual(timeline.schedule.to_pandas()["pass"].value_counts().to_dict(), {"F": 32, "B": 32, "W": 32})

    @unittest.skipIf(pandas, "there is pandas")
    def test_without_pandas(self):
        with self.assertRaisesRegex(ImportError, "to_pandas needs pandas"):
            run().to_pandas()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
