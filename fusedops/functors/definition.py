# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Write the C++ struct of a functor of the user's own, from expressions over one element.

The struct follows include/fusedops/functor/contract.cuh as those in that folder do. Everything that
leads to a gradient which nobody asks for has no other use, so a compiler leaves it out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

#: What expressions call the value that the functor sees, and the gradient of what it makes of it.
VALUE, GRADIENT = "v", "g"

#: What the struct itself uses; identifiers that start like these are its own, too.
RESERVED = frozenset({VALUE, GRADIENT, "i", "row", "col", "sink", "value", "gradient"})

_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


class Step(NamedTuple):
    """One statement: ``const kind name = text;``, the kind Compute or bool."""

    kind: str
    name: str
    text: str


class Program(NamedTuple):
    """The computation of a functor for one element, forward and backward.

    Attributes:
        operands: What expressions call the operands, in order.
        steps: Statements that later ones and the results may use.
        value: An expression for the functor's value.
        gradients: Expressions for the gradients, that of the input first, then those of the
            operands; none where there is no derivative.
    """

    operands: tuple[str, ...]
    steps: tuple[Step, ...]
    value: str
    gradients: tuple[str, ...]

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
        """The same for the gradients of the input and of the operands with these numbers."""
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
    members = [f"Operand{k} operand{k};" for k in range(len(program.operands))]
    template = ", ".join(f"class Operand{k}" for k in range(len(program.operands)))
    forward = _function(
        program,
        "template <int N, class Compute, class Row>\n"
        "FUSEDOPS_HD void operator()(Compute (&value)[N], const Row& row, int64_t col) const",
        [program.value],
        ["value"],
        f"value[i] = {program.value};",
    )
    needs = str(VALUE in program.reads(program.gradients)).lower()
    constant = [f"static constexpr bool kNeedsInput = {needs};"] if program.gradients else []
    parts = [*members, *constant, "", *forward, *_backward(program)]
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
    arrays = [f"of_operand{k}" for k in range(len(program.operands))]
    writes = [
        *(f"{a}[i] = {text};" for a, text in zip(arrays, program.gradients[1:], strict=True)),
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
            after=[f"sink.template add<{k}>({a}, row, col);" for k, a in enumerate(arrays)],
        ),
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
    for k, name in enumerate(program.operands):
        if name in used:
            fetches.append(
                f"const auto fetched{k} = operand{k}.template fetch<N, Compute>(row, col);"
            )
            locals_.append(f"const Compute {name} = fetched{k}[i];")
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
