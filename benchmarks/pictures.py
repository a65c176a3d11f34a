# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The README's two pictures: `python benchmarks/pictures.py results/h200.csv [FOLDER]`.

`bytes.svg` has the bytes that each call of a chain reads and writes, and those of the fused op, to
one scale. `speed.svg` has times beside others. Both are transparent, in colours that show on white
and on black alike, and the same CSV gives the same bytes.
"""

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from cells import COLOURS, OURS, PEERS, Cells, of_case
from sheet import read

TEXT = "#808890"
GIGA = 1e9

#: The chain of the bytes: its case in the CSV, and x's shape; elements have 16 bits.
CASE = "attention softmax (8, 16, 1024, 1024), p = 0.1"
SHAPE = (8, 16, 1024, 1024)


class Call(NamedTuple):
    """One call of torch in the unfused chain, and the bytes that it reads and writes."""

    name: str
    read: int
    written: int


class Bars(NamedTuple):
    """One group of the chart: a caption, times by who was measured in one unit, and their days."""

    caption: str
    times: dict[str, float]
    dates: frozenset[str]


def calls() -> list[Call]:
    """The chain as one writes it in torch, each input read once and each result written once."""
    batch, *rest = SHAPE
    x, bias, mask = 2 * math.prod(SHAPE), 2 * math.prod(rest), batch * SHAPE[-1]
    return [
        Call("scale", x, x),
        Call("+ pair bias", x + bias, x),
        Call("mask", x + mask, x),
        Call("softmax", x, x),
        Call("dropout", x, x + x // 2),  # The mask that the backward pass needs: a byte an element.
    ]


def fused_bytes() -> int:
    """What the one kernel moves: x, the bias and the mask read, y written."""
    batch, *rest = SHAPE
    return 2 * (2 * math.prod(SHAPE)) + 2 * math.prod(rest) + batch * SHAPE[-1]


def groups(rows: Sequence[Cells]) -> list[Bars]:
    """What the chart shows, in its order."""
    graph = "a step from a CUDA graph"
    found = [
        _beside(of_case(rows, part, case), caption)
        for part, case, caption in (
            (
                "flagship_backward",
                CASE,
                "attention softmax with pair bias and dropout 0.1, both passes",
            ),
            (
                "flagship_backward",
                "residual LayerNorm (49152, 1024), p = 0.1",
                "LayerNorm with bias, dropout 0.1 and residual, both passes",
            ),
            ("sweep", "softmax forward float16 (49152, 4096)", "softmax, forward"),
            ("sweep", "layer_norm backward float16 (49152, 4096)", "LayerNorm, backward"),
            ("sweep", "rms_norm forward float16 (49152, 4096)", "RMSNorm, forward"),
            (
                "gemm",
                "bias, GELU, float16, 16384 x 4096 x 1024, forward",
                "linear layer with bias and GELU, forward",
            ),
        )
    ]
    for name, caption in (
        ("encoder like BERT-base, dropout 0.1, bfloat16, 32 x 512", "encoder like BERT-base"),
        ("decoder like Llama, bfloat16, 2 x 2048", "decoder like Llama"),
    ):
        taken = of_case(rows, "models", f"{name}: {graph}")
        for attention, ways in (
            ("eager", ("fusedops, eager attention, compiled", "torch eager", "torch.compile")),
            ("sdpa", ("fusedops, sdpa, compiled", "torch sdpa", "torch.compile, sdpa")),
        ):
            chosen = {
                by: taken[way]
                for by, way in zip((OURS, "torch eager", "torch.compile"), ways, strict=True)
            }
            said = f"training step, {caption}, {attention} attention"
            found.append(
                Bars(
                    said,
                    {by: float(row["microseconds"]) for by, row in chosen.items()},
                    frozenset(row["date"] for row in chosen.values()),
                )
            )
    return found


def _beside(taken: dict[str, Cells], caption: str) -> Bars:
    """Ours and the peers'. A peer's ratio is to ours in the same run, so it is what is drawn."""
    peers = {by: taken[by] for by in PEERS if by in taken and taken[by]["ratio"]}
    shown = {OURS: 1.0} | {by: float(row["ratio"]) for by, row in peers.items()}
    return Bars(caption, shown, frozenset(row["date"] for row in [taken[OURS], *peers.values()]))


def _svg(width: int, height: int, title: str, body: Iterable[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="system-ui, sans-serif" '
            f'font-size="13" fill="{TEXT}">',
            f"<title>{html.escape(title)}</title>",
            *body,
            "</svg>",
            "",
        ]
    )


def _text(x: float, y: float, said: str, **attributes: object) -> str:
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(said, quote=False)}</text>'


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="2" '
        f'fill="{colour}"/>'
    )


def bytes_picture() -> str:
    """The bytes of the chain and of the fused op, to scale."""
    left, width, height = 16, 860, 196
    chain, fused = calls(), fused_bytes()
    total = sum(call.read + call.written for call in chain)
    scale = (width - 2 * left) / total
    body = [
        _text(
            left,
            22,
            f"five calls of torch: {total / GIGA:.2f} GB read and written",
            font_weight="bold",
        )
    ]
    at = float(left)
    for call in chain:
        long = (call.read + call.written) * scale
        body.append(_bar(at, 34, long - 2, 34, COLOURS["torch eager"]))
        body.append(_text(at + long / 2, 56, call.name, fill="#ffffff", text_anchor="middle"))
        at += long
    body.append(_text(left, 104, f"one fused op: {fused / GIGA:.2f} GB", font_weight="bold"))
    body.append(_bar(left, 116, fused * scale - 2, 34, COLOURS[OURS]))
    body.append(
        _text(left + fused * scale / 2, 138, "all five", fill="#ffffff", text_anchor="middle")
    )
    shape = " x ".join(str(size) for size in SHAPE)
    body.append(
        _text(
            left,
            180,
            f"Scores of {shape} in float16, a pair bias that the batch shares; "
            "each call reads its inputs and writes its results once.",
            font_size=12,
        )
    )
    return _svg(width, height, "Bytes moved by the unfused chain and by the fused op", body)


def speed_picture(rows: Sequence[Cells]) -> str:
    """Times beside others, as multiples of ours."""
    width, left, row, gap = 860, 420, 13, 12
    shown = groups(rows)
    scale = (width - left - 56) / max(
        time / bars.times[OURS] for bars in shown for time in bars.times.values()
    )
    body = [
        _text(16, 22, "time as a multiple of fusedops' (shorter is faster)", font_weight="bold")
    ]
    at = 16.0
    for by in (OURS, *PEERS):
        body.append(_bar(at, 36, 12, 12, COLOURS[by]))
        body.append(_text(at + 18, 47, by))
        at += 36 + 8 * len(by)
    top = 66.0
    for bars in shown:
        middle = top + len(bars.times) * row / 2 + 4
        body.append(_text(left - 12, middle, bars.caption, text_anchor="end", font_size=12))
        for by, time in bars.times.items():
            ratio = time / bars.times[OURS]
            body.append(_bar(left, top, ratio * scale, row - 2, COLOURS[by]))
            body.append(
                _text(left + ratio * scale + 5, top + row - 3, f"{ratio:.2f}", font_size=11)
            )
            top += row
        top += gap
    dates = sorted(date for bars in shown for date in bars.dates)
    for said in (
        f"One NVIDIA H200, {dates[0]} to {dates[-1]}. Ops: float16; softmax, LayerNorm, RMSNorm: "
        "49152 rows of 4096.",
        "Training steps: bfloat16 under autocast, from CUDA graphs; ours patched and compiled.",
    ):
        body.append(_text(16, top + 10, said, font_size=12))
        top += 16
    return _svg(width, int(top) + 8, "Time of fusedops and of others", body)


def main(
    path: Annotated[Path, typer.Argument(help="A CSV of run.py.")],
    folder: Annotated[
        Path | None, typer.Argument(help="Where pictures go; plots/ beside the CSV.")
    ] = None,
) -> None:
    """Draws both."""
    folder = folder or path.parent / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in (("bytes", bytes_picture()), ("speed", speed_picture(read(path)))):
        (folder / f"{name}.svg").write_text(drawn, encoding="utf-8")
        typer.echo(folder / f"{name}.svg")


if __name__ == "__main__":
    typer.run(main)
