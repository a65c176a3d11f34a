# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The base class of ops: a declaration that can be called.

The declaration is data (`declare`), finding and launching a kernel is the C++ runtime's business.
This class ties the two together: it says what is done where the runtime has no plan for a call.

May import: errors, _runtime, jit, functors, declare, bind, reference, run, prebuild, explain,
torch_ops, distributed.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops._runtime import Reason
from fusedops.bind.bind import Bound, bind
from fusedops.bind.dimensions import find_reduced
from fusedops.bind.generator import draw, draw_in_memory
from fusedops.bind.operands import check_layouts
from fusedops.bind.scalars import check_offset, check_pair, check_probability, read_int, read_ints
from fusedops.bind.shard_offset import check_shared, shared_dims
from fusedops.declare.declaration import Declaration
from fusedops.declare.interactive import CallSignature
from fusedops.declare.options import parted
from fusedops.declare.text import spell
from fusedops.errors import FusedOpsError
from fusedops.functors import Functor
from fusedops.jit.lock import guard
from fusedops.prebuild import recording
from fusedops.reference.dropout_mask import keep_mask
from fusedops.reference.unfused import run
from fusedops.run.autograd import differentiate, named
from fusedops.run.cpp_library import offer
from fusedops.run.refusal import (
    is_of_classes,
    refuse,
    refuse_classes,
    stands_for_an_operator,
)
from fusedops.run.runnable import Runnable, flags_of
from fusedops.torch_ops.tracing import call_operator, is_distributed

if TYPE_CHECKING:
    from fusedops.declare.results import Result

#: All live ops of this process by their `id`, so that equal declarations count separately.
declared: weakref.WeakValueDictionary[int, RowOp] = weakref.WeakValueDictionary()


class RowOp(Runnable):
    """Base of the ops: a reduction over rows, with a LOAD before it and a STORE after it.

    Calling an op runs it: `__call__` says what a call takes and returns.

    Attributes:
        load, store: The functors before and after the reduction, in the order in which they apply.
        operands: The operands that a call is given, in order of first use, each once.
        slots: The number of each operand by its name, counted from 1; x is number 0.
        outputs: The names of the results: "y", then the saved streams, then the statistics.
        saves: The name of the residual operand behind each saved stream, by the stream's name.
        dropouts: The number of `Dropout` functors in the declaration.
        causal: Whether some functor depends on the query index of a row.
        launches: The number of calls outside autograd that have launched a kernel so far.
    """

    observer = recording

    def __init__(
        self, load: Iterable[Functor] = (), store: Iterable[Functor] = (), **constants: Any
    ) -> None:
        Declaration.__init__(self, load, store, **constants)
        name = self.title
        self._kinds = [(operand.name, flags_of(operand.role)) for operand in self.operands]
        drawing = functools.partial(draw, op=name)
        several = self.result_type if len(self.outputs) > 1 else None  # made before tracers ask
        slow = (self._slow, drawing, several, self._differentiate)
        in_place = self.pair is not None
        _runtime.Dispatcher.__init__(self, name, self._kinds, *slow, self.label, in_place=in_place)
        self.trained = _runtime.Dispatcher(
            name, self._kinds, self._slow_trained, drawing, tuple, label=self.label
        )
        self.recipes = {}
        self.merging = set()
        self.gradients = {}
        self.text = spell(self)
        declared[id(self)] = self

    __signature__ = CallSignature()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__call__ is RowOp.__call__:
            _runtime.call_at_once(cls)

    def __call__(self, x: Tensor, /, **arguments: Any) -> Result:
        """Run the fused op on x, on the CPU or a CUDA device; return y or a named tuple.

        A call is ``op(x, **operands, **options)``. x, the input, is given by position: a float16,
        bfloat16, float32 or float64 tensor of one or more dimensions. Its strides may be any, but
        the rows of all tensors together may need at most five dimensions once neighbours merge.

        Every operand that the declaration names, in a functor or for the operator itself, is given
        by keyword, under that name; one of a functor with ``optional=True`` may be left out or be
        None, and the call is then that of an op declared without that functor. A tensor is on x's
        device and broadcasts against x. What an operand takes depends on who names it:

        - a value: a floating-point tensor, or a real number;
        - a number a row, as a sink or a slope: such a tensor of size 1 in the reduced dimension, or
          a real number;
        - a mask: a bool tensor;
        - ids: a tensor of integers, uint8, int8, int16, int32 or int64; ids of queries have size 1
          in the reduced dimension, and ids of keys in that of the queries;
        - a count of columns: an int32 or int64 tensor of size 1 in the reduced dimension, or an
          int;
        - a probability: a number in [0, 1].

        Options, each by keyword:

        - dim (int; for norms also a sequence of ints; default: the last dimension): The dimension
          or dimensions of x that make a row, over which the op reduces.
        - normalized_shape (int or sequence of ints; default: None): For norms, in place of dim: the
          sizes of the trailing dimensions of x that make a row.
        - dtype (torch.dtype; default: x's): The dtype of y, one of those that x may have. The op
          computes in float64 if x or y is float64, else in float32.
        - out (tensor, or a sequence of one tensor for each output; default: new tensors): The
          tensors to write to, of the outputs' shapes and dtypes, which overlap neither an input nor
          each other; y of an op with a `Rotate` may be x itself. Calls that need gradients do not
          take it.
        - training (bool; default: True): False leaves every dropout out.
        - generator (torch.Generator on x's device, a pair (seed, offset) of ints, or an int64
          tensor of shape (2,) on x's device that holds seed and offset; default: the device's
          default generator of torch): Where dropout takes its random numbers from
          (docs/explanation/dropout.md).
        - part_of (a pair of sequences of ints; default: None): x is a part of a larger tensor, a
          shard, whose sizes and index of x's first element these are. Dropouts and masks made from
          indices then count the rows of that tensor, of which x holds whole rows.

        A call returns y, a tensor of x's shape. If the declaration has more outputs it returns a
        named tuple: y, the saved streams, which have x's shape, and the statistics of the operator,
        which have x's shape without the reduced dimensions.

        Raises:
            TypeError, ValueError: An argument is of the wrong kind, shape, device or range.
            UnsupportedError: The tensors or an active mode do not go with a fused kernel.
            CompileError, CompilerNotFound: The kernel could not be built.
        """
        # Dynamo traces this method. Python itself calls the C++ runtime directly instead.
        if not torch.compiler.is_compiling():
            # Not super(), which is a class's own.
            result: Result = _runtime.Dispatcher.__call__(self, x, **arguments)
        else:
            result = self._traced(x, *parted(arguments))
        return result

    def _traced(self, x: Any, operands: dict[str, Any], options: dict[str, Any]) -> Any:
        """Run a call as an operator of torch, where torch traces or a mode takes part."""
        if is_distributed(x):
            from fusedops import distributed  # noqa: F401 (the operator's call needs it)
        return call_operator(self, x, operands, options)

    def _differentiate(self, options: dict[str, Any] | None, x: Tensor, *values: Any) -> Any:
        """Run a call that needs gradients; `values` are the operands in the order of `slots`."""
        if not self.offered and offer(self):
            return self.grad(options, x, *values)
        if self.optional and self.lacking(operands := named(self, values)):
            op, given = self.given(operands)
            return op(x, **given, **(options or {}))
        return differentiate(self, options, x, *values)

    def over_rows(
        self, x: Tensor, arguments: dict[str, Any]
    ) -> tuple[RowOp, Tensor, dict[str, Any]]:
        """The call that is run: another op on views of x for a GroupNorm, else the call itself.

        Returns:
            An op that reduces dimensions of its x, that x, and operands and options, mixed.
        """
        operands, options = parted(arguments)
        op, given = self.given(operands)
        return op, x, arguments if op is self else {**given, **options}

    def unfused(self, x: Tensor, /, **arguments: Any) -> Result:
        """Compute a call as a chain of torch operations instead of one fused kernel.

        It takes the same arguments, returns outputs of the same names, shapes and dtypes, and drops
        the same elements. It runs on any device, and torch differentiates it as often as needed.

        Raises:
            TypeError, ValueError: An argument does not fit, as in a fused call.
        """
        result = self.wrap(run(self.bind(x, arguments)))
        given: Result = self._as_given(result, x.shape, arguments)
        return given

    def _as_given(self, result: Any, shape: Sequence[int], options: Mapping[str, Any]) -> Any:
        """The result of a call of `over_rows` in the shapes that the caller knows."""
        return result

    def explain(self, x: Tensor, /, **arguments: Any) -> Any:
        """Explain which kernel a call with these arguments would run and why, without running it.

        Returns an `Explanation`; print it. It shows the LOAD and STORE chains, the schedule, each
        operand's memory layout and vector width, whether the variant is cached, and the bytes that
        must move. In grad mode, with tensors that require grad, it also shows the tensors saved for
        the backward pass, their bytes, and what that pass runs.

        Raises:
            TypeError, ValueError: An argument does not fit, as in a fused call.
            UnsupportedError: No kernel can be made for the tensors' device or layout.
        """
        if is_distributed(x):
            from fusedops.distributed.explained import explain_sharded

            return explain_sharded(self, cast(Any, x), arguments)
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
        """Compute which elements a dropout of this op keeps.

        Args:
            shape: The shape of x.
            seed: The seed that the call took from its generator (docs/explanation/dropout.md).
            offset: The offset that the call took from its generator; 0 on a CPU.
            p: The probability with which an element is dropped, in [0, 1].
            slot: The number of the `Dropout` in the declaration, counted from 0, LOAD before STORE.
            dim: The reduced dimension or dimensions of the call; the last by default.

        Returns:
            A bool tensor of this shape on the CPU, True where the element is kept.

        Raises:
            TypeError, ValueError: An argument is of the wrong kind or out of its range: the sum of
                offset and the number of dropouts in the declaration is at most 2^48.
        """
        name = f"{self.title}.dropout_mask"
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
        check_shared(self, len(sizes), reduced)
        shared = shared_dims(self.drawing[number], len(sizes))
        return keep_mask(sizes, reduced, seed=seed, offset=offset + number, p=chance, shared=shared)

    def _slow(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        """Handle a call that the C++ path cannot: return a new plan or the result, or raise."""
        if self.lacking(operands):
            op, operands = self.given(operands)
            if op is not self:
                return op(x, **operands, **options)
        if reason is Reason.CAPTURE:
            drawn = draw_in_memory(x.device, self.dropouts, options.get("generator"), self.name)
            return self(x, **operands, **{**options, "generator": drawn})
        if stands_for_an_operator(reason, x):
            check_layouts(self.name, {"x": x, **operands, "out": options.get("out")})
            try:
                return self._traced(x, operands, options)
            except FusedOpsError:
                raise
            except (NotImplementedError, TypeError, AssertionError, RuntimeError) as error:
                # Of a tensor's class or of a mode, unless it names the op.
                if not is_of_classes(error) or str(error).startswith(f"{self.name}: "):
                    raise
                refuse_classes(self, {"x": x, **operands}, error)
        if reason is not Reason.MISS:
            refuse(self, reason, x, operands, options)
            return self._in_plain_types(bind(self, x, operands, options), operands, options)
        return self.plan_and_run(bind(self, x, operands, options))

    def _slow_trained(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        """Handle, as `_slow`, a call whose row statistics are saved for the backward pass."""
        if reason is not Reason.MISS:
            refuse(self, reason, x, operands, options)
            bound = bind(self, x, operands, options)
            return self.trained(x, **bound.operands, **bound.options)
        return self.plan_and_run(bind(self, x, operands, options)._replace(keep=True))

    @functools.cached_property
    def direct(self) -> _runtime.Dispatcher:
        """The dispatcher of the torch operator: runs on memory even in tracing; returns a tuple."""
        return _runtime.Dispatcher(
            self.name, self._kinds, self._slow_direct, draw, tuple, label=self.label
        )

    def _slow_direct(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        if reason is not Reason.MISS:
            refuse(self, reason, x, operands, options)
            raise TypeError(f"{self.name}: the runtime cannot read these arguments: {options}")
        return self.plan_and_run(bind(self, x, operands, options))

    def plan_and_run(self, bound: Bound, shape: Sequence[int] | None = None) -> Any:
        """Run a call for which the runtime has no plan: what plans is imported by the first one."""
        with guard:
            from fusedops.run.forward import make_plan

        return make_plan(self, bound, shape)

    def _in_plain_types(
        self, bound: Bound, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        """Repeat a call in plain types: its only fault is a number's type, numpy's for example."""
        dim = options.get("dim")
        if (
            options.get("normalized_shape") is None
            and type(dim) is tuple
            and all(type(one) is int for one in dim)
            and dim == bound.reduced
            and options.get("generator") is bound.generator
            and options.get("part_of") == bound.whole
            and all(operands[name] is value for name, value in bound.operands.items())
        ):  # in plain types already: once more would be no better
            raise TypeError(f"{self.name}: the runtime cannot read these options: {options}")
        plain = {**options, **bound.options, "normalized_shape": None}
        return self(bound.x, **bound.operands, **plain)

    def bind(self, x: Any, arguments: dict[str, Any]) -> Bound:
        """Check a call's arguments, operands and options mixed, and return the `Bound` call.

        Raises:
            TypeError, ValueError: An argument is unknown, is missing or does not fit.
        """
        op, seen, given = self.over_rows(x, arguments)
        return bind(op, seen, *parted(given))

    def _repr_html_(self) -> str:
        """The declaration as a notebook shows it."""
        from fusedops.explain.picture import declaration_html

        constants = ", ".join(f"{key}={value!r}" for key, value in self.constants.items())
        chains: dict[str, Sequence[object]] = {"load": ("x", *self.load)}
        chains["over each row"] = (f"{self.name}({constants})",)
        chains["store"] = (*self.store, "y") if self.has_result else ("numbers of rows",)
        if not self.reduces:
            chains = {"functors": ("x", *self.load, *self.store, "y")}
        return declaration_html(self.name, chains, ("x",), self.slots, self.outputs)


_runtime.call_at_once(RowOp)
