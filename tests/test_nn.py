# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The modules beside torch's own: results, gradients, parameters, and what a module has to bear."""

import copy
import functools
import pickle

import pytest
import torch
from cases import named, randn, thorough
from gradients import sum_to
from references import check
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import fusedops as fo
from fusedops.nn import AttentionSoftmax, ResidualLayerNorm

SHAPE = (2, 5, 3, 24)


def upstream_of(result, number=0):
    """The gradient of a result."""
    return randn(*result.shape, device=result.device, seed=90 + number)


def differentiate(function, tensors, dtype=torch.float32):
    """What a function of tensors returns, and the gradient of each tensor, by name."""
    leaves = {
        name: each.detach().to(dtype, copy=True).requires_grad_() for name, each in tensors.items()
    }
    results = named(function(**leaves))
    upstream = [upstream_of(each, i).to(dtype) for i, each in enumerate(results.values())]
    found = torch.autograd.grad(list(results.values()), list(leaves.values()), upstream)
    return results | {f"d {name}": each for name, each in zip(leaves, found, strict=True)}


def judge(fused, chain, tensors, size):
    """Hold results and gradients of `fused` to torch's `chain`.

    The chain in float64 is the truth; in float32 it shows what error is allowed. `size` says, of
    what the reduction gave, how large the numbers are that its gradient adds up: where they cancel,
    the gradient does not tell.
    """
    got, near = differentiate(fused, tensors), differentiate(chain, tensors)
    truth = differentiate(chain, tensors, torch.float64)
    assert got.keys() == truth.keys()
    sizes = size(truth["y"])
    for name, value in got.items():
        peak = (sum_to(sizes, value.shape),) if name.startswith("d ") else ()
        check(value, truth[name], near[name], what=name, peak=peak)


def same(a, b):
    """Results and gradients agree but for the rounding of float32."""
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], atol=1e-5, rtol=1e-5, msg=name)


def norm_tensors(norm, *optional, device="cpu"):
    """What a call of a ResidualLayerNorm takes, its parameters included."""
    shapes = {"x": SHAPE, "residual": SHAPE, **dict.fromkeys(optional, SHAPE[-1:])}
    shapes |= {name: each.shape for name, each in norm.named_parameters()}
    return {
        name: randn(*shape, device=device, seed=seed)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def call_norm(norm, x, residual, input_bias=None, **parameters):
    """A call with other parameters than the module's own."""
    return functional_call(norm, parameters, (x, residual), {"input_bias": input_bias})


def torch_norm(norm, x, residual, input_bias=None, weight=None, bias=None):
    """What ResidualLayerNorm stands for, as one writes it in torch."""
    stream = (x if input_bias is None else x + input_bias) + norm.alpha * residual
    y = functional.layer_norm(stream, norm.normalized_shape, weight, bias, norm.eps)
    return norm.op().result_type(y, stream) if norm.return_stream else y


def norm_size(norm, y):
    """For `judge`; parameters are near one, and so is the deviation of a row."""
    dims = [*range(-len(norm.normalized_shape), 0)]
    g = upstream_of(y).abs()
    return g + g.mean(dims, keepdim=True) + y.abs() * (g * y.abs()).mean(dims, keepdim=True)


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("training", [True, *thorough(False)], ids=["train", "eval"])
@pytest.mark.parametrize("optional", [("input_bias",), *thorough(())], ids=["input_bias", ""])
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        (24, {}),
        (24, {"eps": 1e-12, "alpha": 2.5}),
        (24, {"return_stream": True}),
        ((3, 24), {"return_stream": True, "alpha": 0.5}),
        (24, {"bias": False}),
        (24, {"elementwise_affine": False}),
        ([5, 3, 24], {"elementwise_affine": False}),
    ],
    ids=str,
)
def test_residual_layer_norm(shape, settings, optional, training, device):
    norm = ResidualLayerNorm(shape, **settings, device=device).train(training)
    judge(
        functools.partial(call_norm, norm),
        functools.partial(torch_norm, norm),
        norm_tensors(norm, *optional, device=device),
        functools.partial(norm_size, norm),
    )


def test_parameters_are_those_of_torchs_layer_norm(device):
    stock = nn.LayerNorm((3, 24), device=device)
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.normal_()
    norm = ResidualLayerNorm((3, 24), p=0.1, device=device)
    assert isinstance(norm, nn.LayerNorm)
    assert [*norm.state_dict()] == ["weight", "bias"]

    norm.load_state_dict(stock.state_dict(), strict=True)
    x = randn(*SHAPE, device=device)
    with torch.no_grad():
        torch.testing.assert_close(norm.eval()(x, x), stock(x + x))

    fresh = nn.LayerNorm((3, 24), device=device)
    fresh.load_state_dict(norm.state_dict(), strict=True)
    assert all(map(torch.equal, fresh.parameters(), stock.parameters()))

    norm.reset_parameters()
    assert (norm.weight == 1).all()
    assert (norm.bias == 0).all()
    assert [*ResidualLayerNorm(24, bias=False).state_dict()] == ["weight"]
    assert not ResidualLayerNorm(24, elementwise_affine=False).state_dict()


def test_a_step_of_training(device):
    """The gradients arrive in the module's own parameters, under an optimizer."""
    dense = nn.Linear(24, 24, device=device)
    norms = ResidualLayerNorm(24, device=device), nn.LayerNorm(24, device=device)
    x = randn(*SHAPE, device=device)
    for norm in norms:
        optimizer = torch.optim.SGD([*norm.parameters()], lr=0.5)
        if isinstance(norm, ResidualLayerNorm):
            y = norm(functional.linear(x, dense.weight), x, input_bias=dense.bias)
        else:
            y = norm(dense(x) + x)
        y.square().sum(-1).sqrt().mean().backward()
        optimizer.step()
    for ours, stock in zip(*(norm.parameters() for norm in norms), strict=True):
        assert (ours - stock.round()).abs().max() > 1e-3  # It moved.
        torch.testing.assert_close(ours, stock)


@pytest.mark.thorough
def test_dropout_of_the_norm(device):
    norm = ResidualLayerNorm(24, p=0.5, return_stream=True, device=device)
    tensors = norm_tensors(norm, "input_bias", device=device)
    run = functools.partial(call_norm, norm)

    def seeded(function, seed=3):
        torch.manual_seed(seed)
        return differentiate(function, tensors)

    first = seeded(run)
    assert all(map(torch.equal, first.values(), seeded(run).values()))
    assert not torch.equal(first["stream"], seeded(run, 4)["stream"])
    kept = first["stream"] != tensors["residual"]
    assert 0.3 < kept.double().mean() < 0.7
    torch.testing.assert_close(
        first["stream"],
        tensors["residual"] + 2 * torch.where(kept, tensors["x"] + tensors["input_bias"], 0),
    )
    # What was dropped has no gradient, and nothing else has none.
    assert torch.equal(first["d x"] != 0, kept)

    norm.forward = norm.unfused
    same(first, seeded(run))

    norm = ResidualLayerNorm(24, p=0.5, return_stream=True, device=device).eval()
    judge(
        functools.partial(call_norm, norm),
        functools.partial(torch_norm, norm),
        tensors,
        functools.partial(norm_size, norm),
    )


def test_setting_p_acts(device):
    norm = ResidualLayerNorm(24, device=device)
    x = randn(*SHAPE, device=device)
    norm.p = 1.0
    with torch.no_grad():
        torch.testing.assert_close(norm(x, x), functional.layer_norm(x, (24,)))


@pytest.mark.thorough
def test_mixed_precision(device):
    """A half x beside a float stream and float parameters, as under mixed precision."""
    norm = ResidualLayerNorm(24, return_stream=True, device=device)
    x = randn(*SHAPE, dtype=torch.float16, device=device).requires_grad_()
    residual = randn(*SHAPE, device=device, seed=1).requires_grad_()
    y, stream = norm(x, residual)
    assert (y.dtype, stream.dtype) == (torch.float16, torch.float32)
    assert torch.equal(stream, x + residual)
    (y.float().square().sum() + stream.sum()).backward()
    assert x.grad.dtype == torch.float16
    assert residual.grad.dtype == norm.weight.grad.dtype == torch.float32

    half = copy.deepcopy(norm).half()
    assert half.weight.dtype == torch.float16
    assert half(x, x).stream.dtype == torch.float16
    double = norm.double()
    assert double(x.double(), residual.double()).y.dtype == torch.float64


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_factory_arguments(dtype, device):
    norm = ResidualLayerNorm(24, device=device, dtype=dtype)
    for parameter in norm.parameters():
        assert parameter.dtype == dtype
        assert parameter.device.type == device
    x = randn(*SHAPE, dtype=dtype, device=device)
    assert norm(x, x).dtype == dtype
    with torch.device("meta"):
        assert ResidualLayerNorm(24).weight.is_meta
    assert norm.to("cpu").weight.device.type == "cpu"


@pytest.mark.parametrize(
    "module",
    [
        ResidualLayerNorm((3, 24), 1e-6, p=0.25, alpha=2.0, return_stream=True),
        AttentionSoftmax(scale=0.125, p=0.25, causal=fo.Causal("bottom-right")),
    ],
    ids=lambda module: type(module).__name__,
)
def test_copies(module):
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(twin) == repr(module)
        assert twin.op() is module.op()
        for name, each in module.state_dict().items():
            assert torch.equal(twin.state_dict()[name], each)


def test_repr():
    of_torch = torch.nn.LayerNorm(24).extra_repr()  # newer releases say more
    assert repr(ResidualLayerNorm(24, p=0.1, alpha=2)) == (
        f"ResidualLayerNorm({of_torch}, p=0.1, alpha=2.0, return_stream=False)"
    )
    assert repr(AttentionSoftmax(scale=0.5, causal=True)) == (
        "AttentionSoftmax(scale=0.5, p=0.0, causal=True)"
    )


def test_declarations():
    norm = ResidualLayerNorm(24, 1e-6, p=0.1, alpha=2.0, return_stream=True)
    assert norm.op(input_bias=True) == fo.LayerNorm(
        load=[
            fo.Bias("input_bias"),
            fo.Dropout("p"),
            fo.Residual("residual", alpha=2.0, save="stream"),
        ],
        store=[fo.Affine("weight", "bias")],
        eps=1e-6,
    )
    # Layers that are alike share their declaration, and with it the plans of their kernels.
    assert ResidualLayerNorm(512).op() is ResidualLayerNorm((24,)).op()

    softmax = AttentionSoftmax(scale=0.5, p=0.1, causal=True)
    assert softmax.op(mask=True, bias=True) == fo.Softmax(
        load=[fo.Scale("scale"), fo.Bias("bias"), fo.Mask("mask", keep=True), fo.Causal()],
        store=[fo.Dropout("p")],
    )
    assert AttentionSoftmax().op() == fo.Softmax()


def softmax_tensors(device, *optional, queries=5, keys=24):
    tensors = {"scores": randn(2, 4, queries, keys, device=device) * 3}
    if "bias" in optional:
        tensors["bias"] = randn(1, 4, queries, keys, device=device, seed=1)
    return tensors


def softmax_size(y):
    """For `judge`; scales are below one."""
    g = upstream_of(y).abs()
    return y * (g + (y * g).sum(-1, keepdim=True))


def padding(device, keys=24):
    """Which keys take part: all in the first sequence of two, some in the second."""
    lengths = torch.tensor([[keys], [keys // 2]], device=device)
    return (torch.arange(keys, device=device) < lengths)[:, None, None, :]


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("training", [True, *thorough(False)], ids=["train", "eval"])
@pytest.mark.parametrize(
    "optional", [("bias", "mask"), *thorough((), ("bias",), ("mask",))], ids=str
)
@pytest.mark.parametrize("settings", [{}, {"scale": 0.3}, {"causal": True}], ids=str)
def test_attention_softmax(settings, optional, training, device):
    softmax = AttentionSoftmax(**settings).train(training)
    mask = padding(device) if "mask" in optional else None

    def chain(scores, bias=0.0):
        scores = scores * settings.get("scale", 1.0) + bias
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        if settings.get("causal"):
            scores = scores.masked_fill(torch.ones_like(scores).tril() == 0, -torch.inf)
        return torch.softmax(scores, -1)

    fused = functools.partial(softmax, mask=mask)
    judge(fused, chain, softmax_tensors(device, *optional), softmax_size)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_softmax_means_what_torchs_attention_means(causal, masked, device):
    """Scale, causal and the polarity of masks: the values are an identity, so weights come out."""
    query, key = randn(2, 4, 5, 8, device=device), randn(2, 4, 24, 8, device=device, seed=1)
    mask = padding(device) if masked else None
    if causal and masked:  # Which torch refuses.
        mask = mask & torch.ones(5, 24, dtype=torch.bool, device=device).tril()
    weights = functional.scaled_dot_product_attention(
        query,
        key,
        torch.eye(24, device=device).expand(2, 4, 24, 24),
        attn_mask=mask,
        is_causal=causal and not masked,
    )
    softmax = AttentionSoftmax(scale=8**-0.5, causal=causal)
    torch.testing.assert_close(softmax(query @ key.mT, mask=mask), weights)


def test_causal_of_another_alignment(device):
    softmax = AttentionSoftmax(causal=fo.Causal("bottom-right"))
    scores = randn(2, 2, 4, device=device)
    weights = softmax(scores)
    assert torch.equal(weights == 0, (torch.ones_like(scores).tril(2) == 0))


@pytest.mark.parametrize("lowest", [-torch.inf, torch.finfo(torch.float32).min])
def test_a_mask_that_is_added(lowest, device):
    """Models build masks of zeros and a lowest value; such a mask is a bias."""
    keep = padding(device)
    bias = torch.zeros(keep.shape, device=device).masked_fill(~keep, lowest)
    scores = softmax_tensors(device)["scores"]
    torch.testing.assert_close(
        AttentionSoftmax()(scores, bias=bias), AttentionSoftmax()(scores, mask=keep)
    )


@pytest.mark.thorough
def test_a_query_without_keys(device):
    scores = torch.full((2, 3, 24), torch.nan, device=device, requires_grad=True)
    mask = torch.zeros(24, dtype=torch.bool, device=device)
    weights = AttentionSoftmax(scale=2.0)(scores, mask=mask)
    weights.backward(torch.full_like(weights, torch.inf))
    assert (weights == 0).all()
    assert (scores.grad == 0).all()


@pytest.mark.thorough
def test_dropout_of_the_softmax(device):
    softmax = AttentionSoftmax(scale=0.5, p=0.25)
    tensors = softmax_tensors(device, "bias")

    def seeded(function, seed=3):
        torch.manual_seed(seed)
        return differentiate(function, tensors)

    first = seeded(softmax)
    assert all(map(torch.equal, first.values(), seeded(softmax).values()))
    assert not torch.equal(first["y"], seeded(softmax, 4)["y"])
    assert 0.1 < (first["y"] == 0).double().mean() < 0.4
    same(first, seeded(softmax.unfused))

    softmax.eval()
    judge(
        softmax, lambda scores, bias: torch.softmax(scores * 0.5 + bias, -1), tensors, softmax_size
    )


X = torch.zeros(2, 24)
FLAGS = torch.zeros(24, dtype=torch.bool)

REFUSED = {
    "p": (lambda: ResidualLayerNorm(24, p=1.5), ValueError, "p must be a probability"),
    "p is a bool": (lambda: AttentionSoftmax(p=True), ValueError, "p must be a probability"),
    "p is NaN": (lambda: AttentionSoftmax(p=float("nan")), ValueError, "p must be a probability"),
    "alpha": (lambda: ResidualLayerNorm(24, alpha=float("inf")), ValueError, "alpha must be"),
    "eps": (lambda: ResidualLayerNorm(24, -1.0), ValueError, "eps must be"),
    "scale": (lambda: AttentionSoftmax(scale="0.5"), ValueError, "scale must be a finite number"),
    "causal": (lambda: AttentionSoftmax(causal="top-left"), TypeError, "causal must be"),
    "dtype": (lambda: ResidualLayerNorm(24, dtype=torch.complex64), TypeError, "dtype must be"),
    "shape": (lambda: ResidualLayerNorm(12)(X, X), ValueError, "normalized_shape"),
    "shape of one": (lambda: ResidualLayerNorm(1)(X, X), ValueError, "normalized_shape"),
    "no tensor": (lambda: ResidualLayerNorm(2)([1.0, 2.0], X), TypeError, "x must be"),
    "residual": (lambda: ResidualLayerNorm(24)(X, X[:, 1:]), ValueError, "'residual'"),
    "no residual": (
        lambda: ResidualLayerNorm(24)(X),
        TypeError,
        "ResidualLayerNorm: missing argument 'residual'",
    ),
    "no residual of a chain": (
        lambda: fo.nn.ResidualRMSNorm(24).unfused(X),
        TypeError,
        "ResidualRMSNorm: missing argument 'residual'",
    ),
    "mask": (
        lambda: AttentionSoftmax()(X, mask=X),
        TypeError,
        r"mask must be a bool tensor \(True takes part\), got torch.float32; pass .* bias=",
    ),
    "mask is an int": (
        lambda: AttentionSoftmax()(X, mask=X.long()),
        TypeError,
        r"mask must be .*, got torch.int64; write mask != 0",
    ),
    "bias": (
        lambda: AttentionSoftmax()(X, bias=FLAGS),
        TypeError,
        "bias must be a floating-point tensor, got torch.bool; pass a bool mask as mask=",
    ),
    "bias is a number": (lambda: AttentionSoftmax()(X, bias=1.0), TypeError, "got float"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        call()
