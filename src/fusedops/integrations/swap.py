# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Swap a module's class for a fused one in place, and back.

The object stays: its parameters, hooks, names and places in the model, and all that refers to it.
The new class derives from a fused one and from the stock one, so that `isinstance` sees both. It is
made here, so copies and pickles name what it was made of.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from fusedops.bind.operands import FLOATING
from fusedops.nn.base import Declares


class Swapped(nn.Module):
    """Mixin of swapped modules' classes; it precedes the fused class.

    Attributes:
        stock: The class that the module had.
        made_of: What `swap` was given, for copies and pickles.
        adds: The attributes that a swap adds to the module itself, which `restore` takes away.
        prefix: What the made class's name has before that of the stock class.
    """

    stock: ClassVar[type[nn.Module]]
    made_of: ClassVar[tuple[Any, ...]]
    adds: ClassVar[tuple[str, ...]] = ()
    prefix: ClassVar[str] = "Fused"

    @classmethod
    def facts(cls, options: tuple[Any, ...]) -> dict[str, Any]:
        """Attributes of the made class that follow from the options of `swap`."""
        return {}

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        return (_blank, type(self).made_of, *reduced[2:])


class Replacement(NamedTuple):
    """What takes the place of a module that was recognised."""

    kind: type[Swapped]  # the class that `swap` takes
    options: tuple[Any, ...]  # the options of `swap` for it
    label: str  # what it computes, for people


_classes: dict[tuple[Any, ...], type[Swapped]] = {}


def _class_of(
    kind: type[Swapped], stock: type[nn.Module], options: tuple[Any, ...]
) -> type[Swapped]:
    made_of = (kind, stock, options)
    made = _classes.get(made_of)
    if made is None:
        body = {
            "stock": stock,
            "made_of": made_of,
            "extra_repr": stock.extra_repr,
            "__module__": stock.__module__,
            "__doc__": f"{stock.__name__}, fused by `fusedops.patch`.",
            **kind.facts(options),
        }
        made = _classes[made_of] = type(kind.prefix + stock.__name__, (kind, stock), body)
    return made


def _blank(kind: type[Swapped], stock: type[nn.Module], options: tuple[Any, ...]) -> Swapped:
    """A module without contents, for copies and pickles to fill."""
    cls = _class_of(kind, stock, options)
    return cls.__new__(cls)


def swap(module: nn.Module, kind: type[Swapped], *options: Any) -> None:
    """Give a module a class derived from `kind` and its own, and declare the ops of its calls."""
    made = _class_of(kind, type(module), options)
    object.__setattr__(module, "__class__", made)  # of a module itself it would look for settings
    if isinstance(module, Declares):
        module._settle()


def restore(module: nn.Module) -> None:
    """Give a swapped module its own class back."""
    if isinstance(module, Swapped):
        for name in module.adds:
            module.__dict__.pop(name, None)
        object.__setattr__(module, "__class__", module.stock)


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of a module runs more than its class's forward."""
    return bool(
        "forward" in module.__dict__
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


#: The dtype of a stock module's result: see `result_dtype`.
_dtypes: dict[tuple[Any, ...], torch.dtype] = {}


def result_dtype(
    module: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.dtype:
    """The dtype of the stock module's result for an x of this dtype.

    That depends on how its forward is written, on the dtypes of its parameters, and on autocast. So
    the stock forward is asked once for each of these, with a single row of ones.

    The row has this shape.
    """
    weight, bias = module.weight, module.bias
    kind = device.type
    lower = None
    if kind != "meta" and torch.is_autocast_enabled(kind):
        lower = torch.get_autocast_dtype(kind)
    dtypes = (None if weight is None else weight.dtype, None if bias is None else bias.dtype)
    key = (module.stock, dtype, *dtypes, kind, lower)
    found = _dtypes.get(key)
    if found is None:
        row = torch.ones(shape, dtype=dtype, device=device)
        try:
            with torch.no_grad():
                found = module.stock.forward(module, row).dtype
        except RuntimeError:  # Torch's norms refuse some mixtures of dtypes, which ops take.
            found = dtype
        _dtypes[key] = found
    return found


def ask_ahead(module: Any, shape: tuple[int, ...]) -> None:
    """Cache result dtypes ahead of torch.compile, which would trace the probe."""
    device = next((each.device for each in module.parameters()), torch.device("cpu"))
    if device.type == "meta":
        return
    with warnings.catch_warnings():  # of mixtures of dtypes, which nobody has asked for yet
        warnings.simplefilter("ignore")
        for dtype in FLOATING:
            result_dtype(module, shape, dtype, device)
            for lower in (torch.float16, torch.bfloat16):
                with torch.autocast(device.type, lower):
                    result_dtype(module, shape, dtype, device)
