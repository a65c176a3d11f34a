# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops.patch`: replace modules of a model by fused ones, in one line, and put them back.

`FusedOutput` is for modules that end in ``norm(dropout(dense(x)) + residual)``, as BERT's
SelfOutput and Output do. The product of the dense layer stays torch's; its bias, the dropout, the
residual and the norm are one kernel.
"""

from __future__ import annotations

import collections
import fnmatch
import re
from collections.abc import Collection
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusedops.errors import check_flag
from fusedops.integrations.attention import attend, attend_as_before
from fusedops.integrations.causal_loss import compute_losses, models_of
from fusedops.integrations.experts import recognise_experts
from fusedops.integrations.norms import (
    FusedLayerNorm,
    agree,
    parameters_of_forward,
    quiet,
    random,
    recognise_norm,
    twin_of,
)
from fusedops.integrations.rotary import recognise_rotary
from fusedops.integrations.swap import Replacement, Swapped, has_hooks, restore, swap

#: The submodules by which such a module is known.
_PARTS = {"dense": nn.Linear, "dropout": nn.Dropout, "LayerNorm": nn.LayerNorm}

_TORCH_DROPOUT = nn.Dropout


class FusedOutput(Swapped):
    """``LayerNorm(dropout(dense(hidden_states)) + input_tensor)``, whose parts stay as they are.

    Each part is looked at in every call. A dense layer or a dropout that is no longer torch's own,
    or has hooks, is called as a module; without a fused LayerNorm, the stock forward runs.
    """

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """Run the block, with the dtype that the stock module's result has."""
        norm: Any = self.LayerNorm
        if not isinstance(norm, FusedLayerNorm) or has_hooks(norm):
            return cast(Tensor, self.stock.forward(self, hidden_states, input_tensor))
        dense, dropout = cast(nn.Linear, self.dense), cast(nn.Dropout, self.dropout)
        bias = None
        if type(dense) is nn.Linear and not has_hooks(dense):
            bias = dense.bias
            product = functional.linear(hidden_states, dense.weight)
        else:
            product = dense(hidden_states)
        p = 0.0
        if type(dropout) is _TORCH_DROPOUT and not has_hooks(dropout):
            p = dropout.p if dropout.training else 0.0
        else:
            product = dropout(product if bias is None else product + bias)
            bias = None
        return norm.add_norm(product, input_tensor, bias, p)


def recognise_output(module: nn.Module) -> Replacement | None:
    """The fused dense-dropout-add-norm block for one, by name, parts and a probe."""
    cls = type(module)
    parts = dict(module.named_children())
    is_output = (
        re.search(r"Output$", cls.__name__) is not None
        and {name: getattr(part, "stock", type(part)) for name, part in parts.items()} == _PARTS
        and not any(True for _ in module.parameters(recurse=False))
        and not any(True for _ in module.buffers(recurse=False))
        and "forward" not in module.__dict__
        and cls.__call__ is nn.Module.__call__
        and len(parameters_of_forward(module) or ()) == 2
        and (isinstance(parts["LayerNorm"], FusedLayerNorm) or _is_fusable(parts["LayerNorm"]))
        and _computes(module)
    )
    if not is_output:
        return None
    return Replacement(FusedOutput, (), "bias, dropout, residual, LayerNorm")


def _is_fusable(norm: nn.Module) -> bool:
    found = recognise_norm(norm)
    return isinstance(found, Replacement) and found.kind is FusedLayerNorm


def _computes(module: nn.Module) -> bool:
    """Whether the forward is the formula with dropout left out, and where all of it is dropped."""
    rows, inner, columns = 3, 5, 7
    own: Any = module
    with quiet() as generator:
        for p, training in ((0.5, False), (0.0, True), (1.0, True)):
            dense = nn.Linear(inner, columns, dtype=torch.float64, device="cpu")
            norm = nn.LayerNorm(columns, own.LayerNorm.eps, dtype=torch.float64, device="cpu")
            for parameter in (*dense.parameters(), *norm.parameters()):
                parameter.data = random(generator, *parameter.shape)
            dropout = nn.Dropout(p)
            twin = twin_of(module, dense=dense, dropout=dropout, LayerNorm=norm).train(training)

            def formula(
                x: Tensor,
                residual: Tensor,
                dense: nn.Linear = dense,
                norm: nn.LayerNorm = norm,
                kept: bool = p < 1,
                **parameters: Tensor,
            ) -> Tensor:
                product = functional.linear(x, dense.weight, dense.bias)
                total = (product if kept else 0.0 * product) + residual
                shape = norm.normalized_shape
                return functional.layer_norm(total, shape, norm.weight, norm.bias, norm.eps)

            inputs = [random(generator, rows, inner), random(generator, rows, columns)]
            named = {name.replace(".", "_"): each for name, each in twin.named_parameters()}
            try:
                if not agree(twin.forward, formula, inputs, named, generator):
                    return False
            except Exception:  # somebody else's code, which may raise anything
                return False
    return True


class Place(NamedTuple):
    """One module that was replaced or left.

    Attributes:
        name: Where it is in the model, as `named_modules` has it.
        cls: The name of the class that it had.
        label: What it computes, if it was replaced.
        reason: Why it was left; empty if it was replaced.
    """

    name: str
    cls: str
    label: str
    reason: str


class Patch:
    """The result of `patch`. Print it for a table; as a context manager, it undoes the patch.

    Attributes:
        model: The model.
        places: What was replaced or left, a `Place` each, in the order of the model's modules.
        replaced: The places where a fused op stands now.
        left: The places that are as they were, with the reasons.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.places: list[Place] = []
        self._swapped: list[nn.Module] = []

    @property
    def replaced(self) -> list[Place]:
        """The places where a fused op stands now."""
        return [place for place in self.places if not place.reason]

    @property
    def left(self) -> list[Place]:
        """The places that are as they were, with the reasons."""
        return [place for place in self.places if place.reason]

    def _add(
        self, name: str, module: nn.Module, cls: type[nn.Module], label: str, reason: str
    ) -> None:
        """Note that a module of this class was replaced, or the reason why it was left."""
        self.places.append(Place(name, cls.__name__, "" if reason else label, reason))
        if not reason:
            self._swapped.append(module)

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *error: object) -> None:
        """Undo this patch, and no earlier one."""
        for module in self._swapped:
            restore(module)
            attend_as_before(module)

    def __str__(self) -> str:
        """A table of replaced modules, and of those left with the reasons."""
        counted = collections.Counter((p.cls, p.label, p.reason) for p in self.places)
        first = {(p.cls, p.label, p.reason): p.name for p in reversed(self.places)}
        rows = [
            (f"{count} x {cls}", reason or label, first[cls, label, reason] or "(the model)")
            for (cls, label, reason), count in counted.items()
        ]
        replaced = len(self.replaced)
        lines = [f"fusedops.patch({type(self.model).__name__}): {replaced} replaced"]
        wide = max((len(row[0]) for row in rows), default=0)
        for title, wanted in (("replaced", True), ("left", False)):
            chosen = [
                row
                for row, (_, _, reason) in zip(rows, counted, strict=True)
                if (not reason) is wanted
            ]
            if chosen:
                lines.append(f"  {title}:")
                lines += [f"    {what:<{wide}}  {why} ({where})" for what, why, where in chosen]
        if not self.places:
            lines.append(
                "  No module in it is a norm of torch's, has 'norm' in its class's name, or is a "
                "model of transformers."
            )
        return "\n".join(lines)

    __repr__ = __str__


def patch(
    model: nn.Module,
    *,
    attention: bool | None = None,
    loss: bool = False,
    skip: Collection[type[nn.Module] | str] = (),
) -> Patch:
    """Replace a model's norms, and residual additions before them, by fused ops.

    Replaced are, each where it stands:

    - `torch.nn.LayerNorm`, `torch.nn.RMSNorm` and `torch.nn.GroupNorm`;
    - a model's own LayerNorm or RMSNorm, ``1 + weight`` included, if its class has "norm" in its
      name, and its forward computes that: it is run on random data, in float64, and its results
      and gradients are held to the formula;
    - ``LayerNorm(dropout(dense(x)) + residual)`` in a module of its own, as BERT's, likewise: one
      kernel after the product;
    - experts, a module with "Experts" in its class's name and weights as those of transformers 5,
      likewise: grouped products, and a kernel for all between them (`fusedops.nn.Experts`);
    - the rotary embedding of queries and keys, in an attention whose forward calls
      ``apply_rotary_pos_emb`` as those of transformers do: one kernel for each;
    - the eager attention of a model of transformers, by `fusedops.integrations.transformers`;
    - if loss is True, the head and the loss of a causal language model of transformers, by
      `LinearCrossEntropy`: in training, where labels are given, **its logits are None**.

    In graphs of `torch.compile` a norm runs by the stock code, but for rows of 4096 columns and
    more on a GPU: the compiler fuses that with the sum before it and the conversion after it,
    which it cannot do to an operator. What has more before it, attention, and experts are fused
    there too.

    A module stays the same object, with its parameters, hooks and name, and changes its class
    alone, to one that derives from its own. So optimizers, ``state_dict`` and tied weights do not
    notice. Its results have the dtype that they had, under autocast as well; they differ by
    roundings (docs/how-to/patch-a-model.md has the bounds).

    Patch a model before `torch.compile`.

    Args:
        model: Any module of torch.
        attention: Whether a model of transformers gets the fused attention. None: where it is
            eager. True: also where it is sdpa or another, which may be faster or take less memory.
        loss: Whether a model of transformers computes its loss in training without its logits,
            which its result then does not have. Evaluation and generation have logits as before.
        skip: What to leave: classes, and names of modules as `named_modules` has them, in which
            ``*`` stands for any characters.

    Returns:
        What was done: print it for a table. As a context manager it undoes it at the end.

    Raises:
        TypeError: model is no module, attention or loss no bool, or skip holds something else.
        ImportError: attention is True, and transformers cannot be imported.
        ValueError: attention or loss is True, and there is no model of transformers; or a name in
            skip is none of a module.

    >>> import torch, fusedops as fo
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
    >>> fo.patch(model)
    fusedops.patch(Sequential): 1 replaced
      replaced:
        1 x LayerNorm  LayerNorm (1)
    >>> model
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=True)
      (1): FusedLayerNorm((8,), eps=1e-05, elementwise_affine=True)
    )
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"patch: model must be a torch.nn.Module, got {type(model).__name__}")
    check_flag("patch", "loss", loss)
    if attention is not None:
        check_flag("patch", "attention", attention)
    if isinstance(skip, (str, type)) or not isinstance(skip, Collection):
        skip = (skip,)
    for each in skip:
        if not isinstance(each, (str, type)):
            raise TypeError(f"patch: skip must hold classes and names, got {each!r}")
    names = [name for name, _ in model.named_modules()]
    for each in skip:
        if isinstance(each, str) and not fnmatch.filter(names, each):
            raise ValueError(
                f"patch: skip has {each!r}, and no module of the model has that name; names are "
                "those of named_modules, in which * stands for any characters, as in "
                f"{'*' + each!r}, and a class is given itself"
            )
    with_losses = models_of(model) if loss else []  # raises before anything is changed
    done = Patch(model)
    for name, module in model.named_modules():
        cls = type(module)
        if isinstance(module, Swapped):
            done._add(name, module, module.stock, "", "it is fused already")
            continue
        found = _recognise(module)
        if isinstance(found, str):
            done._add(name, module, cls, "", found)
        elif found is not None:
            why = _skipped(name, module, skip)
            if found.kind is FusedOutput:
                why = why or _skipped(f"{name}.LayerNorm", module.LayerNorm, skip)
            if not why:
                swap(module, found.kind, *found.options)
            done._add(name, module, cls, found.label, why)
    for name, module, why in attend(model, attention):
        done._add(name, module, type(module), "attention softmax", why)
    losses = compute_losses(with_losses, lambda name, module: _skipped(name, module, skip))
    for name, module, cls, why in losses:
        done._add(name, module, cls, "head and loss, whose logits are None in training", why)
    return done


def _recognise(module: nn.Module) -> Replacement | str | None:
    """What replaces a module, or why it is left; None for what nothing knows."""
    return (
        recognise_output(module)
        or recognise_norm(module)
        or recognise_experts(module)
        or recognise_rotary(module)
    )


def _skipped(name: str, module: object, skip: Collection[type[nn.Module] | str]) -> str:
    """Why a module is left, if the caller wants it left."""
    for each in skip:
        if isinstance(each, type) and isinstance(module, each):
            return f"skip has {each.__name__}"
        if isinstance(each, str) and fnmatch.fnmatchcase(name, each):
            return f"skip has {each!r}"
    return ""


def unpatch(model: nn.Module) -> nn.Module:
    """Undo every `patch` of a model, or of what it was copied or loaded from; returns the model.

    Parameters keep the values that they have now.

    Raises:
        TypeError: model is no module.

    >>> import torch, fusedops as fo
    >>> model = torch.nn.Sequential(torch.nn.LayerNorm(8))
    >>> report = fo.patch(model)
    >>> fo.unpatch(model)
    Sequential(
      (0): LayerNorm((8,), eps=1e-05, elementwise_affine=True)
    )
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"unpatch: model must be a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        restore(module)
        attend_as_before(module)
    return model
