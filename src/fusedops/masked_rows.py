# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Reference of norms with masks in torch: statistics over the unmasked elements of each row.

May import: nothing of fusedops.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["PresentRows"]


class PresentRows:
    """The rows of a tensor without their masked elements, which are zero, and zero in any result.

    Attributes:
        count: How many elements of each row are left, of size 1 in the last dimension.
        value: The rows, with 0 for what is masked.
    """

    def __init__(self, value: Tensor, masked: bool) -> None:
        """`masked` says whether there are masks; otherwise -inf is a value like any other."""
        present = value != -torch.inf if masked else torch.ones_like(value, dtype=torch.bool)
        self._present = present if masked else None
        self.count = present.sum(-1, keepdim=True).to(value.dtype)
        self.value = self.within(value)

    def within(self, value: Tensor) -> Tensor:
        """A tensor of the rows' shape with zeros where they are masked, by selection."""
        if self._present is None:
            return value
        return torch.where(self._present, value, torch.zeros_like(value))

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the unmasked elements of each row; NaN if there are none."""
        return self.within(value).sum(-1, keepdim=True) / self.count

    def normalized(self, *, eps: float, centred: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """A LayerNorm, or an RMSNorm where it is not centred: the result, and mean and rstd."""
        mean = self.mean(self.value)
        apart = self.value
        if centred:
            apart = self.within(apart - mean)
            # The rounding of a mean far above the deviations would show in all of them.
            apart = self.within(apart - self.mean(apart))
        rstd = torch.rsqrt(self.mean(apart.square()) + eps)
        of_rows = mean[..., 0] if centred else torch.zeros_like(rstd[..., 0])
        return self.within(apart * rstd), {"mean": of_rows, "rstd": rstd[..., 0]}
