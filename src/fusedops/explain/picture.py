# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The picture of a call: the bytes that the fused kernel moves, beside one kernel for each step.

It is an SVG of text and rectangles, drawn without a library. It follows the reader's light or dark
theme, and the same call gives the same file.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusedops.functors import Functor

__all__ = ["Bar", "Picture", "as_html", "chain_bars", "declaration_html"]

_WIDTH, _LEFT, _RIGHT = 760, 230, 110  # of the picture, of its names, of its figures, in pixels
_ROW = 22
_NAME = 29  # the most characters of a name

_STYLE = """
.fusedops-call { color-scheme: light dark; font: 13px system-ui, sans-serif; }
.fusedops-call .card { fill: #ffffff; stroke: #d0d4d9; }
.fusedops-call text { fill: #24292f; }
.fusedops-call .dim { fill: #57606a; }
.fusedops-call .name { font-family: ui-monospace, monospace; font-size: 12px; }
.fusedops-call .head { font-weight: 600; }
.fusedops-call .read { fill: #2f7fd0; }
.fusedops-call .written { fill: #d9541e; }
.fusedops-call .line { stroke: #d0d4d9; }
@media (prefers-color-scheme: dark) {
  .fusedops-call .card { fill: #15181d; stroke: #3a4048; }
  .fusedops-call text { fill: #e6e9ee; }
  .fusedops-call .dim { fill: #a2abb6; }
  .fusedops-call .read { fill: #58a6ff; }
  .fusedops-call .written { fill: #f0834f; }
  .fusedops-call .line { stroke: #3a4048; }
}
"""


@dataclasses.dataclass(frozen=True)
class Bar:
    """The bytes of one tensor of the fused kernel, or of one step of the unfused chain.

    Attributes:
        name: The tensor or the step, in a few words.
        read: The bytes that are read.
        written: The bytes that are written.
    """

    name: str
    read: int = 0
    written: int = 0

    @property
    def bytes(self) -> int:
        """The bytes that are read and written."""
        return self.read + self.written


@dataclasses.dataclass(frozen=True)
class Picture:
    """The bytes of a call, by tensor and by step, and what follows from them.

    Attributes:
        title: The op, in short.
        where: The rows and the device, in words.
        kernels: What runs the fused call, in words.
        fused: The tensors that the fused call reads and writes.
        unfused: The steps of the chain, each a kernel that reads its inputs and writes its result.
        ceiling: The measured memory throughput of the device in bytes a second, or None.
        measured: The time in seconds that the call took, as its caller has measured it, or None.
    """

    title: str
    where: str
    kernels: str
    fused: tuple[Bar, ...]
    unfused: tuple[Bar, ...]
    ceiling: float | None = None
    measured: float | None = None

    def svg(self) -> str:
        """The picture as the text of an SVG file."""
        moved, apart = _total(self.fused), _total(self.unfused)
        scale = (_WIDTH - _LEFT - _RIGHT) / max(moved, apart, 1)
        parts = [
            _text(20, 30, self.title, "head"),
            _text(20, 49, self.where, "dim"),
            *_legend(_WIDTH - 150, 30),
        ]
        at = 80
        sections = (
            (f"Fused: {self.kernels}", self.fused),
            ("Unfused: one kernel for each step", self.unfused),
        )
        for head, bars in sections:
            parts.append(_text(20, at, f"{head}, {told_bytes(_total(bars))}", "head"))
            at += 9
            parts += _waterfall(at, bars, scale)
            at += _ROW * len(bars) + 32
        for line in self.conclusions():
            parts.append(_text(20, at - 6, line))
            at += 19
        height = at + 4
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="fusedops-call" role="img" '
            f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">\n'
            f"<title>{html.escape(f'Bytes moved by {self.title}')}</title>\n"
            f"<style>{_STYLE}</style>\n"
            f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" '
            'rx="8"/>\n' + "\n".join(parts) + "\n</svg>\n"
        )

    def conclusions(self) -> list[str]:
        """What the bytes say: how many times fewer they are, and the time they take at least."""
        moved, apart = _total(self.fused), _total(self.unfused)
        lines = []
        if moved and apart:
            times = apart / moved
            told = f"{times:.1f} times fewer bytes than" if times >= 1.05 else "as many bytes as"
            lines.append(f"The fused call moves {told} one kernel for each step.")
        if self.ceiling is not None and moved:
            rate, least = self.ceiling / 1e12, moved / self.ceiling
            lines.append(
                f"At the {rate:.2f} TB/s that were measured on this device it takes at least "
                f"{_told_time(least)}, unfused {_told_time(apart / self.ceiling)}."
            )
            if self.measured is not None:
                percent = 100 * least / self.measured
                lines.append(
                    f"It took {_told_time(self.measured)}: {percent:.0f} percent of that rate."
                )
        elif self.measured is not None and moved:
            rate = moved / self.measured / 1e9
            lines.append(f"It took {_told_time(self.measured)}: {rate:.1f} GB/s.")
        return lines


def chain_bars(
    op: Any,
    load: Sequence[Functor],
    store: Sequence[Functor],
    operands: Mapping[str, int],
    outputs: Mapping[str, int],
    value: int,
    elements: int,
) -> tuple[Bar, ...]:
    """The bytes of a chain of torch calls, one kernel for each step; eager torch moves no fewer.

    Each step reads the value and its operands and writes the value, in x's dtype. A norm takes
    gamma and beta as torch's does, and a dropout writes its mask, one byte an element. What other
    steps make on their way, such as the mask of a `Causal`, is not counted, and a function of
    several torch operations is one step.

    `load` and `store` are the functors that act. `operands` has the bytes of each tensor that is
    read, x among them, `outputs` those of each output; `value` is the bytes of the value between
    two steps, of so many elements.
    """
    steps: list[tuple[str, list[str], int]] = []
    known: set[str] = set()

    def add(functors: Sequence[Functor]) -> None:
        for functor in functors:
            names = [one.name for one in functor.operands() if one.name in operands]
            known.update(names)
            if functor.has_added or (not names and (functor.saves or functor.taps)):
                continue  # a bias that is in x already, or a value of the chain that is there
            mask = elements if functor.draws and not functor.shares else 0
            steps.append((_named(type(functor).__name__, names), names, mask))

    add(load)
    before = len(steps)
    add(store)
    if op.reduces:
        # What no functor reads belongs to the reduction, as the sink of a softmax.
        own = [name for name in operands if name not in known and name != "x"]
        name = type(op).__name__
        if store and store[0].channel_operands and "eps" in op.constants:
            own += steps.pop(before)[1]
        steps.insert(before, (_named(name, own), own, 0))
    bars = []
    for number, (name, names, mask) in enumerate(steps):
        read = (value if number else operands["x"]) + sum(operands[one] for one in names)
        last = number == len(steps) - 1
        written = outputs[op.outputs[0]] if last else value
        bars.append(Bar(name, read, written + mask))
    return tuple(bars)


def declaration_html(
    name: str,
    chains: Mapping[str, Sequence[object]],
    inputs: Sequence[str],
    operands: Iterable[str],
    outputs: Sequence[str],
) -> str:
    """A declaration as a small table of HTML, for notebooks.

    Each chain has a row; `inputs` are given by position, `operands` by name.
    """
    rows = {side: " → ".join(map(str, chain)) for side, chain in chains.items()}
    arguments = [*inputs, *(f"{operand}=…" for operand in operands)]
    rows["call"] = f"op({', '.join(arguments)}) → {', '.join(outputs)}"
    cells = "".join(
        f'<tr><th style="text-align: left">{html.escape(side)}</th>'
        f'<td style="text-align: left"><code>{html.escape(text)}</code></td></tr>'
        for side, text in rows.items()
    )
    return f"<b>fusedops.{html.escape(name)}</b><table>{cells}</table>"


def as_html(picture: Picture, text: str) -> str:
    """A report for notebooks: the picture, and the text that a click opens."""
    return (
        f"<div>{picture.svg()}</div><details><summary>What runs and why</summary>"
        f"<pre>{html.escape(text)}</pre></details>"
    )


def told_bytes(count: int) -> str:
    """A number of bytes in the largest unit that leaves it at 1 or more: 2.62 MB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            digits = 2 if count < 10 * size else 1 if count < 100 * size else 0
            return f"{count / size:.{digits}f} {unit}"
    return f"{count} B"


def _told_time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def _total(bars: Sequence[Bar]) -> int:
    return sum(one.bytes for one in bars)


def _named(step: str, operands: Sequence[str]) -> str:
    return f"{step} {', '.join(operands)}".strip()


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    anchor = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:g}" y="{y:g}"{kind}{anchor}>{html.escape(text)}</text>'


def _legend(x: float, y: float) -> list[str]:
    return [
        f'<rect class="read" x="{x}" y="{y - 10}" width="11" height="11" rx="2"/>',
        _text(x + 16, y, "read", "dim"),
        f'<rect class="written" x="{x + 60}" y="{y - 10}" width="11" height="11" rx="2"/>',
        _text(x + 76, y, "written", "dim"),
    ]


def _waterfall(top: float, bars: Sequence[Bar], scale: float) -> list[str]:
    """Rows of bars, each of which begins where the one above ends; all to one scale."""
    parts = [
        f'<line class="line" x1="{_LEFT}" x2="{_LEFT}" y1="{top}" y2="{top + _ROW * len(bars)}"/>'
    ]
    done = 0
    for number, bar in enumerate(bars):
        y = top + _ROW * number
        name = bar.name if len(bar.name) <= _NAME else f"{bar.name[: _NAME - 1]}…"
        parts.append(_text(_LEFT - 10, y + 16, name, "name", "end"))
        for kind, size in (("read", bar.read), ("written", bar.written)):
            if size:
                x, width = _LEFT + done * scale, max(size * scale, 1)
                parts.append(
                    f'<rect class="{kind}" x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="15" '
                    'rx="2"/>'
                )
                done += size
        parts.append(_text(_LEFT + done * scale + 8, y + 16, told_bytes(bar.bytes), "dim"))
    return parts
