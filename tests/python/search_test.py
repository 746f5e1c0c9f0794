# SPDX-License-Identifier: Apache-2.0
"""The search: its result, its progress, and how it is stopped. Usage: search_test.py PACKAGE_ROOT [STARPIPE]"""

import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, sys.argv[1])

import starpipe  # noqa: E402
from starpipe import Costs, HomeLink, InputError, Link  # noqa: E402

SMALL = {"workers": 4, "microbatches": 8, "chunks": 2, "layout": "v", "costs": Costs(comm=0.1), "memory_limit": 6}
# No schedule that meets the bound is known, so the search continues until its budget ends. Ten minutes never end here.
HARD = {"workers": 8, "microbatches": 32, "chunks": 2, "layout": "v", "costs": Costs((12.96, 13.22, 9.76), comm=0.5),
        "memory_limit": 8, "budget": 600.0}  # fmt: skip


class Search(unittest.TestCase):
    def test_the_result(self):
        found = starpipe.search(**SMALL, budget=5, work=1)
        starpipe.check(found.schedule)
        self.assertEqual(found.makespan, starpipe.simulate(found.schedule).makespan)
        self.assertLessEqual(found.lower_bound, found.makespan)
        self.assertLess(found.above_bound, 0.05)
        self.assertLessEqual(max(found.peak_memory), 6)
        self.assertEqual(max(found.peak_memory), max(found.timeline.peak_stashes))
        self.assertEqual((found.layout, found.chunks, found.interrupted), ("v", 2, False))
        self.assertIn("lpp", found.unused)
        self.assertTrue(found._repr_svg_().startswith("<svg"))
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "best.json"
            found.save(file)
            saved = json.loads(file.read_text())
            self.assertEqual((saved["lower_bound"], saved["search"]["chunks"]), (found.lower_bound, 2))
            self.assertEqual(starpipe.simulate(starpipe.read_schedule(file)).makespan, found.makespan)

    def test_refusals(self):
        for words, changes in (
            ("no schedule fits a memory limit of 1: the smallest feasible limit is 2", {"memory_limit": 1}),
            ("budget: expected a number, got 'x'", {"budget": "x"}),
            ("budget: expected a number from 0.01 to 1e\\+06, got inf", {"budget": float("inf")}),
            ("budget: expected a number from 0.01 to 1e\\+06, got nan", {"budget": float("nan")}),
            ("memory_limit: expected a number, got nan", {"memory_limit": float("nan")}),
            ("workers: expected a whole number", {"workers": 1.5}),
            ("costs: expected Costs, got 3", {"costs": 3}),
            ("progress: expected a function", {"progress": 3}),
            ("unknown layout", {"layout": "x"}),
            ("memory_limit: expected a number, got 'x'", {"memory_limit": ["x"]}),
            ("homes: expected one of worker, none, host, disk", {"homes": ["worker", "pear"]}),
            ("a copy to another worker is not known", {"homes": ["worker", "peer"]}),
        ):
            with self.assertRaisesRegex(InputError, words):
                starpipe.search(**{**SMALL, **changes})

    def test_homes_on_other_workers(self):
        case = {"workers": 8, "microbatches": 32, "chunks": 1, "memory_limit": 5, "costs": Costs(peer=HomeLink(Link(alpha=0.25))), "work": 0.1}
        near, far = starpipe.search(**case), starpipe.search(**case, homes=["worker", "peer"])
        self.assertLessEqual(far.lower_bound, near.lower_bound)
        self.assertLessEqual(max(far.peak_memory), 5)
        self.assertLess(far.makespan, near.makespan)


class Stopping(unittest.TestCase):
    def test_an_interruption_ends_it_and_keeps_the_best(self):
        states = []

        def progress(state):
            states.append(state)
            if len(states) == 2:
                os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does

        found = starpipe.search(**HARD, progress=progress)
        self.assertTrue(found.interrupted)
        self.assertFalse(found.complete)
        starpipe.check(found.schedule)
        self.assertLessEqual(found.makespan, states[-1].makespan)
        self.assertLess(states[0].seconds, states[1].seconds)
        self.assertTrue(0 <= states[0].done <= states[1].done <= 1)

    def test_an_interruption_without_a_progress_function(self):
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        self.assertTrue(starpipe.search(**HARD).interrupted)
        timer.join()

    def test_other_exceptions_end_it_and_go_through(self):
        class Mine(Exception):
            pass

        mine = Mine()

        def progress(state):
            raise mine

        with self.assertRaises(Mine) as raised:
            starpipe.search(**HARD, progress=progress)
        self.assertIs(raised.exception, mine)

        def handler(*_):
            raise mine

        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with self.assertRaises(Mine):
                starpipe.search(**HARD)
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_other_threads_run_meanwhile(self):
        """The other thread alone can end the search: it could not run if the search kept the interpreter's lock."""
        seen = threading.Event()
        found = []

        def progress(state):
            if seen.is_set():
                raise KeyboardInterrupt

        thread = threading.Thread(target=lambda: found.append(starpipe.search(**HARD, progress=progress)))
        thread.start()
        seen.set()
        thread.join()
        self.assertTrue(found[0].interrupted)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
