# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""LinearCrossEntropy: which gradients its passes make, in which memory, and in float64."""

import itertools
import math
import re

import pytest
import torch
from cases import raises, randn, thorough, thorough_points
from functorch.compile import aot_function, nop
from torch.nn import functional
from torch.profiler import ProfilerActivity
from torch.utils.checkpoint import checkpoint

import fusedops as fo
from fusedops.product import linear_loss_logits as logits
from fusedops.product import torch_op_linear_cross_entropy as passes

LOAD = [fo.Bias("b"), fo.Softcap("cap")]
#: Rows of x by how many classes the forward sweep makes w's gradient for.
PART, TWO, ONE = (5, 31), (9, 11), (20, 31)
WAYS = {"a part": PART, "two sweeps": TWO, "one sweep": ONE}
CLASSES = 300


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Several chunks of rows and blocks of classes where there are few."""
    monkeypatch.setattr(logits, "_FEWEST_ROWS", 64)
    monkeypatch.setattr(logits, "_ENOUGH_ROWS", 512)
    monkeypatch.setattr(logits, "_FEWEST_CLASSES", 64)
    monkeypatch.setattr(logits, "_MOST_CLASSES", 128)
    for size in (2, 4):
        assert 0 < logits.classes_ahead(5 * 31, CLASSES, size) < CLASSES
        assert logits.classes_ahead(9 * 11, CLASSES, size) == 0
        assert logits.classes_ahead(20 * 31, CLASSES, size) == CLASSES


def case(rows, dtype=torch.float32, device="cpu", features=48, classes=CLASSES):
    x = randn(*rows, features, dtype=dtype, device=device).requires_grad_()
    w = (randn(classes, features, dtype=dtype, device=device, seed=1) * 0.3).requires_grad_()
    b = randn(classes, dtype=dtype, device=device, seed=2).requires_grad_()
    generator = torch.Generator().manual_seed(4)
    target = torch.randint(0, classes, rows, generator=generator)
    target.view(-1)[::5] = -100
    return x, w, b, target.to(device)


def truth(z, target, reduction, label_smoothing, z_loss):
    """The loss of logits in float64."""
    lse = z.logsumexp(-1)
    at = z.gather(-1, target.clamp(min=0)[..., None])[..., 0]
    losses = lse - (1 - label_smoothing) * at - label_smoothing * z.mean(-1)
    losses = (losses + z_loss * lse.square()).masked_fill(target == -100, 0.0)
    if reduction == "none":
        return losses
    return losses.sum() / ((target != -100).sum() if reduction == "mean" else 1)


def verify(found, exact, dtype, size, name):
    """Within the roundings of the logits, of their gradient, and of the result, twice."""
    unit = torch.finfo(dtype).eps / 2
    single = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    assert found.dtype is dtype
    error = float((found.double() - exact).norm() / exact.norm())
    assert error <= 4 * unit * (1 + 2 * size) + 64 * single, (name, error)


#: Bytes that hold the sums of w's gradient in float32, and those that hold all logits.
SUMS, LOGITS = CLASSES * 48 * 4, 9 * 11 * CLASSES * 8


@pytest.mark.parametrize(
    ("rows", "memory"),
    [(PART, None), (TWO, None), *thorough_points((ONE, None)), (TWO, SUMS), (TWO, LOGITS)],
    ids=[*WAYS, "sums", "logits"],
)
@pytest.mark.parametrize("reduction", ["mean", *thorough("sum"), "none"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, *thorough(torch.float16, torch.float64)]
)
def test_against_float64(rows, memory, reduction, dtype, device):
    x, w, b, target = case(rows, dtype, device)
    if reduction == "none":
        b.requires_grad_(False)
    options = {"label_smoothing": 0.1, "z_loss": 1e-3}
    op = fo.LinearCrossEntropy(load=LOAD, reduction=reduction, **options, memory=memory)
    loss = op(x, w, target=target, b=b, cap=20.0)
    leaves = [one for one in (x, w, b) if one.requires_grad]
    doubles = [one.detach().double().requires_grad_(one.requires_grad) for one in (x, w, b)]
    z = functional.linear(doubles[0], doubles[1]) + doubles[2]
    size = float(z.detach().abs().max())
    wanted = truth(20 * torch.tanh(z / 20), target, reduction, **options)
    unit = torch.finfo(dtype).eps + 64 * torch.finfo(loss.dtype).eps
    torch.testing.assert_close(loss.double(), wanted, rtol=2 * unit, atol=2 * unit * size)
    upstream = randn(*loss.shape, device=device, seed=8).to(loss.dtype)
    kept = memory == LOGITS  # whose memory the gradient takes
    found = torch.autograd.grad(loss, leaves, upstream, retain_graph=not kept)
    again = found if kept else torch.autograd.grad(loss, leaves, upstream)
    exact = torch.autograd.grad(
        wanted, [one for one in doubles if one.requires_grad], upstream.double()
    )
    for name, one, same, other in zip("xwb", found, again, exact, strict=False):
        assert torch.equal(one, same)
        verify(one, other, dtype, size, name)
    assert not found[0][target == -100].any()


@pytest.mark.parametrize("rows", WAYS.values(), ids=[*WAYS])
def test_operands_are_cut_with_the_rows(rows, device):
    """One number a row, one for all, a mask of all logits, and one that has to go by blocks."""
    x, w, _, target = case(rows, device=device)
    s = (randn(*rows, 1, device=device, seed=5).abs() + 0.5).requires_grad_()
    a = torch.tensor(0.7, device=device, requires_grad=True)
    m = randn(*rows, CLASSES, device=device, seed=6) < -1
    m.scatter_(-1, target.clamp(min=0)[..., None], False)
    c = randn(rows[1], CLASSES, device=device, seed=7).requires_grad_()
    load = [fo.Scale("s"), fo.Scale("a"), fo.Mask("m")]
    given = {"s": s, "a": a, "m": m}
    for more in ({}, {"c": c}):
        op = fo.LinearCrossEntropy(load=[*load, *[fo.Bias("c")][: len(more)]])
        leaves = [x, w, s, a, *more.values()]
        made = [call(x, w, target=target, **given, **more) for call in (op, op.unfused)]
        torch.testing.assert_close(*made)
        found, wanted = (torch.autograd.grad(3 * one, leaves) for one in made)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "lse", "memory"),
    [
        (PART, False, None),
        (TWO, False, None),
        (ONE, False, None),
        (TWO, True, None),
        (TWO, False, SUMS),
        (TWO, False, LOGITS),
    ],
    ids=[*WAYS, "late", "sums", "logits"],
)
def test_a_checkpoint_and_a_compiled_call_have_the_same_bits(rows, lse, memory, device):
    torch._dynamo.reset()
    x, w, b, target = case(rows, device=device)
    op = fo.LinearCrossEntropy(load=LOAD, lse=lse, memory=memory)

    def step(x, w, b):
        made = op(x, w, target=target, b=b, cap=9.0)
        return made.loss - 3 * made.lse.mean() if lse else 2 * made

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    calls = (compiled, lambda *given: checkpoint(step, *given, use_reentrant=False))
    wanted = step(x, w, b)
    gradients = torch.autograd.grad(wanted, (x, w, b))
    for call in calls:
        found = call(x, w, b)
        assert torch.equal(found, wanted)
        for one, other in zip(torch.autograd.grad(found, (x, w, b)), gradients, strict=True):
            assert torch.equal(one, other)


def test_a_traced_backward_pass_runs_more_than_once():
    """It keeps what the forward pass has made, though the tracing was the last use of that."""
    x, w, _, target = case(PART)
    op = fo.LinearCrossEntropy()

    def step(x, w, target):
        return 2 * op(x, w, target=target)

    wanted = torch.autograd.grad(step(x, w, target), (x, w))
    loss = aot_function(step, fw_compiler=nop, bw_compiler=nop)(x, w, target)
    for again in (True, False):
        found = torch.autograd.grad(loss, (x, w), retain_graph=again)
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize(
    ("rows", "lse"),
    [(PART, False), (TWO, False), (ONE, False), (TWO, True)],
    ids=[*WAYS, "late"],
)
@pytest.mark.parametrize("name", ["x", "w"])
def test_a_second_derivative_is_refused(rows, lse, name):
    x, w, _, target = case(rows)
    found = fo.LinearCrossEntropy(lse=lse)(x, w, target=target)
    loss = found.loss if lse else found
    (gradient,) = torch.autograd.grad(loss, {"x": x, "w": w}[name], create_graph=True)
    with raises(fo.UnsupportedError, "LinearCrossEntropy", "first derivative only"):
        gradient.sum().backward()


def test_a_frozen_head_is_multiplied_twice(monkeypatch):
    """The logits, and the gradient of x: nothing is multiplied in the backward pass."""
    x, w, _, target = case(TWO)
    w.requires_grad_(False)
    count, product = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda *a, **k: count.append(a[0].shape) or product(*a, **k))
    loss = fo.LinearCrossEntropy()(x, w, target=target)
    assert len(count) == 2 * 2  # two chunks of rows
    loss.backward()
    assert len(count) == 2 * 2
    with torch.no_grad():
        fo.LinearCrossEntropy()(x, w, target=target)
    assert len(count) == 2 * 2 + 3  # the logits of three blocks of classes


def test_a_scaled_loss_of_halves_does_not_underflow(device):
    """Without the scale an element of the logits' gradient has 14 of float16's least numbers."""
    rows, scale = 4096, 2.0**16
    x, w, _, target = case((rows,), torch.float16, device)
    w = (w * 0.01).detach().requires_grad_()
    target.fill_(0)
    wide = [one.detach().double().requires_grad_() for one in (x, w)]
    found = torch.autograd.grad(fo.LinearCrossEntropy()(x, w, target=target) * scale, w)[0]
    wanted = functional.cross_entropy(functional.linear(*wide), target) * scale
    exact = torch.autograd.grad(wanted, wide[1])[0]
    verify(found[1:], exact[1:], torch.float16, 1.0, "w")  # the target's are large


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        (1024, torch.bfloat16),
        (512, torch.bfloat16),
        (4096, torch.bfloat16),
        (512, torch.float16),
    ],
    ids=[*WAYS, "late"],
)
def test_the_host_does_not_wait(rows, dtype):
    x, w, b, target = case((rows,), dtype, "cuda", 64, 2000)
    op = fo.LinearCrossEntropy(load=LOAD)
    op(x, w, target=target, b=b, cap=9.0).backward()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        (op(x, w, target=target, b=b, cap=9.0) / 3).backward()
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "classes"), [(4096, 65536), (16384, 32000), (16384, 8192)])
def test_memory_beside_inputs_and_gradients(rows, classes, monkeypatch):
    """The logits of a block of classes as large as x, and the room in which cuBLAS works."""
    monkeypatch.undo()
    x, w, _, target = case((rows,), torch.bfloat16, "cuda", 2048, classes)
    op = fo.LinearCrossEntropy()
    op(x, w, target=target).backward()  # what stays
    x.grad = w.grad = None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    op(x, w, target=target).backward()
    more = torch.cuda.max_memory_allocated() - before - x.nbytes - w.nbytes
    assert more <= 1.25 * x.nbytes + 2**20


def peak_of(step):
    """The most bytes that a step on a CPU has at a time, beside what is there before."""
    step()  # builds, and what stays
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = profile.profiler.kineto_results.events()
    moves = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in moves))


@pytest.mark.parametrize("rows", [256, 512, 768, 2048])
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, *thorough(torch.float64)]
)
@pytest.mark.parametrize("reduction", ["mean", *thorough("none")])
@pytest.mark.parametrize("retain", [False, *thorough(True)])
@pytest.mark.parametrize("wanted", ["xw", *thorough("x")])
def test_memory_beside_gradients_is_that_of_x(rows, dtype, reduction, retain, wanted, monkeypatch):
    """However many classes the forward sweep makes w's gradient for; numbers of rows come to it.

    A graph that is retained keeps the gradients that the forward pass made, too. float16 takes
    twice as much: the gradient of x is rounded of a sum in float32, beside which a block was.
    """
    # Products on a CPU copy factors of 16 bits, and results of 32 are none of theirs.
    monkeypatch.setattr(torch, "mm", lambda *_, out: out.zero_())
    monkeypatch.setattr(passes, "_add_product", lambda total, *_, first: total.zero_())
    x, w, _, target = case((rows,), dtype, features=128, classes=1024)
    w.requires_grad_("w" in wanted)
    leaves = [one for one in (x, w) if one.requires_grad]
    op = fo.LinearCrossEntropy(reduction=reduction)
    upstream = torch.ones(()) if reduction != "none" else torch.ones(rows)

    def step():
        loss = op(x, w, target=target)
        torch.autograd.grad(loss, leaves, upstream.to(loss.dtype), retain_graph=retain)

    made = peak_of(step) - sum(one.nbytes for one in leaves)
    late = reduction == "none" or dtype is torch.float16 or "w" not in wanted
    ahead = 0 if late else logits.classes_ahead(rows, 1024, dtype.itemsize)
    again = ahead * 128 * dtype.itemsize if retain else 0
    fewest = 64 * 1024 * dtype.itemsize if "w" not in wanted else 0  # a chunk of the fewest rows
    most = max(x.nbytes * (1 + (dtype is torch.float16)), fewest)
    assert made <= most + again + 64 * rows


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_memory_that_may_be_taken_is_spent_on_fewer_products(dtype, monkeypatch):
    """No more than that, and as much as `explain` says."""
    rows, features, classes = 512, 128, 1024
    x, w, _, target = case((rows,), dtype, features=features, classes=classes)
    counts = []

    def add(total, *_, first):
        counts.append(total.shape)
        total.zero_()

    monkeypatch.setattr(torch, "mm", lambda *_, out: out.zero_())
    monkeypatch.setattr(passes, "_add_product", add)
    sums, whole = classes * features * 4, rows * classes * dtype.itemsize
    found = []
    for memory in (None, 0, sums, (sums + whole) // 2):
        op = fo.LinearCrossEntropy(memory=memory)

        def step(op=op):
            torch.autograd.grad(op(x, w, target=target), [x, w])

        made = peak_of(step) - x.nbytes - w.nbytes
        assert made <= max(memory or 0, x.nbytes) + 64 * rows
        assert abs(made - told(op, x, w, target)) <= 64 * rows
        counts.clear()
        step()
        found.append(counts.count((classes, features)))
    assert found[:2] == [0, 0], "w's gradient is made by blocks of classes"
    assert found[2] > found[3] > 1, "chunks that add to it"


def told(op, x, w, target):
    """The bytes beside factors and gradients that `explain` tells of."""
    (said,) = re.findall("at most ([0-9]+) bytes", str(op.explain(x, w, target=target)))
    return int(said)


@pytest.mark.parametrize("options", [{}, {"lse": True}, {"reduction": "none"}], ids=str)
def test_memory_for_all_logits(options):
    """Any call that makes gradients keeps them then, and its graph goes back once."""
    rows, classes = 512, 1024
    x, w, _, target = case((rows,), features=128, classes=classes)
    op = fo.LinearCrossEntropy(**options, memory=rows * classes * 4)

    def loss():
        found = op(x, w, target=target)
        return (found.loss + found.lse.mean() if "lse" in options else found).sum()

    made = peak_of(lambda: torch.autograd.grad(loss(), [x, w])) - x.nbytes - w.nbytes
    assert rows * classes * 4 == told(op, x, w, target) <= made <= rows * classes * 4 + 64 * rows
    once = loss()
    torch.autograd.grad(once, [x, w], retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(once, [x, w])
    with torch.no_grad():
        assert "blocks of" in op.explain(x, w, target=target).implementation


@pytest.mark.parametrize("memory", [1.5, True, "all", -1])
def test_memory_is_a_number_of_bytes(memory):
    kind = ValueError if memory == -1 else TypeError
    with raises(kind, "LinearCrossEntropy", "memory must be"):
        fo.LinearCrossEntropy(memory=memory)


@pytest.mark.parametrize("wanted", ["xwb", "x", ""])
def test_memory_of_gradients_that_are_made_late(wanted):
    """They, the logits of a block of classes, and numbers of rows; without them a block alone."""
    x, w, b, target = case((256,), features=64, classes=2000)
    for name, one in {"x": x, "w": w, "b": b}.items():
        one.requires_grad_(name in wanted)
    leaves = [one for one in (x, w, b) if one.requires_grad]
    op = fo.LinearCrossEntropy(load=LOAD, entropy=True)

    def step():
        loss, entropy = op(x, w, target=target, b=b, cap=9.0)
        if leaves:
            torch.autograd.grad(loss + entropy.sum(), leaves)

    peak = peak_of(step)
    blocks = math.ceil(2000 / logits.block_columns(64, 2000))
    block = 256 * logits.block_columns(64, 2000) * 4
    numbers = 256 * 4 * (8 * blocks + 32)
    assert block < peak <= block + sum(one.nbytes for one in leaves) + numbers


def in_one_buffer():
    """Hooks that keep what is saved in one tensor, and hand out views of it."""
    memory, taken = torch.empty(1 << 22, dtype=torch.uint8), [0]

    def pack(tensor):
        begin = taken[0]
        taken[0] += -(-tensor.nbytes // 64) * 64
        memory[begin : begin + tensor.nbytes] = tensor.detach().reshape(-1).view(torch.uint8)
        return begin, tensor.nbytes, tensor.dtype, tensor.shape

    def unpack(packed):
        begin, size, dtype, shape = packed
        return memory[begin : begin + size].view(dtype).view(shape)

    return pack, unpack


@pytest.mark.parametrize("rows", [PART, ONE], ids=["a part", "one sweep"])
def test_hooks_on_saved_tensors_own_what_they_hand_out(rows):
    """No memory that is theirs goes back."""
    x, w, _, target = case(rows)
    op = fo.LinearCrossEntropy()
    want = torch.autograd.grad(op(x, w, target=target), [x, w])
    kept = []
    for hooks in (in_one_buffer(), (lambda one: (kept.append(one), one)[1], lambda one: one)):
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            loss = op(x, w, target=target)
        found = torch.autograd.grad(loss, [x, w])
        assert all(map(torch.equal, found, want))
    assert all(one.untyped_storage().nbytes() >= one.nbytes > 0 for one in kept)


def test_a_second_backward_pass_after_an_error(monkeypatch):
    x, w, _, target = case(PART)
    loss = fo.LinearCrossEntropy()(x, w, target=target)

    def ends(*given, **options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(passes, "block_columns", ends)
        with pytest.raises(MemoryError):
            loss.backward()
    with pytest.raises(RuntimeError, match="run the forward pass again"):
        loss.backward()


def test_explain_says_which_way():
    op = fo.LinearCrossEntropy()
    for rows, in_all, again in (
        (PART, "the first 64 classes of w is added up in float32", True),
        (TWO, "5 blocks of 64 classes", True),
        (ONE, "the gradient of w is added up in float32", False),
    ):
        x, w, _, target = case(rows, torch.bfloat16)
        said = str(op.explain(x, w, target=target))
        assert in_all in said, said
        assert ("the product again" in said) == again, said
    for other, dtype, why in (
        (
            fo.LinearCrossEntropy(lse=True),
            torch.bfloat16,
            "a further result has a gradient as well",
        ),
        (op, torch.float16, "float16 is rounded when the loss has its scale"),
    ):
        x, w, _, target = case(TWO, dtype)
        said = str(other.explain(x, w, target=target))
        assert why in said, said
        assert "a product for x and a product for w" in said, said
        assert "x is added up in float32" in said, said
    x.requires_grad_(False)
    w.requires_grad_(False)
    assert "blocks of" in str(op.explain(x, w, target=target))
