# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy of distributed logits: rows apart, columns gathered, as one process computes it."""

import pytest
import torch
from ranks import device, line, needs_gloo, randn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import fusedops as fo

pytestmark = [pytest.mark.thorough, needs_gloo]

PLACES = [
    (Shard(0), Shard(0)),
    (Shard(0), Replicate()),
    (Replicate(), Replicate()),
    (Shard(1), Replicate()),
]


def losses_of_shards():
    mesh = line()
    x, b = randn(8, 12), randn(12, seed=2)
    labels = torch.arange(8, device=device()) % 12
    labels[3] = -100
    for reduction in ("none", "mean", "sum"):
        op = fo.CrossEntropy(
            reduction=reduction, load=[fo.Softcap("cap"), fo.Bias("b")], lse=True, inplace=True
        )
        apart, of_b = x.clone().requires_grad_(), b.clone().requires_grad_()
        wanted = op(apart * 1, target=labels, cap=5.0, b=of_b)
        wanted.loss.sum().backward()
        for of_x, of_labels in PLACES:
            logits = distribute_tensor(x, mesh, [of_x]).requires_grad_()
            target = distribute_tensor(labels, mesh, [of_labels])
            bias = distribute_tensor(b, mesh, [Replicate()]).requires_grad_()
            found = op(logits * 1, target=target, cap=5.0, b=bias)
            loss = found.loss.full_tensor()
            loss.sum().backward()
            torch.testing.assert_close(loss, wanted.loss)
            torch.testing.assert_close(found.lse.full_tensor(), wanted.lse)
            torch.testing.assert_close(logits.grad.full_tensor(), apart.grad)
            torch.testing.assert_close(bias.grad.full_tensor(), of_b.grad)


def test_losses_of_shards(ranks):
    ranks.run(losses_of_shards)
