# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Masks in the LOAD of a norm: the norm of what is left of each row, and zeros elsewhere.

The truth of a row is that of a shorter row, of the elements that the mask leaves.
"""

import pickle

import pytest
import torch
from cases import (
    L2_NORM,
    LAYER_NORM,
    RMS_NORM,
    compare,
    declare,
    forced,
    gradients_of,
    raises,
    randn,
    same_bits,
    thorough,
)
from gradients import Gradient, check_gradient, differentiate
from test_gradient_variants import backward_of, check_compiles
from test_variants import ARCHS, covering, tensor

import fusedops as fo
from fusedops import testing
from fusedops.bind.bind import bind
from fusedops.declare.text import read
from fusedops.generate.target import Target
from fusedops.jit import compile_cuda
from fusedops.plan.forward import describe

AFFINE = (("affine", "g", "c"),)
CHAINS = {
    "layer_norm": LAYER_NORM,
    "rms_norm": RMS_NORM,
    "l2_norm": L2_NORM,
}
LENGTHS = [150, 1, 0, 77, 149, 64, 8, -3]


def chain_of(kind):
    """The norm of a short row, without masks: what each row is compared with."""
    fields = {**vars(CHAINS[kind]), "load": (("bias", "b"),), "store": AFFINE, "stats": True}
    return type(LAYER_NORM)(**fields)


def masked_op(kind, *masks):
    plain = declare(chain_of(kind))
    return type(plain)([*plain.load, *masks], plain.store, stats=True)


def inputs(rows, columns, device, dtype=torch.float32):
    x = randn(rows, columns, dtype=dtype, device=device) + 0.5
    return x, {
        "b": randn(rows, columns, dtype=dtype, device=device, seed=1),
        "g": randn(columns, dtype=dtype, device=device, seed=2),
        "c": randn(columns, dtype=dtype, device=device, seed=3),
    }


def verify_rows(kind, x, operands, kept, masks, arguments):
    """Hold outputs and gradients of each row to those of the row of what the masks leave."""
    op, chain = masked_op(kind, *masks), chain_of(kind)
    upstream = {"y": randn(*x.shape, dtype=x.dtype, device=x.device, seed=9)}
    statistics = list(op.statistics)

    def call(function):
        def with_masks(value, **given):
            return function(value, **given, **arguments)

        return gradients_of(with_masks, x, operands, upstream)

    for outputs, got in (call(op), call(op.unfused)):
        zero = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        names = ("x", *operands)
        truth = {name: Gradient(zero.clone(), zero.clone()) for name in names}
        near = {name: Gradient(zero.float(), zero.float()) for name in names}
        assert outputs["y"][~kept].eq(0).all()
        assert got["x"][~kept].eq(0).all()
        for row, left in enumerate(kept):
            if not left.any():
                assert kind == "l2_norm" or outputs["rstd"][row].isnan()
                continue
            here = {k: v[row][left] if v.dim() == 2 else v[left] for k, v in operands.items()}
            here = {k: v[None] for k, v in here.items()}
            short = {"y": outputs["y"][row][left][None]}
            short |= {name: outputs[name][row : row + 1] for name in statistics}
            of_row = x[row][left][None]
            compare(chain, of_row, here, short)
            g = {"y": upstream["y"][row][left][None]}
            for found, compute in ((truth, torch.float64), (near, torch.float32)):
                for name, gradient in differentiate(chain, of_row, here, g, compute).items():
                    found[name].each[row, left] = gradient.each[0].to(found[name].each.dtype)
                    found[name].scale[row, left] = gradient.scale[0].to(found[name].scale.dtype)
        for name in names:
            check_gradient(got[name], truth[name], near[name], f"d {name}")
    return outputs


@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.float16)], ids=str)
@pytest.mark.parametrize("kind", CHAINS)
def test_lengths(kind, dtype, device):
    x, operands = inputs(len(LENGTHS), 150, device, dtype)
    n = torch.tensor(LENGTHS, device=device)[:, None]
    kept = torch.arange(150, device=device) < n
    verify_rows(kind, x, operands, kept, [fo.Lengths("n")], {"n": n})


@pytest.mark.parametrize("kind", CHAINS)
def test_nothing_leaks(kind, device):
    """From under the mask into the row, from x, an operand or the gradient of y."""
    op = masked_op(kind, fo.Lengths("n"))
    x, operands = inputs(len(LENGTHS), 150, device)
    n = torch.tensor(LENGTHS, device=device)[:, None]
    gone = torch.arange(150, device=device) >= n
    upstream = {"y": randn(*x.shape, device=device, seed=9)}

    def call(function, x, operands, upstream):
        return gradients_of(lambda v, **given: function(v, **given, n=n), x, operands, upstream)

    for function in (op, op.unfused):
        clean, wanted = call(function, x, operands, upstream)
        for poison in (torch.nan, torch.inf, -torch.inf):
            dirty = {"b": operands["b"].masked_fill(gone, poison)}
            bad = {"y": upstream["y"].masked_fill(gone, poison)}
            got, gradients = call(function, x.masked_fill(gone, poison), operands | dirty, bad)
            assert all(same_bits(got[name], clean[name]) for name in clean)
            assert all(same_bits(gradients[name], wanted[name]) for name in wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_left_shows(kind, bad, device):
    """-inf too, although masks mark what they take out by it."""
    op = masked_op(kind, fo.Lengths("n"))
    x, operands = inputs(len(LENGTHS), 150, device)
    n = torch.tensor(LENGTHS, device=device)[:, None]
    kept = torch.arange(150, device=device) < n
    x[0, 3], x[3, 70], x[5, 64] = bad, bad, bad  # The last is beyond the row's length.
    # An RMSNorm in torch has zeros beside +inf.
    for function in (op,) if bad == torch.inf else (op, op.unfused):
        y = function(x, **operands, n=n).y
        assert y[0].isnan().all()
        assert y[3][kept[3]].isnan().all()
        assert y.isfinite()[[1, 2, 4, 5, 6, 7]].all()
        assert y[~kept].eq(0).all()


@pytest.mark.thorough
def test_any_masks(device):
    """Those made from indices, and tensors; what is left need not be neighbours."""
    x, operands = inputs(40, 70, device)
    mask = randn(40, 70, device=device, seed=5) < -0.3
    mask[7] = True
    kept = (torch.ones_like(mask).tril(20) & ~mask).triu(-9)
    masks = [fo.Mask("m"), fo.Causal(offset=20), fo.Window(9, None)]
    verify_rows("layer_norm", x, operands, kept, masks, {"m": mask})


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["layer_norm", *thorough("rms_norm", "l2_norm")])
def test_schedules(kind, scheduled):
    device, schedule = scheduled
    x, operands = inputs(6, 3000, device)
    if kind == "layer_norm":  # A mean far above the deviation.
        x, operands["b"] = x + 300, torch.zeros_like(x)
    n = torch.tensor([3000, 0, 1, 1024, 1500, 2999], device=device)[:, None]
    kept = torch.arange(3000, device=device) < n
    with forced(schedule, also=["register"] * (schedule == "shared")):
        verify_rows(kind, x, operands, kept, [fo.Lengths("n")], {"n": n})


@pytest.mark.gpu
@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("columns", [1024, 4097, 50257, 131072])
def test_rows_of_any_length_on_a_gpu(kind, columns):
    x, operands = inputs(6, columns, "cuda", torch.float16)
    n = torch.tensor([columns, 0, 1, columns // 2, columns // 3, columns - 1], device="cuda")
    kept = torch.arange(columns, device="cuda") < n[:, None]
    verify_rows(kind, x, operands, kept, [fo.Lengths("n")], {"n": n[:, None]})


@pytest.mark.thorough
def test_every_case_of_check(device):
    op = fo.LayerNorm(
        load=[fo.Residual("r", save="stream"), fo.Lengths("n")],
        store=[fo.Affine("g", "c"), fo.Dropout("p")],
    )
    x, operands = inputs(5, 24, device)
    n = torch.tensor([24, 7, 0, 1, 13], device=device)[:, None]
    given = {"r": operands["b"], "g": operands["g"], "c": operands["c"]}
    assert testing.check(op, x, **given, n=n, p=0.3).passed


@pytest.mark.thorough
def test_channels(device):
    """Samples of different lengths, one number for each channel in the STORE."""
    op = fo.InstanceNorm(load=[fo.Lengths("n")], store=[fo.Affine("g", "c")])
    x, g, c = randn(2, 3, 20, device=device), *randn(2, 3, device=device, seed=1)
    n = torch.tensor([20, 11], device=device)
    y = op(x, n=n[:, None, None], g=g, c=c)
    for sample, length in enumerate(n.tolist()):
        short = fo.InstanceNorm(store=[fo.Affine("g", "c")])(
            x[sample : sample + 1, :, :length], g=g, c=c
        )
        # Two orders of additions: log2(20) roundings of y's size, twice.
        torch.testing.assert_close(y[sample : sample + 1, :, :length], short, rtol=1e-6, atol=5e-6)
        assert y[sample, :, length:].eq(0).all()


@pytest.mark.thorough
def test_it_is_traced_exported_and_kept():
    op = masked_op("layer_norm", fo.Lengths("n", optional=True))
    assert pickle.loads(pickle.dumps(op)) == op == read(op.text)
    x, operands = inputs(4, 150, "cpu")
    n = torch.tensor([150, 0, 3, 88])[:, None]
    y = op(x, **operands, n=n).y
    compiled = torch.compile(
        lambda x, n: op(x, **operands, n=n).y.square().sum(), backend="aot_eager", fullgraph=True
    )
    given = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    compiled(given[0], n).backward()
    op(given[1], **operands, n=n).y.square().sum().backward()
    assert same_bits(given[0].grad, given[1].grad)
    assert "Lengths" in str(op.explain(x, **operands, n=n))
    exported = fo.export(op, x, **operands, n=n, arch="cpu")
    assert "MaskedLayerNormGradient" in exported.text
    # Without the mask it is the norm of the whole row.
    plain = declare(chain_of("layer_norm"))
    assert same_bits(op(x, **operands, n=None).y, plain(x, **operands).y)
    assert y[1].eq(0).all()


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("arch", "kind", "columns"), covering(2, ARCHS, CHAINS, [333, 1024, 8192, 65536])
)
def test_both_passes_compile_without_spills(arch, kind, columns):
    op = masked_op(kind, fo.Lengths("n"))
    shape = (64, columns)
    x = tensor(*shape, dtype=torch.float16)
    given = {"b": tensor(*shape, dtype=torch.float16)}
    given |= {name: tensor(columns, dtype=torch.float16) for name in ("g", "c")}
    given["n"] = torch.ones(64, 1, dtype=torch.int64)
    info = describe(bind(op, x, given, {}), Target.named(arch))
    _, log = compile_cuda(info.variant.source, arch, ["--ptxas-options=-v"])
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log, log
    check_compiles(backward_of(op, x, given, arch))


def test_what_is_refused():
    with raises(ValueError, "GroupNorm", "Lengths", "LayerNorm", "InstanceNorm"):
        fo.GroupNorm(2, load=[fo.Lengths("n")])
    with raises(ValueError, "InstanceNorm", "Causal"):
        fo.InstanceNorm(load=[fo.Causal()])
    with raises(ValueError, "LayerNorm", "Tap", "Map"):
        fo.LayerNorm(load=[fo.Lengths("n")], store=[fo.Tap("seen")])
    with raises(ValueError, "LayerNorm", "Alibi", "scores"):
        fo.LayerNorm(load=[fo.Alibi("slopes")])
    with raises(ValueError, "RMSNorm", "Lengths", "store"):
        fo.RMSNorm(store=[fo.Lengths("n")])
