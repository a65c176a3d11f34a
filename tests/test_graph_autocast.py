# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "fusedops" under autocast: what one product reads is stored in its dtype."""

import functools

import pytest
import torch
from captured import listed
from cases import randn
from torch.nn import functional

from fusedops.graph import rewrite as rewriting
from fusedops.graph.backend import fusedops
from fusedops.row_op import RowOp

QUERY, KEY, VALUE = (randn(2, 6, 8, dtype=torch.float32, seed=k) for k in (1, 2, 3))


def weights(query, key):
    """In float32, as autocast computes a softmax by itself on a GPU."""
    return torch.softmax((query @ key.mT).float() * 0.5, -1)


def attention(query, key, value):
    return weights(query, key) @ value


def batched(query, key, value):
    return torch.bmm(weights(query, key), value)


def a_method(query, key, value):
    return weights(query, key).matmul(other=value)


def second_factor(query, key, value):
    return value.mT @ weights(query, key)


def linear(query, key, value):
    return functional.linear(weights(query, key), value[0].mT)


def two_products(query, key, value):
    found = weights(query, key)
    return found @ value, found @ value


def one_product_twice(query, key, value):
    found = weights(query, key)
    return found @ found


def returned_as_well(query, key, value):
    found = weights(query, key)
    return found @ value, found


def what_is_no_product(query, key, value):
    return torch.cumsum(weights(query, key), -1)


def einsum(query, key, value):
    return torch.einsum("bqk,bkd->bqd", weights(query, key), value)


def a_product_in_float32(query, key, value):
    with torch.autocast("cpu", enabled=False):
        return weights(query.float(), key.float()) @ value


def a_view_between(query, key, value):
    return weights(query, key).mT @ value


def run(program, backend, seed=7):
    """Outputs and gradients under autocast, from random upstream gradients."""
    torch._dynamo.reset()
    leaves = [one.clone().requires_grad_() for one in (QUERY, KEY, VALUE)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = listed(torch.compile(program, backend=backend)(*leaves))
    upstream = [randn(*y.shape, dtype=y.dtype, seed=90 + k) for k, y in enumerate(outputs)]
    gradients = torch.autograd.grad(outputs, leaves, upstream, allow_unused=True)
    return [*outputs, *(one for one in gradients if one is not None)]


def op_of(node):
    """The op that a node calls; targets of torch's may have an attribute of this name, too."""
    return getattr(node.target, "op", None)


def stored(program):
    """The dtypes of the fused calls of a program, and what it gives."""
    dtypes = []

    def inner(graph_module, inputs):
        calls = [n for n in graph_module.graph.nodes if isinstance(op_of(n), RowOp)]
        dtypes.extend(node.kwargs["dtype"] for node in calls)
        for node in calls:
            assert node.meta["example_value"].dtype is node.kwargs["dtype"]
        from torch._dynamo.backends.registry import lookup_backend

        return lookup_backend("aot_eager")(graph_module, inputs)

    results = run(program, functools.partial(fusedops, options={"inner": inner}))
    return dtypes, results


@pytest.mark.thorough
@pytest.mark.parametrize("program", [attention, batched, a_method, second_factor, linear])
def test_a_factor_is_stored_in_the_dtype_of_its_product(program, monkeypatch):
    """The same bits as where autocast rounds, forward and backward."""
    dtypes, results = stored(program)
    assert dtypes == [torch.bfloat16]
    monkeypatch.setattr(rewriting, "read_as", lambda result: None)
    dtypes, converted = stored(program)
    assert dtypes == [torch.float32]
    for one, other in zip(results, converted, strict=True):
        assert one.dtype is other.dtype
        assert torch.equal(one, other)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "program",
    [
        two_products,
        one_product_twice,
        returned_as_well,
        what_is_no_product,
        einsum,
        a_product_in_float32,
        a_view_between,
    ],
)
def test_near_misses(program):
    dtypes, _ = stored(program)
    assert dtypes
    assert {*dtypes} == {torch.float32}


def test_without_autocast_nothing_is_rounded():
    torch._dynamo.reset()
    dtypes = []

    def inner(graph_module, inputs):
        calls = [n for n in graph_module.graph.nodes if isinstance(op_of(n), RowOp)]
        dtypes.extend(node.kwargs["dtype"] for node in calls)
        return graph_module.forward

    backend = functools.partial(fusedops, options={"inner": inner})
    torch.compile(attention, backend=backend)(QUERY, KEY, VALUE)
    assert dtypes == [torch.float32]
