# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which linear layers the backend takes by itself, planned for GPUs that need not be there."""

import types

import pytest
import torch
from torch.nn import functional

import fusedops as fo
from fusedops.generate.target import Target
from fusedops.graph import products
from fusedops.graph.products import rewrite_products
from fusedops.graph.rewrite import rewrite


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


HOPPER = Target.named("sm_90", 132)
ROWS, WIDE, DEPTH = 16384, 3072, 768


class TestAuto:
    """What is planned on a GPU with sm_90, of tensors that have no memory that is touched."""

    @pytest.fixture(autouse=True)
    def on_hopper(self, monkeypatch):
        self.target = HOPPER
        monkeypatch.setattr(
            products, "Target", types.SimpleNamespace(of=lambda device: self.target)
        )

    def planned(
        self,
        program,
        dtype=torch.bfloat16,
        sizes=(ROWS, DEPTH, WIDE),
        trains=False,
        learns=True,
        autocast=False,
        dynamic=None,
    ):
        """The linear layers of a program of x, w, b, r, as planned."""
        found = []

        def backend(graph_module, inputs):
            (results,) = next(n for n in graph_module.graph.nodes if n.op == "output").args
            made = [one.meta["example_value"] for one in results]
            shapes = [([*map(int, y.shape)], y.dtype) for y in made]
            rewrite(graph_module)
            found.extend(rewrite_products(graph_module))
            return lambda *arguments: [torch.empty(s, dtype=d) for s, d in shapes]

        rows, k, n = sizes
        given = [torch.empty(shape, dtype=dtype) for shape in ((rows, k), (n, k), (n,), (rows, n))]
        for one in given:
            one.requires_grad_(learns)
        with (
            torch.set_grad_enabled(trains),
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        ):
            torch.compile(program, backend=backend, dynamic=dynamic)(*given)
        return found

    def layer(self, x, w, b, r):
        return functional.gelu(functional.linear(x, w, b))

    def tail(self, x, w, b, r):
        return functional.dropout(functional.linear(x, w, b), 0.1) + r

    def left(self, why, program, **how):
        (one,) = self.planned(program, **how)
        assert one.op is None
        assert why in one.why["linear"], one.why

    def taken(self, program, **how):
        (one,) = self.planned(program, **how)
        assert one.op is not None, one.why
        return repr(list(one.op.store))

    def test_what_a_call_asks_for_is_asked_for(self, monkeypatch):
        """A bias is the product's; what was tuned for the layer is found by that."""
        asked = []
        real = products.features_of_sizes
        monkeypatch.setattr(
            products, "features_of_sizes", lambda *call: asked.append(call[0]) or real(*call)
        )
        self.taken(self.tail)
        assert [one.load[0].has_added for one in asked] == ["bias"]

    @pytest.mark.parametrize("dynamic", [None, True])
    def test_inference(self, dynamic):
        assert (
            self.taken(self.layer, dynamic=dynamic)
            == "[Bias(bias='bias'), GELU(approximate='none')]"
        )
        torch._dynamo.reset()
        assert "Dropout" in self.taken(self.tail, dynamic=dynamic)

    def test_training(self):
        """A gradient that reads the product is the reason to leave it, unless none is wanted."""
        self.left("its gradient reads the product", self.layer, trains=True)
        torch._dynamo.reset()
        assert "Dropout" in self.taken(self.tail, trains=True)
        torch._dynamo.reset()
        self.taken(self.layer, trains=True, learns=False)

    def test_a_product_that_is_written_anyway(self):
        """A gradient reads what is saved for another reader in place of the product."""

        def program(x, w, b, r):
            h = functional.linear(x, w, b)
            return functional.gelu(h), h.view(-1)

        assert "Save(name='stream', dtype=torch.bfloat16), GELU(approximate='none')" in self.taken(
            program, trains=True
        )

    def test_gradients_off_in_the_graph(self):
        def program(x, w, b, r):
            with torch.no_grad():
                return functional.gelu(functional.linear(x, w, b))

        self.taken(program, trains=True)

    def test_dtypes(self):
        self.left("float16 and bfloat16 alone", self.layer, dtype=torch.float32)
        torch._dynamo.reset()
        self.left("float16 and bfloat16 alone", self.layer, dtype=torch.float64)
        torch._dynamo.reset()
        self.taken(self.layer, dtype=torch.float32, autocast=True)
        torch._dynamo.reset()
        self.taken(self.layer, dtype=torch.float16)

    @pytest.mark.parametrize(
        ("sizes", "why"),
        [
            ((32, DEPTH, WIDE), "not faster"),
            ((ROWS, 8192, WIDE), "not faster"),
            ((ROWS, DEPTH, WIDE + 4), "multiples of 8"),
            ((ROWS, DEPTH + 4, WIDE), "multiples of 8"),
        ],
    )
    def test_sizes(self, sizes, why):
        self.left(why, self.layer, sizes=sizes)

    def test_of_what_is_dynamic_the_example_decides(self):
        self.left("not faster", self.layer, sizes=(32, DEPTH, WIDE), dynamic=True)

    @pytest.mark.parametrize(
        "program",
        [
            lambda x, w, b, r: functional.linear(x, w, b) * 0.5,
            lambda x, w, b, r: functional.linear(x, w, b).to(torch.float16),
            lambda x, w, b, r: functional.linear(x, w, b) + 1,
        ],
    )
    def test_numbers_and_dtypes_alone(self, program):
        self.left("no more than a bias", program)

    def test_a_bias_alone(self):
        for program in (
            lambda x, w, b, r: functional.linear(x, w, b),
            lambda x, w, b, r: functional.linear(x, w) + b,
        ):
            torch._dynamo.reset()
            self.left("torch's product has all of it", program)

    def test_strides(self):
        self.left("not contiguous", lambda x, w, b, r: functional.gelu(functional.linear(r, w.mT)))

    @pytest.mark.parametrize("trains", [False, True])
    def test_a_block_under_autocast(self, trains):
        """The two layers of a transformer's block: with gradients the GELU's is left."""

        def block(x, w, b, r):
            h = functional.gelu(functional.linear(x, w, b))
            return functional.dropout(functional.linear(h, w.mT.contiguous()), 0.1) + x

        up, down = self.planned(block, dtype=torch.float32, autocast=True, trains=trains)
        assert (up.op is not None) is not trains
        assert down.op is not None
        assert [type(one).__name__ for one in down.op.store] == ["Dropout", "Residual"]

    @pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
    def test_other_gpus(self, arch):
        self.target = Target.named(arch)
        self.left(arch, self.layer)

    def test_a_gpu_that_no_kernel_is_built_for(self, monkeypatch):
        def of(device):
            raise fo.UnsupportedError("sm_60 is too old")

        monkeypatch.setattr(products, "Target", types.SimpleNamespace(of=of))
        self.left("too old", self.layer)
