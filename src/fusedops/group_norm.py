# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""GroupNorm and InstanceNorm: norms over channels and space, which run as LayerNorms of views.

An x of shape (N, C, ...) is viewed as (N, G, C / G, ...), of which the first two dimensions count
the rows and the others make one, and so are its operands: the kernels are those of a `LayerNorm`,
and nothing is copied for the view.

May import: errors, _runtime, jit, functors, declare, bind, plan, run, row_op, ops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fusedops._runtime import Reason
from fusedops.bind.bind import bind
from fusedops.bind.operands import check_layouts
from fusedops.bind.scalars import read_int, read_ints
from fusedops.declare.options import parted
from fusedops.errors import UnsupportedError, shortened
from fusedops.functors import Functor
from fusedops.jit.lock import guard
from fusedops.ops import LayerNorm
from fusedops.row_op import RowOp
from fusedops.run.autograd import named
from fusedops.run.refusal import refuse, stands_for_an_operator

#: The gate's reasons that an argument itself may explain; it is checked in the caller's shapes.
_ABOUT_ARGUMENTS = (
    Reason.MISS,
    Reason.ARGUMENTS,
    Reason.DEVICE,
    Reason.OVERLAP,
    Reason.CONJ,
)


class _Rows(LayerNorm):
    """The LayerNorm that runs a GroupNorm on views, under the name of the GroupNorm in errors.

    As text, which programs are saved with, and with other functors it is a plain LayerNorm.
    """

    def __init__(self, of: _ChannelNorm) -> None:
        self._of = type(of).__name__
        self.declaration = of.declaration
        constants = {name: of.constants[name] for name in ("eps", "stats")}
        super().__init__(of.load, of.store, **constants)
        self.text = LayerNorm(of.load, of.store, **constants).text

    @property
    def name(self) -> str:
        """The name of the op in error messages."""
        return self._of

    def __reduce__(self) -> tuple[Any, ...]:
        make, (_, *parts) = super().__reduce__()
        return make, (LayerNorm, *parts)


class _ChannelNorm(LayerNorm):
    """A norm whose rows are groups of the channels of an x of shape (N, C, ...).

    Its underscore keeps it out of the ops that are registered by their names (`declare.operator`).

    Attributes:
        rows: The op that runs the calls, once x and the operands are viewed.
        per_channel: The names of operands of which a 1-d tensor has a number for each channel.
    """

    pairs = False
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
            if functor.block is not None:
                raise ValueError(
                    f"{self.name}: {functor!r} cannot stand here, where the channels of a group "
                    "make a row; call the norm without it, and a Map with it of its y"
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
        """The equivalent LayerNorm call: the op, a view of x, and views of the arguments."""
        operands, options = parted(arguments)
        op, given = self.given(operands)
        if op is not self:
            return op.over_rows(x, {**given, **options})  # type: ignore[no-any-return]
        self._check(x, operands, options)
        seen, given = self._views(x, operands, options)
        return self.rows, seen, given

    def explain(self, x: Tensor, /, **arguments: Any) -> Any:
        """Explain a call of the LayerNorm on views that runs it: as `RowOp.explain`."""
        rows, seen, given = self.over_rows(x, arguments)
        found = rows.explain(seen, **given)
        note = f"x of shape {tuple(x.shape)} is viewed as {tuple(seen.shape)}, whose first two "
        note += "dimensions are the rows"
        return dataclasses.replace(found, op=self, notes=(note, *found.notes))

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
        operands = named(self, values)
        if self.lacking(operands):
            return self.given(operands)[0](x, **operands, **(options or {}))
        return self._run(x, operands, options or {})

    def _traced(self, x: Any, operands: dict[str, Any], options: dict[str, Any]) -> Any:
        return self._run(x, operands, options, traced=True)

    def _slow(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        traced = stands_for_an_operator(reason, x)
        if reason not in _ABOUT_ARGUMENTS or traced or self.lacking(operands):
            return super()._slow(reason, x, operands, options)
        rows, seen, given = self.over_rows(x, {**operands, **options})
        if reason is not Reason.MISS:
            refuse(rows, reason, seen, *parted(given))
        elif x.numel() > 0:
            with guard:
                from fusedops.plan.placing import columns_apart  # the first call imports what plans

            if not columns_apart(bound := rows.bind(seen, given)):
                return rows.plan_and_run(bound, x.shape)
        return self._run(x, operands, options)

    def _run(
        self, x: Any, operands: dict[str, Any], options: dict[str, Any], *, traced: bool = False
    ) -> Any:
        """Run a call on views; if it fails, raise the error in the caller's shapes."""
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
            outs = [
                _split(one, 1, parts)
                if at < self._of_x and isinstance(one, Tensor) and one.dim() == x.dim()
                else one
                for at, one in enumerate(_listed(out))
            ]
            given["out"] = outs if isinstance(out, (tuple, list)) else outs[0]
        return _split(x, 1, parts), given

    def _view(self, x: Tensor, name: str, value: Any, parts: tuple[int, int]) -> Any:
        """An operand whose channels are two dimensions, as x's are then."""
        value = self._per_channel(x, name, value)
        at = value.dim() - (x.dim() - 2) - 1 if isinstance(value, Tensor) else -1  # its channels
        if at < 0 or value.dim() > x.dim():
            return value
        if value.shape[at] == 1:
            return value.unsqueeze(at)
        return _split(value, at, parts) if value.shape[at] == x.shape[1] else value

    def _per_channel(self, x: Tensor, name: str, value: Any) -> Any:
        """An operand; one with a number for each channel with spatial dimensions of size 1."""
        if name not in self.per_channel or not isinstance(value, Tensor) or value.dim() != 1:
            return value
        if value.shape[0] != x.shape[1]:
            raise ValueError(
                f"{self.name}: operand {name!r} of one dimension must have a number for each of "
                f"the {x.shape[1]} channels of x of shape {tuple(x.shape)}, got shape "
                f"{tuple(value.shape)}; pass one of shape ({x.shape[1]},), or give it as many "
                "dimensions as x, and it broadcasts as other operands do"
            )
        return value.view((-1, *[1] * (x.dim() - 2)))

    def _as_given(self, result: Any, shape: Sequence[int], options: Mapping[str, Any]) -> Any:
        """The results of the call on views in the shapes that the caller knows."""
        tensors = [result] if len(self.outputs) == 1 else list(result)
        tensors[: self._of_x] = [tensor.view(shape) for tensor in tensors[: self._of_x]]
        if (out := options.get("out")) is not None:
            outs = zip(tensors, _listed(out), strict=True)
            tensors = [new if one is None else one for new, one in outs]
        return self.wrap(dict(zip(self.outputs, tensors, strict=True)))

    def _check(self, x: Any, operands: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Raise the error of a call that does not fit, in the shapes that the caller knows."""
        if isinstance(x, Tensor):
            check_layouts(self.name, {"x": x, **operands, "out": options.get("out")})
            self._check_options(options)
            self._check_shape(x.shape)
            operands = {k: self._per_channel(x, k, value) for k, value in operands.items()}
        bind(self, x, operands, {})
        for key, one in zip(self.outputs[: self._of_x], _listed(options.get("out")), strict=False):
            if isinstance(one, Tensor) and one.shape != x.shape:
                raise ValueError(
                    f"{self.name}: out for {key!r} must have shape {tuple(x.shape)}, "
                    f"got {tuple(one.shape)}"
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


class GroupNorm(_ChannelNorm):
    """``y = (v - mean) / sqrt(variance + eps)`` over each group of channels of ``v = load(x)``.

    x has shape (N, C, ...), as for `torch.nn.GroupNorm`: a row is C / num_groups neighbouring
    channels of a sample with all their spatial dimensions. The variance is the biased one. The
    affine part is a functor of the STORE, ``Affine("gamma", "beta")``: gamma and beta of shape (C,)
    are torch's weight and bias. Any other operand broadcasts against x, one number for each channel
    as (C, 1, 1) where x has two spatial dimensions; so do gamma and beta of other than one
    dimension, such as (N, C, 1, 1).

    A call takes what `__call__` describes, but neither ``dim`` nor ``normalized_shape``. y has x's
    shape and is contiguous. Nothing is copied for an x of contiguous samples; one in
    ``channels_last`` is copied to be so, and `explain` says it.

    Args:
        num_groups: The number of groups into which the channels are cut, at least 1; it divides C.
        load: The functors applied to x before the reduction, in order; none by default.
        store: The functors applied to the result before it is written, in order; none by default.
        eps: The number added to the variance, finite and >= 0; 1e-5 by default.
        stats: Whether a call also returns mean and ``rstd = 1 / sqrt(variance + eps)``, of shape
            (N, num_groups), in float32 (float64 if x or y is float64); False by default.

    Raises:
        TypeError: num_groups is no int, load or store holds something that is no functor, stats is
            no bool, or an argument is unknown.
        ValueError: num_groups or eps is out of its range, or a functor has no meaning where it
            stands. A call: num_groups does not divide the channels of x, or a shape does not fit.

    >>> import torch, fusedops as fo
    >>> op = fo.GroupNorm(2, store=[fo.Affine("gamma", "beta")])
    >>> x = torch.tensor([[[0.0], [2.0], [3.0], [7.0]]])
    >>> op(x, gamma=torch.ones(4), beta=torch.tensor([0.0, 0.0, 3.0, 3.0]))[0, :, 0]
    tensor([-1.0000,  1.0000,  2.0000,  4.0000])
    """

    def __init__(
        self,
        num_groups: int,
        load: Iterable[Functor] = (),
        store: Iterable[Functor] = (),
        *,
        eps: float = 1e-5,
        stats: bool = False,
    ) -> None:
        number = read_int(num_groups)
        if number is None:
            raise TypeError(f"GroupNorm: num_groups must be an int, got {shortened(num_groups)}")
        if number < 1:
            raise ValueError(f"GroupNorm: num_groups must be at least 1, got {number}")
        self.sizes = {"num_groups": number}
        super().__init__(load, store, eps=eps, stats=stats)

    def _groups(self, channels: int) -> int:
        groups = int(self.sizes["num_groups"])
        if channels % groups:
            raise ValueError(
                f"{self.name}: the {channels} channels of x, its dimension 1, must be a multiple "
                f"of num_groups, got num_groups={groups}; declare a number of groups that divides "
                f"{channels}"
            )
        return groups


class InstanceNorm(_ChannelNorm):
    """``y = (v - mean) / sqrt(variance + eps)`` over each channel of ``v = load(x)``.

    x has shape (N, C, ...), as for `torch.nn.InstanceNorm2d` and its kin: a row is one channel of a
    sample with all its spatial dimensions, of which there is at least one. Statistics are those of
    the call; there are no running ones. All else is as for `GroupNorm`, of which it is the case of
    one channel a group: gamma and beta of `Affine` have shape (C,), the statistics (N, C). An x in
    ``channels_last`` is read in place, its columns C elements apart.

    >>> import torch, fusedops as fo
    >>> fo.InstanceNorm()(torch.tensor([[[0.0, 2.0], [5.0, 1.0]]]))
    tensor([[[-1.0000,  1.0000],
             [ 1.0000, -1.0000]]])
    """

    together = False
    _fewest = 3
    _shape = "(N, C, *spatial), with a spatial dimension"

    def _groups(self, channels: int) -> int:
        return channels


def _listed(out: Any) -> Sequence[Any]:
    """The tensors of the option `out`."""
    return out if isinstance(out, (tuple, list)) else (out,)


def _split(tensor: Tensor, dim: int, parts: tuple[int, int]) -> Tensor:
    """A view in which a dimension is two."""
    shape = tensor.shape
    return tensor.view((*shape[:dim], *parts, *shape[dim + 1 :]))
