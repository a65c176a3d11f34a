# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Rows and columns of operands, against addresses counted one by one."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusedops.bind.broadcasting import Mismatch, mismatch
from fusedops.bind.geometry import MAX_ROW_DIMS, place


def contiguous(shape):
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return tuple(shape), tuple(strides)


def row_counter(shape, reduced):
    """The number of each logical row, as dropout counts them."""
    kept = [1 if dim in reduced else size for dim, size in enumerate(shape)]
    strides = contiguous(kept)[1]
    return ([0 if dim in reduced else step for dim, step in enumerate(strides)],)


def addresses(shape, reduced, operand):
    """Every element's address as [logical row, logical column], from first principles."""
    if len(operand) == 1:
        (steps,) = operand
    else:
        own, strides = operand
        buffer = np.arange(1 + sum(s * max(n - 1, 0) for n, s in zip(own, strides, strict=True)))
        view = np.lib.stride_tricks.as_strided(buffer, own, [8 * step for step in strides])
        view = np.broadcast_to(view, shape)
        rows = [dim for dim in range(len(shape)) if dim not in reduced]
        columns = prod(shape[dim] for dim in reduced)
        return view.transpose(*rows, *reduced).reshape(-1, columns)
    index = np.indices(shape)
    total = sum(i * step for i, step in zip(index, steps, strict=True))
    rows = [dim for dim in range(len(shape)) if dim not in reduced]
    columns = prod(shape[dim] for dim in reduced)
    return np.asarray(total).transpose(*rows, *reduced).reshape(-1, columns)


def visited(geometry, placed):
    """The addresses that a kernel computes from a place, as [visited row, column]."""
    coordinates = np.unravel_index(np.arange(geometry.rows), geometry.sizes)
    row = sum(i * step for i, step in zip(coordinates, placed.row_strides, strict=True))
    return np.asarray(row)[:, None] + (
        np.arange(geometry.columns) // placed.repeats * placed.column_stride
    )


@st.composite
def calls(draw):
    """A shape, what is reduced, and operands that are broadcast, permuted or spaced."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    rank = len(shape)
    reduced = draw(
        st.one_of(
            st.just((rank - 1,)),
            st.integers(1, rank).map(lambda count: tuple(range(rank - count, rank))),
            st.sets(st.integers(0, rank - 1), min_size=1).map(lambda dims: tuple(sorted(dims))),
        )
    )
    operands = [contiguous(shape), row_counter(shape, reduced)]
    for _ in range(draw(st.integers(0, 4))):
        own = [draw(st.sampled_from([size, size, 1])) for size in shape]
        own = own[draw(st.integers(0, rank)) if draw(st.booleans()) else 0 :]
        strides, step = [0] * len(own), 1
        for dim in draw(st.permutations(range(len(own)))):
            strides[dim] = step * draw(st.sampled_from([1, 1, 1, 0]))
            step *= own[dim] + draw(st.sampled_from([0, 0, 0, 1]))
        operands.append((tuple(own), tuple(strides)))
    return shape, reduced, operands, [draw(st.sampled_from([1, 2, 8, 1 << 20])) for _ in operands]


@pytest.mark.thorough
@given(calls())
def test_every_operand_is_addressed_right(call):
    shape, reduced, operands, element_bytes = call
    geometry = place(shape, reduced, operands, element_bytes)
    assert geometry.rows == prod(geometry.sizes)
    assert geometry.columns == prod(shape[dim] for dim in reduced)
    row_of = visited(geometry, geometry.placed[1])[:, 0]
    assert sorted(row_of) == list(range(geometry.rows)), "each row is visited once"
    for operand, placed in zip(operands, geometry.placed, strict=True):
        wanted = addresses(shape, reduced, operand)
        if placed is None:
            steps = np.diff(wanted, axis=1)
            assert np.unique(steps).size > 1, "copied although one step would do"
        else:
            np.testing.assert_array_equal(visited(geometry, placed), wanted[row_of])


@given(calls())
def test_what_is_left_cannot_be_merged(call):
    shape, reduced, operands, _ = call
    geometry = place(shape, reduced, operands, [0] * len(operands))
    assert all(size > 1 for size in geometry.sizes) or geometry.sizes == (1,)
    assert list(geometry.order) == sorted(geometry.order), "small operands leave the order alone"
    for inner in range(1, len(geometry.sizes)):
        assert (
            any(
                p.row_strides[inner - 1] != p.row_strides[inner] * geometry.sizes[inner]
                for p in geometry.placed
                if p is not None
            )
            or None in geometry.placed
        )


def test_a_contiguous_call_has_one_row_dimension():
    x = contiguous((8, 16, 32, 64))
    geometry = place(x[0], (3,), [x, x, contiguous((64,))], [4, 4, 4])
    assert geometry.sizes == (4096,)
    assert [p.row_strides for p in geometry.placed] == [(64,), (64,), (0,)]
    assert [p.column_stride for p in geometry.placed] == [1, 1, 1]


def test_size_one_dimensions_vanish():
    """A last batch of one has the geometry of its own rank, not of a broadcast."""
    x = ((1, 16, 32, 64), (999, 2048, 64, 1))
    geometry = place(x[0], (3,), [x, ((1, 1, 32, 64), (7, 7, 64, 1))], [4, 4])
    assert geometry.sizes == (16, 32)
    assert geometry.placed[1].row_strides == (0, 64)


def test_several_reduced_dimensions_are_one_column():
    x = contiguous((5, 3, 4))
    transposed = ((5, 3, 4), (12, 1, 3))
    geometry = place((5, 3, 4), (1, 2), [x, transposed, ((4,), (1,)), ((), ())], [4] * 4)
    assert geometry.columns == 12
    assert geometry.placed[0] == ((12,), 1, 1)
    assert geometry.placed[1] is None, "its columns are not a single step apart"
    assert geometry.placed[2] is None, "broadcast within the row"
    assert geometry.placed[3] == ((0,), 0, 1)


def test_a_reduced_dimension_need_not_be_the_last():
    x = contiguous((2, 6, 5))
    assert place((2, 6, 5), (1,), [x], [4]).placed == (((30, 1), 5, 1),)


def test_one_column_counts_as_dense_where_the_dimension_exists():
    placed = place((3, 1), (1,), [((3, 1), (1, 1)), ((1,), (1,)), ((), ())], [4, 4, 4]).placed
    assert [p.column_stride for p in placed] == [1, 1, 0]


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,), (2, 0, 3, 4), (2, 3, 0, 0)])
def test_nothing_to_visit(shape):
    geometry = place(shape, (len(shape) - 1,), [contiguous(shape)], [4])
    assert geometry.rows == prod(shape[:-1])
    assert geometry.columns == shape[-1]
    assert geometry.sizes == (geometry.rows,)


def test_a_bias_shared_over_the_batch_is_visited_batch_innermost():
    shape = (8, 16, 1024, 1024)
    x = contiguous(shape)
    bias = contiguous((1, 16, 1024, 1024))
    padding = contiguous((8, 1, 1, 1024))
    geometry = place(shape, (3,), [x, x, bias, padding, row_counter(shape, (3,))], [2, 2, 2, 1, 0])
    assert geometry.order == (1, 2, 0)
    assert geometry.sizes == (16384, 8)
    assert geometry.placed[2].row_strides == (1024, 0)
    assert geometry.placed[3].row_strides == (0, 1024)


def test_the_heavier_sharing_is_innermost():
    shape = (8, 16, 1024, 1024)
    over_batch = contiguous((1, 16, 1024, 1024))
    over_heads = contiguous((8, 1, 1024, 1024))
    operands = [contiguous(shape), over_batch, over_heads]
    assert place(shape, (3,), operands, [2, 2, 2]).order == (2, 1, 0)
    assert place(shape, (3,), operands, [2, 1, 8]).order == (2, 0, 1)


def test_a_small_shared_operand_leaves_the_order_alone():
    shape = (8, 16, 64, 64)
    operands = [contiguous(shape), contiguous((1, 16, 64, 64))]
    assert place(shape, (3,), operands, [4, 4]).order == (0, 1, 2)
    assert place(shape, (3,), operands, [16, 16]).order == (1, 2, 0)


def test_a_row_shared_by_all_leaves_the_order_alone():
    shape = (4, 4, 1 << 20)
    strided = (shape, (1 << 25, 1 << 22, 1))
    geometry = place(shape, (2,), [strided, ((1 << 20,), (1,))], [4, 4])
    assert geometry.order == (0, 1)


def test_too_many_row_dimensions():
    assert MAX_ROW_DIMS == 5
    shape = (2,) * 7
    alternating = contiguous((2, 1) * 3 + (2,))
    with pytest.raises(ValueError, match=r"6 row dimensions \(2, 2, 2, 2, 2, 2\), at most 5"):
        place(shape, (6,), [contiguous(shape), alternating], [4, 4])


@given(st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 3), max_size=4))
def test_mismatch_agrees_with_numpy(shape, operand):
    try:
        fits = np.broadcast_shapes(tuple(shape), tuple(operand)) == tuple(shape)
    except ValueError:
        fits = False
    assert (mismatch(shape, operand) is None) == (fits and len(operand) <= len(shape))


def test_mismatch_says_where():
    assert mismatch((8, 16, 32), (8, 32)) == Mismatch(dim=-2, got=8, wanted=16)
    assert mismatch((16, 32), (16, 33)) == Mismatch(dim=-1, got=33, wanted=32)
    assert mismatch((16, 32), (3, 16, 32)) == Mismatch(dim=-3, got=3, wanted=None)
    assert mismatch((1, 32), (4, 32)) == Mismatch(dim=-2, got=4, wanted=1)
