# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Export a declaration: one header of plain functions, for programs without Python and torch.

May import: version, errors, _runtime, jit, declare, bind, schedule, generate, plan, run, row_op,
product.
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.errors import shortened
from fusedops.exporting import text
from fusedops.exporting.passes import (
    ExportedPass,
    backward_pass,
    exported_call,
    forward_pass,
    gradient_of,
)
from fusedops.exporting.text import (
    ALIGNMENT,
    CUDA_HEAD,
    CUDA_KERNEL,
    HOST_HEAD,
    HOST_KERNEL,
    cuda_functions,
    host_functions,
)
from fusedops.generate.target import ARCHS, Target
from fusedops.jit import host, nvrtc
from fusedops.product import ProductOp
from fusedops.row_op import RowOp
from fusedops.version import __version__

__all__ = ["NO_PRODUCT", "Exported", "export"]

#: What to do with a product.
NO_PRODUCT = (
    "a product cannot be exported: for what follows a product of your own export a fo.Map of the "
    "functors, which Linear and Matmul have as .epilogue, or include the node for CUTLASS "
    "(docs/how-to/cpp-project.md)"
)

#: What C++ people call a header. Compiled for the wrong device, its first lines say so.
_SUFFIXES = (".h", ".hh", ".hpp", ".hxx", ".cuh")

#: What makes a library of it decides no bit of its results.
_LIBRARY = frozenset({"-fPIC", "-shared", "-fvisibility=hidden"})

_OPTIONS = ("name", "path", "arch", "backward", "multiprocessors")


class Exported(NamedTuple):
    """The result of `export`: the header's text, its parameters, and how to compile it.

    Attributes:
        name: What the functions' names begin with.
        text: The header, as it was written to `path` if one was given.
        command: The compiler and the flags under which the results are those of the op.
        parameters: The names of each function's parameters, in order.
    """

    name: str
    text: str
    command: tuple[str, ...]
    parameters: dict[str, tuple[str, ...]]


def export(
    op: RowOp,
    x: Tensor,
    /,
    *further: Any,
    name: str | None = None,
    path: str | os.PathLike[str] | None = None,
    arch: str | None = None,
    backward: bool | Collection[str] = True,
    multiprocessors: int | None = None,
    **arguments: Any,
) -> Exported:
    """Write a C++ header that computes a call of `op`, and its backward pass.

    It includes only the headers of this package; one for a GPU takes nvcc, one for a CPU any host
    compiler. On the same device and under the flags in its head, results equal those of the op to
    the bit, but for sums over rows that all share the tables of a `Rotate`, whose order may differ.

    >>> import torch, fusedops as fo
    >>> op = fo.Softmax(load=[fo.Scale("scale")])
    >>> x = torch.empty(4096, 1024, dtype=torch.float16, device="meta")
    >>> header = fo.export(op, x, scale=0.125, name="scaled_softmax", arch="sm_90")
    >>> header.parameters["scaled_softmax_forward"]
    ('cuda_stream', 'rows', 'x', 'scale', 'y', 'kept')

    Args:
        op: The declaration; a product cannot be exported, but the `Map` of the functors after it.
        x: An example of what the functions will get: its shape, strides and dtype count, and it
            needs no memory (device="meta").
        *further: None; operands and options are given by keyword.
        name: What the functions' names begin with; by default the op's own.
        path: Where to write the header, if anywhere: a `.h`, `.hh`, `.hpp`, `.hxx` or `.cuh`.
        arch: "sm_90" and the like, "x86-64-v3" and the like, or "cpu" for this machine's; by
            default that of x's device.
        backward: Whether to export the backward pass, for all gradients that there are, or the
            names of those wanted. Gradients of saved streams come in.
        multiprocessors: Of the GPU whose order of sums over rows is taken; by default that of x's
            device, or the usual number for arch.
        **arguments: Operands and options as in a call of the op; of tensors again shape, strides
            and dtype, of a number only its kind, of a probability whether it is zero.

    Raises:
        TypeError: As a call of the op; an operand has the name of an option of this function.
        ValueError: As a call of the op; or name, path or arch is none.
        UnsupportedError: No kernel does it alone: what is given has to be copied first, or a
            gradient would be left for the caller to sum.
    """
    if not isinstance(op, RowOp):
        said = f"export: op must be a row op, such as Softmax(), got {shortened(op)}"
        if isinstance(op, ProductOp):
            said += f"; {NO_PRODUCT}"
        elif hasattr(op, "op"):
            said += "; that of a module of fusedops.nn is module.op()"
        raise TypeError(said)
    if further:
        operands = f", here {', '.join(f'{key}=' for key in op.slots)}" if op.slots else ""
        raise TypeError(
            f"export takes 2 positional arguments, op, x, got {2 + len(further)}; operands and "
            f"options are given by keyword{operands}"
        )
    if not isinstance(x, Tensor):
        raise TypeError(
            f"export: x must be a torch.Tensor, got {type(x).__name__}; make an example with "
            "torch.empty(sizes, device='meta'), which needs no memory"
        )
    for key in _OPTIONS:
        if key in op.slots:
            raise TypeError(
                f"export: operand {key!r} of {op.name} has the name of an option of export; give "
                "it another in the declaration"
            )
    own = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(op).__name__).lower() if name is None else name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", own) or "__" in own:
        raise ValueError(f"export: name must be an identifier of C++ without '__', got {name!r}")
    target = target_of(arch, x.device, multiprocessors)
    gpu = target.gpu is not None
    if path is not None and Path(path).suffix not in _SUFFIXES:
        raise ValueError(f"export: path must end in one of {', '.join(_SUFFIXES)}, got {path}")
    rows, x, arguments = op.over_rows(x, arguments)
    bound = exported_call(rows, x, arguments)
    gradient = gradient_of(bound, backward)
    passes = [forward_pass(bound._replace(keep=gradient is not None), target)]
    if gradient is not None:
        passes.append(backward_pass(bound, gradient, target))
    head, kernel = (CUDA_HEAD, CUDA_KERNEL) if gpu else (HOST_HEAD, HOST_KERNEL)
    functions = cuda_functions if gpu else host_functions
    sections = [
        _head(own, op, target, passes),
        f"#pragma once\n\n{head}{text.parts(passes)}\n",
        *(text.kernels(own, one, *kernel) for one in passes),
        *(text.host_run(own, one) for one in passes if not gpu),
        "inline namespace FUSEDOPS_ABI {  // core/config.cuh says why\n",
        *(_workspace(own, one) for one in passes if one.kind == "backward"),
        *(functions(own, one) for one in passes),
        f"}}  // namespace FUSEDOPS_ABI\n{text.ENDS}",
    ]
    result = Exported(own, "\n".join(sections), command(target), _parameters(own, passes, gpu))
    if path is not None:
        Path(path).write_text(result.text, encoding="utf-8")
    return result


def target_of(arch: str | None, device: torch.device, multiprocessors: int | None) -> Target:
    """The target of this name; by default the device's own.

    `arch` is "sm_90" and the like, a level of CPU features, or "cpu" for this machine's; the device
    is that of the example tensors.

    Raises:
        ValueError: There is no such architecture, or none is given where the device has none.
    """
    if multiprocessors is not None and multiprocessors < 1:
        raise ValueError(f"export: multiprocessors must be positive, got {multiprocessors}")
    if arch is None and device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"export: tensors on {device} do not say what to export for: pass arch=, one of "
            f"{', '.join(ARCHS)}, or cpu for this machine's"
        )
    if arch is not None:
        try:
            return Target.named(arch, multiprocessors)
        except ValueError as error:
            raise ValueError(f"export: {error}") from None
    target = Target.of(device)
    if target.gpu is not None:  # the text shall not depend on what has been tuned on this machine
        target = target._replace(gpu=target.gpu._replace(name=""))
    if multiprocessors is None or target.gpu is None:
        return target
    return target._replace(gpu=target.gpu._replace(multiprocessors=multiprocessors))


def command(target: Target) -> tuple[str, ...]:
    """Compiler and flags that reproduce the op's results to the bit, without include path."""
    if target.gpu is None:
        kept = [flag for flag in host.flags(target.arch) if flag not in _LIBRARY]
        return ("g++", *kept, *host.GCC)
    # NVRTC's other flags say what nvcc does anyway; it builds for the one architecture alone.
    standard = next(flag for flag in nvrtc.flags(target.arch) if flag.startswith("-std"))
    virtual = target.arch.replace("sm_", "compute_")
    return ("nvcc", standard, "-gencode", f"arch={virtual},code={target.arch}")


def _parameters(name: str, passes: list[ExportedPass], gpu: bool) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for one in passes:
        rows = ("rows",) if one.rows is None else ()
        called, own = f"{name}_{one.kind}", tuple(text.arguments(one).split(", "))
        found[called] = ("cuda_stream", *own) if gpu else own
        if not gpu:
            found[f"{called}_range"] = ("begin", "end", *own)
        if one.kind == "backward":
            found[f"{name}_workspace_bytes"] = rows
            if not gpu:
                found[f"{called}_slices"] = rows
                if len(one.launches) > 1:
                    found[f"{called}_finish"] = own
    return found


def _workspace(name: str, one: ExportedPass) -> str:
    """How much memory the caller gives the backward pass."""
    rows = "int64_t rows" if one.rows is None else ""
    slices = ""
    if one.pieces:
        slices = f"  {text.ALIAS}\n"
        if one.slices is not None:
            slices += f"  const fusedops::Slices slices = {one.slices};\n"
    elif rows:
        slices = "  (void)rows;\n"
    total = " +\n         ".join(one.pieces) or "0"
    return (
        f"/// Bytes of the workspace of {name}_backward, which may be null if there are none.\n"
        f"inline int64_t {name}_workspace_bytes({rows}) {{\n{slices}  return {total};\n}}\n"
    )


def _head(name: str, op: RowOp, target: Target, passes: list[ExportedPass]) -> str:
    """The comment at the top of the header."""
    gpu = target.gpu is not None
    compiled = f'{shlex.join(command(target))} -I"$(fusedops --include)"'
    lines = [
        f"{name}: made by fusedops {__version__} (fusedops export); do not edit.",
        "",
        *textwrap.wrap(
            op.declaration,
            96,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        ),
        "",
        "Signature: beside each parameter of the functions below. Tensors are dense unless",
        "strides, counted in elements, say otherwise.",
        *(line for one in passes for line in _rows(one)),
        "",
        "Results are those of the op, to the bit, when compiled with",
        f"  {compiled}",
    ]
    if gpu:
        lines += [
            "by an nvcc of the release that the op's NVRTC has. Sums over rows are cut as for a",
            f"GPU of {target.multiprocessors} multiprocessors. Add -DFUSEDOPS_BLOCKS=1 "
            "if -Xptxas -v reports spills.",
            "",
            "Nothing here allocates or waits; a stream that captures a graph will do. Returned is",
            "cudaErrorInvalidValue for a null pointer or a number out of range,",
            "cudaErrorMisalignedAddress for a pointer that is no multiple of "
            f"{ALIGNMENT} bytes, else",
            "what the launch returned.",
        ]
    else:
        lines += [
            "on a CPU that has these instructions.",
            "",
            "Returned is 0; or 1 for a null pointer or a number out of range, 2 for a pointer that",
            "is not aligned as its type, and nothing has been written.",
        ]
    return "".join(f"// {line}".rstrip() + "\n" for line in lines)


def _rows(one: ExportedPass) -> list[str]:
    kind = one.kind.capitalize()
    if one.rows is not None:
        return [f"{kind}: the shapes are fixed."]
    lines = [f"{kind}: any number of rows; shapes are given for an example."]
    if one.fewest:
        lines.append(
            f"Sums over fewer than {one.fewest} rows may differ from the op's in the last bit."
        )
    return lines
