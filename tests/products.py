# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of products share: ops, their factors and operands, a step, and what it keeps."""

import contextlib
import functools
import math
import sys

import pytest
import torch
from cases import randn, same_bits
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fusedops as fo
from fusedops.generate import tuned
from fusedops.generate.target import Target
from fusedops.jit import nvrtc
from fusedops.product import choice as choices
from fusedops.product import torch_op
from fusedops.schedule import lookup
from fusedops.schedule.architectures import TILINGS
from fusedops.schedule.launch import ProductConfig
from fusedops.testing import force_launch

P, SEED, OFFSET = 0.3, 5, 64
HALF = torch.float16
HOPPER = Target.named("sm_90")
#: The tilings of which there are kernels of many products, and of these those of a gradient.
SEVERAL = [name for name, one in TILINGS.items() if one.several]
GOING_BACK = [name for name in SEVERAL if TILINGS[name].one_column]


@fo.functor
def gelu(v):
    return functional.gelu(v, approximate="tanh")


@fo.functor
def gated(v, gate):
    return v * torch.sigmoid(v) * gate


#: What follows the product of a Linear; the first one and "saving" occur in most tests.
STORES = {
    "gelu": [fo.Bias("b"), gelu()],
    "dropout": [fo.Bias("b"), fo.Dropout("p")],
    "saving": [fo.Bias("b"), fo.Dropout("p"), fo.Residual("r", 0.5, save="stream")],
    "tap": [fo.Scale("row"), gelu(), fo.Tap("act"), fo.Residual("r")],
}
#: And that of a Matmul.
SCORES = {
    "scores": [fo.Scale("s"), fo.Bias("b"), fo.Mask("m"), fo.Causal()],
    "window": [fo.Causal(), fo.Window(100, 30), fo.Scale("s")],
    "lengths": [fo.Lengths("n"), fo.Softcap("cap"), fo.Causal(align="bottom-right")],
    "dropout": [fo.Scale("s"), fo.Dropout("p")],
    "saving": [fo.Scale("s"), fo.Residual("b", save="stream"), fo.Causal()],
    "tap": [fo.Scale("s"), fo.Causal(), fo.Tap("act")],
}
#: Shapes of x and other, by what is odd about them: batches, rows, depth; then columns.
PAIRS = {
    "plain": ((4, 256, 64), (4, 64, 256)),
    "heads share keys": ((2, 3, 5, 200, 72), (2, 3, 1, 72, 264)),
    "one for all": ((3, 300, 128), (1, 128, 520)),
    "a batch of keys": ((384, 64), (5, 64, 384)),
    "many": ((150, 128, 40), (150, 40, 256)),
}
#: What stands between the products of an MLP.
HIDDEN = {
    "gelu": [fo.Bias("b1"), gelu()],
    "dropout": [fo.Bias("b1"), gelu(), fo.Dropout("p")],
    "gate": [fo.Scale("s"), gated("g")],
    "bare": [gelu()],
}

OPS = {
    "empty": fo.Linear(),
    "bias": fo.Linear([fo.Bias("b")]),
    "bare": fo.Linear([gelu()]),
    "layer": fo.Linear(STORES["gelu"]),
    "saving": fo.Linear(STORES["saving"]),
    # With all that a STORE can hold.
    "full": fo.Linear(
        [fo.Bias("b"), gelu(), fo.Tap("act"), fo.Dropout("p"), fo.Residual("r", optional=True)]
    ),
    "product": fo.Matmul(),
    "causal": fo.Matmul([fo.Scale("s"), fo.Causal()]),
    "capped": fo.Matmul([fo.Softcap("cap"), fo.Causal()]),
    "dropped": fo.Matmul(SCORES["dropout"]),
    "scores": fo.Matmul([fo.Scale("s"), fo.Bias("b"), fo.Mask("m"), fo.Lengths("n"), fo.Causal()]),
    "hidden": fo.MLP([gelu()]),
    "plain": fo.MLP(HIDDEN["gelu"], [fo.Bias("b2")]),
    "block": fo.MLP(HIDDEN["dropout"], [fo.Bias("b2"), fo.Dropout("p"), fo.Residual("r")]),
}


def given(op, dtype=torch.float32, device="cpu", layout="keys", **sizes):
    """The factors and operands of a call by their names, as the op has them.

    Sizes are `rows`, of any rank, n, k, h between the products of an MLP, and the shape of r; of a
    Matmul m, n, k and `rows`, its batch, or a `pair` of shapes. By default its queries are three
    heads of two batches, which share their keys. `layout` says how its factors lie.
    """
    made = functools.partial(randn, dtype=dtype, device=device)
    if isinstance(op, fo.Matmul):
        m, n, k = (sizes.get(name, size) for name, size in {"m": 7, "n": 9, "k": 16}.items())
        of_x, of_keys = [(2, 3), (2, 1)] if "rows" not in sizes else [sizes["rows"]] * 2
        of_x, of_other = sizes.get("pair", ((*of_x, m, k), (*of_keys, k, n)))
        x, other = made(*of_x), made(*of_other, seed=1) / max(1, of_x[-1]) ** 0.5
        if layout == "keys":
            other = other.mT.contiguous().mT  # as k.mT is
        elif layout == "heads" and len(of_x) > 2:  # they lie within rows
            x = x.transpose(-3, -2).contiguous().transpose(-3, -2)
            other = other.mT.transpose(-3, -2).contiguous().transpose(-3, -2).mT
        batch = torch.broadcast_shapes(of_x[:-2], of_other[:-2])
        m, n, heads = of_x[-2], of_other[-1], batch[-1] if batch else 1
        lengths = (torch.arange(heads, device=device).view(-1, 1, 1) + 1) * n // heads
        y = (*batch, m, n)
        tensors = {"x": x, "other": other, "s": 0.5, "b": made(*batch[-1:], m, n, seed=2)}
        tensors["m"] = randn(*batch[:-1], 1, 1, n, device=device, seed=3) > 1
        tensors |= {"n": lengths, "g": made(*y, seed=9)}
    else:
        sizes = {"rows": (2, 6), "n": 24, "k": 16, "h": 40} | sizes
        rows, n, k, h = (sizes[name] for name in ("rows", "n", "k", "h"))
        y, between = (*rows, n), (*rows, h) if isinstance(op, fo.MLP) else (*rows, n)
        shapes = {"x": (*rows, k), "w": (n, k), "w1": (h, k), "w2": (n, h)}
        shapes |= {"b": (n,), "b1": (h,), "b2": (n,), "row": (*rows, 1), "g": between}
        tensors = {name: made(*size, seed=i) for i, (name, size) in enumerate(shapes.items())}
        for name in op.inputs[1:]:
            tensors[name] /= max(1, tensors[name].shape[1]) ** 0.5
        tensors["s"] = randn(between[-1], device=device, seed=11)
    tensors |= {"r": made(*sizes.get("r", y), seed=12), "p": P, "cap": 2.0}
    return {name: tensors[name] for name in (*op.inputs, *op.slots)}


def allowed(op, tensors):
    """The outputs in float64, and the bound of docs/explanation/products.md for each element."""
    (x, other), operands = apart(op, tensors)
    u = torch.finfo(x.dtype).eps / 2
    double = {
        key: one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for key, one in operands.items()
    }
    w = op.turned(other).double()
    z, size, terms = x.double() @ w.mT, x.double().abs() @ w.abs().mT, x.shape[-1]
    # A bias that the STORE begins with is one more term of the sum that is rounded.
    b = z.new_zeros(())
    if isinstance(op, fo.Linear):
        terms += 1
        b = double["b"] if isinstance(op.store[0], fo.Bias) else b
    off = u * (z + b).abs() + math.sqrt(terms) * 2.0**-23 * (size + b.abs())
    run = [
        op.epilogue.unfused(at, **double, generator=(SEED, OFFSET)) for at in (z, z + off, z - off)
    ]
    truth, *ends = [[one] if isinstance(one, torch.Tensor) else one for one in run]
    bounds = []
    for i, at in enumerate(truth):
        far = torch.stack([(end[i] - at).nan_to_num(0.0).abs() for end in ends]).amax(0)
        size = torch.where(at.isinf(), 0.0, at.abs())
        bounds.append(far + (u + 4e-6) * (1 + 1e-3) * size + 4e-6)
    return truth, bounds


def exact(tensors):
    """The same with factors and biases of few bits: product and bias add up without an error.

    In whatever order, so that all implementations round the same sum.
    """
    parts = {"x": 8, "b": 8, "b1": 8, "w": 128, "w1": 128}
    return {
        name: (one * parts[name]).round() / parts[name] if name in parts else one
        for name, one in tensors.items()
    }


def learning(tensors, names=None):
    """The same, of which those of these names, or all floating ones, are leaves with a gradient."""
    return {
        name: one.detach().clone().requires_grad_()
        if isinstance(one, torch.Tensor)
        and one.is_floating_point()
        and (names is None or name in names)
        else one
        for name, one in tensors.items()
    }


def apart(op, tensors):
    """What a call gives by position, and what by name."""
    operands = {name: one for name, one in tensors.items() if name not in op.inputs}
    return [tensors[name] for name in op.inputs], operands


def call(op, tensors, function=None, **options):
    """What the op, or a function of the same arguments, returns, as a list."""
    factors, operands = apart(op, tensors)
    result = (function or op)(*factors, **operands, **options)
    return [result] if isinstance(result, torch.Tensor) else [*result]


def gradients(tensors, outputs, **more):
    """Those of all leaves, from random numbers."""
    leaves = [one for one in tensors.values() if getattr(one, "requires_grad", False)]
    upstream = [
        randn(*y.shape, dtype=y.dtype, device=y.device, seed=20 + i) for i, y in enumerate(outputs)
    ]
    return [*torch.autograd.grad(outputs, leaves, upstream, **more)] if leaves else []


def step(op, tensors, function=None, **options):
    """Outputs, then gradients; what is drawn from torch's generator is the same at each call."""
    torch.manual_seed(7)
    outputs = call(op, tensors, function, **options)
    return [*(y.detach() for y in outputs), *gradients(tensors, outputs)]


def all_same(first, second):
    """Whether results are the same to the bit."""
    return all(
        one is other is None or same_bits(one, other)
        for one, other in zip(first, second, strict=True)
    )


def close(first, second, far=1e-11):
    for got, want in zip(first, second, strict=True):
        torch.testing.assert_close(got, want, rtol=far, atol=far)


def compiled(function, backend="aot_eager", **options):
    """A function of the same arguments that torch compiles, as if it were the first one."""
    torch._dynamo.reset()
    return torch.compile(
        lambda *factors, **named: function(*factors, **named),
        backend=backend,
        fullgraph=True,
        **options,
    )


def in_a_checkpoint(function, reentrant=False):
    """The same function, which keeps its arguments alone."""
    return lambda *factors, **named: checkpoint(
        functools.partial(function, **named), *factors, use_reentrant=reentrant
    )


def saved(function):
    """The shapes of what autograd keeps of a call, by memory, and the result."""
    found = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t) or t, lambda t: t):
        result = function()
    return {one.untyped_storage().data_ptr(): tuple(one.shape) for one in found}, result


def kept_beside(tensors, function):
    """The sizes of what a call keeps that was not given to it, and its result."""
    own = {
        one.untyped_storage().data_ptr()
        for one in tensors.values()
        if isinstance(one, torch.Tensor)
    }
    kept, result = saved(function)
    sizes = (torch.Size(shape).numel() for memory, shape in kept.items() if memory not in own)
    return sorted(size for size in sizes if size), result


def forced(implementation):
    """All shapes have one kernel of this tiling, or two kernels."""
    return force_launch(product=ProductConfig(implementation))


def on_hopper(monkeypatch, target=HOPPER):
    """Choices are those of such a GPU, wherever tensors are."""
    monkeypatch.setattr(choices.Target, "of", classmethod(lambda cls, device: target))


def needs_hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is an instruction of sm_90a")


def may_be_one(monkeypatch, answer=True):
    """Code is compiled as where one kernel may be chosen for some sizes, or for none.

    Returns what is asked: the outputs beside the first one, and what is known of w's sizes.
    """
    asked = []

    def of(store, dtype, device, reads, writes, draws, n, k):
        asked.append((writes, n, k))
        return answer

    of._dynamo_marked_constant = True
    monkeypatch.setattr(torch_op, "_may_be_one", of)
    torch._dynamo.reset()
    return asked


def check_resources(variant, fewer=False):
    """No register spills, with fewer packs at a time if those may be, and no wgmma waits."""
    _, log = nvrtc.compile_cuda(variant.source, variant.arch, [nvrtc.RESOURCES])
    assert "registers" in log, "no report, so that nothing would be found"
    assert fewer or "registers spill" not in log, log
    assert "C75" not in log, log  # wgmma that waits for one another, or for what ptxas adds
    spilled = [line for line in log.splitlines() if "bytes spill" in line]
    assert spilled, log
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in spilled), log


def recording(monkeypatch, tmp_path):
    """A file in which calls are recorded from now on."""
    file = tmp_path / "calls.jsonl"
    monkeypatch.setenv("FUSEDOPS_RECORD", str(file))
    monkeypatch.setattr("fusedops.prebuild.recording._seen", set())
    return file


@contextlib.contextmanager
def declaring(tmp_path, monkeypatch, name, text):
    """A module with these declarations in the working directory; within it, the empty cache."""
    (tmp_path / f"{name}.py").write_text(f"import fusedops as fo\n{text}")
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    tuned.find.cache_clear()
    lookup.forget()
    yield tmp_path / "cache"
    tuned.find.cache_clear()
    lookup.forget()
