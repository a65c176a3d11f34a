# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What torch's transformations ask of the operators and do not get: errors with a cure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fusedops.declare.text import read
from fusedops.errors import UnsupportedError

__all__ = ["refuse_second", "refuse_vmap"]


def refuse_second(ctx: Any, incoming: Sequence[Tensor | None]) -> None:
    """Raise UnsupportedError for a second derivative."""
    raise UnsupportedError(
        f"{ctx.name}: a fused op has a first derivative only, and a second was asked for; use "
        "op.unfused, which torch differentiates as often as you like"
    )


def refuse_vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
    """Raise UnsupportedError under vmap."""
    texts = [one for one in arguments if isinstance(one, str)]
    name = read(texts[0]).name if texts else "dropout"
    raise UnsupportedError(
        f"{name}: torch.func.vmap does not see into a fused kernel; use op.unfused under it, or "
        "give the op one more dimension: all before the reduced one are rows"
    )
