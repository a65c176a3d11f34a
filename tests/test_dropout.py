# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which elements dropout keeps: the documented map, everywhere and in every layout."""

import functools

import pytest
import torch
from cases import declare, forced, named, raises, randn
from philox import drawn, keep_mask, keep_rows, keep_scale
from references import Chain

from fusedops.reference import dropout_mask as random

BEFORE = Chain("rms_norm", load=(("dropout", "p"),), eps=1e-6)
AFTER = Chain("softmax", store=(("dropout", "p"),))
BOTH = Chain("layer_norm", (("dropout", "p"), ("bias", "b")), (("dropout", "q"),), eps=1e-5)


def generator(device, seed):
    return torch.Generator(device).manual_seed(seed)


def kept(chain, x, seed, p, **options):
    """Which elements a fused call keeps: for inputs that are nowhere zero."""
    y = declare(chain)(x, p=p, generator=generator(x.device, seed), **options)
    return y != 0


@pytest.mark.parametrize("seed", [0, 1, 0xFFFFFFFF, 1 << 32, 0xFEDCBA9876543210, -1], ids=hex)
@pytest.mark.parametrize("offset", [0, 1, 0xFFFFFFFF, 1 << 32, (1 << 48) - 8], ids=hex)
def test_dropout_mask_is_the_documented_map(seed, offset):
    for slot in (0, 1):
        got = declare(BOTH).dropout_mask((2, 3, 21), seed, offset, 0.3, slot=slot)
        assert got.dtype == torch.bool
        assert torch.equal(got, keep_mask((2, 3, 21), seed, offset, 0.3, slot))


def test_dropout_mask_takes_the_reduced_dimensions():
    mask = declare(AFTER).dropout_mask((4, 5, 6), 1, 2, 0.5, dim=0)
    assert torch.equal(mask.movedim(0, -1), keep_mask((5, 6, 4), 1, 2, 0.5))
    mask = declare(BEFORE).dropout_mask((4, 5, 6), 1, 2, 0.5, dim=(1, 2))
    assert torch.equal(mask, keep_mask((4, 5, 6), 1, 2, 0.5, dims=2))


@pytest.mark.parametrize("p", [0, 1e-9, 1 / 65536, 0.1, 0.5, 0.999, 1 - 1e-9, 1, 1.0])
def test_thresholds(p, device):
    wanted = keep_mask((64, 1000), *drawn(device, 5), p, device=device)
    got = declare(AFTER).dropout_mask((64, 1000), *drawn(device, 5), p)
    assert torch.equal(got.to(device), wanted)
    x = torch.zeros(64, 1000, device=device)
    y = declare(AFTER)(x, p=p, generator=generator(device, 5))
    expected = wanted * torch.tensor(keep_scale(p), dtype=torch.float64) / 1000
    torch.testing.assert_close(y, expected.float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("columns", [1, 2, 7, 8, 9, 33, 1000, 4096])
def test_kernels_draw_the_documented_mask(dtype, columns, device):
    """Before the reduction and after it, in packs of every width."""
    wanted = keep_mask((5, 3, columns), *drawn(device, 11), 0.4, device=device)
    x = torch.ones(5, 3, columns, dtype=dtype, device=device)
    assert torch.equal(kept(BEFORE, x, 11, 0.4), wanted)
    assert torch.equal(kept(AFTER, torch.zeros_like(x), 11, 0.4), wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("columns", [31, 128, 1001, 4096])
def test_every_schedule_draws_the_same_mask(dtype, columns, scheduled):
    device, schedule = scheduled
    wanted = keep_mask((199, columns), *drawn(device, 11), 0.4, device=device)
    x = torch.ones(199, columns, dtype=dtype, device=device)
    with forced(schedule):
        assert torch.equal(kept(BEFORE, x, 11, 0.4), wanted)
        assert torch.equal(kept(AFTER, x * 0, 11, 0.4), wanted)


LAYOUTS = {
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda t: t[:1, :1].expand_as(t),
    "gaps": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "one element off": lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view_as(t),
    "columns apart": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_does_not_matter(layout, device):
    x = LAYOUTS[layout](torch.ones(4, 6, 24, device=device))
    wanted = keep_mask((4, 6, 24), *drawn(device, 2), 0.5, device=device)
    assert torch.equal(kept(BEFORE, x, 2, 0.5), wanted)


def test_the_order_of_visits_does_not_matter(device):
    """A bias that the batch shares changes the order in which rows are visited."""
    chain = Chain("softmax", (("bias", "b"),), (("dropout", "p"),))
    x = torch.zeros(3, 4, 256, 256, device=device)
    b = torch.zeros(1, 4, 256, 256, device=device)
    y = declare(chain)(x, b=b, p=0.3, generator=generator(device, 8))
    assert torch.equal(y != 0, keep_mask(x.shape, *drawn(device, 8), 0.3, device=device))


@pytest.mark.parametrize("dim", [0, 1])
def test_rows_are_counted_without_the_reduced_dimension(dim, device):
    x = torch.zeros(6, 10, 4, device=device)
    y = declare(AFTER)(x, p=0.5, dim=dim, generator=generator(device, 8))
    moved = keep_mask(x.movedim(dim, -1).shape, *drawn(device, 8), 0.5, device=device)
    assert torch.equal((y != 0).movedim(dim, -1), moved)


def test_several_reduced_dimensions_count_as_one_row(device):
    x = torch.ones(5, 6, 10, device=device)
    y = declare(BEFORE)(x, p=0.5, normalized_shape=(6, 10), generator=generator(device, 8))
    assert torch.equal(y != 0, keep_mask(x.shape, *drawn(device, 8), 0.5, dims=2, device=device))


def test_two_dropouts_differ_and_are_told_apart_by_their_place(device):
    x, b = torch.full((40, 64), 3.0, device=device), randn(64, device=device) + 10
    y = declare(BOTH)(x, p=0.5, q=0.25, b=b, generator=generator(device, 4))
    seed, offset = drawn(device, 4)
    first, second = (
        keep_mask(x.shape, seed, offset, p, slot, device=device)
        for slot, p in enumerate((0.5, 0.25))
    )
    assert torch.equal(y != 0, second)
    v = torch.where(first, 6.0, 0.0) + b
    wanted = torch.nn.functional.layer_norm(v, (64,)) * second * keep_scale(0.25)
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)


def test_a_dropout_keeps_its_place_when_another_is_off(device):
    x = randn(40, 64, device=device)
    y = declare(BOTH)(x, p=0.0, q=0.25, b=x, generator=generator(device, 4))
    assert torch.equal(y != 0, keep_mask(x.shape, *drawn(device, 4), 0.25, 1, device=device))


def test_off_without_training_and_at_zero(device):
    x = randn(8, 100, device=device)
    plain = declare(Chain("softmax"))(x)
    assert torch.equal(declare(AFTER)(x, p=0.5, training=False), plain)
    assert torch.equal(declare(AFTER)(x, p=0.0), plain)
    assert not torch.equal(declare(AFTER)(x, p=0.5), plain)


def test_the_expectation_is_exact(device):
    """Sums over a million draws, within five standard deviations of what p = 0 gives."""
    x = torch.zeros(1024, 1024, dtype=torch.float64, device=device)
    for p in (0.1, 0.5, 0.9):
        mean = declare(AFTER)(x, p=p, generator=generator(device, 21)).sum() / 1024
        assert abs(mean.item() - 1) < 5 * (p / (1 - p)) ** 0.5 / 1024


ONE, TWO = declare(AFTER), declare(BOTH)


def calls(op, x, operands):
    """Every way to name a draw: (what is called, with a mask or not)."""
    leaf = x.clone().requires_grad_()
    compiled = torch.compile(op, backend="eager")
    in_memory = functools.partial(torch.tensor, device=x.device)
    return {
        "op": lambda draw: op(x, **operands, generator=draw),
        "unfused": lambda draw: op.unfused(x, **operands, generator=draw),
        "trained": lambda draw: op(leaf, **operands, generator=draw),
        "compiled": lambda draw: compiled(x, **operands, generator=draw),
        "explain": lambda draw: op.explain(x, **operands, generator=draw),
        "op, in memory": lambda draw: op(x, **operands, generator=in_memory(draw)),
        "unfused, in memory": lambda draw: op.unfused(x, **operands, generator=in_memory(draw)),
        "mask": lambda draw: op.dropout_mask(tuple(x.shape), *draw, 0.5),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("how", calls(ONE, torch.ones(1), {}))
def test_an_offset_stays_below_48_bits(how):
    """Refused before the first call of a plan and after it; the last that fits is taken."""
    x, last = randn(4, 8), 2**48 - 1
    for op, operands, most in (
        (ONE, {"p": 0.5}, last),
        (TWO, {"p": 0.5, "q": 0.0, "b": 1.0}, last - 1),
    ):
        call = calls(op, x, operands)[how]
        for _ in range(2):
            for wrong in (-1, -(2**63), most + 1, 2**62):
                with raises(ValueError, op.name, "offset", "2**48", str(wrong)):
                    call((1, wrong))
            call((-(2**63), most))
    for wrong in () if "memory" in how else (2**64, -(2**63) - 1, 10**400):
        shown = "an int of 1329 bits" if wrong == 10**400 else str(wrong)
        with raises(ValueError, "Softmax", "seed", "64 bits", "manual_seed", shown):
            calls(ONE, x, {"p": 0.5})[how]((wrong, 0))


def test_ints_of_any_type():
    import numpy

    x = randn(4, 8).requires_grad_()
    want = ONE(x, p=0.5, generator=(7, 2))
    pair = (numpy.int64(7), numpy.uint8(2))
    for options in ({}, {"dim": (1,)}, {"dim": -1}):
        with torch.no_grad():
            got = ONE(x, p=0.5, generator=pair, **options)
        assert torch.equal(got, want)
    for call in (ONE, ONE.unfused):
        leaf = x.detach().requires_grad_()
        y = call(leaf, p=0.5, generator=pair)
        y.sum().backward()
        assert torch.equal(y == 0, want == 0)
        assert torch.isfinite(leaf.grad).all()
    mask = ONE.dropout_mask((numpy.int64(4), 8), *pair, numpy.float32(0.5), dim=numpy.int64(1))
    assert torch.equal(mask, want != 0)


@pytest.mark.parametrize("draw", [(True, 0), (1.0, 0), ("1", 0), (1,), (), (torch.tensor(1), 0)])
def test_what_is_no_draw(draw):
    for call in (ONE, ONE.unfused, ONE.explain):
        with raises(TypeError, "Softmax", "generator", "two ints"):
            call(randn(4, 8), p=0.5, generator=draw)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"dim": 9}, ("dim", "9", "2 dimensions")),
        ({"dim": -3}, ("dim", "-3", "2 dimensions")),
        ({"dim": []}, ("dim", "[]")),
        ({"dim": "1"}, ("dim", "'1'")),
        ({"dim": (0, 1)}, ("dim", "(0, 1)")),
        ({"shape": (-4, 8)}, ("shape", "(-4, 8)")),
        ({"shape": (4.5, 8)}, ("shape", "(4.5, 8)")),
        ({"shape": None}, ("shape", "None")),
        ({"shape": ()}, ("shape", "()")),
        ({"seed": 1.5}, ("seed", "1.5")),
        ({"seed": None}, ("seed", "None")),
        ({"offset": "0"}, ("offset", "'0'")),
        ({"p": "0.5"}, ("p", "'0.5'")),
        ({"p": True}, ("p", "True")),
        ({"slot": 1}, ("slot", "got 1")),
        ({"slot": -1}, ("slot", "got -1")),
        ({"slot": 0.5}, ("slot", "0.5")),
    ],
    ids=str,
)
def test_what_has_no_mask(change, parts):
    given = {"shape": (4, 8), "seed": 1, "offset": 0, "p": 0.5, **change}
    with raises((TypeError, ValueError), "Softmax", "dropout_mask", *parts):
        ONE.dropout_mask(**given)


@pytest.mark.parametrize("draw", [(3, -1), (-3, 2**50 + 7), (5, -(2**63))], ids=str)
def test_the_map_counts_modulo_64_bits(draw):
    """As the kernels do, with numbers that nobody could look at."""
    seed, offset = draw
    for slot in (0, 1):
        got = random.keep_mask((3, 20), [1], seed=seed, offset=offset + slot, p=0.5)
        assert torch.equal(got, keep_mask((3, 20), seed % 2**64, offset % 2**64, 0.5, slot))


@pytest.mark.gpu
@pytest.mark.parametrize("draw", [[3, -1], [-3, 2**50 + 7], [5, -(2**63)]], ids=str)
def test_numbers_in_the_memory_of_a_gpu_count_modulo_64_bits(draw):
    """They cannot be looked at without waiting, so that they mean something whatever they are."""
    x, there = torch.zeros(40, 100, device="cuda"), torch.tensor(draw, device="cuda")
    operands = {"p": 0.5, "q": 0.25, "b": randn(100, device="cuda")}
    got, want = (call(x, **operands, generator=there) for call in (TWO, TWO.unfused))
    assert torch.equal(got == 0, want == 0)
    kept = random.keep_mask(x.shape, [1], seed=draw[0], offset=draw[1] + 1, p=0.25)
    assert torch.equal(got.cpu() != 0, kept)


class TestGenerators:
    @pytest.fixture
    def x(self, device):
        return randn(16, 64, device=device)

    def test_manual_seed_decides(self, x):
        torch.manual_seed(77)
        first, second = (declare(AFTER)(x, p=0.5) for _ in range(2))
        torch.manual_seed(77)
        again = declare(AFTER)(x, p=0.5)
        assert torch.equal(first, again)
        assert not torch.equal(first, second), "each call draws anew"
        assert torch.equal(first != 0, keep_mask(x.shape, *drawn(x.device, 77), 0.5).to(x.device))

    def test_a_generator_leaves_the_default_alone(self, x):
        torch.manual_seed(1)
        wanted = torch.rand(4, device=x.device)
        torch.manual_seed(1)
        declare(AFTER)(x, p=0.5, generator=generator(x.device, 9))
        assert torch.equal(torch.rand(4, device=x.device), wanted)

    def test_unfused_drops_the_same(self, x):
        for chain, operands in (
            (AFTER, {"p": 0.5}),
            (BEFORE, {"p": 0.5}),
            (BOTH, {"p": 0.5, "q": 0.25, "b": randn(64, device=x.device)}),
        ):
            fused, unfused = (
                call(x, **operands, generator=generator(x.device, 6))
                for call in (declare(chain), declare(chain).unfused)
            )
            assert torch.equal(fused == 0, unfused == 0)
            torch.testing.assert_close(fused, unfused)

    def test_unfused_takes_as_much_from_the_generator(self, x):
        states = []
        for call in (declare(BOTH), declare(BOTH).unfused):
            mine = generator(x.device, 6)
            call(x, p=0.5, q=0.5, b=x, generator=mine)
            states.append(mine.get_state())
        assert torch.equal(*states)

    @pytest.mark.gpu
    @pytest.mark.parametrize(("chain", "count"), [(AFTER, 1), (BOTH, 2)])
    def test_the_offset_of_a_gpu_generator_advances(self, chain, count):
        mine = generator("cuda", 6)
        mine.set_offset(400)
        x = torch.ones(8, 64, device="cuda")
        operands = {"p": 0.5} if count == 1 else {"p": 0.5, "q": 0.5, "b": randn(64, device="cuda")}
        y = named(declare(chain)(x, **operands, generator=mine))["y"]
        assert mine.get_offset() == 400 + 4 * -(-count // 4)
        wanted = keep_mask(x.shape, 6, 400, 0.5, count - 1, device="cuda")
        assert torch.equal(y != 0, wanted)


@pytest.mark.gpu
def test_rows_beyond_four_billion_elements():
    rows, columns = 65537, 65536
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of free GPU memory")
    x = torch.zeros(1, 1, dtype=torch.float16, device="cuda").expand(rows, columns)
    y = declare(AFTER)(x, p=0.5, generator=generator("cuda", 3))
    sample = torch.tensor([0, 1, 65535, 65536], device="cuda")
    wanted = keep_rows(sample, columns, 3, 0, 0.5)
    assert torch.equal(y[sample] != 0, wanted)
