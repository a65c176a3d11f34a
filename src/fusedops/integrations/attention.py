# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Set the attention implementation of transformers' models, and restore it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

#: The attribute of a model that says which attention it had.
_BEFORE = "_fusedops_attention_before"
_NAME = "fusedops"


def outermost_models(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The outermost transformers models in a module; empty if transformers is not imported."""
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        return
    found: list[str] = []
    for name, module in model.named_modules():
        inner = any(name.startswith(f"{outer}.") or not outer for outer in found)
        if isinstance(module, library.PreTrainedModel) and not inner:
            found.append(name)
            yield name, module


def why_not_asked(model: nn.Module) -> str | None:
    """Why an attention of a model does not ask transformers' registry; None if all of them do.

    What asks it imports it where it is defined. Elsewhere, as in BERT of transformers 4, the name
    of an attention would be ignored, or half of it: the mask would be ours, the attention not.
    """
    kinds = dict.fromkeys(type(module) for module in model.modules())
    found = [cls for cls in kinds if "Attention" in cls.__name__]
    for cls in found:
        if not hasattr(sys.modules.get(cls.__module__), "ALL_ATTENTION_FUNCTIONS"):
            return f"{cls.__name__} does not ask transformers' registry of attentions"
    base = getattr(model, "base_model", model)  # of a model with a head
    return None if found else f"{type(base).__name__} has no attention"


def attend(model: nn.Module, wanted: bool | None) -> Iterator[tuple[str, Any, str]]:
    """Set the fused attention where it is wanted; yield each model, and why it was left if it was.

    `wanted` is as for `patch`.

    Raises:
        ImportError: wanted is True, and transformers cannot be imported.
        ValueError: wanted is True, and the module holds no model of transformers.
    """
    if wanted is False:
        return
    models = list(outermost_models(model))
    if wanted and not models:
        importlib.import_module("fusedops.integrations.transformers")
        raise ValueError(
            f"patch: attention=True wants a model of transformers, got {type(model).__name__}, in "
            "which there is none; leave attention out"
        )
    for name, each in models:
        before = each.config._attn_implementation
        if before == _NAME:
            yield name, each, "its attention is fused already"
        elif wanted or before == "eager":
            if why := why_not_asked(each):
                yield name, each, why
                continue
            importlib.import_module("fusedops.integrations.transformers")
            each.set_attn_implementation(_NAME)
            each.__dict__[_BEFORE] = before
            yield name, each, ""
        else:
            yield name, each, f"its attention is {before!r}; attention=True replaces it"


def attend_as_before(module: Any) -> None:
    """Give a model back the attention that `attend` found."""
    if _BEFORE in module.__dict__:
        module.set_attn_implementation(module.__dict__.pop(_BEFORE))
