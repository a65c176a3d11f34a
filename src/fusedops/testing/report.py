# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The report of `fusedops.testing.check`, and the comparison of a tensor with its error bound."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedops.errors import counted
from fusedops.reference.error_bound import Expected

#: The seed of the inputs that a check draws.
SEED = 20


@dataclasses.dataclass(frozen=True)
class Compared:
    """One compared tensor: its worst element, and the error there as a share of the bound.

    Attributes:
        case: Which inputs.
        what: An output, a gradient, or a property.
        elements: How many there are.
        at: The index of the worst of them; None if there are none.
        got, wanted: What it is, and what it should be.
        share: Of its bound; beyond 1 it is wrong.
    """

    case: str
    what: str
    elements: int
    at: tuple[int, ...] | None
    got: float
    wanted: float
    share: float


@dataclasses.dataclass(frozen=True)
class Report:
    """What `check` compared: prints as one line if all is right, else as a table of what is not."""

    declaration: str
    compared: tuple[Compared, ...]

    @property
    def worst(self) -> Compared:
        """The comparison that is nearest to its bound, or farthest beyond it."""
        return max(self.compared, key=lambda one: one.share)

    @property
    def passed(self) -> bool:
        """Whether every element is within its bound."""
        return self.worst.share <= 1

    def __str__(self) -> str:
        if not self.passed:
            return self._table([one for one in self.compared if one.share > 1])
        worst, name = self.worst, self.declaration.partition("(")[0]
        return (
            f"check of {name}: {counted(len(self.compared), 'comparison')} within bounds, "
            f"worst {worst.share:.2g} of its bound ({worst.what}, {worst.case})"
        )

    __repr__ = __str__

    def table(self) -> str:
        """All comparisons, each with its worst element."""
        return self._table(self.compared)

    def _table(self, told: Sequence[Compared]) -> str:
        head = ("case", "what", "elements", "worst at", "got", "wanted", "of its bound")
        rows = [head]
        for one in told:
            at = "" if one.at is None else str(list(one.at))
            numbers = ("", "") if one.at is None else (f"{one.got:.9g}", f"{one.wanted:.9g}")
            share = f"{one.share:.3g}" + (" OUT" if one.share > 1 else "")
            rows.append((one.case, one.what, str(one.elements), at, *numbers, share))
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        out = sum(one.share > 1 for one in self.compared)
        verdict = f"{out} of {len(self.compared)} are out" if out else "all within the bound"
        return "\n".join([self.declaration, *lines, verdict])


def worst(case: str, what: str, got: Tensor, want: Expected) -> Compared:
    """Compare a result with its bound: the element whose error is the largest share of it."""
    value, allowed = want.value, want.allowed(got.dtype)
    if not got.numel() or got.shape != value.shape:
        of_shape = 0.0 if got.shape == value.shape else math.inf
        return Compared(case, what, got.numel(), None, 0.0, 0.0, of_shape)
    exact = got.double()
    share = (exact - value).abs() / allowed
    # A bound of 0 (a row of zeros) allows exactly what it says.
    share = torch.where((exact == value) | (exact.isnan() & value.isnan()), 0, share)
    # The dtype may end below the truth: half an ulp beyond its last number.
    info = torch.finfo(got.dtype)
    beyond = value.abs() + allowed >= info.max * (1 + info.eps / 4)
    overflow = exact.isinf() & value.isfinite() & (exact.sign() == value.sign())
    share = torch.where(overflow & beyond, 0, share).nan_to_num(math.inf, math.inf)
    flat = int(share.argmax())
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape))
    return Compared(
        case, what, got.numel(), at, exact[at].item(), value[at].item(), share[at].item()
    )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two results have the same bits."""
    bits = [tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in (a, b)]
    return torch.equal(*bits)


def narrowed(
    given: Mapping[str, Any],
    shape: Sequence[int],
    sizes: Mapping[int, int],
    tables: Mapping[str, Any],
    whole: Sequence[str] = (),
) -> dict[str, Any]:
    """Narrow tensors that broadcast against a shape as dimensions of the shape are narrowed.

    The last elements of a dimension stay, so that what is narrowed is seldom aligned.

    `sizes` are the new ones of some dimensions. `tables` names the tables among the tensors, which
    functors look up by an index, `whole` the tensors that stay as they are.
    """
    found = {**given}
    for key, value in given.items():
        if not isinstance(value, Tensor) or key in whole or key in tables:
            continue
        for dim, size in sizes.items():
            own = dim - len(shape)
            if -own <= value.dim() and value.shape[own] == shape[dim] != size:
                found[key] = found[key].narrow(own, shape[dim] - size, size)
    for key, table in tables.items():
        dim = -1 if table.dim is None else table.dim % len(shape)
        if key in found and dim in sizes and found[key].shape[1] == shape[dim]:
            found[key] = found[key][:, shape[dim] - sizes[dim] :]
    return found
