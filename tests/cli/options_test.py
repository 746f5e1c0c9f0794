# SPDX-License-Identifier: Apache-2.0
"""No option is ignored in silence: each option of each subcommand changes something, or is refused.

The options are those that the program's help lists, so a new option fails here until it has an entry.
Usage: options_test.py BINARY PLUGIN EXPERIMENTS, where PLUGIN is tests/plugins/odd_plugin.
"""

import functools
import json
import os
import re
import shutil
import sys
import unittest

from explain_test import Pipeline
from support import CommandTest, mlp_config

PLUGIN = ""
EXPERIMENTS = ""

SHOW = "schedule show 1f1b --workers 4 --microbatches 8"
SIDE_BY_SIDE = "schedule compare 1f1b v-half --workers 4 --microbatches 8"
COSTLY = f"{SHOW} --comm 1 --durations F=1,B=2,W=1"
SEARCH = "search --workers 3 --microbatches 6 --durations F=2,B=3,W=1 --comm 0.5 --chunks 2 --budget 0.1 --quiet"
FREE_SEARCH = SEARCH.replace(" --comm 0.5", "")
LINKS = "--links links.yaml --bytes 8"
PARTITION = "partition units.yaml --workers 3"
PERIODIC = "periodic uneven.yaml"
RUN = "--set training.steps=1"
COMPARE = f"compare mlp.yaml {RUN} --policies starpipe,lws --repetitions 1"
EVALUATE = "evaluate mlp.yaml --weights trained.safetensors"
VERIFY = "verify mlp.yaml --set training.steps=2"
PROFILE = "profile mlp.yaml --repetitions 3"
SWEEP = "sweep study.yaml -o out"
SIM = "sim emulated.yaml --cluster cluster.yaml"


def output(result, files):
    return result.returncode, result.stdout


def errors(result, files):
    return result.stderr


def status(result, files):
    """For outputs that differ from run to run, and files that may be missing."""
    return result.returncode


def words(result, files):
    """The output without its figures, which are measured."""
    return result.returncode, re.sub(r"[-+]?\d[\d.e-]*", "#", result.stdout)


def written(result, files):
    return result.returncode, sorted(files)


def sizes(result, files):
    return result.returncode, {name: len(text) for name, text in files.items()}


def page(result, files):
    """A page is written, or refused by a program that was built without one."""
    return written(result, files), "without the report page" in result.stderr


def fact(*path):
    """A value in the JSON output."""
    def read(result, files):
        value = json.loads(result.stdout)
        for key in path:
            value = value[key]
        return value
    return read


def no_spread(result, files):
    return bool(re.search(r"spread: \{F: 0, B: 0, W: 0\}", result.stdout))


class Effect:
    """`base` and `base` with `more` must differ in what `how` sees of them."""

    def __init__(self, base, more, how=output):
        self.base, self.more, self.how = base, more, how


def results(base):
    """The options of a result: --format, --json, -o."""
    return {"--format": Effect(base, "--format csv"), "--json": Effect(base, "--json"),
            "--output": Effect(base, "-o out.json", written), "--html": Effect(base, "--html p.html", page)}


def drawing(base, columns=40):
    """The options of a result that is drawn."""
    return {**results(base), "--width": Effect(base, f"--width {columns}")}


def config(command, how=words):
    """The options of a configuration."""
    return {"--set": Effect(command, "--set schedule.name=gpipe", how),
            "--plugin": Effect(command, "--plugin missing.so", status),
            "--help-keys": Effect(command, "--help-keys", how)}


EFFECTS = {
    "": {"--version": Effect("", "--version")},
    "train": {
        **config(f"train mlp.yaml {RUN}"),
        "--report": Effect(f"train mlp.yaml {RUN}", "--report r.json", written),
        "--html": Effect(f"train mlp.yaml {RUN}", "--html p.html", page),
        "--trace": Effect(f"train mlp.yaml {RUN}", "--trace t.json", written),
        "--timeline": Effect(f"train mlp.yaml {RUN}", "--timeline t.svg", written),
        "--metrics": Effect(f"train mlp.yaml {RUN}", "--metrics m.jsonl", written),
        "--save-weights": Effect(f"train mlp.yaml {RUN}", "--save-weights w.safetensors", written),
        "--save-precision": Effect(f"train mlp.yaml {RUN} --save-weights w.safetensors", "--save-precision bf16", sizes),
        "--max-shard-size": Effect(f"train mlp.yaml {RUN} --save-weights w.safetensors", "--max-shard-size 100", written),
        "--resume": Effect(f"train mlp.yaml {RUN} --set checkpoint.folder=done", "--resume", status),
    },
    "evaluate": {
        **config(EVALUATE, status),
        "--set": Effect(EVALUATE, "--set data.kind=text", status),
        "--help-keys": Effect(EVALUATE, "--help-keys"),
        "--weights": Effect(EVALUATE, "--weights missing.safetensors", status),
        "--microbatches": Effect(EVALUATE, "--microbatches 3"),
        "--json": Effect(EVALUATE, "--json"),
        "--report": Effect(EVALUATE, "--report e.json", written),
    },
    "verify": {
        **config(VERIFY),
        "--steps": Effect(f"{VERIFY} --json", "--steps 1", fact("steps")),
        "--tolerance": Effect(f"{VERIFY} --json", "--tolerance 0.5", fact("tolerance")),
        "--against-gradients": Effect(VERIFY, "--against-gradients trained.safetensors", words),
        "--against-weights": Effect(VERIFY, "--against-weights trained.safetensors", words),
        "--no-derivatives": Effect(VERIFY, "--no-derivatives", words),
        "--json": Effect(VERIFY, "--json", words),
        "--report": Effect(VERIFY, "--report r.json", written),
    },
    "compare": {
        **config(COMPARE),
        "--policies": Effect(f"compare mlp.yaml {RUN} --policies starpipe --repetitions 1", "--policies lws", words),
        "--schedules": Effect("compare mlp.yaml --set training.steps=1 --repetitions 1 --schedules 1f1b", "--schedules gpipe",
                              words),
        "--repetitions": Effect(f"{COMPARE} --json", "--repetitions 2", fact("repetitions")),
        "--seed": Effect(f"{COMPARE} --json", "--seed 7", fact("seed")),
        "--json": Effect(COMPARE, "--json", words),
        "--output": Effect(COMPARE, "-o c.json", written),
        "--timeline": Effect(COMPARE, "--timeline c.svg", written),
        "--html": Effect(COMPARE, "--html c.html", page),
    },
    "sweep": {
        "--output": Effect("sweep study.yaml", "--output out", status),
        "--jobs": Effect("sweep training.yaml -o out", "--jobs 1000", errors),
        "--retry": Effect("sweep failing.yaml -o failed", "--retry"),
        "--print": Effect(SWEEP, "--print"),
        "--collect": Effect(SWEEP, "--collect"),
        "--block": Effect(SWEEP, "--block 1/2"),
        "--launcher": Effect("sweep ranks.yaml -o out --print", "--launcher srun"),
        "--slurm": Effect(SWEEP, "--slurm 2"),
    },
    "explain": {
        "--what-if": Effect("explain run.json", "--what-if comm=0"),
        "--plugin": Effect("explain run.json --what-if schedule=1f1b", "--plugin missing.so", status),
        "--json": Effect("explain run.json", "--json"),
        "--timeline": Effect("explain run.json", "--timeline t.svg", written),
        "--trace": Effect("explain run.json", "--trace t.json", written),
    },
    "report": {
        "--output": Effect("report run.json", "-o p.html", status),
    },
    "simulate": {
        **config("simulate mlp.yaml", output),
        **results("simulate mlp.yaml"),
        "--durations": Effect("simulate mlp.yaml", "--durations F=3,B=1,W=1"),
        "--comm": Effect("simulate mlp.yaml", "--comm 0.5"),
        "--copy": Effect("simulate mlp.yaml --set schedule.home=host --copy 0", "--copy 3"),
        "--links": Effect("simulate mlp.yaml", "--links links.yaml"),
        "--workers": Effect("simulate mlp.yaml", "--workers 3"),
        "--ranks": Effect("simulate mlp.yaml --set schedule.name=fsdp --set schedule.workers=4 --set schedule.stages=2 --links links.yaml",
                          "--ranks 2"),
        "--no-prefetch": Effect("simulate mlp.yaml --comm 2 --set schedule.name=gpipe", "--no-prefetch"),
        "--per-share": Effect("simulate mlp.yaml --durations F=3,B=1,W=1 --set schedule.name=looped-bfs --set schedule.workers=1",
                              "--per-share"),
        "--timeline": Effect("simulate mlp.yaml", "--timeline t.svg", written),
        "--trace": Effect("simulate mlp.yaml", "--trace t.json", written),
    },
    # Most builds have no simulated GPUs: they refuse at the end, with one line.
    "sim": {
        "--set": Effect(SIM, "--set schedule.name=none", errors),
        "--plugin": Effect(SIM, "--plugin missing.so", errors),
        "--help-keys": Effect(SIM, "--help-keys"),
        "--cluster": Effect(SIM, "--cluster missing.yaml", errors),
        "--nodes": Effect(f"{SIM} --set schedule.workers=2", "--nodes 2", errors),
        "--ranks-per-node": Effect(SIM, "--ranks-per-node 3", errors),
        "--sharing": Effect(SIM, "--sharing unfair", errors),
        "--gpu-direct": Effect(SIM, "--gpu-direct=maybe", errors),
        "--durations": Effect(SIM, "--durations missing.yaml", errors),
        "--per-share": Effect(SIM, "--per-share", errors),
        "--report": Effect(SIM, "--report missing/r.json", errors),
    },
    "schedule list": {"--plugin": Effect("schedule list", "--plugin PLUGIN"), "--json": Effect("schedule list", "--json"),
                      "--long": Effect("schedule list", "--long")},
    "schedule show": {
        "--plugin": Effect("schedule show sound --workers 2 --microbatches 2", "--plugin PLUGIN"),
        "--workers": Effect("schedule show 1f1b --microbatches 8 --workers 4", "--workers 2"),
        "--microbatches": Effect("schedule show 1f1b --workers 4 --microbatches 8", "--microbatches 4"),
        "--slices": Effect(SHOW, "--slices 2"),
        "--stages": Effect(SHOW, "--stages 8"),
        "--groups": Effect("schedule show lpp --workers 4 --microbatches 8 --groups 4", "--groups 2"),
        "--option": Effect(SHOW, "--option waves=2", status),
        "--placement": Effect(SHOW, "--placement 3,2,1,0"),
        "--discipline": Effect(SHOW, "--discipline greedy"),
        "--memory-limit": Effect(SHOW, "--memory-limit 2"),
        "--home": Effect(SHOW, "--home none"),
        "--durations": Effect(SHOW, "--durations F=1,B=2,W=1"),
        "--comm": Effect(SHOW, "--comm 0.5"),
        "--overlap": Effect("schedule show combined-1f1b --workers 4 --microbatches 8", "--overlap 0.9"),
        "--copy": Effect(f"{SHOW} --home host --copy 0", "--copy 3"),
        "--links": Effect(SHOW, LINKS),
        "--bytes": Effect(f"{SHOW} --links links.yaml --bytes 0", "--bytes 8"),
        "--no-prefetch": Effect(COSTLY, "--no-prefetch"),
        "--tensor": Effect(SHOW, "--tensor 2"),
        "--tensor-workers": Effect(f"{SHOW} --tensor 2", "--tensor-workers 1"),
        "--per-share": Effect("schedule show v-half --workers 4 --microbatches 8", "--per-share"),
        **drawing(SHOW),
    },
    "schedule compare": {
        "--plugin": Effect("schedule compare sound --workers 2 --microbatches 2", "--plugin PLUGIN"),
        "--workers": Effect("schedule compare 1f1b --microbatches 8 --workers 4", "--workers 2"),
        "--microbatches": Effect("schedule compare 1f1b --workers 4 --microbatches 8", "--microbatches 4"),
        "--slices": Effect("schedule compare 1f1b --workers 4 --microbatches 8", "--slices 2"),
        "--option": Effect(SIDE_BY_SIDE, "--option waves=2", status),
        "--memory-limit": Effect(SIDE_BY_SIDE, "--memory-limit 2"),
        "--home": Effect(SIDE_BY_SIDE, "--home none"),
        "--per-share": Effect(f"{SIDE_BY_SIDE} --per-stage", "--per-share"),
        "--tensor": Effect(SIDE_BY_SIDE, "--tensor 2"),
        "--tensor-workers": Effect(f"{SIDE_BY_SIDE} --tensor 2", "--tensor-workers 1"),
        "--durations": Effect(SIDE_BY_SIDE, "--durations F=1,B=2,W=1"),
        "--comm": Effect(SIDE_BY_SIDE, "--comm 0.5"),
        "--overlap": Effect("schedule compare 1f1b combined-1f1b --workers 4 --microbatches 8", "--overlap 0.9"),
        "--copy": Effect(f"{SIDE_BY_SIDE} --home host --copy 0", "--copy 3"),
        "--links": Effect(SIDE_BY_SIDE, LINKS),
        "--bytes": Effect(f"{SIDE_BY_SIDE} --links links.yaml --bytes 0", "--bytes 8"),
        "--no-prefetch": Effect(f"{SIDE_BY_SIDE} --comm 1", "--no-prefetch"),
        "--json": Effect(SIDE_BY_SIDE, "--json"),
        "--output": Effect(SIDE_BY_SIDE, "-o out.csv", written),
        "--timeline": Effect(SIDE_BY_SIDE, "--timeline t.svg", written),
        "--html": Effect(SIDE_BY_SIDE, "--html p.html", page),
    },
    "schedule check": {
        "--memory-limit": Effect("schedule check s.csv", "--memory-limit 1"),
        "--home": Effect("schedule check s.csv", "--home none"),
        "--tensor": Effect("schedule check s.csv", "--tensor 2"),
        "--tensor-workers": Effect("schedule check s.csv --tensor 2", "--tensor-workers 1"),
        "--durations": Effect("schedule check s.csv", "--durations F=1,B=2,W=1"),
        "--comm": Effect("schedule check s.csv", "--comm 0.5"),
        "--overlap": Effect("schedule check pairs.csv", "--overlap 0.9"),
        "--copy": Effect("schedule check s.csv --home host --copy 0", "--copy 3"),
        "--links": Effect("schedule check s.csv", LINKS),
        "--bytes": Effect("schedule check s.csv --links links.yaml --bytes 0", "--bytes 8"),
        "--no-prefetch": Effect("schedule check s.csv --comm 1 --durations F=1,B=2,W=1", "--no-prefetch"),
        **drawing("schedule check s.csv", columns=30),
    },
    "plugin check": {
        "--timeout": Effect("plugin check none.so", "--timeout 0", errors),
        "--json": Effect("plugin check PLUGIN", "--json"),
    },
    "search": {
        "--plugin": Effect(SEARCH, "--plugin missing.so", status),
        "--workers": Effect(SEARCH, "--workers 2"),
        "--microbatches": Effect(SEARCH, "--microbatches 5"),
        "--slices": Effect(SEARCH, "--slices 2"),
        "--chunks": Effect(SEARCH, "--chunks 1"),
        "--layout": Effect(f"{SEARCH} --layout loop", "--layout v"),
        "--durations": Effect(SEARCH, "--durations F=1,B=1,W=1"),
        "--comm": Effect(SEARCH, "--comm 0"),
        "--links": Effect(FREE_SEARCH, LINKS),
        "--bytes": Effect(f"{FREE_SEARCH} --links links.yaml --bytes 0", "--bytes 8"),
        "--memory-limit": Effect(SEARCH, "--memory-limit 3"),
        "--stash": Effect(SEARCH, "--stash 1MiB --json"),
        "--copy": Effect("search --workers 4 --microbatches 12 --chunks 2 --layout v --memory-limit 3 --budget 0.2 --quiet --json "
                         "--homes worker,host --copy 0.1", "--copy 50"),
        "--homes": Effect("search --workers 4 --microbatches 12 --chunks 2 --layout v --memory-limit 2 --budget 0.2 --quiet --json",
                          "--homes none,worker"),
        "--budget": Effect("search --workers 4 --microbatches 16 --comm 0.7 --memory-limit 3 --quiet --format csv --budget 0.02",
                           "--budget 1"),
        "--seed": Effect("search --workers 4 --microbatches 8 --chunks 2 --layout v --comm 0.7 --durations F=2,B=3,W=1.5 "
                         "--memory-limit 5 --quiet --format csv --budget 0.1", "--seed 2"),
        "--quiet": Effect(SEARCH.replace(" --quiet", ""), "--quiet", errors),
        **drawing(SEARCH),
    },
    "partition": {
        "--workers": Effect(PARTITION, "--workers 2"),
        "--device": Effect("partition kinds.yaml --workers 2 --device cpu", "--device cuda"),
        "--chunks": Effect(PARTITION, "--chunks 2"),
        "--layout": Effect(f"{PARTITION} --chunks 2", "--layout v"),
        "--general": Effect(PARTITION, "--general"),
        "--schedule": Effect(PARTITION, "--schedule gpipe"),
        "--microbatches": Effect(PARTITION, "--microbatches 5"),
        "--comm": Effect(PARTITION, "--comm 3"),
        "--comm-per-byte": Effect(PARTITION, "--comm-per-byte 0.001"),
        "--links": Effect(PARTITION, "--links links.yaml"),
        "--memory-limit": Effect(PARTITION, "--memory-limit 10"),
        "--optimizer-states": Effect(PARTITION, "--optimizer-states 1"),
        "--json": Effect(PARTITION, "--json"),
        "--format": Effect(PARTITION, "--format json"),
        "--output": Effect(PARTITION, "-o p.json", written),
    },
    "profile": {
        "--set": Effect(PROFILE, "--set model.layers=4", words),
        "--help-keys": Effect(PROFILE, "--help-keys", words),
        "--repetitions": Effect(PROFILE, "--repetitions 1", no_spread),
        "--output": Effect(PROFILE, "-o units.out.yaml", written),
        "--replace": Effect(f"{PROFILE} -o units.yaml", "--replace", status),
        "--json": Effect(PROFILE, "--json", words),
    },
    "periodic": {
        "--microbatches": Effect(PERIODIC, "--microbatches 4"),
        "--memory": Effect(PERIODIC, "--memory 3"),
        "--repeat": Effect(f"{PERIODIC} --memory 3", "--repeat 3"),
        "--period": Effect(PERIODIC, "--period 9"),
        **drawing(PERIODIC),
    },
    "info": {
        **config("info mlp.yaml", words),
        "--json": Effect("info mlp.yaml", "--json", words),
        "--links": Effect("info", "--links measured.yaml", status),
        "--topology": Effect("info mlp.yaml --set runtime.device=cuda", "--topology cube.xml", words),
        "--ranks": Effect("info mlp.yaml --topology cube.xml", "--ranks 2"),
    },
}

# Commands of which all pairs of options are tried.
PAIRED = ("schedule list", "schedule show", "schedule check", "simulate", "partition", "periodic", "info")
TIMES = ("--durations", "--comm", "--copy", "--links", "--no-prefetch")
TIMES_IN_CSV = [*(option for option in TIMES if option != "--copy"), "--overlap"]
# (command, option, other): with these values, `option` changes nothing if `other` is given.
SILENCED = {
    # Without a home to which stashes are copied there are no copies.
    ("schedule show", "--copy", "--home"), ("schedule check", "--copy", "--home"),
    # The CSV has the order only, and refuses copies.
    *(("schedule show", option, "--format") for option in (*TIMES_IN_CSV, "--bytes", "--per-share")),
    *(("schedule check", option, "--format") for option in (*TIMES_IN_CSV, "--bytes")),
    *(("simulate", option, "--format") for option in (*TIMES_IN_CSV, "--per-share", "--ranks") if option != "--overlap"),
    # Both ask for JSON.
    *((command, "--json", "--output") for command in ("schedule show", "schedule check", "simulate", "partition", "periodic")),
    ("partition", "--format", "--output"),
    # One stage per worker: a stage is a share.
    ("simulate", "--per-share", "--set"),
    # Two nodes have two ranks.
    ("info", "--ranks", "--topology"),
    # With one stash the workers take turns, so no transfer meets a computation.
    ("schedule check", "--no-prefetch", "--memory-limit"),
}  # fmt: skip

# Options that would change nothing together with the others are refused, with these words.
REFUSED = [
    (f"{SHOW} --no-prefetch", "--no-prefetch", "--comm"),
    ("schedule check s.csv --no-prefetch", "--no-prefetch", "--comm"),
    ("simulate mlp.yaml --no-prefetch", "--no-prefetch", "--comm"),
    (f"{SHOW} --comm 0 --no-prefetch", "--no-prefetch", "--comm"),
    ("schedule check s.csv --comm 0 --no-prefetch", "--no-prefetch", "--comm"),
    ("simulate mlp.yaml --comm 0 --no-prefetch", "--no-prefetch", "--comm"),
    ("simulate emulated.yaml --no-prefetch", "--no-prefetch", "--comm"),
    ("simulate mlp.yaml --per-share", "--per-share", "--durations"),
    ("simulate mlp.yaml --ranks 2", "--ranks", "take no time"),
    ("simulate mlp.yaml --ranks 3 --links links.yaml", "--ranks", "2 workers cannot be divided among 3 ranks"),
    ("simulate mlp.yaml --workers 1 --set schedule.workers=2", "--workers", "--set gives schedule.workers"),
    (f"{SEARCH} --no-prefetch", "--no-prefetch"),
    ("simulate emulated.yaml --set runtime.emulate.prefetch=false", "runtime.emulate.prefetch", "runtime.emulate.comm 0"),
    ("simulate emulated.yaml --set runtime.emulate.prefetch=false --comm 2ms", "runtime.emulate.prefetch"),
    # A plug-in that does not have the schedule.
    (f"{SHOW} --plugin PLUGIN", "--plugin", "'1f1b'"),
    ("simulate mlp.yaml --plugin PLUGIN", "--plugin", "'1f1b'"),
    ("train mlp.yaml --plugin PLUGIN", "--plugin", "'1f1b'"),
    (f"{COMPARE} --plugin PLUGIN", "--plugin", "'1f1b'"),
    (f"{COMPARE} --plugin PLUGIN --schedules 1f1b,gpipe", "--plugin", "'1f1b' or 'gpipe'"),
    ("info mlp.yaml --plugin PLUGIN", "--plugin", "'1f1b'"),
    ("simulate mlp.yaml --set schedule.plugin=PLUGIN", "schedule.plugin", "'1f1b'"),
    ("explain run.json --plugin PLUGIN", "--plugin", "--what-if schedule="),
    ("explain run.json --what-if schedule=1f1b --plugin PLUGIN", "--plugin", "--what-if schedule="),
    ("simulate listed.yaml --plugin PLUGIN", "--plugin", "schedule.file"),
    ("simulate listed.yaml --set schedule.plugin=PLUGIN", "schedule.plugin", "schedule.file"),
    ("simulate listed.yaml --set schedule.memory_limit=[]", "schedule.memory_limit"),
    ("simulate listed.yaml --set schedule.memory_limit=[4,3,2]", "schedule.memory_limit", "s.csv"),
    # Policies.
    ("simulate mlp.yaml --set runtime.policy=strapipe", "runtime.policy", "strapipe"),
    (f"{COMPARE} --set runtime.policy=lws", "runtime.policy", "--policies"),
    ("compare mlp.yaml --policies lws,prio --set runtime.window=5", "runtime.window", "lws,prio"),
    ("search --workers 2 --microbatches 2 --chunks 1 --layout v", "--layout", "--chunks"),
    ("search --workers 2 --microbatches 2 --stash 0", "--stash"),
    (f"{SHOW} --json --width 80", "--width", "json"),
    (f"{SHOW} -o x.svg --width 80", "--width", "svg"),
    ("partition bare.yaml --workers 2 --memory-limit 10", "--memory-limit", "bare.yaml"),
    ("partition bare.yaml --workers 2 --comm-per-byte 1", "--comm-per-byte", "bare.yaml"),
    ("partition bare.yaml --workers 2 --optimizer-states 1", "--optimizer-states", "bare.yaml"),
    ("partition bare.yaml --workers 2 --device cpu", "--device", "bare.yaml"),
    ("partition bare.yaml --workers 2 --layout v", "--layout", "2 chunks or more"),
    ("partition bare.yaml --workers 2 --general --chunks 2", "--chunks", "a general partition"),
    ("profile mlp.yaml --replace", "--replace", "--output"),
    ("profile mlp.yaml --plugin x.so", "--plugin"),
    ("compare mlp.yaml --policies starpipe --seed 3", "--seed"),
    ("compare mlp.yaml --schedules 1f1b --seed 3", "--seed"),
    ("compare mlp.yaml --policies starpipe,starpipe", "--policies", "twice"),
    ("info --plugin x.so", "--plugin", "config"),
    ("info --ranks 2", "--ranks", "config"),
    (f"{EVALUATE} --plugin PLUGIN", "--plugin", "'1f1b'"),
    (f"{EVALUATE} --set model.init=trained.safetensors", "model.init"),
    (f"{EVALUATE} --set evaluate.every=2", "evaluate.every"),
    (f"{EVALUATE} --microbatches 2 --set evaluate.microbatches=3", "--microbatches", "evaluate.microbatches"),
    ("evaluate emulated.yaml --weights trained.safetensors", "runtime.emulate"),
    (f"{EVALUATE} --report trained.safetensors.txt", "--report", ".json"),
    ("verify emulated.yaml", "runtime.emulate", "verify"),
    ("verify mlp.yaml --set training.steps=1 --steps 2", "--steps", "training.steps"),
    ("verify mlp.yaml --against-weights r.json --report r.json", "--report", "r.json", "input"),
    ("verify mlp.yaml --plugin PLUGIN", "--plugin", "'1f1b'"),
    ("train emulated.yaml --save-weights w", "--save-weights", "emulate"),
    ("train mlp.yaml --resume", "--resume", "checkpoint.folder"),
    (f"{SWEEP} --launcher srun", "--launcher", "several ranks"),
    (f"{SWEEP} --print --retry", "--print", "--retry"),
    (f"{SWEEP} --collect --jobs 2", "--collect", "--jobs"),
    (f"{SWEEP} --slurm 2 --block 1/2", "--slurm", "--block"),
    (f"{PERIODIC} --period 9 --repeat 2", "--period", "--repeat"),
    ("periodic placed.yaml --period 9", "--period"),
    ("periodic placed.yaml --repeat 2", "--repeat"),
    # One file for two things.
    ("simulate mlp.yaml -o x.svg --timeline ./x.svg", "--timeline", "./x.svg"),
    ("simulate mlp.yaml -o - --trace /dev/stdout", "--trace", "/dev/stdout"),
    ("compare mlp.yaml --timeline mlp.yaml", "--timeline", ".svg"),
    ("compare link.json -o link.json", "--output", "link.json", "input"),
    ("train mlp.yaml --report f --trace ./f", "--trace", "./f"),
    ("schedule check s.csv -o s.csv", "-o", "s.csv", "input"),
    ("partition units.json --workers 3 -o units.json", "-o", "units.json", "input"),
]

# Bad values of options. The message names the option, or the limit, too.
BAD_VALUES = [
    (f"{SHOW} --durations F=1e300,B=1,W=1", "--durations", "F: must be 0, or at least 1e-99 and at most 1e+99, got 1e300"),
    (f"{SHOW} --durations F=1e300s,B=1s,W=1s", "--durations", "F: expected a time of 0, or at least 1e-99 and at most 1e+99"),
    (f"{SHOW} --durations F=1e-308,B=1,W=1", "--durations", "F: must be 0, or at least 1e-99"),
    (f"{SHOW} --comm 1e300", "--comm", "1e+99"),
    (f"{PARTITION} --comm 1e300", "--comm", "1e+99"),
    ("schedule show v-half --workers 2 --microbatches 2 --placement 0,1,1,0", "--placement: v-half"),
    ("schedule show ddp --workers 2 --microbatches 2 --placement 0,1", "--placement: ddp"),
    ("schedule show 1f1b --workers 2 --microbatches 2 --placement 0,3", "--placement: "),
    ("schedule show 1f1b --workers 2 --microbatches 2 --stages 3", "--stages: 1f1b"),
    ("schedule show v-half --workers 2 --microbatches 2 --stages 3", "--stages: v-half"),
    ("schedule show lpp --workers 4 --microbatches 8", "--groups: lpp"),
    ("schedule show lpp --workers 4 --microbatches 8 --groups 3", "--groups: lpp"),
    ("schedule show zb-h1 --workers 2 --microbatches 2 --groups 2", "--groups: zb-h1"),
    (f"{SHOW} --groups 2 --stages 4", "--stages: 1f1b"),
    (f"{SHOW} --groups 3", "--groups: 1f1b"),
    (f"{SHOW} --slices 0", "--slices"),
    (f"{SHOW} --slices 2 --home none", "slices"),
    (f"{SHOW} --slices 2 --discipline bounded --memory-limit 8", "slices"),
    ("simulate mlp.yaml --set schedule.groups=2 --set schedule.stages=2", "schedule.stages: 1f1b"),
    ("simulate mlp.yaml --set model.layers=3 --set schedule.name=v-half --set schedule.placement=[0,1,1,0]", "schedule.placement: v-half"),
]

# For each option that writes a file: the suffixes that it takes. "" stands for a name without one.
SUFFIXES = {
    f"{SHOW} -o": (".txt", ".json", ".csv", ".svg"),
    f"{SHOW} --json -o": (".json",),
    f"{SHOW} --format trace -o": (".json",),
    f"{SHOW} --format csv -o": (".csv",),
    f"{SHOW} --format svg -o": (".svg",),
    f"{SHOW} --format text -o": (".txt",),
    f"{SHOW} --html": (".html",),
    "report run.json -o": (".html",),
    f"{COMPARE} --html": (".html",),
    f"{SIDE_BY_SIDE} --html": (".html",),
    f"train mlp.yaml {RUN} --html": (".html",),
    "schedule check s.csv -o": (".txt", ".json", ".csv", ".svg"),
    f"{SEARCH} -o": (".txt", ".json", ".csv", ".svg"),
    f"{PERIODIC} -o": (".txt", ".json", ".csv", ".svg"),
    "simulate mlp.yaml -o": (".txt", ".json", ".csv", ".svg"),
    "simulate mlp.yaml --timeline": (".svg",),
    "simulate mlp.yaml --trace": (".json",),
    f"{PARTITION} -o": (".json", ".txt"),
    f"{PARTITION} --json -o": (".json",),
    f"{PROFILE} -o": (".json", ".yaml", ".yml"),
    f"{PROFILE} --json -o": (".json",),
    f"{COMPARE} -o": (".json",),
    f"{COMPARE} --timeline": (".svg",),
    "explain run.json --timeline": (".svg",),
    "explain run.json --trace": (".json",),
    f"train mlp.yaml {RUN} --report": (".json",),
    f"{EVALUATE} --report": (".json",),
    f"train mlp.yaml {RUN} --trace": (".json",),
    f"train mlp.yaml {RUN} --timeline": (".svg",),
    f"train mlp.yaml {RUN} --save-weights": (".safetensors",),
}
MEANINGLESS = (".png", ".PDF", ".json.gz", ".")


class Inputs(CommandTest):
    """Writes the files that the command lines read."""

    def write_all(self):
        self.write("mlp.yaml", mlp_config(schedule="name: 1f1b, workers: 2"))
        self.write("link.json", mlp_config())
        self.write("listed.yaml", mlp_config(schedule="file: s.csv").replace("microbatches: 4, ", ""))
        self.write("emulated.yaml", mlp_config("runtime: {emulate: {F: 1ms, B: 1ms, W: 1ms}}"))
        units = "{F: 1, B: 2, W: 1, weights: 1, activation: 1000, stash: 2}"
        self.write("units.yaml", f"layers: [{', '.join([units] * 5 + [units.replace('F: 1', 'F: 4')] * 2)}]")
        shutil.copy(self.path("units.yaml"), self.path("units.json"))
        self.write("run.json", json.dumps(Pipeline().report()))
        self.write("bare.yaml", "layers: [{F: 1, count: 4}]")
        self.write("kinds.yaml", "layers: [{cuda: {F: 1, W: 1}, cpu: {F: 3, W: 3}, count: 8}]")
        self.write("links.yaml", "levels: [{workers: 2, latency: 0.5, bandwidth: 16}, {latency: 1, bandwidth: 8, sharing: fair}]")
        self.write("cluster.yaml", "{gpus_per_node: 4, gpu_memory: 1GiB, host_link: {latency: 1us, bandwidth: 1GB/s}, "
                                   "levels: [{latency: 1us, bandwidth: 1GB/s}]}")
        self.write("placed.yaml", "- {F: 1, B: 2, worker: 0}\n- {F: 2, B: 1, worker: 0}\n")
        self.write("s.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
        self.write("pairs.csv", "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,(1F1;1B0)OVERLAP_F_B,(1F2;1B1)OVERLAP_F_B,1B2\n")
        shutil.copy(os.path.join(EXPERIMENTS, "periodic/uneven.yaml"), self.path("uneven.yaml"))
        shutil.copy(os.path.join(EXPERIMENTS, "topologies/cube_mesh.xml"), self.path("cube.xml"))
        done = self.run_command("train", "mlp.yaml", *RUN.split(), "--set", "checkpoint.folder=done")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.run_command("train", "mlp.yaml", *RUN.split(), "--save-weights", "trained.safetensors")
        study = "command: simulate\nconfig: mlp.yaml\n"
        self.write("study.yaml", study + "grid: {training.microbatches: [2, 4]}\n")
        self.write("failing.yaml", study + "set: {schedule.name: dualpipe, schedule.workers: 3}\n")
        self.write("training.yaml", study.replace("simulate", "train") + "set: {training.steps: 1}\n")
        self.write("ranks.yaml", study.replace("simulate", "train") + "set: {ranks: 2}\n")
        self.run_command("sweep", "failing.yaml", "-o", "failed")


class Options(CommandTest):
    @classmethod
    def setUpClass(cls):
        inputs = Inputs()
        inputs.setUp()
        cls.addClassCleanup(inputs.doCleanups)
        inputs.write_all()
        cls.inputs_folder = inputs.folder

    def setUp(self):
        super().setUp()
        shutil.copytree(self.inputs_folder, self.folder, dirs_exist_ok=True)
        self.inputs = set(os.listdir(self.folder))

    def subcommands(self, path=()):
        """All paths of subcommands, such as ("schedule", "show"), with the options of each."""
        text = self.ok(*path, "--help")
        options = set()
        for line in text.splitlines():
            if found := re.match(r"  (?:-\w,)?(--[\w-]+|-\w)\b", line):
                options.add(found[1])
        yield " ".join(path), options
        section = text.partition("\nSubcommands:\n")[2].partition("\n\n")[0]
        for name in re.findall(r"^  (\w[\w-]*)", section, re.M):
            yield from self.subcommands((*path, name))

    @staticmethod
    def words(line):
        """The arguments of a command line. EMPTY stands for an empty one."""
        return [word.replace("EMPTY", "") for word in line.replace("PLUGIN", PLUGIN).split()]

    @staticmethod
    def with_option(base, more):
        """A command line with one more option. An option that may be given once is replaced."""
        name, _, value = more.partition(" ")
        replaced = re.sub(rf" {name} \S+", f" {name} {value}", base)
        return replaced if replaced != base and name != "--set" else f"{base} {more}"

    def result(self, line):
        """The result of a command line, and the files that it wrote with their texts. They are removed."""
        done = self.run_command(*self.words(line), environment={"STARPIPE_ODD": "sound"})
        files = {}
        for name in set(os.listdir(self.folder)) - self.inputs:
            if os.path.isdir(self.path(name)):
                files[name] = sorted(os.listdir(self.path(name)))
                shutil.rmtree(self.path(name))
                continue
            with open(self.path(name), encoding="utf-8", errors="replace") as file:
                files[name] = file.read()
            os.remove(self.path(name))
        return done, files

    def test_every_option_is_listed(self):
        for command, options in self.subcommands():
            with self.subTest(command=command):
                self.assertIn("--help", options)
                self.assertEqual(options - {"--help"}, set(EFFECTS.get(command, {})))

    def test_every_option_changes_something(self):
        result_of_base = functools.cache(self.result)  # many options of a command share a base
        for command, effects in EFFECTS.items():
            for option, effect in effects.items():
                with self.subTest(command=command, option=option):
                    without = result_of_base(effect.base)
                    changed = self.result(self.with_option(effect.base, effect.more))
                    self.assertNotEqual(effect.how(*changed), effect.how(*without), changed[0].stderr)
                    self.assertNotEqual(changed[0].returncode, -11)

    def test_no_option_silences_another(self):
        """With any other option of the command, too, an option changes something or is refused."""
        @functools.cache  # many options of a command share a base
        def run_sorted(words):
            done, files = self.result(" ".join(words))
            return done.returncode, done.stdout, done.stderr, files

        def run(line):
            """Runs the line once, whatever the order of its options."""
            command, *options = re.split(r" (?=-)", line)
            return run_sorted((command, *sorted(options, key=lambda words: words.split()[0])))

        silenced = set()
        for command in PAIRED:
            for option, effect in EFFECTS[command].items():
                for other, beside in EFFECTS[command].items():
                    if other == option or beside.more.startswith("--help"):
                        continue
                    base = self.with_option(effect.base, beside.more)
                    without = run(base)
                    if without[0] == 0 and run(self.with_option(base, effect.more)) == without:
                        silenced.add((command, option, other))
        self.assertEqual(silenced, SILENCED)

    def test_options_without_effect_are_refused(self):
        for line, *culprits in REFUSED:
            self.refused(self.words(line), *culprits, environment={"STARPIPE_ODD": "sound"})
            self.assertEqual(set(os.listdir(self.folder)), self.inputs, line)

    def test_a_schedule_of_another_name_needs_no_plugin(self):
        """As other keys of the file's own schedule, a plug-in without the schedule that an option names is ignored."""
        self.write("own.yaml", mlp_config(schedule=f"plugin: {PLUGIN}, name: sound, workers: 2"))
        environment = {"STARPIPE_ODD": "sound"}
        self.assertIn(" 2 workers", self.ok("simulate", "own.yaml", environment=environment))
        self.assertEqual(self.ok("simulate", "own.yaml", "--set", "schedule.name=1f1b", environment=environment),
                         self.ok("simulate", "mlp.yaml"))
        self.refused(["simulate", "own.yaml", "--set", "schedule.name=1f1b", "--plugin", PLUGIN], "--plugin", "'1f1b'",
                     environment=environment)

    def test_schedules_of_plugins_are_compared(self):
        """Each schedule takes the plug-ins that have it."""
        self.write("own.yaml", mlp_config(schedule=f"plugin: {PLUGIN}, name: sound, workers: 2"))
        for arguments in (["mlp.yaml", "--plugin", PLUGIN], ["own.yaml"]):
            text = self.ok("compare", *arguments, *RUN.split(), "--schedules", "1f1b,sound", "--repetitions", 1, "--json",
                           environment={"STARPIPE_ODD": "sound"})
            plugins = [one["config"]["schedule"].get("plugin", []) for one in json.loads(text)["schedules"]]
            self.assertEqual(plugins, [[], [PLUGIN]])

    def test_bad_values_are_named_with_their_option(self):
        for line, *culprits in BAD_VALUES:
            self.refused(line.split(), *culprits)

    def test_numbers_are_decimal(self):
        """As in configurations: 0x1 is not a number, and 010 is ten."""
        seen = 0
        for command, effects in EFFECTS.items():
            for option, effect in effects.items():
                name, _, value = effect.more.partition(" ")
                if re.fullmatch(r"\d[\d.]*(MiB)?", value):
                    seen += 1
                    self.refused(self.words(self.with_option(effect.base, f"{name} 0x1")), name, "0x1")
        self.assertGreater(seen, 30)
        self.assertEqual(self.ok(*SHOW.replace("8", "010").split()), self.ok(*SHOW.replace("8", "10").split()))

    def test_empty_values_are_refused(self):
        for command, effects in EFFECTS.items():
            for option, effect in effects.items():
                name, _, value = effect.more.partition(" ")
                if value:
                    self.refused(self.words(self.with_option(effect.base, f"{name} EMPTY")), option)
        for line, argument in (("train", "config"), ("compare", "config"), ("simulate", "config"), ("info", "config"),
                               ("profile", "config"), ("schedule check", "file"), ("plugin check", "file"),
                               ("partition --workers 2", "file"), ("periodic", "file"), ("sweep -o out", "study"), ("explain", "report")):
            self.refused([*line.split(), ""], f"{argument}: the name of the file is empty")
        self.refused([*SHOW.split(), "--durations", ""], "--durations: the name of the file is empty")
        self.refused([*SHOW.split(), "-o", ""], "--output: the name of the file is empty")

    def test_a_policy_that_is_not_predicted_is_told(self):
        note = "predicted for the policy starpipe; lws chooses workers and order"
        for how in (["--set", "runtime.policy=lws"], []):
            environment = None if how else {"STARPU_SCHED": "lws"}
            self.assertIn(note, self.ok("simulate", "mlp.yaml", *how, environment=environment))
            result = self.run_command("simulate", "mlp.yaml", *how, "--json", environment=environment)
            self.assertEqual((result.returncode, result.stderr.count(note)), (0, 1))
        self.assertIn("on-worker chooses the order", self.ok("simulate", "mlp.yaml", "--set", "runtime.policy=on-worker"))
        for policy in ("starpipe", "worker-order"):
            self.assertNotIn("policy", self.ok("simulate", "mlp.yaml", "--set", f"runtime.policy={policy}"))

    def test_suffixes_that_mean_nothing_are_refused(self):
        for number, (line, suffixes) in enumerate(SUFFIXES.items()):
            # Each option refuses one that no option takes, and one that another option takes.
            other = next(s for s in (".svg", ".csv", ".yaml") if s not in suffixes)
            names = [f"out{MEANINGLESS[number % len(MEANINGLESS)]}", f"out{other}", other]  # a name may be only a suffix
            if number < 4:
                names += [*(f"out{suffix}" for suffix in MEANINGLESS), ".png"]
            for name in dict.fromkeys(names):
                self.refused([*line.split(), name], line.split()[-1], name, "expected " + ", ".join(suffixes))
        self.assertEqual(set(os.listdir(self.folder)), self.inputs)

    def test_suffixes_choose_the_format(self):
        """In upper case, too. Without a suffix the format is the default."""
        for line, formats in ((SHOW, {".JSON": "json", ".CSV": "csv", ".Svg": "svg", ".TXT": "text", "": "text"}),
                              (PERIODIC, {".JSON": "json", "": "text"})):
            for suffix, format in formats.items():
                self.assertEqual(self.ok(*line.split(), "-o", f"out{suffix}"), "")
                self.assertEqual(self.read(f"out{suffix}"), self.ok(*line.split(), "--format", format), suffix)
                if suffix:
                    self.assertEqual(self.ok(*line.split(), "-o", suffix), "")
                    self.assertEqual(self.read(suffix), self.ok(*line.split(), "--format", format), suffix)
        self.assertEqual(self.ok(*PARTITION.split(), "-o", "p.JSON"), "")
        self.assertEqual(self.read("p.JSON"), self.ok(*PARTITION.split(), "--json"))
        self.ok(*PROFILE.split(), "-o", "q.JSON")
        json.loads(self.read("q.JSON"))
        for suffix in ("", ".JSON"):
            self.run_command("train", "mlp.yaml", *RUN.split(), "--report", f"r{suffix}")
            json.loads(self.read(f"r{suffix}"))

    def test_standard_output_by_name(self):
        """- and /dev/stdout. Nothing that was printed before is lost when standard output is a file."""
        for name in ("-", "/dev/stdout"):
            self.assertEqual(self.ok(*SHOW.split(), "-o", name), self.ok(*SHOW.split()))
            self.assertEqual(self.ok(*SHOW.split(), "--json", "-o", name), self.ok(*SHOW.split(), "--json"))
            text = self.ok("simulate", "mlp.yaml", "--timeline", name)
            self.assertTrue(text.startswith("<svg"))
            self.assertIn("makespan", text)
            with open(self.path("all"), "w", encoding="utf-8") as file:
                done = self.run_command("simulate", "mlp.yaml", "--timeline", name, stdout=file)
            self.assertEqual((done.returncode, self.read("all")), (0, text))
            self.assertEqual(set(os.listdir(self.folder)) - self.inputs, {"all"})


if __name__ == "__main__":
    EXPERIMENTS = os.path.abspath(sys.argv.pop(3))
    PLUGIN = os.path.abspath(sys.argv.pop(2))
    CommandTest.binary = os.path.abspath(sys.argv.pop(1))
    unittest.main()
