# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What QuACK's `@gemm_epilogue` makes of the STOREs of `gemm`; imported only where QuACK is.

Its processes that compile import this file again, so it imports nothing else of the benchmarks.
Its tiles are found by trial at the first call of each size.
"""

from collections.abc import Callable
from typing import Any

from quack.activation import gelu_tanh_approx, silu, tanh
from quack.epilogue.frontend import gemm_epilogue
from quack.epilogue.ops import RowVecLoad, TileLoad
from torch import Tensor

CAP = 30.0  # That of `stores`.


# A vector could be one of rows or of columns where a product is square, so it is said which.
@gemm_epilogue(ops={"bias": RowVecLoad("bias")})
def activated(acc: Any, bias: Any) -> dict[str, Any]:
    """Bias and GELU by the tanh."""
    return {"D": gelu_tanh_approx(acc + bias)}


@gemm_epilogue()
def capped(acc: Any) -> dict[str, Any]:
    """The softcap."""
    return {"D": tanh(acc * (1 / CAP)) * CAP}


# Said too, or its trials with both factors exchanged would fail but for squares.
@gemm_epilogue(ops={"gate": TileLoad("gate"), "up": TileLoad("up")})
def gated(acc: Any, gate: Any, up: Any) -> dict[str, Any]:
    """The gate by two operands."""
    return {"D": silu(acc + gate) * up}


def biased(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Called like torch's function."""
    return activated(x, w.T, bias=b[None])["D"]  # type: ignore[no-any-return]


def softcapped(x: Tensor, w: Tensor) -> Tensor:
    """Likewise."""
    return capped(x, w.T)["D"]  # type: ignore[no-any-return]


def gated_by(x: Tensor, w: Tensor, g: Tensor, u: Tensor) -> Tensor:
    """Likewise."""
    return gated(x, w.T, gate=g, up=u)["D"]  # type: ignore[no-any-return]


#: By the name of the STORE.
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "bias, GELU": biased,
    "a softcap of one's own": softcapped,
    "a gate of one's own": gated_by,
}


def grouped_swiglu(x: Tensor, w: Tensor, starts: Tensor) -> Tensor:
    """SwiGLU of the product of each group of rows, w having the gate's rows above the others."""
    from quack.gemm_interface import gemm_gated

    options = {"cu_seqlens_m": starts, "store_preact": False, "concat_layout": ("B",)}
    return gemm_gated(x, w.mT, activation="swiglu", **options)[1]  # type: ignore[no-any-return]
