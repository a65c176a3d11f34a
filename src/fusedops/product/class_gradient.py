# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of a block's logits as the epilogue of the product that makes them."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from fusedops.functors.class_gradient import ClassGradient
from fusedops.product.linear import Linear

__all__ = ["gradient_of_product", "product_with_gradient"]


@functools.cache
def product_with_gradient() -> Linear:
    """A product whose STORE is the gradient."""
    return Linear(store=[ClassGradient()])


def gradient_of_product(
    loss: Any, x: Tensor, w: Tensor, lse: Tensor, label: Tensor, of_loss: Tensor
) -> Tensor | None:
    """The gradient of a loss by the logits ``x @ w.T``, which are not written.

    None where a product and a kernel after it are faster, or no one kernel has this loss.

    Args:
        loss: The `CrossEntropy` of each row.
        x: All rows.
        w: The weights of some classes.
        lse: The logarithm of each row's sum, of shape (rows, 1); +inf where it is ignored.
        label: The class of each row, counted from the first of these, of shape (rows, 1).
        of_loss: The gradient of each row's loss.
    """
    if loss.load or loss.constants["label_smoothing"] > 0 or loss.constants["z_loss"] > 0:
        return None
    product = product_with_gradient()
    given = {"lse": lse, "of_loss": of_loss[:, None], "label": label}
    if not product.fuses(x, w, given):
        return None
    found: Tensor = product(x, w, **given)
    return found
