# SPDX-License-Identifier: Apache-2.0
"""Schedules from two functions, by name and from files. Usage: schedule_test.py PACKAGE_ROOT [STARPIPE]"""

import copy
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest
import warnings

sys.path.insert(0, sys.argv[1])
STARPIPE = sys.argv[2] if len(sys.argv) > 2 else None

import numpy as np  # noqa: E402

import starpipe  # noqa: E402
from starpipe import Costs, InputError, Job, Schedule, StageGraph  # noqa: E402


def fold(**changes):
    """A V on 4 workers; backward passes go first, then old micro-batches."""
    given = {
        "graph": 8, "microbatches": 6, "workers": 4, "name": "fold", "discipline": "greedy",
        "placement": lambda s, b, d: min(s, 7 - s), "priority": lambda s, b, d: (d == "F", b),
    }  # fmt: skip
    return Schedule(**{**given, **changes})


class FromFunctions(unittest.TestCase):
    def refused(self, words, **changes):
        with self.assertRaises(InputError) as raised:
            fold(**changes)
        self.assertEqual(str(raised.exception), words)

    def test_the_schedule_has_what_the_functions_say(self):
        schedule = fold()
        self.assertEqual((schedule.stages, schedule.workers, schedule.microbatches, schedule.job_count), (8, 4, 6, 96))
        for s in range(8):
            for b in range(6):
                for d in ("F", "BW"):
                    id = schedule.id_of(s, b, d)
                    self.assertEqual(schedule.job(id), Job(s, b, d))
                    self.assertEqual((schedule.stage[id], schedule.microbatch[id], schedule.passes[id]), (s, b, d))
                    self.assertEqual((schedule.compute[id], schedule.weights[id]), (min(s, 7 - s),) * 2)
        order = [(schedule.job(id).pass_ == "F", schedule.job(id).microbatch) for id in schedule.order]
        self.assertEqual(order, sorted(order))
        for worker in range(4):
            own = [id for id in schedule.order if schedule.compute[id] == worker]
            self.assertEqual(list(schedule.order_of(worker)), own)

    def test_equal_priorities_go_by_microbatch_stage_and_pass(self):
        jobs = [fold(priority=lambda s, b, d: 0).job(id) for id in fold(priority=lambda s, b, d: 0).order]
        self.assertEqual(jobs, sorted(jobs, key=lambda job: (job.microbatch, job.stage, "F BW".index(job.pass_))))

    def test_priorities_of_any_kind_with_one_order_are_the_same_schedule(self):
        whole = fold(priority=lambda s, b, d: 100 * (d == "F") + b)
        for same in (lambda s, b, d: (d == "F", b), lambda s, b, d: 1e300 * (d == "F") + 0.5 * b, lambda s, b, d: "ab"[d == "F"] + str(b),
                     lambda s, b, d: 2**70 * (d == "F") + b, lambda s, b, d: np.int32(100 * (d == "F") + b)):  # fmt: skip
            self.assertEqual(fold(priority=same), whole)
        self.assertNotEqual(fold(priority=lambda s, b, d: (d == "F", -b)), whole)

    def test_each_function_is_called_once_a_job(self):
        calls = {"placement": [], "priority": [], "split": []}

        def placement(s, b, d):
            calls["placement"].append((s, b, d))
            return s % 4

        def priority(s, b, d):
            calls["priority"].append((s, b, d))
            return b

        def split(s, b):
            calls["split"].append((s, b))
            return b % 2 == 0

        schedule = fold(placement=placement, priority=priority, split_backward=split)
        jobs = [(s, b, d) for s in range(8) for b in range(6) for d in (("F", "BW") if b % 2 else ("F", "B", "W"))]
        self.assertCountEqual(calls["placement"], jobs)
        self.assertCountEqual(calls["priority"], jobs)
        self.assertCountEqual(calls["split"], [(s, b) for s in range(8) for b in range(6)])
        self.assertEqual(schedule.job_count, len(jobs))
        self.assertCountEqual([(j.stage, j.microbatch, j.pass_) for j in map(schedule.job, schedule.order)], jobs)
        self.assertCountEqual(zip(schedule.stage[schedule.order], schedule.microbatch[schedule.order], schedule.passes[schedule.order]), jobs)
        without = [id for id in range(schedule.id_count) if id not in set(schedule.order)]
        self.assertTrue(without)
        self.assertEqual(set(schedule.passes[without]), {""})
        with self.assertRaisesRegex(InputError, f"id: {without[0]} has no job"):
            schedule.job(without[0])

    def test_weights_elsewhere(self):
        schedule = fold(placement=lambda s, b, d: (s % 4, b % 4))
        self.assertEqual(set(zip(schedule.stage % 4, schedule.microbatch % 4)), set(zip(schedule.weights, schedule.compute)))
        self.assertEqual(fold(placement=lambda s, b, d: starpipe.Placement(weights=s % 4, compute=b % 4)), schedule)

    def test_exceptions_go_through_unchanged(self):
        class Mine(Exception):
            pass

        mine = Mine("of the function")

        def throws(*job):
            raise mine

        for part in ("placement", "priority", "split_backward"):
            with self.assertRaises(Mine) as raised:
                fold(**{part: throws})
            self.assertIs(raised.exception, mine)

    def test_wrong_functions_get_one_clear_line(self):
        self.refused("placement: F(0,0): there is no worker 9; the workers are 0 to 3", placement=lambda s, b, d: 9)
        self.refused("placement: BW(7,5): there is no worker -1; the workers are 0 to 3", placement=lambda s, b, d: -1 if (s, b, d) == (7, 5, "BW") else 0)
        self.refused("placement: F(0,0): there is no worker 4; the workers are 0 to 3", placement=lambda s, b, d: (4, 0))
        self.refused(f"placement: F(0,0): there is no worker {10**30}; the workers are 0 to 3", placement=lambda s, b, d: 10**30)
        for wrong in (None, "x", 1.5, True, (0, 1, 2), (0, "x"), [0]):
            self.refused(f"placement: F(0,0): expected a worker, or a pair of workers (weights, compute), got {wrong!r}",
                         placement=lambda s, b, d, wrong=wrong: wrong)  # fmt: skip
        self.refused("placement: expected a function of (s, b, d), got 3", placement=3)
        self.refused("priority: F(0,0): expected values with one order, such as numbers or tuples of numbers, got None",
                     priority=lambda s, b, d: None)  # fmt: skip
        self.refused("priority: F(3,0): expected values with one order, such as numbers or tuples of numbers, got 'x' next to 1",
                     priority=lambda s, b, d: "x" if s == 3 else 1)  # fmt: skip
        self.refused("priority: BW(2,1): nan has no place in an order",
                     priority=lambda s, b, d: float("nan") if (s, b, d) == (2, 1, "BW") else 1.0)  # fmt: skip

    def test_wrong_values_get_one_clear_line(self):
        self.refused("workers: expected a whole number from 1 to 65536, got 0", workers=0)
        self.refused("microbatches: expected a whole number, got 'x'", microbatches="x")
        self.refused("graph: expected a whole number, got 2.5", graph=2.5)
        self.refused("unknown discipline 'fast' (greedy, bounded or ordered)", discipline="fast")
        self.refused("fold: 2 memory limits for 4 workers", memory_limit=[1, 2])
        self.refused("memory_limit: expected a whole number from 1 to 2147483647, got 0", memory_limit=0)

    def test_it_is_a_value(self):
        schedule = fold()
        self.assertEqual(schedule, fold())
        self.assertNotEqual(schedule, fold(name="other"))
        for copied in (pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule)):
            self.assertEqual(copied, schedule)
            self.assertEqual(copied.costs, schedule.costs)


class Graphs(unittest.TestCase):
    def test_a_graph_of_branches(self):
        towers = StageGraph(5, [(0, 1), (2, 3), (1, 4), (3, 4)])
        self.assertEqual((towers.stages, towers.sink, towers.is_chain), (5, 4, False))
        self.assertEqual((towers.pred(4), towers.succ(0), towers.edges[0]), ([1, 3], [1], (0, 1)))
        self.assertEqual(pickle.loads(pickle.dumps(towers)), towers)
        self.assertEqual(hash(StageGraph.chain(3)), hash(StageGraph(3, [(0, 1), (1, 2)])))
        schedule = Schedule(towers, 4, 5, placement=lambda s, b, d: s, priority=lambda s, b, d: (d == "F", b), discipline="greedy")
        timeline = starpipe.simulate(schedule)
        self.assertEqual(timeline.start[schedule.id_of(4, 0, "F")], 2)
        self.assertEqual(timeline.start[schedule.id_of(2, 0, "F")], 0)

    def test_wrong_graphs(self):
        for edges in ([(0, 1), (1, 0)], [(0, 5)], []):
            with self.assertRaises(InputError):
                StageGraph(3, edges)
        with self.assertRaises(InputError):
            StageGraph.chain(0)


class Checks(unittest.TestCase):
    def test_a_cycle_is_raised_with_its_jobs(self):
        # Worker 0 runs BW(1,1) before F(1,1), on which it depends.
        schedule = Schedule(2, 2, 1, placement=lambda s, b, d: 0, priority=lambda s, b, d: -1 if (s, b, d) == (1, 1, "BW") else (b if d == "F" else 9))
        with self.assertRaises(starpipe.CheckError) as raised:
            starpipe.check(schedule)
        self.assertIn("can never finish", str(raised.exception))
        cycle = raised.exception.cycle
        self.assertIn(Job(1, 1, "BW"), cycle)
        self.assertIn(Job(1, 1, "F"), cycle)
        self.assertIsInstance(raised.exception, ValueError)
        with self.assertRaisesRegex(InputError, "can never finish"):
            starpipe.simulate(schedule)
        self.assertIsNone(schedule._repr_svg_())

    def test_a_limit_that_cannot_be_kept_has_no_cycle(self):
        with self.assertRaises(starpipe.CheckError) as raised:
            starpipe.check(fold(discipline="bounded", memory_limit=1))
        self.assertIn("memory limit of 1", str(raised.exception))
        self.assertEqual(raised.exception.cycle, ())

    def test_sound_ones_pass(self):
        for entry in starpipe.schedules():
            with self.subTest(entry.name):
                more = {"groups": 2} if entry.name in ("lpp", "fslpp") else {}
                starpipe.check(starpipe.schedule(entry.name, workers=4, microbatches=8, **more))


class Named(unittest.TestCase):
    def test_the_list_is_that_of_the_command(self):
        entries = {entry.name: entry for entry in starpipe.schedules()}
        self.assertGreater(len(entries), 25)
        self.assertEqual(entries["interleaved-1f1b"].alias, "Interleaved1F1B")
        self.assertTrue(all(entry.summary and entry.source for entry in entries.values()))

    def test_options_placement_groups_and_stages(self):
        make = starpipe.schedule
        with self.assertRaisesRegex(InputError, "schedule '1f1b' has no option 'waves' \\(it has none\\)"):
            make("1f1b", workers=4, microbatches=8, waves=1)
        with self.assertRaisesRegex(InputError, "waves: expected a whole number, got 'x'"):
            make("1f1b", workers=4, microbatches=8, waves="x")
        placed = make("1f1b", workers=2, microbatches=4, placement=[0, 1, 1, 0])
        self.assertEqual(list(placed.compute[[placed.id_of(s, 0, "F") for s in range(4)]]), [0, 1, 1, 0])
        self.assertEqual(make("lpp", workers=4, microbatches=4, groups=2).workers, 4)
        self.assertEqual(make("gpipe", workers=2, microbatches=4, graph=2).stages, 2)
        with self.assertRaisesRegex(InputError, "^placement: "):
            make("v-half", workers=4, microbatches=8, placement=[0, 1])
        with self.assertRaisesRegex(InputError, "unknown schedule 'no' \\(known: 1f1b, "):
            make("no", workers=4, microbatches=8)
        for words, given in (
            ("name: expected str, got 3", {"name": 3}),
            ("costs: expected Costs, got 3", {"costs": 3}),
            ("placement: expected a sequence of workers, got 3", {"placement": 3}),
            ("placement: expected a whole number from 0", {"placement": [-1, 0]}),
        ):
            with self.assertRaisesRegex(InputError, words):
                make(**{"name": "1f1b", "workers": 4, "microbatches": 8, **given})
        for function in (starpipe.check, starpipe.simulate):
            with self.assertRaisesRegex(InputError, "schedule: expected Schedule, got 3"):
                function(3)

    def test_a_memory_limit_says_when_it_changes_the_order(self):
        kept = starpipe.schedule("1f1b", workers=4, microbatches=8, memory_limit=4)
        self.assertIsNone(kept.reordering)
        changed = starpipe.schedule("1f1b", workers=4, microbatches=8, memory_limit=2)
        self.assertEqual(changed.reordering, starpipe.Reordering(worker=0, held=4, limit=2))
        self.assertEqual(max(starpipe.simulate(changed).peak_stashes), 2)
        again = starpipe.schedule("1f1b", workers=4, microbatches=8).with_memory_limit(2)
        self.assertEqual((again, again.reordering), (changed, changed.reordering))

    def test_costs_of_a_share(self):
        of_shares = starpipe.schedule("v-half", workers=4, microbatches=8, costs=Costs((2, 4, 2)), memory_limit=4, per_share=True)
        self.assertEqual(of_shares.costs.durations, (starpipe.Durations(1, 2, 1),))
        self.assertEqual(of_shares.memory_limits, (8,) * 4)

    @unittest.skipUnless(STARPIPE, "this build has no command")
    def test_it_is_the_schedule_of_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "a.json"
            for name, options in (("v-half", ()), ("zb-2p", ()), ("1f1b", ("--memory-limit", "2")), ("fsdp", ("--home", "none"))):
                subprocess.run([STARPIPE, "schedule", "show", name, "--workers", "4", "--microbatches", "8", "--durations",
                                "F=1,B=2,W=1", "--comm", "0.25", *options, "-o", file], check=True)  # fmt: skip
                more = {"memory_limit": 2} if "--memory-limit" in options else {"home": "none" if options else None}
                ours = starpipe.schedule(name, workers=4, microbatches=8, costs=Costs((1, 2, 1), comm=0.25), **more)
                self.assertEqual(starpipe.simulate(ours).json(), file.read_text(), name)
                read = starpipe.read_schedule(file)
                self.assertEqual(starpipe.simulate(read).makespan, starpipe.simulate(ours).makespan, name)


class Slices(unittest.TestCase):
    def test_named_schedules_take_them(self):
        schedule = starpipe.schedule("1f1b", workers=4, microbatches=2, slices=3, costs=starpipe.Costs((3, 3, 3)))
        self.assertEqual((schedule.slices, schedule.microbatches), (3, 6))
        timeline = starpipe.simulate(schedule)
        self.assertEqual(timeline.makespan, 27)
        self.assertEqual(list(timeline.peak_stashes), [6, 5, 4, 3])
        self.assertEqual(starpipe.schedule("1f1b", workers=4, microbatches=6).slices, 1)

    def test_own_schedules_send_keys_and_values(self):
        ring = starpipe.Schedule(1, 8, 4, slices=4, placement=lambda s, b, d: (0, b % 4), priority=lambda s, b, d: b if d == "F" else 100 - b,
                                 costs=starpipe.Costs(sizes=starpipe.StageSizes(keys_values=100, keys_values_gradient=200)))  # fmt: skip
        received = [(to.keys_values.bytes, to.keys_values_gradients.bytes) for to in starpipe.simulate(ring).received]
        self.assertEqual(received, [(0, 400), (200, 800), (400, 1200), (600, 0)])
        self.assertEqual(pickle.loads(pickle.dumps(ring)), ring)
        self.assertEqual(pickle.loads(pickle.dumps(ring)).slices, 4)

    def test_costs_of_slices(self):
        costs = starpipe.Costs([(1, 2, 3), (10, 20, 30)], slices=2)
        schedule = starpipe.schedule("gpipe", workers=1, microbatches=1, slices=2)
        self.assertEqual(starpipe.simulate(schedule, costs).makespan, 66)
        self.assertEqual(starpipe.simulate(starpipe.schedule("gpipe", workers=1, microbatches=1, slices=2, graph=1, costs=costs)).makespan, 66)
        for wrong, message in ((dict(slices=4, costs=costs), "costs of 2 slices"), (dict(slices=2, graph=2, costs=costs), "2 entries for 2 stages")):
            with self.assertRaises(starpipe.InputError) as raised:
                starpipe.schedule("zb-1p", workers=2, microbatches=4, **wrong)
            self.assertIn(message, str(raised.exception))

    def test_wrong_values_get_one_clear_line(self):
        make = dict(placement=lambda s, b, d: 0, priority=lambda s, b, d: b)
        for wrong, message in (
            (lambda: starpipe.Schedule(1, 5, 1, slices=2, **make), "slices: 5 micro-batches"),
            (lambda: starpipe.schedule("1f1b", workers=2, microbatches=2, slices=0), "slices: expected a whole number"),
            (lambda: starpipe.schedule("1f1b", workers=2, microbatches=2, slices=2, home="none"), "slices"),
        ):
            with self.assertRaises(starpipe.InputError) as raised:
                wrong()
            self.assertIn(message, str(raised.exception))


class Pairs(unittest.TestCase):
    def test_jobs_with_the_same_n_run_at_once(self):
        schedule = starpipe.schedule("dualpipe", workers=4, microbatches=8)
        self.assertTrue(schedule.has_pairs)
        together = starpipe.simulate(schedule, starpipe.Costs(overlap=starpipe.Overlap(F_BW=2.5)))
        self.assertEqual(together.makespan, 24)
        self.assertEqual(starpipe.simulate(schedule).makespan, starpipe.simulate(schedule, starpipe.Costs(overlap=None)).makespan)
        partner = schedule.partner
        paired = np.flatnonzero(partner >= 0)
        self.assertTrue((partner[partner[paired]] == paired).all())
        self.assertTrue((schedule.compute[partner[paired]] == schedule.compute[paired]).all())
        self.assertEqual(pickle.loads(pickle.dumps(schedule)), schedule)
        self.assertTrue(pickle.loads(pickle.dumps(schedule)).has_pairs)

    def test_own_schedules_have_them(self):
        schedule = starpipe.Schedule(1, 3, 1, placement=lambda s, b, d: 0, pairs=True, priority=lambda s, b, d: b if d == "F" else b + 1)
        alone = schedule.partner < 0
        self.assertEqual([(int(b), str(d)) for b, d in zip(schedule.microbatch[alone], schedule.passes[alone])], [(0, "F"), (2, "BW")])
        self.assertEqual(starpipe.simulate(schedule, starpipe.Costs(overlap=0.8)).makespan, 1 + 2 * 0.8 * 3 + 2)
        self.assertEqual(starpipe.simulate(schedule).makespan, 9)

    def test_wrong_values_get_one_clear_line(self):
        schedule = starpipe.schedule("dualpipe", workers=4, microbatches=8)
        for wrong, message in (
            (lambda: starpipe.Costs(overlap=1.5), "overlap: expected a number from 0 to 1"),
            (lambda: starpipe.Costs(overlap="fast"), "overlap: expected a number"),
            (lambda: starpipe.Costs(overlap=starpipe.Overlap(F_BW=-1)), "overlap.F_BW: expected a number"),
            (lambda: starpipe.simulate(schedule, starpipe.Costs(overlap=0.5)), "at least the longer"),
            (lambda: starpipe.Schedule(1, 2, 1, placement=lambda s, b, d: 0, priority=lambda s, b, d: b, pairs=1), "pairs: expected True or False"),
            (lambda: starpipe.Schedule(1, 2, 1, placement=lambda s, b, d: 0, priority=lambda s, b, d: b, pairs=True, discipline="greedy"),
             "pairs need an ordered schedule"),
        ):  # fmt: skip
            with self.assertRaises(starpipe.InputError) as raised:
                wrong()
            self.assertIn(message, str(raised.exception))


class Homes(unittest.TestCase):
    def test_r_takes_the_time_of_f(self):
        schedule = starpipe.schedule("1f1b", workers=2, microbatches=4, home="none", costs=Costs((1, 2, 0)))
        self.assertTrue(schedule.recomputes)
        timeline = starpipe.simulate(schedule)
        again = schedule.passes == "R"
        self.assertEqual(again.sum(), 8)
        self.assertEqual(set(timeline.end[again] - timeline.start[again]), {1.0})
        with tempfile.TemporaryDirectory() as folder:
            schedule.save(f"{folder}/r.json")
            read = starpipe.read_schedule(f"{folder}/r.json")
        self.assertEqual(list(read.passes), list(schedule.passes))
        self.assertEqual(list(starpipe.simulate(read).start), list(timeline.start))
        copied = pickle.loads(pickle.dumps(starpipe.schedule("1f1b", workers=2, microbatches=4, home="none", discipline="greedy")))
        self.assertTrue(copied.recomputes_late)

    def test_homes_that_fit_a_limit(self):
        schedule = starpipe.schedule("1f1b", workers=4, microbatches=8, costs=Costs((1, 2, 0)))
        fitting = schedule.with_homes_to_fit(2)
        self.assertEqual(fitting.discipline, "ordered")
        self.assertEqual((fitting.passes == "R").sum(), 7)
        timeline = starpipe.simulate(fitting)
        self.assertEqual((max(timeline.peak_stashes), timeline.makespan), (2, 35))
        self.assertAlmostEqual(timeline.recomputed_fraction, 7 / (4 * 35))
        self.assertEqual(schedule.with_homes_to_fit(4).passes.tolist(), schedule.passes.tolist())
        with self.assertRaisesRegex(InputError, "memory limit"):
            starpipe.schedule("zb-h2", workers=4, microbatches=8).with_homes_to_fit(1)

    def test_stashes_wait_on_other_workers(self):
        plain = starpipe.schedule("1f1b", workers=4, microbatches=8, costs=Costs((1, 2, 0), copy=0.5))
        schedule = plain.with_homes(lambda s, b: 3 if s == 0 else "worker")
        self.assertEqual([schedule.home(s, 3) for s in range(4)], [3, "worker", "worker", "worker"])
        self.assertEqual(schedule, plain.with_homes([3, "worker", "worker", "worker"]))
        self.assertEqual(schedule, starpipe.schedule("1f1b", workers=4, microbatches=8, home=[3, "worker", "worker", 3]))
        timeline = starpipe.simulate(schedule)
        self.assertEqual((timeline.received[3].stashes.count, timeline.received[0].stashes.count), (8, 8))
        self.assertEqual(timeline.peak_stashes[0], 3)
        self.assertEqual(pickle.loads(pickle.dumps(schedule)), schedule)
        with tempfile.TemporaryDirectory() as folder:
            schedule.save(f"{folder}/p.json")
            self.assertEqual(list(starpipe.simulate(starpipe.read_schedule(f"{folder}/p.json")).start), list(timeline.start))
        own = starpipe.Schedule(2, 2, 2, placement=lambda s, b, d: s, home=lambda s, b: 1, priority=lambda s, b, d: {
            (0, 0): {"F": 0, "O": 1, "L": 8, "BW": 9}, (0, 1): {"F": 2, "O": 3, "L": 10, "BW": 11},
            (1, 0): {"F": 4, "BW": 5}, (1, 1): {"F": 6, "BW": 7}}[s, b][d])  # fmt: skip
        self.assertEqual([own.home(s, 0) for s in range(2)], [1, "worker"])
        starpipe.check(own)
        for wrong in (-1, 1.5, "worker:1x", True):
            with self.assertRaises(InputError):
                plain.with_homes(lambda s, b, home=wrong: home)

    def test_named_ways(self):
        plain = starpipe.schedule("1f1b", workers=8, microbatches=24, costs=Costs((1, 2, 0), copy=0.5))
        balanced = plain.with_homes("bpipe")
        timeline = starpipe.simulate(balanced)
        self.assertEqual((max(timeline.peak_stashes), timeline.makespan), (5, starpipe.simulate(plain).makespan))
        self.assertEqual((plain.with_homes("megatron", memory_limit=4).passes == "R").any(), True)
        with self.assertRaisesRegex(InputError, "home: megatron needs a memory limit"):
            plain.with_homes("megatron")
        with self.assertRaisesRegex(InputError, "unknown home 'bpip'"):
            plain.with_homes("bpip")
        with self.assertRaisesRegex(InputError, "only with the name of a way"):
            plain.with_homes("none", memory_limit=3)

    def test_copies_take_the_time_of_their_link(self):
        plain = starpipe.schedule("1f1b", workers=4, microbatches=8, costs=Costs((1, 2, 0), copy=0.5))
        schedule = plain.with_homes(["host", "disk", "worker", "worker"])
        self.assertTrue(schedule.copies)
        self.assertEqual([schedule.home(s, 3) for s in range(4)], ["host", "disk", "worker", "worker"])
        timeline = starpipe.simulate(schedule)
        for name in ("O", "L"):
            copies = schedule.passes == name
            self.assertEqual(copies.sum(), 16)
            self.assertEqual(set(timeline.end[copies] - timeline.start[copies]), {0.5})
        self.assertEqual(timeline.received[0].reloads.count, 8)
        self.assertEqual(timeline.peak_stashes[0], 3)
        self.assertEqual(pickle.loads(pickle.dumps(schedule)), schedule)
        self.assertEqual(schedule.with_homes("worker"), plain)
        with tempfile.TemporaryDirectory() as folder:
            schedule.save(f"{folder}/o.json")
            read = starpipe.read_schedule(f"{folder}/o.json")
        self.assertEqual(list(read.passes), list(schedule.passes))
        self.assertEqual(list(starpipe.simulate(read).start), list(timeline.start))
        with self.assertRaisesRegex(InputError, "home host: the time of a copy"):
            starpipe.simulate(schedule, Costs((1, 2, 0)))
        shared = Costs((1, 2, 0), host=starpipe.HomeLink(starpipe.Link(alpha=0.5)), disk=starpipe.HomeLink(starpipe.Link(alpha=0.5), 2))
        self.assertEqual(starpipe.simulate(schedule, shared).makespan, timeline.makespan)
        sized = Costs((1, 2, 0), sizes=starpipe.StageSizes(stash=100), host=starpipe.HomeLink(starpipe.Link(alpha=0.5), memory=800))
        self.assertEqual(sized.host.memory, 800)
        with self.assertRaisesRegex(InputError, "host_link: memory: up to [0-9]+ B of stashes of worker 0 wait"):
            starpipe.simulate(schedule, Costs((1, 2, 0), sizes=starpipe.StageSizes(stash=100), host=starpipe.HomeLink(starpipe.Link(), memory=99)))
        with self.assertRaisesRegex(InputError, "copy: does not apply together with host"):
            Costs(copy=1, host=starpipe.HomeLink(starpipe.Link()))
        with self.assertRaisesRegex(InputError, "copy: "):
            Costs(copy=-1)

    def test_copies_with_n_of_their_own(self):
        """O and L have n and no w."""
        n = {"F": 0, "O": 1.5, "L": 8.5, "BW": 10}
        schedule = Schedule(1, 4, 1, placement=lambda s, b, d: 0, home="host", costs=Costs(copy=0.5), priority=lambda s, b, d: n[d] + b)
        starpipe.check(schedule)
        self.assertEqual([str(schedule.job(int(id))) for id in schedule.order][:4], ["F(0,0)", "F(0,1)", "O(0,0)", "F(0,2)"])
        self.assertEqual(max(starpipe.simulate(schedule).peak_stashes), 2)

    def test_homes_by_stage_and_by_function(self):
        plain = starpipe.schedule("zb-h1", workers=4, microbatches=8)
        self.assertFalse(plain.recomputes)
        by_stage = plain.with_homes(["none", "worker", "worker", "none"])
        self.assertEqual(by_stage, plain.with_homes(lambda s, b: "none" if s in (0, 3) else "worker"))
        self.assertEqual(by_stage, starpipe.schedule("zb-h1", workers=4, microbatches=8, home=["none", "worker", "worker", "none"]))
        self.assertEqual([by_stage.home(s, 5) for s in range(4)], ["none", "worker", "worker", "none"])
        self.assertEqual((by_stage.passes == "R").sum(), 16)
        self.assertEqual(by_stage.with_homes("worker"), plain)
        self.assertEqual(pickle.loads(pickle.dumps(by_stage)), by_stage)
        with self.assertRaisesRegex(InputError, "stage: there is no stage 4"):
            by_stage.home(4, 0)

    def test_r_on_another_worker(self):
        """R has w and n of its own."""
        schedule = Schedule(2, 1, 2, placement=lambda s, b, d: 1 - s if d == "R" else s, home=lambda s, b: "none" if s == 0 else "worker",
                            priority=lambda s, b, d: ("F", "R", "BW").index(d))  # fmt: skip
        self.assertEqual([(job.pass_, int(schedule.compute[schedule.id_of(job.stage, 0, job.pass_)]))
                          for job in (schedule.job(int(id)) for id in schedule.order)],
                         [("F", 0), ("F", 1), ("R", 1), ("BW", 0), ("BW", 1)])  # fmt: skip


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_json_and_csv_and_back(self):
        for made in (fold(), starpipe.schedule("zb-h1", workers=3, microbatches=5)):
            ordered = made.with_discipline("ordered") if made.discipline == "ordered" else made
            for suffix in ("json", "csv"):
                file = self.folder / f"x.{suffix}"
                ordered.save(file)
                read = starpipe.read_schedule(file)
                self.assertEqual(starpipe.simulate(read).makespan, starpipe.simulate(ordered).makespan)
                self.assertEqual([list(read.order_of(w)) for w in range(read.workers)],
                                 [list(starpipe.simulate(ordered).order_of(w)) for w in range(read.workers)])  # fmt: skip

    def test_csv_warns_of_what_it_cannot_say(self):
        with self.assertWarnsRegex(UserWarning, "a CSV file cannot say which workers hold the weights"):
            starpipe.schedule("fsdp", workers=2, microbatches=2).save(self.folder / "x.csv")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fold().save(self.folder / "y.csv")

    def test_csv_refuses_homes(self):
        with self.assertRaisesRegex(InputError, "a CSV file cannot say that F is computed again"):
            starpipe.schedule("1f1b", workers=2, microbatches=2).with_homes("none").save(self.folder / "x.csv")
        self.assertFalse((self.folder / "x.csv").exists())

    def test_wrong_files(self):
        (self.folder / "bad.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B1,1F1,1B0\n")
        with self.assertRaises(InputError) as raised:
            starpipe.read_schedule(self.folder / "bad.csv")
        self.assertIn(f"{self.folder}/bad.csv: row 2, cell 2: BW(1,1) can never start: it waits for F(1,1)", str(raised.exception))
        with self.assertRaisesRegex(InputError, "none.json"):
            starpipe.read_schedule(self.folder / "none.json")
        with self.assertRaisesRegex(InputError, "save: .*x.pdf ends in .pdf"):
            fold().save(self.folder / "x.pdf")
        with self.assertRaisesRegex(InputError, "save: .*nofolder"):
            fold().save(self.folder / "nofolder" / "x.json")
        self.assertEqual([file.name for file in self.folder.iterdir()], ["bad.csv"])

    @unittest.skipUnless(STARPIPE, "this build has no command")
    def test_the_command_takes_a_saved_schedule(self):
        fold().save(self.folder / "mine.json")
        done = subprocess.run([STARPIPE, "schedule", "check", self.folder / "mine.json", "--json"], check=True, capture_output=True, text=True)
        self.assertIn('"fold"', done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
