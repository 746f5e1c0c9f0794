# SPDX-License-Identifier: Apache-2.0
"""The page's colours can be told apart, also by people who see colours differently.

Usage: colours_test.py STYLE.css

Dichromatic vision as in Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
Deficiency" (2009), table 1, severity 1.0, on linear RGB. Differences are distances in CIELAB (CIE76).
"""

import itertools
import math
import re
import sys
from pathlib import Path

VISION = {
    "trichromatic": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
GROUPS = {  # colours that lie side by side, and the least difference of two of them
    "passes": (12, [f"pass-{name}" for name in ("f", "b", "w", "bw", "o", "l")]),
    "idle time": (12, ["busy", *(f"idle-{cause}" for cause in ("fill", "drain", "producer", "transfer", "order", "runtime", "copy", "recomputation"))]),
    "curves": (30, [f"line-{i}" for i in range(6)]),
}


def linear(value):
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def seen(colour, matrix):
    rgb = [linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5)]
    return [min(1, max(0, sum(a * b for a, b in zip(row, rgb)))) for row in matrix]


def lab(rgb):
    def f(t):
        return t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116

    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    x, y, z = (f(sum(a * b for a, b in zip(row, rgb)) / white) for row, white in zip(rows, (0.9505, 1, 1.089)))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def main():
    style = Path(sys.argv[1]).read_text(encoding="utf-8")
    themes = dict(zip(("light", "dark"), re.findall(r":root[^{]*\{([^}]*)\}", style)))
    alike = []
    for (theme, text), (group, (least, names)) in itertools.product(themes.items(), GROUPS.items()):
        colours = {name: re.search(rf"--{name}: (#[0-9a-f]{{6}});", text)[1] for name in names}
        for vision, matrix in VISION.items():
            places = {name: lab(seen(colour, matrix)) for name, colour in colours.items()}
            for one, other in itertools.combinations(names, 2):
                difference = math.dist(places[one], places[other])
                if difference < least:
                    alike.append(f"{theme}, {group}, {vision}: {one} and {other} differ by {difference:.1f}, less than {least}")
    print("\n".join(alike))
    sys.exit(bool(alike))


main()
