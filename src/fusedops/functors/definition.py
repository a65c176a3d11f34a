# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Generate the C++ struct of a user-defined functor from expressions over one element.

The struct follows include/fusedops/functor/contract.cuh as those in that folder do. Everything that
leads to a gradient which nobody asks for has no other use, so a compiler leaves it out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from fusedops.functors.pointwise import WHOLE

#: What expressions call the value that the functor sees, and the gradient of what it makes of it.
VALUE, GRADIENT = "v", "g"

#: The kinds of values that a step holds: the compute type, and truth values. Whole numbers are the
#: third (`functors.pointwise`).
COMPUTE, TRUTH = "Compute", "bool"

#: What the struct itself uses; identifiers that start like these are its own, too.
RESERVED = frozenset({VALUE, GRADIENT, "i", "row", "col", "sink", "value", "gradient"})

_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


class Step(NamedTuple):
    """One statement: ``const kind name = text;``, the kind Compute, bool or int64_t."""

    kind: str
    name: str
    text: str


class Bounds(NamedTuple):
    """The columns of a row that a mask can keep, if one of its coordinates is the column."""

    column: str  # what expressions call that coordinate
    #: The range, half open, as expressions over numbers of the row alone.
    begin: str
    end: str


class Program(NamedTuple):
    """The computation of a functor for one element, forward and backward."""

    operands: tuple[str, ...]  # what expressions call the operands, in order
    steps: tuple[Step, ...]  # statements that later ones and the results may use
    value: str  # an expression for the functor's value; of a mask, whether the element is kept
    #: Expressions for the gradients, that of the input first, then those of the operands; none
    #: where there is no derivative. That of an operand of integers is empty.
    gradients: tuple[str, ...]
    integers: frozenset[str] = frozenset()  # what expressions call the operands that are integers
    positions: tuple[str, ...] = ()  # what expressions call the coordinates, in order
    masks: bool = False  # whether the functor is a mask
    #: The range of columns that a mask can keep in a row, where that is known.
    bounds: tuple[Bounds, ...] = ()

    def members(self) -> dict[str, str]:
        """The struct's members by what expressions call what they hold."""
        return {
            **{name: f"operand{k}" for k, name in enumerate(self.operands)},
            **{name: f"position{k}" for k, name in enumerate(self.positions)},
        }

    def leading_to(self, results: Sequence[str]) -> list[Step]:
        """The steps on which these results depend, in order."""
        needed = names(*results)
        steps = []
        for step in reversed(self.steps):
            if step.name in needed:
                steps.append(step)
                needed |= names(step.text)
        return steps[::-1]

    def reads(self, results: Sequence[str]) -> set[str]:
        """The inputs on which these results depend: v, g and operands, by name."""
        return names(*results, *(step.text for step in self.leading_to(results)))

    def gradient_reads(self, wanted: Collection[int]) -> set[str]:
        """The inputs that the gradients of x and of the operands with these numbers depend on."""
        return self.reads([self.gradients[0], *(self.gradients[1 + k] for k in wanted)])


def names(*texts: str) -> set[str]:
    """The identifiers in C++ text."""
    return {name for text in texts for name in _NAME.findall(text)}


class Definition(NamedTuple):
    """The C++ of a functor: a program, and the name and the text of the struct that runs it."""

    program: Program
    name: str
    text: str


def define(title: str, program: Program) -> Definition:
    """Write the struct of a program; its name has a digest of its text, and so is unique."""
    kinds = [f"Operand{k}" for k in range(len(program.operands))]
    kinds += [f"Position{k}" for k in range(len(program.positions))]
    members = [f"{kind} {kind.lower()};" for kind in kinds]
    template = ", ".join(f"class {kind}" for kind in kinds)
    forward = _function(
        program,
        "template <int N, class Compute, class Row>\n"
        "FUSEDOPS_HD void operator()(Compute (&value)[N], const Row& row, int64_t col) const",
        [program.value],
        [] if program.masks else ["value"],
        f"value[i] = {program.value} ? value[i] : -infinity<Compute>();"
        if program.masks
        else f"value[i] = {program.value};",
    )
    needs = str(VALUE in program.reads(program.gradients)).lower()
    constant = [f"static constexpr bool kNeedsInput = {needs};"] if program.gradients else []
    if program.masks:
        constant = [
            f"static constexpr bool {one};" for one in ("kMasks = true", "kNeedsInput = false")
        ]
    parts = [*members, *constant, "", *forward, *_columns(program), *_backward(program)]
    body = "\n".join(f"  {line}".rstrip() for line in parts)
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    camel = "".join(part.title() for part in re.findall("[A-Za-z0-9]+", title)) or "Functor"
    name = f"{camel if camel[0].isalpha() else 'F' + camel}_{digest}"
    head = f"template <{template}>\n" if template else ""
    text = f"namespace fusedops {{\n\n{head}struct {name} {{\n{body}\n}};\n\n}}\n"
    return Definition(program, name, text)


def _backward(program: Program) -> list[str]:
    if not program.gradients:
        return []
    able = [k for k, name in enumerate(program.operands) if name not in program.integers]
    arrays = [f"of_operand{k}" for k in able]
    writes = [
        *(f"of_operand{k}[i] = {program.gradients[1 + k]};" for k in able),
        f"gradient[i] = {program.gradients[0]};",
    ]
    return [
        "",
        *_function(
            program,
            "template <int N, class Compute, class Row, class Sink>\n"
            "FUSEDOPS_HD void backward(Compute (&gradient)[N], const Compute (&value)[N], "
            "const Row& row,\n                          int64_t col, Sink& sink) const",
            program.gradients,
            ["value", "gradient"],
            *writes,
            arrays=arrays,
            after=[f"sink.template add<{k}>(of_operand{k}, row, col);" for k in able],
        ),
    ]


def _columns(program: Program) -> list[str]:
    """The text of the member that tells which columns of a row a mask can keep."""
    if not program.bounds:
        return []
    lines = []
    for bounds in program.bounds:
        column = program.members()[bounds.column]
        used = names(bounds.begin, bounds.end)
        lines += [
            f"if constexpr ({column.capitalize()}::kIsColumn) {{",
            *(
                f"  const int64_t {name} = number_of_row({member}, row);"
                for name, member in program.members().items()
                if name in used
            ),
            f"  return {{{bounds.begin}, {bounds.end}}};",
            "} else {",
        ]
    return [
        "",
        "template <class Row>",
        "FUSEDOPS_HD Columns columns(const Row& row) const {",
        *(f"  {line}" for line in lines),
        "    return {0, whole::kMost};",
        f"  {'}' * len(program.bounds)}",
        "}",
    ]


def _function(
    program: Program,
    head: str,
    results: Sequence[str],
    given: Sequence[str],
    *writes: str,
    arrays: Sequence[str] = (),
    after: Sequence[str] = (),
) -> list[str]:
    """The text of a member function that applies the program to each of N elements."""
    used = program.reads(results)
    fetches, locals_ = [], []
    for name, array in ((VALUE, "value"), (GRADIENT, "gradient")):
        if name in used and array in given:
            locals_.append(f"const Compute {name} = {array}[i];")
    for name, member in program.members().items():
        if name in used:
            whole = name in program.integers or name in program.positions
            kind = WHOLE if whole else COMPUTE
            fetches.append(f"const auto of_{name} = {member}.template fetch<N, {kind}>(row, col);")
            locals_.append(f"const {kind} {name} = of_{name}[i];")
    steps = [f"const {kind} {name} = {text};" for kind, name, text in program.leading_to(results)]
    return [
        *f"{head} {{".split("\n"),
        *(f"  {line}" for line in fetches),
        *([f"  Compute {', '.join(f'{array}[N]' for array in arrays)};"] if arrays else []),
        "  FUSEDOPS_VECTOR",
        "  for (int i = 0; i < N; ++i) {",
        *(f"    {line}" for line in (*locals_, *steps, *writes)),
        "  }",
        *(f"  {line}" for line in after),
        "}",
    ]
