# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Equal traffic gives an equal schedule, whatever the functors are called; no GPU is needed."""

import dataclasses
import itertools

import pytest
import torch
from cases import ADD_NORM, ATTENTION, declare
from test_gradient_variants import backward_of
from test_gradient_variants import check_compiles as check_gradient_compiles
from test_variants import ARCHS, check_compiles, covering, described, flagship_inputs, tensor

import fusedops as fo
from fusedops.bind.bind import bind
from fusedops.schedule.traffic import Extent, extent, traffic_of

HALF, FLOAT, DOUBLE = torch.float16, torch.float32, torch.float64
COLUMNS = [257, 1023, 2048, 12289, 30522, 50257, 65536, 151936]
KINDS = [fo.Softmax, fo.LayerNorm, fo.RMSNorm]


@fo.functor
def scaled(x, factor):
    return x * factor


@fo.functor
def shifted(x, term):
    return x + term


#: Functors that read one operand, a.
ONE = {
    "Scale": [fo.Scale("a")],
    "Bias": [fo.Bias("a")],
    "gamma": [fo.Affine("a")],
    "beta": [fo.Affine(None, "a")],
    "Residual": [fo.Residual("a")],
    "alpha": [fo.Residual("a", alpha="number")],
    "scaled": [scaled("a")],
    "shifted": [shifted("a")],
    "cast": [fo.Cast(FLOAT), fo.Scale("a")],
    "number": [fo.Scale("number"), fo.Bias("a")],
}

#: The same of two, a and b.
TWO = {
    "Affine": [fo.Affine("a", "b")],
    "Scale, Bias": [fo.Scale("a"), fo.Bias("b")],
    "Bias, Scale": [fo.Bias("b"), fo.Scale("a")],
    "gamma, beta": [fo.Affine("a"), fo.Affine(None, "b")],
    "scaled, shifted": [scaled("a"), shifted("b")],
    "Residual, Bias": [fo.Residual("a"), fo.Bias("b")],
    "twice": [fo.Scale("a"), fo.Scale("a")],
}

#: Functors that move nothing.
NOTHING = {
    "Scale": [fo.Scale("number")],
    "Bias": [fo.Bias("number")],
    "Affine": [fo.Affine("number", "number")],
    "beta": [fo.Affine(None, "number")],
    "Residual": [fo.Residual("number")],
    "alpha": [fo.Residual("number", alpha="number")],
    "user": [scaled("number")],
    "constant": [scaled(0.5)],
    "cast": [fo.Cast(FLOAT)],
    "several": [fo.Scale("number"), shifted("number"), fo.Cast(FLOAT)],
    "dropout of zero": [fo.Dropout("zero")],
}

#: The same where the number is in memory, and may have a gradient.
IN_MEMORY = {
    "0-d": [fo.Scale("scalar")],
    "one element": [shifted("single")],
    "Residual": [fo.Residual("scalar", alpha="single")],
}

#: Masks of the same bytes.
MASKS = {
    "indices": [[fo.Causal()], [fo.Window(40, 3)], [fo.Lengths("count")]],
    "indices and numbers": [[fo.Causal()], [fo.Scale("number"), fo.Causal()]],
    "flags": [
        [fo.Mask("flags")],
        [fo.Mask("flags", keep=True)],
        [fo.Scale("number"), fo.Mask("flags")],
        [fo.Mask("flags"), fo.Causal()],
        [fo.Alibi("number"), fo.Mask("flags")],
    ],
}


def operands_of(op, extents, columns, dtype, rows=3):
    """Operands by the names above; those in `extents` are of one each."""
    shapes = {
        Extent.ROW: (rows, 1),
        Extent.VECTOR: (columns,),
        Extent.FULL: (rows, columns),
    }
    values = {
        "number": 0.5,
        "zero": 0.0,
        "count": 7,
        "scalar": tensor(dtype=dtype),
        "single": tensor(1, dtype=dtype),
        "flags": tensor(rows, columns, dtype=torch.bool),
        **{
            name: tensor(*shapes[one], dtype=dtype) if one in shapes else 0.5
            for name, one in extents.items()
        },
    }
    return {operand.name: values[operand.name] for operand in op.operands}


def schedules(op, arch, columns, dtype, **extents):
    """Those of both passes, with gradients of all that can have one."""
    x = tensor(3, columns, dtype=dtype)
    given = operands_of(op, extents, columns, dtype)
    return described(op, x, given, arch).tile, backward_of(op, x, given, arch).tile


def assert_equal_schedules(ops, arch, dtype, columns=COLUMNS, **extents):
    for count in columns:
        first = schedules(ops[0], arch, count, dtype, **extents)
        for op in ops[1:]:
            assert schedules(op, arch, count, dtype, **extents) == first, (count, op)


def both_sides(kind, chains):
    for side in ("load", "store"):
        yield [kind(**{side: chain}) for chain in chains]


@pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", ARCHS)
class TestEqualTraffic:
    def test_what_moves_nothing_changes_nothing(self, arch, kind, dtype):
        for ops in both_sides(kind, NOTHING.values()):
            assert_equal_schedules([kind(), *ops], arch, dtype)

    def test_numbers_in_memory(self, arch, kind, dtype):
        """As an argument, in both passes, but for how rows are visited that share its gradient."""
        for ops, columns in itertools.product(both_sides(kind, IN_MEMORY.values()), COLUMNS):
            forward, backward = schedules(kind(), arch, columns, dtype)
            for op in ops:
                found = schedules(op, arch, columns, dtype)
                prefetch = found[1].launch.prefetch
                launch = backward.launch._replace(prefetch=prefetch)
                expected = dataclasses.replace(backward, launch=launch)
                assert found == (forward, expected), (columns, op)
                assert prefetch in (backward.launch.prefetch, "never")

    def test_numbers_beside_what_moves_something(self, arch, kind, dtype):
        ops = [kind(load=load, store=[fo.Affine("a", "b")]) for load in ([], *NOTHING.values())]
        assert_equal_schedules(ops, arch, dtype, a=Extent.VECTOR, b=Extent.VECTOR)

    @pytest.mark.parametrize("read", [Extent.ROW, Extent.VECTOR, Extent.FULL])
    def test_one_operand(self, arch, kind, dtype, read):
        for ops in both_sides(kind, ONE.values()):
            assert_equal_schedules(ops, arch, dtype, a=read)

    @pytest.mark.parametrize("read", [Extent.ROW, Extent.VECTOR, Extent.FULL])
    def test_two_operands(self, arch, kind, dtype, read):
        for ops in both_sides(kind, TWO.values()):
            assert_equal_schedules(ops, arch, dtype, a=read, b=read)

    def test_an_operand_on_each_side(self, arch, kind, dtype):
        ops = [
            kind(load=ONE[load], store=ONE[store])
            for load, store in [("Residual", "gamma"), ("Bias", "Scale"), ("scaled", "shifted")]
        ]
        # Both sides read `a`: a tensor of x's size.
        assert_equal_schedules(ops, arch, dtype, a=Extent.FULL)

    def test_masks(self, arch, kind, dtype):
        for chains in MASKS.values():
            if kind.zeroes_masked:  # a norm, which has no scores
                chains = [chain for chain in chains if not isinstance(chain[0], fo.Alibi)]
            assert_equal_schedules([kind(load=chain) for chain in chains], arch, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_other_traffic_has_another_schedule(kind):
    """Not all are one: what is read is told apart where it matters."""
    ways = [
        (kind(), {}),
        (kind(store=[fo.Bias("a")]), {"a": Extent.VECTOR}),
        (kind(store=[fo.Bias("a")]), {"a": Extent.FULL}),
        (kind(store=[fo.Dropout("number")]), {}),
    ]
    forward = {schedules(op, "sm_90", 12289, HALF, **extents)[0] for op, extents in ways}
    assert len(forward) == 4
    vector, full = (
        schedules(kind(load=[fo.Bias("a")]), "sm_90", 12289, HALF, a=one)[0]
        for one in (Extent.VECTOR, Extent.FULL)
    )
    assert vector == full  # a vector beside x in the LOAD is not measured: as a full operand


class TestExtents:
    """What an operand is follows from its dimensions and from columns, never from the rows."""

    @pytest.mark.parametrize("lead", [(), (1,), (64,), (1, 1), (4, 16), (4, 1, 16)])
    def test_of_the_last_dimension(self, lead):
        x = tensor(*lead, 48)
        assert extent(0.5, x, (len(lead),)) is Extent.NUMBER
        for shape, expected in [
            ((), Extent.NUMBER),
            ((1,), Extent.NUMBER),
            ((48,), Extent.VECTOR),
        ]:
            assert extent(tensor(*shape), x, (len(lead),)) is expected
        if lead:
            for keep in {(1,) * len(lead), lead}:  # in a batch of one they are the same
                assert extent(tensor(*keep, 1), x, (len(lead),)) is Extent.ROW
                assert extent(tensor(*keep, 48), x, (len(lead),)) is Extent.FULL

    def test_of_several_dimensions(self):
        x = tensor(5, 6, 8)
        for shape, expected in [
            ((), Extent.NUMBER),
            ((1,), Extent.NUMBER),
            ((1, 1), Extent.NUMBER),
            ((8,), Extent.VECTOR),
            ((6, 1), Extent.VECTOR),
            ((6, 8), Extent.VECTOR),
            ((5, 1, 1), Extent.ROW),
            ((1, 1, 1), Extent.ROW),
            ((5, 1, 8), Extent.FULL),
            ((1, 6, 8), Extent.FULL),
        ]:
            assert extent(tensor(*shape), x, (1, 2)) is expected, shape

    def test_of_a_dimension_that_is_not_the_last(self):
        x = tensor(6, 5)
        for shape, expected in [
            ((), Extent.NUMBER),
            ((5,), Extent.ROW),
            ((1, 5), Extent.ROW),
            ((6, 1), Extent.FULL),
            ((6, 5), Extent.FULL),
        ]:
            assert extent(tensor(*shape), x, (0,)) is expected, shape

    def test_strides_make_no_difference(self):
        x = tensor(5, 8)
        assert extent(tensor(8).expand(5, 8), x, (1,)) is Extent.FULL
        assert extent(tensor(5, 1).expand(5, 8), x, (1,)) is Extent.FULL

    def test_a_single_column_is_a_column(self):
        assert extent(tensor(1), tensor(5, 1), (1,)) is Extent.VECTOR
        assert extent(tensor(5, 1), tensor(5, 1), (1,)) is Extent.FULL
        assert extent(tensor(), tensor(5, 1), (1,)) is Extent.NUMBER

    def test_what_does_not_act_moves_nothing(self):
        op = fo.Softmax(store=[fo.Dropout("p")])
        x = tensor(3, 8)
        assert traffic_of(bind(op, x, {"p": 0.1}, {})).draws == 1
        for p, options in [(0.0, {}), (0.1, {"training": False})]:
            traffic = traffic_of(bind(op, x, {"p": p}, options))
            assert (traffic.streams, traffic.beside) == ("none", 0)


@pytest.mark.parametrize("read", Extent)
@pytest.mark.parametrize("side", ["load", "store"])
@pytest.mark.parametrize("kind", [fo.Softmax, fo.LayerNorm, fo.RMSNorm])
def test_a_batch_of_one_has_the_tile_of_many(kind, side, read):
    op = kind(**{side: [fo.Scale("a")]})
    for columns, arch in itertools.product((1023, 12289, 50257), ("sm_80", "sm_90")):
        tiles = []
        for rows in (1, 2, 64):
            x = tensor(rows, columns, dtype=HALF)
            shapes = {
                Extent.ROW: (rows, 1),
                Extent.VECTOR: (columns,),
                Extent.FULL: (rows, columns),
            }
            a = 0.5 if read is Extent.NUMBER else tensor(*shapes[read], dtype=HALF)
            backward = backward_of(op, x, {"a": a}, arch).tile
            cut = backward.threads, backward.packs, backward.width, backward.chunk
            tiles.append((described(op, x, {"a": a}, arch).tile, cut))
        assert len(set(tiles)) == 1, tiles


@pytest.mark.parametrize("kind", [fo.LayerNorm, fo.RMSNorm])
def test_a_row_alone_has_the_tile_of_many(kind):
    """X without row dimensions: its vectors are those that rows would share."""
    op = kind(store=[fo.Scale("g"), fo.Bias("b")])
    for columns in (1023, 12289, 50257):
        given = {"g": tensor(columns, dtype=HALF), "b": tensor(columns, dtype=HALF)}
        alone = described(op, tensor(columns, dtype=HALF), given, "sm_90").tile
        assert alone == described(op, tensor(5, columns, dtype=HALF), given, "sm_90").tile


def test_flagships_are_as_they_were():
    """They were measured: (threads, packs, width) of both passes, float16, on sm_90."""
    expected = {
        ("attention", 1024): ((32, 4, 8), (64, 2, 8)),
        ("add_norm", 1024): ((32, 4, 8), (64, 2, 8)),
    }
    for (name, columns), cuts in expected.items():
        op = declare({"attention": ATTENTION, "add_norm": ADD_NORM}[name])
        x, given = flagship_inputs(op, 300, columns, HALF)
        tiles = described(op, x, given, "sm_90").tile, backward_of(op, x, given, "sm_90").tile
        assert tuple((tile.threads, tile.packs, tile.width) for tile in tiles) == cuts, name


#: What became reachable: numbers on schedules that had nothing beside x, and vectors of other
#: functors on those of Affine.
SAID = {
    "softmax, a float": (fo.Softmax(load=[fo.Scale("number")]), {}),
    "softmax, 0-d": (fo.Softmax(load=[fo.Scale("scalar")]), {}),
    "softmax, ALiBi": (fo.Softmax(load=[fo.Alibi("number")]), {}),
    "log-softmax, a user's": (fo.LogSoftmax(load=[scaled("number"), fo.Bias("scalar")]), {}),
    "LayerNorm, two": (
        fo.LayerNorm(store=[fo.Scale("a"), fo.Bias("b")]),
        {"a": Extent.VECTOR, "b": Extent.VECTOR},
    ),
    "LayerNorm, numbers": (
        fo.LayerNorm(load=[fo.Scale("scalar")], store=[fo.Affine("a", "b")]),
        {"a": Extent.VECTOR, "b": Extent.VECTOR},
    ),
    "RMSNorm, Scale": (fo.RMSNorm(store=[fo.Scale("a")]), {"a": Extent.VECTOR}),
    "RMSNorm, a user's": (fo.RMSNorm(store=[scaled("a")]), {"a": Extent.VECTOR}),
}


LENGTHS, NEW = [1023, 12289, 30522, 50257], ["sm_90", "sm_100"]
PLAIN = ("softmax, a float", "RMSNorm, Scale")


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("name", "columns", "arch", "dtype"),
    [
        *covering(2, PLAIN, LENGTHS, NEW, [HALF, FLOAT]),
        *(
            (name, columns, NEW[(i + j) % 2], [HALF, FLOAT][i // 2 % 2])
            for i, name in enumerate(name for name in SAID if name not in PLAIN)
            for j, columns in enumerate(LENGTHS)
        ),
    ],
)
def test_what_became_reachable_compiles(name, columns, arch, dtype):
    """Both passes, without spills."""
    op, extents = SAID[name]
    x = tensor(3000 if columns < 2000 else 300, columns, dtype=dtype)
    given = operands_of(op, extents, columns, dtype, rows=x.shape[0])
    check_compiles(described(op, x, given, arch))
    check_gradient_compiles(backward_of(op, x, given, arch))
