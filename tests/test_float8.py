# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Results of 8 bits from C++: one rounding, saturation, and the largest magnitude."""

import pytest
import torch
from cases import randn
from cpptest import place

KINDS = [torch.float8_e4m3fn, torch.float8_e5m2]


def nearest(values, kind):
    """The codes of the nearest numbers of 8 bits, ties to even, saturated; NaN is 0x7f."""
    codes = torch.arange(0x7F, dtype=torch.uint8)
    table = codes.view(kind).double()
    table = table[table.isfinite()]
    magnitude = values.double().abs().clamp(max=table[-1].item())
    above = torch.searchsorted(table, magnitude).clamp(1, len(table) - 1)
    low, high = table[above - 1], table[above]
    middle = low + (high - low) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (above % 2 == 0))
    code = torch.where(up, above, above - 1)
    code = code + 128 * torch.signbit(values)
    return torch.where(values.isnan(), 0x7F, code).to(torch.uint8)


def awkward(kind, dtype):
    """Every number, every middle between two, and what lies just beside; random ones; the ends."""
    table = torch.arange(0x7F, dtype=torch.uint8).view(kind).double()
    table = table[table.isfinite()]
    middle = (table[1:] + table[:-1]) / 2
    exact = torch.cat([table, middle]).to(dtype)
    ends = [table[-1] * 1.03, table[-1] * 1.06, 1e6, torch.inf, torch.nan, 1e-30, 1e-45]
    beside = [torch.nextafter(exact, torch.tensor(end, dtype=dtype)) for end in (0.0, torch.inf)]
    spread = torch.exp2(24 * randn(4096, seed=3).double()).to(dtype)
    all_ = torch.cat([exact, *beside, spread, torch.tensor(ends, dtype=dtype)])
    return torch.cat([all_, -all_])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_conversions_round_once(kind, dtype):
    library = place("float8", "cpu")
    x = awkward(kind, dtype)
    codes, back = torch.zeros(len(x), dtype=torch.uint8), torch.zeros_like(x)
    convert = library.converted_floats if dtype == torch.float32 else library.converted_doubles
    assert convert(KINDS.index(kind), x, codes, back, len(x)) == 0
    want = nearest(x, kind)
    assert torch.equal(codes, want), x[codes != want]
    assert torch.equal(back.nan_to_num(1e9), want.view(kind).to(dtype).nan_to_num(1e9))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("cols", [40, 1025, 5000])
def test_a_norm_that_quantizes(device, cols, kind):
    library = place("float8", device)
    rows = 7
    x = randn(rows, cols, device=device)
    x[3, cols // 2] = 1e4  # so that something saturates
    scale = torch.tensor([200.0], device=device)
    y = torch.full_like(x, torch.nan)
    amax = torch.zeros(1, device=device)
    of_rows = torch.zeros(rows, device=device)
    codes = torch.zeros(rows, cols, dtype=torch.uint8, device=device)
    given = (x, scale, amax, of_rows, y, codes, rows, cols)
    assert library.quantized_norm(KINDS.index(kind), *given) == 0
    assert torch.equal(of_rows, y.abs().amax(-1))
    assert torch.equal(amax[0], y.abs().amax())
    assert torch.equal(codes.cpu(), nearest((y * scale).cpu(), kind))
    # What is there joins, and NaN is larger than all.
    amax.fill_(1e9)
    x[1, 0] = torch.nan
    assert library.quantized_norm(KINDS.index(kind), *given) == 0
    assert amax.isnan().all()
    assert of_rows[1].isnan()
    assert not of_rows[2].isnan()
