# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What type checkers see of the ops: what a declaration asks for decides what its calls return.

There is no such module at run time, where `fusedops` has the classes of `ops` and `group_norm`. An
op is generic in its result: `fusedops.Softmax[fusedops.SoftmaxResult]`. Without an argument it is
an op that returns a tensor.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, Literal, Protocol, TypeAlias, overload

from torch import Tensor

from fusedops import group_norm, map, ops, product
from fusedops.declare.results import L2NormResult, NormResult, ResultT, SoftmaxResult
from fusedops.functors import shipped
from fusedops.functors.base import Functor
from fusedops.functors.user import UserFunctor

# Of a functor of another class it is not known whether it saves a stream.
_Plain: TypeAlias = (
    shipped.Affine
    | shipped.Alibi
    | shipped.Bias
    | shipped.Cast
    | shipped.Causal
    | shipped.Dropout
    | shipped.Gate
    | shipped.Gather
    | shipped.Lengths
    | shipped.Mask
    | shipped.Quantize[None]
    | shipped.Residual[None]
    | shipped.Scale
    | shipped.Segments
    | shipped.Softcap
    | UserFunctor
    | shipped.Window
)
_Known: TypeAlias = (
    _Plain | shipped.Quantize[str] | shipped.Residual[str] | shipped.Save | shipped.Tap
)

class Outputs(Protocol):
    """A named tuple whose fields the declaration names, as those of saved streams."""

    @property
    def y(self) -> Tensor: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Tensor: ...
    def __getattr__(self, name: str) -> Tensor: ...

class Softmax(ops.Softmax, Generic[ResultT]):
    @overload
    def __init__(
        self: Softmax[Tensor],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        empty_row: str = ...,
        lse: Literal[False] = ...,
        sink: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Softmax[SoftmaxResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        empty_row: str = ...,
        lse: Literal[True],
        sink: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Softmax[Tensor | SoftmaxResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        empty_row: str = ...,
        lse: bool,
        sink: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Softmax[Outputs],
        load: Iterable[_Known] = ...,
        store: Iterable[_Known] = ...,
        *,
        empty_row: str = ...,
        lse: bool = ...,
        sink: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Softmax[Tensor | Outputs],
        load: Iterable[Functor] = ...,
        store: Iterable[Functor] = ...,
        *,
        empty_row: str = ...,
        lse: bool = ...,
        sink: str | None = ...,
    ) -> None: ...
    def __call__(self, x: Tensor, /, **arguments: Any) -> ResultT: ...
    def unfused(self, x: Tensor, /, **arguments: Any) -> ResultT: ...

class LogSoftmax(ops.LogSoftmax, Softmax[ResultT]):
    @overload
    def __init__(
        self: LogSoftmax[Tensor],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        empty_row: str = ...,
        lse: Literal[False] = ...,
        sink: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: LogSoftmax[SoftmaxResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        empty_row: str = ...,
        lse: Literal[True],
        sink: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: LogSoftmax[Tensor | SoftmaxResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        empty_row: str = ...,
        lse: bool,
        sink: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: LogSoftmax[Outputs],
        load: Iterable[_Known] = ...,
        store: Iterable[_Known] = ...,
        *,
        empty_row: str = ...,
        lse: bool = ...,
        sink: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: LogSoftmax[Tensor | Outputs],
        load: Iterable[Functor] = ...,
        store: Iterable[Functor] = ...,
        *,
        empty_row: str = ...,
        lse: bool = ...,
        sink: str | None = ...,
    ) -> None: ...

class LayerNorm(ops.LayerNorm, Generic[ResultT]):
    @overload
    def __init__(
        self: LayerNorm[Tensor],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: Literal[False] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: LayerNorm[NormResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: Literal[True],
    ) -> None: ...
    @overload
    def __init__(
        self: LayerNorm[Tensor | NormResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: bool,
    ) -> None: ...
    @overload
    def __init__(
        self: LayerNorm[Outputs],
        load: Iterable[_Known] = ...,
        store: Iterable[_Known] = ...,
        *,
        eps: float = ...,
        stats: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: LayerNorm[Tensor | Outputs],
        load: Iterable[Functor] = ...,
        store: Iterable[Functor] = ...,
        *,
        eps: float = ...,
        stats: bool = ...,
    ) -> None: ...
    def __call__(self, x: Tensor, /, **arguments: Any) -> ResultT: ...
    def unfused(self, x: Tensor, /, **arguments: Any) -> ResultT: ...

class RMSNorm(ops.RMSNorm, LayerNorm[ResultT]):
    @overload
    def __init__(
        self: RMSNorm[Tensor],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: Literal[False] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: RMSNorm[NormResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: Literal[True],
    ) -> None: ...
    @overload
    def __init__(
        self: RMSNorm[Tensor | NormResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: bool,
    ) -> None: ...
    @overload
    def __init__(
        self: RMSNorm[Outputs],
        load: Iterable[_Known] = ...,
        store: Iterable[_Known] = ...,
        *,
        eps: float = ...,
        stats: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: RMSNorm[Tensor | Outputs],
        load: Iterable[Functor] = ...,
        store: Iterable[Functor] = ...,
        *,
        eps: float = ...,
        stats: bool = ...,
    ) -> None: ...

class L2Norm(ops.L2Norm, Generic[ResultT]):
    @overload
    def __init__(
        self: L2Norm[Tensor],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: Literal[False] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: L2Norm[L2NormResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: Literal[True],
    ) -> None: ...
    @overload
    def __init__(
        self: L2Norm[Tensor | L2NormResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: bool,
    ) -> None: ...
    @overload
    def __init__(
        self: L2Norm[Outputs],
        load: Iterable[_Known] = ...,
        store: Iterable[_Known] = ...,
        *,
        eps: float = ...,
        stats: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: L2Norm[Tensor | Outputs],
        load: Iterable[Functor] = ...,
        store: Iterable[Functor] = ...,
        *,
        eps: float = ...,
        stats: bool = ...,
    ) -> None: ...
    def __call__(self, x: Tensor, /, **arguments: Any) -> ResultT: ...
    def unfused(self, x: Tensor, /, **arguments: Any) -> ResultT: ...

class Map(map.Map, Generic[ResultT]):
    @overload
    def __init__(
        self: Map[Tensor], load: Iterable[_Plain] = ..., store: Iterable[_Plain] = ...
    ) -> None: ...
    @overload
    def __init__(
        self: Map[Outputs], load: Iterable[_Known] = ..., store: Iterable[_Known] = ...
    ) -> None: ...
    @overload
    def __init__(
        self: Map[Tensor | Outputs], load: Iterable[Functor] = ..., store: Iterable[Functor] = ...
    ) -> None: ...
    def __call__(self, x: Tensor, /, **arguments: Any) -> ResultT: ...
    def unfused(self, x: Tensor, /, **arguments: Any) -> ResultT: ...

class Linear(product.Linear, Generic[ResultT]):
    @overload
    def __init__(self: Linear[Tensor], store: Iterable[_Plain] = ...) -> None: ...
    @overload
    def __init__(self: Linear[Outputs], store: Iterable[_Known] = ...) -> None: ...
    @overload
    def __init__(self: Linear[Tensor | Outputs], store: Iterable[Functor] = ...) -> None: ...
    def __call__(
        self, x: Tensor | None = ..., w: Tensor | None = ..., /, **arguments: Any
    ) -> ResultT: ...
    def unfused(
        self, x: Tensor | None = ..., w: Tensor | None = ..., /, **arguments: Any
    ) -> ResultT: ...

class Matmul(product.Matmul, Generic[ResultT]):
    @overload
    def __init__(self: Matmul[Tensor], store: Iterable[_Plain] = ...) -> None: ...
    @overload
    def __init__(self: Matmul[Outputs], store: Iterable[_Known] = ...) -> None: ...
    @overload
    def __init__(self: Matmul[Tensor | Outputs], store: Iterable[Functor] = ...) -> None: ...
    def __call__(
        self, x: Tensor | None = ..., other: Tensor | None = ..., /, **arguments: Any
    ) -> ResultT: ...
    def unfused(
        self, x: Tensor | None = ..., other: Tensor | None = ..., /, **arguments: Any
    ) -> ResultT: ...

class MLP(product.MLP, Generic[ResultT]):
    @overload
    def __init__(
        self: MLP[Tensor], hidden: Iterable[Functor] = ..., store: Iterable[_Plain] = ...
    ) -> None: ...
    @overload
    def __init__(
        self: MLP[Outputs], hidden: Iterable[Functor] = ..., store: Iterable[_Known] = ...
    ) -> None: ...
    @overload
    def __init__(
        self: MLP[Tensor | Outputs],
        hidden: Iterable[Functor] = ...,
        store: Iterable[Functor] = ...,
    ) -> None: ...
    def __call__(
        self,
        x: Tensor | None = ...,
        w1: Tensor | None = ...,
        w2: Tensor | None = ...,
        /,
        **arguments: Any,
    ) -> ResultT: ...
    def unfused(
        self,
        x: Tensor | None = ...,
        w1: Tensor | None = ...,
        w2: Tensor | None = ...,
        /,
        **arguments: Any,
    ) -> ResultT: ...

class GroupNorm(group_norm.GroupNorm, LayerNorm[ResultT]):
    @overload
    def __init__(
        self: GroupNorm[Tensor],
        num_groups: int,
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: Literal[False] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: GroupNorm[NormResult],
        num_groups: int,
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: Literal[True],
    ) -> None: ...
    @overload
    def __init__(
        self: GroupNorm[Tensor | NormResult],
        num_groups: int,
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: bool,
    ) -> None: ...
    @overload
    def __init__(
        self: GroupNorm[Outputs],
        num_groups: int,
        load: Iterable[_Known] = ...,
        store: Iterable[_Known] = ...,
        *,
        eps: float = ...,
        stats: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: GroupNorm[Tensor | Outputs],
        num_groups: int,
        load: Iterable[Functor] = ...,
        store: Iterable[Functor] = ...,
        *,
        eps: float = ...,
        stats: bool = ...,
    ) -> None: ...

class InstanceNorm(group_norm.InstanceNorm, LayerNorm[ResultT]):
    @overload
    def __init__(
        self: InstanceNorm[Tensor],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: Literal[False] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: InstanceNorm[NormResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: Literal[True],
    ) -> None: ...
    @overload
    def __init__(
        self: InstanceNorm[Tensor | NormResult],
        load: Iterable[_Plain] = ...,
        store: Iterable[_Plain] = ...,
        *,
        eps: float = ...,
        stats: bool,
    ) -> None: ...
    @overload
    def __init__(
        self: InstanceNorm[Outputs],
        load: Iterable[_Known] = ...,
        store: Iterable[_Known] = ...,
        *,
        eps: float = ...,
        stats: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: InstanceNorm[Tensor | Outputs],
        load: Iterable[Functor] = ...,
        store: Iterable[Functor] = ...,
        *,
        eps: float = ...,
        stats: bool = ...,
    ) -> None: ...
