# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of a block's logits in the epilogue of the product that makes them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from fusedops.functors import functor, position
from fusedops.product.linear import Linear

__all__ = ["gradient_of_product"]


@functools.cache
def _product() -> Linear:
    """A product whose STORE is the gradient; made when a call needs it."""

    @functor(integers=["label"])
    def class_gradient(z: Tensor, lse: Tensor, of_loss: Tensor, label: Tensor) -> Tensor:
        """``of_loss * (softmax(z) - 1 at the label)``, lse being the logarithm of the row's sum."""
        p = torch.exp(z - lse) * of_loss
        gradient = torch.where(position(-1) == label, p - of_loss, p)
        return torch.where((lse == torch.inf) | (z == -torch.inf), 0.0, gradient)

    return Linear(store=[class_gradient("lse", "of_loss", "label")])


def gradient_of_product(
    loss: Any, x: Tensor, w: Tensor, kept: Tensor, label: Tensor, of_loss: Tensor
) -> Tensor | None:
    """The gradient of the loss by the logits ``x @ w.T``, which are not written.

    None where a product and a kernel after it are faster, or no one kernel has this loss.

    Args:
        loss: The `CrossEntropy` of each row.
        x: All rows.
        w: The weights of some classes.
        kept: The numbers of each row that the gradient is made of.
        label: The class of each row, counted from the first of these.
        of_loss: The gradient of each row's loss.
    """
    if loss.load or loss.constants["label_smoothing"] > 0 or loss.constants["z_loss"] > 0:
        return None
    if x.device.type != "cuda":
        return None
    product = _product()
    given = {"lse": kept.sum(-1, keepdim=True), "of_loss": of_loss[:, None], "label": label}
    if not product.fuses(x, w, given):
        return None
    found: Tensor = product(x, w, **given)
    return found
