# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The dtype in which a result is read, where autocast converts it: it can be stored in that.

Autocast converts when the graph runs, so no node stands for it. What tells of it are the dtypes
of a product: one of float32 gives 16 bits only there.
"""

from __future__ import annotations

import torch
from torch import fx

from fusedops.graph.nodes import arguments, example, name_of, users_of

__all__ = ["read_as"]

#: The products that autocast computes in its dtype from factors that it converts as they are, by
#: the names of their factors. (einsum may add up a factor in float32 before it is converted.)
_FACTORS = {
    "matmul": "input other",
    "__matmul__": "input other",
    "__rmatmul__": "input other",
    "bmm": "input mat2",
    "mm": "input mat2",
    "linear": "input weight",
}


def read_as(result: fx.Node) -> torch.dtype | None:
    """The dtype to which autocast converts a result wherever it is read; None if it does not.

    Rounding is the same in a kernel. That its gradient is then of this dtype loses nothing either
    where one product alone reads it: two would have theirs added in float32.
    """
    made = example(result)
    users = users_of(result)
    if made is None or made.dtype is not torch.float32 or len(users) != 1:
        return None
    (user,) = users
    product = example(user)
    names = _FACTORS.get(name_of(user))
    if names is None or product is None or product.dtype not in (torch.float16, torch.bfloat16):
        return None
    times = sum(one is result for one in (*user.args, *user.kwargs.values()))
    given = arguments(user, names)
    is_factor = any(given.get(name) is result for name in names.split())
    return product.dtype if is_factor and times == 1 else None
