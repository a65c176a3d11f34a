# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every operation that a functor of the user's own may use, each in a function of its own.

With each goes what torch itself leaves open: it does NaN one way in vectors and another way in what
remains of them, and a CPU's hardsigmoid has its gradient's sixth in float.
"""

import inspect
import math
from dataclasses import dataclass

import torch
from torch.nn import functional

import fusedops as fo


@dataclass(frozen=True)
class Operation:
    """A function, and on which of its inputs torch's own gradient is one of several."""

    kind: type
    open_nan: bool = False

    @property
    def operands(self):
        return ["a", "b"][: len(self.kind.parameters.parameters)]

    @property
    def functor(self):
        return self.kind(*self.operands)


def add(x, a):
    return torch.add(x, a, alpha=2)


def sub(x, a):
    return 1 - (x - a - 0.5)


def rsub(x, a):
    return torch.rsub(x, a, alpha=3)


def mul(x, a):
    return 2 * x * a


def div(x, a):
    return x / a


def from_number(x):
    return 2 / x


def by_number(x):
    return x / -0.7


def neg(x):
    return -x


def reciprocal(x):
    return torch.reciprocal(x)


def addcmul(x, a, b):
    return torch.addcmul(x, a, b, value=0.5)


def addcdiv(x, a, b):
    return torch.addcdiv(x, a, b, value=0.5)


def lerp(x, a, b):
    return torch.lerp(x, a, b)


def lerp_number(x, a):
    return torch.lerp(x, a, 0.75)


def comparisons(x, a):
    less = (x < a).to(x.dtype) + 2 * (x <= a) + 4 * (x == a)
    return less + 8 * (x != a) + 16 * (x > a) + 32 * (x >= a) + x


def comparisons_with_numbers(x):
    return x * ((x < 1) ^ (x > -1)) + (x == 0) + 2 * (x != 1) + 4 * (x >= 0.5) + 8 * (x <= -0.5)


def logic(x, a):
    both = torch.logical_and(x > 0, a > 0) | ~(x < 1) & (a != 0)
    either = torch.logical_or(torch.logical_xor(x > a, a > 1), torch.logical_not(x))
    return torch.where(both, x, a) + torch.where(either, a, 2 * x)


def where(x, a):
    return torch.where(x > a, x, a)


def where_numbers(x):
    return torch.where(x > 0, 1, -2) * x + torch.where(x < 1, x, 0.25)


def where_nan(x):
    return torch.where(torch.isnan(x), 0, x) + torch.isfinite(x) + 2 * torch.isinf(x)


def masked_fill(x, a):
    return x.masked_fill(a > 0.5, -0.5) + a


def maximum(x, a):
    return torch.maximum(x, a)


def minimum(x, a):
    return torch.minimum(x, a)


def fmax(x, a):
    return torch.fmax(x, a)


def fmin(x, a):
    return torch.fmin(x, a)


def clamp(x):
    return x.clamp(-1, 1)


def clamp_min(x):
    return x.clamp(min=-0.5)


def clamp_max(x):
    return torch.clamp_max(x, 2)


def clamp_tensors(x, a, b):
    return x.clamp(a, b)


def clamp_to_operand(x, a):
    return x.clamp_min(a)


def exp(x):
    return torch.exp(x)


def exp2(x):
    return torch.exp2(x)


def expm1(x):
    return torch.expm1(x)


def log(x):
    return torch.log(x)


def log1p(x):
    return torch.log1p(x)


def log2(x):
    return torch.log2(x)


def log10(x):
    return torch.log10(x)


def tanh(x):
    return torch.tanh(x)


def sigmoid(x):
    return torch.sigmoid(x)


def erf(x):
    return torch.erf(x)


def erfc(x):
    return torch.erfc(x)


def sin(x):
    return torch.sin(x)


def cos(x):
    return torch.cos(x)


def tan(x):
    return torch.tan(x)


def inverses(x):
    return torch.asin(x) + 2 * torch.acos(x) + 3 * torch.atanh(x)


def atan(x):
    return torch.atan(x) + torch.asinh(x)


def acosh(x):
    return torch.acosh(x)


def sinh(x):
    return torch.sinh(x)


def cosh(x):
    return torch.cosh(x)


def atan2(x, a):
    return torch.atan2(x, a)


def sqrt(x):
    return torch.sqrt(x)


def rsqrt(x):
    return torch.rsqrt(x)


def magnitude(x):
    return torch.abs(x)


def sgn(x):
    return torch.sgn(x) + 2 * torch.sign(x)


def square(x):
    return torch.square(x)


def cube(x):
    return x**3


def fourth(x):
    return x**4


def inverse_square(x):
    return x**-2


def inverse_cube(x):
    return x**-3


def root(x):
    return x**0.5


def inverse_root(x):
    return x**-0.5


def power(x):
    return x**2.5


def seventh(x):
    return x**7


def no_power(x):
    return x**1 + x**0


def power_of_number(x):
    return 2**x


def powers(x, a):
    return x**a


def gelu(x):
    return functional.gelu(x)


def gelu_tanh(x):
    return functional.gelu(x, approximate="tanh")


def silu(x):
    return functional.silu(x)


def relu(x):
    return functional.relu(x)


def relu6(x):
    return functional.relu6(x)


def softplus(x):
    return functional.softplus(x)


def softplus_sharp(x):
    return functional.softplus(x, beta=2, threshold=5)


def leaky_relu(x):
    return functional.leaky_relu(x, 0.25)


def prelu(x, a):
    return torch.where(x > 0, x, a * x)


def elu(x):
    return functional.elu(x, 1.5)


def celu(x):
    return functional.celu(x, 1.5)


def selu(x):
    return functional.selu(x)


def hardtanh(x):
    return functional.hardtanh(x, -0.5, 2)


def hardswish(x):
    return functional.hardswish(x)


def hardsigmoid(x):
    return functional.hardsigmoid(x)


def mish(x):
    return functional.mish(x)


def logsigmoid(x):
    return functional.logsigmoid(x)


def threshold(x):
    return functional.threshold(x, 0.5, -2.0)


def softshrink(x):
    return functional.softshrink(x, 0.75)


def hardshrink(x):
    return functional.hardshrink(x, 0.75)


def softsign(x):
    return functional.softsign(x) + functional.tanhshrink(x)


def swiglu(x, a):
    return functional.silu(x) * a


def steps(x):
    return torch.floor(x) + 2 * torch.ceil(x) + 4 * torch.round(x) + 8 * torch.trunc(x) + x


def frac(x):
    return torch.frac(x)


def logaddexp(x, a):
    return torch.logaddexp(x, a)


def xlogy(x, a):
    return torch.xlogy(x, a)


def constants(x):
    shift = torch.full_like(x, 3) + torch.ones_like(x) + torch.zeros_like(x) + torch.tensor(0.5)
    return x * shift + x.new_full((), 2.0) + x.new_zeros(x.shape) + math.pi


def passed_through(x, a):
    same = x.clone().contiguous().view(x.shape).to(x.dtype).reshape(x.shape)
    return same * a.detach().float().expand(x.shape)


def in_place(x, a):
    made = x.clone().mul_(2)
    same = made.detach()
    made.add_(a)
    return made * same


def cosine_cap(x, a, b):
    return torch.where(x.abs() < b, torch.cos(x / b) * a, a * torch.exp(-x * x))


_OPEN_NAN = {"relu6", "hardtanh", "hardswish", "elu", "celu", "selu", "softshrink", "hardshrink"}

OPERATIONS = {
    name: Operation(fo.functor(function), open_nan=name in _OPEN_NAN)
    for name, function in list(globals().items())
    if inspect.isfunction(function) and function is not dataclass
}
