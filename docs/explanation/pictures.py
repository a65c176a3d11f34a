# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`python docs/explanation/pictures.py`: draw the pictures of these pages, as SVG.

Each is a card with a background of its own: it reads the same on a light and on a dark page.
"""

from pathlib import Path

HERE = Path(__file__).parent
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


def words(x, y, text, anchor="start", colour=QUIET, size=13):
    """A remark."""
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">'
        f"{text}</text>"
    )


def page(width, height, title, *parts):
    """A whole picture."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="14" fill="{INK}">'
        f"<title>{title}</title>"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>'
        f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>{"".join(parts)}</svg>\n'
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
    parts = [words(20, 32, "One fused kernel: memory is touched at both ends", colour=INK, size=15)]
    parts += [box(20, 54, 70, "x", "memory"), arrow(90, 72, 118, 72)]
    x = 120
    for name, kind in fused:
        parts.append(box(x, 54, 88, name, kind))
        parts.append(arrow(x + 88, 72, x + 106, 72))
        x += 108
    parts.append(box(x, 54, 70, "y", "memory"))
    parts += [
        words(282, 112, "LOAD", "middle"),
        words(488, 112, "reduction", "middle"),
        words(596, 112, "STORE", "middle"),
        words(
            20,
            158,
            "In eager torch each step reads and writes all of it",
            colour=INK,
            size=15,
        ),
    ]
    x = 20
    for k, (name, kind) in enumerate(fused):
        parts.append(box(x, 178, 56, "x" if k == 0 else "", "memory", 30))
        parts.append(arrow(x + 56, 193, x + 60, 214))
        parts.append(box(x + 30, 216, 82, name, kind))
        parts.append(arrow(x + 112, 216, x + 132, 204))
        x += 128
    parts.append(box(x, 178, 56, "y", "memory", 30))
    return page(760, 270, "A chain as one kernel and as five", *parts)


def steps():
    """What the first call does, and what every later one does."""
    first = ["declaration", "check the/call", "choose a/schedule", "write/C++", "compile", "plan"]
    parts = [words(20, 32, "The first call with new dtypes", colour=INK, size=15)]
    x = 20
    for name in first:
        parts.append(box(x, 50, 96, name, "load", 46))
        parts.append(arrow(x + 96, 73, x + 114, 73))
        x += 116
    parts.append(box(x, 50, 80, "launch", "store", 46))
    parts.append(words(500, 118, "kept on disk, by content", "middle"))
    parts.append(words(636, 118, "kept in C++", "middle"))
    parts.append(words(20, 158, "Every later call", colour=INK, size=15))
    for x, name in ((20, "find the/plan"), (136, "write pointers/and numbers")):
        parts.append(box(x, 174, 96 if x == 20 else 116, name, "reduce", 46))
    parts += [
        arrow(116, 197, 134, 197),
        arrow(252, 197, 270, 197),
        box(272, 174, 80, "launch", "store", 46),
        words(376, 202, "in C++, without Python in between"),
    ]
    return page(820, 244, "From a declaration to a launch", *parts)


def row():
    """How a row is cut among the threads of a block."""
    parts = [words(20, 32, "A row of 32 columns, cut for 4 threads", colour=INK, size=15)]
    kinds = ["load", "reduce", "store", "memory"]
    for pack in range(8):
        thread = pack % 4
        parts.append(box(20 + 84 * pack, 50, 84, f"pack {pack}", kinds[thread], 34))
        parts.append(words(62 + 84 * pack, 102, f"thread {thread}", "middle"))
    parts += [
        words(
            20,
            132,
            "A pack: 4 neighbouring columns, one vector access. A tile: a thread's packs.",
        ),
        words(20, 166, "1. Each thread adds up its tile.", colour=INK),
        words(20, 188, "2. The lanes of a warp meet by shuffles.", colour=INK),
        words(20, 210, "3. The warps of a block meet once, in shared memory.", colour=INK),
        words(
            20,
            232,
            "4. The blocks of a cluster meet once, if a row needs several.",
            colour=INK,
        ),
    ]
    return page(712, 252, "How a row is cut", *parts)


if __name__ == "__main__":
    for draw in (chain, steps, row):
        (HERE / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")
