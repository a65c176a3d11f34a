# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients and masks: what left the row has none, and nothing of it shows anywhere."""

import pytest
import torch
from cases import declare, gradients_of, randn, same_bits, thorough, upstream_of, verify_gradients
from references import Chain
from test_masks import random_mask

POISONS = [torch.nan, torch.inf, -torch.inf]


# A mask is part of the LOAD, which does not know the operator.
@pytest.fixture(params=["softmax", *thorough("log_softmax")])
def op(request):
    return request.param


def masked_case(device, columns=37):
    """A chain that masks, with a mask that empties row 4, and everything that may be poisoned."""
    x, s, dy = (randn(6, columns, device=device, seed=i) for i in range(3))
    mask = random_mask(6, columns, device=device)
    mask[4] = True
    return x, {"s": s, "b": randn(6, columns, device=device, seed=4), "m": mask, "p": 0.25}, dy


def masked_chain(op):
    return Chain(op, (("scale", "s"), ("bias", "b"), ("mask", "m")), (("dropout", "p"),))


def test_masked_elements_have_no_gradient(op, device):
    x, operands, dy = masked_case(device)
    got = verify_gradients(masked_chain(op), x, operands, {"y": dy}, unfused=True)
    for gradient in got.values():
        assert gradient[operands["m"]].eq(0).all()
        assert gradient[~operands["m"]].ne(0).any()


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("where", ["x", "s", "b", "dy"])
def test_nothing_under_a_mask_leaks(op, where, poison, device):
    """Not from an input, and not from an upstream gradient; fused and unfused."""
    fused = declare(masked_chain(op))
    for function in (fused, fused.unfused):
        x, operands, dy = masked_case(device)
        _, clean = gradients_of(function, x, operands, {"y": dy})
        given = {"x": x, "dy": dy, **operands}
        given[where] = given[where].masked_fill(operands["m"], poison)
        x, dy = given.pop("x"), given.pop("dy")
        _, got = gradients_of(function, x, given, {"y": dy})
        for name, gradient in clean.items():
            assert same_bits(got[name] + 0.0, gradient + 0.0), name  # -0 is 0


@pytest.mark.thorough
@pytest.mark.parametrize("poison", POISONS)
def test_nothing_under_a_mask_leaks_into_what_rows_share(op, poison, device):
    chain = Chain(op, (("scale", "s"), ("bias", "b"), ("mask", "m")))
    mask = random_mask(1, 37, device=device).expand(6, 37)
    x, dy = (randn(6, 37, device=device, seed=i) for i in range(2))
    s, b = (randn(37, device=device, seed=2 + i) for i in range(2))
    clean = verify_gradients(chain, x, {"s": s, "b": b, "m": mask}, {"y": dy})
    x, dy = (t.masked_fill(mask, poison) for t in (x, dy))
    s, b = (t.masked_fill(mask[0], poison) for t in (s, b))
    _, got = gradients_of(declare(chain), x, {"s": s, "b": b, "m": mask}, {"y": dy})
    for name, gradient in clean.items():
        assert same_bits(got[name] + 0.0, gradient + 0.0), name


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    "step",
    [
        ("causal", "top-left", 0),
        ("causal", "bottom-right", 1),
        ("window", 3, 2, "top-left", 0),
        ("lengths", "n"),
    ],
    ids=str,
)
@pytest.mark.parametrize("columns", [3000, *thorough(40)])
def test_nothing_beyond_an_index_mask_leaks(step, columns, device):
    n = torch.tensor([[0], [1], [5], [columns], [17]], device=device)
    operands = {"n": n} if step[0] == "lengths" else {}
    x, dy = (randn(5, columns, device=device, seed=i) for i in range(2))
    chain = Chain("softmax", (step,))
    clean = verify_gradients(chain, x, operands, {"y": dy})["x"]
    gone = declare(chain)(x, **operands) == 0
    for poison in POISONS:
        bad = x.masked_fill(gone, poison), {"y": dy.masked_fill(gone, poison)}
        _, got = gradients_of(declare(chain), bad[0], operands, bad[1])
        assert same_bits(got["x"] + 0.0, clean + 0.0)


@pytest.mark.thorough
@pytest.mark.parametrize("empty_row", ["zero", "nan"])
def test_an_empty_row_has_no_gradient_whoever_emptied_it(op, empty_row, device):
    """x, a bias or a mask may put the last -inf."""
    chain = Chain(op, (("bias", "b"), ("mask", "m")), empty_row=empty_row)
    x, b, dy = (randn(4, 8, device=device, seed=i) for i in range(3))
    m = torch.zeros(4, 8, dtype=torch.bool, device=device)
    x[0] = b[1] = -torch.inf
    x[2, :3], b[2, 3:6], m[2, 6:] = -torch.inf, -torch.inf, True
    got = verify_gradients(chain, x, {"b": b, "m": m}, {"y": dy}, unfused=True)
    for gradient in got.values():
        assert gradient[:3].eq(0).all()
        assert gradient[3].ne(0).all()


@pytest.mark.parametrize("poison", [0.0, *POISONS])
def test_an_element_of_minus_infinity_is_out_without_a_mask(op, poison, device):
    """A bias of -inf is a mask, too, and so is an x of -inf."""
    chain = Chain(op, (("scale", "s"), ("bias", "b")))
    x, b, dy = (randn(6, 37, device=device, seed=i) for i in range(3))
    gone = random_mask(6, 37, device=device)
    x[0, gone[0]] = -torch.inf
    b[1:] = b[1:].masked_fill(gone[1:], -torch.inf)
    dy = dy.masked_fill(gone, poison)
    s = torch.tensor(0.5, device=device)
    got = verify_gradients(chain, x, {"s": s, "b": b}, {"y": dy}, unfused=True)
    assert got["x"][gone].eq(0).all()
    assert got["b"][gone].eq(0).all()


@pytest.mark.thorough
@pytest.mark.parametrize("step", [("mask", "m"), ("lengths", "n")], ids=str)
def test_operands_of_the_store_act_on_masked_elements(step, device):
    """A probability of zero is a number like others to what comes after it."""
    chain = Chain("softmax", (step,), (("affine", "g", "b"), ("residual", "r", 1.0, None)))
    x, r = (randn(6, 1500, device=device, seed=i) for i in range(2))
    g, b = (randn(1500, device=device, seed=2 + i) for i in range(2))
    operands = {"g": g, "b": b, "r": r}
    if step[0] == "mask":
        operands["m"] = random_mask(6, 1500, device=device)
    else:
        operands["n"] = torch.tensor([0, 1, 77, 1100, 1500, 1499], device=device)[:, None]
    got = verify_gradients(chain, x, operands, unfused=True)
    assert got["r"].ne(0).all()


def test_a_logarithm_of_zero_is_a_constant_to_the_store(device):
    chain = Chain("log_softmax", (("mask", "m"),), (("affine", "g", "b"),))
    x = randn(6, 37, device=device)
    g, b = (randn(37, device=device, seed=2 + i) for i in range(2))
    operands = {"m": random_mask(6, 37, device=device), "g": g, "b": b}
    got = verify_gradients(chain, x, operands, unfused=True)
    assert got["g"].isfinite().all()


@pytest.mark.thorough
def test_a_stream_has_its_own_gradient_under_the_mask(op, device):
    chain = Chain(op, (("scale", "s"), ("residual", "r", 1.0, "stream"), ("mask", "m")))
    x, r, s = (randn(6, 37, device=device, seed=i) for i in range(3))
    operands = {"r": r, "s": s, "m": random_mask(6, 37, device=device)}
    upstream = upstream_of(chain, x, operands)
    got = verify_gradients(chain, x, operands, upstream, unfused=True)
    assert same_bits(got["r"][operands["m"]], upstream["stream"][operands["m"]])
    upstream["y"] = upstream["y"].masked_fill(operands["m"], torch.nan)
    verify_gradients(chain, x, operands, upstream, unfused=True)


def test_a_stream_without_a_gradient_lets_nothing_leak(op, device):
    chain = Chain(op, (("scale", "s"), ("residual", "r", 1.0, "stream"), ("mask", "m")))
    x, r, s = (randn(6, 37, device=device, seed=i) for i in range(3))
    operands = {"r": r, "s": s, "m": random_mask(6, 37, device=device)}
    dy = {"y": randn(6, 37, device=device, seed=5)}
    clean = verify_gradients(chain, x, operands, dy, unfused=True)
    for function in (declare(chain), declare(chain).unfused):
        _, clean = gradients_of(function, x, operands, dy)
        bad = x.masked_fill(operands["m"], torch.nan)
        _, got = gradients_of(function, bad, operands, dy)
        for name, gradient in clean.items():
            assert same_bits(got[name] + 0.0, gradient + 0.0), name


@pytest.mark.thorough
def test_nan_that_takes_part_shows(op, device):
    """In its own row, and in no other."""
    x, operands, dy = masked_case(device)
    operands["p"] = 0.0
    operands["m"][1, 5] = False
    _, clean = gradients_of(declare(masked_chain(op)), x, operands, {"y": dy})
    x[1, 5] = torch.nan
    _, got = gradients_of(declare(masked_chain(op)), x, operands, {"y": dy})
    kept = ~operands["m"][1]
    assert got["x"][1][kept].isnan().all()
    assert got["x"][1][~kept].eq(0).all()
    others = [0, 2, 3, 4, 5]
    assert same_bits(got["x"][others], clean["x"][others])


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [33, 1000, 4096])
def test_masks_on_every_schedule(columns, scheduled):
    device, schedule = scheduled
    x = randn(2, 40, columns, device=device)
    mask = random_mask(40, columns, device=device)
    mask[3] = True
    n = torch.tensor([columns, columns // 2], device=device)[:, None, None]
    steps = (("mask", "m"), ("causal", "bottom-right", 5), ("lengths", "n"))
    chain = Chain("softmax", steps)
    verify_gradients(chain, x, {"m": mask, "n": n}, schedule=schedule)
