# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The head and the loss of a causal language model of transformers, as one op without logits.

The forward of such a model stays as it is, and is run on a stand-in for the model. Its head keeps
what it is called with and gives logits of no columns, which cost nothing whatever is done to them
before the loss; its loss function computes the loss of what the head kept. What is done to the
logits on the way is found by running the forward on random data.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusedops.bind.operands import FLOATING
from fusedops.functors import Bias, Functor, Scale, Softcap
from fusedops.functors.fields import is_finite
from fusedops.integrations.attention import outermost_models
from fusedops.integrations.norms import agree, quiet, random
from fusedops.integrations.swap import Swapped, has_hooks, swap
from fusedops.nn.base import declared
from fusedops.product import LinearCrossEntropy

#: What models do to the logits, by the setting of the configuration that says with which number.
_FORMS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "final_logit_softcapping": lambda z, number: number * torch.tanh(z / number),
    "logits_scaling": lambda z, number: z / number,
    "logit_scale": lambda z, number: z * number,
}
_IGNORED = -100


class FusedCausalLM(Swapped):
    """A causal language model whose loss in training is computed without its logits.

    Its class keeps the name, which transformers writes to configurations and asks for.
    """

    prefix = ""

    @classmethod
    def facts(cls, options: tuple[Any, ...]) -> dict[str, Any]:
        """A forward; options: the class, and the form of the logits, see `_Form`."""
        stock, *form = options
        return {"forward": _with_loss(stock.forward, _Form(*form))}


class _Form:
    """How a model makes its logits; `setting` is what is done to them, a key of `_FORMS` or "".

    Attributes:
        head: The name of the head, a Linear.
        biased: Whether that has a bias.
        seen: The numbers of all settings in the configuration, as the model was recognised.
    """

    def __init__(self, head: str, biased: bool, setting: str, seen: tuple[Any, ...]) -> None:
        self.head, self.biased, self.seen = head, biased, seen
        self.numbers: dict[str, float] = {}
        load: list[Functor] = [Bias("bias")] * biased
        if setting == "final_logit_softcapping":
            load.append(Softcap("number"))
            self.numbers["number"] = seen[0]
        elif setting:
            load.append(Scale("number"))
            number = dict(zip(_FORMS, seen, strict=True))[setting]
            self.numbers["number"] = number if setting == "logit_scale" else 1 / number
        self.ops = {}
        for reduction in ("mean", "sum"):
            key = ("FusedCausalLM", biased, type(load[-1]) if load else None, reduction)
            if key not in declared:
                declared[key] = LinearCrossEntropy(load, reduction=reduction)
            self.ops[reduction] = declared[key]


class _StandIn:
    """A model, but for the attributes that are given, which the model's methods see as well."""

    def __init__(self, model: nn.Module, others: dict[str, Any]) -> None:
        self._model = model
        for name, one in others.items():
            setattr(self, name, one)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        if isinstance(found, types.MethodType) and found.__self__ is self._model:
            return types.MethodType(found.__func__, self)
        return found


class _Kept:
    """A head that keeps what it is called with, and the loss of that."""

    def __init__(self, linear: nn.Linear, form: _Form) -> None:
        self.linear, self.form = linear, form

    def head(self, hidden: Tensor) -> Tensor:
        self.hidden = hidden
        return hidden.new_empty((*hidden.shape[:-1], 0))

    def loss(
        self,
        logits: Tensor,
        labels: Tensor,
        vocab_size: int,
        num_items_in_batch: Any = None,
        ignore_index: int = _IGNORED,
        shift_labels: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """Compute transformers' `ForCausalLMLoss` of the hidden states, in the place of logits."""
        x, w = self.hidden, self.linear.weight
        if vocab_size != w.shape[0]:
            raise ValueError(
                f"the loss is over {vocab_size} classes, and the head has {w.shape[0]}; call "
                "resize_token_embeddings, which changes both"
            )
        if shift_labels is None:
            shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        target = shift_labels.reshape(-1).to(x.device)
        reduction = "mean" if num_items_in_batch is None else "sum"
        operands: dict[str, Any] = {**self.form.numbers}
        if self.form.biased:
            operands["bias"] = self.linear.bias
        op = self.form.ops[reduction]
        loss: Tensor = op(x.reshape(-1, x.shape[-1]), w, target=target, **operands).float()
        if isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(loss.device)
        return loss if num_items_in_batch is None else loss / num_items_in_batch


def _with_loss(stock: Callable[..., Any], form: _Form) -> Callable[..., Any]:
    """A forward that makes no logits in training, and else is the stock one."""
    names = [*inspect.signature(stock).parameters][1:]
    named_loss = _stock_loss()

    @functools.wraps(stock)
    def forward(self: Any, *given: Any, **named: Any) -> Any:
        asked = {**dict(zip(names, given, strict=False)), **named}
        fits = self.training and asked.get("labels") is not None and _is_plain(self, asked)
        if not fits or self.loss_function is not named_loss:
            return stock(self, *given, **named)
        linear = getattr(self, form.head)
        changed = not _is_plain_linear(linear) or (linear.bias is not None) is not form.biased
        if changed or _numbers_of(self.config) != form.seen:
            return stock(self, *given, **named)
        kept = _Kept(linear, form)
        stand_in = _StandIn(self, {form.head: kept.head, "loss_function": kept.loss})
        output = stock(stand_in, *given, **named)
        return type(output)(**{name: one for name, one in output.items() if name != "logits"})

    return forward


def _is_plain(model: Any, asked: dict[str, Any]) -> bool:
    """Whether a call wants logits of all positions, a result with names, and the usual index."""
    keep = asked.get("logits_to_keep", 0)
    named = asked.get("return_dict")
    named = getattr(model.config, "return_dict", True) if named is None else named
    usual = asked.get("ignore_index", _IGNORED) == _IGNORED
    return bool(isinstance(keep, int) and keep == 0 and named and usual)


def _is_plain_linear(head: Any) -> bool:
    """Whether a head is a Linear that nobody has changed."""
    if type(head) is not nn.Linear or has_hooks(head):
        return False
    weight = head.weight
    known = type(weight) is nn.Parameter and weight.device.type in ("cpu", "cuda")
    return known and weight.dtype in FLOATING


def _numbers_of(config: Any) -> tuple[Any, ...]:
    """The numbers of the settings that change logits; None where a setting has none."""
    found = [getattr(config, name, None) for name in _FORMS]
    return tuple([one if isinstance(one, (int, float)) else None for one in found])


def _stock_loss() -> Any:
    return sys.modules["transformers.loss.loss_utils"].ForCausalLMLoss


def models_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The outermost models of transformers in a module; raises ValueError if there is none."""
    models = list(outermost_models(model))
    if not models:
        raise ValueError(
            f"patch: loss=True wants a model of transformers, got {type(model).__name__}, in which "
            "there is none; leave loss out, and call fusedops.nn.LinearCrossEntropyLoss"
        )
    return models


def compute_losses(
    models: Iterable[tuple[str, nn.Module]], skipped: Callable[[str, nn.Module], str]
) -> Iterator[tuple[str, nn.Module, type[nn.Module], str]]:
    """Fuse the head and loss of each model; yield it, its class, and why it was left if it was.

    `skipped` says why a module is left, if the caller wants it left.
    """
    for name, each in models:
        cls = type(each)
        if isinstance(each, FusedCausalLM):
            yield name, each, each.stock, "its loss is fused already"
            continue
        found = skipped(name, each) or _recognise(each)
        if isinstance(found, str):
            yield name, each, cls, found
        else:
            swap(each, FusedCausalLM, cls, *found)
            yield name, each, cls, ""


def _recognise(model: Any) -> tuple[str, bool, str, tuple[Any, ...]] | str:
    """What makes a `_Form`, or why a model is left."""
    cls = type(model)
    names = inspect.signature(cls.forward).parameters
    part = model.get_output_embeddings()
    head = next((name for name, one in model.named_children() if one is part), None)
    if part is None or head is None or "labels" not in names:
        return "it has no head of a language model, or takes no labels"
    if not isinstance(getattr(model, cls.base_model_prefix, None), nn.Module):
        return "the model below its head is not known by its name"
    if "forward" in model.__dict__ or cls.__call__ is not nn.Module.__call__:
        return "its forward was replaced"
    if model.loss_function is not _stock_loss():
        return "its loss function is not transformers' ForCausalLMLoss"
    if not _is_plain_linear(part):
        return f"its head, {head}, is no plain torch.nn.Linear: {type(part).__name__}"
    seen = _numbers_of(model.config)
    said = "its logits are not what its head gives"
    for setting, number in [("", 1.0), *zip(_FORMS, seen, strict=True)]:
        if number is None:
            continue
        if not (is_finite(number) and number > 0):
            return f"its {setting} is {number!r}"
        formula = _FORMS.get(setting, lambda z, number: z)
        try:
            why = _why_it_differs(model, head, part.weight.shape[0], formula, number)
        except Exception as error:  # somebody else's code, which may raise anything
            return f"its forward failed on a probe: {type(error).__name__}"
        if not why:
            return head, part.bias is not None, setting, seen
        said = why
    return said


def _why_it_differs(
    model: Any,
    head: str,
    classes: int,
    formula: Callable[[Tensor, float], Tensor],
    number: float,
) -> str:
    """Run a forward on given hidden states; say what of it is not the formula."""
    forward = type(model).forward
    base = type(model).base_model_prefix
    calls: list[dict[str, Any]] = []

    def loss_of(logits: Tensor, labels: Any, vocab_size: int, **others: Any) -> Tensor:
        calls.append({"logits": logits, "labels": labels, "vocab_size": vocab_size})
        return logits.sum()

    with quiet() as generator:
        ids, labels = torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long)
        hidden, z = random(generator, 2, 3, 4), random(generator, 2, 3, 5) * number

        def run(z: Tensor) -> Tensor:
            calls.clear()
            seen: list[Tensor] = []

            def head_of(x: Tensor) -> Tensor:
                seen.append(x)
                return z

            others = {
                base: lambda *given, **named: _Output(last_hidden_state=hidden),
                head: head_of,
                "loss_function": loss_of,
                "training": True,
            }
            output = forward(_StandIn(model, others), input_ids=ids, labels=labels)
            (call,), (x,) = calls, seen
            if x.shape != hidden.shape or output.logits is not call["logits"]:
                raise NotImplementedError
            return cast(Tensor, call["logits"])

        with contextlib.suppress(NotImplementedError):
            run(z[..., :0])
            if not agree(run, lambda z: formula(z, number), [z], {}, generator):
                return "its logits are not what its head gives, nor that capped or scaled"
            call = calls[0]
            if call["labels"] is not labels:
                return "its forward changes the labels"
            if call["vocab_size"] != classes:
                return f"its loss is over {call['vocab_size']} classes, its head has {classes}"
            return ""
    return "its forward gives the loss other logits than it returns"


class _Output(dict[str, Any]):
    """What a model without a head gives: the hidden states, and None of all else."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)

    def __getitem__(self, key: Any) -> Any:
        return self["last_hidden_state"] if key == 0 else super().__getitem__(key)
