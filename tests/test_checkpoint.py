# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Whole modules under what models are wrapped in: checkpoints, offloading, functional calls."""

import pytest
import torch
from cases import randn, same_bits
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

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
    """Its modes see `fusedops::forward`, so a policy can name it."""
    model, x = block
    kept = [torch.ops.fusedops.forward.default, torch.ops.fusedops.draw.default]

    def contexts():
        return create_selective_checkpoint_contexts(kept)

    assert_same(model, x, lambda x: checkpoint(model, x, use_reentrant=False, context_fn=contexts))


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
