# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What follows a matrix product in `gemm`, as declarations and in torch.

A bias and a GELU; bias, dropout and residual, saved; two functors of a user's own, beside what
torch.compile finds by trial; and a feed-forward block.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import fusedops as fo
from fusedops.schedule.launch import ProductConfig
from fusedops.testing import force_launch

P, CAP = 0.1, 30.0

#: torch.compile's trials. Its graphs are left out: they would copy every x into memory of theirs.
TRIALS = {"mode": "max-autotune-no-cudagraphs"}


@fo.functor
def gelu(v: Tensor) -> Tensor:
    """GELU by tanh, as cuBLASLt has it."""
    return functional.gelu(v, approximate="tanh")


@fo.functor
def softcap(v: Tensor) -> Tensor:
    """Values within a cap, as of logits."""
    return CAP * torch.tanh(v / CAP)


@fo.functor(hardware_tanh=True)
def hardware_gelu(v: Tensor) -> Tensor:
    """The same GELU by a GPU's own tanh, as QuACK has it."""
    return functional.gelu(v, approximate="tanh")


@fo.functor(hardware_tanh=True)
def hardware_softcap(v: Tensor) -> Tensor:
    """Likewise."""
    return CAP * torch.tanh(v / CAP)


@fo.functor
def gated(v: Tensor, g: Tensor, u: Tensor) -> Tensor:
    """A gate like SwiGLU's, by two operands of the product's size."""
    return functional.silu(v + g) * u


def activated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Bias and GELU in torch."""
    return functional.gelu(functional.linear(x, w, b), approximate="tanh")


def joined(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """Bias, dropout and residual in torch."""
    return functional.dropout(functional.linear(x, w, b), P) + r


def capped(x: Tensor, w: Tensor) -> Tensor:
    """The softcap in torch."""
    return CAP * torch.tanh(functional.linear(x, w) / CAP)


def gated_by(x: Tensor, w: Tensor, g: Tensor, u: Tensor) -> Tensor:
    """The gate in torch."""
    return functional.silu(functional.linear(x, w) + g) * u


def block(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """The feed-forward block in torch."""
    return joined(activated(x, w1, b1), w2, b2, x)


def cublaslt(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Bias and GELU in cuBLASLt's epilogue, which torch has for a tanh alone."""
    return torch._addmm_activation(b, x, w.T, use_gelu=True)


class Store(NamedTuple):
    """What follows a product.

    Attributes:
        op: The declaration.
        plain: The same in torch: x, w, then the operands.
        operands: The operands of both, in that order, a letter each: b has a row's size, others
            have the product's.
        numbers: Operands that are numbers.
        compiled: Options of torch.compile, and the name of that way.
        others: Further ways by name.
        again: Whether it computes the same at each call.
        hardware: The declaration by a GPU's own tanh, where it has one.
    """

    op: fo.Linear
    plain: Callable[..., Tensor]
    operands: str = ""
    numbers: Mapping[str, float] = {}
    compiled: tuple[str, Mapping[str, Any]] = ("torch.compile", {})
    others: Mapping[str, Callable[..., Tensor]] = {}
    again: bool = True
    hardware: fo.Linear | None = None

    def fused(self, given: Mapping[str, Tensor], implementation: str = "") -> Any:
        """A call by some implementation, or by the one that is chosen."""
        with force_launch(product=ProductConfig(implementation) if implementation else None):
            return self.by_op(self.op, given)

    def by_op(self, op: fo.Linear, given: Mapping[str, Tensor]) -> Any:
        """A call of one of the declarations."""
        operands = {name: given[name] for name in self.operands}
        return op(given["x"], given["w"], **operands, **self.numbers)

    def by_torch(self, call: Callable[..., Any], given: Mapping[str, Tensor]) -> Any:
        """A call of a function of torch's."""
        return call(given["x"], given["w"], *(given[name] for name in self.operands))


BY_TRIAL = ("torch.compile, max-autotune", TRIALS)
STORES = {
    "bias, GELU": Store(
        fo.Linear(store=[fo.Bias("b"), gelu()]),
        activated,
        "b",
        others={"cuBLASLt's epilogue": cublaslt},
        hardware=fo.Linear(store=[fo.Bias("b"), hardware_gelu()]),
    ),
    "bias, dropout, residual": Store(
        fo.Linear(store=[fo.Bias("b"), fo.Dropout("p"), fo.Residual("r", save="stream")]),
        joined,
        "br",
        {"p": P},
        again=False,
    ),
    "a softcap of one's own": Store(
        fo.Linear(store=[softcap()]),
        capped,
        compiled=BY_TRIAL,
        hardware=fo.Linear(store=[hardware_softcap()]),
    ),
    "a gate of one's own": Store(
        fo.Linear(store=[gated("g", "u")]), gated_by, "gu", compiled=BY_TRIAL
    ),
}
MLP = fo.MLP(
    hidden=[fo.Bias("b1"), gelu()],
    store=[fo.Bias("b2"), fo.Dropout("p"), fo.Residual("r")],
)
LAYERS = fo.Linear(MLP.hidden), fo.Linear(MLP.store)


def fused_block(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Any:
    """The feed-forward block as one declaration."""
    return MLP(x, w1, w2, b1=b1, b2=b2, p=P, r=x)


def block_by_layers(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Any:
    """The feed-forward block as two."""
    return LAYERS[1](LAYERS[0](x, w1, b1=b1), w2, b2=b2, p=P, r=x)
