# SPDX-License-Identifier: Apache-2.0
"""Markdown tables of the results of policies.py."""


def milliseconds(seconds):
    return f"{seconds * 1e3:.1f}"


def size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def table(head, rows):
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def summary(results):
    head = ["study", "prediction, ms", "starpipe, ms", "/ prediction", "/ best control",
            "ours bounded or not / best control", "best of ours",
            "best that moves jobs", "its stashes / ours", "its bytes moved / ours"]
    rows = []
    for result in results:
        by_name = {r["policy"]: r for r in result["rows"]}
        ours, moving, other = by_name["starpipe"], by_name[result["best_moving"]], by_name[result["best_ours"]]
        rows.append([
            result["name"], milliseconds(ours["predicted"]), milliseconds(ours["makespan"]),
            f"{ours['makespan'] / ours['predicted']:.3f}", f"{result['ordered_over_control']:.3f}",
            f"{result['over_control']:.3f}",
            f"{milliseconds(other['makespan'])}, {other['policy'].partition(', ')[2] or 'as it is'}",
            f"{milliseconds(moving['makespan'])}, {moving['policy']}",
            f"{moving['peak_stashes'] / ours['peak_stashes']:.2f}",
            f"{moving['bytes_moved'] / ours['bytes_moved']:.1f}",
        ])  # fmt: skip
    return table(head, rows)


def full(result):
    head = ["policy", "prediction, ms", "makespan, ms", "fastest .. slowest", "/ prediction", "bubble", "stashes",
            "stash bytes", "moved"]
    rows = [[
        r["policy"], milliseconds(r["predicted"]), milliseconds(r["makespan"]),
        f"{milliseconds(r['fastest'])} .. {milliseconds(r['slowest'])}", f"{r['makespan'] / r['predicted']:.3f}",
        f"{r['bubble_fraction']:.1%}", str(r["peak_stashes"]), size(r["peak_stash_bytes"]), size(r["bytes_moved"]),
    ] for r in result["rows"]]  # fmt: skip
    return f"**{result['name']}**\n\n{table(head, rows)}"


def all_tables(results):
    machine = results[0]["machine"]
    worst = max(results, key=lambda r: r["over_control"])
    versions = results[0]["versions"]
    text = (f"{machine['cores']} cores ({machine['processor']}), starpipe {versions['starpipe']}, StarPU "
            f"{versions['starpu']}. The largest makespan of ours, bounded or not, over the makespan of the best control: "
            f"{worst['over_control']:.3f} ({worst['name']}).\n\n{summary(results)}")
    for group in dict.fromkeys(r["group"] for r in results):
        members = "\n".join(full(r) for r in results if r["group"] == group)
        text += f"\n<details><summary>All figures: {group}</summary>\n\n{members}\n</details>\n"
    return text
