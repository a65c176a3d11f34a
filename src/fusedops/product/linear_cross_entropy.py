# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""LinearCrossEntropy: the loss of a product's rows, whose logits never exist whole.

The logits are cut into chunks of rows, or into blocks of columns, the classes. The gradient of a
`CrossEntropy` reads a few numbers of each row, and no logits but its own, so that any part of them
can have it. `torch_op_linear_cross_entropy` has both passes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fusedops.bind.operands import check_names
from fusedops.bind.scalars import check_number
from fusedops.declare.hints import check_declaration
from fusedops.declare.interactive import CallSignature
from fusedops.declare.op import Op
from fusedops.declare.operator import own_operators
from fusedops.declare.text import spell
from fusedops.errors import UNFUSED, UnsupportedError, shortened
from fusedops.explain.report import ProductExplanation
from fusedops.functors import Functor, plain_number
from fusedops.functors.operands import IDS
from fusedops.jit.lock import guard
from fusedops.ops.loss_parts import constants_of_part
from fusedops.ops.losses import CrossEntropy
from fusedops.product.declaration import given_factors
from fusedops.product.factors import (
    as_factor,
    check_broadcast,
    check_factors,
    factor_dtype,
    linear,
    wrong_shape,
    wrong_weight,
)
from fusedops.product.linear_loss_kernel import LossOfTiles
from fusedops.product.linear_loss_logits import (
    Logits,
    block_columns,
    keeps_logits,
    pieces,
    sweeps_of,
)
from fusedops.product.torch_op_linear_cross_entropy import by_parts
from fusedops.torch_ops.tracing import NUMBERS, check_transforms, is_distributed

if TYPE_CHECKING:
    from fusedops.declare.results import Result


class LinearCrossEntropy(Op):
    """``CrossEntropy(load(x @ w.T))`` of each row: a language model's head and loss in one op.

    A call is ``op(x, w, target=labels, **operands)``: x of shape (..., K), w of shape (V, K) as the
    weight of `torch.nn.Linear` is, of one floating dtype unless torch.autocast is on; labels uint8
    or of any signed integer dtype, of shape (...), of classes 0 to V - 1. Operands of the LOAD
    broadcast against the logits, of shape (..., V). Results, options of the declaration, and what
    is said of targets, masked classes and NaN, are those of `CrossEntropy`.

    Logits never exist whole, unless they are no more than w's gradient or all classes are one
    block. A call of whose results the loss alone has a gradient makes that of x in the forward
    pass, of chunks of rows, and that of w in the backward pass, of blocks of classes, which it
    multiplies again: the sums of both are those of a product, in float32. Beside x, w and their
    gradients that takes the logits of a block, as large as x. Where w has at most twice as many
    classes as x has rows, the gradient of a part of w is made in the forward pass as well, and
    added up in float32: of as many classes as have a sum no larger than x, at last of all. That
    saves up to one of four products. Such gradients are rounded before they are multiplied by that
    of the loss, and once more after it.

    Where all classes are one block (at most 2048, or 2 K), or ``memory=`` has room for all logits,
    the gradient of the logits takes their memory, as with ``inplace=True`` of `CrossEntropy`: a
    graph that is retained goes back once, and torch raises an error at the second pass.

    Calls with a further result that has a gradient, those in float16, and operands that some rows
    share make all gradients in the backward pass, and add up x's in float32. The forward pass then
    goes by blocks of classes too, as it does where no gradient is wanted; on sm_90, in 16 bits and
    with enough rows, by one kernel that writes no logits.

    As DTensors, w may be sharded over classes and x over rows (docs/how-to/many-gpus.md).

    Args:
        load: The functors between product and loss, in order, such as `Bias`, `Softcap`, `Scale`
            and `Mask`; none by default. Each must act on every element by itself.
        ignore_index, label_smoothing, z_loss, reduction, lse, log_prob, entropy, largest, correct:
            As of `CrossEntropy`. Label smoothing goes with a LOAD that masks nothing.
        memory: The bytes that a step may take beside x, w and their gradients to be faster; None,
            the default, for the least: those of x, or if they are more, of the logits of 512 rows,
            less w's gradient where that is made, or of all rows' logits of up to 2048 classes.
            Below the least it is no bound. With twice w's bytes (in 16 bits; once in 32) nothing is
            multiplied again where gradients are made in the forward pass, and with more there are
            fewer chunks. With the bytes of all logits these are kept, as where all classes are one
            block, and a retained graph goes back once; of DTensors that alone counts, of a rank's
            logits. `explain` says what a call takes.

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
    >>> fast = fo.LinearCrossEntropy(memory=8 << 30)
    >>> fast(torch.zeros(3, 4), torch.zeros(10000, 4), target=torch.tensor([3, 4, 9999]))
    tensor(9.2103)
    """

    inputs: ClassVar[tuple[str, ...]] = ("x", "w")
    __signature__ = CallSignature(inputs, ())

    def __new__(cls, *arguments: Any, **named: Any) -> LinearCrossEntropy:
        """Check the names of the declaration's arguments; `__init__` reads their values."""
        check_declaration(cls, arguments, named, ())
        return super().__new__(cls)

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
        largest: bool = False,
        correct: bool = False,
        memory: int | None = None,
    ) -> None:
        options: dict[str, Any] = {"lse": lse, "log_prob": log_prob, "entropy": entropy}
        options |= {"largest": largest, "correct": correct}
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
        memory = plain_number(memory)
        if memory is not None and type(memory) is not int:
            raise TypeError(
                f"{self.title}: memory must be an int, a number of bytes, or None for the least, "
                f"got {shortened(memory)}"
            )
        if memory is not None and memory < 0:
            raise ValueError(f"{self.title}: memory must be a number of bytes >= 0, got {memory}")
        self.whole = whole
        self.chains = {"load": whole.load}
        self.constants = {k: one for k, one in whole.constants.items() if k != "inplace"}
        if memory is not None:
            self.constants["memory"] = memory
        self.load, self.operands, self.slots = whole.load, whole.operands, whole.slots
        self.store, self.row_operands = (), whole.row_operands  # as messages about names read them
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
        self.text = spell(self)

    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError("LinearCrossEntropy: derive from CrossEntropy, or compose functors")

    def __call__(self, /, *factors: Tensor, **arguments: Any) -> Result:
        """Run the op: as the class says.

        Raises:
            TypeError, ValueError, IndexError: An argument does not fit.
            UnsupportedError: A transform or a mode does not go with a fused kernel.
        """
        with _named(self.name):
            result: Result = self._run(*self._given(factors, arguments), arguments)
        return result

    def unfused(self, /, *factors: Tensor, **arguments: Any) -> Result:
        """Compute a call as torch operations on all logits: the same arguments and results."""
        x, w = self._given(factors, arguments)
        self._target(x, w, arguments)
        with _named(self.name):
            result: Result = self.whole.unfused(linear(x, w), **arguments)
        return result

    def _given(self, factors: tuple[Any, ...], arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        x, w = given_factors(self, (), factors, arguments)
        return x, w

    def _run(self, x: Tensor, w: Tensor, arguments: dict[str, Any]) -> Any:
        check_transforms(self.name)
        if not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None:
            raise UnsupportedError(
                f"{self.name}: torch.jit.trace does not see into a fused kernel; use torch.compile "
                f"or torch.export, or {UNFUSED}"
            )
        target = self._target(x, w, arguments)
        if is_distributed(x) or is_distributed(w):
            # Dynamo reads this, and cannot enter a lock.
            with contextlib.nullcontext() if torch.compiler.is_compiling() else guard:
                from fusedops.distributed.linear_classes import linear_loss

            rows = self.whole.rows
            found = rows.wrap(
                dict(zip(rows.outputs, linear_loss(self, x, w, arguments), strict=True))
            )
            return self.whole._as_given(found, x.shape, arguments)
        classes, dtype = w.shape[0], factor_dtype(x)
        columns = block_columns(x.shape[-1], classes)
        whole = classes <= columns or keeps_logits(self, x, w, arguments.values())
        if whole or x.numel() == 0:
            if not torch.compiler.is_compiling():
                named = {key: one for key, one in arguments.items() if key != "target"}
                check_broadcast(self.name, "the logits", (*x.shape[:-1], classes), named)
            return self.whole(linear(x, w), **arguments)
        tensors: dict[str, Tensor] = {}
        numbers: list[float] = []
        counts: list[int] = []
        for key in self.slots:
            value: Any = arguments.get(key)
            if key == "target" or value is None:
                continue
            if isinstance(value, Tensor):
                tensors[key] = value
            else:
                if isinstance(value, bool) or not isinstance(value, NUMBERS):
                    value = check_number(self.whole, key, value)
                (counts if key in self.whole.counted else numbers).append(value)
        factors = as_factor(x, dtype), as_factor(w, dtype)
        return self.whole.wrap(by_parts(self, *factors, target, tensors, numbers, counts))

    @functools.cached_property
    def of_part(self) -> LinearCrossEntropy:
        """The op of a rank that has a part of the classes: the numbers of rows that it shares."""
        constants = constants_of_part(self.constants)
        if "memory" in self.constants:
            constants["memory"] = self.constants["memory"]
        return self if constants == self.constants else LinearCrossEntropy(self.load, **constants)

    @functools.cached_property
    def of_tiles(self) -> LossOfTiles:
        """What runs product and loss as one kernel, where no logits are wanted."""
        return LossOfTiles(self.of_part.whole, self.declaration)

    def losses(
        self, x: Tensor, w: Tensor, operands: Mapping[str, Any]
    ) -> Iterator[tuple[CrossEntropy, Tensor, dict[str, Any]]]:
        """The losses that a call of a part runs, with logits in the place of its products.

        Where gradients are wanted of these tensors, they are wanted of the arguments.
        """
        x = as_factor(x, factor_dtype(x))
        tensors = {k: one for k, one in operands.items() if isinstance(one, Tensor)}
        numbers = {k: one for k, one in operands.items() if k not in tensors}
        target = tensors.pop("target")
        (features, classes), wanted = w.shape[::-1], sweeps_of(self, x, w, tensors).wanted
        kept = keeps_logits(self, x, w, operands.values())
        if classes <= block_columns(features, classes) or x.numel() == 0 or kept:
            z = x.new_empty((*x.shape[:-1], classes))
            yield self.whole, z.requires_grad_(not {"x", "w"}.isdisjoint(wanted)), {**operands}
            return
        logits = Logits(self, x, w, target, tensors, numbers)
        for trains in (False, True)[: 1 + bool(wanted)]:
            columns = block_columns(features, classes, backward=trains)
            blocks = {one.stop - one.start: one for one in pieces(classes, columns)}
            for size, block in blocks.items():
                z = logits.in_rows(logits.room(logits.count, columns)[:, :size])
                given = logits.operands_of(slice(0, logits.count), block)
                if not trains:
                    given = {name: one.detach() for name, one in given.items()}
                yield self.whole, z.requires_grad_(trains), {**given, **numbers}

    def explain(self, /, *factors: Tensor, **arguments: Any) -> ProductExplanation:
        """Say what a call with these arguments would run, without running it.

        Raises:
            TypeError, ValueError: An argument does not fit, as in a call.
        """
        x, w = self._given(factors, arguments)
        self._target(x, w, arguments)
        if is_distributed(x) or is_distributed(w):
            with guard:
                from fusedops.distributed.linear_classes import explained

            here: ProductExplanation = explained(self, x, w, arguments)
            return dataclasses.replace(here, op=self)
        with guard:
            from fusedops.product.linear_loss_report import explanation
        told: ProductExplanation = explanation(self, x, w, arguments)
        return told

    def check(self, x: Any, w: Any) -> None:
        """Raise TypeError or ValueError for factors that do not fit."""
        check_factors(self.name, self.inputs, (x, w))
        if x.dim() == 0:
            raise wrong_shape(self.name, "x", x, "(..., K)", "use x[None]")
        if w.dim() != 2 or w.shape[1] != x.shape[-1]:
            raise wrong_weight(self.name, "w", w, x.shape[-1], f"x of shape {tuple(x.shape)}")

    def _target(self, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        """The target of a call; raises TypeError, ValueError or IndexError if the call is wrong."""
        op: Any = self
        check_names(op, self.name, arguments, ())
        target = arguments["target"]
        if not isinstance(target, Tensor) or target.dtype not in IDS:
            got, cure = type(target).__name__, "make one with torch.as_tensor(target)"
            if isinstance(target, Tensor):
                got, cure = str(target.dtype), "convert it with target.long()"
                if target.shape == (*x.shape[:-1], w.shape[0]):
                    cure = "weights of all classes go with CrossEntropy(soft=True), of x @ w.T"
            raise TypeError(f"{self.name}: target must be a tensor of integers, got {got}; {cure}")
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
            self._check_range(target.long(), w.shape[0])
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
    except (TypeError, ValueError, UnsupportedError) as error:
        said = str(error)
        if not said.startswith("CrossEntropy: "):
            raise
        raise type(error)(name + said.removeprefix("CrossEntropy")) from error
