# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fo.patch`: what it recognises, what it leaves, and that nobody notices but the clock."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from cases import randn, thorough
from references import check, ulp
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from transformers_models import double_of, in_double

import fusedops as fo
from fusedops.integrations.norms import FusedGroupNorm, FusedLayerNorm, FusedRMSNorm

DIM = 24


class LlamaNorm(nn.Module):
    """Rounds to x's dtype before the weight; `eps` goes by another name."""

    def __init__(self, dim=DIM, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(dtype)


class GemmaNorm(nn.Module):
    """Multiplies by 1 + weight, in float32."""

    def __init__(self, dim=DIM, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class OwnLayerNorm(nn.Module):
    def __init__(self, dim=DIM, eps=1e-12):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.ones(dim)) for _ in range(2))
        self.variance_epsilon = eps

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        return self.weight * ((x - u) / torch.sqrt(s + self.variance_epsilon)) + self.bias


class Twice(nn.RMSNorm):
    def forward(self, x):
        return super().forward(x) * 2


class BertOutput(nn.Module):
    def __init__(self, dim=DIM, p=0.1, inner=8, eps=1e-12):
        super().__init__()
        self.dense = nn.Linear(inner, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=eps)
        self.dropout = nn.Dropout(p)

    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.dropout(hidden_states)
        return self.LayerNorm(hidden_states + input_tensor)


class Net(nn.Module):
    """One of each, with a norm in two places."""

    def __init__(self):
        super().__init__()
        self.layer, self.root = nn.LayerNorm(DIM), nn.RMSNorm(DIM)
        self.group, self.llama = nn.GroupNorm(2, DIM), LlamaNorm()
        self.gemma, self.own, self.output = GemmaNorm(), OwnLayerNorm(), BertOutput()
        self.again = self.layer

    def forward(self, x):
        for norm in (self.layer, self.root, self.llama, self.gemma, self.own):
            x = norm(x) + 0.5 * x
        x = self.group(x.mT).mT
        return self.again(self.output(x[..., :8], x))


#: How the table names what became of each class in Net.
LABELS = {
    "LayerNorm": "LayerNorm",
    "RMSNorm": "RMSNorm",
    "GroupNorm": "GroupNorm",
    "LlamaNorm": "RMSNorm",
    "GemmaNorm": "RMSNorm of 1 + weight",
    "OwnLayerNorm": "LayerNorm",
    "BertOutput": "bias, dropout, residual, LayerNorm",
}


def net(device="cpu"):
    torch.manual_seed(0)
    made = Net()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made.to(device)


def test_what_is_replaced(device):
    """Results and gradients stay, and so does all by which a model is known."""
    model = net(device).eval()
    before, known = repr(model), model.state_dict()
    parameters, modules = [*model.parameters()], dict(model.named_modules())
    x = randn(2, 5, DIM, device=device).requires_grad_()
    upstream = randn(2, 5, DIM, device=device, seed=1)

    def gradients(model=model, x=x, upstream=upstream):
        y = model(x)
        return [y.detach(), *torch.autograd.grad(y, [x, *model.parameters()], upstream)]

    want = gradients()
    with in_double():
        leaf = x.detach().double().requires_grad_()
        truth = gradients(double_of(model), leaf, upstream.double())
    report = fo.patch(model)
    assert {place.cls: place.label for place in report.replaced} == LABELS
    assert len(report.replaced) == 8
    assert not report.left
    assert "1 x GemmaNorm" in str(report)

    assert [*model.state_dict()] == [*known]
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(module is modules[name] for name, module in model.named_modules())
    assert isinstance(model.layer, nn.LayerNorm)
    assert isinstance(model.llama, LlamaNorm)
    largest = max(each.abs().max() for each in truth).reshape(1)
    for ours, stock, true in zip(gradients(), want, truth, strict=True):
        check(ours.flatten(), true.flatten(), stock.flatten(), peak=(largest,))

    assert fo.unpatch(model) is model
    assert repr(model) == before
    assert all(map(torch.equal, gradients(), want))
    assert not any(
        name.startswith("_") and name not in vars(nn.LayerNorm(2)) for name in vars(model.layer)
    )


def test_as_a_context_manager():
    """It undoes its own patch, not what another did before it, whatever ends it."""
    model = net()
    before = repr(model)
    with fo.patch(model, skip="output*") as outer:
        assert [place.reason for place in outer.left] == ["skip has 'output*'"] * 2
        half = repr(model)
        inner = fo.patch(model)
        assert len(inner.replaced) == 2
        assert {place.reason for place in inner.left} == {"it is fused already"}
        with pytest.raises(ZeroDivisionError), inner:
            raise ZeroDivisionError
        assert repr(model) == half != before
    assert repr(model) == before
    skipped = fo.patch(model, skip=[nn.LayerNorm]).left
    assert {place.cls for place in skipped} == {"LayerNorm", "BertOutput"}


@pytest.mark.thorough
@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(make_copy):
    model = net().eval()
    before = repr(model)
    fo.patch(model)
    twin = make_copy(model)
    assert repr(twin) == repr(model)
    assert twin.gemma.weight is not model.gemma.weight
    with torch.no_grad():
        twin.gemma.weight += 1.0
        x = randn(2, 5, DIM)
        assert not torch.equal(twin(x), model(x))
        twin.load_state_dict(model.state_dict())
        assert torch.equal(twin(x), model(x))
    assert repr(fo.unpatch(twin)) == before
    assert repr(model) != before


def mean_free(x, weight, eps=1e-6):
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


class Near(nn.Module):
    """What is called a norm and is none that we know; `forward` is set by the classes below."""

    def __init__(self, dim=DIM):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = 1e-3


def near(name, forward, **attributes):
    return type(name, (Near,), {"forward": forward, **attributes})


def eps_outside(self, x):
    return self.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)


def sum_of_squares(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + self.eps)


def unbiased(self, x):
    x = x - x.mean(-1, keepdim=True)
    return self.weight * x * torch.rsqrt(x.var(-1, keepdim=True) + self.eps)


def no_gradient(self, x):
    rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
    return self.weight * x * rstd.detach()


def gated(self, x, gate=None):
    return mean_free(x, self.weight, self.eps)


def any_others(self, x, **others):
    return mean_free(x, self.weight, self.eps)


def other_in_training(self, x):
    return mean_free(x, self.weight, self.eps) * (2 if self.training else 1)


def other_dimension(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + self.eps)


def clamped(self, x):
    return mean_free(x.clamp(-50, 50), self.weight, self.eps)


def failing(self, x):
    raise LookupError


def right(self, x):
    return mean_free(x, self.weight, self.eps)


ELSE = "computes something else"


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (eps_outside, ELSE),
        (sum_of_squares, ELSE),
        (unbiased, ELSE),
        (no_gradient, ELSE),
        (gated, "more than one tensor"),
        (any_others, "more than one tensor"),
        (other_in_training, ELSE),
        (other_dimension, ELSE),
        (clamped, ELSE),
        (failing, "failed on a probe: LookupError"),
    ],
)
def test_near_misses(forward, reason):
    """The name alone does not do."""
    model = nn.Sequential(near("RMSNorm", forward)())
    report = fo.patch(model)
    assert not report.replaced
    assert reason in report.left[0].reason
    assert reason in str(report)


def test_what_else_is_left():
    norm = near("RMSNorm", right)
    assert fo.patch(norm()).replaced
    replaced_forward, number, buffered, two = norm(), norm(), norm(), norm()
    replaced_forward.forward = replaced_forward.forward
    number.eps = None
    buffered.register_buffer("seen", torch.zeros(1))
    two.shift = nn.Parameter(torch.zeros(DIM))
    parametrized = parametrizations.weight_norm(nn.LayerNorm(DIM), dim=None)
    assert parametrize.is_parametrized(parametrized)
    for module, reason in (
        (replaced_forward, "its forward has been replaced"),
        (number, "it has no eps"),
        (buffered, "it has buffers"),
        (two, "its parameters are not those of a norm"),
        (nn.BatchNorm1d(4), "it has buffers"),
        (norm(1), "its rows have 1 column;"),
        (nn.LayerNorm(4, eps=-1.0), "its eps is -1.0"),
        (parametrized, "its weight is parametrized"),
    ):
        before = type(module)
        report = fo.patch(module)
        assert not report.replaced
        assert reason in report.left[0].reason, module
        assert type(module) is before
    # Neither a norm by its name, nor one by what it contains.
    assert not fo.patch(near("Layer", right)()).places
    assert not fo.patch(type("NormBlock", (nn.Sequential,), {})(nn.Linear(2, 2))).places


class ScaledOutput(BertOutput):
    def forward(self, hidden_states, input_tensor):
        return self.LayerNorm(0.5 * self.dropout(self.dense(hidden_states)) + input_tensor)


class LateDropoutOutput(BertOutput):
    def forward(self, hidden_states, input_tensor):
        return self.LayerNorm(self.dropout(self.dense(hidden_states) + input_tensor))


class EarlyDropoutOutput(BertOutput):
    def forward(self, hidden_states, input_tensor):
        return self.LayerNorm(self.dense(self.dropout(hidden_states)) + input_tensor)


class PreNormOutput(BertOutput):
    def forward(self, hidden_states, input_tensor):
        return self.dropout(self.dense(hidden_states)) + self.LayerNorm(input_tensor)


class TupleOutput(BertOutput):
    def forward(self, hidden_states, input_tensor):
        return (super().forward(hidden_states, input_tensor),)


class NotATensorOutput(BertOutput):
    def forward(self, hidden_states, input_tensor, scale=1.0):
        return scale * super().forward(hidden_states, input_tensor)


@pytest.mark.parametrize(
    "cls",
    [
        ScaledOutput,
        LateDropoutOutput,
        EarlyDropoutOutput,
        PreNormOutput,
        TupleOutput,
        NotATensorOutput,
    ],
)
def test_near_misses_of_an_output(cls):
    module = cls()
    assert [place.cls for place in fo.patch(module).replaced] == ["LayerNorm"]
    assert type(module) is cls


def both(module, *inputs):
    """What a module gives, patched and not, and the patched module."""
    stock = module(*inputs)
    twin = copy.deepcopy(module)
    fo.patch(twin)
    return twin(*inputs), stock, twin


@pytest.mark.thorough
@pytest.mark.parametrize("lower", [None, torch.bfloat16, *thorough(torch.float16)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_dtypes_are_those_of_the_stock_module(dtype, lower, device):
    """With parameters in float32, an x in half, and autocast: whatever the forward makes of it."""
    x = randn(2, 3, DIM, device=device, dtype=dtype)
    modules = [LlamaNorm(), GemmaNorm(), nn.LayerNorm(DIM), nn.RMSNorm(DIM), nn.GroupNorm(3, 3)]
    for module in modules:
        with torch.autocast(device, lower or torch.bfloat16, enabled=lower is not None):
            try:
                ours, stock, _ = both(module.to(device), x)
            except RuntimeError:  # which torch refuses, on some devices
                assert fo.patch(module).replaced
                assert module(x).dtype == dtype
            else:
                assert ours.dtype == stock.dtype, module


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cls", [LlamaNorm, GemmaNorm])
def test_roundings(cls, dtype, device):
    """Ours rounds once. Llama's rounds before the weight and after it: 1.5 ulp more, at most."""
    module = cls().to(device, dtype)
    with torch.no_grad():
        module.weight.normal_()
    x = randn(64, DIM, dtype=dtype, device=device)
    ours, stock, _ = both(module, x)
    wide = module.weight.double() + (1 if cls is GemmaNorm else 0)
    truth = functional.rms_norm(x.double(), (DIM,), eps=1e-6) * wide
    assert ((ours - truth).abs() <= 0.51 * ulp(truth, dtype)).all()
    # Half an ulp of a factor is up to one of the product, whose last place may be half as large.
    allowed = 0.51 * ulp(truth, dtype) + (0.51 if cls is GemmaNorm else 1.51) * ulp(truth, dtype)
    assert ((ours.double() - stock.double()).abs() <= allowed).all()
    assert torch.equal(ours, stock) is False or cls is GemmaNorm


@pytest.mark.parametrize("training", [True, False])
def test_an_output(training, device):
    """Its dropout is that of the module's own Dropout, in what mode that is and with what p."""
    module = BertOutput(p=0.5).to(device)
    fo.patch(module)
    module.eval()
    module.dropout.train(training)
    x = randn(64, 8, device=device)
    residual = randn(64, DIM, device=device, seed=1)
    torch.manual_seed(2)
    y = module(x, residual)
    torch.manual_seed(2)
    assert torch.equal(module(x, residual), y)
    module.dropout.p = 0.0
    whole = module(x, residual)
    assert torch.equal(whole, y) is not training
    torch.testing.assert_close(
        whole, functional.layer_norm(module.dense(x) + residual, (DIM,), eps=1e-12)
    )
    module.dropout.p = 1.0
    if training:
        alone = functional.layer_norm(residual, (DIM,), eps=1e-12)
        torch.testing.assert_close(module(x, residual), alone)


def test_parts_of_an_output_may_change(device):
    """A dense layer of another class, hooks and another dropout act as they did."""
    x, residual = randn(2, 3, 8, device=device), randn(2, 3, DIM, device=device, seed=1)

    class Doubled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    def change(module):
        module.dense = Doubled(8, DIM)
        module.dense.load_state_dict(other)

    def hook(module):
        module.dense.register_forward_hook(lambda dense, given, result: 3 * result)
        module.LayerNorm.register_forward_hook(lambda norm, given, result: result + 1)

    def drop(module):
        module.dropout = nn.Identity()

    other = nn.Linear(8, DIM).state_dict()
    for act in (change, hook, drop):
        module = BertOutput(p=0.0).to(device)
        plain, ours = module(x, residual), None
        ours = copy.deepcopy(module)
        fo.patch(ours)
        for each in (module, ours):
            act(each)
            each.to(device)
        torch.testing.assert_close(ours(x, residual), module(x, residual))
        if act is not drop:
            assert not torch.allclose(module(x, residual), plain)


def test_settings_act_later():
    """An eps by another name, and the module's place in another dtype."""
    module = LlamaNorm()
    fo.patch(module)
    x = randn(4, DIM)
    module.variance_epsilon = 0.5
    torch.testing.assert_close(module(x), mean_free(x, module.weight, 0.5))
    module.eps = 0.25
    assert module.variance_epsilon == 0.25
    module.double()
    assert module(x.double()).dtype is torch.float64
    assert FusedRMSNorm.__name__ not in repr(module)
    assert repr(module) == "FusedLlamaNorm()"


def test_a_step_of_training(device):
    """An optimizer that was made before the patch goes on with its parameters."""
    models = [net(device).eval() for _ in range(2)]
    steps = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    fo.patch(models[0])
    x = randn(2, 5, DIM, device=device)
    for _ in range(3):
        for model, step in zip(models, steps, strict=True):
            step.zero_grad()
            model(x).square().mean().backward()
            step.step()
    for ours, stock in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours, stock, atol=1e-4, rtol=1e-4)


@pytest.mark.thorough
def test_under_torch_compile(device):
    """One graph, in training as well, and no question of the stock forward within it."""
    model = net(device)
    fo.patch(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = randn(2, 5, DIM, device=device)
    torch.manual_seed(4)
    want = model(x)
    torch.manual_seed(4)
    torch.testing.assert_close(compiled(x), want)
    graph = torch.export.export(model, (x,)).graph_module.code
    assert "rsqrt" not in graph
    assert "layer_norm" not in graph


@pytest.mark.thorough
def test_norms_in_compiled_code(device):
    """A norm alone is the compiler's, unless its rows are long; exported programs have the op."""

    def calls(columns, where):
        seen = []

        def backend(graph, inputs):
            seen.append(graph.code)
            return graph.forward

        model = torch.nn.Sequential(
            torch.nn.LayerNorm(columns), torch.nn.RMSNorm(columns), torch.nn.GroupNorm(1, 1)
        ).to(where)
        fo.patch(model)
        torch._dynamo.reset()
        x = randn(2, 1, columns, device=where)
        with torch.no_grad():
            torch.testing.assert_close(
                torch.compile(model, backend=backend, fullgraph=True)(x), model(x)
            )
            exported = torch.export.export(model, (x,)).graph_module.code
        assert exported.count("fusedops.forward") == 3
        (code,) = seen
        return code.count("fusedops.forward(")

    assert calls(64, device) == 0
    assert calls(4096, device) == (2 if device == "cuda" else 0)  # A GroupNorm's length is x's.


@pytest.mark.parametrize(
    ("norm", "key"),
    [(nn.LayerNorm(8), "input"), (nn.RMSNorm(8), "x"), (nn.GroupNorm(2, 8), "input")],
)
def test_a_norm_is_called_by_keyword(norm, key):
    """As the stock module may be, in compiled code as well."""
    x = randn(3, 8)
    want = norm(x)
    fo.patch(norm)
    torch._dynamo.reset()
    for call in (norm, torch.compile(norm, backend="eager", fullgraph=True)):
        torch.testing.assert_close(call(**{key: x}), want)


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.GroupNorm(2, 4)])
def test_a_size_that_varies_is_not_guarded(norm):
    """A strict export with any length: a question about the row's would bound it."""
    fo.patch(norm)
    x = randn(2, 4, 8)
    many = torch.export.Dim("many", max=100000)
    sizes = {1: many} if isinstance(norm, nn.LayerNorm) else {2: many}
    program = torch.export.export(norm, (x,), dynamic_shapes=(sizes,), strict=True)
    torch.testing.assert_close(program.module()(x), norm(x))


def test_random_numbers_and_modes_are_left_alone():
    torch.manual_seed(6)
    want = torch.rand(2)
    torch.manual_seed(6)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        model = Net()
    torch.manual_seed(6)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert len(fo.patch(model).replaced) == 8
    assert torch.equal(torch.rand(2), want)


def test_shapes_without_contents():
    """A model on the meta device: what a probe tells needs no contents."""
    with torch.device("meta"):
        model = Net()
    assert len(fo.patch(model).replaced) == 8
    model.to_empty(device="cpu")
    fo.unpatch(model)
    assert type(model.layer) is nn.LayerNorm


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([],), "patch: model must be a torch.nn.Module, got list"),
        ((nn.Linear(2, 2), [3]), "patch: skip must hold classes and names, got 3"),
        ((nn.Linear(2, 2), None), "patch: skip must hold classes and names, got None"),
    ],
)
def test_arguments(arguments, said):
    model, *skip = arguments
    with pytest.raises(TypeError, match=said):
        fo.patch(model, skip=skip[0] if skip else ())
    with pytest.raises(TypeError, match="patch: attention must be True or False, got 'fused'"):
        fo.patch(nn.Linear(2, 2), attention="fused")
    if not skip:
        with pytest.raises(TypeError, match="unpatch: model must be"):
            fo.unpatch(model)


def test_kinds():
    """What a type checker and a reader see."""
    model = Net()
    fo.patch(model)
    for name, kind in (
        ("layer", FusedLayerNorm),
        ("own", FusedLayerNorm),
        ("gemma", FusedRMSNorm),
        ("group", FusedGroupNorm),
    ):
        assert isinstance(getattr(model, name), kind)
    assert model.gemma.unit_offset
    assert not model.llama.unit_offset
    assert fo.nn.RMSNorm.op(model.gemma).store[0].zero_centred


@pytest.mark.thorough
def test_an_import_brings_none_of_it(tmp_path):
    code = (
        "import sys, fusedops\n"
        "assert not [name for name in sys.modules if name.startswith('fusedops.integrations')]\n"
        "fusedops.patch, fusedops.unpatch\n"
        "assert 'fusedops.integrations.patch' in sys.modules\n"
        "assert 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_class_derived_from_torchs_is_listed_by_any_name():
    report = fo.patch(nn.Sequential(Twice(DIM, eps=1e-6), nn.PReLU(DIM)))
    assert [(place.name, place.cls) for place in report.left] == [("0", "Twice")]
    assert "computes something else" in report.left[0].reason
