# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The report of `explain` of an op with two products: those of both, and what is kept of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusedops.explain.report import Kept
from fusedops.product.choice import Choice
from fusedops.product.report import ProductExplanation, given

if TYPE_CHECKING:
    from fusedops.product.declaration import ProductOp

__all__ = ["PairExplanation", "explain_pair"]


@dataclasses.dataclass(frozen=True)
class PairExplanation:
    """What a call of an op with two products would run, and why; print it, or read its attributes.

    Attributes:
        op: The declaration that is called.
        first, second: The reports of the two layers, as those of two `Linear`.
        kept: The tensors saved for the backward pass; none if no gradient is wanted. The hidden
            tensor, which the second layer reads, is called h.
        backward: How the gradient of h and what follows of it are run then, and why; None if h is
            kept.
        flops: The floating-point operations of both products.
        bytes: The bytes that must move in the forward pass.
    """

    op: ProductOp
    first: ProductExplanation
    second: ProductExplanation
    kept: tuple[Kept, ...]
    flops: int
    bytes: int
    backward: Choice | None

    @property
    def remade(self) -> bool:
        """Whether h is made again in the backward pass, in place of being kept."""
        return self.backward is not None

    def __str__(self) -> str:
        lines = [f"{type(self.op).__name__}", f"  op    {self.op!r}"]
        lines += [f"  kept  {one}" for one in self.kept]
        if self.backward is not None:
            tiling, why = self.backward
            by = "the kernel that makes its gradient and goes back through hidden"
            if tiling is None:
                made = self.first.store
                by = f"a kernel that moves {0 if made is None else made.bytes} bytes"
            lines.append(
                f"  h     made again from z in the backward pass, by {by}, and not kept ({why})"
            )
        lines.append(f"  bytes {self.bytes} (each element that is touched, once by each kernel)")
        for which, report in (("first", self.first), ("second", self.second)):
            lines += [f"  {line}" for line in f"the {which} layer: {report}".splitlines()]
        return "\n".join(lines)


def explain_pair(
    op: ProductOp,
    first: ProductExplanation,
    second: ProductExplanation,
    backward: Choice | None,
    operands: Mapping[str, Any],
) -> PairExplanation:
    """The report of an op from those of its layers, `backward` as in `PairExplanation`.

    `operands` are those of the first layer.
    """
    kept = [dataclasses.replace(one, name="w1") if one.name == "w" else one for one in first.kept]
    if backward is not None:  # h follows from all of them
        known = {one.name for one in kept}
        kept += [
            given(key, one)
            for key, one in operands.items()
            if isinstance(one, Tensor) and key not in known
        ]
    for one in second.kept:
        if one.name == "x" and backward is not None:
            continue
        names = {"x": "h", "w": "w2", "z": "z2"}
        kept.append(dataclasses.replace(one, name=names.get(one.name, one.name)))
    return PairExplanation(
        op=op,
        first=first,
        second=second,
        kept=tuple(kept),
        flops=first.flops + second.flops,
        bytes=first.bytes + second.bytes,
        backward=backward,
    )
