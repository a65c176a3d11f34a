# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that go through shared memory as they are: which do, and that nothing else changes."""

import dataclasses
import itertools

import pytest
import torch
from cases import LAYER_NORM, LOG_SOFTMAX, OPERATORS, declare, parameters, randn, verify
from test_bits import assert_same_bits
from test_variants import ARCHS, check_compiles, described, tensor

import fusedops as fo
from fusedops.bind.bind import bind
from fusedops.functors import Functor
from fusedops.generate.target import Target
from fusedops.jit import nvrtc
from fusedops.plan import forward as plan
from fusedops.schedule import row_schedule as schedule
from fusedops.schedule.architectures import GPUS

HALF, FLOAT = torch.float16, torch.float32
WORDS = [1, 2, 3, 5, 7]  # elements of 16 bits that a row is away from an aligned word


@dataclasses.dataclass(frozen=True)
class FirstColumns(Functor):
    """Sets all but the first columns to -inf, and says so in C++ alone."""

    count: int

    @property
    def headers(self):
        return ("row/view.cuh", "functor/contract.cuh")

    @property
    def definition(self):
        return """namespace fusedops {
struct FirstColumns {
  int64_t count;
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row&, int64_t col) const {
    for (int i = 0; i < N; ++i) v[i] = col + i < count ? v[i] : -infinity<Compute>();
  }
  template <class Row>
  FUSEDOPS_HD Columns columns(const Row&) const {
    return {0, count};
  }
};
}  // namespace fusedops
"""

    def emit(self, writer):
        writer.constant(self.count)
        return "FirstColumns"

    def apply(self, x, chain):
        return x


def staged(op, x, arch="sm_90", **operands):
    return described(op, x, operands, arch).tile.staged_bytes


def moved(x, shift):
    """The same values, `shift` elements away from an aligned address."""
    place = torch.empty(x.numel() + shift, dtype=x.dtype, device=x.device)[shift:]
    return place.view_as(x).copy_(x)


class TestWhichAre:
    @pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=str)
    @pytest.mark.parametrize("columns", [4097, 12289, 50257])
    def test_odd_columns(self, columns, dtype):
        v = tensor(columns, dtype=dtype)
        norm = declare(LAYER_NORM)
        x = tensor(4, columns, dtype=dtype)
        assert staged(fo.Softmax(), x) == dtype.itemsize
        assert staged(norm, x, gamma=v, beta=v) == dtype.itemsize

    @pytest.mark.parametrize("columns", [257, 1023, 4095, 4096, 5120, 12288, 16384, 65536])
    def test_few_and_even_columns_are_not(self, columns):
        assert staged(fo.Softmax(), tensor(4, columns, dtype=HALF)) == 0

    @pytest.mark.parametrize("columns", [256, 1024, 12288])
    def test_rows_at_odd_addresses(self, columns):
        x = tensor(4, columns, dtype=HALF, misaligned=True)
        assert staged(fo.Softmax(), x) == 2
        pitched = tensor(4, columns + 1, dtype=HALF)[:, :columns]
        assert staged(fo.Softmax(), pitched) == 2

    def test_what_reads_more_is_not(self):
        x = tensor(4, 12289, dtype=HALF)
        v = tensor(12289, dtype=HALF)
        of_row = tensor(4, 1, dtype=HALF)
        assert staged(fo.Softmax(load=[fo.Causal()]), x) == 0
        assert staged(fo.Softmax(load=[fo.Bias("b")]), x, b=v) == 0
        assert staged(fo.Softmax(store=[fo.Dropout("p")]), x, p=0.1) == 0
        assert staged(declare(LAYER_NORM), x, gamma=of_row, beta=of_row) == 0

    def test_columns_that_are_apart_are_not(self):
        assert staged(fo.Softmax(), tensor(12289, 4, dtype=HALF).t()) == 0

    def test_a_narrower_result_is_no_reason(self):
        """What is read or written is as wide as the tile's packs are: no address is odd."""
        for columns, dtype in ((1024, torch.float64), (1022, FLOAT), (255, torch.float64)):
            x = tensor(4, columns, dtype=dtype)
            bound = bind(fo.Softmax(), x, {}, {"dtype": HALF})
            assert plan.describe(bound, Target.named("sm_90")).tile.staged_bytes == 0

    @pytest.mark.parametrize(
        ("name", "value", "columns", "arch", "header"),
        [
            ("STAGED_WORD", 32, 12289, "sm_90", "row/staging.cuh"),
            ("KEPT_PARTS", 1, 30522, "sm_80", "row/combine.cuh"),
        ],
    )
    def test_shared_memory_is_asserted(self, monkeypatch, name, value, columns, arch, header):
        """Source that reserves other bytes than its headers use does not compile."""
        variant = described(fo.Softmax(), tensor(4, columns, dtype=HALF), {}, arch).variant
        monkeypatch.setattr(schedule, name, value)
        with pytest.raises(fo.CompileError, match=f"{header} disagree"):
            nvrtc.compile_cuda(variant.source, arch)

    def test_what_leaves_columns_out_compiles(self):
        """A functor of C++ may say which columns it leaves, unknown to Python."""
        for x in (tensor(8, 5001, dtype=HALF), tensor(8, 1024, dtype=HALF, misaligned=True)):
            assert staged(fo.Softmax(load=[FirstColumns(100)]), x) == 2
            check_compiles(described(fo.Softmax(load=[FirstColumns(100)]), x, {}, "sm_90"))

    @pytest.mark.parametrize("arch", ARCHS)
    def test_where_there_are_bulk_copies(self, arch):
        x = tensor(4, 12289, dtype=HALF)
        assert (staged(fo.Softmax(), x, arch) > 0) == GPUS[arch].bulk_copies

    def test_it_fits_the_shared_memory(self):
        for arch, columns, dtype in itertools.product(
            [arch for arch in ARCHS if GPUS[arch].bulk_copies],
            [4097, 16385, 50257, 131071, 262143],
            [HALF, FLOAT],
        ):
            tile = described(fo.Softmax(), tensor(2, columns, dtype=dtype), {}, arch).tile
            reserved = schedule.reserved_shared(tile.threads, tile.compute_bytes)
            assert not tile.staged_bytes or tile.shared_bytes <= ARCHS[arch] - reserved


@pytest.mark.gpu
@pytest.mark.parametrize("chain", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, FLOAT], ids=str)
class TestResults:
    @pytest.mark.parametrize("columns", [4097, 4103, 12289, 30522, 50257, 65537, 131071, 262143])
    def test_against_the_truth(self, chain, dtype, columns):
        operands = parameters(chain, columns, dtype, "cuda")
        x = randn(5, columns, dtype=dtype, device="cuda")
        for shift in (0, 1, 3):
            verify(chain, moved(x, shift), operands, unfused=False)

    @pytest.mark.parametrize("columns", [256, 1000, 1024, 2048, 12288])
    def test_the_bits_of_aligned_rows(self, chain, dtype, columns):
        operands = parameters(chain, columns, dtype, "cuda")
        x = randn(9, columns, dtype=dtype, device="cuda")
        wanted = declare(chain)(x, **operands)
        for shift in WORDS:
            assert_same_bits(declare(chain)(moved(x, shift), **operands), wanted)

    def test_nothing_beside_the_rows_is_written(self, chain, dtype):
        columns = 12289
        operands = parameters(chain, columns, dtype, "cuda")
        x = randn(4, columns, dtype=dtype, device="cuda")
        for shift in WORDS:
            place = torch.full((6 * columns + 16,), 7.0, dtype=dtype, device="cuda")
            y = place[shift + columns : shift + 5 * columns].view(4, columns)
            declare(chain)(x, out=y, **operands)
            assert_same_bits(y, declare(chain)(x, **operands))
            assert (place[: shift + columns] == 7).all()
            assert (place[shift + 5 * columns :] == 7).all()

    @pytest.mark.parametrize("columns", [1024, 4097, 50257])
    def test_blocks_that_take_several_rows(self, chain, dtype, columns, monkeypatch):
        operands = parameters(chain, columns, dtype, "cuda")
        x = moved(randn(37, columns, dtype=dtype, device="cuda"), 1)
        wanted = declare(chain)(x, **operands)
        monkeypatch.setattr(schedule.Schedule, "grid", lambda tile, rows: 2 * tile.cluster)
        assert_same_bits(declare(chain)(x, **operands), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("out_dtype", [HALF, FLOAT, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [HALF, FLOAT, torch.float64], ids=str)
def test_every_pair_of_dtypes(dtype, out_dtype):
    x = moved(randn(3, 5001, dtype=dtype, device="cuda"), 1)
    verify(LOG_SOFTMAX, x, {}, dtype=out_dtype, unfused=False)
