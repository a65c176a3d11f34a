# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What all fused row ops are: a declaration that can be called.

The declaration is data (`declare`), finding and launching a kernel is the C++ runtime's business.
This class ties the two together: it says what is done where the runtime has no plan for a call.

May import: errors, _runtime, functors, declare, bind, reference, run, prebuild, explain, torch_ops.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.bind.bind import Bound, bind, find_reduced
from fusedops.bind.generator import draw, draw_in_memory
from fusedops.bind.layouts import check_layouts
from fusedops.bind.scalars import check_offset, check_pair, check_probability, read_int, read_ints
from fusedops.declare.chains import OPTIONS
from fusedops.declare.declaration import Declaration
from fusedops.declare.hints import check_declaration
from fusedops.declare.text import spell
from fusedops.errors import UnsupportedError
from fusedops.functors import Functor, Role
from fusedops.prebuild import recording
from fusedops.reference.dropout_mask import keep_mask
from fusedops.reference.unfused import run
from fusedops.run.autograd import differentiate
from fusedops.run.forward import make_plan
from fusedops.run.refusal import refuse, refuse_classes
from fusedops.run.runnable import Runnable
from fusedops.torch_ops.tracing import call_operator

if TYPE_CHECKING:
    from fusedops._runtime import Reason

__all__ = ["RowOp", "declared"]

#: What may be passed for an operand, as the runtime reads it.
_FLAGS = {
    Role.VALUE: _runtime.SLOT_NUMBER | _runtime.SLOT_TENSOR,
    Role.FLAGS: _runtime.SLOT_TENSOR,
    Role.COUNT: _runtime.SLOT_NUMBER | _runtime.SLOT_TENSOR,
    Role.PROBABILITY: _runtime.SLOT_PROBABILITY | _runtime.SLOT_NUMBER,
}

#: What the gate says where a mode or a tensor's class takes part, as they do in tracing.
_DISPATCHED = ("mode", "subclass", "storage")


#: All ops there are, by identity: equal declarations count apart.
declared: weakref.WeakValueDictionary[int, RowOp] = weakref.WeakValueDictionary()


class _CallSignature:
    """How an op is called, with the names of its own operands, for help() and editors."""

    def __get__(self, op: RowOp | None, owner: type[RowOp]) -> inspect.Signature | None:
        if op is None:
            return None  # the class is called with what its __init__ says
        x = inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY, annotation=Tensor)
        operands = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in op.slots]
        options = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=name == "training" or None
            )
            for name in OPTIONS
        ]
        return inspect.Signature([x, *operands, *options])


class RowOp(Runnable):
    """Base of the ops: a reduction over rows, with a LOAD before it and a STORE after it.

    ``op(x, **operands, **options)`` runs the fused op; x is half, bfloat16, float or double, of any
    shape and strides, and the operands go by the names in the declaration. It returns a tensor, or
    a named tuple with y, the saved streams and the statistics. Options:

    - dim: The dimension to reduce over, the last by default; for norms also several.
    - normalized_shape: For norms, the end of x's shape to reduce over.
    - dtype: The output's dtype, x's by default.
    - out: Tensors to write to, which overlap no input: one, or one for each output.
    - training: False leaves dropout out.
    - generator: Where dropout takes its seed from, torch's default by default.

    TypeError and ValueError say which argument does not fit and how to mend it; CompileError and
    CompilerNotFound that a variant could not be built.

    The call itself is the runtime's (csrc/dispatch.cpp): a method in between would take longer than
    finding the plan does.

    Attributes:
        load, store: The functors, in the order in which they apply.
        operands: The operands that a call gives, in order, each once.
        slots: The number of each operand, counted from 1, by its name; x is number 0.
        outputs: The names of the results: "y", saved streams, then statistics.
        saves: The residual that each saved stream is named for.
        dropouts: How many dropouts there are.
        causal: Whether a functor asks which query a row is.
        launches: Calls outside autograd that have launched so far.
    """

    observer = recording

    def __new__(cls, *arguments: Any, **named: Any) -> RowOp:
        """Check the names of what a declaration is given; `__init__` reads it."""
        if len(arguments) > 2 or not named.keys() <= {"load", "store"}:
            check_declaration(cls, arguments, named, OPTIONS)
        made: RowOp = super().__new__(cls)
        return made

    def __init__(
        self, load: Iterable[Functor] = (), store: Iterable[Functor] = (), **constants: Any
    ) -> None:
        Declaration.__init__(self, load, store, **constants)
        name = type(self).__name__
        self._kinds = [(operand.name, _FLAGS[operand.role]) for operand in self.operands]
        drawing = functools.partial(draw, op=name)
        several = self.result_type if len(self.outputs) > 1 else None  # made before tracers ask
        _runtime.Dispatcher.__init__(
            self,
            name,
            self._kinds,
            self._slow,
            drawing,
            several,
            functools.partial(differentiate, self),
        )
        self.trained = _runtime.Dispatcher(name, self._kinds, self._slow_trained, drawing, tuple)
        self.recipes = {}
        self.gradients = {}
        self.text = spell(self)
        declared[id(self)] = self

    __signature__ = _CallSignature()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__call__ is RowOp.__call__:
            _runtime.call_at_once(cls)

    def __call__(self, x: Tensor, /, **arguments: Any) -> Any:
        """What a call means to Dynamo, which reads it; Python itself calls the runtime instead."""
        if not torch.compiler.is_compiling():
            return _runtime.Dispatcher.__call__(self, x, **arguments)  # super() of a class's own
        operands = {key: value for key, value in arguments.items() if key not in OPTIONS}
        options = {key: value for key, value in arguments.items() if key in OPTIONS}
        return call_operator(self, x, operands, options)

    def unfused(self, x: Tensor, /, **arguments: Any) -> Any:
        """The same as a chain of torch calls: same arguments, same results, same dropout mask."""
        return self.wrap(run(self.bind(x, arguments)))

    def explain(self, x: Tensor, /, **arguments: Any) -> Any:
        """Say what a call would run and why, without running it: print the answer.

        Shows the LOAD and STORE chains, the schedule, each operand's place and vector width,
        whether the variant is cached, and the bytes that must move. In grad mode, with tensors that
        require grad, also what is kept for the backward pass, its bytes, and what that pass runs.
        """
        from fusedops.explain.forward import explain

        return explain(self.bind(x, arguments))

    def dropout_mask(
        self,
        shape: Sequence[int],
        seed: int,
        offset: int,
        p: float,
        *,
        slot: int = 0,
        dim: Any = -1,
    ) -> Tensor:
        """The elements that a dropout of this op keeps, as a bool tensor on the CPU.

        Args:
            shape: x's shape.
            seed: As the generator gave it (docs/dropout.md).
            offset: Likewise; 0 on a CPU.
            p: The probability of being dropped.
            slot: Which Dropout of the declaration, counted from 0, LOAD before STORE.
            dim: The reduced dimension or dimensions.

        Raises:
            TypeError, ValueError: An argument is of the wrong kind, or out of its range: offset and
                the dropouts of the declaration stay within 2^48.
        """
        name = f"{type(self).__name__}.dropout_mask"
        number = read_int(slot)
        if number is None or not 0 <= number < self.dropouts:
            raise ValueError(
                f"{name}: slot must be one of this op's {self.dropouts} dropouts, counted from 0, "
                f"got {slot!r}"
            )
        sizes = read_ints(name, "shape", shape)
        if not sizes or min(sizes) < 0:
            raise ValueError(
                f"{name}: shape must be that of an x, at least one size of 0 or more, got {sizes}"
            )
        reduced = find_reduced(self, name, sizes, {"dim": dim})
        for option, value in (("seed", seed), ("offset", offset)):
            if read_int(value) is None:
                raise TypeError(f"{name}: {option} must be an int, got {value!r}")
        seed, offset = check_pair(name, (seed, offset))
        check_offset(name, offset, self.dropouts)
        chance = check_probability(name, "p", p)
        return keep_mask(sizes, reduced, seed=seed, offset=offset + number, p=chance)

    def _slow(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        """Where the C++ path ends: a new plan, or what stood in its way."""
        if reason == "capture":
            drawn = draw_in_memory(
                x.device, self.dropouts, options.get("generator"), type(self).__name__
            )
            return self(x, **operands, **{**options, "generator": drawn})
        if _stands_for_an_operator(reason, x):
            check_layouts(self.name, {"x": x, **operands, "out": options.get("out")})
            try:
                return call_operator(self, x, operands, options)
            except UnsupportedError:
                raise
            except (NotImplementedError, TypeError, AssertionError) as error:
                # Of a tensor's class or of a mode, unless it names the op.
                if str(error).startswith(f"{self.name}: "):
                    raise
                refuse_classes(self, {"x": x, **operands}, error)
        if reason != "miss":
            refuse(self, reason, x, operands, options)
            return self._in_plain_types(bind(self, x, operands, options), operands, options)
        return make_plan(self, bind(self, x, operands, options))

    def _slow_trained(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        """The same for a call whose row statistics are kept."""
        if reason != "miss":
            refuse(self, reason, x, operands, options)
            bound = bind(self, x, operands, options)
            plain = {"dim": bound.reduced, "dtype": bound.dtype, "generator": bound.generator}
            return self.trained(x, **bound.operands, training=bool(bound.slots), **plain)
        return make_plan(self, bind(self, x, operands, options)._replace(keep=True))

    @functools.cached_property
    def direct(self) -> _runtime.Dispatcher:
        """The op as an operator of torch runs it: on memory, whoever traces; returns a tuple."""
        return _runtime.Dispatcher(self.name, self._kinds, self._slow_direct, draw, tuple)

    def _slow_direct(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        if reason != "miss":
            refuse(self, reason, x, operands, options)
            raise TypeError(f"{self.name}: the runtime cannot read these arguments: {options}")
        return make_plan(self, bind(self, x, operands, options))

    def _in_plain_types(
        self, bound: Bound, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        """The call once more: nothing is wrong but the kind of a number, say numpy's."""
        dim = options.get("dim")
        if (
            options.get("normalized_shape") is None
            and type(dim) is tuple
            and all(type(one) is int for one in dim)
            and dim == bound.reduced
            and options.get("generator") is bound.generator
            and all(operands[name] is value for name, value in bound.operands.items())
        ):  # in plain types already: once more would be no better
            raise TypeError(f"{self.name}: the runtime cannot read these options: {options}")
        plain = {**options, "dim": bound.reduced, "normalized_shape": None}
        plain["generator"] = bound.generator
        return self(bound.x, **bound.operands, **plain)

    def bind(self, x: Any, arguments: dict[str, Any]) -> Bound:
        """Check a call."""
        options = {key: value for key, value in arguments.items() if key in OPTIONS}
        operands = {key: value for key, value in arguments.items() if key not in OPTIONS}
        return bind(self, x, operands, options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.load, self.store, self.constants)


_runtime.call_at_once(RowOp)


def _stands_for_an_operator(reason: Reason, x: Any) -> bool:
    """Whether a call that the gate stopped is one for torch's dispatcher."""
    if reason == "tracing":
        return torch._C._get_tracing_state() is None  # torch.jit.trace has no lists of names
    return reason in _DISPATCHED or (reason == "device" and isinstance(x, Tensor) and x.is_meta)


def _rebuild(
    kind: type[RowOp],
    load: tuple[Functor, ...],
    store: tuple[Functor, ...],
    constants: dict[str, Any],
) -> RowOp:
    return kind(load, store, **constants)
