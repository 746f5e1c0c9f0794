# SPDX-License-Identifier: Apache-2.0
"""`schedule list`, `show` and `check`. Usage: schedule_test.py BINARY"""

import itertools
import json
import os
import random
import stat
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

from check_schedule import check
from support import CommandTest, mlp_config


def defined(name, workers, microbatches):
    """True if the schedule is defined for these counts."""
    if name in ("chimera", "dualpipe") and workers % 2 != 0:
        return False
    if name in ("dualpipe", "dualpipe-v"):
        return microbatches >= 2 * workers and (name == "dualpipe-v" or microbatches % 2 == 0)
    return True


# Schedules with groups, and schedules that place jobs by micro-batch.
GROUPED = {"lpp", "fslpp"}
ANY_STAGES = {"ddp", "fsdp", "lpp", "fslpp"}


class ScheduleShow(CommandTest):
    def names(self):
        return [s["name"] for s in json.loads(self.ok("schedule", "list", "--json"))["schedules"]]

    def show(self, name, workers, microbatches, *more):
        return json.loads(self.ok("schedule", "show", name, "--workers", workers, "--microbatches", microbatches,
                                  "--json", *more))

    def assert_sound(self, data, **expect):
        self.assertEqual(check(data, expect), [])

    def test_list(self):
        names = self.names()
        self.assertTrue({"naive", "gpipe", "1f1b", "eager-1f1b", "ddp", "fsdp", "lpp", "fslpp"} <= set(names))
        text = self.ok("schedule", "list")
        for name in names:
            self.assertIn(name, text)

    def requests(self, name):
        """Worker counts and options that the schedule accepts."""
        for workers in (1, 2, 3, 4, 6):
            if name in GROUPED:
                for groups in (g for g in range(1, workers + 1) if workers % g == 0):
                    for stages in (1, 3, workers, 2 * workers):
                        yield workers, ["--groups", groups, "--stages", stages]
            elif name in ANY_STAGES:
                for stages in (1, 3, workers):
                    yield workers, ["--stages", stages]
            else:
                yield workers, []

    def test_every_schedule_against_an_independent_checker(self):
        rng = random.Random(1)
        durations = ["F=1,B=1,W=1", "F=1,B=2,W=0.5", "F=0.25,B=3,W=1"]
        for name in self.names():
            requests = [(w, m, o) for w, o in self.requests(name) for m in (1, 3, 8, 12) if defined(name, w, m)]
            # Each with one of the costs, in turn: every pair of an option and a cost occurs somewhere.
            for (workers, microbatches, options), cost, comm in zip(
                    rng.sample(requests, min(len(requests), 7)), itertools.cycle(durations),
                    itertools.cycle(["0", "0.5", "2", "0"])):
                with self.subTest(name=name, workers=workers, microbatches=microbatches, options=options, cost=cost,
                                  comm=comm):
                    data = self.show(name, workers, microbatches, *options, "--durations", cost, "--comm", comm)
                    self.assert_sound(data, schedule=name, workers=workers, microbatches=microbatches,
                                      comm=float(comm))

    def test_pytorchs_names(self):
        self.assertEqual(self.show("ZBVZeroBubble", 3, 5), self.show("v-zb", 3, 5))
        self.assertIn("Interleaved1F1B in PyTorch", self.ok("schedule", "list"))

    def test_copies_to_each_home_have_times_of_their_own(self):
        def makespan(homes, copy, *more):
            return self.show("1f1b", 4, 8, "--durations", "F=1,B=1,W=1", "--home", homes, "--copy", copy, *more)["makespan"]

        for homes, home in (("host,worker,worker,worker", "host"), ("disk,worker,worker,worker", "disk"), ("worker:3,worker,worker,worker", "peer")):
            others = {"host", "disk", "peer"} - {home}
            slow = ",".join([f"{home}=20", *(f"{other}=0.5" for other in others)])
            self.assertEqual(makespan(homes, f"{home}=0.5"), makespan(homes, 0.5))
            self.assertEqual(makespan(homes, slow), makespan(homes, 20))
        both = self.show("1f1b", 4, 8, "--home", "auto", "--memory-limit", 3, "--copy", "host=1000,peer=0.2")
        self.assertEqual({copy["home"][:7] for copies in both["copies"] for copy in copies}, {"worker:"})
        show = ("schedule", "show", "1f1b", "--workers", 4, "--microbatches", 8, "--home", "host", "--copy")
        self.refused((*show, "host=1,host=2"), "--copy host=1,host=2: host is given twice")
        self.refused((*show, "host=1,ram=2"), "--copy host=1,ram=2", "'ram=2'")
        self.refused((*show, "host=-1"), "--copy", "-1")
        self.refused((*show, "host=1ms"), "--copy 1ms: has a unit")
        self.refused((*show, "peer=1"), "the time of a copy to the host is not known")

    def test_the_order_knows_durations_and_transfers(self):
        options = ["--durations", "F=1,B=3,W=0.5", "--comm", 0.4]
        order = lambda data: [[(op["op"], op["microbatch"]) for op in row] for row in data["ops"]]
        self.assertNotEqual(order(self.show("zb-2p", 4, 12, *options)), order(self.show("zb-2p", 4, 12)))
        self.assertEqual(order(self.show("1f1b", 4, 12, *options)), order(self.show("1f1b", 4, 12)))

    def test_recomputation(self):
        data = self.show("1f1b", 4, 8, "--home", "none", "--durations", "F=2,B=3,W=1")
        # R needs no gradient, so it runs while a worker waits for one.
        self.assertEqual(data["makespan"], 82)
        self.assertEqual(data["peak_stashes"], [1, 1, 1, 1])
        self.assertEqual(data["durations"], {"F": 2, "B": 3, "W": 1})
        self.write("r.json", json.dumps(data))
        again = json.loads(self.ok("schedule", "check", "r.json", "--json"))
        self.assertEqual(again["peak_stashes"], [1, 1, 1, 1])
        self.assertEqual(again["makespan"], data["makespan"])

    def test_other_options_against_the_checker(self):
        self.write("stages.yaml", "- {F: 1, B: 2, W: 1}\n- {F: 2.5, B: 1, W: 0.5}\n- {F: 1, B: 1, W: 1}\n")
        for more in (["--durations", "stages.yaml"],
                     ["--discipline", "greedy"],
                     ["--discipline", "greedy", "--comm", 3, "--durations", "stages.yaml"],
                     ["--memory-limit", 1],
                     ["--memory-limit", 2, "--comm", 1],
                     ["--placement", "2,1,0"],
                     ["--no-prefetch", "--comm", 1],
                     ["--placement", "0,1,1,2,0"]):
            with self.subTest(more=more):
                self.assert_sound(self.show("1f1b", 3, 5, *more))
        self.assert_sound(self.show("fsdp", 3, 5, "--no-prefetch", "--comm", 1))
        data = self.show("1f1b", 3, 5, "--durations", "stages.yaml")
        self.assertEqual(data["durations"][1], {"F": 2.5, "B": 1, "W": 0.5})

    def test_memory_limits(self):
        """An order that fits is kept; where it does not fit, every format tells that another order was made."""
        free = self.show("v-half", 4, 8)
        self.assertEqual((free["makespan"], max(free["peak_stashes"])), (53, 6))
        for limit in (6, 8):
            data = self.show("v-half", 4, 8, "--memory-limit", limit)
            self.assertNotIn("reordered", data)
            self.assertEqual((data["ops"], data["memory_limits"]), (free["ops"], [limit] * 4))
        data = self.show("v-half", 4, 8, "--memory-limit", 4)
        self.assertLessEqual(max(data["peak_stashes"]), 4)
        self.assertEqual((data["discipline"], data["memory_limits"]), ("bounded", [4] * 4))
        self.assertEqual(data["reordered"], {"worker": 0, "stashes": 6, "limit": 4})
        words = "not in v-half's own order: in it worker 0 would hold 6 stashes, above the memory limit of 4"
        show = ["schedule", "show", "v-half", "--workers", 4, "--microbatches", 8, "--memory-limit", 4]
        self.assertEqual(self.ok(*show).splitlines()[0], words)
        for form in ("csv", "svg", "trace"):
            result = self.run_command(*show, "--format", form)
            self.assertEqual((result.returncode, result.stderr), (0, f"starpipe: {words}\n"))
            self.assertNotIn("own order", result.stdout)
        # A schedule that is made for a limit is also told when its own order would fit.
        self.assertNotIn("reordered", self.show("1f1b-star", 6, 24, "--memory-limit", 6))
        self.assertEqual(self.show("1f1b-star", 6, 24, "--memory-limit", 4)["reordered"]["limit"], 4)
        # A limit for each worker.
        self.ok("schedule", "show", "v-half", "--workers", 4, "--microbatches", 8, "-o", "v-half.json")
        own = self.show("1f1b", 4, 8)
        self.assertEqual(self.show("1f1b", 4, 8, "--memory-limit", "4,3,2,1")["ops"], own["ops"])
        limited = self.show("1f1b", 4, 8, "--memory-limit", "4,3,1,1")
        self.assertEqual((limited["reordered"], limited["memory_limits"]),
                         ({"worker": 2, "stashes": 2, "limit": 1}, [4, 3, 1, 1]))
        self.refused(["schedule", "show", "1f1b", "--workers", 4, "--microbatches", 8, "--memory-limit", "4,3,2"],
                     "--memory-limit: 3 values for 4 workers")
        self.refused(["schedule", "check", "v-half.json", "--memory-limit", "6,6"], "--memory-limit: 2 values for 4 workers")
        # Limits that cannot be kept, or a discipline that keeps none.
        self.refused([*show[:-1], 1], "memory limit of 1")
        self.refused([*show, "--discipline", "ordered"], "memory limit of 4")
        self.refused([*show, "--discipline", "greedy"], "keeps no memory limit")

    def test_limit_and_recomputation_of_a_file(self):
        """`check` takes --memory-limit and --home, and says the same of a file as `show` of the schedule."""
        times = ("--durations", "F=1,B=2,W=1")
        self.ok("schedule", "show", "1f1b", "--workers", 3, "--microbatches", 6, *times, "-o", "plain.json")
        for more in ([], ["--home", "none"], ["--memory-limit", 3], ["--memory-limit", 2], ["--memory-limit", 2, "--home", "none"],
                     ["--home", "worker:2,worker,worker", "--copy", 0.5], ["--home", "bpipe", "--copy", 0.5], ["--home", "mario"],
                     ["--home", "megatron", "--memory-limit", 2], ["--home", "pipeoffload", "--copy", 0.5]):
            with self.subTest(more=more):
                shown = self.show("1f1b", 3, 6, *times, *more)
                checked = json.loads(self.ok("schedule", "check", "plain.json", *more, "--json"))
                self.assertEqual(checked, shown)
                self.write("again.json", json.dumps(checked))
                self.assertEqual(json.loads(self.ok("schedule", "check", "again.json", *times, "--json"))["makespan"],
                                 shown["makespan"])
        self.refused(["schedule", "check", "plain.json", "--memory-limit", 0], "--memory-limit")
        for home, *culprits in (("worker:9,worker,worker", "O(0,0)", "worker 9", "workers 0..2"), ("worker:x", "unknown home 'worker:x'"),
                                ("mpipe", "unknown home 'mpipe'", "bpipe"), ("bpipe,none,none", "--home: bpipe is for all stages"),
                                ("megatron", "home: megatron needs a memory limit"), ("pipeoffload", "time of a copy to the host"),
                                ("worker:1,none", "2 homes for 3 stages")):  # fmt: skip
            self.refused(["schedule", "check", "plain.json", "--home", home], *culprits)
        # A time a byte has the unit of the file's times.
        priced = {**self.show("1f1b", 3, 6), "comm_per_byte": 0.01, "sizes": {"activation": 100}}
        for unit, other in (({}, "F=2ms,B=2ms,W=2ms"), ({"unit": "s"}, "F=2,B=2,W=2")):
            self.write("priced.json", json.dumps({**priced, **unit}))
            for comm in ([], ["--comm", 0]):
                self.refused(["schedule", "check", "priced.json", "--durations", other, *comm], "comm_per_byte", "unit")
        # Greedy keeps no limit, whether an option, a key or a file asks for it.
        self.ok("schedule", "show", "1f1b", "--workers", 3, "--microbatches", 6, "--discipline", "greedy", "-o", "greedy.json")
        self.write("c.yaml", mlp_config(schedule="file: greedy.json").replace("microbatches: 4, ", "").replace("layers: 2", "layers: 3"))
        for limit in (2, 50):
            self.refused(["schedule", "check", "greedy.json", "--memory-limit", limit], "greedy", "keeps no memory limit")
            self.refused(["simulate", "c.yaml", "--set", f"schedule.memory_limit={limit}"], "greedy", "keeps no memory limit")
        data = json.loads(self.ok("simulate", "c.yaml", "--set", "schedule.memory_limit=50", "--set",
                                  "schedule.discipline=bounded", "--json"))
        self.assertEqual((data["discipline"], data["memory_limits"]), ("bounded", [50] * 3))
        # A bounded file whose run keeps a smaller limit: the order stays, and the discipline is told.
        bounded = {**self.show("1f1b", 3, 6), "discipline": "bounded", "memory_limits": [9] * 3}
        self.write("bounded.json", json.dumps(bounded))
        peak = max(json.loads(self.ok("schedule", "check", "bounded.json", "--json"))["peak_stashes"])
        result = self.run_command("schedule", "check", "bounded.json", "--memory-limit", peak, "--json")
        self.assertEqual(json.loads(result.stdout)["discipline"], "ordered")
        self.assertIn("discipline ordered", result.stderr)
        self.write("tight.json", json.dumps({**self.show("1f1b", 3, 6), "memory_limits": [1, 1, 1]}))
        self.refused(["schedule", "check", "tight.json", "--memory-limit", 3], "worker 0", "limit of 1")

    def test_figures_of_the_documentation(self):
        data = self.show("1f1b", 4, 8)
        self.assertEqual(data["makespan"], 33)
        self.assertAlmostEqual(data["bubble_fraction"], 0.2727, 4)
        self.assertEqual(data["peak_stashes"], [4, 3, 2, 1])
        self.assertEqual(data["ops"][0][0],
                         {"op": "F", "stage": 0, "microbatch": 0, "start": 0, "end": 1, "weights_from": 0})
        self.assertEqual(data["received"]["activations"], [0, 8, 8, 8])
        self.assertEqual(data["received"]["gradients"], [8, 8, 8, 0])

    def test_the_checker_sees_faults(self):
        def fault(change):
            data = self.show("1f1b", 3, 4, "--comm", 1)
            change(data)
            self.assertNotEqual(check(data), [])

        fault(lambda d: d["ops"][1].pop())
        fault(lambda d: d["ops"][1].append(d["ops"][1][0]))
        fault(lambda d: d["ops"][1][0].update(start=0, end=1))
        fault(lambda d: d["ops"][0][0].update(end=2))
        fault(lambda d: d.update(makespan=1))
        fault(lambda d: d.update(bubble_fraction=0))
        fault(lambda d: d["peak_stashes"].reverse())
        fault(lambda d: d["received"].update(gradients=[0, 0, 0]))
        fault(lambda d: d["ops"][0][0].update(weights_from=1))
        fault(lambda d: d.update(comm=100))

    def test_units(self):
        """The same times as without units, in seconds."""
        plain = self.show("1f1b", 3, 5, "--durations", "F=0.002,B=0.004,W=0.0005", "--comm", 0.001)
        for durations in ("F=2ms,B=4ms,W=500us", "F=0.002s,B=4ms,W=0.5ms"):
            data = self.show("1f1b", 3, 5, "--durations", durations, "--comm", "1ms")
            self.assertEqual(data.pop("unit"), "s")
            self.assertEqual(data, plain)
        size = ["--workers", 3, "--microbatches", 5]
        self.write("stages.yaml", "- {F: 1ms, B: 2ms, W: 1ms}\n- {F: 2.5ms, B: 1ms, W: 0}\n- {F: 1ms, B: 1ms, W: 1ms}\n")
        self.ok("schedule", "show", "1f1b", *size, "--durations", "stages.yaml", "-o", "s.json")
        text = self.ok("schedule", "check", "s.json", "--comm", "100us")
        for word in ("busy (ms)", "time in ms", " ms\n"):
            self.assertIn(word, text)
        self.assertIn("time (ms)", self.ok("schedule", "check", "s.json", "--format", "svg"))
        self.assertEqual(json.loads(self.ok("schedule", "check", "s.json", "--json"))["unit"], "s")
        self.assertNotIn("unit", json.loads(self.ok("schedule", "check", "s.json", "--durations", "F=1,B=2,W=1", "--json")))
        self.write("c.yaml", mlp_config())
        self.assertIn("time in ms", self.ok("search", *size, "--durations", "F=2ms,B=4ms,W=1ms", "--budget", 0.1, "--quiet"))
        self.assertIn(" ms\n", self.ok("simulate", "c.yaml", "--durations", "F=2ms,B=4ms,W=1ms"))

    def test_units_of_some_times_only(self):
        def refused(*arguments, names):
            self.refused(["schedule", "show", "1f1b", "--workers", 2, "--microbatches", 2, *arguments], *names)

        refused("--durations", "F=2ms,B=4,W=1ms", names=["--durations", "units"])
        refused("--durations", "F=2ms,B=4ms", names=["--durations", "F, B and W"])
        refused("--durations", "F=2ms,B=4ms,W=1ms", "--comm", 1, names=["--comm 1", "unit"])
        refused("--comm", "1ms", names=["--comm 1ms", "unit"])
        refused("--durations", "F=2 minutes", names=["--durations", "F", "2 minutes", "ms"])
        refused("--durations", self.write("m.yaml", "- {F: 1ms, B: 2ms, W: 1ms}\n- {F: 1, B: 2, W: 1}\n"), names=["m.yaml:2", "units"])
        self.ok("schedule", "show", "1f1b", "--workers", 2, "--microbatches", 2, "--comm", 1, "-o", "s.json")
        self.refused(["schedule", "check", "s.json", "--durations", "F=2ms,B=4ms,W=1ms"], "--durations", "--comm")

    def test_width(self):
        show = ["schedule", "show", "1f1b", "--workers", 8, "--microbatches", 64]
        rows = lambda *more: [line for line in self.ok(*show, *more).splitlines() if line.startswith("worker ") and "." in line]
        self.assertEqual({len(row) for row in rows()}, {200})
        self.assertEqual({len(row) for row in rows("--width", 100)}, {100})
        self.assertIn("scaled; ", self.ok(*show))
        wide = self.ok(*show, "--width", 2000)
        self.assertNotIn("scaled", wide)
        self.assertIn(" F63 ", wide)
        for format in ("json", "csv", "svg", "trace"):
            self.refused([*show, "--format", format, "--width", 100], "--width", format)
        self.refused([*show, "--width", 3], "--width", "3")

    def test_sources_have_titles(self):
        for schedule in json.loads(self.ok("schedule", "list", "--json"))["schedules"]:
            self.assertRegex(schedule["source"], r"[A-Za-z]{3}", schedule["name"])
            self.assertNotRegex(schedule["source"], r"\b00\d\b", schedule["name"])
        self.assertIn("Pipeline Parallelism with Controllable Memory, 2024", self.ok("schedule", "list"))

    def test_formats(self):
        show = ["schedule", "show", "1f1b", "--workers", 3, "--microbatches", 4]
        text = self.ok(*show)
        self.assertIn("makespan", text)
        self.assertIn("worker 0", text)
        self.assertNotIn("\x1b", text)  # not a terminal
        self.assertEqual(len(self.ok(*show, "--format", "csv").splitlines()), 3)
        self.assertEqual(json.loads(self.ok(*show, "--format", "json")), json.loads(self.ok(*show, "--json")))
        trace = json.loads(self.ok(*show, "--format", "trace"))
        jobs = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        self.assertEqual(len(jobs), 3 * 4 * 2)
        svg = ElementTree.fromstring(self.ok(*show, "--format", "svg"))
        namespace = "{http://www.w3.org/2000/svg}"
        self.assertEqual(svg.tag, namespace + "svg")
        groups = [g for g in svg.iter(namespace + "g") if g.get("class") == "jobs"]
        self.assertEqual(sum(len(list(g.iter(namespace + "rect"))) for g in groups), 3 * 4 * 2)

    def test_files(self):
        show = ["schedule", "show", "gpipe", "--workers", 2, "--microbatches", 3]
        for name, format in (("a.json", "json"), ("a.csv", "csv"), ("a.svg", "svg"), ("a.txt", "text")):
            self.assertEqual(self.ok(*show, "-o", name), "")
            self.assertEqual(self.read(name), self.ok(*show, "--format", format))
        self.ok(*show, "--format", "trace", "-o", "t.json")
        self.assertIn("traceEvents", json.loads(self.read("t.json")))
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.csv", "a.json", "a.svg", "a.txt", "t.json"])
        # An existing file is replaced; a link stays a link.
        os.symlink("a.txt", self.path("link"))
        self.ok(*show, "--format", "csv", "-o", "link")
        self.assertTrue(stat.S_ISLNK(os.lstat(self.path("link")).st_mode))
        self.assertEqual(self.read("a.txt"), self.read("a.csv"))
        self.assertEqual(self.ok(*show, "--format", "csv", "-o", "/dev/stdout"), self.read("a.csv"))

    def test_no_room(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([self.binary, "schedule", "list"], stdout=full, stderr=subprocess.PIPE,
                                    encoding="utf-8", check=False)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "starpipe: cannot write to standard output: No space left on device\n")

    def test_no_room_for_a_file(self):
        limited = ["bash", "-c", 'ulimit -f 4; exec "$0" "$@"']
        for name in ("a.svg", "a.json", "a.csv"):
            result = self.run_command("schedule", "show", "1f1b", "--workers", 8, "--microbatches", 64, "-o", name,
                                      launcher=limited)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(result.stderr, f"starpipe: -o: cannot write {name}: File too large\n")
            self.assertEqual(os.listdir(self.folder), [])

    def test_bad_requests(self):
        def refused(*arguments, **expected):
            self.refused(["schedule", "show", *arguments], *expected["names"])

        size = ["--workers", 4, "--microbatches", 8]
        refused("2f2b", *size, names=["'2f2b'", "known: 1f1b"])
        refused("1f1b", "--workers", 0, "--microbatches", 8, names=["--workers", "0"])
        refused("1f1b", "--workers", -2, "--microbatches", 8, names=["--workers", "-2"])
        refused("1f1b", "--workers", "many", "--microbatches", 8, names=["--workers", "many"])
        refused("1f1b", "--workers", 4, names=["--microbatches"])
        refused("1f1b", "--workers", 4, "--microbatches", 0, names=["--microbatches", "0"])
        refused("1f1b", "--workers", 60000, "--microbatches", 1000000, names=["--microbatches", "too many"])
        refused("1f1b", *size, "--stages", 5, names=["1f1b", "5 stages", "4 workers"])
        refused("1f1b", *size, "--stages", 0, names=["--stages"])
        refused("1f1b", *size, "--groups", 3, names=["1f1b", "groups"])
        refused("lpp", *size, names=["lpp", "groups"])
        refused("lpp", *size, "--groups", 3, names=["lpp", "4 workers", "3"])
        refused("lpp", *size, "--groups", 0, names=["lpp", "0"])
        refused("ddp", *size, "--placement", "0,1,2,3", names=["ddp", "placement"])
        refused("1f1b", *size, "--placement", "0,1,2,7", names=["stage 3", "worker 7"])
        refused("1f1b", *size, "--placement", "0,1,x,3", names=["--placement", "x"])
        refused("1f1b", *size, "--discipline", "lazy", names=["--discipline", "lazy"])
        refused("1f1b", *size, "--discipline", "bounded", names=["bounded", "limit"])
        refused("1f1b", *size, "--discipline", "greedy", "--memory-limit", 2, names=["greedy", "limit"])
        refused("1f1b", *size, "--discipline", "ordered", "--memory-limit", 2, names=["worker 0", "limit of 2"])
        refused("1f1b", *size, "--memory-limit", 0, names=["--memory-limit", "0"])
        refused("ddp", *size, "--memory-limit", 2, names=["limit of 2", "is below 4, the number of stages"])
        refused("1f1b", *size, "--comm", -1, names=["--comm", "-1"])
        refused("1f1b", *size, "--comm", "inf", names=["--comm", "inf"])
        refused("1f1b", *size, "--comm", "nan", names=["--comm", "nan"])
        refused("1f1b", *size, "--comm", "fast", names=["--comm", "fast"])
        refused("1f1b", *size, "--format", "png", names=["--format", "png"])
        refused("1f1b", *size, "--format", "csv", "--json", names=["--json", "--format"])
        refused("1f1b", *size, "-o", "nowhere/a.json", names=["-o", "nowhere/a.json", "does not exist"])
        refused("1f1b", *size, "-o", ".", names=["-o", "directory"])
        self.assertEqual(os.listdir(self.folder), [])

    def test_bad_durations(self):
        def refused(durations, *names):
            self.refused(["schedule", "show", "1f1b", "--workers", 2, "--microbatches", 2, "--durations", durations],
                         *names)

        refused("F=x", "--durations F=x", "F", "'x'")
        refused("F=-1", "--durations", "F", "-1")
        refused("F=nan", "--durations", "nan")
        refused("F=1,G=2", "--durations", "unknown key 'G' (known: F, B, W)")
        refused("F=1,F=2", "--durations", "F is given twice")
        refused("F=1,2", "--durations", "'2'")
        refused("F=2,B=2", "--durations F=2,B=2: W is missing", "W=0")
        refused("B=1,W=1", "--durations B=1,W=1: F is missing")
        refused(self.write("two.yaml", "- {F: 1, B: 1, W: 1}\n- {F: 1, W: 1}\n"), "two.yaml:2: B is missing")
        refused(self.write("one.yaml", "{F: 1, B: 2}\n"), "one.yaml: W is missing")
        refused("missing.yaml", "missing.yaml", "No such file")
        refused(self.write("list.yaml", "- {F: 1}\n- {F: 1}\n- {F: 1}\n"), "list.yaml", "3 stages", "2")
        refused(self.write("word.yaml", "- {F: 1, B: 1, W: 1}\n- {F: fast}\n"), "word.yaml:2", "F", "'fast'")
        refused(self.write("pass.yaml", "{F: 1, FB: 2}\n"), "pass.yaml", "'FB'")
        refused(self.write("scalar.yaml", "3\n"), "scalar.yaml", "'3'")
        refused(self.write("broken.yaml", "a: [\n"), "broken.yaml:2", "not YAML")
        refused(self.write("empty.yaml", ""), "empty.yaml", "nothing")


class ScheduleCheck(CommandTest):
    def test_round_trip(self):
        requests = [["1f1b", "--workers", 3, "--microbatches", 5],
                    ["fslpp", "--workers", 4, "--microbatches", 6, "--groups", 2, "--stages", 8],
                    ["gpipe", "--workers", 3, "--microbatches", 4, "--placement", "2,0,1,1"],
                    ["1f1b", "--workers", 3, "--microbatches", 5, "--memory-limit", 2]]
        for request in requests:
            for costs in ([], ["--durations", "F=1,B=2,W=0.5", "--comm", 0.5]):
                with self.subTest(request=request, costs=costs):
                    self.ok("schedule", "show", *request, *costs, "-o", "s.json")
                    shown = json.loads(self.read("s.json"))
                    shown.pop("reordered", None)
                    checked = json.loads(self.ok("schedule", "check", "s.json", "--json"))
                    self.assertEqual(check(checked), [])
                    self.assertEqual(checked, shown)

    def test_every_export_comes_back(self):
        self.write("chain.yaml", "- {F: 1, B: 2}\n- {F: 2, B: 1}\n")
        self.write("mlp.yaml", mlp_config(schedule="name: v-half, workers: 2").replace("layers: 2", "layers: 4"))
        size = ["--workers", 3, "--microbatches", 5]
        for command in (["schedule", "show", "1f1b", *size, "--discipline", "greedy", "--comm", 3],
                        ["schedule", "show", "1f1b", *size, "--memory-limit", 2, "--no-prefetch", "--comm", 1],
                        ["search", *size, "--budget", 0.1, "--quiet"],
                        ["periodic", "chain.yaml", "--repeat", 2],
                        ["simulate", "mlp.yaml"]):
            with self.subTest(command=command):
                self.ok(*command, "-o", "e.json")
                exported = json.loads(self.read("e.json"))
                again = json.loads(self.ok("schedule", "check", "e.json", "--json"))
                self.assertEqual(again, {key: value for key, value in exported.items()
                                         if key not in ("lower_bound", "search", "pattern", "memory", "memory_over_time",
                                                        "reordered", "cuts")})

    def test_the_discipline_is_that_of_the_text(self):
        """`simulate` fixes greedy and bounded orders. Its file has the order, and the discipline that the text says."""
        self.write("c.yaml", mlp_config(schedule="name: gpipe, workers: 2"))
        for sets, word in ((["schedule.discipline=greedy"], "greedy"),
                           (["schedule.discipline=bounded", "schedule.memory_limit=2"], "bounded"),
                           (["schedule.memory_limit=2"], "bounded"), (["schedule.memory_limit=4"], "ordered"),
                           (["schedule.discipline=greedy", "schedule.dynamic=true"], "greedy"), ([], "ordered")):
            with self.subTest(sets=sets):
                more = [argument for key in sets for argument in ("--set", key)]
                self.assertIn(f", {word};", self.ok("simulate", "c.yaml", *more))
                data = json.loads(self.ok("simulate", "c.yaml", *more, "--json"))
                self.assertEqual(data["discipline"], word)
                self.write("s.json", json.dumps(data))
                again = json.loads(self.ok("schedule", "check", "s.json", "--json"))
                for key in ("discipline", "ops", "makespan", "peak_stashes"):
                    self.assertEqual(again[key], data[key])

    def test_the_order_of_the_list_is_the_order(self):
        self.ok("schedule", "show", "gpipe", "--workers", 2, "--microbatches", 3, "-o", "s.json")
        jobs = lambda data: [[(op["op"], op["microbatch"]) for op in row] for row in data["ops"]]

        def checked(change):
            data = json.loads(self.read("s.json"))
            change(data)
            self.write("edited.json", json.dumps(data))
            again = json.loads(self.ok("schedule", "check", "edited.json", "--json"))
            self.assertEqual(check(again), [])
            self.assertEqual(jobs(again), jobs(data))
            return again["makespan"]

        def swap(data):
            row = data["ops"][1]
            row[3], row[4] = row[4], row[3]

        self.assertEqual(checked(lambda data: None), 12)
        self.assertGreater(checked(swap), 12)

    def test_what_csv_cannot_say(self):
        """A command that writes a schedule which CSV cannot hold says so."""
        for name, extra, lost in (("1f1b", (), ""), ("fsdp", (), "which workers hold the weights"), ("1f1b", ("--tensor", 2), "which stages read which")):
            result = self.run_command("schedule", "show", name, "--workers", 2, "--microbatches", 4, *extra, "-o", "lost.csv")
            self.assertEqual(result.returncode, 0)
            self.assertEqual(result.stderr, f"starpipe: a CSV file cannot say {lost}; a JSON file can\n" if lost else "")
        for home, missing in (("none", "that F is computed again"), ("host", "that stashes are copied"), ("worker:1", "that stashes are copied")):
            self.refused(["schedule", "show", "1f1b", "--workers", 2, "--microbatches", 4, "--home", home, "--copy", 1, "-o", "none.csv"],
                         f"a CSV file cannot say {missing}; a JSON file can")  # fmt: skip
            self.assertFalse(os.path.exists(os.path.join(self.folder, "none.csv")))

    def test_csv(self):
        self.ok("schedule", "show", "1f1b", "--workers", 3, "--microbatches", 5, "-o", "s.csv")
        self.assertEqual(self.read("s.csv").splitlines()[2], "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3,2F4,2B4")
        costs = ["--durations", "F=1,B=2,W=1", "--comm", 1]
        checked = json.loads(self.ok("schedule", "check", "s.csv", *costs, "--json"))
        self.assertEqual(check(checked), [])
        shown = json.loads(self.ok("schedule", "show", "1f1b", "--workers", 3, "--microbatches", 5, *costs, "--json"))
        self.assertEqual(checked["ops"], shown["ops"])
        self.assertEqual(self.ok("schedule", "check", "s.csv", "--format", "csv"), self.read("s.csv"))

    def test_summary(self):
        self.write("s.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
        text = self.ok("schedule", "check", "s.csv")
        for word in ("makespan", "bubble", "peak stashes"):
            self.assertIn(word, text)

    def test_files_that_are_not_named_after_what_they_are(self):
        self.write("s", "0F0,0B0\n")
        self.ok("schedule", "check", "s")
        self.write("s", '{"ops": [[{"op": "F", "stage": 0, "microbatch": 0}, {"op": "BW", "stage": 0, "microbatch": 0}]]}')
        self.ok("schedule", "check", "s")

    def test_bad_files(self):
        def refused(name, text, *names):
            self.refused(["schedule", "check", self.write(name, text)], name, *names)

        self.refused(["schedule", "check", "missing.csv"], "missing.csv", "No such file")
        self.refused(["schedule", "check", "."], "is a directory")
        refused("a.csv", "0F0,0X0\n", "row 1, cell 2", "0X0")
        refused("a.csv", "", "empty")
        refused("a.csv", "0F0,0B0,0F0\n", "F(0,0)", "twice")
        refused("a.csv", "0F0\n", "stage 0, micro-batch 0")
        refused("a.csv", "0F0,0B0\n1B0,1F0\n", "cycle", "F(1,0)")
        refused("a.json", "{", "parse error")
        refused("a.json", "{}", "ops", "missing")
        refused("a.json", '{"ops": [[{"op": "Q", "stage": 0, "microbatch": 0}]]}', "ops[0][0].op", "Q")
        refused("a.json", '{"ops": [[{"op": "F", "stage": 0, "microbatch": 0}]]}', "micro-batch 0")
        good = '{"op": "F", "stage": 0, "microbatch": 0}, {"op": "BW", "stage": 0, "microbatch": 0, "weights_from": 3}'
        refused("a.json", '{"ops": [[' + good + "]]}", "worker 3")
        cell = '{"op": "%s", "stage": 0, "microbatch": %d}'
        row = ", ".join([cell % ("F", 0), cell % ("F", 1), cell % ("BW", 0), cell % ("BW", 1)])
        def edited(*change):
            data = json.loads(self.ok("schedule", "show", "1f1b", "--workers", 2, "--microbatches", 3, "--json"))
            for edit in change:
                edit(data)
            return json.dumps(data)

        refused("a.json", edited(lambda d: d["ops"][1].reverse()), "ops[1]", "cycle")
        refused("a.json", edited(lambda d: d["ops"][1][2].update(start=0)), "ops[1][2].start: 0 is before")
        # Worker 1 runs F0 from 1 to 2 and BW0 from 2 to 4.
        refused("a.json", edited(lambda d: d["ops"][1][1].update(start=1.5)), "ops[1][1].start: 1.5 is before 2, the end of "
                "ops[1][0]")
        refused("a.json", edited(lambda d: d["ops"][1][0].update(end=3)), "ops[1][1].start: 2 is before 3")
        refused("a.json", edited(lambda d: d["ops"][0][0].update(start=-3)), "ops[0][0].start: -3 is before the run")
        refused("a.json", edited(lambda d: d["ops"][1][2].pop("end"), lambda d: d["ops"][1].insert(0, d["ops"][1].pop(2))),
                "is before")
        refused("a.json", edited(lambda d: d.update(comm=1e300)), "comm", "at most 1e+99")
        refused("a.json", edited(lambda d: d.update(comm_per_byte=1)), "comm_per_byte", "no sizes")
        refused("a.json", edited(lambda d: d.update(comm_per_byte=1, sizes={"stash": 9})), "comm_per_byte", "no sizes")
        refused("a.json", edited(lambda d: d.update(prefetch=False)), "prefetch", "transfers that take time")
        refused("a.json", edited(lambda d: d.update(discipline="bounded")), "bounded", "limit")
        refused("a.json", edited(lambda d: d.update(disciplin="greedy")), "disciplin: unknown key", "discipline")
        for name in ("search", "reordered", "pattern", "received", "received_bytes"):
            refused("a.json", edited(lambda d: d.update({name: {"foo": 1}})), f"{name}.foo: unknown key")
        refused("a.json", edited() + "\0", "a.json: byte ", "is zero")
        refused("a.json", edited(lambda d: d["ops"][0][1].update(weight_from=0)), "ops[0][1].weight_from: unknown key")
        refused("a.json", edited(lambda d: d.update(workers=3)), "workers: 3", "2 rows")
        refused("a.json", edited(lambda d: d.update(makespan="long")), "makespan", "long")
        refused("a.json", '{"comm": 1, "comm": 2, "ops": [[' + row + "]]}", "'comm'", "twice")
        refused("a.json", '{"memory_limits": [1], "ops": [[' + row + "]]}", "worker 0", "limit of 1")


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv.pop(1))
    unittest.main()
