# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops cache list|show|verify|clear`."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from fusedops.commands.output import make_console
from fusedops.errors import counted

if TYPE_CHECKING:
    from rich.table import Table

    from fusedops.jit.inventory import Item

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Looks after the cache of built kernels.")

#: The most names in one message.
_CANDIDATES = 10

_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Prints JSON for programs.")] = False,
) -> None:
    """Lists what is built: name, arch, size, age, compiler and declaration.

    Into a pipe or a file each entry is a line with tabs between: name, arch, bytes, seconds since
    1970, compiler, state and declaration.
    """
    root, found = _items()
    if as_json:
        typer.echo(json.dumps([_fields(item) for item in found], indent=1))
    elif sys.stdout.isatty():
        if found:
            make_console().print(_table(found), markup=False)
        typer.echo(f"{_entries(found)} in {root}")
    else:
        for item in found:
            typer.echo("\t".join(" ".join(str(one).split()) for one in _fields(item).values()))
        typer.echo(f"{_entries(found)} in {root}", err=True)


def _fields(item: Item) -> dict[str, str | int]:
    """What the list says of an entry, in its order."""
    return {
        "name": item.folder.name,
        "arch": item.arch,
        "bytes": item.size,
        "built": round(item.built),
        "compiler": item.compiler,
        "state": str(item.fault or "whole"),
        "declaration": str(item.meta.get("declaration", "")),
    }


def _table(found: list[Item]) -> Table:
    from rich.table import Table

    table = Table()
    for heading in ("name", "arch", "size", "age", "compiler", "declaration"):
        table.add_column(heading, overflow="fold")
    for item in found:
        table.add_row(
            item.folder.name,
            item.arch,
            decimal(item.size),
            f"{(time.time() - item.built) / _SECONDS['d']:.0f} d",
            item.compiler,
            textwrap.shorten(str(item.meta.get("declaration", "")), 60, placeholder="…"),
            style="red" if item.damaged else "yellow" if item.fault else None,
        )
    return table


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="An entry's name, or what it alone begins with.")],
) -> None:
    """Shows all that is known of one entry, as JSON."""
    _, found = _items()
    begun = [item for item in found if item.folder.name.startswith(name)]
    if len(begun) != 1:
        names = [item.folder.name for item in begun or found]
        said = [f"{len(begun)} entries begin with {name!r}, one must:", *names[:_CANDIDATES]]
        if len(names) > _CANDIDATES:
            said.append(
                f"and {counted(len(names) - _CANDIDATES, 'other')}, see `fusedops cache list`"
            )
        raise _fail("\n  ".join(said))
    (item,) = begun
    known = {"folder": str(item.folder), "state": str(item.fault or "whole"), **item.meta}
    typer.echo(json.dumps(known, indent=1))


@app.command()
def verify() -> None:
    """Reads every entry and compares it with what was written; 1 if not all can be used."""
    root, found = _items()
    faulty = [item for item in found if item.fault]
    for item in faulty:
        typer.echo(f"{item.folder.name}: {item.fault}")
    told = []
    if damaged := sum(item.damaged for item in found):
        told.append(
            f"{damaged} of {_entries(found)} damaged. No damaged entry is ever loaded: it is "
            "built again when it is needed. `fusedops cache clear --damaged` deletes them now."
        )
    if refused := len(faulty) - damaged:
        told.append(f"{refused} of {_entries(found)} not used, for they are not yours alone.")
    if told:
        raise _fail("\n".join(told))
    typer.echo(f"{_entries(found)}, all whole, in {root}")


@app.command()
def clear(
    everything: Annotated[bool, typer.Option("--all", help="Whatever is in the cache.")] = False,
    older_than: Annotated[
        str | None, typer.Option(help="Built longer ago than that: 30d, 12h or 4w.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Built for that: sm_90, x86-64-v3.")] = None,
    damaged: Annotated[
        bool, typer.Option("--damaged", help="Damaged, or set aside because it was.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Does not ask.")] = False,
) -> None:
    """Deletes entries: those that all options name. Nothing else in the folder is touched."""
    from fusedops.jit import inventory
    from fusedops.jit.cache import DAMAGED

    if not (everything or older_than or arch or damaged):
        raise _fail("say what to delete: --all, or one or more of --older-than, --arch, --damaged")
    limit = time.time() - _seconds(older_than) if older_than else float("inf")
    root, found = _items()
    chosen = [
        item
        for item in found
        if item.built < limit and arch in (None, item.arch) and (item.damaged or not damaged)
    ]
    sizes = {item.folder: item.size for item in chosen}
    if not older_than and not arch:
        # What did not compile is no damage: an error points at it.
        left = [one for one in inventory.leftovers(root) if not damaged or DAMAGED in one.name]
        sizes |= {path: inventory.size(path) for path in left}
    if not sizes:
        typer.echo(f"nothing to delete in {root}")
        return
    leftovers = len(sizes) - len(chosen)
    what = _entries(chosen) + (f", and leftovers: {leftovers}" if leftovers else "")
    if not yes:
        freeing = decimal(sum(sizes.values()))
        typer.confirm(f"Delete {what} ({freeing}) from {root}?", abort=True)
    stay = {folder: reason for folder in sizes if (reason := inventory.remove(folder))}
    for folder, reason in stay.items():
        typer.echo(f"{folder.name} stays: {reason}")
    freed = decimal(sum(size for folder, size in sizes.items() if folder not in stay))
    typer.echo(f"deleted {len(sizes) - len(stay)} of {len(sizes)}, freed {freed}")


def _items() -> tuple[Path, list[Item]]:
    """The folder of the cache and its entries, or an exit that says why there is none."""
    from fusedops.jit import env, inventory, trust

    root = env.cache_dir()
    if root is None:
        raise _fail(f"{env.no_cache_dir()}: set FUSEDOPS_CACHE_DIR to one of your own")
    try:
        found = [*inventory.items(root)]
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


def _entries(found: list[Item]) -> str:
    count = f"{len(found)} {'entry' if len(found) == 1 else 'entries'}"
    return f"{count} of {decimal(sum(item.size for item in found))}" if found else count


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)([hdw])", text)
    if found is None:
        raise typer.BadParameter(
            f"must be a number with h, d or w after it, as in 30d, got {text!r}",
            param_hint="--older-than",
        )
    return int(found[1]) * _SECONDS[found[2]]
