# SPDX-License-Identifier: Apache-2.0
"""Plug-ins that misbehave: starpipe refuses or reports each in one line and never crashes.

Usage: plugin_test.py BINARY ODD_PLUGIN TWICE_REGISTERED LAUNCHER..., where LAUNCHER starts two ranks. The plug-ins that
were built otherwise than starpipe lie next to ODD_PLUGIN.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
from support import CommandTest, mlp_config  # noqa: E402

PLUGIN = ""
TWICE_REGISTERED = ""
LAUNCHER = []
SIZE = ["--workers", 2, "--microbatches", 4]


class Plugins(CommandTest):
    def show(self, name):
        return ["schedule", "show", name, *SIZE, "--plugin", PLUGIN]

    def other(self, name, old, new):
        """A copy of the plug-in with other bytes."""
        content = pathlib.Path(PLUGIN).read_bytes()
        self.assertTrue(old in content, old)
        pathlib.Path(self.path(name)).write_bytes(content.replace(old, new))
        return name

    def test_names_are_added(self):
        self.assertIn("makespan", self.ok(*self.show("sound")))
        names = [s["name"] for s in json.loads(self.ok("schedule", "list", "--json", "--plugin", PLUGIN))["schedules"]]
        self.assertTrue({"sound", "1f1b"} <= set(names))
        self.refused(["schedule", "show", "sound", *SIZE], "'sound'")
        # The same file under another name is not loaded again.
        os.symlink(PLUGIN, self.path("link.so"))
        self.ok(*self.show("sound"), "--plugin", "link.so", "--plugin", "link.so")

    def test_what_it_overlooks_is_refused(self):
        """A plug-in's function may ignore parts of the request."""
        self.refused([*self.show("sound"), "--placement", "1,0"], "--placement: sound")
        self.refused([*self.show("sound"), "--groups", 2], "--groups: sound")

    def test_configurations(self):
        shutil.copy(PLUGIN, self.path("a file.so"))
        self.write("a.yaml", mlp_config(schedule="plugin: a file.so, name: sound, workers: 2"))
        self.write("b.yaml", mlp_config(schedule="name: sound, workers: 2"))
        expected = self.ok("simulate", "a.yaml")
        self.assertEqual(self.ok("simulate", "b.yaml", "--plugin", "a file.so"), expected)
        self.assertEqual(self.ok("simulate", "b.yaml", "--set", "schedule.plugin=[a file.so]"), expected)
        self.refused(["simulate", "b.yaml"], "'sound'")
        for launcher in ([], LAUNCHER):
            result = self.run_command("train", "b.yaml", "--plugin", "a file.so", "--report", "r.json",
                                      launcher=launcher)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads(self.read("r.json"))["config"]["schedule"]["plugin"], ["a file.so"])

    def test_a_memory_limit_beside_limits_of_its_own(self):
        """The smaller limit holds: `wave` has a limit of 8 stashes per worker."""
        wave = ["schedule", "show", "wave", "--workers", 4, "--microbatches", 16, "--plugin", PLUGIN, "--json"]
        for asked, holds in ((None, 8), (4, 4), (8, 8), (10, 8)):
            data = json.loads(self.ok(*wave, *(() if asked is None else ("--memory-limit", asked))))
            self.assertEqual((data["memory_limits"], max(data["peak_stashes"])), ([holds] * 4, holds))
            self.assertEqual("reordered" in data, holds < 8)
        self.write("a.yaml", mlp_config(schedule="name: wave, workers: 2, memory_limit: 3").replace(
            "microbatches: 4", "microbatches: 12"))
        data = json.loads(self.ok("simulate", "a.yaml", "--plugin", PLUGIN, "--json"))
        self.assertEqual((data["memory_limits"], data["peak_stashes"]), ([3, 3], [3, 3]))
        result = self.run_command("train", "a.yaml", "--plugin", PLUGIN, "--report", "r.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(self.read("r.json"))
        self.assertEqual(report["peak_stashes"], {"predicted": [3, 3], "measured": [3, 3]})
        self.assertEqual(report["reordered"]["limit"], 3)

    def test_options(self):
        """A schedule's own numbers: declared, checked, listed, and part of the configuration."""
        def stages(*more):
            return json.loads(self.ok(*self.show("counted"), "--json", *more))["stages"]

        self.assertEqual([stages(), stages("--option", "copies=3"), stages("--option=copies=1")], [4, 6, 2])
        for value, *culprits in (("copies=5", "copies", "at most 4"), ("copies=0", "copies", "at least 1"),
                                 ("copies=-1", "copies", "at least 1"), ("pages=1", "'pages'", "it has: copies"),
                                 ("copies", "--option", "NAME=NUMBER"), ("copies=x", "--option", "'copies=x'"),
                                 ("copies=99999999999", "--option"), ("=1", "--option")):
            self.refused([*self.show("counted"), "--option", value], *culprits)
        self.refused([*self.show("counted"), "--option", "copies=1", "--option", "copies=2"], "--option", "copies is given twice")
        self.refused(["schedule", "show", "1f1b", *SIZE, "--option", "copies=1"], "'1f1b' has no option 'copies' (it has none)")
        compare = ["schedule", "compare", "1f1b", "counted", *SIZE, "--plugin", PLUGIN, "--json", "--option"]
        compared = json.loads(self.ok(*compare, "copies=3"))
        self.assertEqual(([row["stages"] for row in compared["schedules"]], compared["options"]), ([2, 6], {"copies": 3}))
        shown = json.loads(self.ok(*self.show("counted"), "--option", "copies=3", "--per-share", "--json"))
        self.assertEqual(compared["schedules"][1]["makespan"], shown["makespan"])
        self.refused([*compare, "copies=5"], "'counted'", "copies", "at most 4")
        self.refused([*compare, "copies=3", "--option", "pages=1"], "--option", "none of these schedules has an option 'pages'")
        # Values of an option side by side. A name's own options count before --option.
        several = ["schedule", "compare", "counted:copies=1", "1f1b", "counted", "counted:copies=4", *SIZE, "--plugin", PLUGIN, "--json"]
        for more, stages in (((), [2, 2, 4, 8]), (("--option", "copies=3"), [2, 2, 6, 8])):
            rows = json.loads(self.ok(*several, *more))["schedules"]
            self.assertEqual([(row["schedule"], row["stages"]) for row in rows],
                             list(zip(("counted:copies=1", "1f1b", "counted", "counted:copies=4"), stages)))
        self.assertEqual(rows[2]["makespan"], shown["makespan"])
        for name, *culprits in (("counted:copies=5", "'counted'", "at most 4"), ("counted:copies=a", "counted:copies=a: expected"),
                                ("counted:pages=1", "'pages'"), ("counted:", "counted:: expected"), (":copies=1", "unknown schedule ''"),
                                ("counted:copies=1,copies=2", "copies is given twice"), ("1f1b:copies=1", "has no schedule '1f1b'")):
            self.refused(["schedule", "compare", name, *SIZE, "--plugin", PLUGIN], *culprits)
        self.refused(["schedule", "compare", "1f1b:copies=1", *SIZE], "'1f1b' has no option")
        text = self.ok("schedule", "list", "--long", "--plugin", PLUGIN)
        self.assertIn("option copies: stages of a worker (1 to 4; default 2)", text)
        listed = {entry["name"]: entry for entry in json.loads(self.ok("schedule", "list", "--json", "--plugin", PLUGIN))["schedules"]}
        self.assertEqual(listed["counted"]["options"],
                         [{"name": "copies", "meaning": "stages of a worker", "default": 2, "min": 1, "max": 4}])
        self.assertNotIn("options", listed["1f1b"])

        self.write("a.yaml", mlp_config(schedule="name: counted, workers: 2, options: {copies: 3}").replace("layers: 2", "layers: 6"))
        simulate = ["simulate", "a.yaml", "--json", "--plugin", PLUGIN]
        self.assertEqual(json.loads(self.ok(*simulate))["stages"], 6)
        self.assertEqual(json.loads(self.ok(*simulate, "--set", "schedule.options={copies: 1}"))["stages"], 2)
        self.assertEqual(json.loads(self.ok(*simulate, "--set", "schedule.options.copies=1"))["stages"], 2)
        self.refused([*simulate, "--set", "schedule.options.copies=9"], "copies", "at most 4")
        # They belong to the file's schedule.
        self.assertEqual(json.loads(self.ok(*simulate[:-2], "--set", "schedule.name=1f1b"))["stages"], 2)
        for value, *culprits in (("{copies: 9}", "copies", "at most 4"), ("{copies: a}", "schedule.options: copies: expected an integer"),
                                 ("3", "schedule.options", "a map"), ("{pages: 1}", "'pages'")):
            self.refused([*simulate, "--set", f"schedule.options={value}"], *culprits)
        result = self.run_command("train", "a.yaml", "--plugin", PLUGIN, "--report", "r.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(self.read("r.json"))
        self.assertEqual((report["stages"], report["config"]["schedule"]["options"]), (6, {"copies": 3}))

    def test_what_is_no_plugin(self):
        library = next(pathlib.Path(PLUGIN).parent.parent.glob("libstarpipe_plan.so"))
        self.write("text", "starpipe plug-in")
        os.mkfifo(self.path("pipe"))
        for file, word in (("missing.so", "No such file"), (".", "not a file"), ("pipe", "not a file"),
                           ("text", "not a plug-in"), (library, "not a plug-in"), (sys.executable, "not a plug-in")):
            for command in (["schedule", "list", "--plugin", file], ["plugin", "check", file]):
                self.refused(command, str(file), word)

    def test_nothing_runs_before_the_version_is_known(self):
        mark = b"starpipe plug-in interface: "
        version = self.ok("--version").split()[1].rpartition(".")[0]
        later = self.other("later.so", mark + b"starpipe " + version.encode(), mark + b"starpipe " + b"9" * len(version))
        unmarked = self.other("unmarked.so", mark, b"a plug-in of something else :"[:len(mark)])
        for file, words in ((later, [f"starpipe {version} in starpipe", "9" * len(version) + " in the plug-in"]),
                            (unmarked, ["not a plug-in"])):
            for command in (["schedule", "list", "--plugin", file], ["plugin", "check", file]):
                self.refused(command, file, *words, environment={"STARPIPE_ODD_WITNESS": "witness"})
                self.assertFalse(os.path.exists(self.path("witness")))
        self.ok("schedule", "list", "--plugin", PLUGIN, environment={"STARPIPE_ODD_WITNESS": "witness"})
        self.assertTrue(os.path.exists(self.path("witness")))

    def test_what_was_built_otherwise(self):
        for name, words in (("other_standard", "C++ 202002L in starpipe, C++ 202"),
                            ("debug_library", "_GLIBCXX_DEBUG=0 in starpipe, _GLIBCXX_DEBUG=1 in the plug-in"),
                            ("old_strings", "_GLIBCXX_USE_CXX11_ABI=1 in starpipe, _GLIBCXX_USE_CXX11_ABI=0 in the plug-in"),
                            ("other_headers", "in starpipe, headers 0123456789ab in the plug-in")):
            file = str(pathlib.Path(PLUGIN).parent / f"lib{name}_plugin.so")
            for command in (["schedule", "list", "--plugin", file], ["plugin", "check", file]):
                with self.subTest(name=name, command=command):
                    self.refused(command, file, "was built for another starpipe", words)

    def test_names_that_are_registered_twice(self):
        self.refused(["schedule", "list", "--plugin", PLUGIN], PLUGIN, "'1f1b' is registered twice",
                     environment={"STARPIPE_ODD": "registers twice"})
        result = subprocess.run([TWICE_REGISTERED, "schedule", "list"], capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stdout, result.stderr),
                         (2, "", "starpipe: schedule '1f1b' is registered twice\n"))

    def test_crashes_are_named(self):
        self.write("mlp.yaml", mlp_config())
        named = ["mlp.yaml", "--plugin", PLUGIN, "--set"]
        many = [str(4) if word == "2" else word for word in LAUNCHER]
        for name, what in (("crash", "signal 11"), ("abort", "signal 6"), ("fill-stack", "signal 11"),
                           ("exit", "a call of exit"), ("exit-at-once", "a call of exit")):
            if name == "fill-stack" and os.environ.get("STARPIPE_SANITIZE"):
                continue  # the sanitizer has a report of its own for a full stack
            for command, launcher in ((self.show(name), []), (["simulate", *named, f"schedule.name={name}"], []),
                                      (["train", *named, f"schedule.name={name}"], []),
                                      (["train", *named, f"schedule.name={name}"], LAUNCHER),
                                      (["train", *named, "schedule={name: %s, workers: 4, stages: 4}" % name, "--set",
                                        "model.layers=4"], many)):
                with self.subTest(command=command, launcher=launcher):
                    result = self.run_command(*command, launcher=launcher)
                    lines = result.stderr.splitlines()
                    self.assertNotEqual(result.returncode, 0)
                    status = 1 if name.startswith("exit") else 128 + int(what.split()[1])
                    self.assertEqual((result.returncode, len(lines)), (status, 1), result.stderr)
                    mine = [line for line in lines if line.startswith("starpipe: ")]
                    self.assertEqual(len(mine), 1, result.stderr)
                    self.assertIn(f"plug-in {PLUGIN}: its code was ended by {what}", mine[0])
                    self.assertNotIn("backtrace", result.stderr)
        result = self.run_command("schedule", "list", "--plugin", PLUGIN, environment={"STARPIPE_ODD": "crash"})
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (139, 1), result.stderr)
        self.assertIn("signal 11", result.stderr)

    def test_an_end_without_a_result(self):
        """The process becomes another program, which ends well: no function of starpipe can see it."""
        self.write("mlp.yaml", mlp_config())
        for launcher in [], LAUNCHER:
            result = self.run_command("train", "mlp.yaml", "--plugin", PLUGIN, "--set", "schedule.name=counted", launcher=launcher,
                                      environment={"STARPIPE_ODD": "stages become true"})
            mine = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
            self.assertEqual((result.returncode, len(mine)), (1, 1), result.stderr)
            self.assertIn(f"{'rank 0' if launcher else 'the run'} has not come to its end", mine[0])

    def test_a_crash_of_the_program_ends_it(self):
        """MPI's libraries have handlers of crashes, which wait indefinitely when the crash came in malloc."""
        if os.environ.get("STARPIPE_SANITIZE"):
            return  # the sanitizer has a report of its own
        result = self.run_command("schedule", "list", "--plugin", PLUGIN, environment={"STARPIPE_ODD": "fill stack at exit"})
        self.assertEqual((result.returncode, result.stderr), (-11, "starpipe: ended by signal 11 (segmentation fault)\n"))

    def test_the_number_of_stages(self):
        """The plug-in's function that counts them fails."""
        for odd, status, what in (("stages crash", 139, "signal 11"), ("stages exit", 1, "a call of exit"),
                                  ("stages throw", 2, "schedule 'counted': counting its stages threw something"),
                                  ("stages exception", 2, "schedule 'counted': counting its stages threw: two lines")):
            with self.subTest(odd=odd):
                result = self.run_command(*self.show("counted"), environment={"STARPIPE_ODD": odd})
                self.assertEqual((result.returncode, len(result.stderr.splitlines())), (status, 1), result.stderr)
                self.assertIn(f"plug-in {PLUGIN}: ", result.stderr)
                self.assertIn(what, result.stderr)

    def test_what_the_loader_refuses(self):
        content = pathlib.Path(PLUGIN).read_bytes()
        begin = content.index(b"starpipe plug-in interface: ")
        self.write("broken.so", content[begin:content.index(b"\0", begin) + 1].decode())
        self.refused(["schedule", "list", "--plugin", "broken.so"], "broken.so", "cannot be loaded")
        self.other("nameless.so", b"starpipe_plugin\0", b"starpipe_nothin\0")
        self.refused(["schedule", "list", "--plugin", "nameless.so"], "nameless.so", "starpipe_plugin")

    def test_handing_over(self):
        for odd, word in (("throw", "not a std::exception"), ("throw exception", "two lines"), ("nothing", "no schedule"),
                          ("taken", "'1f1b' is taken"), ("twice", "'sound' is taken"), ("blank name", "blanks"),
                          ("no name", "name"), ("no stages", "0 stages"), ("option twice", "'copies': it is there twice"),
                          ("option out of range", "'copies': its default"), ("no function", "'no-function'")):
            for command in (["schedule", "list", "--plugin", PLUGIN], ["plugin", "check", PLUGIN]):
                self.refused(command, PLUGIN, word, environment={"STARPIPE_ODD": odd})
        self.refused(["plugin", "check", PLUGIN], PLUGIN, "signal 11", environment={"STARPIPE_ODD": "crash"})

    FAULTS = {"throws-int": "not a std::exception", "throws-out-of-range": "threw", "n-throws": "not a std::exception",
              "no-n": "w and n", "refuses-all": "not today", "more-workers": "asked for", "fewer-microbatches": "micro-batches",
              "other-graph": "graph", "off-worker": "which does not exist", "cycle": "cycle"}

    def test_nonsense_is_refused(self):
        self.write("mlp.yaml", mlp_config())
        for name, words in self.FAULTS.items():
            self.refused(["simulate", "mlp.yaml", "--plugin", PLUGIN, "--set", f"schedule.name={name}"], words)
            self.refused(self.show(name), words)
        for name in ("throws-int", "throws-out-of-range", "n-throws"):
            self.refused(self.show(name), f"plug-in {PLUGIN}: schedule '{name}': building it threw")
        result = self.run_command(*self.show("no-memory"))
        self.assertEqual((result.returncode, result.stderr),
                         (1, f"starpipe: plug-in {PLUGIN}: schedule 'no-memory': out of memory\n"))
        self.refused(self.show("refuses-all"), f"plug-in {PLUGIN}: schedule 'refuses-all': not today")
        self.write("p.yaml", mlp_config(schedule=f"plugin: {PLUGIN}, name: cycle, workers: 2"))
        result = self.run_command("train", "p.yaml", launcher=LAUNCHER)
        self.assertEqual(result.returncode, 2)
        self.assertEqual(len([l for l in result.stderr.splitlines() if l.startswith("starpipe: ")]), 1)

    def test_search_names_what_it_does_not_start_from(self):
        search = ["search", "--workers", 2, "--microbatches", 4, "--chunks", 1, "--budget", 1, "--quiet", "--plugin", PLUGIN]
        self.assertIn("makespan", self.ok(*search, environment={"STARPIPE_ODD": "sound"}))
        result = self.run_command(*search, environment={"STARPIPE_ODD": "never a start"})
        lines = result.stderr.splitlines()
        self.assertEqual((result.returncode, len(lines)), (0, 2), result.stderr)
        start = f"starpipe: --plugin {PLUGIN}: the search did not start from schedule "
        self.assertIn(start + "'elsewhere': it places jobs in another way", lines[0] + lines[1])
        self.assertIn(start + f"'throws-int': plug-in {PLUGIN}: schedule 'throws-int': building it threw", lines[0] + lines[1])

    def test_ranks_that_differ(self):
        self.write("p.yaml", mlp_config(schedule=f"plugin: {PLUGIN}, name: by-rank, workers: 2"))
        result = self.run_command("train", "p.yaml", launcher=LAUNCHER)
        lines = [line for line in result.stderr.splitlines() if line.startswith("starpipe: ")]
        self.assertEqual((result.returncode, len(lines)), (2, 1), result.stderr)
        self.assertIn("the ranks have built different schedules", lines[0])

    def test_check(self):
        seconds = 10 if os.environ.get("STARPIPE_SANITIZE") else 8  # enough, beside other tests, to start and end a call that does end
        result = self.run_command("plugin", "check", PLUGIN, "--json", "--timeout", seconds, timeout=400)
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        stages = {(s["schedule"], s["stage"]): s for s in json.loads(result.stdout)["stages"]}
        for (name, stage), found in stages.items():
            if name in ("sound", "wave", "counted"):
                self.assertFalse(found["failed"], found)
        self.assertTrue(stages["refuses-all", "default"]["failed"])
        self.assertIn("W=4 B=8 is refused: ", stages["refuses-all", "default"]["words"])
        self.assertEqual(stages["counted", "options"]["words"], "3 requests answered, 0 refused")
        self.assertFalse(stages["sound", "options"]["applies"])
        self.assertTrue(stages["sound", "two ranks"]["applies"], stages["sound", "two ranks"])
        self.assertIn("losses", stages["sound", "two ranks"]["words"])
        self.assertTrue(stages["by-rank", "two ranks"]["failed"])
        self.assertIn("different schedules", stages["by-rank", "two ranks"]["words"])
        for name, words in {**self.FAULTS, "random": "two different schedules", "crash": "signal 11", "exit": "exit status 1",
                            "exit-at-once": "exit status 1",
                            "endless": "did not end"}.items():
            with self.subTest(name=name):
                self.assertTrue(stages[name, "chain"]["failed"])
                self.assertIn(words, stages[name, "chain"]["words"])

    def test_check_that_nothing_fails(self):
        text = self.ok("plugin", "check", PLUGIN, environment={"STARPIPE_ODD": "sound"})
        for word in ("sound", "default", "options", "chain", "graph", "split backward", "memory limit", "replicas", "two ranks",
                     "Nothing failed"):
            self.assertIn(word, text)

    def test_without_a_launcher(self):
        os.mkdir(self.path("empty"))
        text = self.ok("plugin", "check", PLUGIN, environment={"STARPIPE_ODD": "sound", "PATH": self.path("empty")})
        self.assertIn("not run: there is no mpiexec on PATH", text)


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv[1])
    PLUGIN = os.path.abspath(sys.argv[2])
    TWICE_REGISTERED = sys.argv[3]
    LAUNCHER = sys.argv[4:]
    unittest.main(argv=sys.argv[:1])
