# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""LinearCrossEntropy: the loss of a product's rows, whose logits never exist whole.

The columns of the product, the classes, are cut into blocks. Of each block the forward pass
multiplies, and keeps a few numbers a row, those of a `CrossEntropy` of the block alone; torch joins
the numbers of all blocks. In the backward pass, what autograd gives for the joining says how much
each block's numbers count; the block is multiplied again, and its gradient multiplied by both
factors. So the gradient of w is one product over all rows, whose sums the GEMM has in float32, and
that of x is added up in float32, block by block. Two operators of torch do the two loops:

- ``fusedops::linear_cross_entropy(x, w, target, tensors, names, numbers, counts, op)`` gives the
  numbers of all blocks, each of shape (blocks, *rows);
- ``fusedops::linear_cross_entropy_backward(...)`` gives the wanted gradients.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, library

from fusedops.bind.bind import check_names
from fusedops.declare.interactive import CallSignature
from fusedops.declare.op import Op
from fusedops.declare.operator import own_operators
from fusedops.declare.text import read, spell
from fusedops.explain.report import Kept, ProductExplanation
from fusedops.functors import Functor
from fusedops.ops.losses import CrossEntropy
from fusedops.product.factors import (
    as_factor,
    check_factors,
    factor_dtype,
    linear,
    rows_of,
    wrong_shape,
    wrong_weight,
)
from fusedops.torch_ops.calls import numbers_of, schema
from fusedops.torch_ops.operators import define, define_gradient, namespace

if TYPE_CHECKING:
    from fusedops.declare.results import Result

__all__ = ["LinearCrossEntropy", "block_columns"]

#: A block has twice as many columns as x, so that its logits take twice the bytes of x, as x's
#: gradient does in float32: fewer columns make small products, more take memory.
_OF_FEATURES = 2
_FEWEST, _MOST = 2048, 16384
_RECORDS = torch._C.DispatchKey.AutogradFunctionality


def block_columns(features: int, classes: int) -> int:
    """How many columns of logits are multiplied at a time, all blocks but the last having as many.

    >>> block_columns(features=4096, classes=128256)
    8064
    """
    wanted = min(max(_OF_FEATURES * features, _FEWEST), _MOST)
    count = max(1, math.ceil(classes / wanted))
    return math.ceil(math.ceil(classes / count) / 64) * 64


class LinearCrossEntropy(Op):
    """``CrossEntropy(load(x @ w.T))`` of each row: a language model's head and loss in one op.

    A call is ``op(x, w, target=labels, **operands)``: x of shape (..., K), w of shape (V, K) as the
    weight of `torch.nn.Linear` is, of one floating dtype unless torch.autocast is on; labels of any
    integer dtype and shape (...), of classes 0 to V - 1. Operands of the LOAD broadcast against
    the logits, of shape (..., V). Results, options of the declaration, and what is said of
    targets, masked classes and NaN, are those of `CrossEntropy`.

    Logits never exist whole: blocks of `block_columns` classes are multiplied one after the other,
    and only a few numbers a row are kept of each. The backward pass multiplies again, and computes
    the gradient of a block of w by one product. Beside x, w and their gradients it takes the logits
    of a block, twice as large as x in 16 bits, and x's gradient in float32. Where all classes are
    one block, this is a `CrossEntropy` after a product, and the logits are kept.

    Args:
        load: The functors between product and loss, in order, such as `Bias`, `Softcap`, `Scale`
            and `Mask`; none by default. Each must act on every element by itself.
        ignore_index, label_smoothing, z_loss, reduction, lse, log_prob, entropy: As of
            `CrossEntropy`. Label smoothing goes with a LOAD that masks nothing.

    Raises:
        TypeError: load holds something that is no functor, or an argument is of the wrong kind or
            unknown. A call: a factor is no floating tensor, or they have two dtypes.
        ValueError: A number is out of its range, or a functor cannot run on a block of columns. A
            call: a shape or a device does not fit.
        IndexError: On a CPU, a target is no class, unless the call is in compiled code.

    >>> import torch, fusedops as fo
    >>> op = fo.LinearCrossEntropy(load=[fo.Softcap("cap")], reduction="none")
    >>> x, w = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.eye(2)
    >>> op(x, w, target=torch.tensor([0, -100]), cap=30.0)
    tensor([0.3134, 0.0000])
    """

    inputs: ClassVar[tuple[str, ...]] = ("x", "w")
    __signature__ = CallSignature(inputs, ())

    def __init__(
        self,
        load: Iterable[Functor] = (),
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        reduction: str = "mean",
        lse: bool = False,
        log_prob: bool = False,
        entropy: bool = False,
    ) -> None:
        options: dict[str, Any] = {"lse": lse, "log_prob": log_prob, "entropy": entropy}
        with _named(self.title):
            whole = CrossEntropy(
                load,
                ignore_index=ignore_index,
                label_smoothing=label_smoothing,
                z_loss=z_loss,
                reduction=reduction,
                inplace=True,
                **options,
            )
        self.whole = whole
        self.chains = {"load": whole.load}
        self.constants = {k: one for k, one in whole.constants.items() if k != "inplace"}
        self.load, self.operands, self.slots = whole.load, whole.operands, whole.slots
        self.outputs, self.saves, self.optional = whole.outputs, whole.saves, whole.optional
        self.probabilities, self.dropouts, self.causal = [], 0, whole.causal
        for one in self.load:
            if not one.elementwise or one.saves is not None or one.taps is not None:
                raise ValueError(
                    f"{self.title}: {one!r} cannot run on a block of the classes; let a Linear "
                    "make the logits, and a CrossEntropy with this load read them"
                )
        for name in self.inputs:
            if name in self.slots:
                raise ValueError(
                    f"{self.title}: operand {name!r} has the name of a factor; choose another"
                )
        smooths = self.constants["label_smoothing"] > 0
        if smooths and whole.masked:
            raise ValueError(
                f"{self.title}: label_smoothing={label_smoothing} is over the classes that the "
                "load leaves, and this load masks some; let a Linear make the logits, and a "
                "CrossEntropy with this load read them"
            )
        self.block = CrossEntropy(
            self.load,
            ignore_index=-1,  # targets are counted from a block's first class
            label_smoothing=float(smooths),  # 1: the loss is then lse minus the mean
            reduction="none",
            lse=True,
            log_prob=smooths,
            entropy=entropy,
            inplace=True,
        )
        self.text = spell(self)

    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError("LinearCrossEntropy: derive from CrossEntropy, or compose functors")

    def __call__(self, x: Tensor, w: Tensor, /, **arguments: Any) -> Result:
        """Run the op: as the class says.

        Raises:
            TypeError, ValueError, IndexError: An argument does not fit.
        """
        result: Result = self._run(x, w, arguments, self.whole.__call__)
        return result

    def unfused(self, x: Tensor, w: Tensor, /, **arguments: Any) -> Result:
        """Compute a call as torch operations on all logits: the same arguments and results."""
        self._check(x, w, arguments)
        result: Result = self.whole.unfused(linear(x, w), **arguments)
        return result

    def _run(self, x: Tensor, w: Tensor, arguments: dict[str, Any], whole: Any) -> Any:
        target = self._check(x, w, arguments)
        classes, dtype = w.shape[0], factor_dtype(x)
        columns = block_columns(x.shape[-1], classes)
        if classes <= columns or x.numel() == 0:
            with _named(self.name):
                return whole(linear(x, w), **arguments)
        names: list[str] = []
        tensors: list[Tensor] = []
        numbers: list[float] = []
        counts: list[int] = []
        for key in self.slots:
            value = arguments.get(key)
            if key == "target" or value is None:
                continue
            if isinstance(value, Tensor):
                names.append(key)
                tensors.append(value)
            else:
                (counts if key in self.block.counted else numbers).append(value)
        x, w = as_factor(x, dtype), as_factor(w, dtype)
        labels = target.long()
        parts = torch.ops.fusedops.linear_cross_entropy(
            x, w, labels, tensors, names, numbers, counts, self.text
        )
        joined = self._joined(
            dict(zip(self.block.outputs, parts, strict=True)), labels, columns, classes
        )
        return self.whole._as_given(joined, x.shape, {"target": labels})

    def _joined(
        self, parts: Mapping[str, Tensor], labels: Tensor, columns: int, classes: int
    ) -> Any:
        """One loss a row, and what else is returned, of the numbers of all blocks."""
        constants = self.constants
        of_blocks = parts["lse"]
        lse = of_blocks.logsumexp(0)
        smooths = constants["label_smoothing"] > 0
        at = of_blocks + parts["log_prob"] if smooths else of_blocks - parts["loss"]
        ignored = labels == constants["ignore_index"]
        known = (labels >= 0) & (labels < classes) & ~ignored
        at = at.gather(0, torch.where(known, labels // columns, 0)[None])[0]
        at = torch.where(known, at, torch.nan)
        loss = lse - at
        if smooths:
            sizes = [stop - start for start, stop in _blocks(columns, classes)]
            share = lse.new_tensor(sizes).div_(classes).view(-1, *[1] * lse.dim())
            even = lse - ((of_blocks - parts["loss"]) * share).sum(0)
            loss = loss + constants["label_smoothing"] * (even - loss)
        if constants["z_loss"] > 0:
            loss = loss + constants["z_loss"] * lse.square()
        found = {"loss": loss, "lse": lse, "log_prob": at - lse}
        if "entropy" in constants:
            gone = of_blocks == -torch.inf
            inner = (of_blocks - parts["entropy"]).masked_fill(gone, 0.0)
            found["entropy"] = lse - ((of_blocks - lse).exp() * inner).sum(0)
        shown = {name: found[name].masked_fill(ignored, 0.0) for name in self.whole.rows.outputs}
        return self.whole.rows.wrap(shown)

    def explain(self, x: Tensor, w: Tensor, /, **arguments: Any) -> ProductExplanation:
        """Say what a call with these arguments would run, without running it.

        Raises:
            TypeError, ValueError: An argument does not fit, as in a call.
        """
        self._check(x, w, arguments)
        rows, classes, size = x.shape[:-1].numel(), w.shape[0], factor_dtype(x).itemsize
        columns = block_columns(x.shape[-1], classes)
        blocks = math.ceil(classes / columns)
        flops = 2 * rows * w.numel()
        wanted = [
            k for k, one in (("x", x), ("w", w)) if torch.is_grad_enabled() and one.requires_grad
        ]
        backward = None
        if blocks > 1:
            told = (
                f"{blocks} blocks of {columns} classes: a product of {rows * columns * size} "
                "bytes, then one kernel that reads it and writes a few numbers a row; the logits "
                f"of all classes would be {rows * classes * size} bytes"
            )
            if wanted:
                backward = (
                    f"each block is multiplied again, {flops} flops, then a kernel for its "
                    f"gradient, and {' and '.join(f'a product for {one}' for one in wanted)}"
                )
        else:
            told = f"one block: the product, {rows * classes * size} bytes, then a CrossEntropy"
            if wanted:
                backward = f"one kernel, and {' and '.join(f'a product for {k}' for k in wanted)}"
        kept = [Kept.given(key, one) for key, one in (("x", x), ("w", w))] if wanted else []
        return ProductExplanation(
            op=self,
            kept=tuple(kept),
            backward=backward,
            flops=flops,
            bytes=x.nbytes + w.nbytes + 2 * rows * classes * size,
            product=f"z = x @ w.T: {tuple(x.shape)} and {tuple(w.shape)}, {flops} flops",
            implementation=told,
            kernels=2 * blocks,
        )

    def _check(self, x: Any, w: Any, arguments: Mapping[str, Any]) -> Tensor:
        """The target of a call; raises TypeError, ValueError or IndexError if the call is wrong."""
        check_factors(self.name, self.inputs, (x, w))
        if x.dim() == 0:
            raise wrong_shape(self.name, "x", x, "(..., K)", "use x[None]")
        if w.dim() != 2 or w.shape[1] != x.shape[-1]:
            raise wrong_weight(self.name, "w", w, x.shape[-1], f"x of shape {tuple(x.shape)}")
        check_names(self.whole, self.name, arguments)
        target = arguments["target"]
        if not isinstance(target, Tensor) or target.is_floating_point() or target.is_complex():
            got = target.dtype if isinstance(target, Tensor) else type(target).__name__
            raise TypeError(f"{self.name}: target must be a tensor of integers, got {got}")
        if target.shape != x.shape[:-1]:
            raise ValueError(
                f"{self.name}: target must have x's shape without the last dimension, "
                f"{tuple(x.shape[:-1])}, got {tuple(target.shape)}"
            )
        if target.device != x.device:
            raise ValueError(
                f"{self.name}: target must be on x's device {x.device}, got {target.device}; move "
                f"it with .to({str(x.device)!r})"
            )
        known = type(target) is Tensor and target.device.type == "cpu"
        if known and not torch.compiler.is_compiling():
            self._check_range(target, w.shape[0])
        return target

    def _check_range(self, target: Tensor, classes: int) -> None:
        ignored = self.constants["ignore_index"]
        wrong = ((target < 0) | (target >= classes)) & (target != ignored)
        if bool(wrong.any()):
            raise IndexError(
                f"{self.name}: target {int(target[wrong].flatten()[0])} is no class of w, whose "
                f"classes are 0 to {classes - 1}; give rows that do not count the target "
                f"{ignored}, or say ignore_index="
            )


own_operators["LinearCrossEntropy"] = LinearCrossEntropy


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors of the op inside name the op that was called."""
    try:
        yield
    except (TypeError, ValueError) as error:
        said = str(error)
        if not said.startswith("CrossEntropy: "):
            raise
        raise type(error)(name + said.removeprefix("CrossEntropy")) from error


# ------------------------------------------------------------------------------- operators of torch


class _Forward(NamedTuple):
    """The arguments of ``linear_cross_entropy``."""

    x: Tensor
    w: Tensor
    target: Tensor
    tensors: Sequence[Tensor]
    names: Sequence[str]
    numbers: Sequence[float]
    counts: Sequence[int]
    op: str


class _Backward(NamedTuple):
    """The arguments of ``linear_cross_entropy_backward``: gradients of the results named first."""

    upstream: Sequence[Tensor]
    outputs: Sequence[str]
    x: Tensor
    w: Tensor
    target: Tensor
    tensors: Sequence[Tensor]
    names: Sequence[str]
    numbers: Sequence[float]
    counts: Sequence[int]
    op: str
    wanted: Sequence[str]


def _blocks(columns: int, classes: int) -> list[tuple[int, int]]:
    return [(at, min(at + columns, classes)) for at in range(0, classes, columns)]


class _Loop:
    """The blocks of a call, one after the other, in one memory."""

    def __init__(self, call: _Forward | _Backward) -> None:
        op: LinearCrossEntropy = read(call.op)
        self.block, self.call = op.block, call
        self.ignored = call.target == op.constants["ignore_index"]
        self.rows, self.classes = call.x.shape[:-1], call.w.shape[0]
        self.columns = block_columns(call.x.shape[-1], self.classes)
        self.x = rows_of(call.x)
        self.given = dict(zip(call.names, call.tensors, strict=True))
        present = (*call.names, "target")
        self.numbers = numbers_of(self.block, present, call.numbers, call.counts)
        self.memory = call.x.new_empty(self.x.shape[0] * self.columns)

    def of_columns(self, tensor: Tensor) -> bool:
        """Whether an operand has a number for each class."""
        return tensor.dim() > 0 and tensor.shape[-1] == self.classes > 1

    def __iter__(self) -> Iterator[tuple[int, int, Tensor, dict[str, Any]]]:
        """Of each block its first and last class, its logits, and the arguments of its loss."""
        for start, stop in _blocks(self.columns, self.classes):
            size = stop - start
            z = self.memory[: self.x.shape[0] * size].view(-1, size)
            torch.mm(self.x, self.call.w[start:stop].t(), out=z)
            inside = (self.call.target >= start) & (self.call.target < stop)
            local = torch.where(inside, self.call.target - start, 0)
            given = {
                name: one[..., start:stop] if self.of_columns(one) else one
                for name, one in self.given.items()
            }
            target = local.masked_fill(self.ignored, -1)
            yield start, stop, z.view(*self.rows, size), {"target": target, **given, **self.numbers}


def _run(*arguments: Any) -> list[Tensor]:
    call = _Forward(*arguments)
    with torch.no_grad():
        found = [loop.block(z, **given) for loop in [_Loop(call)] for _, _, z, given in loop]
    return [torch.stack(parts) for parts in zip(*found, strict=True)]


def _fake(*arguments: Any) -> list[Tensor]:
    call = _Forward(*arguments)
    op: LinearCrossEntropy = read(call.op)
    count = len(_blocks(block_columns(call.x.shape[-1], call.w.shape[0]), call.w.shape[0]))
    dtype = torch.float64 if call.x.dtype is torch.float64 else torch.float32
    shape = (count, *call.x.shape[:-1])
    return [call.x.new_empty(shape, dtype=dtype) for _ in op.block.outputs]


def _run_backward(*arguments: Any) -> list[Tensor]:
    call = _Backward(*arguments)
    loop, wanted = _Loop(call), {*call.wanted}
    compute = torch.promote_types(call.x.dtype, torch.float32)
    dx = torch.zeros_like(loop.x, dtype=compute) if "x" in wanted else None
    found: dict[str, Tensor] = {}
    for name in wanted - {"x", "w"}:
        one = loop.given[name]
        if loop.of_columns(one):
            found[name] = torch.empty_like(one)
        else:
            found[name] = torch.zeros_like(one, dtype=torch.promote_types(one.dtype, compute))
    if "w" in wanted:
        found["w"] = torch.empty_like(call.w)
    # Autograd sees each block, below which the dispatcher calls operators.
    recorded = torch._C._SetExcludeDispatchKeyGuard(_RECORDS, False)
    with torch.no_grad(), recorded:
        for at, (start, stop, z, given) in enumerate(loop):
            names = [name for name in loop.given if name in wanted]
            for name in names:
                given[name] = given[name].detach().requires_grad_()
            leaf = z.detach().requires_grad_()
            with torch.enable_grad():
                made = loop.block(leaf.view_as(leaf), **given)
            results = [getattr(made, name) for name in call.outputs]
            upstream = [one[at] for one in call.upstream]
            leaves = [leaf, *(given[name] for name in names)]
            dz, *others = torch.autograd.grad(results, leaves, upstream)
            del made, results, leaf, leaves
            dz = rows_of(dz)
            if dx is not None:
                _add_product(dx, dz, call.w[start:stop])
            if "w" in wanted:
                torch.mm(dz.t(), loop.x, out=found["w"][start:stop])
            for name, one in zip(names, others, strict=True):
                if loop.of_columns(loop.given[name]):
                    found[name][..., start:stop] = one
                else:
                    found[name] += one
    del loop.memory, dz, z  # before another tensor of x's size is made
    if dx is not None:
        found["x"] = dx.to(call.x.dtype).view(call.x.shape)
    return [
        found[name] if name in ("x", "w") else found[name].to(loop.given[name].dtype)
        for name in call.wanted
    ]


def _add_product(total: Tensor, first: Tensor, second: Tensor) -> None:
    """``total += first @ second``, added in total's dtype."""
    if total.dtype is first.dtype:
        total.addmm_(first, second)
    elif total.is_cuda:
        torch.addmm(total, first, second, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(first.to(total.dtype), second.to(total.dtype))


def _fake_backward(*arguments: Any) -> list[Tensor]:
    call = _Backward(*arguments)
    known = {"x": call.x, "w": call.w, **dict(zip(call.names, call.tensors, strict=True))}
    return [torch.empty_like(known[name]) for name in call.wanted]


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    call = _Forward(*inputs)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(call.x, call.w, call.target, *call.tensors)
    ctx.call = call._replace(x=None, w=None, target=None, tensors=None)  # type: ignore[arg-type]
    needs = ctx.needs_input_grad
    ctx.wanted = [name for name, need in zip(("x", "w"), needs, strict=False) if need]
    ctx.wanted += [
        name for name, one in zip(call.names, call.tensors, strict=True) if one.requires_grad
    ]


def _differentiate(ctx: Any, incoming: Sequence[Tensor | None]) -> tuple[Any, ...]:
    call: _Forward = ctx.call
    outputs = read(call.op).block.outputs
    arriving = {k: one for k, one in zip(outputs, incoming, strict=True) if one is not None}
    x, w, target, *tensors = ctx.saved_tensors
    results = torch.ops.fusedops.linear_cross_entropy_backward(
        [*arriving.values()], [*arriving], x, w, target, tensors, *call[4:], ctx.wanted
    )
    found = dict(zip(ctx.wanted, results, strict=True))
    given = (call.names, call.numbers, call.counts)
    lists: list[Any] = [None if one else [] for one in given]
    return (found.get("x"), found.get("w"), None, [found.get(k) for k in call.names], *lists, None)


define("linear_cross_entropy", schema(_Forward), _run, _fake)
library.register_autograd(
    "fusedops::linear_cross_entropy", _differentiate, setup_context=_set_up, lib=namespace
)
define_gradient(
    "linear_cross_entropy_backward",
    schema(_Backward),
    _run_backward,
    _fake_backward,
    "LinearCrossEntropy",
)
