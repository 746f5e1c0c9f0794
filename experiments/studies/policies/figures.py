# SPDX-License-Identifier: Apache-2.0
"""Figures of the results of policies.py: plain SVG, no library."""

import math
from xml.sax.saxutils import escape

INK, FAINT, GRID = "#1f2328", "#59636e", "#d8dee4"
COLOURS = ["#1c5d9c", "#c06000", "#0b6e53", "#86358a", "#a82a22", "#766500", "#4a535e"]
MARKS = ["circle", "square", "diamond"]
ROW, LABELS, PANEL, GAP = 22, 146, 250, 26


class Svg:
    def __init__(self, width):
        self.width, self.parts = width, []

    def text(self, x, y, text, anchor="start", colour=INK, size=12, weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
                          f'font-size="{size}" font-weight="{weight}">{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, colour=GRID, width=1.0):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
                          f'stroke-width="{width}"/>')

    def mark(self, kind, x, y, colour, r=4.5):
        style = f'fill="{colour}" fill-opacity="0.85" stroke="white" stroke-width="0.8"'
        if kind == "circle":
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" {style}/>')
        else:
            turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if kind == "diamond" else ""
            self.parts.append(f'<rect x="{x - r + 0.5:.1f}" y="{y - r + 0.5:.1f}" width="{2 * r - 1}" '
                              f'height="{2 * r - 1}" {style}{turn}/>')

    def write(self, file, height):
        file.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" height="{height:.0f}" '
                        f'viewBox="0 0 {self.width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif">\n'
                        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def ticks(low, high, max_ticks=6):
    step = 10 ** math.floor(math.log10((high - low) / max_ticks))
    step = next(step * m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= max_ticks)
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def legend(svg, x, y, entries):
    for kind, colour, label in entries:
        svg.mark(kind, x, y - 4, colour)
        svg.text(x + 10, y, label)
        x += 30 + 6.6 * len(label)


def dots(file, title, columns, rows, value):
    """A panel for each (row, column). In a panel, each policy has a line, and value() is drawn to the right.

    columns: (heading, logarithmic, reference or None); rows: (heading, policies, [(series label, result)]);
    value(column index, result, policy) -> (middle, low, high).
    """
    svg = Svg(LABELS + len(columns) * (PANEL + GAP))
    svg.text(12, 22, title, size=15, weight="bold")
    series = list(dict.fromkeys(label for _, _, members in rows for label, _ in members))
    if len(series) > 1:
        legend(svg, LABELS + 6, 44, [(MARKS[i % 3], COLOURS[i], label) for i, label in enumerate(series)])
    top = 74
    points = {c: [value(c, result, p) for _, policies, members in rows for _, result in members for p in policies]
              for c in range(len(columns))}
    for c, (heading, _, _) in enumerate(columns):
        svg.text(LABELS + c * (PANEL + GAP), top - 8, heading, colour=FAINT)
    for heading, policies, members in rows:
        svg.text(12, top + 6, heading, weight="bold")
        top += 4
        bottom = top + ROW * (len(policies) + 1)
        for i, policy in enumerate(policies):
            svg.text(LABELS - 10, top + ROW * (i + 1) + 4, policy, anchor="end")
        for c, (_, logarithmic, reference) in enumerate(columns):
            left = LABELS + c * (PANEL + GAP)
            scale = Scale(points[c], left, logarithmic, reference)
            for tick in scale.ticks:
                svg.line(scale(tick), top, scale(tick), bottom - 4)
                svg.text(scale(tick), bottom + 9, f"{tick:g}", anchor="middle", colour=FAINT, size=11)
            if reference is not None:
                svg.line(scale(reference), top, scale(reference), bottom - 4, colour=FAINT, width=1.5)
            for i, policy in enumerate(policies):
                svg.line(left, top + ROW * (i + 1), left + PANEL, top + ROW * (i + 1))
                for k, (label, result) in enumerate(members):
                    y = top + ROW * (i + 1) + 5 * (k - (len(members) - 1) / 2)
                    number = series.index(label)
                    middle, low, high = value(c, result, policy)
                    svg.line(scale(low), y, scale(high), y, colour=COLOURS[number], width=1.5)
                    svg.mark(MARKS[number % 3], scale(middle), y, COLOURS[number])
        top = bottom + 34
    svg.write(file, top)


class Scale:
    def __init__(self, points, left, logarithmic, reference):
        values = [v for point in points for v in point] + ([] if reference is None else [reference])
        low, high = min(values), max(values)
        self.map = math.log if logarithmic else float
        if logarithmic:
            low, high = low / 1.15, high * 1.15
            self.ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= t <= high]
        else:
            room = 0.06 * (high - low) or 0.1 * high
            low, high = low - room, high + room
            self.ticks = ticks(low, high)
        self.low, self.span, self.left = self.map(low), self.map(high) - self.map(low), left

    def __call__(self, value):
        return self.left + PANEL * (self.map(value) - self.low) / self.span


def lines(file, title, xlabel, xs, names, values):
    """A line for each name over xs; values[name] has the order of xs."""
    width, height, left, top, right = 860, 420, 70, 50, 180
    svg = Svg(width)
    svg.text(12, 22, title, size=15, weight="bold")
    high = 1.05 * max(max(v) for v in values.values())
    low = 0.95 * min(min(v) for v in values.values())
    bottom = height - 50

    def at_x(i):
        return left + (width - left - right) * i / max(1, len(xs) - 1)

    def at_y(v):
        return bottom - (bottom - top) * (v - low) / (high - low)

    for tick in ticks(low, high):
        svg.line(left, at_y(tick), width - right, at_y(tick))
        svg.text(left - 8, at_y(tick) + 4, f"{tick:g}", anchor="end", colour=FAINT)
    svg.text(left - 48, top - 10, "makespan, ms", colour=FAINT)
    for i, x in enumerate(xs):
        svg.text(at_x(i), bottom + 20, x, anchor="middle", colour=FAINT)
    svg.text((left + width - right) / 2, height - 10, xlabel, anchor="middle", colour=FAINT)
    ends = []  # labels at the right must not overlap
    for number, name in sorted(enumerate(names), key=lambda entry: at_y(values[entry[1]][-1])):
        colour, v = COLOURS[number % len(COLOURS)], values[name]
        for i in range(len(xs) - 1):
            svg.line(at_x(i), at_y(v[i]), at_x(i + 1), at_y(v[i + 1]), colour, 3 if name == names[0] else 1.5)
        for i in range(len(xs)):
            svg.mark(MARKS[number % 3], at_x(i), at_y(v[i]), colour)
        ends.append(max(at_y(v[-1]) + 4, ends[-1] + 15 if ends else 0))
        svg.text(width - right + 12, ends[-1], name, colour=colour, weight="bold" if name == names[0] else "normal")
    svg.write(file, height)


def figures_value(result, policy, key, low, high, unit):
    found = next(r for r in result["rows"] if r["policy"] == policy)
    return tuple(found[k] / unit for k in (key, low, high))


def over_ours(key):
    def value(result, policy):
        return figures_value(result, policy, key, key, key, result["rows"][0][key])

    return value


def over_prediction(result, policy):
    return figures_value(result, policy, "makespan", "fastest", "slowest", result["rows"][0]["predicted"])


COLUMNS = [
    (("makespan / prediction", False, 1.0), over_prediction),
    (("peak stashes / ours", False, 1.0), over_ours("peak_stashes")),
    (("bytes moved / ours (logarithmic)", True, 1.0), over_ours("bytes_moved")),
]


def grid(file, title, rows):
    dots(file, title, [head for head, _ in COLUMNS], rows, lambda c, result, policy: COLUMNS[c][1](result, policy))


def draw_all(results, policies, folder):
    def of(group):
        return [r for r in results if r["group"] == group]

    shown = [*policies, "starpipe, fsdp"]
    for link in sorted({r["link_us"] for r in of("scaling")}):
        members = [r for r in of("scaling") if r["link_us"] == link]
        rows = [(name, shown, [(f"{r['schedule']['workers']} workers", r) for r in members
                               if r["schedule"]["name"] == name])
                for name in dict.fromkeys(r["schedule"]["name"] for r in members)]
        grid(folder / f"policies-scaling-{link:g}us.svg", f"Emulated workers: 2 ms per job, {link:g} us per transfer", rows)
    every = [*policies, *(["starpipe, bounded", "starpipe, dynamic", "starpipe, fsdp"])]
    rows = [(group, every, [(r["schedule"]["name"], r) for r in of(group)]) for group in ("slow worker", "heavy head")]
    rows = [r for r in rows if r[2]]
    if rows:
        grid(folder / "policies-uneven.svg", "One slow worker; a heavy last stage", rows)
    if of("gpt"):
        grid(folder / "policies-gpt.svg", "The GPT of the quick start on real cores",
             [("", every, [(r["label"], r) for r in of("gpt")])])
    if of("links"):
        link_times(results, shown, folder)


def link_times(results, shown, folder):
    """Makespans by the time of a transfer, from the group "links" and the scaling studies of the same schedule."""
    schedule = next(r["schedule"] for r in results if r["group"] == "links")
    found = {r["link_us"]: r for r in results if r["group"] in ("scaling", "links") and r["schedule"] == schedule}
    times = sorted(found)
    values = {p: [figures_value(found[t], p, "makespan", "fastest", "slowest", 1e-3)[0] for t in times] for p in shown}
    lines(folder / "policies-links.svg", f"{schedule['name']} on {schedule['workers']} emulated workers: slower links",
          "microseconds a transfer takes (a job takes 2000)", [f"{t:g}" for t in times], shown, values)
