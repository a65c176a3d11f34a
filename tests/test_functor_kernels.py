# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Kernels of functors compile for a GPU without a warning and in registers alone."""

import pytest
import torch
from test_gradient_variants import backward_of
from test_gradient_variants import check_compiles as check_gradient_compiles
from test_variants import check_compiles, described, tensor

import fusedops as fo

OPS = {
    "shared dropout": fo.LayerNorm(
        load=[fo.Dropout("p", shared=-1), fo.Residual("r", save="stream", dtype=torch.float32)],
        store=[fo.Dropout("q", shared=(0, 1)), fo.Affine("gamma", "beta", zero_centred=True)],
    ),
    "taps": fo.Softmax(load=[fo.Softcap("s")], store=[fo.Tap("probs"), fo.Dropout("p")]),
    "gates": fo.RMSNorm(
        load=[fo.Gate("r"), fo.Save("stream")],
        store=[fo.Affine("gamma", zero_centred=True), fo.Gate("g", "gelu", of="value")],
    ),
}


def operands_of(op, shape):
    """Of x's size, per column, or numbers."""
    of_columns = {"gamma", "beta"}
    numbers = {"p": 0.3, "q": 0.2, "s": 30.0}
    return {
        name: numbers[name]
        if name in numbers
        else tensor(*(shape[-1:] if name in of_columns else shape), dtype=torch.float16)
        for name in op.slots
    }


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPS)
def test_they_compile_for_a_gpu(name):
    op, shape = OPS[name], (3, 5, 1024)
    x, given = tensor(*shape, dtype=torch.float16), operands_of(op, shape)
    check_compiles(described(op, x, given, "sm_90"))
    check_gradient_compiles(backward_of(op, x, given, "sm_90"))


@pytest.mark.parametrize("pair", [(torch.int8, torch.int16), (torch.uint8, torch.int32)], ids=str)
def test_ids_of_every_width_compile_for_a_gpu(pair):
    """NVRTC has no header of integer types of its own."""
    op = fo.Softmax(load=[fo.Segments("q_ids", "k_ids")])
    ids = {"q_ids": tensor(5, 1, dtype=pair[0]), "k_ids": tensor(1024, dtype=pair[1])}
    check_compiles(described(op, tensor(3, 5, 1024, dtype=torch.float16), ids, "sm_90"))
