# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""fo.nn.Linear and fo.nn.MLP: in the blocks of BERT and GPT, state, copies, settings, errors."""

import copy
import pickle

import pytest
import torch
from cases import raises, randn, same_bits, thorough
from products import gelu
from torch import nn
from torch.nn import functional

import fusedops as fo

HIDDEN, WIDE = 24, 56


class BertTail(nn.Module):
    """BERT's intermediate and output layers, post-norm: residual and norm after the block."""

    def __init__(self, fused):
        super().__init__()
        self.fused = fused
        if fused:
            self.mlp = fo.nn.MLP(HIDDEN, WIDE, activation=gelu())
            self.norm = fo.nn.ResidualLayerNorm(HIDDEN)
        else:
            self.mlp = nn.ModuleDict(
                {"linear1": nn.Linear(HIDDEN, WIDE), "linear2": nn.Linear(WIDE, HIDDEN)}
            )
            self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, x):
        if self.fused:
            return self.norm(self.mlp(x), x)
        h = functional.gelu(self.mlp["linear1"](x), approximate="tanh")
        return self.norm(self.mlp["linear2"](h) + x)


class GptTail(nn.Module):
    """The second half of a block of GPT, pre-norm: the residual is the block's own input."""

    def __init__(self, fused):
        super().__init__()
        self.norm = (fo.nn if fused else nn).LayerNorm(HIDDEN)
        self.up = (
            fo.nn.Linear(HIDDEN, WIDE, activation=gelu()) if fused else nn.Linear(HIDDEN, WIDE)
        )
        self.down = (fo.nn if fused else nn).Linear(WIDE, HIDDEN)
        self.fused = fused

    def forward(self, x):
        if self.fused:
            return self.down(self.up(self.norm(x)), x)
        return self.down(functional.gelu(self.up(self.norm(x)), approximate="tanh")) + x


@pytest.mark.thorough
@pytest.mark.parametrize("block", [BertTail, GptTail])
def test_a_block_of_a_transformer(block, device):
    """In double, with torch's state: the same outputs and gradients of all parameters."""
    theirs, ours = (block(fused).to(device, torch.float64) for fused in (False, True))
    assert ours.load_state_dict(theirs.state_dict())
    x = randn(2, 5, HIDDEN, dtype=torch.float64, device=device)
    dy = randn(2, 5, HIDDEN, dtype=torch.float64, device=device, seed=1)
    results = []
    for module in (ours, theirs):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        y.backward(dy)
        grads = {name: one.grad for name, one in module.named_parameters()}
        results.append({"y": y.detach(), "x": leaf.grad, **grads})
    assert results[0].keys() == results[1].keys()
    for name, want in results[1].items():
        torch.testing.assert_close(results[0][name], want, rtol=1e-11, atol=1e-12, msg=name)


def test_parameters_are_torchs(device):
    for bias in (False, True):
        made = []
        for kind in (fo.nn.Linear, nn.Linear):
            torch.manual_seed(1)
            made.append(kind(8, 6, bias=bias, device=device))
        for (name, one), (other, want) in zip(*(m.named_parameters() for m in made), strict=True):
            assert name == other
            assert same_bits(one.detach(), want.detach())
        assert isinstance(made[0], nn.Linear)
        assert repr(made[0]) == repr(made[1])
    x = randn(3, 8, device=device)
    assert same_bits(made[0](x).detach(), made[1](x).detach())
    block = fo.nn.MLP(8, 16, activation=gelu(), device=device)
    assert [*block.state_dict()] == [f"linear{i}.{n}" for i in (1, 2) for n in ("weight", "bias")]
    layer = nn.TransformerEncoderLayer(8, 2, 16, device=device)
    state = {k: v for k, v in layer.state_dict().items() if k.startswith("linear")}
    assert block.load_state_dict(state)
    before = block.linear1.weight.detach().clone()
    block.reset_parameters()
    assert not same_bits(block.linear1.weight.detach(), before)


@pytest.mark.parametrize("kind", ["linear", *thorough("mlp")])
def test_dropout_and_residual(kind, device):
    """In training alone; the same elements as unfused; a copy does the same."""
    if kind == "linear":
        module = fo.nn.Linear(8, 8, activation=gelu(), p=0.5, device=device)
    else:
        module = fo.nn.MLP(8, 16, activation=gelu(), p=0.5, p_hidden=0.5, device=device)
    x = randn(4, 8, device=device)
    results = []
    for call in (module, module.unfused, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.manual_seed(1)
        results.append(call(x, x).detach())
    torch.testing.assert_close(results[0], results[1])
    assert all(same_bits(results[0], one) for one in results[2:])
    module.eval()
    torch.testing.assert_close(module(x).detach(), module.unfused(x).detach())
    assert not same_bits(module(x, x).detach(), results[0])
    module.p = 0.0
    assert "Dropout(p='p')" not in repr(module.op())


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("autocast", [False, *thorough(True)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_residual_stream_keeps_its_dtype(kind, dtype, autocast, device):
    """As where torch adds it: its sum with the product has the wider type of both."""
    own = torch.float32 if autocast else torch.bfloat16
    if kind == "linear":
        module = fo.nn.Linear(8, 8, device=device, dtype=own)
    else:
        module = fo.nn.MLP(8, 16, activation=gelu(), device=device, dtype=own)
    x = randn(4, 8, device=device, dtype=own)
    residual = (1000 * randn(4, 8, device=device, seed=3)).to(dtype).requires_grad_()
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        y, want = module(x, residual), module(x) + residual
        assert y.dtype is want.dtype is module.unfused(x, residual).dtype
    # What it is added to is rounded to bfloat16 in the latter alone.
    torch.testing.assert_close(y, want, rtol=2**-8 if dtype is torch.bfloat16 else 0, atol=2**-7)
    dy = randn(4, 8, device=device, dtype=y.dtype, seed=4)
    (found,) = torch.autograd.grad(y, residual, dy)
    assert same_bits(found, dy.to(dtype))


class Adapted(nn.Module):
    """A layer with something beside it, as LoRA has it."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.further = layer, nn.Linear(8, 16, bias=False)

    def forward(self, x):
        return self.layer(x) + self.further(x)


def test_layers_of_a_block_that_do_more_are_refused(device):
    """They would be ignored; a parametrized weight is none of them, and two Linear call theirs."""
    x = randn(4, 8)
    block = fo.nn.MLP(8, 16, activation=gelu())
    plain = block.linear1
    block.linear1 = Adapted(plain)
    with raises(fo.UnsupportedError, "MLP: linear1", "forward of this Adapted", "fusedops.nn.Lin"):
        block(x)
    block.linear1 = plain
    hook = block.linear2.register_forward_hook(lambda *call: None)
    with raises(fo.UnsupportedError, "MLP: linear2", "hooks"):
        block.unfused(x)
    hook.remove()
    nn.utils.parametrizations.weight_norm(block.linear1)
    before = block(x)
    with torch.no_grad():
        block.linear1.parametrizations.weight.original0.mul_(3)
    assert not same_bits(block(x).detach(), before.detach())
    with raises(TypeError, "Linear: bias must be True or False", "gelu()"):
        fo.nn.Linear(8, 16, gelu())


def test_settings(device):
    layer = fo.nn.Linear(8, 4, activation=gelu(), p=0.1)
    assert repr(layer) == (
        "Linear(in_features=8, out_features=4, bias=True, activation=gelu(), p=0.1)"
    )
    assert fo.nn.Linear(8, 4).op() is fo.nn.Linear(3, 2).op()
    with raises(TypeError, "Linear: activation must be a functor"):
        fo.nn.Linear(8, 4, activation=functional.gelu)
    with raises(TypeError, "MLP: activation must be a functor", "class gelu", "write gelu()"):
        fo.nn.MLP(8, 4, activation=gelu)
    with raises(ValueError, "MLP: activation must take no operands", "['b']"):
        fo.nn.MLP(8, 4, activation=fo.Bias("b"))
    with raises(ValueError, "Linear: p must be a probability"):
        fo.nn.Linear(8, 4, p=1.5)
    with raises(TypeError, "MLP: dtype must be one of"):
        fo.nn.MLP(8, 4, activation=gelu(), dtype=torch.int32)
    with raises(ValueError, "Linear: w must have shape (N, 9)"):
        fo.nn.Linear(8, 4)(torch.zeros(2, 9))


@pytest.mark.thorough
def test_settings_that_change(device):
    """The declaration follows, a bias of a layer that goes included; norms compile beside it."""
    block = fo.nn.MLP(8, 16, activation=gelu(), device=device)
    block.linear1.bias = None
    x = randn(4, 8, device=device)
    assert "bias1" not in repr(block.op())
    torch.testing.assert_close(block(x), block.unfused(x))
    layer = fo.nn.Linear(8, 8, activation=gelu(), device=device)
    assert layer.op() is copy.deepcopy(layer).op()
    layer.activation = None
    assert repr(layer.op()) == "Linear(store=[Bias(bias='bias')])"
    norm = fo.nn.LayerNorm(8, device=device)
    torch._dynamo.reset()
    step = torch.compile(lambda x: norm(block(x)), fullgraph=True, backend="aot_eager")
    assert same_bits(step(x).detach(), norm(block(x)).detach())
