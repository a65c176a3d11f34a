# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes of GPUs on two of them, by NCCL; all that runs by gloo runs there, too (`ranks`)."""

import pytest
import torch
from cases import randn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from two_gpus import TWO_GPUS

import fusedops as fo

pytestmark = pytest.mark.parametrize("ranks", [TWO_GPUS], indirect=True, scope="session")

ATTENTION = fo.Softmax(
    load=[fo.Scale("s"), fo.Bias("b"), fo.Causal()], store=[fo.Dropout("p")], lse=True
)


def gradients(x, bias, dy, generator):
    y, _ = ATTENTION(x, s=0.5, b=bias, p=0.3, generator=generator)
    y.backward(dy)
    return y.detach(), x.grad, bias.grad


def attention(dtype):
    mesh = init_device_mesh("cuda", (2,))
    shape = (4, 6, 128, 256)
    x, dy = (randn(*shape, dtype=dtype, device="cuda", seed=seed) for seed in (1, 2))
    bias = randn(6, 128, 256, dtype=dtype, device="cuda", seed=3)
    leaves = [one.clone().requires_grad_() for one in (x, bias)]
    want = gradients(*leaves, dy, (5, 8))
    for dim in (0, 1, 2):
        to = [Shard(dim - 1)] if dim else [Replicate()]
        got = gradients(
            distribute_tensor(x, mesh, [Shard(dim)]).requires_grad_(),
            distribute_tensor(bias, mesh, to).requires_grad_(),
            distribute_tensor(dy, mesh, [Shard(dim)]),
            (5, 8),
        )
        for mine, known in zip(got[:2], want[:2], strict=True):
            assert torch.equal(mine.full_tensor(), known)
        # Four terms of the size of dy, each sum rounded to the dtype once more.
        bound = 8 * torch.finfo(dtype).eps * dy.abs().max() * 4
        assert (got[2].full_tensor() - want[2]).abs().max() <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention(ranks, dtype):
    ranks.run(attention, dtype)


def drawn():
    mesh = init_device_mesh("cuda", (2,))
    x = randn(8, 64, 128, device="cuda")
    op = fo.LayerNorm(load=[fo.Dropout("p")])
    torch.cuda.manual_seed(3)
    want = op(x, p=0.5)
    torch.cuda.manual_seed(3 + torch.distributed.get_rank())
    got = op(distribute_tensor(x, mesh, [Shard(1)]), p=0.5)
    assert torch.equal(got.full_tensor(), want)


def test_the_first_ranks_draw(ranks):
    ranks.run(drawn)


def columns():
    mesh = init_device_mesh("cuda", (2,))
    x, dy = (randn(64, 32000, device="cuda", seed=seed) for seed in (1, 2))
    op = fo.LogSoftmax(load=[fo.Scale("s")])
    shard = distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()
    y = op(shard, s=0.5)
    assert y.placements == (Shard(1),)
    y.backward(distribute_tensor(dy, mesh, [Shard(1)]))
    leaf = x.double().requires_grad_()
    want = torch.log_softmax(leaf * 0.5, -1)
    want.backward(dy.double())
    torch.testing.assert_close(y.full_tensor().double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(shard.grad.full_tensor().double(), leaf.grad, rtol=1e-5, atol=1e-4)


def test_columns_stay_sharded(ranks):
    ranks.run(columns)


def columns_of_norms():
    mesh = init_device_mesh("cuda", (2,))
    x, dy = (randn(64, 4096, device="cuda", seed=seed) for seed in (1, 2))
    for op, torchs in (
        (fo.LayerNorm(), lambda v: torch.nn.functional.layer_norm(v, (4096,))),
        (fo.RMSNorm(), lambda v: torch.nn.functional.rms_norm(v, (4096,), eps=1e-6)),
    ):
        shard = distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()
        y = op(shard)
        assert y.placements == (Shard(1),)
        y.backward(distribute_tensor(dy, mesh, [Shard(1)]))
        leaf = x.double().requires_grad_()
        want = torchs(leaf)
        want.backward(dy.double())
        # The size of each row is about one; a few roundings of float32 of numbers up to five.
        torch.testing.assert_close(y.full_tensor().double(), want, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            shard.grad.full_tensor().double(), leaf.grad, rtol=1e-5, atol=1e-5
        )


def test_columns_of_norms_stay_sharded(ranks):
    ranks.run(columns_of_norms)
