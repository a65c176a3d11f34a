# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops build`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fusedops.generate.variant import Variant
    from fusedops.prebuild.build_all import Outcome
    from fusedops.prebuild.recording import Signature

__all__ = ["build"]

EXAMPLES = """Examples, of a declaration and of what a run has recorded:

\b
fusedops build fusedops.flagship:ADD_NORM \\
  --arch sm_80,sm_90,sm_100 \\
  --dtype float16,bfloat16 \\
  --operand x=T:8192,1024 --operand p=0.1 \\
  --operand residual=T:8192,1024 \\
  --operand bias=T:1024 \\
  --operand gamma=T:1024 --operand beta=T:1024

\b
fusedops build --calls calls.jsonl --arch sm_90"""

# Of an op that no words describe.
RECORD_IT = (
    "record a run that calls it, `fusedops record --output calls.jsonl python train.py`, and give "
    "--calls calls.jsonl in place of it (docs/how-to/offline.md)"
)


def build(
    op: Annotated[
        str | None,
        typer.Argument(help="A declaration, as MODULE:ATTRIBUTE; modules here are found."),
    ] = None,
    arch: Annotated[
        str,
        typer.Option(help="For what, with commas: sm_80,sm_90, x86-64-v3; or cpu, this machine's."),
    ] = "cpu",
    operand: Annotated[
        list[str] | None,
        typer.Option(
            help="x or an operand of the declaration: NAME=DTYPE:SIZES, NAME=DTYPE:SIZES@STRIDES, "
            "or NAME=NUMBER. T as the dtype stands for each of --dtype. The sizes of rows make no "
            "difference, but that a size of 1 may be one over which an operand is broadcast, and "
            "that backward passes may have another kernel for up to 8 rows."
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="What T stands for, with commas; by default float32.")
    ] = None,
    result: Annotated[
        str | None, typer.Option(help="The dtype of the result, if it is not x's.")
    ] = None,
    dim: Annotated[str | None, typer.Option(help="As in a call; with commas between.")] = None,
    lengths: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Every row length up to so many columns, in place of x's last size: of each "
            "operand the last size, where it is x's.",
        ),
    ] = None,
    calls: Annotated[
        list[Path] | None, typer.Option(help="A file that `fusedops record` has written.")
    ] = None,
    call: Annotated[
        list[str] | None, typer.Option(help="A line of such a file, as messages give it.")
    ] = None,
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", help="A module that defines functors of recorded calls."),
    ] = None,
    backward: Annotated[
        bool, typer.Option(help="Backward passes too, where none have been recorded.")
    ] = True,
    multiprocessors: Annotated[
        int | None, typer.Option(min=1, help="Of the GPU, if not the usual number.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes; by default a CPU each.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="The cache to fill; by default FUSEDOPS_CACHE_DIR's.")
    ] = None,
) -> None:
    """Fills a cache with the kernels of calls, for any architecture; needs no GPU.

    Exits with 1 if one could not be built or kept.
    """
    import os

    from rich.console import Console
    from rich.table import Table

    import fusedops.map
    import fusedops.ops  # noqa: F401 (and theirs)
    from fusedops.commands.words import import_here
    from fusedops.errors import FusedOpsError
    from fusedops.generate.target import Target
    from fusedops.jit import env
    from fusedops.jit.store import unwritable, writable_store
    from fusedops.prebuild.build_all import build_all, variants
    from fusedops.product import recorded
    from fusedops.terminal import shown

    if cache is not None:
        os.environ["FUSEDOPS_CACHE_DIR"] = str(cache.absolute())
    console = Console()
    try:
        env.verbose()  # refused here, not in each of the processes
        if env.offline():
            raise ValueError("FUSEDOPS_OFFLINE=1 forbids to compile; unset it")
        wanted = _signatures(
            op, operand or [], dtype, result, dim, calls or [], call or [], lengths
        )
        for module in modules or []:
            import_here(module)
        named = [Target.named(name, multiprocessors) for name in _names(arch)]
        targets = list(dict.fromkeys(named))  # "cpu" may be named by its level, too
        plans: list[tuple[Target, list[Variant]]] = [
            (
                target,
                variants(wanted, target, backward=backward) + recorded.variants(wanted, target),
            )
            for target in targets
        ]
    except (TypeError, ValueError, FusedOpsError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    store = writable_store()
    if store is None:
        raise typer.BadParameter(f"{unwritable()}; name another by --cache")
    every = [variant for _, of_target in plans for variant in of_target]
    if not every:
        typer.echo(
            "there is nothing to build: these calls run no kernel, x has no elements", err=True
        )
        raise typer.Exit(1)
    with shown("building", len(every)) as step:
        outcomes = build_all(every, jobs or os.cpu_count() or 1, lambda _: step(done=1))
    table = Table()
    for heading in ("arch", "variants", "compiled", "in the cache", "failed", "seconds", "MB"):
        table.add_column(heading, justify="left" if heading == "arch" else "right")
    for target, _ in plans:
        table.add_row(target.arch, *_counts([o for o in outcomes if o.variant.arch == target.arch]))
    console.print(table)
    console.print(f"in {store.root}", soft_wrap=True, highlight=False)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        typer.echo(f"\n{outcome.error}", err=True)
    if failed:
        raise typer.Exit(1)


def _signatures(
    op: str | None,
    operand: list[str],
    dtypes: str | None,
    result: str | None,
    dim: str | None,
    calls: list[Path],
    call: list[str],
    lengths: int | None,
) -> list[Signature]:
    """What to build for.

    Raises:
        ValueError: Nothing, or what is none.
    """
    from fusedops.commands import words
    from fusedops.prebuild.recording import of_call
    from fusedops.product import Linear, Matmul
    from fusedops.product.single import SingleProduct

    found = words.recorded(calls, call)
    if op is None:
        if operand or dtypes is not None:
            what = "--operand" if operand else "--dtype"
            raise ValueError(f"{what} belongs to a declaration: give it as MODULE:ATTRIBUTE")
        if lengths is not None:
            raise ValueError("--lengths belongs to a declaration: give it as MODULE:ATTRIBUTE")
        if not found:
            raise ValueError("say what to build: MODULE:ATTRIBUTE with --operand, or --calls")
        return found
    declared = words.declaration(op, Linear, Matmul, cure=RECORD_IT)
    if isinstance(declared, SingleProduct) and lengths is not None:
        name = declared.name
        raise ValueError(f"--lengths is for rows that are reduced, and a {name} has none")
    given = any("=T:" in word for word in operand)
    if dtypes is not None and not given:
        raise ValueError("--dtype says what T stands for, and no --operand is NAME=T:SIZES")
    for name in _names(dtypes or "float32") if given else [""]:
        if given:
            words.read_dtype(name)
        values = words.values_of(operand, name)
        if isinstance(declared, SingleProduct):
            found.append(of_call(*words.product(declared, values, dim, result)[:2]))
            continue
        for one in [values] if lengths is None else _lengths(values, lengths, dim):
            found.append(of_call(words.bound(declared, one, dim, result)[0]))
    return found


def _lengths(values: dict[str, Any], most: int, dim: str | None) -> Iterator[dict[str, Any]]:
    """The operands of calls whose rows have every length up to `most`, or lengths like them.

    Raises:
        ValueError: The rows of x are not its last dimension, dense in memory.
    """
    import torch

    from fusedops.prebuild.build_all import of_lengths

    tensors = [one for one in values.values() if isinstance(one, torch.Tensor)]
    if dim not in (None, "-1") or not all(one.is_contiguous() for one in tensors):
        raise ValueError("--lengths is for rows in the last dimension, without --dim or @STRIDES")
    return of_lengths(values, most)


def _names(text: str) -> list[str]:
    """Names with commas between them, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _counts(outcomes: list[Outcome]) -> list[str]:
    origins = [outcome.origin for outcome in outcomes]
    seconds = sum(outcome.seconds for outcome in outcomes if outcome.origin == "compiled")
    counts = [len(origins), *(origins.count(one) for one in ("compiled", "cache", None))]
    size = sum(outcome.size for outcome in outcomes)
    return [*map(str, counts), f"{seconds:.1f}", f"{size / 1e6:.1f}"]
