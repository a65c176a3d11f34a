# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Conversions in functors of the user's own: each does what torch does, or is refused by name."""

import pytest
import torch

import fusedops as fo
from fusedops.functors.integers import Range, range_of

INSIDE = torch.tensor([[-3.5, -1.0, -0.25, -0.0, 0.0, 0.25, 1.0, 1.5, 100.0]])

#: Exact in every type, so that neither order nor contraction of sums shows.
AS_TORCH = {
    "bool": lambda x: x.bool().to(x.dtype),
    "a product with truth": lambda x: x * x.bool(),
    "counted": lambda x: ((x > 0).int() + (x > 1).long()).to(x.dtype),
    "a sign": lambda x: 1 - 2 * (x < 0).int() + torch.zeros_like(x),
    "truth plus one": lambda x: ((x > 0) + 1).to(x.dtype),
    "bytes of truth": lambda x: (x > 0).to(torch.uint8).to(x.dtype),
    "chosen integers": lambda x: torch.where(x > 0, 3, 1).to(x.dtype),
    "powers of integers": lambda x: ((x > 0).long() * 3) ** 2 + torch.zeros_like(x),
    "a quotient of integers": lambda x: (x > 0).int() / 2 * torch.ones_like(x),
    "truth compared": lambda x: ((x > 0) > 0.5).to(x.dtype),
    "sums of truth": lambda x: ((x > 0) + (x > 1)).to(x.dtype),
    "truth filled": lambda x: torch.zeros_like(x, dtype=torch.bool).fill_(2.5).to(x.dtype),
    "cpu": lambda x: x.cpu(),
    "double": lambda x: x.double().to(x.dtype),
    "float": lambda x: x.float().to(x.dtype),
    "a NaN": lambda x: (x * torch.nan).bool().to(x.dtype),
}


def applied(function, x):
    """What a functor makes of each element: the store of a softmax of one that is added."""
    op = fo.Softmax(store=[fo.Scale("zero"), fo.Bias("v"), fo.functor(function)()])
    return op(torch.zeros_like(x), zero=0.0, v=x)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_taken_does_as_torch(dtype, device):
    def total(x):
        found = [one(x) * 2.0 ** (k % 7) for k, one in enumerate(AS_TORCH.values())]
        return sum(found[1:], found[0])

    x = INSIDE.to(dtype).to(device)
    if device == "cuda":
        AS_TORCH.pop("cpu", None)  # there it is another device in torch
    assert torch.equal(applied(total, x), total(x))


def test_what_is_computed_in_float_beside_doubles_is_rounded(device):
    def in_float(x):
        third = torch.full_like(x, 1 / 3, dtype=torch.float32)
        return (x.float() * third).to(x.dtype) + third

    x = torch.linspace(-2, 2, 50, dtype=torch.float64, device=device)[None] ** 3
    assert torch.equal(applied(in_float, x), in_float(x))


MOVED = ("moves to meta", "a functor stays on x's device")
COUNTED = ("computes in torch.", ".to(x.dtype)")
REFUSED = {
    "float8": (
        lambda x: x.to(torch.float8_e4m3fn).to(x.dtype),
        ("rounds to torch.float8_e4m3fn", "cpp_functor"),
    ),
    "a constant in float8": (
        lambda x: x * torch.tensor(0.3).to(torch.float8_e5m2).to(x.dtype),
        ("rounds to torch.float8_e5m2", "cpp_functor"),
    ),
    "half": (lambda x: x.half().float(), ("rounds to torch.float16", "fusedops.Cast")),
    "a constant in bfloat16": (
        lambda x: x * torch.tensor(0.3).bfloat16(),
        ("rounds to torch.bfloat16", "fusedops.Cast"),
    ),
    "complex": (lambda x: x.to(torch.complex64).real, ("complex numbers",)),
    "meta": (lambda x: x.to("meta"), MOVED),
    "int32": (lambda x: x.to(torch.int32).to(x.dtype), ("makes torch.int32", "torch.trunc")),
    "int8": (lambda x: x.char() * x, ("makes torch.int8", "torch.trunc")),
    "a constant to int": (
        lambda x: x * torch.tensor(2.7).int(),
        ("makes torch.int32", "torch.trunc"),
    ),
    "a fraction as int": (lambda x: x * torch.full_like(x, 2.7, dtype=torch.int32), COUNTED),
    "a fraction filled in": (
        lambda x: torch.zeros_like(x, dtype=torch.int32).fill_(2.7) * x,
        COUNTED,
    ),
    "bits": (lambda x: x * ((x > 0).int() & 2), ("bitwise_and", *COUNTED)),
    "inverted bits": (lambda x: x * ~(x > 0).int(), ("bitwise_not", *COUNTED)),
    "bits of constants": (lambda x: x * (torch.tensor(6) & 3), ("bitwise_and", *COUNTED)),
    "unsigned": (lambda x: x * -(x > 0).to(torch.uint8), ("aten.neg", *COUNTED)),
    "made unsigned": (lambda x: x * (-(x > 0).int()).to(torch.uint8), ("_to_copy", *COUNTED)),
    "wrapping": (lambda x: x * ((x > 0).to(torch.int8) * 100 * 2), ("aten.mul", *COUNTED)),
    "too many digits": (lambda x: x * ((x > 0).int() * 2**24 + 1), ("aten.add", *COUNTED)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    function, parts = REFUSED[name]
    with pytest.raises(fo.UnsupportedError) as raised:
        fo.functor(function)()
    for part in ("<lambda>: ", *parts):
        assert part in str(raised.value), str(raised.value)


def test_a_range_is_that_of_its_type():
    truth, hundred = Range(1), Range(100)
    taken = {
        dtype: range_of("mul", {"other": 2}, {"self": hundred}, dtype)
        for dtype in (torch.int8, torch.uint8, torch.int32)
    }
    assert taken == {torch.int8: None, torch.uint8: Range(200), torch.int32: Range(200)}
    assert range_of("sub", {"other": 1, "alpha": 3}, {"self": truth}, torch.int64) == Range(6, True)
    assert range_of("add", {"other": -1}, {"self": truth}, torch.uint8) is None
    assert range_of("pow", {"exponent": 3}, {"self": hundred}, torch.int64) == Range(10**6)
    assert range_of("fill", {}, {"self": truth, "value": hundred}, torch.int64) == hundred
    assert range_of("pow", {"exponent": 4}, {"self": hundred}, torch.int64) is None
    assert (
        range_of("where", {}, {"condition": truth, "self": hundred, "other": None}, torch.int64)
        is None
    )
