# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Both passes of what the grids of `test_variants` lack compile for GPUs in registers alone."""

import pytest
import torch
from test_gradient_variants import check_compiles as check_gradient_compiles
from test_variants import ARCHS, check_compiles, covering, described, tensor

import fusedops as fo
from fusedops.bind.bind import bind
from fusedops.generate.target import Target
from fusedops.run import gradient

E4M3 = torch.float8_e4m3fn
HALF, BFLOAT16, FLOAT = torch.float16, torch.bfloat16, torch.float32
#: One loss a row; a mean of them is the same kernel.
ROWS = {"reduction": "none"}

OPS = {
    "shared dropout": fo.LayerNorm(
        load=[fo.Dropout("p", shared=-1), fo.Residual("r", save="stream", dtype=FLOAT)],
        store=[fo.Dropout("q", shared=(0, 1)), fo.Affine("gamma", "beta", zero_centred=True)],
    ),
    "taps": fo.Softmax(load=[fo.Softcap("s")], store=[fo.Tap("probs"), fo.Dropout("p")]),
    "gates": fo.RMSNorm(
        load=[fo.Gate("r"), fo.Save("stream")],
        store=[fo.Affine("gamma", zero_centred=True), fo.Gate("g", "gelu", of="value")],
    ),
    "loss": fo.CrossEntropy(**ROWS),
    "all of a loss": fo.CrossEntropy(
        load=[fo.Softcap("s")], label_smoothing=0.1, z_loss=1e-4, lse=True, entropy=True, **ROWS
    ),
    "soft loss": fo.CrossEntropy(load=[fo.Bias("gamma")], soft=True, label_smoothing=0.1, **ROWS),
    "sink": fo.Softmax(load=[fo.Scale("s"), fo.Causal()], lse=True, sink="sink"),
    "result": fo.Softmax(save_result=True),
    "L2Norm": fo.L2Norm(load=[fo.Residual("r", save="stream")], store=[fo.Affine("gamma", "beta")]),
    "rotation": fo.RMSNorm(store=[fo.Affine("gamma", None), fo.Rotate("cos", "sin")]),
    "eight bits": fo.LayerNorm(
        store=[
            fo.Affine("gamma", "beta"),
            fo.DynamicQuantize(E4M3, per=128, gradient="straight_through"),
        ]
    ),
}


def operands_of(op, shape, dtype=HALF):
    """Numbers, vectors, and tensors of the rows, of their places or of x's size, by name."""
    columns = shape[-1]
    known = {"p": 0.3, "q": 0.2, "s": 30.0}
    known |= {name: tensor(columns, dtype=dtype) for name in ("gamma", "beta")}
    known |= {name: tensor(shape[-2], columns // 2, dtype=dtype) for name in ("cos", "sin")}
    known["sink"] = tensor(shape[-3], 1, 1)
    if not getattr(op, "soft", False):
        known["target"] = tensor(*shape[:-1], 1, dtype=torch.int64)
    return {name: known.get(name, tensor(*shape, dtype=dtype)) for name in op.slots}


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("name", "arch", "columns", "dtype"),
    covering(2, OPS, ARCHS, [256, 1000, 5000, 32768], [HALF, BFLOAT16, FLOAT, torch.float64]),
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_they_compile_for_a_gpu(name, arch, columns, dtype):
    op, shape = OPS[name], (3, 5, columns)
    x = tensor(*shape, dtype=dtype)
    given = operands_of(op, shape, dtype)
    check_compiles(described(op, x, given, arch))
    bound = bind(op, x, given, {})
    floating = {name for name, one in given.items() if getattr(one, "dtype", None) == dtype}
    backward = gradient.gradient_of(bound, frozenset({"x", *floating}), frozenset(op.joining))
    call = gradient.described(bound, backward)
    check_gradient_compiles(backward.describe(*call, Target.named(arch)))


@pytest.mark.parametrize("pair", [(torch.int8, torch.int16), (torch.uint8, torch.int32)], ids=str)
def test_ids_of_every_width_compile_for_a_gpu(pair):
    """NVRTC has no header of integer types of its own."""
    op = fo.Softmax(load=[fo.Segments("q_ids", "k_ids")])
    ids = {"q_ids": tensor(5, 1, dtype=pair[0]), "k_ids": tensor(1024, dtype=pair[1])}
    check_compiles(described(op, tensor(3, 5, 1024, dtype=HALF), ids, "sm_90"))
