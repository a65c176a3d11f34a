# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""fo.nn.Experts: values beside a loop over experts, checkpoints, and experts of transformers."""

import copy

import pytest
import torch
from cases import raises, randn, same_bits, thorough
from torch import nn
from torch.nn import functional

import fusedops as fo
from fusedops.errors import UnsupportedError
from fusedops.product import routing

EXPERTS, FEATURES, HIDDEN, CHOSEN, TOKENS = 4, 8, 12, 2, 9

FORMS = {
    "swiglu": {},
    "gpt-oss": {"bias": True, "activation": "clamped", "transposed": True, "interleaved": True},
    "biased": {"bias": True, "activation": "gelu_tanh", "interleaved": True},
    "clamped": {"activation": "clamped", "limit": 0.5},
}


def made(device="cpu", dtype=torch.float32, **settings):
    torch.manual_seed(0)
    return fo.nn.Experts(EXPERTS, FEATURES, HIDDEN, device=device, dtype=dtype, **settings)


def routed(device="cpu", dtype=torch.float32, tokens=TOKENS):
    """Tokens, their experts and weights; expert 2 has none."""
    x = randn(tokens, FEATURES, dtype=dtype, device=device, seed=1)
    scores = randn(tokens, EXPERTS, device=device, seed=2)
    scores[:, 2] = -torch.inf
    weight, index = scores.softmax(-1).topk(CHOSEN)
    return x.requires_grad_(), index, weight.detach().to(dtype).requires_grad_()


def by_loop(experts, x, index, weight):
    """Each token's experts one by one."""
    form, clamped = experts.form, experts.form.activation is None
    up, down = experts.gate_up_proj, experts.down_proj
    if form.transposed:
        up, down = up.mT, down.mT
    rows = []
    for token in range(x.shape[0]):
        total = torch.zeros_like(x[token])
        for expert, scale in zip(index[token].tolist(), weight[token], strict=True):
            z = up[expert] @ x[token]
            if form.bias:
                z = z + experts.gate_up_proj_bias[expert]
            gate, other = (z[::2], z[1::2]) if form.interleaved else z.chunk(2)
            if clamped:
                gate = gate.clamp(max=form.limit)
                other = other.clamp(-form.limit, form.limit)
                h = (other + 1) * gate * torch.sigmoid(form.alpha * gate)
            elif form.activation == "silu":
                h = functional.silu(gate) * other
            else:
                h = functional.gelu(gate, approximate="tanh") * other
            y = down[expert] @ h
            if form.bias:
                y = y + experts.down_proj_bias[expert]
            total = total + scale * y
        rows.append(total)
    return torch.stack(rows)


def step(call, experts, x, index, weight, upstream=None):
    y = call(x, index, weight)
    if upstream is None:
        upstream = randn(*y.shape, device=y.device, seed=3).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [x, weight, *experts.parameters()], upstream)]


class TestValues:
    @pytest.mark.parametrize("form", ["swiglu", "gpt-oss", *thorough("biased", "clamped")])
    def test_against_a_loop(self, device, form):
        experts = made(device, **FORMS[form])
        found = step(experts, experts, *routed(device))
        exact = copy.deepcopy(experts).double()
        x, index, weight = routed(device)
        x, weight = (one.detach().double().requires_grad_() for one in (x, weight))
        want = step(lambda *given: by_loop(exact, *given), exact, x, index, weight)
        for one, right in zip(found, want, strict=True):
            assert torch.allclose(one.double(), right, atol=2e-5, rtol=1e-5)

    def test_unfused(self, device):
        experts = made(device)
        found, want = (step(call, experts, *routed(device)) for call in (experts, experts.unfused))
        assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(found, want, strict=True))

    def test_unfused_asks_for_no_kernel(self, device, monkeypatch):
        """Neither forward nor back, nor under a transform of functions."""

        def none(*_given):
            raise AssertionError("a kernel was asked for")

        for name in ("routed", "copied_tokens", "summed_choices"):
            monkeypatch.setattr(routing, name, none)
        experts = made(device)
        x, index, weight = routed(device)
        found = step(experts.unfused, experts, x, index, weight)
        (of_x,) = torch.func.jacrev(lambda x: experts.unfused(x, index, weight).sum()[None])(x)
        assert torch.allclose(experts.unfused(x, index, weight), found[0])
        with torch.no_grad():
            y, moved = torch.func.jvp(
                lambda x: experts.unfused(x, index, weight), (x,), (torch.ones_like(x),)
            )
        assert torch.allclose(y, found[0], atol=1e-5)
        assert torch.allclose(moved.sum(), of_x.sum(), atol=1e-3)

    def test_twice_the_same_bits(self, device):
        experts = made(device, **FORMS["gpt-oss"])
        first, again = (step(experts, experts, *routed(device, tokens=300)) for _ in range(2))
        assert all(map(same_bits, first, again))

    def test_tokens_are_summed_once_each_way(self, device, monkeypatch):
        """In the forward and in the backward pass; the copy of tokens to rows has no part in it."""
        sums, combined = [], routing._Combine.forward

        def forward(*args):
            sums.append(args[0])
            return combined(*args)

        monkeypatch.setattr(routing._Combine, "forward", staticmethod(forward))
        experts = made(device)
        step(experts, experts, *routed(device))
        assert len(sums) == 2

    def test_second_derivatives(self, device):
        """That of down's gradient is right; that through the STORE's is refused."""
        experts, given = made(device, torch.float64), routed(device, torch.float64)
        found = []
        for call in (experts, experts.unfused):
            y = call(*given)
            (first,) = torch.autograd.grad(y.square().sum(), experts.down_proj, create_graph=True)
            inputs = [given[0], given[2], *experts.parameters()]
            found.append(torch.autograd.grad(first.square().sum(), inputs))
        for one, right in zip(*found, strict=True):
            assert torch.allclose(one, right, rtol=1e-9, atol=1e-12)
        first = torch.autograd.grad(experts(*given).sum(), given[0], create_graph=True)[0]
        with raises(UnsupportedError, "first derivative only"):
            torch.autograd.grad(first.sum(), experts.gate_up_proj)

    def test_shapes(self, device):
        """Batches of tokens, no tokens, and a choice that is no expert's, with weight 0."""
        experts = made(device)
        x, index, weight = (one.detach() for one in routed(device, tokens=6))
        y = experts(x, index, weight)
        batch = experts(x.view(2, 3, FEATURES), index.view(2, 3, CHOSEN), weight.view(2, 3, CHOSEN))
        assert same_bits(batch, y.view(2, 3, FEATURES))
        assert experts(x[:0], index[:0], weight[:0]).shape == (0, FEATURES)
        weight[:, 1] = 0
        alone = experts(x, index, weight)
        index[:, 1] = EXPERTS
        assert torch.allclose(experts(x, index, weight), alone, atol=1e-6)

    @pytest.mark.thorough
    @pytest.mark.parametrize("grad", [False, True])
    def test_without_contents(self, grad):
        x, index, weight = (one.to("meta") for one in routed())
        y = made().to("meta")(x.detach().requires_grad_(grad), index, weight)
        assert y.is_meta
        assert y.shape == x.shape

    def test_compiled(self, device):
        dtype = torch.bfloat16 if device == "cuda" else torch.float32  # older torch traces no other
        experts = made(device, dtype)
        compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
        found, want = (step(call, experts, *routed(device, dtype)) for call in (compiled, experts))
        torch.testing.assert_close(found, want)

    @pytest.mark.gpu
    def test_in_a_cuda_graph(self):
        """Captured once, replayed with other choices; the host never waits."""
        experts = made("cuda", torch.bfloat16)
        x, index, weight = routed("cuda", torch.bfloat16, 256)
        upstream = randn(256, FEATURES, dtype=torch.bfloat16, device="cuda", seed=3)
        given = experts, experts, x, index, weight, upstream
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(2):
                step(*given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step(*given)
        for shift in (0, 1, 2):
            index.copy_((index + shift) % EXPERTS)
            graph.replay()
            assert all(map(same_bits, found, step(*given)))


class TestCheckpoints:
    @pytest.mark.parametrize(
        "names", [("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj")], ids=lambda n: n[0]
    )
    @pytest.mark.parametrize("form", FORMS)
    def test_of_single_experts(self, names, form):
        """Weights of each expert, as in files of Mixtral and Qwen, in a model that has a prefix."""
        want = made(**FORMS[form])
        up, down = want.gate_up_proj.detach(), want.down_proj.detach()
        if want.form.transposed:
            up, down = up.mT, down.mT
        gate, up = (up[:, ::2], up[:, 1::2]) if want.form.interleaved else up.chunk(2, 1)
        state = {
            f"experts.{expert}.{name}.weight": one[expert]
            for name, one in zip(names, (gate, up, down), strict=True)
            for expert in range(EXPERTS)
        }
        state |= {f"experts.{key}": one for key, one in want.state_dict().items() if "bias" in key}
        model = nn.ModuleDict({"experts": fo.nn.Experts(EXPERTS, FEATURES, HIDDEN, **FORMS[form])})
        model.load_state_dict(state)
        assert len(state) >= 3 * EXPERTS
        for found, one in zip(model.parameters(), want.parameters(), strict=True):
            assert same_bits(found.detach(), one.detach())

    def test_missing_keys_are_said(self):
        state = {f"{expert}.w1.weight": torch.zeros(HIDDEN, FEATURES) for expert in range(EXPERTS)}
        with pytest.raises(RuntimeError, match=r"Missing key.*gate_up_proj"):
            made().load_state_dict(state)

    def test_own(self):
        one, other = made(), fo.nn.Experts(EXPERTS, FEATURES, HIDDEN)
        other.load_state_dict(one.state_dict())
        assert same_bits(one.down_proj.detach(), other.down_proj.detach())
        assert repr(one) == "Experts(4, features=8, hidden_features=12, activation='silu')"


class TestRefusals:
    def test_settings(self):
        words = ("Experts: activation must be one of 'silu'", "'clamped'", "GroupedLinear")
        with raises(ValueError, *words, "got 'swish'"):
            fo.nn.Experts(EXPERTS, FEATURES, HIDDEN, activation="swish")
        with raises(TypeError, *words, "got Scale(scale='s')"):
            fo.nn.Experts(EXPERTS, FEATURES, HIDDEN, activation=fo.Scale("s"))
        with raises(TypeError, "transposed"):
            fo.nn.Experts(EXPERTS, FEATURES, HIDDEN, transposed=1)
        with raises(ValueError, "num_experts", "0"):
            fo.nn.Experts(0, FEATURES, HIDDEN)
        with raises(ValueError, "Linear does not fit", "gate_up_proj"):
            fo.nn.Experts.from_module(nn.Linear(2, 2))

    def test_calls(self):
        experts = made()
        x, index, weight = routed()
        with raises(ValueError, "top_k_index must hold integers", "weights first"):
            experts(x, weight, index)
        with raises(ValueError, "each of the 9 tokens"):
            experts(x, index[:3], weight[:3])
        for odd, got in ((weight[:, :1], "float32 of shape (9, 1)"), (index, "int64 of shape")):
            with raises(ValueError, "top_k_weights must have floating numbers", got):
                experts(x, index, odd)
        for at, name in enumerate(("hidden_states", "top_k_index", "top_k_weights")):
            with raises(TypeError, f"Experts: {name} must be a tensor, got list"):
                experts(*[[] if at == i else one for i, one in enumerate((x, index, weight))])
        for transform in (torch.vmap, torch.func.grad):
            with raises(fo.UnsupportedError, "Experts: torch.func transforms", "unfused"):
                transform(lambda x: experts(x, index, weight))(x)
        for odd in (index > 0, index[:, :0], index[0, 0]):
            with raises(ValueError, "top_k_index must hold integers"):
                experts(x, odd, weight)
        with raises(ValueError, f"hidden_states must have {FEATURES} features, got shape (9, 3)"):
            experts(x[:, :3], index, weight)

    @pytest.mark.parametrize("way", ["step", "inference", "unfused"])
    @pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
    def test_parameters_that_do_not_fit(self, form, way):
        """Of more experts or fewer, of other sizes, or of a dimension too few: each is named."""
        x, index, weight = routed()
        for name, one in made(**form).named_parameters():
            shape = tuple(one.shape)
            others = [(more, *shape[1:]) for more in (EXPERTS - 1, EXPERTS + 1, EXPERTS + 2)]
            others += [(*shape[:-1], shape[-1] + more) for more in (-1, 2)]
            others += [(*shape[:-2], shape[-2] + 2, shape[-1]), shape[1:]]
            for other in others:
                experts = made(**form)
                setattr(experts, name, nn.Parameter(torch.zeros(other), requires_grad=False))
                call = experts.unfused if way == "unfused" else experts
                with (
                    torch.set_grad_enabled(way != "inference"),
                    pytest.raises(ValueError, match=r"^Experts: .* must have"),
                ):
                    call(x, index, weight)

    @pytest.mark.parametrize("wrong", [-1, EXPERTS + 1, 2**16])
    def test_numbers_that_are_no_experts(self, wrong):
        x, index, weight = routed()
        index[3, 1] = wrong
        with raises(IndexError, f"top_k_index has {wrong}, and the experts are 0 to {EXPERTS - 1}"):
            made()(x, index, weight)


def of_transformers(name):
    """Small experts of a model of transformers, with random weights."""
    transformers = pytest.importorskip("transformers", minversion="5")
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    sizes = {"hidden_size": FEATURES, "num_hidden_layers": 1, "experts_implementation": "eager"}
    kinds = {
        "mixtral": (
            MixtralExperts,
            transformers.MixtralConfig(
                num_local_experts=EXPERTS, intermediate_size=HIDDEN, **sizes
            ),
        ),
        "qwen": (
            Qwen3MoeExperts,
            transformers.Qwen3MoeConfig(num_experts=EXPERTS, moe_intermediate_size=HIDDEN, **sizes),
        ),
        "gpt-oss": (
            GptOssExperts,
            transformers.GptOssConfig(num_local_experts=EXPERTS, intermediate_size=HIDDEN, **sizes),
        ),
    }
    kind, config = kinds[name]
    torch.manual_seed(0)
    module = kind(config)
    for one in module.parameters():
        nn.init.normal_(one)
    return module


@pytest.mark.parametrize("name", ["mixtral", "qwen", "gpt-oss"])
class TestTransformers:
    def test_from_module(self, name):
        """The same parameters, another module, and the stock module's values and gradients."""
        module = of_transformers(name)
        experts = fo.nn.Experts.from_module(module)
        assert experts.down_proj is module.down_proj
        found, want = (step(call, experts, *routed()) for call in (experts, module))
        for one, right in zip(found, want, strict=True):
            assert torch.allclose(one, right, atol=1e-5 * right.abs().max().item())
        state = fo.nn.Experts(EXPERTS, FEATURES, HIDDEN, **settings_of(experts))
        state.load_state_dict(module.state_dict())
        x, index, weight = routed()
        assert same_bits(state(x, index, weight).detach(), found[0])

    def test_patch(self, name):
        module = of_transformers(name)
        model = nn.ModuleDict({"experts": module})
        given = routed()
        want = step(module, module, *given)
        with fo.patch(model) as report:
            assert [one.name for one in report.replaced] == ["experts"], report
            assert "router's weights" in str(report)
            for one, right in zip(step(module, module, *given), want, strict=True):
                assert torch.allclose(one, right, atol=1e-5 * right.abs().max().item())
            names = "router_indices routing_weights" if name == "gpt-oss" else ""
            first, second = (names or "top_k_index top_k_weights").split()
            x, index, weight = given
            by_name = module(x, **{second: weight, first: index})
            assert same_bits(by_name.detach(), module(x, index, weight).detach())
            copied = copy.deepcopy(module)
            assert same_bits(copied(*given).detach(), by_name.detach())
        assert type(module).__name__ == type(of_transformers(name)).__name__
        assert all(map(same_bits, step(module, module, *given), want))

    def test_another_gate_is_left(self, name):
        module = of_transformers(name)
        module._apply_gate = lambda z: z.chunk(2, -1)[0].sin() * z.chunk(2, -1)[1]
        report = fo.patch(nn.ModuleDict({"experts": module}))
        assert [one.reason for one in report.left] == ["its gate is none that is known"]


def settings_of(experts):
    form = experts.form
    settings = {"bias": form.bias, "transposed": form.transposed, "interleaved": form.interleaved}
    return {**settings, "activation": form.activation or "clamped", "limit": form.limit}
