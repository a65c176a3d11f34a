# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops cache list|clear`."""

from __future__ import annotations

import datetime
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from fusedops.errors import counted
from fusedops.terminal import make_console

if TYPE_CHECKING:
    from fusedops.jit.cache import Item

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Looks after the cache of built kernels.")

_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


@app.command("list")
def list_(
    as_json: Annotated[
        bool, typer.Option("--json", help="Prints the record of each kernel, as JSON.")
    ] = False,
) -> None:
    """Lists what is built: of each op how many kernels, for what, how large, and when last."""
    from rich.table import Table

    root, found = _items()
    if as_json:
        records = [{"folder": str(one.folder), "bytes": one.size, **one.meta} for one in found]
        typer.echo(json.dumps(records, indent=1))
        return
    ops: dict[str, list[Item]] = {}
    for item in found:
        ops.setdefault(str(item.meta.get("declaration", "?")), []).append(item)
    table = Table("op", "kernels", "for", "size", "last built")
    for name, kernels in sorted(ops.items()):
        archs = ", ".join(sorted({str(one.meta.get("arch", "?")) for one in kernels}))
        day = datetime.date.fromtimestamp(max(one.built for one in kernels))
        size = decimal(sum(one.size for one in kernels))
        table.add_row(name, str(len(kernels)), archs, size, str(day))
    if found:
        make_console().print(table, markup=False)
    total = decimal(sum(one.size for one in found))
    typer.echo(f"{counted(len(found), 'kernel')} of {total} in {root}")


@app.command()
def clear(
    everything: Annotated[bool, typer.Option("--all", help="Whatever is in the cache.")] = False,
    older_than: Annotated[
        str | None, typer.Option(help="Built longer ago than that: 30d, 12h or 4w.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Built for that: sm_90, x86-64-v3.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Does not ask.")] = False,
) -> None:
    """Deletes kernels: those that all options name. Nothing else in the folder is touched."""
    from fusedops.jit.cache import Store, folder_size, leftovers

    if not (everything or older_than or arch):
        raise _fail("say what to delete: --all, or one or both of --older-than, --arch")
    limit = time.time() - _seconds(older_than) if older_than else float("inf")
    root, found = _items()
    chosen = [one for one in found if one.built < limit and arch in (None, one.meta.get("arch"))]
    sizes = {item.folder: item.size for item in chosen}
    if not older_than and not arch:
        sizes |= {path: folder_size(path) for path in leftovers(root)}
    if not sizes:
        typer.echo(f"nothing to delete in {root}")
        return
    what = f"{len(chosen)} of {counted(len(found), 'kernel')}, {decimal(sum(sizes.values()))},"
    if not yes:
        typer.confirm(f"Delete {what} from {root}?", abort=True)
    try:
        Store(root).clear(sizes)
    except OSError as error:
        raise _fail(f"the cache folder {root} cannot be written: {error.strerror}") from None
    typer.echo(f"deleted {what} from {root}")


def _items() -> tuple[Path, list[Item]]:
    """The folder of the cache and its entries, or an exit that says why there is none."""
    from fusedops.jit import env, trust
    from fusedops.jit.cache import list_items

    root = env.cache_dir()
    if root is None:
        raise _fail(f"{env.no_cache_dir()}: set FUSEDOPS_CACHE_DIR to one of your own")
    try:
        found = [*list_items(root)]
        reason = trust.distrust_cache(root)
    except FileNotFoundError:
        raise _fail(f"there is no cache yet at {root}", code=0) from None
    except OSError as error:
        raise _fail(f"the cache folder {root} cannot be read: {error.strerror}") from None
    if reason:
        typer.echo(f"the cache folder {root} is not used: {reason}", err=True)
    return root, found


def _fail(message: str, code: int = 1) -> typer.Exit:
    typer.echo(message, err=code != 0)
    return typer.Exit(code)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)([hdw])", text)
    if found is None:
        said = f"must be a number with h, d or w after it, as in 30d, got {text!r}"
        raise typer.BadParameter(said, param_hint="--older-than")
    return int(found[1]) * _HOURS[found[2]] * 3600
