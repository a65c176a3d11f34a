# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products of groups that a recording sees, or without a STORE: what is planned, built and kept."""

import pytest
import torch
from cases import raises, randn
from products import HOPPER, forced, on_hopper, recording
from test_grouped import SWIGLU, offsets_of, run
from test_grouped_kernel import BFLOAT16
from test_grouped_training import small, step

import fusedops as fo
from fusedops._runtime import Delegate, Reason
from fusedops.generate.target import Target
from fusedops.prebuild.build_all import variants
from fusedops.prebuild.recording import Signature
from fusedops.product import grouped_plain, kernel_or_torch
from fusedops.product.grouped_product import summed_product
from fusedops.product.routing import route


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("op", [fo.GroupedLinear([fo.Gate("up")], halves="up"), SWIGLU])
def test_forward_passes_alone_have_kernels_of_steps(monkeypatch, tmp_path, op, interleaved):
    """A recording of calls without gradients builds what one of calls with them does."""
    op = fo.GroupedLinear(op.store, op.by_expert, "up", interleaved=interleaved)
    found, offsets = [], offsets_of((4, 0, 5, 2), "cpu")
    for trains in (True, False):
        own = fo.GroupedLinear(op.store, op.by_expert, "up", interleaved=interleaved)
        own.epilogue.clear()
        for gradient in own.epilogue.gradients.values():
            gradient.clear()
        tensors, file = small(own, (4, 0, 5, 2)), recording(monkeypatch, tmp_path)
        file.unlink(missing_ok=True)
        if trains:
            step(lambda own=own, **given: run(given, offsets, own), tensors)
        else:
            run({name: one.detach() for name, one in tensors.items()}, offsets, own)
        signatures = [*map(Signature.parse, file.read_text().splitlines())]
        assert any(one.wanted for one in signatures) == trains
        found += [{one.key for one in variants(signatures, target)}
                  for target in (Target.named("cpu"), HOPPER)]  # fmt: skip
    assert found[0] <= found[2]
    assert found[1] <= found[3]


@pytest.mark.parametrize(
    ("x", "up", "more"),
    [
        ("", "", 0),
        ("@1,11", "@1,11", 0),
        ("@48,2", "@48,2+4", 0),
        ("@24,1", "@24,1", 0),  # the kernel that writes to dense tensors
        ("@24,1", "@24,1+4", 1),
        ("@24,2", "@24,2+4", 1),
    ],
)
def test_operands_that_are_no_halves_have_no_kernels_of_halves(x, up, more):
    x, up = (f"float32:11,12{layout}" for layout in (x, up))
    signature = Signature(str(fo.Map([fo.Gate("up")])), x, {"up": up})
    assert len(variants([signature], HOPPER)) == 2 + more


def test_a_kernel_that_cannot_be_had_is_told(monkeypatch):
    on_hopper(monkeypatch)
    op = grouped_plain._WithoutStore(moves=False, ends=True)
    monkeypatch.setattr(grouped_plain, "_op", lambda moves, ends: op)
    monkeypatch.setattr(kernel_or_torch, "build_or_warn", lambda planned, *_: None)
    x, w = randn(4096, 1024).to(BFLOAT16), randn(8, 512, 1024).to(BFLOAT16)
    with forced("Together"):
        assert grouped_plain.chosen_without_store(x, w).tiling is not None
        offsets = torch.zeros(8, dtype=torch.int32)
        assert isinstance(op._slow(Reason.MISS, x, {"w": w, "offsets": offsets}, {}), Delegate)
        assert "as a warning said" in grouped_plain.chosen_without_store(x, w).why


@pytest.mark.parametrize("ends", [False, True])
def test_what_offsets_are_is_told(monkeypatch, ends):
    """Lengths that fit the other form, or none, are left to torch, which checks them."""
    on_hopper(monkeypatch)
    monkeypatch.setattr(kernel_or_torch, "build_or_warn", lambda planned, *_: planned)
    op = grouped_plain._WithoutStore(False, ends)
    x, w = randn(4096, 1024).to(BFLOAT16), randn(8, 512, 1024).to(BFLOAT16)
    for length in (7, 8, 9, 10):
        offsets = torch.zeros(length, dtype=torch.int32)
        with forced("Together"):
            made = op._slow(Reason.MISS, x, {"w": w, "offsets": offsets}, {})
        assert isinstance(made, Delegate) == (length != 9 - ends)


def test_matrices_of_other_groups():
    way, *_ = route(torch.tensor([[0, 1], [1, 2]]), torch.ones(2, 2), randn(2, 8), 3)
    with raises(ValueError, "4 matrices", "3 groups"):
        summed_product(randn(4, 8), randn(4, 8, 8), way, 2)


def test_nothing_outlives_a_recording(monkeypatch, tmp_path):
    recording(monkeypatch, tmp_path)
    x, w = randn(4096, 1024).to(BFLOAT16), randn(8, 512, 1024).to(BFLOAT16)
    given = {"w": w, "offsets": torch.zeros(8, dtype=torch.int32)}
    for op in (grouped_plain._WithoutStore(False, ends=True), SWIGLU.with_gradients):
        assert op._slow(Reason.MISS, x, {**given}, {}) is None
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(SWIGLU, "run_apart", lambda *_, **__: "result")
    tensors, offsets = small(SWIGLU, (4, 0, 5, 2)), offsets_of((4, 0, 5, 2), "cpu")
    tensors = {name: one.detach() for name, one in tensors.items()} | {"offsets": offsets}
    assert SWIGLU.implementation(tensors.pop("x"), tensors.pop("w"), tensors) == "result"
