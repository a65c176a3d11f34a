# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Chains as fusedops declarations, inputs for them, and one comparison that every test uses."""

import contextlib
import functools
import math
from collections.abc import Mapping

import pytest
import torch
from gradients import check_double, check_gradient, differentiate
from philox import drawn
from references import Chain, check, evaluate
from steps import STEPS
from torch.utils._python_dispatch import TorchDispatchMode

import fusedops as fo
from fusedops import testing

HALVES = [torch.float16, torch.bfloat16]
FLOATS = [*HALVES, torch.float32]

SOFTMAX = Chain("softmax")
LOG_SOFTMAX = Chain("log_softmax")
LAYER_NORM = Chain("layer_norm", store=(("affine", "gamma", "beta"),), eps=1e-5)
RMS_NORM = Chain("rms_norm", store=(("affine", "gamma", None),), eps=1e-6)
L2_NORM = Chain("l2_norm", eps=1e-12)
MAP = Chain("map", load=(("affine", "gamma", "beta"),))

#: Each operator in its plainest form, norms with their parameters.
OPERATORS = {chain.op: chain for chain in (SOFTMAX, LOG_SOFTMAX, LAYER_NORM, RMS_NORM)}
NORMS = ["layer_norm", "rms_norm"]

ATTENTION = Chain(
    "softmax",
    load=(("scale", "scale"), ("bias", "pair_bias"), ("mask", "padding")),
    store=(("dropout", "p"),),
)
ADD_NORM = Chain(
    "layer_norm",
    load=(("bias", "bias"), ("dropout", "p"), ("residual", "residual", 1.0, "stream")),
    store=(("affine", "gamma", "beta"),),
    eps=1e-5,
)


def functor(word, *arguments):
    """The functor that says what a step says."""
    step = STEPS[word]
    return step.declare(getattr(fo, step.functor), *arguments)


def thorough(*values):
    """Values of a parameter that only the thorough run has, for what differs little."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def exhaustive(*values):
    """Values of a parameter that neither the default run nor CI has."""
    marks = [pytest.mark.thorough, pytest.mark.exhaustive]
    return [pytest.param(value, marks=marks) for value in values]


def thorough_points(*points, exhaustive=()):
    """Points of several parameters that only the thorough run has; those of names are not in CI."""
    marks = {False: [pytest.mark.thorough], True: [pytest.mark.thorough, pytest.mark.exhaustive]}
    return [pytest.param(*point, marks=marks[point[0] in exhaustive]) for point in points]


def but_seldom(names, seldom):
    """Values of a parameter, of which CI lacks some."""
    marks = [pytest.mark.thorough, pytest.mark.exhaustive]
    return [pytest.param(name, marks=marks if name in seldom else []) for name in names]


@functools.cache
def declare(chain):
    """The fused op that a chain describes."""
    kinds = {
        "softmax": fo.Softmax,
        "log_softmax": fo.LogSoftmax,
        "layer_norm": fo.LayerNorm,
        "rms_norm": fo.RMSNorm,
        "l2_norm": fo.L2Norm,
        "map": fo.Map,
    }
    if chain.op.endswith("norm"):
        options = {"eps": chain.eps, "stats": chain.stats}
    elif chain.op == "map":
        options = {}
    else:
        options = {"empty_row": chain.empty_row, "lse": chain.lse, "sink": chain.sink}
    load = [functor(*step) for step in chain.load]
    store = [functor(*step) for step in chain.store]
    return kinds[chain.op](load=load, store=store, **options)


def randn(*shape, dtype=torch.float32, device="cpu", seed=0):
    """Normal numbers that depend on the arguments alone."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, dtype=torch.float32, device=device, generator=generator).to(dtype)


def parameters(chain, columns, dtype=torch.float32, device="cpu"):
    """Operands for the affine step of a plain norm; nothing for a softmax."""
    steps = (*chain.load, *chain.store)
    names = [name for word, *names in steps if word == "affine" for name in names if name]
    return {
        name: randn(columns, dtype=dtype, device=device, seed=10 + i)
        for i, name in enumerate(names)
    }


@contextlib.contextmanager
def forced(schedule, also=()):
    """Every call runs on `schedule`, and the last one did; None leaves the choice alone.

    `also` names what else it may have run on.
    """
    if schedule is None:
        yield
        return
    with testing.force_schedule(schedule):
        yield
    assert testing.last_schedule() in (schedule, *also)


def named(result):
    """A call's result as a mapping, whether it is one tensor or a named tuple."""
    if isinstance(result, torch.Tensor):
        return {"y": result}
    return result._asdict()


def poisoned(shape, dtype, device):
    """An output full of NaN between two guards, and a function that says whether they still stand.

    A value that is never written shows in the output, one that is written outside shows here.
    """
    guard = 64
    count = torch.Size(shape).numel()
    buffer = torch.full((count + 2 * guard,), torch.nan, dtype=dtype, device=device)
    out = buffer[guard : guard + count].view(shape)

    def intact():
        return bool(buffer[:guard].isnan().all() and buffer[guard + count :].isnan().all())

    return out, intact


def verify(chain, x, operands, *, seed=1, schedule=None, unfused=True, **options):
    """Call the fused op of `chain` and hold every output to the bound; the outputs, by name.

    The op's own unfused chain has to meet the same bound.
    """
    op = declare(chain)

    def call(function):
        generator = torch.Generator(x.device).manual_seed(seed)
        return named(function(x, **operands, generator=generator, **options))

    with forced(schedule):
        got = call(op)
    compare(chain, x, operands, got, seed=seed, **options)
    if unfused:
        compare(chain, x, operands, call(op.unfused), seed=seed, **options)
    return got


def compare(chain, x, operands, got: Mapping, *, seed=1, training=True, dtype=None, **options):
    """Hold outputs that came from somewhere to the bound."""
    draw = drawn(x.device, seed) if training else None
    compute = torch.float64 if torch.float64 in (x.dtype, dtype) else torch.float32
    peak: list[torch.Tensor] = []
    ref = evaluate(chain, x, operands, torch.float64, draw, got, peak)
    near = evaluate(chain, x, operands, compute, draw, got, nudge=compute is torch.float64)
    assert list(got) == list(ref), f"outputs are {list(got)}, not {list(ref)}"
    assert got["y"].dtype == (dtype or x.dtype)
    for name in got:
        if name in ("mean", "rstd", "norm"):
            assert got[name].dtype == compute
            # A mean of numbers that cancel is as uncertain as the largest of them.
            floor = x.abs().amax(-1) if name == "mean" else ref[name]
            check(got[name], ref[name], near[name], floor=floor, what=name)
        elif name == "lse":
            assert got[name].dtype == compute
            # Maximum and logarithm of the sum, which may cancel: of at most so many terms.
            floor = ref[name].abs() + math.log(x.shape[-1] + 1)
            check(got[name], ref[name], near[name], floor=floor, what=name)
        else:
            check(got[name], ref[name], near[name], what=name, peak=peak if name == "y" else ())


def row_counts(columns, device, limit=1 << 26):
    """How many rows to try with so many columns: the most first."""
    if torch.device(device).type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        counts = sorted([65537, processors + 1, processors, 199, 3, 1, 0], reverse=True)
    else:
        counts, limit = [199, 3, 1, 0], 1 << 20
    return [rows for rows in counts if rows * columns <= limit]


@contextlib.contextmanager
def raises(kind, *parts):
    """An error of this kind, whose message holds each of `parts`, before anything is launched."""
    with testing.count_launches() as launches, pytest.raises(kind) as raised:
        yield
    missing = [part for part in parts if part not in str(raised.value)]
    assert not missing, f"{str(raised.value)!r} does not say {missing}"
    assert not launches, "launched all the same"


def floating(operands):
    """The operands that can have gradients."""
    return {
        name: value
        for name, value in operands.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }


def upstream_of(chain, x, operands, dtype=None, seed=90):
    """Random gradients of y, of every saved stream and of lse, by name."""
    result = {"y": randn(*x.shape, dtype=dtype or x.dtype, device=x.device, seed=seed)}
    for word, *arguments in (*chain.load, *chain.store):
        saved = STEPS[word].stream(x, operands, *arguments)
        if saved is not None:
            seed += 1
            result[saved[0]] = randn(*x.shape, dtype=saved[1], device=x.device, seed=seed)
    if chain.lse:
        compute = torch.float64 if torch.float64 in (x.dtype, dtype) else torch.float32
        result["lse"] = randn(*x.shape[:-1], dtype=compute, device=x.device, seed=seed + 1)
    return result


def same_bits(a, b):
    """Whether two tensors are equal to the bit, NaN and signed zero included."""
    bits = [t.contiguous().flatten().view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)


def gradients_of(function, x, operands, upstream, *, wanted=None, seed=1, **options):
    """Outputs of a call and the gradients of x and its floating operands, each by name.

    `function` is the op or its unfused chain; no argument is copied, so layouts are as they come.
    Outputs that `upstream` does not name are not used. `wanted` names the tensors whose gradients
    are asked for, all by default.
    """
    wanted = ["x", *floating(operands)] if wanted is None else wanted
    given = {"x": x, **operands}
    leaves = {name: given[name].detach().requires_grad_() for name in wanted}
    given |= leaves
    generator = torch.Generator(x.device).manual_seed(seed)
    outputs = named(function(given.pop("x"), **given, generator=generator, **options))
    results = torch.autograd.grad(
        [outputs[name] for name in upstream], list(leaves.values()), list(upstream.values())
    )
    return outputs, dict(zip(wanted, results, strict=True))


def compare_gradients(chain, x, operands, upstream, outputs, got, *, seed=1, **options):
    """Hold gradients that came from somewhere to the bound; the largest share of it."""
    draw = drawn(x.device, seed) if options.get("training", True) else None
    double = torch.float64 in (x.dtype, outputs["y"].dtype)
    saved = {name: tensor.detach() for name, tensor in outputs.items()}
    truth, near = (
        differentiate(chain, x, operands, upstream, compute, draw, saved)
        for compute in (torch.float64, torch.float64 if double else torch.float32)
    )
    given = {"x": x, **operands}
    largest = 0.0
    for name, gradient in got.items():
        what = f"d {name}"
        assert gradient.dtype == given[name].dtype, what
        assert gradient.shape == given[name].shape, what
        if double and gradient.dtype == torch.float64:
            share = check_double(gradient, truth[name], what)
        else:
            share = check_gradient(gradient, truth[name], near[name], what)
        largest = max(largest, share)
    return largest


def verify_gradients(chain, x, operands, upstream=None, *, schedule=None, unfused=False, **options):
    """Hold every gradient of the fused op of `chain` to the bound; the gradients by name.

    `upstream` holds gradients of outputs, random ones for all of them by default; a `schedule` is
    forced forward and backward. With `unfused`, the op's own chain has to meet the bound as well.
    """
    op = declare(chain)
    if upstream is None:
        upstream = upstream_of(chain, x, operands, options.get("dtype"))
    # Where no rows share a gradient there is nothing to keep in shared memory.
    with forced(schedule, also=["register"] * (schedule == "shared")):
        outputs, got = gradients_of(op, x, operands, upstream, **options)
    options.pop("wanted", None)
    compare_gradients(chain, x, operands, upstream, outputs, got, **options)
    if unfused:
        outputs, plain = gradients_of(op.unfused, x, operands, upstream, **options)
        compare_gradients(chain, x, operands, upstream, outputs, plain, **options)
    return got


class Seen(TorchDispatchMode):
    """The operators that a mode sees."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))
