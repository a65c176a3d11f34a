# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Generate the source of a kernel that multiplies and runs a STORE (include/fusedops/gemm/)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fusedops import _runtime
from fusedops.generate.arguments import ArgumentWriter
from fusedops.generate.source import CUDA_LINKAGE, Member, Members, Text, generated, of_side
from fusedops.schedule.architectures import ProductTiling

__all__ = [
    "BATCH_DIMS",
    "MOST_GROUPS",
    "Factor",
    "product_source",
    "write_factors",
]

#: Packs that an epilogue warp works on at a time, where registers do not spill.
PACKS = 4

#: The macro by which functions of core/pointwise.cuh have few instructions.
SHORT = "FUSEDOPS_ROUNDED_ARGUMENTS"

#: 64-bit words of a tensor map; batch dimensions of a factor in one, `OneOfMany` in batch.cuh.
TENSOR_MAP_WORDS, BATCH_DIMS = 16, 3

#: The most groups of rows of a product, `GroupTable::kMost` in groups.cuh.
MOST_GROUPS = 256

#: The kernel template of each entry, and the members that say its tiles and products.
TEMPLATES = {
    "product": ("product_kernel<{}>", ", a.group"),
    "scaled_product": ("product_kernel<{}>", ", a.group, a.scales"),
    "few_rows_product": ("few_rows_kernel<{}>", ""),
    "product_gradient": ("product_kernel<{}>", ", a.group"),
    "product_row_sums": ("product_kernel<{}>", ", a.group"),
    "batched_product": ("batched_product_kernel<{}>", ", a.group, a.batch"),
    "grouped_product": ("grouped_product_kernel<{}, gemm::Halves::kNone>", ", a.group, a.groups"),
    "halved_product": ("grouped_product_kernel<{}, gemm::Halves::kBelow>", ", a.group, a.groups"),
    "grouped_weights": ("grouped_weights_kernel<{}>", ", a.group, a.groups"),
    "interleaved_product": (
        "grouped_product_kernel<{}, gemm::Halves::kBetween>",
        ", a.group, a.groups",
    ),
}


class Factor(NamedTuple):
    """A factor as a matrix whose rows are contiguous, or as many."""

    slot: int  # the number of its operand in the call
    #: Its size, and the bytes from a row to the next one.
    rows: int
    columns: int
    pitch: int
    box: int  # the rows that one copy takes
    kind: int  # the number of its dtype in the driver's CUtensorMapDataType
    #: Of many, the size of each batch dimension and the bytes from a matrix to the next one, inner
    #: dimensions first; 0 bytes where there is one matrix for all. Empty for one.
    batch: tuple[tuple[int, int], ...] = ()

    @property
    def described(self) -> list[int]:
        """The words by which the driver makes its tensor map (csrc/driver.h, `Matrices`)."""
        words = [self.rows, self.columns, self.pitch, self.box, self.kind, len(self.batch)]
        for size, apart in self.batch:
            # Of a dimension that is shared, a map has the first place alone.
            words += (size, apart) if apart else (1, self.pitch)
        return words + [0] * (TENSOR_MAP_WORDS - len(words))


def write_factors(
    write: ArgumentWriter, x: Factor, w: Factor, tiling: ProductTiling
) -> list[Member]:
    """Append the members that the product adds to an argument, and their words.

    The runtime makes a tensor map of each factor. Maps are aligned to 64 bytes.
    """
    write.constant(x.columns, tiling.group)
    members = [Member("int64_t", "depth"), Member("int64_t", "group")]
    if x.batch:
        sizes = [size for size, _ in x.batch]
        shares = [apart == 0 for factor in (x, w) for _, apart in factor.batch]
        bits = sum(1 << bit for bit, shared in enumerate(shares) if shared)
        write.constant(x.rows, math.prod(sizes), *sizes[: BATCH_DIMS - 1], bits)
        members.append(Member("gemm::Batch", "batch"))
    while len(write.words) % 8:
        members.append(Member("int64_t", f"unused{len(write.words)}"))
        write.constant(0)
    for name, factor in (("x_map", x), ("w_map", w)):
        write.patches.append((len(write.words), _runtime.TENSOR_MAP, factor.slot))
        write.constant(*factor.described)
        members.append(Member("alignas(64) gemm::TensorMap", name))
    return members


def product_source(
    entry: str,
    members: Members,
    words: int,
    tiling: ProductTiling,
    headers: Sequence[str],
    definitions: Sequence[str] = (),
) -> Text:
    """The source of a kernel `fusedops_kernel`.

    `entry` is one of `TEMPLATES`. The epilogue is a STORE, that of "product_gradient" the gradient
    of a LOAD, that of "product_row_sums" a LOAD and sums of its rows. The other arguments are as
    for `cuda_source`.
    """
    functors = [
        f"a.{one.name}{'.drawn()' if one.drawn else ''}"
        for side in ("load", "store")
        # Masks run after the other functors of their side.
        for one in sorted(of_side(members, "functor", side), key=lambda one: one.masks)
    ]
    template, order = TEMPLATES[entry]
    if entry == "grouped_weights":
        epilogue, header = "a.y", "gemm/grouped_weights.cuh"
    elif entry == "product_row_sums":
        kept = ", ".join([*functors, "gemm::keep_target(a.op.target, a.at)", "Absent{}"])
        epilogue = f"gemm::row_sums<{tiling.cpp}>(store({kept}), a.numbers, a.rows.count)"
        header = "gemm/row_sums.cuh"
    elif entry != "product_gradient":
        epilogue = f"gemm::Forward(store({', '.join([*functors, 'a.y'])}))"
        header = "gemm/groups.cuh" if "a.groups" in order else "gemm/epilogue.cuh"
        names = {one.name for one in members}
        if "z" in names:
            order += ", a.z"
        if "places" in names:
            order += ", gemm::NotKept{}, a.places"
    else:
        again = "Tap<decltype(Arguments::again)>{a.again, {}}"
        load = f"load({', '.join(['a.x', *functors, again])})"
        targets = ", ".join(f"a.{one.name}" for one in of_side(members, "target", "load"))
        epilogue = f"gemm::Backward({load}, a.to, targets({targets}))"
        header = "gemm/gradient.cuh"
    text = generated(
        members,
        words,
        [*headers, header, tiling.header, "core/dependency.cuh"],
        definitions,
        f"""\
#if defined(FUSEDOPS_PACKS)
inline constexpr int kPacks = FUSEDOPS_PACKS;
#else
inline constexpr int kPacks = {PACKS};
#endif
{CUDA_LINKAGE} __global__ void __launch_bounds__({tiling.threads}, 1) \
__cluster_dims__({tiling.cluster}, 1, 1)
fusedops_kernel(const __grid_constant__ Arguments a) {{
  begin_after_previous();
  gemm::{template.format(tiling.cpp)}(
      a.x_map, a.w_map, {epilogue}, a.rows, a.cols, a.depth{order});
}}
static_assert({tiling.cpp}::Ring::kShared == {tiling.shared_bytes},
              "architectures.py and gemm/pipeline.cuh disagree");
""",
    )
    # Of gradients it was not measured; what is wider than 16 bits would show the difference.
    rounds = entry not in ("product_gradient", "product_row_sums")
    short = rounds and all("View<float," not in one.cpp for one in members)
    return text._replace(macros=(SHORT,)) if short else text
