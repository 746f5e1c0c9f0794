# SPDX-License-Identifier: Apache-2.0
"""`starpipe search`: its results through an independent checker. Usage: search_test.py BINARY"""

import json
import os
import sys
import unittest

from check_schedule import check
from support import CommandTest

# Makespans that the public generators of the zero-bubble papers reached (sail-sg/zero-bubble-pipeline-parallelism,
# commit 39f2c186): workers, micro-batches, chunks, layout, F, B, W, comm, stashes on the fullest worker, makespan.
PUBLISHED = [
    (4, 8, 2, "v", 12.96, 13.22, 9.76, 0.5, 4, 784.18),  # V-auto
    (8, 8, 2, "v", 1, 1, 1, 0, 16, 55),  # V-ZB
    (8, 16, 2, "v", 12.96, 13.22, 9.76, 0, 10, 1404.66),  # V-Half
    (8, 16, 2, "v", 12.96, 13.22, 9.76, 0.5, 8, 1579.42),  # V-auto
    (8, 16, 2, "v", 12.96, 13.22, 9.76, 0, 8, 1617.66),  # V-Min
    (8, 16, 2, "loop", 1, 1, 1, 0.5, 12, 129),  # GIS-H
    (8, 16, 1, "loop", 12.96, 13.22, 9.76, 0.67, 8, 708.74),  # ZB-1P
    (8, 16, 1, "loop", 12.96, 13.22, 9.76, 0.67, 16, 670.45),  # ZB-2P
    (4, 16, 2, "loop", 12.96, 13.22, 9.76, 0.5, 11, 1264.9),  # Interleaved-1F1B
]


needs_speed = unittest.skipIf(os.environ.get("STARPIPE_SANITIZE"), "what fits the budget depends on the build's speed")


def stash_peaks(data, sizes):
    """Peak size of the stashes on each worker, computed from the times of the jobs."""
    peaks = []
    for row in data["ops"]:
        changes = []
        remade = {(op["stage"], op["microbatch"]) for op in row if op["op"] == "R"}
        for op in row:
            if op["op"] == ("R" if (op["stage"], op["microbatch"]) in remade else "F"):
                changes.append((op["start"], 1, sizes[op["stage"]]))
            elif op["op"] in ("W", "BW"):
                changes.append((op["end"], 0, -sizes[op["stage"]]))
        live = peak = 0
        for _, _, change in sorted(changes):
            live += change
            peak = max(peak, live)
        peaks.append(peak)
    return peaks


class Search(CommandTest):
    def search(self, *arguments, budget=1):
        data = json.loads(self.ok("search", "--quiet", "--json", "--budget", budget, *arguments))
        self.assertEqual(check(data), [])
        self.assertLessEqual(data["lower_bound"], data["makespan"])
        return data

    @needs_speed
    def test_never_above_published_makespans(self):
        for p, n, chunks, layout, forward, backward, weights, comm, limit, makespan in PUBLISHED:
            data = self.search("--workers", p, "--microbatches", n, "--chunks", chunks,
                               *(("--layout", layout) if chunks > 1 else ()), "--durations", f"F={forward},B={backward},W={weights}", "--comm", comm,
                               "--memory-limit", limit, budget=3)
            with self.subTest(p=p, n=n, limit=limit, comm=comm):
                self.assertLessEqual(data["makespan"], makespan * (1 + 1e-9))
                self.assertLessEqual(max(stash_peaks(data, [1] * p * chunks)), limit)

    @needs_speed
    def test_sixteen_workers(self):
        data = self.search("--workers", 16, "--microbatches", 16, "--chunks", 2, "--layout", "v", "--durations",
                           "F=6.48,B=6.61,W=4.88", "--comm", 0.67, "--memory-limit", 32, budget=4)
        self.assertLessEqual(data["bubble_fraction"], 0.204)

    @needs_speed
    def test_recomputation_where_memory_is_short(self):
        case = ("--workers", 8, "--microbatches", 24, "--chunks", 2, "--layout", "v", "--durations", "F=6.48,B=6.61,W=4.88",
                "--comm", 0.67, "--memory-limit", 6)
        kept = self.search(*case, budget=1)
        data = self.search(*case, "--homes", "none,worker", budget=1)
        self.assertLess(data["makespan"], 0.95 * kept["makespan"])
        self.assertLess(data["lower_bound"], kept["lower_bound"])
        self.assertGreater(data["recomputed_fraction"], 0)
        self.assertLessEqual(max(stash_peaks(data, [1] * 16)), 6)
        self.assertLessEqual(max(data["peak_stashes"]), 6)
        self.refused(("search", *case, "--homes", "none"), "--homes must include worker")
        self.refused(("search", *case, "--homes", "worker,peer", "--copy", "host=1"), "a copy to another worker is not known")

    def test_a_bound_is_not_above_the_makespan_by_rounding(self):
        times = ("--durations", "F=5.4,B=6.1,W=1.1", "--comm", 2.2, "--seed", 1)
        one = ("--workers", 1, "--microbatches", 2, "--chunks", 3, "--layout", "loop", *times)
        self.assertLessEqual(abs(self.search(*one, budget=0.3)["bubble_fraction"]), 1e-9)
        result = self.run_command("search", "--budget", 0.3, *one)
        self.assertEqual(result.returncode, 0)
        for text in (result.stdout, result.stderr):
            self.assertIn("0.00 % above", text)
            self.assertNotIn("-0.00", text)

    def test_the_result_is_a_schedule_file(self):
        self.ok("search", "--quiet", "--workers", 3, "--microbatches", 5, "--chunks", 2, "--comm", 0.5,
                "--memory-limit", 4, "--budget", 0.5, "-o", "found.json")
        found = json.loads(self.read("found.json"))
        self.assertIn(found["search"]["layout"], ("v", "loop"))
        self.assertEqual(found["search"]["chunks"], 2)
        checked = json.loads(self.ok("schedule", "check", "found.json", "--json"))
        self.assertEqual(checked["ops"], found["ops"])
        self.assertEqual(checked["memory_limits"], [4, 4, 4])
        self.assertLessEqual(max(checked["peak_stashes"]), 4)
        self.assertIn("no schedule ends before", self.ok("search", "--quiet", "--workers", 2, "--microbatches", 2,
                                                         "--budget", 0.1))

    def test_uneven_stages(self):
        # The last stage also has the head: the search uses its durations, not the mean of all stages.
        times = [(2, 2, 1), (2, 2, 1), (2, 2, 1), (4, 6, 3)]
        self.write("durations.yaml", "".join(f"- {{F: {f}, B: {b}, W: {w}}}\n" for f, b, w in times))
        data = self.search("--workers", 4, "--microbatches", 6, "--chunks", 1, "--durations", "durations.yaml",
                           "--comm", 0.5, "--memory-limit", 4)
        self.assertEqual(data["durations"][3], {"F": 4, "B": 6, "W": 3})
        self.assertAlmostEqual(data["makespan"], 3 * 2.5 + 6 * 13)  # the last worker never waits

    def test_memory_in_bytes(self):
        sizes = [3, 1, 2, 5]
        data = self.search("--workers", 2, "--microbatches", 6, "--chunks", 2, "--layout", "v", "--stash",
                           ",".join(f"{size}MiB" for size in sizes), "--memory-limit", "10MiB")
        peaks = stash_peaks(data, [size << 20 for size in sizes])
        self.assertEqual(peaks, data["peak_stash_bytes"])
        self.assertLessEqual(max(peaks), 10 << 20)
        text = self.ok("search", "--workers", 2, "--microbatches", 4, "--chunks", 1, "--stash", "3MiB", "--quiet", "--budget", 0.1)
        self.assertRegex(text, r"; stashes of up to (3|6|9|12)\.0 MiB on a worker; ")
        self.refused(["search", "--workers", 2, "--microbatches", 6, "--chunks", 2, "--layout", "v", "--stash",
                      "3,1,2,5", "--memory-limit", "7"], "smallest feasible limit is 8")
        # Shares of 13000, 13000, 13000 and 12001 bytes in three: whole bytes, and enough of them.
        uneven = ["--workers", 4, "--microbatches", 4, "--stash", "13000,13000,13000,12001", "--memory-limit"]
        self.refused(["search", *uneven, 1000], "smallest feasible limit is 12751,")
        self.search(*uneven, 12751, budget=0.1)

    def test_bytes_of_shares_are_divided(self):
        """Without --chunks a size is for 1/W of the model. The peaks keep the limit, in the file as well."""
        for size in "1MiB", "1000003":
            data = self.search("--workers", 2, "--microbatches", 4, "--stash", size, "--memory-limit", "2MiB", budget=0.3)
            chunks = data["search"]["chunks"]
            self.assertGreater(chunks, 1)
            whole = 1 << 20 if size == "1MiB" else int(size)
            self.assertEqual(data["sizes"]["stash"], -(-whole // chunks))
            self.assertLessEqual(max(data["peak_stash_bytes"]), 2 << 20)
            self.assertEqual(data["peak_stash_bytes"], data["search"]["peak_memory"])
            self.write("found.json", json.dumps(data))
            again = json.loads(self.ok("schedule", "check", "found.json", "--json"))
            self.assertEqual(again["peak_stash_bytes"], data["peak_stash_bytes"])

    def test_chunks_are_chosen(self):
        data = self.search("--workers", 4, "--microbatches", 4, "--durations", "F=12,B=12,W=12", "--memory-limit", 2.5)
        chunks = data["search"]["chunks"]
        self.assertEqual(data["stages"], 4 * chunks)
        self.assertEqual(data["durations"]["F"], 12 / chunks)
        self.assertLessEqual(max(stash_peaks(data, [1 / chunks] * 4 * chunks)), 2.5 + 1e-9)
        self.assertGreater(chunks, 1)

    def test_one_line_of_progress(self):
        result = self.run_command("search", "--workers", 2, "--microbatches", 3, "--budget", 0.1)
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"^search: .* s, 100 % done, makespan .*, lower bound .*\n$")

    def test_refused(self):
        good = ["search", "--workers", 2, "--microbatches", 3, "--chunks", 2]
        self.refused([*good, "--memory-limit", 1], "memory limit of 1", "smallest feasible limit is 2")
        self.refused([*good, "--memory-limit", -1], "--memory-limit -1")
        self.refused([*good, "--memory-limit", "1e-320"], "memory limit")
        self.refused([*good, "--memory-limit", "12GiB"], "--memory-limit 12GiB", "--stash")
        self.refused([*good, "--memory-limit", "x", "--stash", "1"], "--memory-limit x")
        self.refused([*good, "--stash", "1,2,3"], "--stash: 3 sizes for 4 stages")
        self.refused([*good[:-2], "--stash", "1MiB,2MiB,3MiB"], "--stash: 3 sizes for 2 shares")
        self.refused([*good, "--layout", "w"], "--layout")
        self.refused([*good, "--budget", 0], "--budget")
        self.refused([*good, "--no-prefetch"], "--no-prefetch")
        self.refused([*good, "--durations", "F=-1"], "F")
        self.refused([*good, "-o", "missing/found.json"], "missing")
        self.refused(["search", "--workers", 2], "--microbatches")


if __name__ == "__main__":
    CommandTest.binary = sys.argv.pop(1)
    unittest.main(verbosity=2)
