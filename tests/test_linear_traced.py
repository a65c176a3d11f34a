# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products under torch.compile, torch.export, autocast, checkpoints and CUDA graphs."""

import io

import pytest
import torch
from cases import randn, same_bits
from test_linear import FULL, P, case
from test_matmul import scores_case
from test_mlp import BLOCK
from test_mlp import case as block_case
from test_mlp import run as run_block
from torch.utils.checkpoint import checkpoint

import fusedops as fo

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def layer(x, w, b, r):
    return FULL(x, w, b=b, p=P, r=r)


def step(function, leaves):
    """Outputs and gradients of a call that draws from torch's default generator."""
    torch.manual_seed(7)
    y, act = function(*leaves)
    dy = [randn(*one.shape, dtype=one.dtype, device=one.device, seed=4) for one in (y, act)]
    return [y.detach(), act.detach(), *torch.autograd.grad([y, act], leaves, dy)]


def leaves_of(device):
    x, w, operands = case(device=device)
    return [one.requires_grad_() for one in (x, w, operands["b"], operands["r"])]


@pytest.mark.thorough
def test_compiled_in_one_graph(device):
    """Eager's bits, dropout included; another batch compiles once more at most."""
    leaves = leaves_of(device)
    both = [step(function, leaves) for function in (layer, compiled(layer))]
    assert all(same_bits(*pair) for pair in zip(*both, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("store", [[], [fo.Bias("b")], [fo.Bias("b"), fo.Scale("s")]], ids=len)
def test_arguments_that_eager_code_refuses(store):
    """A misspelled one, an option of row ops alone, a missing operand: torch's product or not."""
    op = fo.Linear(store)
    x, w = randn(2, 8), randn(16, 8)
    given = {key: one for key, one in {"b": randn(16), "s": 2.0}.items() if key in op.slots}
    wrong = [{**given, "bb": given.get("b", 1.0)}, {**given, "dim": 0}, {**given, "seed": 1}]
    for arguments in wrong if not given else [*wrong, {}]:
        errors = []
        for call in (op, torch.compile(lambda *a, **k: op(*a, **k), backend="aot_eager")):
            with pytest.raises(TypeError) as error:
                call(x, w, **arguments)
            errors.append(str(error.value).split("\n")[0])
        assert errors[0] == errors[1]


def test_the_graph_is_a_product_and_one_operator(device):
    """A compiler sees torch's product, and a single operator for the STORE."""
    seen = []

    def backend(module, inputs):
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module

    x, w, operands = case(device=device)
    torch.compile(layer, backend=backend, fullgraph=True)(x, w, operands["b"], operands["r"])
    named = [name for name in seen if "getitem" not in name]
    assert sum("linear" in name for name in named) == 1
    assert sum("fusedops.forward" in name for name in named) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["block", "scores", "module"])
def test_others_compile(way, device):
    if way == "block":
        leaves, r = block_case(device=device)
        results = []
        for op in (BLOCK, compiled(lambda *a, **k: BLOCK(*a, **k))):
            torch.manual_seed(7)
            results.append(run_block(op, leaves, p=P, r=r))
    elif way == "scores":
        q, k, operands = scores_case(device=device)
        op = fo.Matmul(store=[fo.Scale("scale"), fo.Mask("m")])
        given = {name: operands[name] for name in ("scale", "m")}
        results = [[f(q, k.mT, **given)] for f in (op, compiled(lambda *a, **n: op(*a, **n)))]
    else:
        module = fo.nn.Linear(16, 8, p=0.5).to(device)
        x = randn(4, 16, device=device)
        results = []
        for call in (module, compiled(module)):
            torch.manual_seed(7)
            results.append([call(x, x[:, :8]).detach()])
    assert all(same_bits(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_and_saved(strict, device):
    """The program holds torch's product and the Map, for batches of any size."""
    module = fo.nn.Linear(16, 8, p=0.5).to(device).eval()
    x, r = randn(4, 16, device=device), randn(4, 8, device=device)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        module, (x, r), dynamic_shapes=({0: batch}, {0: batch}), strict=strict
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    more = randn(7, 16, device=device), randn(7, 8, device=device)
    assert same_bits(again(*more).detach(), module(*more).detach())


def test_in_a_checkpoint(device):
    leaves = leaves_of(device)
    plain = step(layer, leaves)
    again = step(lambda *a: checkpoint(layer, *a, use_reentrant=False), leaves)
    assert all(same_bits(*pair) for pair in zip(plain, again, strict=True))


def test_under_autocast(device):
    """The product is computed in the lower dtype, and so is y; factors may have two dtypes."""
    x, w, operands = case(device=device)
    low = torch.bfloat16
    with torch.autocast(device, dtype=low):
        got = FULL(x, w.to(low), **operands, generator=(1, 0))
        told = FULL.explain(x, w.to(low), **operands)
    want = FULL(x.to(low), w.to(low), **operands, generator=(1, 0))
    assert got.y.dtype is low
    assert all(same_bits(*pair) for pair in zip(got, want, strict=True))
    assert "in bfloat16" in told.product


@pytest.mark.gpu
def test_in_a_cuda_graph():
    """Replays read the tensors as they are then, and draw new masks."""
    leaves, r = block_case(torch.float16, "cuda")
    factors = [leaves[name].detach() for name in ("x", "w1", "w2")]
    given = {"b1": leaves["b1"].detach(), "b2": leaves["b2"].detach(), "r": r, "p": P}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            BLOCK(*factors, **given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = BLOCK(*factors, **given)
        still = BLOCK(*factors, **given, training=False)
    seen = []
    for scale in (1.0, 1.0, 2.0):
        factors[0].copy_(leaves["x"].detach() * scale)
        graph.replay()
        seen.append((y.clone(), still.clone()))
    assert same_bits(seen[0][1], seen[1][1])
    assert not same_bits(seen[0][0], seen[1][0])
    assert same_bits(seen[2][1], BLOCK(*factors, **given, training=False))


@pytest.mark.gpu
def test_a_step_in_a_cuda_graph():
    """Forward and backward of the block: what is made again has the masks of its own replay."""
    leaves, r = block_case(torch.float16, "cuda")
    x, w1, w2, b1, b2 = leaves.values()
    dy = randn(2, 3, 16, dtype=torch.float16, device="cuda", seed=9)

    def call():
        y = BLOCK(x, w1, w2, b1=b1, b2=b2, p=P, r=r)
        return y, torch.autograd.grad(y, [*leaves.values()], dy)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, grads = call()
    graph.replay()
    first = [one.clone() for one in (y, *grads)]
    graph.replay()
    assert not same_bits(first[0], y)
    # db2 is the sum over rows of what dropout lets through of dy: zero or scaled, as y's mask says.
    kept = (y - r != 0).sum().item()
    assert 0 < kept < y.numel()
    assert all(one.isfinite().all() for one in (y, *grads))
