# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: captured steps replay as eager ones do, and draw a new mask each time."""

import copy

import pytest
import test_gradient_variants
import test_variants
import torch
from cases import ADD_NORM, ATTENTION, declare, floating, named, randn, same_bits, upstream_of
from test_forward import FLAGSHIPS, add_norm_case, attention_case, flagship_case
from test_gradient_variants import backward_of
from test_variants import flagship_inputs

import fusedops as fo
from fusedops import row_op
from fusedops.bind import generator
from fusedops.bind.bind import bind
from fusedops.bind.generator import draw_in_memory
from fusedops.generate.target import Target
from fusedops.plan import forward as plan


@pytest.mark.thorough
def test_a_draw_in_memory_gives_the_mask_of_its_numbers(device):
    """Forward and backward; the kernels read seed and offset when they run."""
    for chain, (x, operands) in (
        (ATTENTION, attention_case(torch.float32, device)),
        (ADD_NORM, add_norm_case(torch.float32, device)),
    ):
        upstream = upstream_of(chain, x, operands)
        draw = torch.tensor([-5, (1 << 47) + 1], device=device)
        wanted = step(chain, x, operands, upstream, (-5, (1 << 47) + 1))
        got = step(chain, x, operands, upstream, draw)
        assert all(same_bits(*pair) for pair in zip(got, wanted, strict=True))
        y = declare(chain).unfused(x, **operands, generator=draw)
        torch.testing.assert_close(named(y)["y"], got[0])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["attention", "add_norm"])
def test_kernels_that_read_their_draw_compile_without_spills(name):
    op = declare(ATTENTION if name == "attention" else ADD_NORM)
    x, operands = flagship_inputs(op, 3, 1024, torch.float16)
    draw = torch.zeros(2, dtype=torch.int64)
    bound = bind(op, x, operands, {})._replace(generator=draw)
    forward = plan.describe(bound, Target.named("sm_90"))
    assert "DropoutFrom<" in forward.variant.source
    test_variants.check_compiles(forward)
    backward = backward_of(op, x, operands, "sm_90", options={"generator": draw})
    assert "DropoutFrom<" in backward.variant.source
    test_gradient_variants.check_compiles(backward)


def test_a_draw_that_cannot_be_one(device):
    op, x = fo.Softmax(store=[fo.Dropout("p")]), randn(3, 4, device=device)
    for wrong in (torch.tensor([1.0, 2.0]), torch.tensor([1, 2, 3]), torch.tensor(1)):
        with pytest.raises(ValueError, match="two int64 on x's device"):
            op(x, p=0.5, generator=wrong.to(device))


def test_a_draw_that_changed_before_the_backward_pass_is_noticed(device):
    op, x = fo.Softmax(store=[fo.Dropout("p")]), randn(3, 4, device=device).requires_grad_()
    draw = torch.tensor([1, 2], device=device)
    y = op(x, p=0.5, generator=draw)
    draw.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def step(chain, x, operands, upstream, generator):
    leaves = {"x": x, **floating(operands)}
    leaves = {name: value.detach().requires_grad_() for name, value in leaves.items()}
    given = {**operands, **leaves}
    outputs = named(declare(chain)(given.pop("x"), **given, generator=generator))
    gradients = torch.autograd.grad(
        [outputs[name] for name in upstream], list(leaves.values()), list(upstream.values())
    )
    return [*(y.detach() for y in outputs.values()), *gradients]


@pytest.fixture(params=FLAGSHIPS)
def flagship(request):
    return flagship_case(request.param, torch.float16, "cuda")


@pytest.fixture
def draws(monkeypatch):
    """The tensors that captured dropouts read, to look at after a replay."""
    kept = []

    def keep(*arguments, **options):
        kept.append(draw_in_memory(*arguments, **options))
        return kept[-1]

    for module in (generator, row_op):
        monkeypatch.setattr(module, "draw_in_memory", keep)
    return kept


@pytest.mark.gpu
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "first call"])
def test_a_training_step(flagship, draws, warm):
    """Three replays, three masks, each step that of eager with the same draw; nothing waits."""
    chain, x, operands, upstream = flagship
    if warm:
        step(chain, x, operands, upstream, torch.tensor([1, 2], device="cuda"))
        draws.clear()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(chain, x, operands, upstream, None)
    (draw,) = draws
    masks = []
    for _ in range(3):
        graph.replay()
        got = [tensor.clone() for tensor in captured]
        seed, offset = draw.tolist()
        masks.append((seed, offset))
        wanted = step(chain, x, operands, upstream, (seed, offset))
        assert all(same_bits(*pair) for pair in zip(got, wanted, strict=True))
    assert len(set(masks)) == 3


@pytest.mark.gpu
def test_manual_seed_decides_what_a_replay_draws():
    op, x = fo.Softmax(store=[fo.Dropout("p")]), randn(8, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = op(x, p=0.5)
    results = []
    for seed in (3, 3, 4):
        torch.cuda.manual_seed(seed)
        graph.replay()
        results.append(y.clone())
    assert same_bits(results[0], results[1])
    assert not same_bits(results[0], results[2])


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(64, 64)
        self.norm = fo.nn.ResidualLayerNorm(64, p=0.5, return_stream=True)

    def forward(self, x):
        return self.norm(self.dense(x), x)


def check_step(block, leaf, y, stream, dy):
    """Result and gradient are those of the mask that the stream shows: what was dropped is x."""
    kept = stream.detach() != leaf.detach()
    exact, x = copy.deepcopy(block).double(), leaf.detach().double().requires_grad_()
    z = x + exact.dense(x) * kept * 2
    wanted = torch.layer_norm(z, (64,), exact.norm.weight, exact.norm.bias, block.norm.eps)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-4, atol=1e-5)
    wanted.backward(dy.double())
    torch.testing.assert_close(leaf.grad.double(), x.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_make_graphed_callables():
    """Replays train: masks differ from step to step, and a gradient has its forward's mask."""
    torch.manual_seed(0)
    block, x = Block().cuda().train(), randn(32, 64, device="cuda").requires_grad_()
    graphed = torch.cuda.make_graphed_callables(block, (x.detach().requires_grad_(),))
    results = []
    dy = randn(32, 64, device="cuda", seed=1)
    for _ in range(3):
        block.zero_grad()
        leaf = x.detach().clone().requires_grad_()
        y, stream = graphed(leaf)
        y.backward(dy)
        check_step(block, leaf, y.detach(), stream, dy)
        results.append(y.detach().clone())
    assert not any(same_bits(a, b) for k, a in enumerate(results) for b in results[:k])


@pytest.mark.gpu
def test_reduce_overhead_behind_the_backend():
    """What the pass over the graph fuses is captured as well, its dropout included."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def program(x, bias):
        return torch.nn.functional.dropout(torch.softmax(x * 0.5 + bias, -1), 0.5)

    compiled = torch.compile(program, backend="fusedops", mode="reduce-overhead")
    x, bias = randn(32, 64, device="cuda"), randn(64, device="cuda", seed=1)
    dy, masks = randn(32, 64, device="cuda", seed=2), []
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        leaf = x.clone().requires_grad_()
        y = compiled(leaf, bias)
        masks.append(y.detach() != 0)
        y.backward(dy)
        of_double = x.double().requires_grad_()
        wanted = torch.softmax(of_double * 0.5 + bias.double(), -1) * masks[-1] * 2
        wanted.backward(dy.double())
        torch.testing.assert_close(leaf.grad.double(), of_double.grad, rtol=1e-4, atol=1e-6)
    assert not any(torch.equal(a, b) for k, a in enumerate(masks) for b in masks[:k])
    assert not torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]


@pytest.mark.gpu
def test_reduce_overhead():
    """torch.compile with CUDA graphs: new masks at each call; without dropout, eager's numbers."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    block, x = Block().cuda(), randn(32, 64, device="cuda")
    compiled = torch.compile(block.train(), mode="reduce-overhead", fullgraph=True)
    masks, dy = [], randn(32, 64, device="cuda", seed=1)
    for _ in range(6):  # the first ones warm up and capture
        torch.compiler.cudagraph_mark_step_begin()
        block.zero_grad()  # a gradient is memory of the graphs, which the next replay writes again
        leaf = x.clone().requires_grad_()
        y, stream = compiled(leaf)
        masks.append(y.detach().clone())
        stream = stream.detach().clone()
        y.backward(dy)
        check_step(block, leaf, masks[-1], stream, dy)
    assert not any(same_bits(a, b) for k, a in enumerate(masks) for b in masks[:k])
    assert not torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]

    compiled = torch.compile(block.eval(), mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        want = block(x)[0]
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            torch.testing.assert_close(compiled(x)[0].clone(), want)
