# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The kernels of GPUs, run on the CPU: every op, schedule and dtype, and odd operands.

Results are held to the bounds of float64, gradients too, and must not depend on the order in which
threads run. Each block checks what the machine checks: barriers, alignment, shared memory.
"""

import contextlib
import itertools
import platform
import shutil

import pytest
import test_dynamic_quantize
import test_gather
import test_straight_gradient
import torch
from cases import (
    ADD_NORM,
    L2_NORM,
    OPERATORS,
    compare,
    compare_gradients,
    declare,
    exhaustive,
    gradients_of,
    parameters,
    poisoned,
    randn,
    same_bits,
    thorough,
    thorough_points,
    upstream_of,
)
from emulate import ORDERS, emulated, machine
from references import Chain
from test_variants import covering

import fusedops as fo
from fusedops import testing
from fusedops.plan import second_stage
from fusedops.schedule.launch import LaunchConfig

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("g++") is None,
    reason="threads are switched by x86-64 code, and kernels built by g++",
)

CHAINS = {**OPERATORS, "l2_norm": L2_NORM, "map": Chain("map", load=(("affine", "gamma", "beta"),))}

#: An op, columns, rows, a dtype and a forced storage of rows: between them one warp a row and many
#: rows a block, a block a row, chunks in turn, rows in shared memory, and sums of both stages.
QUICK = [
    ("softmax", 33, 67, torch.float16, None),
    ("softmax", 1025, 3, torch.float32, "streaming"),
    ("log_softmax", 4097, 3, torch.bfloat16, None),
    ("layer_norm", 1024, 8, torch.float16, None),
    ("layer_norm", 257, 300, torch.float32, None),
    ("rms_norm", 1023, 5, torch.bfloat16, "shared"),
    ("l2_norm", 1, 3, torch.float32, None),
    ("map", 2500, 6, torch.float16, None),
]
COLUMNS = (1, 33, 257, 1023, 1024, 4097)
STORAGES = (None, "register", "shared", "streaming")
HALF = torch.float16
DTYPES = (HALF, torch.bfloat16, torch.float32)


def _matrix():
    """Each pair of an op, a length, a storage and a dtype occurs; numbers of rows take turns."""
    turns = itertools.cycle((3, 8, 67))
    for op, columns, storage, dtype in covering(2, CHAINS, COLUMNS, STORAGES, DTYPES):
        # A map has nothing to keep.
        yield op, columns, next(turns), dtype, None if op == "map" else storage


def stored_as(storage):
    """A forced storage of rows, or none."""
    return testing.force_schedule(storage) if storage else contextlib.nullcontext()


def verify_call(chain, x, operands, storage=None, arch="sm_90", orders=ORDERS):
    """Hold a call and its gradients to the bounds; its bits to those of other orders.

    What the first order's call returns is compared with what it writes into given outputs.
    """
    op, upstream = declare(chain), upstream_of(chain, x, operands)
    first = None
    for order in orders:
        with emulated(arch, order), stored_as(storage):
            outputs, gradients = gradients_of(op, x, operands, upstream)
            outputs = {name: one.detach() for name, one in outputs.items()}
            if first is None:
                given, guards = [], []
                for one in outputs.values():
                    out, intact = poisoned(one.shape, one.dtype, one.device)
                    given.append(out)
                    guards.append(intact)
                out = given[0] if len(given) == 1 else tuple(given)
                op(x, **operands, out=out, generator=torch.Generator().manual_seed(1))
        found = [*outputs.items(), *((f"d {name}", one) for name, one in gradients.items())]
        if first is None:
            first = dict(found)
            compare(chain, x, operands, outputs)
            compare_gradients(chain, x, operands, upstream, outputs, gradients)
            assert all(intact() for intact in guards), "wrote outside of an output"
            for out, one in zip(given, outputs.values(), strict=True):
                assert same_bits(out, one)
        differ = [name for name, one in found if not same_bits(one, first[name])]
        assert not differ, f"{differ} depend on the order of threads ({order})"


@pytest.mark.thorough
@pytest.mark.parametrize(("op", "columns", "rows", "dtype", "storage"), QUICK)
def test_ops_and_schedules(op, columns, rows, dtype, storage):
    x = randn(rows, columns, dtype=dtype) * 3
    verify_call(CHAINS[op], x, parameters(CHAINS[op], columns, dtype), storage)


def test_sums_of_four_columns_a_thread_keep_their_bits(monkeypatch):
    chain, columns = CHAINS["layer_norm"], 4096
    x, operands = randn(270, columns, dtype=torch.float16), parameters(chain, columns, HALF)
    found = []
    for sums in (second_stage._SUMS, (second_stage._SUMS[-1], (None, None, 0, 0))):
        monkeypatch.setattr(second_stage, "_SUMS", sums)
        op = fo.LayerNorm(store=[fo.Affine("gamma", "beta")], eps=1e-5 + len(found) * 1e-12)
        many = LaunchConfig(persistent=True, persistent_threads_per_sm=1 << 16)
        with emulated("sm_90", "ascending"), testing.force_launch(backward=many):
            found.append(gradients_of(op, x, operands, upstream_of(chain, x, operands))[1])
    assert all(same_bits(found[0][name], found[1][name]) for name in ("gamma", "beta"))


@pytest.mark.parametrize(
    "case",
    [
        ("rms_norm", 2048, 21, torch.float16, "registers"),
        *thorough(
            ("layer_norm", 3000, 19, torch.bfloat16, "shared"),
            ("rms_norm", 8192, 18, torch.bfloat16, "shared"),
        ),
    ],
)
def test_rows_that_slices_take_in_turns(case):
    """Some slices have a row more than others; only sums over rows may have other bits."""
    op, columns, rows, dtype, sums = case
    chain = CHAINS[op]
    x, operands = randn(rows, columns, dtype=dtype) * 3, parameters(chain, columns, dtype)
    upstream, first = upstream_of(chain, x, operands), None
    for interleaved in (False, True):
        launch = LaunchConfig(
            persistent=True,
            persistent_threads_per_sm=512,
            sum_storage=sums,
            prefetch="per_thread",
            prefetch_distance=1,
            interleaved=interleaved,
        )
        with testing.force_launch(backward=launch):
            verify_call(chain, x, operands)
            with emulated("sm_90", "ascending"):
                _, gradients = gradients_of(declare(chain), x, operands, upstream)
        first = gradients["x"] if first is None else first
        assert same_bits(gradients["x"], first)


#: Whether rows are taken in turns, the rows of a ring, whether dx goes through shared memory, and
#: where sums over rows are.
AHEAD = [
    (True, 2, True, "shared"),
    (False, 2, False, "registers"),
    (True, 3, True, "registers"),
    (True, 1, False, "shared"),
    (True, 0, False, "registers"),
]


def in_ring(stages, interleaved=True, **fields):
    """A launch whose blocks stay, with so many rows ahead in shared memory."""
    return LaunchConfig(
        persistent=True,
        persistent_threads_per_sm=128,
        interleaved=interleaved,
        ring_stages=stages,
        **fields,
    )


@pytest.mark.parametrize(
    "case",
    [
        ("layer_norm", 2048, 300, torch.float16, 1),
        ("layer_norm", 1501, 270, torch.float16, 2),
        *thorough(
            ("layer_norm", 3000, 300, torch.float16, 5),
            ("rms_norm", 1501, 270, torch.bfloat16, 5),
            ("layer_norm", 1502, 270, torch.bfloat16, 5),
        ),
        *exhaustive(
            ("rms_norm", 4096, 300, torch.float16, 5),
            ("layer_norm", 4096, 280, torch.bfloat16, 5),
            ("rms_norm", 8192, 150, torch.bfloat16, 5),
            ("layer_norm", 2048, 280, torch.float32, 5),
        ),
    ],
)
def test_rows_that_are_brought_ahead(case):
    """Some blocks have a row more than others, and more rows than places in the ring.

    Of 1501 and 1502 columns a row begins anywhere in a word, of x elsewhere than of its gradient.
    """
    op, columns, rows, dtype, count = case
    chain, first = CHAINS[op], None
    x, operands = randn(rows, columns, dtype=dtype) * 3, parameters(CHAINS[op], columns, dtype)
    if columns % 8:
        x = torch.empty(x.numel() + 2, dtype=dtype)[2:].view_as(x).copy_(x)
    upstream = upstream_of(chain, x, operands)
    for interleaved, stages, leaves, sums in AHEAD[:count]:
        launch = in_ring(stages, interleaved=interleaved, smem_staged=leaves, sum_storage=sums)
        with testing.force_launch(backward=launch):
            verify_call(chain, x, operands, orders=("random",))
            with emulated("sm_90", "ascending"):
                _, gradients = gradients_of(declare(chain), x, operands, upstream)
        first = gradients["x"] if first is None else first
        assert same_bits(gradients["x"], first), "only sums over rows may have other bits"


def test_a_gradient_whose_columns_lie_apart_leaves_one_by_one():
    """Rows of x are dense and are brought ahead, and those of its gradient, made anew, are none."""
    op, columns, rows = fo.RMSNorm(store=[fo.Affine("g")]), 1501, 270
    x, dy = (randn(rows, columns, dtype=HALF, seed=seed).t() for seed in (1, 2))
    x, g = x.detach().requires_grad_(), randn(columns, 1, dtype=HALF, seed=3)
    found = []
    for stages, leaves in ((2, True), (0, False)):
        launch = in_ring(stages, smem_staged=leaves)
        with testing.force_launch(backward=launch), emulated("sm_90", "ascending"):
            found += torch.autograd.grad(op(x, g=g, dim=0), x, dy)
    assert found[0].stride() != x.stride()
    assert same_bits(*found)


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [2048, *exhaustive(4096)])
def test_the_gradient_of_a_stream_is_brought_ahead(columns):
    """It is read after the reduction of its row, so its place in the ring is free a row later."""
    chain = Chain(
        "rms_norm",
        load=(("residual", "r", 1.0, "z"),),
        store=(("affine", "gamma", None),),
        eps=1e-6,
    )
    dtype = torch.bfloat16
    x, r = (randn(300, columns, dtype=dtype, seed=seed) for seed in (1, 2))
    operands = {"r": r, "gamma": randn(columns, dtype=dtype, seed=3)}
    upstream, first = upstream_of(chain, x, operands), None
    for stages in (2, 3, 0):
        launch = in_ring(stages)
        with testing.force_launch(backward=launch):
            verify_call(chain, x, operands, orders=("random",))
            with emulated("sm_90", "ascending"):
                _, gradients = gradients_of(declare(chain), x, operands, upstream)
        first = gradients["x"] if first is None else first
        assert same_bits(gradients["x"], first)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "op",
    # The others differ from this one in nothing that a length or a storage decides.
    [op if op == "layer_norm" else pytest.param(op, marks=pytest.mark.exhaustive) for op in CHAINS],
)
def test_every_length_and_storage(op):
    for one, columns, rows, dtype, storage in _matrix():
        if one == op:
            x = randn(rows, columns, dtype=dtype) * 3
            operands = parameters(CHAINS[op], columns, dtype)
            verify_call(CHAINS[op], x, operands, storage, orders=ORDERS[1:])


FUNCTORS = {
    "masks": Chain(
        "softmax",
        load=(("bias", "b"), ("mask", "m"), ("causal", "bottom-right", 0), ("lengths", "n")),
    ),
    "dropout": ADD_NORM,
    "segments": Chain("log_softmax", load=(("scale", "s"), ("segments", "q", "k"))),
    "row operand": Chain("rms_norm", load=(("scale", "s"), ("residual", "r", 0.5, "z")), eps=1e-6),
}


def operands_of(chain, rows, columns, dtype):
    """Operands of every name that `FUNCTORS` use, for x of (rows, columns)."""
    known = {
        "b": randn(columns, dtype=dtype, seed=3),
        "bias": randn(columns, dtype=dtype, seed=3),
        "m": randn(rows, columns, seed=4) < -0.7,
        "n": torch.arange(rows)[:, None] * 17 % (columns + 2),
        "s": randn(rows, 1, dtype=dtype, seed=5),
        "r": randn(rows, columns, dtype=dtype, seed=6),
        "residual": randn(rows, columns, dtype=dtype, seed=6),
        "q": torch.arange(rows)[:, None] % 3,
        "k": torch.arange(columns) * 5 // columns,
        "p": 0.3,
        "gamma": randn(columns, dtype=dtype, seed=7),
        "beta": randn(columns, dtype=dtype, seed=8),
    }
    return {name: known[name] for name in declare(chain).slots}


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("columns", [33, *thorough(1, 257, 1023, 1024, 4097)])
@pytest.mark.parametrize("name", FUNCTORS)
def test_functors(name, columns):
    chain = FUNCTORS[name]
    dtype = DTYPES[columns % 3]
    x = randn(9, columns, dtype=dtype)
    verify_call(chain, x, operands_of(chain, 9, columns, dtype), orders=ORDERS[1:])


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("columns", [1, 33, 1024, *thorough(257, 1023, 4097)])
def test_dropout_draws_what_the_cpu_draws(columns):
    """The same numbers to the bit, before the reduction and after it, and in the gradient."""
    chain = Chain("map", load=(("dropout", "p"), ("dropout", "q")))
    x, dy = (randn(11, columns, seed=seed).abs() + 1 for seed in (0, 1))
    results = []
    for place in (contextlib.nullcontext(), emulated()):
        with place:
            results.append(gradients_of(declare(chain), x, {"p": 0.3, "q": 0.5}, {"y": dy}))
    (of_cpu, d_cpu), (of_gpu, d_gpu) = results
    assert same_bits(of_gpu["y"].detach(), of_cpu["y"].detach())
    assert same_bits(d_gpu["x"], d_cpu["x"])
    assert columns == 1 or 0 < (of_gpu["y"] == 0).sum() < x.numel()


@pytest.mark.thorough
def test_a_gather_and_positions_have_the_values_of_the_cpu():
    """Biases from a table and from distances: their gradients are equal but for roundings."""
    far = fo.functor(lambda x, w: x + w * (fo.position(-2) - fo.position(-1)).abs().to(x.dtype))
    op = fo.Map(load=[fo.Gather("table", "index"), far("w")])
    x = randn(2, 3, 5, 40)
    table, index = randn(6, 3, seed=1), torch.arange(200).view(5, 40) * 7 % 6
    dy, w = randn(*x.shape, seed=2), randn(1, seed=3)

    def call():
        leaves = [one.detach().requires_grad_() for one in (x, table, w)]
        y = op(leaves[0], table=leaves[1], index=index, w=leaves[2])
        return y.detach(), *torch.autograd.grad(y, leaves, dy)

    want = call()
    with emulated():
        got = call()
    torch.testing.assert_close(got[0], want[0], rtol=2**-22, atol=2**-20)  # may be contracted
    assert same_bits(got[1], want[1])
    for mine, theirs in zip(got[2:], want[2:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4)


def test_a_table_beside_a_gradient_of_other_rows():
    with emulated():
        test_gather.test_beside_gradients_of_other_rows((4, 1, 300, 1), 3, "cpu")


@pytest.mark.parametrize("images", [(4, 8), *thorough((5, 7), (1, 1), (33, 31))])
def test_group_norm(images):
    op = fo.GroupNorm(3, store=[fo.Affine("gamma", "beta")])
    x = randn(3, 12, *images, dtype=torch.float64)
    gamma, beta = randn(12, dtype=torch.float64, seed=1), randn(12, dtype=torch.float64, seed=2)
    dy = randn(*x.shape, dtype=torch.float64, seed=3)

    def of(call):
        leaves = [one.detach().requires_grad_() for one in (x, gamma, beta)]
        y = call(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, dy)]

    wanted = of(lambda x, g, b: torch.nn.functional.group_norm(x, 3, g, b))
    with emulated():
        found = of(lambda x, g, b: op(x, gamma=g, beta=b))
    for one, other in zip(found, wanted, strict=True):
        size = other.abs().max().clamp(min=1.0)
        assert (one - other).abs().max() <= 64 * 2.0**-53 * 11 * size


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["misaligned", "strided rows", "strided columns"])
def test_layouts(kind):
    """What is read and written one element at a time, staged rows included, as what is not."""
    columns, dtype = 1000, torch.float16
    if kind == "misaligned":
        x = randn(7 * columns + 1, dtype=dtype)[1:].view(7, columns)
    elif kind == "strided rows":
        x = randn(7, columns + 3, dtype=dtype)[:, 1 : columns + 1]
    else:
        x = randn(columns, 7, dtype=dtype).t()
    chain = OPERATORS["layer_norm"]
    verify_call(chain, x, parameters(chain, columns, dtype))


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
@pytest.mark.parametrize("op", ["softmax", "layer_norm", "rms_norm", "map"])
def test_other_architectures(op, arch):
    for columns, dtype in ((33, torch.float32), (1024, torch.bfloat16), (4097, torch.float16)):
        operands = parameters(CHAINS[op], columns, dtype)
        x = randn(9, columns, dtype=dtype) * 3
        verify_call(CHAINS[op], x, operands, arch=arch, orders=("random",))


@pytest.mark.parametrize("columns", [33, *thorough(1, 20001), *exhaustive(1024, 8200)])
def test_the_gradient_of_a_loss_of_bare_logits(columns):
    for options in ({}, test_straight_gradient.MORE):
        for order in ORDERS:
            with emulated(order=order):
                test_straight_gradient.verify(columns, torch.bfloat16, options)


def test_the_kernels_are_those_of_a_gpu():
    """An emulated call leaves nothing behind, and was none of the CPU's."""
    x = randn(3, 1024)
    with emulated():
        fo.Softmax()(x)
        assert testing.last_schedule() == "register"
    fo.Softmax()(x)
    assert testing.last_schedule() == "host"
    assert not machine().machine_take_failure()


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("per", ["row", 128, 16])
@pytest.mark.parametrize(
    ("columns", "storage"), [(40, None), (1030, None), (5000, "shared"), (9001, "streaming")]
)
def test_scales_of_blocks(columns, storage, per):
    """What the chain makes, its y of 8 bits and its scales agree to the bit in every order."""
    op = fo.RMSNorm(
        load=[fo.Residual("r", save="s")],
        store=[fo.Tap("v", torch.float32), fo.DynamicQuantize(torch.float8_e4m3fn, per=per)],
    )
    x, r = randn(35, columns, dtype=torch.bfloat16), randn(35, columns, seed=1)
    x[3] = 0
    r[3] = 0
    first = None
    for order in ORDERS:
        with emulated("sm_90", order), stored_as(storage):
            found = op(x, r=r)
        first = first or found
        assert all(map(same_bits, found, first))
    test_dynamic_quantize.agree(first, first.v, torch.float8_e4m3fn, per)


@pytest.mark.thorough
def test_scales_where_a_lane_has_five_packs():
    """Lanes share five blocks out unevenly: each is found by those that have it."""
    op = fo.Softmax(store=[fo.Tap("v"), fo.DynamicQuantize(torch.float8_e4m3fn, per=128)])
    x = randn(1, 70001, dtype=torch.float32)
    with emulated("sm_90"):
        found = op(x)
    test_dynamic_quantize.agree(found, found.v, torch.float8_e4m3fn, 128)


@pytest.mark.thorough
@pytest.mark.parametrize("offset", [0, 1000])
def test_deviations_of_many_values_a_thread(offset):
    """A mean that exceeds the deviation is corrected, whether or not a thread has 64 values."""
    x = randn(3, 8192, dtype=torch.float32) + offset
    with emulated("sm_90"):
        y = fo.LayerNorm()(x)
    want = torch.nn.functional.layer_norm(x.double(), (8192,))
    assert (y.double() - want).abs().amax() <= 1e-6


@pytest.mark.parametrize(
    ("columns", "per"),
    [(1024, "row"), *thorough_points((1001, 16), (40, "row"), (4096, 128))],
)
def test_means_where_y_has_eight_bits(columns, per):
    """Squares are summed beside values, and deviations in rows of which these say too little."""
    for order in ORDERS:
        with emulated("sm_90", order):
            test_dynamic_quantize.verify_means("cpu", columns, per)
