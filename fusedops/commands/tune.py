# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fusedops.tuning.tuner import Tuned

#: The checked call, the factors of a product, and options.
Call = tuple[Any, dict[str, Any], dict[str, Any]]

__all__ = ["tune"]

EXAMPLE = """Example:

\b
fusedops tune my_ops:scores \\
  --shape 32,16,3000,3000 --dtype float16 \\
  --operand bias=T:16,3000,3000 \\
  --operand mask=bool:32,1,1,3000 \\
  --operand scale=0.125

\b
fusedops tune my_ops:layer \\
  --shape 16384,1024 --dtype bfloat16 \\
  --operand w=T:4096,1024 \\
  --operand b=T:4096"""


def tune(
    op: Annotated[
        str, typer.Argument(help="The declaration, as MODULE:ATTRIBUTE; modules here are found.")
    ],
    shape: Annotated[
        str | None, typer.Option(help="The sizes of x, with commas, if --operand does not give x.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of x, and what T stands for.")] = "float32",
    operand: Annotated[
        list[str] | None,
        typer.Option(
            help="x or an operand: NAME=DTYPE:SIZES, NAME=DTYPE:SIZES@STRIDES, or NAME=NUMBER. T "
            "as the dtype stands for --dtype."
        ),
    ] = None,
    dim: Annotated[str | None, typer.Option(help="As in a call; with commas between.")] = None,
    result: Annotated[
        str | None, typer.Option(help="The dtype of the result, if it is not x's.")
    ] = None,
    training: Annotated[bool, typer.Option(help="Whether dropouts drop, as in a call.")] = True,
    forward: Annotated[bool, typer.Option(help="Tune the forward pass.")] = True,
    backward: Annotated[bool, typer.Option(help="Tune the backward, of all gradients.")] = True,
    device: Annotated[int, typer.Option(min=0, help="The GPU, as torch numbers them.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Keep nothing.")] = False,
    cache: Annotated[
        Path | None, typer.Option(help="The cache to keep it in; by default FUSEDOPS_CACHE_DIR's.")
    ] = None,
) -> None:
    """Finds the fastest launch configuration of a declaration on this machine's GPU.

    Later processes use it for kernels with the same features: columns, dtypes, memory traffic. It
    changes no bit of outputs and of the gradient of x.

    Of a Linear or a Matmul it finds out whether one kernel or two run it faster, at these sizes
    and where no gradient is wanted; both are right within one bound.
    """
    import os

    from rich.console import Console

    import fusedops.map
    import fusedops.ops  # noqa: F401 (and theirs)
    from fusedops.commands import words
    from fusedops.errors import FusedOpsError
    from fusedops.jit.store import unwritable
    from fusedops.product.fusible import FusibleProduct

    if cache is not None:
        os.environ["FUSEDOPS_CACHE_DIR"] = str(cache.absolute())
    console = Console()
    try:
        declared = words.declaration(op, products=True)
        kinds = [kind for kind, wanted in (("forward", forward), ("backward", backward)) if wanted]
        if isinstance(declared, FusibleProduct):
            kinds = ["product"] if forward else []
        if not kinds:
            raise ValueError(
                "there is nothing to tune with --no-forward and --no-backward; and of "
                "a product with --no-forward"
            )
        words.read_dtype(dtype)
        given = [*(operand or []), *([] if shape is None else [f"x=T:{shape}"])]
        values = words.values_of(given, dtype)
        call: Call
        if isinstance(declared, FusibleProduct):
            call = words.product(declared, values, dim, result, training=training)
        else:
            bound, options = words.bound(declared, values, dim, result, training=training)
            call = bound, {}, options
        gpu = _gpu(device)
        if not dry_run and (reason := unwritable()):
            raise ValueError(f"{reason}; name another by --cache, or keep nothing by --dry-run")
        found = [_tune(declared, call, kind, gpu, console) for kind in kinds]
    except (TypeError, ValueError, FusedOpsError) as error:
        raise typer.BadParameter(str(error)) from None
    console.print(_table(found))
    if dry_run:
        return
    from fusedops.tuning.tuner import keep

    try:
        where = keep(found, gpu)
    except (OSError, ValueError) as error:  # of the folder, or of the file that is there
        typer.echo(f"what was found could not be kept: {error}", err=True)
        raise typer.Exit(1) from None
    said = f"kept in {where}" if where else "nothing is faster than what there is; nothing is kept"
    console.print(said, soft_wrap=True, highlight=False)


def _gpu(index: int) -> Any:
    """The GPU of this number.

    Raises:
        ValueError: There is none, or nothing can be compiled for it.
    """
    import torch

    from fusedops.jit import env

    if not torch.cuda.is_available():
        raise ValueError(
            "there is no NVIDIA GPU that torch can use, and a launch configuration is tuned on the "
            "GPU that runs it: run this on a machine that has one. Without it, the package's own "
            "configurations are used; `fusedops doctor` says what is missing here"
        )
    if index >= torch.cuda.device_count():
        raise ValueError(f"--device must be below {torch.cuda.device_count()}, got {index}")
    if env.offline():
        raise ValueError("FUSEDOPS_OFFLINE=1 forbids to compile; unset it")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _tune(op: Any, call: Call, kind: str, device: Any, console: Console) -> Tuned:
    """Tune one pass, or what runs a product, and show how far it is.

    Raises:
        ValueError: It cannot be tuned.
    """
    import torch
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from fusedops.tuning import tuner

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    least = float("inf")
    trials = 0
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{kind}: checking", total=None)

        def done(tried: Any) -> None:
            nonlocal least, trials
            least, trials = min(least, tried.seconds or least), trials + 1
            text = f"{kind}: {trials} tried, at best {least * 1e6:.1f} us ({tried.step})"
            progress.update(task, description=text)

        try:
            bound, factors, options = call
            if kind == "product":
                return tuner.tune_product(op, bound, factors, device, options, done)
            return tuner.tune(op, bound, kind, device, options, done)
        except AssertionError as error:
            what = kind if kind == "product" else f"{kind} pass"
            raise ValueError(f"the {what} is wrong as it is: {error}") from None
        except torch.OutOfMemoryError:
            cure = (
                ""
                if kind == "product"
                else (", or give fewer rows, of which no launch configuration depends")
            )
            what = kind if kind == "product" else f"{kind} pass"
            raise ValueError(
                f"the device has too little free memory for the {what}: end other programs on "
                f"it{cure}"
            ) from None


def _table(found: list[Tuned]) -> Table:
    from rich.table import Table

    from fusedops.tuning.tuner import difference

    table = Table()
    for heading in ("pass", "before", "after", "ratio", "changed"):
        table.add_column(heading, justify="left" if heading in ("pass", "changed") else "right")
    for one in found:
        outcome = one.outcome
        table.add_row(
            one.kind,
            _said(outcome.seconds_before, one.percent_before),
            _said(outcome.seconds_after, one.percent_after),
            f"{outcome.faster:.3f}",
            difference(outcome),
        )
    return table


def _said(seconds: float, percent: float | None) -> str:
    share = "" if percent is None else f", {percent:.1f} %"
    return f"{seconds * 1e6:.1f} us{share}"
