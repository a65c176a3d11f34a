# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Who computes the plain ops: fusedops, and the peers that are installed.

Each is called by the functions that it offers to its users, and imported when it is asked for its
version. A backward is the engine's, run for a kept forward, unless a peer has none that the engine
knows.
"""

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any

import torch
from plain import LAYER_NORM_EPS, PLAIN, RMS_NORM_EPS
from points import LONG, MAIN, RESIDUAL, SHORT, Point
from timing import Call
from torch import Tensor

Function = Callable[..., Any]


Tensors = Sequence[Tensor]


class SkipError(Exception):
    """A peer does not do this, and why."""


class Rival:
    """Someone who computes the plain ops.

    Attributes:
        by: The name in tables.
        distribution, module: What is installed, and what is imported of it.
        columns: At which columns it runs; None for all.
        tried: Whether its kernels are chosen by trial, which wants the machine for itself.
        wide: Whether parameters of a LayerNorm have to be float32.
    """

    by = "fusedops"
    distribution = "fusedops"
    module = "fusedops"
    columns: frozenset[int] | None = None
    tried = False
    wide = False

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
        """The forward: x, other operands of its shape, the parameters. SkipError if it has none."""
        return PLAIN[point.op].fused

    def parameters(self, point: Point, given: Tensors) -> Tensors:
        """The parameters in the type that the forward wants."""
        wide = self.wide and point.op == "layer_norm"
        return [each.float() for each in given] if wide else given

    @torch.enable_grad()
    def backward(
        self, point: Point, function: Function, given: Tensors, upstream: Tensors, vectors: Tensors
    ) -> Call:
        """The backward of a forward that is run here: all gradients.

        Args:
            point: What is measured.
            function: The forward.
            given: x, and other operands of its shape.
            upstream: A gradient for each output.
            vectors: The parameters.
        """
        inputs = [each.detach().requires_grad_() for each in (*given, *vectors)]
        results = function(*inputs)
        outputs = [results] if isinstance(results, Tensor) else list(results)
        return functools.partial(torch.autograd.grad, outputs, inputs, upstream, retain_graph=True)


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
    tried = True
    columns = frozenset((128, 1024, 4096, 16384, 50257, 131072))


class Liger(Rival):
    """Triton kernels for training."""

    by = "Liger"
    distribution = "liger-kernel"
    module = "liger_kernel.functional"
    implementation = "nvidia-triton"

    def function(self, point: Point) -> Function:
        if point.op == "log_softmax":
            raise SkipError("Liger has no log-softmax")
        if point.columns > 65536:
            raise SkipError("Liger ends at 65536 columns")
        functional = importlib.import_module("liger_kernel.functional")
        way = {"impl": self.implementation}
        if point.op == RESIDUAL:
            add = functional.fused_add_rms_norm
            return lambda x, r, gamma: add(x, r, gamma, RMS_NORM_EPS, **way)
        given = {"layer_norm": {"eps": LAYER_NORM_EPS}, "rms_norm": {"eps": RMS_NORM_EPS}}
        return functools.partial(getattr(functional, point.op), **given.get(point.op, {}), **way)


class LigerCute(Liger):
    """Its kernels in CuTe DSL, which it prefers where nvidia-cutlass-dsl is installed."""

    by = "Liger, CuTe DSL"
    module = "liger_kernel.ops.backends._cutedsl.rms_norm"
    implementation = "nvidia-cutedsl"


class Quack(Rival):
    """CuTe DSL kernels for Hopper and later."""

    by = "QuACK"
    distribution = "quack-kernels"
    module = "quack"
    wide = True

    def function(self, point: Point) -> Function:
        if point.op == "log_softmax":
            raise SkipError("QuACK has no log-softmax")
        # What it cannot read in whole packs may leave the device unusable for all others.
        if point.columns % 8:
            raise SkipError("QuACK wants columns that 8 divides")
        if point.op == "softmax":
            return importlib.import_module("quack.softmax").softmax  # type: ignore[no-any-return]
        rows = importlib.import_module("quack.rmsnorm")
        if point.op == "layer_norm":
            return functools.partial(rows.layernorm_fwd, eps=LAYER_NORM_EPS)
        norm = functools.partial(rows.rmsnorm, eps=RMS_NORM_EPS)
        if point.op == RESIDUAL:
            return lambda x, r, gamma: norm(x, gamma, residual=r, prenorm=True)
        return norm

    def backward(
        self, point: Point, function: Function, given: Tensors, upstream: Tensors, vectors: Tensors
    ) -> Call:
        if point.op != "layer_norm":
            return super().backward(point, function, given, upstream, vectors)
        (x,), (dy,), (gamma, _) = given, upstream, vectors
        # Its LayerNorm is two functions and no part of autograd.
        _, rstd, mean = function(x, *vectors, return_rstd=True, return_mean=True)
        rows = importlib.import_module("quack.rmsnorm")
        return functools.partial(rows.layernorm_bwd, x, gamma, dy, rstd, mean, has_bias=True)


class QuackTuned(Quack):
    """Its norms by the best of its configurations, as its autotuner finds and keeps them."""

    by = "QuACK, tuned"
    columns = frozenset((1024, 4096, 8192, 16384))
    tried = True

    def function(self, point: Point) -> Function:
        if point.op not in ("layer_norm", "rms_norm", RESIDUAL):
            raise SkipError("QuACK has no tuned one")
        layer, forward = point.op == "layer_norm", _tuned("rmsnorm_fwd_tuned")
        options = {"eps": LAYER_NORM_EPS if layer else RMS_NORM_EPS, "is_layernorm": layer}

        def norm(x: Tensor, gamma: Tensor, beta: Tensor | None = None) -> Tensor:
            y = torch.empty_like(x)
            forward(x, gamma, y, bias=beta, **options)
            return y

        def residual(x: Tensor, r: Tensor, gamma: Tensor) -> Tensors:
            y, stream = torch.empty_like(x), torch.empty_like(x)
            forward(x, gamma, y, residual=r, residual_out=stream, **options)
            return y, stream

        return residual if point.op == RESIDUAL else norm

    def backward(
        self, point: Point, function: Function, given: Tensors, upstream: Tensors, vectors: Tensors
    ) -> Call:
        rows, backward = importlib.import_module("quack.rmsnorm"), _tuned("rmsnorm_bwd_tuned")
        gamma, *beta = vectors
        x = sum(given[1:], given[0])
        if beta:
            _, rstd, mean = rows.layernorm_fwd(
                x, gamma, *beta, eps=LAYER_NORM_EPS, return_rstd=True, return_mean=True
            )
        else:
            *_, rstd = rows.rmsnorm_fwd(x, gamma, eps=RMS_NORM_EPS, store_rstd=True)
            mean = None
        dy, dstream = (*upstream, None)[:2]
        blocks = rows.get_sm_count(point.columns, x.device)
        options = {"mean": mean, "is_layernorm": bool(beta), "has_db_partial": bool(beta)}

        def called() -> Tensors:
            dx = torch.empty_like(x)
            parts = [x.new_empty(blocks, point.columns, dtype=torch.float32) for _ in vectors]
            backward(
                *(x, gamma, dy, rstd, dx, *(*parts, None)[:2]),
                dresidual_out=dstream,
                has_dw_partial=True,
                **options,
            )
            sums = [part.sum(0).to(gamma.dtype) for part in parts]
            return *[dx for _ in given], *sums

        return called


@functools.cache
def _tuned(name: str) -> Any:
    """QuACK's autotuner of a function, over a part of its configurations."""
    triton = importlib.import_module("triton")
    autotuner = importlib.import_module("quack.autotuner")
    whole = getattr(importlib.import_module("quack.rmsnorm"), name)

    def part(configs: Sequence[Any], named: dict[str, Any], **others: Any) -> list[Any]:
        columns = named["x"].shape[-1]
        fitting = whole.early_config_prune(configs, named, **others)
        return [each for each in fitting if _worth_a_trial(each.kwargs["config"], columns)]

    return autotuner.autotune(
        whole.configs,
        whole.keys,
        {"early_config_prune": part},
        do_bench=functools.partial(triton.testing.do_bench, warmup=5, rep=20),
    )(whole.fn)


def _worth_a_trial(config: Any, columns: int) -> bool:
    """Whether an H200 may do best by this: all are some hundreds a shape, of which most are slow.

    A thread has 8 to 64 elements of a row, a block 4096 columns or more. Backward, x is not read
    again, and three stages are TMA's.
    """
    elements = columns // (config.threads_per_row * config.cluster_n)
    if not 8 <= elements <= 64 or config.cluster_n > max(1, columns // 4096):
        return False
    if hasattr(config, "reload_from"):
        return config.reload_from != "gmem"
    return config.reload_x is None and (config.use_tma or config.smem_stages == 2)


class Cudnn(Rival):
    """cuDNN's norms, as its frontend builds a graph of each once a shape: by heuristic A."""

    by = "cuDNN"
    distribution = "nvidia-cudnn-frontend"
    module = "cudnn.ops.norm.rmsnorm"
    wide = True

    def function(self, point: Point) -> Function:
        norm = importlib.import_module("cudnn.ops.norm")
        if point.op == "rms_norm":
            return functools.partial(norm.rms_norm, eps=RMS_NORM_EPS)
        if point.op == "layer_norm":
            shape = (point.columns,)
            return lambda x, *vectors: norm.layer_norm(x, shape, *vectors, eps=LAYER_NORM_EPS)
        raise SkipError("cuDNN's frontend has norms alone, without a residual")


class FlashInfer(Rival):
    """Norms for serving: forward alone, some of them in place."""

    by = "FlashInfer"
    distribution = "flashinfer-python"
    module = "flashinfer.norm"
    wide = True

    def function(self, point: Point) -> Function:
        if point.direction == "backward":
            raise SkipError("FlashInfer has no backward")
        norm = importlib.import_module("flashinfer.norm")
        if point.op == "rms_norm":
            return functools.partial(norm.rmsnorm, eps=RMS_NORM_EPS)
        if point.op == "layer_norm":
            return functools.partial(norm.layernorm, eps=LAYER_NORM_EPS)
        if point.op != RESIDUAL:
            raise SkipError("FlashInfer has norms alone")
        copies: dict[int, Tensors] = {}  # It writes over both operands, which others read.

        def added(x: Tensor, r: Tensor, gamma: Tensor) -> Tensors:
            if x.data_ptr() not in copies:
                copies[x.data_ptr()] = x.clone(), r.clone()
            own = copies[x.data_ptr()]
            norm.fused_add_rmsnorm(*own, gamma, RMS_NORM_EPS)
            return own

        return added


FUSEDOPS = Rival()
PEERS: dict[str, Rival] = {
    "eager": Eager(),
    "compile": Compiled(),
    "autotune": Autotuned(),
    "liger": Liger(),
    "liger_cute": LigerCute(),
    "quack": Quack(),
    "quack_tuned": QuackTuned(),
    "cudnn": Cudnn(),
    "flashinfer": FlashInfer(),
}
#: Where the peers of the sweep are measured, in float16.
PEER_COLUMNS = (*SHORT, *MAIN, 1000, 5120, 50257, *LONG)
