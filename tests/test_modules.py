# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Modules beside torch's of the same name: results, gradients, parameters, state, copies, types."""

import copy
import functools
import pickle

import pytest
import torch
from cases import named, randn, thorough
from gradients import sum_to
from philox import drawn
from references import check
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import fusedops as fo

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def gemma(x, residual=0.0, weight=None, eps=1e-6):
    """Gemma's RMSNorm of a sum, as its model code has it."""
    v = x + residual
    y = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * (1 + weight)


def rms(x, residual=0.0, weight=None, eps=1e-6, dims=(-1,)):
    v = x + residual
    return functional.rms_norm(v, [v.shape[d] for d in dims], weight, eps)


#: Name: what makes the module, x's shape, and the same in torch over x, residual and parameters.
NORMS = {
    "layer norm": (
        lambda **where: fo.nn.LayerNorm(24, **where),
        (2, 5, 24),
        lambda x, weight, bias: functional.layer_norm(x, (24,), weight, bias),
    ),
    "layer norm without bias": (
        lambda **where: fo.nn.LayerNorm((5, 24), 1e-6, bias=False, **where),
        (2, 5, 24),
        lambda x, weight: functional.layer_norm(x, (5, 24), weight, None, 1e-6),
    ),
    "layer norm without parameters": (
        lambda **where: fo.nn.LayerNorm([24], elementwise_affine=False, **where),
        (2, 24),
        lambda x: functional.layer_norm(x, (24,)),
    ),
    "rms norm": (lambda **where: fo.nn.RMSNorm(24, 1e-6, **where), (2, 5, 24), rms),
    "rms norm over two dimensions": (
        lambda **where: fo.nn.RMSNorm((5, 24), 1e-6, **where),
        (2, 5, 24),
        functools.partial(rms, dims=(-2, -1)),
    ),
    "rms norm, eps of torch": (
        lambda **where: fo.nn.RMSNorm(24, **where),
        (2, 5, 24),
        functools.partial(rms, eps=torch.finfo(torch.float32).eps),
    ),
    "Gemma": (
        lambda **where: fo.nn.RMSNorm(24, 1e-6, unit_offset=True, **where),
        (2, 5, 24),
        gemma,
    ),
    "residual rms norm": (
        lambda **where: fo.nn.ResidualRMSNorm(24, 1e-6, **where),
        (2, 5, 24),
        rms,
    ),
    "residual rms norm, stream": (
        lambda **where: fo.nn.ResidualRMSNorm(24, 1e-6, return_stream=True, **where),
        (2, 5, 24),
        lambda x, residual, weight: fo.StreamResult(rms(x, residual, weight), x + residual),
    ),
    "residual Gemma": (
        lambda **where: fo.nn.ResidualRMSNorm(24, 1e-6, unit_offset=True, **where),
        (2, 5, 24),
        gemma,
    ),
    "group norm": (
        lambda **where: fo.nn.GroupNorm(2, 6, **where),
        (3, 6, 4, 2),
        lambda x, weight, bias: functional.group_norm(x, 2, weight, bias),
    ),
    "group norm without bias": (
        lambda **where: fo.nn.GroupNorm(3, 6, 1e-3, bias=False, **where),
        (3, 6, 4),
        lambda x, weight: functional.group_norm(x, 3, weight, None, 1e-3),
    ),
    "group norm without parameters": (
        lambda **where: fo.nn.GroupNorm(1, 6, affine=False, **where),
        (3, 6, 4),
        lambda x: functional.group_norm(x, 1),
    ),
}


def inputs_of(module, shape, device="cpu"):
    """x, the residual of a module that takes one, and parameters unlike those at first."""
    shapes = {"x": shape}
    if "Residual" in type(module).__name__:
        shapes["residual"] = shape
    shapes |= {name: each.shape for name, each in module.named_parameters()}
    return {
        name: randn(*size, device=device, seed=seed)
        for seed, (name, size) in enumerate(shapes.items())
    }


def call(module, x, residual=None, **parameters):
    """A call with other parameters than the module's own."""
    given = (x,) if residual is None else (x, residual)
    return functional_call(module, parameters, given)


def differentiate(function, tensors, dtype=torch.float32):
    """What a function of tensors returns, and the gradient of each tensor, by name."""
    leaves = {name: t.detach().to(dtype, copy=True).requires_grad_() for name, t in tensors.items()}
    results = named(function(**leaves))
    outputs = [*results.values()]
    upstream = [randn(*y.shape, device=y.device, seed=90 + i) for i, y in enumerate(outputs)]
    upstream = [g.to(dtype) for g in upstream]
    found = torch.autograd.grad(outputs, list(leaves.values()), upstream)
    return results | {f"d {name}": each for name, each in zip(leaves, found, strict=True)}


def judge(fused, chain, tensors, sizes_of):
    """Hold results and gradients to the chain in float64, with the errors of that in float32.

    `sizes_of` says, of y and the gradients' sizes, what the gradient of x is added up from.
    """
    got, near = differentiate(fused, tensors), differentiate(chain, tensors)
    truth = differentiate(chain, tensors, torch.float64)
    assert got.keys() == truth.keys()
    sizes = sizes_of(truth["y"])
    for name, value in got.items():
        assert value.shape == truth[name].shape
        peak = ()
        if name.startswith("d "):
            peak = (sum_to(of_channels(name, sizes, value), value.shape),)
        check(value, truth[name], near[name], what=name, peak=peak)


def of_channels(name, sizes, value):
    """Sizes with the channels last where a gradient is one of channels."""
    fits = value.dim() == 1 and sizes.shape[-1] != len(value)
    return sizes.movedim(1, -1) if fits else sizes


def norm_sizes(module, y):
    """What the gradient of a norm is added up from; deviations and parameters are near one."""
    g = randn(*y.shape, device=y.device, seed=90).abs().double()
    if isinstance(module, nn.GroupNorm):
        rows = (y.shape[0], module.num_groups, -1)
        g, of_rows = g.view(rows), y.abs().view(rows)
        dims = [-1]
    else:
        of_rows, dims = y.abs(), [*range(-len(module.normalized_shape), 0)]
    sizes = g + g.mean(dims, keepdim=True) + of_rows * (g * of_rows).mean(dims, keepdim=True)
    return sizes.view(y.shape)


@pytest.mark.parametrize("name", NORMS)
def test_norms(name, device):
    make, shape, chain = NORMS[name]
    module = make(device=device)
    tensors = inputs_of(module, shape, device)
    sizes = functools.partial(norm_sizes, module)
    judge(functools.partial(call, module), chain, tensors, sizes)


@pytest.mark.parametrize("name", ["rms norm, eps of torch", "Gemma", "group norm"])
def test_unfused(name, device):
    make, shape, _ = NORMS[name]
    module = make(device=device)
    x = randn(*shape, device=device)
    torch.testing.assert_close(module(x), module.unfused(x))


ATTENTION = {
    "window": ({"scale": 0.3, "window": 3}, ()),
    "softcap": ({"scale": 0.5, "softcap": 2.0, "causal": True}, ("bias",)),
    "slopes": ({"causal": True}, ("slopes",)),
    "sink": ({"scale": 0.5}, ("sink",)),
    "lse": ({"lse": True, "softcap": 3.0}, ("sink", "bias")),
    "all": (
        {"scale": 0.4, "window": 2, "softcap": 2.0, "p": 0.25, "lse": True, "probs": True},
        ("slopes", "sink", "bias"),
    ),
}


def attention(settings, scores, bias=0.0, slopes=None, sink=None):
    """The softmax of attention in torch, as one would write it."""
    v = scores * settings.get("scale", 1.0)
    if "softcap" in settings:
        v = settings["softcap"] * torch.tanh(v / settings["softcap"])
    v = v + bias
    query = torch.arange(v.shape[-2], device=v.device)[:, None]
    key = torch.arange(v.shape[-1], device=v.device)
    if slopes is not None:
        v = v - slopes[:, None, None] * (query - key).abs()
    if settings.get("causal") or "window" in settings:
        v = v.masked_fill(key > query, -torch.inf)
    if "window" in settings:
        v = v.masked_fill(key < query - settings["window"], -torch.inf)
    if sink is not None:
        v = torch.cat([v, sink[:, None, None].expand(*v.shape[:-1], 1)], -1)
    y = probs = torch.softmax(v, -1)[..., : scores.shape[-1]]
    lse = torch.logsumexp(v, -1)
    if settings.get("probs"):
        # The mask that a module draws after this seed; the draw's rules have tests of their own.
        seed, offset = drawn(scores.device, 3)
        kept = fo.Softmax(store=[fo.Dropout("p")]).dropout_mask(
            scores.shape, seed, offset, settings["p"]
        )
        y = torch.where(kept.to(v.device), probs / (1 - settings["p"]), 0.0)
        return fo.ProbsLseResult(y, probs, lse)
    return fo.SoftmaxResult(y, lse) if settings.get("lse") else y


@pytest.mark.thorough
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name, device):
    settings, operands = ATTENTION[name]
    heads = {"bias": (4, 6, 9), "slopes": (4,), "sink": (4,)}
    tensors = {"scores": randn(2, 4, 6, 9, device=device) * 2}
    tensors |= {
        one: randn(*heads[one], device=device, seed=5 + i) for i, one in enumerate(operands)
    }
    module = fo.nn.AttentionSoftmax(**settings)

    def softmax(*args, **given):
        torch.manual_seed(3)
        return module(*args, **given)

    def sizes(y):
        g = randn(*y.shape, device=y.device, seed=90).abs().double()
        of_lse = randn(*y.shape[:-1], device=y.device, seed=91).abs().double()[..., None]
        if "probs" in settings:  # two gradients of these sizes, one through the dropout
            of_lse = randn(*y.shape[:-1], device=y.device, seed=92).abs().double()[..., None]
            g = g / (1 - settings["p"]) + randn(*y.shape, device=y.device, seed=91).abs()
        size = y * (g + (y * g).sum(-1, keepdim=True) + of_lse)
        return size * 9  # the largest distance, a factor of the gradient of slopes

    got, near, truth = (
        differentiate(function, tensors, dtype)
        for function, dtype in (
            (softmax, torch.float32),
            (functools.partial(attention, settings), torch.float32),
            (functools.partial(attention, settings), torch.float64),
        )
    )
    size = sizes(truth.get("probs", truth["y"]))
    for key, value in got.items():
        assert value.shape == truth[key].shape
        peak = (summed_over_heads(size, value),) if key.startswith("d ") else ()
        check(value, truth[key], near[key], what=key, peak=peak)


def summed_over_heads(sizes, value):
    """The sum of sizes to a gradient's shape, of which a number a head has one dimension."""
    if value.dim() == 1:
        return sizes.sum((0, 2, 3))
    return sum_to(sizes, value.shape)


def test_a_window_keeps_its_place():
    """As its own alignment says, or that of `causal`."""
    scores = torch.zeros(2, 4)
    for causal, window in (
        (fo.Causal("bottom-right"), 1),
        (False, fo.Window(1, 0, "bottom-right")),
        (fo.Causal("bottom-right"), fo.Window(1, 2, "bottom-right")),
    ):
        kept = fo.nn.AttentionSoftmax(causal=causal, window=window)(scores) > 0
        assert kept.int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]


STOCK = {
    "LayerNorm": (fo.nn.LayerNorm, nn.LayerNorm, ((3, 24),)),
    "RMSNorm": (fo.nn.RMSNorm, nn.RMSNorm, (24, 1e-6)),
    "GroupNorm": (fo.nn.GroupNorm, nn.GroupNorm, (2, 6)),
    "ResidualRMSNorm": (fo.nn.ResidualRMSNorm, nn.RMSNorm, (24, 1e-6)),
}


@pytest.mark.parametrize("name", STOCK)
def test_parameters_are_those_of_torchs_module(name):
    ours, stock, arguments = STOCK[name]
    module, of_torch = ours(*arguments), stock(*arguments)
    assert isinstance(module, stock)
    assert [*module.state_dict()] == [*of_torch.state_dict()]
    assert all(map(torch.equal, module.parameters(), of_torch.parameters()))
    if "Residual" not in name:
        assert repr(module) == repr(of_torch)
        assert repr(ours(*arguments, dtype=torch.half)) == repr(stock(*arguments))
    for each in of_torch.parameters():
        nn.init.normal_(each)
    module.load_state_dict(of_torch.state_dict(), strict=True)
    fresh = stock(*arguments)
    fresh.load_state_dict(module.state_dict(), strict=True)
    assert all(map(torch.equal, fresh.parameters(), of_torch.parameters()))
    module.reset_parameters()
    assert all(map(torch.equal, module.parameters(), stock(*arguments).parameters()))


@pytest.mark.parametrize("kind", [fo.nn.RMSNorm, fo.nn.ResidualRMSNorm])
def test_a_weight_of_unit_offset_is_zero_at_first(kind):
    module = kind(3, unit_offset=True)
    assert module.weight.tolist() == [0, 0, 0]
    nn.init.ones_(module.weight)
    module.reset_parameters()
    assert module.weight.tolist() == [0, 0, 0]
    assert repr(module).endswith("unit_offset=True)")


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_eps_of_torch(dtype, device):
    """Of numbers that are small beside it."""
    x = torch.full((2, 24), 1e-4, dtype=dtype, device=device)
    ours, stock = fo.nn.RMSNorm(24, device=device), nn.RMSNorm(24, device=device)
    y = ours.to(dtype)(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y, stock.to(dtype)(x))


EVERY = {
    **{name: (make, (shape,)) for name, (make, shape, _) in NORMS.items() if "esid" not in name},
    **{name: (make, (shape,) * 2) for name, (make, shape, _) in NORMS.items() if "esid" in name},
    "residual layer norm": (
        lambda **where: fo.nn.ResidualLayerNorm(24, p=0.2, return_stream=True, **where),
        ((2, 5, 24),) * 2,
    ),
    "residual rms norm, dropout": (
        lambda **where: fo.nn.ResidualRMSNorm(24, p=0.2, **where),
        ((2, 5, 24),) * 2,
    ),
    "attention": (
        lambda **where: fo.nn.AttentionSoftmax(scale=0.5, p=0.2, window=2, softcap=3.0, lse=True),
        ((2, 3, 4, 6),),
    ),
}
#: One of each class, the others in the thorough run.
USED = ["layer norm", "Gemma", "residual rms norm, stream", "group norm", "attention"]
EACH = [*USED, *thorough(*(name for name in EVERY if name not in USED))]


@pytest.mark.parametrize("name", EACH)
def test_copies(name):
    make, shapes = EVERY[name]
    module = make()
    given = [randn(*shape, seed=i) for i, shape in enumerate(shapes)]
    module.eval()
    want = named(module(*given))
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(twin) == repr(module)
        assert twin.op() is module.op()
        assert [*twin.state_dict()] == [*module.state_dict()]
        got = named(twin(*given))
        assert got.keys() == want.keys()
        assert all(map(torch.equal, got.values(), want.values()))


@pytest.mark.thorough
@pytest.mark.parametrize("name", EACH)
def test_compiled(name):
    """One graph, with eager's results and gradients; masks are drawn by the same generator."""
    torch._dynamo.reset()
    make, shapes = EVERY[name]
    module = make()
    results = []
    for function in (torch.compile(module, fullgraph=True, backend="aot_eager"), module):
        torch.manual_seed(3)
        given = [randn(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
        outputs = named(function(*given))
        leaves = [*given, *module.parameters()]
        upstream = [randn(*y.shape, seed=9 + i) for i, y in enumerate(outputs.values())]
        gradients = torch.autograd.grad([*outputs.values()], leaves, upstream)
        results.append([*(y.detach() for y in outputs.values()), *gradients])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("name", EACH)
def test_exported(name):
    make, shapes = EVERY[name]
    module = make().eval()
    given = tuple(randn(*shape, seed=i) for i, shape in enumerate(shapes))
    program = torch.export.export(module, given)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called.count("fusedops.forward.default") == 1
    got, want = named(program.module()(*given)), named(module(*given))
    assert all(map(torch.equal, got.values(), want.values()))


@pytest.mark.parametrize("name", [*NORMS])
def test_from_the_meta_device(name):
    make, shape, _ = NORMS[name]
    module = make(device="meta")
    assert all(each.is_meta for each in module.parameters())
    module.to_empty(device="cpu").reset_parameters()
    assert all(map(torch.equal, module.parameters(), make().parameters()))
    half = make(dtype=torch.bfloat16)
    assert all(each.dtype == torch.bfloat16 for each in half.parameters())
    meta = make(device="meta")
    given = [randn(*shape).to("meta")] * (2 if "esid" in name else 1)
    assert named(meta(*given))["y"].shape == shape


@pytest.mark.thorough
def test_dtypes(device):
    """Parameters in float32 beside an x in half, and under autocast."""
    for module in (fo.nn.RMSNorm(24, device=device), fo.nn.LayerNorm(24, device=device)):
        x = randn(2, 24, dtype=torch.float16, device=device)
        assert module(x).dtype == torch.float16
        assert copy.deepcopy(module).half()(x).dtype == torch.float16
        assert copy.deepcopy(module).double()(x.double()).dtype == torch.float64
        with torch.autocast(device, dtype=torch.bfloat16):
            assert module(x.bfloat16()).dtype == torch.bfloat16


def test_settings_that_change():
    """They act at the next call."""
    x = randn(2, 24)
    norm = fo.nn.RMSNorm(24, 1e-6)
    norm.eps = 0.5
    torch.testing.assert_close(norm(x), functional.rms_norm(x, (24,), norm.weight, 0.5))
    norm.unit_offset = True
    torch.testing.assert_close(norm(x), gemma(x, weight=norm.weight, eps=0.5))
    softmax = fo.nn.AttentionSoftmax()
    softmax.lse = True
    assert isinstance(softmax(x), fo.SoftmaxResult)
    softmax.probs = True
    assert isinstance(pickle.loads(pickle.dumps(softmax))(x), fo.ProbsLseResult)
    assert repr(softmax).endswith("lse=True, probs=True)")


@pytest.mark.thorough
def test_results_have_classes_of_their_own():
    x = randn(2, 24)
    norm = fo.nn.ResidualRMSNorm(24, return_stream=True)
    for result, kind in (
        (norm(x, x), fo.StreamResult),
        (fo.nn.AttentionSoftmax(lse=True)(x), fo.SoftmaxResult),
        (fo.nn.AttentionSoftmax(probs=True, p=0.5)(x), fo.ProbsResult),
        (fo.nn.AttentionSoftmax(probs=True, lse=True)(x), fo.ProbsLseResult),
        (fo.LogSoftmax(lse=True)(x), fo.SoftmaxResult),
        (fo.RMSNorm(stats=True)(x), fo.NormResult),
        (fo.L2Norm(stats=True)(x), fo.L2NormResult),
    ):
        assert type(result) is kind
        again = pickle.loads(pickle.dumps(result))
        assert type(again) is kind
        assert all(map(torch.equal, result, again))


X = torch.zeros(2, 24)
SOFTMAX = fo.nn.AttentionSoftmax

REFUSED = {
    "dtype": (lambda: fo.nn.RMSNorm(24, dtype=torch.int32), TypeError, "RMSNorm: dtype must be"),
    "dtype of a group norm": (lambda: fo.nn.GroupNorm(2, 4, dtype=torch.int8), TypeError, "dtype"),
    "eps": (lambda: fo.nn.LayerNorm(24, -1.0), ValueError, "eps must be"),
    "eps is no number": (lambda: fo.nn.RMSNorm(24, float("nan")), ValueError, "eps must be"),
    "unit_offset": (lambda: fo.nn.RMSNorm(24, unit_offset=1), TypeError, "unit_offset must be"),
    "return_stream": (
        lambda: fo.nn.ResidualRMSNorm(24, return_stream="yes"),
        TypeError,
        "ResidualRMSNorm: return_stream must be True or False",
    ),
    "p": (lambda: fo.nn.ResidualRMSNorm(24, p=2), ValueError, "p must be a probability"),
    "groups": (lambda: fo.nn.GroupNorm(4, 6), ValueError, "divide num_channels=6, got 4"),
    "no groups": (lambda: fo.nn.GroupNorm(0, 6), ValueError, "num_groups must be at least 1"),
    "groups are no number": (lambda: fo.nn.GroupNorm(2.0, 6), TypeError, "num_groups must be an"),
    "channels": (
        lambda: fo.nn.GroupNorm(2, 4, affine=False)(X),
        ValueError,
        r"x of shape \(2, 24\) must have num_channels=4 channels",
    ),
    "no tensor": (lambda: fo.nn.RMSNorm(2)([1.0, 2.0]), TypeError, "x must be"),
    "shape": (lambda: fo.nn.LayerNorm(12)(X), ValueError, "normalized_shape"),
    "window": (lambda: SOFTMAX(window=-1), ValueError, "window must be at least 0"),
    "window is a bool": (lambda: SOFTMAX(window=True), TypeError, "window must be an int"),
    "softcap": (lambda: SOFTMAX(softcap=0.0), ValueError, "softcap must be above 0"),
    "softcap is no number": (lambda: SOFTMAX(softcap="2"), ValueError, "softcap must be a finite"),
    "lse": (lambda: SOFTMAX(lse=1), TypeError, "lse must be True or False"),
    "probs": (lambda: SOFTMAX(probs="y"), TypeError, "probs must be True or False"),
    "slopes": (lambda: SOFTMAX()(X, slopes=0.5), TypeError, "slopes must be a floating.*float"),
    "sink": (lambda: SOFTMAX()(X, sink=X.bool()), TypeError, "sink must be .*torch.bool"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    act, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        act()
