# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How far products with what follows them are from the truth: by one kernel, by two, and torch's.

The truth is torch in float64 from the same inputs. Every way is compared with it at each of the
sizes of `gemm` with `ROWS` rows, in both halves; STOREs that draw are left out.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from errors import Errors, errors_of
from gemm import SIZES
from peers import SkipError
from points import DTYPES, HALVES, Selection
from rich.table import Table
from stores import STORES, Store
from torch import Tensor

from fusedops.schedule.launch import IMPLEMENTATIONS
from fusedops.tuning.problem import implementation_of_last

ROWS = 2048
SHARES = ("rms of the row's largest", "max of the row's largest")


def measured(chosen: Selection, device: str = "cuda") -> Iterator[Errors]:
    """The outputs of every STORE without a dropout."""
    sizes = list(dict.fromkeys(size[1:] for size in SIZES))
    dtypes = [dtype for dtype in chosen.dtypes or HALVES if dtype in HALVES]
    for dtype, (columns, depth), (name, store) in itertools.product(dtypes, sizes, STORES.items()):
        if store.again:
            yield from _compared(name, store, dtype, (columns, depth), device)


def _compared(
    name: str, store: Store, dtype: str, size: tuple[int, int], device: str
) -> Iterator[Errors]:
    given = _given(*size, DTYPES[dtype], device)
    exact = {key: one.double() for key, one in given.items()}
    truth = store.by_torch(store.plain, exact)
    del exact
    for by, call in _ways(store).items():
        try:
            result = call(given)
        except SkipError:  # what this device has not
            continue
        found = errors_of(result.to(truth.dtype), truth, DTYPES[dtype])
        op = f"{name} after K = {size[1]}"
        yield Errors(op, "forward", "y", dtype, ROWS, size[0], by, *found)


def _ways(store: Store) -> dict[str, Callable[[Mapping[str, Tensor]], Tensor]]:
    """Ours by each implementation; torch's in the dtype; its chain in float32, rounded last."""
    ways: dict[str, Callable[[Mapping[str, Tensor]], Tensor]] = {
        f"fusedops, {implementation}": functools.partial(_by_implementation, store, implementation)
        for implementation in IMPLEMENTATIONS
    }
    for by, plain in {"torch eager": store.plain, **store.others}.items():
        ways[by] = functools.partial(store.by_torch, plain)
    ways["float32 chain"] = functools.partial(_in_float32, store)
    return ways


def _by_implementation(store: Store, implementation: str, given: Mapping[str, Tensor]) -> Tensor:
    result: Tensor = store.fused(given, implementation)
    if implementation_of_last() != implementation:
        raise SkipError(f"{implementation} does not run this call")
    return result


def _in_float32(store: Store, given: Mapping[str, Tensor]) -> Tensor:
    result: Tensor = store.by_torch(store.plain, {key: one.float() for key, one in given.items()})
    return result.to(given["x"].dtype)


def _given(columns: int, depth: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """The tensors of a call by name, of fixed numbers; the product is of the operands' size."""
    source = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        values = torch.randn(shape, device=device, generator=source)
        return (values * scale).to(dtype)

    made = {"x": normal(ROWS, depth), "w": normal(columns, depth, scale=depth**-0.5)}
    made["b"] = normal(columns)
    return made | {key: normal(ROWS, columns) for key in ("g", "u")}


def digest(rows: Sequence[Mapping[str, str]]) -> Table:
    """Errors as shares of the row's largest value, a row for each STORE and depth.

    In ulp, which the rows have too, a GELU that is nearly zero shows that its bias was added to a
    rounded product, which torch's own bias is not.
    """
    ways = list(dict.fromkeys(row["by"] for row in rows))
    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = row["op"], row["dtype"], row["columns"]
        cells.setdefault(key, {})[row["by"]] = ", ".join(row[what] for what in SHARES)
    shown = Table("STORE", "dtype", "N", *ways, title="errors: root mean square, largest")
    for key, by in cells.items():
        shown.add_row(*key, *[by.get(way, "") for way in ways])
    return shown
