# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Kernels access no memory before the previous kernel has ended (core/dependency.cuh).

A compiler may move a read through the read-only path above the wait, if it knows the address by
then: ptxas 13 does, where the wait does not come first. So the machine code is looked at.
"""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from cases import OPERATORS, declare, thorough
from test_variants import parameters, tensor

import fusedops as fo
from fusedops.generate.target import Target
from fusedops.plan import forward
from fusedops.run.gradient import described
from fusedops.tuning.problem import _gradient

#: Instructions that access global memory, but prefetches.
ACCESS = re.compile(r"\b(LDG|LD|STG|ST|RED|ATOM|ATOMG|LDGSTS|UBLKCP|UTMALDG)\b")
WAIT = "ACQBULK"


def disassembler():
    """The path of nvdisasm, which a toolkit has, and Triton."""
    if found := shutil.which("nvdisasm"):
        return found
    spec = importlib.util.find_spec("triton")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (file := Path(folder) / "backends" / "nvidia" / "bin" / "nvdisasm").is_file():
            return str(file)
    pytest.skip("there is no nvdisasm")


def check(variant, tmp_path):
    built, file = variant.build(), tmp_path / "kernel.cubin"
    file.write_bytes(built.read(built.binary.name))
    command = [disassembler(), str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for line in text.splitlines() if re.match(r"\s*/\*[0-9a-f]{4,}\*/", line)]
    wait = next(i for i, line in enumerate(lines) if WAIT in line)
    assert any(ACCESS.search(line) for line in lines[wait:])
    assert not [line for line in lines[:wait] if ACCESS.search(line)], variant.source


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("rows", [8, *thorough(4096)])
@pytest.mark.parametrize("columns", [1024, *thorough(32, 256, 1023, 4096, 16384, 50257)])
@pytest.mark.parametrize("operator", [*thorough("softmax", "rms_norm"), "layer_norm"])
def test_nothing_is_read_before_the_wait(operator, columns, rows, tmp_path):
    op = declare(OPERATORS[operator])
    given = {name: one.half() for name, one in parameters(op, columns).items()}
    check_both(op, tensor(rows, columns, dtype=torch.float16), given, tmp_path)


@pytest.mark.thorough
def test_nor_is_a_number_that_all_rows_share(tmp_path):
    """Its address is known when a kernel begins."""
    op = fo.Softmax(load=[fo.Scale("s")], store=[fo.Scale("t")])
    number = tensor(1, dtype=torch.float32).squeeze()
    check_both(op, tensor(8, 1024, dtype=torch.float16), {"s": number, "t": number}, tmp_path)


def check_both(op, x, given, tmp_path):
    target = Target.named("sm_90")
    bound = op.bind(x, given)
    gradient = _gradient(bound)
    for told in (
        forward.describe(bound, target),
        gradient.describe(*described(bound, gradient), target),
    ):
        for variant in told.variants:
            check(variant, tmp_path)
