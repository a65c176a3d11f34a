# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""LinearCrossEntropy: a product and its loss by blocks of classes, against float64."""

import pickle
import re

import pytest
import torch
from cases import raises, randn, thorough
from torch.nn import functional

import fusedops as fo
from fusedops.declare.text import read
from fusedops.product import linear_loss_logits as logits
from fusedops.product.linear_loss_logits import block_columns

LOAD = [fo.Bias("b"), fo.Softcap("cap")]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks where there are few classes; the operators read the same numbers."""
    monkeypatch.setattr(logits, "_FEWEST_CLASSES", 64)
    monkeypatch.setattr(logits, "_MOST_CLASSES", 128)


def case(rows, features, classes, dtype, device, *, ignored=-100):
    x = randn(*rows, features, dtype=dtype, device=device).requires_grad_()
    w = (randn(classes, features, dtype=dtype, device=device, seed=1) * 0.3).requires_grad_()
    b = randn(classes, dtype=dtype, device=device, seed=2).requires_grad_()
    generator = torch.Generator().manual_seed(4)
    target = torch.randint(0, classes, rows, generator=generator)
    target.view(-1)[::5] = ignored
    return x, w, b, target.to(device)


def truth(x, w, b, target, cap, options):
    """Losses of all rows in float64, and log-probabilities, of the same rounded inputs."""
    z = functional.linear(x, w) + b
    z = cap * torch.tanh(z / cap)
    ignored = target == options.get("ignore_index", -100)
    known = target.masked_fill(ignored, 0)
    eps = options.get("label_smoothing", 0.0)
    lse = z.logsumexp(-1)
    at = z.gather(-1, known[..., None])[..., 0]
    loss = (1 - eps) * (lse - at) + eps * (lse - z.mean(-1))
    loss = loss + options.get("z_loss", 0.0) * lse.square()
    p = (z - lse[..., None]).exp()
    found = {"loss": loss, "lse": lse, "log_prob": at - lse}
    found["entropy"] = lse - (p * z).sum(-1)
    return {key: one.masked_fill(ignored, 0.0) for key, one in found.items()}


def verify(x, w, b, target, cap=20.0, **options):
    """Results and gradients are within what rounding the logits and their gradient allows."""
    op = fo.LinearCrossEntropy(load=LOAD, reduction="none", **options)
    assert w.shape[0] > block_columns(x.shape[-1], w.shape[0])
    made = op(x, w, target=target, b=b, cap=cap)
    made = dict(zip(op.outputs, (made,) if len(op.outputs) == 1 else made, strict=True))
    doubles = [one.detach().double().requires_grad_() for one in (x, w, b)]
    wanted = truth(*doubles, target, cap, options)
    unit = torch.finfo(x.dtype).eps / 2
    z = functional.linear(x.detach().double(), w.detach().double()).abs().amax(-1)
    single = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
    # Each logit is off by its rounding and by that of its sum over K, and so are lse and v_t.
    off = 2 * unit * z + single * (4 * x.shape[-1] ** 0.5 + 32)
    upstream, total = {}, 0.0
    for number, name in enumerate(op.outputs):
        slope = 1 + 2 * options.get("z_loss", 0.0) * wanted["lse"].detach().abs()
        size = (slope + 2 * cap * (name == "entropy")) * off * 2
        error = (made[name].double() - wanted[name]).abs().detach()
        assert (error <= size).all(), (name, (error / size).max())
        upstream[name] = randn(*target.shape, device=x.device, seed=20 + number)
        total = total + (wanted[name] * upstream[name].double()).sum()
    gradients = torch.autograd.grad(
        [made[name] for name in upstream],
        (x, w, b),
        [one.to(made["loss"].dtype) for one in upstream.values()],
    )
    exact = torch.autograd.grad(total, doubles)
    for name, found, one in zip("xwb", gradients, exact, strict=True):
        assert found.dtype is x.dtype
        # A norm of many elements, whose roundings go in all directions: of p, of dz, at the end.
        allowed = 4 * unit * (1 + 2 * z.max()) + 64 * single
        error = (found.double() - one).norm() / one.norm()
        assert error <= allowed, (name, float(error), float(allowed))
    ignored = target == options.get("ignore_index", -100)
    assert not gradients[0][ignored].any()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing": 0.1, "z_loss": 1e-3},
        *thorough({"z_loss": 1e-2}, {"lse": True, "log_prob": True, "entropy": True}),
        {"label_smoothing": 0.3, "lse": True, "entropy": True, "ignore_index": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, *thorough(torch.float16, torch.float64)]
)
def test_against_float64(dtype, options, device):
    ignored = options.get("ignore_index", -100)
    verify(*case((7, 5), 48, 333, dtype, device, ignored=ignored), **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, *thorough(torch.float32, torch.float16)])
def test_the_largest_logit_and_hits(dtype, device):
    """Logits are whole numbers, which no rounding changes, and many are the largest of a row."""
    op = fo.LinearCrossEntropy(reduction="none", largest=True, correct=True)
    classes, rows = 5000, 40
    late = dtype is torch.float16  # then joined of blocks of classes, else found by chunks of rows
    x = randn(rows, 24, device=device).round().clamp(-2, 2).to(dtype).requires_grad_()
    w = randn(classes, 24, seed=2, device=device).round().clamp(-1, 1).to(dtype)
    assert classes > 2 * block_columns(24, classes)
    z = functional.linear(x.detach().double(), w.double())
    target = z.argmax(-1)
    target[::3] = torch.arange(rows, device=device)[::3] * 100
    for row in (1, 2):  # the largest of the row, but not the first one that is, and any other
        target[row] = (z[row] == z[row].max()).nonzero()[-1 if row == 1 else 0]
    target[4] = -100
    given = x.detach().clone()
    given[5] = torch.nan
    given.requires_grad_()
    found = op(given, w, target=target)
    told = op.explain(given, w, target=target)
    assert ("float16" in str(told)) == late
    with torch.no_grad():  # joined of blocks
        for ours, joined in zip(found, op(given, w, target=target), strict=True):
            torch.testing.assert_close(ours, joined, equal_nan=True)
    at = z.gather(-1, target.clamp(min=0)[:, None])[:, 0]
    hits = (at == z.amax(-1)).to(found.correct.dtype)
    largest = z.amax(-1).to(found.largest.dtype)
    hits[4] = hits[5] = largest[4] = 0
    largest[5] = torch.nan
    assert 10 < hits.sum() < rows - 5
    assert torch.equal(found.correct, hits)
    torch.testing.assert_close(found.largest, largest, rtol=0, atol=0, equal_nan=True)
    assert not found.correct.requires_grad
    assert not found.largest.requires_grad
    (of_x,) = torch.autograd.grad(found.loss.nansum(), given)
    assert of_x[:4].isfinite().all()
    if device != "cpu":  # where a target that is no class is not seen before
        target[6] = classes
        assert op(given, w, target=target).correct[6] == 0


@pytest.mark.parametrize("classes", [129, 1000, *thorough(130, 256, 257, 1024)])
def test_any_number_of_classes(classes, device):
    verify(*case((9,), 40, classes, torch.float32, device))


@pytest.mark.thorough
def test_opinfo_samples_of_torch(device):
    """Those with one dimension of classes, which are labels without weights."""
    pytest.importorskip("expecttest")  # which torch's own samples import
    from torch.testing._internal.common_methods_invocations import op_db

    infos = [one for one in op_db if one.name == "nn.functional.linear_cross_entropy"]
    if not infos:
        pytest.skip(f"torch {torch.__version__} has no linear_cross_entropy")
    seen = 0
    for sample in infos[0].sample_inputs(device, torch.float32, requires_grad=True):
        x, (w, target, *_), options = sample.input, sample.args, dict(sample.kwargs)
        known = options.keys() <= {"reduction", "ignore_index", "label_smoothing", "linear_bias"}
        if not known or w.dim() != 2 or target.is_floating_point():
            continue
        seen += 1
        wanted = functional.linear_cross_entropy(x, w, target, **options)
        bias = options.pop("linear_bias", None)
        given = {} if bias is None else {"b": bias}
        op = fo.LinearCrossEntropy([fo.Bias("b")][: len(given)], **options)
        found = op(x, w, target=target, **given)
        torch.testing.assert_close(found, wanted)
        if wanted.isfinite().all():
            leaves = [x, w, *given.values()]
            gradients = (torch.autograd.grad(one.sum(), leaves) for one in (found, wanted))
            for ours, theirs in zip(*gradients, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert seen >= 20


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions(reduction, device):
    x, w, _, target = case((13,), 48, 300, torch.float32, device)
    op = fo.LinearCrossEntropy(reduction=reduction)
    loss = op(x, w, target=target)
    wanted = functional.cross_entropy(functional.linear(x, w), target, reduction=reduction)
    torch.testing.assert_close(loss, wanted)
    for found, one in zip(
        torch.autograd.grad(3 * loss, (x, w)), torch.autograd.grad(3 * wanted, (x, w)), strict=True
    ):
        torch.testing.assert_close(found, one, rtol=1e-5, atol=1e-6)


def test_the_sums_of_blocks_are_in_float32(device):
    """The gradient of lse by x is a mean of w's rows, in 32 blocks: halves would lose some bits."""
    x = randn(64, 64, dtype=torch.bfloat16, device=device) * 0.01
    w = (randn(4096, 64, dtype=torch.bfloat16, device=device, seed=1) * 0.1 + 1).requires_grad_()
    target = torch.zeros(64, dtype=torch.int64, device=device)
    x.requires_grad_()
    found = fo.LinearCrossEntropy(reduction="none", lse=True)(x, w, target=target)
    (of_x,) = torch.autograd.grad(found.lse.sum(), x)
    leaf = x.detach().double().requires_grad_()
    functional.linear(leaf, w.detach().double()).logsumexp(-1).sum().backward()
    # 1.24e-3 on a CPU and 1.45e-3 on a GPU with one rounding of each element, near 1 and so all
    # alike; block by block in halves it would be 1.67e-3.
    assert (of_x.double() - leaf.grad).norm() <= 1.55e-3 * leaf.grad.norm()


@pytest.mark.parametrize("wanted", ["wb", "xb", "xw", *thorough("x", "w", "b")])
@pytest.mark.parametrize("lse", [False, True])
def test_what_needs_no_gradient_gets_none(lse, wanted):
    x, w, b, target = case((6,), 48, 300, torch.float32, "cpu")
    leaves = {"x": x, "w": w, "b": b}
    for name, one in leaves.items():
        one.requires_grad_(name in wanted)
    op = fo.LinearCrossEntropy(load=LOAD, lse=lse)
    made, whole = (call(x, w, target=target, b=b, cap=9.0) for call in (op, op.unfused))
    losses = [one.loss + one.lse.square().sum() if lse else one for one in (made, whole)]
    losses[0].backward()
    assert "".join(key for key, one in leaves.items() if one.grad is not None) == wanted
    for name, exact in zip(
        wanted, torch.autograd.grad(losses[1], [leaves[key] for key in wanted]), strict=True
    ):
        torch.testing.assert_close(leaves[name].grad, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["loss", "lse", "log_prob", "entropy"])
def test_each_result_alone_has_a_gradient(name, device):
    x, w, b, target = case((7, 5), 48, 300, torch.float32, device)
    op = fo.LinearCrossEntropy(LOAD, reduction="none", lse=True, log_prob=True, entropy=True)
    upstream = randn(7, 5, device=device, seed=3)
    found, wanted = (
        torch.autograd.grad(
            getattr(call(x, w, target=target, b=b, cap=9.0), name), (x, w, b), upstream
        )
        for call in (op, op.unfused)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lse", [False, True])
def test_nan_and_infinity_are_seen_in_their_rows_alone(lse, device):
    """Logits of NaN, of +inf, of -inf, which are no classes, and of NaN that do not count."""
    x, w, _, target = case((6,), 48, 300, torch.float32, device)
    b = torch.zeros(6, 1, device=device)
    b[1], b[2], b[3], b[4] = torch.nan, torch.inf, -torch.inf, torch.nan
    target = target.clamp(min=0)
    target[4] = -100
    op = fo.LinearCrossEntropy(load=[fo.Bias("b")], reduction="none", lse=lse)
    for call in (op, op.unfused):
        made = call(x, w, target=target, b=b)
        loss, *more = made if lse else (made,)
        (of_x,) = torch.autograd.grad(loss.sum() + sum(one.sum() for one in more), x)
        assert loss.isnan().tolist() == [False, True, True, True, False, False]
        assert of_x.isnan().all(-1).tolist() == [False, True, True, False, False, False]
        assert of_x.isnan().any(-1).tolist() == [False, True, True, False, False, False]
        assert not of_x[3:5].any()


def test_operands_of_rows_and_of_all_elements(device):
    """Gradients of an operand that all blocks read are added up; those of a class lie in theirs."""
    x, w, _, target = case((6,), 48, 300, torch.float32, device)
    s = (randn(6, 1, device=device, seed=5).abs() + 0.5).requires_grad_()
    m = randn(6, 300, device=device, seed=6) < -1
    m.scatter_(1, target.clamp(min=0)[:, None], False)
    op = fo.LinearCrossEntropy(load=[fo.Scale("s"), fo.Mask("m")], reduction="none")
    loss = op(x, w, target=target, s=s, m=m)
    wanted = op.unfused(x, w, target=target, s=s, m=m)
    torch.testing.assert_close(loss, wanted)
    upstream = randn(6, device=device, seed=7)
    for found, one in zip(
        torch.autograd.grad(loss, (x, w, s), upstream),
        torch.autograd.grad(wanted, (x, w, s), upstream),
        strict=True,
    ):
        torch.testing.assert_close(found, one, rtol=1e-4, atol=1e-5)


def test_a_block_whose_first_class_is_masked(device):
    x, w, _, target = case((6,), 48, 300, torch.float32, device)
    m = torch.zeros(300, dtype=torch.bool, device=device)
    m[block_columns(48, 300) :] = True  # whole blocks
    m[0] = True
    target = target.clamp(min=1, max=50)
    op = fo.LinearCrossEntropy(load=[fo.Mask("m")], reduction="none", entropy=True)
    loss, entropy = op(x, w, target=target, m=m)
    wanted, of_wanted = op.unfused(x, w, target=target, m=m)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(entropy, of_wanted)
    for found, one in zip(
        torch.autograd.grad(loss.sum() + entropy.sum(), (x, w)),
        torch.autograd.grad(wanted.sum() + of_wanted.sum(), (x, w)),
        strict=True,
    ):
        torch.testing.assert_close(found, one, rtol=1e-4, atol=1e-5)


def test_one_block_keeps_the_logits(device):
    x, w, b, target = case((6,), 48, 60, torch.float32, device)
    op = fo.LinearCrossEntropy(load=LOAD)
    loss = op(x, w, target=target, b=b, cap=9.0)
    torch.testing.assert_close(loss, op.unfused(x, w, target=target, b=b, cap=9.0))
    loss.backward()
    assert w.grad.isfinite().all()
    assert "one block" in str(op.explain(x, w, target=target, b=b, cap=9.0))


def test_no_rows():
    x, w, _, target = case((0,), 48, 300, torch.float32, "cpu")
    assert fo.LinearCrossEntropy(reduction="sum")(x, w, target=target) == 0


def test_labels_of_any_integers():
    x, w, _, target = case((6,), 48, 100, torch.float32, "cpu")
    target = target.clamp(min=0)
    op = fo.LinearCrossEntropy()
    wanted = op(x, w, target=target)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert op(x, w, target=target.to(dtype)) == wanted


@pytest.mark.parametrize("classes", [100, 300])
def test_labels_of_few_bits_and_many_classes(classes):
    """A number of classes is compared with labels in 64 bits: 300 is 44 in int8."""
    x, w, _, target = case((6,), 48, classes, torch.float32, "cpu")
    target = target.clamp(max=99)
    op = fo.LinearCrossEntropy()
    assert op(x, w, target=target.to(torch.int8)) == op(x, w, target=target)
    target = torch.tensor([156, 3, 156, 99, 0, 1]).clamp(max=classes - 1)
    narrow = target.to(torch.uint8)
    assert op(x, w, target=narrow) == op(x, w, target=target)
    with raises(IndexError, "target 255 is no class of w"):
        op(x, w[:200], target=narrow.masked_fill(narrow == 0, 255))


def test_a_target_out_of_range_on_a_cpu():
    x, w, _, target = case((6,), 48, 300, torch.float32, "cpu")
    target[2] = 300
    with raises(IndexError, "LinearCrossEntropy: target 300 is no class of w", "0 to 299"):
        fo.LinearCrossEntropy()(x, w, target=target)


@pytest.mark.gpu
def test_a_target_out_of_range_on_a_gpu():
    x, w, _, target = case((6,), 48, 300, torch.float32, "cuda")
    target[2] = 300
    loss = fo.LinearCrossEntropy(reduction="none")(x, w, target=target)
    assert loss.isnan().tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("dynamic", [False, *thorough(True)])
def test_compiled(dynamic, device):
    torch._dynamo.reset()
    x, w, b, target = case((6,), 48, 300, torch.float32, device)
    op = fo.LinearCrossEntropy(load=LOAD)

    def step(x, w, b, target):
        return op(x, w, target=target, b=b, cap=9.0) * 2

    compiled = torch.compile(step, dynamic=dynamic, fullgraph=True, backend="aot_eager")
    for rows in (6, 4):
        given = (x[:rows], w, b, target[:rows])
        loss, wanted = compiled(*given), step(*given)
        assert torch.equal(loss, wanted)
        for found, one in zip(
            torch.autograd.grad(loss, (x, w, b)),
            torch.autograd.grad(wanted, (x, w, b)),
            strict=True,
        ):
            assert torch.equal(found, one)


def test_under_autocast(device):
    x, w, _, target = case((6,), 48, 300, torch.float32, device)
    op = fo.LinearCrossEntropy()
    with torch.autocast(device, torch.bfloat16):
        loss = op(x, w, target=target)
    loss.backward()
    assert loss.dtype is w.grad.dtype is torch.float32
    halves = [one.detach().bfloat16().requires_grad_() for one in (x, w)]
    again = op(*halves, target=target)
    assert torch.equal(loss, again)
    again.backward()
    assert torch.equal(w.grad, halves[1].grad.float())


@pytest.mark.parametrize("bias", [False, True])
def test_the_module_has_the_parameters_of_torchs(bias):
    ours = fo.nn.LinearCrossEntropyLoss(16, 300, bias=bias, label_smoothing=0.1, reduction="sum")
    assert [*ours.state_dict()] == ["linear.weight", "linear.bias"][: 1 + bias]
    x, target = randn(2, 5, 16).requires_grad_(), torch.arange(10).view(2, 5)
    loss, found = ours(x, target), ours.linear(x).flatten(0, 1)
    wanted = functional.cross_entropy(found, target.flatten(), label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, wanted)
    of_torch = getattr(torch.nn, "LinearCrossEntropyLoss", None)
    if of_torch is not None:
        stock = of_torch(16, 300, bias=bias, label_smoothing=0.1, reduction="sum")
        stock.load_state_dict(ours.state_dict())
        torch.testing.assert_close(stock(x.flatten(0, 1), target.flatten()), loss)
    assert "label_smoothing=0.1" in repr(ours)


@pytest.mark.parametrize("softcap", [0, -1.0, "30", True, float("inf")])
def test_a_softcap_of_the_module_that_is_none(softcap):
    with raises(ValueError, "LinearCrossEntropyLoss: softcap must be a finite number above 0"):
        fo.nn.LinearCrossEntropyLoss(4, 8, softcap=softcap)
    module = fo.nn.LinearCrossEntropyLoss(4, 8)
    with raises(ValueError, "softcap must be a finite number above 0", repr(softcap)):
        module.softcap = softcap


def test_the_memory_of_the_module():
    module = fo.nn.LinearCrossEntropyLoss(4, 8, memory=1 << 20)
    assert "memory=1048576" in repr(module)
    assert module.op() == fo.LinearCrossEntropy(memory=1 << 20)
    module.memory = None
    assert module.op() == fo.LinearCrossEntropy()
    assert "memory" not in repr(module)


def test_a_linear_of_the_module_that_changes():
    key = {"label_smoothing": 0.03125}  # of no other test's declarations
    module = fo.nn.LinearCrossEntropyLoss(8, 20, bias=True, **key)
    x, target = randn(4, 8), torch.arange(4)
    module.linear.bias = None
    wanted = functional.cross_entropy(module.linear(x), target, label_smoothing=0.03125)
    torch.testing.assert_close(module(x, target), wanted)


def test_an_exported_program_is_for_all_sizes():
    module = fo.nn.LinearCrossEntropyLoss(8, 300)
    rows = {0: torch.export.Dim("rows", min=2)}
    x, target = randn(200, 8), torch.arange(200)
    few = x[:4], target[:4]
    program = torch.export.export(module, few, dynamic_shapes=(rows, rows)).module()
    assert "linear_cross_entropy.default" in str(program.graph)  # which makes no gradients ahead
    torch.testing.assert_close(program(*few), module(*few))
    torch.testing.assert_close(program(x, target), module(x, target))


def test_it_is_a_value():
    op = fo.LinearCrossEntropy(load=LOAD, z_loss=1e-4, reduction="sum", lse=True)
    assert op == pickle.loads(pickle.dumps(op)) == eval(repr(op), vars(fo))
    assert read(op.text) is op
    assert op.outputs == ("loss", "lse")


def test_explain_tells_of_hardware_tanh():
    x, w, _, target = case((6,), 48, 30, torch.bfloat16, "cpu")
    for hardware in (False, True):
        op = fo.LinearCrossEntropy(load=[fo.Softcap("cap", hardware_tanh=hardware)])
        said = str(op.explain(x, w, target=target, cap=1.0))
        assert ("hardware_tanh: tanh is as precise as without" in said) == hardware


def test_explain_has_the_blocks():
    x, w, b, target = case((6,), 48, 300, torch.bfloat16, "cpu")
    with torch.no_grad():
        said = str(fo.LinearCrossEntropy(load=LOAD).explain(x, w, target=target, b=b, cap=1.0))
    assert "3 blocks of 128 classes" in said
    assert "would be 3600 bytes" in said


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"load": [fo.Dropout("p")]}, ValueError, ("Dropout", "let a Linear make the logits")),
        ({"load": [fo.Mask("m")], "label_smoothing": 0.1}, ValueError, ("label_smoothing",)),
        ({"load": [fo.Bias("w")]}, ValueError, ("name of a factor",)),
        ({"reduction": "all"}, ValueError, ("reduction must be one of",)),
        ({"ignore_index": 0.5}, TypeError, ("ignore_index must be an int",)),
    ],
)
def test_wrong_declarations(options, kind, words):
    with raises(kind, "LinearCrossEntropy: ", *words):
        fo.LinearCrossEntropy(**options)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_operands_are_held_to_all_logits(needs_gradient, compiled):
    """An operand that fits the logits of a block alone, or the rows in one dimension, is none."""
    op = fo.LinearCrossEntropy(load=[fo.Bias("b")])
    x, w, _, target = case((2, 3), 16, 256, torch.float32, "cpu", ignored=0)
    columns = block_columns(16, 256)
    assert 256 % columns == 0
    if not needs_gradient:
        x, w = x.detach(), w.detach()

    def call(b):
        return op(x, w, target=target, b=b)

    if compiled:
        call = torch.compile(call, backend="aot_eager")
    for shape in ((columns,), (6, 1), (1, 2, 3, 256)):
        said = f"operand 'b' of shape {shape} does not broadcast against the logits of shape"
        with pytest.raises((ValueError, RuntimeError), match=re.escape(said)):
            call(torch.ones(shape))
    few = fo.LinearCrossEntropy(load=[fo.Bias("b")])
    with raises(ValueError, "does not broadcast against the logits of shape (2, 3, 9)"):
        few(x, w[:9], target=target.clamp(max=8), b=torch.ones(8))


def test_numbers_that_are_none():
    op = fo.LinearCrossEntropy(load=[fo.Softcap("cap")])
    x, w, _, target = case((6,), 16, 300, torch.float32, "cpu")
    for cap, cure in (
        ("30", "use float(cap)"),
        (True, "use float(cap)"),
        ([1.0], "as_tensor(cap)"),
    ):
        with raises(TypeError, "LinearCrossEntropy: operand 'cap' must be", cure):
            op(x, w, target=target, cap=cap)


@pytest.mark.parametrize("classes", [20, 300])
def test_transforms_are_refused_by_name(classes):
    op = fo.LinearCrossEntropy()
    x, w, _, target = case((6,), 16, classes, torch.float32, "cpu")
    x, w = x.detach(), w.detach()

    def loss(x, target=target):
        return op(x, w, target=target)

    rows = x.expand(2, 6, 16), target.expand(2, 6)
    for call in (
        lambda: torch.func.grad(loss)(x),
        lambda: torch.func.jvp(loss, (x,), (x,)),
        lambda: torch.vmap(loss)(*rows),
        lambda: torch.jit.trace(loss, (x,)),
    ):
        with raises(fo.UnsupportedError, "LinearCrossEntropy: torch.", "op.unfused"):
            call()
    torch.func.grad(lambda x: op.unfused(x, w, target=target))(x)  # the cure


def test_wrong_calls():
    x, w, b, target = case((6,), 48, 300, torch.float32, "cpu")
    op = fo.LinearCrossEntropy()
    with raises(TypeError, "LinearCrossEntropy: operand 'target' is missing"):
        op(x, w)
    with raises(TypeError, "LinearCrossEntropy: target must be a tensor of integers", "float32"):
        op(x, w, target=target.float())
    with raises(
        ValueError, "LinearCrossEntropy: target must have x's shape without", "(6,)", "(5,)"
    ):
        op(x, w, target=target[:5])
    with raises(ValueError, "LinearCrossEntropy: w must have"):
        op(x, w.mT, target=target)
    with raises(TypeError, "LinearCrossEntropy: unknown operand 'b'"):
        op(x, w, target=target, b=b)
