# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The features of a kernel by which its launch configuration is looked up.

They say what a kernel has to do, never how many rows there are, except for a matrix product. What
is named here can stand in the `when` of a row of a tuning file (tuning_file.py).
"""

from __future__ import annotations

from typing import NamedTuple


class ForwardFeatures(NamedTuple):
    """Features of a forward pass."""

    columns: int  # row length in elements, of the longest rows that the kernel serves
    row_bytes: int  # size of such a row of x in bytes
    element_bytes: int  # size of an element of x in bytes
    compute_bytes: int  # size of the compute type in bytes, 4 or 8
    pack_columns: int  # elements of x that one vector access takes, where the row is not staged
    pack_bytes: int  # size of such a pack in bytes
    values: int  # 32-bit registers per thread that hold elements of the row
    threads: int  # threads that hold one chunk of a row
    chunks: int  # number of chunks in a row
    cluster: int  # thread blocks in the cluster that shares a row; 1 without one
    exact: bool  # whether every pack of every tile is full
    read_once: bool  # whether all of a row is held on chip, so that it is read once
    #: The row's memory traffic beside x and y: "none", "columns" (vectors of the STORE that all
    #: rows share), or "many".
    traffic: str
    centred: bool  # whether the operator subtracts a mean
    staged_tile: bool  # whether the row's tile is made for staging in shared memory
    narrow_result: bool  # whether an element of y has 8 bits or less
    #: Neighbouring rows that share all operands but x, a power of two, where a functor reads a
    #: partner column; else 1.
    sharing: int


class BackwardFeatures(NamedTuple):
    """Features of a backward pass; those without a comment are as in `ForwardFeatures`."""

    columns: int
    row_bytes: int
    element_bytes: int
    compute_bytes: int
    pack_columns: int
    pack_bytes: int
    values_limit: int  # largest number of 4-byte values per thread that the tile was cut by
    threads: int
    chunks: int
    cluster: int
    exact: bool
    read_once: bool
    #: The tables that the tile was cut by: "plain" (no traffic beside), "softmax", "norm" or "long
    #: norm".
    family: str
    sums: int  # number of operands whose gradients are sums over rows; 0 without
    #: Fewest sums that one of these gradients consists of, each over a group of rows; 0 without.
    groups: int
    #: Whether bulk copies can bring rows to shared memory ahead: the GPU has them, rows of x and of
    #: the gradient of y are dense, and the LOAD has no functors, which may read x again.
    bulk_rows: bool
    sharing: int


class IndependentFeatures(NamedTuple):
    """Features of a pass that reduces no rows, whose chunks are independent of one another."""

    gradient: bool  # whether it is a backward pass
    #: As in `ForwardFeatures`.
    values: int
    threads: int
    chunks: int
    sharing: int
    #: Whether neighbouring columns share numbers, which their lanes exchange.
    in_blocks: bool = False
    sums: int = 0  # number of operands whose gradients can be sums over rows; 0 without
    visits: bool = False  # whether a block visits one row after another, to add up a gradient
    #: Whether a backward pass moves tensors of x's size beside the gradients of y and of x.
    more: bool = False


class ProductFeatures(NamedTuple):
    """Features of a matrix product with the functors after it."""

    #: The product is one of matrices (rows, depth) and (depth, columns).
    rows: int
    columns: int
    depth: int
    batches: int  # the number of such products
    #: Whether rows are in groups, each of which has a right matrix of its own: then `rows` are
    #: those of all groups, and `batches` is the number of groups.
    grouped: bool
    #: The waves of one kernel of large tiles, in percent: pairs of tiles for each cluster that the
    #: device runs at once. Below 100 some clusters have none.
    wave_percent: int
    #: The elements of a product, in percent of those in pairs of large tiles that cover it: what
    #: exceeds it is computed twice.
    filled_percent: int
    #: Whether torch's product copies a factor first, since batch dimensions do not merge.
    copies: bool
    masked: bool  # whether a functor masks
    reads: int  # number of operands with more elements than a row of the product
    writes: int  # number of outputs beside y, saved streams and taps
    draws: bool  # whether a dropout acts
    dtype: str  # that of the factors, "float16", "bfloat16" or one of 8 bits, "float8_e4m3fn"
    store: str  # the functors after the product, as text (declare/text.py)
    along_k: bool = False  # whether the factors have scales that change along the depth
    #: Whether the functors are those before the next product, through which its gradient goes back.
    gradient: bool = False
    #: Whether the depth is what groups share, as in the gradient of their matrices: then `depth` is
    #: that of all groups, and `batches` is the number of groups.
    ragged_depth: bool = False
    #: Whether they are those before a loss, of which a few numbers a row are written.
    row_sums: bool = False


#: Those of a pass that reduces rows, and all by which a `LaunchConfig` is looked up.
Features = ForwardFeatures | BackwardFeatures
LaunchFeatures = Features | IndependentFeatures
