# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fusedops.tuning.parts import Part
    from fusedops.tuning.tuner import Tuned

__all__ = ["tune"]

EXAMPLES = """Examples, of a row op, a Linear and an MLP:

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
  --operand b=T:4096

\b
fusedops tune my_ops:block \\
  --shape 16384,1024 --dtype bfloat16 \\
  --operand w1=T:4096,1024 --operand b1=T:4096 \\
  --operand w2=T:1024,4096 --operand b2=T:1024"""


def tune(
    op: Annotated[
        str | None,
        typer.Argument(help="The declaration, as MODULE:ATTRIBUTE; modules here are found."),
    ] = None,
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
    calls: Annotated[
        list[Path] | None,
        typer.Option(help="A file that `fusedops record` has written, whose products are tuned."),
    ] = None,
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", help="A module that defines functors of recorded calls."),
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
    and where no gradient is wanted; both are right within one bound. Of an MLP the forward pass is
    that of its two layers; the backward pass is what a training step runs otherwise: the first
    layer, which keeps its product, and the gradient between the products.

    In place of a declaration, --calls names the products that a run has recorded.
    """
    import os

    from rich.console import Console

    import fusedops.map
    import fusedops.ops  # noqa: F401 (and theirs)
    from fusedops.commands import words
    from fusedops.errors import FusedOpsError
    from fusedops.jit.store import unwritable
    from fusedops.product import MLP, Linear, Matmul
    from fusedops.row_op import RowOp

    if cache is not None:
        os.environ["FUSEDOPS_CACHE_DIR"] = str(cache.absolute())
    console = Console()
    try:
        kinds = [kind for kind, wanted in (("forward", forward), ("backward", backward)) if wanted]
        if not kinds:
            raise ValueError(
                "there is nothing to tune with --no-forward and --no-backward; leave one away"
            )
        given = [*(operand or []), *([] if shape is None else [f"x=T:{shape}"])]
        declared = None
        if op is None:
            if given or dim is not None or result is not None or not calls:
                raise ValueError("say what to tune: MODULE:ATTRIBUTE with --operand, or --calls")
            parts = _recorded(calls, modules or [], training, kinds)
        elif calls:
            raise ValueError("give a declaration or --calls, not both")
        else:
            declared = words.declaration(op, Linear, Matmul, MLP)
            words.read_dtype(dtype)
            values = words.values_of(given, dtype)
            parts = _parts(declared, values, dim, result, training, kinds)
        gpu = _gpu(device)
        if not dry_run and (reason := unwritable()):
            raise ValueError(f"{reason}; name another by --cache, or keep nothing by --dry-run")
        found = _tune_each(parts, gpu, console, all_of=isinstance(declared, RowOp))
    except (TypeError, ValueError, FusedOpsError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    console.print(_table(found))
    if dry_run:
        return
    from fusedops.tuning.tuner import keep

    try:
        where = keep([*found.values()], gpu)
    except (OSError, ValueError) as error:  # of the folder, or of the file that is there
        typer.echo(f"what was found could not be kept: {error}", err=True)
        raise typer.Exit(1) from None
    said = f"kept in {where}" if where else "nothing is faster than what there is; nothing is kept"
    console.print(said, soft_wrap=True, highlight=False)


def _recorded(
    calls: Sequence[Path], modules: Sequence[str], training: bool, kinds: Sequence[str]
) -> list[Part]:
    """What there is to tune of recorded calls: of products and gradients, those of these kinds.

    Raises:
        OSError, TypeError, ValueError: A file cannot be read, or is none of recorded calls, or
            there is nothing to tune.
    """
    from fusedops.commands import words
    from fusedops.tuning.parts import of_recorded

    for module in modules:
        words.import_here(module)
    forward, backward = "forward" in kinds, "backward" in kinds
    signatures = words.recorded(calls, [])
    parts = of_recorded(signatures, training=training, forward=forward, backward=backward)
    if parts:
        return parts
    if any(one.factors for one in signatures):
        flag = "--no-backward" if forward else "--no-forward"
        raise ValueError(f"there is nothing to tune in these calls with {flag}; leave it away")
    raise ValueError(
        f"there is nothing to tune in {', '.join(map(str, calls))}: no call there is a product "
        "that one kernel runs, and nothing else is tuned of recorded calls; name a declaration in "
        "place of --calls, with --operand for all that a call is given (docs/how-to/offline.md)"
    )


def _parts(
    op: Any,
    values: Mapping[str, Any],
    dim: str | None,
    result: str | None,
    training: bool,
    kinds: Sequence[str],
) -> list[Part]:
    """What there is to tune of a call: of the passes, those of these kinds.

    Raises:
        TypeError, ValueError: The call does not fit, or there is nothing to tune of it.
    """
    import functools

    from fusedops.commands import words
    from fusedops.product import MLP
    from fusedops.product.single import SingleProduct
    from fusedops.tuning import parts, problem, product

    if isinstance(op, MLP):
        factors, arguments = words.pair(op, values, dim, result, training=training)
        forward, backward = "forward" in kinds, "backward" in kinds
        return parts.of_mlp(op, factors, arguments, forward=forward, backward=backward)
    if isinstance(op, SingleProduct):
        of_store, pair, options = words.product(op, values, dim, result, training=training)
        if "forward" not in kinds:
            raise ValueError(
                f"there is nothing to tune with --no-forward: of a {op.name} the forward pass "
                "alone is tuned; leave it away"
            )
        layer = functools.partial(product.of_product, op, of_store, pair, options=options)
        return [parts.Part("product", layer)]
    bound, options = words.bound(op, values, dim, result, training=training)
    found = []
    for kind in kinds:
        one = functools.partial(problem.of_pass, bound, kind, options=options)
        found.append(parts.Part(f"{kind} pass", one, any_rows=True))
    return found


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


def _tune_each(
    parts: Sequence[Part], device: Any, console: Console, *, all_of: bool
) -> dict[str, Tuned]:
    """Tune the parts of a call; what was found, by the name of the part.

    With `all_of` it is an error that there is nothing to tune of one of them.

    Raises:
        ValueError: One cannot be tuned, or none.
        FusedOpsError: There is nothing to tune.
    """
    from fusedops.errors import UnsupportedError

    found: dict[str, Tuned] = {}
    left: list[str] = []
    for part in parts:
        try:
            found[part.name] = _tune(part, device)
        except UnsupportedError as error:
            if all_of:
                raise
            left.append(f"{part.name}: {error}")
    if not found:
        raise ValueError("\n".join(left))
    for one in left:
        console.print(one, soft_wrap=True, highlight=False)
    return found


def _tune(part: Part, device: Any) -> Tuned:
    """Tune a part of a call, and show how far it is.

    Raises:
        ValueError: It cannot be tuned.
    """
    import torch

    from fusedops.terminal import shown
    from fusedops.tuning.tuner import tune

    least = float("inf")
    trials = 0
    with shown(f"{part.name}: checking") as step:

        def done(tried: Any) -> None:
            nonlocal least, trials
            least, trials = min(least, tried.seconds or least), trials + 1
            step(f"{part.name}: {trials} tried, at best {least * 1e6:.1f} us ({tried.step})")

        try:
            return tune(part.problem(device=device), done)
        except AssertionError as error:
            raise ValueError(f"the {part.name} is wrong as it is: {error}") from None
        except torch.OutOfMemoryError:
            cure = (
                ", or give fewer rows, of which no launch configuration depends"
                if part.any_rows
                else ""
            )
            raise ValueError(
                f"the device has too little free memory for the {part.name}: end other programs "
                f"on it{cure}"
            ) from None


def _table(found: Mapping[str, Tuned]) -> Table:
    from rich.table import Table

    from fusedops.tuning.tuner import difference

    table = Table()
    for heading in ("what", "before", "after", "ratio", "changed"):
        table.add_column(heading, justify="left" if heading in ("what", "changed") else "right")
    for name, one in found.items():
        outcome = one.outcome
        table.add_row(
            name,
            _said(outcome.seconds_before, one.percent_before),
            _said(outcome.seconds_after, one.percent_after),
            f"{outcome.faster:.3f}",
            difference(outcome),
        )
    return table


def _said(seconds: float, percent: float | None) -> str:
    share = "" if percent is None else f", {percent:.1f} %"
    return f"{seconds * 1e6:.1f} us{share}"
