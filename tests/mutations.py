# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Can the tests fail? Breaks a copy of the package in one place after another and runs a test.

    python tests/mutations.py [--jobs N] [NAME ...]

Each mutation is a mistake that somebody has made in a kernel of this kind. Its test has to fail, by
an assertion and not because nothing compiles; on the unbroken copy all of the tests have to pass.
Runs on the CPU, which shares operators, functors and row access with the GPU. The default run is
asked first, then the thorough one: the last lines say how many each of them caught.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pybind11

from fusedops import _runtime

ROOT = Path(__file__).resolve().parent.parent

#: Which tests each run has, by their marks; the first one that notices is named.
RUNS = {
    "default": "not thorough and not gpu",
    "thorough": "thorough and not exhaustive and not gpu",
}
SURVIVED = "SURVIVED"
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)

#: Put before a copy's tests: the copy is what `import fusedops` finds, installed or not.
PLUGIN = """
import sys
from importlib.machinery import PathFinder

class Copy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "fusedops":
            return PathFinder.find_spec(name, path or [{folder!r}])

sys.meta_path.insert(0, Copy)
"""


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One mistake: in `file`, `old` becomes `new`, and `test` has to notice."""

    name: str
    file: str
    old: str
    new: str
    test: str


MUTATIONS = [
    Mutation(
        "a draw of a row whose columns differ",
        "include/fusedops/functor/dropout.cuh",
        "kOneARow ? 0 : col / 8",
        "col / 8",
        "test_shared_dropout.py::test_kernels_draw_the_documented_mask[cpu-24-shared0]",
    ),
    Mutation(
        "a shared draw that counts all rows",
        "src/fusedops/bind/shard_offset.py",
        "if dim not in reduced and dim not in shared:",
        "if dim not in reduced:",
        "test_shared_dropout.py::test_kernels_draw_the_documented_mask[cpu-24-shared1]",
    ),
    Mutation(
        "a copy whose shared dimensions are those of x",
        "src/fusedops/run/contiguous.py",
        "[dims.index(dim % len(dims)) for dim in functor.shares]",
        "functor.shares",
        "test_shared_dropout.py::test_several_reduced_dimensions_that_are_copied_first[cpu]",
    ),
    Mutation(
        "a tap whose gradient is taken away",
        "include/fusedops/functor/tap.cuh",
        "g[i] += joining[i]",
        "g[i] -= joining[i]",
        "test_taps.py::test_gradients_join[cpu-names1]",
    ),
    Mutation(
        "a STORE without a reduction whose gradient reads zeros",
        "include/fusedops/op/check.cuh",
        " || flag<true, ComputesFlag, StoreT>()",
        "",
        "test_map_taps.py::test_a_value_within_the_chain[cpu]",
    ),
    Mutation(
        "a second layer that draws as the first",
        "src/fusedops/product/mlp.py",
        "generator[1] + count",
        "generator[1]",
        "test_product_values.py::test_by_hand[cpu-block-eager]",
    ),
    Mutation(
        "a hidden tensor made again without its dropout",
        "src/fusedops/product/autograd.py",
        'given = {"x": z, **arguments, **leaves}',
        'given = {"x": z, **arguments, **leaves, "training": False}',
        "test_product_values.py::test_a_block_has_the_bits_of_its_layers[cpu-torch.float32-True]",
    ),
    Mutation(
        "a block that never makes its hidden tensor again",
        "src/fusedops/product/mlp.py",
        "first, size) is None",
        "first, size) == 0",
        "test_product_calls.py::test_the_least_is_kept[cpu-block]",
    ),
    Mutation(
        "a cap whose gradient has the wrong sign within",
        "include/fusedops/functor/softcap.cuh",
        "By::tanh(u) - u * slope",
        "By::tanh(u) + u * slope",
        "test_gradients.py::test_each_functor_alone[cpu-log_softmax-softcap_of]",
    ),
    Mutation(
        "a sigmoid by the hardware's tanh of all of its argument",
        "include/fusedops/core/hardware_tanh.cuh",
        "::fmaf(0.5f, tanh(0.5f * x), 0.5f)",
        "::fmaf(0.5f, tanh(x), 0.5f)",
        "emulator/test_emulated_hardware_tanh.py::test_elements_reach_their_bounds_and_no_more[silu]",
    ),
    Mutation(
        "a bound that lets a tanh of the hardware be twice as far off",
        "src/fusedops/reference/hardware_tanh.py",
        "_MOST = 1.01 * 2.0**-11",
        "_MOST = 2.02 * 2.0**-11",
        "test_hardware_tanh.py::test_the_bound_is_that_of_the_instruction[tanh]",
    ),
    Mutation(
        "a gated activation whose gradient forgets the gate",
        "include/fusedops/functor/gate.cuh",
        "Function::backward(given * other, in[i])",
        "Function::backward(given, in[i])",
        "test_gradients.py::test_each_functor_alone[cpu-softmax-gate_value]",
    ),
    Mutation(
        "a zero-centred gamma that is the factor",
        "include/fusedops/functor/affine.cuh",
        "Compute(1) + gamma : gamma",
        "gamma : gamma",
        "test_gradients.py::test_each_functor_alone[cpu-layer_norm-zero_centred]",
    ),
    Mutation(
        "ids of 64 bits that are compared by their lower halves",
        "include/fusedops/functor/segments.cuh",
        "using Id = typename detail::IdOf<kWide>::type;",
        "using Id = int32_t;",
        "test_gradients.py::test_each_functor_alone[cpu-log_softmax-segments]",
    ),
    Mutation(
        "a row below eps whose gradient knows its norm",
        "include/fusedops/op/l2_norm_gradient.cuh",
        "known.share * all.along",
        "all.along",
        "test_l2_norm.py::test_rows_below_eps[cpu]",
    ),
    Mutation(
        "squares of an L2Norm that overflow to zero",
        "include/fusedops/op/l2_norm.cuh",
        "factor + (part.squares - part.squares)",
        "factor",
        "test_l2_norm.py::test_a_row_that_diverges_is_nan[cpu-1e+30]",
    ),
    Mutation(
        "a sink of the wrong sign",
        "include/fusedops/op/softmax_gradient.cuh",
        "-(kLog ? bounded_exponential(y) : y) * finish.sum",
        "(kLog ? bounded_exponential(y) : y) * finish.sum",
        "test_lse_and_sink.py::test_the_gradient_of_one_operand_alone[cpu-s]",
    ),
    Mutation(
        "a sink whose share is the logarithm",
        "include/fusedops/op/softmax_gradient.cuh",
        "-(kLog ? bounded_exponential(y) : y) * finish.sum",
        "-y * finish.sum",
        "test_lse_and_sink.py::test_the_gradient_of_one_operand_alone[cpu-s]",
    ),
    Mutation(
        "a gradient of lse that is added to the sum",
        "include/fusedops/op/softmax_gradient.cuh",
        "finish.sum -= number_of",
        "finish.sum += number_of",
        "test_lse_and_sink.py::test_the_gradient_of_one_output_alone[cpu-lse-softmax]",
    ),
    Mutation(
        "a sink that takes no part in the sum",
        "include/fusedops/op/softmax.cuh",
        "row), 1});",
        "row), 0});",
        "test_lse_and_sink.py::test_one_without_the_other[cpu-softmax-sink]",
    ),
    Mutation(
        "an lse without the maximum",
        "include/fusedops/op/softmax.cuh",
        "return base + logarithm(all.sum);",
        "return logarithm(all.sum);",
        "test_lse_and_sink.py::test_one_without_the_other[cpu-softmax-lse]",
    ),
    Mutation(
        "a gradient of no sink",
        "include/fusedops/op/softmax_gradient.cuh",
        "sink == -infinity<Compute>()\n                           ? Compute(0)\n"
        "                           : -",
        "-",
        "test_lse_and_sink.py::test_a_sink_of_minus_infinity_is_none[cpu-softmax]",
    ),
    Mutation(
        "a sink's gradient that goes on into the next sink's",
        "include/fusedops/row/target.cuh",
        "    sum.at = 0;\n    if (!lane.writes()",
        "    if (kFunctor != kOfOperator) sum.at = 0;\n    if (!lane.writes()",
        "test_lse_and_sink.py::test_sinks_of_every_shape[cpu-softmax-3x1x1]",
    ),
    Mutation(
        "naive variance",
        "include/fusedops/op/norm.cuh",
        "[mean](Compute x) { return difference(x, mean) * difference(x, mean); }",
        "[mean](Compute x) { return x * x - mean * mean; }",
        "test_numbers.py::test_mean_of_ten_thousand_sigma[64-cpu-layer_norm]",
    ),
    Mutation(
        "NaN dropped from the squares",
        "include/fusedops/op/norm.cuh",
        "(variance - variance);",
        "(larger(variance, Compute(0)) - larger(variance, Compute(0)));",
        "test_numbers.py::test_a_row_that_diverges_is_nan[cpu-host-inf-layer_norm-3]",
    ),
    Mutation(
        "squares that overflow to zero",
        "include/fusedops/op/norm.cuh",
        " + (variance - variance);",
        ";",
        "test_numbers.py::test_a_norm_of_squares_beyond_range_is_nan[64-cpu-1e+30-rms_norm]",
    ),
    Mutation(
        "half statistics",
        "include/fusedops/op/norm.cuh",
        "    return {part.mean, rstd, -part.low * rstd};",
        "    return {part.mean, convert<Compute>(convert<half>(rstd)), -part.low * rstd};",
        "test_forward.py::test_every_size[cpu-layer_norm-torch.float32-1000]",
    ),
    Mutation(
        "a mask that adds",
        "include/fusedops/functor/mask.cuh",
        "v[i] = (flag[i] != 0) == kKeep ? v[i] : -infinity<Compute>();",
        "v[i] += (flag[i] != 0) == kKeep ? Compute(0) : Compute(-10000);",
        "test_masks.py::test_nothing_under_a_mask_leaks[softmax-cpu-37-inf]",
    ),
    Mutation(
        "a mask that does not stick",
        "include/fusedops/functor/compose.cuh",
        "      chain.values(v, row, col);\n      chain.masks(v, row, col);\n",
        "      chain.masks(v, row, col);\n      chain.values(v, row, col);\n",
        "test_masks.py::test_masks_are_sticky[softmax-cpu]",
    ),
    Mutation(
        "a dropped tail of what is loaded",
        "include/fusedops/host/fetch.cuh",
        "    detail::load_wanted<N, kAgain>(load, tile.at",
        "    if (N == Tile::kPack) detail::load_wanted<N, kAgain>(load, tile.at",
        "test_forward.py::test_every_size[cpu-softmax-torch.float16-33]",
    ),
    Mutation(
        "a dropped tail of what is stored",
        "include/fusedops/host/fetch.cuh",
        "    store.template store<N>(result,",
        "    if (N == Tile::kPack) store.template store<N>(result,",
        "test_forward.py::test_every_size[cpu-softmax-torch.float16-33]",
    ),
    Mutation(
        "an off-by-one causal",
        "include/fusedops/functor/causal.cuh",
        "query(row) + shift + 1}",
        "query(row) + shift}",
        "test_masks.py::test_causal[softmax-cpu-shape0-top-left]",
    ),
    Mutation(
        "a causal in the wrong corner",
        "src/fusedops/functors/masks.py",
        '(columns - queries if self.align == "bottom-right" else 0)',
        '(queries - columns if self.align == "bottom-right" else 0)',
        "test_masks.py::test_causal[softmax-cpu-shape1-bottom-right]",
    ),
    Mutation(
        "what is -inf by itself has no gradient in a map with masks",
        "src/fusedops/generate/source.py",
        'last = ["FiniteForInfinity{}"]',
        "last = []",
        "test_map.py::test_infinity_is_not_taken_for_masked_where_x_is_read[cpu]",
    ),
    Mutation(
        "a length that keeps one column more",
        "include/fusedops/functor/columns.cuh",
        "v[i] = i < end ? v[i]",
        "v[i] = i <= end ? v[i]",
        "test_masks.py::test_lengths[softmax-cpu-torch.int64]",
    ),
    Mutation(
        "a reused dropout counter: the same for all columns",
        "include/fusedops/functor/dropout.cuh",
        "static_cast<uint32_t>(kOneARow ? 0 : col / 8),",
        "0u,",
        "test_dropout.py::test_kernels_draw_the_documented_mask[cpu-33-torch.float32]",
    ),
    Mutation(
        "a reused dropout counter: the same for all rows",
        "include/fusedops/functor/dropout.cuh",
        "static_cast<uint32_t>(logical),",
        "0u,",
        "test_dropout.py::test_kernels_draw_the_documented_mask[cpu-33-torch.float32]",
    ),
    Mutation(
        "a reused dropout counter: the same for all dropouts",
        "include/fusedops/functor/dropout.cuh",
        "static_cast<uint32_t>(offset),",
        "0u,",
        "test_dropout.py::test_two_dropouts_differ_and_are_told_apart_by_their_place[cpu]",
    ),
    Mutation(
        "nine rounds of Philox",
        "include/fusedops/core/philox.cuh",
        "round < 10;",
        "round < 9;",
        "test_dropout.py::test_kernels_draw_the_documented_mask[cpu-33-torch.float32]",
    ),
    Mutation(
        "only the first row computed",
        "include/fusedops/host/rows.cuh",
        "held);\n    for (int64_t number = begin; number < end; ++number) {",
        "held);\n    for (int64_t number = begin; number < smaller<int64_t>(end, 1); ++number) {",
        "test_forward.py::test_every_size[cpu-softmax-torch.float32-255]",
    ),
    Mutation(
        "one row too few of those that go through each step together",
        "include/fusedops/host/rows.cuh",
        "smaller<int64_t>(end - first, Schedule::kRows));",
        "smaller<int64_t>(end - first, Schedule::kRows - 1));",
        "test_forward.py::test_every_size[cpu-softmax-torch.float16-33]",
    ),
    Mutation(
        "a wrong broadcast stride",
        "csrc/geometry.cpp",
        "if (shape.number(dim - lead) != 1) tensor.steps[dim] =",
        "tensor.steps[dim] =",
        "test_forward.py::test_every_broadcast_of_rank_five",
    ),
    Mutation(
        "dimensions merged that do not merge",
        "csrc/geometry.cpp",
        "!std::all_of(operands.begin(), operands.end(), one_stride)",
        "!one_stride(operands[0])",
        "test_forward.py::test_every_broadcast_of_rank_five",
    ),
    Mutation(
        "rows numbered in the order of visits",
        "include/fusedops/row/index.cuh",
        "int64_t sum = row.at[0] * stride[0];",
        "int64_t sum = row.at[0];",
        "test_dropout.py::test_the_order_of_visits_does_not_matter[cpu]",
    ),
    Mutation(
        "softmax without its maximum",
        "include/fusedops/op/softmax.cuh",
        "return max == -infinity<Compute>() ? Compute(0) : max;",
        "return Compute(0);",
        "test_numbers.py::test_one_element_far_above_the_rest[64-cpu-softmax]",
    ),
    Mutation(
        "a chunk that is merged without rescaling",
        "include/fusedops/op/softmax.cuh",
        "a.sum * bounded_exponential(a.max - base) + b.sum * bounded_exponential(b.max - base)",
        "a.sum + b.sum * bounded_exponential(b.max - base)",
        "test_forward.py::test_every_size[cpu-softmax-torch.float32-4097]",
    ),
    Mutation(
        "an empty row of NaN",
        "include/fusedops/op/softmax.cuh",
        "kEmptyIsNan ? quiet_nan<Compute>() : Compute(0)",
        "quiet_nan<Compute>()",
        "test_masks.py::test_an_empty_row[softmax-cpu]",
    ),
    Mutation(
        "a saved stream that is not what was normalized",
        "include/fusedops/functor/save.cuh",
        "    stream.round(v);\n",
        "",
        "test_forward.py::test_residual_layer_norm[cpu-torch.float16]",
    ),
    Mutation(
        "survivors of dropout not scaled",
        "src/fusedops/generate/arguments.py",
        "self._patched(self._scale_patch, slot)",
        "self.number(1.0)",
        "test_dropout.py::test_thresholds[cpu-0.1]",
    ),
    Mutation(
        "a gradient of softmax without its sum",
        "include/fusedops/op/softmax_gradient.cuh",
        ": y * (g - sum);",
        ": y * g;",
        "test_gradients.py::test_sizes_on_the_cpu[softmax-33]",
    ),
    Mutation(
        "a gradient of log-softmax without its sum",
        "include/fusedops/op/softmax_gradient.cuh",
        "kept(y, g - bounded_exponential(y) * sum)",
        "kept(y, g)",
        "test_gradients.py::test_sizes_on_the_cpu[log_softmax-33]",
    ),
    Mutation(
        "a gradient of LayerNorm without that of its mean",
        "include/fusedops/op/norm_gradient.cuh",
        "return rstd * ((g - plain) - y * along);",
        "return rstd * (g - y * along);",
        "test_gradients.py::test_sizes_on_the_cpu[layer_norm-33]",
    ),
    Mutation(
        "a gradient of LayerNorm without that of its variance",
        "include/fusedops/op/norm_gradient.cuh",
        "return rstd * ((g - plain) - y * along);",
        "return rstd * (g - plain);",
        "test_gradients.py::test_sizes_on_the_cpu[layer_norm-33]",
    ),
    Mutation(
        "a gradient of RMSNorm without that of its mean square",
        "include/fusedops/op/sum_of_squares.cuh",
        "return factor * (g - y * along);",
        "return factor * g;",
        "test_gradients.py::test_sizes_on_the_cpu[rms_norm-33]",
    ),
    Mutation(
        "a mean that is rounded on the way back",
        "include/fusedops/op/norm_gradient.cuh",
        "return fused(difference(v, mean), rstd, shift);",
        "return (v - mean) * rstd;",
        "test_gradients.py::test_mean_of_ten_thousand_sigma[cpu-layer_norm]",
    ),
    Mutation(
        "a gradient with the sums of the last chunk alone",
        "include/fusedops/host/gradient.cuh",
        "part = op.merge(part, op.reduce(Lanes<1>{}, values[at], gradients[at]));",
        "part = op.reduce(Lanes<1>{}, values[at], gradients[at]);",
        "test_gradients.py::test_sizes_on_the_cpu[layer_norm-50257]",
    ),
    Mutation(
        "a dropped tail on the way back",
        "include/fusedops/host/through.cuh",
        "CutPack<N>{left - place}, place, finish,",
        "CutPack<N>{0}, place, finish,",
        "test_gradients.py::test_sizes_on_the_cpu[layer_norm-33]",
    ),
    Mutation(
        "a result behind the end of a short row",
        "include/fusedops/row/view.cuh",
        "if (i < count) base[i] = convert<T>(value[i]);",
        "if (i <= count) base[i] = convert<T>(value[i]);",
        "test_bits.py::test_what_lies_beside_a_short_row[softmax-cpu-5]",
    ),
    Mutation(
        "a value from behind the end of a short row",
        "include/fusedops/row/view.cuh",
        "value[i] = i < count ? convert<Compute>(base[i]) : padding;",
        "value[i] = i <= count ? convert<Compute>(base[i]) : padding;",
        "test_bits.py::test_what_lies_beside_a_short_row[softmax-cpu-5]",
    ),
    Mutation(
        "a gradient behind the end of a short row in its sums",
        "include/fusedops/host/short_gradient.cuh",
        "read_first(upstream, g, row, k * N, left - k * N, Compute(0));",
        "read_first(upstream, g, row, k * N, left - k * N, Compute(1));",
        "test_gradients.py::test_sizes_on_the_cpu[log_softmax-33]",
    ),
    Mutation(
        "choices of an expert in another order than their tokens",
        "include/fusedops/gemm/routing.cuh",
        "before[bin] + own[bin] + __popc(equal & lower)",
        "before[bin] + own[bin] + __popc(equal & ~lower) - 1",
        "emulator/test_emulated_routing.py::test_the_order_of_rows[skewed-random]",
    ),
    Mutation(
        "the rows of other blocks forgotten",
        "include/fusedops/gemm/routing.cuh",
        "before[bin] = sum + behind[bin];",
        "before[bin] = sum;",
        "emulator/test_emulated_routing.py::test_the_order_of_rows[even-ascending]",
    ),
    Mutation(
        "a part that a sum over columns leaves out",
        "include/fusedops/op/column_sums.cuh",
        "part < all.parts; ++part",
        "part + 1 < all.parts; ++part",
        "test_gradient_operands.py::test_over_many_rows[cpu-column]",
    ),
    Mutation(
        "only the first columns of a sum added up",
        "include/fusedops/op/column_sums.cuh",
        "for (int64_t col = 0; col < all.cols; col += kWidth) {",
        "for (int64_t col = 0; col < smaller<int64_t>(all.cols, kWidth); col += kWidth) {",
        "test_gradients.py::test_many_rows_add_up[cpu]",
    ),
    Mutation(
        "a row that takes the place of a sum over rows",
        "include/fusedops/row/target.cuh",
        "for (int i = 0; i < N; ++i) at[i] += gradient[i];",
        "for (int i = 0; i < N; ++i) at[i] = gradient[i];",
        "test_gradient_operands.py::test_over_many_rows[cpu-column]",
    ),
    Mutation(
        "a sum over columns that goes on in the next row",
        "include/fusedops/row/target.cuh",
        "    sum.at = 0;\n    if (!lane.writes()",
        "    if (kFunctor == kOfOperator) sum.at = 0;\n    if (!lane.writes()",
        "test_gradient_operands.py::test_several_patterns_at_once[cpu-0]",
    ),
    Mutation(
        "slices that straddle what rows share",
        "src/fusedops/schedule/row_partition.py",
        "span = next((group for group in groups if group > unit), rows)",
        "span = rows",
        "test_gradient_operands.py::test_over_many_rows[cpu-a head]",
    ),
    Mutation(
        "a dropout that is drawn again on the way back",
        "src/fusedops/run/autograd.py",
        '            given["generator"] = generator',
        "            pass",
        "test_gradients.py::test_residual_layer_norm[cpu-float32]",
    ),
    Mutation(
        "a dropout that is drawn with another offset on the way back",
        "src/fusedops/run/autograd.py",
        '            given["generator"] = generator',
        '            given["generator"] = generator[0], generator[1] + 1',
        "test_gradients.py::test_residual_layer_norm[cpu-float32]",
    ),
    Mutation(
        "one mask for all dropouts",
        "src/fusedops/plan/members.py",
        "write.dropout_slot = bound.dropout_slots.get((side, index), -1)",
        "write.dropout_slot = 0",
        "test_gradients.py::test_each_functor_alone[cpu-softmax-dropout]",
    ),
    Mutation(
        "gradients of survivors of dropout not scaled",
        "include/fusedops/functor/dropout.cuh",
        "    (*this)(g, row, col);  // the same mask and scale\n",
        "    (*this)(g, row, col);\n    for (int i = 0; i < N; ++i) g[i] /= Compute(scale);\n",
        "test_gradients.py::test_residual_layer_norm[cpu-float32]",
    ),
    Mutation(
        "rows that share and are not summed",
        "csrc/geometry.cpp",
        "group *= size;",
        "group *= 1;",
        "test_gradient_operands.py::test_over_many_rows[cpu-column]",
    ),
    Mutation(
        "columns that share and are not summed",
        "csrc/geometry.cpp",
        "if (place.number(1) == 0 && columns > 1) kind = kRow;",
        "",
        "test_gradient_operands.py::test_several_patterns_at_once[cpu-0]",
    ),
    Mutation(
        "an element of several columns read for one column more",
        "include/fusedops/row/repeated.cuh",
        "        left = repeats.size;",
        "        left = repeats.size + 1;",
        "test_channels.py::test_a_norm_with_a_number_for_each_channel[cpu-parts of packs]",
    ),
    Mutation(
        "an element of several columns whose gradient is that of the last pack",
        "include/fusedops/row/channel_target.cuh",
        "seen == 0 ? sum : at[element] + sum",
        "sum",
        "test_channels.py::test_a_norm_with_a_number_for_each_channel[cpu-odd]",
    ),
    Mutation(
        "an element of several columns read as one for each",
        "csrc/geometry.cpp",
        "if (found) return {step, repeats};",
        "if (found) return {step, 1};",
        "test_geometry.py::test_every_operand_is_addressed_right",
    ),
    Mutation(
        "rows apart that share and are not summed",
        "csrc/geometry.cpp",
        "apart = step == 0;",
        "apart = false;",
        "test_gradient_operands.py::test_several_patterns_at_once[cpu-5]",
    ),
    Mutation(
        "a gradient that came whole and is not summed",
        "src/fusedops/run/backward.py",
        "result = result.sum_to_size(shape)",
        "result = result.flatten()[: shape.numel()].view(shape)",
        "test_gradient_operands.py::test_several_patterns_at_once[cpu-5]",
    ),
    Mutation(
        "one gradient of an operand that two functors use",
        "src/fusedops/run/backward.py",
        "found[name] = found[name] + result if name in found else result",
        "found[name] = result",
        "test_gradient_operands.py::test_one_operand_named_twice[cpu]",
    ),
    Mutation(
        "a saved stream whose gradient does not join",
        "include/fusedops/functor/save.cuh",
        "g[i] = difference(g[i], -joining[i]);",
        "g[i] += Compute(0);",
        "test_gradients.py::test_residual_layer_norm[cpu-float32]",
    ),
    Mutation(
        "a saved stream whose gradient takes the place of the other",
        "include/fusedops/functor/save.cuh",
        "g[i] = difference(g[i], -joining[i]);",
        "g[i] = joining[i];",
        "test_gradients.py::test_residual_layer_norm[cpu-float32]",
    ),
    Mutation(
        "a saved stream whose gradient joins behind its residual",
        "include/fusedops/functor/residual.cuh",
        "    saved.backward(g, in, row, col, sink);\n"
        "    residual.backward(g, in, row, col, sink);\n",
        "    residual.backward(g, in, row, col, sink);\n"
        "    saved.backward(g, in, row, col, sink);\n",
        "test_gradients.py::test_residual_layer_norm[cpu-float32]",
    ),
    Mutation(
        "a residual's gradient without alpha",
        "include/fusedops/functor/residual.cuh",
        "of_skip[i] = g[i] * factor[i];",
        "of_skip[i] = g[i];",
        "test_gradients.py::test_each_functor_alone[cpu-log_softmax-residual]",
    ),
    Mutation(
        "a gradient that passes gamma by",
        "include/fusedops/functor/affine.cuh",
        "        g[i] *= factor(scale[i]);\n",
        "",
        "test_gradients.py::test_sizes_on_the_cpu[layer_norm-33]",
    ),
    Mutation(
        "a mask that multiplies gradients",
        "include/fusedops/functor/sink.cuh",
        "gradient[i] = at[i] ? Compute(0) : given;",
        "gradient[i] *= at[i] ? Compute(0) : Compute(1);",
        "test_gradient_masks.py::test_nothing_under_a_mask_leaks[softmax-cpu-dy-nan]",
    ),
    Mutation(
        "an upstream gradient that leaks from under a mask",
        "include/fusedops/row/through.cuh",
        "    masked.select(g);\n",
        "",
        "test_gradient_masks.py::test_masked_elements_have_no_gradient[softmax-cpu]",
    ),
    Mutation(
        "an operand's gradient that leaks from under a mask",
        "include/fusedops/functor/sink.cuh",
        "    masked.select(selected);\n",
        "",
        "test_gradient_masks.py::test_masked_elements_have_no_gradient[softmax-cpu]",
    ),
    Mutation(
        "a gradient of x that leaks from under a mask",
        "include/fusedops/functor/compose.cuh",
        "    if constexpr (!Chain<0, Functors...>::kStreamGradient) masked.select(g);",
        "",
        "test_gradient_masks.py::test_nothing_under_a_mask_leaks[softmax-cpu-s-inf]",
    ),
    Mutation(
        "a gradient that leaks from under a mask into a saved stream",
        "include/fusedops/functor/chain.cuh",
        "      if constexpr (kSavesHere && !kSavesLater) masked.select(g);\n",
        "",
        "test_gradient_masks.py::test_a_stream_has_its_own_gradient_under_the_mask[softmax-cpu]",
    ),
    Mutation(
        "a logarithm of zero that is no constant",
        "include/fusedops/op/softmax_gradient.cuh",
        "static constexpr bool kMaskedIsConstant = kLog;",
        "static constexpr bool kMaskedIsConstant = false;",
        "test_gradient_masks.py::test_a_logarithm_of_zero_is_a_constant_to_the_store[cpu]",
    ),
    Mutation(
        "an upstream gradient not read beyond an index mask",
        "include/fusedops/host/gradient.cuh",
        "!Op::kMaskedIsConstant && Sinks<SinkTile, StoreTargets>::kAny;",
        "false;",
        "test_gradient_masks.py::test_operands_of_the_store_act_on_masked_elements"
        "[cpu-('lengths', 'n')]",
    ),
    Mutation(
        "an offset whose upper bits are not those of the kernels",
        "src/fusedops/reference/dropout_mask.py",
        "(offset >> 32 & _LOW)",
        "(offset >> 32)",
        "test_dropout.py::test_the_map_counts_modulo_64_bits[(3, -1)]",
    ),
    Mutation(
        "integers that wrap in torch and not in a functor",
        "src/fusedops/functors/integers.py",
        "most <= min(EXACT, info.max)",
        "most <= EXACT",
        "test_functor_types.py::test_a_range_is_that_of_its_type",
    ),
    Mutation(
        "an unfused chain that follows a global",
        "src/fusedops/functors/user.py",
        "return (function if forward is None else forward[x.dtype])(x, *values)",
        "return function(x, *values)",
        "test_frozen_functors.py::test_a_change_reaches_neither_the_op_nor_unfused[cpu-a global]",
    ),
    Mutation(
        "an operator that nothing checks",
        "include/fusedops/host/rows.cuh",
        "  static_assert(detail::check_operator<Op>());\n",
        "",
        "test_contract_examples.py::test_a_missing_member_is_named_on_a_cpu[merge]",
    ),
    Mutation(
        "a rebuild for a group that passes for the one of a known part",
        "include/fusedops/op/check.cuh",
        "struct IfVoid;",
        "struct IfVoid { using type = Result; };",
        "test_contract_examples.py::test_a_missing_member_is_named_on_a_cpu[rebuild known]",
    ),
    Mutation(
        "packs of a user's own LOAD that do not divide the columns",
        "include/fusedops/dispatch/form.cuh",
        "while (pack > 1 && (cols % pack != 0 || !packs_as(given, pack))) pack /= 2;",
        "while (pack > 1 && !packs_as(given, pack)) pack /= 2;",
        "test_foreign.py::test_loads[cpu-softmax-tril scale-(6, 31)]",
    ),
    Mutation(
        "a layout that forgets its strides of 0",
        "include/fusedops/row/layout.cuh",
        "made.stride[d] = shape[d] == 1 ? 0 : strides[d];",
        "made.stride[d] = strides[kDims - 2];",
        "test_dispatch.py::test_attention[cpu-shape0-0.1]",
    ),
    Mutation(
        "a dropout of an entry point that keeps what p = 0 does",
        "include/fusedops/functors.cuh",
        "if (inner.threshold != 0) inner.drop(v, logical, col);",
        "if (inner.threshold > 10000) inner.drop(v, logical, col);",
        "test_dispatch.py::test_attention[cpu-shape0-0.1]",
    ),
    Mutation(
        "a LOAD of a user's own that is loaded twice",
        "include/fusedops/dispatch/plain.cuh",
        "if constexpr (kRevisit) {",
        "if constexpr (false) {",
        "test_foreign.py::test_what_a_plain_load_says_of_itself",
    ),
]


def make_copy(folder: Path) -> None:
    """Put the package, its headers and the tests into an empty folder."""
    leave = shutil.ignore_patterns("__pycache__", "*.so")
    for part in ("src", "include", "csrc", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=leave)
    shutil.copy(str(_runtime.__file__), folder / "src" / "fusedops")
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "copy_first.py").write_text(PLUGIN.format(folder=str(folder / "src")))


def build_runtime(folder: Path) -> None:
    """Build the runtime of a copy anew."""
    runtime = folder / "src" / "fusedops" / Path(_runtime.__file__).name
    includes = (pybind11.get_include(), sysconfig.get_path("include"))
    flags = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread"]
    sources = map(str, sorted((folder / "csrc").glob("*.cpp")))
    command = ["g++", *flags, *(f"-I{one}" for one in includes), *sources, "-o", str(runtime)]
    subprocess.run([*command, "-ldl"], check=True)


def broken(mutation: Mutation, text: str) -> str:
    """The text with the mistake in it; it has to fit in exactly one place."""
    places = text.count(mutation.old)
    if places != 1:
        raise SystemExit(f"{mutation.name}: {mutation.old!r} is {places} times in {mutation.file}")
    return text.replace(mutation.old, mutation.new)


def run(folder: Path, tests: list[str], marks: str) -> subprocess.CompletedProcess[str]:
    """Run tests on the copy. Copies share a cache, whose keys are the content of the headers."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "-p", "copy_first"]
    cache = str(folder.parent / "cache")
    environment = {**os.environ, "PYTHONPATH": str(folder), "FUSEDOPS_CACHE_DIR": cache}
    return subprocess.run(
        [*command, "-m", marks, *(f"tests/{test}" for test in tests)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def caught(result: subprocess.CompletedProcess[str]) -> bool:
    """Whether a test failed by an assertion, or a mistake ended the process by a fault."""
    # pytest shortens an AssertionError to the assertion itself where it rewrote it.
    said = any(word in result.stdout for word in ("AssertionError", "\nE   assert "))
    # Without a mutation all of these tests pass, so one that reaches outside of memory did it.
    return (result.returncode == 1 and said) or -result.returncode in FAULTS


def attempt(mutation: Mutation, folder: Path) -> str:
    """Try a mutation in a copy of its own, and say how it went: which run noticed, or none."""
    start = time.monotonic()
    make_copy(folder)
    path = folder / mutation.file
    path.write_text(broken(mutation, path.read_text()))
    if path.parent.name == "csrc":
        build_runtime(folder)
    noticed, said = SURVIVED, ""
    for name, marks in RUNS.items():
        result = run(folder, [mutation.test], marks)
        if caught(result):
            noticed = name
            break
        said += result.stdout[-3000:] + result.stderr[-1000:]
    shutil.rmtree(folder)
    seconds = time.monotonic() - start
    lines = [f"{noticed:9} {mutation.name} ({seconds:.1f} s)"]
    if noticed == SURVIVED:
        lines.append(said)
    print("\n".join(lines), flush=True)
    return noticed


def attempts(mutations: list[Mutation], jobs: int) -> Counter[str]:
    """How many of the mutations each run noticed; `jobs` are tried at a time."""
    with tempfile.TemporaryDirectory(prefix="fusedops-mutations-") as name:
        folder = Path(name).resolve()
        make_copy(folder / "whole")
        tests = sorted({mutation.test for mutation in mutations})
        whole = run(folder / "whole", tests, "not gpu")
        if whole.returncode != 0:
            raise SystemExit(f"fails without any mutation:\n{whole.stdout}{whole.stderr}")
        with ThreadPoolExecutor(jobs) as pool:
            folders = [folder / str(number) for number in range(len(mutations))]
            return Counter(pool.map(attempt, mutations, folders))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutations to try; default: all")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at a time")
    given = parser.parse_args()
    names = given.names
    if unknown := set(names) - {mutation.name for mutation in MUTATIONS}:
        parser.error(f"no mutation is called {sorted(unknown)}")
    chosen = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    noticed = attempts(chosen, given.jobs)
    for by, count in noticed.items():
        print(f"{by:9} {count} of {len(chosen)} mutations")
    if noticed[SURVIVED]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
