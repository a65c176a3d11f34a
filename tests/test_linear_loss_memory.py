# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""LinearCrossEntropy: `memory=` is a bound, and what both passes agree on is theirs alone."""

import random
import re

import pytest
import torch
from cases import randn

import fusedops as fo
from fusedops.product import linear_loss_logits as logits
from fusedops.product import linear_loss_report as report


def told(op, x, w, target):
    """The bytes beside factors and gradients that `explain` tells of."""
    (said,) = re.findall("at most ([0-9]+) bytes", str(op.explain(x, w, target=target)))
    return int(said)


def described(rows, features, classes, dtype=torch.float32):
    """A call that needs no memory."""
    made = [
        torch.empty(one, features, dtype=dtype, device="meta", requires_grad=True)
        for one in (rows, classes)
    ]
    return *made, torch.empty(rows, dtype=torch.int64, device="meta")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_memory_is_a_bound(dtype):
    """A step takes no more than it, unless it takes that without it as well."""
    draw = random.Random(7)
    least, more = fo.LinearCrossEntropy(), 0
    for _ in range(100):
        rows, features = int(2 ** draw.uniform(4, 15)), 8 * int(2 ** draw.uniform(2, 9))
        classes = 2 * max(features, 1024) + int(2 ** draw.uniform(3, 17))
        call = described(rows, features, classes, dtype)
        without = told(least, *call)
        for _ in range(4):
            memory = int(without * 2 ** draw.uniform(-2, 3))
            found = told(fo.LinearCrossEntropy(memory=memory), *call)
            assert found <= max(memory, without), (rows, features, classes, memory)
            more += found > without
    assert more > 15, "memory is taken"


def test_few_columns_and_the_sums_of_all_classes():
    """A chunk of the fewest rows is larger than w's gradient, which comes in its place."""
    call = described(300, 64, 128256)
    assert told(fo.LinearCrossEntropy(), *call) == 300 * 128256 * 4 - 64 * 128256 * 4
    assert told(fo.LinearCrossEntropy(memory=69827727), *call) <= 300 * 128256 * 4 - 64 * 128256 * 4


@pytest.mark.parametrize("rows", [99, 155, 620])
@pytest.mark.parametrize("memory", [None, 1 << 15])
@pytest.mark.parametrize("outside", [torch.float16, torch.bfloat16], ids=str)
def test_a_backward_pass_under_another_autocast(rows, memory, outside, monkeypatch):
    """It finds what the forward pass made, in the dtype of that."""
    for name, size in {"ROWS": 64, "CLASSES": 64}.items():
        monkeypatch.setattr(logits, f"_FEWEST_{name}", size)
    x = randn(rows, 48).requires_grad_()
    w = randn(300, 48, seed=1).requires_grad_()
    target = torch.arange(rows) % 300
    op = fo.LinearCrossEntropy(memory=memory)

    def step(forward, backward):
        with torch.autocast("cpu", torch.bfloat16, enabled=forward):
            loss = op(x, w, target=target)
        with torch.autocast("cpu", outside, enabled=backward):
            return torch.autograd.grad(loss, (x, w))

    for forward in (False, True):
        made = [step(forward, backward) for backward in (False, True)]
        assert all(map(torch.equal, *made))


def test_explain_reads_strides_and_casts_nothing(monkeypatch):
    """What is chosen depends on strides, and a cast factor is described alone."""
    seen = []

    def explained(part, x, w, operands):
        seen.append((x.stride(), w.stride(), x.dtype, x.device.type, w.device.type))
        return report_explained(part, x, w, operands)

    report_explained = report.explained
    monkeypatch.setattr(report, "explained", explained)
    x, w = torch.zeros(300, 65)[:, :64], torch.zeros(4096, 65)[:, :64]
    target, op = torch.zeros(300, dtype=torch.int64), fo.LinearCrossEntropy()
    op.explain(x, w, target=target)
    with torch.autocast("cpu", torch.bfloat16):
        op.explain(x, w, target=target)
    assert seen == [
        ((65, 1), (65, 1), torch.float32, "cpu", "cpu"),
        ((64, 1), (64, 1), torch.bfloat16, "meta", "meta"),
    ]
