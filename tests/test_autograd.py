# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How fused ops behave as nodes of torch's graph: what they keep, write, repeat and refuse."""

import contextlib
from fractions import Fraction

import numpy as np
import pytest
import torch
from cases import (
    ADD_NORM,
    ATTENTION,
    LAYER_NORM,
    MAP,
    OPERATORS,
    declare,
    floating,
    gradients_of,
    parameters,
    randn,
    same_bits,
    upstream_of,
)
from references import Chain
from test_forward import FLAGSHIPS, add_norm_case, attention_case, flagship_case
from torch.utils.checkpoint import checkpoint

import fusedops as fo


@pytest.fixture(params=FLAGSHIPS)
def flagship(request, device):
    """A chain with its input, operands and upstream gradients."""
    return flagship_case(request.param, torch.float32, device)


def equal(got, wanted):
    assert got.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert same_bits(got[name], gradient), name


@contextlib.contextmanager
def poisoned_memory():
    """What torch allocates comes full of NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.thorough
def test_two_runs_and_whatever_memory_held(flagship):
    chain, *given = flagship
    _, wanted = gradients_of(declare(chain), *given)
    _, again = gradients_of(declare(chain), *given)
    equal(again, wanted)
    with poisoned_memory():
        _, poisoned = gradients_of(declare(chain), *given)
    equal(poisoned, wanted)


@pytest.mark.thorough
def test_nothing_that_came_is_written(flagship):
    chain, x, operands, upstream = flagship
    given = {"x": x, **operands, **{f"d {name}": dy for name, dy in upstream.items()}}
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    before = {name: value.clone() for name, value in tensors.items()}
    versions = {name: value._version for name, value in tensors.items()}
    gradients_of(declare(chain), x, operands, upstream)
    equal(tensors, before)
    assert versions == {name: value._version for name, value in tensors.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("op", [*OPERATORS, "map"])
def test_a_row_knows_nothing_of_its_neighbours(op, device):
    chain = {**OPERATORS, "map": MAP}[op]
    x, dy = (randn(9, 200, device=device, seed=i) for i in range(2))
    operands = parameters(chain, 200, device=device)
    _, wanted = gradients_of(declare(chain), x, operands, {"y": dy})
    others = torch.arange(9, device=device)[:, None] != 4
    x, dy = x.masked_fill(others, torch.nan), dy.masked_fill(others, torch.inf)
    _, got = gradients_of(declare(chain), x, operands, {"y": dy})
    assert same_bits(got["x"][4], wanted["x"][4])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "wanted",
    [["x"], ["gamma", "bias"], pytest.param(["residual"], marks=pytest.mark.gpu), ["beta"]],
    ids="-".join,
)
def test_gradients_of_some(wanted, device):
    """Whatever else is asked for, a gradient has the same bits; the others are not there."""
    x, operands = add_norm_case(torch.float32, device)
    upstream = upstream_of(ADD_NORM, x, operands)
    _, everything = gradients_of(declare(ADD_NORM), x, operands, upstream)
    _, some = gradients_of(declare(ADD_NORM), x, operands, upstream, wanted=wanted)
    equal(some, {name: everything[name] for name in wanted})


def test_where_nothing_needs_a_gradient_autograd_is_not_entered(device):
    op = declare(ADD_NORM)
    x, operands = add_norm_case(torch.float32, device)
    assert not any(tensor.requires_grad for tensor in op(x, **operands))
    leaf = x.clone().requires_grad_()
    with torch.no_grad():
        assert not any(tensor.requires_grad for tensor in op(leaf, **operands))
    y, stream = op(leaf, **operands)
    assert y.requires_grad
    assert stream.requires_grad


def test_a_forward_pass_has_the_same_bits_with_and_without_gradients(flagship):
    chain, x, operands, _ = flagship
    generators = [torch.Generator(x.device).manual_seed(3) for _ in range(2)]
    plain = declare(chain)(x, **operands, generator=generators[0])
    leaf = x.clone().requires_grad_()
    trained = declare(chain)(leaf, **operands, generator=generators[1])
    pairs = zip(plain, trained, strict=True) if isinstance(plain, tuple) else [(plain, trained)]
    for a, b in pairs:
        assert same_bits(a, b.detach())


def saved_by(call):
    """What a call keeps for the backward pass."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        result = call()
    return kept, result


#: Which inputs each chain keeps, besides a few numbers a row.
KEEPS = {
    "attention": (ATTENTION, {"x", "pair_bias", "padding"}),
    "add_norm": (ADD_NORM, {"stream", "gamma"}),
    "plain norm": (LAYER_NORM, {"x", "gamma"}),
    "softmax": (Chain("softmax"), {"y"}),
    "dropout of a softmax": (Chain("softmax", store=(("dropout", "p"),)), {"x"}),
}


@pytest.mark.parametrize("name", KEEPS)
def test_nothing_is_kept_but_what_is_needed(name, device):
    """Inputs and outputs themselves, never a copy and never a mask, and 16 bytes a row."""
    chain, wanted = KEEPS[name]
    x, operands = (attention_case if name == "attention" else add_norm_case)(torch.float32, device)
    operands = {o.name: operands[o.name] for o in declare(chain).operands}
    leaves = {key: value.requires_grad_() for key, value in floating(operands).items()}
    kept, result = saved_by(lambda: declare(chain)(x.requires_grad_(), **{**operands, **leaves}))
    results = result._asdict() if isinstance(result, tuple) else {"y": result}
    given = {"x": x, **operands, **results}
    known = {
        value.data_ptr(): key for key, value in given.items() if isinstance(value, torch.Tensor)
    }
    found = {known[tensor.data_ptr()] for tensor in kept if tensor.data_ptr() in known}
    assert found == wanted
    others = sum(tensor.nbytes for tensor in kept if tensor.data_ptr() not in known)
    assert others <= 16 * x[..., 0].numel()


@pytest.mark.gpu
def test_what_is_held_between_forward_and_backward():
    """Inputs and output, which the caller holds anyway, and 16 bytes a row."""
    x, operands = attention_case(torch.float16, "cuda", (2, 4, 256, 1024))
    x.requires_grad_()
    declare(ATTENTION)(x, **operands)  # plans, and what the libraries take for themselves

    def requested():  # what torch's caching allocator was asked for, whatever blocks it took
        return torch.cuda.memory_stats()["requested_bytes.all.current"]

    before = requested()
    y = declare(ATTENTION)(x, **operands)
    assert requested() - before <= y.nbytes + 16 * x[..., 0].numel()


@pytest.mark.thorough
def test_manual_seed_repeats_a_run(flagship):
    chain, x, operands, upstream = flagship
    op, leaf = declare(chain), x.clone().requires_grad_()

    def run(seed):
        torch.manual_seed(seed)
        y = op(leaf, **operands)
        y = y if isinstance(y, torch.Tensor) else y.y
        return torch.autograd.grad(y, leaf, upstream["y"])[0]

    first = run(5)
    assert not same_bits(run(6), first)
    assert same_bits(run(5), first)


@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
def test_checkpoint_draws_the_same_mask(reentrant, flagship):
    chain, x, operands, upstream = flagship
    op, leaf = declare(chain), x.clone().requires_grad_()

    def call(value):
        y = op(value, **operands)
        return y if isinstance(y, torch.Tensor) else y.y

    torch.manual_seed(3)
    wanted = torch.autograd.grad(call(leaf), leaf, upstream["y"])[0]
    torch.manual_seed(3)
    y = checkpoint(call, leaf, use_reentrant=reentrant)
    torch.rand(10, device=x.device)  # what happens in between does not matter
    y.backward(upstream["y"])
    assert same_bits(leaf.grad, wanted)


def test_backward_twice_over_a_graph_that_is_kept(flagship):
    chain, x, operands, upstream = flagship
    leaf = x.clone().requires_grad_()
    outputs = declare(chain)(leaf, **operands)
    y = outputs if isinstance(outputs, torch.Tensor) else outputs.y
    first = torch.autograd.grad(y, leaf, upstream["y"], retain_graph=True)[0]
    assert same_bits(torch.autograd.grad(y, leaf, upstream["y"])[0], first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, leaf, upstream["y"])


class TestSecondDerivatives:
    def gradient(self, flagship):
        chain, x, operands, upstream = flagship
        leaf = x.clone().requires_grad_()
        outputs = declare(chain)(leaf, **operands)
        y = outputs if isinstance(outputs, torch.Tensor) else outputs.y
        dy = upstream["y"].requires_grad_()
        return leaf, dy, torch.autograd.grad(y, leaf, dy, create_graph=True)[0]

    @pytest.mark.thorough
    def test_create_graph_alone_is_fine(self, flagship):
        _, dy, gradient = self.gradient(flagship)
        assert gradient.requires_grad
        chain, x, operands, _ = flagship
        _, wanted = gradients_of(declare(chain), x, {**operands, "p": 0.0}, {"y": dy.detach()})
        assert gradient.shape == wanted["x"].shape
        assert gradient.isfinite().all()

    def test_taking_one_is_refused(self, flagship):
        leaf, dy, gradient = self.gradient(flagship)
        for of in (leaf, dy):
            with pytest.raises(fo.UnsupportedError, match=r"op\.unfused"):
                torch.autograd.grad(gradient.sum(), of, retain_graph=True)

    def test_a_penalty_on_the_gradient_is_refused(self, flagship):
        _, _, gradient = self.gradient(flagship)
        with pytest.raises(fo.UnsupportedError, match=r"op\.unfused"):
            gradient.square().sum().backward()


def test_an_input_that_changed_before_the_backward_pass_is_noticed(device):
    x, operands = add_norm_case(torch.float32, device)
    for name in ("gamma", "stream"):
        given = {**operands, "gamma": operands["gamma"].clone()}
        result = declare(ADD_NORM)(x.clone().requires_grad_(), **given)
        with torch.no_grad():
            (given["gamma"] if name == "gamma" else result.stream).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.y.sum().backward()


def test_an_input_that_is_not_read_again_may_change(device):
    x, operands = add_norm_case(torch.float32, device)
    upstream = upstream_of(ADD_NORM, x, operands)
    _, wanted = gradients_of(declare(ADD_NORM), x, operands, upstream)
    given = {**operands, "residual": operands["residual"].clone()}
    changed = x.clone()
    leaf = operands["gamma"].clone().requires_grad_()
    generator = torch.Generator(device).manual_seed(1)
    result = declare(ADD_NORM)(changed, **{**given, "gamma": leaf}, generator=generator)
    changed.zero_()
    given["residual"].zero_()
    (gradient,) = torch.autograd.grad(result.y, leaf, upstream["y"])
    assert same_bits(gradient, wanted["gamma"])


def test_out_does_not_go_with_gradients(device):
    x = randn(3, 8, device=device).requires_grad_()
    with pytest.raises(fo.UnsupportedError, match="out="):
        fo.Softmax()(x, out=torch.empty(3, 8, device=device))


def test_statistics_have_no_gradient(device):
    op = fo.LayerNorm(stats=True)
    y, mean, rstd = op(randn(3, 8, device=device).requires_grad_())
    assert y.requires_grad
    assert not mean.requires_grad
    assert not rstd.requires_grad
    for result in (op, op.unfused):
        leaf = randn(3, 8, device=device).requires_grad_()
        (gradient,) = torch.autograd.grad(result(leaf).y.sum(), leaf)
        assert gradient.shape == leaf.shape


def test_gradients_accumulate_in_parameters(device):
    chain = LAYER_NORM
    x = randn(5, 40, device=device)
    operands = {
        name: torch.nn.Parameter(value)
        for name, value in parameters(chain, 40, device=device).items()
    }
    for _ in range(2):
        declare(chain)(x, **operands).sum().backward()
    once = torch.autograd.grad(declare(chain)(x, **operands).sum(), list(operands.values()))
    for parameter, gradient in zip(operands.values(), once, strict=True):
        assert same_bits(parameter.grad, gradient * 2)
    assert x.grad is None


@pytest.mark.thorough
def test_a_training_flag_that_is_off(flagship):
    chain, x, operands, upstream = flagship
    op = declare(chain)
    _, still = gradients_of(op, x, operands, upstream, training=False)
    _, zero = gradients_of(op, x, {**operands, "p": 0.0}, upstream)
    equal(still, zero)


def test_everything_dropped(flagship):
    chain, x, operands, upstream = flagship
    _, got = gradients_of(declare(chain), x, {**operands, "p": 1.0}, {"y": upstream["y"]})
    assert not got["x"].any()


@pytest.mark.gpu
def test_the_stream_of_the_forward_pass_is_used():
    """The backward pass runs where the forward pass ran, with no synchronisation in between."""
    x, operands = add_norm_case(torch.float32, "cuda", 4096, 1024)
    upstream = upstream_of(ADD_NORM, x, operands)
    _, wanted = gradients_of(declare(ADD_NORM), x, operands, upstream)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late = {name: dy.clone() for name, dy in upstream.items()}
        _, got = gradients_of(declare(ADD_NORM), x, operands, late)
    side.synchronize()
    equal(got, wanted)


def test_a_vectorized_backward_pass_is_refused(device):
    x = randn(3, 8, device=device).requires_grad_()
    y = fo.Softmax()(x)
    with pytest.raises(fo.UnsupportedError, match="is_grads_batched"):
        torch.autograd.grad(y, x, randn(5, 3, 8, device=device), is_grads_batched=True)


@pytest.mark.thorough
@pytest.mark.parametrize("grad", [False, True], ids=["forward", "backward"])
def test_between_compiled_code(grad, device):
    """What plans an op is not compiled for the shapes of one call.

    The declaration is this test's own: it must have no plans yet.
    """
    op = fo.LayerNorm(eps=2e-5 if grad else 3e-5)
    compiled = torch.compile(lambda x: op(x) + 1, backend="eager")
    for shape in ((4, 8), (2, 3, 8), (5, 2, 3, 8), (7, 8)):
        x = randn(*shape, device=device).requires_grad_(grad)
        y, want = compiled(x), op.unfused(x) + 1
        torch.testing.assert_close(y, want)
        if grad:
            dy = randn(*shape, device=device, seed=1)
            torch.testing.assert_close(
                torch.autograd.grad(y, x, dy), torch.autograd.grad(want, x, dy)
            )


@pytest.mark.thorough
@pytest.mark.parametrize("number", [np.float32(2), np.int64(2), 10**20, Fraction(1, 2)], ids=repr)
def test_numbers_of_other_kinds(number, device):
    op = fo.LayerNorm(load=[fo.Scale("s")], store=[fo.Dropout("p")])
    x = randn(4, 8, device=device)
    results = [
        gradients_of(op, x, {"s": s, "p": p}, {"y": randn(4, 8, device=device, seed=1)})[1]["x"]
        for s, p in ((number, Fraction(1, 2)), (float(number), 0.5))
    ]
    assert same_bits(*results)


def test_a_list_of_dimensions_may_change_later(device):
    op, dim = fo.LayerNorm(), [1]
    x = randn(4, 4, device=device).requires_grad_()
    results = [op(x, dim=dim), op(x, dim=np.int64(1)), op(x, dim=-1), op(x, normalized_shape=4)]
    dim[0] = 0
    dy = randn(4, 4, device=device, seed=1)
    want, *others = (torch.autograd.grad(y, x, dy)[0] for y in results)
    assert all(same_bits(got, want) for got in others)


def test_a_checkpoint_hands_out_what_it_saved_once(device):
    x = randn(4, 8, device=device).requires_grad_()
    dy = randn(4, 8, device=device, seed=1)
    results = [
        torch.autograd.grad(y, x, dy, create_graph=True)[0]
        for y in (checkpoint(fo.LayerNorm(), x, use_reentrant=False), fo.LayerNorm()(x))
    ]
    assert same_bits(*results)


def test_statistics_that_a_hook_brought_back_from_elsewhere(device):
    x, dy = (randn(8, 6, device=device, seed=i) for i in range(2))

    def turned(tensor):
        return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor

    def moved(tensor):
        room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=device)
        return room[1:].view(tensor.shape).copy_(tensor)

    results = []
    for bring_back in (lambda tensor: tensor, turned, moved):
        leaf = x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, bring_back):
            y = fo.Softmax()(leaf)
        results.append(torch.autograd.grad(y, leaf, dy)[0])
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


def test_incoming_gradients_that_lie_unlike_everything_else(device):
    """More strides than a kernel has row dimensions for."""
    x = randn(3, 2, 3, 2, 3, 2, 4, device=device).requires_grad_()
    turned = randn(2, 3, 2, 3, 2, 3, 4, device=device).permute(5, 4, 3, 2, 1, 0, 6)
    y = fo.LayerNorm()(x)
    got = torch.autograd.grad(y, x, turned, retain_graph=True)[0]
    assert same_bits(got, torch.autograd.grad(y, x, turned.contiguous(), retain_graph=True)[0])
    shared = randn(1, 2, 1, 2, 1, 2, 4, device=device).expand_as(x)
    got = torch.autograd.grad(y, x, shared, retain_graph=True)[0]
    assert same_bits(got, torch.autograd.grad(y, x, shared.contiguous())[0])


@pytest.mark.parametrize("which", ["x", "a row less", "statistics"])
def test_a_saved_tensor_that_came_back_in_another_shape_is_refused(which, device):
    """A kernel that trusted it would read beyond what there is."""
    op = fo.LayerNorm(store=[fo.Affine("gamma")])
    x, gamma = randn(4, 64, device=device).requires_grad_(), randn(64, device=device)

    def unpack(saved):
        if which == "x" and saved.shape == x.shape:
            return saved.new_zeros(1000, 64)
        if which == "a row less" and saved.shape == x.shape:
            return saved[:3].clone()
        if which == "statistics" and saved.shape[0] == 4 and saved.shape != x.shape:
            return saved[:1].clone()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
        y = op(x, gamma=gamma)
    with pytest.raises(ValueError, match="hook on saved tensors"):
        y.backward(randn(4, 64, device=device, seed=1))


@pytest.mark.thorough
def test_what_one_op_knows_of_a_layout_says_nothing_of_another(device):
    """Dimensions of a row merge beside a table that is no part of it, but not beside a scale."""
    looked_up = fo.LayerNorm(load=[fo.Gather("t", "i", dim=None)])
    scaled = fo.LayerNorm(load=[fo.Scale("s"), fo.Bias("b")])
    x = randn(2, 2, 3, device=device).requires_grad_()
    three, two = randn(3, device=device, seed=1), randn(2, 1, 1, device=device, seed=2)
    looked_up(x, t=three, i=torch.zeros_like(two, dtype=torch.int64), dim=(1, 2))
    dy = randn(2, 2, 3, device=device, seed=3)
    found = []
    for call in (scaled, scaled.unfused):
        y = call(x, s=three, b=two, dim=(1, 2))
        found.append((y, *torch.autograd.grad(y, x, dy)))
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("kind", [tuple, torch.Size, list])
def test_the_dimensions_of_a_row_in_any_sequence(kind, device):
    x = randn(4, 3, 8, device=device).requires_grad_()
    op = fo.LayerNorm()
    for _ in range(2):
        y = op(x, normalized_shape=kind((3, 8)))
        torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (3, 8)))
