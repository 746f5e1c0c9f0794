# SPDX-License-Identifier: Apache-2.0
"""Checks that every link of a page leads to a file that exists, and every anchor to a heading of that page.

Usage: links_test.py PAGE...
"""

import pathlib
import re
import sys


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    found = set()
    for heading in re.findall(r"^#+ (.*?)\s*$", prose, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        same = sum(other == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", other) is not None for other in found)
        found.add(f"{slug}-{same}" if same else slug)
    return found


def problems(page):
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            yield f"{page}: there is no {file}"
        elif anchor and anchor not in anchors(target):
            yield f"{page}: {target.name} has no heading for #{anchor}"


pages = [pathlib.Path(word) for word in sys.argv[1:]]
found = [problem for page in pages for problem in problems(page)]
if found:
    sys.exit("\n".join(found))
print(f"{len(pages)} pages")
