# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""From a graph of aten operations to C++ statements about one element.

A tensor of the samples' shape stands for an element, one of a single element for a constant.
Memory is followed as well: torch's formulas write in place, and views show what was written.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, fx

from fusedops.errors import UnsupportedError
from fusedops.functors.admission import CURE, check
from fusedops.functors.definition import COMPUTE, TRUTH, Step
from fusedops.functors.integers import (
    CONSTANT,
    EXACT,
    SMALL,
    Memory,
    Range,
    Tree,
    is_divisor,
    is_integer,
    is_whole,
    range_of,
)
from fusedops.functors.pointwise import (
    COMPARISONS,
    CONDITIONS,
    COPIES,
    DIVISIONS,
    EMPTY,
    IDLE,
    LOGICAL,
    PREDICATES,
    SAME,
    SPELLINGS,
    WHOLE,
    integer_literal,
    integer_text,
    literal,
)


class _Number(float):
    """A number that is an argument of an operation, with its C++ text."""

    def __format__(self, spec: str) -> str:
        return literal(self)


class Lowered(NamedTuple):
    """A graph as statements."""

    steps: tuple[Step, ...]
    results: tuple[str, ...]  # the expressions of the graph's results
    trees: Mapping[str, Tree]  # what names of truth values and of whole numbers stand for


class _Lowering:
    def __init__(self, title: str, shape: tuple[int, ...], rounds: bool) -> None:
        self.title = title
        self.shape = shape
        self.rounds = rounds
        self.steps: list[Step] = []
        self._named: dict[tuple[str, str], str] = {}  # an expression that was met is not repeated
        #: What the names of truth values and whole numbers stand for: an operation, its arguments.
        self.trees: dict[str, Tree] = {}

    def refuse(self, what: str, why: str) -> NoReturn:
        raise UnsupportedError(f"{self.title}: {what} {why}")

    def name(self, kind: str, text: str) -> str:
        """A name for an expression."""
        known = self._named.get((kind, text))
        if known is None:
            known = self._named[kind, text] = f"t{len(self.steps)}"
            self.steps.append(Step(kind, known, text))
        return known

    def text(self, memory: Memory, kind: str = COMPUTE) -> str:
        """The value that is held, as a number of this kind."""
        if memory.moved:
            self.refuse(memory.moved, "where it has no value; a functor stays on x's device")
        if memory.text is None:
            self.refuse("reads memory that nothing was written to,", "which has no value; fill it")
        if memory.kind == kind:
            return memory.text
        if kind == WHOLE and memory.number is not None:
            return integer_literal(memory.number)
        return f"({memory.text} != 0)" if kind == TRUTH else f"{kind}({memory.text})"

    def constant(self, value: Any) -> Memory:
        """A tensor that the function holds or makes."""
        if isinstance(value, Tensor) and value.requires_grad:
            self.refuse(
                f"it uses a tensor of shape {tuple(value.shape)} from outside that requires grad,",
                "whose gradient would be lost; make it an operand",
            )
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
            self.refuse(
                f"it uses a tensor{shape} from outside,",
                "but what is known here is one element at a time; make it an operand",
            )
        number: Any = value.item()
        if not is_integer(value.dtype):
            return Memory(literal(number), given=True)
        if abs(number) > EXACT:
            return Memory(integer_literal(number), WHOLE, given=True, number=number)
        return Memory(literal(number), given=True, integers=Range.of(number), number=number)

    def call(self, node: fx.Node, memory: dict[fx.Node, Any]) -> Any:
        """The contents of the result of an operation."""
        if node.target is operator.getitem:
            return memory[node.args[0]][node.args[1]]  # type: ignore[index]
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            self.refuse(str(target), f"is no operation of torch's; {CURE}")
        arguments = _bound(target, node)
        full = target.overloadpacket.__name__
        writes = target._schema.is_mutable
        name = full[:-1] if writes and full.endswith("_") else full
        check(self.title, self.shape, node, name)
        if name in EMPTY:
            return Memory(None)
        given = {key: memory[v] if isinstance(v, fx.Node) else v for key, v in arguments.items()}
        if name in SAME:
            return given["self"]
        result = node.meta["val"]
        value = result[0] if isinstance(result, (tuple, list)) else result
        if value.device.type != "cpu":  # where it is traced
            moved = f"{target.overloadpacket} ({target}) moves to {value.device},"
            return Memory(None, moved=moved)
        kind = TRUTH if value.dtype == torch.bool else COMPUTE
        text = self.whole(node, name, given, value)
        integers = None
        if text is not None:
            kind = kind if kind == TRUTH else WHOLE
            text = self.name(kind, text)
            self.trees[text] = Tree.of(name, given)
        elif name in COPIES:
            kind = WHOLE if is_whole(given["self"]) and is_integer(value.dtype) else kind
            integers = None if kind == WHOLE else self.counted(target, name, given, value.dtype)
            text = self.copied(node, given["self"], value, kind)
        else:
            integers = self.counted(target, name, given, value.dtype)
            text = self.spelled(target, name, given, kind == TRUTH)
            if self.rounds and value.dtype == torch.float32:  # as torch computes it beside doubles
                text = f"Compute(float({text}))"
            text = self.name(kind, text)
            if kind == TRUTH:
                self.trees[text] = Tree.of(name, given)
        if writes:
            kept = given["self"]
            if kept.given:
                self.refuse(f"aten.{full}", "writes to an argument of the functor; make a copy")
            kept.text, kept.kind, kept.number = text, kind, None
            kept.integers = Range(1) if kind == TRUTH else integers
            return kept
        number = given.get("fill_value", given.get("s")) if is_integer(value.dtype) else None
        number = number if name in CONSTANT and isinstance(number, int) else None
        made = Memory(text, kind, integers=integers, number=number)
        return made if value is result else [made, *[Memory(None) for _ in result[1:]]]

    def whole(self, node: fx.Node, name: str, given: dict[str, Any], value: Tensor) -> str | None:
        """The expression of an operation on whole numbers; None for any other."""
        if name in CONSTANT and value.dtype == torch.int64:
            number: Any = given.get("fill_value", given.get("s"))
            large = isinstance(number, int) and abs(number) > EXACT
            return integer_literal(number) if large else None
        used = {key: one for key, one in given.items() if key not in CONDITIONS}
        numbers = [one for one in used.values() if isinstance(one, Memory)]
        constants = SMALL - {"sign", "sgn"}
        if name in constants | COPIES | SAME or not any(map(is_whole, numbers)):
            return None
        called = f"{node.target.overloadpacket} ({node.target})"  # type: ignore[union-attr]
        floats = any(one.kind == COMPUTE and one.integers is None for one in numbers)
        fractions = any(isinstance(one, float) for one in used.values())
        if value.dtype.is_floating_point or (name in COMPARISONS and floats):
            if not floats or fractions:
                self.refuse(
                    called,
                    "computes with whole numbers in torch's default dtype; convert them to x.dtype "
                    "before, with .to(x.dtype)",
                )
            return None
        if name.startswith("logical_"):
            return None
        texts = {
            key: self.text(one, TRUTH if key in CONDITIONS else WHOLE)
            if isinstance(one, Memory)
            else integer_literal(one)
            if isinstance(one, int) and key not in ("alpha", "exponent")
            else one
            for key, one in given.items()
        }
        if name in DIVISIONS and not is_divisor(given["other"]):
            self.refuse(called, "divides by what may be 0; divide by a number, or in x.dtype")
        text = None
        if name in COMPARISONS and not fractions:
            text = COMPARISONS[name].format_map(texts)
        elif value.dtype == torch.int64 and not fractions:
            text = integer_text(name, texts)
        if text is None:
            self.refuse(
                called,
                f"computes {value.dtype} of whole numbers, which has no spelling here; write it in "
                "int64 with + - * // %, comparisons and torch.where, or convert with .to(x.dtype)",
            )
        return text

    def counted(
        self, target: Any, name: str, given: dict[str, Any], dtype: torch.dtype
    ) -> Range | None:
        """The range of a result of integers, which floating point has to compute exactly."""
        if not is_integer(dtype):
            return None
        numbers = {
            key: value
            for key, value in given.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        tensors = {key: v.integers for key, v in given.items() if isinstance(v, Memory)}
        found = range_of(name, numbers, tensors, dtype)
        if found is None:
            self.refuse(
                f"{target.overloadpacket} ({target})",
                f"computes in {dtype}, which may come out otherwise in floating point; convert "
                "to x.dtype before, with .to(x.dtype)",
            )
        return found

    def copied(self, node: fx.Node, source: Memory, value: Tensor, kind: str) -> str:
        """The text of a copy; a conversion from double to float rounds, where Compute is double."""
        if kind == WHOLE and value.dtype != torch.int64:
            self.refuse(
                f"{node.target}",
                f"makes {value.dtype} of whole numbers, which may wrap; they stay in int64",
            )
        text = self.text(source, kind)
        was = node.args[0].meta["val"].dtype if isinstance(node.args[0], fx.Node) else value.dtype
        if self.rounds and is_whole(source) and value.dtype == torch.float32:
            return self.name("Compute", f"Compute(float({source.text}))")
        if self.rounds and was == torch.float64 and value.dtype == torch.float32:
            return self.name("Compute", f"Compute(float({text}))")
        return text

    def spelled(self, target: Any, name: str, given: dict[str, Any], logical: bool) -> str:
        """The C++ expression of an operation."""
        texts: dict[str, Any] = {}
        for argument in target._schema.arguments:
            key, value = argument.name, given.get(argument.name)
            if isinstance(value, Memory):
                if value.text is not None:
                    truth = name in LOGICAL or key in CONDITIONS
                    texts[key] = self.text(value, TRUTH if truth else COMPUTE)
            elif isinstance(value, bool) and str(argument.type) == "bool":
                texts[key] = str(value).lower()
            elif isinstance(value, (bool, int, float)):
                texts[key] = self.number(value)
            elif value is not None:
                texts[key] = value
        if name not in SPELLINGS:
            self.refuse(
                f"{target.overloadpacket} ({target})",
                f"has a spelling in C++ for integer operands and positions alone; {CURE}",
            )
        spelling = SPELLINGS[name]
        read = _Recorded(texts)
        text = spelling(read) if callable(spelling) else spelling.format_map(read)
        for argument in target._schema.arguments:
            key, value = argument.name, given.get(argument.name)
            if key in read.used or key in IDLE or isinstance(value, Memory):
                continue
            if value is not None and value != argument.default_value:
                self.refuse(f"aten.{name}", f"with {key}={value!r} has no spelling here; {CURE}")
        return f"({text}) != 0" if logical and name not in PREDICATES else text

    def number(self, value: float) -> _Number:
        number = _Number(value)
        if abs(number) > torch.finfo(torch.float32).max and abs(number) != torch.inf:
            self.refuse(
                f"the constant {value!r}",
                "does not fit the compute type where that is float; torch.inf does",
            )
        return number


class _Recorded(dict[str, Any]):
    """A mapping that records which keys were read."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.used: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.used.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.used.add(key)
        return super().get(key, default)


def _bound(target: Any, node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by name, defaults included."""
    schema = target._schema.arguments
    given = {argument.name: argument.default_value for argument in schema}
    given.update(zip(given, node.args, strict=False))
    given.update(node.kwargs)
    return given


def lower(
    title: str,
    traced: fx.GraphModule,
    inputs: Sequence[str],
    shape: tuple[int, ...],
    *,
    rounds: bool,
) -> Lowered:
    """Statements for a graph, and the expressions of its results.

    With `rounds`, conversions between floating types are statements; else they are nothing.

    Raises:
        UnsupportedError: An operation has no spelling; the message names it.
    """
    lowering = _Lowering(title, shape, rounds)
    memory: dict[fx.Node, Any] = {}
    names = iter(inputs)
    results: tuple[str, ...] = ()
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            integers = is_integer(node.meta["val"].dtype)
            memory[node] = Memory(next(names), WHOLE if integers else COMPUTE, given=True)
        elif node.op == "get_attr":
            memory[node] = lowering.constant(getattr(traced, str(node.target)))
        elif node.op == "call_function":
            memory[node] = lowering.call(node, memory)
        elif node.op == "output":
            returned: Any = node.args[0]
            results = tuple(
                lowering.text(memory[one], TRUTH if memory[one].kind == TRUTH else COMPUTE)
                for one in returned
            )
    return Lowered(tuple(lowering.steps), results, lowering.trees)
