# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What norms over groups of channels and all spatial dimensions are: LayerNorms on views.

An x of shape (N, C, ...) is viewed as (N, G, C / G, ...), of which the first two dimensions count
the rows and the others make one, and so are its operands: the kernels are those of a `LayerNorm`,
and nothing is copied for the view.

May import: errors, _runtime, functors, declare, bind, run, row_op, ops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fusedops._runtime import Reason
from fusedops.bind.bind import Bound, bind, check_names
from fusedops.bind.operands import check_layouts, check_tensor
from fusedops.bind.scalars import read_ints
from fusedops.declare.chains import parted
from fusedops.declare.text import spell
from fusedops.errors import UnsupportedError, shortened
from fusedops.functors import Functor
from fusedops.ops import LayerNorm
from fusedops.row_op import RowOp
from fusedops.run.forward import make_plan
from fusedops.run.placing import columns_apart
from fusedops.run.refusal import refuse

__all__ = ["_ChannelNorm"]


class _Rows(LayerNorm):
    """The LayerNorm that a norm of channels is, once x is viewed; errors name the latter.

    As text, which programs are saved with, it is a plain LayerNorm.
    """

    def __init__(self, of: _ChannelNorm) -> None:
        self._of = type(of).__name__
        self.declaration = of.declaration
        constants = {"eps": float(of.constants["eps"]), "stats": bool(of.constants["stats"])}
        super().__init__(of.load, of.store, **constants)  # type: ignore[arg-type]
        self._plain = LayerNorm(of.load, of.store, **constants)  # type: ignore[arg-type]
        self.text = spell(self._plain)

    def of(self, load: Iterable[Functor], store: Iterable[Functor]) -> Any:
        """The plain LayerNorm with other functors."""
        return self._plain.of(load, store)

    @property
    def name(self) -> str:
        """The name of the op in error messages."""
        return self._of


class _ChannelNorm(LayerNorm):
    """A norm whose rows are groups of the channels of an x of shape (N, C, ...).

    Its underscore keeps it out of the ops that are registered by their names (`declare.operator`).

    Attributes:
        rows: The op that runs the calls, once x and the operands are viewed.
        per_channel: The names of operands of which a 1-d tensor has a number for each channel.
    """

    #: Whether a row has several channels, so that no mask of positions fits it.
    together = True
    #: The fewest dimensions of x, and its shape in words.
    _fewest = 2
    _shape = "(N, C, *spatial)"

    def __init__(
        self,
        load: Iterable[Functor] = (),
        store: Iterable[Functor] = (),
        *,
        eps: float = 1e-5,
        stats: bool = False,
    ) -> None:
        if isinstance(load, int):
            raise TypeError(
                f"{type(self).__name__}: load must hold functors, got {load}; channels are x's, "
                "and their weight and bias a functor: store=[Affine('weight', 'bias')]"
            )
        super().__init__(load, store, eps=eps, stats=stats)
        for functor in self.load:
            if functor.masks and (functor.needs_query or self.together):
                raise ValueError(
                    f"{self.name}: {functor!r} cannot stand here, where columns count the elements "
                    "of a group, or of an image, and not the positions of a sequence; use a "
                    "LayerNorm, or for lengths an InstanceNorm of an x of shape (N, C, L)"
                )
        for functor in (*self.load, *self.store):
            if functor.shares or functor.positions or functor.tables:
                raise ValueError(
                    f"{self.name}: {functor!r} cannot share its draw, read positions or look up a "
                    "table here, where the channels of x are two dimensions; use a LayerNorm on a "
                    "view of x"
                )
        self.per_channel = {
            name for functor in (*self.load, *self.store) for name in functor.channel_operands
        }
        self.rows = _Rows(self)
        self._of_x = 1 + len(self.saves) + len(self.taps)  # outputs of x's shape

    def _groups(self, channels: int) -> int:
        raise NotImplementedError

    def over_rows(
        self, x: Tensor, arguments: dict[str, Any]
    ) -> tuple[RowOp, Tensor, dict[str, Any]]:
        """The LayerNorm that is run, x and the arguments as it sees them: views."""
        operands, options = parted(arguments)
        op, given = self.given(operands)
        if op is not self:
            return op.over_rows(x, {**given, **options})  # type: ignore[no-any-return]
        self._check(x, operands, options)
        seen, given = self._views(x, operands, options)
        return self.rows, seen, given

    def bind(self, x: Any, arguments: dict[str, Any]) -> Bound:
        """Check a call's arguments, and return the `Bound` call of the LayerNorm that is run.

        Raises:
            TypeError, ValueError: An argument is unknown, is missing or does not fit.
        """
        rows, seen, given = self.over_rows(x, arguments)
        return rows.bind(seen, given)

    def unfused(self, x: Tensor, /, **arguments: Any) -> Any:
        """Compute a call as a chain of torch operations: as `RowOp.unfused`."""
        rows, seen, given = self.over_rows(x, arguments)
        return self._as_given(rows.unfused(seen, **given), x.shape, arguments)

    def explain(self, x: Tensor, /, **arguments: Any) -> Any:
        """Say what a call with these arguments would run and why: as `RowOp.explain`."""
        rows, seen, given = self.over_rows(x, arguments)
        told = rows.explain(seen, **given)
        note = f"x of shape {tuple(x.shape)} is viewed as {tuple(seen.shape)}, whose first two "
        note += "dimensions are the rows"
        return dataclasses.replace(told, op=self, notes=(note, *told.notes))

    def dropout_mask(
        self,
        shape: Sequence[int],
        seed: int,
        offset: int,
        p: float,
        *,
        slot: int = 0,
        dim: None = None,
    ) -> Tensor:
        """Compute which elements a dropout keeps: as `RowOp.dropout_mask`, but without dim."""
        self._check_options({"dim": dim})
        sizes = read_ints(f"{self.name}.dropout_mask", "shape", shape)
        self._check_shape(sizes)
        groups = self._groups(sizes[1])
        seen = (sizes[0], groups, sizes[1] // max(groups, 1), *sizes[2:])
        dims = tuple(range(2, len(seen)))
        return self.rows.dropout_mask(seen, seed, offset, p, slot=slot, dim=dims).reshape(sizes)

    def _differentiate(self, options: dict[str, Any] | None, x: Tensor, *values: Any) -> Any:
        operands = {
            name: value for name, value in zip(self.slots, values, strict=True) if value is not None
        }
        if self.lacking(operands):
            return self.given(operands)[0](x, **operands, **(options or {}))
        return self._run(x, operands, options or {})

    def _traced(self, x: Any, operands: dict[str, Any], options: dict[str, Any]) -> Any:
        return self._run(x, operands, options, traced=True)

    def _slow(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        if self.lacking(operands):
            op, operands = self.given(operands)
            if op is not self:
                return op(x, **operands, **options)
        if reason is Reason.MISS:
            self._check(x, operands, options)
            seen, given = self._views(x, operands, options)
            bound = self.rows.bind(seen, given)
            if x.numel() > 0 and not columns_apart(bound):
                return make_plan(self.rows, bound, x.shape)
            return self._run(x, operands, options)
        traced = reason is Reason.DEVICE and isinstance(x, Tensor) and x.is_meta
        if reason in (Reason.ARGUMENTS, Reason.DEVICE, Reason.OVERLAP, Reason.CONJ) and not traced:
            self._check(x, operands, options)
            seen, given = self._views(x, operands, options)
            refuse(self.rows, reason, seen, *parted(given))
            return self._run(x, operands, options)
        return super()._slow(reason, x, operands, options)

    def _run(
        self, x: Any, operands: dict[str, Any], options: dict[str, Any], *, traced: bool = False
    ) -> Any:
        """Run a call by that on views; what is wrong with it is found out once it has failed."""
        try:
            seen, given = self._views(x, operands, options)
            rows = self.rows
            result = rows._traced(seen, *parted(given)) if traced else rows(seen, **given)
        except UnsupportedError:
            raise
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
            self._check(x, operands, options)
            raise
        return self._as_given(result, x.shape, options)

    def _views(
        self, x: Tensor, operands: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Views of x and of all arguments, as the LayerNorm over rows takes them."""
        self._check_options(options)
        if not isinstance(x, Tensor) or x.dim() < self._fewest:
            self._check(x, operands, options)
        channels = x.shape[1]
        groups = self._groups(channels)
        parts = (groups, channels // max(groups, 1))
        given = {name: self._view(x, name, value, parts) for name, value in operands.items()}
        given.update(options)
        given["dim"] = tuple(range(2, x.dim() + 1))
        if (out := options.get("out")) is not None:
            outs = out if isinstance(out, (tuple, list)) else (out,)
            viewed = [
                _split(one, 1, parts) if isinstance(one, Tensor) and one.dim() == x.dim() else one
                for one in outs[: self._of_x]
            ]
            outs = (*viewed, *outs[len(viewed) :])
            given["out"] = outs if isinstance(out, (tuple, list)) else outs[0]
        return _split(x, 1, parts), given

    def _view(self, x: Tensor, name: str, value: Any, parts: tuple[int, int]) -> Any:
        """An operand whose channels are two dimensions, as x's are then."""
        if not isinstance(value, Tensor):
            return value
        if name in self.per_channel and value.dim() == 1:
            if value.shape[0] != x.shape[1]:
                self._refuse_per_channel(x, name, value)
            return value.view((*parts, *[1] * (x.dim() - 2)))
        at = value.dim() - (x.dim() - 2) - 1  # its channels
        if at < 0 or value.dim() > x.dim():
            return value
        if value.shape[at] == 1:
            return value.unsqueeze(at)
        return _split(value, at, parts) if value.shape[at] == x.shape[1] else value

    def _as_given(self, result: Any, shape: Sequence[int], options: Mapping[str, Any]) -> Any:
        """The results of the call on views in the shapes that the caller knows."""
        tensors = [result] if len(self.outputs) == 1 else list(result)
        tensors[: self._of_x] = [tensor.view(shape) for tensor in tensors[: self._of_x]]
        if (out := options.get("out")) is not None:
            outs = out if isinstance(out, (tuple, list)) else (out,)
            tensors = [new if one is None else one for new, one in zip(tensors, outs, strict=True)]
        return self.wrap(dict(zip(self.outputs, tensors, strict=True)))

    def _check(self, x: Any, operands: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Raise the error of a call that does not fit, in the shapes that the caller knows."""
        name = self.name
        if not isinstance(x, Tensor):
            bind(self.rows, x, operands, {})  # raises
        check_layouts(name, {"x": x, **operands, "out": options.get("out")})
        check_names(self, name, operands)
        self._check_options(options)
        self._check_shape(x.shape)
        for operand in self.operands:
            value = operands.get(operand.name)
            if not isinstance(value, Tensor):
                continue
            if operand.name in self.per_channel and value.dim() == 1:
                if value.shape[0] != x.shape[1]:
                    self._refuse_per_channel(x, operand.name, value)
                value = value.view((-1, *[1] * (x.dim() - 2)))
            check_tensor(name, operand, value, x, ())
        out = options.get("out")
        outs = out if isinstance(out, (tuple, list)) else (out,)
        for key, tensor in zip(self.outputs[: self._of_x], outs, strict=False):
            if isinstance(tensor, Tensor) and tensor.shape != x.shape:
                raise ValueError(
                    f"{name}: out for {key!r} must have shape {tuple(x.shape)}, "
                    f"got {tuple(tensor.shape)}"
                )

    def _check_options(self, options: Mapping[str, Any]) -> None:
        for key in ("dim", "normalized_shape", "part_of"):
            if options.get(key) is not None:
                raise TypeError(
                    f"{self.name}: {key} is no option of this op, whose rows follow from x's shape "
                    f"{self._shape}, got {shortened(options[key])}; leave it away, or use "
                    "LayerNorm, which takes it"
                )

    def _check_shape(self, shape: Sequence[int]) -> None:
        if len(shape) < self._fewest:
            raise ValueError(
                f"{self.name}: x must have shape {self._shape}, {self._fewest} dimensions at "
                f"least, got {tuple(shape)}; add what is missing, as x[None] does a batch of one"
            )
        self._groups(shape[1])

    def _refuse_per_channel(self, x: Tensor, name: str, value: Tensor) -> None:
        raise ValueError(
            f"{self.name}: operand {name!r} of one dimension must have a number for each of the "
            f"{x.shape[1]} channels of x of shape {tuple(x.shape)}, got shape "
            f"{tuple(value.shape)}; pass one of shape ({x.shape[1]},), or give it as many "
            "dimensions as x, and it broadcasts as other operands do"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.load, self.store, self.constants)


def _split(tensor: Tensor, dim: int, parts: tuple[int, int]) -> Tensor:
    """A view in which a dimension is two."""
    shape = tensor.shape
    return tensor.view((*shape[:dim], *parts, *shape[dim + 1 :]))


def _rebuild(
    kind: type[_ChannelNorm],
    load: tuple[Functor, ...],
    store: tuple[Functor, ...],
    constants: dict[str, Any],
) -> _ChannelNorm:
    return kind(load=load, store=store, **constants)
