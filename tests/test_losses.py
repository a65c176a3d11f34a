# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy: an operator whose results are numbers of rows, against torch's in float64."""

import itertools
import math
import pickle

import pytest
import torch
from cases import raises, randn, thorough
from torch.nn import functional

import fusedops as fo
from fusedops.testing import check, force_schedule

ROWS = fo.CrossEntropy(reduction="none")
ALL = {"lse": True, "log_prob": True, "entropy": True, "largest": True, "correct": True}
EPS = torch.finfo(torch.float32).eps


def labels_of(rows, columns, *, device="cpu", dtype=torch.int64, ignored=(1,), seed=3):
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, columns, rows, generator=generator)
    if found.numel():
        for at in ignored:
            found.view(-1)[at % found.numel()] = -100
    return found.to(device, dtype)


def poisoned(shape, device):
    """Memory that is NaN where nothing is written."""
    return torch.full(shape, torch.nan, device=device)


def close(found, wanted, sizes, dtype=torch.float32):
    """Within 8 roundings in float32 of the sizes of the terms, and one to the dtype."""
    allowed = 8 * EPS * sizes.double() + 0.51 * torch.finfo(dtype).eps * wanted.abs()
    bad = (found.double() - wanted).abs() > allowed + torch.finfo(dtype).smallest_normal
    assert not bad.any(), (found[bad][:4], wanted[bad][:4])
    assert torch.equal(found.isnan(), wanted.isnan())


def verify(x, labels, *, dim=-1, ignore_index=-100, upstream=None, **options):
    """Loss and gradient of a call beside torch's of the same x in float64."""
    op = fo.CrossEntropy(reduction="none", ignore_index=ignore_index, **options)
    x = x.detach().requires_grad_()
    loss = op(x, target=labels, dim=dim)
    ignored = labels == ignore_index
    leaf = x.detach().double().movedim(dim, -1)
    leaf = leaf.masked_fill(ignored[..., None], 0.0).requires_grad_()
    smoothing = options.get("label_smoothing", 0.0)
    wanted = functional.cross_entropy(
        leaf.flatten(0, -2),
        labels.long().flatten(),
        ignore_index=ignore_index,
        label_smoothing=smoothing,
        reduction="none",
    ).view(labels.shape)
    lse = leaf.logsumexp(-1)
    wanted = wanted + (options.get("z_loss", 0.0) * lse.square()).masked_fill(ignored, 0.0)
    spread = leaf.detach().abs().amax(-1) + math.log(x.shape[dim]) + 1
    sizes = spread + options.get("z_loss", 0.0) * spread.square()
    assert loss.dtype is torch.float32
    assert loss.shape == labels.shape
    close(loss.detach(), wanted.detach(), sizes)
    upstream = randn(*labels.shape, device=x.device, seed=9) if upstream is None else upstream
    (of_x,) = torch.autograd.grad(loss, x, upstream)
    (of_leaf,) = torch.autograd.grad(wanted, leaf, upstream.double())
    of_leaf = of_leaf.masked_fill(ignored[..., None], 0.0)
    assert of_x.dtype is x.dtype
    assert of_x.shape == x.shape
    share = torch.softmax(leaf.detach(), -1)
    size = upstream.abs()[..., None] * (1 + share * (sizes[..., None]))
    close(of_x.movedim(dim, -1), of_leaf, size * (1 + options.get("z_loss", 0.0) * 100), x.dtype)
    assert not of_x.movedim(dim, -1)[ignored].any()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, *thorough(torch.float16)], ids=str
)
@pytest.mark.parametrize("columns", [33, *thorough(1, 2, 128, 1000, 1025, 5003)])
def test_against_torch(columns, dtype, device):
    x = randn(5, columns, dtype=dtype, device=device) * 3
    verify(x, labels_of((5,), columns, device=device))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("columns", [4096, 16384, 32000, 50257, 65537, 128256, 151936, 262144])
def test_long_rows(columns, dtype):
    x = randn(6, columns, dtype=dtype, device="cuda") * 3
    verify(x, labels_of((6,), columns, device="cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", ["register", "shared", "streaming", "cluster"])
def test_schedules_have_the_same_bits(schedule):
    columns = 20000 if schedule == "cluster" else 3001
    x, labels = randn(7, columns, device="cuda"), labels_of((7,), columns, device="cuda")
    op = fo.CrossEntropy(reduction="none", label_smoothing=0.1, lse=True, correct=True)
    wanted = op(x, target=labels)
    with force_schedule(schedule):
        for one, other in zip(op(x, target=labels), wanted, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("smoothing", [0.1, *thorough(0.0, 1.0)])
@pytest.mark.parametrize("z_loss", [1e-2, *thorough(0.0)])
def test_smoothing_and_z_loss(smoothing, z_loss, device):
    x = randn(9, 37, device=device) * 4
    verify(x, labels_of((9,), 37, device=device), label_smoothing=smoothing, z_loss=z_loss)


@pytest.mark.parametrize(
    "dtype", [torch.int32, *thorough(torch.uint8, torch.int8, torch.int16)], ids=str
)
def test_labels_of_every_dtype(dtype, device):
    signed = dtype is not torch.uint8
    labels = labels_of((4,), 20, device=device, dtype=dtype, ignored=(1,) if signed else ())
    verify(randn(4, 20, device=device), labels, ignore_index=-100 if signed else 7)


@pytest.mark.parametrize(
    ("dtype", "ignore_index", "label"),
    [(torch.uint8, -100, 156), (torch.int16, 2**16 + 5, 5), (torch.int8, 256 + 7, 7)],
    ids=str,
)
def test_a_class_is_not_ignored_for_its_last_bits(dtype, ignore_index, label, device):
    """Of a tensor and a number, torch compares in the dtype of the tensor: the number may wrap."""
    x = randn(4, 1000, device=device)
    labels = torch.tensor([3, label, 100, label], device=device)
    op = fo.CrossEntropy(ignore_index=ignore_index)
    assert torch.equal(op(x, target=labels.to(dtype)), op(x, target=labels))
    assert torch.equal(op.unfused(x, target=labels.to(dtype)), op.unfused(x, target=labels))
    if device == "cpu" and label > 100:
        with raises(IndexError, f"target {label} is no class"):
            op(x[:, :101], target=labels.to(dtype))


def test_a_class_is_known_beyond_what_its_dtype_holds(device):
    x = randn(4, 1000, device=device)
    labels = torch.tensor([3, -100, 100, 4], dtype=torch.int8, device=device)  # 1000 is -24 there
    op = fo.CrossEntropy()
    assert torch.equal(op(x, target=labels), op(x, target=labels.long()))


def test_targets_of_a_part_are_counted_in_64_bits():
    target = torch.tensor([3, 100, -100, 127], dtype=torch.int8)[:, None]
    op = fo.CrossEntropy()
    for first, inside in ((0, [True, True, False, True]), (200, [False] * 4)):
        part, held = op.target_of_part(target, first, (4, 200), 1)
        assert held.tolist() == inside
        assert part[2] == -1
    narrow = target.clamp(min=0).to(torch.uint8)
    assert fo.CrossEntropy(ignore_index=0).target_of_part(narrow, 0, (4, 9), 1)[0][2] == -1


@pytest.mark.parametrize("ignore_index", [0, *thorough(5, -1, -(2**63), 2**62)])
def test_any_target_may_be_the_one_that_is_ignored(ignore_index, device):
    labels = labels_of((6,), 9, device=device, ignored=())
    labels[2] = ignore_index
    verify(randn(6, 9, device=device), labels, ignore_index=ignore_index)


@pytest.mark.parametrize(
    "layout", ["images", *thorough("strided", "transposed", "misaligned", "one row")]
)
def test_layouts(layout, device):
    dim, shape = -1, (6,)
    if layout == "strided":
        x = randn(6, 46, device=device)[:, ::2]
    elif layout == "transposed":
        x = randn(23, 6, device=device).t()
    elif layout == "misaligned":
        x = randn(6, 24, device=device)[:, 1:]
    elif layout == "images":
        x, dim, shape = randn(2, 5, 3, 4, device=device), 1, (2, 3, 4)
    else:
        x, shape = randn(1, 23, device=device), (1,)
    labels = labels_of(shape, x.shape[dim], device=device)
    if labels.dim() == 1:
        labels = labels.repeat_interleave(2)[::2]
    verify(x, labels, dim=dim)


def test_one_row_without_a_batch(device):
    x = randn(23, device=device).requires_grad_()
    loss = ROWS(x, target=torch.tensor(4, device=device))
    wanted = functional.cross_entropy(x.detach(), torch.tensor(4, device=device))
    torch.testing.assert_close(loss.detach(), wanted)
    loss.backward()
    share = torch.softmax(x.detach(), -1)
    share[4] -= 1
    torch.testing.assert_close(x.grad, share)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions(reduction, device):
    x = randn(8, 12, device=device).requires_grad_()
    labels = labels_of((8,), 12, device=device, ignored=(0, 3))
    wanted = functional.cross_entropy(x, labels, reduction=reduction)
    found = fo.CrossEntropy(reduction=reduction)(x, target=labels)
    torch.testing.assert_close(found, wanted)
    upstream = randn(*found.shape, device=device, seed=5)
    ours, theirs = (torch.autograd.grad(one, x, upstream)[0] for one in (found, wanted))
    torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(fo.CrossEntropy(reduction=reduction)(x, target=labels), wanted)


def test_a_mean_of_nothing_is_that_of_torch(device):
    x, labels = randn(2, 3, device=device), torch.full((2,), -100, device=device)
    assert fo.CrossEntropy()(x, target=labels).isnan()
    assert fo.CrossEntropy()(x[:0], target=labels[:0]).isnan()
    assert fo.CrossEntropy(reduction="sum")(x[:0], target=labels[:0]) == 0
    assert ROWS(x[:0], target=labels[:0]).shape == (0,)


def test_rows_that_are_ignored_are_not_seen(device):
    op = fo.CrossEntropy(reduction="none", load=[fo.Softcap("cap"), fo.Bias("b")], **ALL)
    x = randn(3, 40, device=device)
    x[1], x[1, ::2] = torch.nan, torch.inf
    x.requires_grad_()
    b = randn(40, device=device, seed=8).requires_grad_()
    results = op(x, target=torch.tensor([3, -100, 5], device=device), cap=5.0, b=b)
    assert all(one[1] == 0 for one in results)
    assert not any(one.isnan().any() for one in results)
    of_x, of_b = torch.autograd.grad(
        [one.sum() for one in results[:4]], [x, b], [torch.tensor(1.0, device=device)] * 4
    )
    assert not of_x[1].any()
    assert of_x.isfinite().all()
    assert of_b.isfinite().all()


def test_targets_out_of_range(device):
    x = randn(4, 6, device=device).requires_grad_()
    labels = torch.tensor([5, 6, -1, 2**40], device=device)
    if device == "cpu":
        with pytest.raises(IndexError, match="target 6 is no class of x of shape"):
            ROWS(x, target=labels)
        with pytest.raises(IndexError, match="target -1"):
            fo.CrossEntropy()(x, target=labels[[0, 2]][1:].expand(4))
        with pytest.raises(IndexError, match="target 6"):
            ROWS(torch.nn.Parameter(x.detach()), target=labels)
        return
    loss = ROWS(x, target=labels)
    assert loss.isnan().tolist() == [False, True, True, True]
    (of_x,) = torch.autograd.grad(loss.sum(), x)
    assert of_x.isnan().all(-1).tolist() == [False, True, True, True]


def test_masked_classes(device):
    """A masked target, a row without classes, and smoothing over the classes that are left."""
    op = fo.CrossEntropy(load=[fo.Mask("m")], reduction="none", label_smoothing=0.2)
    x = randn(4, 10, device=device).requires_grad_()
    m = torch.zeros(4, 10, dtype=torch.bool, device=device)
    m[:, 7:], m[2] = True, True
    loss = op(x, target=torch.tensor([1, 8, 1, 2], device=device), m=m)
    assert loss[1] == torch.inf
    assert loss[2].isnan()
    kept = x.detach()[[0, 3], :7].requires_grad_()
    wanted = functional.cross_entropy(
        kept, torch.tensor([1, 2], device=device), reduction="none", label_smoothing=0.2
    )
    torch.testing.assert_close(loss[[0, 3]], wanted)
    (of_x,) = torch.autograd.grad(loss.sum(), x)
    torch.testing.assert_close(of_x[[0, 3], :7], torch.autograd.grad(wanted.sum(), kept)[0])
    assert not of_x[m].any()
    assert not of_x[2].any()


@pytest.mark.thorough
@pytest.mark.parametrize("value", [math.nan, *thorough(math.inf)])
def test_what_is_not_finite_reaches_the_loss(value, device):
    x = randn(2, 300, device=device)
    x[0, 17] = value
    x.requires_grad_()
    loss = ROWS(x, target=torch.tensor([3, 4], device=device))
    assert loss.isnan().tolist() == [True, False]
    (of_x,) = torch.autograd.grad(loss.sum(), x)
    assert of_x[0].isnan().any()
    assert of_x[1].isfinite().all()


def test_large_logits_lose_nothing(device):
    """Of equal logits the loss is log(n), however large they are."""
    for size in (1e4, 1e30, -1e30):
        loss = ROWS(
            torch.full((2, 64), size, device=device), target=torch.tensor([0, 63], device=device)
        )
        torch.testing.assert_close(loss.cpu(), torch.full((2,), math.log(64)))


@pytest.mark.thorough
def test_further_outputs(device):
    op = fo.CrossEntropy(**ALL)
    x = randn(6, 50, device=device).requires_grad_()
    labels = labels_of((6,), 50, device=device, ignored=())
    labels[0] = x[0].argmax()
    found = op(x, target=labels)
    log_p = torch.log_softmax(x, -1)
    at = log_p.gather(-1, labels[:, None])[:, 0]
    torch.testing.assert_close(found.loss, -at.mean())
    torch.testing.assert_close(found.lse, x.logsumexp(-1))
    torch.testing.assert_close(found.log_prob, at)
    torch.testing.assert_close(found.entropy, -(log_p.exp() * log_p).sum(-1))
    assert found.correct.tolist() == (x.argmax(-1) == labels).float().tolist()
    assert torch.equal(found.largest, x.detach().amax(-1))
    assert not found.correct.requires_grad
    assert not found.largest.requires_grad
    wanted = (at, -(log_p.exp() * log_p).sum(-1), x.logsumexp(-1))
    upstream = [randn(6, device=device, seed=seed) for seed in (1, 2, 3)]
    ours = torch.autograd.grad((found.log_prob, found.entropy, found.lse), x, upstream)
    torch.testing.assert_close(ours, torch.autograd.grad(wanted, x, upstream))


@pytest.mark.parametrize(
    ("smoothing", "z_loss", "more"),
    [
        pytest.param(0.0, 0.0, {}, marks=pytest.mark.thorough),
        pytest.param(0.1, 1e-3, ALL, marks=pytest.mark.thorough),
        pytest.param(0.0, 1e-3, {}, marks=[pytest.mark.thorough, pytest.mark.exhaustive]),
        pytest.param(
            0.1, 0.0, {"entropy": True}, marks=[pytest.mark.thorough, pytest.mark.exhaustive]
        ),
    ],
    ids=str,
)
def test_check(smoothing, z_loss, more, device):
    op = fo.CrossEntropy(
        load=[fo.Scale("s"), fo.Softcap("cap"), fo.Bias("b")],
        label_smoothing=smoothing,
        z_loss=z_loss,
        **more,
    )
    x = randn(5, 34, device=device)
    labels = labels_of((5,), 34, device=device)
    s = randn(5, 1, device=device, seed=6)
    check(op, x, target=labels, s=s, cap=3.0, b=randn(34, device=device, seed=7))


@pytest.mark.thorough
def test_every_option_with_every_other(device):
    x, labels = randn(4, 70, device=device), labels_of((4,), 70, device=device)
    names = [*ALL]
    for flags in itertools.product((False, True), repeat=len(names)):
        op = fo.CrossEntropy(reduction="none", **dict(zip(names, flags, strict=True)))
        found, wanted = op(x, target=labels), op.unfused(x, target=labels)
        torch.testing.assert_close(found, wanted)


@pytest.mark.thorough
def test_opinfo_samples_of_torch(device):
    pytest.importorskip("expecttest")  # which torch's own samples import
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = [one for one in op_db if one.name == "nn.functional.cross_entropy"]
    seen = 0
    for sample in info.sample_inputs(device, torch.float32, requires_grad=True):
        x, (labels, *_), options = sample.input, sample.args, sample.kwargs
        if not options.keys() <= {"reduction", "ignore_index", "label_smoothing"}:
            continue
        seen += 1
        labels = labels.detach()  # probabilities have no gradient here
        wanted = functional.cross_entropy(x, labels, **options)
        op = fo.CrossEntropy(**options, soft=labels.is_floating_point())
        found = op(x, target=labels, dim=1 if x.dim() > 1 else 0)
        torch.testing.assert_close(found, wanted)
        if wanted.requires_grad and wanted.isfinite().all():
            of_x = [torch.autograd.grad(one.sum(), x)[0] for one in (found, wanted)]
            torch.testing.assert_close(*of_x)
    assert seen >= 14


@pytest.mark.parametrize(
    ("kind", "said", "options"),
    [
        (ValueError, "reduction must be one of 'none', 'mean', 'sum'", {"reduction": "x"}),
        (ValueError, "label_smoothing must be a number in [0, 1]", {"label_smoothing": 1.5}),
        (ValueError, "z_loss must be a finite number >= 0", {"z_loss": -1.0}),
        (TypeError, "ignore_index must be an int", {"ignore_index": 0.5}),
        (ValueError, "store must be empty", {"store": [fo.Scale("s")]}),
        (TypeError, "lse must be True or False", {"lse": "yes"}),
    ],
)
def test_declarations_that_are_refused(kind, said, options):
    with raises(kind, "CrossEntropy: ", said):
        fo.CrossEntropy(**options)


def test_calls_that_are_refused():
    x, labels = randn(4, 6), torch.zeros(4, dtype=torch.int64)
    with raises(TypeError, "operand 'target' must be a tensor of integers"):
        ROWS(x, target=labels.float())
    for dtype in (torch.uint16, torch.uint32, torch.bool):
        with raises(TypeError, "operand 'target' must be a tensor of integers", "target.long()"):
            ROWS(x, target=labels.to(dtype))
    with raises(TypeError, "operand 'target' is missing"):
        ROWS(x)
    with raises(TypeError, "CrossEntropy takes one positional argument", "got 2", "target=..."):
        ROWS(x, labels)
    with raises(TypeError, "dim must be one int, got (0, 1)"):
        ROWS(x, target=labels + 5, dim=(0, 1))
    with raises(TypeError, "got int; make one with torch.as_tensor(target)"):
        ROWS(x, target=3)
    with raises(ValueError, "must have x's shape without the reduced dimension, (4,)"):
        ROWS(x, target=labels[:3])
    with raises(TypeError, "operand 'target'", "declare soft=True"):
        ROWS(x, target=x.softmax(-1))
    with raises(ValueError, "take the columns: target.argmax(1)"):
        ROWS(x, target=functional.one_hot(labels, 6))
    images = randn(2, 6, 3)
    with raises(ValueError, "classes in x's dimension 1: pass dim=1"):
        ROWS(images, target=labels[:3].expand(2, 3))
    with raises(ValueError, "target.reshape(2, 3)"):
        ROWS(randn(2, 3, 6), target=labels.expand(2, 4)[:, :3].flatten())
    with raises(ValueError, "out= goes with reduction='none'", "reduction='mean'"):
        fo.CrossEntropy()(x, target=labels, out=torch.empty(()))
    for transform in (torch.vmap, torch.func.grad):
        with raises(fo.UnsupportedError, "CrossEntropy: torch.func transforms"):
            transform(lambda x, labels: fo.CrossEntropy()(x, target=labels))(x[None], labels[None])
    with raises(ValueError, "CrossEntropyLoss: a target of floating numbers", "target.long()"):
        fo.nn.CrossEntropyLoss()(randn(4, 4), labels.float())  # (4,) broadcasts against (4, 4)


def test_it_is_a_value():
    op = fo.CrossEntropy(load=[fo.Softcap("cap")], lse=True, z_loss=1e-4)
    assert pickle.loads(pickle.dumps(op)) == op
    assert op.outputs == ("loss", "lse")
    assert eval(repr(op), {**vars(fo)}) == op
    assert "op(x, cap=…, target=…) → loss, lse" in op._repr_html_()


def test_explain():
    x = randn(4, 6).requires_grad_()
    text = str(fo.CrossEntropy().explain(x, target=torch.zeros(4, dtype=torch.int64)))
    assert "empty: no y, but numbers of rows" in text
    assert "loss (out)" in text
    assert "gradients of x by one kernel" in text
    found = fo.CrossEntropy().explain(x, target=torch.zeros(4, dtype=torch.int64))
    assert "each once, and nothing of them is kept" in found.why
    long = fo.CrossEntropy().explain(torch.zeros(2, 70000), target=torch.zeros(2, dtype=torch.long))
    assert long.schedule == "streaming"
    assert not long.notes
    assert found.outputs["loss"].bytes == 16
    assert "<svg" in found.picture().svg()


@pytest.mark.thorough
def test_float64(device):
    x = randn(5, 21, dtype=torch.float64, device=device).requires_grad_()
    labels = labels_of((5,), 21, device=device)
    torch.testing.assert_close(
        fo.CrossEntropy()(x, target=labels), functional.cross_entropy(x, labels)
    )
    torch.autograd.gradcheck(lambda z: fo.CrossEntropy()(z, target=labels), x)


@pytest.mark.parametrize("reduction", ["mean", *thorough("none")])
def test_compiled(reduction, device):
    op = fo.CrossEntropy(reduction=reduction, load=[fo.Scale("s")])
    x = randn(6, 30, device=device).requires_grad_()
    labels = labels_of((6,), 30, device=device)

    def step(x, labels):
        return op(x * 2, target=labels, s=0.5)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    found, wanted = compiled(x, labels), step(x, labels)
    torch.testing.assert_close(found, wanted)
    of_x = [torch.autograd.grad(one.sum(), x)[0] for one in (found, wanted)]
    torch.testing.assert_close(*of_x)


def test_results_are_written_to_out(device):
    op = fo.CrossEntropy(reduction="none", lse=True)
    x, labels = randn(5, 9, device=device), labels_of((5,), 9, device=device)
    out = (poisoned((5,), device), poisoned((5,), device))
    found = op(x, target=labels, out=out)
    assert found.loss is out[0]
    assert not out[0].isnan().any()
    torch.testing.assert_close(out[0], op(x, target=labels).loss)


@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.bfloat16)], ids=str)
def test_the_gradient_in_the_memory_of_the_logits(dtype, device):
    op = fo.CrossEntropy(inplace=True, load=[fo.Softcap("cap"), fo.Bias("b")])
    apart = fo.CrossEntropy(load=[fo.Softcap("cap"), fo.Bias("b")])
    leaf = randn(6, 45, dtype=dtype, device=device).requires_grad_()
    b = randn(45, device=device, seed=4).requires_grad_()
    labels = labels_of((6,), 45, device=device)
    logits = leaf * 2
    logits.register_hook(lambda g: seen.append(g.data_ptr()))
    seen, before = [], logits._version
    of_leaf, of_b = torch.autograd.grad(op(logits, target=labels, cap=4.0, b=b), (leaf, b))
    assert seen == [logits.data_ptr()]
    assert logits._version == before + 1
    wanted = apart(leaf * 2, target=labels, cap=4.0, b=b)
    assert torch.equal(of_leaf, torch.autograd.grad(wanted, leaf, retain_graph=True)[0])
    assert torch.equal(of_b, torch.autograd.grad(wanted, b)[0])


def test_logits_that_something_else_reads_are_missed(device):
    op = fo.CrossEntropy(inplace=True)
    leaf, labels = randn(4, 9, device=device).requires_grad_(), labels_of((4,), 9, device=device)
    logits = leaf.exp()  # whose backward pass reads its result
    loss = op(logits, target=labels)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with raises(ValueError, "x is a leaf that requires grad"):
        op(leaf, target=labels)
    spread = leaf[:, :1].exp().expand(4, 9)  # no element has memory of its own
    (of_leaf,) = torch.autograd.grad(op(spread, target=labels), leaf)
    wanted = functional.cross_entropy(leaf[:, :1].exp().expand(4, 9), labels)
    torch.testing.assert_close(of_leaf, torch.autograd.grad(wanted, leaf)[0])


@pytest.mark.parametrize("shape", [(4, 5), *thorough((5,), (2, 5, 3))], ids=str)
def test_the_module(shape, device):
    rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
    x = randn(*shape, device=device).requires_grad_()
    labels = labels_of(rows, 5, device=device, ignored=(0,) if rows else ())
    for options in ({}, {"reduction": "none", "label_smoothing": 0.1}, {"reduction": "sum"}):
        ours, theirs = fo.nn.CrossEntropyLoss(**options), torch.nn.CrossEntropyLoss(**options)
        assert isinstance(ours, torch.nn.CrossEntropyLoss)
        torch.testing.assert_close(ours(x, labels), theirs(x, labels))
        p = randn(*shape, device=device, seed=2).softmax(1 if len(shape) > 1 else 0)
        torch.testing.assert_close(ours(x, p), theirs(x, p))


@pytest.mark.parametrize("soft", [False, True])
def test_modules_as_torch_operations(soft):
    """What errors propose where no kernel goes: transforms, and second derivatives."""
    assert all(hasattr(getattr(fo.nn, name), "unfused") for name in fo.nn.__all__)
    x, labels = randn(4, 5), labels_of((4,), 5)
    target = x.softmax(-1) if soft else labels
    own = {} if soft else {"linear": fo.nn.LinearCrossEntropyLoss(5, 7, bias=True, softcap=9.0)}
    for module in (fo.nn.CrossEntropyLoss(label_smoothing=0.1, z_loss=0.1), *own.values()):
        torch.testing.assert_close(module.unfused(x, target), module(x, target))
        leaf = x.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(module(leaf, target), leaf)
        found = torch.func.grad(module.unfused)(x, target)
        torch.testing.assert_close(found, wanted)


def test_settings_of_the_module():
    module = fo.nn.CrossEntropyLoss(z_loss=1e-3, ignore_index=0)
    assert repr(module) == "CrossEntropyLoss(reduction='mean', ignore_index=0, z_loss=0.001)"
    module.reduction = "sum"
    assert module.op() == fo.CrossEntropy(z_loss=1e-3, ignore_index=0, reduction="sum")
    assert repr(pickle.loads(pickle.dumps(module))) == repr(module)
    with raises(ValueError, "weight must be None", 'reduction="none"'):
        fo.nn.CrossEntropyLoss(torch.ones(3))
    with raises(ValueError, "write reduction="):
        fo.nn.CrossEntropyLoss(reduce=True)


def capped(x, labels):
    return functional.cross_entropy(5.0 * torch.tanh(x.float() / 5.0), labels)


def smoothed(x, labels):
    return functional.cross_entropy(x * 0.5, labels, label_smoothing=0.1, reduction="none")


def spelled_out(x, labels):
    return functional.nll_loss(functional.log_softmax(x + 1.0, -1), labels, ignore_index=3)


GRAPHS = {
    capped: "CrossEntropy(load=[Softcap(cap='cap')], ignore_index=-100, label_smoothing=0.0, "
    "z_loss=0.0, reduction='mean')",
    smoothed: "CrossEntropy(load=[Scale(scale='scale')], ignore_index=-100, label_smoothing=0.1, "
    "z_loss=0.0, reduction='none')",
    spelled_out: "CrossEntropy(load=[Bias(bias='bias')], ignore_index=3, label_smoothing=0.0, "
    "z_loss=0.0, reduction='mean')",
}


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.bfloat16)], ids=str)
@pytest.mark.parametrize(
    "program", [capped, *thorough(smoothed, spelled_out)], ids=lambda one: one.__name__
)
def test_the_backend_finds_it(program, dtype, device):
    x = randn(6, 24, dtype=dtype, device=device).requires_grad_()
    labels = labels_of((6,), 24, device=device, ignored=() if program is spelled_out else (1,))
    fused = fo.fuse(program)
    found, wanted = fused(x, labels), program(x, labels)
    assert fused.declaration == GRAPHS[program]
    assert found.dtype is wanted.dtype
    # Eager torch rounds to 16 bits at each step of the chain.
    near = dtype is torch.float32
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if near else {"rtol": 0.06, "atol": 4e-3}
    torch.testing.assert_close(found, wanted, **tolerance)
    of_x = [torch.autograd.grad(one.sum(), x)[0] for one in (found, wanted)]
    torch.testing.assert_close(*of_x, **tolerance)


@pytest.mark.parametrize(
    ("why", "program"),
    [
        ("classes have weights", lambda x, t: functional.cross_entropy(x, t, torch.ones(24))),
        ("no class for each row", lambda x, t: functional.cross_entropy(x, x.softmax(-1))),
    ],
)
def test_the_backend_leaves_it(why, program):
    report = fo.explain_graph(program, randn(6, 24), labels_of((6,), 24))
    assert any(why in said for one in report.left for said in one.why.values())


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("smoothing", [0.2, *thorough(0.0)])
@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.bfloat16)], ids=str)
@pytest.mark.parametrize("columns", [40, *thorough(1, 129, 3001)])
def test_weights_of_classes(columns, dtype, smoothing, device):
    x = randn(5, columns, dtype=dtype, device=device) * 3 + 100
    p = randn(5, columns, device=device, seed=12).softmax(-1) * 1.5
    x.requires_grad_()
    op = fo.CrossEntropy(soft=True, reduction="none", label_smoothing=smoothing)
    loss = op(x, target=p)
    # Of weights that do not add up to one torch smooths a sum of one, as is done here.
    leaf = x.detach().double().requires_grad_()
    wanted = -(p.double() * (1 - smoothing) + smoothing / columns) * leaf.log_softmax(-1)
    wanted = wanted.sum(-1)
    close(loss.detach(), wanted.detach(), torch.full_like(wanted, 60.0))
    upstream = randn(5, device=device, seed=13)
    (of_x,) = torch.autograd.grad(loss, x, upstream)
    (of_leaf,) = torch.autograd.grad(wanted, leaf, upstream.double())
    close(of_x, of_leaf, 60 * upstream.abs()[:, None].expand(5, columns), dtype)


@pytest.mark.thorough
def test_weights_of_classes_beside_torch(device):
    x = randn(6, 30, device=device).requires_grad_()
    p = randn(6, 30, device=device, seed=12).softmax(-1)
    for reduction in ("mean", "sum", "none"):
        op = fo.CrossEntropy(soft=True, reduction=reduction, load=[fo.Scale("s")], lse=True)
        found = op(x, target=p, s=2.0)
        wanted = functional.cross_entropy(2.0 * x, p, reduction=reduction)
        torch.testing.assert_close(found.loss, wanted)
        ours, theirs = (torch.autograd.grad(one.sum(), x)[0] for one in (found.loss, wanted))
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(op.unfused(x, target=p, s=2.0), found)


@pytest.mark.thorough
def test_weights_and_masks(device):
    op = fo.CrossEntropy(soft=True, reduction="none", load=[fo.Lengths("n")])
    x = randn(3, 8, device=device).requires_grad_()
    p = torch.full((3, 8), 0.25, device=device)
    p[:2, 4:] = 0.0
    p[2] = 0.125
    loss = op(x, target=p, n=torch.tensor([[4], [6], [4]], device=device))
    assert loss.isfinite().tolist() == [True, True, False]
    assert loss[2] == torch.inf
    wanted = functional.cross_entropy(x[:1, :4], p[:1, :4])
    torch.testing.assert_close(loss[0], wanted)


def test_weights_that_are_refused():
    op, x = fo.CrossEntropy(soft=True), randn(3, 4)
    with raises(TypeError, "target must be a tensor with a weight for each class"):
        op(x, target=0.5)
    with raises(ValueError, "weights of classes have no gradient here"):
        op(x, target=torch.ones(3, 4, requires_grad=True))
    with raises(TypeError, "operand 'target' must be a floating-point tensor"):
        op(x, target=torch.zeros(3, dtype=torch.int64))
    with raises(ValueError, "correct is that of a class"):
        fo.CrossEntropy(soft=True, correct=True)


def test_there_is_nothing_to_tune():
    from fusedops.generate.target import Target
    from fusedops.tuning.problem import kernel_of

    x, labels = torch.empty(8, 64, device="meta"), torch.empty(8, dtype=torch.long, device="meta")
    with raises(fo.UnsupportedError, "there is nothing to tune"):
        kernel_of(ROWS.bind(x, {"target": labels}), "forward", Target.named("sm_90"))


@pytest.mark.thorough
def test_sizes_that_vary_are_one_program():
    op = fo.CrossEntropy(load=[fo.Scale("s")])
    seen = []

    def counting(module, inputs):
        seen.append(module)
        return module

    compiled = torch.compile(
        lambda x, labels: op(x, target=labels, s=0.5), backend=counting, dynamic=True
    )
    for rows in (3, 5, 9):
        x, labels = randn(rows, 30), labels_of((rows,), 30)
        torch.testing.assert_close(compiled(x, labels), op(x, target=labels, s=0.5))
    assert len(seen) == 1


def test_soft_targets_are_checked():
    op = fo.CrossEntropy(soft=True, lse=True, largest=True, entropy=True, label_smoothing=0.1)
    target = torch.softmax(randn(5, 40, seed=2), -1)
    assert fo.testing.check(op, randn(5, 40), target=target)


@pytest.mark.parametrize("soft", [False, True])
def test_an_infinite_logit_is_seen(soft):
    """In the fused and in the unfused results alike."""
    op = fo.CrossEntropy(reduction="none", lse=True, largest=True, soft=soft)
    x = torch.tensor([[0.0, torch.inf], [1.0, 2.0]])
    target = torch.full((2, 2), 0.5) if soft else torch.tensor([1, 1])
    for found in (op(x, target=target), op.unfused(x, target=target)):
        assert all(one[0].isnan() for one in found)
        assert found.largest[1] == 2


def test_rows_without_classes_have_a_graph():
    """So a rank that has none of the classes goes back as the others do."""
    x = torch.zeros(3, 0).requires_grad_()
    found = fo.CrossEntropy(reduction="none", lse=True)(x, target=torch.full((3,), -100))
    (of_x,) = torch.autograd.grad(found.loss.sum() + found.lse.sum(), x)
    assert of_x.shape == (3, 0)
