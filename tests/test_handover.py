# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which packs of a tile the lanes of an epilogue warp read, as the compiler computes it."""

import dataclasses

import pytest
from products import SEVERAL

from fusedops.errors import CompileError
from fusedops.jit import nvrtc
from fusedops.product.product_kernel import MOST_APART
from fusedops.schedule.architectures import TILINGS

#: Each pack of the rows of a warp is read once; packs that go through functors together have one
#: column, and rows no further apart than addresses allow; and 8 lanes that are served together meet
#: 8 banks.
SOURCE = """
#include <fusedops/gemm/kernel.cuh>

using namespace fusedops;
inline constexpr int kPacks = {packs};
using Sums = gemm::Handover<{tiling}>;

constexpr bool reads_each_once() {{
  constexpr int kRows = Sums::kPacks * 32 / Sums::kLanes;
  bool seen[kRows][Sums::kLanes] = {{}};
  for (int lane = 0; lane < 32; ++lane) {{
    for (int nth = 0; nth < Sums::kReads; ++nth) {{
      const int row = Sums::first_row(lane) + Sums::below(nth, lane);
      const int pack = Sums::first_pack(lane) + Sums::beside(nth, lane);
      if (row < 0 || row >= kRows || pack < 0 || pack >= Sums::kLanes) return false;
      if (seen[row][pack]) return false;
      seen[row][pack] = true;
      const int first = nth / kPacks * kPacks;
      if (Sums::beside(nth, lane) != Sums::beside(first, lane)) return false;
      const int apart = Sums::below(nth, lane) - Sums::below(first, lane);
      if (apart != (nth - first) * Sums::kRowsAtOnce || apart > {most}) return false;
    }}
  }}
  return true;
}}
static_assert(reads_each_once());

constexpr bool meets_each_bank_once() {{
  for (int nth = 0; nth < Sums::kReads; ++nth) {{
    for (int first = 0; first < 32; first += 8) {{
      int banks = 0;
      for (int lane = first; lane < first + 8; ++lane) {{
        const int row = Sums::first_row(lane) + Sums::below(nth, lane);
        const int pack = Sums::first_pack(lane) + Sums::beside(nth, lane);
        banks |= 1 << (row * Sums::kLanes + (pack ^ row % 8)) % 8;
      }}
      if (banks != 255) return false;
    }}
  }}
  return true;
}}
static_assert(meets_each_bank_once());
extern "C" __global__ void fusedops_kernel() {{}}
"""


def compiled(name, packs, changed=("", "")):
    tiling = dataclasses.replace(TILINGS[name], dtype="half").cpp
    # An address is one of 32 bits from that of the first row: MOST_APART in product_kernel.py.
    text = SOURCE.format(tiling=tiling, packs=packs, most=(2**32 - 1) // MOST_APART)
    nvrtc.compile_cuda(text.replace(*changed), "sm_90a")


@pytest.mark.parametrize("packs", [4, 2, 1])
@pytest.mark.parametrize("name", SEVERAL)
def test_lanes_read_each_pack_once(name, packs):
    compiled(name, packs)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("+ Sums::beside(nth, lane);", ";"), "reads_each_once"),
        (("pack ^ row % 8", "row"), "meets_each_bank_once"),
    ],
)
def test_a_wrong_one_is_seen(changed, said):
    with pytest.raises(CompileError, match="static assertion failed") as error:
        compiled("Together192", 4, changed)
    assert said in str(error.value)
