# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the gradients of a chain are, written by hand, and how far from them a result may be.

Nothing here comes from fusedops. `differentiate` walks back what `references.evaluate` walked;
`steps` has a derivative for every word. In float64 that is the truth; in float32, through torch's
own backward of softmax and the norms, it gives the error that an unfused chain makes.
"""

import math
from dataclasses import dataclass

import torch
from references import TORCH, check, evaluate
from steps import STEPS

#: How far two double chains may be apart, of the largest number that takes part.
DOUBLE = 1e-12


@dataclass
class Gradient:
    """The gradient of one tensor, an element for every element of x until it is summed.

    Attributes:
        each: What each element of x contributes.
        scale: The size of the numbers that were added up for it: what a rounding is relative to.
            Where they cancel it says more than the contribution does.
    """

    each: torch.Tensor
    scale: torch.Tensor

    def __add__(self, other):
        return Gradient(self.each + other.each, self.scale + other.scale)

    def times(self, factor):
        factor = torch.as_tensor(factor, dtype=self.each.dtype, device=self.each.device)
        return Gradient(self.each * factor, self.scale * factor.abs())

    def select(self, kept):
        """Zero where not kept, whatever is there."""
        return Gradient(torch.where(kept, self.each, 0), torch.where(kept, self.scale, 0))

    def moved(self, to):
        """The same elsewhere: `to` puts what each element contributes where it belongs."""
        return Gradient(to(self.each), to(self.scale))


class Way:
    """What the steps of a chain may ask on the way back, and where operands' gradients go.

    Attributes:
        x, operands, upstream, compute: As `differentiate` was given them.
        kept: The elements that have gradients, or None for all.
        centre: What each row's mean makes of the uncertainty of the result.
        result: The gradients of operands by name.
    """

    def __init__(self, x, operands, upstream, compute, centre):
        self.x, self.operands, self.compute, self.centre = x, operands, compute, centre
        self.upstream = {name: g for name, g in upstream.items() if g is not None}
        self.kept = None
        self.result = {}

    def operand(self, name):
        """A floating operand in the compute type."""
        value = self.operands[name]
        return value.to(self.compute) if isinstance(value, torch.Tensor) else value

    def arriving(self, name):
        """The gradient of an output, zero if it has none."""
        g = self.upstream.get(name)
        g = torch.zeros(self.x.shape, device=self.x.device) if g is None else g
        return Gradient(g.to(self.compute), g.to(self.compute).abs())

    def join(self, name, g):
        """Add a stream's own gradient: it holds what a mask takes out of the row later on."""
        self.kept = None
        return g + self.arriving(name)

    def give(self, name, gradient):
        """Take the gradient of an operand."""
        if not isinstance(self.operands.get(name), torch.Tensor):
            return
        if self.kept is not None:
            gradient = gradient.select(self.kept)
        self.result[name] = self.result[name] + gradient if name in self.result else gradient

    def back(self, g, steps, kept):
        """Through the steps, last first; nothing gets a gradient from what is not kept."""
        self.kept = kept
        for step in reversed(steps):
            if self.kept is not None:
                g = g.select(self.kept)
            g = STEPS[step.word].back(self, g, step, *step.arguments)
        return g if self.kept is None else g.select(self.kept)


def differentiate(chain, x, operands, upstream, compute, draw=None, saved=None):
    """The gradients of x and of every floating tensor operand, by name.

    `upstream` holds those of y and of saved streams, by name; what is not there has none. The rest
    is as for `evaluate`.
    """
    tape = {}
    evaluate(chain, x, operands, compute, draw, saved, tape=tape)
    v, y = tape["reduced"], tape["result"]
    # A LayerNorm's result is made again with a mean that has roundings of its own, of the size of
    # the row's deviations. It shows where the result is near zero; the forward pass is allowed more
    # there: roundings of the row's largest.
    centre = y.abs().mean(-1, keepdim=True) if chain.op == "layer_norm" else 0
    masked = chain.op == "map" and any(STEPS[word].masks for word, *_ in chain.load)
    row = (v != -torch.inf) if chain.op.endswith("softmax") or masked else None
    # A logarithm of -inf is a constant, and so is what the store makes of it; a probability of zero
    # is one as well, but the store's operands still act on it.
    way = Way(x, operands, upstream, compute, centre)
    g = way.back(way.arriving("y"), tape["store"], row if chain.op == "log_softmax" else None)
    g = g if row is None else g.select(row)
    of_lse = upstream["lse"].to(compute)[..., None] if "lse" in upstream else None
    sink = tape["sink"]
    if compute == torch.float64:
        g, of_sink = reduced_backward(chain, v, y, g, sink, of_lse)
    else:
        through, at_sink = _torch_backward(chain, v, g.each, sink, of_lse)
        g, of_sink = Gradient(through, g.scale), Gradient(at_sink, at_sink)
    g = g if row is None else g.select(row)
    if sink is not None:
        way.kept = sink != -torch.inf
        way.give(chain.sink, of_sink)
    way.result["x"] = way.back(g, tape["load"], row)
    return way.result


def reduced_backward(chain, v, y, g, sink, of_lse):
    """The gradients of what is reduced and of the sink, from those of the result and of lse.

    With p the probabilities, those of the sink and of masked elements included, lse has the
    gradient p; and every p_j has -p_j * p_sink at the sink.
    """
    result = FORMULAS[chain.op](chain, v, y, g)
    if of_lse is None and sink is None:
        return result, None
    of_lse = torch.zeros_like(y[..., :1]) if of_lse is None else of_lse
    p = torch.exp(y) if chain.op == "log_softmax" else y
    result = result + Gradient(p * of_lse, REMADE * p * of_lse.abs())
    if sink is None:
        return result, None
    top = torch.maximum(v.amax(-1, keepdim=True), sink)
    total = torch.exp(v - top).sum(-1, keepdim=True) + torch.exp(sink - top)
    at_sink = torch.exp(sink - top) / total
    weight = 1 if chain.op == "log_softmax" else y
    sum_of = (weight * g.each).sum(-1, keepdim=True)
    size = (weight * g.scale).sum(-1, keepdim=True)
    return result, Gradient(at_sink * (of_lse - sum_of), REMADE * at_sink * (of_lse.abs() + size))


#: Roundings of a probability that is made again from v and two kept numbers, in shares of those
#: four that any result has: the hardware's exponential 2, the sum of those it is divided by 2, the
#: reciprocal 1, the product 1, and as much again as it enters the sum over the row, 2 of them.
REMADE = 2


def softmax_backward(chain, v, y, g):
    def through(each, against):
        return y * (each - against * (y * each).sum(-1, keepdim=True))

    return Gradient(through(g.each, 1), REMADE * through(g.scale, -1))


def log_softmax_backward(chain, v, y, g):
    total = g.each.sum(-1, keepdim=True)
    spread = torch.maximum(total.abs(), g.scale.square().sum(-1, keepdim=True).sqrt())
    return Gradient(g.each - torch.exp(y) * total, g.scale + REMADE * torch.exp(y) * spread)


def layer_norm_backward(chain, v, y, g):
    rstd = 1 / torch.sqrt(v.var(-1, correction=0, keepdim=True) + chain.eps)
    plain = g.each.mean(-1, keepdim=True)
    along = (g.each * y).mean(-1, keepdim=True)
    scale = g.scale + g.scale.mean(-1, keepdim=True)
    scale = scale + y.abs() * (g.scale * y.abs()).mean(-1, keepdim=True)
    return Gradient(rstd * (g.each - plain - y * along), rstd * scale)


def rms_norm_backward(chain, v, y, g):
    rstd = 1 / torch.sqrt(v.square().mean(-1, keepdim=True) + chain.eps)
    along = (g.each * y).mean(-1, keepdim=True)
    scale = g.scale + y.abs() * (g.scale * y.abs()).mean(-1, keepdim=True)
    return Gradient(rstd * (g.each - y * along), rstd * scale)


def l2_norm_backward(chain, v, y, g):
    norm = v.square().sum(-1, keepdim=True).sqrt()
    whole = norm >= chain.eps
    along = torch.where(whole, (g.each * y).sum(-1, keepdim=True), 0)
    scale = g.scale + y.abs() * torch.where(whole, (g.scale * y.abs()).sum(-1, keepdim=True), 0)
    divisor = norm.clamp(min=chain.eps)
    return Gradient((g.each - y * along) / divisor, scale / divisor)


def map_backward(chain, v, y, g):
    return g


FORMULAS = {
    "softmax": softmax_backward,
    "log_softmax": log_softmax_backward,
    "layer_norm": layer_norm_backward,
    "rms_norm": rms_norm_backward,
    "l2_norm": l2_norm_backward,
    "map": map_backward,
}


def _torch_backward(chain, v, g, sink, of_lse):
    leaves = [v.detach().requires_grad_()]
    leaves += [] if sink is None else [sink.detach().requires_grad_()]
    outputs = {}
    with torch.enable_grad():
        y = TORCH[chain.op](leaves[0], chain, outputs, *leaves[1:])
    results = [y] if of_lse is None else [y, outputs["lse"]]
    arriving = [g] if of_lse is None else [g, of_lse[..., 0]]
    found = torch.autograd.grad(results, leaves, arriving)
    return found if sink is not None else (*found, torch.zeros(()))


def sum_to(each, shape):
    """The sum over the dimensions in which an operand of this shape is broadcast."""
    lead = each.dim() - len(shape)
    summed = [
        dim for dim in range(each.dim()) if dim < lead or (shape[dim - lead] == 1 < each.shape[dim])
    ]
    return (each.sum(summed) if summed else each).reshape(shape)


def check_gradient(got, truth, near, what):
    """Hold the gradient of a tensor to the bound; the largest share of it that an element used.

    A gradient of x's size is judged like an output, row by row. A sum of n terms is judged by
    itself, and by all that was added up for it: in float32 it is only certain to log2(n) roundings
    of the sum of its terms' sizes, be it added in pairs, however small the terms leave it.

    Args:
        got: the gradient as it came, in its tensor's shape and dtype.
        truth: what `differentiate` says in float64.
        near: the same in float32 (for double: in float64 through torch).
        what: the name of the tensor.
    """
    ref, chain = sum_to(truth.each, got.shape), sum_to(near.each, got.shape)
    if got.shape == truth.each.shape:
        return check(got, ref, chain, what=what, peak=(truth.scale,))
    terms = max(2, truth.each.numel() // max(1, got.numel()))
    # Half of a type's eps is its rounding.
    floor = sum_to(truth.scale, got.shape) * max(1, math.log2(terms) / 2)
    return check(got, ref, chain, floor=floor, what=what)


def check_double(got, truth, what):
    """Hold a double gradient to `DOUBLE` of the largest number that was added up for it."""
    ref = sum_to(truth.each, got.shape)
    assert got.dtype == torch.float64
    scale = sum_to(truth.scale, got.shape)
    largest = scale.amax(-1, keepdim=True) if scale.dim() else scale
    share = (got - ref).abs() / (DOUBLE * largest)
    share = torch.where((got == ref) | (got.isnan() & ref.isnan()), 0, share)
    worst = share.nan_to_num(torch.inf).max().item() if share.numel() else 0.0
    assert worst <= 1, f"{what} is off by {worst:.3g} times {DOUBLE} of its row's largest"
    return worst
