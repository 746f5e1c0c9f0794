# SPDX-License-Identifier: Apache-2.0
"""starpipe explain: the report of a run says where its time went, names what was slow, and answers what-ifs.

Reports come from emulated runs, and from a small simulator here, whose runs have known causes.
Usage: explain_test.py BINARY [LAUNCHER...]
"""

import itertools
import json
import os
import sys
import unittest

from support import CommandTest

LAUNCHER = []
MS = 1_000_000  # nanoseconds
CAUSES = ["fill", "drain", "producer", "transfer", "order", "runtime"]
PARTS = ["durations", "transfers", "order", "runtime"]

EMULATED = """model: {kind: mlp, layers: 3, hidden: 8, inputs: 4, outputs: 2}
training: {steps: 5, microbatches: 6, microbatch_size: 2}
schedule: {name: 1f1b, workers: 3}
runtime: {emulate: {F: 4ms, B: 4ms, W: 4ms, comm: 1ms}}
"""


class Pipeline:
    """GPipe on a chain of workers, run by hand. Times in nanoseconds; stage s is on worker s."""

    def __init__(self, workers=4, microbatches=6):
        self.workers = workers
        self.microbatches = microbatches
        self.links = {}  # (from, to): time of a transfer; others take 1 ms
        self.durations = {}  # (stage, pass): time of a job; others take 4 ms (F) and 8 ms (BW)
        self.late = {}  # (stage, microbatch, pass): time from being ready to the start
        self.order = {}  # worker: its jobs, if not as planned

    def planned(self, worker):
        return [(worker, b, p) for p in ("F", "BW") for b in range(self.microbatches)]

    def duration(self, job):
        return self.durations.get((job[0], job[2]), 4 * MS if job[2] == "F" else 8 * MS)

    def producers(self, job):
        stage, b, p = job
        if p == "F":
            return [(stage - 1, b, "F")] if stage > 0 else []
        return [(stage, b, "F")] + ([(stage + 1, b, "BW")] if stage + 1 < self.workers else [])

    def run(self):
        """{job: (ready, start, end)}"""
        done = {}
        waiting = {w: list(self.order.get(w, self.planned(w))) for w in range(self.workers)}
        free = dict.fromkeys(waiting, 0)
        while any(waiting.values()):
            for worker, jobs in waiting.items():
                if not jobs or any(before not in done for before in self.producers(jobs[0])):
                    continue
                job = jobs.pop(0)
                arrivals = [done[p][2] + (0 if p[0] == worker else self.links.get((p[0], worker), MS)) for p in self.producers(job)]
                ready = max(arrivals, default=0)
                start = max(ready, free[worker]) + self.late.get(job, 0)
                free[worker] = start + self.duration(job)
                done[job] = (ready, start, free[worker])
        return done

    def makespan(self):
        return max(end for _, _, end in self.run().values())

    def parts(self):
        """The makespan, each time with one more thing as it was: predicted, durations, transfers, order, all."""
        step = Pipeline(self.workers, self.microbatches)
        makespans = [step.makespan()]
        for thing in ("durations", "links", "order", "late"):
            setattr(step, thing, getattr(self, thing))
            makespans.append(step.makespan())
        return makespans

    def report(self):
        run = self.run()
        jobs = [job for p in ("F", "BW") for b in range(self.microbatches) for job in
                ([(s, b, p) for s in range(self.workers)])]
        end = self.makespan()
        makespans = self.parts()
        parts = {name: [after - before] for name, before, after in zip(PARTS, makespans, makespans[1:])}
        uniform = {"F": 1, "B": 1, "W": 1}
        return {"explain": {
            "version": 2,
            "steps": {"first": 2, "last": 2, "median": 2},
            "per_step": {"predicted": makespans[0], **parts, "measured": [end]},
            "record": {
                "schedule": {"name": "gpipe", "workers": self.workers, "stages": self.workers,
                             "microbatches": self.microbatches, "discipline": "ordered",
                             "stage_graph": [[s, s + 1] for s in range(self.workers - 1)], "memory_limits": [],
                             "groups": None},
                "costs": {"durations": [{"F": 0.004, "B": 0.008, "W": 0}] * self.workers, "comm": 0.001, "prefetch": True},
                "work": [uniform] * self.workers,
                "prefetch": True,
                "jobs": {
                    "stage": [s for s, _, _ in jobs],
                    "microbatch": [b for _, b, _ in jobs],
                    "pass": [p for _, _, p in jobs],
                    "worker": [s for s, _, _ in jobs],
                    "weights": "worker",
                    "ran_on": "worker",
                    "submitted": [-1] * len(jobs),
                    "ready": [run[job][0] for job in jobs],
                    "start": [run[job][1] for job in jobs],
                    "end": [run[job][2] for job in jobs],
                }}}}


class Explain(CommandTest):
    def explain(self, pipeline, *options):
        self.write("r.json", json.dumps(pipeline.report()))
        return json.loads(self.ok("explain", "r.json", "--json", *options))

    def idle(self, found, cause):
        return sum(worker[cause] for worker in found["idle"]["measured"])

    def expect_sums(self, explain):
        steps = explain["per_step"]
        for i, measured in enumerate(steps["measured"]):
            self.assertEqual(steps["predicted"] + sum(steps[part][i] for part in PARTS), measured)
        median = steps["measured"][explain["steps"]["median"] - explain["steps"]["first"]]
        for side, makespan in (("predicted", steps["predicted"]), ("measured", median)):
            for busy, idle in zip(explain["busy"][side], explain["idle"][side]):
                self.assertEqual(list(idle), CAUSES)
                self.assertEqual(busy + sum(idle.values()), makespan, side)
                self.assertTrue(all(time >= 0 for time in idle.values()), idle)
        path = explain["critical_path"]
        times = [part["time"] for part in path["jobs"] + path["transfers"]] + [path["runtime"]]
        self.assertAlmostEqual(sum(times), median, delta=len(times))

    def test_a_report_is_explained(self):
        self.write("e.yaml", EMULATED)
        printed = self.run_command("train", "e.yaml", "--report", "r.json").stdout
        report = json.loads(self.read("r.json"))
        explain = report["explain"]
        self.assertEqual(explain["steps"]["first"], 2)
        self.assertEqual(explain["steps"]["last"], 5)
        self.assertEqual(len(explain["per_step"]["measured"]), 4)
        self.assertAlmostEqual(explain["per_step"]["predicted"] / 1e9, report["makespan"]["predicted"], places=8)
        self.expect_sums(explain)
        # From the report alone, the same figures and the same tables.
        again = json.loads(self.ok("explain", "r.json", "--json"))
        self.assertEqual(again, {key: value for key, value in explain.items() if key != "record"})
        text = self.ok("explain", "r.json")
        for table in ("Why step", "Where each worker's time went"):
            part = printed[printed.index(table):].split("\n\n")[0]
            self.assertIn(part, text)
        for word in PARTS + CAUSES + ["Critical path", "Slowest kernels", "Slowest links", "steps 2 to 5"]:
            self.assertIn(word, text)

    def test_waits_for_recomputation(self):
        """With one micro-batch all workers wait until the last stage has made its stash again; the others do so in bubbles."""
        self.write("e.yaml", EMULATED)
        once = ["--set", "training.microbatches=1", "--set", "schedule.home=none"]
        self.run_command("train", "e.yaml", *once, "--report", "r.json")
        idle = json.loads(self.read("r.json"))["explain"]["idle"]
        self.assertEqual([round(worker["recomputation"] / MS) for worker in idle["predicted"]], [4, 4, 0])
        self.assertGreater(idle["measured"][0]["recomputation"], 3.5 * MS)
        self.assertRegex(self.ok("explain", "r.json"), "worker .* recomputation\n")

    def test_ranks(self):
        self.write("e.yaml", EMULATED)
        self.run_command("train", "e.yaml", "--report", "r.json", launcher=LAUNCHER)
        self.expect_sums(json.loads(self.read("r.json"))["explain"])
        self.ok("explain", "r.json")

    def test_a_slowed_kernel_is_named(self):
        slowed = Pipeline()
        slowed.durations[(2, "BW")] = 20 * MS
        found = self.explain(slowed)
        self.expect_sums(found)
        kernel = found["kernels"][0]
        self.assertEqual((kernel["stage"], kernel["pass"], kernel["worker"], kernel["jobs"]), (2, "BW", 2, 6))
        self.assertEqual(kernel["mean"], 20 * MS)
        self.assertAlmostEqual(kernel["times_typical"], 2.5)
        self.assertTrue(all(other["times_typical"] < 1.01 for other in found["kernels"][1:]))
        # Worker 1 waits for it, and worker 0 for worker 1, which waits for it.
        wait = found["waited_for"][0]
        self.assertEqual((wait["stage"], wait["pass"], wait["worker"]), (2, "BW", 2))
        path = found["critical_path"]["jobs"][0]
        self.assertEqual((path["stage"], path["pass"], path["jobs"]), (2, "BW", 6))
        text = self.ok("explain", "r.json")
        self.assertRegex(text, r"Slowest kernels.*\nBW of stage 2 on worker 2 +6 +20\.000 +2\.50\n")
        self.assertIn("Waited for longest, over all workers: BW of stage 2 on worker 2 (", text)

    def test_a_slow_link_is_named(self):
        slow = Pipeline()
        slow.links[(1, 2)] = 15 * MS
        found = self.explain(slow)
        self.expect_sums(found)
        link = found["links"][0]
        self.assertEqual((link["from"], link["to"], link["median"]), (1, 2, 15 * MS))
        self.assertAlmostEqual(link["times_typical"], 15)
        self.assertEqual((found["waited_for_transfers"][0]["from"], found["waited_for_transfers"][0]["to"]), (1, 2))
        self.assertIn("from worker 1 to 2", self.ok("explain", "r.json"))

    def test_late_starts_are_the_runtime(self):
        late = Pipeline()
        late.late[(3, 2, "F")] = 7 * MS
        found = self.explain(late)
        self.expect_sums(found)
        self.assertEqual(self.idle(found, "runtime"), 7 * MS)
        self.assertEqual(self.idle(self.explain(Pipeline()), "runtime"), 0)

    def test_a_policy_that_ignores_n_shows_as_order(self):
        self.write("e.yaml", EMULATED)
        self.run_command("train", "e.yaml", "--report", "r.json", "--set", "runtime.policy=lws")
        explain = json.loads(self.read("r.json"))["explain"]
        self.expect_sums(explain)
        self.assertTrue(any(abs(part) > 0.01 * explain["per_step"]["predicted"] for part in explain["per_step"]["order"]))

    def test_what_ifs_with_known_answers(self):
        pipeline = Pipeline()
        pipeline.late[(0, 0, "F")] = 0
        pipeline.late[(2, 3, "BW")] = 5 * MS
        pipeline.durations[(1, "F")] = 9 * MS
        measured = pipeline.makespan()
        on_time = Pipeline()
        on_time.durations = dict(pipeline.durations)
        runtime = measured - on_time.makespan()
        self.assertGreater(runtime, 0)

        def simulated(change):
            changed = Pipeline()
            changed.durations = dict(pipeline.durations)
            change(changed)
            return changed.makespan()

        def no_transfers(changed):
            changed.links = {pair: 0 for pair in itertools.product(range(4), repeat=2)}

        expected = {
            "comm=0": simulated(no_transfers) + runtime,
            "stage.1.F=0.5x": simulated(lambda c: c.durations.update({(1, "F"): 4.5 * MS})) + runtime,
            "worker.1=median": simulated(lambda c: c.durations.update({(1, "F"): 4 * MS})) + runtime,
            "link.0-1=0": simulated(lambda c: c.links.update({(0, 1): 0})) + runtime,
            "runtime=0": measured - runtime,
            "stage.1.F=1x": measured,
            "schedule=gpipe": simulated(lambda c: None) + runtime,
        }
        found = self.explain(pipeline, *itertools.chain.from_iterable(("--what-if", text) for text in expected))["what_if"]
        for answer in found:
            self.assertAlmostEqual(answer["makespan"], expected[answer["change"]], delta=10, msg=answer["change"])
        makespans = [answer["makespan"] for answer in found]
        self.assertEqual(makespans, sorted(makespans))
        self.assertEqual(len(found), len(expected))
        text = self.ok("explain", "r.json", "--what-if", "comm=0")
        self.assertRegex(text, r"comm=0 +\d+\.\d\d ms +-\d+\.\d %\n")
        # zb-h1 has B and W apart.
        split = self.explain(pipeline, "--what-if", "schedule=zb-h1")["what_if"]
        self.assertTrue(split[0]["divided_backward"])
        self.assertIn("divided", self.ok("explain", "r.json", "--what-if", "schedule=zb-h1"))

    def test_another_schedule_within_the_memory_limit_of_the_run(self):
        self.write("job.yaml", """model: {kind: mlp, layers: 4, hidden: 8, inputs: 4, outputs: 2}
training: {steps: 2, microbatches: 8, microbatch_size: 2}
schedule: {name: 1f1b, workers: 4}
runtime: {emulate: {F: 1ms, B: 1ms, W: 1ms}}
""")
        makespans = {}
        for limit in (2, 4):
            key = ("--set", f"schedule.memory_limit={limit}")
            makespans[limit] = json.loads(self.ok("simulate", "job.yaml", "--json", *key))["makespan"]
            result = self.run_command("train", "job.yaml", "--report", "r.json", *key)
            self.assertEqual(result.returncode, 0, result.stderr)
            answer = json.loads(self.ok("explain", "r.json", "--json", "--what-if", "schedule=1f1b"))["what_if"][0]
            self.assertEqual(answer["memory_limits"], [limit] * 4)
            self.assertGreaterEqual(answer["makespan"], 0.999 * makespans[limit] / 1e-9)  # emulated jobs are never short
        self.assertGreater(makespans[2], 1.2 * makespans[4])
        self.assertIn("memory limits (stashes by worker: 4, 4, 4, 4)", self.ok("explain", "r.json", "--what-if", "schedule=1f1b"))
        report = json.loads(self.read("r.json"))
        report["explain"]["record"]["schedule"]["memory_limits"] = [4, 4, 4, 5]
        self.write("r.json", json.dumps(report))
        answer = json.loads(self.ok("explain", "r.json", "--json", "--what-if", "schedule=1f1b"))["what_if"][0]
        self.assertEqual(answer["memory_limits"], [4, 4, 4, 5])

    def test_another_schedule_has_the_groups_and_the_placement_of_the_run(self):
        def what_if(name):
            return json.loads(self.ok("explain", "r.json", "--json", "--what-if", f"schedule={name}"))["what_if"][0]["makespan"]

        def predicted_and_run(schedule):
            """The predicted makespan, in nanoseconds."""
            self.write("job.yaml", f"""model: {{kind: mlp, layers: 4, hidden: 8, inputs: 4, outputs: 2}}
training: {{steps: 2, microbatches: 8, microbatch_size: 2}}
schedule: {{{schedule}}}
runtime: {{emulate: {{F: 1ms, B: 1ms, W: 1ms}}}}
""")
            result = self.run_command("train", "job.yaml", "--report", "r.json")
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(self.read("r.json"))["makespan"]["predicted"] * 1e9

        makespans = []
        for groups in (1, 2):
            makespans.append(predicted_and_run(f"name: lpp, workers: 4, stages: 4, groups: {groups}"))
            for name in ("lpp", "fslpp"):  # emulated jobs are never short
                self.assertGreaterEqual(what_if(name), 0.999 * makespans[-1])
            self.assertGreater(what_if("1f1b"), 0)  # which has no groups
        self.assertGreater(makespans[0], 1.1 * makespans[1])
        predicted_and_run("name: 1f1b, workers: 4")
        self.refused(["explain", "r.json", "--what-if", "schedule=lpp"], "what-if schedule=lpp: groups: ", "the run has none")

        # Four stages on two workers, which gpipe does not choose by itself.
        makespan = predicted_and_run("name: gpipe, workers: 2, stages: 4, placement: [0, 0, 1, 1]")
        self.assertGreaterEqual(what_if("gpipe"), 0.999 * makespan)
        self.assertGreater(what_if("v-half"), 0)  # which has a placement of its own

    def test_wrong_what_ifs(self):
        self.write("r.json", json.dumps(Pipeline().report()))
        for text in ("comm", "comm=fast", "comm=-1x", "worker.9=median", "stage.1.Z=0.5x", "gravity=0", "schedule=nothing"):
            self.refused(["explain", "r.json", "--what-if", text], "what-if " + text + ": ")
        self.refused(["explain", "r.json", "--what-if", "comm=0", "--what-if", "comm=0"], "comm=0", "twice")
        self.refused(["explain", "r.json", "--what-if", "schedule=v-half"], "schedule=v-half", "8 stages", "4")

    def test_bad_files(self):
        self.refused(["explain", "none.json"], "none.json")
        self.write("text.json", "what?")
        self.refused(["explain", "text.json"], "text.json")
        self.write("empty.json", "{}")
        self.refused(["explain", "empty.json"], "empty.json", "--report")
        report = Pipeline().report()
        report["explain"]["version"] = 3
        self.write("new.json", json.dumps(report))
        self.refused(["explain", "new.json"], "new.json", "version")
        report = Pipeline().report()
        del report["explain"]["record"]["jobs"]["ran_on"]
        self.write("less.json", json.dumps(report))
        self.refused(["explain", "less.json"], "less.json", "explain.record.jobs.ran_on: missing")
        report = Pipeline().report()
        report["explain"]["record"]["schedule"]["name"] = "g\x1b[2Jpipe"
        self.write("name.json", json.dumps(report))
        self.refused(["explain", "name.json"], "name.json", "explain.record.schedule.name")
        report = Pipeline().report()
        report["explain"]["record"]["jobs"]["start"][3] = -5
        self.write("odd.json", json.dumps(report))
        self.refused(["explain", "odd.json"], "odd.json", "explain.record")
        self.write("r.json", json.dumps(Pipeline().report()))
        self.refused(["explain", "r.json", "--trace", "r.json"], "--trace", "r.json", "input")

    def test_a_report_of_sim_is_called_simulated(self):
        report = {**Pipeline().report(), "makespan": {"predicted": 1, "simulated": 2}}
        self.write("r.json", json.dumps(report))
        text = self.ok("explain", "r.json", "--what-if", "comm=0", "--timeline", "t.svg", "--trace", "t.json")
        for words in (text, self.read("t.svg"), self.read("t.json")):
            self.assertIn("simulated", words)
            self.assertNotIn("measured", words)

    def test_pictures(self):
        self.write("r.json", json.dumps(Pipeline().report()))
        self.ok("explain", "r.json", "--timeline", "t.svg", "--trace", "t.json")
        self.assertIn("<svg", self.read("t.svg"))
        self.assertIn("traceEvents", json.loads(self.read("t.json")))


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv[1])
    LAUNCHER = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
