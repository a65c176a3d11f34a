# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Whole modules under what models are wrapped in: checkpoints, offloading, functional calls."""

import functools

import pytest
import torch
from cases import but_seldom, randn, same_bits
from torch._functorch import config as functorch
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import fusedops as fo


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(8, 8)
        self.norm = fo.nn.ResidualLayerNorm(8, p=0.3, return_stream=True)
        self.softmax = fo.nn.AttentionSoftmax(scale=0.3, p=0.3, causal=True)

    def forward(self, x):
        y, stream = self.norm(self.dense(x), x)
        return self.softmax(y @ y.mT) @ stream


@pytest.fixture
def block(device):
    torch.manual_seed(0)
    return Block().to(device).train(), randn(4, 6, 8, device=device)


def step(call, model, x):
    model.zero_grad()
    torch.manual_seed(3)
    leaf = x.clone().requires_grad_()
    y = call(leaf)
    torch.rand(5, device=x.device)  # what happens in between does not matter
    y.backward(randn(*y.shape, device=x.device, seed=1))
    return [y.detach(), leaf.grad, *(p.grad for p in model.parameters())]


def assert_same(model, x, call):
    """The same step as without, to the bit."""
    want = step(model, model, x)
    got = step(call, model, x)
    assert all(same_bits(*pair) for pair in zip(got, want, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
def test_a_checkpoint(reentrant, block):
    model, x = block
    assert_same(model, x, lambda x: checkpoint(model, x, use_reentrant=reentrant))


def test_a_checkpoint_that_does_not_preserve_the_state_has_other_masks(block):
    """Or the tests above would show nothing."""
    model, x = block
    want = step(model, model, x)
    got = step(
        lambda x: checkpoint(model, x, use_reentrant=False, preserve_rng_state=False), model, x
    )
    assert same_bits(got[0], want[0])
    assert not same_bits(got[1], want[1])


def test_a_selective_checkpoint_may_keep_an_operator(block):
    """Its modes see `fusedops::forward`, so a policy can name it.

    The draw is run again, so that torch's own dropout behind it finds its place in the stream.
    """
    model, x = block

    def contexts():
        return create_selective_checkpoint_contexts([torch.ops.fusedops.forward.default])

    def then_dropped(x):
        return torch.nn.functional.dropout(model(x), 0.5)

    for call in (model, then_dropped):

        def kept(x, call=call):
            return checkpoint(call, x, use_reentrant=False, context_fn=contexts)

        want, got = step(call, model, x), step(kept, model, x)
        assert all(map(same_bits, got, want))


def test_tensors_offloaded_to_the_cpu(block):
    model, x = block

    def call(x):
        with torch.autograd.graph.save_on_cpu(pin_memory=x.is_cuda):
            return model(x)

    assert_same(model, x, call)


def test_hooks_that_copy_what_is_saved(block):
    model, x = block
    packed = []

    def pack(tensor):
        packed.append(tensor.clone())
        return len(packed) - 1

    def call(x):
        with torch.autograd.graph.saved_tensors_hooks(pack, packed.__getitem__):
            return model(x)

    assert_same(model, x, call)
    assert packed


def test_functional_call(block):
    model, x = block
    other = {name: p.detach() + 1 for name, p in model.named_parameters()}
    torch.manual_seed(3)
    got = torch.func.functional_call(model, other, (x,))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(other[name])
    torch.manual_seed(3)
    assert same_bits(got, model(x).detach())


# ------------------------------------------------------------------------------- in compiled code

DROP = fo.Map(load=[fo.Dropout("p")])


def two_masks(x):
    """Two draws, and much between them that is worth computing again."""
    h = torch.relu(x @ x.detach().mT)
    return DROP(h, p=0.5) * h, DROP(h + 1, p=0.5) * torch.sin(h)


def given_masks(x, first, second):
    """The same in torch, with what the two outputs show of their masks."""
    h = torch.relu(x @ x.detach().mT)
    return 2 * h * first * h, 2 * (h + 1) * second * torch.sin(h)


def always(policy):
    return functools.partial(create_selective_checkpoint_contexts, lambda *_, **__: policy)


def keeping(*operators):
    return functools.partial(create_selective_checkpoint_contexts, [*operators])


#: What may be said of a checkpoint's parts.
CONTEXTS = {
    "all again": keeping(),
    "the product kept": keeping(torch.ops.aten.mm.default),
    "the op kept": keeping(torch.ops.fusedops.forward.default),
    "all kept, preferably": always(CheckpointPolicy.PREFER_SAVE),
    "all kept": always(CheckpointPolicy.MUST_SAVE),
    "all again, by force": always(CheckpointPolicy.MUST_RECOMPUTE),
}


def checkpointed(**options):
    return lambda x: checkpoint(two_masks, x, use_reentrant=False, **options)


def region(budget):
    def call(x):
        with torch.autograd.graph.region_activation_memory_budget(budget):
            return two_masks(x)

    return call


REGIONS = hasattr(torch.autograd.graph, "region_activation_memory_budget")
RECOMPUTED = {
    "no checkpoint": two_masks,
    "checkpoint": checkpointed(),
    "checkpoint without the state": checkpointed(preserve_rng_state=False),
    **{name: checkpointed(context_fn=context) for name, context in CONTEXTS.items()},
    **({f"a region's budget {b}": region(b) for b in (0.5, 0.0)} if REGIONS else {}),
}
BUDGETS = {
    "budget 0.5": {"activation_memory_budget": 0.5},
    "budget 0": {"activation_memory_budget": 0.0},
    "aggressive": {"aggressive_recomputation": True},
    "budget 1": {},
}


def check_masks(call, backend, device):
    """Twice, two gradients that belong to the masks which the outputs show."""
    torch._dynamo.reset()
    compiled = torch.compile(call, backend=backend, fullgraph=True)
    shown = []
    for _ in range(2):
        x = (randn(16, 16, device=device, seed=1) + 0.1).requires_grad_()
        outputs = compiled(x)
        masks = [y.detach() != 0 for y in outputs]
        (got,) = torch.autograd.grad(outputs, x, [torch.ones_like(y) for y in outputs])
        wanted = given_masks(x, *masks)
        torch.testing.assert_close([*outputs], [*wanted], rtol=1e-4, atol=1e-4)
        (gradient,) = torch.autograd.grad(wanted, x, [torch.ones_like(y) for y in wanted])
        torch.testing.assert_close(got, gradient, rtol=1e-4, atol=1e-4)
        shown += masks
    assert not any(torch.equal(a, b) for k, a in enumerate(shown) for b in shown[:k])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", RECOMPUTED)
def test_what_is_computed_again_has_the_mask(name, budget, device):
    kept = name in ("the op kept", "all kept") and budget == "budget 0.5"
    if kept and TorchVersion(torch.__version__) < (2, 14):
        pytest.skip("torch before 2.14 raises where a policy saves an operator that gives a list")
    with functorch.patch(**BUDGETS[budget]):
        check_masks(RECOMPUTED[name], "aot_eager_decomp_partition", device)


@pytest.mark.thorough
@pytest.mark.parametrize("budget", but_seldom(BUDGETS, {"budget 0", "budget 1"}))
def test_what_inductor_computes_again_has_the_mask(budget, device):
    with functorch.patch(**BUDGETS[budget]):
        check_masks(two_masks, "inductor", device)


@pytest.mark.parametrize("budget", ["budget 0.5", "budget 0"])
def test_modules_within_a_memory_budget(budget, block):
    """As called eagerly, with its masks, but for roundings."""
    model, x = block
    if x.is_cuda and budget == "budget 0":
        pytest.skip("on a GPU torch draws from a generator of its own there")
    torch._dynamo.reset()
    with functorch.patch(**BUDGETS[budget]):
        compiled = torch.compile(model, backend="aot_eager_decomp_partition", fullgraph=True)
        got, want = step(compiled, model, x), step(model, model, x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
