# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Who computes the plain ops: fusedops, and the peers that are installed.

Each is called the way its own documentation calls it. A backward is the engine's, run for a kept
forward, unless a peer has none that the engine knows.
"""

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any

import torch
from plain import LAYER_NORM_EPS, PLAIN, RMS_NORM_EPS
from points import LONG, MAIN, SHORT, Point
from timing import Call
from torch import Tensor

Function = Callable[..., Tensor]


class SkipError(Exception):
    """A peer does not do this, and why."""


class Rival:
    """Someone who computes the plain ops; `by` is the name in tables."""

    by = "fusedops"
    distribution = "fusedops"
    module = "fusedops"
    #: At which columns of the sweep it runs; None for all.
    columns: frozenset[int] | None = None

    def version(self) -> str:
        """What is installed; SkipError if it is not, or cannot be imported."""
        try:
            version = importlib.metadata.version(self.distribution)
            importlib.import_module(self.module)
        except importlib.metadata.PackageNotFoundError:
            raise SkipError(f"{self.distribution} is not installed") from None
        except Exception as error:  # Such as a library of its own that is missing.
            raise SkipError(f"{self.distribution} cannot be imported: {error!r}"[:160]) from None
        return f"{self.distribution} {version}"

    def function(self, point: Point) -> Function:
        """The forward: x, then the parameters. SkipError if there is none."""
        return PLAIN[point.op].fused

    def parameters(self, point: Point, given: Sequence[Tensor]) -> Sequence[Tensor]:
        """The parameters in the type that the forward wants."""
        return given

    @torch.enable_grad()
    def backward(
        self, point: Point, function: Function, x: Tensor, dy: Tensor, parameters: Sequence[Tensor]
    ) -> Call:
        """The backward of a forward that is run here: all gradients."""
        inputs = [each.detach().requires_grad_() for each in (x, *parameters)]
        y = function(*inputs)
        return functools.partial(torch.autograd.grad, y, inputs, dy, retain_graph=True)


class Eager(Rival):
    """Torch's own operators."""

    by = "torch eager"
    distribution = module = "torch"

    def function(self, point: Point) -> Function:
        return PLAIN[point.op].torch


class Compiled(Eager):
    """torch.compile for this very shape."""

    by = "torch.compile"
    mode: str | None = None

    def function(self, point: Point) -> Function:
        from torch._functorch import config

        # A backward that may reuse what its forward kept cannot be run more than once.
        config.donated_buffer = False
        torch._dynamo.reset()  # One shape must not become the general case of another.
        compiled: Function = torch.compile(PLAIN[point.op].torch, dynamic=False, mode=self.mode)
        return compiled


class Autotuned(Compiled):
    """The same with kernels chosen by trial, which takes seconds a point: at few columns."""

    by = "torch.compile, max-autotune"
    mode = "max-autotune-no-cudagraphs"
    columns = frozenset((128, 1024, 4096, 16384, 50257, 131072))


class Liger(Rival):
    """Triton kernels for training."""

    by = "Liger"
    distribution = "liger-kernel"
    module = "liger_kernel.ops"

    def function(self, point: Point) -> Function:
        if point.op == "log_softmax":
            raise SkipError("Liger has no log-softmax")
        if point.columns > 65536:
            raise SkipError("Liger ends at 65536 columns")
        from liger_kernel import ops

        apply: dict[str, Function] = {
            "softmax": ops.LigerSoftmaxFunction.apply,
            "layer_norm": lambda x, *vectors: ops.LigerLayerNormFunction.apply(
                x, *vectors, LAYER_NORM_EPS
            ),
            "rms_norm": lambda x, gamma: ops.LigerRMSNormFunction.apply(x, gamma, RMS_NORM_EPS),
        }
        return apply[point.op]

    def backward(
        self, point: Point, function: Function, x: Tensor, dy: Tensor, parameters: Sequence[Tensor]
    ) -> Call:
        # The RMSNorm writes its gradient over dy, which others read.
        own = dy.clone() if point.op == "rms_norm" else dy
        return super().backward(point, function, x, own, parameters)


class Quack(Rival):
    """CuTe DSL kernels for Hopper and later."""

    by = "QuACK"
    distribution = "quack-kernels"
    module = "quack"

    def function(self, point: Point) -> Function:
        if point.op == "log_softmax":
            raise SkipError("QuACK has no log-softmax")
        # What it cannot read in whole packs may leave the device unusable for all others.
        if point.columns % 8:
            raise SkipError("QuACK wants columns that 8 divides")
        rows = importlib.import_module("quack.softmax" if "soft" in point.op else "quack.rmsnorm")
        if point.op == "softmax":
            return rows.softmax  # type: ignore[no-any-return]
        if point.op == "layer_norm":
            return functools.partial(rows.layernorm_fwd, eps=LAYER_NORM_EPS)
        return functools.partial(rows.rmsnorm, eps=RMS_NORM_EPS)

    def parameters(self, point: Point, given: Sequence[Tensor]) -> Sequence[Tensor]:
        return [each.float() for each in given] if point.op == "layer_norm" else given

    def backward(
        self, point: Point, function: Function, x: Tensor, dy: Tensor, parameters: Sequence[Tensor]
    ) -> Call:
        if point.op != "layer_norm":
            return super().backward(point, function, x, dy, parameters)
        gamma, _ = parameters  # Its LayerNorm is two functions and no part of autograd.
        kept: Any = function(x, *parameters, return_rstd=True, return_mean=True)
        _, rstd, mean = kept
        rows = importlib.import_module("quack.rmsnorm")
        return functools.partial(rows.layernorm_bwd, x, gamma, dy, rstd, mean, has_bias=True)


FUSEDOPS = Rival()
PEERS: dict[str, Rival] = {
    "eager": Eager(),
    "compile": Compiled(),
    "autotune": Autotuned(),
    "liger": Liger(),
    "quack": Quack(),
}
#: Where the peers of the sweep are measured, in float16.
PEER_COLUMNS = (*SHORT, *MAIN, 1000, 5120, 50257, *LONG)
