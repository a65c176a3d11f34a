# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`python docs/explanation/pictures.py`: draw the pictures of these pages, as SVG.

Each is a card with a background of its own: it reads the same on a light and on a dark page. It is
480 wide, so that a phone shows its words at a size that can be read.
"""

from pathlib import Path

HERE = Path(__file__).parent
WIDTH = 480
INK, QUIET, PAPER = "#1f2328", "#59636e", "#f8f8f6"
COLOURS = {"load": "#cfe3f7", "reduce": "#f5deb3", "store": "#d3ecd3", "memory": "#e3e3e0"}


def box(x, y, width, text, kind, height=36):
    """A step."""
    lines = text.split("/")
    first = y + height / 2 + 5 - 8 * (len(lines) - 1)
    words = "".join(
        f'<text x="{x + width / 2}" y="{first + 16 * k}" text-anchor="middle">{line}</text>'
        for k, line in enumerate(lines)
    )
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" '
        f'fill="{COLOURS[kind]}" stroke="{QUIET}"/>{words}'
    )


def arrow(x1, y1, x2, y2):
    """What goes from one step to the next."""
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" stroke-width="1.5" '
        'marker-end="url(#head)"/>'
    )


def words(x, y, text, anchor="start", colour=QUIET, size=14):
    """A remark."""
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">'
        f"{text}</text>"
    )


def page(height, title, *parts):
    """A whole picture."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="15" fill="{INK}">'
        f"<title>{title}</title>"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>'
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{PAPER}"/>{"".join(parts)}</svg>\n'
    )


def chain():
    """A declaration's kernel, and the kernels of the same chain in eager torch."""
    fused = [
        ("Scale", "load"),
        ("Bias", "load"),
        ("Mask", "load"),
        ("softmax", "reduce"),
        ("Dropout", "store"),
    ]
    parts = [
        words(20, 32, "One fused kernel", colour=INK, size=16),
        words(20, 52, "reads x once, writes y once"),
        words(250, 32, "Eager torch", colour=INK, size=16),
        words(250, 52, "reads and writes in each step"),
    ]
    y = 70
    parts += [box(20, y, 110, "x", "memory", 24), arrow(75, y + 24, 75, 162)]
    for k, (name, kind) in enumerate(fused):
        parts.append(box(20, 162 + 36 * k, 110, name, kind))
    parts += [arrow(75, 342, 75, 425), box(20, 425, 110, "y", "memory", 24)]
    parts += [words(140, 221, "LOAD"), words(140, 293, "reduction"), words(140, 329, "STORE")]
    for k, (name, kind) in enumerate(fused):
        parts.append(box(300, y, 110, "" if k else "x", "memory", 24))
        parts.append(arrow(355, y + 24, 355, y + 36))
        parts.append(box(300, y + 37, 110, name, kind, 22))
        parts.append(arrow(355, y + 59, 355, y + 71))
        y += 71
    parts.append(box(300, y, 110, "y", "memory", 24))
    return page(470, "A chain as one kernel and as five", *parts)


def steps():
    """What the first call does, and what every later one does."""
    parts = [words(20, 32, "The first call with new dtypes", colour=INK, size=16)]
    rows = (
        (50, ["declaration", "check the/call", "choose a/schedule", "write/C++"]),
        (134, ["compile", "plan", "launch"]),
    )
    for y, names in rows:
        for k, name in enumerate(names):
            x = 20 + 114 * k
            parts.append(box(x, y, 96, name, "store" if name == "launch" else "load", 46))
            if name != names[-1]:
                parts.append(arrow(x + 96, y + 23, x + 112, y + 23))
    turn = '<path d="M410 96 V115 H68 V132" fill="none" stroke="{}" stroke-width="1.5" {}/>'
    parts += [
        turn.format(INK, 'marker-end="url(#head)"'),
        words(68, 200, "kept on disk", "middle"),
        words(182, 200, "kept in C++", "middle"),
        words(20, 242, "Every later call", colour=INK, size=16),
        box(20, 258, 96, "find the/plan", "reduce", 46),
        arrow(116, 281, 132, 281),
        box(134, 258, 130, "write pointers/and numbers", "reduce", 46),
        arrow(264, 281, 280, 281),
        box(282, 258, 96, "launch", "store", 46),
        words(20, 326, "in C++, without Python in between"),
    ]
    return page(344, "From a declaration to a launch", *parts)


def row():
    """How a row is cut among the threads of a block."""
    parts = [words(20, 32, "A row of 32 columns, cut for 4 threads", colour=INK, size=16)]
    kinds = ["load", "reduce", "store", "memory"]
    for pack in range(8):
        thread = pack % 4
        parts.append(box(20 + 55 * pack, 50, 55, f"pack/{pack}", kinds[thread], 42))
        parts.append(words(47.5 + 55 * pack, 110, "thread", "middle"))
        parts.append(words(47.5 + 55 * pack, 127, str(thread), "middle"))
    parts += [
        words(20, 156, "A pack: 4 neighbouring columns, one vector access."),
        words(20, 176, "A tile: all packs of one thread."),
        words(20, 210, "1. Each thread adds up its tile.", colour=INK, size=15),
        words(20, 234, "2. The lanes of a warp add up by shuffles.", colour=INK, size=15),
        words(20, 258, "3. The warps of a block add up in shared memory.", colour=INK, size=15),
        words(20, 282, "4. So do the blocks of a cluster, for a long row.", colour=INK, size=15),
    ]
    return page(300, "How a row is cut", *parts)


if __name__ == "__main__":
    for draw in (chain, steps, row):
        (HERE / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")
