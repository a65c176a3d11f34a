# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of as many warps as a row needs, which only C++ dispatches have (dispatch/buckets.cuh)."""

import ctypes
import os
import platform
from types import SimpleNamespace

import emulate
import pytest
import torch

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="threads are switched by x86-64 code"
)

ROWS, SLICES, WARPS, LANES, PACKS, WIDTH = 5, 2, 5, 32, 2, 4
#: Columns of five warps: all of their packs are complete, the last warp has few or none, as in the
#: last block of a cluster, or the columns are an odd number.
CASES = {"full": WARPS * LANES * PACKS * WIDTH, "cut": 1028, "none": 1000, "odd": 1111}
#: The kernels are made for eight warps. Both passes of a LayerNorm are one library.
KERNEL = f"""
#include <fusedops/functor/compose.cuh>
#include <fusedops/functors.cuh>
#include <fusedops/op/norm.cuh>
#include <fusedops/op/norm_gradient.cuh>
#include <fusedops/row/gradient.cuh>
#include <fusedops/row/kernel.cuh>
#include <fusedops/row/operand.cuh>
#include <fusedops/row/target.cuh>
using namespace fusedops;
using Number = float;
struct Nothing {{
  template <class Finish, class Row>
  void write(const Finish&, const Row&) const {{}}
}};
struct Arguments {{
  const Number *x, *gamma, *kept, *dy;
  Number *y, *dgamma;
  int64_t cols, backward;
}};
template <bool kExact, bool kPieces, Access kAccess>
void run(const Arguments& a) {{
  constexpr int kFull = kExact ? {PACKS} : 0;
  using Fitted =
      Schedule<InRegisters, 256, {PACKS}, {WIDTH}, 1, kExact, kFull, kPieces, 1, 0, 1, true>;
  const auto in = load(direct(a.x, a.cols));
  const RowsOf<kAccess> rows{{{ROWS}}};
  if (!a.backward) {{
    const auto out = store(scale(per_column(a.gamma)), direct(a.y, a.cols));
    return row_kernel<Fitted, false, false, false, true>(LayerNorm<float>{{{{1e-5f}}}}, in, out,
                                                         Nothing{{}}, rows, a.cols);
  }}
  using Target = ByColumn<0, 0, Operand<Number, RowMap<1>>, true, Sums::kShared, Number>;
  const auto dgamma = targets(Target{{direct(a.dgamma, a.cols), {{nullptr}}, 0, 0, a.cols}});
  gradient_kernel<Fitted, Prefetch::kPerThread>(
      LayerNormGradient<float>{{}}, in, direct(a.dy, a.cols),
      store(scale(per_column(a.gamma)), Absent{{}}), direct(a.kept, 3), direct(a.y, a.cols),
      targets(), dgamma, cut_rows({ROWS}, {SLICES}, 1, 1), rows, a.cols);
}}
extern "C" __global__ void fusedops_kernel(const Arguments a) {{
  if (a.cols % {CASES["full"]} == 0) return run<true, false, Access::kWide>(a);
  if (a.cols % {WIDTH} == 0) return run<false, false, Access::kWide>(a);
  run<false, true, Access::kNarrow>(a);
}}
"""


@pytest.mark.parametrize("order", emulate.ORDERS)
@pytest.mark.parametrize("cols", CASES.values(), ids=CASES)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_warps_beyond_the_row_are_not_there(backward, cols, order):
    tile = SimpleNamespace(threads_per_block=WARPS * LANES, cpp="")
    built = emulate.shared_object(SimpleNamespace(source=KERNEL, tile=tile, name="fitted"))
    draw = torch.Generator().manual_seed(cols)
    x, dy = (torch.randn(ROWS, cols, generator=draw) for _ in "xg")
    gamma = torch.randn(cols, generator=draw)
    y, dgamma = torch.full((ROWS, cols), torch.nan), torch.full((SLICES, cols), torch.nan)

    true, scaled, upstream = x.double(), gamma.double(), dy.double()
    mean = true.mean(-1, keepdim=True)
    rstd = (true.var(-1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
    normal = (true - mean) * rstd
    kept = torch.cat([mean, rstd, torch.zeros_like(mean)], 1).float()

    tensors = (x, gamma, kept, dy, y, dgamma)
    words = (ctypes.c_int64 * 8)(*(tensor.data_ptr() for tensor in tensors), cols, backward)
    machine = emulate.machine()
    machine.machine_set_order(emulate.ORDERS.index(order), 1)
    shared = tile.threads_per_block * PACKS * WIDTH * 4 if backward else 0
    grid = SLICES if backward else ROWS
    kernel = ctypes.CDLL(os.fspath(built)).fusedops_rows
    kernel(words, ctypes.c_int64(0), ctypes.c_int64(grid | shared << 32))
    assert not machine.machine_take_failure().decode()

    # A few roundings of numbers of the size of the result's largest.
    bound = {"rtol": 0, "atol": 2e-5}
    if not backward:
        torch.testing.assert_close(y.double(), normal * scaled, **bound)
        return
    given = upstream * scaled
    off = given - given.mean(-1, keepdim=True)
    want = rstd * (off - normal * (given * normal).mean(-1, keepdim=True))
    torch.testing.assert_close(y.double(), want, **bound)
    torch.testing.assert_close(dgamma.double().sum(0), (upstream * normal).sum(0), **bound)
