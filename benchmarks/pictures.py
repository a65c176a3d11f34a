# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The README's two pictures: `python benchmarks/pictures.py results/h200.csv [FOLDER]`.

`bytes.svg` has the bytes that each call of a chain reads and writes, and those of the fused op, to
one scale. `speed.svg` has times beside others. Both are narrow, so that a phone shows their words
at a size that can be read. They are transparent, in colours that show on white and on black alike,
and the same CSV gives the same bytes.
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
WIDTH, LEFT = 480, 16

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
        Call("bias", x + bias, x),
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
                "attention softmax, pair bias, dropout 0.1, both passes",
            ),
            (
                "flagship_backward",
                "residual LayerNorm (49152, 1024), p = 0.1",
                "LayerNorm, bias, dropout 0.1, residual, both passes",
            ),
            ("sweep", "softmax forward float16 (49152, 4096)", "softmax, forward"),
            ("sweep", "layer_norm backward float16 (49152, 4096)", "LayerNorm, backward"),
            ("sweep", "rms_norm forward float16 (49152, 4096)", "RMSNorm, forward"),
            (
                "gemm",
                "bias, GELU, float16, 16384 x 4096 x 1024, forward",
                "linear layer, bias, GELU, forward",
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


def _svg(height: int, title: str, body: Iterable[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" font-family="system-ui, sans-serif" '
            f'font-size="15" fill="{TEXT}">',
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
    chain, fused = calls(), fused_bytes()
    total = sum(call.read + call.written for call in chain)
    scale = (WIDTH - 2 * LEFT) / total
    body = [_text(LEFT, 24, f"five calls of torch: {total / GIGA:.2f} GB", font_weight="bold")]
    at = float(LEFT)
    for call in chain:
        long = (call.read + call.written) * scale
        body.append(_bar(at, 36, long - 2, 38, COLOURS["torch eager"]))
        body.append(_text(at + long / 2, 60, call.name, fill="#ffffff", text_anchor="middle"))
        at += long
    body.append(_text(LEFT, 106, f"one fused op: {fused / GIGA:.2f} GB", font_weight="bold"))
    body.append(_bar(LEFT, 118, fused * scale - 2, 38, COLOURS[OURS]))
    body.append(
        _text(LEFT + fused * scale / 2, 142, "all five", fill="#ffffff", text_anchor="middle")
    )
    shape = " x ".join(str(size) for size in SHAPE)
    body.append(_text(LEFT, 182, f"bytes read and written; x is {shape}, float16", font_size=14))
    return _svg(196, "Bytes moved by the unfused chain and by the fused op", body)


def speed_picture(rows: Sequence[Cells]) -> str:
    """Times beside others, as multiples of ours."""
    row, gap = 16, 14
    shown = groups(rows)
    scale = (WIDTH - 2 * LEFT - 40) / max(
        time / bars.times[OURS] for bars in shown for time in bars.times.values()
    )
    body = [
        _text(LEFT, 24, "time as a multiple of fusedops' (lower is faster)", font_weight="bold")
    ]
    at = float(LEFT)
    for by in (OURS, *PEERS):
        body.append(_bar(at, 39, 12, 12, COLOURS[by]))
        body.append(_text(at + 17, 50, by))
        at += 34 + 8.5 * len(by)
    top = 80.0
    for bars in shown:
        body.append(_text(LEFT, top, bars.caption))
        top += 7
        for by, time in bars.times.items():
            ratio = time / bars.times[OURS]
            body.append(_bar(LEFT, top, ratio * scale, row - 2, COLOURS[by]))
            body.append(
                _text(LEFT + ratio * scale + 6, top + row - 4, f"{ratio:.2f}", font_size=14)
            )
            top += row
        top += gap + 14
    dates = sorted(date for bars in shown for date in bars.dates)
    for said in (
        f"One NVIDIA H200, {dates[0]} to {dates[-1]}.",
        "Ops: float16; softmax and norms alone: 49152 rows of 4096.",
        "Training steps: bfloat16 under autocast, from CUDA graphs;",
        "ours patched and compiled.",
    ):
        body.append(_text(LEFT, top, said, font_size=14))
        top += 19
    return _svg(int(top), "Time of fusedops and of others", body)


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
