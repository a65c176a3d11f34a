# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The C++ of an exported header, except what kind of function a kernel is called from."""

from __future__ import annotations

import hashlib
import struct
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.bind.bind import Bound, bind, floating
from fusedops.declare.chains import parted
from fusedops.errors import UnsupportedError
from fusedops.exporting.passes import Launch, Pass
from fusedops.run import placing
from fusedops.run.gradient import Gradient

if TYPE_CHECKING:
    from fusedops.row_op import RowOp

#: Options that belong to one call, not to what is exported.
_OF_A_CALL = ("out", "generator", "part_of")


def exported_call(op: RowOp, x: Any, arguments: Mapping[str, Any]) -> Bound:
    """Check the call, of tensors of which only shape, strides and dtype count.

    Raises:
        TypeError, ValueError: As a call of the op raises.
        UnsupportedError: No single kernel runs such a call.
    """
    for key in _OF_A_CALL:
        if arguments.get(key) is not None:
            raise TypeError(f"export: {key} belongs to a call, not to what is exported; leave it")
    operands, options = parted(arguments)
    bound = bind(op, _meta(x), {key: _meta(value) for key, value in operands.items()}, options)
    if bound.x.numel() == 0:
        raise ValueError(
            f"export: x must have elements, got shape {tuple(bound.x.shape)}: there is no kernel "
            "for none"
        )
    if placing.columns_apart(bound):
        raise UnsupportedError(
            f"export: {op.name} over dimensions {bound.reduced} runs on copies of operands whose "
            "reduced dimensions do not lie one constant step apart; make x and its operands dense, "
            "with the reduced dimensions last"
        )
    return bound


def gradient_of(bound: Bound, wanted: Collection[str] | bool) -> Gradient | None:
    """The gradients that are exported: all that there can be, those of these names, or none.

    Saved streams and differentiable statistics have gradients that come in; all of them.

    Raises:
        ValueError: A name that has no gradient.
        UnsupportedError: The op has no derivative.
    """
    if wanted is False:
        return None
    op = bound.op
    if op.forward_only:
        raise UnsupportedError(
            f"export: {op.forward_only[0]!r} has no derivative, so {op.name} has none; pass "
            "backward=False, or give the functor one"
        )
    if op.quantized is not None:
        raise UnsupportedError(
            f"export: the y of {op.store[-1]!r} has no gradient; pass backward=False, and export "
            f"the backward pass of {op.differentiated!r}"
        )
    able = ["x", *floating(bound.operands)]
    names = able if wanted is True else list(wanted)
    for name in names:
        if name not in able:
            raise ValueError(
                f"export: backward must name what has a gradient, {', '.join(able)}, got {name!r}"
            )
    if not names:
        return None
    return Gradient(op, frozenset(names), frozenset(op.joining))


def _meta(value: Any) -> Any:
    """A tensor without memory: its pointer counts as aligned, which exported functions check."""
    if not isinstance(value, Tensor):
        return value
    if value.layout is not torch.strided:
        raise TypeError(f"export: tensors must be dense and strided, got layout {value.layout}")
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


#: At the head of a function that uses the helpers of host/call.cuh.
ALIAS = "namespace exported = fusedops::exported;"


def parts(passes: Sequence[Pass]) -> str:
    """What the kernels are made of: the headers, and functors that these do not hold."""
    texts = [launch.variant.text for one in passes for launch in one.launches]
    headers = dict.fromkeys(header for text in texts for header in text.headers)
    includes = [f"#include <fusedops/{name}>" for name in (*headers, "host/call.cuh")]
    definitions = dict.fromkeys(one for text in texts for one in text.definitions)
    return "\n".join([*includes, *map(_guarded, definitions)])


def kernels(name: str, one: Pass, old: str, new: str) -> str:
    """The kernels of a pass, each in a namespace of its own, inside fusedops to see its names.

    `old` is the linkage that the generated text has, `new` that of a header.
    """
    blocks = []
    for number, launch in enumerate(one.launches):
        kernel = launch.variant.text.kernel.replace(old, new)
        space = f"fusedops::{namespace(name, one, number)}"
        blocks.append(f"namespace {space} {{\n\n{kernel}\n}}  // namespace {space}\n")
    return "\n".join(blocks)


def namespace(name: str, one: Pass, number: int) -> str:
    """Where a kernel of a pass is, seen from namespace fusedops or under the alias."""
    return f"exported::{name}_{one.kind}{'_sums' if number else ''}"


def function(head: str, first: Sequence[str], one: Pass, body: str, *, about: bool = True) -> str:
    """A function over the parameters of a pass, after those in `first`."""
    lines = [(text, "") for text in first]
    if one.rows is None:
        lines.append(("int64_t rows", ""))
    lines += [(f"{p.kind} {p.name}", p.about) for p in one.parameters]
    if one.kind == "backward":
        lines.append(("void* workspace", ""))
    rows = []
    for number, (text, comment) in enumerate(lines, 1):
        comma = "," if number < len(lines) else ""
        rows.append(f"    {text}{comma}" + (f"  // {comment}" if comment and about else ""))
    signature = "\n".join(rows)
    return f"inline {head}(\n{signature}\n) {{\n{textwrap.indent(body, '  ')}}}\n"


def arguments(one: Pass, *first: str) -> str:
    """What a function hands on to another over the same parameters."""
    own = ["rows"] * (one.rows is None) + [parameter.name for parameter in one.parameters]
    return ", ".join([*first, *own, *(["workspace"] if one.kind == "backward" else [])])


def checks(one: Pass, invalid: str, misaligned: str, alignment: int) -> str:
    """Refuses what a kernel cannot take. Where there are no rows, pointers may be null."""
    tensors = [p.name for p in one.parameters if p.role == "tensor"]
    if one.pieces:
        tensors.append("static_cast<const double*>(workspace)")
    null = f"exported::any_null({', '.join(tensors)})"
    aligned = f"exported::aligned({', '.join([str(alignment), *tensors])})"
    open_rows = one.rows is None
    lines = [
        ALIAS,
        *["(void)workspace;"] * (one.kind == "backward" and not one.pieces),
        *[f"if (rows < 0) return {invalid};"] * open_rows,
        *[
            f"if (!exported::is_probability({parameter.name})) return {invalid};"
            for parameter in one.parameters
            if parameter.role == "probability"
        ],
        f"if ({'rows > 0 && ' * open_rows}{null}) return {invalid};",
        f"if (!{aligned}) return {misaligned};",
    ]
    return "".join(f"{line}\n" for line in lines)


def pieces(one: Pass) -> str:
    """The slices, and the workspace cut up."""
    lines = []
    if one.slices is not None:
        lines.append(f"const fusedops::Slices slices = {one.slices};")
    at = "static_cast<char*>(workspace)"
    for number in range(len(one.pieces)):
        lines.append(f"char* const piece{number} = {at};")
        at = f"piece{number} + {one.pieces[number]}"
    return "".join(f"{line}\n" for line in lines)


def filled(launch: Launch) -> str:
    """The kernel's argument, `words`."""
    words = struct.unpack(f"<{len(launch.words) // 8}Q", launch.words)
    content = textwrap.fill(", ".join(map(_word, words)), 92, break_on_hyphens=False)
    lines = [
        f"alignas(16) uint64_t words[] = {{\n{textwrap.indent(content, '    ')}}};",
        *(f"exported::put(words + {word}, {value});" for word, value in launch.writes),
    ]
    return "".join(f"{line}\n" for line in lines)


def _word(word: int) -> str:
    return str(word) if word < 1 << 31 else hex(word)


def _guarded(definition: str) -> str:
    """A functor that several exports may bring along."""
    macro = f"FUSEDOPS_DEFINED_{hashlib.sha256(definition.encode()).hexdigest()[:16]}"
    return f"\n#if !defined({macro})\n#define {macro}\n{definition}\n#endif"
