# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What every op and functor means, written by hand, and how far from it a result may be.

Nothing here comes from fusedops. A `Chain` says in plain words what a declaration says in
functors; `evaluate` runs it in float64 for the truth, and in float32 through torch's own softmax
and norms for the error that an unfused chain makes; `check` compares.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import mpmath
import numpy as np
import torch
from steps import STEPS
from torch.nn import functional


@dataclass(frozen=True)
class Chain:
    """An op with steps before and after it.

    A step is a word and its arguments, names of operands among them: ("scale", "s"), say, or
    ("residual", "r", alpha, save). The words and their arguments are the classes in `steps`.
    """

    op: str
    load: tuple[tuple[Any, ...], ...] = ()
    store: tuple[tuple[Any, ...], ...] = ()
    empty_row: str = "zero"
    eps: float = 0.0
    stats: bool = False
    lse: bool = False
    sink: str | None = None


class Taken(NamedTuple):
    """A step that was taken, with the value it saw; for a dropout the elements that it kept."""

    word: str
    arguments: list[Any]
    saw: torch.Tensor
    survivors: torch.Tensor | None = None


class Walk:
    """What the steps of a chain may ask of an evaluation, and what they leave for others.

    Attributes:
        x, operands, compute, draw: As `evaluate` was given them.
        outputs: The saved values, before they are rounded.
        slots: Counts the dropouts.
        seen: The values that steps round.
        survivors: The elements that a dropout keeps; it sets this.
    """

    def __init__(self, chain, x, operands, compute, draw, saved):
        self.x, self.operands, self.compute, self.draw = x, operands, compute, draw
        self.outputs = {}
        self.slots = iter(range(len(chain.load) + len(chain.store)))
        self.seen = []
        self.survivors = None
        self._saved = saved

    def operand(self, name):
        """A floating operand in the compute type."""
        value = self.operands[name]
        return value.to(self.compute) if isinstance(value, torch.Tensor) else value

    def save(self, name, value):
        """Note an output; the chain goes on from what the op under test saved."""
        self.outputs[name] = value
        return self._saved[name].to(self.compute)

    def take(self, v, word, arguments):
        """One step: what it makes of v, and the record of it."""
        self.seen.append(v)
        self.survivors = None
        made = STEPS[word].value(self, v, *arguments)
        return made, Taken(word, arguments, v, self.survivors)


def evaluate(chain, x, operands, compute, draw=None, saved=None, peak=None, tape=None, nudge=False):
    """Every output of `chain` before its final rounding, by name.

    Args:
        chain: what to evaluate, over the last dimension of x.
        x: the input; it and the operands are taken as they are, rounded to their own types.
        operands: tensors and numbers by name.
        compute: the type of the arithmetic. float64 uses the formulas below, any other type
            torch's own softmax and norms.
        draw: seed and offset of the dropout; None drops nothing.
        saved: outputs of `save=`, as the op under test gave them: the chain goes on from these.
        peak: a list that gets the values which the store's steps round on the way to y.
        tape: a dict that gets what the way back needs: for "load" and "store" the steps with the
            value that each one saw and the elements that a dropout keeps, the "reduced" value and
            its "result".
        nudge: whether each step of LOAD that changes a value moves its result to a neighbour. The
            chain in double is the truth itself, and does not show what its roundings become: a norm
            of values that nearly cancel makes them large.
    """
    walk = Walk(chain, x, operands, compute, draw, saved)
    tape = {} if tape is None else tape
    kept = torch.ones((), dtype=torch.bool, device=x.device)
    for side in ("load", "store"):
        tape[side] = []
        if side == "load":
            v = x.to(compute)
            if chain.op == "map" and peak is not None:
                walk.seen = peak  # the load's steps are what rounds on the way to y
        else:
            reduce = FORMULAS[chain.op] if compute == torch.float64 else TORCH[chain.op]
            tape["reduced"] = v.masked_fill(~kept, -torch.inf)
            tape["sink"] = of_rows(walk.operand(chain.sink), v) if chain.sink else None
            v = tape["result"] = reduce(tape["reduced"], chain, walk.outputs, tape["sink"])
            if chain.op != "map":
                walk.seen = [] if peak is None else peak
        for word, *arguments in getattr(chain, side):
            before, streams = v, len(walk.outputs)
            v, step = walk.take(v, word, arguments)
            tape[side].append(step)
            if nudge and side == "load" and len(walk.outputs) == streams:
                v = torch.where(v == before, v, neighbours(v))
            stays = STEPS[word].kept(walk, *arguments)
            kept = kept if stays is None else kept & stays
    return {"y": v, **walk.outputs}


def neighbours(v):
    """The next number below or above each value, as a random bit says."""
    bits = torch.rand(v.shape, generator=torch.Generator().manual_seed(77)).to(v.device) < 0.5
    ends = torch.where(bits, -torch.inf, torch.inf).to(v.dtype)
    return torch.where(v.isfinite(), torch.nextafter(v, ends), v)


def of_rows(sink, v):
    """A sink as one more column: a number for each row."""
    return torch.as_tensor(sink, dtype=v.dtype, device=v.device).expand(*v.shape[:-1], 1)


def top_and_total(v, chain, outputs, sink):
    """The largest logit of each row, and the sum of exponentials below it; the sink is a logit."""
    top = v.amax(-1, keepdim=True)
    top = top if sink is None else torch.maximum(top, sink)
    total = torch.exp(v - top).sum(-1, keepdim=True)
    total = total if sink is None else total + torch.exp(sink - top)
    if chain.lse:
        lse = torch.where(top == -torch.inf, -torch.inf, top + total.log())
        outputs["lse"] = lse[..., 0]
    return top, total


def softmax_formula(v, chain, outputs, sink=None):
    top, total = top_and_total(v, chain, outputs, sink)
    y = torch.exp(v - top) / total
    return y if chain.empty_row == "nan" else torch.where(top == -torch.inf, 0.0, y)


def log_softmax_formula(v, chain, outputs, sink=None):
    top, total = top_and_total(v, chain, outputs, sink)
    y = v - top - total.log()
    return y if chain.empty_row == "nan" else torch.where(top == -torch.inf, -torch.inf, y)


def layer_norm_formula(v, chain, outputs, sink=None):
    mean = v.mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt((v - mean).square().mean(-1, keepdim=True) + chain.eps)
    if chain.stats:
        outputs.update(mean=mean[..., 0], rstd=rstd[..., 0])
    return (v - mean) * rstd


def rms_norm_formula(v, chain, outputs, sink=None):
    rstd = 1 / torch.sqrt(v.square().mean(-1, keepdim=True) + chain.eps)
    if chain.stats:
        # The mean is that which is subtracted: none.
        outputs.update(mean=torch.zeros_like(rstd[..., 0]), rstd=rstd[..., 0])
    return v * rstd


def l2_norm_formula(v, chain, outputs, sink=None):
    norm = v.square().sum(-1, keepdim=True).sqrt()
    if chain.stats:
        outputs.update(norm=norm[..., 0])
    return v / norm.clamp(min=chain.eps)


def map_formula(v, chain, outputs, sink=None):
    return v


FORMULAS = {
    "softmax": softmax_formula,
    "log_softmax": log_softmax_formula,
    "layer_norm": layer_norm_formula,
    "rms_norm": rms_norm_formula,
    "l2_norm": l2_norm_formula,
    "map": map_formula,
}


def logits_torch(v, chain, outputs, sink):
    """The logits with the sink among them, and which rows have none; lse is an output."""
    columns = v.shape[-1]
    v = v if sink is None else torch.cat([v, sink], -1)
    if chain.lse:
        outputs["lse"] = torch.logsumexp(v, -1)
    return v, (v == -torch.inf).all(-1, keepdim=True), columns


def softmax_torch(v, chain, outputs, sink=None):
    v, empty, columns = logits_torch(v, chain, outputs, sink)
    y = torch.softmax(v, -1)[..., :columns]
    return y if chain.empty_row == "nan" else torch.where(empty, 0.0, y)


def log_softmax_torch(v, chain, outputs, sink=None):
    v, empty, columns = logits_torch(v, chain, outputs, sink)
    y = torch.log_softmax(v, -1)[..., :columns]
    return y if chain.empty_row == "nan" else torch.where(empty, -torch.inf, y)


def layer_norm_torch(v, chain, outputs, sink=None):
    y, mean, rstd = torch.native_layer_norm(v, v.shape[-1:], None, None, chain.eps)
    if chain.stats:
        outputs.update(mean=mean[..., 0], rstd=rstd[..., 0])
    return y


def rms_norm_torch(v, chain, outputs, sink=None):
    if chain.stats:
        rstd = torch.rsqrt(v.square().mean(-1) + chain.eps)
        outputs.update(mean=torch.zeros_like(rstd), rstd=rstd)
    return functional.rms_norm(v, v.shape[-1:], eps=chain.eps)


def l2_norm_torch(v, chain, outputs, sink=None):
    if chain.stats:
        outputs.update(norm=torch.linalg.vector_norm(v, dim=-1))
    return functional.normalize(v, dim=-1, eps=chain.eps)


TORCH = {
    "softmax": softmax_torch,
    "log_softmax": log_softmax_torch,
    "layer_norm": layer_norm_torch,
    "rms_norm": rms_norm_torch,
    "l2_norm": l2_norm_torch,
    "map": map_formula,
}


def exact(tensor):
    """A float64 tensor as an array of mpmath numbers, for arithmetic beyond float64."""
    values = tensor.detach().cpu().double().numpy()
    return np.vectorize(mpmath.mpf, otypes=[object])(values)


def precise(op, v, eps=0.0):
    """An op over the last dimension of mpmath numbers, as a float64 pair (high, low)."""
    exp, log, sqrt = (
        np.vectorize(f, otypes=[object]) for f in (mpmath.exp, mpmath.log, mpmath.sqrt)
    )
    with mpmath.workdps(50):
        if op in ("softmax", "log_softmax"):
            shifted = v - v.max(-1, keepdims=True)
            total = exp(shifted).sum(-1, keepdims=True)
            y = exp(shifted) / total if op == "softmax" else shifted - log(total)
        elif op == "l2_norm":
            y = v / np.maximum(sqrt((v * v).sum(-1, keepdims=True)), mpmath.mpf(eps))
        else:
            centred = v - v.mean(-1, keepdims=True) if op == "layer_norm" else v
            y = centred / sqrt((centred * centred).mean(-1, keepdims=True) + mpmath.mpf(eps))
        return split(y)


def split(y):
    """An array of mpmath numbers as two float64 tensors whose sum it is."""
    high = y.astype(np.float64)
    low = (y - high).astype(np.float64)
    return torch.from_numpy(high), torch.from_numpy(low)


def ulp(ref, dtype):
    """The distance between neighbours of type `dtype` around each value of `ref`."""
    info = torch.finfo(dtype)
    smallest = torch.tensor(info.tiny, dtype=torch.float64).log2().item()
    exponent = torch.frexp(ref.double()).exponent.double() - 1
    exponent = torch.where(ref == 0, smallest, exponent)
    return torch.exp2(exponent.clamp(min=smallest)) * info.eps


def bound(ref, chain, dtype, floor=None, low=0.0, peak=()):
    """How far a result of type `dtype` may be from `ref`, per element.

    0.51 ulp for its one rounding, and four times the largest error that the float32 chain makes in
    that row, but at least four float32 roundings of the row's largest value (or of `floor`, for a
    number per row whose size says nothing about what was added up for it). Where the store's steps
    cancel (gamma * n against beta), the largest value is that of what they round, `peak`: y itself
    says nothing of it, and a row of three columns has too few errors to find the chain's largest.
    A chain that overflows counts as one that gives zero.
    """
    largest = ref.abs() if floor is None else floor.abs().double()
    error = ((chain.double() - ref) - low).abs()
    error = torch.where(chain.isfinite(), error, ref.abs())
    error = torch.where(ref.isfinite(), error, 0)
    largest = torch.where(largest.isfinite(), largest, 0)
    if floor is None:
        error, largest = error.amax(-1, keepdim=True), largest.amax(-1, keepdim=True)
        for value in peak:
            value = torch.where(value.isfinite(), value.abs(), 0).amax(-1, keepdim=True)
            largest = torch.maximum(largest, value)
    return 0.51 * ulp(ref, dtype) + 4 * torch.maximum(error, torch.finfo(chain.dtype).eps * largest)


def check(got, ref, chain, floor=None, low=0.0, what="y", peak=()):
    """Assert that `got` is within the bound of `ref`; NaN and Inf only where they belong.

    Args:
        got: what was computed, in its own type.
        ref: the truth in float64.
        chain: the float32 (for double: float64) torch chain, not rounded to the output's type.
        floor: see `bound`.
        low: what `ref` lacks, where it is known to more than float64.
        what: the name of the output, for the report.
        peak: see `bound`.

    Returns:
        The largest share of its bound that an element used.
    """
    assert got.shape == ref.shape, f"{what} has shape {tuple(got.shape)}, not {tuple(ref.shape)}"
    if not got.numel():
        return 0.0
    allowed = bound(ref, chain, got.dtype, floor, low, peak)
    value = got.double()
    share = ((value - ref) - low).abs() / allowed
    # A bound of 0 (a row of zeros) allows exactly what it says.
    share = torch.where((value == ref) | (value.isnan() & ref.isnan()), 0, share)
    # The output's type may end below the truth: half an ulp beyond its last number.
    overflow = value.isinf() & ref.isfinite() & (value.sign() == ref.sign())
    end = torch.finfo(got.dtype).max * (1 + torch.finfo(got.dtype).eps / 4)
    share = torch.where(overflow & (ref.abs() + allowed >= end), 0, share)
    share = torch.nan_to_num(share, nan=torch.inf, posinf=torch.inf)
    worst = int(share.argmax())
    largest = share.flatten()[worst].item()
    if not largest <= 1:
        at = tuple(int(i) for i in np.unravel_index(worst, got.shape))
        wrong = int((share > 1).sum())
        raise AssertionError(
            f"{what}{list(at)} is {got[at].item()!r}, wanted {ref[at].item()!r} "
            f"within {allowed.expand_as(ref)[at].item():.3g} (float32 chain: "
            f"{chain[at].item()!r}); {wrong} of {got.numel()} elements are outside"
        )
    return largest
