# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops cache list|show|verify|clear`."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusedops.commands.output import make_console

if TYPE_CHECKING:
    from fusedops.jit.inventory import Item

__all__ = ["add", "bytes_text"]

app = typer.Typer(no_args_is_help=True, help="Looks after the cache of built kernels.")

_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}


@app.command("list")
def list_() -> None:
    """Lists what is built: name, arch, size, age, compiler and declaration."""
    from rich.table import Table

    from fusedops.jit import inventory

    root = _root()
    console = make_console()
    table = Table()
    for heading in ("name", "arch", "size", "age", "compiler", "declaration"):
        table.add_column(heading, overflow="fold")
    found = [*inventory.items(root)]
    for item in found:
        table.add_row(
            item.name,
            item.arch or "?",
            bytes_text(item.size),
            _age(time.time() - item.built),
            item.compiler or "?",
            _short(item.declaration),
            style="red" if item.damage else "yellow" if item.refusal else None,
        )
    if found:
        console.print(table, markup=False)
    console.print(f"{_entries(found)} in {root}", soft_wrap=True, highlight=False)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="An entry's name, or what it alone begins with.")],
) -> None:
    """Shows all that is known of one entry."""
    from rich.table import Table

    from fusedops.jit import inventory

    root = _root()
    found = inventory.matching(root, name)
    if len(found) != 1:
        candidates = found or [*inventory.items(root)]
        listed = "".join(f"\n  {item.name}" for item in candidates[:20])
        more = f"\n  and {len(candidates) - 20} more" if len(candidates) > 20 else ""
        said = f"{len(found)} entries begin with" if found else "no entry begins with"
        raise _fail(f"{said} {name!r}; there {_are(candidates)}{listed}{more}")
    (item,) = found
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("state", item.damage or item.refusal or "whole")
    table.add_row("folder", str(item.folder))
    table.add_row("source", str(item.source or "missing"))
    table.add_row("binary", str(item.binary or "missing"))
    table.add_row("size", bytes_text(item.size))
    for key, value in item.meta.items():
        for row in _rows(key, value):
            table.add_row(*row)
    make_console().print(table, markup=False)


@app.command()
def verify() -> None:
    """Reads every entry and compares it with what was written; 1 if not all can be used."""
    from rich.progress import track

    from fusedops.jit import inventory

    root = _root()
    console = make_console()
    found = [*track(inventory.items(root), "reading", console=console, transient=True)]
    damaged = [item for item in found if item.damage]
    refused = [item for item in found if item.refusal]
    for item in damaged + refused:
        said = f"{item.name}: {item.damage or item.refusal}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    told = []
    if damaged:
        told.append(
            f"{len(damaged)} of {_entries(found)} damaged. No damaged entry is ever loaded: it is "
            "built again when it is needed. `fusedops cache clear --damaged` deletes them now."
        )
    if refused:
        told.append(f"{len(refused)} of {_entries(found)} not used, for they are not yours alone.")
    if told:
        raise _fail("\n".join(told))
    console.print(f"{_entries(found)}, all whole, in {root}", soft_wrap=True, highlight=False)


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
    from rich.progress import track

    from fusedops.jit import clearing, inventory
    from fusedops.jit.cache import DAMAGED

    if not (everything or older_than or arch or damaged):
        raise _fail("say what to delete: --all, or one or more of --older-than, --arch, --damaged")
    limit = time.time() - _seconds(older_than) if older_than else None
    root = _root()
    console = make_console()
    chosen: list[Item] = [
        item
        for item in inventory.items(root)
        if (limit is None or item.built < limit)
        and (arch is None or item.arch == arch)
        and (not damaged or item.damage is not None)
    ]
    left = [
        leftover
        for leftover in (inventory.leftovers(root) if limit is None and arch is None else ())
        # What did not compile is no damage: an error points at it.
        if not damaged or leftover.path.name.startswith(DAMAGED)
    ]
    if not chosen and not left:
        console.print(f"nothing to delete in {root}", soft_wrap=True, highlight=False)
        return
    freeing = bytes_text(sum(one.size for one in chosen) + sum(one.size for one in left))
    what = _entries(chosen) + (f", and leftovers: {len(left)}" if left else "")
    if not yes:
        typer.confirm(f"Delete {what} ({freeing}) from {root}?", abort=True)

    freed, gone, kept = 0, 0, []
    for item in track(chosen, "deleting", console=console, transient=True):
        if reason := clearing.remove(item):
            kept.append(f"{item.name} stays: {reason}")
        else:
            freed, gone = freed + item.size, gone + 1
    for leftover in left:
        if reason := clearing.remove_leftover(leftover):
            kept.append(f"{leftover.path.name} stays: {reason}")
        else:
            freed += leftover.size
    for line in kept:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    entries = "1 entry" if gone == 1 else f"{gone} entries"
    console.print(f"deleted {entries}, freed {bytes_text(freed)}", highlight=False)


def add(parent: typer.Typer) -> None:
    """Adds the group."""
    parent.add_typer(app, name="cache")


def bytes_text(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _root() -> Path:
    from fusedops.jit import env, trust

    root = env.cache_dir()
    if root is None:
        raise _fail(f"{env.no_cache_dir()}: set FUSEDOPS_CACHE_DIR to one of your own")
    try:
        next(root.iterdir(), None)
        reason = trust.distrust_cache(root)
    except FileNotFoundError:
        raise _fail(f"there is no cache yet at {root}", code=0) from None
    except OSError as error:
        raise _fail(f"the cache folder {root} cannot be read: {error.strerror}") from None
    if reason:
        typer.echo(f"the cache folder {root} is not used: {reason}", err=True)
    return root


def _fail(message: str, code: int = 1) -> typer.Exit:
    typer.echo(message, err=code != 0)
    return typer.Exit(code)


def _entries(found: list[Item]) -> str:
    size = f"{len(found)} {'entry' if len(found) == 1 else 'entries'}"
    return f"{size} of {bytes_text(sum(item.size for item in found))}" if found else size


def _are(found: list[Item]) -> str:
    if not found:
        return "are none"
    return "is:" if len(found) == 1 else "are:"


def _short(text: str, most: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return "now"


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)([hdw])", text)
    if found is None:
        raise typer.BadParameter(
            f"must be a number with h, d or w after it, as in 30d, got {text!r}",
            param_hint="--older-than",
        )
    return int(found[1]) * _SECONDS[found[2]]


def _rows(key: str, value: object) -> list[tuple[str, str]]:
    """A field of meta.json, its own fields a line each."""
    if isinstance(value, dict):
        return [row for name, one in value.items() for row in _rows(f"{key} {name}", one)]
    if isinstance(value, list):
        return [(key, " ".join(map(str, value)))]
    return [(key, str(value))]
