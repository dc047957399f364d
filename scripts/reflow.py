#!/usr/bin/env python3
"""Wraps comments of Rust source that are wider than 120 columns; `cargo xtask rules` refuses them.

    scripts/reflow.py FILE...

A paragraph that has such a line is wrapped anew from there to its end. Tables, drawings, fenced text and single words stay as they are.
Words and code never change.
"""

import re
import sys
from pathlib import Path

WIDTH = 120
COMMENT = re.compile(r"^(\s*)(//[/!]?)( ?)(.*)$")
ITEM = re.compile(r"^(\s*)([-*] |\d+\. )")
DRAWN = re.compile(r"\S {2,}\S|[│┌└├─▶]|^\s*\|")


def paragraphs(lines):
    """Lines of one comment, as (lines, wrapped) of what belongs together."""
    fenced, current = False, []
    for line in lines:
        fence = line.strip().startswith("```")
        stands_alone = fenced or fence or not line.strip() or line.strip().startswith("#") or DRAWN.search(line)
        if stands_alone or ITEM.match(line):
            if current:
                yield current, True
            current = []
        if fence:
            fenced = not fenced
        if stands_alone:
            yield [line], False
        else:
            current.append(line)
    if current:
        yield current, True


def wrap(lines, room):
    at = next(i for i, line in enumerate(lines) if len(line) > room)
    item = ITEM.match(lines[0])
    hang = " " * (len(item.group(0)) if item else len(lines[0]) - len(lines[0].lstrip()))
    if at == 0 and item:
        first = item.group(0)
        words = " ".join([lines[0][len(first):]] + lines[1:]).split()
    else:
        first = lines[at][: len(lines[at]) - len(lines[at].lstrip())] if at == 0 else hang
        words = " ".join(lines[at:]).split()
    done, line, begun = lines[:at], first, False
    for word in words:
        if begun and len(line) + 1 + len(word) > room:
            done.append(line)
            line, begun = hang, False
        line += (" " if begun else "") + word
        begun = True
    return done + [line]


def reflow(text):
    out, block, mark = [], [], None

    def flush():
        nonlocal block, mark
        if block:
            room = WIDTH - len(mark) - 1
            for lines, wrapped in paragraphs(block):
                if wrapped and any(len(line) > room for line in lines):
                    lines = wrap(lines, room)
                out.extend((mark + " " + line).rstrip() for line in lines)
        block, mark = [], None

    for line in text.split("\n"):
        match = COMMENT.match(line)
        if match is None:
            flush()
            out.append(line)
            continue
        here = match.group(1) + match.group(2)
        if mark is not None and here != mark:
            flush()
        mark = here
        block.append(match.group(4))
    flush()
    return "\n".join(out)



def words(text):
    return [word for word in text.split() if word not in ("//", "///", "//!")]


for name in sys.argv[1:]:
    path = Path(name)
    before = path.read_text()
    if not any(len(line) > WIDTH for line in before.split("\n")):
        continue
    after = reflow(before)
    if words(before) != words(after):
        sys.exit(f"{name}: words would change")
    if after != before:
        path.write_text(after)
