# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The ops with nothing around them but a norm's parameters or a residual, fused and in torch."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from points import RESIDUAL
from torch import Tensor
from torch.nn import functional

import fusedops as fo

LAYER_NORM_EPS = 1e-5
RMS_NORM_EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class Plain:
    """An op of the sweeps and of `beside`.

    Attributes:
        op: The fused op.
        parameters: The names of its operands, vectors over the columns.
        torch: The same in torch: x, then the operands.
        streams: The names of operands of x's shape, which come before the parameters; each of them
            is an output as well.
    """

    op: Any
    parameters: tuple[str, ...]
    torch: Callable[..., Any]
    streams: tuple[str, ...] = ()

    def fused(self, x: Tensor, *operands: Tensor) -> Any:
        """One call of the op."""
        names = (*self.streams, *self.parameters)
        return self.op(x, **dict(zip(names, operands, strict=True)))


def _layer_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], gamma, beta, LAYER_NORM_EPS)


def _rms_norm(x: Tensor, gamma: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], gamma, RMS_NORM_EPS)


def _residual_rms_norm(x: Tensor, r: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    stream = x + r
    return _rms_norm(stream, gamma), stream


PLAIN = {
    "softmax": Plain(fo.Softmax(), (), lambda x: torch.softmax(x, -1)),
    "log_softmax": Plain(fo.LogSoftmax(), (), lambda x: torch.log_softmax(x, -1)),
    "layer_norm": Plain(
        fo.LayerNorm(store=[fo.Affine("gamma", "beta")], eps=LAYER_NORM_EPS),
        ("gamma", "beta"),
        _layer_norm,
    ),
    "rms_norm": Plain(
        fo.RMSNorm(store=[fo.Affine("gamma")], eps=RMS_NORM_EPS), ("gamma",), _rms_norm
    ),
    RESIDUAL: Plain(
        fo.RMSNorm(
            load=[fo.Residual("r", save="stream")], store=[fo.Affine("gamma")], eps=RMS_NORM_EPS
        ),
        ("gamma",),
        _residual_rms_norm,
        ("r",),
    ),
}
