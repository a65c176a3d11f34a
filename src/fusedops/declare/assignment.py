# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A declaration is a value: what would change it is refused."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["check_assignment"]


def check_assignment(op: object, title: str, name: str, options: Collection[str]) -> None:
    """Refuse an assignment to a declaration that would have no effect: it stays what it was.

    Raises:
        AttributeError: `name` is an option or an operand of its calls, or a chain that it has.
    """
    has = vars(op)
    if name in options or name in has.get("slots", ()):
        raise AttributeError(
            f"{title}: {name} cannot be assigned to a declaration; it is given to each call: "
            f"op(..., {name}=...)"
        )
    if name in ("load", "store", "hidden", "constants") and name in has:
        raise AttributeError(
            f"{title}: a declaration does not change, and {name} was given when it was made; "
            f"make another: {type(op).__name__}({name}=...)"
        )
