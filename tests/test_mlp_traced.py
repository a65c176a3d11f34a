# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""MLP in compiled code: eager's bits, what is kept, one graph for all rows, one kernel on a GPU."""

import math

import pytest
import torch
from captured import target_of
from cases import raises, randn, same_bits, thorough
from test_linear import P, gelu, saved
from test_linear_fused import forced, needs_hopper
from test_mlp import BLOCK, PLAIN, by_hand, case, run
from test_product_backward import case as sized_case
from test_product_backward import gradients
from torch import library
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fusedops as fo
from fusedops.product import torch_op
from fusedops.testing import last_schedule

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def compiled(op, backend="aot_eager", **options):
    """A function of the same arguments that torch compiles."""
    return torch.compile(
        lambda *factors, **named: op(*factors, **named), backend=backend, fullgraph=True, **options
    )


def names_in(op, *factors, **named):
    """The operators of this package in the graph that Dynamo makes of a call."""
    names = []

    def backend(module, inputs):
        calls = [target_of(node) for node in module.graph.nodes if node.op == "call_function"]
        names.extend(name for name in calls if "fusedops" in name)
        return module

    compiled(op, backend)(*factors, **named)
    return [name.removeprefix("fusedops.") for name in names]


def both(op, leaves, backend="aot_eager", **further):
    """Results of an eager call, and of compiled code from the same state of the generator."""
    results = []
    for call in (op, compiled(op, backend)):
        torch.manual_seed(3)
        results.append(run(call, leaves, **further))
    return results


def in_a_checkpoint(op):
    """The same function, which keeps its arguments alone."""
    return lambda *factors, **named: checkpoint(op, *factors, use_reentrant=False, **named)


def all_same(first, second):
    return all(same_bits(*pair) for pair in zip(first, second, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["aot_eager", *thorough("inductor", "eager")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_bits_of_an_eager_call(dtype, backend, device):
    """Dropouts drop what they drop in eager code; without training there is no draw."""
    leaves, r = case(dtype, device)
    assert all_same(*both(BLOCK, leaves, backend, p=P, r=r))
    assert all_same(*both(BLOCK, leaves, backend, p=P, r=r, training=False))
    assert all_same(*both(BLOCK, leaves, backend, p=P, r=r, generator=(5, 64)))


def test_by_hand(device):
    """In float64, of a given seed, against torch's own layers and gradients."""
    leaves, r = case(torch.float64, device)
    wanted = by_hand(leaves, r)
    got = run(compiled(BLOCK), leaves, p=P, r=r, generator=(5, 64))
    for one, want in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, want, rtol=1e-11, atol=1e-11)


def test_the_hidden_tensor_is_not_kept(device):
    """Of what compiled code saves, the product alone has its size."""
    leaves, r = case(torch.float16, device)
    x, w1, w2, b1, b2 = leaves.values()
    call = compiled(BLOCK)
    kept, _ = saved(lambda: call(x, w1, w2, b1=b1, b2=b2, p=P, r=r))
    wide = [shape for shape in kept.values() if math.prod(shape) == 2 * 3 * 40]
    assert len(wide) == 1


@pytest.mark.thorough
def test_one_graph_for_all_rows(device):
    leaves, _ = case(device=device)
    counter = CompileCounterWithBackend("aot_eager")
    call = compiled(PLAIN, counter, dynamic=True)
    for rows in (2, 5, 7, 33):
        leaves["x"] = randn(rows, 3, 16, device=device, seed=rows).requires_grad_()
        assert all_same(run(PLAIN, leaves), run(call, leaves))
    assert counter.frame_count == 1


def test_no_rows(device):
    leaves, _ = case(device=device)
    leaves["x"] = randn(0, 3, 16, device=device).requires_grad_()
    assert all_same(*both(PLAIN, leaves))


@pytest.mark.thorough
@pytest.mark.parametrize("frozen", [(), ("x",), ("w1",), ("b1", "b2"), ("x", "w1", "b1"), ("w2",)])
def test_some_have_no_gradient(frozen, device):
    """What is kept is what eager code keeps: h with a frozen w2, or where no gradient reads z."""
    leaves, _ = case(device=device)
    for name in frozen:
        leaves[name] = leaves[name].detach()
    learning = [one for one in leaves.values() if one.requires_grad]

    def step(call):
        x, w1, w2, b1, b2 = leaves.values()
        y = call(x, w1, w2, b1=b1, b2=b2)
        dy = randn(*y.shape, device=device, seed=9)
        return [y.detach(), *torch.autograd.grad(y, learning, dy)]

    assert all_same(step(PLAIN), step(compiled(PLAIN)))
    x, w1, w2, b1, b2 = leaves.values()
    torch._dynamo.reset()
    names = names_in(PLAIN, x, w1, w2, b1=b1, b2=b2)
    recomputed = PLAIN.explain(x, w1, w2, b1=b1, b2=b2).recomputed
    assert ("linear_recomputed" in names) is recomputed
    assert recomputed is (frozen not in (("w2",), ("x", "w1", "b1")))


def test_without_gradients_there_are_two_layers(device):
    leaves, _ = case(device=device)
    x, w1, w2, b1, b2 = leaves.values()
    with torch.no_grad():
        assert names_in(PLAIN, x, w1, w2, b1=b1, b2=b2) == ["forward of Map"]


@pytest.mark.thorough
def test_operands_with_one_gradient(device):
    """Two residuals, whose gradients are one tensor in eager code."""
    op = fo.MLP(hidden=[gelu(), fo.Residual("r1"), fo.Residual("r2")], store=[])
    x, w1, w2 = [*case(device=device)[0].values()][:3]
    r1, r2 = (randn(2, 3, 40, device=device, seed=k).requires_grad_() for k in (5, 6))
    results = []
    for call in (op, compiled(op)):
        y = call(x, w1, w2, r1=r1, r2=r2)
        results.append(torch.autograd.grad(y.square().sum(), [x, w1, w2, r1, r2]))
    assert all_same(*results)


@pytest.mark.thorough
def test_under_autocast(device):
    """Weights in float32 and their gradients, activations in bfloat16."""
    leaves, _ = case(torch.float32, device)
    results = []
    for call in (PLAIN, compiled(PLAIN)):
        with torch.autocast(device, dtype=torch.bfloat16):
            results.append(run(call, leaves))
    assert results[1][0].dtype is torch.bfloat16
    assert [one.dtype for one in results[1][1:]] == [torch.float32] * 5
    assert all_same(*results)


def test_in_a_checkpoint(device):
    """Which makes z and h again, and draws what was drawn.

    On a GPU a compiled checkpoint draws from a generator of its own, so its masks are not eager's.
    """
    leaves, r = case(device=device)
    given = {"generator": (4, 7)} if device == "cuda" else {}
    results = []
    for call in (BLOCK, compiled(in_a_checkpoint(BLOCK))):
        torch.manual_seed(4)
        results.append(run(call, leaves, p=P, r=r, **given))
    assert all_same(*results)


@pytest.mark.thorough
def test_a_checkpoint_goes_back_by_the_masks_that_it_drew(device):
    op = fo.MLP(hidden=[gelu(), fo.Dropout("p")])
    x, dy = (randn(6, 16, device=device, seed=seed) for seed in (1, 2))
    leaves = [x, *(torch.eye(16, device=device) for _ in range(2))]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    y = compiled(in_a_checkpoint(op))(*leaves, p=0.5)
    got = torch.autograd.grad(y, leaves, dy)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    h = functional.gelu(exact[0] @ exact[1].T, approximate="tanh") * (y.detach() != 0) * 2
    assert 0 < (y == 0).sum() < y.numel()
    want = torch.autograd.grad(h @ exact[2].T, exact, dy.double())
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_a_module(device):
    block = fo.nn.MLP(16, 40, activation=gelu(), p=0.5, p_hidden=0.5, device=device)
    x = randn(6, 16, device=device, seed=1).requires_grad_()
    leaves = [x, *block.parameters()]
    results = []
    for call in (block, torch.compile(block, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(3)
        y = call(x, x)
        dy = randn(*y.shape, device=device, seed=9)
        results.append([y.detach(), *torch.autograd.grad(y, leaves, dy)])
    assert all_same(*results)


def test_a_program_has_two_layers(device):
    """What torch.export makes is torch's products and two Maps, as of two layers."""
    block = fo.nn.MLP(16, 40, activation=gelu(), device=device)
    x = randn(6, 16, device=device)
    program = torch.export.export(block, (x,))
    calls = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    own = [name for name in calls if "fusedops" in name]
    assert own == ["fusedops.forward.default"]
    assert same_bits(program.module()(x).detach(), block(x).detach())


class Own(torch.Tensor):
    """A class that sees the calls that it is in."""


def test_tensors_of_a_class_have_two_layers(device):
    x, w1, w2, b1, b2 = (one.detach() for one in case(device=device)[0].values())
    w2.requires_grad_()
    w1.requires_grad_()
    names = names_in(PLAIN, x.as_subclass(Own), w1, w2, b1=b1, b2=b2)
    assert "linear_recomputed" not in names


def operator_arguments(device):
    x, w1, w2, b1, _ = case(torch.float32, device)[0].values()
    z = (x @ w1.T).detach()
    h = functional.gelu(z + b1, approximate="tanh").detach()
    text = PLAIN.epilogues[0].text
    return (h, w2, None, x, w1, [z, b1], ["x", "b1"], [], text)


@pytest.mark.thorough
def test_opcheck(device):
    arguments = operator_arguments(device)
    op = torch.ops.fusedops.linear_recomputed.default
    assert {*library.opcheck(op, arguments).values()} == {"SUCCESS"}
    _, w2, _, _, _, (z, b1), names, numbers, text = arguments
    dy = randn(2, 3, 16, device=device)
    given = (dy, w2.detach(), [z, b1.detach()], names, numbers, text, ["w2", "x", "b1"])
    op = torch.ops.fusedops.product_backward.default
    assert {*library.opcheck(op, given).values()} == {"SUCCESS"}


def test_refusals(device):
    """A second derivative, and vmap."""
    arguments = operator_arguments(device)
    y = torch.ops.fusedops.linear_recomputed(*arguments)
    (dw1,) = torch.autograd.grad(y.square().sum(), [arguments[4]], create_graph=True)
    with raises(fo.UnsupportedError, "first derivative only"):
        dw1.sum().backward()
    h, w2, *others = arguments
    with raises(fo.UnsupportedError, "MLP: torch.func.vmap"):
        torch.func.vmap(lambda one: torch.ops.fusedops.linear_recomputed(one, w2, *others))(h)


@pytest.mark.thorough
@pytest.mark.parametrize("hidden", ["dropout", *thorough("gelu", "gate", "bare")])
def test_where_one_kernel_may_run_the_first_layer(hidden, monkeypatch):
    """The graph has the operator of a product that is an output too; the bits are eager's."""
    monkeypatch.setattr(torch_op, "_may_be_one", lambda *call: True)
    sizes = {"shape": (3, 10), "n": 24, "h": 40, "k": 16}
    op, factors, operands = sized_case(hidden, torch.bfloat16, **sizes)
    dy = randn(3, 10, 24, dtype=torch.bfloat16, seed=9)
    leaves = [one.clone().requires_grad_() for one in factors]
    names = names_in(op, *leaves, **operands)
    names = [one for one in names if one != "draw"]
    assert names == ["forward of Linear", "linear_recomputed"]
    torch._dynamo.reset()
    call = compiled(op)
    call.inputs = op.inputs
    found = [gradients(each, factors, operands, dy, generator=(7, 8)) for each in (op, call)]
    assert all_same(*(one.values() for one in found))


@pytest.mark.gpu
class TestOnAGpu:
    """By Inductor, of sizes for which one kernel is forced: eager's bits from the same kernels."""

    @pytest.fixture(autouse=True)
    def hopper(self):
        needs_hopper()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("implementation", ["Together", "two_kernels"])
    @pytest.mark.parametrize("hidden", ["gelu", "dropout", "gate", "bare"])
    def test_the_bits_of_an_eager_call(self, hidden, implementation, dtype):
        op, factors, operands = sized_case(hidden, dtype, "cuda")
        dy = randn(3, 100, 200, dtype=dtype, device="cuda", seed=9)
        results = []
        for call in (op, compiled(op, "inductor")):
            call.inputs = op.inputs
            with forced(implementation):
                found = gradients(call, factors, operands, dy, generator=(7, 8))
            one = implementation == "Together"
            assert (last_schedule() == "Together, gradient") is one
            results.append([*found.values()])
        assert all_same(*results)

    def test_it_chooses_when_it_runs(self):
        """One graph: one kernel for many rows, two for few."""
        op, (_, w1, w2), operands = sized_case("gelu", torch.bfloat16, "cuda", n=1024, h=4096)
        counter = CompileCounterWithBackend("inductor")
        call = compiled(op, counter, dynamic=True)
        call.inputs = op.inputs
        for rows, one in ((16384, True), (64, False), (8192, True)):
            x = randn(rows, 136, dtype=torch.bfloat16, device="cuda", seed=rows)
            dy = randn(rows, 1024, dtype=torch.bfloat16, device="cuda", seed=9)
            found = []
            for each in (op, call):
                found.append([*gradients(each, (x, w1, w2), operands, dy).values()])
                assert (last_schedule() == "Together, gradient") is one
            assert all_same(*found)
        assert counter.frame_count == 1

    def test_h_takes_no_memory_between_the_passes(self):
        """Bytes that are held after the forward pass: about those of eager code."""
        op, factors, operands = sized_case("dropout", torch.bfloat16, "cuda", shape=(8192,), h=4096)
        leaves = [one.requires_grad_() for one in factors]
        held = []
        for call in (op, compiled(op, "inductor")):
            for _ in range(2):
                before = torch.cuda.memory_allocated()
                y = call(*leaves, **operands)
                held.append(torch.cuda.memory_allocated() - before)
                torch.autograd.grad(y.sum(), leaves)
                del y
        assert abs(held[3] - held[1]) < 8192 * 4096  # h has twice as many bytes

    def test_in_a_captured_graph(self):
        """Replays draw anew, in both passes the same."""
        op, factors, operands = sized_case("dropout", torch.bfloat16, "cuda", shape=(512,))
        leaves = [one.requires_grad_() for one in factors]
        call = compiled(op, "inductor")

        def step():
            with forced("Together"):
                y = call(*leaves, **operands)
                return torch.autograd.grad(y.float().square().mean(), leaves)

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        graph.replay()
        torch.cuda.synchronize()
        first = [one.clone() for one in captured]
        graph.replay()
        torch.cuda.synchronize()
        assert all(one.isfinite().all() for one in first)
        assert not same_bits(first[0], captured[0]), "another draw"
