# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The manual's page of figures: `python benchmarks/figures.py H200.csv CPU.csv OUT.md`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from cells import OURS, PEERS, Cells, of_case
from sheet import read

COLUMNS = (64, 256, 1024, 1023, 4096, 12289, 32768, 50257, 131072, 262144)
BESIDE = (1024, 4096, 32768, 50257)
OPS = {"softmax": "softmax", "layer_norm": "LayerNorm", "rms_norm": "RMSNorm"}
MODELS = {
    "encoder like BERT-base, dropout 0.1, bfloat16, 32 x 512": "encoder like BERT-base, dropout",
    "decoder like Llama, bfloat16, 2 x 2048": "decoder like Llama",
    "pairs like AlphaFold's, dropout 0.25, bfloat16, 1 x 256": "pairs like AlphaFold's, dropout",
    "ViT-B/16, bfloat16, 128 x 197": "ViT-B/16",
}
WAYS = {
    "eager": ("torch.compile", "fusedops, eager attention, compiled", 'backend="fusedops"'),
    "sdpa": ("torch.compile, sdpa", "fusedops, sdpa, compiled", 'backend="fusedops", sdpa'),
}
CHAINS = {
    "attention softmax (8, 16, 1024, 1024), p = {p}": "attention softmax",
    "residual LayerNorm (49152, 1024), p = {p}": "residual LayerNorm",
}
#: Beside the rows of the CSV: what, where, who takes less time, and how much less.
SEEN = (
    "Products, norms and softmaxes are in their own tables, where who is faster is bold. The time "
    "of the host was measured at 9bf4d56 on 2026-11-28, beside one NVIDIA H200 (driver 580, torch "
    "2.11.0). Less time is a share of fusedops' time."
)
SEEN_OTHERS = (
    (
        "LayerNorm module, both passes, time of the host, autograd nodes in Python",
        "8 x 1024",
        "torch eager",
        "23 to 30 %",
    ),
    (
        "LayerNorm module, forward with gradients, time of the host, likewise",
        "8 x 1024",
        "torch eager",
        "47 %",
    ),
)
#: STOREs of products by the first words of their cases, and who computes them too.
STORES = {
    "bias, GELU": "bias and GELU",
    "bias, dropout, residual": "bias, dropout, residual",
    "a softcap of one's own": "softcap of one's own",
    "a gate of one's own": "gate of one's own",
}
BESIDE_PRODUCTS = (
    "torch eager",
    "torch.compile",
    "torch.compile, max-autotune",
    "cuBLASLt's epilogue",
    "QuACK gemm_epilogue",
)
HARDWARE = "fusedops, hardware_tanh"
TRAINED = {**OPS, "residual_rms_norm": "sum and RMSNorm"}
LEVEL = 0.01  # Closer than this nobody is first.
HEAD = """# Figures

A script makes this page from the CSV files in `benchmarks/results`, which have every figure with
its date and versions. `benchmarks/README.md` says how they are measured, and
`python benchmarks/run.py` measures your machine. A figure *beside* something is its time divided
by that of fusedops: at 2, fusedops is twice as fast, and below 1 it is slower.
"""


def page(gpu: Sequence[Cells], cpu: Sequence[Cells]) -> str:
    """The whole page."""
    parts = [_models(gpu), _chains(gpu), _others_first(), _training(gpu), _beside(gpu)]
    parts = [*filter(None, parts), _ceiling(gpu), _products(gpu), _cpu(cpu)]
    return "\n".join([HEAD, "\n\n".join(parts)]) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def _where(rows: Iterable[Cells]) -> str:
    """Machine, torch and days of the rows that a table shows."""
    rows = list(rows)
    days = sorted(row["date"] for row in rows)
    machine = " and ".join(sorted({row["device"] or row["cpu"] for row in rows}))
    torch = " and ".join(sorted({row["torch"] for row in rows}))
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return f"{machine}, torch {torch}, {when}."


def _models(rows: Sequence[Cells]) -> str:
    lines, used, slow = [], [], []
    for case, name in MODELS.items():
        found = of_case(rows, "models", f"{case}: a step from a CUDA graph")
        issued = of_case(rows, "models", f"{case}: a step")
        for attention, (theirs, *ours) in WAYS.items():
            base = float(found[theirs]["microseconds"])
            line = [name, attention, f"{base / 1000:.1f} ms, {_peak(issued[theirs])}"]
            for way in ours:
                taken = float(found[way]["microseconds"])
                speed = f"{base / taken:.2f}"
                line.append(f"{taken / 1000:.1f} ms, {_peak(issued[way])} ({speed})")
            lines.append(line)
            used += [found[by] for by in (theirs, *ours)]
            if case.startswith("pairs"):
                base = float(issued[theirs]["microseconds"])
                slow += [base / float(issued[way]["microseconds"]) for way in ours]
    head = ["model", "attention", "torch.compile", "patched, compiled", 'backend="fusedops"']
    return (
        "## Training steps of whole models\n\nbfloat16 under autocast; milliseconds of the GPU, "
        "replayed from a CUDA graph, peak memory in GiB, and in brackets the speed as a multiple "
        f"of torch.compile's with the same attention. {_where(used)}\n\n"
        + _table(head, lines)
        + "\n\nWithout a CUDA graph Python issues each call. The pairs, whose kernels are short, "
        f"are then bound by it, and have {min(slow):.2f} to {max(slow):.2f} times the speed of "
        "torch.compile."
    )


def _peak(row: Cells) -> str:
    return row["note"].removeprefix("peak memory ").split(" GiB")[0]


def _ratios(found: dict[str, Cells], peers: Sequence[str]) -> list[str]:
    return [f"{float(found[by]['ratio']):.2f}" if _has(found, by) else "" for by in peers]


def _has(found: dict[str, Cells], by: str) -> bool:
    return by in found and bool(found[by]["ratio"])


def _chains(rows: Sequence[Cells]) -> str:
    lines, used = [], []
    for case, name in CHAINS.items():
        for p in ("0.1", "0.0"):
            for part, said in (("flagship", "forward"), ("flagship_backward", "both passes")):
                found = of_case(rows, part, case.format(p=p))
                percent = f"{float(found[OURS]['percent']):.0f}"
                lines.append([f"{name}, dropout {p}, {said}", percent, *_ratios(found, PEERS[:2])])
                used += [found[by] for by in (OURS, *PEERS[:2])]
    return (
        "## Chains\n\nThe attention softmax has a scale, a pair bias, a padding mask and dropout, "
        "(8, 16, 1024, 1024); the LayerNorm has a bias, dropout and a saved residual, (49152, "
        f"1024). float16. {_where(used)}\n\n"
        + _table(["chain", "percent of the ceiling", *(f"beside {by}" for by in PEERS[:2])], lines)
    )


def _others_first() -> str:
    return f"## Where others are faster\n\n{SEEN}\n\n" + _table(
        ["what", "where", "who", "takes less time by"], SEEN_OTHERS
    )


def _training(rows: Sequence[Cells]) -> str:
    """All peers at shapes of training; empty until that was measured."""
    measured = [row for row in rows if row["part"] == "beside" and row["microseconds"]]
    others = [by for by in dict.fromkeys(row["by"] for row in measured) if by != OURS]
    tables = []
    for dtype in dict.fromkeys(row["dtype"] for row in measured):
        lines = []
        for case in dict.fromkeys(row["case"] for row in measured if row["dtype"] == dtype):
            found = of_case(measured, "beside", case)
            ours = found[OURS]
            lines.append(
                [
                    f"{TRAINED[ours['op']]}, {ours['pass']}",
                    f"{ours['rows']} x {ours['columns']}",
                    f"{float(ours['percent']):.0f}",
                    *_ratios(found, others),
                    _first({by: float(found[by]["ratio"]) for by in others if _has(found, by)}),
                ]
            )
        head = ["op", "rows x columns", "percent of the ceiling", *others, "first"]
        tables.append(f"{dtype}:\n\n{_table(head, lines)}")
    if not tables:
        return ""
    return (
        "## Shapes of training\n\nAll who were installed, and the ceiling, in the same rounds. "
        "*First* is who takes the least time, and how much less: than fusedops, or if fusedops is "
        "first, than the next one. Below one percent they are level. "
        f"{_where(measured)}\n\n" + "\n\n".join(tables)
    )


def _first(ratios: dict[str, float]) -> str:
    """Who is first, by the times over fusedops' of others, and by how much."""
    by = min(ratios, key=ratios.__getitem__)
    if ratios[by] > 1:
        return f"{OURS}, {100 - 100 / ratios[by]:.0f} %" if ratios[by] >= 1 + LEVEL else "level"
    return f"**{by}, {100 - 100 * ratios[by]:.0f} %**" if ratios[by] <= 1 - LEVEL else "level"


def _beside(rows: Sequence[Cells]) -> str:
    lines, used = [], []
    for op, name in OPS.items():
        for direction in ("forward", "backward"):
            for columns in BESIDE:
                found = of_case(rows, "sweep", _case(rows, op, direction, columns))
                lines.append([f"{name}, {direction}", str(columns), *_ratios(found, PEERS)])
                used += [found[by] for by in PEERS if _has(found, by)]
    return (
        "## Single ops beside others\n\nfloat16, 49152 rows, fewer where rows are long; Liger by "
        f"its Triton kernels. {_where(used)}\n\n"
        + _table(["op", "columns", *(f"beside {by}" for by in PEERS)], lines)
    )


def _case(rows: Sequence[Cells], op: str, direction: str, columns: int) -> str:
    (case,) = {
        row["case"]
        for row in rows
        if row["part"] == "sweep"
        and (row["op"], row["pass"], row["dtype"], row["columns"])
        == (op, direction, "float16", str(columns))
    }
    return case


def _ceiling(rows: Sequence[Cells]) -> str:
    lines, used = [], []
    for columns in COLUMNS:
        line = [str(columns)]
        for direction in ("forward", "backward"):
            for op in OPS:
                ours = of_case(rows, "sweep", _case(rows, op, direction, columns))[OURS]
                line.append(f"{float(ours['percent']):.0f}")
                used.append(ours)
        lines.append(line)
    head = [f"{name}, {way}" for way in ("forward", "backward") for name in OPS.values()]
    return (
        "## Percent of the ceiling\n\nThe ceiling is the fastest plain kernel of the same run that "
        "moves as many bytes. Norms have their parameters; float16, 49152 rows, fewer where rows "
        f"are long. {_where(used)}\n\n" + _table(["columns", *head], lines)
    )


def _products(rows: Sequence[Cells]) -> str:
    head = ["op", "M x N x K", *BESIDE_PRODUCTS, "with `hardware_tanh`", "first"]
    text = (
        "## Matrix products\n\nForward. QuACK's tiles are those that its trials find, and it takes "
        "tanh from the hardware, as `hardware_tanh=True` does. *First* is as above, and leaves "
        "that out."
    )
    for dtype in ("float16", "bfloat16"):
        lines, used = _products_of(rows, dtype)
        text += f"\n\n{dtype}. {_where(used)}\n\n" + _table(head, lines)
    return text


def _products_of(rows: Sequence[Cells], dtype: str) -> tuple[list[list[str]], list[Cells]]:
    """The lines of a dtype, and the rows that they are from."""
    lines, used = [], []
    cases = dict.fromkeys(row["case"] for row in rows if row["part"] == "gemm")
    for name, said in STORES.items():
        for case in [case for case in cases if case.startswith(f"{name}, {dtype}, ")]:
            size = case.removeprefix(f"{name}, {dtype}, ").removesuffix(", forward")
            lines.append([f"Linear, {said}", size, *_beside_products(rows, case, used)])
    (block,) = [case for case in cases if case.startswith("block") and f", {dtype}, " in case]
    said = "MLP 1024 to 4096 to 1024, both passes"
    lines.append([said, "16384 rows", *_beside_products(rows, block, used)])
    return lines, used


def _beside_products(rows: Sequence[Cells], case: str, used: list[Cells]) -> list[str]:
    """The columns of a product after its size; the rows that they are from go to `used`."""
    found = of_case(rows, "gemm", case)
    used += [found[by] for by in (*BESIDE_PRODUCTS, HARDWARE) if _has(found, by)]
    ratios = {by: float(found[by]["ratio"]) for by in BESIDE_PRODUCTS if _has(found, by)}
    return [*_ratios(found, (*BESIDE_PRODUCTS, HARDWARE)), _first(ratios)]


def _cpu(rows: Sequence[Cells]) -> str:
    lines, used = [], []
    for chain in ("attention softmax (2, 8, 256, 512)", "residual LayerNorm (2048, 1024)"):
        for p in ("0.1", "0.0"):
            for dtype in ("float32", "bfloat16"):
                for what in ("forward", "step"):
                    case = f"{chain}, p = {p}, {dtype}, {what}, 1 thread"
                    found = of_case(rows, "cpu", case)
                    lines.append([_cpu_name(case), *_ratios(found, PEERS[:2])])
                    used += [found[by] for by in PEERS[:2] if _has(found, by)]
    return (
        "## On a CPU\n\nThe same chains on one core of two: the attention softmax of (2, 8, "
        f"256, 512), the LayerNorm of (2048, 1024). {_where(used)}\n\n"
        + _table(["chain", *(f"beside {by}" for by in PEERS[:2])], lines)
        + "\n\nA plain softmax that is trained in 16 bits is slower than torch's: torch computes "
        "its gradient from the rounded result, and this library from x, unless a declaration says "
        "`save_result=True`."
    )


def _cpu_name(case: str) -> str:
    """The chain, dropout, dtype and passes; its sizes are said above the table."""
    chain, _, rest = case.removesuffix(", 1 thread").partition(" (")
    chosen = rest.partition("), ")[2].replace("p = ", "dropout ").replace("step", "both passes")
    return f"{chain}, {chosen}"


def main(
    gpu: Annotated[Path, typer.Argument(help="A GPU's CSV.")],
    cpu: Annotated[Path, typer.Argument(help="A CPU's CSV.")],
    out: Annotated[Path, typer.Argument(help="The page.")],
) -> None:
    """Writes the page."""
    out.write_text(page(read(gpu), read(cpu)), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
