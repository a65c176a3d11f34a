# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A plain softmax saves y in place of x, as torch's does, where storing y did not round it."""

import copy

import pytest
import torch
from cases import randn
from torch.utils.checkpoint import checkpoint

import fusedops as fo
from fusedops import testing
from fusedops.generate.target import Target
from fusedops.prebuild.build_all import variants
from fusedops.prebuild.recording import Signature

OPS = {"softmax": fo.Softmax(), "log_softmax": fo.LogSoftmax()}
TORCH = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}

pytestmark = pytest.mark.parametrize("name", OPS)


def saves(op, x, **options):
    """Whether the forward pass saves x, and whether it saves y."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        result = op(x, **options)
    y = result[0] if isinstance(result, tuple) else result
    found = {tensor.data_ptr() for tensor in kept}
    return x.data_ptr() in found, y.data_ptr() in found


def leaf(device, dtype=torch.float32, shape=(5, 70)):
    return torch.randn(shape, dtype=dtype, device=device).requires_grad_()


def gradient(y, x, g):
    return torch.autograd.grad(y, x, g)[0]


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("x_dtype", "y_dtype", "of_y"),
    [
        (torch.float32, torch.float32, True),
        (torch.float64, torch.float64, True),
        (torch.bfloat16, torch.float32, True),
        (torch.float32, torch.float64, True),
        (torch.bfloat16, torch.bfloat16, False),
        (torch.float32, torch.float16, False),
        (torch.float64, torch.float32, False),
    ],
)
def test_y_is_saved_where_it_has_the_compute_type(name, x_dtype, y_dtype, of_y, device):
    x = leaf(device, x_dtype)
    assert saves(OPS[name], x, dtype=y_dtype) == (not of_y, of_y)
    testing.check(OPS[name], x, dtype=y_dtype)


@pytest.mark.parametrize("arguments", [{"load": [fo.Scale("a")]}, {"store": [fo.Scale("a")]}])
def test_x_is_saved_where_functors_stand_around(name, arguments, device):
    assert saves(type(OPS[name])(**arguments), leaf(device), a=2.0) == (True, False)


def test_nan_in_empty_rows_says_nothing_of_masks_so_x_is_saved(name, device):
    op = type(OPS[name])(empty_row="nan")
    x = leaf(device)
    assert saves(op, x) == (True, False)


@pytest.mark.thorough
def test_sink_and_lse_go_with_a_saved_result(name, device):
    op = type(OPS[name])(sink="s", lse=True)
    # The bound is four times the error of a chain, which is small by chance for some draws, so that
    # one exceeded it by a fifth. These are the same numbers in each run.
    x = randn(5, 70, dtype=torch.float32, device=device, seed=1).requires_grad_()
    s = randn(5, 1, dtype=torch.float32, device=device, seed=2).requires_grad_()
    assert saves(op, x, s=s) == (False, True)
    testing.check(op, x, s=s)


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [1, 7, 64, 100, 1030, 70000])
def test_masked_elements_keep_inf_and_nan_that_come_in(name, columns, device):
    x = torch.randn(3, columns, device=device)
    x[0, ::2] = -torch.inf
    x[1] = -torch.inf
    g = torch.randn(3, columns, device=device)
    clean = g.masked_fill(x == -torch.inf, 0)
    foul = g.masked_fill(x == -torch.inf, torch.nan)
    foul[1, 0] = torch.inf
    x.requires_grad_()
    wanted = gradient(OPS[name](x), x, clean)
    found = gradient(OPS[name](x), x, foul)
    assert torch.equal(found, wanted)
    assert not found[x == -torch.inf].any()


def test_y_written_to_in_between_is_noticed(name, device):
    x = leaf(device)
    y = OPS[name](x)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_x_may_be_written_to_in_between(name, device):
    x = leaf(device)
    g = torch.randn_like(x)
    wanted = gradient(OPS[name](x), x, g)
    z = x.clone()
    y = OPS[name](z)
    with torch.no_grad():
        z.zero_()
    assert torch.equal(gradient(y, x, g), wanted)


def test_second_derivatives_are_refused(name, device):
    x = leaf(device)
    (first,) = torch.autograd.grad(OPS[name](x).square().sum(), x, create_graph=True)
    with pytest.raises(fo.UnsupportedError, match="first derivative only"):
        first.sum().backward()


def test_checkpoint_and_graph_twice_give_the_same_bits(name, device):
    x = leaf(device)
    g = torch.randn_like(x)
    y = OPS[name](x)
    (wanted,) = torch.autograd.grad(y, x, g, retain_graph=True)
    assert torch.equal(gradient(y, x, g), wanted)
    again = checkpoint(OPS[name], x, use_reentrant=False)
    assert torch.equal(gradient(again, x, g), wanted)
    copied = copy.deepcopy(OPS[name])
    assert torch.equal(gradient(copied(x), x, g), wanted)


@pytest.mark.thorough
def test_a_traced_program_saves_y_and_one_of_old_that_saved_x_still_runs(name, device):
    op, x = OPS[name], leaf(device)
    g = torch.randn_like(x)
    wanted = gradient(op(x), x, g)
    y, kept = torch.ops.fusedops.forward(
        x.detach(), [], [], [], [], None, op.text, [1], torch.float32, True
    )
    sizes = list(x.shape)
    for tensors, names, described in (
        ([y], ["saved y"], ["x float32 2"]),
        ([x.detach()], ["x"], []),
    ):
        (found,) = torch.ops.fusedops.backward(
            [g],
            ["y"],
            kept,
            tensors,
            names,
            sizes if described else [],
            described,
            [],
            [],
            None,
            op.text,
            [1],
            torch.float32,
            ["x"],
        )
        torch.testing.assert_close(found, wanted)
    traced = []

    def look(module, inputs):
        traced.append(module)
        return module.forward

    from torch._dynamo.backends.common import aot_autograd

    backend = aot_autograd(fw_compiler=look, bw_compiler=look)
    torch._dynamo.reset()
    compiled = torch.compile(op, backend=backend, fullgraph=True)
    assert torch.equal(gradient(compiled(x), x, g), wanted)
    assert "saved y" in str(traced[-1].graph)


@pytest.mark.thorough
def test_a_recorded_backward_call_is_built_from_its_line(name, tmp_path, monkeypatch):
    monkeypatch.setattr("fusedops.prebuild.recording._seen", set())
    monkeypatch.setenv("FUSEDOPS_RECORD", str(tmp_path / "calls"))
    op = type(OPS[name])()
    op(leaf("cpu", shape=(3, 33))).sum().backward()
    lines = (tmp_path / "calls").read_text().splitlines()
    (line,) = [one for one in lines if "wanted" in one]
    one = Signature.parse(line)
    assert "saved y" in one.values
    (variant,) = variants([one], Target.named("cpu"))
    assert variant.loaded
    assert "FromResult<" in str(variant.key)
