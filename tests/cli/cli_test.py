# SPDX-License-Identifier: Apache-2.0
"""The command as its users see it: output, exit codes and messages. Usage: cli_test.py BINARY"""

import json
import os
import re
import shlex
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

from check_schedule import check
from support import CommandTest, gpt_config, mlp_config


class Help(CommandTest):
    def test_help_is_enough_to_get_going(self):
        text = self.ok("--help")
        for word in ("train", "simulate", "schedule", "info", "Examples:", "starpipe schedule show 1f1b"):
            self.assertIn(word, text)
        for command in (["train"], ["simulate"], ["schedule"], ["schedule", "list"], ["schedule", "show"],
                        ["schedule", "check"], ["plugin"], ["plugin", "check"], ["search"], ["periodic"], ["info"]):
            self.assertIn("Usage: starpipe " + " ".join(command), self.ok(*command, "--help"))

    def test_the_help_has_every_key(self):
        keys = [key["name"] for key in json.loads(self.ok("info", "--json"))["configuration"]]
        for command in ("train", "evaluate", "simulate", "compare", "profile", "info"):
            self.assertIn("--help-keys", self.ok(command, "--help"))
            text = self.ok(command, "--help-keys")
            for key in ("model.branches", "runtime.window", *keys):
                self.assertIn(f"\n{key}: ", "\n" + text)

    def test_examples_of_the_help_run(self):
        for line in self.ok("--help").splitlines():
            if line.startswith("  starpipe schedule "):
                self.ok(*line.split()[1:])

    def test_a_full_disk(self):
        for arguments in (("--help",), ("--version",), ("train", "--help-keys")):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = self.run_command(*arguments, stdout=full)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (1, 1), result.stderr)

    def test_version(self):
        self.assertRegex(self.ok("--version"), r"^starpipe \d+\.\d+\.\d+\n$")

    def test_wrong_use(self):
        self.refused([], "subcommand is required", "starpipe --help")
        self.refused(["frobnicate"], "'frobnicate'")
        self.refused(["schedule"], "subcommand is required", "starpipe schedule --help")
        self.refused(["schedule", "frobnicate"], "'frobnicate'")
        self.refused(["--frobnicate"], "'--frobnicate'")
        self.refused(["info", "--frobnicate"], "--frobnicate")
        self.refused(["info", "extra"], "extra")
        self.refused(["train"], "config")
        self.refused(["simulate"], "config")
        self.refused(["schedule", "show"], "required")
        self.refused(["schedule", "check"], "file")
        self.refused(["plugin", "check"], "file")

    def test_who_speaks_under_a_launcher(self):
        for name in ("PMI_RANK", "PMIX_RANK", "SLURM_PROCID"):
            result = self.run_command("train", environment={name: "1"})
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            # Rank 0, if it found the same, would have ended this rank during a pause.
            self.assertRegex(result.stderr, r"\Astarpipe: rank 1: config is required.*\n\Z")
            self.assertNotIn("rank", self.refused(["train"], "config", environment={name: "0"}))
            self.assertEqual(self.ok("train", "--help", environment={name: "1"}), "")
            # Ranks of other subcommands have nothing to do with each other: each does and says all.
            self.write("layers.yaml", "layers: [{F: 1, count: 4}]")
            show = ["schedule", "show", "1f1b", "--workers", 2, "--microbatches", 2]
            for command in (["schedule", "list"], show, ["--version"], ["search", "--help"], ["--help"],
                            ["search", "--workers", 2, "--microbatches", 2, "--budget", 0.1, "--quiet"]):
                self.assertTrue(self.ok(*command, environment={name: "1"}), command)
            self.ok("partition", "layers.yaml", "--workers", 2, "-o", name + ".json", environment={name: "1"})
            self.assertTrue(os.path.exists(self.path(name + ".json")))
            self.refused(["partition", "missing", "--workers", 2], "missing", environment={name: "1"})
            self.refused(["schedule", "frobnicate"], "'frobnicate'", environment={name: "1"})
            self.refused(["frobnicate"], "'frobnicate'", environment={name: "1"})
        # With mpiexec in a Slurm allocation, the variables of the launcher that started the process count.
        self.refused(["train"], environment={"PMI_RANK": "0", "SLURM_PROCID": "1"})


    def test_closed_standard_output(self):
        for words, status in (("schedule show 1f1b --workers 2 --microbatches 2", 1), ("--version", 1),
                              ("schedule show 1f1b --workers 2 --microbatches 2 -o a.json", 0)):
            for closed in (">&-", ">/dev/full"):
                done = subprocess.run(["sh", "-c", f"exec {shlex.quote(self.binary)} {words} {closed}"], cwd=self.folder,
                                      stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, status, (words, closed))
                if status:
                    self.assertRegex(done.stderr, "^starpipe: cannot write to standard output: .*\n$")


class Info(CommandTest):
    def test_info(self):
        text = self.ok("info")
        for word in ("CLI11", "yaml-cpp", "nlohmann-json", "StarPU", "sanitizer", "1f1b"):
            self.assertIn(word, text)
        library = re.search(r"\nproducts +(oneDNN|OpenBLAS) \d+\.\d+\.\d+", text)[1]
        self.assertRegex(text, r"\nproduct kernels +\w+")
        name, value = {"oneDNN": ("ONEDNN_MAX_CPU_ISA", "SSE41"), "OpenBLAS": ("OPENBLAS_CORETYPE", "Prescott")}[library]
        chosen = self.ok("info", environment={name: value})
        self.assertRegex(chosen, rf"\nproduct kernels +\S+ \({name} is set\)\n")

    def test_json(self):
        info = json.loads(self.ok("info", "--json"))
        for key in ("version", "commit", "compiler", "build_type", "sanitizer", "libraries", "runtime"):
            self.assertIn(key, info)
        self.assertRegex(info["libraries"]["yaml-cpp"], r"^\d+\.\d+")
        self.assertIn("1f1b", info["schedules"])
        self.assertIn("linear", info["runtime"]["layers"])
        self.assertLessEqual({"gpt", "mlp"}, set(info["models"]))


class Mapping(CommandTest):
    """`info CONFIG.yaml` on an invented node with eight GPUs in a cube mesh."""

    def setUp(self):
        super().setUp()
        self.write("mlp.yaml", mlp_config(schedule="name: 1f1b, workers: 8").replace("layers: 2", "layers: 8"))
        self.node = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                 "../../experiments/topologies/cube_mesh.xml")

    def map(self, *more, way="auto", nodes=1, device="cuda"):
        return json.loads(self.ok("info", "mlp.yaml", "--json", "--set", f"runtime.mapping={way}", "--set", f"runtime.device={device}",
                                  *nodes * ("--topology", self.node), *more))

    def test_auto_follows_nvlink(self):
        linear, best = self.map(way="linear"), self.map()
        self.assertEqual([w["device"] for w in linear["workers"]], [f"cuda{i}" for i in range(8)])
        self.assertIn("across NUMA nodes", [f["link"] for f in linear["flows"]])
        self.assertEqual({(f["link"], f["bandwidth"]) for f in best["flows"]}, {("NVLink", 50)})
        self.assertEqual(len({w["pci"] for w in best["workers"]}), 8)
        self.assertLess(best["link_seconds"], best["link_seconds_linear"])
        self.assertEqual(best["link_seconds_linear"], linear["link_seconds"])
        # Threads that drive GPUs run on cores of the GPU's NUMA node; each has 16.
        self.assertEqual([w["pu"] // 16 for w in best["workers"]], [int(w["numa"]) for w in best["workers"]])
        self.assertEqual(len({w["pu"] for w in best["workers"]}), 8)

    def test_two_nodes(self):
        best = self.map(nodes=2)
        self.assertEqual([w["node"] for w in best["workers"]], [0] * 4 + [1] * 4)
        self.assertEqual([w["rank"] for w in best["workers"]], [0] * 4 + [1] * 4)
        self.assertEqual(sum(f["link"] == "network" for f in best["flows"]), 2)
        self.assertEqual({w["rank"] for w in self.map("--ranks", 4, nodes=2)["workers"]}, {0, 1, 2, 3})

    def test_odd_counts(self):
        for workers in (1, 3, 7):
            best = self.map("--set", f"schedule.workers={workers}")
            self.assertEqual(len({w["device"] for w in best["workers"]}), workers)
            self.assertNotIn("across NUMA nodes", [f["link"] for f in best["flows"]])

    def test_cores_and_gpus(self):
        kinds = ["cuda", "cpu", "cuda", "cpu", "cuda", "cpu", "cuda", "cpu"]
        device = f"[{', '.join(kinds)}]"
        mixed = self.map(way="linear", device=device)["workers"]
        self.assertEqual(["cuda" if w["device"].startswith("cuda") else "cpu" for w in mixed], kinds)
        self.assertEqual(len({w["device"] for w in mixed}), 8)
        best = self.map(device=device)
        self.assertEqual(["cuda" if w["device"].startswith("cuda") else "cpu" for w in best["workers"]], kinds)
        self.assertEqual({w["device"] for w in best["workers"]}, {w["device"] for w in mixed})
        self.assertEqual(len({w["pu"] for w in best["workers"]}), 8)
        # The four GPUs nearest to each other are on one NUMA node, as are the cores.
        self.assertEqual([w["pu"] // 16 for w in best["workers"]], [int(w["numa"]) for w in best["workers"]])
        self.assertEqual({f["link"] for f in best["flows"]}, {"PCIe host bridge"})
        nodes = self.map(nodes=2, device=device)
        self.assertEqual([w["node"] for w in nodes["workers"]], [0] * 4 + [1] * 4)
        text = self.ok("info", "mlp.yaml", "--set", "runtime.mapping=auto", "--set", f"runtime.device={device}",
                       "--topology", self.node)
        for words in ("1f1b: 8 workers, mapping auto", "cuda0", "driven from PU", "core ", "PCIe host bridge"):
            self.assertIn(words, text)
        # One device for each worker.
        self.refused(["info", "mlp.yaml", "--set", "runtime.mapping=auto", "--set", "runtime.device=[cuda, cpu]"],
                     "runtime.device", "2 values for schedule.workers 8")

    def test_a_node_without_gpus(self):
        # Workers on cores, in a run whose other workers are on GPUs.
        def of(kind, name, cpus, inside=""):
            sets = "".join(f' {key}="{cpus}"' for key in ("cpuset", "complete_cpuset"))
            sets += "".join(f' {key}="0x1"' for key in ("nodeset", "complete_nodeset"))
            return f'<object type="{kind}" os_index="{name}"{sets}>{inside}</object>'

        cores = "".join(of("Core", i, hex(1 << i), of("PU", i, hex(1 << i))) for i in range(8))
        machine = of("Machine", 0, "0xff", of("NUMANode", 0, "0xff") + cores)
        self.write("cores.xml", f'<topology version="2.0">{machine}</topology>')
        # --topology once for each node.
        first, second = [["--topology", node] for node in (self.node, "cores.xml")]
        halves = "[cuda, cuda, cuda, cuda, cpu, cpu, cpu, cpu]"
        workers = self.map(*first, *second, nodes=0, device=halves)["workers"]
        self.assertEqual([w["device"][:4] for w in workers], ["cuda"] * 4 + ["core"] * 4)
        self.assertEqual([w["node"] for w in workers], [0] * 4 + [1] * 4)
        self.refused(["info", "mlp.yaml", *second, *first, "--set", "runtime.mapping=auto", "--set", f"runtime.device={halves}"],
                     "runtime.device: cuda", "cores.xml", "no GPU")

    def test_cores(self):
        cores = self.map(device="cpu")["workers"]
        self.assertEqual([w["device"] for w in cores], [f"core {i}" for i in range(8)])
        self.assertEqual({w["numa"] for w in cores}, {"0"})
        # With more GPU workers than cores, some share a core.
        shared = self.map("--set", "schedule.workers=8", "--ranks", 2)["workers"]
        self.assertEqual(len({w["device"] for w in shared}), 8)

    def test_drawing(self):
        text = self.ok("info", "mlp.yaml", "--set", "runtime.mapping=auto", "--set", "runtime.device=cuda", "--topology", self.node)
        for words in ("1f1b: 8 workers, mapping auto", "node 0", "NUMA 0", "NUMA 1", "cuda7", "0000:23:00.0",
                      "NVLink, 50 GB/s", " 6 -> 7 ", "linear "):
            self.assertIn(words, text)
        # On this host.
        text = self.ok("info", "mlp.yaml", "--set", "schedule.workers=2")
        self.assertIn("1f1b: 2 workers, mapping linear", text)
        self.assertIn(" 0 -> 1 ", text)

    def test_refusals(self):
        self.refused(["info", "mlp.yaml", "--set", "runtime.mapping=best"], "runtime.mapping", "linear, auto")
        self.refused(["info", "mlp.yaml", "--topology", "missing.xml"], "missing.xml")
        self.refused(["info", "mlp.yaml", "--topology", "mlp.yaml"], "mlp.yaml", "lstopo")
        self.refused(["info", "mlp.yaml", "--topology", self.node, "--topology", self.node, "--ranks", 1], "--ranks")
        self.refused(["info", "mlp.yaml", "--topology", self.node, "--ranks", 9], "9 ranks for 8 workers")
        self.refused(["info", "--topology", self.node], "config")
        self.refused(["info", "--set", "runtime.mapping=auto"], "config")


class Simulate(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("text", "The quick brown fox jumps over the lazy dog. " * 5)
        self.write("mlp.yaml", mlp_config())
        self.write("gpt.yaml", gpt_config("text"))

    def test_table(self):
        text = self.ok("simulate", "gpt.yaml")
        for word in ("1f1b", "makespan", "bubble", "peak stashes", "peak bytes", "activations in", "gradients in"):
            self.assertIn(word, text)

    def test_json(self):
        for config in ("mlp.yaml", "gpt.yaml"):
            data = json.loads(self.ok("simulate", config, "--json"))
            self.assertEqual(check(data), [])
            self.assertAlmostEqual(sum(d["F"] for d in data["durations"]), data["stages"])
            stashes = [d["stash"] for d in data["sizes"]]
            self.assertEqual(data["peak_stash_bytes"],
                             [p * stashes[w] for w, p in enumerate(data["peak_stashes"])])
            self.assertEqual([m["stashes"] for m in data["memory"]], data["peak_stash_bytes"])
        self.assertEqual(self.ok("simulate", "mlp.yaml", "-o", "p.json"), "")
        self.assertEqual(json.loads(self.read("p.json")), json.loads(self.ok("simulate", "mlp.yaml", "--json")))

    def test_memory_limit(self):
        wide = ("--set", "training.microbatch_size=64", "--set", "schedule.name=gpipe")
        need, need_recomputing = (
            max(sum(parts.values()) for parts in json.loads(self.ok("simulate", "gpt.yaml", *wide, *more, "--json"))["memory"])
            for more in ((), ("--set", "schedule.home=none")))
        self.ok("simulate", "gpt.yaml", *wide, "--set", f"runtime.memory_limit={need}")
        limit = ("--set", f"runtime.memory_limit={need_recomputing}")
        message = self.refused(["simulate", "gpt.yaml", *wide, *limit], "runtime.memory_limit: under gpipe, worker ",
                               " needs ", "stashes", "more than", "it fits with schedule.home: none")
        self.ok("simulate", "gpt.yaml", *wide, *limit, "--set", "schedule.home=none")
        # The schedule that the message names as the fastest within the limit does fit.
        fastest = re.search(r"the fastest that fits is ([^(]*) \(", message).group(1)
        self.ok("simulate", "gpt.yaml", *wide, *limit,
                *(f for part in fastest.split(", ") for f in ("--set", ("" if part.startswith("schedule.") else "schedule.")
                                                              + part.replace(": ", "="))))
        self.refused(["simulate", "gpt.yaml", "--set", "runtime.memory_limit=2KiB"], "no named schedule fits")
        # Stashes and bytes are not mixed up.
        self.refused(["simulate", "gpt.yaml", "--set", "runtime.memory_limit=4"], "schedule.memory_limit counts stashes")
        self.refused(["simulate", "gpt.yaml", "--set", "runtime.memory_limit=[1GiB, 4]"], "schedule.memory_limit counts stashes")
        self.ok("simulate", "gpt.yaml", "--set", "runtime.memory_limit=[1GiB, 2GiB]")
        self.refused(["simulate", "gpt.yaml", "--set", "runtime.memory_limit=[1GiB, 2KiB]"], ", worker 1 needs ", "more than 2048 B")
        self.refused(["simulate", "gpt.yaml", "--set", "runtime.memory_limit=[1GiB, 1GiB, 1GiB]"], "3 values for schedule.workers 2")
        self.refused(["simulate", "gpt.yaml", "--set", "schedule.memory_limit=8GiB"], "runtime.memory_limit is in bytes")

    def test_sizes_of_an_mlp(self):
        # Two layers, four inputs, two samples: 4 -> 8 | 8 -> 8 -> 2, or the first two together.
        data = json.loads(self.ok("simulate", "mlp.yaml", "--set", "schedule.cuts=[1]", "--json"))
        self.assertEqual([s["activation"] for s in data["sizes"]], [2 * 8 * 4, 0])
        self.assertEqual([s["weights"] for s in data["sizes"]], [(4 * 8 + 8) * 4, (8 * 8 + 8 + 8 * 2 + 2) * 4])
        self.assertEqual(data["received_bytes"]["activations"], [0, 4 * 2 * 8 * 4])

    def test_overrides(self):
        data = json.loads(self.ok("simulate", "--set", "schedule.name=naive", "mlp.yaml", "--set",
                                  "training.microbatches=3", "--set", "schedule.placement=[1, 0]", "--json"))
        self.assertEqual((data["schedule"], data["microbatches"]), ("naive", 3))
        self.assertEqual(data["ops"][1][0]["stage"], 0)
        data = json.loads(self.ok("simulate", "mlp.yaml", "--set", "schedule.memory_limit=1", "--json"))
        self.assertEqual((data["discipline"], data["memory_limits"], data["peak_stashes"]), ("bounded", [1, 1], [1, 1]))
        self.assertEqual(data["reordered"], {"worker": 0, "stashes": 4, "limit": 1})
        self.assertIn("not in gpipe's own order", self.ok("simulate", "mlp.yaml", "--set", "schedule.memory_limit=1"))
        free, fitting = (json.loads(self.ok("simulate", "mlp.yaml", *more, "--json")) for more in (
            (), ("--set", "schedule.memory_limit=4")))
        self.assertEqual({**free, "memory_limits": [4, 4]}, fitting)

    def test_a_limit_on_the_schedule_of_a_file(self):
        """The order stays where it fits. The smaller of the file's limit and the configured one holds."""
        for name, of_file, asked, holds, reordered in (
                ("gpipe", None, 4, 4, False), ("gpipe", 4, 5, 4, False), ("gpipe", None, 2, 2, True), ("gpipe", 4, 2, 2, True)):
            more = () if of_file is None else ("--memory-limit", of_file)
            data = json.loads(self.ok("schedule", "show", name, "--workers", 2, "--microbatches", 4, *more, "--json"))
            self.write("order.json", json.dumps(data))
            self.write("file.yaml", mlp_config(schedule="file: order.json"))
            data = json.loads(self.ok("simulate", "file.yaml", "--set", f"schedule.memory_limit={asked}", "--json"))
            self.assertEqual(data["memory_limits"], [holds] * 2)
            self.assertLessEqual(max(data["peak_stashes"]), holds)
            self.assertEqual("reordered" in data, reordered)

    def test_a_tree_of_stages(self):
        self.write("towers.yaml", """model: {kind: mlp, layers: 2, hidden: 8, inputs: 4, outputs: 2, branches: 2}
training: {steps: 1, microbatches: 4}
schedule: {name: 1f1b, workers: 3}
""")
        data = json.loads(self.ok("simulate", "towers.yaml", "--json"))
        self.assertEqual(data["stage_graph"], [[0, 2], [1, 2]])
        self.assertEqual(check(data), [])

    def test_costs_and_pictures(self):
        data = json.loads(self.ok("simulate", "mlp.yaml", "--durations", "F=1,B=1,W=1", "--comm", 1, "--json",
                                  "--timeline", "t.svg", "--trace", "t.json"))
        self.assertEqual(data["durations"], {"F": 1, "B": 1, "W": 1})
        self.assertEqual(check(data), [])
        ElementTree.fromstring(self.read("t.svg"))
        self.assertIn("traceEvents", json.loads(self.read("t.json")))

    def test_inputs_are_not_overwritten(self):
        """The file of --durations cannot be an output, however it is spelled."""
        self.write("config.yaml", mlp_config())
        times = "{F: 1, B: 2, W: 1}\n"
        self.write("times.json", times)
        sizes = ("--workers", 2, "--microbatches", 2)
        self.write("m.json", self.ok("schedule", "show", "1f1b", *sizes, "--json"))
        for command in (("schedule", "show", "1f1b", *sizes), ("schedule", "check", "m.json"), ("search", *sizes),
                        ("simulate", "config.yaml")):
            self.refused([*command, "--durations", "times.json", "-o", "./times.json"], "-o", "times.json", "input")
            self.assertEqual(self.read("times.json"), times)

    def test_bad_input(self):
        def refused(arguments, *names):
            self.refused(["simulate", *arguments], *names)

        refused(["missing.yaml"], "missing.yaml", "No such file")
        refused(["."], "is a directory")
        for device in "/dev/zero", "/dev/urandom":
            for command in (["simulate", device], ["explain", device], ["schedule", "check", device],
                            ["simulate", "mlp.yaml", "--set", f"schedule={{file: {device}}}"],
                            ["simulate", "mlp.yaml", "--durations", device]):
                self.refused(command, device, "is a device")
        script = f"{shlex.quote(self.binary)} simulate <(cat mlp.yaml)"
        result = subprocess.run(["bash", "-c", script], cwd=self.folder, capture_output=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        for text, names in (("", ["c.yaml", "empty"]), ("- a", ["c.yaml", "a list"]),
                            ("model: {kind: [", ["c.yaml:1", "not YAML"]),
                            ("\nmodel: {foo: 1}", ["c.yaml:2", "model.foo"]),
                            ("training:\n  steps: abc", ["c.yaml:2", "training.steps", "'abc'"]),
                            ("model: {kind: mlp}", ["c.yaml", "training.steps"])):
            refused([self.write("c.yaml", text)], *names)

        def refused_set(override, *names, config="mlp.yaml"):
            refused([config, "--set", override], *names)

        refused_set("training.steps", "--set training.steps", "KEY=VALUE")
        refused_set("training.stops=1", "--set training.stops", "did you mean 'training.steps'?")
        refused_set("training.steps=x", "--set training.steps", "'x'")
        refused_set("training.steps=0", "--set training.steps", "at least 1")
        refused_set("model.heads=2", "--set model.heads", "mlp")
        refused_set("model.branches=2", "--set model.branches", "gpt", config="gpt.yaml")
        refused_set("model.branches=3", "model.branches", "3")
        refused_set("model.legs=2", "--set model.legs", "unknown key")
        refused_set("runtime.precision=fp16", "fp16", "fp32")
        refused_set("runtime.precision=tf32", "runtime.precision", "tf32", "runtime.device cpu")
        refused_set("runtime.device=gpu", "runtime.device", "cuda")
        refused_set("runtime.device=[]", "runtime.device", "a list of them")
        refused_set("runtime.device=[cpu, gpu]", "runtime.device", "gpu")
        refused_set("runtime.device=[cpu, cuda, cpu]", "runtime.device", "3 values for schedule.workers")
        refused_set("schedule.memory_limit=0", "schedule.memory_limit", "0")
        refused_set("schedule.name=2f2b", "'2f2b'")
        refused_set("schedule.workers=4", "schedule.stages", "4")
        refused_set("schedule.stages=3", "3 stages", "2 workers")
        refused_set("schedule.stages=9", "schedule.stages", "9")
        refused_set("schedule.placement=[0, 5]", "stage 1", "worker 5")
        refused_set("schedule.placement=[0]", "schedule.placement: ", "1 stage")
        refused_set("schedule.cuts=[7]", "schedule.cuts", "7")
        refused_set("schedule.groups=3", "schedule.groups: gpipe")
        refused_set("model.heads=3", "model.heads", "3", config="gpt.yaml")
        refused_set("data.path=missing", "missing", config="gpt.yaml")
        refused_set("data.path=/dev/null", "/dev/null", config="gpt.yaml")
        refused_set("model.context=1000", "context", config="gpt.yaml")
        refused_set("data.kind=synthetic", "data.kind", "model.kind gpt", config="gpt.yaml")
        refused_set("model.init=missing", "missing: cannot be read")
        refused_set("model.init=mlp.yaml", "mlp.yaml", "safetensors")
        self.assertEqual(self.run_command("train", "mlp.yaml", "--save-weights", "weights").returncode, 0)
        self.ok("simulate", "mlp.yaml", "--set", "model.init=weights")
        refused_set("model={init: weights, hidden: 9}", "weights: was saved with hidden 8")
        with open(self.path("odd.yaml"), "wb") as file:
            file.write(b'model: {kind: "a\\\xff\x07"}')
        refused(["odd.yaml"], "odd.yaml:1", "not YAML", "\\xff")
        for option in ("-o", "--timeline", "--trace"):
            refused(["mlp.yaml", option, "nowhere/f"], option, "nowhere/f")
        refused(["mlp.yaml", "--durations", "F=x"], "--durations")


if __name__ == "__main__":
    CommandTest.binary = os.path.abspath(sys.argv.pop(1))
    unittest.main()
