# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The attention of transformers' models, with everything between its two products in one kernel.

To import this module registers it, under the name "fusedops", in transformers' registries of
attentions and of masks:

>>> import pytest; _ = pytest.importorskip("transformers")
>>> import fusedops.integrations.transformers
>>> from transformers import BertConfig, BertModel
>>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
>>> config = BertConfig(vocab_size=9, **sizes, attn_implementation="fusedops")
>>> BertModel(config).config._attn_implementation
'fusedops'

It is what transformers calls eager attention: the scores of all queries and keys are a tensor, and
so are the weights, which are returned. Scale, softcap, position bias, mask, softmax, sinks and
dropout between the two are one kernel. Heads that share their keys and values read them where they
are.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fusedops import ops
from fusedops.errors import UnsupportedError
from fusedops.functors import Bias, Causal, Dropout, Functor, Mask, Scale, Softcap
from fusedops.integrations.attention import why_not_asked
from fusedops.nn.base import acts

try:
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import sdpa_mask
except ImportError as error:
    raise ImportError(
        "fusedops.integrations.transformers needs transformers 4.54 or later, whose registries of "
        "attentions and masks it enters: pip install 'transformers>=4.54'"
    ) from error

#: What `attn_implementation=` is set to.
NAME = "fusedops"

#: The operands that a call may have beside scale and p, each with its functor, in their order.
_OPTIONAL: dict[str, Functor] = {
    "softcap": Softcap("softcap"),
    "position_bias": Bias("position_bias"),
    "bias": Bias("bias"),
    "mask": Mask("mask", keep=True),
    "causal": Causal(),
}

#: All declarations that a call may need, by its operands, whether it drops, and whether it has a
#: sink: inside torch.compile nothing can be declared.
_ops = {
    (frozenset((*mask, *more)), dropout, sink): ops.Softmax(
        [Scale("scale"), *(one for name, one in _OPTIONAL.items() if name in (*mask, *more))],
        [Dropout("p")] if dropout else [],
        sink="sink" if sink else None,
    )
    for mask, more, dropout, sink in itertools.product(
        ((), ("bias",), ("mask",), ("causal",)),
        ((), ("softcap",), ("position_bias",), ("softcap", "position_bias")),
        (False, True),
        (False, True),
    )
}


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """``dropout(softmax(softcap(query @ key^T * scaling) + position_bias, masked)) @ value``.

    What transformers calls in each layer, in place of a model's own `eager_attention_forward`.
    Arithmetic between the two products is in float32 (float64 where query is), and the weights are
    rounded once, to the dtype of the query. A query without any key, as left padding has, gives
    zeros; so does sdpa, where eager attention gives the mean of all values.

    Args:
        module: The layer; its `training` lets dropout act, its `is_causal` and `sinks` stand in for
            the arguments that a model does not pass.
        query: ``[batch, heads, queries, head_dim]``.
        key: ``[batch, key_heads, keys, head_dim]``, where key_heads divides heads.
        value: ``[batch, key_heads, keys, value_dim]``.
        attention_mask: A bool tensor (True takes part) that broadcasts against the scores, as the
            registered mask function makes it; a floating one, which is added; or None.
        dropout: The probability with which a weight is zeroed.
        scaling: What the scores are multiplied by; None: ``head_dim**-0.5``.
        softcap: A number c: scaled scores become ``c * tanh(scores / c)``. None: they stay.
        position_bias: A floating tensor that is added to the scores, as in T5.
        is_causal: Whether query q sees keys up to q where there is no mask. None: what the module
            says.
        s_aux: One more logit of each head, ``[heads]``, which takes part in the sum, as in gpt-oss.
        others: What else a model passes, which this attention does not need.

    Returns:
        The result, ``[batch, queries, heads, value_dim]``, contiguous, and the weights after
        dropout, ``[batch, heads, queries, keys]``.

    Raises:
        UnsupportedError: A paged cache or a head mask is given.
        TypeError, ValueError: A tensor does not fit; the message says how to mend it.
    """
    for name in ("cache", "head_mask"):
        if others.get(name) is not None:
            raise UnsupportedError(
                f"attn_implementation={NAME!r}: {name} is given to {type(module).__name__}, and "
                f"this attention has none; set attn_implementation='eager'"
            )
    batch, heads, queries, head_dim = query.shape
    key_heads, keys = key.shape[1:3]
    # Queries of heads that share a key are rows of one product: no key is repeated in memory.
    rows = query.reshape(batch, key_heads, heads // key_heads * queries, head_dim)
    scores = torch.matmul(rows, key.transpose(2, 3)).view(batch, heads, queries, keys)

    operands: dict[str, Any] = {"scale": head_dim**-0.5 if scaling is None else scaling}
    given = []
    if softcap is not None:
        given.append("softcap")
        operands["softcap"] = softcap
    if position_bias is not None:
        given.append("position_bias")
        operands["position_bias"] = position_bias[..., :keys]
    if attention_mask is not None:
        name = "mask" if attention_mask.dtype is torch.bool else "bias"
        given.append(name)
        operands[name] = attention_mask[..., :keys]
    elif (getattr(module, "is_causal", True) if is_causal is None else is_causal) and queries > 1:
        given.append("causal")
    p = dropout if module.training else 0.0
    drops = acts(p)
    if drops:
        operands["p"] = p
    sink = getattr(module, "sinks", None) if s_aux is None else s_aux
    if sink is not None:
        operands["sink"] = sink.reshape(-1, 1, 1)
    op = _ops[frozenset(given), drops, sink is not None]
    weights = op(scores, **operands)
    result = torch.matmul(weights.view(*rows.shape[:3], keys), value)
    result = result.view(batch, heads, queries, value.shape[-1]).transpose(1, 2).contiguous()
    return result, weights


@functools.cache
def _warn_once(why: str) -> None:
    warnings.warn(
        f"attn_implementation={NAME!r} changes nothing there: {why}; it keeps its own code, which "
        "attn_implementation='eager' names",
        stacklevel=4,
    )


def _and_warn(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of all models after which their attention is settled, and then a warning if due.

    transformers takes any name that is registered, also for a model that never looks it up.
    """

    @functools.wraps(method)
    def with_warning(model: PreTrainedModel, *arguments: Any, **named: Any) -> Any:
        result = method(model, *arguments, **named)
        if model.config._attn_implementation == NAME and (why := why_not_asked(model)):
            _warn_once(why)
        return result

    return with_warning


for _name in ("post_init", "set_attn_implementation"):  # the end of __init__, and later changes
    setattr(PreTrainedModel, _name, _and_warn(getattr(PreTrainedModel, _name)))

AttentionInterface.register(NAME, attention)
# The masks of sdpa: bool, and None where causality or nothing is all there is.
AttentionMaskInterface.register(NAME, sdpa_mask)
