# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The op without a reduction: functors from LOAD to result, in one kernel.

May import: functors, row_op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from fusedops.functors import Functor
from fusedops.row_op import RowOp


def only_in_store(functor: Functor) -> bool:
    """Whether a functor cannot stand in a LOAD, and so begins the store of a `Map`."""
    last = functor.quantizes is not None or functor.block is not None
    return last or functor.taps is not None


class Map(RowOp):
    """``y = load(x)``: a chain of functors without a reduction, in one kernel.

    x and y move once, in either pass, and so do operands of x's size. Nothing is saved for the
    backward pass but tensors that exist anyway; values are recomputed, dropout masks drawn again.

    The shapes, dtypes, operands and options of a call ``op(x, ...)`` are described at `RowOp`. What
    counts columns, masks and dropouts, counts them along ``dim``.

    Args:
        load: The functors applied to x, in order; none by default, which makes a copy of x.
        store: Empty, unless the chain has a `Tap` or a `Quantize`, which stand in a STORE alone:
            then it begins with the first. All else that would stand there stands at the end of
            `load`.

    An element that a mask such as `Mask` or `Causal` takes out is -inf, and its gradient is zero;
    so scores can be masked by a `Map`. What is -inf by itself is a value like any other. So masks
    alone need no x in the backward pass: it is read if some functor's gradient reads its input.

    Raises:
        TypeError: load holds something that is no functor, or an argument is unknown.
        ValueError: store begins with another functor than a Tap or a Quantize.

    >>> import torch, fusedops as fo
    >>> op = fo.Map(load=[fo.Bias("b"), fo.Residual("r")])
    >>> op(torch.ones(2, 2), b=torch.tensor([0.0, 1.0]), r=torch.full((2, 2), 3.0))
    tensor([[4., 5.],
            [4., 5.]])
    """

    header = "op/map.cuh"
    gradient_header = "op/map.cuh"
    kept = 0
    reduces = False
    masks = True
    pairs = True

    def __init__(self, load: Iterable[Functor] = (), store: Iterable[Functor] = ()) -> None:
        super().__init__(load, store)
        taps = [place for place, functor in enumerate(self.store) if only_in_store(functor)]
        if self.store and taps[:1] != [0]:
            first = taps[0] if taps else len(self.store)
            rest = f", store={list(self.store[first:])!r}" if taps else ""
            raise ValueError(
                f"{self.name}: store must be empty or begin with a Tap or a Quantize, got "
                f"{list(self.store)!r}: no reduction stands between load and store; write "
                f"load={[*self.load, *self.store[:first]]!r}{rest}"
            )

    def reference(self, value: Tensor, *operands: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return value, {}

    def cpp(self, compute: str, *operands: str) -> str:
        return f"Map<{compute}, {str(self.masked).lower()}>"

    def gradient_cpp(self, compute: str, *operands: str) -> str:
        return f"MapGradient<{compute}, {str(self.masked).lower()}>"

    def gradient_sizes(
        self, value: Tensor, result: Tensor, upstream: Tensor, statistics: Mapping[str, Tensor]
    ) -> Tensor | None:
        return upstream
