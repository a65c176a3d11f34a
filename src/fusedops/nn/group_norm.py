# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The norm over groups of channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fusedops import group_norm
from fusedops.bind.scalars import read_int
from fusedops.errors import shortened
from fusedops.nn.base import Declares, check_dtype, declared
from fusedops.nn.norms import affine


class GroupNorm(Declares, nn.GroupNorm):
    r"""``(x - mean) / sqrt(variance + eps) * weight + bias``, as `torch.nn.GroupNorm`.

    x has shape (N, num_channels, ...). Mean and biased variance are those of each group of
    ``num_channels / num_groups`` neighbouring channels with all their spatial dimensions.
    Arguments, parameters, ``state_dict`` and initial values are torch's, and the module is an
    instance of torch's class. Arithmetic is in float32 (float64 where x is), whatever the dtypes of
    x and of the parameters, which may differ; y has x's dtype and is contiguous.

    Args:
        num_groups: How many groups the channels are cut into; it divides num_channels.
        num_channels: The size of x's dimension 1.
        eps: Added to the variance.
        affine: Whether there is a weight, and a bias.
        device: Of the parameters.
        dtype: Of the parameters: half, bfloat16, float or double.
        bias: False leaves the bias out.

    Raises:
        TypeError: If dtype is none of the four, or num_groups no int.
        ValueError: If num_groups does not divide num_channels, or eps is no finite number of at
            least 0.

    Attributes:
        weight, bias: Parameters of shape ``(num_channels,)``, or None.

    >>> import torch, fusedops as fo
    >>> norm = fo.nn.GroupNorm(2, 4)
    >>> norm(torch.tensor([[[0.0], [2.0], [3.0], [7.0]]])).detach().flatten()
    tensor([-1.0000,  1.0000, -1.0000,  1.0000])
    >>> norm.load_state_dict(torch.nn.GroupNorm(2, 4).state_dict())
    <All keys matched successfully>
    """

    _settings = frozenset({"num_groups", "eps", "weight", "bias"})

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        check_dtype("GroupNorm", dtype)
        groups = read_int(num_groups)
        if groups is None:
            raise TypeError(f"GroupNorm: num_groups must be an int, got {shortened(num_groups)}")
        if groups < 1 or num_channels % groups:
            raise ValueError(
                f"GroupNorm: num_groups must be at least 1 and divide num_channels={num_channels}, "
                f"got {groups}"
            )
        super().__init__(groups, num_channels, eps, affine, device, dtype)
        if not bias:  # an argument that not every torch has
            self.register_parameter("bias", None)
        self._settle()

    def reset_parameters(self) -> None:
        """Set the weight to ones and the bias to zeros."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each group of channels.

        Args:
            input: x, ``[N, num_channels, ...]``, half, bfloat16, float or double.

        Returns:
            y, of x's shape and dtype, contiguous.

        Raises:
            TypeError, ValueError: x does not fit; the message says how to mend it.
        """
        y: Tensor = self.op()(input, **self._arguments(input))
        return y

    if TYPE_CHECKING:
        __call__ = forward

    def unfused(self, input: Tensor) -> Tensor:
        """Run `forward` as a chain of torch calls: same results."""
        y: Tensor = self.op().unfused(input, **self._arguments(input))
        return y

    def op(self) -> group_norm.GroupNorm:
        """The declaration that a call runs.

        >>> import fusedops as fo
        >>> fo.nn.GroupNorm(2, 8, affine=False).op()
        GroupNorm(num_groups=2, eps=1e-05, stats=False)
        """
        weight, bias = self.weight is not None, self.bias is not None
        types = type(self.num_groups), type(self.eps)
        settings = ("GroupNorm", self.num_groups, weight, bias, self.eps, *types)
        op: group_norm.GroupNorm | None = declared.get(settings)
        if op is None:
            op = group_norm.GroupNorm(self.num_groups, store=affine(weight, bias), eps=self.eps)
            declared[settings] = op
        return op

    def _declare(self) -> None:
        GroupNorm.op(self)

    def _arguments(self, x: Tensor) -> dict[str, Any]:
        # Without parameters any multiple of num_groups would do for the op.
        if isinstance(x, Tensor) and x.dim() > 1 and x.shape[1] != self.num_channels:
            raise ValueError(
                f"GroupNorm: x of shape {tuple(x.shape)} must have num_channels="
                f"{self.num_channels} channels, the size of its dimension 1"
            )
        arguments: dict[str, Any] = {}
        if self.weight is not None:
            arguments["weight"] = self.weight
        if self.bias is not None:
            arguments["bias"] = self.bias
        return arguments
