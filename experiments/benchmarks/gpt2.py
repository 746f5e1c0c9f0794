#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPT of GPT-2 small's size: tokens/s, TFLOP/s, the share of this machine's rate of matrix products, and PyTorch's figures.

    experiments/benchmarks/gpt2.py [--device cuda] [--precision bf16] [--stages 1,4] [--json FILE]

The command runs, in this order: matrix products (matrix_products_benchmark), starpipe with each
number of stages (1F1B; workers are streams of one GPU, or cores), then gpt2_pytorch.py, eager and compiled, where
PyTorch 2 is present.

On the CPU, the products and PyTorch use one core; starpipe uses one core for each stage, if there are as many.

The work of a token is 6 FLOPs for each parameter in a matrix product, and 6 x layers x context x hidden for attention:
half of the full product of queries and keys, since the mask hides half. Embeddings, norms and the optimizer count
as nothing. The time between jobs is that from the end of a worker's job to the start of its next job, in the step that
the report measured; with several stages it includes the waiting for a neighbour.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TEXT = "/usr/share/common-licenses/GPL-3"
VOCABULARY = 256
CONFIG = """
model:    {{kind: gpt, layers: {layers}, hidden: {hidden}, heads: {heads}, context: {context}}}
data:     {{kind: text, path: {text}}}
training: {{microbatches: {microbatches}, microbatch_size: {microbatch_size}, steps: {steps}, seed: 1,
           optimizer: {{kind: adamw, learning_rate: 3.0e-4, weight_decay: 0.1}}}}
schedule: {{name: 1f1b, workers: {stages}, stages: {stages}}}
runtime:  {{device: {device}, precision: {precision}}}
"""


def flops_a_token(arguments):
    products = 12 * arguments.layers * arguments.hidden ** 2 + arguments.hidden * VOCABULARY
    return 6 * products + 6 * arguments.layers * arguments.context * arguments.hidden


def matrix_peak(arguments, name):
    """FLOP/s of matrix products."""
    run = subprocess.run([arguments.matrix, f"--benchmark_filter=^{name}/", "--benchmark_repetitions=3",
                          "--benchmark_format=json"], capture_output=True, text=True, check=False)
    runs = json.loads(run.stdout)["benchmarks"] if run.stdout else []  # no result if the build has no CUDA
    rates = [b["FLOP/s"] for b in runs if b["run_type"] == "iteration" and not b.get("error_occurred")]
    if not rates:
        reasons = {b["error_message"] for b in runs if b.get("error_occurred")} or {"not in this build"}
        sys.exit(f"{arguments.matrix}: no figure for {name}: {', '.join(sorted(reasons))}")
    return statistics.median(rates)


def gaps(trace):
    """Seconds from each measured job to the next one of its worker."""
    jobs = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == 2:
            jobs.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    found = []
    for spans in jobs.values():
        spans.sort()
        found += [max(0, start - end) * 1e-6 for (_, end), (start, _) in zip(spans, spans[1:])]
    return found


def train(arguments, stages):
    with tempfile.TemporaryDirectory() as folder:
        config, report, trace = (pathlib.Path(folder) / name for name in ("gpt2.yaml", "report.json", "trace.json"))
        config.write_text(CONFIG.format(text=TEXT, **{**vars(arguments), "stages": stages}))
        run = subprocess.run([arguments.starpipe, "train", config, "--report", report, "--trace", trace],
                             capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(run.stderr)
        result = json.loads(report.read_text())
        between = gaps(json.loads(trace.read_text()))
        return {"name": f"starpipe, {stages} stage{'s' * (stages > 1)}", "step_seconds": result["step_seconds"],
                "losses": result["losses"], "between_jobs": statistics.median(between),
                "makespan": result["makespan"], "bubble_fraction": result["bubble_fraction"]}


def pytorch(arguments, compiled):
    command = [sys.executable, HERE / "gpt2_pytorch.py", "--text", TEXT, *(["--compile"] if compiled else [])]
    for name in ("layers", "hidden", "heads", "context", "microbatches", "microbatch_size", "steps", "device", "precision"):
        command += ["--" + name.replace("_", "-"), str(getattr(arguments, name))]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        return {"name": f"PyTorch, {'compiled' if compiled else 'eager'}", "missing": run.stderr.strip().splitlines()[-1]}
    return json.loads(run.stdout)


def row(result, arguments, peak):
    if "missing" in result:
        return f"{result['name']:<22}not run: {result['missing']}"
    between = f"{result['between_jobs'] * 1e6:.0f} us" if "between_jobs" in result else ""
    return (f"{result['name']:<22}{result['tokens_per_second']:>12,.0f}{result['flops'] / 1e12:>10.3f}"
            f"{result['flops'] / peak:>9.1%}{result['losses'][-1]:>8.3f}{between:>14}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starpipe", default="build/bin/starpipe")
    parser.add_argument("--matrix", default="build/bin/matrix_products_benchmark")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="bf16")
    parser.add_argument("--stages", default="1,4", help="comma-separated")
    for name, value in (("layers", 12), ("hidden", 768), ("heads", 12), ("context", 1024), ("microbatches", 8),
                        ("microbatch-size", 16), ("steps", 12)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--json", type=pathlib.Path, help="also write all figures to this file")
    arguments = parser.parse_args()
    for program in (arguments.starpipe, arguments.matrix):
        if not pathlib.Path(program).exists():
            sys.exit(f"{program} is not there: scripts/test builds it")

    products = f"cuda/{arguments.precision}" if arguments.device == "cuda" else "cpu_fp32"
    peak = matrix_peak(arguments, products)
    print(f"matrix products, {products}: {peak / 1e12:.3f} TFLOP/s")
    print(f"{'':<22}{'tokens/s':>12}{'TFLOP/s':>10}{'of that':>9}{'loss':>8}{'between jobs':>14}", flush=True)
    runs = [lambda n=int(n): train(arguments, n) for n in arguments.stages.split(",")]
    runs += [lambda c=c: pytorch(arguments, c) for c in (False, True)]
    results = []
    for run in runs:
        result = run()
        if "missing" not in result:
            # Without the first steps, which load kernels, tune and compile.
            seconds = statistics.median(result["step_seconds"][len(result["step_seconds"]) // 3:])
            tokens = arguments.microbatches * arguments.microbatch_size * arguments.context
            result["tokens_per_second"] = tokens / seconds
            result["flops"] = tokens * flops_a_token(arguments) / seconds
        results.append(result)
        print(row(result, arguments, peak), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"matrix_flops": peak, "flops_a_token": flops_a_token(arguments),
                                              "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
