# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Linear layers in graphs as one operator, and as one kernel on a GPU."""

import pytest
import torch
from captured import compiled_products, target_of, trained
from cases import randn, same_bits
from products import needs_hopper
from test_graph_products import B, R, W, X, gelu_by_erf, residual
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch.nn import functional

from fusedops.product import torch_op
from fusedops.testing import last_schedule

#: The fewest rows of which each cluster of an H200 has a tile, where there are 256 columns.
ROWS = 66 * 256


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


class TestAsOneOperator:
    """As on a GPU where one kernel may be chosen: the graph of AOTAutograd holds the operator."""

    @pytest.fixture
    def may_be_one(self, monkeypatch):
        monkeypatch.setattr(torch_op, "_may_be_one", lambda *call: True)

    def run(self, program, train, dtype=torch.float16):
        """What the forward graph calls of this package, outputs and gradients."""
        names = []

        def forward(graph_module, inputs):
            calls = [target_of(n) for n in graph_module.graph.nodes if n.op == "call_function"]
            names.append([name for name in calls if "fusedops" in name])
            return make_boxed_func(graph_module.forward)

        def inner(graph_module, inputs):
            return aot_module_simplified(graph_module, inputs, forward)

        fused, _ = compiled_products(program, inner)
        leaves = [one.to(dtype) for one in (X, W, B, R)]
        if train:
            outputs, gradients = trained(fused, leaves)
            return names[0], [*outputs, *(one for one in gradients if one is not None)]
        with torch.no_grad():
            y = fused(*leaves)
        return names[0], [y]

    @pytest.mark.thorough
    @pytest.mark.grid(strength=1)
    @pytest.mark.parametrize("train", [False, True])
    @pytest.mark.parametrize("program", [gelu_by_erf, residual], ids=lambda one: one.__name__)
    def test_the_bits_are_those_of_two(self, program, train, may_be_one, monkeypatch):
        names, one = self.run(program, train)
        assert "fusedops.forward.default of Linear" in names
        assert "fusedops.forward.default of Map" not in names
        torch._dynamo.reset()
        monkeypatch.setattr(torch_op, "_may_be_one", lambda *call: False)
        names, two = self.run(program, train)
        assert "fusedops.forward.default of Linear" not in names
        assert "fusedops.forward.default of Map" in names
        assert len(one) == len(two) >= (4 if train else 1)
        assert all(same_bits(*pair) for pair in zip(one, two, strict=True))

    def test_a_dropout_draws_in_the_graph(self, may_be_one):
        def program(x, w, b, r):
            return functional.dropout(functional.linear(x, w, b), 0.5) + r

        torch.manual_seed(7)
        names, (y,) = self.run(program, False)
        assert "fusedops.draw.default" in names
        assert "fusedops.forward.default of Linear" in names
        dropped = (y == R.half()).float().mean().item()
        assert 0.3 < dropped < 0.7

    def test_float32_is_two_kernels(self, may_be_one):
        names, _ = self.run(gelu_by_erf, False, torch.float32)
        assert "fusedops.forward.default of Linear" not in names


@pytest.mark.gpu
class TestOnAGpu:
    """By "auto" and Inductor, of the fewest rows of which each cluster has a tile, and more."""

    @pytest.fixture(autouse=True)
    def hopper(self):
        needs_hopper()

    def leaves(self, rows=ROWS, learns=False):
        shapes = ((rows, 64), (256, 64), (256,), (rows, 256))
        made = [randn(*s, device="cuda", seed=k, dtype=torch.float32) for k, s in enumerate(shapes)]
        made[1] *= 64**-0.5
        return [one.requires_grad_(learns) for one in made]

    def test_inference_is_one_kernel(self):
        """One graph, which chooses two kernels for few rows; the bits are those of a plain call."""
        fused, found = compiled_products(gelu_by_erf, "inductor", "auto", dynamic=True)
        for rows, one in ((ROWS, True), (2 * ROWS, True), (64, False)):
            x, w, b, r = self.leaves(rows)
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                y = fused(x, w, b, r)
                assert (last_schedule() == "Together") is one
                assert same_bits(y, found[0].op(x, w, bias=b))
        assert len(found) == 1

    def test_a_tail_trains_by_one_kernel(self):
        """Nothing reads the product; values and gradients are those of a plain call, to the bit."""

        def program(x, w, b, r):
            return functional.dropout(functional.linear(x, w, b), 0.5) + r

        fused, found = compiled_products(program, "inductor", "auto")

        def plain(x, w, b, r):
            return found[0].op(x, w, bias=b, p=0.5, residual=r, dtype=torch.float32)

        results = []
        for run in (fused, plain):
            leaves = self.leaves(learns=True)
            torch.manual_seed(7)
            with torch.autocast("cuda", torch.bfloat16):
                y = run(*leaves)
                assert last_schedule() == "Together"
            upstream = randn(*y.shape, dtype=y.dtype, device="cuda", seed=9)
            results.append([y.detach(), *torch.autograd.grad(y, leaves, upstream)])
        assert found[0].drops
        assert all(same_bits(*pair) for pair in zip(*results, strict=True))

    def test_what_does_not_pay_in_training_is_left(self):
        fused, found = compiled_products(gelu_by_erf, "inductor", "auto")
        with torch.autocast("cuda", torch.bfloat16):
            fused(*self.leaves(learns=True))
        assert [one.op for one in found] == [None]
